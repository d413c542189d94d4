"""`Available` is the result of a client's send and read, and is checked again after each relevant change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from gantry_broker.remoting.client import RemotingClient
from gantry_operator.cluster import availability
from gantry_operator.cluster.availability import Availability

ALL = frozenset({("demo-a-0", True), ("demo-a-1", False)})
SERVERS = ["10.0.0.9:9876"]


class Group:
    """`said`: the result of a client's check now."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: str | None = None
        self.news = asyncio.Event()
        self.remoting = RemotingClient()
        self.asked = Availability(self.remoting, self.news.set)

        async def check(*_: object) -> str | None:
            return self.said

        monkeypatch.setattr(availability, "check_group", check)
        monkeypatch.setattr(availability, "TRY_AGAIN_S", 0)

    def watch(self, answering: object = ALL, servers: list[str] = SERVERS) -> None:
        self.asked.watch("a", 3, "", answering, servers, "demo-a-master.mq.svc:10911", "10.0.0.1:10911")

    async def next_answer(self) -> str | None:
        async with asyncio.timeout(10):
            await self.news.wait()
        self.news.clear()
        return self.asked.answers()["a"]


@asynccontextmanager
async def available(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Group]:
    group = Group(monkeypatch)
    async with group.remoting:
        group.watch()
        assert await group.next_answer() is None
        yield group
        await group.asked.close()


@pytest.mark.parametrize(
    ("answering", "servers"),
    [
        (frozenset({("demo-a-0", True)}), SERVERS),
        (frozenset({("demo-a-0", False), ("demo-a-1", False)}), SERVERS),
        (ALL, []),
    ],
    ids=["a member is away", "the master has no room", "the NameServer is away"],
)
async def test_a_group_is_checked_again_after_a_change_under_the_same_master(
    monkeypatch: pytest.MonkeyPatch, answering: object, servers: list[str]
) -> None:
    """Too few members for `minInSyncReplicas`, for example."""
    async with available(monkeypatch) as group:
        group.said = "a message was not acknowledged"
        group.watch(answering, servers)
        assert await group.next_answer() == group.said
