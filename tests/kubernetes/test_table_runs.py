"""Runs of tables as Jobs: one at a time, what the Job has, and what is read from it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from gantry_broker.contracts.table_runs import RunReport, TableOrder, TableReport, to_text
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.table import Tables
from gantry_operator.cluster.platform import TableRun
from gantry_operator.cluster.store_unavailable import StoreUnavailable
from gantry_operator.plan.plan import plan
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.api.client import KINDS
from gantry_operator.platforms.kubernetes.api.informer_cache import InformerCache
from gantry_operator.platforms.kubernetes.manifests.desired_objects import OperatorSettings
from gantry_operator.platforms.kubernetes.objects.object_reconciler import ObjectReconciler
from gantry_operator.platforms.kubernetes.operator import CACHED
from gantry_operator.platforms.kubernetes.tables import manifests
from gantry_operator.platforms.kubernetes.tables.runs import JOBS, PODS, KubernetesTableRuns
from gantry_operator.tables.schedule import started_ms

from tests.kubernetes.fake_api import FakeApi, running
from tests.support.present import present

RUN = "20260501120000000000"
ORDER = [TableOrder(topic="Orders", mode="Upsert")]


def quiet(_: str, __: dict[str, Any]) -> None:
    """Has no listener."""


def cluster(**spec: Any) -> BrokerCluster:
    plain: dict[str, Any] = {"brokerGroups": [{"name": "a"}], "security": {"authentication": "Disabled"}}
    return BrokerCluster.make("demo", "mq", **(plain | spec))


class Rig:
    """The runs of one cluster, with an API server in memory."""

    def __init__(self, fake: FakeApi, uid: str, image: str = "spark:1") -> None:
        self.fake = fake
        settings = OperatorSettings("broker:1", image)
        self.caches = {k: InformerCache(fake.api, KINDS[k], [], names.CLUSTER_LABEL, quiet) for k in CACHED}
        for name, kind in ((JOBS, "Job"), (PODS, "Pod")):
            self.caches[name] = InformerCache(fake.api, KINDS[kind], [], names.TABLES_LABEL, quiet)
        self.cluster = cluster()
        self.cluster.metadata.uid = uid
        objects = ObjectReconciler(fake.api, self.caches, settings, "mq", "demo", uid)
        self.runs = KubernetesTableRuns(
            fake.api, self.caches, objects, settings, ("mq", "demo"), lambda: (self.cluster, plan(self.cluster))
        )

    async def start(self, run: str = RUN, spec: Tables | None = None, lasts_s: float = 0.0) -> None:
        await self.runs.start(run, ORDER, spec or Tables(), lasts_s)

    @property
    def job(self) -> dict[str, Any]:
        return present(self.fake.get("Job", "demo-tables"))

    @property
    def pod(self) -> dict[str, Any]:
        spec: dict[str, Any] = self.job["spec"]["template"]["spec"]
        return spec

    def end(self, condition: str, *, text: str | None = None, **terminated: Any) -> None:
        """The Job ends, and its pod left a termination message."""
        job = self.job
        ended = {"exitCode": 0, **terminated} | ({} if text is None else {"message": text})
        owner = {"kind": "Job", "name": job["metadata"]["name"], "uid": job["metadata"]["uid"]}
        self.fake.put(
            {
                "kind": "Pod",
                "metadata": {
                    "namespace": "mq", "name": f"demo-tables-{job['metadata']['uid'][:5]}", "ownerReferences": [owner],
                    "labels": self.job["spec"]["template"]["metadata"]["labels"],
                },
                "status": {"containerStatuses": [{"state": {"terminated": ended}}]},
            }
        )  # fmt: skip
        self.fake.put(job | {"status": {"conditions": [{"type": condition, "status": "True", "message": "why"}]}})

    async def until(self, wanted: Any) -> TableRun:
        for _ in range(1000):
            found = await self.runs.newest()
            if found is not None and wanted(found):
                return found
            await asyncio.sleep(0.01)
        raise AssertionError("not in 10 s")


@pytest.fixture
async def rig(fake: FakeApi) -> AsyncIterator[Rig]:
    resource = fake.put({"kind": "BrokerCluster", "metadata": {"namespace": "mq", "name": "demo"}})
    rig = Rig(fake, resource["metadata"]["uid"])
    async with running(rig.caches.values()):
        yield rig


async def test_a_run_is_a_job_that_reports_in_its_termination_message(rig: Rig) -> None:
    assert await rig.runs.newest() is None
    await rig.start()
    found = await rig.runs.newest()
    assert found == TableRun(RUN, True, started_ms(RUN), frozenset({"Orders"})), "also before the watch has it"
    report = RunReport(run=RUN, tables=[TableReport(topic="Orders", reason="Current", rows=3)])
    rig.end("Complete", text=to_text(report, 4000))
    found = await rig.until(lambda run: not run.running and run.report is not None)
    assert (found.report, found.problem, found.name) == (report, "", RUN)


@pytest.mark.parametrize(
    ("terminated", "words"),
    [
        ({"exitCode": 137, "reason": "OOMKilled"}, "raise spec.tables.resources.driver.limits.memory"),
        ({"exitCode": 1}, "exit code 1"),
        ({"text": to_text(RunReport(run="another"), 4000)}, "why"),
    ],
)
async def test_a_run_that_failed_says_why(rig: Rig, terminated: dict[str, Any], words: str) -> None:
    await rig.start()
    rig.end("Failed", **terminated)
    assert (await rig.until(lambda run: not run.running and words in run.problem)).report is None


async def test_the_name_of_the_job_lets_one_run_at_a_time(rig: Rig) -> None:
    await rig.start()
    uid = rig.job["metadata"]["uid"]
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="a run is active already"):
            await rig.start("20260501120500000000")
    assert rig.job["metadata"]["uid"] == uid
    rig.end("Complete")
    await rig.until(lambda run: not run.running)
    await rig.start("20260501120500000000")
    found = present(await rig.runs.newest())
    assert (found.name, found.running) == ("20260501120500000000", True), (
        "not the former one, which the cache still has"
    )
    await rig.runs.stop()
    assert rig.fake.get("Job", "demo-tables") is None


async def test_without_a_catalog_the_tables_lie_on_a_volume(rig: Rig) -> None:
    await rig.start()
    claim = present(rig.fake.get("PersistentVolumeClaim", "demo-tables"))
    assert claim["spec"]["resources"]["requests"]["storage"] == "10Gi"
    order = present(manifests.order_of(rig.job))
    assert order.catalog["uri"] == "sqlite:////tables/catalog.db"
    assert order.catalog["warehouse"] == "file:///tables"
    assert order.name_servers.startswith("demo-namesrv-0")
    assert (order.spark, order.credentials, order.tls) == (False, None, False)
    assert rig.pod["automountServiceAccountToken"] is False, "without executors it needs no right"
    assert rig.fake.get("Role", "demo-tables") is None
    mounts = {m["name"]: m["mountPath"] for m in rig.pod["containers"][0]["volumeMounts"]}
    assert (mounts["scratch"], mounts["tables"], "template" in mounts) == ("/tmp", "/tables", False)
    assert rig.pod["securityContext"]["runAsNonRoot"]
    policy = present(rig.fake.get("NetworkPolicy", "demo-tables"))
    assert policy["spec"]["podSelector"]["matchLabels"] == {names.TABLES_LABEL: "demo"}


async def test_secrets_are_mounted_and_never_in_the_job(rig: Rig) -> None:
    spec = Tables(
        catalog={"type": "rest", "uri": "https://c"}, catalogSecret="keys", user="reader", executors=2,
        sparkConf={"spark.task.maxFailures": "3"},
    )  # fmt: skip
    rig.cluster = cluster(security={"authentication": "Enabled", "tls": {"mode": "Required"}})
    rig.cluster.metadata.uid = (rig.fake.get("BrokerCluster", "demo") or {})["metadata"]["uid"]
    with pytest.raises(StoreUnavailable, match=r"Secret keys .* does not exist"):
        await rig.start(spec=spec, lasts_s=300)
    secret = {"kind": "Secret", "metadata": {"name": "keys", "namespace": "mq"}}
    rig.fake.put(secret)
    with pytest.raises(StoreUnavailable, match=r"give it the label gantry\.dev/catalog=true"):
        await rig.start(spec=spec, lasts_s=300)
    assert rig.fake.get("Job", "demo-tables") is None, "nothing has seen the Secret"
    rig.fake.objects["Secret", "mq", "keys"]["metadata"]["labels"] = {names.CATALOG_LABEL: "true"}
    await rig.start(spec=spec, lasts_s=300)
    order = present(manifests.order_of(rig.job))
    assert (order.catalog, order.catalog_secret, order.credentials) == (
        spec.catalog, "/etc/gantry-catalog", "/etc/gantry-user",
    )  # fmt: skip
    assert (order.tls, order.spark, order.lasts_s) == (True, True, 300)
    assert order.ca_file is not None
    volumes = {v["name"]: v for v in rig.pod["volumes"]}
    assert volumes["catalog"]["secret"]["secretName"] == "keys"
    assert volumes["user"]["secret"]["secretName"] == "demo-user-reader"
    assert "tables" not in volumes
    assert order.conf["spark.executor.instances"] == "2"
    assert order.conf["spark.task.maxFailures"] == "3"
    assert order.conf["spark.kubernetes.executor.secrets.keys"] == "/etc/gantry-catalog"
    verbs = {v for r in (rig.fake.get("Role", "demo-tables") or {})["rules"] for v in r["verbs"]}
    assert "*" not in verbs
    assert "update" not in verbs


async def test_an_archive_and_a_queue_reach_the_run(rig: Rig) -> None:
    archive = {
        "url": "s3://bucket/demo", "endpoint": "http://minio:9000", "credentialsSecret": "s3",
        "encryption": {"secretName": "sealed"},
    }  # fmt: skip
    uid = rig.cluster.metadata.uid
    spec = Tables(source="Archive", executors=1, queue="lake")
    with pytest.raises(StoreUnavailable, match=r"source is Archive, but there is no archive"):
        await rig.start(spec=spec)
    rig.cluster = cluster(archive=archive)
    rig.cluster.metadata.uid = uid
    await rig.start(spec=spec)
    order = present(manifests.order_of(rig.job))
    assert order.archive == {
        "archive": "s3://bucket/demo", "endpoint": "http://minio:9000",
        "credentials": "/etc/gantry-archive/archive/s3", "keyFile": "/etc/gantry-archive/archive/sealed/encryptionKey",
    }  # fmt: skip
    mounts = {m["mountPath"] for m in rig.pod["containers"][0]["volumeMounts"]}
    assert mounts >= {"/etc/gantry-archive/archive/s3", "/etc/gantry-archive/archive/sealed"}
    assert order.conf["spark.kubernetes.executor.secrets.s3"] == "/etc/gantry-archive/archive/s3"
    assert rig.job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "lake"
    template = (rig.fake.get("ConfigMap", "demo-tables") or {})["data"]["executor.yaml"]
    assert "kueue.x-k8s.io/queue-name: lake" in template
    assert "kueue.x-k8s.io/queue-name" not in rig.job["spec"]["template"]["metadata"]["labels"]


async def test_what_a_run_needs_is_said(rig: Rig, fake: FakeApi) -> None:
    rig.cluster = cluster(security={"authentication": "Enabled"})
    with pytest.raises(StoreUnavailable, match=r"write spec\.tables\.user"):
        await rig.start()
    without = Rig(fake, rig.cluster.metadata.uid or "", image="")
    assert await without.runs.newest() is None
    with pytest.raises(StoreUnavailable, match="no image with Spark is known"):
        await without.start()
    rig.cluster = cluster()
    fake.refuse["NetworkPolicy"] = (403, "Forbidden")
    with pytest.raises(StoreUnavailable, match="cannot be started"):
        await rig.start()
