"""The ports of `ClusterControl`: what it needs of the place where members run, pods on Kubernetes or local processes.

`cluster` imports no platform: each platform implements these interfaces. The leadership records have one more,
`registry.RoleRegistry`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from gantry_operator.access import AccessState, UserResult
from gantry_operator.access import Observed as ObservedUsers
from gantry_operator.topics import Note, Result, WantedGroup, WantedTopic


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
    """It runs with another config or image than planned."""
    leaving: bool
    """The plan does not contain this member."""
    stopping: bool = False
    ready: bool | None = None
    """The platform's own readiness probe; None: the platform has none."""
    broken: bool = False
    """It does not run, and the platform does not expect it to recover."""


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


class Platform(Protocol):
    """What a group controller needs. No method may block the event loop."""

    def members(self, group: str) -> Sequence[MemberEndpoint]:
        """The members of the plan, by number. Called before each decision."""
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
        """A new leader has taken its role."""
        ...


class ReplacementPlatform(Protocol):
    """What a rolling change needs. No method may block the event loop."""

    def may_change(self) -> bool:
        """False while the cluster is paused or its spec is invalid."""
        ...

    def deployments(self, group: str) -> Sequence[Deployment] | None:
        """The members that run or should run, by number. None: not known at this moment."""
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
        """Called while all groups are as planned, to change the remaining processes. True: it is not finished yet."""
        ...


class RemovalPlatform(Protocol):
    """What the removal of an empty group needs of the platform."""

    def mark(self, group: str) -> str:
        """A text that `stay` changes: read before the proof that the group is empty."""
        ...

    async def begin_removal(self, group: str, mark: str) -> bool:
        """Note durably that the group goes. From then on its name in the spec means a new group. May raise.

        False: it was not noted, because the spec has the group, or `stay` came after `mark` was read.
        """
        ...

    async def stay(self, group: str) -> bool:
        """A group that was written back is about to take messages: no removal may begin by an earlier proof.

        False: its removal has begun already. May raise.
        """
        ...

    async def continue_removal(self, group: str) -> bool:
        """The next step: stop its members, then its volumes, addresses and leadership record. True: nothing of it is
        left. Called again until then. May raise.
        """
        ...


class StoreUnavailable(Exception):
    """The platform could not read or write something now. The text is the reason."""


class AccessStore(Protocol):
    """The durable side of the access table."""

    def observe(self) -> ObservedUsers | None:
        """Users and Secrets as they are now; None: they are not known yet."""
        ...

    async def load(self) -> AccessState:
        """The state as it was kept last. Raises StoreUnavailable."""
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
        """The resources as they are now; None: they are not known yet."""
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
