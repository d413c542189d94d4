"""Observes a cluster for its status: why pods are missing, how a migration and reports go, what people see of both.

The status itself is made by `cluster.status` and written by `api.status_writer`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.status import BrokerClusterStatus
from gantry_operator.cluster.control import ClusterControl
from gantry_operator.cluster.observed import ObservedMember, ObservedState
from gantry_operator.cluster.status import proxy_events
from gantry_operator.platforms.kubernetes.analytics.reconciler import JOBS, PODS
from gantry_operator.platforms.kubernetes.api.client import ApiError, ApiUnavailable
from gantry_operator.platforms.kubernetes.api.cluster_resource import ClusterResource
from gantry_operator.platforms.kubernetes.api.pod_state import notable
from gantry_operator.platforms.kubernetes.api.reasons import LOOK_S
from gantry_operator.platforms.kubernetes.api.status_writer import StatusWriter
from gantry_operator.platforms.kubernetes.members.member_state import missing_objects
from gantry_operator.platforms.kubernetes.reconcile.cluster_platform import ClusterPlatform
from gantry_operator.platforms.kubernetes.reconcile.migration_watch import MigrationWatch

log = logging.getLogger(__name__)

FOLLOW_S = 5.0
"""Seconds between two looks at the SparkApplications of a cluster that has them."""
SHOWN = ("Deployment", "Service", JOBS, PODS)
"""Caches for the status, besides those that the failover needs."""


class ClusterObserver:
    """Observes one cluster. `look_again` begins a pass over its objects."""

    def __init__(
        self,
        resource: ClusterResource,
        platform: ClusterPlatform,
        control: ClusterControl,
        migration_waits: Callable[[], str],
        look_again: Callable[[], None],
    ) -> None:
        former = resource.obj.get("status") or {}
        self.generation = int(former.get("observedGeneration") or 0)
        """Of the spec that the last pass was about."""
        self._resource, self._platform, self._control = resource, platform, control
        self._look_again = look_again
        self._reported: dict[str, str] = {}
        """By member: why it does not run, as the last event about it says."""
        self._report = StatusWriter(
            platform.shared.api, platform.namespace, platform.name, former, platform.events, self.look, self._saw
        )
        self._migration = MigrationWatch(
            resource, platform.copies, migration_waits, platform.events.record, self.wake, platform.keep_config
        )

    def parts(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        """Return what has to run while the cluster is controlled, by name."""
        return {
            "status": self._report.run,
            "reasons": self._read_reasons,
            "migration": self._migration.run,
            "report": self._follow_report,
        }

    def wake(self) -> None:
        """Note that the status may have changed."""
        self._report.wake()

    def look(self) -> tuple[BrokerCluster | None, int, ObservedState] | None:
        """Return the spec, its generation and what is seen, for the status. None: nothing is to be said now."""
        if self._resource.ending:
            return None
        self._control.check_availability()
        hidden = not set(SHOWN).isdisjoint(self._platform.shared.unlisted()) and self._control.warm_up.just_begun
        if self._control.warms_up() or hidden:
            return None
        seen = replace(self._control.observe(), migration=self._migration.seen)
        return self._control.cluster, self.generation, seen

    def _saw(self, status: BrokerClusterStatus, members: Sequence[ObservedMember]) -> None:
        """Record events about what the new status has and the last one had not."""
        platform = self._platform
        before, platform.proxies_shown = platform.proxies_shown, status.proxy
        for kind, reason, message in proxy_events(before, status.proxy):
            platform.events.record(kind, reason, message)
        platform.figures.saw(status, members)
        now = datetime.now(UTC)
        for m in members:
            # Without digits: ages, restarts and amounts change all the time.
            problem = re.sub(r"\d+", "", m.problem) if m.status is None else ""
            if problem != self._reported.get(m.name, "") and notable(platform.pods.pod(m.name), m.problem, now):
                platform.events.record("Warning", "MemberNotRunning", f"{m.name}: {m.problem}")
                self._reported[m.name] = problem
            elif m.status is not None:
                self._reported.pop(m.name, None)

    async def _read_reasons(self) -> None:
        """Read why pods are missing or do not start. A pod that starts as usual is there before the first reading."""
        platform = self._platform
        while True:
            await asyncio.sleep(LOOK_S / 2)
            if platform.cluster is not None and platform.cluster.spec.hibernate:
                continue
            pods = platform.shared.caches["Pod"]
            missing = missing_objects(platform.all_members(), platform.plan, pods, platform.namespace, platform.name)
            if await platform.reasons.look(missing):
                self.wake()
                if platform.reasons.missing_classes():
                    self._look_again()

    async def _follow_report(self) -> None:
        """Look at runs that have no watch, and start those that are due."""
        platform = self._platform
        while True:
            await asyncio.sleep(FOLLOW_S)
            try:
                if await platform.reports.follow(datetime.now(UTC)):
                    self.wake()
            except (ApiError, ApiUnavailable) as error:
                log.warning("SparkApplications: %s", error, extra={"cluster": f"{platform.namespace}/{platform.name}"})
            if platform.reports.waits:
                self._look_again()
