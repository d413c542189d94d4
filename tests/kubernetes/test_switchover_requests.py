"""Switchover requests by annotation: each is carried out once and answered, whatever comes in between."""

from __future__ import annotations

import asyncio
import copy
from types import SimpleNamespace
from typing import Any, cast

import pytest
from gantry_broker.contracts.leadership import LeadershipRecord, MemberId
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.cluster.control import ClusterControl
from gantry_operator.cluster.group_controller import SwitchoverFailed
from gantry_operator.plan.plan import plan
from gantry_operator.platforms.kubernetes.api.client import ApiUnavailable, KubeApi
from gantry_operator.platforms.kubernetes.api.cluster_resource import ClusterResource
from gantry_operator.platforms.kubernetes.api.events import EventRecorder
from gantry_operator.platforms.kubernetes.requests import switchover_requests
from gantry_operator.platforms.kubernetes.requests.switchover_request import (
    SWITCHOVER,
    SWITCHOVER_BEGUN,
    SWITCHOVER_RESULT,
)
from gantry_operator.platforms.kubernetes.requests.switchover_requests import SwitchoverRequests

from tests.support.running import until

PLAN = plan(BrokerCluster.make("demo", "mq", brokerGroups=[{"name": "a", "members": 3}]))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switchover_requests, "AGAIN_S", 0.05)


class Resource:
    """The cluster object in the API, and a controller in which each switchover has the next member as leader."""

    def __init__(self, request: str) -> None:
        self.annotations: dict[str, str] = {SWITCHOVER: request}
        self.version = 1
        self.asked: list[int | None] = []
        self.refuses: list[str] = []
        """Annotations of which the next write fails."""
        self.loses: list[str] = []
        """The same, but the write succeeds."""
        self.meanwhile = ""
        self.leadership: LeadershipRecord | None = LeadershipRecord(1, 1, MemberId(0, "x"), frozenset())
        self.dies = False
        self.changed = False
        """The spec is changed while the answer to a write is on its way."""
        self.operator()

    def operator(self) -> None:
        """A controller that has just started to lead."""
        self.passes = 0
        self.known = ClusterResource(cast(KubeApi, self), self.seen())
        control = cast(
            ClusterControl,
            SimpleNamespace(plan=PLAN, refused="", switchover_of=lambda g, m: (self, PLAN.switchover_target(g, m))),
        )
        events = cast(EventRecorder, SimpleNamespace(record=lambda *words: None))
        self.requests = SwitchoverRequests(self.known, control, events, self.again)

    def again(self) -> None:
        self.passes += 1

    def seen(self) -> dict[str, Any]:
        meta = {"annotations": copy.deepcopy(self.annotations), "resourceVersion": str(self.version), "generation": 1}
        return {"metadata": {"namespace": "mq", "name": "demo", **meta}}

    async def known_leadership(self) -> LeadershipRecord:
        for _ in range(100):
            if self.leadership is not None:
                return self.leadership
            await asyncio.sleep(0.01)
        raise SwitchoverFailed("no reason is known")

    async def switchover(self, to: int | None, reason: str) -> str:
        self.asked.append(to)
        assert self.leadership is not None
        assert self.leadership.master is not None
        self.leadership = self.leadership.promoted(MemberId((self.leadership.master.member + 1) % 3, "x"), ())
        if self.dies:
            raise asyncio.CancelledError
        if self.meanwhile:
            self.annotations[SWITCHOVER], self.meanwhile = self.meanwhile, ""
            self.version += 1
            self.known.obj = self.seen()
        return f"to {to}"

    async def merge(self, kind: Any, namespace: str, name: str, patch: dict[str, Any]) -> dict[str, Any]:
        for key in patch["metadata"]["annotations"]:
            if key in self.refuses:
                self.refuses.remove(key)
                raise ApiUnavailable("the API server is away")
        self.version += 1
        for key, value in patch["metadata"]["annotations"].items():
            if value is None:
                self.annotations.pop(key, None)
            else:
                self.annotations[key] = value
        written = self.seen()
        for key in patch["metadata"]["annotations"]:
            if key in self.loses:
                self.loses.remove(key)
                raise ApiUnavailable("the connection broke")
        if self.changed:
            self.version += 1
            self.known.update(self.seen() | {"spec": "another"})
        return written

    async def look(self) -> None:
        self.known.obj = self.seen()
        self.requests.look()
        await until(lambda: not self.requests.at_work)


async def test_a_request_that_arrives_during_another_is_not_removed_with_it() -> None:
    resource = Resource("a=demo-a-1")
    resource.meanwhile = "a=demo-a-2"
    await resource.look()
    assert resource.annotations == {SWITCHOVER: "a=demo-a-2", SWITCHOVER_RESULT: "a=demo-a-1 done: to 1"}
    await resource.look()
    assert resource.annotations == {SWITCHOVER_RESULT: "a=demo-a-2 done: to 2"}
    assert resource.asked == [1, 2]


@pytest.mark.parametrize("again", [False, True])
async def test_a_request_whose_answer_cannot_be_written_is_not_fulfilled_twice(again: bool) -> None:
    """The best candidate is another one each time."""
    resource = Resource("a")
    resource.refuses = [SWITCHOVER_RESULT]
    await resource.look()
    await resource.look()
    assert resource.asked == [None]
    assert resource.annotations == {SWITCHOVER_RESULT: "a done: to None"}
    if again:
        resource.annotations[SWITCHOVER] = "a"
        await resource.look()
        assert resource.asked == [None, None], "the same words later are another request"


async def test_an_operator_that_ends_before_it_has_answered_is_followed_by_one_that_answers() -> None:
    resource = Resource("a #1")
    resource.dies = True
    await resource.look()
    assert resource.annotations[SWITCHOVER] == "a #1", "it has no answer"
    resource.operator()
    await resource.look()
    assert resource.asked == [None]
    assert resource.annotations == {SWITCHOVER_RESULT: "a #1 done: demo-a-1 leads a in epoch 2"}


async def test_the_next_operator_fulfils_a_request_without_a_result() -> None:
    resource = Resource("a #1")
    before, resource.dies = resource.leadership, True
    await resource.look()
    resource.operator()
    resource.leadership, resource.dies = before, False
    await resource.look()
    assert resource.asked == [None, None]
    assert resource.annotations == {SWITCHOVER_RESULT: "a #1 done: to None"}


async def test_the_record_of_another_request_does_not_count_for_this_one() -> None:
    resource = Resource("a #2")
    resource.annotations[SWITCHOVER_BEGUN] = "a #1 in epoch 0 of member 2"
    await resource.look()
    assert resource.asked == [None]
    assert resource.annotations == {SWITCHOVER_RESULT: "a #2 done: to None"}


async def test_a_request_withdrawn_without_an_operator_does_not_answer_the_next_one() -> None:
    """The same words again, after a failover in between."""
    resource = Resource("a")
    resource.annotations = {SWITCHOVER_BEGUN: "a in epoch 1 of member 0"}
    resource.refuses = [SWITCHOVER_BEGUN]
    await resource.look()
    assert resource.passes, "to be tried again"
    await resource.look()
    assert resource.annotations == {}
    assert resource.leadership is not None
    resource.leadership = resource.leadership.promoted(MemberId(1, "x"), ())
    resource.annotations = {SWITCHOVER: "a"}
    await resource.look()
    assert resource.asked == [None]
    assert resource.annotations == {SWITCHOVER_RESULT: "a done: to None"}


async def test_a_request_with_an_unconfirmed_answer_does_not_answer_the_next_one() -> None:
    """The same words again, later."""
    resource = Resource("a")
    resource.loses = [SWITCHOVER_RESULT]
    older = resource.seen()
    await resource.look()
    assert resource.annotations == {SWITCHOVER_RESULT: "a done: to None"}
    resource.known.update(older)
    await resource.look()
    assert resource.asked == [None]
    resource.annotations[SWITCHOVER] = "a"
    resource.version += 1
    await resource.look()
    assert resource.asked == [None, None]


async def test_a_request_starts_only_after_its_record_and_with_a_known_leader() -> None:
    resource = Resource("a #1")
    resource.refuses = [SWITCHOVER_BEGUN]
    await resource.look()
    assert resource.asked == []
    leadership, resource.leadership = resource.leadership, None
    asyncio.get_running_loop().call_later(0.1, setattr, resource, "leadership", leadership)
    await resource.look()
    assert resource.asked == [None]
    assert resource.annotations == {SWITCHOVER_RESULT: "a #1 done: to None"}


async def test_an_older_event_about_the_resource_restores_no_answered_request() -> None:
    resource = Resource("a #1")
    older = resource.seen()
    await resource.look()
    resource.known.update(older)
    resource.requests.look()
    await asyncio.sleep(0.1)
    assert resource.asked == [None]


async def test_an_answer_that_is_refused_again_and_again_is_not_tried_without_pause() -> None:
    resource = Resource("a=demo-a-1")
    resource.refuses = [SWITCHOVER_RESULT]
    begun = asyncio.get_running_loop().time()
    await resource.look()
    assert resource.passes
    assert asyncio.get_running_loop().time() - begun >= switchover_requests.AGAIN_S


async def test_the_result_of_a_write_does_not_replace_a_newer_version() -> None:
    resource = Resource("a=demo-a-1 #1")
    resource.changed = True
    await resource.look()
    assert resource.known.obj["spec"] == "another"
    assert resource.known.version == 3
