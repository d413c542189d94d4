"""Statuses of answers, and what a broker's refusal or a failed request is for a client of the proxy. Pure."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, NamedTuple

from gantry_broker.client.errors import BrokerError, NoRoute, SendFailed
from gantry_broker.protocol.bad_field import BadField
from gantry_broker.protocol.codes import ResponseCode
from gantry_broker.protocol.grpc_contract import Code, v2
from gantry_broker.protocol.message import RecordError
from gantry_broker.remoting.errors import RemotingError, RequestTimeout

MAX_TEXT: Final = 1_000
OK: Final = "OK"


class Refusal(Exception):
    """The answer to a request is this code, with a text for the client's log."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


_BY_RESPONSE_CODE: Final = {
    int(ResponseCode.SUCCESS): Code.OK,
    int(ResponseCode.SYSTEM_BUSY): Code.TOO_MANY_REQUESTS,
    int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED): Code.NOT_IMPLEMENTED,
    int(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST): Code.CONSUMER_GROUP_NOT_FOUND,
    int(ResponseCode.TOPIC_NOT_EXIST): Code.TOPIC_NOT_FOUND,
}


def code_of(response: int) -> Code:
    """Return the code for a broker's response code."""
    return _BY_RESPONSE_CODE.get(response, Code.INTERNAL_SERVER_ERROR)


FAILURES: Final = (BrokerError, NoRoute, SendFailed, RemotingError, BadField, RecordError)
"""What requests to brokers raise, and answers that cannot be read."""


def refusal_of(error: Exception) -> Refusal:
    """Return the refusal for one of `FAILURES`."""
    if isinstance(error, BrokerError):
        return Refusal(code_of(error.code), error.remark or str(error))
    if isinstance(error, NoRoute):
        return Refusal(Code.TOPIC_NOT_FOUND, str(error))
    if isinstance(error, SendFailed | RequestTimeout):
        return Refusal(Code.PROXY_TIMEOUT, str(error))
    return Refusal(Code.INTERNAL_SERVER_ERROR, str(error))


def no_route(topic: str) -> Refusal:
    return Refusal(
        Code.TOPIC_NOT_FOUND,
        f"CODE: {int(ResponseCode.TOPIC_NOT_EXIST)}  DESC: No topic route info in name server for the topic: {topic}",
    )


class Answer(NamedTuple):
    """The code of an answer, and its bytes."""

    code: Code
    data: bytes


@lru_cache(maxsize=256)
def status_bytes(code: Code, text: str) -> bytes:
    """Return a status as protobuf writes it."""
    written: bytes = v2.Status(code=code, message=text[:MAX_TEXT]).SerializeToString()
    return written


def set_status(message: Any, code: Code = Code.OK, text: str = OK) -> None:
    """Set the status of an answer, or of an entry of one."""
    status = message.status
    status.code = code
    status.message = text[:MAX_TEXT]


def overall(codes: list[Code]) -> Code:
    """Return the status of an answer with these entries."""
    if not codes:
        return Code.OK
    return codes[0] if all(code == codes[0] for code in codes) else Code.MULTIPLE_RESULTS
