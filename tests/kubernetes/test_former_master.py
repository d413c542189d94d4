"""The time for which a former master keeps its label beside the new one: while it forwards after a handover."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from gantry_operator.cluster.master_slave_controller import MasterSlaveController
from gantry_operator.cluster.member_watch import QUIET_MS, SILENCE_S
from gantry_operator.cluster.raft_controller import RaftController
from gantry_operator.cluster.stall_compensated_clock import StallCompensatedClock
from gantry_operator.failover.model import FailoverSettings, Report
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.members import platform
from gantry_operator.platforms.kubernetes.members.platform import KubernetesPlatform
from gantry_operator.platforms.kubernetes.members.role_labels import RoleLabels

from tests.kubernetes.fake_api import NO, FakeApi, following
from tests.support.led_group import IDS, NO_HTTP, Registry, ReportingMembers, led_by
from tests.support.running import running, until

LEADERSHIP = led_by(0)


class Masters:
    """The pods of a cluster, their labels, and the controllers of its groups."""

    def __init__(self, pods: KubernetesPlatform) -> None:
        self.pods, self.labels, self.clock = pods, RoleLabels(pods), StallCompensatedClock()
        self.controllers: dict[str, Any] = {}
        self.labels.controllers = self.controllers


class Group(ReportingMembers, MasterSlaveController):
    def __init__(self, groups: Masters) -> None:
        self.registry = Registry(LEADERSHIP)
        MasterSlaveController.__init__(self, "a", self.registry, groups.pods, NO_HTTP, FailoverSettings, groups.clock)
        self.begin(LEADERSHIP, "demo-a-")

    async def fail_over(self) -> None:
        self.frozen.add(0)


class Elected(ReportingMembers, RaftController):
    def __init__(self, groups: Masters) -> None:
        RaftController.__init__(self, "a", groups.pods, NO_HTTP, FailoverSettings, groups.clock)
        self.begin(LEADERSHIP, "demo-a-")
        self.fake_members.handed_over = lambda target: self.all_say(led_by(target.member, 2))

    async def fail_over(self) -> None:
        """The others may have heard nothing from it for a second before it froze."""
        self.frozen.add(0)
        await asyncio.sleep(0.6)
        self.all_say(led_by(1, 2))


def pod(name: str, group: str, role: str) -> dict[str, Any]:
    labels = names.labels("demo", names.BROKER, group) | {names.ROLE_LABEL: role}
    meta = {"name": name, "namespace": "mq", "labels": labels}
    return {"kind": "Pod", "metadata": meta, "spec": {}, "status": {"podIP": "10.0.0.1"}}


def roles(fake: FakeApi, group: str = "a", count: int = 3) -> list[str]:
    pods = [fake.objects["Pod", "mq", f"demo-{group}-{n}"] for n in range(count)]
    return [p["metadata"]["labels"][names.ROLE_LABEL] for p in pods]


@asynccontextmanager
async def masters(fake: FakeApi, groups: str = "a", count: int = 3) -> AsyncIterator[Masters]:
    """Member 0 of each group has the label."""
    for group in groups:
        for n in range(count):
            fake.put(pod(f"demo-{group}-{n}", group, names.ROLE_SLAVE if n else names.ROLE_MASTER))
    async with following(fake.api, ["Pod", "PersistentVolumeClaim"]) as caches:
        pods, claims = caches.values()
        found = Masters(KubernetesPlatform(fake.api, pods, claims, "demo", "mq", print, print))
        found.pods.sizes = found.pods.planned = dict.fromkeys(groups, count)
        yield found
        await found.pods.close()


@pytest.mark.parametrize("mode", [Group, Elected])
async def test_one_that_fell_silent_loses_its_label_when_the_new_one_has_it(
    fake: FakeApi, monkeypatch: pytest.MonkeyPatch, mode: type[Group] | type[Elected]
) -> None:
    """Half of the clients' new connections would reach it, until its connection counts as dead."""
    monkeypatch.setattr(platform, "GRACE_S", 600.0)
    async with masters(fake) as found:
        group = found.controllers["a"] = mode(found)
        async with running(group):
            await until(lambda: group.announced)
            await group.fail_over()
            await until(lambda: "master" in roles(fake)[1:])
            await until(lambda: roles(fake)[0] == "slave")
            assert group.watches[0].reach == "ok"


@pytest.mark.parametrize("mode", [Group, Elected])
async def test_one_that_has_handed_over_loses_its_label_in_time_by_itself(
    fake: FakeApi, monkeypatch: pytest.MonkeyPatch, mode: type[Group] | type[Elected]
) -> None:
    """The Service follows the new label meanwhile, without a pass over the cluster's objects, which may hang."""
    monkeypatch.setattr(platform, "GRACE_S", 0.6)
    async with masters(fake) as found:
        group = found.controllers["a"] = mode(found)
        async with running(group):
            await until(lambda: group.announced)
            begun = time.monotonic()
            await group.switchover(1, "asked for")
            await until(lambda: roles(fake) == ["slave", "master", "slave"])
            assert time.monotonic() - begun >= platform.GRACE_S


async def test_it_loses_its_label_also_where_the_new_one_was_labelled_late(
    fake: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The former master's time is over then, and no pass over the cluster's objects follows by itself."""
    monkeypatch.setattr(platform, "GRACE_S", 0.2)
    merge = fake.api.merge

    async def late(kind: Any, namespace: Any, name: str, patch: Any) -> Any:
        written = await merge(kind, namespace, name, patch)
        await asyncio.sleep(0.6 if name == "demo-a-1" else 0.0)
        return written

    async with masters(fake) as found:
        group = found.controllers["a"] = Group(found)
        async with running(group):
            await until(lambda: group.announced)
            monkeypatch.setattr(fake.api, "merge", late)
            await group.switchover(1, "asked for")
            await until(lambda: group.announced)
            await until(lambda: roles(fake) == ["slave", "master", "slave"])
            [relieving] = found.pods._retiring.values()
            await until(relieving.done)


async def test_one_that_was_silent_before_this_operator_began_loses_its_label_at_once(fake: FakeApi) -> None:
    """Its handover is not known then."""
    async with masters(fake) as found:
        group = found.controllers["a"] = Group(found)
        group.registry.leadership = LEADERSHIP.promoted(IDS[1], IDS)
        group.all_say(group.registry.leadership)
        group.frozen.add(0)
        group.watches[0].line_at -= QUIET_MS / 1000
        async with running(group):
            await until(lambda: group.announced)
            assert roles(fake) == ["slave", "master", "slave"]
            assert group.silence_s(0) < SILENCE_S


async def test_a_label_of_one_group_that_is_refused_keeps_no_other_from_being_put_right(fake: FakeApi) -> None:
    def led(master: int) -> Any:
        leadership = led_by(master, 2)
        watch = SimpleNamespace(report=Report(IDS[master], "Master", 2))
        return SimpleNamespace(leadership=leadership, announced=True, watches={master: watch})

    async with masters(fake, "ab", 2) as found:
        found.controllers |= {"a": led(1), "b": led(1)}
        fake.refuse = {"Pod/demo-a-0": NO, "Pod/demo-a-1": NO}
        assert await found.labels.sync() == ["an admission webhook says no"]
        assert roles(fake, "b", 2) == ["slave", "master"]
