"""Reports on Kubernetes from a laptop: ask the operator for a run and wait for its status, or fetch the last report."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from gantry_broker.report_page import unpack

from gantry_operator.actions.errors import api_server_error
from gantry_operator.cli.errors import CliError, Exit
from gantry_operator.platforms.kubernetes.analytics import jobs, manifests
from gantry_operator.platforms.kubernetes.analytics.manifests import ANALYZE_ANNOTATION
from gantry_operator.platforms.kubernetes.analytics.status import left_by
from gantry_operator.platforms.kubernetes.api.client import (
    BROKER_CLUSTER,
    CRON_JOB,
    POD,
    SPARK_APPLICATION,
    ApiError,
    ApiUnavailable,
)
from gantry_operator.platforms.kubernetes.targets.target import KubeTarget, TargetError

POLL_S = 1.0
SHOW_TIMEOUT_S = 120.0
SHOW_BEGIN = "-----BEGIN GANTRY REPORT-----"
SHOW_END = "-----END GANTRY REPORT-----"
"""The lines around a file in the output of `gantry_spark.showlog`. That package may be missing here."""
MAX_REPORT = 64 << 20
"""Bytes of a file of a report. The pod's log is read as it is, so its lines may unpack to anything."""


async def analyze(
    context: str | None, namespace: str | None, name: str | None, timeout_s: float,
    say: Callable[[str], None] = lambda step: None,
) -> dict[str, Any]:  # fmt: skip
    """Run a report and return `status.analytics`. `say` hears of each step.

    Raises CliError: no such cluster, a refused spec, no spec.analytics, or a failed run.
    """
    try:
        async with KubeTarget(context, namespace, name) as target:
            resource = await target.resource()
            refused = _refusal(resource)
            if refused:
                raise CliError(refused)
            if not resource["spec"].get("analytics"):
                raise CliError(f"{target.name} has no spec.analytics: write it first, for example its schedule")
            before = _status(resource)
            stamp = datetime.now(UTC).isoformat(timespec="seconds")
            patch = {"metadata": {"annotations": {ANALYZE_ANNOTATION: stamp}}}
            await target.api.merge(BROKER_CLUSTER, target.namespace, target.name, patch)
            return await _wait(target, before, timeout_s, say)
    except TargetError as error:
        raise CliError(str(error), Exit.NO_CLUSTER) from None
    except (ApiError, ApiUnavailable) as error:
        raise api_server_error(error) from None


def _status(resource: dict[str, Any]) -> dict[str, Any]:
    return dict((resource.get("status") or {}).get("analytics") or {})


def _refusal(resource: dict[str, Any]) -> str:
    """Return the reason why no run starts under a refused spec; empty: the operator has reported no refusal."""
    status = resource.get("status") or {}
    if status.get("phase") != "Refused" or status.get("observedGeneration") != resource["metadata"].get("generation"):
        return ""
    messages = [c.get("message", "") for c in status.get("conditions") or [] if c.get("reason") == "InvalidSpec"]
    return f"no report is made: {messages[0] if messages else 'the spec is refused'}"


async def _wait(
    target: KubeTarget, before: dict[str, Any], timeout_s: float, say: Callable[[str], None]
) -> dict[str, Any]:
    """Wait for the run. An active run counts as the requested one, because there is never more than one."""
    deadline = time.monotonic() + timeout_s
    ran = before.get("lastResult") == "Running"
    while time.monotonic() < deadline:
        await asyncio.sleep(POLL_S)
        resource = await target.resource()
        waiting = ANALYZE_ANNOTATION in (resource["metadata"].get("annotations") or {})
        now = _status(resource)
        running = now.get("lastResult") == "Running"
        ran = ran or running
        say("the job runs" if running else "waiting for the job" if waiting else "waiting for its result")
        if waiting or running:
            refused = _refusal(resource)
            if refused and waiting:
                # Withdraw the request. Otherwise a run would start with the next valid spec, after the command has
                # failed.
                withdrawn = {"metadata": {"annotations": {ANALYZE_ANNOTATION: None}}}
                await target.api.merge(BROKER_CLUSTER, target.namespace, target.name, withdrawn)
            if refused:
                raise CliError(refused)
            continue
        failed = now.get("lastResult") == "Failed"
        if ran or now.get("lastRun") != before.get("lastRun"):
            if failed:
                raise CliError(f"the run failed: {now.get('message', '')}")
            return now
        if failed and now.get("message") != before.get("message"):
            raise CliError(str(now.get("message", "")))
    raise CliError(f"no run ended within {timeout_s:.0f} s; see gantry status for its result", Exit.NOT_IN_TIME)


async def fetch(context: str | None, namespace: str | None, name: str | None, file: str) -> tuple[str, bytes]:
    """Return `report.json` or `report.html` of the last good report, and `namespace-name` of its cluster.

    A pod of the cluster mounts the output and writes it to its log. Raises CliError if there is no report, or with the
    reason of a failure.
    """
    try:
        async with KubeTarget(context, namespace, name) as target:
            status = _status(await target.resource())
            if not status.get("report"):
                raise CliError(f"there is no report yet{': ' + status['message'] if status.get('message') else ''}")
            name_of = manifests.name_of(target.name)
            runs = await target.api.get(CRON_JOB, target.namespace, name_of)
            runs = runs or await target.api.get(SPARK_APPLICATION, target.namespace, name_of)
            if runs is None:
                raise CliError(f"{target.name} has no spec.analytics any more, which has the place of its reports")
            pod = jobs.show_pod(runs, file, datetime.now(UTC).strftime("%y%m%d%H%M%S"))
            return f"{target.namespace}-{target.name}", await _shown(target, pod)
    except TargetError as error:
        raise CliError(str(error), Exit.NO_CLUSTER) from None
    except (ApiError, ApiUnavailable) as error:
        raise CliError(f"the report cannot be fetched: {error}") from None


async def _shown(target: KubeTarget, pod: dict[str, Any]) -> bytes:
    api, namespace, name = target.api, target.namespace, pod["metadata"]["name"]
    await api.create(pod)
    try:
        deadline = time.monotonic() + SHOW_TIMEOUT_S
        while time.monotonic() < deadline:
            await asyncio.sleep(POLL_S / 2)
            state = ((await api.get(POD, namespace, name)) or {}).get("status") or {}
            if state.get("phase") == "Succeeded":
                return from_log((await api.pod_log(namespace, name)).decode("utf-8", "replace"))
            if state.get("phase") == "Failed":
                left = left_by(state)
                raise CliError(f"the report cannot be fetched: {(left or {}).get('message') or state.get('message')}")
        raise CliError(
            f"the pod that fetches the report is {state.get('phase', 'gone')} after {SHOW_TIMEOUT_S:.0f} s; its volume "
            f"may be in use on another node, or its image missing: see kubectl -n {namespace} get events",
            Exit.NOT_IN_TIME,
        )
    finally:
        await api.delete(POD, namespace, name)


def from_log(text: str) -> bytes:
    """Extract a file from the lines of `gantry_spark.showlog`. Raises CliError if lines are missing."""
    lines = text.splitlines()
    try:
        begin, end = lines.index(SHOW_BEGIN), lines.index(SHOW_END)
        packed = base64.b64decode("".join(lines[begin + 1 : end]), validate=True)
    except ValueError:
        packed = b""
    report = unpack(packed, MAX_REPORT)
    if report is None:
        raise CliError(
            f"the report cannot be fetched: the log of the pod that shows it is not complete, or the report has over "
            f"{MAX_REPORT} bytes"
        )
    return report
