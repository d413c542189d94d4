"""The limits of connections to an HTTP interface: how many there are, and how long each may take.

The decisions are plain functions with the time as an argument. `Connections` keeps the connections of one server and
checks them once a second.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from gantry_broker.timeslice import TimeSlices

log = logging.getLogger(__name__)

HEAD_S: Final = 5.0
"""Seconds to a complete request head, from the connection's begin or the head's first byte."""
BODY_S: Final = 10.0
"""Seconds to a complete body, from the end of the head."""
IDLE_S: Final = 30.0
"""Seconds between two requests of one connection."""
STALLED_S: Final = 30.0
"""Seconds in which a client must read a part of an answer."""
CLOSING_S: Final = 5.0
"""Seconds to read the rest of the last answer."""
MAX_HEAD: Final = 8192
"""Most bytes of a request's head."""
SWEEP_S: Final = 1.0


def handshakes(most: int) -> int:
    """Return how many of a server's `most` connections may be without a complete TLS handshake."""
    return max(most // 4, 4)


class Phase(enum.Enum):
    """What a connection waits for."""

    HEAD = enum.auto()
    BODY = enum.auto()
    ANSWER = enum.auto()
    """The request is complete: this program works on it, or streams the answer."""
    IDLE = enum.auto()
    CLOSING = enum.auto()


_LIMIT_S: Final = {Phase.HEAD: HEAD_S, Phase.BODY: BODY_S, Phase.IDLE: IDLE_S, Phase.CLOSING: CLOSING_S}


@dataclass(slots=True)
class State:
    """One connection. Times are those of the event loop."""

    phase: Phase
    since: float
    """The phase began then."""
    stalled_since: float | None = None
    """The client has read nothing of the written bytes since then; None: no bytes wait for it."""
    trusted: bool = False
    """Its last request had the token."""

    def enter(self, phase: Phase, now: float) -> None:
        if phase is not self.phase:
            self.phase, self.since = phase, now

    def wrote(self, unsent: int, now: float) -> None:
        """`unsent`: bytes that wait for the client."""
        if unsent == 0:
            self.stalled_since = None
        elif self.stalled_since is None:
            self.stalled_since = now


def overdue(state: State, now: float) -> bool:
    """Return whether the connection has exceeded its time."""
    if state.stalled_since is not None and now - state.stalled_since >= STALLED_S:
        return True
    limit = _LIMIT_S.get(state.phase)
    return limit is not None and now - state.since >= limit


class Limited(Protocol):
    """A connection, as `Connections` needs it."""

    state: State
    address: str
    """The peer's."""

    def look(self, now: float) -> None:
        """Bring `state` up to date."""
        ...

    def end(self, status: str) -> None:
        """Close it at once; send this status if no answer has begun."""
        ...


T = TypeVar("T", bound=Limited)


def most_dispensable(connections: Iterable[T]) -> T | None:
    """Return the connection to close when there are too many. One that is being closed goes first; then one that waits,
    or whose client does not read its answer; always one without a token before one with it. Of these it is one of the
    address with the most connections, and there one that waits, the longest first: no address closes the connections
    of others. None: all have a request under way.
    """
    everyone = list(connections)
    of_address = Counter(c.address for c in everyone if not c.state.trusted)

    def rank(c: T) -> tuple[bool, int, bool, float]:
        return c.state.trusted, -of_address[c.address], c.state.phase is Phase.ANSWER, c.state.since

    closing = [c for c in everyone if c.state.phase is Phase.CLOSING]
    idle = [c for c in everyone if c.state.phase is not Phase.ANSWER or c.state.stalled_since is not None]
    return min(closing or idle, key=rank, default=None)


class Connections:
    """All connections of one HTTP server, at most `most`."""

    def __init__(self, most: int, slices: TimeSlices | None = None) -> None:
        """`slices`: the time of the event loop that these connections share with others."""
        self.most = most
        self.slices = slices or TimeSlices()
        self.refused: Counter[str] = Counter()
        """Refused requests and connections, by reason."""
        self._all: set[Limited] = set()
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._all)

    def opened(self, connection: Limited) -> None:
        """Add a connection. One too many closes another one, or this one."""
        if self._closed:
            connection.end("503 Service Unavailable")
            return
        if len(self._all) >= self.most:
            victim = most_dispensable(self._all)
            if victim is None:
                self.refuse("connections")
                connection.end("503 Service Unavailable")
                return
            self.refuse("connections")
            self._all.discard(victim)
            victim.end("503 Service Unavailable")
        self._all.add(connection)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    def closed(self, connection: Limited) -> None:
        self._all.discard(connection)

    def refuse(self, reason: str) -> None:
        """Count a refusal, and log at a limited rate."""
        self.refused[reason] += 1
        count = self.refused[reason]
        if count & (count - 1) == 0:
            log.warning("HTTP requests or connections refused (%s): %d", reason, count)

    def close(self) -> None:
        """End all connections, and those that are still to come: a handshake may end after its server.

        One that stayed would be answered by a server that is no more, for as long as its client uses it.
        """
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for connection in list(self._all):
            connection.end("503 Service Unavailable")

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in list(self._all):
            connection.look(now)
            if overdue(connection.state, now):
                if connection.state.phase is not Phase.IDLE:
                    self.refuse("time")
                connection.end("408 Request Timeout")
        self._timer = loop.call_later(SWEEP_S, self._sweep) if self._all else None


def end_with(transport: asyncio.Transport, status: str, *, answer: bool) -> None:
    """Close it at once. `answer`: no answer has begun, so this status can be one."""
    if answer and not transport.is_closing():
        transport.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
    transport.abort() if transport.get_write_buffer_size() else transport.close()
