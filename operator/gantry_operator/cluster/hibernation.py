"""The order in which a cluster stops for a while, and keeps its volumes and leadership records.

In each group the last one to stop is the leader, so that the newest records are on a disk that every later leader has
to follow: followers stop first, the leader last. NameServers stop after all brokers. No record is written or changed:
the next start continues with the epoch, the leader and the in-sync set of the last one. `next_step` decides, purely;
`Hibernation` carries the steps out on any platform.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.cluster.group_controller import SwitchoverFailed
from gantry_operator.cluster.group_controllers import GroupControllers
from gantry_operator.cluster.platform import HibernationPlatform

log = logging.getLogger(__name__)

HANDOVERS: Final = 3
"""Attempts of a handover before the group stops without it."""


@dataclass(frozen=True, slots=True)
class GroupState:
    """One group on its way. Members are numbers."""

    name: str
    wanted: int
    """Processes that should run now: all, then `last` alone, then none."""
    running: frozenset[int]
    leader: int | None
    last: int | None = 0
    """The member that stops last. It has to lead by then. None: no member leads, and any order will do."""
    last_in_sync: bool = False
    """`last` has every acknowledged record, so it can lead."""


@dataclass(frozen=True, slots=True)
class Step:
    """`handover`: member `last` of the group is to lead. `shrink`: the group keeps `keep` processes. `end`: everything
    else stops. `done`: nothing runs.
    """

    kind: Literal["handover", "shrink", "wait", "end", "done"]
    reason: str
    group: str = ""
    keep: int = 0


def next_step(groups: Sequence[GroupState], name_servers: int, *, patient: bool = True) -> Step:
    """Return the next step. `name_servers`: processes that run and are no brokers. Without `patient` a handover that
    fails is left out: the leader that stops together with its followers has acknowledged nothing that they lack.
    """
    for g in groups:
        if g.wanted <= 1:
            continue
        if patient and g.leader not in (None, g.last) and g.leader in g.running and g.last_in_sync:
            return Step("handover", f"{g.name}: member {g.last} leads, and the others stop first", g.name)
        return Step("shrink", f"{g.name}: the followers stop", g.name, 1)
    for g in groups:
        if g.wanted == 1 and g.running - {g.last}:
            return Step("wait", f"{g.name}: {len(g.running - {g.last})} followers still stop", g.name)
    for g in groups:
        if g.wanted == 1:
            return Step("shrink", f"{g.name}: the leader stops last", g.name, 0)
    still = sum(len(g.running) for g in groups)
    if still:
        return Step("wait", f"{still} brokers still stop")
    return Step("end", "the NameServers stop") if name_servers else Step("done", "nothing runs")


class Hibernation:
    """The way of one cluster into hibernation. `running`: the wanted processes by group; None: it does not hibernate.

    After a restart of this process it goes on from the processes that run.
    """

    def __init__(
        self,
        platform: HibernationPlatform,
        groups: GroupControllers,
        asleep: Callable[[str], None],
    ) -> None:
        """`asleep`: a group is not led any more, and its last process stops."""
        self.running: dict[str, int] | None = None
        self.others = False
        """Processes that are no brokers run, or are to run."""
        self.progress = ""
        """The step under way; empty: there is none."""
        self.done = False
        self._platform = platform
        self._groups = groups
        self._asleep = asleep
        self._failed: dict[str, int] = {}
        self._resume_due = False
        """A step may have stopped something that is to run if the spec has changed meanwhile."""
        self._name = ""
        self._wanted = asyncio.Event()

    def take(self, cluster: BrokerCluster) -> None:
        """Use this spec from now on."""
        self._name = cluster.name
        if not cluster.spec.hibernate:
            self.running, self.progress, self.done = None, "", False
            self._failed.clear()
            return
        if self.running is None:
            processes = self._platform.processes()
            self.running = {g.name: min(g.members, processes.groups.get(g.name, 0)) for g in cluster.spec.brokerGroups}
            self.others = processes.others
        self.running = {g.name: self.running.get(g.name, 0) for g in cluster.spec.brokerGroups}
        self._wanted.set()

    def sleeps(self, group: str) -> bool:
        """Return whether the group must not be led: all its processes are to stop."""
        return self.running is not None and self.running.get(group, 0) == 0

    async def run(self) -> None:
        """Never returns."""
        while True:
            if self._resume_due and self.running is None:
                await self._platform.resume()  # The spec changed during a step, also during one that failed.
                self._resume_due = False
            if self.running is None or self.done:
                await self._wanted.wait()
                self._wanted.clear()
            await asyncio.sleep(self._platform.step_s)
            if self.running is None or self.done:
                continue
            states = [self._state(group, wanted) for group, wanted in self.running.items()]
            step = next_step(states, int(self.others), patient=max(self._failed.values(), default=0) < HANDOVERS)
            self.progress = "" if step.kind == "done" else f"hibernation: {step.reason}"
            # Before the step: one that fails half-way may have stopped processes, which a spec that wakes has to start.
            self._resume_due = True
            await self._act(step)
            self._resume_due = self.running is None

    async def _act(self, step: Step) -> None:
        if step.kind == "handover":
            last = self._last(step.group)
            try:
                await self._groups.controllers[step.group].switchover(last, "the cluster hibernates", force=False)
            except SwitchoverFailed as error:
                self._failed[step.group] = self._failed.get(step.group, 0) + 1
                log.warning("hibernation of %s: %s", self._name, error)
        elif step.kind == "shrink":
            last = self._last(step.group) if step.keep else None
            if step.keep == 0:
                # Before the last process ends: its end is no failure.
                await self._groups.end(step.group)
                self._asleep(step.group)
            await self._stop(step, last)
        elif step.kind == "end":
            self.others = False
            await self._platform.stop_others()
        elif step.kind == "done":
            self.done = True
            self._platform.stopped()

    async def _stop(self, step: Step, last: int | None) -> None:
        running = self.running
        before = None if running is None else running.get(step.group)
        if running is not None and before is not None:  # The spec may have changed meanwhile.
            running[step.group] = step.keep
        try:
            await self._platform.stop_group(step.group, last)
        except Exception:
            if running is not None and before is not None:
                running[step.group] = before  # Processes that did not stop are stopped once more.
            raise

    def _last(self, group: str) -> int | None:
        if self._platform.keeps_lowest:
            return 0
        running, wanted = self._platform.running(group), 0 if self.running is None else self.running.get(group, 0)
        return min(running, default=None) if wanted <= 1 and len(running) == 1 else self._groups.leader(group)

    def _state(self, group: str, wanted: int) -> GroupState:
        controller, last = self._groups.controllers.get(group), self._last(group)
        watch = None if controller is None or last is None else controller.watches.get(last)
        report = None if watch is None or watch.reach != "ok" else watch.report
        return GroupState(
            name=group,
            wanted=wanted,
            running=self._platform.running(group),
            leader=self._groups.leader(group),
            last=last,
            last_in_sync=controller is not None and report is not None and controller.in_sync(report),
        )
