"""A run of Spark as a SparkApplication, which Apache's Spark operator carries out. Pure.

That operator makes the driver's pod, its Service and its ConfigMaps, and makes the driver again after a failure. Of
our objects remain the account, its rights, the volume and the NetworkPolicy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from gantry_broker.protocol.digits import whole_number

from gantry_operator.api.base import parse_quantity
from gantry_operator.platforms.kubernetes.manifests import spark
from gantry_operator.platforms.kubernetes.manifests.spark import DEFAULT_MEMORY, DRIVER, SparkPods

API_VERSION: Final = "spark.apache.org/v1"
KIND: Final = "SparkApplication"
SPARK_VERSION: Final = "4.3.0"
"""Spark of our image: `requirements/spark.txt` has the same."""
RESOURCE: Final = "local:///opt/gantry/gantry_spark/entrypoint.py"
RUNNER: Final = "org.apache.spark.deploy.PythonRunner"
ROLE_LABEL: Final = "spark-role"
"""Spark's own label of driver and executors."""
RESTART_PAUSE_MS: Final = 30_000
KEPT_BY_SPARK: Final = (
    # Spark's operator knows these better, or Kubernetes does not replace $(NAME) in them.
    "spark.kubernetes.namespace", "spark.kubernetes.driver.pod.name", "spark.driver.host", "spark.driver.bindAddress",
    "spark.kubernetes.executor.podTemplateFile", "spark.kubernetes.executor.node.selector.kubernetes.io/hostname",
)  # fmt: skip
ENDED: Final = frozenset({"ResourceReleased", "TerminatedWithoutReleaseResources"})
"""States in which Spark's operator has nothing more to do: the state before says how the run ended."""
FAILURES: Final = frozenset({
    "DriverStartTimedOut", "ExecutorsStartTimedOut", "SchedulingFailure", "DriverEvicted", "Failed",
    "DriverReadyTimedOut",
})  # fmt: skip

Object = dict[str, Any]


def application(
    p: SparkPods, args: Sequence[str], *, retries: int, deadline_s: int, restart: str = "OnFailure",
    retain: str = "Never",
) -> dict[str, Any]:  # fmt: skip
    """Return one run. Its name is that of all objects of its kind, so the API server itself admits one at a time.

    `args`: the command of our image. `retries`: drivers after the first one. `deadline_s`: of one driver, in seconds.
    `restart`: after what there is another driver. `retain`: when the driver's pod stays, until the object goes.
    """
    driver, executor = spark.driver_pod(p), spark.executor_pod(p)
    driver["activeDeadlineSeconds"] = deadline_s
    if p.claim:
        _beside_driver(p, executor["spec"])
    timeouts = {"executorStartTimeoutMillis": 0}  # A run begins with the executors that fit, and waits for the first.
    if p.queue:
        timeouts["driverStartTimeoutMillis"] = 0  # It waits in the queue.
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {**p.metadata, "labels": {**p.metadata.get("labels", {}), **spark.labels(p)}},
        "spec": {
            "mainClass": RUNNER,
            "pyFiles": RESOURCE,
            "driverArgs": list(args),
            "sparkConf": conf(p),
            "runtimeVersions": {"sparkVersion": SPARK_VERSION},
            "driverSpec": {"podTemplateSpec": {"metadata": {"labels": spark.queued(p)}, "spec": driver}},
            "executorSpec": {"podTemplateSpec": executor},
            "applicationTolerations": {
                "applicationTimeoutConfig": timeouts,
                "restartConfig": {
                    "restartPolicy": restart,
                    "maxRestartAttempts": retries,
                    "restartBackoffMillis": RESTART_PAUSE_MS,
                },
                # The operator of the cluster keeps the run's result, and removes the run before the next one.
                "resourceRetainPolicy": retain,
            },
        },
    }


def conf(p: SparkPods) -> dict[str, str]:
    """Return Spark's configuration. Spark's operator makes the driver's pod by it, too."""
    configuration = {key: value for key, value in spark.spark_conf(p).items() if key not in KEPT_BY_SPARK}
    limits, requests = p.resources.driver.limits, p.resources.driver.requests
    total = int(parse_quantity(limits.get("memory") or requests.get("memory") or str(DEFAULT_MEMORY))) >> 20
    heap = spark.heap_mib(limits or requests)
    own = {
        "spark.driver.memoryOverhead": f"{max(384, total - heap)}m",
        "spark.kubernetes.authenticate.driver.serviceAccountName": p.name,
        "spark.kubernetes.driver.podTemplateContainerName": DRIVER,
    }
    for name, amounts in (("request", requests), ("limit", limits)):
        if "cpu" in amounts:
            own[f"spark.kubernetes.driver.{name}.cores"] = amounts["cpu"]
    return own | configuration


def _beside_driver(p: SparkPods, pod: dict[str, Any]) -> None:
    """Place executors on the driver's node: the volume can be mounted on one node only."""
    term = {
        "labelSelector": {"matchLabels": {p.label: p.cluster.name, ROLE_LABEL: "driver"}},
        "topologyKey": "kubernetes.io/hostname",
    }
    pod["affinity"] = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def state_of(app: Object) -> str:
    """Return the present state; empty: Spark's operator has not looked at this object yet."""
    current = (app.get("status") or {}).get("currentState") or {}
    return str(current.get("currentStateSummary") or "")


def ended(app: Object) -> bool:
    """Whether nothing runs any more, and nothing will run again."""
    return state_of(app) in ENDED


def result_of(app: Object) -> tuple[str, str]:
    """Succeeded, Failed or Running, and why it failed."""
    if not ended(app):
        return "Running", ""
    last = next((s for s in reversed(_states(app)) if s.get("currentStateSummary") not in ENDED), {})
    state = str(last.get("currentStateSummary") or "")
    if state == "Succeeded":
        return "Succeeded", ""
    current = app["status"]["currentState"]
    messages = (last.get("message"), current.get("message"))
    return "Failed", ": ".join(str(part) for part in (state, *messages) if part) or "it was stopped"


def _states(app: Object) -> list[Object]:
    """All states, the oldest first: those of the former attempt, too, which the history may have lost."""
    status = app.get("status") or {}
    former = (status.get("previousAttemptSummary") or {}).get("stateTransitionHistory") or {}
    by_number = {**former, **(status.get("stateTransitionHistory") or {})}
    numbered = {number: state for key, state in by_number.items() if (number := whole_number(key)) is not None}
    return [numbered[number] for number in sorted(numbered)]


def as_job(app: Object, pods: Sequence[Object] = ()) -> tuple[dict[str, Any], list[Object]]:
    """Return a run in the form of a Job and its pods. `pods`: drivers that were seen.

    Spark's operator removes a driver's pod, and keeps its last status only if it failed.
    """
    meta = app["metadata"]
    result, reason = result_of(app)
    status: dict[str, Any] = {}
    if result != "Running":
        kind = "Complete" if result == "Succeeded" else "Failed"
        word, _, text = reason.partition(": ")
        status = {
            "conditions": [{"type": kind, "status": "True", "reason": word, "message": text}],
            "completionTime": _time(app["status"]["currentState"].get("lastTransitionTime")),
        }
    job = {"metadata": {k: meta.get(k) for k in ("name", "uid", "creationTimestamp")}, "status": status}
    owner = [{"kind": KIND, "name": meta["name"], "uid": meta.get("uid")}]
    mine: list[Object] = [
        pod
        for pod in pods
        if any(o.get("uid") == meta.get("uid") for o in pod["metadata"].get("ownerReferences") or [])
    ]
    mine += [
        {
            "metadata": {"creationTimestamp": _time(s.get("lastTransitionTime")), "ownerReferences": owner},
            "status": s["lastObservedDriverStatus"],
        }
        for s in _states(app)
        if s.get("lastObservedDriverStatus")
    ]
    return job, mine


def _time(text: object) -> str:
    """Return a time as Kubernetes writes it: without fractions of a second."""
    given = str(text or "")
    return f"{given.partition('.')[0].removesuffix('Z')}Z" if given else ""
