"""Writes Events about a cluster or a user. An event that repeats within ten minutes increases the count of the first.

Why not kopf's events: kopf posts each event as a new object and has no limit for each cluster.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import OrderedDict
from datetime import UTC, datetime
from typing import Any

from gantry_operator.api.cluster import API_VERSION, KIND
from gantry_operator.platforms.kubernetes.api.client import EVENT, ApiError, ApiUnavailable, KubeApi

log = logging.getLogger(__name__)

SAME_FOR_S = 600.0
KEPT = 64
BURST = 50
REFILL_S = 10.0
"""An object may write BURST events at once, and another one every REFILL_S seconds."""


class EventRecorder:
    """Events of one object. `record` never blocks and never raises."""

    def __init__(
        self, api: KubeApi, namespace: str, name: str, uid: str, reporter: str, kind: str = KIND
    ) -> None:  # fmt: skip
        self.uid = uid
        self._kind = kind
        self._api = api
        self._namespace = namespace
        self._name = name
        self._reporter = reporter
        self._recent: OrderedDict[tuple[str, str], list[Any]] = OrderedDict()
        self._tokens, self._filled_at = float(BURST), time.monotonic()
        self._tasks: set[asyncio.Task[None]] = set()

    def record(self, kind: str, reason: str, message: str) -> None:
        level = logging.WARNING if kind == "Warning" else logging.INFO
        log.log(level, "%s: %s", reason, message, extra={"cluster": f"{self._namespace}/{self._name}"})
        now = time.monotonic()
        self._tokens = min(float(BURST), self._tokens + (now - self._filled_at) / REFILL_S)
        self._filled_at = now
        if self._tokens < 1:
            return
        self._tokens -= 1
        task = asyncio.create_task(self._write(kind, reason, message[:1000], now))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _write(self, kind: str, reason: str, message: str, now: float) -> None:
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        recent = self._recent.get((reason, message))
        try:
            if recent is not None and now - recent[1] < SAME_FOR_S:
                recent[1], recent[2] = now, recent[2] + 1
                patch = {"count": recent[2], "lastTimestamp": stamp}
                await self._api.merge(EVENT, self._namespace, recent[0], patch)
                return
            name = f"{self._name}.{uuid.uuid4().hex[:16]}"
            self._recent[reason, message] = [name, now, 1]
            while len(self._recent) > KEPT:
                self._recent.popitem(last=False)
            await self._api.create(
                {
                    "apiVersion": "v1",
                    "kind": "Event",
                    "metadata": {"name": name, "namespace": self._namespace},
                    "involvedObject": {
                        "apiVersion": API_VERSION,
                        "kind": self._kind,
                        "name": self._name,
                        "namespace": self._namespace,
                        "uid": self.uid,
                    },
                    "type": kind,
                    "reason": reason,
                    "message": message,
                    "count": 1,
                    "firstTimestamp": stamp,
                    "lastTimestamp": stamp,
                    "source": {"component": "gantry-operator"},
                    "reportingComponent": "gantry.dev/operator",
                    "reportingInstance": self._reporter,
                }
            )
        except (ApiError, ApiUnavailable) as error:
            self._recent.pop((reason, message), None)
            log.warning("an event could not be written: %s", error)
