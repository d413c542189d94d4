"""The follower's half of replication: where its log ends, and how it applies an answer.

A follower has at most one fetch under way, but an answer may be late, repeated, or older than a change of the log. The
follower applies it only when it fits (rule 2). Both modes use this class.
"""

from __future__ import annotations

from collections.abc import Callable

from gantry_broker.contracts.leadership import MemberId
from gantry_broker.replication.epochs import last_epoch
from gantry_broker.replication.messages import AnswerKind, Fetch, FetchAnswer, Position
from gantry_broker.replication.ports import Log


class Follower:
    """One epoch under one leader."""

    def __init__(
        self,
        me: MemberId,
        epoch: int,
        leader: MemberId,
        log: Log,
        *,
        unclean: bool,
        report: Callable[[str], None],
    ) -> None:
        self.me = me
        self.epoch = epoch
        self.leader = leader
        self.leader_end = log.end
        self.stopped = ""
        """Why it no longer fetches (rule 3); empty while it fetches."""
        self._log = log
        self._to_confirm = 0
        """The confirmed offset of the last answer, as far as `confirm` has not taken it over; 0: none."""
        self.unclean = unclean
        self._report = report

    @property
    def log(self) -> Log:
        return self._log

    def fetch(self, max_bytes: int = 1 << 20) -> Fetch | None:
        """Return the next fetch, or None once the follower has stopped."""
        if self.stopped:
            return None
        log = self._log
        confirmed = max(log.confirmed, self._to_confirm)
        return Fetch(
            self.epoch, self.me, log.end, log.flushed, log.leader_epochs, confirmed, max_bytes, leader=self.leader
        )

    @property
    def position(self) -> Position:
        return Position(self._log.end, last_epoch(self._log.leader_epochs))

    def apply(self, answer: FetchAnswer) -> bool:
        """Apply an answer; return False when it does not fit and was dropped, or was refused.

        `confirm` takes over the confirmed offset that came with it: indexing takes time, and the leader waits for the
        next fetch.
        """
        if answer.kind is AnswerKind.REFUSED:
            return False
        # Rule 2: of this epoch, and for the place where the log ends now.
        fits = answer.epoch == self.epoch and answer.asked == self.position
        # A late or repeated cut would remove records that were acknowledged since.
        if not fits:
            return False
        self.leader_end = answer.leader_end
        if answer.kind in (AnswerKind.TRUNCATE, AnswerKind.RESET):
            if not self._may_part_from(answer.divergence_offset):
                return False
            if answer.kind is AnswerKind.TRUNCATE:
                # Rule 5: durable before the next fetch.
                to = min(answer.to, self._log.end)
                if to < self._log.start:
                    self._log.reset(0, (), b"")  # Nothing in common is left: the leader says where to begin.
                else:
                    self._log.truncate(to)
            else:
                self._log.reset(answer.to, answer.leader_epochs, bytes(answer.data))
        elif answer.data:
            self._log.append_raw(self._log.end, bytes(answer.data))
        # Rule 3: only now, and never above the follower's own end.
        # The rest of its log may be a tail that the leader is about to cut: readers would see it.
        self._to_confirm = min(answer.confirmed, self._log.end)
        return True

    def append_old(self, data: bytes) -> None:
        """Append records where the log ends that came from elsewhere than the leader.

        They count as a tail that the leader has not seen: its next answer continues them or cuts them (rule 1), and
        none of them is confirmed here before (rule 3). Raises as `Log.append_raw`.
        """
        self._log.append_raw(self._log.end, data)

    def confirm(self) -> None:
        """Take over the confirmed offset of the last answer that was applied; a long way takes several calls."""
        if self._to_confirm:
            self._log.confirm(min(self._to_confirm, self._log.end))
            if self._log.confirmed >= self._to_confirm:
                self._to_confirm = 0

    def _may_part_from(self, divergence_offset: int) -> bool:
        """Rule 3: a truncation never undoes what readers saw, unless the assignment allows it.

        Only an interrupted full copy leaves a log whose first records belong to no known epoch. That copy was about to
        replace the log anyway.
        """
        leader_epochs = self._log.leader_epochs
        if not leader_epochs or leader_epochs[0].start > self._log.start:
            return True
        if divergence_offset >= self._log.confirmed or self.unclean:
            return True
        self.stopped = (
            f"the log of {self.leader} (epoch {self.epoch}) diverges at offset {divergence_offset}, "
            f"but everything below {self._log.confirmed} was confirmed here; set failover.unclean to give it up"
        )
        self._report(self.stopped)
        return False
