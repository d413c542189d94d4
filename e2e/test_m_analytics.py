"""The report on a cluster's logs: a Spark driver and its executors as pods, on demand and on a schedule."""

from __future__ import annotations

import base64
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from gantry_broker import report_page
from gantry_spark.session import SHORT_RUN_OPTIONS
from kube import BROKER_IMAGE, Cluster, CommandFailed, Figure, apply, example, get, key_environment, kubectl, run, until

NAME = "shop-analytics"
TOPIC = "orders-by-id"
COUNT = 150_000
"""Messages of one lot: about 165 MB, which a run reads in about five seconds."""
KEYS = 1_000
QUICK_JVM = f"{SHORT_RUN_OPTIONS} -XX:+UseSerialGC"
RUNS = "gantry.dev/analytics=shop"
SENT: list[str] = []
"""The lots that were sent."""


@pytest.fixture(scope="module")
def cluster(namespace: str) -> Cluster:
    """examples/analytics.yaml with a first lot of messages. The JVMs are set to start quickly, because its runs are
    short.
    """
    document = yaml.safe_load(example("analytics.yaml"))
    document["spec"]["analytics"]["sparkConf"] |= {
        "spark.driver.extraJavaOptions": QUICK_JVM,
        "spark.executor.extraJavaOptions": QUICK_JVM,
    }
    apply(namespace, yaml.safe_dump(document))
    cluster = Cluster(namespace, "shop")
    cluster.wait_running()
    send(cluster, "first")
    return cluster


def send(cluster: Cluster, name: str) -> None:
    """Sends a lot of messages, from a pod."""
    source = (Path(__file__).parent / "client" / "keyed.py").read_text()
    command = ["python", "-c", source, cluster.name_servers, TOPIC, str(COUNT), str(KEYS)]
    container = {"name": "send", "image": BROKER_IMAGE, "imagePullPolicy": "IfNotPresent", "command": command}
    container["env"] = key_environment(cluster.admin_secret)
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}
    apply(cluster.namespace, json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}))

    def ended() -> str | None:
        phase = get(cluster.namespace, "pod", name)["status"]["phase"]
        return phase if phase in ("Succeeded", "Failed") else None

    assert until("everything is sent", ended, 150, 0.5) == "Succeeded", log(cluster, name)
    SENT.append(name)


def gantry(cluster: Cluster, command: str, *options: str, context: bool = False) -> str:
    """The output of the command, which must succeed. `context`: name the cluster's kubeconfig context, too."""
    where = ["-n", cluster.namespace]
    if context:
        where += ["--context", kubectl("config", "current-context").strip()]
    return run(str(Path(sys.executable).parent / "gantry"), command, "shop", *where, *options, timeout=300)


def analyze(cluster: Cluster, context: bool = False) -> dict[str, Any]:
    """One run at once, and its report."""
    found: dict[str, Any] = json.loads(gantry(cluster, "analyze", "-o", "json", context=context))
    return found


@pytest.fixture
def reported(cluster: Cluster) -> Cluster:
    """A cluster with a good report."""
    if status(cluster).get("lastResult") != "Succeeded":
        analyze(cluster)
    return cluster


def ask(cluster: Cluster) -> None:
    """Requests a run without our command."""
    stamp = f"gantry.dev/analyze={time.time_ns()}"
    kubectl("-n", cluster.namespace, "annotate", "bc", "shop", stamp, "--overwrite")


def orders(report: dict[str, Any]) -> dict[str, Any]:
    topic: dict[str, Any] = next(t for t in report["topics"] if t["topic"] == TOPIC)
    return topic


def assert_figures(report: dict[str, Any]) -> None:
    """All figures known beforehand: records of one size, the newest of each key stays."""
    topic, lots = orders(report), len(SENT)
    assert topic["records"] == lots * COUNT
    assert topic["distinctKeys"] == KEYS
    assert topic["supersededRecords"] == lots * COUNT - KEYS
    size = topic["bytes"] // topic["records"]
    assert size > 1000
    assert topic["bytes"] == size * topic["records"]
    assert topic["savedBytes"] == topic["supersededBytes"] == size * topic["supersededRecords"]
    assert topic["recommendation"] == "compact"
    assert report["damage"]["ranges"] == 0


def status(cluster: Cluster) -> dict[str, Any]:
    found: dict[str, Any] = cluster.status().get("analytics") or {}
    return found


def log(cluster: Cluster, pod: str) -> str:
    return kubectl("-n", cluster.namespace, "logs", pod, check=False)


def jobs(cluster: Cluster) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = get(cluster.namespace, "jobs", selector=RUNS)
    return found


def at_work(cluster: Cluster) -> list[str]:
    ended = ("Complete", "Failed")
    return [
        j["metadata"]["name"]
        for j in jobs(cluster)
        if not any(c["type"] in ended and c["status"] == "True" for c in j["status"].get("conditions") or [])
    ]


def executors(cluster: Cluster, phase: str | None = None) -> list[dict[str, Any]]:
    found = get(cluster.namespace, "pods", selector=f"{RUNS},spark-role=executor")
    return [p for p in found if phase in (None, p["status"]["phase"])]


def driver(cluster: Cluster) -> str | None:
    """The driver's pod of the active run."""
    pods = [p for j in at_work(cluster) for p in get(cluster.namespace, "pods", selector=f"job-name={j}")]
    return next((p["metadata"]["name"] for p in pods if p["status"]["phase"] in ("Pending", "Running")), None)


def kill(cluster: Cluster, pod: str) -> None:
    kubectl("-n", cluster.namespace, "delete", "pod", pod, "--grace-period=0", "--force")


def event(cluster: Cluster, text: str) -> bool:
    return any(text in e["message"] for e in cluster.events())


@dataclass
class Observations:
    """The observations of a period: the most runs and living drivers at once, executors by name, drivers' logs."""

    runs: int = 0
    drivers: int = 0
    executors: dict[str, dict[str, Any]] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)

    def look(self, cluster: Cluster) -> None:
        self.runs = max(self.runs, len(at_work(cluster)))
        pods = get(cluster.namespace, "pods", selector=RUNS)
        mine = [p for p in pods if "job-name" in p["metadata"]["labels"]]
        running = [p["metadata"]["name"] for p in mine if p["status"]["phase"] == "Running"]
        self.drivers = max(self.drivers, len(running))
        for pod in pods:
            if pod not in mine:
                self.executors[pod["metadata"]["name"]] = pod
        for name in running:
            self.logs[name] = log(cluster, name) or self.logs.get(name, "")


@contextmanager
def watched(cluster: Cluster) -> Iterator[Observations]:
    """Observes the cluster during the `with` block."""
    seen = Observations()
    over = threading.Event()

    def look() -> None:
        while not over.wait(2.0):
            seen.look(cluster)

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        try:
            yield seen
        finally:
            over.set()
            looking.result()


def failed(cluster: Cluster, says: str) -> Callable[[], dict[str, Any] | None]:
    def seen() -> dict[str, Any] | None:
        now = status(cluster)
        return now if now.get("lastResult") == "Failed" and says in now["message"] else None

    return seen


def change(cluster: Cluster, **analytics: Any) -> None:
    """Changes spec.analytics, and waits until the operator has updated the CronJob."""
    cluster.patch({"spec": {"analytics": analytics}})
    generation = cluster.object()["metadata"]["generation"]
    until("the operator has seen it", lambda: cluster.status()["observedGeneration"] >= generation, 30)


def test_one_run_at_once_with_executors(cluster: Cluster, figure: Figure) -> None:
    begun = time.monotonic()
    with watched(cluster) as seen:
        report = analyze(cluster, context=True)
    figure("analytics: gantry analyze with two executors, s", round(time.monotonic() - begun, 1))
    assert_figures(report)
    assert (seen.runs, seen.drivers, len(seen.executors)) == (1, 1, 2)
    for pod in seen.executors.values():
        assert QUICK_JVM.split()[0] in str(pod["spec"]["containers"][0]["env"]), "Spark's configuration is passed on"
        assert pod["metadata"]["ownerReferences"][0]["kind"] == "Pod", "they go with the driver"
        assert pod["spec"]["automountServiceAccountToken"] is False
    now = status(cluster)
    figure("analytics: the run itself, s", now["durationSeconds"])
    assert now["lastResult"] == "Succeeded"
    assert now["lastRun"] < now["lastSuccess"]
    assert now["nextRun"].endswith("T02:30:00Z")
    assert now["scannedBytes"] >= orders(report)["bytes"]
    saving = {"topic": TOPIC, "savedBytes": orders(report)["savedBytes"], "recommendation": "compact"}
    assert now["topSavings"] == [saving]
    assert f"{COUNT:,} records; compaction would save" in now["message"]
    described = kubectl("-n", cluster.namespace, "describe", "bc", "shop")
    for words in ("Top Savings", "Next Run", "Scanned Bytes", "compaction would save", "AnalysisStarted"):
        assert words in described
    until("the executors are gone", lambda: not executors(cluster), 60)


def page_of(cluster: Cluster, folder: Path) -> str:
    """The page of the last good report, as the command downloads it."""
    page = folder / "report.html"
    gantry(cluster, "report", "--save", str(page))
    return page.read_text()


@pytest.mark.usefixtures("reported")
def test_the_page_is_downloaded(cluster: Cluster, tmp_path: Path) -> None:
    text = page_of(cluster, tmp_path)
    assert TOPIC in text
    assert "<script src=" not in text
    secret = get(cluster.namespace, "secret", NAME)
    assert report_page.unpack(base64.b64decode(secret["data"][report_page.KEY])) == text.encode(), "for the console"
    assert not get(cluster.namespace, "pods", selector="app.kubernetes.io/name=gantry,!app.kubernetes.io/instance")


def test_the_driver_has_few_rights(cluster: Cluster) -> None:
    account = f"system:serviceaccount:{cluster.namespace}:{NAME}"

    def may(*words: str, namespace: str = cluster.namespace) -> bool:
        return kubectl("auth", "can-i", *words, "--as", account, "-n", namespace, check=False).strip() == "yes"

    assert may("create", "pods")
    assert may("delete", "pods")
    assert may("patch", f"secret/{NAME}")
    assert not may("patch", "secrets")
    for words in ("get secrets", "create deployments", "create jobs", "create pods --subresource=exec",
                  "patch brokerclusters", "create services", "update configmaps"):  # fmt: skip
        assert not may(*words.split()), words
    assert not may("create", "pods", namespace="default")


@pytest.mark.usefixtures("reported")
def test_a_second_run_reads_what_is_new_and_survives_a_killed_executor(cluster: Cluster, figure: Figure) -> None:
    send(cluster, "second")
    with watched(cluster) as seen, ThreadPoolExecutor(1) as pool:
        running = pool.submit(analyze, cluster)
        name = until("a driver", lambda: driver(cluster), 60)
        until("it reads", lambda: "reading" in log(cluster, name), 120)
        victim = until("an executor", lambda: executors(cluster, "Running")[0], 60)["metadata"]["name"]
        until("it counts", lambda: "Running task" in log(cluster, victim), 60, 0.5)
        kill(cluster, victim)
        report = running.result()
    assert f"Lost executor {victim.rsplit('-', 1)[-1]}" in seen.logs[name]
    assert_figures(report)
    assert len(seen.executors) > 2, "another one took its place"
    now = status(cluster)
    figure("analytics: a run whose executor was killed, s", now["durationSeconds"])
    assert now["scannedBytes"] < 0.6 * report["scan"]["logBytes"], "the first half was counted by the first run"


def test_on_schedule_never_two_and_a_killed_driver_is_tried_again(cluster: Cluster, figure: Figure) -> None:
    before = {j["metadata"]["name"] for j in jobs(cluster)}
    send(cluster, "third")
    with watched(cluster) as seen:
        change(cluster, schedule="* * * * *")
        name = until("the schedule starts a run", lambda: next(iter({*at_work(cluster)} - before), None), 90)
        ask(cluster)
        until("the request is answered", lambda: event(cluster, f"{name} is running already"), 30)
        change(cluster, suspend=True)
        first = until("a driver", lambda: driver(cluster), 60)
        until("it reads", lambda: "reading" in log(cluster, first), 120)
        kill(cluster, first)
        killed = time.monotonic()
        again = until("another driver", lambda: found if (found := driver(cluster)) != first else None, 90)
        until("the run is over", lambda: not at_work(cluster), 180)
    figure("analytics: from the driver's death to the end of its run, s", round(time.monotonic() - killed, 1))
    assert (seen.runs, seen.drivers) == (1, 1)
    assert {j["metadata"]["name"] for j in jobs(cluster)} - before == {name}
    now = until(
        "the status shows the result", lambda: s if (s := status(cluster))["lastResult"] == "Succeeded" else None, 30
    )
    assert again in seen.logs
    assert "nextRun" not in now, "it is suspended"
    (saving,) = now["topSavings"]
    assert saving["savedBytes"] % (len(SENT) * COUNT - KEYS) == 0, "the superseded records of all lots"


@pytest.mark.usefixtures("reported")
def test_a_run_that_fails_says_why_and_the_last_good_report_stays(cluster: Cluster, tmp_path: Path) -> None:
    good = status(cluster)
    change(cluster, topics=["NoSuch*"], executors=0)
    with pytest.raises(CommandFailed, match=r"no topic matches NoSuch\*; there are"):
        analyze(cluster)
    now = until("the status has the reason", failed(cluster, "no topic matches NoSuch*"), 30)
    kept = ("report", "topSavings", "lastSuccess")
    assert {k: now[k] for k in kept} == {k: good[k] for k in kept}
    newest = max(jobs(cluster), key=lambda j: str(j["metadata"]["creationTimestamp"]))
    assert newest["status"]["failed"] == 1, "it would fail again in the same way, so it is not tried again"
    assert TOPIC in page_of(cluster, tmp_path), "the last good report can be had"

    change(cluster, topics=[], output={"path": "/nowhere/reports"})
    ask(cluster)
    until("the status has the reason", failed(cluster, "output /nowhere/reports cannot be written: "), 120)
    assert status(cluster)["topSavings"] == good["topSavings"]


def test_an_invalid_schedule(cluster: Cluster) -> None:
    with pytest.raises(CommandFailed, match=r"spec\.analytics\.schedule"):
        cluster.patch({"spec": {"analytics": {"schedule": "every night"}}})
    with pytest.raises(CommandFailed, match=r"spec\.analytics\.schedule.*five fields"):
        cluster.patch({"spec": {"analytics": {"schedule": "61 * * * *"}}})
    cluster.patch({"spec": {"analytics": {"output": {"path": None}, "suspend": False, "schedule": "0 0 31 2 *"}}})
    until("the status has the reason", lambda: "no such day" in cluster.condition("Ready")["message"], 30)
    cluster.wait_true("Available")
    cluster.patch({"spec": {"analytics": {"schedule": "0 4 * * *"}}})
    until("the schedule is right again", lambda: str(status(cluster)["nextRun"]).endswith("T04:00:00Z"), 30)
    assert get(cluster.namespace, "cronjob", NAME)["spec"]["schedule"] == "0 4 * * *"
