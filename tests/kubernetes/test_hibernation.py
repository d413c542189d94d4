"""Hibernation and return over an API server in memory, with proxies and in both modes. An operator that ends after any
write is followed by one that goes on.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from gantry_operator.platforms.kubernetes.members import hibernate
from gantry_operator.platforms.kubernetes.reconcile import cluster_controller

from tests.kubernetes.fake_api import FakeApi, WritesLeft
from tests.kubernetes.test_cluster_controller import kept
from tests.support.running import running, until

GROUPS = {"a": 3, "b": 3}


def spec(mode: str, hibernate: bool) -> dict[str, Any]:
    groups = [{"name": name, "members": members} for name, members in GROUPS.items()]
    return {"mode": mode, "brokerGroups": groups, "proxy": {"replicas": 2}, "hibernate": hibernate}


class Kubelet:
    """Makes and deletes the pods of StatefulSets as their replicas say, the highest number first. `ended` has the pods
    in the order in which they went.
    """

    def __init__(self, fake: FakeApi) -> None:
        self.fake = fake
        self.ended: list[str] = []

    def pods(self) -> list[str]:
        return sorted(name for kind, _, name in self.fake.objects if kind == "Pod")

    def replicas(self) -> dict[str, int]:
        kinds = ("StatefulSet", "Deployment")
        return {n: int(o["spec"]["replicas"]) for (k, _, n), o in self.fake.objects.items() if k in kinds}

    def step(self) -> None:
        sets = [o for (kind, _, _), o in list(self.fake.objects.items()) if kind == "StatefulSet"]
        for obj in sets:
            name, wanted = obj["metadata"]["name"], int(obj["spec"]["replicas"])
            mine = [p for p in self.pods() if p.rpartition("-")[0] == name]
            for pod in mine[wanted:][::-1]:
                self.ended.append(pod)
                self.fake.remove("Pod", "mq", pod)
            for number in range(len(mine), wanted):
                labels = obj["spec"]["template"]["metadata"]["labels"]
                meta = {"name": f"{name}-{number}", "namespace": "mq", "labels": dict(labels)}
                status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
                self.fake.put({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {}, "status": status})
            status = {"replicas": wanted, "observedGeneration": obj["metadata"].get("generation")}
            if obj.get("status") != status:
                self.fake.put(obj | {"status": status})

    async def run(self) -> None:
        while True:
            self.step()
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("mode", "steps"), [("Raft", 0), ("MasterSlave", 1), ("Raft", 3), ("MasterSlave", 5), ("Raft", 7)]
)
async def test_an_operator_that_ends_on_the_way_is_followed_by_one_that_goes_on(
    fake: FakeApi, monkeypatch: pytest.MonkeyPatch, mode: str, steps: int
) -> None:
    """The first operator makes `steps` writes for hibernation, and as many for the return."""
    monkeypatch.setattr(cluster_controller, "SETTLE_S", 0.0)
    monkeypatch.setattr(hibernate, "STEP_S", 0.02)
    writes = WritesLeft(fake.api, monkeypatch)
    whole = {"demo-a": 3, "demo-b": 3, "demo-namesrv": 2, "demo-proxy": 2}
    members = {f"demo-{g}-{n}" for g, count in GROUPS.items() for n in range(count)}
    async with running(Kubelet(fake)) as pods:
        async with kept(fake, spec(mode, False)):
            await until(lambda: pods.replicas() == whole and len(pods.pods()) == 8)
        for name in ("demo-a", "demo-b"):
            fake.put({"kind": "Lease", "metadata": {"name": name, "namespace": "mq", "labels": {}}, "spec": {}})

        writes.left = steps
        async with kept(fake, spec(mode, True)) as first:
            await until(lambda: writes.left == 0 or first.control.hibernation.done)
            await asyncio.sleep(0.05)
        writes.left = 1_000_000
        async with kept(fake, spec(mode, True)) as second:
            await until(lambda: second.control.hibernation.done and not pods.pods())
            await until(lambda: set(pods.replicas().values()) == {0})
        brokers = [p for p in pods.ended if p in members]
        assert sorted(brokers) == sorted(members)
        for group in GROUPS:
            assert [p for p in brokers if f"-{group}-" in p][-1] == f"demo-{group}-0", "the leader's place stops last"
        servers = [i for i, p in enumerate(pods.ended) if "namesrv" in p]
        assert min(servers) > max(pods.ended.index(b) for b in brokers)
        assert fake.get("Lease", "demo-a") is not None

        writes.left = steps
        async with kept(fake, spec(mode, False)):
            await until(lambda: writes.left == 0 or pods.replicas() == whole)
            await asyncio.sleep(0.05)
        writes.left = 1_000_000
        async with kept(fake, spec(mode, False)) as last:
            await until(lambda: pods.replicas() == whole and len(pods.pods()) == 8)
            await until(lambda: (last.control.hibernation.running, last.control.hibernation.done) == (None, False))
            await until(lambda: set(last.control.controllers) == set(GROUPS))
