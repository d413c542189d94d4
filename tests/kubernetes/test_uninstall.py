"""Without an operator no object waits for one: the chart's hook, and clusters and namespaces that go."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from gantry_operator.api.topic import FINALIZER
from gantry_operator.platforms.kubernetes import operator, uninstall
from gantry_operator.platforms.kubernetes.api.client import ApiError, KubeApi
from gantry_operator.platforms.kubernetes.api.operator_lease import Election
from gantry_operator.platforms.kubernetes.manifests.desired_objects import OperatorSettings
from gantry_operator.platforms.kubernetes.operator import Operator
from gantry_operator.platforms.kubernetes.reconcile.cluster_controller import ClusterController
from gantry_operator.platforms.kubernetes.resources.topics import release

from tests.kubernetes.fake_api import FakeApi
from tests.support.present import present
from tests.support.running import running, until

ROOT = Path(__file__).parents[2]


def managed(fake: FakeApi, kind: str, name: str, *, deleting: bool = False, namespace: str = "mq") -> None:
    meta: dict[str, Any] = {"name": name, "namespace": namespace, "finalizers": ["other/one", FINALIZER]}
    if deleting:
        meta["deletionTimestamp"] = "2026-01-02T00:00:00Z"
    fake.put({"apiVersion": "gantry.dev/v1alpha1", "kind": kind, "metadata": meta, "spec": {"cluster": "demo"}})


def finalizers(fake: FakeApi, kind: str, name: str, namespace: str = "mq") -> list[str]:
    return list(present(fake.get(kind, name, namespace))["metadata"]["finalizers"])


async def test_the_hook_stops_the_operators_and_lets_every_object_go(
    fake: FakeApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    meta = {"name": "gantry-operator", "namespace": "ops"}
    fake.put({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": {"replicas": 2}})
    managed(fake, "BrokerTopic", "orders", deleting=True)
    managed(fake, "BrokerTopic", "kept", namespace="shop")
    managed(fake, "ConsumerGroup", "billing")
    acting = Election(fake.api, "ops", uninstall.LEASE_NAME, "op-0", "")
    await acting.acquire()
    monkeypatch.setattr("gantry_operator.platforms.kubernetes.api.operator_lease.LOOK_S", 0.05)
    hook = asyncio.create_task(uninstall.uninstall(fake.api, "ops", "gantry-operator", (), "hook"))
    await until(lambda: not fake.objects["Deployment", "ops", "gantry-operator"]["spec"]["replicas"])
    assert FINALIZER in finalizers(fake, "BrokerTopic", "orders"), "not while an operator acts, which adds it again"
    await acting.release()
    # Somebody changes an object between the list and the patch.
    raced: list[Any] = []

    async def late(api: KubeApi, kind: Any, obj: Any) -> None:
        if not raced:
            raced.append(obj)
            fake.put(fake.objects[obj["kind"], obj["metadata"]["namespace"], obj["metadata"]["name"]])
        await release(api, kind, obj)

    monkeypatch.setattr(uninstall, "release", late)
    await asyncio.wait_for(hook, 20)
    assert finalizers(fake, "BrokerTopic", "orders") == ["other/one"]
    assert finalizers(fake, "BrokerTopic", "kept", "shop") == ["other/one"]
    assert finalizers(fake, "ConsumerGroup", "billing") == ["other/one"]
    said = capsys.readouterr().out
    assert "BrokerTopic mq/orders was being deleted and goes now; what it names stays at the brokers" in said
    assert "kept" not in said
    assert fake.objects["Lease", "ops", uninstall.LEASE_NAME]["spec"]["holderIdentity"] != "hook"


async def test_the_hook_fails_where_it_may_not_do_its_work(fake: FakeApi) -> None:
    managed(fake, "BrokerTopic", "orders")
    fake.refuse["BrokerTopic"] = (403, "no")
    with pytest.raises(ApiError):
        await uninstall.release_all(fake.api, ("mq",))
    fake.refuse.clear()
    assert await uninstall.release_all(fake.api, ("mq",)) == []


def test_the_charts_hook_runs_this_module_for_the_charts_own_deployment() -> None:
    templates = ROOT / "helm" / "gantry" / "templates"
    text = (templates / "uninstall.yaml").read_text()
    name = '{{ include "gantry.name" . }}-operator'
    assert f"command: [python, -m, {uninstall.__name__}, {name}]" in text
    assert f"resourceNames: [{name}]" in text
    assert f"name: {name}\n" in (templates / "deployment.yaml").read_text()
    assert text.count("helm.sh/hook: pre-delete") == 3
    assert uninstall.LEASE_NAME == operator.LEASE_NAME
    values = yaml.safe_load((ROOT / "helm" / "gantry" / "values.yaml").read_text())
    assert values["uninstallHook"] == {"enabled": True}
    notes = (templates / "NOTES.txt").read_text()
    assert re.search(r"delete the BrokerTopics and ConsumerGroups.*uninstall this chart.*namespaces", notes, re.DOTALL)


@pytest.mark.parametrize("event", ["DELETED", "MODIFIED"])
async def test_a_topic_that_is_being_deleted_goes_at_once_with_its_cluster(
    fake: FakeApi, monkeypatch: pytest.MonkeyPatch, event: str
) -> None:
    """A namespace goes with everything in it, perhaps with the operator's own pod."""

    async def stop(self: ClusterController) -> None:
        return

    async def act(self: Operator) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(ClusterController, "start", lambda self: None)
    monkeypatch.setattr(ClusterController, "stop", stop)
    monkeypatch.setattr(Operator, "_kopf", act)
    managed(fake, "BrokerTopic", "orders", deleting=True)
    managed(fake, "ConsumerGroup", "billing", deleting=True)
    managed(fake, "BrokerTopic", "kept")
    found = Operator(fake.api, OperatorSettings("broker", "", "ops"), "op-0")
    meta = {"namespace": "mq", "name": "demo", "uid": "u", "generation": 1, "resourceVersion": "7"}
    await found.on_cluster({"type": "ADDED"}, {"metadata": meta})
    monkeypatch.setattr(operator, "STRAYS_EVERY_S", 0.01)
    async with running(found):
        looked_at: list[str] = []
        real = found.name_stray

        async def name(kind: str, obj: Any) -> None:
            looked_at.append(obj["metadata"]["name"])
            await real(kind, obj)

        monkeypatch.setattr(found, "name_stray", name)
        await until(lambda: {"orders", "billing", "kept"} <= {*looked_at})
        monkeypatch.setattr(operator, "STRAYS_EVERY_S", 3600.0)
        assert FINALIZER in finalizers(fake, "BrokerTopic", "orders"), "its cluster is there"
        going = meta if event == "DELETED" else meta | {"deletionTimestamp": "2026-01-02T00:00:00Z"}
        await found.on_cluster({"type": event}, {"metadata": going})
        await until(
            lambda: (
                FINALIZER
                not in finalizers(fake, "BrokerTopic", "orders") + finalizers(fake, "ConsumerGroup", "billing")
            )
        )
        assert FINALIZER in finalizers(fake, "BrokerTopic", "kept"), "it is not being deleted"
