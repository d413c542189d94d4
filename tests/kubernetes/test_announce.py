"""The announcement of a new master: a refused step is tried again, and no later announcement overtakes it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from gantry_operator.cluster import group_controller
from gantry_operator.cluster.master_slave_controller import MasterSlaveController
from gantry_operator.cluster.platform import MemberEndpoint
from gantry_operator.cluster.rolling_change import RollingChange
from gantry_operator.failover.model import FailoverSettings
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.api import client
from gantry_operator.platforms.kubernetes.api.client import VOLUME_CLAIM, ApiError
from gantry_operator.platforms.kubernetes.api.informer_cache import InformerCache
from gantry_operator.platforms.kubernetes.api.pod_state import REVISION_LABEL
from gantry_operator.platforms.kubernetes.members import platform
from gantry_operator.platforms.kubernetes.members.platform import KubernetesPlatform
from gantry_operator.platforms.kubernetes.members.pod_replacement import PodReplacement
from gantry_operator.registry.base import Entry

from tests.kubernetes.fake_api import NO, FakeApi, following, put_group_set, unheard
from tests.support.led_group import NO_HTTP, Registry, ReportingMembers, led_by
from tests.support.running import running, until


class Group(ReportingMembers, MasterSlaveController):
    """A controller over two pods whose brokers follow the record."""

    def __init__(self, pods: KubernetesPlatform) -> None:
        self.registry = Registry(led_by(0, count=2))
        MasterSlaveController.__init__(self, "a", self.registry, pods, NO_HTTP, FailoverSettings)
        self.begin(self.registry.leadership, "demo-a-", count=2)

    def led_by(self, member: int, epoch: int) -> None:
        self.registry.leadership = led_by(member, epoch, count=2)
        self.all_say(self.registry.leadership)


def pod(name: str, role: str, revision: str = "new") -> dict[str, Any]:
    meta = {"name": name, "namespace": "mq", "labels": {names.ROLE_LABEL: role, REVISION_LABEL: revision}}
    ready = {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {}, "status": ready}


@asynccontextmanager
async def mirrored(fake: FakeApi) -> AsyncIterator[KubernetesPlatform]:
    async with following(fake.api, ["Pod"]) as caches:
        claims = InformerCache(fake.api, VOLUME_CLAIM, (), "", unheard)
        found = KubernetesPlatform(
            fake.api, caches["Pod"], claims, "demo", "mq", lambda event: None, lambda change: None
        )
        found.sizes = found.planned = {"a": 2}
        yield found


async def test_a_former_master_is_not_replaced_before_the_new_one_is_announced(fake: FakeApi) -> None:
    """It may still forward its paused writes, and the master's Service has no other endpoint."""
    fake.put(pod("demo-a-0", names.ROLE_MASTER, "old"))
    fake.put(pod("demo-a-1", names.ROLE_SLAVE))
    put_group_set(fake)
    async with following(fake.api, ["StatefulSet"]) as caches, mirrored(fake) as pods:
        group = Group(pods)
        pods.answers = lambda group, name: True
        group.entry, group._announced = Entry(group.registry.leadership), 1
        group.led_by(1, 2)
        group.entry = Entry(group.registry.leadership)
        replacement = PodReplacement(fake.api, caches["StatefulSet"], pods, ("mq", "demo"))
        change = RollingChange(replacement, {"a": group}, lambda event: None)
        assert await change.look_once()
        assert fake.get("Pod", "demo-a-0") is not None
        group._announced = 2
        assert await change.look_once()
        assert fake.get("Pod", "demo-a-0") is None


async def test_a_refused_announcement_is_tried_again_with_growing_pauses_and_said_once(
    fake: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    for n in range(2):
        fake.put(pod(f"demo-a-{n}", names.ROLE_SLAVE))
    async with mirrored(fake) as pods:
        fake.down, before = True, fake.api.calls
        async with running(Group(pods)) as group:
            await until(lambda: group.problem)
            begun = time.monotonic()
            await asyncio.sleep(1.5)
            await until(lambda: fake.api.calls - before >= 4)
            assert fake.api.calls - before <= 6 + time.monotonic() - begun - 1.5, "one a second at most by then"
            assert "Traceback" not in caplog.text
            assert caplog.text.count("announcing demo-a-0") == 1
            fake.down = False
            await until(lambda: group.announced)
            assert not group.problem


async def test_a_former_master_does_not_keep_its_label_while_that_of_a_third_pod_is_refused(
    fake: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "GRACE_S", 0.3)
    for n, role in enumerate((names.ROLE_MASTER, names.ROLE_SLAVE, "none")):
        fake.put(pod(f"demo-a-{n}", role))
    async with mirrored(fake) as pods:
        pods.sizes, pods.answers = {"a": 3}, lambda group, name: True

        async def announced_for(seconds: float) -> None:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                with suppress(ApiError):
                    await pods.announce("a", MemberEndpoint("demo-a-1", 1, "http://new", "new:1"), 2)
                await asyncio.sleep(0.05)

        fake.refuse = {"Pod/demo-a-1": NO, "Pod/demo-a-2": NO}
        await announced_for(0.7)
        assert pods.labelled_master("demo-a-0"), "the Service leads nowhere else"
        del fake.refuse["Pod/demo-a-1"]
        await announced_for(0.7)
        assert pods.labelled_master("demo-a-1")
        assert not pods.labelled_master("demo-a-0")


async def test_a_refused_announcement_delays_no_other_one(fake: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_controller, "ANNOUNCE_AGAIN_S", (0.05, 600.0))
    for n in range(2):
        fake.put(pod(f"demo-a-{n}", names.ROLE_SLAVE))
    async with mirrored(fake) as pods:
        fake.down, before = True, fake.api.calls
        async with running(Group(pods)) as group:
            await until(lambda: group.problem and fake.api.calls - before >= 2)
            await asyncio.sleep(0.1)  # The next pause is a long one.
            fake.down = False
            group.led_by(1, 2)
            group.wake()
            await until(lambda: group.announced)
            assert pods.labelled_master("demo-a-1")


async def test_a_wait_for_a_leadership_record_does_not_read_it_without_pause(fake: FakeApi) -> None:
    async with mirrored(fake) as pods:
        group = Group(pods)
        group.registry.away = True
        async with running(group):
            asking = asyncio.create_task(group.known_leadership())
            begun = time.monotonic()
            await asyncio.sleep(1.0)
            await until(lambda: group.registry.reads >= 5)
            assert group.registry.reads <= 15 * (time.monotonic() - begun)
            group.registry.away = False
            assert (await asking).epoch == 1


async def test_an_announcement_that_gets_no_answer_delays_no_later_epoch(
    fake: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its master may be gone already."""
    monkeypatch.setattr(client, "URGENT_S", 600.0)
    for n in range(2):
        fake.put(pod(f"demo-a-{n}", names.ROLE_SLAVE))
    async with mirrored(fake) as pods:
        fake.unanswered = [("PATCH", "Pod")]
        async with running(Group(pods)) as group:
            await until(lambda: not fake.unanswered)
            group.led_by(1, 2)
            group.wake()
            await until(lambda: group.announced)
            assert pods.labelled_master("demo-a-1")
            await until(lambda: not group._tasks, "the older one is given up")


async def test_an_announcement_that_gets_no_answer_is_tried_again_soon(
    fake: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "URGENT_S", 0.3)
    monkeypatch.setattr(client, "REQUEST_S", 600.0)
    for n in range(2):
        fake.put(pod(f"demo-a-{n}", names.ROLE_SLAVE))
    async with mirrored(fake) as pods:
        fake.unanswered = [("PATCH", "Pod")]
        async with running(Group(pods)) as group:
            await until(lambda: group.announced)
            assert pods.labelled_master("demo-a-0")
