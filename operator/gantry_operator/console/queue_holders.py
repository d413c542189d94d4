"""Which client holds each queue of a consumer group, as the clients say: asked while somebody looks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from gantry_broker.protocol.fastjson import MessageQueue

from gantry_operator.console import operations as do
from gantry_operator.console.last_answers import LastAnswers
from gantry_operator.console.sources import Source

ASKED: Final = 20
"""Clients of a group that are asked, at most."""


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
        self._answers = LastAnswers(Holders(), clock)

    def of(self, group: str, clients: Sequence[str]) -> Holders:
        """Return the last answers, and ask again in the background if they are old."""
        chosen = sorted(clients)[:ASKED]
        ask = partial(self._ask, group, chosen) if chosen else None
        return self._answers.of(group, ask, Holders(self._clock(), asked=len(chosen), silent=chosen))

    async def close(self) -> None:
        """End the questions."""
        await self._answers.close()

    async def _ask(self, group: str, clients: Sequence[str]) -> Holders:
        try:
            answers = await do.subscriptions_of(self._source, group, clients)
        except do.OperationError:  # The page names the clients that did not answer.
            return Holders(self._clock(), asked=len(clients), silent=clients)
        by_queue: dict[MessageQueue, list[str]] = {}
        for one in answers:
            for queue in one.queues:
                by_queue.setdefault(queue, []).append(one.client)
        return Holders(self._clock(), by_queue, [one.client for one in answers if one.problem], len(clients))
