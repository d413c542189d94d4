"""How a client's calls fail. Errors of the connection itself are in `gantry_broker.remoting.errors`."""

from __future__ import annotations

from gantry_broker.protocol.codes import ResponseCode


class ClientError(Exception):
    """Base of the client's errors."""


class InvalidMessage(ClientError, ValueError):
    """A message or name that no broker would take; nothing was sent."""


class NoRoute(ClientError):
    """No NameServer knows a broker for the topic, or none could be asked."""


class BrokerError(ClientError):
    """A broker or NameServer answered that it did not do it. `code` is a response code, `remark` its own words."""

    def __init__(self, what: str, code: int, remark: str | None) -> None:
        try:
            name = ResponseCode(code).name
        except ValueError:
            name = "unknown"
        super().__init__(f"{what}: {name} ({code})" + (f": {remark}" if remark else ""))
        self.code = code
        self.remark = remark


class SendFailed(ClientError):
    """A message was not acknowledged in time; it may be stored nevertheless. `attempts` tells what was tried."""

    def __init__(self, topic: str, attempts: list[str], seconds: float) -> None:
        tried = "; ".join(attempts[-5:]) or "no broker could be asked"
        super().__init__(
            f"message for {topic} was not acknowledged within {seconds:g} s, {len(attempts)} tries: {tried}"
        )
        self.attempts = attempts


class RequestFailed(ClientError):
    """A request-reply call got no reply in time."""
