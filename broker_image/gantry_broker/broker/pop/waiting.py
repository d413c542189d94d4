"""Waiting pops and NOTIFICATIONs: by group and topic, and by each topic whose messages they may get. No sockets, no
clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from gantry_broker.broker.pop.finding import FilteredPop, Taken
from gantry_broker.protocol.pop_handle import retry_topic_v1, retry_topic_v2
from gantry_broker.shares import Shares

MAX_WAITING: Final = 100_000
"""RocketMQ's `maxPopPollingSize`: waiting pops of one broker."""
MAX_OF_GROUP: Final = 8_192
"""Waiting pops of one group for one topic."""
MAX_NOTIFICATIONS: Final = 10_000
"""Waiting NOTIFICATIONs of one broker."""

Pair = tuple[str, str]
"""(group, topic)."""


class Waiter:
    """One waiting pop; its future gets what was taken for it, or None when its time is over."""

    __slots__ = ("future", "query", "timer")

    def __init__(self, query: FilteredPop, future: asyncio.Future[Taken | None]) -> None:
        self.query = query
        self.future = future
        self.timer: asyncio.TimerHandle | None = None

    def end(self, taken: Taken | None) -> None:
        if not self.future.done():
            self.future.set_result(taken)


class WaitingPops:
    """All waiting pops, bounded in total, for each group and topic, and for each connection and user."""

    def __init__(self, most: int = MAX_WAITING, most_of_group: int = MAX_OF_GROUP) -> None:
        self._shares = Shares(most)
        self._most_of_group = most_of_group
        self._waiting: dict[Pair, dict[Waiter, None]] = {}
        self._pairs: dict[str, dict[Pair, None]] = {}
        """Topic to the pairs that get messages from it; retry topics lead to those of their topic."""

    def __len__(self) -> int:
        return self._shares.taken

    def of(self, group: str, topic: str) -> int:
        """Return how many pops of a group wait for a topic."""
        return len(self._waiting.get((group, topic), ()))

    def add(self, waiter: Waiter) -> bool:
        """Take a waiting pop; returns False when there are too many."""
        request = waiter.query.request
        pair = request.group, request.topic
        waiting = self._waiting.get(pair)
        if waiting is not None and len(waiting) >= self._most_of_group:
            return False
        if not self._shares.take(request.owners):
            return False
        if waiting is None:
            waiting = self._waiting[pair] = {}
            for topic in self._topics(pair):
                self._pairs.setdefault(topic, {})[pair] = None
        waiting[waiter] = None
        return True

    def remove(self, waiter: Waiter) -> None:
        """Forgets a waiting pop."""
        request = waiter.query.request
        pair = request.group, request.topic
        waiting = self._waiting.get(pair)
        if waiting is None or waiter not in waiting:
            return
        del waiting[waiter]
        self._shares.give_back(request.owners)
        if not waiting:
            del self._waiting[pair]
            for topic in self._topics(pair):
                pairs = self._pairs[topic]
                del pairs[pair]
                if not pairs:
                    del self._pairs[topic]

    @staticmethod
    def _topics(pair: Pair) -> tuple[str, str, str]:
        group, topic = pair
        return topic, retry_topic_v2(group, topic), retry_topic_v1(group, topic)

    def pairs(self, topic: str) -> Iterable[Pair]:
        """Return the pairs with pops that may get a topic's messages."""
        return list(self._pairs.get(topic, ()))

    def waiters(self, pair: Pair) -> Sequence[Waiter]:
        """Return a pair's waiting pops, the first that came first."""
        return list(self._waiting.get(pair, ()))

    def take_all(self) -> list[Waiter]:
        """Forgets all waiting pops and returns them."""
        waiters = [waiter for waiting in self._waiting.values() for waiter in waiting]
        self._waiting, self._pairs, self._shares = {}, {}, Shares(self._shares.most)
        return waiters
