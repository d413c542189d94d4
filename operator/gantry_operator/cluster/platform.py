"""The ports of `ClusterControl`: what it needs of the place where members run, pods on Kubernetes or local processes.

`cluster` imports no platform: each platform implements these interfaces. The leadership records have one more,
`registry.RoleRegistry`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from gantry_broker.contracts.leadership import LeadershipRecord
from gantry_broker.contracts.table_runs import RunReport, TableOrder

from gantry_operator.access.decide import Observed as ObservedUsers
from gantry_operator.access.decide import UserResult
from gantry_operator.access.state import AccessState
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.table import Tables
from gantry_operator.cluster.member_http import httpx
from gantry_operator.cluster.member_watch import MemberWatch
from gantry_operator.cluster.observed import ObservedState
from gantry_operator.cluster.second_site import SiteState
from gantry_operator.cluster.upgrade_check import Running, Upgrade
from gantry_operator.plan.plan import Plan
from gantry_operator.registry.base import RoleRegistry
from gantry_operator.topics.model import Note, Result, WantedGroup, WantedTopic


@dataclass(frozen=True, slots=True)
class MemberEndpoint:
    """How to reach one member. `http_url` has no slash at its end; `replication_address` is host:port."""

    name: str
    member: int
    http_url: str
    replication_address: str


@dataclass(frozen=True, slots=True)
class ProcessState:
    """What the platform knows of a member's process. The fields mean the same as those of `MemberView`."""

    gone: bool = False
    deleting: bool = False
    never_ran: bool = False
    node: str = ""
    """The machine of the process; empty: not known."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """The process of one member, compared with the plan."""

    name: str
    number: int
    outdated: bool
    """It runs with another config or image than planned, or somebody asked for a restart."""
    leaving: bool
    """The plan does not contain this member."""
    stopping: bool = False
    ready: bool | None = None
    """The platform's own readiness probe; None: the platform has none."""
    broken: bool = False
    """It does not run, and the platform does not expect it to recover."""
    requested: bool = False
    """Somebody asked for its restart, so it waits for no maintenance window."""


@dataclass(frozen=True, slots=True)
class Event:
    """An event for users. `reason` is one CamelCase word for programs, `message` is for people."""

    kind: Literal["Normal", "Warning"]
    reason: str
    message: str
    group: str


ChangeKind = Literal["failover", "restart", "handover", "unproven", "unclean", "election"]
"""Why a leader changed: the kinds of `Promote`, and `election` in a Raft group."""


@dataclass(frozen=True, slots=True)
class Change:
    """A completed change of the leader, as status.lastFailover shows it."""

    group: str
    old: str | None
    new: str
    reason: str
    epoch: int
    at_unix_ms: int
    duration_ms: int
    """Milliseconds from the detection of the failure until the new leader has taken the role."""
    planned: bool
    kind: ChangeKind = "failover"


class LedGroup(Protocol):
    """What a platform may ask the controller of a group."""

    @property
    def leadership(self) -> LeadershipRecord | None: ...

    @property
    def watches(self) -> Mapping[int, MemberWatch]:
        """By member."""
        ...

    @property
    def announced(self) -> bool:
        """The group's address leads to its master."""
        ...

    def wake(self) -> None:
        """Something has changed that it decides by."""
        ...

    def silence_s(self, number: int) -> float:
        """Seconds since the member was heard."""
        ...


class FailoverPlatform(Protocol):
    """What a group controller needs. No method may block the event loop."""

    def members(self, group: str) -> Sequence[MemberEndpoint]:
        """Return the members of the plan, by number. Called before each decision."""
        ...

    def process_state(self, name: str) -> ProcessState: ...

    async def announce(self, group: str, master: MemberEndpoint, epoch: int) -> None:
        """Move the address that clients use to this member.

        Called at least once for each epoch, and again after it raised. Must be idempotent. Cancelled when another epoch
        is to be announced before this one is done.
        """
        ...

    def event(self, event: Event) -> None: ...

    def changed(self, change: Change) -> None:
        """Note that a new leader has taken its role."""
        ...


class ReplacementPlatform(Protocol):
    """What a rolling change needs. No method may block the event loop."""

    def deployments(self, group: str) -> Sequence[Deployment] | None:
        """Return the members that run or should run, by number. None: not known at this moment."""
        ...

    def may_stop(self, deployment: Deployment, group: str, *, address_moved: bool) -> bool:
        """Whether the member can be stopped now. Called again soon if not.

        `address_moved`: the group's address leads to another member, or this member never held it.
        """
        ...

    async def replace_member(self, group: str, name: str) -> None:
        """Stop the member and start it as planned."""
        ...

    async def remove_member(self, group: str, name: str) -> None:
        """Stop a leaving member. Its data stays."""
        ...

    async def finish_change(self) -> bool:
        """Change the remaining processes, while all groups are as planned. True: it is not finished yet."""
        ...


class RemovalPlatform(Protocol):
    """What the removal of an empty group needs of the platform."""

    def mark(self, group: str) -> str:
        """Return a text that `stay` changes: read before the proof that the group is empty."""
        ...

    async def begin_removal(self, group: str, mark: str) -> bool:
        """Note durably that the group goes. From then on its name in the spec means a new group. May raise.

        False: it was not noted, because the spec has the group, or `stay` came after `mark` was read.
        """
        ...

    async def stay(self, group: str) -> bool:
        """Note that a group that was written back is about to take messages: no removal may begin by an earlier proof.

        False: its removal has begun already. May raise.
        """
        ...

    async def continue_removal(self, group: str) -> bool:
        """Take the next step: stop its members, then its volumes, addresses and leadership record. True: nothing of it
        is left. Called again until then, once nothing leads the group any more. May raise.
        """
        ...


@dataclass(frozen=True, slots=True)
class Processes:
    """The processes of a cluster that run or are to run. `groups`: the number of brokers of each."""

    groups: Mapping[str, int]
    others: bool
    """NameServers, proxies and the like."""


class SiteStore(Protocol):
    """Where the control plane keeps the state."""

    def load(self) -> SiteState | None:
        """None: nothing was kept. Raises ValueError, OSError."""
        ...

    async def save(self, state: SiteState) -> None:
        """Keep the state. It is durable on return. Raises OSError or what the platform raises: it is tried again."""
        ...


class HibernationPlatform(Protocol):
    """What hibernation needs: it stops processes in the order of `hibernation.next_step`."""

    @property
    def keeps_lowest(self) -> bool:
        """Processes of a group stop from the highest number down, so member 0 stops last, and leads before."""
        ...

    @property
    def step_s(self) -> float:
        """Seconds between two steps."""
        ...

    def processes(self) -> Processes:
        """Return the processes at the begin of a hibernation, or of this program on its way."""
        ...

    def running(self, group: str) -> frozenset[int]:
        """Return the members of the group whose processes have not ended."""
        ...

    async def stop_group(self, group: str, last: int | None) -> None:
        """Begin to stop the processes of a group, all but member `last`, or all."""
        ...

    async def stop_others(self) -> None:
        """Begin to stop everything that is no broker."""
        ...

    async def resume(self) -> None:
        """Start what the spec says: it was changed while a step was under way."""
        ...

    def stopped(self) -> None:
        """Nothing runs any more."""
        ...


@dataclass(frozen=True, slots=True)
class MemberProcess:
    """The process of a member, for the status."""

    ready: bool
    """By the platform's own probe."""
    stopping: bool
    node: str | None
    problem: str
    """Why the member does not answer; empty: no reason is known."""


class Platform(Protocol):
    """The place where the members of one cluster run. What differs between places is a property of it, no branch of the
    control. No method may block the event loop, unless it says so.
    """

    @property
    def failover(self) -> FailoverPlatform: ...

    @property
    def replacement(self) -> ReplacementPlatform: ...

    @property
    def removal(self) -> RemovalPlatform: ...

    @property
    def hibernation(self) -> HibernationPlatform: ...

    @property
    def registry(self) -> RoleRegistry:
        """The leadership records."""
        ...

    @property
    def users(self) -> AccessStore: ...

    @property
    def topics(self) -> TopicStore: ...

    @property
    def tables(self) -> TableRuns: ...

    @property
    def site(self) -> SiteStore: ...

    @property
    def http(self) -> httpx.AsyncClient:
        """For requests to members."""
        ...

    @property
    def can_pause(self) -> bool:
        """While the cluster is paused, nothing is changed but its leaders."""
        ...

    def use(self, controllers: Mapping[str, LedGroup]) -> None:
        """Keep the controllers of the groups, as they come and go. Called once, before anything else."""
        ...

    def with_leaving(self, spec: BrokerCluster, *, whole: bool) -> tuple[BrokerCluster, list[str]]:
        """Return the cluster with the groups that leave, and without those that cannot start yet. Also why they cannot.

        `whole`: the spec names all groups that stay. Otherwise no group leaves.
        """
        ...

    def take(self, spec: BrokerCluster, cluster: BrokerCluster, plan: Plan) -> None:
        """Carry out this spec from now on. Starts nothing. `cluster`: the spec with the groups that leave."""
        ...

    def removing(self) -> tuple[str, ...]:
        """Return the groups whose removal has begun."""
        ...

    def is_known(self) -> bool:
        """Return False if groups must not change now, since not all objects of the cluster are known yet."""
        ...

    def hold(self, *, idle: bool) -> str:
        """Why a change that is not urgent has to wait, besides the maintenance window; empty: it need not.

        `idle`: nothing may change now, so the cluster takes no turn.
        """
        ...

    def cutover(self) -> str:
        """Return the phase of a cutover from RocketMQ that is under way; empty: there is none."""
        ...

    def upgrade(self, group: str, members: Sequence[Running]) -> Upgrade | None:
        """Whether the outdated members of the group get another version; None: they keep theirs."""
        ...

    def reached(self, group: str) -> str | None:
        """Where this process reaches the master of a group as clients do; None: not known yet."""
        ...

    def registered(self, group: str) -> str:
        """Return the address of a group's master as NameServers know it."""
        ...

    def name_servers(self) -> Sequence[str]:
        """Return the running NameServers, as this process reaches them."""
        ...

    def all_members(self) -> Sequence[tuple[str, int, str]]:
        """Group, number and name of every member that is planned or runs."""
        ...

    def process(self, name: str, problem: str) -> MemberProcess:
        """`problem`: why the member does not answer, by its status stream."""
        ...

    def observe(self, changing: Sequence[str], releases: Sequence[str]) -> ObservedState:
        """Return what only the platform knows, for the status. The control adds the rest. `hibernated`: nothing runs.

        `changing`: groups whose rolling change the control shows. `releases`: the versions of the members that answer.
        """
        ...

    def event(self, event: Event) -> None: ...

    def news(self) -> None:
        """Note that the status may have changed."""
        ...

    def part_changed(self) -> None:
        """Note that the part of the cluster in a pair of sites is another one."""
        ...

    def groups_changed(self) -> None:
        """Note that a group comes or goes, or that the number of its processes has changed: compare the spec again."""
        ...


@dataclass(frozen=True, slots=True)
class TableRun:
    """The newest run of the tables."""

    name: str
    running: bool
    started_ms: int
    topics: frozenset[str]
    """What it was ordered to take."""
    report: RunReport | None = None
    """What it has said; None: nothing yet, or it ended without a word."""
    problem: str = ""
    """Why it failed, as the platform sees it."""


class TableRuns(Protocol):
    """Where runs of tables take place: one process or Job of a cluster at a time."""

    async def newest(self) -> TableRun | None:
        """Return the newest run, until another one starts; None: there was none. Raises StoreUnavailable."""
        ...

    async def start(self, name: str, tables: Sequence[TableOrder], spec: Tables, lasts_s: float) -> None:
        """Start a run. The former one has ended. Raises StoreUnavailable, also when a run is active after all."""
        ...

    async def stop(self) -> None:
        """End the run that is active, if there is one. Raises StoreUnavailable."""
        ...


class AccessStore(Protocol):
    """The durable side of the access table."""

    def observe(self) -> ObservedUsers | None:
        """Users and Secrets as they are now; None: they are not known yet."""
        ...

    async def load(self) -> AccessState:
        """Return the state as it was kept last. Raises StoreUnavailable."""
        ...

    async def save(self, state: AccessState) -> None:
        """Keep the state durably. Raises StoreUnavailable, also when another process has changed it: load again."""
        ...

    async def write_secret(self, name: str, content: Mapping[str, str]) -> None:
        """Write a Secret of a user. Raises StoreUnavailable."""
        ...

    async def write_table(self, table: bytes) -> None:
        """Bring the table (JSON) to the proxies, if the cluster has any. Called often: an equal table costs nothing.

        Raises StoreUnavailable.
        """
        ...

    async def report(self, results: Mapping[str, UserResult], in_force: Callable[[str], bool]) -> None:
        """Show the outcome by user. `in_force`: whether the answering members know the user as the result says."""
        ...

    def note(self, kind: str, reason: str, message: str, user: str) -> None:
        """Record an event about a user; an empty name: about the cluster."""
        ...


@dataclass(frozen=True, slots=True)
class Resources:
    """What the resources of one cluster say."""

    topics: Sequence[WantedTopic]
    groups: Sequence[WantedGroup]
    resets: Mapping[str, tuple[str, Mapping[str, Any] | None]] = field(default_factory=dict)
    """By ConsumerGroup: the annotation for an offset reset (empty: none), and status.reset."""


class TopicStore(Protocol):
    """The platform's side: the resources and their status."""

    def observe(self) -> Resources | None:
        """Return the resources as they are now; None: they are not known yet."""
        ...

    async def report(
        self, resources: Resources, topics: Mapping[str, Result], groups: Mapping[str, Result]
    ) -> bool:  # fmt: skip
        """Keep the outcome by resource, and say which resources cannot be read.

        False: some figures are not written yet. Raises StoreUnavailable.
        """
        ...

    async def keep_reset(self, group: str, reset: Mapping[str, Any] | None) -> None:
        """Keep status.reset of a ConsumerGroup durably. Raises StoreUnavailable."""
        ...

    async def reset_answered(self, group: str, text: str) -> None:
        """Remove the annotation, if it is still this one. Raises StoreUnavailable."""
        ...

    def note(self, kind: str, note: Note) -> None:
        """Record an event about a resource of this kind."""
        ...
