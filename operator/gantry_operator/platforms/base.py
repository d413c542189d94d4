"""The interface between the control plane and the place where members run: pods on Kubernetes, or local processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


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
        is to be announced before this one is done."""
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

        `address_moved`: the group's address leads to another member, or this member never held it."""
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
