"""One run at once on Kubernetes: ask the operator by the annotation, and wait for what the status says."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Any

from gantry_operator.analytics.manifests import ANALYZE_ANNOTATION
from gantry_operator.cli.errors import CliError, Exit
from gantry_operator.kube.client import BROKER_CLUSTER
from gantry_operator.kube.target import KubeTarget, TargetError

POLL_S = 1.0


async def analyze(context: str | None, namespace: str | None, name: str | None, timeout_s: float) -> dict[str, Any]:
    """`status.analytics` after the run. Raises CliError: no such cluster, no spec.analytics, or why the run failed."""
    try:
        async with KubeTarget(context, namespace, name) as target:
            resource = await target.resource()
            if not resource["spec"].get("analytics"):
                raise CliError(f"{target.name} has no spec.analytics: write it first, for example its schedule")
            before = _status(resource)
            stamp = datetime.now(UTC).isoformat(timespec="seconds")
            patch = {"metadata": {"annotations": {ANALYZE_ANNOTATION: stamp}}}
            await target.api.merge(BROKER_CLUSTER, target.namespace, target.name, patch)
            return await _wait(target, before, timeout_s)
    except TargetError as error:
        raise CliError(str(error), Exit.NO_CLUSTER) from None


async def last(context: str | None, namespace: str | None, name: str | None) -> dict[str, Any]:
    """`status.analytics` as it is. Raises CliError."""
    try:
        async with KubeTarget(context, namespace, name) as target:
            return _status(await target.resource())
    except TargetError as error:
        raise CliError(str(error), Exit.NO_CLUSTER) from None


def _status(resource: dict[str, Any]) -> dict[str, Any]:
    return dict((resource.get("status") or {}).get("analytics") or {})


async def _wait(target: KubeTarget, before: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        await asyncio.sleep(POLL_S)
        resource = await target.resource()
        waiting = ANALYZE_ANNOTATION in (resource["metadata"].get("annotations") or {})
        now = _status(resource)
        if waiting or now.get("lastResult") == "Running":
            continue
        if now.get("lastRun") != before.get("lastRun"):
            if now.get("lastResult") == "Failed":
                raise CliError(f"the run failed: {now.get('message', '')}")
            return now
        if now.get("lastResult") == "Failed" and now.get("message") != before.get("message"):
            raise CliError(str(now.get("message", "")))
    raise CliError(f"no run ended within {timeout_s:.0f} s; gantry status shows what became of it", Exit.NOT_IN_TIME)
