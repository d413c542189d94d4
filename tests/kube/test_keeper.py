"""A cluster's keeper over an API server in memory: what fails is tried again, and keeps the failover from nothing."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fakeapi import FakeApi
from gantry_broker.remoting.client import RemotingClient
from gantry_operator.api import BrokerCluster
from gantry_operator.failover.attention import AttentiveClock
from gantry_operator.failover.raft import RaftLoop
from gantry_operator.kube import cluster as module
from gantry_operator.kube import names
from gantry_operator.kube.client import KINDS, ApiError, ApiUnavailable, KubeApi
from gantry_operator.kube.cluster import ClusterKeeper, Shared
from gantry_operator.kube.commands import SWITCHOVER, SWITCHOVER_RESULT
from gantry_operator.kube.mirror import Mirror
from gantry_operator.kube.operator import MIRRORED
from gantry_operator.kube.render import OperatorSettings
from gantry_operator.kube.reports import JOBS, PODS

CLUSTER = BrokerCluster.make("demo", "mq", brokerGroups=[{"name": "a", "members": 3}])


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AGAIN_S", 0.05)


@asynccontextmanager
async def kept(
    fake: FakeApi, api: KubeApi, spec: dict[str, Any] | None = None, annotations: dict[str, str] | None = None
) -> AsyncIterator[ClusterKeeper]:
    """A keeper that has just begun, with the resource as it is or with another spec."""
    kinds = {k: k for k in MIRRORED} | {JOBS: "Job", PODS: "Pod"}
    mirrors = {name: Mirror(api, KINDS[k], (), "", lambda event, obj: None) for name, k in kinds.items()}
    following = [asyncio.create_task(m.run()) for m in mirrors.values()]
    await asyncio.gather(*(m.ready() for m in mirrors.values()))
    shown = CLUSTER.model_dump(mode="json", exclude={"status"}, exclude_none=True)
    shown["metadata"]["annotations"] = annotations or {}
    obj = fake.put(shown | ({} if spec is None else {"spec": spec}))
    obj["metadata"]["generation"] = 1
    async with RemotingClient() as remoting:
        shared = Shared(api, OperatorSettings("broker", "", "ops", ()), mirrors, remoting, AttentiveClock(), "op-0")
        keeper = ClusterKeeper(shared, obj)
        keeper.start()
        try:
            yield keeper
        finally:
            await keeper.stop()
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)


def annotated(fake: FakeApi) -> dict[str, str]:
    annotations: dict[str, str] = fake.objects["BrokerCluster", "mq", "demo"]["metadata"]["annotations"]
    return annotations


async def until(condition: Any, timeout_s: float = 3.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def test_an_object_that_cannot_be_written_keeps_no_failover_from_beginning(
    fake: FakeApi, api: KubeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = api.apply

    async def refuse(obj: Any) -> Any:
        if obj["kind"] == "NetworkPolicy":
            raise ApiError(403, "Forbidden", "an admission webhook says no")
        return await apply(obj)

    monkeypatch.setattr(api, "apply", refuse)
    async with kept(fake, api, annotations={SWITCHOVER: "a=demo-a-9 #1"}) as keeper:
        await until(lambda: keeper._findings.problems)
        assert keeper._findings.problems == ["an admission webhook says no"]
        assert set(keeper._masters.loops) == {"a"}
        await until(lambda: SWITCHOVER_RESULT in annotated(fake))  # Nor is a person kept from choosing the master.


async def test_a_pass_that_fails_by_a_fault_of_ours_is_followed_by_another(
    fake: FakeApi, api: KubeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with kept(fake, api) as keeper:
        keep, calls = keeper._objects.keep, []

        async def once(*arguments: Any) -> bool:
            calls.append(1)
            if len(calls) == 1:
                raise RuntimeError("a fault")
            return await keep(*arguments)

        monkeypatch.setattr(keeper._objects, "keep", once)
        await until(lambda: len(calls) > 1)


async def test_under_a_refused_spec_the_failover_begins_as_soon_as_it_can(
    fake: FakeApi, api: KubeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with kept(fake, api) as keeper:
        await until(lambda: fake.get("StatefulSet", names.group_set("demo", "a")))
    fake.remove("Secret", "mq", names.admin_secret("demo"))
    apply, refused = api.apply, [1, 2]

    async def refuse(obj: Any) -> Any:
        if refused:
            refused.pop()
            raise ApiUnavailable("the API server is away")
        return await apply(obj)

    monkeypatch.setattr(api, "apply", refuse)
    async with kept(fake, api, {"mode": 7}) as keeper:
        await until(lambda: keeper._masters.loops)
        assert not refused
        assert keeper._findings.refused


async def test_under_a_refused_spec_configs_of_another_version_are_read_as_far_as_they_can_be(
    fake: FakeApi, api: KubeApi
) -> None:
    async with kept(fake, api):
        await until(lambda: fake.get("StatefulSet", names.group_set("demo", "a")))
    configs = fake.get("ConfigMap", names.group_set("demo", "a"))
    assert configs is not None
    for name, text in configs["data"].items():
        configs["data"][name] = json.dumps(json.loads(text) | {"mode": "Raft", "of_the_next_version": 1})
    async with kept(fake, api, {"mode": 7}) as keeper:
        await until(lambda: keeper._masters.loops)
        assert isinstance(keeper._masters.loops["a"], RaftLoop)


async def test_a_wish_under_a_refused_spec_is_answered_and_not_kept_for_later(fake: FakeApi, api: KubeApi) -> None:
    async with kept(fake, api):
        await until(lambda: fake.get("StatefulSet", names.group_set("demo", "a")))
    async with kept(fake, api, {"mode": 7}, {SWITCHOVER: "a=demo-a-9 #1"}):
        await until(lambda: SWITCHOVER not in annotated(fake))
    assert annotated(fake)[SWITCHOVER_RESULT].startswith("a=demo-a-9 #1 failed: demo has no member 'demo-a-9'")
