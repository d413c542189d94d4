"""Planned changes of one cluster: members are replaced or leave, one at a time, in the order of `plan.order`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from gantry_operator.cluster.group_controller import GroupController, SwitchoverFailed
from gantry_operator.plan import MemberState, Step, next_step
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.client import POD, STATEFUL_SET, ApiError, ApiUnavailable, KubeApi
from gantry_operator.platforms.kubernetes.events import EventRecorder
from gantry_operator.platforms.kubernetes.informer_cache import InformerCache
from gantry_operator.platforms.kubernetes.member_state import member_states
from gantry_operator.platforms.kubernetes.platform import KubernetesPlatform

log = logging.getLogger(__name__)

LOOK_S = 0.5
"""Between two looks while a change is under way; twice that while there is none."""


class Roller:
    """Of one cluster. `enabled` says whether changes may be made now; `on_news` is called when progress changes."""

    def __init__(
        self,
        api: KubeApi,
        stateful_sets: InformerCache,
        pods: KubernetesPlatform,
        controllers: Mapping[str, GroupController],
        events: EventRecorder,
        cluster: tuple[str, str],
        enabled: Callable[[], bool],
        on_news: Callable[[], None],
    ) -> None:
        self.progress: dict[str, str] = {}
        """By group: what is being done or waited for."""
        self._api = api
        self._sets = stateful_sets
        self._pods = pods
        self._controllers = controllers
        self._events = events
        self._namespace, self._name = cluster
        self._enabled = enabled
        self._on_news = on_news

    async def run(self) -> None:
        while True:
            busy = False
            if self._enabled():
                for group in list(self._controllers):
                    busy = await self._step(group) or busy
            await asyncio.sleep(LOOK_S if busy else 2 * LOOK_S)

    async def _step(self, group: str) -> bool:
        """The next step of a group's planned change. False: there is none."""
        live = self._sets.get(self._namespace, names.group_set(self._name, group))
        if live is None or (live.get("status") or {}).get("observedGeneration") != live["metadata"]["generation"]:
            return False
        controller = self._controllers[group]
        states = member_states(live, controller, self._pods, group, datetime.now(UTC))
        step = next_step(states, controller.still_counted)
        self._note(group, step)
        if step.kind == "done":
            return False
        try:
            if step.kind == "replace":
                chosen = next(s for s in states if s.name == step.member)
                if not self._not_yet_retired(group, chosen):
                    await (self._shrink(group, chosen) if chosen.leaving else self._replace(group, step))
            elif step.kind == "handover":
                number = next(s.number for s in states if s.name == step.to)
                await controller.switchover(number, step.reason, force=False)
        except SwitchoverFailed as error:
            self._events.record("Warning", "HandOverFailed", f"group {group}: {error}; it is tried again")
        except (ApiError, ApiUnavailable) as error:
            log.warning("%s/%s: rolling %s: %s", self._namespace, self._name, group, error)
        return True

    def _not_yet_retired(self, group: str, member: MemberState) -> bool:
        """It has handed over, and the new master is not announced yet: the master's Service leads to this one only, and
        it may still forward what it parked. One that does not work relieves nobody by waiting."""
        if self._controllers[group].announced or member.master or member.broken:
            return False
        return self._pods.labelled_master(member.name) and self._pods.answers(group, member.name)

    async def _shrink(self, group: str, member: MemberState) -> None:
        """A StatefulSet gives up the highest number, so nobody else is taken away; the next pass reads its new size."""
        name = names.group_set(self._name, group)
        live = self._sets.get(self._namespace, name)
        running = 0 if live is None else int(live["spec"]["replicas"])
        size = member.number
        if max(running, self._pods.sizes[group]) != size + 1 or self._pods.in_grace(member.name):
            return
        self._events.record("Normal", "ScaleDown", f"group {group}: {member.name} leaves, its volume stays")
        self._sets.note(await self._api.merge(STATEFUL_SET, self._namespace, name, {"spec": {"replicas": size}}))
        self._pods.sizes[group] = size

    async def _replace(self, group: str, step: Step) -> None:
        assert step.member is not None
        pod = self._pods.pod(step.member)
        if pod is None or pod["metadata"].get("deletionTimestamp") is not None:
            return
        if self._pods.in_grace(step.member):
            return  # It has just handed over, and forwards what still comes to it by the master's Service.
        self._events.record("Normal", "Rolling", f"group {group}: {step.member} is replaced: {step.reason}")
        await self._api.delete(POD, self._namespace, step.member, uid=pod["metadata"]["uid"])

    def _note(self, group: str, step: Step) -> None:
        if step.kind == "done":
            if self.progress.pop(group, None) is not None:
                self._on_news()
        elif self.progress.get(group) != step.reason:
            self.progress[group] = step.reason
            self._on_news()
