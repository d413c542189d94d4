"""What a member's state machine is to its driver, in both modes, and the half that both modes share.

`Core` is the interface that `service.py` and the simulation use. `replica.Replica` (MasterSlave) and `raft.RaftReplica`
(Raft) keep it: they differ in how a member learns who leads. What a leader and a follower do with fetches, answers,
waiting sends and a handover is the same, and is in `MemberCore`.

Every input is a call with the time in milliseconds. Outputs are answers, calls of the two ports, and the statuses of
waiting sends. Nothing here is safe for threads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple, Protocol

from gantry_broker.contracts.leadership import Assignment, InSyncSetProposal, LeadershipRecord, MemberId
from gantry_broker.protocol import plausible
from gantry_broker.protocol.codes import SendStatus
from gantry_broker.replication.acknowledgements import Acknowledgements, Callback
from gantry_broker.replication.follower import Follower
from gantry_broker.replication.leader import Leader, Options, Refused
from gantry_broker.replication.messages import AnswerKind, Fetch, FetchAnswer, meant_for, not_meant
from gantry_broker.replication.ports import Log, StateDisk
from gantry_broker.replication.state import HardState

MOVING_MS: Final = 1_500
"""A member that pauses writes and sees a higher epoch waits this long for the new leader's name: usually it is the
handover's target. Without a limit, clients of a leader that was fenced for another reason would wait for ever.
"""


class Role(Enum):
    """The value is that of `MemberStatus.role`."""

    MASTER = "Master"
    SLAVE = "Slave"
    CANDIDATE = "Candidate"
    WAITING = "Waiting"


class Assigned(NamedTuple):
    """The outcome of an assignment."""

    accepted: bool
    reason: str = ""


class Core(Protocol):
    """One member of a group, as its driver sees it. `MemberCore` has the texts of the shared methods."""

    waiters: Acknowledgements
    reason: str
    """Why the member is not writable, or does not follow."""
    handed_to: str | None
    """After a handover: the address of the new leader, for the writes that still arrive here (rule 23)."""

    @property
    def me(self) -> MemberId: ...
    @property
    def state(self) -> HardState: ...
    @property
    def leadership(self) -> LeadershipRecord: ...
    @property
    def highest_seen_epoch(self) -> int: ...
    @property
    def role(self) -> Role: ...
    @property
    def leader(self) -> Leader | None: ...
    @property
    def follower(self) -> Follower | None: ...
    @property
    def proposal(self) -> InSyncSetProposal | None: ...
    @property
    def hands_over(self) -> bool: ...
    @property
    def writes_paused(self) -> bool: ...
    @property
    def may_append(self) -> bool: ...
    @property
    def epoch_confirmed(self) -> bool: ...
    def assign(self, assignment: Assignment, now_ms: int) -> Assigned: ...
    @abstractmethod
    def saw_epoch(self, epoch: int, now_ms: int) -> None: ...
    def stop(self, reason: str) -> None: ...
    def tick(self, now_ms: int) -> None: ...
    @abstractmethod
    def epoch_counts(self, fetch: Fetch) -> bool: ...
    def fetched(self, fetch: Fetch, now_ms: int) -> FetchAnswer | None: ...
    def answer_fetch(
        self, fetch: Fetch, now_ms: int, *, news: bool = False, empty: bool = False
    ) -> FetchAnswer | None: ...
    def confirm(self, now_ms: int) -> None: ...
    def appended(self) -> None: ...
    def add_waiter(self, end: int, deadline_ms: int, callback: Callback) -> None: ...
    def pause_writes(self, target: MemberId, epoch: int, version: int) -> str: ...
    def handed_over(self) -> bool: ...
    def give_up_handover(self) -> None: ...
    def next_fetch(self, max_bytes: int = 1 << 20) -> Fetch | None: ...
    def answered(self, answer: FetchAnswer, now_ms: int) -> bool: ...
    def check_invariants(self) -> None: ...


class Moving(NamedTuple):
    """The role is on its way to another member, and this one does not know yet who has it."""

    target: MemberId
    until_ms: int


class MemberCore(ABC):
    """The shared half. A mode adds its elections or assignments, and says what ends a role."""

    leader: Leader | None
    follower: Follower | None

    def __init__(
        self,
        state: HardState,
        log: Log,
        disk: StateDisk,
        options: Options,
        reason: str,
        report: Callable[[str], None],
        refused: Refused,
    ) -> None:
        self.options = options
        self.waiters = Acknowledgements()
        self.leader = None
        self.follower = None
        self.reason = reason
        self.handed_to: str | None = None
        self._state = state
        self._log = log
        self._disk = disk
        self._report = report
        self._refused = refused
        self._control_end = 0
        self._ticked_ms = 0
        self._moving: Moving | None = None

    # ---- what a mode provides

    @property
    @abstractmethod
    def leadership(self) -> LeadershipRecord:
        """The newest assignment that it holds."""

    @property
    @abstractmethod
    def highest_seen_epoch(self) -> int:
        """The highest epoch that it has heard of."""

    @abstractmethod
    def epoch_counts(self, fetch: Fetch) -> bool:
        """Return whether the epoch of a fetch counts: only of a member of the set. Another member's fetch says nothing
        about leaders.
        """

    @abstractmethod
    def saw_epoch(self, epoch: int, now_ms: int) -> None:
        """Note a higher epoch: it stops a leader at once (rule 14). An impossible one changes nothing."""

    @abstractmethod
    def _pause_refusal(self, leader: Leader, target: MemberId, version: int) -> str:
        """Return why writes cannot pause for a handover to this member; empty: they can."""

    # ---- state

    @property
    def me(self) -> MemberId:
        return self._state.me

    @property
    def hands_over(self) -> bool:
        """A handover is under way: the leader appends nothing (rule 23)."""
        return self.leader is not None and self.leader.pause_writes is not None

    @property
    def writes_paused(self) -> bool:
        """New sends are buffered, in their order, until this changes (rule 23). It lasts until the member knows who
        leads: a send that was refused before would overtake those that are buffered.
        """
        return self.hands_over or (self._moving is not None and self.leader is None and self.follower is None)

    @property
    def may_append(self) -> bool:
        return self.leader is not None and not self.hands_over

    @property
    def epoch_confirmed(self) -> bool:
        """Rule 9: false on a new leader until its control record is confirmed.

        Until then the leader does not know what is above its confirmed offset. It holds a pull beyond that offset and
        never answers "offset moved".
        """
        return self.leader is None or self._log.confirmed >= self._control_end

    @property
    def proposal(self) -> InSyncSetProposal | None:
        return None if self.leader is None else self.leader.proposal

    def stop(self, reason: str) -> None:
        """End the current role; `reason` says why."""
        if self.leader is not None:
            # Rule 10: before anything else. Another leader's confirmed offset would pass their ends later, and answer
            # SEND_OK for records that were cut.
            self.leader = None
            self.waiters.fail(SendStatus.FLUSH_SLAVE_TIMEOUT)
        self.follower = None
        self.reason = reason

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself; for tests and simulations, after any call."""
        log, leader = self._log, self.leader
        assert log.confirmed <= log.end, f"confirmed {log.confirmed} is above the end {log.end}"  # Rule 3.
        assert log.flushed <= log.end, f"{log.flushed} are on disk of a log that ends at {log.end}"
        starts = [(epoch.epoch, epoch.start) for epoch in log.leader_epochs]
        assert starts == sorted(starts), f"leader epochs do not grow: {starts}"  # Rule 7.
        assert leader is None or self.follower is None, "leads and follows"
        assert self.may_append <= (not self.writes_paused), "appends while writes are paused"  # Rule 23.
        if leader is None:
            assert not len(self.waiters), "sends wait at a member that does not lead"  # Rule 10.
            return
        assert self.handed_to is None, "a leader forwards writes"  # Rule 23: appended or forwarded, never both.
        assert leader.epoch == self.leadership.epoch <= self.highest_seen_epoch
        # Rule 14: at once.
        assert leader.epoch == self.highest_seen_epoch, f"leads epoch {leader.epoch}, saw {self.highest_seen_epoch}"
        leader.check_invariants()

    # ---- the leader

    def fetched(self, fetch: Fetch, now_ms: int) -> FetchAnswer | None:
        """Take a follower's fetch as its acknowledgement. Returns None when it counts; then call `answer_fetch` and
        `confirm`. A fetch of a higher epoch ends this leadership.
        """
        if not meant_for(self.me, fetch):
            return not_meant(self.me, fetch)
        if jump := plausible.jump_refusal(self.highest_seen_epoch, fetch.epoch):
            self._refused("fetch", "epoch-jump", f"{fetch.member}: {jump}")
            return self._refuse(fetch, jump)
        if self.epoch_counts(fetch):
            self.saw_epoch(fetch.epoch, now_ms)
        leader = self.leader
        if leader is None:
            return self._refuse(fetch, self.reason or f"{self.me} is not the leader")
        # Rule 1: a delayed fetch of another epoch describes a log that may have been cut since.
        if fetch.epoch != leader.epoch:
            return self._refuse(fetch, f"this is epoch {leader.epoch}, the fetch is of epoch {fetch.epoch}")
        return leader.acknowledge(fetch, now_ms)

    def answer_fetch(self, fetch: Fetch, now_ms: int, *, news: bool = False, empty: bool = False) -> FetchAnswer | None:
        """Return the answer to a fetch that `fetched` has taken; None while there are no records for it, and it is
        held.

        With `news` a newer confirmed offset is enough for an answer; with `empty` there always is one.
        """
        leader = self.leader
        # It was held: the role may have ended and begun again in a higher epoch meanwhile.
        if leader is None or fetch.epoch != leader.epoch:
            return self._refuse(fetch, self.reason or f"{self.me} is no longer the leader")
        answer = leader.answer(fetch, now_ms)
        if answer is None and (empty or (news and leader.has_news(fetch))):
            answer = leader.records(fetch, b"", now_ms)
        return answer

    def _refuse(self, fetch: Fetch, reason: str) -> FetchAnswer:
        return FetchAnswer(AnswerKind.REFUSED, self.highest_seen_epoch, fetch.position, reason=reason)

    def confirm(self, now_ms: int) -> None:
        """Confirm what the last fetch, or the last answer to one, makes possible.

        It takes time, so the driver calls it once the answer, or the next fetch, is on its way.
        """
        if self.leader is not None:
            self.leader.review(now_ms)
            self._confirm()
        elif self.follower is not None:
            self.follower.confirm()

    def appended(self) -> None:
        """Confirm what an append, or a flush where acknowledgements count bytes on disk, makes possible."""
        self._confirm()

    def add_waiter(self, end: int, deadline_ms: int, callback: Callback) -> None:
        """Call `callback` once with the status of the sends below `end`, as soon as it is known."""
        if self.leader is None:
            callback(SendStatus.FLUSH_SLAVE_TIMEOUT)
            return
        self.waiters.add(end, deadline_ms, callback)
        # What is confirmed already brings no further event that would answer this batch.
        self._settle()

    def _confirm(self) -> None:
        """Rule 8."""
        if self.leader is not None:
            upto = self.leader.confirmable()
            if upto > self._log.confirmed:
                self._log.confirm(min(upto, self._log.end))
            self._settle()

    def _settle(self) -> None:
        self.waiters.reached(self._log.confirmed)

    def _late_ms(self, now_ms: int) -> int:
        """Return by how much this tick is late; 0 while that is usual. Time in which this process did not run says
        nothing about the others: the caller extends its deadlines by it.
        """
        late = now_ms - self._ticked_ms - self.options.tick_ms if self._ticked_ms else 0
        self._ticked_ms = now_ms
        if late < self.options.late_ms:
            return 0
        if self.leader is not None:
            self.leader.extend_deadlines(late, now_ms)
        return late

    # ---- handover (rule 23)

    def pause_writes(self, target: MemberId, epoch: int, version: int) -> str:
        """Pause writes, to hand the role over to `target`. Returns the reason for a refusal, or nothing.

        `version` is that of the leadership record on which the operator bases its swap: a swap on any other must fail.
        """
        leader = self.leader
        if leader is None or leader.epoch != epoch:
            return f"is not the leader of epoch {epoch}: {self.reason or f'its epoch is {self.leadership.epoch}'}"
        if target == self.me:
            return f"{target} already is the leader"
        return self._pause_refusal(leader, target, version) or leader.pause_for(target, version)

    def handed_over(self) -> bool:
        """Return whether the target of the handover has everything."""
        return self.leader is not None and self.leader.handed_over()

    @property
    def _paused_for(self) -> MemberId | None:
        """The member for which writes are paused."""
        if self.leader is not None:
            return None if self.leader.pause_writes is None else self.leader.pause_writes.target
        return self._moving.target if self._moving is not None and self.follower is None else None

    def _end_moving(self, now_ms: int) -> None:
        """Pause writes no longer than the limit: no name came."""
        if self._moving is not None and now_ms >= self._moving.until_ms:
            self._moving = None

    # ---- the follower

    def next_fetch(self, max_bytes: int = 1 << 20) -> Fetch | None:
        """Return the next fetch; None without a leader, or when the follower has stopped."""
        return None if self.follower is None else self.follower.fetch(max_bytes)

    def answered(self, answer: FetchAnswer, now_ms: int) -> bool:
        """Apply the leader's answer; return false when it was dropped or refused. Then call `confirm`."""
        if jump := plausible.jump_refusal(self.highest_seen_epoch, answer.epoch):
            self._refused("fetch-answer", "epoch-jump", jump)
            return False
        self.saw_epoch(answer.epoch, now_ms)
        if self.follower is None:
            return False
        self._heard(answer, now_ms)
        applied = self.follower.apply(answer)
        if self.follower.stopped:
            self.reason = self.follower.stopped
        return applied

    def _heard(self, answer: FetchAnswer, now_ms: int) -> None:  # noqa: B027 (most modes have nothing to do)
        """Note that the leader answered; only a mode with elections counts its silence."""
