"""The failover loops of one cluster: one for each group, over pods and Leases; and what is told of their doings."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial

from gantry_operator.api import BrokerCluster, LastFailover
from gantry_operator.api.base import parse_duration
from gantry_operator.cluster.group_controller import GroupWatch
from gantry_operator.cluster.leader_preference import Preference, Wishes
from gantry_operator.cluster.master_slave_controller import GroupLoop
from gantry_operator.cluster.member_watch import QUIET_MS
from gantry_operator.cluster.raft_controller import RaftLoop
from gantry_operator.cluster.restart import keep_running
from gantry_operator.cluster.stall_compensated_clock import AttentiveClock
from gantry_operator.failover.model import FailoverSettings
from gantry_operator.platforms.base import Change, Event
from gantry_operator.platforms.kubernetes import metrics
from gantry_operator.platforms.kubernetes.client import ApiError, ApiUnavailable, KubeApi
from gantry_operator.platforms.kubernetes.events import EventRecorder
from gantry_operator.platforms.kubernetes.informer_cache import Mirror
from gantry_operator.platforms.kubernetes.lease_registry import LeaseRegistry
from gantry_operator.platforms.kubernetes.members import member_client
from gantry_operator.platforms.kubernetes.platform import PodSurroundings

log = logging.getLogger(__name__)

REFUSED_S = 2.0
"""A label that was refused is not written again sooner."""


class Masters:
    """Runs from the first `keep` to `close`. `on_news` is called when the status may have changed."""

    def __init__(
        self,
        api: KubeApi,
        mirrors: Mapping[str, Mirror],
        cluster: tuple[str, str],
        events: EventRecorder,
        clock: AttentiveClock,
        on_news: Callable[[], None],
    ) -> None:
        self.namespace, self.name = cluster
        self.last: LastFailover | None = None
        self.loops: dict[str, GroupWatch] = {}
        self.registry = LeaseRegistry(api, self.name, self.namespace)
        self.pods = PodSurroundings(
            api, mirrors["Pod"], mirrors["PersistentVolumeClaim"], self.name, self.namespace, self._said, self._changed
        )
        self.pods.answers = self._answers
        self.pods.put_right = self._put_right
        self._events = events
        self._clock = clock
        self._on_news = on_news
        self._http = member_client(self.pods.token)
        self._settings = FailoverSettings()
        self._wishes: Wishes | None = None
        self._preference = Preference(self.loops, lambda: self._wishes, self.pods.facts, self._not_moved)
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def keep(self, cluster: BrokerCluster) -> None:
        """A loop for each group, with the settings of this spec."""
        spec = cluster.spec
        self._settings = FailoverSettings(
            automatic=spec.failover.automatic,
            detection_ms=int(parse_duration(spec.failover.detectionTimeout) * 1000),
            unclean=spec.failover.unclean,
            async_flush=spec.flush == "Async",
            min_in_sync=spec.minInSyncReplicas,
        )
        self._wishes = Wishes.of(spec)
        if not self._tasks:
            self._tasks[""] = asyncio.create_task(self._preference.run())
        for g in spec.brokerGroups:
            if g.name not in self._tasks:
                make = partial(self._next_loop, g.name, spec.mode)
                self._tasks[g.name] = asyncio.create_task(keep_running(make(), make, self._said))
        self.wake()

    def _loop(self, group: str, mode: str) -> GroupWatch:
        if mode == "Raft":
            return RaftLoop(group, self.pods, self._http, lambda: self._settings, self._clock)
        return GroupLoop(group, self.registry, self.pods, self._http, lambda: self._settings, self._clock)

    def _next_loop(self, group: str, mode: str) -> GroupWatch:
        made = self.loops[group] = self._loop(group, mode)
        return made

    def wake(self) -> None:
        for loop in self.loops.values():
            loop.wake()

    def problems(self) -> Iterable[str]:
        return (loop.problem for loop in self.loops.values() if loop.problem)

    async def right_labels(self) -> list[str]:
        """Each master that leads says so by its label. What keeps some of them from it, in words: it keeps no others.

        Not one whose loop is still to announce it: that knows how long the former one keeps its label beside it.
        """
        problems = await asyncio.gather(*(self._right_label(group) for group in self.loops))
        return list(dict.fromkeys(p for p in problems if p))

    async def _right_label(self, group: str) -> str:
        loop = self.loops[group]
        cell = loop.cell
        if cell is None or cell.master is None or not loop.announced:
            return ""
        watch = loop.watches.get(cell.master.member)
        report = None if watch is None else watch.report
        if report is not None and report.role == "Master" and report.epoch == cell.epoch:
            try:
                await self.pods.label(group, cell.master.member)
            except (ApiError, ApiUnavailable) as error:
                return str(error)
        return ""

    async def _put_right(self, group: str) -> bool:
        """False: to be tried again."""
        problem = await self._right_label(group)
        if problem:
            # The next pass over the objects tells of it.
            log.warning("labels of group %s: %s", group, problem)
            await asyncio.sleep(REFUSED_S)
            return False
        loop = self.loops[group]
        master = None if loop.cell is None else loop.cell.master
        return loop.announced and master is not None and not self.pods.mislabelled(group, master.member)

    def _answers(self, group: str, name: str) -> bool:
        """One that is frozen or cut off keeps its connection for longer than it may be silent."""
        loop = self.loops.get(group)
        number = None if loop is None else next((n for n, w in loop.watches.items() if w.name == name), None)
        if loop is None or number is None or loop.watches[number].reach != "ok":
            return False
        return loop.silence_s(number) * 1000 < QUIET_MS

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self.pods.close()
        await self._http.aclose()

    def _not_moved(self, group: str, why: str) -> None:
        self._said(Event("Warning", "HandOverFailed", why, group))

    def _said(self, event: Event) -> None:
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
