"""What one request of each method may bring: bytes, and the fields that protobuf would make objects of. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from gantry_broker.proxy import elements
from gantry_broker.proxy.messages import MAX_BODY
from gantry_broker.proxy.rpc import GrpcStatus, RpcError

KIB: Final = 1024


class Limit(NamedTuple):
    """`size`: bytes. `fields`: those of submessages included; 10,000 cost 4 ms."""

    size: int
    fields: int


_ORDINARY: Final = Limit(16 * KIB, 256)
LIMITS: Final = {
    "SendMessage": Limit(MAX_BODY + KIB * KIB, 20_000),
    "AckMessage": Limit(KIB * KIB, 8_000),
    "Telemetry": Limit(256 * KIB, 10_000),
    "ReceiveMessage": Limit(64 * KIB, 256),
    "SyncLiteSubscription": Limit(64 * KIB, 4_000),
}
"""By method, where that is not `_ORDINARY`."""
MAX_MESSAGES: Final = 1_000
"""Messages of one SendMessage, and entries of one AckMessage."""


def limit_of(method: str) -> Limit:
    return LIMITS.get(method, _ORDINARY)


def parser(message_class: Any, method: str) -> Callable[[bytes], Any]:
    """Return the function that gives the message of some bytes, and raises RpcError."""
    most = limit_of(method).fields
    surely = most * elements.SMALLEST
    layout = elements.layout_of(message_class)
    read = message_class.FromString

    def parse(data: bytes) -> Any:
        try:
            if len(data) > surely:
                elements.check(data, layout, most)
            return read(data)
        except elements.TooMany as error:
            raise RpcError(GrpcStatus.RESOURCE_EXHAUSTED, str(error)) from None
        except DecodeError:
            name = message_class.DESCRIPTOR.name
            raise RpcError(GrpcStatus.INVALID_ARGUMENT, f"the request is no {name}") from None

    return parse
