"""Errors of the client. Errors of a connection are in `gantry_broker.remoting.errors`."""

from __future__ import annotations

from gantry_broker.protocol.codes import ResponseCode


class ClientError(Exception):
    """Base of the client's errors."""


class InvalidMessage(ClientError, ValueError):
    """A message or name is invalid. The client sent nothing."""


class NoRoute(ClientError):
    """No NameServer has a route for the topic, or no NameServer answers."""


class BrokerError(ClientError):
    """A broker or NameServer refused a request. `code` is the response code, `remark` the server's text."""

    def __init__(self, what: str, code: int, remark: str | None) -> None:
        try:
            name = ResponseCode(code).name
        except ValueError:
            name = "unknown"
        super().__init__(f"{what}: {name} ({code})" + (f": {remark}" if remark else ""))
        self.code = code
        self.remark = remark


class SendFailed(ClientError):
    """No broker acknowledged a message in time. It may be stored nevertheless. `attempts` lists the failures."""

    def __init__(self, topic: str, attempts: list[str], seconds: float) -> None:
        tried = "; ".join(attempts[-5:]) or "no broker was reachable"
        super().__init__(
            f"message for {topic} was not acknowledged within {seconds:g} s, {len(attempts)} tries: {tried}"
        )
        self.attempts = attempts


class CannotResend(ClientError):
    """No topic is known that the members of a dead letter's group read. The text says what to write instead."""


class RequestFailed(ClientError):
    """A request got no reply in time."""
