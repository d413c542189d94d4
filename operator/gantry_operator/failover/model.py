"""Observations and decisions of one group: plain values without clocks, sockets or pydantic.

Ages and durations are milliseconds. Offsets are bytes of the commit log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gantry_broker.contracts.leadership import Assignment, InSyncSetProposal, LeadershipRecord, MemberId

Reach = Literal["ok", "refused", "silent"]
"""Outcome of the present attempt to reach a member: a line came; the port is closed; no reply."""

Role = Literal["Master", "Slave", "Candidate", "Waiting"]
"""The role that a member reports."""

LinkState = Literal["none", "connected", "refused", "silent"]
"""The state of the leader as a follower reports it."""


@dataclass(frozen=True, slots=True)
class FailoverSettings:
    """`spec.failover` and the other settings that decisions depend on."""

    automatic: bool = True
    detection_ms: int = 2_000
    unclean: bool = False
    unclean_after_ms: int = 10_000
    """Milliseconds without any member of the in-sync set before an unclean promotion gives records up."""
    stalled_ms: int = 10_000
    """Milliseconds for which a fetching follower may delay acknowledgements before it is removed."""
    async_flush: bool = True
    min_in_sync: int = 1
    standby: bool = False
    """The cluster follows another one, as the control plane knows: no member may lead."""
    filled: int | None = None
    """The member whose disk `spec.bootstrap` fills with a log before the group begins; None: every disk is empty."""


@dataclass(frozen=True, slots=True)
class FollowerView:
    """A follower as its leader reports it."""

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
    """Why the member should not lead although it runs; empty: it may lead."""
    disk_full: bool = False
    standby: bool = False
    """Its cluster follows the archive of another one: it takes no part in its group."""
    site_origin: str = ""
    """The promotion of its cluster; empty: there was none. Members with the same one have prefixes of one log."""
    site_end: int = 0
    """Where that log ended: a member with less of it lacks records."""

    @property
    def order(self) -> tuple[int, int]:
        """The assignment that it holds (rule 14)."""
        return (self.epoch, self.version)

    @property
    def rank(self) -> tuple[int, int]:
        """Position of its log: (epoch of the last record, end)."""
        return (self.last_epoch, self.end)

    @property
    def empty(self) -> bool:
        """True: its disk holds nothing and never had an assignment."""
        return self.end == 0 and self.last_epoch == 0 and self.order == (0, 0)


@dataclass(frozen=True, slots=True)
class MemberView:
    """The present knowledge about one member of the plan."""

    number: int
    name: str
    address: str
    """The address for fetches of other members."""
    report: Report | None = None
    age_ms: int = 0
    """Milliseconds since `report` arrived."""
    reach: Reach = "silent"
    reach_ms: int = 0
    """Milliseconds for which `reach` has had its value."""
    gone: bool = False
    """Its process is known to have ended: its exit was seen, or its pod does not exist."""
    deleting: bool = False
    """It is about to be stopped on purpose: its pod has a deletion time stamp, or its node is drained."""
    never_ran: bool = False
    """It is known to have no disk yet, so it has no state to report."""
    pending: bool = False
    """An assignment is on its way, or `report` is older than the answer to the last one."""
    assigned_order: tuple[int, int] = (0, 0)
    """(epoch, version) of the assignment that is pending."""
    accepted_order: tuple[int, int] = (0, 0)
    """(epoch, version) of the last accepted assignment. The next status line confirms it a moment later."""
    assigned_unclean: bool | None = False
    """Whether the last accepted assignment allows it to give confirmed records up; None: not known."""
    stalled_ms: int = 0
    """Milliseconds for which it has not acknowledged the records that its leader had at the start of that time."""
    refused: str = ""
    """Why it refused the recorded assignment; empty: it did not."""
    lacks_token: bool = False
    """It refused because of the token, or it has no token."""
    refused_ms: int = 0
    """Milliseconds for which it has refused every assignment."""

    @property
    def heard(self) -> bool:
        """It answers now."""
        return self.report is not None and self.reach == "ok" and not self.gone

    @property
    def silence_ms(self) -> int:
        """Milliseconds since anything arrived from it."""
        return self.reach_ms if self.report is None else self.age_ms


@dataclass(frozen=True, slots=True)
class Switchover:
    """A request for another leader."""

    to: int | None = None
    reason: str = "asked for"
    force: bool = False
    """Also when the leader does not answer. A user has asked, so `automatic: false` does not block it."""

    def fulfilled(self, old: MemberId | None, new: MemberId) -> bool:
        """Return whether a request for this change exists. Otherwise the new leader would get a handover request in
        turn.
        """
        return new.member == self.to if self.to is not None else old is None or new.member != old.member


@dataclass(frozen=True, slots=True)
class HandoverReady:
    """The leader with assignment (epoch, version) has paused writes, and `target` has every record (rule 23)."""

    order: tuple[int, int]
    target: MemberId
    reason: str = "handover"


@dataclass(frozen=True, slots=True)
class Observation:
    """One group as observed now. `leadership` is the registry's record; None: the registry answered that it has
    none.
    """

    group: str
    members: tuple[MemberView, ...]
    leadership: LeadershipRecord | None
    settings: FailoverSettings = FailoverSettings()
    switchover: Switchover | None = None
    handover: HandoverReady | None = None
    handover_requested: bool = False
    """A handover was requested and its answer has not arrived."""

    def view(self, number: int) -> MemberView | None:
        for m in self.members:
            if m.number == number:
                return m
        return None

    def heard_as(self, id: MemberId) -> Report | None:
        """Return the report of exactly this incarnation, if it answers now."""
        m = self.view(id.member)
        if m is None or not m.heard or m.report is None or m.report.id != id:
            return None
        return m.report


# Decisions. Those in `Write` are writes: each is a compare-and-swap against `Observation.leadership` as a whole
# (rule 13). Assignments follow only after the swap has succeeded. There is at most one write per observation.


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """The first leadership record of a group with empty disks."""

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
    """Unclean only: the minimum number of bytes on other members that the new leader lacks."""


@dataclass(frozen=True, slots=True)
class Recover:
    """A new leadership record, recovered from the members' disks (rule 22)."""

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
    """Record the leader's proposal, on the version that it names (rule 17)."""

    leadership: LeadershipRecord
    added: frozenset[MemberId]
    reason: str


@dataclass(frozen=True, slots=True)
class RejectProposal:
    """Reject the leader's proposal. The version grows, so that the leader stops waiting for it (rule 18)."""

    leadership: LeadershipRecord
    reason: str


@dataclass(frozen=True, slots=True)
class CancelHandover:
    """Give up a handover. The version grows, and the leader resumes writes when it gets the assignment (rule 23)."""

    leadership: LeadershipRecord
    reason: str


@dataclass(frozen=True, slots=True)
class SendAssignment:
    """Send the recorded leadership to a member."""

    member: int
    assignment: Assignment
    reason: str


@dataclass(frozen=True, slots=True)
class Demote:
    """Send the recorded leadership to a member that wrongly believes that it leads."""

    member: int
    assignment: Assignment
    reason: str


@dataclass(frozen=True, slots=True)
class RequestHandover:
    """Ask the leader to pause writes and to bring `target` to the end of the log."""

    master: int
    target: MemberId
    leadership: LeadershipRecord
    """The swap that follows must expect exactly this record."""
    reason: str
    request: Switchover | None = None
    """The user's request that this handover serves; None: it serves another reason."""


@dataclass(frozen=True, slots=True)
class Wait:
    """No action is possible or allowed now. `available`: False when the group has no working leader."""

    code: str
    reason: str
    available: bool = True


@dataclass(frozen=True, slots=True)
class Retire:
    """The group has no leader any more: its cluster is a standby."""

    leadership: LeadershipRecord
    reason: str


Write = Bootstrap | Retire | Promote | Recover | ShrinkInSyncSet | ExpandInSyncSet | RejectProposal | CancelHandover
Decision = Write | SendAssignment | Demote | RequestHandover | Wait
