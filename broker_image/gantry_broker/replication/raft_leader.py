"""A leadership in Raft mode: the same table of acknowledgements, another arithmetic of the confirmed offset.

Confirmed is what a majority of the members has on disk (rule 26), counted only from this epoch's control record on
(rule 25). A follower that is not a member is a learner: the leader serves it, and it does not count.
"""

from __future__ import annotations

from collections.abc import Callable

from gantry_broker.contracts.leadership import LeadershipRecord, MemberId
from gantry_broker.replication.leader import Leader, Options, Refused, ignore_refusal
from gantry_broker.replication.members import Members, Voter, differ_by_one, ids, is_majority, majority_offset
from gantry_broker.replication.ports import RaftLog
from gantry_broker.store.errors import StoreFull


class RaftLeader(Leader):
    """One epoch. Created after its control record was appended, which ends at `control_end`."""

    def __init__(
        self,
        me: MemberId,
        leadership: LeadershipRecord,
        log: RaftLog,
        options: Options,
        now_ms: int,
        *,
        role_end: int,
        control_end: int,
        members: Callable[[], Members],
        report: Callable[[str], None],
        refused: Refused = ignore_refusal,
    ) -> None:
        super().__init__(me, leadership, log, options, now_ms, role_end=role_end, report=report, refused=refused)
        self.control_end = control_end
        self._members = members
        self._raft_log = log
        for voter in members():
            if voter.id != me:
                self._view(voter.id, now_ms)

    @property
    def own_end(self) -> int:
        return self._log.flushed  # Rule 26.

    def _acked(self, member: MemberId) -> int:
        if member == self.me:
            return self.own_end
        view = self.followers.get(member)
        return -1 if view is None else view.acked

    def confirmable(self) -> int:
        upto = majority_offset(map(self._acked, ids(self._members())))  # Rule 26.
        if upto < self.control_end:
            # Rule 25: a majority may have records of earlier epochs, and yet elect a member without them that has a
            # record of a later epoch. Once a majority has the control record, no such member can win.
            return self._log.confirmed
        return upto

    def is_beyond_quorum(self, member: MemberId) -> bool:
        """Return whether enough others for a majority are further than this follower, or as far with a lower number.

        A member that stops falls behind the others with their next acknowledgement; then the leader stops waiting for
        it.
        """
        voters = ids(self._members())
        if member not in voters or self.pause_writes is not None:
            return False  # A learner is added when it has all confirmed records; the leader waits for a target.
        mine = (-self._acked(member), member)
        ahead = sum(1 for m in voters if m not in (self.me, member) and (-self._acked(m), m) < mine)
        return ahead >= len(voters) // 2

    def waited_for(self) -> frozenset[MemberId]:
        """Return no particular member: a majority is enough, and a voter that is gone must not hold back retention."""
        return frozenset()

    def counted(self) -> frozenset[MemberId]:
        """Return the members that vote."""
        return ids(self._members())

    def enough_alive(self, now_ms: int) -> bool:
        return self.hears_majority(now_ms)

    def hears_majority(self, now_ms: int) -> bool:
        """Return whether the leader hears a majority; one that does not must step down (rule 24)."""
        alive = {m for m, view in self.followers.items() if not self._silent(view, now_ms)} | {self.me}
        return is_majority(alive, self._members())

    def review(self, now_ms: int) -> None:
        """Propose nothing: in Raft mode a member change is a record in the log (`change`)."""

    # ---- members (rule 27)

    def change(self, members: Members, now_ms: int) -> str:
        """Append a change of members. Returns the reason for a refusal, or nothing."""
        before = self._members()
        # A former leader may have appended a change that this log lacks. Until a record of this epoch is confirmed,
        # each of the two lists could find a majority that does not meet the other's.
        if self._log.confirmed < self.control_end:
            return "no record of this epoch is confirmed yet"
        changes = self._raft_log.member_changes
        # Two open changes differ by two members: majorities of the first and the last list need not share one.
        if changes and changes[-1].end > self._log.confirmed:
            return "the last change of members is not confirmed yet"
        if not differ_by_one(before, members):
            return "one member at a time"
        # It would count a majority to which it does not belong, until it steps down.
        if self.me not in ids(members):
            return "the leader cannot remove itself: transfer the leadership first"
        try:
            self._raft_log.append_members(members, now_ms)
        except (StoreFull, OSError) as error:
            return str(error)  # The next tick tries it again.
        return ""

    def wanted_change(self, now_ms: int) -> Members | None:
        """Return the next step towards members whose present disks all vote, or None.

        Adds a learner that has caught up, after removing a former incarnation of its disk.
        """
        members = self._members()
        for learner in sorted(set(self.followers) - ids(members)):
            view = self.followers[learner]
            # Added too early, it would count in each majority before it has the records: the group would wait for it.
            if self._silent(view, now_ms) or view.acked < max(self._log.confirmed, self.control_end):
                continue
            former = [v for v in members if v.id.member == learner.member]
            if former:
                # A majority of the remaining members, not all: another one may have lost its disk as well, or be away.
                left = tuple(v for v in members if v not in former)
                alive = [v.id for v in left if v.id == self.me or self._keeps_up(v.id, now_ms)]
                # The former incarnation goes first: two of one disk would be two votes and two copies, on one disk.
                if is_majority(alive, left) and self._silent(self.followers.get(former[0].id), now_ms):
                    return left
                continue
            if view.address:
                return tuple(sorted((*members, Voter(learner, view.address))))
        return None

    def _keeps_up(self, member: MemberId, now_ms: int) -> bool:
        view = self.followers.get(member)
        return view is not None and not self._silent(view, now_ms) and view.acked >= self.control_end

    # ---- transfer

    def handed_over(self) -> bool:
        """Return whether the target of a transfer has all records."""
        if self.pause_writes is None:
            return False
        view = self.followers.get(self.pause_writes.target)
        return view is not None and view.acked >= self._log.end and self._log.confirmed >= self._log.end
