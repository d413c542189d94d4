"""`status.analytics` from the CronJob, its Jobs and their pods. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from gantry_operator.api import cron
from gantry_operator.api.analytics import Analytics
from gantry_operator.api.status import AnalyticsStatus, TopicSaving
from gantry_operator.cluster.status import EventKind
from gantry_operator.platforms.kubernetes.manifests import spark_application

Object = Mapping[str, Any]


def analytics_status(
    spec: Analytics,
    previous: AnalyticsStatus | None,
    jobs: Sequence[Object],
    pods: Sequence[Object],
    now: datetime,
    problem: str | None = None,
    reason: str = "",
) -> AnalyticsStatus:
    """Return the new status. `jobs` and `pods`: objects of the cluster's report in the API.

    The findings of the last good run stay until the next good run. `problem`: why the operator could not schedule it.
    `reason`: one word about a problem that somebody has to solve.
    """
    status = previous.model_copy(deep=True) if previous is not None else AnalyticsStatus()
    status.nextRun = None
    if problem is None:
        try:
            due = cron.next_run(spec.schedule, spec.timeZone, now)
            status.nextRun = None if spec.suspend or due is None else _iso(due)
        except cron.ScheduleError as error:
            problem = str(error)
    latest = max(jobs, key=_created, default=None)
    if latest is not None:
        _follow(status, latest, jobs, pods)
    if problem is not None:
        status.lastResult = "Failed"
        status.message = problem
    status.reason = reason
    return status


def _created(job: Object) -> str:
    return str(job["metadata"].get("creationTimestamp") or "")


def _follow(status: AnalyticsStatus, latest: Object, jobs: Sequence[Object], pods: Sequence[Object]) -> None:
    status.lastRun = (latest.get("status") or {}).get("startTime") or _created(latest) or None
    result, reason = result_of(latest)
    status.lastResult = result
    if result == "Running":
        status.message = f"{latest['metadata']['name']} is running."
        before = _left_by(latest, pods)
        if before is not None and before.get("message"):
            status.message += f" {ATTEMPT}{before['message']}"
    elif result == "Failed":
        summary = _left_by(latest, pods)
        status.message = str((summary or {}).get("message") or reason)
    good = max((j for j in jobs if result_of(j)[0] == "Succeeded"), key=_created, default=None)
    if good is None:
        return
    summary = _left_by(good, pods)
    ended = (good.get("status") or {}).get("completionTime")
    if summary is None:
        # Its pod is gone. If this operator saw the run before, its findings are in the status already.
        if result == "Succeeded" and status.lastSuccess != ended:
            status.message = "The run succeeded, but its pod was gone before its summary could be read."
            status.lastSuccess = ended
        return
    status.lastSuccess = ended
    status.durationSeconds = summary.get("durationSeconds")
    status.scannedBytes = summary.get("scannedBytes")
    status.report = summary.get("report")
    status.missing = [str(part) for part in summary.get("missing") or []]
    status.topSavings = [TopicSaving.model_validate(t) for t in summary.get("topSavings", [])]
    if result == "Succeeded":
        status.message = summary_text(summary)


ATTEMPT = "An attempt of it has failed: "


def run_events(before: AnalyticsStatus | None, now: AnalyticsStatus) -> list[tuple[EventKind, str, str]]:
    """Kind, reason and message of each event about a run: its start, an attempt that failed, its end."""
    former = before or AnalyticsStatus()
    if (former.lastRun, former.lastResult, former.message) == (now.lastRun, now.lastResult, now.message):
        return []
    same_run = former.lastRun == now.lastRun
    ended_before = same_run and former.lastResult == now.lastResult
    if now.lastResult == "Succeeded":
        return [] if ended_before else [("Normal", "AnalysisSucceeded", now.message)]
    if now.lastResult == "Failed":
        return [("Warning", "AnalysisFailed", now.message)]
    if now.lastResult == "Running":
        started: list[tuple[EventKind, str, str]] = []
        if not (same_run and former.lastResult == "Running"):
            started.append(("Normal", "AnalysisRunning", now.message.partition(f" {ATTEMPT}")[0]))
        failed = now.message.partition(ATTEMPT)[2]
        if failed and failed != former.message.partition(ATTEMPT)[2]:
            started.append(("Warning", "AnalysisRetried", f"an attempt failed and is repeated: {failed}"))
        return started
    return []


def result_of(job: Object) -> tuple[str, str]:
    """Succeeded, Failed or Running, and Kubernetes' reason for a failure."""
    for condition in (job.get("status") or {}).get("conditions", []):
        if condition.get("status") == "True":
            if condition["type"] == "Complete":
                return "Succeeded", ""
            if condition["type"] == "Failed":
                return "Failed", f"{condition.get('reason', '')}: {condition.get('message', '')}".strip(": ")
    return "Running", ""


def _left_by(job: Object, pods: Sequence[Object]) -> dict[str, Any] | None:
    """Return the summary in the termination message of a Job's newest pod."""
    mine = [p for p in pods if _owned(p, job)]
    for pod in sorted(mine, key=_created, reverse=True):
        summary = left_by(pod.get("status") or {})
        if summary is not None:
            return summary
    return None


def left_by(status: Object) -> dict[str, Any] | None:
    """Return the summary in the `status` of a pod that has ended; None: it runs, or left no summary."""
    for container in status.get("containerStatuses", []):
        ended = (container.get("state") or {}).get("terminated")
        summary = None if ended is None else from_termination_message(ended.get("message"))
        if summary is not None:
            return summary
        if ended is not None and ended.get("reason") == "OOMKilled":
            return {"message": "The driver ran out of memory: raise spec.analytics.resources.driver.limits.memory."}
    return None


def _owned(pod: Object, job: Object) -> bool:
    """Whether a pod is of this run. The runs of a cluster as SparkApplications have one name, but another uid."""
    owners = pod["metadata"].get("ownerReferences") or []
    name, uid = job["metadata"]["name"], job["metadata"].get("uid")
    return any(
        o.get("kind") in ("Job", spark_application.KIND) and o.get("name") == name and uid in (None, o.get("uid"))
        for o in owners
    )


def from_termination_message(text: str | None) -> dict[str, Any] | None:
    """Return the summary in a termination message; None: there is no valid one."""
    if not text:
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) and value.get("result") in ("Succeeded", "Failed") else None


def summary_text(summary: Mapping[str, Any]) -> str:
    """Return the result of a run in one line."""
    top = summary.get("topSavings") or []
    lacks = ", ".join(str(part) for part in summary.get("missing") or [])
    text = f"it lacks {lacks}; " if lacks else ""
    text += f"{summary.get('records', 0):,} records; compaction would save {_bytes(summary.get('savedBytes', 0))}"
    if top:
        text += f", most of it in {top[0]['topic']} ({_bytes(top[0]['savedBytes'])})"
    notes = "".join(f" Note: {str(note).rstrip('.')}." for note in summary.get("notes") or [])
    return f"{text}.{notes}"


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _iso(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
