"""The group controllers of one cluster on Kubernetes: events, metrics and labels of what they do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial

from gantry_operator.api import BrokerCluster, LastFailover
from gantry_operator.api.base import parse_duration
from gantry_operator.cluster.group_controller import GroupController
from gantry_operator.cluster.leader_preference import LeaderBalancer, LeaderPreference
from gantry_operator.cluster.master_slave_controller import MasterSlaveController
from gantry_operator.cluster.member_watch import QUIET_MS
from gantry_operator.cluster.raft_controller import RaftController
from gantry_operator.cluster.restart import run_with_restarts
from gantry_operator.cluster.stall_compensated_clock import StallCompensatedClock
from gantry_operator.failover.model import FailoverSettings
from gantry_operator.platforms.base import Change, Event
from gantry_operator.platforms.kubernetes import metrics
from gantry_operator.platforms.kubernetes.client import ApiError, ApiUnavailable, KubeApi
from gantry_operator.platforms.kubernetes.events import EventRecorder
from gantry_operator.platforms.kubernetes.informer_cache import InformerCache
from gantry_operator.platforms.kubernetes.lease_registry import LeaseRegistry
from gantry_operator.platforms.kubernetes.members import member_client
from gantry_operator.platforms.kubernetes.platform import KubernetesPlatform

log = logging.getLogger(__name__)

REFUSED_S = 2.0
"""A label that was refused is not written again sooner."""


class Masters:
    """Runs from the first `keep` to `close`. `on_news` is called when the status may have changed."""

    def __init__(
        self,
        api: KubeApi,
        caches: Mapping[str, InformerCache],
        cluster: tuple[str, str],
        events: EventRecorder,
        clock: StallCompensatedClock,
        on_news: Callable[[], None],
    ) -> None:
        self.namespace, self.name = cluster
        self.last: LastFailover | None = None
        self.controllers: dict[str, GroupController] = {}
        self.registry = LeaseRegistry(api, self.name, self.namespace)
        self.pods = KubernetesPlatform(
            api,
            caches["Pod"],
            caches["PersistentVolumeClaim"],
            self.name,
            self.namespace,
            self._on_event,
            self._changed,
        )
        self.pods.answers = self._answers
        self.pods.sync_labels = self._retry_label_sync
        self._events = events
        self._clock = clock
        self._on_news = on_news
        self._http = member_client(self.pods.token)
        self._settings = FailoverSettings()
        self._preference: LeaderPreference | None = None
        self._balancer = LeaderBalancer(
            self.controllers, lambda: self._preference, self.pods.process_state, self._not_moved
        )
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def keep(self, cluster: BrokerCluster) -> None:
        """A controller for each group, with the settings of this spec."""
        spec = cluster.spec
        self._settings = FailoverSettings(
            automatic=spec.failover.automatic,
            detection_ms=int(parse_duration(spec.failover.detectionTimeout) * 1000),
            unclean=spec.failover.unclean,
            async_flush=spec.flush == "Async",
            min_in_sync=spec.minInSyncReplicas,
        )
        self._preference = LeaderPreference.of(spec)
        if not self._tasks:
            self._tasks[""] = asyncio.create_task(self._balancer.run())
        for g in spec.brokerGroups:
            if g.name not in self._tasks:
                make = partial(self._next_controller, g.name, spec.mode)
                self._tasks[g.name] = asyncio.create_task(run_with_restarts(make(), make, self._on_event))
        self.wake()

    def _controller(self, group: str, mode: str) -> GroupController:
        if mode == "Raft":
            return RaftController(group, self.pods, self._http, lambda: self._settings, self._clock)
        return MasterSlaveController(group, self.registry, self.pods, self._http, lambda: self._settings, self._clock)

    def _next_controller(self, group: str, mode: str) -> GroupController:
        made = self.controllers[group] = self._controller(group, mode)
        return made

    def wake(self) -> None:
        for controller in self.controllers.values():
            controller.wake()

    def problems(self) -> Iterable[str]:
        return (controller.problem for controller in self.controllers.values() if controller.problem)

    async def sync_labels(self) -> list[str]:
        """Each master that leads says so by its label. What keeps some of them from it, in words: it keeps no others.

        Not one whose controller is still to announce it: that knows how long the former one keeps its label beside it.
        """
        problems = await asyncio.gather(*(self._sync_label(group) for group in self.controllers))
        return list(dict.fromkeys(p for p in problems if p))

    async def _sync_label(self, group: str) -> str:
        controller = self.controllers[group]
        cell = controller.cell
        if cell is None or cell.master is None or not controller.announced:
            return ""
        watch = controller.watches.get(cell.master.member)
        report = None if watch is None else watch.report
        if report is not None and report.role == "Master" and report.epoch == cell.epoch:
            try:
                await self.pods.label(group, cell.master.member)
            except (ApiError, ApiUnavailable) as error:
                return str(error)
        return ""

    async def _retry_label_sync(self, group: str) -> bool:
        """False: to be tried again."""
        problem = await self._sync_label(group)
        if problem:
            # The next pass over the objects tells of it.
            log.warning("labels of group %s: %s", group, problem)
            await asyncio.sleep(REFUSED_S)
            return False
        controller = self.controllers[group]
        master = None if controller.cell is None else controller.cell.master
        return controller.announced and master is not None and not self.pods.mislabelled(group, master.member)

    def _answers(self, group: str, name: str) -> bool:
        """One that is frozen or cut off keeps its connection for longer than it may be silent."""
        controller = self.controllers.get(group)
        number = (
            None if controller is None else next((n for n, w in controller.watches.items() if w.name == name), None)
        )
        if controller is None or number is None or controller.watches[number].reach != "ok":
            return False
        return controller.silence_s(number) * 1000 < QUIET_MS

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self.pods.close()
        await self._http.aclose()

    def _not_moved(self, group: str, why: str) -> None:
        self._on_event(Event("Warning", "HandOverFailed", why, group))

    def _on_event(self, event: Event) -> None:
        self._events.record(event.kind, event.reason, f"group {event.group}: {event.message}")
        self._on_news()

    def _changed(self, change: Change) -> None:
        at = datetime.fromtimestamp(change.at_unix_ms / 1000, UTC)
        self.last = LastFailover(
            group=change.group,
            from_=change.old,
            to=change.new,
            reason=change.reason,
            epoch=change.epoch,
            time=at.strftime("%Y-%m-%dT%H:%M:%SZ"),
            durationMs=change.duration_ms,
            planned=change.planned,
        )
        planned = str(change.planned).lower()
        metrics.FAILOVERS.labels(self.namespace, self.name, planned).inc()
        metrics.FAILOVER_SECONDS.labels(planned).observe(change.duration_ms / 1000)
        self._events.record(
            "Normal" if change.planned or change.old == change.new else "Warning",
            "MasterChanged",
            f"group {change.group}: from {change.old or 'none'} to {change.new} in {change.duration_ms} ms: "
            f"{change.reason}",
        )
        self._on_news()
