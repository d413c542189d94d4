"""Runs of tables as objects of Apache's Spark operator: one at a time, also beside Jobs, and what is read from them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from gantry_broker.contracts.table_runs import RunReport, TableReport, to_text
from gantry_operator.api.table import Tables
from gantry_operator.cluster.store_unavailable import StoreUnavailable
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.manifests import spark
from gantry_operator.platforms.kubernetes.tables import manifests, runs
from pydantic import ValidationError

from tests.kubernetes.fake_api import FakeApi, running
from tests.kubernetes.test_spark_applications import FIELDS, fits, state, with_states
from tests.kubernetes.test_table_runs import RUN, Rig, cluster
from tests.support.present import present

NEXT = "20260501120500000000"
REPORT = RunReport(run=RUN, tables=[TableReport(topic="Orders", reason="Current", rows=3)])
SPEC: dict[str, Any] = {"engine": "SparkApplication", "executors": 2}


@pytest.fixture
async def rig(fake: FakeApi, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setattr(runs, "PAUSE_S", 0.0)
    resource = fake.put({"kind": "BrokerCluster", "metadata": {"namespace": "mq", "name": "demo"}})
    rig = Rig(fake, resource["metadata"]["uid"])
    write(rig, **SPEC)
    async with running(rig.caches.values()):
        yield rig


def write(rig: Rig, **tables: Any) -> None:
    uid = rig.cluster.metadata.uid
    rig.cluster = cluster(tables=tables)
    rig.cluster.metadata.uid = uid


async def start(rig: Rig, run: str = RUN, **more: Any) -> dict[str, Any]:
    await rig.start(run, Tables(**(SPEC | more)))
    return app(rig)


def app(rig: Rig) -> dict[str, Any]:
    return present(rig.fake.get("SparkApplication", "demo-tables"))


def end(rig: Rig, *states: dict[str, Any], text: str | None = None) -> None:
    """The run ends; its driver, if there was one, has left a termination message."""
    made = app(rig)
    if text is not None:
        owner = {"kind": "SparkApplication", "name": "demo-tables", "uid": made["metadata"]["uid"]}
        meta = {
            "namespace": "mq", "name": "driver", "ownerReferences": [owner],
            "labels": made["spec"]["driverSpec"]["podTemplateSpec"]["metadata"]["labels"],
        }  # fmt: skip
        terminated = {"state": {"terminated": {"exitCode": 0, "message": text}}}
        rig.fake.put({"kind": "Pod", "metadata": meta, "status": {"containerStatuses": [terminated]}})
    rig.fake.put(with_states(made, *states))


async def test_a_run_has_only_fields_of_the_definition(rig: Rig) -> None:
    made = await start(rig, queue="lake")
    fits(made["spec"], FIELDS)
    spec = made["spec"]
    assert spec["driverArgs"][:2] == ["tables", "--order"]
    order = present(manifests.order_of(made))
    assert (order.run, order.spark, order.conf) == (RUN, True, {}), "the settings come from Spark's operator"
    assert spec["sparkConf"]["spark.executor.instances"] == "2"
    assert not [value for value in spec["sparkConf"].values() if "$(" in value]
    for part in ("driverSpec", "executorSpec"):
        labels = spec[part]["podTemplateSpec"]["metadata"]["labels"]
        assert (labels[spark.QUEUE_LABEL], labels[names.TABLES_LABEL]) == ("lake", "demo")
    assert spark.QUEUE_LABEL not in made["metadata"]["labels"], "a Workload of the whole would count the pods twice"
    again = spec["applicationTolerations"]["restartConfig"]
    assert (again["restartPolicy"], again["maxRestartAttempts"]) == ("OnInfrastructureFailure", manifests.RETRIES)
    assert rig.fake.get("ConfigMap", "demo-tables") is None, "the template of executors is in the object"
    assert rig.fake.get("Role", "demo-tables") is not None
    assert rig.fake.get("Job", "demo-tables") is None


async def test_a_run_reports_in_the_termination_message_of_its_driver(rig: Rig) -> None:
    assert await rig.runs.newest() is None
    await start(rig)
    found = present(await rig.runs.newest())
    assert (found.name, found.running, found.topics) == (RUN, True, {"Orders"})
    end(rig, state("Submitted"), state("Succeeded"), state("TerminatedWithoutReleaseResources"),
        text=to_text(REPORT, 4000))  # fmt: skip
    found = await rig.until(lambda run: not run.running and run.report is not None)
    assert (found.report, found.problem) == (REPORT, "")


async def test_a_driver_that_comes_back_is_the_same_run(rig: Rig) -> None:
    await start(rig)
    lost = state("DriverEvicted", "its node is lost")
    made = with_states(app(rig), state("ScheduledToRestart"), former=(state("Submitted"), lost))
    rig.fake.put(made)
    found = present(await rig.runs.newest())
    assert (found.name, found.running) == (RUN, True)
    with pytest.raises(StoreUnavailable, match="a run is active already"):
        await start(rig, NEXT)
    assert app(rig)["metadata"]["uid"] == made["metadata"]["uid"], "never two at once"
    end(rig, lost, state("TerminatedWithoutReleaseResources", "too many attempts"))
    found = await rig.until(lambda run: not run.running)
    assert "DriverEvicted: its node is lost" in found.problem


async def test_the_next_run_takes_the_place_of_the_former_object(rig: Rig, fake: FakeApi) -> None:
    first = await start(rig)
    end(rig, state("Succeeded"), state("TerminatedWithoutReleaseResources"))
    assert (await start(rig, NEXT))["metadata"]["uid"] != first["metadata"]["uid"]
    found = present(await rig.runs.newest())
    assert (found.name, found.running) == (NEXT, True)
    await rig.runs.stop()
    assert fake.get("SparkApplication", "demo-tables") is None


async def test_a_former_object_that_does_not_go_is_named(rig: Rig) -> None:
    """Spark's operator holds it until its driver is gone."""
    await start(rig)
    end(rig, state("Succeeded"), state("TerminatedWithoutReleaseResources"))
    held = app(rig)
    rig.fake.objects["SparkApplication", "mq", "demo-tables"]["metadata"]["deletionTimestamp"] = "2026-05-01T12:00:00Z"
    with pytest.raises(StoreUnavailable, match="the former run is being removed"):
        await start(rig, NEXT)
    assert app(rig)["metadata"]["uid"] == held["metadata"]["uid"]


async def test_a_changed_engine_never_has_two_runs(rig: Rig) -> None:
    await start(rig)
    write(rig)
    with pytest.raises(StoreUnavailable, match="a run is active already"):
        await rig.start(NEXT)
    assert rig.fake.get("Job", "demo-tables") is None
    end(rig, state("Succeeded"), state("TerminatedWithoutReleaseResources"))
    with pytest.raises(StoreUnavailable, match="the former run is being removed"):
        await rig.start(NEXT)
    await rig.start(NEXT)
    assert rig.fake.get("SparkApplication", "demo-tables") is None
    assert manifests.order_of(rig.job) is not None
    write(rig, **SPEC)
    with pytest.raises(StoreUnavailable, match="a run is active already"):
        await start(rig, "20260501121000000000")
    found = present(await rig.runs.newest())
    assert (found.name, found.running) == (NEXT, True), "the Job of the former spec is followed to its end"
    rig.end("Complete")
    await rig.until(lambda run: not run.running)
    await start(rig, "20260501121000000000")
    assert rig.fake.get("Job", "demo-tables") is None


async def test_without_sparks_operator_it_is_said_and_jobs_need_none(rig: Rig) -> None:
    rig.fake.missing.add("SparkApplication")
    for call in (rig.runs.newest(), start(rig)):
        with pytest.raises(StoreUnavailable, match=r"spec\.tables\.engine is SparkApplication, and this Kubernetes"):
            await call
    write(rig)
    await rig.start()
    assert rig.job["metadata"]["name"] == "demo-tables"


async def test_a_run_that_nobody_takes_is_named(rig: Rig) -> None:
    made = await start(rig)
    rig.fake.put(made | {"metadata": made["metadata"] | {"creationTimestamp": "2026-01-01T00:00:00Z"}})
    found = present(await rig.runs.newest())
    assert found.running
    assert "has not taken SparkApplication demo-tables" in found.problem


def test_an_application_without_executors_is_refused() -> None:
    with pytest.raises(ValidationError, match="write at least 1, or engine: Job"):
        cluster(tables={"engine": "SparkApplication"})
