"""The budget of each connection: what a peer brings is handled in turns, so that no peer holds the event loop.

How a listener uses it: each connection has an `Inbox`, whose owner it is. `data_received` gives all bytes to
`Inbox.received` and does nothing else with them. The inbox calls `owner.handle(data)` as long as the connection has
time: `GRANT_S` a turn, and `SLICE_S` in one pass of the event loop for all connections and all other costly work that
shares the `TimeSlices`. What is left waits in the inbox for a later pass, in its order, behind the turns of others, and
`owner.pause_input(True)` stops reading meanwhile. One call of `handle` has to be short (a few milliseconds): it gets at
most `piece` bytes, and returns True when it has left some of them for its next turn; it then gets b"" first.

An owner that may not go on (its peer does not read, its requests wait) calls `hold(True)`, and later `hold(False)`.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from gantry_broker.timeslice import GRANT_S, SLICE_S

if TYPE_CHECKING:
    from gantry_broker.timeslice import TimeSlices

log = logging.getLogger(__name__)

PIECE: Final = 16 * 1024
"""The most bytes of one call of `handle`."""
FULL: Final = 64 * 1024
"""Reading pauses while so many bytes wait."""


class Owner(Protocol):
    """A connection."""

    def handle(self, data: bytes) -> bool:
        """Handle some bytes. True: some of them are left, call again."""
        ...

    def pause_input(self, wait: bool) -> None:
        """Stop reading (True), or read again."""

    def input_ended(self) -> None:
        """Note that bytes have waited, and that all of them are handled now."""

    def abort(self) -> None:
        """End the connection at once."""


class _Nobody:
    """The owner of an inbox whose connection has ended."""

    def handle(self, data: bytes) -> bool:
        return False

    def pause_input(self, wait: bool) -> None:
        """Do nothing."""

    def input_ended(self) -> None:
        """Do nothing."""

    def abort(self) -> None:
        """Do nothing."""


_NOBODY: Final = _Nobody()


class Inbox:
    """What one connection has brought, until its turn."""

    __slots__ = ("_held", "_more", "_owner", "_parts", "_paused", "_piece", "_queued", "_slices", "_working", "size")

    def __init__(self, slices: TimeSlices, owner: Owner, piece: int = PIECE) -> None:
        self._slices = slices
        self._owner = owner
        self._piece = piece
        self._parts: deque[bytes] = deque()
        self._more = False
        self._held = False
        self._paused = False
        self._queued = False
        self._working = False
        self.size = 0
        """Bytes that wait."""

    def __bool__(self) -> bool:
        """Whether something waits."""
        return self._more or bool(self._parts)

    def received(self, data: bytes) -> None:
        """Handle the bytes of one read, now as far as there is time."""
        slices = self._slices
        used_s = slices.used_s
        if (
            self._parts
            or used_s >= SLICE_S
            or self._more
            or self._held
            or len(data) > self._piece
            or (slices.queue and not slices.stepping)
        ):
            self._parts.append(data)
            self.size += len(data)
            self._go_on()
            return
        begun = slices.clock()
        self._more = more = self._owner.handle(data)
        slices.read(begun, used_s)
        if more:
            self._go_on()

    def hold(self, wait: bool) -> None:
        """Handle nothing while the owner waits for something."""
        if wait != self._held:
            self._held = wait
            if not wait and (self._more or self._parts):
                self._queue()

    def clear(self) -> None:
        """Drop what waits."""
        self._parts.clear()
        self._more = False
        self.size = 0

    def leave(self) -> None:
        """Drop what waits, and let go of the owner, whose connection has ended: both refer to each other, and only a
        full collection would free what the owner holds.
        """
        self.clear()
        self._owner = _NOBODY

    def _go_on(self) -> None:
        if self._slices.left_s > 0 and not self._queued:
            begun, used = self._slices.clock(), self._slices.used_s
            try:
                self._work()
            finally:
                self._slices.spent(begun, used)
        else:
            self._queue()

    def _queue(self) -> None:
        if self.size >= FULL and not self._paused:
            self._paused = True
            self._owner.pause_input(True)
        if not self._queued and not self._held and not self._working:
            self._queued = True
            self._slices.later(self._turn)

    def _turn(self) -> None:
        self._queued = False
        try:
            self._work()
        except Exception:
            log.exception("handling what %r sent failed", self._owner)
            self.clear()
            self._owner.abort()

    def _work(self) -> None:
        """Handle what waits, for `GRANT_S`."""
        clock = self._slices.clock
        until = clock() + GRANT_S
        self._working = True
        try:
            while (self._more or self._parts) and not self._held:
                data = b"" if self._more else self._take()
                self._more = False
                more = self._owner.handle(data)
                self._more = more
                if clock() >= until:
                    break
        finally:
            self._working = False
        if self._more or self._parts:
            self._queue()
            return
        if self._paused:
            self._paused = False
            self._owner.pause_input(False)
        self._owner.input_ended()

    def _take(self) -> bytes:
        first = self._parts[0]
        if len(first) <= self._piece:
            self._parts.popleft()
        else:
            first, self._parts[0] = first[: self._piece], first[self._piece :]
        self.size -= len(first)
        return first
