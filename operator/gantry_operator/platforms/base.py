"""What the failover loop needs of the place that it runs in: local processes, or pods."""

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
    """What is known of a member's process without asking it. The words are those of `MemberView`."""

    gone: bool = False
    deleting: bool = False
    never_ran: bool = False
    node: str = ""
    """The machine that it runs on, where that is known."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something worth telling a person. `reason` is one word for programs, `message` for people."""

    kind: Literal["Normal", "Warning"]
    reason: str
    message: str
    group: str


@dataclass(frozen=True, slots=True)
class Change:
    """A master that was replaced: what status.lastFailover shows."""

    group: str
    old: str | None
    new: str
    reason: str
    epoch: int
    at_unix_ms: int
    duration_ms: int
    """From when it was noticed until the new master had taken the role."""
    planned: bool


class Platform(Protocol):
    """Nothing here may block the event loop."""

    def members(self, group: str) -> Sequence[MemberEndpoint]:
        """The members of the plan, by number. Asked again before each decision."""
        ...

    def process_state(self, name: str) -> ProcessState: ...

    def token(self) -> str | None:
        """The admin token of the members' HTTP interface; None: it is open."""
        ...

    async def announce(self, group: str, master: MemberEndpoint, epoch: int) -> None:
        """This member leads now: move the address that clients use. Called at least once for each epoch, and again
        when it raised; must be idempotent. Cancelled when another epoch is to be announced before it is done."""
        ...

    def event(self, event: Event) -> None: ...

    def changed(self, change: Change) -> None:
        """A new master has taken its role."""
        ...
