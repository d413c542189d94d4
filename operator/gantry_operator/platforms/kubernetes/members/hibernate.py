"""Hibernation on Kubernetes: the replicas of StatefulSets carry out the steps of `cluster.hibernation`."""

from __future__ import annotations

from collections.abc import Callable

from gantry_operator.cluster.platform import Processes
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.members.platform import KubernetesPlatform
from gantry_operator.platforms.kubernetes.objects.object_reconciler import ObjectReconciler

STEP_S = 0.5


class PodHibernation:
    """The `HibernationPlatform` of one cluster. `changed` begins a pass, which applies the wanted replicas.

    A StatefulSet keeps the lowest numbers. After a restart of the operator the replicas say how far it was.
    """

    keeps_lowest = True

    def __init__(
        self, objects: ObjectReconciler, pods: KubernetesPlatform, name: str, changed: Callable[[], None]
    ) -> None:
        self._objects = objects
        self._pods = pods
        self._name = name
        self._changed = changed

    @property
    def step_s(self) -> float:
        return STEP_S

    def processes(self) -> Processes:
        groups = {g: self._replicas(names.group_set(self._name, g)) for g in self._pods.planned}
        return Processes(groups, self._replicas(names.name_servers(self._name)) > 0)

    def running(self, group: str) -> frozenset[int]:
        return frozenset(m.number for m in self._pods.running(group) if self._pods.pod(m.name) is not None)

    async def stop_group(self, group: str, last: int | None) -> None:
        self._changed()

    async def stop_others(self) -> None:
        self._changed()

    async def resume(self) -> None:
        self._changed()

    def stopped(self) -> None:
        self._changed()

    def _replicas(self, stateful_set: str) -> int:
        live = self._objects.live("StatefulSet", stateful_set)
        return 0 if live is None else int(live["spec"].get("replicas", 0))
