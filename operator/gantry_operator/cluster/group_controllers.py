"""The group controllers of one cluster: one for each group, and the leader balancer over all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from gantry_broker.tasks import end_tasks

from gantry_operator.api.base import parse_duration
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.spec import BrokerClusterSpec
from gantry_operator.cluster.group_controller import GroupController
from gantry_operator.cluster.leader_preference import LeaderBalancer, LeaderPreference
from gantry_operator.cluster.master_slave_controller import MasterSlaveController
from gantry_operator.cluster.member_http import httpx
from gantry_operator.cluster.member_watch import MemberWatch
from gantry_operator.cluster.platform import Event, FailoverPlatform
from gantry_operator.cluster.raft_controller import RaftController
from gantry_operator.cluster.restart import run_with_restarts
from gantry_operator.cluster.stall_compensated_clock import StallCompensatedClock
from gantry_operator.failover.model import FailoverSettings
from gantry_operator.plan.plan import FILLED
from gantry_operator.registry.base import RoleRegistry


def failover_settings(spec: BrokerClusterSpec) -> FailoverSettings:
    """Return the fields of the spec that failover decisions depend on."""
    source = spec.bootstrap
    fills = source is not None and (source.fromArchive is not None or source.fromRocketMQ is not None)
    return FailoverSettings(
        automatic=spec.failover.automatic,
        detection_ms=int(parse_duration(spec.failover.detectionTimeout) * 1000),
        unclean=spec.failover.unclean,
        async_flush=spec.flush == "Async",
        min_in_sync=spec.minInSyncReplicas,
        filled=FILLED if fills else None,
    )


class GroupControllers:
    """Runs from the first `update` to `close`."""

    def __init__(
        self,
        platform: FailoverPlatform,
        registry: RoleRegistry,
        client: httpx.AsyncClient,
        clock: StallCompensatedClock,
        on_event: Callable[[Event], None],
    ) -> None:
        self.controllers: dict[str, GroupController] = {}
        self._platform = platform
        self._registry = registry
        self.http = client
        self._clock = clock
        self._on_event = on_event
        self.standby: Callable[[], bool] = lambda: False
        """Whether the control plane knows that the cluster is a standby."""
        self._settings = FailoverSettings()
        self._preference: LeaderPreference | None = None
        self._balancer = LeaderBalancer(
            self.controllers, lambda: self._preference, platform.process_state, self._not_moved
        )
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def configure(self, spec: BrokerClusterSpec) -> None:
        """Use the settings of this spec from the next pass on. Starts nothing."""
        self._settings = failover_settings(spec)
        self._preference = LeaderPreference.of(spec)

    def update(self, cluster: BrokerCluster, asleep: Callable[[str], bool] = lambda group: False) -> None:
        """Run a controller for each group of this spec, with its settings. `asleep`: groups without processes."""
        spec = cluster.spec
        self.configure(spec)
        if not self._tasks:
            self._tasks[""] = asyncio.create_task(self._balancer.run())
        for g in spec.brokerGroups:
            if g.name not in self._tasks and not asleep(g.name):
                make = partial(self.make, g.name, spec.mode)
                self._tasks[g.name] = asyncio.create_task(run_with_restarts(make(), make, self._on_event))
        self.wake()

    async def end(self, group: str) -> None:
        """End the controller of a group that is removed. Its members get no more assignments."""
        task = self._tasks.pop(group, None)
        self.controllers.pop(group, None)
        await end_tasks(task)

    def make(self, group: str, mode: str) -> GroupController:
        """Build a new controller for this group, in place of a former one. The caller runs it."""
        controller = self.controllers[group] = self._controller(group, mode)
        return controller

    def _controller(self, group: str, mode: str) -> GroupController:
        if mode == "Raft":
            return RaftController(group, self._platform, self.http, self._now_set, self._clock)
        return MasterSlaveController(group, self._registry, self._platform, self.http, self._now_set, self._clock)

    def _now_set(self) -> FailoverSettings:
        return replace(self._settings, standby=self.standby())

    def wake(self) -> None:
        for controller in self.controllers.values():
            controller.wake()

    def leader(self, group: str) -> int | None:
        """Return the member that the leadership record names; None: there is none, or the group has no controller."""
        controller = self.controllers.get(group)
        leadership = None if controller is None else controller.leadership
        return None if leadership is None or leadership.master is None else leadership.master.member

    def watches(self) -> list[MemberWatch]:
        """Of all members of all groups."""
        return [watch for controller in self.controllers.values() for watch in controller.watches.values()]

    def problems(self) -> Iterable[str]:
        return (controller.problem for controller in self.controllers.values() if controller.problem)

    async def close(self) -> None:
        """End all controllers. The members keep running."""
        await end_tasks(*self._tasks.values())

    def _not_moved(self, group: str, why: str) -> None:
        self._on_event(Event("Warning", "SwitchoverFailed", why, group))
