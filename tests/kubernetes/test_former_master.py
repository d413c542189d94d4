"""The time for which a former master keeps its label beside the new one: while it forwards after a handover."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from gantry_broker.contracts.leadership import Assignment, LeadershipRecord, MemberId
from gantry_operator.cluster.master_slave_controller import MasterSlaveController
from gantry_operator.cluster.member_client import MemberClient
from gantry_operator.cluster.member_http import httpx
from gantry_operator.cluster.member_watch import QUIET_MS, SILENCE_S, MemberWatch
from gantry_operator.cluster.platform import MemberEndpoint
from gantry_operator.cluster.raft_controller import RaftController
from gantry_operator.cluster.stall_compensated_clock import StallCompensatedClock
from gantry_operator.failover.model import FailoverSettings, Report
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.api.client import POD, VOLUME_CLAIM, ApiError, KubeApi
from gantry_operator.platforms.kubernetes.api.informer_cache import InformerCache
from gantry_operator.platforms.kubernetes.members import platform
from gantry_operator.platforms.kubernetes.members.platform import KubernetesPlatform
from gantry_operator.platforms.kubernetes.members.role_labels import RoleLabels
from gantry_operator.registry import Entry

from tests.kubernetes.fake_api import FakeApi
from tests.support.running import running, until

HTTP = cast(httpx.AsyncClient, None)
IDS = [MemberId(n, "x") for n in range(3)]
LEADERSHIP = LeadershipRecord(1, 1, IDS[0], frozenset(IDS))


class Registry:
    leadership = LEADERSHIP

    async def read(self, group: str) -> Entry | None:
        return Entry(self.leadership)

    async def swap(self, group: str, expected: Entry | None, new: LeadershipRecord) -> bool:
        self.leadership = new
        return True


class FakeMembers(MemberClient):
    """All members accept their assignments at once."""

    def __init__(self, take: Callable[[int, Assignment], None], wake: Callable[[], None]) -> None:
        super().__init__(HTTP, wake, time.monotonic)
        self._take = take
        self.handed_over: Callable[[MemberId], None] = lambda target: None

    def send_assignment(
        self, member: int, url: str, assignment: Assignment, then: Callable[[], None] | None = None
    ) -> None:
        self._accepted[member] = assignment
        self._take(member, assignment)
        if then is not None:
            then()

    async def handover(
        self, url: str, target: MemberId, leadership: LeadershipRecord, timeout_ms: int
    ) -> tuple[bool, str]:
        self.handed_over(target)
        return True, ""


class Members:
    """Three members without connections. A frozen one reports nothing, and its connection stays."""

    watches: dict[int, MemberWatch]
    frozen: set[int]
    wake: Callable[[], None]
    _clock: StallCompensatedClock

    def begin(self) -> FakeMembers:
        self.frozen = set()
        for id in IDS:
            watch = MemberWatch(f"demo-a-{id.member}", "http://member", HTTP, self.wake, self._clock.now)
            watch.reach = "ok"
            self.watches[id.member] = watch
        self.led_by(LEADERSHIP)
        return FakeMembers(lambda member, assignment: self.say(member, assignment.leadership), self.wake)

    def led_by(self, leadership: LeadershipRecord) -> None:
        for id in IDS:
            self.say(id.member, leadership)

    def say(self, member: int, leadership: LeadershipRecord) -> None:
        if member in self.frozen:
            return
        role: Any = "Master" if leadership.master == IDS[member] else "Slave"
        current = Report(
            IDS[member], role, leadership.epoch, leadership.version, leadership.epoch, end=1, in_sync=leadership.in_sync
        )
        self.watches[member].report = replace(current, last_epoch=leadership.epoch)
        self.wake()

    def _follow(self, endpoints: list[MemberEndpoint]) -> None:
        for number, watch in self.watches.items():
            if number not in self.frozen:
                watch.line_at = self._clock.now()


class Masters:
    """The pods of a cluster, their labels, and the controllers of its groups."""

    def __init__(self, pods: KubernetesPlatform) -> None:
        self.pods, self.labels, self.clock = pods, RoleLabels(pods), StallCompensatedClock()
        self.controllers: dict[str, Any] = {}
        self.labels.controllers = self.controllers


class Group(Members, MasterSlaveController):
    def __init__(self, groups: Masters) -> None:
        self.registry = Registry()
        MasterSlaveController.__init__(self, "a", self.registry, groups.pods, HTTP, FailoverSettings, groups.clock)
        self._member_client = self.begin()

    async def fail_over(self) -> None:
        self.frozen.add(0)


class Elected(Members, RaftController):
    def __init__(self, groups: Masters) -> None:
        RaftController.__init__(self, "a", groups.pods, HTTP, FailoverSettings, groups.clock)
        current = self._member_client = self.begin()
        current.handed_over = lambda target: self.led_by(LeadershipRecord(2, 1, target, frozenset(IDS)))

    async def fail_over(self) -> None:
        """The others may have heard nothing from it for a second before it froze."""
        self.frozen.add(0)
        await asyncio.sleep(0.6)
        self.led_by(LeadershipRecord(2, 1, IDS[1], frozenset(IDS)))


def pod(name: str, group: str, role: str) -> dict[str, Any]:
    labels = names.labels("demo", names.BROKER, group) | {names.ROLE_LABEL: role}
    meta = {"name": name, "namespace": "mq", "labels": labels}
    return {"kind": "Pod", "metadata": meta, "spec": {}, "status": {"podIP": "10.0.0.1"}}


def roles(fake: FakeApi, group: str = "a", count: int = 3) -> list[str]:
    pods = [fake.objects["Pod", "mq", f"demo-{group}-{n}"] for n in range(count)]
    return [p["metadata"]["labels"][names.ROLE_LABEL] for p in pods]


@asynccontextmanager
async def masters(fake: FakeApi, api: KubeApi, groups: str = "a", count: int = 3) -> AsyncIterator[Masters]:
    """Member 0 of each group has the label."""
    for group in groups:
        for n in range(count):
            fake.put(pod(f"demo-{group}-{n}", group, names.ROLE_SLAVE if n else names.ROLE_MASTER))
    caches = {k.kind: InformerCache(api, k, (), "", lambda event, obj: None) for k in (POD, VOLUME_CLAIM)}
    following = [asyncio.create_task(m.run()) for m in caches.values()]
    await asyncio.gather(*(m.ready() for m in caches.values()))
    found = Masters(KubernetesPlatform(api, caches["Pod"], caches["PersistentVolumeClaim"], "demo", "mq", print, print))
    found.pods.sizes = found.pods.planned = dict.fromkeys(groups, count)
    try:
        yield found
    finally:
        await found.pods.close()
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)


@pytest.mark.parametrize("mode", [Group, Elected])
async def test_one_that_fell_silent_loses_its_label_when_the_new_one_has_it(
    fake: FakeApi, api: KubeApi, mode: type[Group] | type[Elected]
) -> None:
    """Half of the clients' new connections would reach it, until its connection counts as dead."""
    async with masters(fake, api) as found:
        group = found.controllers["a"] = mode(found)
        async with running(group):
            await until(lambda: group.announced)
            await group.fail_over()
            await until(lambda: "master" in roles(fake)[1:])
            assert await until(lambda: roles(fake)[0] == "slave") < 1.0
            assert group.watches[0].reach == "ok"


@pytest.mark.parametrize("mode", [Group, Elected])
async def test_one_that_has_handed_over_loses_its_label_in_time_by_itself(
    fake: FakeApi, api: KubeApi, monkeypatch: pytest.MonkeyPatch, mode: type[Group] | type[Elected]
) -> None:
    """The Service follows the new label meanwhile, without a pass over the cluster's objects, which may hang."""
    monkeypatch.setattr(platform, "GRACE_S", 0.6)
    async with masters(fake, api) as found:
        group = found.controllers["a"] = mode(found)
        async with running(group):
            await until(lambda: group.announced)
            await group.switchover(1, "asked for")
            await until(lambda: roles(fake)[1] == "master")
            await asyncio.sleep(0.4)
            assert roles(fake) == ["master", "master", "slave"]
            assert await until(lambda: roles(fake) == ["slave", "master", "slave"]) < 2.0


async def test_it_loses_its_label_also_where_the_new_one_was_labelled_late(
    fake: FakeApi, api: KubeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The former master's time is over then, and no pass over the cluster's objects follows by itself."""
    monkeypatch.setattr(platform, "GRACE_S", 0.2)
    merge = api.merge

    async def late(kind: Any, namespace: Any, name: str, patch: Any) -> Any:
        written = await merge(kind, namespace, name, patch)
        await asyncio.sleep(0.6 if name == "demo-a-1" else 0.0)
        return written

    async with masters(fake, api) as found:
        group = found.controllers["a"] = Group(found)
        async with running(group):
            await until(lambda: group.announced)
            monkeypatch.setattr(api, "merge", late)
            await group.switchover(1, "asked for")
            await until(lambda: group.announced)
            assert await until(lambda: roles(fake) == ["slave", "master", "slave"]) < 1.0
            [relieving] = found.pods._retiring.values()
            await until(relieving.done)


async def test_one_that_was_silent_before_this_operator_began_loses_its_label_at_once(
    fake: FakeApi, api: KubeApi
) -> None:
    """Its handover is not known then."""
    async with masters(fake, api) as found:
        group = found.controllers["a"] = Group(found)
        group.registry.leadership = LEADERSHIP.promoted(IDS[1], IDS)
        group.led_by(group.registry.leadership)
        group.frozen.add(0)
        group.watches[0].line_at -= QUIET_MS / 1000
        async with running(group):
            await until(lambda: group.announced)
            assert roles(fake) == ["slave", "master", "slave"]
            assert group.silence_s(0) < SILENCE_S


async def test_a_label_of_one_group_that_is_refused_keeps_no_other_from_being_put_right(
    fake: FakeApi, api: KubeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    def led(master: int) -> Any:
        leadership = LeadershipRecord(2, 1, IDS[master], frozenset(IDS))
        watch = SimpleNamespace(report=Report(IDS[master], "Master", 2))
        return SimpleNamespace(leadership=leadership, announced=True, watches={master: watch})

    async with masters(fake, api, "ab", 2) as found:
        found.controllers |= {"a": led(1), "b": led(1)}
        merge = api.merge

        async def refuse(kind: Any, namespace: Any, name: str, patch: Any) -> Any:
            if name.startswith("demo-a"):
                raise ApiError(403, "Forbidden", "an admission webhook says no")
            return await merge(kind, namespace, name, patch)

        monkeypatch.setattr(api, "merge", refuse)
        assert await found.labels.sync() == ["an admission webhook says no"]
        assert roles(fake, "b", 2) == ["slave", "master"]
