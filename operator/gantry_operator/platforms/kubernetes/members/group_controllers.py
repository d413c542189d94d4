"""The group controllers of one cluster on Kubernetes, with events, metrics and role labels."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from gantry_operator.api import LastFailover
from gantry_operator.cluster.group_controllers import GroupControllers
from gantry_operator.cluster.member_http import make_client
from gantry_operator.cluster.member_watch import QUIET_MS
from gantry_operator.cluster.platform import Change, Event
from gantry_operator.cluster.stall_compensated_clock import StallCompensatedClock
from gantry_operator.cluster.status import last_failover
from gantry_operator.platforms.kubernetes.api.client import ApiError, ApiUnavailable, KubeApi
from gantry_operator.platforms.kubernetes.api.events import EventRecorder
from gantry_operator.platforms.kubernetes.api.informer_cache import InformerCache
from gantry_operator.platforms.kubernetes.api.lease_registry import LeaseRegistry
from gantry_operator.platforms.kubernetes.members.platform import KubernetesPlatform
from gantry_operator.platforms.kubernetes.monitoring.cluster_figures import ClusterFigures

log = logging.getLogger(__name__)

REFUSED_S = 2.0
"""Seconds before a refused label is written again."""


class KubernetesGroupControllers(GroupControllers):
    """Adds to the group controllers: pods' role labels, events, metrics and `lastFailover`.

    Calls `on_news` when the status may have changed.
    """

    def __init__(
        self,
        api: KubeApi,
        caches: Mapping[str, InformerCache],
        cluster: tuple[str, str],
        events: EventRecorder,
        clock: StallCompensatedClock,
        on_news: Callable[[], None],
        trusted: Callable[[], bytes] = bytes,
    ) -> None:
        """`trusted`: the authorities of the members' certificates, as PEM."""
        self.namespace, self.name = cluster
        self.last: LastFailover | None = None
        self.figures = ClusterFigures(self.namespace, self.name)
        self.registry = LeaseRegistry(api, self.name, self.namespace)
        self.pods = KubernetesPlatform(
            api,
            caches["Pod"],
            caches["PersistentVolumeClaim"],
            self.name,
            self.namespace,
            self.record,
            self._changed,
        )
        self.pods.answers = self._answers
        self.pods.sync_labels = self._retry_label_sync
        self._events = events
        self._on_news = on_news
        super().__init__(self.pods, self.registry, make_client(self.pods.token, trusted), clock, self.record)

    async def sync_labels(self) -> list[str]:
        """Label each working master. Returns the failures; a failure does not affect other groups.

        A group with a pending announcement is left out: its controller knows for how long the former master keeps its
        label.
        """
        problems = await asyncio.gather(*(self._sync_label(group) for group in self.controllers))
        return list(dict.fromkeys(p for p in problems if p))

    async def _sync_label(self, group: str) -> str:
        controller = self.controllers.get(group)
        if controller is None:  # It ended after the caller looked.
            return ""
        leadership = controller.leadership
        if leadership is None or leadership.master is None or not controller.announced:
            return ""
        watch = controller.watches.get(leadership.master.member)
        report = None if watch is None else watch.report
        if report is not None and report.role == "Master" and report.epoch == leadership.epoch:
            try:
                await self.pods.label(group, leadership.master.member)
            except (ApiError, ApiUnavailable) as error:
                return str(error)
        return ""

    async def _retry_label_sync(self, group: str) -> bool:
        """False: try again."""
        problem = await self._sync_label(group)
        if problem:
            # The next pass over the objects reports it.
            log.warning("labels of group %s: %s", group, problem)
            await asyncio.sleep(REFUSED_S)
            return False
        controller = self.controllers.get(group)
        if controller is None:
            return True
        master = None if controller.leadership is None else controller.leadership.master
        return controller.announced and master is not None and not self.pods.mislabelled(group, master.member)

    def _answers(self, group: str, name: str) -> bool:
        """A frozen member, or one behind a network cut, keeps its connection longer than the allowed silence."""
        controller = self.controllers.get(group)
        number = (
            None if controller is None else next((n for n, w in controller.watches.items() if w.name == name), None)
        )
        if controller is None or number is None or controller.watches[number].reach != "ok":
            return False
        return controller.silence_s(number) * 1000 < QUIET_MS

    async def close(self) -> None:
        await super().close()
        await self.pods.close()
        await self.http.aclose()

    def record(self, event: Event) -> None:
        self.figures.heard(event)
        about = f"group {event.group}: " if event.group else ""
        self._events.record(event.kind, event.reason, about + event.message)
        self._on_news()

    def _changed(self, change: Change) -> None:
        self.last = last_failover(change)
        self.figures.changed(change)
        self._events.record(
            "Normal" if change.planned or change.old == change.new else "Warning",
            "SwitchoverCompleted" if change.planned else "FailoverCompleted",
            f"group {change.group}: from {change.old or 'none'} to {change.new} in {change.duration_ms} ms: "
            f"{change.reason}",
        )
        self._on_news()
