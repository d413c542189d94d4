"""The platform of a cluster on one machine: its members are processes, and the group's address is a port.

It implements the ports of `cluster.platform`. The supervisor starts the processes; here is what the control asks.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from gantry_broker.version import VERSION

from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.cluster.group_controllers import failover_settings
from gantry_operator.cluster.member_http import make_client
from gantry_operator.cluster.member_watch import MemberWatch
from gantry_operator.cluster.observed import ObservedState
from gantry_operator.cluster.platform import (
    Change,
    Event,
    LedGroup,
    MemberEndpoint,
    MemberProcess,
    Processes,
    ProcessState,
)
from gantry_operator.cluster.status import last_failover
from gantry_operator.cluster.upgrade_check import Running, Upgrade
from gantry_operator.migration.cutover_steps import Record, under_way
from gantry_operator.plan.plan import MemberPlan, Plan, plan
from gantry_operator.platforms.local.certificates import scheme
from gantry_operator.platforms.local.children import Children
from gantry_operator.platforms.local.events import EventLog
from gantry_operator.platforms.local.folder import ClusterFolder
from gantry_operator.platforms.local.leaving_groups import (
    begin_removal,
    remove_remains,
    removed_processes,
    removing_groups,
    running_cluster,
)
from gantry_operator.platforms.local.leaving_members import leaving_members, with_leaving
from gantry_operator.platforms.local.ports import Ports, replication
from gantry_operator.platforms.local.process import listens
from gantry_operator.platforms.local.process_replacement import ProcessReplacement
from gantry_operator.platforms.local.site import LocalSiteStore
from gantry_operator.platforms.local.tables import LocalTableRuns
from gantry_operator.platforms.local.topic_store import LocalTopicStore
from gantry_operator.platforms.local.users import LocalAccessStore
from gantry_operator.registry.file import FileRegistry, write_whole

log = logging.getLogger(__name__)

PORT_POLL_S: Final = 0.02
MIGRATION: Final = "migration.json"
"""In the cluster's folder: the record of a cutover, which `gantry migrate` writes before each step."""


class LocalPlatform:
    """The platform of one cluster. It is also its own port for the failover, for removals and for hibernation."""

    can_pause = False
    keeps_lowest = False
    step_s = 0.05

    def __init__(
        self,
        folder: ClusterFolder,
        cluster: BrokerCluster,
        events: EventLog,
        trusted: Callable[[], bytes],
        retake: Callable[[], None],
        bring_up: Callable[[], Awaitable[None]],
        part_changed: Callable[[], None],
        news: Callable[[], None],
    ) -> None:
        """`trusted`: the authorities of the members' certificates. `retake`: take the manifest again, after a change of
        its groups. `bring_up`: start the processes of the spec. `part_changed`, `news`: see `Platform`.
        """
        self.folder = folder
        self.events = events
        self.ports = Ports.load(folder.ports)
        self.children = Children(folder, events.add, self.processes_changed)
        self.cluster = cluster
        """With the groups that leave."""
        self.plan: Plan = plan(cluster)
        self.leaving: dict[str, MemberPlan] = {}
        """Members that left the plan and still belong to the cluster."""
        self.wanted = cluster
        """The cluster as the manifest has it."""
        self.failover = self.removal = self.hibernation = self
        self.registry = FileRegistry(folder.registry)
        self.http = make_client(folder.token.read, trusted)
        self.users = LocalAccessStore(folder, cluster, events.add)
        self.site = LocalSiteStore(folder)
        self.topics = LocalTopicStore(folder, events.add)
        self.tables = LocalTableRuns(folder, lambda: self.wanted, self.name_servers)
        self.replacement = ProcessReplacement(lambda: self.children, lambda: self.plan, lambda: self.leaving, bring_up)
        self._controllers: Mapping[str, LedGroup] = {}
        self._retake = retake
        self._part_changed = part_changed
        self._news = news
        self._bring_up = bring_up

    def use(self, controllers: Mapping[str, LedGroup]) -> None:
        self._controllers = controllers

    def processes_changed(self) -> None:
        for controller in self._controllers.values():
            controller.wake()

    # ---- the spec

    def with_leaving(self, spec: BrokerCluster, *, whole: bool) -> tuple[BrokerCluster, list[str]]:
        return running_cluster(self.folder, spec), []

    def take(self, spec: BrokerCluster, cluster: BrokerCluster, plan: Plan) -> None:
        self.wanted = self.users.cluster = spec
        self.cluster, self.plan = cluster, plan
        self.leaving = leaving_members(self.folder, plan)

    @property
    def whole_plan(self) -> Plan:
        """The plan with the members that leave."""
        return with_leaving(self.plan, self.leaving.values())

    def removing(self) -> tuple[str, ...]:
        return removing_groups(self.folder)

    def is_known(self) -> bool:
        return True

    def hold(self, *, idle: bool) -> str:
        return ""

    def cutover(self) -> str:
        try:
            return under_way(Record.from_json(json.loads((self.folder.root / MIGRATION).read_text())))
        except FileNotFoundError:
            return ""
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return "unknown"  # Commands of the migration name the file.

    @staticmethod
    def upgrade(group: str, members: Sequence[Running]) -> Upgrade | None:
        """None: the outdated members of the group have the version of this installation."""
        other = any(m.release != VERSION for m in members if m.outdated and m.release)
        return Upgrade(VERSION, VERSION) if other else None

    # ---- addresses and processes

    def reached(self, group: str) -> str | None:
        """Where clients of this machine reach the master of a group; None: it has no port yet."""
        use = f"group/{group}"
        return self.ports.address(use) if use in self.ports.taken else None

    def registered(self, group: str) -> str:
        return self.ports.address(f"group/{group}")

    def name_servers(self) -> Sequence[str]:
        return [self.ports.address(s.name) for s in self.plan.name_servers]

    def members_of(self, group: str) -> Sequence[MemberPlan]:
        """Planned and leaving ones."""
        planned = group in {g.name for g in self.plan.groups}
        return self.whole_plan.group(group).members if planned else ()

    def process(self, name: str, problem: str) -> MemberProcess:
        runs = self.children.running(name)
        return MemberProcess(ready=runs, stopping=False, node=None, problem=problem if runs else "it does not run")

    def all_members(self) -> Sequence[tuple[str, int, str]]:
        return [(m.group, m.number, m.name) for m in self.whole_plan.members]

    def observe(self, changing: Sequence[str], releases: Sequence[str]) -> ObservedState:
        """Return what the control needs; commands read the rest of the status from members and files."""
        asleep = self.cluster.spec.hibernate and not any(map(self.children.running, self.children.table))
        return ObservedState(members=(), name_servers=(), available={}, hibernated=asleep)

    def event(self, event: Event) -> None:
        about = f"group {event.group}" if event.group else self.cluster.name
        self.events.add(event.kind, event.reason, event.message, about)

    def news(self) -> None:
        self._news()

    def part_changed(self) -> None:
        self._part_changed()

    def groups_changed(self) -> None:
        """Do nothing: the steps of a removal take the manifest again by themselves."""

    # ---- the failover

    def members(self, group: str) -> Sequence[MemberEndpoint]:
        return [
            MemberEndpoint(
                m.name,
                m.number,
                f"{scheme(self.cluster)}://{self.ports.address(f'{m.name}/http')}",
                self.ports.address(replication(m.name)),
            )
            for m in self.members_of(group)
        ]

    def process_state(self, name: str) -> ProcessState:
        return ProcessState(
            gone=not self.children.running(name), deleting=name in self.leaving or name in self.cluster.fenced
        )

    async def announce(self, group: str, master: MemberEndpoint, epoch: int) -> None:
        """Make the master serve the group's port. Kill a frozen former master that still holds it.

        Returns when no other member can hold it. A Raft group may elect before its former leader has been silent long
        enough to count as frozen. A leader that has just been demoted may report it a moment later.
        """
        killed: set[str] = set()
        while former := self._may_hold_the_port(group, master.member):
            for number, watch in former:
                detection_s = failover_settings(self.cluster.spec).detection_ms / 1000
                silent = self._controllers[group].silence_s(number) >= detection_s
                if silent and watch.name not in killed:
                    killed.add(watch.name)
                    reason = f"{watch.name} does not answer and holds the port"
                    self.event(Event("Warning", "FrozenMasterKilled", reason, group))
                    self.children.kill(watch.name)
            leadership = self._controllers[group].leadership
            if leadership is not None and leadership.epoch > epoch:
                return
            await asyncio.sleep(PORT_POLL_S)

    def _may_hold_the_port(self, group: str, master: int) -> list[tuple[int, MemberWatch]]:
        """Members that last reported to lead, without the present leader.

        For a member that was never heard, the system reports whether it listens on the port. A slow slave does not
        listen there.
        """

        def may(watch: MemberWatch) -> bool:
            pid = self.children.pid(watch.name)
            # A refused connection is no sign of it: the member is starting or ending, and holds no port.
            if pid is None or watch.reach == "refused":
                return False
            if watch.report is None:
                return listens(pid, self.ports[f"group/{group}"]) is not False
            return watch.report.role == "Master"

        return [(n, w) for n, w in self._controllers[group].watches.items() if n != master and may(w)]

    def changed(self, change: Change) -> None:
        try:
            write_whole(self.folder.last_failover, last_failover(change).model_dump_json(by_alias=True))
        except OSError as error:
            log.error("the last failover could not be written to disk: %s", error)
        self.events.add(
            "Normal",
            "SwitchoverCompleted" if change.planned else "FailoverCompleted",
            f"{change.new} leads after {change.duration_ms} ms (epoch {change.epoch})",
            f"group {change.group}",
        )

    # ---- groups that go

    def mark(self, group: str) -> str:
        return ""  # One process takes the spec and begins removals, and nothing comes between the two.

    async def begin_removal(self, group: str, mark: str) -> bool:
        begin_removal(self.folder, group)
        self._retake()
        return True

    async def stay(self, group: str) -> bool:
        return True

    async def continue_removal(self, group: str) -> bool:
        name = self.cluster.name
        processes = removed_processes(self.folder, name, group)
        for process in processes:
            self.children.adopt(process)
        await asyncio.gather(*(self.children.remove(process.name) for process in processes))
        keep = self.wanted.spec.reclaim == "Retain"
        await asyncio.to_thread(remove_remains, self.folder, name, group, keep_data=keep)
        self._retake()
        if any(g.name == group for g in self.wanted.spec.brokerGroups):
            await self._bring_up()
        return True

    # ---- hibernation

    def processes(self) -> Processes:
        groups = {g.name: len(self.running(g.name)) for g in self.plan.groups}
        brokers = {m.name for m in self.plan.members}
        return Processes(groups, any(map(self.children.running, self.children.table.keys() - brokers)))

    def running(self, group: str) -> frozenset[int]:
        return frozenset(m.number for m in self.plan.group(group).members if self.children.running(m.name))

    async def stop_group(self, group: str, last: int | None) -> None:
        stop = [m.name for m in self.plan.group(group).members if m.number != last]
        await asyncio.gather(*map(self.children.rest, stop))

    async def stop_others(self) -> None:
        """Members that leave, proxies, NameServers."""
        for name in sorted(self.children.table, key=lambda name: (name not in self.leaving, name)):
            if self.cluster.spec.hibernate:
                await self.children.rest(name)

    async def resume(self) -> None:
        await self._bring_up()

    def stopped(self) -> None:
        """No one waits for it."""
