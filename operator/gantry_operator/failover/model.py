"""What the failover sees of one group, and what it may decide: plain values without clocks, sockets or pydantic.

Ages and durations are milliseconds, offsets are bytes of the commit log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gantry_broker.replication.types import Assignment, InSyncSetProposal, LeadershipRecord, MemberId

Reach = Literal["ok", "refused", "silent"]
"""Outcome of the present attempt to hear a member: a line came; nobody listens there; nothing comes back."""

Role = Literal["Master", "Slave", "Candidate", "Waiting"]
"""What a member says that it is."""

LinkState = Literal["none", "connected", "refused", "silent"]
"""The master as a follower sees it."""


@dataclass(frozen=True, slots=True)
class FailoverSettings:
    """`spec.failover` and what else of the spec the decisions depend on."""

    automatic: bool = True
    detection_ms: int = 2_000
    unclean: bool = False
    unclean_after_ms: int = 10_000
    """How long nobody of the in-sync set may be heard before an unclean promotion gives records up."""
    stalled_ms: int = 10_000
    """How long a follower of the set may hold senders up (fetching, but acknowledging late) before it is removed."""
    async_flush: bool = True
    min_in_sync: int = 1


@dataclass(frozen=True, slots=True)
class FollowerView:
    """A follower as its master sees it."""

    id: MemberId
    acked: int
    last_fetch_ms: int


@dataclass(frozen=True, slots=True)
class Report:
    """The last line of a member's status stream."""

    id: MemberId
    role: Role
    epoch: int = 0
    version: int = 0
    highest_seen_epoch: int = 0
    log_trusted: bool = True
    last_epoch: int = 0
    end: int = 0
    confirmed: int = 0
    in_sync: frozenset[MemberId] = frozenset()
    proposal: InSyncSetProposal | None = None
    followers: tuple[FollowerView, ...] = ()
    link: LinkState = "none"
    link_leader: MemberId | None = None
    link_answer_ms: int = -1
    writes_paused: bool = False
    not_promotable: str = ""
    """Why it should not lead though it lives, in words."""
    disk_full: bool = False

    @property
    def order(self) -> tuple[int, int]:
        """The assignment that it holds (rule 14)."""
        return (self.epoch, self.version)

    @property
    def rank(self) -> tuple[int, int]:
        """How far its log goes: (epoch of the last record, end)."""
        return (self.last_epoch, self.end)

    @property
    def empty(self) -> bool:
        """True: its disk holds nothing and was never assigned."""
        return self.end == 0 and self.last_epoch == 0 and self.order == (0, 0)


@dataclass(frozen=True, slots=True)
class MemberView:
    """What is known of one member of the plan at this moment."""

    number: int
    name: str
    address: str
    """Where others fetch from it."""
    report: Report | None = None
    age_ms: int = 0
    """Since `report` came."""
    reach: Reach = "silent"
    reach_ms: int = 0
    """For how long `reach` has been what it is."""
    gone: bool = False
    """Its process is known not to run: an exit that was seen, a pod that is no more."""
    deleting: bool = False
    """It is about to be stopped on purpose (a pod with a deletion time stamp, a node that is drained)."""
    never_ran: bool = False
    """It is known to have no disk yet, so there is nothing on it that could be asked."""
    pending: bool = False
    """An assignment is on its way, or `report` is older than the answer to the last one."""
    assigned_order: tuple[int, int] = (0, 0)
    """(epoch, version) of the assignment that is pending."""
    accepted_order: tuple[int, int] = (0, 0)
    """(epoch, version) of the assignment that it accepted last; its next status line says the same a moment later."""
    assigned_unclean: bool | None = False
    """Whether the assignment that it accepted last lets it give confirmed records up; None: not known."""
    stalled_ms: int = 0
    """For how long it has not acknowledged what its master had at the beginning of that time."""
    refused: str = ""
    """Why it refused the assignment that is now recorded; empty: it did not."""
    lacks_token: bool = False
    """It refused for the token that it was asked with, or has none itself."""
    refused_ms: int = 0
    """For how long it has refused whatever it was told."""

    @property
    def heard(self) -> bool:
        """It answers now."""
        return self.report is not None and self.reach == "ok" and not self.gone

    @property
    def silence_ms(self) -> int:
        """For how long nothing came from it."""
        return self.reach_ms if self.report is None else self.age_ms


@dataclass(frozen=True, slots=True)
class Switchover:
    """Somebody asks for another master."""

    to: int | None = None
    reason: str = "asked for"
    force: bool = False
    """Also when the master does not answer (a person asked, so `automatic: false` does not hold it back)."""

    def fulfilled(self, old: MemberId | None, new: MemberId) -> bool:
        """Whether it was asked for this change. Without that the new master would be asked to hand over in turn."""
        return new.member == self.to if self.to is not None else old is None or new.member != old.member


@dataclass(frozen=True, slots=True)
class HandoverReady:
    """The master told (epoch, version) parks its senders, and `target` has everything (rule 23)."""

    order: tuple[int, int]
    target: MemberId
    reason: str = "hand-over"


@dataclass(frozen=True, slots=True)
class Observation:
    """One group, as seen now. `cell` is what the registry holds; None: the registry answered that there is none."""

    group: str
    members: tuple[MemberView, ...]
    leadership: LeadershipRecord | None
    settings: FailoverSettings = FailoverSettings()
    switchover: Switchover | None = None
    handover: HandoverReady | None = None
    handover_requested: bool = False
    """A hand-over was asked for and its answer is not there yet."""

    def view(self, number: int) -> MemberView | None:
        for m in self.members:
            if m.number == number:
                return m
        return None

    def heard_as(self, id: MemberId) -> Report | None:
        """The report of this very incarnation, if it answers now."""
        m = self.view(id.member)
        if m is None or not m.heard or m.report is None or m.report.id != id:
            return None
        return m.report


# Decisions. Those with a `cell` are writes: swapped against `Observation.cell` as a whole (rule 13), and nothing is
# told before the swap has succeeded. There is at most one write per observation.


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """The first cell of a group whose disks are all empty."""

    leadership: LeadershipRecord
    reason: str


@dataclass(frozen=True, slots=True)
class Promote:
    """A new epoch."""

    leadership: LeadershipRecord
    old: MemberId | None
    new: MemberId
    reason: str
    kind: Literal["failover", "restart", "handover", "unproven", "unclean"] = "failover"
    lost_bytes: int = 0
    """Unclean only: how many bytes were seen elsewhere that the new master does not have, at least."""


@dataclass(frozen=True, slots=True)
class Recover:
    """A new cell made from what the members' disks know (rule 22)."""

    leadership: LeadershipRecord
    reason: str


@dataclass(frozen=True, slots=True)
class ShrinkInSyncSet:
    """Members leave the in-sync set (rule 17)."""

    leadership: LeadershipRecord
    removed: frozenset[MemberId]
    reason: str


@dataclass(frozen=True, slots=True)
class ExpandInSyncSet:
    """The master's proposal is recorded on the version that it named (rule 17)."""

    leadership: LeadershipRecord
    added: frozenset[MemberId]
    reason: str


@dataclass(frozen=True, slots=True)
class RejectProposal:
    """The master's proposal is refused; the version moves, so that it no longer waits for it (rule 18)."""

    leadership: LeadershipRecord
    reason: str


@dataclass(frozen=True, slots=True)
class CancelHandover:
    """A hand-over was given up: the version moves, so that being told is what lets the master un-park (rule 23)."""

    leadership: LeadershipRecord
    reason: str


@dataclass(frozen=True, slots=True)
class SendAssignment:
    """Give a member the recorded cell."""

    member: int
    assignment: Assignment
    reason: str


@dataclass(frozen=True, slots=True)
class Demote:
    """Give the recorded cell to one that believes itself master and is not."""

    member: int
    assignment: Assignment
    reason: str


@dataclass(frozen=True, slots=True)
class RequestHandover:
    """Ask the master to park and to bring `target` to its end."""

    master: int
    target: MemberId
    leadership: LeadershipRecord
    """The swap that follows must expect exactly this one."""
    reason: str
    request: Switchover | None = None
    """What somebody asked for, if it is for that."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can or may be done about it now. `available`: False when the group has no master that serves."""

    code: str
    reason: str
    available: bool = True


Write = Bootstrap | Promote | Recover | ShrinkInSyncSet | ExpandInSyncSet | RejectProposal | CancelHandover
Decision = Write | SendAssignment | Demote | RequestHandover | Wait
