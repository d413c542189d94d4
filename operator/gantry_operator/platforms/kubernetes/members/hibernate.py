"""Hibernation on Kubernetes: carries out the steps of `cluster.hibernation` by the replicas of the StatefulSets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from gantry_operator.api import BrokerCluster
from gantry_operator.cluster.group_controller import SwitchoverFailed
from gantry_operator.cluster.hibernation import GroupState, Step, next_step
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.api.client import ApiError, ApiUnavailable
from gantry_operator.platforms.kubernetes.manifests.desired_objects import NAME_SERVERS
from gantry_operator.platforms.kubernetes.members.group_controllers import KubernetesGroupControllers
from gantry_operator.platforms.kubernetes.objects.object_reconciler import ObjectReconciler

log = logging.getLogger(__name__)

STEP_S: Final = 0.5
HANDOVERS: Final = 3
"""Attempts of a handover before the group stops without it."""


class Hibernation:
    """The way of one cluster into hibernation. `running`: the wanted processes by group; None: it does not hibernate.

    After a restart of the operator it goes on from the replicas that the StatefulSets have.
    """

    def __init__(
        self,
        groups: KubernetesGroupControllers,
        objects: ObjectReconciler,
        on_step: Callable[[], None],
        asleep: Callable[[str], None],
    ) -> None:
        """`on_step`: `running` has changed. `asleep`: a group has no process any more."""
        self.running: dict[str, int] | None = None
        self.progress = ""
        """The step under way; empty: there is none."""
        self.done = False
        self._groups = groups
        self._objects = objects
        self._on_step = on_step
        self._asleep = asleep
        self._failed: dict[str, int] = {}
        self._name = ""

    def take(self, cluster: BrokerCluster) -> None:
        """Use this spec from now on."""
        self._name = cluster.name
        if not cluster.spec.hibernate:
            self.running, self.progress, self.done = None, "", False
            self._failed.clear()
            return
        if self.running is None:
            self.running = {g.name: min(g.members, self._replicas(g.name)) for g in cluster.spec.brokerGroups}
            servers = self._objects.live("StatefulSet", names.name_servers(cluster.name))
            runs = servers is not None and int(servers["spec"].get("replicas", 0)) > 0
            self.running[NAME_SERVERS] = 1 if runs else 0
        for g in cluster.spec.brokerGroups:
            self.running.setdefault(g.name, 0)

    def sleeps(self, group: str) -> bool:
        """The group must not be led: all its processes are to stop."""
        return self.running is not None and self.running.get(group, 0) == 0

    async def run(self) -> None:
        """Never returns."""
        while True:
            await asyncio.sleep(STEP_S)
            if self.running is None or self.done:
                continue
            step = next_step(self._states(), self._name_servers(), patient=not self._gave_up())
            self.progress = "" if step.kind == "done" else f"hibernation: {step.reason}"
            try:
                await self._act(step)
            except (ApiError, ApiUnavailable) as error:
                log.warning("hibernation of %s: %s", self._name, error)

    async def _act(self, step: Step) -> None:
        assert self.running is not None
        if step.kind == "handover":
            try:
                await self._groups.controllers[step.group].switchover(0, "the cluster hibernates", force=False)
            except SwitchoverFailed as error:
                self._failed[step.group] = self._failed.get(step.group, 0) + 1
                log.warning("hibernation of %s: %s", self._name, error)
        elif step.kind == "shrink":
            if step.keep == 0:
                # Before the last process ends: its end is no failure.
                await self._groups.end(step.group)
                self._asleep(step.group)
            if self.running is not None:  # The spec may have changed meanwhile.
                self.running[step.group] = step.keep
            self._on_step()
        elif step.kind == "end":
            self.running[NAME_SERVERS] = 0
            self._on_step()
        elif step.kind == "done":
            self.done = True
            self._on_step()

    def _gave_up(self) -> bool:
        return any(n >= HANDOVERS for n in self._failed.values())

    def _states(self) -> list[GroupState]:
        assert self.running is not None
        return [self._state(group, wanted) for group, wanted in self.running.items() if group != NAME_SERVERS]

    def _state(self, group: str, wanted: int) -> GroupState:
        controller = self._groups.controllers.get(group)
        leadership = None if controller is None else controller.leadership
        watch = None if controller is None else controller.watches.get(0)
        report = None if watch is None or watch.reach != "ok" else watch.report
        pods = self._groups.pods
        return GroupState(
            name=group,
            wanted=wanted,
            running=frozenset(m.number for m in pods.running(group) if pods.pod(m.name) is not None),
            leader=None if leadership is None or leadership.master is None else leadership.master.member,
            first_in_sync=controller is not None and report is not None and controller.in_sync(report),
        )

    def _replicas(self, group: str) -> int:
        live = self._objects.live("StatefulSet", names.group_set(self._name, group))
        return 0 if live is None else int(live["spec"].get("replicas", 0))

    def _name_servers(self) -> int:
        """NameServers that run or should."""
        assert self.running is not None
        live = self._objects.live("StatefulSet", names.name_servers(self._name))
        running = 0 if live is None else int((live.get("status") or {}).get("replicas", 0))
        return max(running, self.running.get(NAME_SERVERS, 0)) if self.running.get(NAME_SERVERS, 0) else 0
