"""Costly work in slices of the event loop, so that everything else goes on in between.

One pass of the loop spends about `SLICE_S` on costly work, for any number of connections; the rest waits in one queue,
first come first served. A request of one short step uses `run`. A request over many items is a coroutine that iterates
over `sliced` items.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final, TypeVar

T = TypeVar("T")

_LONG_S: Final = 0.02
"""Steps that took longer are reported."""

SLICE_S: Final = 0.01
"""Seconds of costly work in one pass of the event loop, approximately."""
HALF_S: Final = SLICE_S / 2
"""See `TimeSlices.read`."""
GRANT_S: Final = 0.002
"""Seconds that a coroutine works before others get their turn."""


class TimeSlices:
    """The costly work of one event loop."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        """Seconds of a monotonic clock."""
        self.used_s = 0.0
        """Seconds of work in this pass. They may be too many by `HALF_S`: see `read`."""
        self.pass_ends = False
        """Whether `used_s` is set back at the end of this pass."""
        self.stepping = False
        """Whether a step runs now."""
        self.queue: deque[Callable[[], None]] = deque()
        self.on_ran: Callable[[float], None] = lambda seconds: None
        """Called with the seconds of each long step."""

    def __len__(self) -> int:
        """Return the number of waiting steps and coroutines."""
        return len(self.queue)

    @property
    def left_s(self) -> float:
        """Return the rest of this pass's time; 0 when something waits already, except for the running one."""
        return 0.0 if self.queue and not self.stepping else max(SLICE_S - self.used_s, 0.0)

    def spent(self, begun: float, used_s: float) -> None:
        """Note that work ended that began at `begun` by the clock, when `used_s` was used: parts of it that were
        noted by themselves do not count twice.
        """
        seconds = self.clock() - begun
        if seconds > _LONG_S:
            self.on_ran(seconds)
        self.charge(max(used_s + seconds - self.used_s, 0.0))

    def read(self, begun: float, used_s: float) -> None:
        """As `spent`, for the many short reads. Only when they have taken `HALF_S`, over however many passes, the end
        of the pass is waited for: that costs as much as a tenth of a short read.
        """
        seconds = self.clock() - begun
        used_s += seconds
        if used_s > self.used_s:
            self.used_s = used_s
            if used_s > HALF_S:
                if seconds > _LONG_S:
                    self.on_ran(seconds)
                self.charge(0.0)

    def later(self, work: Callable[[], None]) -> None:
        """Run a step in its turn, not now. It must not raise."""
        self.queue.append(work)
        self.charge(0.0)

    def charge(self, seconds: float) -> None:
        """Note costly work in this pass, in seconds."""
        self.used_s += seconds
        if not self.pass_ends:
            self.pass_ends = True
            asyncio.get_running_loop().call_soon(self._next_pass)

    def run(self, work: Callable[[], None]) -> bool:
        """Run a step now when there is time left, else in a later pass. Returns True when it has run. It must not
        raise.
        """
        if self.left_s > 0:
            self._step(work)
            return True
        self.later(work)
        return False

    async def grant(self) -> None:
        """Wait for this coroutine's turn to work for `GRANT_S`."""
        if self.left_s > 0:
            self.charge(GRANT_S)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def begin() -> None:
            if not turn.done():
                turn.set_result(None)
                self.charge(GRANT_S)

        self.queue.append(begin)
        self.charge(0.0)
        await turn

    async def sliced(self, items: Iterable[T]) -> AsyncIterator[T]:
        """Yield the items, with a pause whenever their consumer has worked for `GRANT_S`."""
        clock = self.clock
        await self.grant()
        ends = clock() + GRANT_S
        for item in items:
            now = clock()
            if now > ends:
                self.charge(now - ends)
                await self.grant()
                ends = clock() + GRANT_S
            yield item

    def _step(self, work: Callable[[], None]) -> None:
        begun, used_s = self.clock(), self.used_s
        outer, self.stepping = self.stepping, True
        try:
            work()
        finally:
            self.stepping = outer
            self.spent(begun, used_s)

    def _next_pass(self) -> None:
        self.pass_ends = False
        self.used_s = 0.0
        while self.queue and self.used_s < SLICE_S:
            self._step(self.queue.popleft())
        if self.queue:
            self.charge(0.0)
