"""Turns of the connections and calls of one event loop: what peers bring is worked on while a pass has time left."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

PASS_S: Final = 0.01
"""Seconds of one pass of the event loop after which no more of this work begins."""
TURN_S: Final = 0.002
"""Seconds of one turn while others wait."""
CALL_S: Final = 0.001
"""Seconds that a call which waited for its turn is assumed to take: it works only after the turn was given."""


class Turns:
    """First come, first served. Everything that a pass does counts, also what others do between two pieces of work."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._began: float | None = None
        """When this pass first asked."""
        self._queue: deque[Callable[[], None]] = deque()

    def __len__(self) -> int:
        """Work that waits."""
        return len(self._queue)

    def has_time(self) -> bool:
        """Whether this pass of the event loop has time left."""
        now = self._clock()
        if self._began is None:
            self._began = now
            asyncio.get_running_loop().call_soon(self._next_pass)
        return now - self._began < PASS_S

    def limit(self) -> Callable[[], bool]:
        """Return a function that says whether the turn that begins now may go on."""
        has_time, queue, clock = self.has_time, self._queue, self._clock
        ends = clock() + TURN_S

        def go_on() -> bool:
            return has_time() and (not queue or clock() < ends)

        return go_on

    def run(self, work: Callable[[], None]) -> bool:
        """Run the work now and return True, or return False and run it when its turn comes. It must not raise."""
        if self._queue or not self.has_time():
            self.later(work)
            return False
        work()
        return True

    def later(self, work: Callable[[], None]) -> None:
        """Run the work when its turn comes, after this pass."""
        self._queue.append(work)
        self.has_time()  # so that the next pass looks at the queue

    async def turn(self) -> None:
        """Wait until a call may begin its work."""
        if not self._queue and self.has_time():
            return
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def begin() -> None:
            if not given.done():
                given.set_result(None)
                if self._began is not None:
                    self._began -= CALL_S

        self.later(begin)
        await given

    def _next_pass(self) -> None:
        self._began = None
        queue = self._queue
        while queue and self.has_time():
            queue.popleft()()
