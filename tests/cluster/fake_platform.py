"""A platform in memory for `ClusterControl`: members are entries of a set, and nothing is on a network."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import httpx
from gantry_broker.contracts.leadership import LeadershipRecord, MemberId
from gantry_broker.contracts.table_runs import RunReport, TableOrder, TableReport
from gantry_operator.access.decide import Observed
from gantry_operator.access.state import AccessState
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.table import Tables
from gantry_operator.cluster.observed import ObservedState
from gantry_operator.cluster.platform import (
    Change,
    Deployment,
    Event,
    LedGroup,
    MemberEndpoint,
    MemberProcess,
    Processes,
    ProcessState,
    Resources,
    TableRun,
)
from gantry_operator.cluster.second_site import SiteState
from gantry_operator.cluster.store_unavailable import StoreUnavailable
from gantry_operator.cluster.upgrade_check import Running, Upgrade
from gantry_operator.plan.plan import Plan, member_name
from gantry_operator.registry.base import Entry
from gantry_operator.tables.schedule import started_ms


class FakeRegistry:
    """Leadership records in memory."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}

    async def read(self, group: str) -> Entry | None:
        return self.entries.get(group)

    async def swap(self, group: str, expected: Entry | None, new: LeadershipRecord) -> bool:
        if self.entries.get(group) != expected:
            return False
        self.entries[group] = Entry(new)
        return True


class FakeUsers:
    """No users, and nothing is kept."""

    def observe(self) -> Observed | None:
        return None

    async def load(self) -> AccessState:
        raise AssertionError("there are no users")

    async def save(self, state: AccessState) -> None: ...

    async def write_secret(self, name: str, content: Mapping[str, str]) -> None: ...

    async def write_table(self, table: bytes) -> None: ...

    async def report(self, results: Any, in_force: Any) -> None: ...

    def note(self, kind: str, reason: str, message: str, user: str) -> None: ...


class FakeSite:
    """The state of a pair of sites in memory."""

    state: SiteState | None = None

    def load(self) -> SiteState | None:
        return self.state

    async def save(self, state: SiteState) -> None:
        self.state = state


class FakeTopics:
    """No resources."""

    def observe(self) -> Resources | None:
        return Resources((), ())

    async def report(self, resources: Any, topics: Any, groups: Any) -> bool:
        return True

    async def keep_reset(self, group: str, reset: Any) -> None: ...

    async def reset_answered(self, group: str, text: str) -> None: ...

    def note(self, kind: str, note: Any) -> None: ...


class FakeTableRuns:
    """Runs of tables in memory. A run goes on until `end` ends it."""

    def __init__(self) -> None:
        self.run: TableRun | None = None
        self.orders: list[list[TableOrder]] = []
        self.lasts: list[float] = []
        self.stopped = 0
        self.refuse = ""

    async def newest(self) -> TableRun | None:
        if self.refuse == "unreachable":
            raise StoreUnavailable("the API server does not answer")
        return self.run

    async def start(self, name: str, tables: Sequence[TableOrder], spec: Tables, lasts_s: float) -> None:
        if self.refuse:
            raise StoreUnavailable(self.refuse)
        assert self.run is None or not self.run.running, "never two at once"
        self.orders.append(list(tables))
        self.lasts.append(lasts_s)
        self.run = TableRun(name, True, started_ms(name), frozenset(t.topic for t in tables))

    async def stop(self) -> None:
        self.stopped += 1

    def say(self, *reports: TableReport, problem: str = "", running: bool = False) -> None:
        """The run reports, and ends unless it is `running`."""
        assert self.run is not None
        said = RunReport(run=self.run.name, tables=list(reports)) if reports else None
        self.run = replace(self.run, running=running, report=said, problem=problem)


class FakePlatform:
    """`processes` that run by name. `steps` has what the control asked for, in order."""

    can_pause = True

    def __init__(self, *, keeps_lowest: bool = True, former: Sequence[str] = ()) -> None:
        """`former`: groups with members that are not in any spec."""
        self.keeps_lowest = keeps_lowest
        self.step_s = 0.001
        self.cluster: BrokerCluster | None = None
        self.plan: Plan | None = None
        self.alive: set[str] = set()
        self.servers = True
        self.steps: list[str] = []
        self.events: list[Event] = []
        self.changes: list[Change] = []
        self.held = self.cutting = ""
        self.known = True
        self.going: tuple[str, ...] = ()
        self.former = former
        self.before_stop: Callable[[str], Awaitable[None]] | None = None
        self.seen = ObservedState(members=(), name_servers=(), available={})
        self.registry = FakeRegistry()
        self.users = FakeUsers()
        self.topics = FakeTopics()
        self.site = FakeSite()
        self.tables = FakeTableRuns()
        self.http = httpx.AsyncClient(transport=httpx.MockTransport(lambda request: httpx.Response(503)))
        self.failover = self.replacement = self.removal = self.hibernation = self
        self.controllers: Mapping[str, LedGroup] = {}

    def use(self, controllers: Mapping[str, LedGroup]) -> None:
        self.controllers = controllers

    def with_leaving(self, spec: BrokerCluster, *, whole: bool) -> tuple[BrokerCluster, list[str]]:
        named = [g.name for g in spec.spec.brokerGroups]
        extra = [g for g in self.former if g not in named and g not in self.going] if whole else []
        made = BrokerCluster.make("t", "x", brokerGroups=[{"name": g, "members": 1} for g in extra or "z"])
        groups = [*spec.spec.brokerGroups, *(made.spec.brokerGroups if extra else ())]
        return spec.model_copy(update={"spec": spec.spec.model_copy(update={"brokerGroups": groups})}), []

    def take(self, spec: BrokerCluster, cluster: BrokerCluster, plan: Plan) -> None:
        self.cluster, self.plan = cluster, plan

    def run_all(self) -> None:
        """Start the processes of the plan."""
        assert self.plan is not None
        self.alive |= {m.name for m in self.plan.members}

    def lead(self, group: str, member: int, epoch: int = 1) -> None:
        """Write a leadership record that names this member."""
        leads = MemberId(member, "x")
        self.registry.entries[group] = Entry(LeadershipRecord(epoch, epoch, leads, frozenset({leads})))

    def removing(self) -> tuple[str, ...]:
        return self.going

    def is_known(self) -> bool:
        return self.known

    def hold(self, *, idle: bool) -> str:
        return self.held

    def cutover(self) -> str:
        return self.cutting

    def upgrade(self, group: str, members: Sequence[Running]) -> Upgrade | None:
        return None

    def reached(self, group: str) -> str | None:
        return f"127.0.0.1:{len(group)}"

    def registered(self, group: str) -> str:
        return f"{group}:1"

    def name_servers(self) -> Sequence[str]:
        return ["n:1"]

    def all_members(self) -> Sequence[tuple[str, int, str]]:
        return [] if self.plan is None else [(m.group, m.number, m.name) for m in self.plan.members]

    def process(self, name: str, problem: str) -> MemberProcess:
        return MemberProcess(name in self.alive, stopping=False, node="here", problem=problem)

    def observe(self, changing: Sequence[str], releases: Sequence[str]) -> ObservedState:
        return self.seen

    def event(self, event: Event) -> None:
        self.events.append(event)

    def news(self) -> None: ...

    def part_changed(self) -> None: ...

    def groups_changed(self) -> None: ...

    # ---- failover

    def members(self, group: str) -> Sequence[MemberEndpoint]:
        plan = [] if self.plan is None else [m for m in self.plan.members if m.group == group]
        return [MemberEndpoint(m.name, m.number, f"http://{m.name}", f"{m.name}:1") for m in plan]

    def process_state(self, name: str) -> ProcessState:
        return ProcessState(gone=name not in self.alive)

    async def announce(self, group: str, master: MemberEndpoint, epoch: int) -> None: ...

    def changed(self, change: Change) -> None:
        self.changes.append(change)

    # ---- rolling changes

    def deployments(self, group: str) -> Sequence[Deployment] | None:
        self.steps.append(f"compare {group}")
        return []

    def may_stop(self, deployment: Deployment, group: str, *, address_moved: bool) -> bool:
        return True

    async def replace_member(self, group: str, name: str) -> None: ...

    async def remove_member(self, group: str, name: str) -> None: ...

    async def finish_change(self) -> bool:
        return False

    # ---- groups that go

    def mark(self, group: str) -> str:
        return ""

    async def begin_removal(self, group: str, mark: str) -> bool:
        return True

    async def stay(self, group: str) -> bool:
        return True

    async def continue_removal(self, group: str) -> bool:
        self.steps.append(f"remove {group}, led: {group in self.controllers}")
        return True

    # ---- hibernation

    def processes(self) -> Processes:
        assert self.plan is not None
        return Processes({g.name: len(self.running(g.name)) for g in self.plan.groups}, self.servers)

    def running(self, group: str) -> frozenset[int]:
        return frozenset(n for n in range(9) if member_name("t", group, n) in self.alive)

    async def stop_group(self, group: str, last: int | None) -> None:
        self.steps.append(f"stop {group} but {last}, led: {group in self.controllers}")
        if self.before_stop is not None:
            await self.before_stop(group)
        self.alive -= {member_name("t", group, n) for n in self.running(group) if n != last}

    async def stop_others(self) -> None:
        self.steps.append("stop the others")
        self.servers = False

    async def resume(self) -> None:
        self.steps.append("resume")
        self.run_all()

    def stopped(self) -> None:
        self.steps.append("stopped")
