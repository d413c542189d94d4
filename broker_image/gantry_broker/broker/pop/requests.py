"""What `PopService` takes and gives."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from gantry_broker.protocol.pop_handle import Handle

MAX_MESSAGES: Final = 32
"""Messages of one pop."""
MAX_INVISIBLE_MS: Final = 43_200_000
MAX_POLL_MS: Final = 120_000
"""The longest wait of a pop for messages."""


def _open() -> bool:
    return False


@dataclass(slots=True, kw_only=True)
class Pop:
    """One pop or peek."""

    group: str
    topic: str
    queue_id: int = -1
    """-1: any queue."""
    max_messages: int = MAX_MESSAGES
    invisible_ms: int = 60_000
    poll_ms: int = 0
    """How long a pop that finds nothing waits; 0: it does not."""
    init_mode: int = 0
    """Where a new group begins: 0 at the first message of each queue, 1 at its end."""
    expression: str = "*"
    expression_type: str = "TAG"
    order: bool = False
    attempt_id: str | None = None
    """A client's mark of one orderly pop: with the same mark it may pop the same messages again."""
    closed: Callable[[], bool] = _open
    """Whether the client has gone: its waiting pop gets no messages."""
    owners: tuple[Hashable, ...] = ()
    """Whose share of the places it takes while it waits (`broker/shares.py`)."""

    @property
    def owner(self) -> str:
        """The user or address that asks; empty: not known."""
        return str(self.owners[-1]) if self.owners else ""


class PopStatus(Enum):
    FOUND = "found"
    POLLING_FULL = "too many pops wait"
    POLLING_TIMEOUT = "no message came in time"
    NO_MESSAGE = "no message, or none may be popped now"


@dataclass(slots=True, kw_only=True)
class Popped:
    """The answer to a pop. The text fields are those of RocketMQ's response header."""

    status: PopStatus
    data: bytes = b""
    """The records; those of retry topics name the topic that was asked for, and hold their handle (POP_CK)."""
    count: int = 0
    pop_ms: int = 0
    invisible_ms: int = 0
    revive_queue: int = 0
    rest: int = 0
    """Messages behind these, as far as known."""
    start_offset_info: str = ""
    message_offset_info: str = ""
    order_count_info: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """One message that a client has processed. Handle and queue agree."""

    group: str
    topic: str
    """As the request names it; the handle says whether a retry topic is meant."""
    handle: Handle


class AckResult(Enum):
    OK = "acknowledged now or before"
    INVALID = "the delivery has expired, or never was"
    NO_MESSAGE = "the queue has no such message"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeInvisible:
    """A new invisible time, from now on, for a message in flight."""

    group: str
    topic: str
    handle: Handle
    invisible_ms: int
    suspend: bool = False
    """The delivery that ends does not count as an attempt."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """Messages of one queue that were popped and are not finished."""

    queue_id: int
    count: int
    next_offset: int
    """The offset of the next pop."""
