"""The announcement of a new master: a refused step is tried again, and no later announcement overtakes it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import pytest
from gantry_broker.contracts.leadership import Assignment, LeadershipRecord, MemberId
from gantry_operator.cluster.master_slave_controller import MasterSlaveController
from gantry_operator.cluster.member_client import MemberClient
from gantry_operator.cluster.member_http import httpx
from gantry_operator.cluster.member_watch import MemberWatch
from gantry_operator.cluster.platform import MemberEndpoint
from gantry_operator.cluster.rolling_change import RollingChange
from gantry_operator.failover.model import FailoverSettings, Report
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.api import client
from gantry_operator.platforms.kubernetes.api.client import POD, STATEFUL_SET, VOLUME_CLAIM, ApiError, KubeApi
from gantry_operator.platforms.kubernetes.api.informer_cache import InformerCache
from gantry_operator.platforms.kubernetes.api.pod_state import REVISION_LABEL
from gantry_operator.platforms.kubernetes.members import platform
from gantry_operator.platforms.kubernetes.members.platform import KubernetesPlatform
from gantry_operator.platforms.kubernetes.members.pod_replacement import PodReplacement
from gantry_operator.registry import Entry, RegistryUnavailable

from tests.kubernetes.fake_api import FakeApi
from tests.support.running import running, until

HTTP = cast(httpx.AsyncClient, None)
IDS = [MemberId(n, "x") for n in range(2)]


class Registry:
    def __init__(self) -> None:
        self.leadership = LeadershipRecord(1, 1, IDS[0], frozenset(IDS))
        self.reads = 0
        self.away = False

    async def read(self, group: str) -> Entry | None:
        self.reads += 1
        if self.away:
            raise RegistryUnavailable("it is away")
        return Entry(self.leadership)

    async def swap(self, group: str, expected: Entry | None, new: LeadershipRecord) -> bool:
        return False


class FakeMembers(MemberClient):
    """All members have accepted their assignments."""

    def send_assignment(
        self, member: int, url: str, assignment: Assignment, then: Callable[[], None] | None = None
    ) -> None:
        self._accepted[member] = assignment


class Group(MasterSlaveController):
    """A controller over two pods whose brokers follow the record."""

    def __init__(self, pods: KubernetesPlatform) -> None:
        self.registry = Registry()
        super().__init__("a", self.registry, pods, HTTP, FailoverSettings)
        self._member_client = FakeMembers(HTTP, self.wake, self._clock.now)
        for id in IDS:
            watch = MemberWatch(f"demo-a-{id.member}", "http://member", HTTP, self.wake, self._clock.now)
            watch.reach = "ok"
            self.watches[id.member] = watch
        self.led_by(0, 1)

    def led_by(self, member: int, epoch: int) -> None:
        leadership = self.registry.leadership = LeadershipRecord(epoch, 1, IDS[member], frozenset(IDS))
        for id in IDS:
            role: Any = "Master" if id.member == member else "Slave"
            self.watches[id.member].report = Report(id, role, epoch, 1, epoch, in_sync=leadership.in_sync)

    def _follow(self, endpoints: list[MemberEndpoint]) -> None:
        for watch in self.watches.values():
            watch.line_at = self._clock.now()


def pod(name: str, role: str, revision: str = "new") -> dict[str, Any]:
    meta = {"name": name, "namespace": "mq", "labels": {names.ROLE_LABEL: role, REVISION_LABEL: revision}}
    ready = {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {}, "status": ready}


@asynccontextmanager
async def mirrored(fake: FakeApi, api: KubeApi) -> AsyncIterator[KubernetesPlatform]:
    pods = InformerCache(api, POD, (), "", lambda event, obj: None)
    following = asyncio.create_task(pods.run())
    await until(lambda: "Pod" in [kind for kind, _ in fake._watchers])
    claims = InformerCache(api, VOLUME_CLAIM, (), "", lambda event, obj: None)
    found = KubernetesPlatform(api, pods, claims, "demo", "mq", lambda event: None, lambda change: None)
    found.sizes = found.planned = {"a": 2}
    try:
        yield found
    finally:
        following.cancel()


async def test_a_former_master_is_not_replaced_before_the_new_one_is_announced(fake: FakeApi, api: KubeApi) -> None:
    """It may still forward its paused writes, and the master's Service has no other endpoint."""
    fake.put(pod("demo-a-0", names.ROLE_MASTER, "old"))
    fake.put(pod("demo-a-1", names.ROLE_SLAVE))
    meta = {"name": names.group_set("demo", "a"), "namespace": "mq", "generation": 1}
    status = {"observedGeneration": 1, "updateRevision": "new"}
    fake.put({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": meta, "spec": {}, "status": status})
    sets = InformerCache(api, STATEFUL_SET, (), "", lambda event, obj: None)
    following = asyncio.create_task(sets.run())
    await asyncio.wait_for(sets.ready(), 3)
    async with mirrored(fake, api) as pods:
        group = Group(pods)
        pods.answers = lambda group, name: True
        group.entry, group._announced = Entry(group.registry.leadership), 1
        group.led_by(1, 2)
        group.entry = Entry(group.registry.leadership)
        replacement = PodReplacement(api, sets, pods, ("mq", "demo"))
        change = RollingChange(replacement, {"a": group}, lambda event: None)
        assert await change._round()
        assert fake.get("Pod", "demo-a-0") is not None
        group._announced = 2
        assert await change._round()
        assert fake.get("Pod", "demo-a-0") is None
    following.cancel()


async def test_a_refused_announcement_is_tried_again_with_growing_pauses_and_said_once(
    fake: FakeApi, api: KubeApi, caplog: pytest.LogCaptureFixture
) -> None:
    for n in range(2):
        fake.put(pod(f"demo-a-{n}", names.ROLE_SLAVE))
    async with mirrored(fake, api) as pods:
        fake.down, before = True, api.calls
        async with running(Group(pods)) as group:
            await until(lambda: group.problem)
            await asyncio.sleep(1.5)
            assert 4 <= api.calls - before <= 6
            assert "Traceback" not in caplog.text
            assert caplog.text.count("announcing demo-a-0") == 1
            fake.down = False
            await until(lambda: group.announced)
            assert not group.problem


async def test_a_former_master_does_not_keep_its_label_while_that_of_a_third_pod_is_refused(
    fake: FakeApi, api: KubeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "GRACE_S", 0.3)
    merge = api.merge

    async def refuse(kind: Any, namespace: Any, name: str, patch: Any) -> Any:
        if name in refused:
            raise ApiError(403, "Forbidden", "an admission webhook says no")
        return await merge(kind, namespace, name, patch)

    monkeypatch.setattr(api, "merge", refuse)
    for n, role in enumerate((names.ROLE_MASTER, names.ROLE_SLAVE, "none")):
        fake.put(pod(f"demo-a-{n}", role))
    async with mirrored(fake, api) as pods:
        pods.sizes, pods.answers = {"a": 3}, lambda group, name: True

        async def announced_for(seconds: float) -> None:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                with suppress(ApiError):
                    await pods.announce("a", MemberEndpoint("demo-a-1", 1, "http://new", "new:1"), 2)
                await asyncio.sleep(0.05)

        refused = ["demo-a-1", "demo-a-2"]
        await announced_for(0.7)
        assert pods.labelled_master("demo-a-0"), "the Service leads nowhere else"
        refused = ["demo-a-2"]
        await announced_for(0.7)
        assert pods.labelled_master("demo-a-1")
        assert not pods.labelled_master("demo-a-0")


async def test_a_refused_announcement_delays_no_other_one(fake: FakeApi, api: KubeApi) -> None:
    for n in range(2):
        fake.put(pod(f"demo-a-{n}", names.ROLE_SLAVE))
    async with mirrored(fake, api) as pods:
        fake.down = True
        async with running(Group(pods)) as group:
            await until(lambda: group.problem)
            await asyncio.sleep(0.9)  # The next pause is a long one.
            fake.down = False
            group.led_by(1, 2)
            group.wake()
            assert await until(lambda: group.announced) < 0.7
            led = pods.labelled_master("demo-a-1")
            assert led


async def test_a_wait_for_a_leadership_record_does_not_read_it_without_pause(fake: FakeApi, api: KubeApi) -> None:
    async with mirrored(fake, api) as pods:
        group = Group(pods)
        group.registry.away = True
        async with running(group):
            asking = asyncio.create_task(group.known_leadership())
            await asyncio.sleep(1.0)
            assert 5 <= group.registry.reads <= 15
            group.registry.away = False
            assert (await asking).epoch == 1


async def test_an_announcement_that_gets_no_answer_delays_no_later_epoch(fake: FakeApi, api: KubeApi) -> None:
    """Its master may be gone already."""
    for n in range(2):
        fake.put(pod(f"demo-a-{n}", names.ROLE_SLAVE))
    async with mirrored(fake, api) as pods:
        fake.unanswered = [("PATCH", "Pod")]
        async with running(Group(pods)) as group:
            await until(lambda: not fake.unanswered)
            group.led_by(1, 2)
            group.wake()
            assert await until(lambda: group.announced) < 1.5
            assert pods.labelled_master("demo-a-1")
            assert not group._tasks, "the older one is given up"


async def test_an_announcement_that_gets_no_answer_is_tried_again_soon(
    fake: FakeApi, api: KubeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "URGENT_S", 0.3)
    for n in range(2):
        fake.put(pod(f"demo-a-{n}", names.ROLE_SLAVE))
    async with mirrored(fake, api) as pods:
        fake.unanswered = [("PATCH", "Pod")]
        async with running(Group(pods)) as group:
            assert await until(lambda: group.announced) < 1.5
            assert pods.labelled_master("demo-a-0")
