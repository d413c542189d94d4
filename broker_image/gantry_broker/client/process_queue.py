"""Messages of one queue in flight: pulled, not yet consumed. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gantry_broker.client.message import ReceivedMessage


@dataclass(frozen=True, slots=True)
class FlowLimits:
    """Limits at which pulling stops, per queue; RocketMQ's defaults. `span` is between the first and last offset in
    flight.
    """

    messages: int = 1000
    bytes: int = 100 * 1024 * 1024
    span: int = 2000


DEFAULT_LIMITS: Final = FlowLimits()


class ProcessQueue:
    """Messages of a queue between pull and consumption. Pulls return offsets in rising order."""

    __slots__ = ("_bytes", "_in_flight", "_last", "consumed", "consumed_ms", "dropped", "next_offset", "pulled_ms")

    def __init__(self, next_offset: int) -> None:
        self._in_flight: dict[int, ReceivedMessage] = {}
        self._bytes = 0
        self._last = next_offset
        self.next_offset = next_offset
        """Offset of the next pull."""
        self.dropped = False
        self.consumed = 0
        self.pulled_ms = 0
        self.consumed_ms = 0

    def __len__(self) -> int:
        return len(self._in_flight)

    @property
    def bytes(self) -> int:
        return self._bytes

    @property
    def commit_offset(self) -> int:
        """The offset below which everything is consumed: the first message in flight, or the offset of the next
        pull.
        """
        # Pulls rise, so the first is the lowest. A commit beyond it would skip it after a restart.
        for offset in self._in_flight:
            return offset
        return self.next_offset

    def add(self, messages: Iterable[ReceivedMessage], next_offset: int, now_ms: int = 0) -> list[ReceivedMessage]:
        """Add the messages of a pull, and return those that are new."""
        self.pulled_ms = now_ms
        added = []
        for message in messages:
            offset = message.queue_offset
            if offset not in self._in_flight:
                self._in_flight[offset] = message
                self._bytes += message.record.size
                self._last = max(self._last, offset)
                added.append(message)
        self.next_offset = next_offset
        return added

    def done(self, message: ReceivedMessage, now_ms: int = 0) -> None:
        """Remove a message after it was consumed or sent back."""
        in_flight = self._in_flight.pop(message.queue_offset, None)
        if in_flight is not None:
            self._bytes -= in_flight.record.size
            self.consumed += 1
            self.consumed_ms = now_ms

    def full(self, limits: FlowLimits) -> bool:
        """Return whether pulling must wait."""
        if not self._in_flight:
            return False
        return (
            len(self._in_flight) >= limits.messages
            or self._bytes >= limits.bytes
            or self._last - self.commit_offset > limits.span
        )
