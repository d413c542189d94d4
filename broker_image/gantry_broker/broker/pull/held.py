"""Held pulls: a pull without messages waits until its queue grows, or its time is over.

State without sockets or clock. The caller (`service.py`) decides what a pull is and how to try it again.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from gantry_broker.shares import Owners, Shares

MAX_HELD = 100_000
"""The most held pulls of one broker. A further pull is answered at once with "nothing yet"."""


class HeldPull:
    """The part of a pull that `HeldPulls` sets; `done` once it is answered or given up."""

    __slots__ = ("deadline_ms", "done", "key")

    deadline_ms: int
    done: bool
    key: tuple[str, int]


T = TypeVar("T", bound=HeldPull)


class HeldPulls(Generic[T]):
    """Held pulls by (topic, queue) and by deadline; memory is bounded by `limit`."""

    def __init__(self, limit: int = MAX_HELD, owners: Callable[[T], Owners] = lambda pull: ()) -> None:
        """`owners`: who pays for a pull, see `Shares`."""
        self.limit = limit
        self._owners = owners
        self._free_for_all = limit // 4
        """So many pulls are held without a look at their owners: no one has more than a fair share of so few."""
        self._shares: Shares | None = None
        """None while few pulls are held."""
        self._paid: dict[T, Owners] = {}
        self.passed_over: set[tuple[str, int]] = set()
        """Queues that grew while their pulls could not be answered. They are woken again."""
        self._by_queue: dict[tuple[str, int], dict[T, None]] = {}
        self._by_deadline: dict[int, dict[T, None]] = {}
        self._deadlines: list[int] = []
        """A heap with each deadline once, also of pulls that are done."""
        self._in_heap: set[int] = set()
        self._due: deque[T] = deque()
        """Pulls past their deadline."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def hold(self, topic: str, queue_id: int, pull: T, deadline_ms: int) -> bool:
        """Hold a pull; return False when there are too many, and the caller answers at once."""
        if (self._count >= self._free_for_all or self._shares is not None) and not self._has_share(pull):
            return False
        pull.key = key = (topic, queue_id)
        pull.deadline_ms = deadline_ms
        pull.done = False
        waiting = self._by_queue.get(key)
        if waiting is None:
            self._by_queue[key] = {pull: None}
        else:
            waiting[pull] = None
        together = self._by_deadline.get(deadline_ms)
        if together is None:
            self._by_deadline[deadline_ms] = {pull: None}
            if deadline_ms not in self._in_heap:
                self._in_heap.add(deadline_ms)
                heapq.heappush(self._deadlines, deadline_ms)
        else:
            together[pull] = None
        self._count += 1
        return True

    def _has_share(self, pull: T) -> bool:
        shares = self._shares
        if shares is None:
            shares = self._shares = Shares(self.limit)
            for waiting in self._by_queue.values():
                for held in waiting:
                    self._paid[held] = owners = self._owners(held)
                    shares.take_anyway(owners)
        owners = self._owners(pull)
        if not shares.take(owners):
            return False
        self._paid[pull] = owners
        return True

    def counts(self, keys: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Return the numbers of pulls that wait for these queues; without the queues that have none."""
        by_queue = self._by_queue
        return {key: len(waiting) for key in keys if (waiting := by_queue.get(key)) is not None}

    def waiting(self, topic: str, queue_id: int) -> deque[T]:
        """Return the pulls that wait for a queue, for `try_each`."""
        return deque(self._by_queue.get((topic, queue_id), ()))

    def few(self, key: tuple[str, int], most: int) -> list[T] | None:
        """Return the pulls that wait for a queue; None: there are more than `most`."""
        waiting = self._by_queue.get(key)
        if waiting is None:
            return []
        return list(waiting) if len(waiting) <= most else None

    def everything(self) -> list[T]:
        """Return all pulls that wait."""
        return [pull for waiting in self._by_queue.values() for pull in waiting]

    def try_each(
        self,
        waiting: deque[T],
        attempt: Callable[[T], bool],
        may_go_on: Callable[[], bool] = lambda: True,
    ) -> None:
        """Try pulls and take them out of `waiting`; `attempt` returns whether the pull is answered.

        Ends when `may_go_on` returns False; the caller tries the rest of `waiting` later.
        """
        while waiting and may_go_on():
            pull = waiting.popleft()
            if not pull.done and attempt(pull):
                self.end(pull)

    def end(self, pull: T) -> None:
        """End a pull that is answered or given up."""
        if pull.done:
            return
        pull.done = True
        self._count -= 1
        if self._shares is not None:
            self._shares.give_back(self._paid.pop(pull))
            if self._count < self._free_for_all // 2:
                self._shares = None
                self._paid.clear()
        waiting = self._by_queue[pull.key]
        if len(waiting) == 1:
            del self._by_queue[pull.key]
        else:
            del waiting[pull]
        together = self._by_deadline.get(pull.deadline_ms)
        if together is not None and together.pop(pull, self) is None and not together:
            del self._by_deadline[pull.deadline_ms]

    def due(self, now_ms: int, most: int = 1 << 30) -> list[T]:
        """Remove and return the pulls whose time is over, at most `most`."""
        while self._deadlines and self._deadlines[0] <= now_ms:
            deadline_ms = heapq.heappop(self._deadlines)
            self._in_heap.remove(deadline_ms)
            self._due.extend(self._by_deadline.pop(deadline_ms, ()))
        out: list[T] = []
        while self._due and len(out) < most:
            pull = self._due.popleft()
            if not pull.done:
                self.end(pull)
                out.append(pull)
        return out
