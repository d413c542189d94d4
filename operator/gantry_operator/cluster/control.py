"""The control of one cluster, on any platform: who leads, what changes and in which order, and what is seen of it.

`ClusterControl` owns the parts and connects them; each part decides by itself. The platform says where members run, and
keeps what must be durable (`platform.py`). A platform calls `start` one time, `take` with each spec, and `lead` after
it as soon as the spec may be carried out; a further `lead` changes nothing. All else goes on by itself until `close`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from gantry_broker.remoting.client import RemotingClient
from gantry_broker.remoting.tls import TlsOptions
from gantry_broker.tasks import end_tasks

from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.status import DrainRow
from gantry_operator.api.table import Tables
from gantry_operator.cluster import maintenance
from gantry_operator.cluster.access_control import AccessControl
from gantry_operator.cluster.availability import Availability
from gantry_operator.cluster.copies import Copies
from gantry_operator.cluster.group_changes import GroupChanges, WantedGroups
from gantry_operator.cluster.group_controller import GroupController, SwitchoverFailed
from gantry_operator.cluster.group_controllers import GroupControllers
from gantry_operator.cluster.hibernation import Hibernation
from gantry_operator.cluster.observation import WarmUp, observed_members
from gantry_operator.cluster.observed import ObservedState
from gantry_operator.cluster.platform import Event, Platform
from gantry_operator.cluster.restart import kept_alive
from gantry_operator.cluster.rolling_change import RollingChange
from gantry_operator.cluster.site_control import SiteControl
from gantry_operator.cluster.stall_compensated_clock import StallCompensatedClock
from gantry_operator.cluster.table_control import TableCluster, TableControl
from gantry_operator.cluster.topic_control import Cluster, TopicControl
from gantry_operator.plan.plan import Plan, plan

Tls = TlsOptions | ssl.SSLContext | None


class ClusterControl:
    """Controls one cluster from `start` to `close`."""

    def __init__(self, platform: Platform, clock: StallCompensatedClock, *, inherited: bool = False) -> None:
        """`inherited`: another process controlled the cluster before, and has written a status."""
        self.platform = platform
        self.cluster: BrokerCluster | None = None
        """The spec that was taken last, with the groups that leave. None: none was taken yet."""
        self.plan: Plan | None = None
        self.staying: tuple[str, ...] = ()
        """The groups of the spec that run."""
        self.refused = ""
        """Why the newest spec is refused; empty: it is not."""
        self.problems: Sequence[str] = ()
        """What prevents the platform from carrying out the spec."""
        self.progress: Sequence[str] = ()
        """What the platform does, or waits for, to carry out the spec."""
        self.left_out: Mapping[str, str] = {}
        """Under a refused spec: existing groups without a failover, with the reason."""
        self.groups = GroupControllers(platform.failover, platform.registry, platform.http, clock, platform.event)
        self.controllers = self.groups.controllers
        platform.use(self.controllers)
        self.access = AccessControl(platform.users, self.groups.watches, platform.http)
        self.remoting = RemotingClient(sign=self.access.sign)
        """Calls brokers as a client does."""
        self.availability = Availability(self.remoting, platform.news)
        self.tables = TableControl(
            platform.tables, platform.topics, self._table_cluster, lambda: self.topics.wake(), platform.news
        )
        self.topics = TopicControl(
            platform.topics, self._topic_cluster, self.controllers, platform.http, lambda: self.remoting,
            platform.reached, tables=self.tables.state_of, keeps=self.tables.keeps,
        )  # fmt: skip
        self.hibernation = Hibernation(platform.hibernation, self.groups, self._fell_asleep)
        self.rolling = RollingChange(
            platform.replacement, self.controllers, platform.event, platform.news, self.hold, platform.upgrade,
            self.may_change, Copies(platform.http, lambda: self.cluster, platform.cutover),
        )  # fmt: skip
        self.changes = GroupChanges(
            platform.removal, self.controllers, platform.http, self.wanted_groups, platform.event, self.groups.end,
            platform.groups_changed,
        )  # fmt: skip
        self.sites = SiteControl(
            platform.site, self.controllers, platform.http,
            groups=lambda: [] if self.plan is None else [g.name for g in self.plan.groups],
            follows=self._follows, archives=self._archives, elects=self._elects, on_event=platform.event,
            changed=self._site_role_changed,
        )  # fmt: skip
        self.groups.standby = lambda: self.sites.known_standby
        self.warm_up = WarmUp(inherited=inherited)
        self._calls_with: object = None
        self._tasks: set[asyncio.Task[None]] = set()

    # ---- life cycle

    def start(self) -> None:
        """Begin to work. The groups are led from the first `lead` on."""
        parts = {
            "roll": self.rolling.run,
            "access": self.access.run,
            "site": self.sites.run,
            "topics": self.topics.run,
            "tables": self.tables.run,
            "groups": self.changes.run,
            "hibernation": self.hibernation.run,
        }
        for name, run in parts.items():
            self._tasks.add(asyncio.create_task(kept_alive(name, run, self.platform.event)))

    async def close(self) -> None:
        """End all work. The members keep running."""
        await end_tasks(*self._tasks)
        await self.groups.close()
        await self.availability.close()
        await self.remoting.close()

    # ---- the spec

    def take(self, spec: BrokerCluster, *, whole: bool = True) -> list[str]:
        """Use this spec from now on. Starts nothing. Returns why groups of the spec do not start.

        `whole`: the spec names all groups that stay. Otherwise no group leaves.
        """
        cluster, problems = self.platform.with_leaving(spec, whole=whole)
        named = {g.name for g in spec.spec.brokerGroups}
        before = () if self.plan is None else self.plan.groups
        self.staying = tuple(g.name for g in cluster.spec.brokerGroups if g.name in named)
        # All parts below ask for these two, so nothing may wait between here and the end.
        self.cluster, self.plan = cluster, plan(cluster)
        for gone in {g.name for g in before} - {g.name for g in self.plan.groups}:
            self.availability.forget(gone)
        self.platform.take(spec, cluster, self.plan)
        self.groups.configure(cluster.spec)
        self.access.wake()
        self.topics.wake()
        self.tables.wake()
        self.changes.wake()
        return problems

    def lead(self) -> None:
        """Run the failover of all groups of the spec that was taken, but of those that hibernate."""
        assert self.cluster is not None
        # First: the processes of a group that sleeps have ended, and a controller would call that a failure.
        self.hibernation.take(self.cluster)
        self.groups.update(self.cluster, self.hibernation.sleeps)

    def lead_recovered(self) -> None:
        """Run the failover of all groups that were taken, whatever a refused spec says about hibernation."""
        assert self.cluster is not None
        self.groups.update(self.cluster)

    def call_with(self, credentials: object, tls: Callable[[], Tls]) -> None:
        """Call brokers with this TLS. `credentials`: equal values stand for the same one; None: no TLS."""
        if credentials == self._calls_with:
            return
        former, self._calls_with = self.remoting, credentials
        self.remoting = RemotingClient(sign=self.access.sign, tls=tls())
        self.availability.use(self.remoting)
        closing = asyncio.ensure_future(former.close())
        self._tasks.add(closing)
        closing.add_done_callback(self._tasks.discard)

    # ---- what may change

    def may_change(self) -> bool:
        """Return whether members may be replaced now, and groups may come or go."""
        return not self.held() and not self.refused

    def hold(self) -> str:
        """Why a change that is not urgent has to wait; empty: it need not."""
        if self.cluster is None:
            return ""
        held = maintenance.wait_for(self.cluster.spec.maintenanceWindow, datetime.now(UTC))
        return held or self.platform.hold(idle=not self.may_change())

    @property
    def leaving(self) -> tuple[str, ...]:
        """The groups that are not in the spec any more, and whose removal has not begun."""
        running = [] if self.cluster is None else [g.name for g in self.cluster.spec.brokerGroups]
        removing = self.platform.removing()
        return tuple(g for g in running if g not in self.staying and g not in removing)

    def wanted_groups(self) -> WantedGroups | None:
        """For `GroupChanges`. None: no group may come or go now."""
        if self.cluster is None or not self.may_change() or not self.platform.is_known():
            return None
        spec = self.cluster.spec
        return WantedGroups(
            staying=self.staying,
            leaving=self.leaving,
            removing=self.platform.removing(),
            extend=spec.topicDefaults.extendToNewGroups,
            policy=spec.drain,
            managed=self.topics.managed_topics(),
        )

    def held(self) -> str:
        """Return why nothing but leaders may change, whatever the rest of the spec says; empty: it may."""
        if self.cluster is None:
            return "the spec is not known yet"
        if self.cluster.spec.hibernate:
            return "the cluster hibernates"
        return "the cluster is paused (gantry.dev/paused)" if self.cluster.paused and self.platform.can_pause else ""

    def _topic_cluster(self) -> Cluster | None:
        """For the decisions about topics and groups; None: no spec was taken yet."""
        if self.cluster is None or self.plan is None:
            return None
        groups = [g.name for g in self.plan.groups]
        return Cluster(self.cluster.name, groups, frozenset(groups) - frozenset(self.staying), self.held())

    def _table_cluster(self) -> TableCluster | None:
        """For the decisions about tables; None: no spec was taken yet."""
        if self.cluster is None:
            return None
        spec = self.cluster.spec
        held = self.held()
        if not held and self.refused:
            held = "the spec of the cluster is refused"
        elif spec.tables is not None and spec.tables.suspend:
            held = "spec.tables.suspend of the cluster is true"
        return TableCluster(self.cluster.name, spec.tables or Tables(), held, stop=bool(spec.hibernate))

    def _fell_asleep(self, group: str) -> None:
        self.availability.forget(group)
        text = f"group {group} stops; its data and leadership record stay"
        self.platform.event(Event("Normal", "Hibernating", text, ""))
        self.platform.groups_changed()

    # ---- switchover, and the role in a pair of sites

    def _follows(self) -> bool:
        bootstrap = None if self.cluster is None else self.cluster.spec.bootstrap
        return bootstrap is not None and bootstrap.follow is not None

    def _archives(self) -> bool:
        return self.cluster is not None and self.cluster.spec.archive is not None

    def _elects(self) -> bool:
        return self.cluster is not None and self.cluster.spec.mode == "Raft"

    def _site_role_changed(self) -> None:
        self.groups.wake()
        self.platform.part_changed()

    def switchover_of(self, group: str, member: str | None) -> tuple[GroupController, int | None]:
        """Find who carries out a switchover, and the number of the member that is to lead; None: the best one.

        Raises SwitchoverFailed with the reason why it cannot begin.
        """
        if self.plan is None:
            raise SwitchoverFailed(f"no group is led, since the spec is refused: {self.why_not_led()}")
        try:
            number = self.plan.switchover_target(group, member)
        except ValueError as error:
            raise SwitchoverFailed(str(error)) from None
        return self.controller_of(group), number

    async def switchover(self, group: str, member: str | None, reason: str) -> str:
        """Hand over, to the best member if none is named. Returns a sentence. Raises SwitchoverFailed."""
        controller, number = self.switchover_of(group, member)
        return await controller.switchover(number, reason)

    def controller_of(self, group: str) -> GroupController:
        """Find the controller of a group. Raises SwitchoverFailed with the reason why the group has none."""
        controller = self.controllers.get(group)
        if controller is None:
            why = self.why_not_led() or "try again"
            raise SwitchoverFailed(f"the failover of group {group} has not started: {why}")
        return controller

    def why_not_led(self) -> str:
        """Why groups have no controller; empty: no reason is known."""
        return "; ".join(filter(None, [self.refused, *self.problems]))

    # ---- observation

    def check_availability(self) -> None:
        """Check that clients can use each group, after a change of leader, epoch, member or NameServer, and at
        intervals. Call it often.
        """
        if self.plan is None:
            return
        servers = self.platform.name_servers()
        for group, controller in self.controllers.items():
            if group not in self.staying:
                # It takes no messages any more: the check would call that a failure.
                self.availability.forget(group)
                continue
            reached = self.platform.reached(group)
            if reached is None:
                continue
            epoch = 0 if controller.leadership is None else controller.leadership.epoch
            heard = (w for w in controller.watches.values() if w.reach == "ok" and w.status is not None)
            answering = frozenset((w.name, bool((w.status or {}).get("writable"))) for w in heard)
            name = group if self.cluster is None else self.cluster.broker_name(group)
            self.availability.watch(
                group, epoch, controller.blocking_wait, answering, servers, self.platform.registered(group), reached,
                name,
            )  # fmt: skip

    def observe(self) -> ObservedState:
        """Return what is seen now, the input of the status."""
        seen = self.platform.observe([*self.rolling.progress, *self.rolling.refused], self.releases())
        return replace(
            seen,
            members=observed_members(self.platform.all_members(), self.controllers, self.platform.process),
            available=self.availability.answers() | dict(self.left_out),
            blind=self._blind(),
            problems=list(dict.fromkeys([*self.problems, *seen.problems, *self._problems()])),
            progress=[*self.progress, *seen.progress, *self._progress()],
            hibernated=self.hibernation.done and seen.hibernated,
            drains=self.drains(),
            site=self.sites.state,
            site_waits=self.sites.waits,
            tables=self.tables.rows(),
            refused=self.refused,
            authentication="Enabled" if self.cluster is None else self.cluster.spec.security.mode(),
        )

    def warms_up(self) -> bool:
        """Nothing is to be said yet: another process's status is there, and this one has no data."""
        members = observed_members(self.platform.all_members(), self.controllers, self.platform.process)
        return self.warm_up.is_silent(members, self._blind())

    def drains(self) -> dict[str, DrainRow]:
        """Return the groups that leave, for the status."""
        running = [] if self.cluster is None else [g.name for g in self.cluster.spec.brokerGroups]
        leaving = {g: DrainRow(phase="Waiting") for g in running if g not in self.staying}
        return leaving | self.changes.drains

    def releases(self) -> list[str]:
        """Return the versions of the members that answer."""
        watches = (w for c in self.controllers.values() for w in c.watches.values())
        versions = {str(w.status.get("release", "")) for w in watches if w.reach == "ok" and w.status is not None}
        return sorted(versions - {""})

    def _problems(self) -> list[str]:
        users = [f"users: {self.access.problem}"] if self.access.problem else []
        refused = [f"group {g} keeps its version: {why}" for g, why in sorted(self.rolling.refused.items())]
        return [*self.groups.problems(), *users, *refused]

    def _progress(self) -> list[str]:
        if self.cluster is not None and self.cluster.spec.hibernate:
            return [self.hibernation.progress] if self.hibernation.progress else []
        return [*self.rolling.progress.values(), *self.changes.progress.values()]

    def _blind(self) -> frozenset[str]:
        groups = {group for group, _, _ in self.platform.all_members()} - set(self.drains())
        return self.warm_up.blind(groups, self.availability.checked() | set(self.left_out), self.controllers)
