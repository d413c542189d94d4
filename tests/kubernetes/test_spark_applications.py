"""Reports as objects of Apache's Spark operator: the manifest, one run at a time, and what is read from its state."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.status import AnalyticsStatus
from gantry_operator.platforms.kubernetes.analytics import applications, jobs, manifests
from gantry_operator.platforms.kubernetes.analytics import reconciler as reports
from gantry_operator.platforms.kubernetes.analytics.manifests import JOB_LABEL
from gantry_operator.platforms.kubernetes.manifests import spark, spark_application
from pydantic import ValidationError

from tests.kubernetes.fake_api import FakeApi, running
from tests.kubernetes.report_rig import NAME, ReportRig
from tests.support.present import present
from tests.support.running import until

URLS = ["a=https://demo-a-0.demo-a.mq.svc:10921"]
GOOD = '{"result":"Succeeded","run":"r","report":"/reports/r","records":20,"savedBytes":10,"durationSeconds":3}'
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LATE = datetime(2026, 3, 1, 12, 10, tzinfo=UTC)


def cluster(**analytics: Any) -> BrokerCluster:
    made = BrokerCluster.make(
        "demo", "mq", brokerGroups=[{"name": "a"}], analytics={"engine": "SparkApplication"} | analytics
    )
    made.metadata.uid = "uid-1"
    return made


def made(**analytics: Any) -> dict[str, Any]:
    return present(manifests.application(cluster(**analytics), URLS, "spark:1", token=True))


FIELDS: dict[str, Any] = {
    "mainClass": str, "pyFiles": str, "driverArgs": [str], "sparkConf": {"*": str},
    "runtimeVersions": {"sparkVersion": str},
    "driverSpec": {"podTemplateSpec": {"metadata": {"labels": {"*": str}}, "spec": dict}},
    "executorSpec": {"podTemplateSpec": {"metadata": {"labels": {"*": str}}, "spec": dict}},
    "applicationTolerations": {
        "applicationTimeoutConfig": {"driverStartTimeoutMillis": int, "executorStartTimeoutMillis": int},
        "restartConfig": {
            "restartPolicy": {"Always", "Never", "OnFailure", "OnInfrastructureFailure"}, "maxRestartAttempts": int,
            "restartBackoffMillis": int,
        },
        "resourceRetainPolicy": {"Always", "Never", "OnFailure"},
    },
}  # fmt: skip
"""Fields of `spec` in version 1.0.0 of the definition that a run may have. The API server drops any other one."""


def fits(value: Any, fields: Any, where: str = "spec") -> None:
    if isinstance(fields, dict):
        for key, inner in value.items():
            assert key in fields or "*" in fields, f"{where}.{key} is not in the definition"
            fits(inner, fields.get(key, fields.get("*")), f"{where}.{key}")
    elif isinstance(fields, list):
        for number, inner in enumerate(value):
            fits(inner, fields[0], f"{where}[{number}]")
    elif isinstance(fields, set):
        assert value in fields, where
    else:
        assert type(value) is fields, where


@pytest.mark.parametrize("analytics", [{}, {"queue": "nightly"}, {"output": {"path": "s3a://reports/demo"}}])
def test_a_run_has_only_fields_of_the_definition(analytics: dict[str, Any]) -> None:
    run = made(**analytics)
    assert (run["apiVersion"], run["kind"]) == ("spark.apache.org/v1", "SparkApplication")
    fits(run["spec"], FIELDS)
    assert run["metadata"]["ownerReferences"][0]["uid"] == "uid-1"
    assert run["metadata"]["labels"][JOB_LABEL] == "demo"


def test_the_driver_has_the_files_and_no_setting_that_sparks_operator_makes() -> None:
    run = made(resources={"driver": {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}})
    spec, conf = run["spec"], run["spec"]["sparkConf"]
    assert spec["driverArgs"][:2] == ["report", "--brokers"]
    assert not [value for value in conf.values() if "$(" in value], "nothing replaces variables in a ConfigMap"
    assert not {"spark.driver.host", "spark.kubernetes.driver.pod.name"} & conf.keys()
    assert conf["spark.kubernetes.authenticate.driver.serviceAccountName"] == NAME
    heap, over = (int(conf[f"spark.driver.{k}"].rstrip("m")) for k in ("memory", "memoryOverhead"))
    assert heap + over == 2048
    assert conf["spark.kubernetes.driver.request.cores"] == "500m"
    pod = spec["driverSpec"]["podTemplateSpec"]["spec"]
    (driver,) = pod["containers"]
    assert not {"args", "image", "resources"} & driver.keys()
    assert pod["activeDeadlineSeconds"] == manifests.DEADLINE_S
    assert {"name": "ca", "mountPath": "/etc/gantry-ca", "readOnly": True} in driver["volumeMounts"]
    assert {"name": "reports", "persistentVolumeClaim": {"claimName": NAME}} in pod["volumes"]
    assert conf["spark.authenticate"] == conf["spark.io.encryption.enabled"] == "true"
    pinned = (Path(__file__).parents[2] / "requirements/spark.txt").read_text()
    assert f"pyspark=={spec['runtimeVersions']['sparkVersion']}" in pinned


def test_executors_are_beside_the_volume_of_the_driver() -> None:
    executor = made()["spec"]["executorSpec"]["podTemplateSpec"]["spec"]
    (term,) = executor["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["labelSelector"]["matchLabels"] == {JOB_LABEL: "demo", "spark-role": "driver"}
    free = made(output={"path": "s3a://reports/demo"})["spec"]["executorSpec"]["podTemplateSpec"]["spec"]
    assert "affinity" not in free


def test_kueue_admits_the_pods_however_long_it_takes() -> None:
    for run, queue in ((made(queue="nightly"), "nightly"), (made(), None)):
        spec = run["spec"]
        for part in ("driverSpec", "executorSpec"):
            assert spec[part]["podTemplateSpec"]["metadata"]["labels"].get(spark.QUEUE_LABEL) == queue
        timeouts = spec["applicationTolerations"]["applicationTimeoutConfig"]
        assert (timeouts.get("driverStartTimeoutMillis") == 0) == (queue is not None)
        assert spark.QUEUE_LABEL not in run["metadata"]["labels"], "a Workload of the whole would count the pods twice"


def test_the_schedule_and_its_template_belong_to_jobs() -> None:
    kinds = {o["kind"] for o in manifests.render(cluster(), URLS, "spark:1", token=True)}
    assert kinds == {"ServiceAccount", "Secret", "Role", "RoleBinding", "NetworkPolicy", "PersistentVolumeClaim"}
    assert manifests.application(cluster(engine="Job"), URLS, "spark:1", token=True) is None


def test_an_application_without_executors_is_refused() -> None:
    with pytest.raises(ValidationError, match="write at least 1, or engine: Job"):
        cluster(executors=0)


def test_the_page_is_shown_by_a_pod_of_the_last_run() -> None:
    run = made()
    run["metadata"]["uid"] = "run-uid"
    pod = jobs.show_pod(run, "report.html", "1")
    (container,) = pod["spec"]["containers"]
    assert container["image"] == "spark:1"
    assert container["args"][:5] == ["show", "--file", "report.html", "--out", "/reports"]
    assert "spark.authenticate=true" in container["args"]
    assert pod["metadata"]["ownerReferences"][0]["kind"] == "SparkApplication"


@pytest.mark.parametrize(
    ("analytics", "since", "last", "expected"),
    [
        ({"schedule": "50 11 * * *"}, "2026-02-01T00:00:00Z", None, "2026-03-01T11:50:00+00:00"),
        ({"schedule": "50 11 * * *"}, "2026-03-01T11:55:00Z", None, None),  # It was written afterwards.
        ({"schedule": "50 11 * * *"}, "2026-02-01T00:00:00Z", "2026-03-01T11:50:00Z", None),
        ({"schedule": "50 11 * * *"}, "2026-02-01T00:00:00Z", "2026-03-01T11:40:00Z", "2026-03-01T11:50:00+00:00"),
        ({"schedule": "0 3 * * *"}, "2026-02-01T00:00:00Z", None, None),  # Nine hours late.
        ({"schedule": "50 11 * * *", "suspend": True}, "2026-02-01T00:00:00Z", None, None),
    ],
)
def test_when_a_run_is_due(analytics: dict[str, Any], since: str, last: str | None, expected: str | None) -> None:
    spec = present(cluster(**analytics).spec.analytics)
    begin = present(applications.time_of(since))
    found = applications.due(spec, begin, None if last is None else applications.time_of(last), NOW)
    assert (None if found is None else found.isoformat()) == expected


def state(summary: str, message: str = "", driver: str | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"currentStateSummary": summary, "lastTransitionTime": "2026-03-01T03:00:09.5Z"}
    if message:
        found["message"] = message
    if driver is not None:
        found["lastObservedDriverStatus"] = {"containerStatuses": [{"state": {"terminated": {"message": driver}}}]}
    return found


def with_states(
    app: dict[str, Any], *states: dict[str, Any], former: tuple[dict[str, Any], ...] = ()
) -> dict[str, Any]:
    history = {str(number): one for number, one in enumerate(states, len(former))}
    status: dict[str, Any] = {"currentState": states[-1], "stateTransitionHistory": history}
    if former:
        history_before = {str(number): one for number, one in enumerate(former)}
        status["previousAttemptSummary"] = {"stateTransitionHistory": history_before}
    return app | {"status": status}


APP: dict[str, Any] = {
    "kind": "SparkApplication",
    "metadata": {"name": NAME, "uid": "u1", "creationTimestamp": "2026-03-01T03:00:00Z"},
}
DRIVER: dict[str, Any] = {
    "metadata": {
        "name": "driver", "uid": "d1", "creationTimestamp": "2026-03-01T03:00:01Z", "labels": {"spark-role": "driver"},
        "ownerReferences": [{"kind": "SparkApplication", "name": NAME, "uid": "u1"}],
    },
    "status": {"phase": "Succeeded", "containerStatuses": [{"state": {"terminated": {"message": GOOD}}}]},
}  # fmt: skip
SAID = '{"result":"Failed","message":"broker http://x does not answer"}'


@pytest.mark.parametrize(
    ("app", "result", "message"),
    [
        (APP, "Running", f"{NAME} is running."),
        (with_states(APP, state("Submitted"), state("DriverRequested")), "Running", f"{NAME} is running."),
        (
            with_states(APP, state("ScheduledToRestart"), former=(state("Submitted"), state("Failed", "x", SAID))),
            "Running",
            f"{NAME} is running. An attempt of it has failed: broker http://x does not answer",
        ),
        (
            with_states(APP, state("Submitted"), state("Succeeded"), state("ResourceReleased")),
            "Succeeded",
            "20 records; compaction would save 10 B.",
        ),
        (
            with_states(APP, state("Failed", "Driver failed.", SAID), state("ResourceReleased", "too often")),
            "Failed",
            "broker http://x does not answer",
        ),
        (
            with_states(APP, state("SchedulingFailure", "exceeded quota"), state("ResourceReleased")),
            "Failed",
            "SchedulingFailure: exceeded quota",
        ),
        (
            with_states(APP, state("DriverEvicted"), state("ResourceReleased", "too many attempts")),
            "Failed",
            "DriverEvicted: too many attempts",
        ),
    ],
)
def test_the_state_of_a_run_is_the_state_of_the_report(app: dict[str, Any], result: str, message: str) -> None:
    spec = present(cluster().spec.analytics)
    pods = [DRIVER] if result == "Succeeded" else []
    job, found = spark_application.as_job(app, pods)
    status = reports.analytics_status(spec, AnalyticsStatus(report="old"), [job], found, NOW)
    assert (status.lastResult, status.message) == (result, message)
    assert status.lastRun == "2026-03-01T03:00:00Z"
    assert status.report == ("/reports/r" if result == "Succeeded" else "old")
    assert (status.lastSuccess == "2026-03-01T03:00:09Z") == (result == "Succeeded")


class Rig(ReportRig):
    """The test plays Spark's operator."""

    @property
    def app(self) -> dict[str, Any] | None:
        return self.fake.get("SparkApplication", NAME)

    def put(self, *states: dict[str, Any]) -> None:
        assert self.app is not None
        self.fake.put(with_states(self.app, *states))

    def wrote_long_ago(self) -> None:
        role = present(self.fake.get("Role", NAME))
        role["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
        self.fake.put(role)
        self.caches["Role"].note(self.fake.get("Role", NAME) or {})

    @property
    def status(self) -> AnalyticsStatus:
        return present(self.report.status(self.cluster))


@pytest.fixture
async def rig(fake: FakeApi) -> AsyncIterator[Rig]:
    resource = fake.put({"kind": "BrokerCluster", "metadata": {"namespace": "mq", "name": "demo"}})
    rig = Rig(fake, cluster(schedule="0 12 * * *"), resource["metadata"]["uid"])
    async with running(rig.caches.values()):
        yield rig
        await rig.events.close()


async def test_a_run_that_is_due_starts_once(rig: Rig) -> None:
    assert await rig.keep()
    await rig.report.follow(LATE)
    assert rig.app is None, "the schedule is younger than its last time"
    rig.wrote_long_ago()
    await rig.report.follow(LATE)
    assert rig.app is not None
    first = rig.app["metadata"]["uid"]
    assert rig.app["metadata"]["annotations"][applications.SCHEDULED] == NOW.isoformat()
    for _ in range(3):
        await rig.report.follow(LATE)
        assert rig.app["metadata"]["uid"] == first, "never two at once"
    assert rig.status.lastResult == "Running"
    assert await rig.keep()
    assert rig.app["metadata"]["uid"] == first


async def test_the_next_run_waits_until_the_former_object_is_gone(rig: Rig) -> None:
    await rig.keep()
    assert await rig.ask()
    first = present(rig.app)
    assert await rig.ask(), "an active run is the answer"
    assert rig.app == first
    rig.fake.put({**DRIVER, "kind": "Pod", "metadata": DRIVER["metadata"] | {
        "namespace": "mq", "labels": {JOB_LABEL: "demo", "spark-role": "driver"},
        "ownerReferences": [{"kind": "SparkApplication", "name": NAME, "uid": first["metadata"]["uid"]}],
    }})  # fmt: skip
    await until(lambda: rig.report.applications._drivers)
    rig.fake.remove("Pod", "mq", "driver")
    rig.put(state("Submitted"), state("Succeeded"), state("ResourceReleased"))
    await rig.report.follow(LATE)
    assert (rig.status.lastResult, rig.status.report) == ("Succeeded", "/reports/r"), "its pod is gone already"
    assert not await rig.ask(), "the former object goes first"
    assert rig.app is None
    assert await rig.ask()
    assert present(rig.app)["metadata"]["uid"] != first["metadata"]["uid"]
    assert {"AnalysisStarted", "AnalysisAlreadyRunning", "AnalysisSucceeded"} <= set(await rig.reasons())


async def test_without_sparks_operator_the_condition_says_so(rig: Rig) -> None:
    rig.fake.missing.add("SparkApplication")
    assert await rig.keep()
    rig.wrote_long_ago()
    await rig.report.follow(LATE)
    status = rig.status
    assert (status.lastResult, status.reason) == ("Failed", "NoSparkOperator")
    assert "no sparkapplications.spark.apache.org: install Apache's Spark operator, or write engine: Job" in (
        status.message
    )
    assert await rig.ask(), "the answer is the problem"
    rig.fake.missing.clear()
    await rig.report.follow(LATE)
    assert rig.app is not None
    assert rig.status.reason == ""


async def test_a_run_that_nobody_takes_is_named(rig: Rig) -> None:
    await rig.keep()
    await rig.ask()
    assert rig.app is not None
    rig.fake.put(rig.app | {"metadata": rig.app["metadata"] | {"creationTimestamp": "2026-01-01T00:00:00Z"}})
    await rig.report.follow(LATE)
    assert "has not taken SparkApplication demo-analytics: see that it runs and watches namespace mq" in (
        rig.status.message
    )
    rig.put(state("Submitted"))
    await rig.report.follow(LATE)
    assert (rig.status.reason, rig.status.lastResult) == ("", "Running")


async def test_a_changed_engine_never_has_two_runs(rig: Rig) -> None:
    await rig.keep()
    await rig.ask()
    assert rig.cluster.spec.analytics is not None
    rig.cluster.spec.analytics.engine = "Job"
    assert not await rig.keep(), "the application goes first"
    assert rig.fake.get("CronJob", NAME) is None
    assert rig.app is None
    assert await rig.keep()
    assert rig.fake.get("CronJob", NAME) is not None
    owner = [{"kind": "Job", "name": "x", "uid": "u"}]
    meta = {"namespace": "mq", "name": "x", "labels": {JOB_LABEL: "demo"}}
    rig.fake.put({"kind": "Job", "metadata": dict(meta)})
    rig.fake.put({"kind": "Pod", "metadata": meta | {"ownerReferences": owner}, "status": {"phase": "Running"}})
    await until(lambda: rig.caches[reports.JOBS].get("mq", "x") and rig.caches[reports.PODS].get("mq", "x"))
    rig.cluster.spec.analytics.engine = "SparkApplication"
    await until(lambda: rig.caches["CronJob"].get("mq", NAME))
    assert await rig.keep()
    assert rig.fake.get("CronJob", NAME) is None
    rig.wrote_long_ago()
    for kind in ("Job", "Pod"):
        await rig.report.follow(LATE)
        assert rig.app is None, f"a {kind} is there"
        rig.fake.remove(kind, "mq", "x")
        await until(
            lambda kind=kind: rig.caches[{"Job": reports.JOBS, "Pod": reports.PODS}[kind]].get("mq", "x") is None
        )
    await rig.report.follow(LATE)
    assert rig.app is not None
    rig.cluster.spec.analytics = None
    while not await rig.keep():
        pass
    assert rig.app is None
