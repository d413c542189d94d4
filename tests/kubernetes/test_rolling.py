"""Planned changes, step by step, against an API server in memory."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from gantry_operator.api.annotations import RESTART
from gantry_operator.cluster import rolling_change as rolling
from gantry_operator.cluster.platform import Deployment, MemberEndpoint
from gantry_operator.cluster.rolling_change import RollingChange
from gantry_operator.plan.order import Step
from gantry_operator.plan.plan import MemberPlan
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.api.pod_state import REVISION_LABEL
from gantry_operator.platforms.kubernetes.members import platform
from gantry_operator.platforms.kubernetes.members.member_state import deployments_of
from gantry_operator.platforms.kubernetes.members.platform import KubernetesPlatform
from gantry_operator.platforms.kubernetes.members.pod_replacement import PodReplacement

from tests.kubernetes.fake_api import FakeApi, following
from tests.support.present import present

OLD, NEW = "demo-a-0", "demo-a-1"


def pod(name: str, role: str) -> dict[str, Any]:
    meta = {"name": name, "namespace": "mq", "uid": f"u-{name}", "labels": {names.ROLE_LABEL: role}}
    return {"kind": "Pod", "metadata": meta, "spec": {}}


async def test_a_former_master_is_not_replaced_while_its_clients_still_come_to_it(
    monkeypatch: pytest.MonkeyPatch, fake: FakeApi
) -> None:
    """It forwards requests from the master's Service, which needs a moment to follow the labels."""
    monkeypatch.setattr(platform, "GRACE_S", 0.2)
    monkeypatch.setattr(platform, "SERVICE_S", 3.0)
    fake.put(pod(OLD, names.ROLE_MASTER))
    fake.put(pod(NEW, names.ROLE_SLAVE))
    async with following(fake.api, ["Pod", "PersistentVolumeClaim", "StatefulSet"]) as caches:
        pods, claims, sets = caches.values()
        found = KubernetesPlatform(fake.api, pods, claims, "demo", "mq", lambda event: None, lambda change: None)
        found.sizes, found.answers = {"a": 2}, lambda group, name: True
        replacement = PodReplacement(fake.api, sets, found, ("mq", "demo"))
        former = Deployment(OLD, 0, outdated=True, leaving=False)

        async def replace() -> None:
            if replacement.may_stop(former, "a", address_moved=True):
                await replacement.replace_member("a", OLD)

        await found.announce("a", MemberEndpoint(NEW, 1, "http://new", "new:1"), 2)
        assert present(pods.get("mq", NEW))["metadata"]["labels"][names.ROLE_LABEL] == names.ROLE_MASTER
        await replace()
        assert fake.get("Pod", OLD) is not None
        await asyncio.sleep(0.25)
        await found.label("a", 1)
        await replace()
        assert fake.get("Pod", OLD) is not None, "the Service may not have followed yet"
        async with asyncio.timeout(20):
            while fake.get("Pod", OLD) is not None:
                await asyncio.sleep(0.1)
                await replace()


@pytest.mark.parametrize(("named", "left"), [("demo-a-2", 4), ("demo-a-3", 3)])
async def test_no_other_member_is_removed_in_place_of_the_planned_one(
    monkeypatch: pytest.MonkeyPatch, fake: FakeApi, named: str, left: int
) -> None:
    """A StatefulSet removes its highest number."""
    meta = {"name": "demo-a", "namespace": "mq", "generation": 1}
    fake.put({"kind": "StatefulSet", "metadata": meta, "spec": {"replicas": 4}, "status": {"observedGeneration": 1}})
    async with following(fake.api, ["Pod", "PersistentVolumeClaim", "StatefulSet"]) as caches:
        pods, claims, sets = caches.values()
        found = KubernetesPlatform(fake.api, pods, claims, "demo", "mq", lambda event: None, lambda change: None)
        found.sizes, found.planned = {"a": 4}, {"a": 2}
        loop: Any = SimpleNamespace(leadership=None, watches={}, still_counted=(), announced=True)
        replacement = PodReplacement(fake.api, sets, found, ("mq", "demo"))
        change = RollingChange(replacement, {"a": loop}, lambda event: None)
        monkeypatch.setattr(rolling, "next_step", lambda *_: Step("replace", "it leaves", named))
        await change.look_once()
        assert (present(fake.get("StatefulSet", "demo-a"))["spec"]["replicas"], found.sizes["a"]) == (left, left)


async def test_a_pod_whose_restart_is_asked_for_is_replaced_outside_of_the_window(fake: FakeApi) -> None:
    pods = SimpleNamespace(running=lambda group: [MemberPlan(NEW, "a", 1)], planned={"a": 2}, pod=lambda name: found)
    stateful_set = {"status": {"updateRevision": "r2"}}
    found = pod(NEW, names.ROLE_SLAVE)
    found["metadata"]["labels"][REVISION_LABEL] = "r2"
    for marks, revision, outdated, requested in (
        ({}, "r2", False, False),
        ({RESTART: "now"}, "r2", True, True),
        ({RESTART: "now"}, "r1", True, False),  # Another config, too: that waits for the window.
    ):
        found["metadata"]["annotations"] = marks
        found["metadata"]["labels"][REVISION_LABEL] = revision
        [seen] = deployments_of(stateful_set, pods, "a", datetime.now(UTC))  # type: ignore[arg-type]
        assert (seen.outdated, seen.requested) == (outdated, requested)
