"""The operator's process: the conditions before it controls clusters."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from gantry_operator.platforms.kubernetes import operator
from gantry_operator.platforms.kubernetes.api.client import KubeApi
from gantry_operator.platforms.kubernetes.manifests.desired_objects import OperatorSettings
from gantry_operator.platforms.kubernetes.operator import Operator
from gantry_operator.platforms.kubernetes.reconcile.cluster_controller import ClusterController

from tests.kubernetes.fake_api import FakeApi
from tests.support.free_ports import free_port
from tests.support.running import running


@pytest.mark.parametrize(("kind", "begins"), [("NetworkPolicy", True), ("Pod", False)])
async def test_only_the_kinds_that_a_failover_needs_have_to_be_listed(
    fake: FakeApi, monkeypatch: pytest.MonkeyPatch, kind: str, begins: bool
) -> None:
    """A list may take a minute, or be refused for ever."""
    monkeypatch.setattr(operator, "LISTED_S", 0.2)
    fake.unanswered = [("GET", kind)]
    acting = asyncio.Event()

    async def act(self: Operator) -> None:
        acting.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Operator, "_kopf", act)
    async with running(Operator(fake.api, OperatorSettings("broker", "", "ops", ()), "op-0")) as found:
        async with asyncio.timeout(3):
            await asyncio.gather(*(m.ready() for k, m in found.followed().items() if k != kind))
        assert found.shared.unlisted() == [kind]
        await asyncio.sleep(0.5)
        assert acting.is_set() == begins


async def test_a_late_deletion_event_of_a_former_cluster_does_not_end_the_new_one(
    api: KubeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleted and created again: kopf keeps the order of one object's events, not of two with the same name."""
    stopped: list[str] = []

    async def stop(self: ClusterController) -> None:
        stopped.append(self.uid)

    monkeypatch.setattr(ClusterController, "start", lambda self: None)
    monkeypatch.setattr(ClusterController, "stop", stop)
    found = Operator(api, OperatorSettings("broker", "", "ops", ()), "op-0")

    def cluster(uid: str) -> dict[str, Any]:
        return {"metadata": {"namespace": "mq", "name": "demo", "uid": uid, "generation": 1, "resourceVersion": "7"}}

    for event, uid in (("ADDED", "former"), ("ADDED", "new"), ("DELETED", "former")):
        await found.on_cluster({"type": event}, cluster(uid))
    assert [k.uid for k in found.clusters.values()] == ["new"]
    await found.on_cluster({"type": "DELETED"}, cluster("new"))
    assert (found.clusters, stopped) == ({}, ["former", "new"])


async def test_an_operator_that_lost_its_lease_starts_again_in_the_same_container(
    fake: FakeApi, tmp_path: Path
) -> None:
    """A process that ends is started ever later by the kubelet: after 5 minutes at last."""
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "fake",
        "clusters": [{"name": "fake", "cluster": {"server": fake.url}}],
        "users": [{"name": "fake", "user": {}}],
        "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
    }  # fmt: skip
    (tmp_path / "config").write_text(json.dumps(config))
    env = os.environ | {
        "KUBECONFIG": str(tmp_path / "config"), "GANTRY_BROKER_IMAGE": "broker", "POD_NAMESPACE": "ops",
        "POD_NAME": "op-0", "GANTRY_HTTP_PORT": str(free_port()),
    }  # fmt: skip
    with (tmp_path / "log").open("w") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gantry_operator.platforms.kubernetes.operator", env=env, stdout=log, stderr=log
        )
        try:
            async with asyncio.timeout(60):
                await _holder(fake, "op-0")
                lease = fake.objects["Lease", "ops", operator.LEASE_NAME]
                lost = json.loads(json.dumps(lease))
                lost["spec"] |= {"holderIdentity": "op-1", "leaseDurationSeconds": 1}
                fake.put(lost)
                await _holder(fake, "op-0")
            assert process.returncode is None, "the same process, started again"
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()
    assert (tmp_path / "log").read_text().count("op-0 leads") == 2
    assert process.returncode == 0


async def _holder(fake: FakeApi, name: str) -> None:
    key = ("Lease", "ops", operator.LEASE_NAME)
    while key not in fake.objects or fake.objects[key]["spec"]["holderIdentity"] != name:  # noqa: ASYNC110 - a process writes it
        await asyncio.sleep(0.05)
