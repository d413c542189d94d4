"""Writes the status of one cluster after a change, and an event when a condition turns."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gantry_broker.tasks import set_within

from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.status import BrokerClusterStatus
from gantry_operator.cluster.observed import ObservedMember, ObservedState
from gantry_operator.cluster.status import significant, status_of
from gantry_operator.cluster.timestamps import utc
from gantry_operator.platforms.kubernetes.api.client import BROKER_CLUSTER, ApiError, ApiUnavailable, KubeApi
from gantry_operator.platforms.kubernetes.api.events import EventRecorder

log = logging.getLogger(__name__)

OFFSETS_EVERY_S = 20.0
"""Seconds between writes that change only offsets."""
AGAIN_S = 2.0
"""Seconds after a failed write."""
NO_LONGER = {
    "Available": "Unavailable",
    "Degraded": "Recovered",
    "Secured": "NotSecured",
    "CertificatesValid": "CertificatesNotValid",
    "Draining": "DrainEnded",
    "Unbalanced": "Balanced",
    "DiskPressure": "DiskPressureEnded",
    "ReportComplete": "ReportIncomplete",
    "Archiving": "ArchivingFailed",
    "Standby": "StandbyEnded",
    "Migrating": "Migrated",
}
"""The event's reason when a condition becomes false."""
GOOD_WHEN_TRUE = ("Available", "Secured", "CertificatesValid", "ReportComplete", "Archiving", "Standby")
"""Conditions whose end is a warning event. Each other condition is one when it becomes true."""
GAP_S = 0.3
"""Seconds between two writes."""


def merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON merge patch (RFC 7396) from `old` to `new`. It names removed fields at every depth."""
    patch: dict[str, Any] = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        patch[key] = merge_patch(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return patch


class StatusWriter:
    """`look` returns the observations: the last accepted cluster, its generation, and the rest; None: write nothing.

    `saw` gets each new status, and the members that it is made of.
    """

    def __init__(
        self,
        api: KubeApi,
        namespace: str,
        name: str,
        written: dict[str, Any],
        events: EventRecorder,
        look: Callable[[], tuple[BrokerCluster | None, int, ObservedState] | None],
        saw: Callable[[BrokerClusterStatus, Sequence[ObservedMember]], None],
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name
        self._written = written
        self._written_at = 0.0
        self._status = BrokerClusterStatus.model_validate(written)
        self._events = events
        self._look = look
        self._saw = saw
        self._news = asyncio.Event()

    def wake(self) -> None:
        """Note that the status may have changed."""
        self._news.set()

    async def run(self) -> None:
        while True:
            await set_within(self._news, OFFSETS_EVERY_S)
            self._news.clear()
            await self._write()
            await asyncio.sleep(GAP_S)

    async def _write(self) -> None:
        looked = self._look()
        if looked is None:
            return
        cluster, generation, seen = looked
        paused = cluster is not None and cluster.paused
        new = status_of(cluster, self._status, seen, utc(), generation, paused)
        self._saw(new, seen.members)
        before, self._status = self._status, new
        body = new.to_object()
        if significant(new) == significant(BrokerClusterStatus.model_validate(self._written)):
            moved = body != self._written
            if not moved or time.monotonic() - self._written_at < OFFSETS_EVERY_S:
                return
        self._say(before, new)
        patch = {"status": merge_patch(self._written, body)}
        try:
            await self._api.merge(BROKER_CLUSTER, self._namespace, self._name, patch, "status")
        except (ApiError, ApiUnavailable) as error:
            if not (isinstance(error, ApiError) and error.status == 404):
                log.warning("status of %s/%s: %s", self._namespace, self._name, error)
                await asyncio.sleep(AGAIN_S)
                self.wake()
            return
        self._written, self._written_at = body, time.monotonic()

    def _say(self, old: BrokerClusterStatus, new: BrokerClusterStatus) -> None:
        before = {c.type: c.status for c in old.conditions}
        for c in new.conditions:
            if c.type in before and before[c.type] != c.status and c.type not in ("Progressing", "Ready"):
                good = (c.type in GOOD_WHEN_TRUE) == (c.status == "True")
                reason = c.type if c.status == "True" else NO_LONGER[c.type]
                self._events.record("Normal" if good else "Warning", reason, c.message)
