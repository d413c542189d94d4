"""Wishes by annotation: each is fulfilled once and answered, whatever comes in between."""

from __future__ import annotations

import asyncio
import copy
from types import SimpleNamespace
from typing import Any

import pytest
from gantry_operator.api import BrokerCluster
from gantry_operator.kube.client import ApiUnavailable
from gantry_operator.kube.cluster import ClusterKeeper
from gantry_operator.kube.commands import SWITCHOVER, SWITCHOVER_RESULT
from gantry_operator.plan import plan

PLAN = plan(BrokerCluster.make("demo", "mq", brokerGroups=[{"name": "a", "members": 3}]))


class Resource:
    """The cluster object as the API server has it, and the loop that is asked."""

    def __init__(self, wish: str) -> None:
        self.annotations: dict[str, str] = {SWITCHOVER: wish}
        self.asked: list[int | None] = []
        self.fails = 0
        self.meanwhile = ""
        keeper = self.keeper = ClusterKeeper.__new__(ClusterKeeper)
        keeper.namespace, keeper.name = "mq", "demo"
        keeper._dirty, keeper._plan = asyncio.Event(), PLAN
        keeper._untold = keeper._obeying = None
        parts: Any = keeper
        parts._shared = SimpleNamespace(api=self)
        parts._masters = SimpleNamespace(loops={"a": self})
        parts._events = SimpleNamespace(record=lambda *words: None)

    def seen(self) -> dict[str, Any]:
        return {"metadata": {"annotations": copy.deepcopy(self.annotations)}}

    async def switchover(self, to: int | None, reason: str) -> str:
        self.asked.append(to)
        if self.meanwhile:
            self.annotations[SWITCHOVER], self.meanwhile = self.meanwhile, ""
            self.keeper._obj = self.seen()
        return f"to {to}"

    async def merge(self, kind: Any, namespace: str, name: str, patch: dict[str, Any]) -> dict[str, Any]:
        if self.fails:
            self.fails -= 1
            raise ApiUnavailable("the API server is away")
        for key, value in patch["metadata"]["annotations"].items():
            if value is None:
                self.annotations.pop(key, None)
            else:
                self.annotations[key] = value
        return self.seen()

    async def look(self) -> None:
        self.keeper._obj = self.seen()
        self.keeper._obey_soon()
        if self.keeper._obeying is not None:
            await self.keeper._obeying


async def test_a_wish_that_comes_while_another_is_fulfilled_is_not_taken_away_with_it() -> None:
    resource = Resource("a=demo-a-1")
    resource.meanwhile = "a=demo-a-2"
    await resource.look()
    assert resource.annotations == {SWITCHOVER: "a=demo-a-2", SWITCHOVER_RESULT: "a=demo-a-1 done: to 1"}
    await resource.look()
    assert resource.annotations == {SWITCHOVER_RESULT: "a=demo-a-2 done: to 2"}
    assert resource.asked == [1, 2]


@pytest.mark.parametrize("again", [False, True])
async def test_a_wish_whose_answer_cannot_be_written_is_not_fulfilled_twice(again: bool) -> None:
    """The best of the others is another one each time."""
    resource = Resource("a")
    resource.fails = 1
    await resource.look()
    await resource.look()
    assert resource.asked == [None]
    assert resource.annotations == {SWITCHOVER_RESULT: "a done: to None"}
    if again:
        resource.annotations[SWITCHOVER] = "a"
        await resource.look()
        assert resource.asked == [None, None], "the same words later are another wish"
