"""Held pulls: a pull without messages waits until its queue grows, or its time is over.

State without sockets or clock. The caller (`service.py`) decides what a pull is and how to try it again.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

MAX_HELD = 100_000
"""The most held pulls of one broker. A further pull is answered at once with "nothing yet"."""


class HeldPull(Generic[T]):
    """One held pull; `done` once it is answered or given up."""

    __slots__ = ("deadline_ms", "done", "key", "pull")

    def __init__(self, key: tuple[str, int], pull: T, deadline_ms: int) -> None:
        self.key = key
        self.pull = pull
        self.deadline_ms = deadline_ms
        self.done = False


class HeldPulls(Generic[T]):
    """Held pulls by (topic, queue) and by deadline; memory is bounded by `limit`."""

    def __init__(self, limit: int = MAX_HELD) -> None:
        self.limit = limit
        self.passed_over: set[tuple[str, int]] = set()
        """Queues that grew while their pulls could not be answered. They are woken again."""
        self._by_queue: dict[tuple[str, int], dict[HeldPull[T], None]] = {}
        self._by_time: list[tuple[int, int, HeldPull[T]]] = []
        self._count = 0
        self._serial = 0

    def __len__(self) -> int:
        return self._count

    def hold(self, topic: str, queue_id: int, pull: T, deadline_ms: int) -> bool:
        """Holds a pull; returns False when there are too many, and the caller answers at once."""
        if self._count >= self.limit:
            return False
        key = (topic, queue_id)
        held = HeldPull(key, pull, deadline_ms)
        self._by_queue.setdefault(key, {})[held] = None
        self._serial += 1
        heapq.heappush(self._by_time, (deadline_ms, self._serial, held))
        self._count += 1
        return True

    def waiting(self, topic: str, queue_id: int) -> deque[HeldPull[T]]:
        """Returns the pulls that wait for a queue, for `try_each`."""
        return deque(self._by_queue.get((topic, queue_id), ()))

    def everything(self) -> list[HeldPull[T]]:
        """Returns all pulls that wait."""
        return [held for waiting in self._by_queue.values() for held in waiting]

    def try_each(
        self,
        waiting: deque[HeldPull[T]],
        attempt: Callable[[T], bool],
        may_go_on: Callable[[], bool] = lambda: True,
    ) -> None:
        """Tries pulls and takes them out of `waiting`; `attempt` returns whether the pull is answered.

        Ends when `may_go_on` returns False; the caller tries the rest of `waiting` later.
        """
        while waiting and may_go_on():
            held = waiting.popleft()
            if not held.done and attempt(held.pull):
                self.end(held)

    def end(self, held: HeldPull[T]) -> None:
        """Ends a pull that is answered or given up."""
        if held.done:
            return
        held.done = True
        self._count -= 1
        waiting = self._by_queue[held.key]
        del waiting[held]
        if not waiting:
            del self._by_queue[held.key]

    def due(self, now_ms: int, most: int = 1 << 30) -> list[HeldPull[T]]:
        """Removes and returns the pulls whose time is over, at most `most`."""
        out: list[HeldPull[T]] = []
        while self._by_time and len(out) < most and (self._by_time[0][2].done or self._by_time[0][0] <= now_ms):
            held = heapq.heappop(self._by_time)[2]
            if not held.done:
                self.end(held)
                out.append(held)
        if len(self._by_time) > 2 * self._count + 1_000:
            self._by_time = [e for e in self._by_time if not e[2].done]
            heapq.heapify(self._by_time)
        return out

    def next_deadline_ms(self) -> int | None:
        while self._by_time and self._by_time[0][2].done:
            heapq.heappop(self._by_time)
        return self._by_time[0][0] if self._by_time else None
