"""Requested runs of the report: one at a time, while the schedule is suspended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.plan.plan import plan
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.allowed import never
from gantry_operator.platforms.kubernetes.analytics import reconciler as reports
from gantry_operator.platforms.kubernetes.analytics.manifests import ANALYZE_ANNOTATION, JOB_LABEL
from gantry_operator.platforms.kubernetes.api.client import KINDS, KubeApi
from gantry_operator.platforms.kubernetes.api.events import EventRecorder
from gantry_operator.platforms.kubernetes.api.informer_cache import InformerCache
from gantry_operator.platforms.kubernetes.api.status_writer import merge_patch
from gantry_operator.platforms.kubernetes.manifests.desired_objects import OperatorSettings
from gantry_operator.platforms.kubernetes.objects.object_reconciler import ObjectReconciler, ReconcileResult
from gantry_operator.platforms.kubernetes.operator import CACHED

from tests.kubernetes.fake_api import FakeApi, running
from tests.support.running import until

SETTINGS = OperatorSettings("broker:1", "spark:1")
NAME = "demo-analytics"


def quiet(_: str, __: dict[str, Any]) -> None:
    """Has no listener."""


class Rig:
    """One cluster's controller and its requests."""

    def __init__(self, fake: FakeApi, api: KubeApi, uid: str) -> None:
        self.fake = fake
        self.caches = {k: InformerCache(api, KINDS[k], [], names.CLUSTER_LABEL, quiet) for k in CACHED}
        for name, kind in ((reports.JOBS, "Job"), (reports.PODS, "Pod")):
            self.caches[name] = InformerCache(api, KINDS[kind], [], JOB_LABEL, quiet)
        self.cluster = BrokerCluster.make("demo", "mq", brokerGroups=[{"name": "a"}], analytics={})
        self.cluster.metadata.uid = uid
        self.events = EventRecorder(api, "mq", "demo", uid, "test")
        objects = ObjectReconciler(api, self.caches, SETTINGS, "mq", "demo", uid)
        self.controller = reports.AnalyticsReconciler(api, self.caches, objects, SETTINGS, self.events)

    async def keep(self) -> None:
        assert await self.controller.keep(self.cluster, plan(self.cluster), ReconcileResult())

    async def ask(self) -> None:
        resource = dict(self.fake.get("BrokerCluster", "demo") or {})
        resource["metadata"] |= {"annotations": {ANALYZE_ANNOTATION: "now"}}
        left = await self.controller.run_if_asked(self.cluster, self.fake.put(resource))
        assert left is not None
        assert not left["metadata"].get("annotations")

    @property
    def jobs(self) -> list[dict[str, Any]]:
        return [o for (kind, _, _), o in self.fake.objects.items() if kind == "Job"]

    @property
    def held(self) -> bool:
        return bool((self.fake.get("CronJob", NAME) or {})["spec"]["suspend"])


@pytest.fixture
async def rig(fake: FakeApi, api: KubeApi) -> AsyncIterator[Rig]:
    resource = fake.put({"kind": "BrokerCluster", "metadata": {"namespace": "mq", "name": "demo"}})
    rig = Rig(fake, api, resource["metadata"]["uid"])
    async with running(rig.caches.values()):
        yield rig
        await rig.events.close()


async def test_a_requested_run_suspends_the_schedule_until_it_ends(rig: Rig) -> None:
    await rig.keep()
    assert not rig.held
    await rig.ask()
    assert len(rig.jobs) == 1
    await rig.keep()
    assert rig.held, "also while its Job is not in the cache yet"
    await until(lambda: list(rig.caches[reports.JOBS].of("mq", JOB_LABEL, "demo")))
    await rig.keep()
    assert rig.held

    await rig.ask()
    assert len(rig.jobs) == 1, "never two at once"
    await rig.events.close()
    said = [o["message"] for (kind, _, _), o in rig.fake.objects.items() if kind == "Event"]
    assert any("is running already" in text for text in said)

    conditions = [{"type": "Complete", "status": "True"}]
    rig.fake.put(rig.jobs[0] | {"status": {"conditions": conditions}})
    await until(lambda: any(j.get("status") for j in rig.caches[reports.JOBS].of("mq", JOB_LABEL, "demo")))
    await rig.keep()
    assert not rig.held


async def test_a_run_of_the_schedule_is_not_joined_by_another(rig: Rig) -> None:
    await rig.keep()
    job = {"kind": "Job", "metadata": {"namespace": "mq", "name": "by-schedule", "labels": {JOB_LABEL: "demo"}}}
    rig.fake.put(job)
    await rig.ask()
    assert [j["metadata"]["name"] for j in rig.jobs] == ["by-schedule"]
    await until(lambda: rig.caches["CronJob"].get("mq", NAME)["spec"]["suspend"])
    await rig.keep()
    assert not rig.held, "Kubernetes' own rule sees to runs of the schedule"


def test_a_patch_of_the_status_names_removed_fields_at_every_depth() -> None:
    """A schedule that is suspended has no next run any more."""
    old = {"phase": "Running", "paused": True, "analytics": {"nextRun": "2026-03-01T03:00:00Z", "message": "good"}}
    new = {"phase": "Running", "analytics": {"message": "good", "topSavings": []}, "members": [{"name": "demo-a-0"}]}
    patch = merge_patch(old, new)
    assert patch["paused"] is None
    assert patch["analytics"] == {"nextRun": None, "message": "good", "topSavings": []}
    assert patch["members"] == new["members"]
    assert merge_patch({}, new) == new


async def test_the_page_that_the_driver_wrote_stays(rig: Rig) -> None:
    await rig.keep()
    made = rig.fake.get("Secret", NAME) or {}
    assert not made.get("data")
    rig.fake.put(made | {"data": {"report.html.gz": "cGFnZQ=="}})
    await until(lambda: rig.caches["Secret"].get("mq", NAME).get("data"))
    await rig.keep()
    assert (rig.fake.get("Secret", NAME) or {})["data"] == {"report.html.gz": "cGFnZQ=="}


async def test_the_driver_gets_the_group_of_each_broker(rig: Rig) -> None:
    """So that it can see whether a broker without an answer takes a whole group with it."""
    rig.cluster.spec.brokerGroups.append(rig.cluster.spec.brokerGroups[0].model_copy(update={"name": "b"}))
    await rig.keep()
    made = rig.fake.get("CronJob", NAME) or {}
    (driver,) = made["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    brokers = driver["args"][driver["args"].index("--brokers") + 1].split(",")
    assert {url.split("=https://demo-")[0] for url in brokers} == {"a", "b"}
    assert all(url.split("=")[1].startswith(f"https://demo-{url[0]}-") for url in brokers)


async def test_driver_and_executors_trust_the_authority_of_the_cluster(rig: Rig) -> None:
    await rig.keep()
    pod = (rig.fake.get("CronJob", NAME) or {})["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (driver,) = pod["containers"]
    assert driver["args"][driver["args"].index("--ca-file") + 1] == "/etc/gantry-ca/ca.crt"
    assert "spark.kubernetes.executor.secrets.demo-ca-cert=/etc/gantry-ca" in driver["args"]
    assert {"name": "ca", "secret": {"secretName": "demo-ca-cert"}} in pod["volumes"]
    assert {"name": "ca", "mountPath": "/etc/gantry-ca", "readOnly": True} in driver["volumeMounts"]


async def test_a_run_authenticates_and_encrypts_whatever_the_spec_says(rig: Rig) -> None:
    await rig.keep()
    (driver,) = (rig.fake.get("CronJob", NAME) or {})["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    for setting in ("spark.authenticate", "spark.network.crypto.enabled", "spark.io.encryption.enabled"):
        assert f"{setting}=true" in driver["args"]
        assert never(setting), "no spec may turn it off"
    policy = rig.fake.get("NetworkPolicy", NAME)
    assert policy is not None
    own = {"matchLabels": {JOB_LABEL: "demo"}}
    assert policy["spec"] == {
        "podSelector": own, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": own}]}],
    }  # fmt: skip
