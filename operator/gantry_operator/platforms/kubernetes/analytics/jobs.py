"""Objects made from a cluster's CronJob on demand: a Job that runs at once, and a pod that shows the last report.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gantry_operator.platforms.kubernetes.manifests import spark_application

Object = Mapping[str, Any]

BY_HAND = "cronjob.kubernetes.io/instantiate"
"""Annotation of a Job outside the schedule. `kubectl create job --from` sets it, too. The CronJob's own rule against
two runs at once ignores such Jobs.
"""
SHOW_S = 300
"""Seconds after which the pod that shows a report is ended."""

KEPT_S = 86_400
"""Seconds for which a run on demand is kept after its end. The CronJob's limits count its own runs only."""


def job_now(cron_job: Object, stamp: str) -> dict[str, Any]:
    """Return a Job of this CronJob (an object of the API) that runs at once, as `kubectl create job --from` does."""
    meta = cron_job["metadata"]
    spec = cron_job["spec"]["jobTemplate"]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": f"{meta['name'][:42]}-{stamp}",
            "namespace": meta["namespace"],
            "labels": dict(spec.get("metadata", {}).get("labels", {})),
            "annotations": {BY_HAND: "manual"},
            "ownerReferences": [_owner(cron_job)],
        },
        "spec": spec["spec"] | {"ttlSecondsAfterFinished": KEPT_S},
    }


def _driver_of(runs: Object) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Return the spec of the driver's pod, its container, and its arguments with Spark's settings."""
    if runs["kind"] != spark_application.KIND:
        spec = dict(runs["spec"]["jobTemplate"]["spec"]["template"]["spec"])
        driver = dict(spec["containers"][0])
        return spec, driver, driver["args"]
    runs_spec = runs["spec"]
    spec = dict(runs_spec["driverSpec"]["podTemplateSpec"]["spec"])
    conf = runs_spec["sparkConf"]
    driver = dict(spec["containers"][0]) | {
        "image": conf["spark.kubernetes.container.image"],
        "imagePullPolicy": conf["spark.kubernetes.container.image.pullPolicy"],
    }
    settings = [word for key, value in sorted(conf.items()) for word in ("--conf", f"{key}={value}")]
    return spec, driver, [*runs_spec["driverArgs"], *settings]


def _owner(runs: Object) -> dict[str, Any]:
    meta = runs["metadata"]
    return {
        "apiVersion": runs.get("apiVersion", "batch/v1"),
        "kind": runs["kind"],
        "name": meta["name"],
        "uid": meta["uid"],
        # Not its controller: a CronJob reports each job that it controls and did not make (UnexpectedJob).
        "controller": False,
        "blockOwnerDeletion": True,
    }


def ended(job: Object) -> bool:
    """Whether a Job is complete or has finally failed."""
    conditions = (job.get("status") or {}).get("conditions", [])
    return any(c["type"] in ("Complete", "Failed") and c["status"] == "True" for c in conditions)


def at_work(jobs: Iterable[Object]) -> str | None:
    """Return the name of the unfinished run; None: all have ended. `jobs`: all Jobs of the cluster's report."""
    return next((str(j["metadata"]["name"]) for j in jobs if not ended(j)), None)


def by_hand(job: Object) -> bool:
    """Whether the Job was started outside the schedule."""
    return BY_HAND in (job["metadata"].get("annotations") or {})


def show_pod(runs: Object, file: str, stamp: str) -> dict[str, Any]:
    """Return a pod that writes a file of the last good report to its log. It has the driver's image, volumes and
    settings, but neither its rights nor its labels. `runs`: the CronJob, or the last SparkApplication.
    """
    meta = runs["metadata"]
    spec, driver, given = _driver_of(runs)
    kept = ("--out", "--termination-log", "--conf")
    driver["args"] = ["show", "--file", file, *(a for i, a in enumerate(given) if a in kept or given[i - 1] in kept)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{meta['name'][:42]}-show-{stamp}",
            "namespace": meta["namespace"],
            "labels": {"app.kubernetes.io/name": "gantry"},
            "ownerReferences": [_owner(runs)],
        },
        "spec": {
            **spec,
            "containers": [driver],
            "automountServiceAccountToken": False,
            "activeDeadlineSeconds": SHOW_S,
        },
    }
