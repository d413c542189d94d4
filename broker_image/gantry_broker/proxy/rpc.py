"""The seam between the service and what carries it: methods of bytes, calls, and the ways in which a call ends.

`http2.endpoint` is the one carrier. Another one needs to fill `Call` and to run the `Method` of a path.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Protocol

MAX_MESSAGE: Final = 16 << 20
"""Bytes that a request of any method may announce; beyond it the call ends without an answer of the service."""


class GrpcStatus(IntEnum):
    """gRPC's own status codes; answers of the service carry theirs in the message."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


class RpcError(Exception):
    """The call ends with a status of gRPC instead of an answer."""

    def __init__(self, status: GrpcStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class Call(Protocol):
    """One call. `metadata` has lower-case names, of known fields alone; `peer` is the client's IP address."""

    caller: Any
    """The service's: who makes the call."""
    signed: bool
    """Set by the service: the call has a valid signature. Others must bring their request soon."""

    @property
    def metadata(self) -> Mapping[str, str]: ...

    @property
    def peer(self) -> str: ...

    def time_left(self) -> float | None:
        """Seconds until the client gives the call up; None: it did not say."""

    @property
    def over(self) -> bool:
        """Whether no one waits for an answer any more."""

    async def send(self, message: bytes) -> None:
        """Send one message of a stream; waits while the client reads slowly. Does nothing when the call is over."""


class Conversation(Protocol):
    """One call in which both ends send when they like."""

    def on_message(self, message: bytes) -> None:
        """Must not block. May raise RpcError, which ends the call."""

    def on_end(self) -> None:
        """Learn that the client sends no more; called once, also when the call is over."""


class Line(Call, Protocol):
    """The call of a conversation."""

    def push(self, message: bytes) -> bool:
        """Send a message at once; False: the call is over, or the client reads nothing."""

    def finish(self, status: GrpcStatus = GrpcStatus.OK, message: str = "") -> None:
        """End the call."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The answer to a call whose request is not looked at."""

    answers: tuple[bytes, ...] = ()
    status: GrpcStatus = GrpcStatus.OK
    text: str = ""
    wait: Callable[[], Awaitable[None]] | None = None
    """What comes before the answer."""


Outcome = bytes | Awaitable[bytes]
"""The answer to a call, or what must be awaited for it."""
Direct = Callable[[Call, bytes, Callable[[Outcome], None]], Outcome | None]
"""Serves a call without a task as far as it can. None: the function gets the outcome later, once."""
Unary = Callable[[Call, bytes], Awaitable[bytes]]
Streaming = Callable[[Call, bytes], Awaitable[None]]
Conversing = Callable[[Line], Conversation]


@dataclass(frozen=True, slots=True)
class Method:
    """What serves a path: one of the four, and what is checked before the request is taken."""

    unary: Unary | None = None
    direct: Direct | None = None
    streaming: Streaming | None = None
    conversing: Conversing | None = None
    most: int = MAX_MESSAGE
    """Bytes of one message."""
    admit: Callable[[Call], Refused | None] | None = None
    """Called when the header has come. Raises nothing."""
    too_large: Callable[[Call, int], Refused] | None = None
    """The answer to a message of so many bytes, above `most` and up to `MAX_MESSAGE`."""


Methods = Mapping[str, Method]
"""By path: `/package.Service/Method`."""
