"""Which client holds each queue of a consumer group, as the clients say: asked while somebody looks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gantry_broker.protocol.fastjson import MessageQueue

from gantry_operator.console import operations as do
from gantry_operator.console.sources import Source

ASK_EVERY_S: Final = 10.0
ASKED: Final = 20
"""Clients of a group that are asked, at most."""
KEPT: Final = 64
"""Groups whose answers are kept."""


@dataclass(slots=True)
class Holders:
    """Answers of one group's clients. `at`: seconds of the clock; None: none has come yet."""

    at: float | None = None
    by_queue: Mapping[MessageQueue, Sequence[str]] = field(default_factory=dict)
    silent: Sequence[str] = ()
    """Clients that did not say."""
    asked: int = 0


class QueueHolders:
    """The last answers of the groups that somebody looked at."""

    def __init__(self, source: Source, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._known: dict[str, Holders] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}

    def of(self, group: str, clients: Sequence[str]) -> Holders:
        """Return the last answers, and ask again in the background if they are old."""
        found = self._known.pop(group, Holders())
        while len(self._known) >= KEPT:
            del self._known[next(iter(self._known))]
        self._known[group] = found
        old = found.at is None or self._clock() - found.at >= ASK_EVERY_S
        if clients and old and group not in self._asking:
            self._asking[group] = asyncio.create_task(self._ask(group, sorted(clients)[:ASKED]))
        return found

    async def close(self) -> None:
        """End the questions."""
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, group: str, clients: Sequence[str]) -> None:
        found = Holders(self._clock(), asked=len(clients), silent=clients)
        try:
            said = await do.subscriptions_of(self._source, group, clients)
            by_queue: dict[MessageQueue, list[str]] = {}
            for one in said:
                for queue in one.queues:
                    by_queue.setdefault(queue, []).append(one.client)
            found = Holders(self._clock(), by_queue, [one.client for one in said if one.problem], len(clients))
        except do.OperationError:
            pass  # The page names the clients that did not answer.
        finally:
            self._known[group] = found
            self._asking.pop(group, None)
