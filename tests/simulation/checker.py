"""The invariants. The checker tests them after every step.

(a) A SEND_OK record is in the log of every later master of a clean failover.
(b) A record that a reader saw is never undone and never differs at the same offset.
(c) No two masters complete SEND_OK for different records at one offset.
(d) Epochs of the leadership record only grow. An epoch has one leader, which begins it once.
(e) Logs agree up to the confirmed offset.
(f) Under Async, (a) holds for confirmed records. A master that restarts and leads again, with no other leader in
between, has all records that it answered with SEND_OK, except those that a power failure took before they were on disk.
Also: logs are whole records, queue offsets follow each other, and no send is stored twice. Sends of one client that
were buffered or forwarded keep their order. A handover loses no record with SEND_OK.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gantry_broker.contracts.leadership import LeadershipRecord

from tests.simulation.model_log import FILLER, MESSAGE, ModelLog, Record

if TYPE_CHECKING:
    from tests.simulation.world import Member


class Violation(AssertionError):
    """An invariant is broken; the text names it."""


class Checker:
    def __init__(self, *, sync_replication: bool) -> None:
        self.sync_replication = sync_replication
        self.shown: dict[int, tuple[Record, int]] = {}
        """By offset: the record, and the epoch in which it was confirmed."""
        self.acked: dict[int, tuple[Record, int]] = {}
        """By offset: the record, and the epoch of the master that answered."""
        self.epoch_of: dict[int, int] = {}
        """By epoch: the member that began it."""
        self.began: dict[int, int] = {}
        """By epoch: the number of times that it began."""
        self._verified: dict[int, tuple[int, int]] = {}
        self.leadership = LeadershipRecord()
        self.clean = True
        self.sends = 0
        self.oks = 0

    # ---- events

    def swapped(self, leadership: LeadershipRecord) -> None:
        if leadership.epoch < self.leadership.epoch or leadership.version <= self.leadership.version:
            raise Violation(f"(d) the leadership record went from {self.leadership.order} to {leadership.order}")
        self.leadership = leadership

    def send_ok(self, member: Member, record: Record, epoch: int) -> None:
        self.oks += 1
        if not self.sync_replication:
            member.oks.append(record)
            return
        other = self.acked.get(record.offset)
        if other is not None and other[0] != record:
            raise Violation(f"(c) SEND_OK for {other[0]} and for {record}, both at {record.offset}")
        self.acked[record.offset] = (record, epoch)
        self._later_masters_hold(member, record, epoch, "(a) SEND_OK")

    def _later_masters_hold(self, member: Member, record: Record, epoch: int, what: str) -> None:
        for peer in member.world.members:
            leader = peer.core.leader if peer.core is not None else None
            if leader is not None and leader.epoch > epoch:
                self._holds(peer.log, record, f"{what} of epoch {epoch} came after epoch {leader.epoch} began")

    def began_epoch(self, member: Member, epoch: int, answered: Sequence[Record] = ()) -> None:
        """A member has taken the role of master: it must have all acknowledged and shown records. `answered`: under
        Async, the
        records that it answered with SEND_OK when it led last.
        """
        former = max(self.began, default=0)
        if former < epoch and self.clean and self.epoch_of.get(former) == member.number:
            for record in answered:
                self._holds(member.log, record, f"(f) m{member.number} led epoch {former} and leads {epoch} again")
        holder = self.epoch_of.setdefault(epoch, member.number)
        self.began[epoch] = self.began.get(epoch, 0) + 1
        if holder != member.number:
            raise Violation(f"(d) epoch {epoch} was begun by m{holder} and by m{member.number}")
        if self.began[epoch] > 1:
            raise Violation(f"(d) epoch {epoch} was begun twice by m{holder}")
        # An epoch may begin late, after a higher one: then it confirms nothing more, and need not have all records.
        for record, before in self.acked.values():
            if before < epoch:
                self._holds(member.log, record, f"(a) master m{member.number} of epoch {epoch}")
        for record, before in self.shown.values():
            if before < epoch:
                self._holds(
                    member.log, record, f"(b) master m{member.number} of epoch {epoch} lacks a record that was shown"
                )

    def handed_over(self, source: Member, target: Member) -> None:
        """The registry has recorded a handover: no record with SEND_OK may be missing."""
        for record in source.oks:
            self._holds(target.log, record, f"(a) handover from m{source.number} to m{target.number}")

    def unclean(self) -> None:
        """Records are given up on purpose: earlier acknowledgements and reads do not count from here on."""
        self.clean = False
        self.acked.clear()
        self.shown.clear()

    # ---- after every step

    def consistent(self, member: Member) -> None:
        """Check the state that a member has in memory; records that were given up on purpose may contradict it."""
        if member.core is None or not self.clean:
            return
        try:
            member.core.check_invariants()
        except AssertionError as error:
            raise Violation(f"m{member.number}: {error}") from error

    def look(self, member: Member) -> None:
        """Check the log of a member that may have changed."""
        log = member.log
        if member.core is None:
            return
        if log.confirmed > log.end:
            raise Violation(f"(e) m{member.number}: confirmed {log.confirmed} is above its end {log.end}")
        readable = min(member.readable_end, log.end)
        border = log.records[-1].offset + log.records[-1].size if log.records else log.start
        if border != log.end:
            raise Violation(f"m{member.number}: its log ends at {log.end} within a record")
        tag, verified = self._verified.get(member.number, (0, 0))
        if tag != member.life:
            verified = 0
        if not self.clean:
            return
        for index in range(len(log.records) - 1, -1, -1):
            record = log.records[index]
            if record.offset < verified:
                break
            if record.offset >= readable:
                continue
            if record.offset not in self.shown:
                epoch = member.core.leadership.epoch
                self.shown[record.offset] = (record, epoch)
                self._later_masters_hold(member, record, epoch, "(b) shown: confirmation")
            known = self.shown[record.offset][0]
            if known != record:
                raise Violation(f"(b)(e) {known} was shown at {record.offset}; m{member.number} shows {record}")
        self._verified[member.number] = (member.life, readable)

    def look_whole(self, member: Member) -> None:
        """Checks that are not needed after every step: order and number of the records."""
        seen: set[int] = set()
        expected: int | None = None
        for record in member.log.records:
            if record.offset >= member.log.confirmed:
                break
            if record.kind == FILLER:
                continue
            if expected is not None and record.queue_offset != expected:
                raise Violation(
                    f"m{member.number}: queue offset {record.queue_offset} at {record.offset}, not {expected}"
                )
            expected = record.queue_offset + 1
            if record.kind == MESSAGE:
                if record.id in seen:
                    raise Violation(f"m{member.number}: m{record.id} is stored twice")
                seen.add(record.id)

    @staticmethod
    def _holds(log: ModelLog, record: Record, what: str) -> None:
        if record.offset < log.start:
            return
        for mine in log.records:
            if mine.offset == record.offset:
                if mine != record:
                    raise Violation(f"{what}: has {mine} at {record.offset} instead of {record}")
                return
        raise Violation(f"{what}: {record} at {record.offset} is missing (its log ends at {log.end})")
