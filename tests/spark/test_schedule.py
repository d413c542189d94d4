"""Scheduling without a Kubernetes cluster: the manifests, the cron schedules, the status."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from gantry_operator.api import cron
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.status import AnalyticsStatus
from gantry_operator.cli.analytics_on_demand import MAX_REPORT, from_log
from gantry_operator.cli.errors import CliError
from gantry_operator.platforms.kubernetes.analytics import jobs, manifests
from gantry_operator.platforms.kubernetes.analytics.status import analytics_status, from_termination_message, run_events
from gantry_spark import main, showlog
from gantry_spark.entrypoint import driver_arguments, executor_command
from gantry_spark.errors import error_message
from gantry_spark.main import arguments, job_from_args
from pydantic import ValidationError

from tests.spark.reference_log import LogWriter, Message
from tests.support.present import present

URLS = ["http://demo-a-0.demo-a.default.svc:10921", "http://demo-a-1.demo-a.default.svc:10921"]


def cluster(**analytics: Any) -> BrokerCluster:
    made = BrokerCluster.make("demo", brokerGroups=[{"name": "a", "members": 2}], analytics=analytics)
    made.metadata.uid = "uid-1"
    return made


def rendered(**analytics: Any) -> dict[str, dict[str, Any]]:
    return {o["kind"]: o for o in manifests.render(cluster(**analytics), URLS, "spark:1", token=True)}


def driver_of(objects: dict[str, dict[str, Any]]) -> dict[str, Any]:
    template: dict[str, Any] = objects["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    return template


def conf_of(objects: dict[str, dict[str, Any]]) -> dict[str, str]:
    args = driver_of(objects)["containers"][0]["args"]
    return dict(args[i + 1].split("=", 1) for i, a in enumerate(args) if a == "--conf")


def test_everything_belongs_to_the_cluster_and_runs_once_at_a_time() -> None:
    objects = rendered(schedule="0 3 * * *", timeZone="Europe/Berlin", topics=["Orders", "P*"], window="7d")
    assert set(objects) == {
        "ServiceAccount", "Role", "RoleBinding", "PersistentVolumeClaim", "ConfigMap", "CronJob", "NetworkPolicy",
        "Secret",
    }  # fmt: skip
    for o in objects.values():
        assert o["metadata"]["ownerReferences"][0]["uid"] == "uid-1"
        assert o["metadata"]["name"] == "demo-analytics"
    spec = objects["CronJob"]["spec"]
    assert spec["concurrencyPolicy"] == "Forbid"
    assert (spec["schedule"], spec["timeZone"], spec["suspend"]) == ("0 3 * * *", "Europe/Berlin", False)
    assert spec["jobTemplate"]["spec"]["backoffLimit"] == 2
    pod = driver_of(objects)
    assert pod["restartPolicy"] == "Never"
    assert pod["securityContext"]["runAsNonRoot"]
    conf = conf_of(objects)
    assert conf["spark.executor.instances"] == "2"
    # Executors call the driver at its bind address, and a wildcard would lead them to themselves.
    assert conf["spark.driver.bindAddress"] == conf["spark.driver.host"] == "$(POD_IP)"
    assert conf["spark.kubernetes.driver.pod.name"] == "$(POD_NAME)"
    assert conf["spark.kubernetes.executor.volumes.persistentVolumeClaim.reports.options.claimName"] == "demo-analytics"
    template = yaml.safe_load(objects["ConfigMap"]["data"]["executor.yaml"])
    assert template["spec"]["automountServiceAccountToken"] is False
    verbs = {v for r in objects["Role"]["rules"] for v in r["verbs"]}
    assert "*" not in verbs
    assert "update" not in verbs
    (secrets,) = (r for r in objects["Role"]["rules"] if "secrets" in r["resources"])
    assert (secrets["resourceNames"], secrets["verbs"]) == ([objects["Secret"]["metadata"]["name"]], ["patch"])
    assert "data" not in objects["Secret"], "the driver's, which the operator leaves alone"


def test_the_driver_understands_its_arguments() -> None:
    args = driver_of(rendered(topics=["Orders", "P*"], reportsHistory=4))["containers"][0]["args"]
    assert args[0] == "report"
    parsed = arguments().parse_args(args[1:])
    job = job_from_args(parsed)
    assert job.brokers == tuple(URLS)
    assert (job.topics, job.window_hours, job.history, job.out) == (("Orders", "P*"), 168.0, 4, "/reports")
    assert job.token_file == "/etc/gantry-admin/token"
    assert job.rate == manifests.RATE
    assert parsed.page_secret == "demo-analytics"


def test_the_archive_is_read_in_place_of_the_brokers() -> None:
    archive = {
        "url": "s3://shop-archive/prod", "endpoint": "http://s3:7070", "credentialsSecret": "archive-s3",
        "encryption": {"secretName": "archive-key"},
    }  # fmt: skip
    groups = [{"name": "a", "members": 2}]
    made = BrokerCluster.make("demo", brokerGroups=groups, archive=archive, analytics={"source": "Archive"})
    objects = {o["kind"]: o for o in manifests.render(made, URLS, "spark:1", token=True)}
    driver = driver_of(objects)
    job = job_from_args(arguments().parse_args(driver["containers"][0]["args"][1:]))
    assert (job.paths, job.brokers) == (("s3://shop-archive/prod",), ())
    folders = {
        "archive-s3": "/etc/gantry-archive/archive/archive-s3",
        "archive-key": "/etc/gantry-archive/archive/archive-key",
    }
    assert job.read_options == {
        "endpoint": "http://s3:7070",
        "credentials": folders["archive-s3"],
        "keyFile": f"{folders['archive-key']}/encryptionKey",
    }
    mounted = {m["name"]: m["mountPath"] for m in driver["containers"][0]["volumeMounts"]}
    secrets = {v["secret"]["secretName"]: mounted[v["name"]] for v in driver["volumes"] if "secret" in v}
    assert {s: secrets[s] for s in folders} == folders
    conf = conf_of(objects)
    assert {s: conf[f"spark.kubernetes.executor.secrets.{s}"] for s in folders} == folders


@pytest.mark.parametrize("archive", [None, {"url": "file:///backup"}])
def test_an_archive_that_spark_cannot_reach_is_refused(archive: dict[str, str] | None) -> None:
    with pytest.raises(ValidationError, match="there is no archive that Spark's pods reach"):
        BrokerCluster.make("demo", brokerGroups=[{"name": "a"}], archive=archive, analytics={"source": "Archive"})


def test_without_executors_and_with_a_path() -> None:
    objects = rendered(executors=0, output={"path": "s3a://reports/demo"}, sparkConf={"spark.x": "1"})
    assert "PersistentVolumeClaim" not in objects
    conf = conf_of(objects)
    assert conf["spark.master"] == "local[*]"
    assert conf["spark.x"] == "1"
    assert not any("persistentVolumeClaim" in k for k in conf)


def test_kueue_admits_the_job_and_each_executor() -> None:
    """Not the driver's pod: its Job was admitted."""
    for analytics, queue in (({"queue": "nightly"}, "nightly"), ({}, None)):
        objects = rendered(**analytics)
        job_template = objects["CronJob"]["spec"]["jobTemplate"]
        executor = yaml.safe_load(objects["ConfigMap"]["data"]["executor.yaml"])
        assert job_template["metadata"]["labels"].get("kueue.x-k8s.io/queue-name") == queue
        assert executor["metadata"]["labels"].get("kueue.x-k8s.io/queue-name") == queue
        assert "kueue.x-k8s.io/queue-name" not in job_template["spec"]["template"]["metadata"]["labels"]
        made = objects["CronJob"]
        made["metadata"]["uid"] = "cron-uid"
        assert jobs.job_now(made, "1")["metadata"]["labels"].get("kueue.x-k8s.io/queue-name") == queue, "on demand, too"


def test_resources_become_heap_and_overhead() -> None:
    resources = {"executor": {"requests": {"cpu": "500m"}, "limits": {"memory": "4Gi", "cpu": "2"}}}
    conf = conf_of(rendered(resources=resources))
    assert conf["spark.executor.cores"] == "2"
    assert conf["spark.kubernetes.executor.request.cores"] == "500m"
    heap, over = (int(conf[f"spark.executor.{k}"].rstrip("m")) for k in ("memory", "memoryOverhead"))
    assert heap + over == 4096


def test_nothing_without_analytics_or_image() -> None:
    plain = BrokerCluster.make("demo", brokerGroups=[{"name": "a", "members": 1}])
    assert manifests.render(plain, URLS, "spark:1", token=False) == []
    with pytest.raises(ValueError, match=r"spec.analytics.image: no image with Spark is known"):
        manifests.render(cluster(), URLS, "", token=False)


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        ("61 * * * *", "'61' is no minute; write numbers"),
        ("* * *", "has 3 fields; write five"),
        ("0 25 * * *", "'25' is no hour"),
        ("0 0 * * 9", "'9' is no day of week"),
        ("*/0 * * * *", r"'\*/0' is no minute"),
        ("@often", "no such nickname"),
        ("0 3 5-1 * *", "'5-1' is no day of month"),
        ("0 0 3 * * *", "has 6 fields; write five"),
        ("0 3 L * *", "'L' is no day of month"),
        ("0 3 * * 5#2", "'5#2' is no day of week"),
        ("0 3 * * 5L", "'5L' is no day of week"),
        ("0 3 \u0663 * *", "is no day of month"),
    ],
)
def test_schedules_that_do_not_parse_are_explained(schedule: str, says: str) -> None:
    with pytest.raises(cron.ScheduleError, match=says):
        cron.parse(schedule)


@pytest.mark.parametrize(
    ("schedule", "zone", "due"),
    [
        ("0 3 * * *", None, "2026-03-02T03:00:00+00:00"),
        ("*/15 * * * *", None, "2026-03-01T12:15:00+00:00"),
        ("30 12 * * *", "Europe/Berlin", "2026-03-02T11:30:00+00:00"),
        ("0 0 1 1 *", None, "2027-01-01T00:00:00+00:00"),
        ("@weekly", None, "2026-03-08T00:00:00+00:00"),
        ("0 6 * * mon-fri", None, "2026-03-02T06:00:00+00:00"),
        ("0 0 13 * fri", None, "2026-03-06T00:00:00+00:00"),
        ("0 0 30 2 *", None, None),
        ("0 0 ? * 7", None, "2026-03-08T00:00:00+00:00"),
        ("5/20 * * * *", None, "2026-03-01T12:05:00+00:00"),
        ("0 3 29 FEB *", None, "2028-02-29T03:00:00+00:00"),
        ("0 3 */10 * mon", None, "2026-05-11T03:00:00+00:00"),
        ("30 2 29 3 *", "Europe/Berlin", "2026-03-29T01:00:00+00:00"),  # 02:30 does not exist on that day
        ("30 2 25 10 *", "Europe/Berlin", "2026-10-25T00:30:00+00:00"),  # the first of two
    ],
)
def test_when_a_schedule_is_due(schedule: str, zone: str | None, due: str | None) -> None:
    now = datetime(2026, 3, 1, 12, 0, 30, tzinfo=UTC)
    found = cron.next_run(schedule, zone, now)
    assert (None if found is None else found.isoformat()) == due


NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
GOOD = (
    '{"result":"Succeeded","run":"r","report":"/reports/reports/r/report.html","durationSeconds":26.1,'
    '"scannedBytes":1000,"records":2000,"savedBytes":3000000,'
    '"topSavings":[{"topic":"Prices","savedBytes":2000000,"recommendation":"compact"}]}'
)


def job(name: str, created: str, condition: str | None, message: str = "") -> dict[str, Any]:
    status: dict[str, Any] = {"startTime": created}
    if condition:
        status["conditions"] = [{"type": condition, "status": "True", "reason": "Because", "message": message}]
        status["completionTime"] = created
    return {"metadata": {"name": name, "creationTimestamp": created}, "status": status}


def pod(owner: str, message: str) -> dict[str, Any]:
    return {
        "metadata": {"name": f"{owner}-x", "ownerReferences": [{"kind": "Job", "name": owner}]},
        "status": {"containerStatuses": [{"state": {"terminated": {"message": message}}}]},
    }


def test_a_failed_run_keeps_the_last_results() -> None:
    spec = present(cluster(schedule="0 3 * * *").spec.analytics)
    good = job("demo-1", "2026-03-01T03:00:00Z", "Complete")
    status = analytics_status(spec, None, [good], [pod("demo-1", GOOD)], NOW)
    assert (status.lastResult, status.durationSeconds, status.scannedBytes) == ("Succeeded", 26.1, 1000)
    assert [t.topic for t in status.topSavings] == ["Prices"]
    assert status.message == "2,000 records; compaction would save 2.9 MiB, most of it in Prices (1.9 MiB)."
    assert status.nextRun == "2026-03-02T03:00:00Z"

    bad = job("demo-2", "2026-03-01T04:00:00Z", "Failed", "too many retries")
    said = '{"result":"Failed","message":"broker http://x does not answer"}'
    failed = analytics_status(spec, status, [good, bad], [pod("demo-2", said)], NOW)
    assert (failed.lastResult, failed.message) == ("Failed", "broker http://x does not answer")
    assert [t.topic for t in failed.topSavings] == ["Prices"]
    assert failed.report == "/reports/reports/r/report.html"
    silent = analytics_status(spec, status, [good, bad], [], NOW)
    assert silent.message == "Because: too many retries"


@pytest.mark.parametrize(
    ("source", "out", "code", "says"),
    [
        (
            ("--path", "{}/empty"),
            "out",
            1,
            "no commit log in {0}/empty: {0}/empty is empty; expected files with names of",
        ),
        (("--path", "{}/nowhere"), "out", 1, "{}/nowhere does not exist; give a store directory"),
        (("--path", "{}/junk"), "out", 3, "{}/junk holds no commit log: none of its 5,000 bytes"),
        (("--brokers", "127.0.0.1:1"), "out", 1, "broker http://127.0.0.1:1 does not answer: "),
        (("--cluster", "127.0.0.1:1"), "out", 1, "NameServer 127.0.0.1:1 does not answer"),
        (("--path", "{}/log"), "file/out", 3, "output {}/file/out cannot be written: "),
    ],
)
def test_the_status_names_bad_input(tmp_path: Path, source: tuple[str, str], out: str, code: int, says: str) -> None:
    """The driver's exit code and termination message appear in `status.analytics`, and the old report stays."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "junk" / "commitlog").mkdir(parents=True)
    (tmp_path / "junk" / "commitlog" / f"{0:020d}").write_bytes(b"\x07" * 5000)
    LogWriter(tmp_path / "log").append(Message())
    left = tmp_path / "termination-log"
    with pytest.raises(SystemExit) as ended:
        main.main([*(a.format(tmp_path) for a in source), "--out", f"{tmp_path}/{out}", "--termination-log", str(left)])
    assert ended.value.code == code
    spec = present(cluster(schedule="0 3 * * *").spec.analytics)
    bad = job("demo-2", "2026-03-01T04:00:00Z", "Failed", "too many retries")
    status = analytics_status(spec, AnalyticsStatus(report="old"), [bad], [pod("demo-2", left.read_text())], NOW)
    assert (status.lastResult, status.report) == ("Failed", "old")
    assert status.message.startswith(says.format(tmp_path))


def test_running_suspended_and_wrong_schedules() -> None:
    spec = present(cluster(schedule="0 3 * * *", suspend=True).spec.analytics)
    status = analytics_status(spec, None, [job("demo-3", "2026-03-01T05:00:00Z", None)], [], NOW)
    died = pod("demo-3", '{"result":"Failed","message":"broker http://x does not answer"}')
    again = analytics_status(spec, None, [job("demo-3", "2026-03-01T05:00:00Z", None)], [died], NOW)
    assert again.lastResult == "Running"
    assert again.message == "demo-3 is running. An attempt of it has failed: broker http://x does not answer"
    assert (status.lastResult, status.message, status.nextRun) == ("Running", "demo-3 is running.", None)
    wrong = spec.model_copy(update={"schedule": "61 * * * *", "suspend": False})
    failed = analytics_status(wrong, AnalyticsStatus(report="old"), [], [], NOW)
    assert failed.lastResult == "Failed"
    assert "'61' is no minute" in failed.message
    assert failed.report == "old"


def test_the_beginning_a_retry_and_the_end_of_a_run_are_events() -> None:
    spec = present(cluster(schedule="0 3 * * *").spec.analytics)
    begun = job("demo-3", "2026-03-01T05:00:00Z", None)
    died = pod("demo-3", '{"result":"Failed","message":"broker http://x does not answer"}')
    lacks = GOOD.replace('"topSavings"', '"missing":["consumer groups of a"],"topSavings"')
    known, said = None, []
    for runs, pods in (
        ([begun], []), ([begun], []), ([begun], [died]), ([begun], [died]),
        ([job("demo-3", "2026-03-01T05:00:00Z", "Complete")], [pod("demo-3", lacks)]),
        ([job("demo-3", "2026-03-01T05:00:00Z", "Complete")], [pod("demo-3", lacks)]),
        ([job("demo-4", "2026-03-01T06:00:00Z", "Failed", "too many retries")], []),
    ):  # fmt: skip
        now = analytics_status(spec, known, runs, pods, NOW)
        said.append([reason for _, reason, _ in run_events(known, now)])
        known = now
    assert said == [["AnalysisRunning"], [], ["AnalysisRetried"], [], ["AnalysisSucceeded"], [], ["AnalysisFailed"]]
    assert known is not None
    assert known.missing == ["consumer groups of a"], "of the last good run"
    assert run_events(known, known.model_copy()) == []
    again = run_events(None, known)
    assert [(kind, reason) for kind, reason, _ in again] == [("Warning", "AnalysisFailed")]


def test_only_one_run_at_a_time() -> None:
    assert jobs.at_work([job("a", "t", "Complete"), job("b", "t", "Failed")]) is None
    assert jobs.at_work([job("a", "t", "Complete"), job("c", "t", None)]) == "c"
    made = rendered()["CronJob"]
    made["metadata"]["uid"] = "cron-uid"
    now = jobs.job_now(made, "20260301")
    assert now["metadata"]["ownerReferences"][0]["uid"] == "cron-uid"
    assert now["metadata"]["name"] == "demo-analytics-20260301"
    assert now["spec"] == made["spec"]["jobTemplate"]["spec"] | {"ttlSecondsAfterFinished": jobs.KEPT_S}
    assert not now["metadata"]["ownerReferences"][0]["controller"], "the CronJob would report it"
    assert jobs.by_hand(now)
    assert not jobs.by_hand(job("a", "t", None))
    held = {o["kind"]: o for o in manifests.render(cluster(), URLS, "spark:1", token=True, hold=True)}
    assert held["CronJob"]["spec"]["suspend"] is True


def test_a_permanent_failure_is_not_retried() -> None:
    spec = rendered()["CronJob"]["spec"]["jobTemplate"]["spec"]
    fail, ignore = spec["podFailurePolicy"]["rules"]
    assert fail["onExitCodes"] == {"containerName": "driver", "operator": "In", "values": [main.EXIT_PERMANENT]}
    assert manifests.EXIT_PERMANENT == main.EXIT_PERMANENT
    assert ignore["onPodConditions"][0]["type"] == "DisruptionTarget"
    assert spec["podReplacementPolicy"] == "Failed"


def test_the_pod_for_the_page_and_its_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = rendered(sparkConf={"spark.hadoop.fs.s3a.endpoint": "http://x"})["CronJob"]
    made["metadata"]["uid"] = "cron-uid"
    shown = jobs.show_pod(made, "report.html", "1")
    container = shown["spec"]["containers"][0]
    assert container["args"][:5] == ["show", "--file", "report.html", "--out", "/reports"]
    assert "spark.hadoop.fs.s3a.endpoint=http://x" in container["args"]
    assert "--brokers" not in container["args"]
    assert shown["spec"]["automountServiceAccountToken"] is False
    assert {"name": "reports", "mountPath": "/reports"} in container["volumeMounts"]

    left = tmp_path / "left"
    args = [
        "--file",
        "report.html",
        "--out",
        str(tmp_path / "out"),
        "--conf",
        "spark.x=1",
        "--termination-log",
        str(left),
    ]
    with pytest.raises(SystemExit) as stopped:
        showlog.main(args)
    assert stopped.value.code == 1
    assert "holds no report yet" in left.read_text()
    page = ("<html>" + "".join(chr(33 + i * i % 900) for i in range(50_000)) + "</html>").encode()
    (tmp_path / "out" / "report.html").write_bytes(page)
    capsys.readouterr()
    showlog.main(args)
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 16_384
    assert from_log(f"a warning\n{said}another\n") == page
    with pytest.raises(CliError, match="not complete"):
        from_log(said[: len(said) // 2])
    bomb = "\n".join(showlog.to_lines(bytes(MAX_REPORT + 1)))
    with pytest.raises(CliError, match=f"over {MAX_REPORT} bytes"):
        from_log(bomb)


def test_errors_of_java_become_one_line() -> None:
    java = (
        "An error occurred while calling o208.parquet.\n: org.apache.spark.SparkException: Job aborted.\n\tat o.a.X.y\n"
        "Caused by: java.io.IOException: No space left on device\n\tat sun.nio.z\n"
    )
    assert error_message(RuntimeError(java)) == "IOException: No space left on device"
    python = f"{java}pyspark.errors: Traceback\ngantry_spark.errors.SourceError: broker http://x does not answer\n"
    assert error_message(RuntimeError(python)) == "broker http://x does not answer"
    gone = java.replace("Job aborted.", "Job 0 cancelled because SparkContext was shut down")
    assert error_message(RuntimeError(gone)).startswith("Spark has stopped because its executors failed too often")
    assert error_message(RuntimeError("first\nsecond")) == "RuntimeError: first"


def test_termination_messages_of_others_are_no_summaries() -> None:
    assert from_termination_message(None) is None
    assert from_termination_message("Killed") is None
    assert from_termination_message("[1]") is None
    assert from_termination_message('{"result":"Nonsense"}') is None


def test_the_command_of_an_executor() -> None:
    environ = {
        "SPARK_EXECUTOR_MEMORY": "512m", "SPARK_DRIVER_URL": "spark://x", "SPARK_EXECUTOR_ID": "1",
        "SPARK_EXECUTOR_CORES": "2", "SPARK_APPLICATION_ID": "app", "SPARK_EXECUTOR_POD_IP": "10.0.0.1",
        "SPARK_RESOURCE_PROFILE_ID": "0", "SPARK_EXECUTOR_POD_NAME": "pod", "SPARK_HOME": "/opt/spark",
        "SPARK_JAVA_OPT_10": "-Dten", "SPARK_JAVA_OPT_2": "-Dtwo",
    }  # fmt: skip
    command = executor_command(environ, "/usr/bin/java", "/work")
    assert command[:5] == ["/usr/bin/java", "-Dtwo", "-Dten", "-Xms512m", "-Xmx512m"]
    assert command[command.index("-cp") + 1] == "/opt/spark/jars/*:/work"
    assert command[command.index("--podName") + 1] == "pod"
    del environ["SPARK_DRIVER_URL"]
    with pytest.raises(KeyError, match="SPARK_DRIVER_URL"):
        executor_command(environ, "/usr/bin/java", "/work")


def test_a_driver_of_sparks_operator_runs_the_command_with_its_settings(tmp_path: Path) -> None:
    """The file is as Java writes it."""
    file = tmp_path / "spark.properties"
    file.write_text(
        "#Java properties built from Kubernetes config map\n#Sat Nov 28\n"
        "spark.master=k8s\\://https\\://kubernetes.default.svc\nspark.submit.deployMode=cluster\n"
        "spark.x=\\ lead \\u00e4\\=\\#\\\\\nspark.empty=\nspark.long=a\\\n  b\nother=1\n",
        "iso-8859-1",
    )
    given = ["--properties-file", str(file), "--class", "org.apache.spark.deploy.PythonRunner", "local:///entry.py"]
    command = driver_arguments([*given, "report", "--path", "/log"], {"SPARK_DRIVER_BIND_ADDRESS": "10.0.0.7"})
    assert command[:3] == ["report", "--path", "/log"]
    assert main.parse_conf(arguments().parse_args(command[1:]).conf) == {
        "spark.master": "k8s://https://kubernetes.default.svc", "spark.submit.deployMode": "client",
        "spark.x": " lead ä=#\\", "spark.empty": "", "spark.long": "ab", "spark.driver.bindAddress": "10.0.0.7",
    }  # fmt: skip
    for wrong in ([], given, ["--class", "x", "report"], ["--class"]):
        with pytest.raises(ValueError, match=r"a driver needs|has no value"):
            driver_arguments(wrong, {})
    file.write_text("spark.x=\\u00zz")
    with pytest.raises(ValueError, match="an escape that is none"):
        driver_arguments([*given, "report"], {"SPARK_DRIVER_BIND_ADDRESS": ""})
