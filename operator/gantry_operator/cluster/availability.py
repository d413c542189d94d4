"""Checks whether clients can use each group: after a relevant change, and at intervals.

A failed check repeats every second until one succeeds. A group without a leader is not checked, because the failover
reports the reason.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gantry_broker.remoting.client import RemotingClient
from gantry_broker.tasks import end_tasks, set_within

from gantry_operator.cluster.probe import check_group

AGAIN_S = 1.0
TRIES = 4
TRY_AGAIN_S = 0.5
"""Tries and the seconds between them before a check counts as failed."""
REST_S = 60.0


@dataclass
class _Group:
    epoch: int = -1
    waits: str = ""
    answering: object = None
    name_servers: Sequence[str] = ()
    registered: str = ""
    reached: str = ""
    broker_name: str = ""
    result: str | None = None
    has_result: bool = False
    checked: bool = False
    """A check has ended: `result` is no guess from the time before the first reports."""
    since: float = 0.0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class Availability:
    """The checks of one cluster. Calls `on_news` when a result changes."""

    def __init__(self, client: RemotingClient, on_news: Callable[[], None]) -> None:
        self._client = client
        self._on_news = on_news
        self._groups: dict[str, _Group] = {}

    def use(self, client: RemotingClient) -> None:
        """Check by this client from the next check on. A check under way with the former one is repeated."""
        self._client = client

    def watch(
        self, group: str, epoch: int, waits: str, answering: object, name_servers: Sequence[str], registered: str,
        reached: str, broker_name: str = "",
    ) -> None:  # fmt: skip
        """Report the present state of the group. `waits`: why it has no working leader; empty: it has one.
        `answering`: the members that answer and accept writes, as any value that changes when they change.
        `broker_name`: RocketMQ's name of the group, if it differs.
        """
        g = self._groups.setdefault(group, _Group())
        if waits and (g.result != waits or not g.has_result):
            g.result, g.has_result = waits, True
            self._on_news()
        servers = tuple(name_servers)
        before = (g.epoch, g.waits, g.answering, g.name_servers, g.reached)
        if (epoch, waits, answering, servers, reached) != before:
            g.changed.set()
        g.epoch, g.waits, g.answering, g.name_servers = epoch, waits, answering, servers
        g.registered, g.reached, g.broker_name = registered, reached, broker_name or group
        if g.task is None or g.task.done():
            g.task = asyncio.create_task(self._check_forever(group, g))

    def forget(self, group: str) -> None:
        """Check a group no more: it leaves, or is gone."""
        g = self._groups.pop(group, None)
        if g is not None and g.task is not None:
            g.task.cancel()

    def answers(self) -> dict[str, str | None]:
        """By group: None after a successful check, else the reason. A group without a check is absent."""
        return {name: g.result for name, g in self._groups.items() if g.has_result}

    def checked(self) -> set[str]:
        """Return the groups of which a check has ended."""
        return {name for name, g in self._groups.items() if g.checked}

    async def close(self) -> None:
        await end_tasks(*(g.task for g in self._groups.values()))

    async def _check_forever(self, group: str, g: _Group) -> None:
        while True:
            g.changed.clear()
            if not g.waits and g.epoch > 0:
                result = await self._check(g)
                g.checked = True
                if not g.waits and (not g.has_result or result != g.result):
                    g.result, g.has_result, g.since = result, True, time.monotonic()
                    self._on_news()
            rest = REST_S if g.has_result and g.result is None else AGAIN_S
            await set_within(g.changed, rest)

    async def _check(self, g: _Group) -> str | None:
        """While the clients' route moves to a new leader, a check may fail where a client's own retry would not."""
        for _ in range(TRIES):
            result = await check_group(self._client, g.name_servers, g.broker_name, g.registered, g.reached)
            if result is None or g.waits:
                break
            await asyncio.sleep(TRY_AGAIN_S)
        return result
