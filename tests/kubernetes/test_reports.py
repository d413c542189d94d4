"""Requested runs of the report: one at a time, while the schedule is suspended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.platforms.kubernetes.allowed import never
from gantry_operator.platforms.kubernetes.analytics import reconciler as reports
from gantry_operator.platforms.kubernetes.analytics.manifests import JOB_LABEL
from gantry_operator.platforms.kubernetes.api.status_writer import merge_patch

from tests.kubernetes.fake_api import FakeApi, running
from tests.kubernetes.report_rig import NAME, ReportRig
from tests.support.running import until


class Rig(ReportRig):
    """A report by a CronJob, and the Jobs of requests."""

    @property
    def jobs(self) -> list[dict[str, Any]]:
        return [o for (kind, _, _), o in self.fake.objects.items() if kind == "Job"]

    @property
    def held(self) -> bool:
        return bool((self.fake.get("CronJob", NAME) or {})["spec"]["suspend"])


@pytest.fixture
async def rig(fake: FakeApi) -> AsyncIterator[Rig]:
    resource = fake.put({"kind": "BrokerCluster", "metadata": {"namespace": "mq", "name": "demo"}})
    cluster = BrokerCluster.make("demo", "mq", brokerGroups=[{"name": "a"}], analytics={})
    rig = Rig(fake, cluster, resource["metadata"]["uid"])
    async with running(rig.caches.values()):
        yield rig
        await rig.events.close()


async def test_a_requested_run_suspends_the_schedule_until_it_ends(rig: Rig) -> None:
    assert await rig.keep()
    assert not rig.held
    assert await rig.ask()
    assert len(rig.jobs) == 1
    assert await rig.keep()
    assert rig.held, "also while its Job is not in the cache yet"
    await until(lambda: list(rig.caches[reports.JOBS].of("mq", JOB_LABEL, "demo")))
    assert await rig.keep()
    assert rig.held

    assert await rig.ask()
    assert len(rig.jobs) == 1, "never two at once"
    await rig.events.close()
    said = [o["message"] for (kind, _, _), o in rig.fake.objects.items() if kind == "Event"]
    assert any("is running already" in text for text in said)

    conditions = [{"type": "Complete", "status": "True"}]
    rig.fake.put(rig.jobs[0] | {"status": {"conditions": conditions}})
    await until(lambda: any(j.get("status") for j in rig.caches[reports.JOBS].of("mq", JOB_LABEL, "demo")))
    assert await rig.keep()
    assert not rig.held


async def test_a_run_of_the_schedule_is_not_joined_by_another(rig: Rig) -> None:
    assert await rig.keep()
    job = {"kind": "Job", "metadata": {"namespace": "mq", "name": "by-schedule", "labels": {JOB_LABEL: "demo"}}}
    rig.fake.put(job)
    assert await rig.ask()
    assert [j["metadata"]["name"] for j in rig.jobs] == ["by-schedule"]
    await until(lambda: rig.caches["CronJob"].get("mq", NAME)["spec"]["suspend"])
    assert await rig.keep()
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
    assert await rig.keep()
    made = rig.fake.get("Secret", NAME) or {}
    assert not made.get("data")
    rig.fake.put(made | {"data": {"report.html.gz": "cGFnZQ=="}})
    await until(lambda: rig.caches["Secret"].get("mq", NAME).get("data"))
    assert await rig.keep()
    assert (rig.fake.get("Secret", NAME) or {})["data"] == {"report.html.gz": "cGFnZQ=="}


async def test_the_driver_gets_the_group_of_each_broker(rig: Rig) -> None:
    """So that it can see whether a broker without an answer takes a whole group with it."""
    rig.cluster.spec.brokerGroups.append(rig.cluster.spec.brokerGroups[0].model_copy(update={"name": "b"}))
    assert await rig.keep()
    made = rig.fake.get("CronJob", NAME) or {}
    (driver,) = made["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    brokers = driver["args"][driver["args"].index("--brokers") + 1].split(",")
    assert {url.split("=https://demo-")[0] for url in brokers} == {"a", "b"}
    assert all(url.split("=")[1].startswith(f"https://demo-{url[0]}-") for url in brokers)


async def test_driver_and_executors_trust_the_authority_of_the_cluster(rig: Rig) -> None:
    assert await rig.keep()
    pod = (rig.fake.get("CronJob", NAME) or {})["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (driver,) = pod["containers"]
    assert driver["args"][driver["args"].index("--ca-file") + 1] == "/etc/gantry-ca/ca.crt"
    assert "spark.kubernetes.executor.secrets.demo-ca-cert=/etc/gantry-ca" in driver["args"]
    assert {"name": "ca", "secret": {"secretName": "demo-ca-cert"}} in pod["volumes"]
    assert {"name": "ca", "mountPath": "/etc/gantry-ca", "readOnly": True} in driver["volumeMounts"]


async def test_a_run_authenticates_and_encrypts_whatever_the_spec_says(rig: Rig) -> None:
    assert await rig.keep()
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
