"""The leader's half of replication in MasterSlave mode: acknowledgements, the in-sync set, the confirmed offset.

One `Leader` is one leadership. It is created when the member takes the role, with an empty table of acknowledgements
(rule 4), and dropped when the member loses the role. There are no sockets and no clock here: the caller gives times in
milliseconds.

The leader waits for every member of the recorded set, of every set that it has proposed without an answer (rule 18),
and for a follower that it is about to propose. Waiting for more members than recorded is always safe. So the leader may
add members freely, and removes one only when a newer leadership record says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gantry_broker.contracts.leadership import InSyncSetProposal, LeadershipRecord, MemberId
from gantry_broker.replication.epochs import divergence, last_epoch, truncate
from gantry_broker.replication.messages import AnswerKind, Fetch, FetchAnswer
from gantry_broker.replication.ports import Log
from gantry_broker.store.log.epochs import LeaderEpochs


@dataclass(frozen=True, slots=True)
class Options:
    """The replication settings of a group. Times are in milliseconds, sizes in bytes."""

    sync_replication: bool = True
    """SEND_OK waits for confirmation; if false, only for the leader's own copy (rule 8)."""
    sync_flush: bool = False
    """Acknowledgements count bytes on disk (rule 11)."""
    min_in_sync: int = 1
    silent_ms: int = 1_500
    """A follower that has not fetched for this long is not proposed, and not counted on for new promises."""
    propose_again_ms: int = 3_000
    """Pause after a rejected proposal before the leader repeats it."""
    removed_ms: int = 5_000
    """Pause before a follower that was removed while it fetched is proposed: it is about to stop, and senders would
    wait for it.
    """
    away_ms: int = 500
    """A removed follower that did not fetch for this long was away: it is proposed as soon as it has caught up."""
    tick_ms: int = 100
    """Interval of `Replica.tick`."""
    late_ms: int = 200
    """A tick that is late by this much shows that this process did not run."""
    catch_up_bytes: int = 1 << 20
    """The leader waits for a follower this close to the end, so that it can catch up with a growing log."""
    catch_up_ms: int = 1_000
    """The longest such wait; after that the follower must come closer by itself."""
    keep_for_ms: int = 600_000
    """Retention keeps what a follower lacks if it fetched within this time; a later one begins at the log's start."""
    keep_guest_ms: int = 6 * 3_600_000
    """The longest time that a follower outside the set holds back retention; otherwise a client could keep the whole
    log. A follower that copies for longer gets another full copy from the log's start.
    """


@dataclass(slots=True)
class FollowerView:
    """A follower as its leader sees it; `acked` is -1 until it has acknowledged in this leadership."""

    acked: int = -1
    end: int = -1
    seen_ms: int = 0
    """The time of its last fetch or, if later, of the last answer to it."""
    waiting: bool = False
    """The leader holds one of its fetches."""
    address: str = ""
    """Raft mode: the address at which others reach it."""
    propose_again_ms: int = 0
    leaving: bool = False
    """It was removed while it fetched; this counts until `ask_again_ms`."""
    catch_up_until_ms: int = 0
    """The leader waits for it until then, so that it can propose it (rule 19)."""
    catch_up_again_ms: int = 0
    catch_up_from: int = -1
    """Its acknowledged offset when the leader last waited for it."""
    stalled_at: int = -1
    """Its acknowledged offset before and after that wait: it stores no records, so the leader does not wait until it
    does.
    """


Refused = Callable[[str, str, str], None]
"""Counts a refusal: (entrance, reason, text), as `refusals.Refusals.add` does."""


def ignore_refusal(entrance: str, reason: str, text: str) -> None:
    """Ignore a refusal, for a core without a service."""


@dataclass(slots=True)
class WritePause:
    """A handover under way: the leader buffers new sends (rule 23)."""

    target: MemberId
    version: int
    """Only an assignment above this version ends it."""
    ready: bool = False
    """The leader has reported that the target has everything: from then on a swap may happen."""


class Leader:
    """One leadership. Raises nothing: it refuses invalid input in the answer and reports it."""

    def __init__(
        self,
        me: MemberId,
        leadership: LeadershipRecord,
        log: Log,
        options: Options,
        now_ms: int,
        *,
        role_end: int,
        report: Callable[[str], None],
        refused: Refused = ignore_refusal,
    ) -> None:
        """`role_end`: the log's end when the member took the role."""
        self.me = me
        self.epoch = leadership.epoch
        self.recorded = leadership.in_sync
        self.version = leadership.version
        self.pause_writes: WritePause | None = None
        self._log = log
        self._options = options
        self._role_end = role_end
        self._report = report
        self._refused = refused
        self._reported: set[int] = set()
        self._guests: dict[int, int] = {}
        """By member number: since when the leader serves a follower outside the set."""
        self._proposals: list[InSyncSetProposal] = []
        self.followers: dict[MemberId, FollowerView] = {}  # Rule 4.
        for member in leadership.in_sync:
            if member != me:
                self._view(member, now_ms)

    # ---- confirmed records

    @property
    def own_end(self) -> int:
        """Return the leader's own acknowledgement, measured as the others' are (rule 11)."""
        if self._options.sync_flush:
            return self._log.flushed
        return self._log.end

    def waited_for(self) -> frozenset[MemberId]:
        """Rule 18: return the union of the recorded set, of every set proposed since, and of the follower that is
        about to join.
        """
        # The operator may apply a proposal late. Its members could then be promoted, so they need every record from the
        # moment of the proposal on.
        members = self.recorded
        for proposal in self._proposals:
            members |= proposal.in_sync
        if self.followers:
            members |= {m for m, view in self.followers.items() if view.catch_up_until_ms}
        return members

    def confirmable(self) -> int:
        """Rule 8: return what every member in `waited_for` has acknowledged, if the recorded set is large enough."""
        if len(self.recorded) < self._options.min_in_sync:
            return self._log.confirmed
        lowest = self.own_end
        for member in self.waited_for():
            if member != self.me:
                # Without an entry it has acknowledged nothing in this epoch. What it told a former leader may have been
                # cut since.
                view = self.followers.get(member)
                lowest = min(lowest, -1 if view is None else view.acked)
        return lowest

    def enough_alive(self, now_ms: int) -> bool:
        """Return whether the promise can be kept now; false means SLAVE_NOT_AVAILABLE without a wait for the
        time-out.
        """
        if len(self.recorded) < self._options.min_in_sync:
            return False
        alive = sum(1 for m in self.recorded if m == self.me or not self._silent(self.followers.get(m), now_ms))
        return alive >= self._options.min_in_sync

    # ---- fetches

    def acknowledge(self, fetch: Fetch, now_ms: int) -> FetchAnswer | None:
        """Take a fetch of this epoch as an acknowledgement. Returns an answer when it cannot count as one."""
        if fetch.member.member == self.me.member:
            return self._refuse(fetch, f"member {fetch.member} is this leader itself")
        other = self._holder(fetch.member, now_ms)
        if other is not None:
            reason = f"{fetch.member} is not a member here; {other} of the same number was heard recently"
            self._refused("fetch", "other-life", reason)
            return self._refuse(fetch, reason)
        log = self._log
        on_my_log = divergence(log.leader_epochs, log.end, fetch.leader_epochs, fetch.end)
        if self._is_impossible(fetch):
            return self._refuse_impossible(fetch)
        # Its log may end at an offset that this one has, with other bytes there: an end alone proves nothing.
        if on_my_log < fetch.end:
            return self._truncate(fetch, on_my_log)  # Rule 1: not an acknowledgement.
        view = self._admit(fetch.member, now_ms)
        if view.leaving and not view.waiting and now_ms - view.seen_ms >= self._options.away_ms:
            view.leaving, view.propose_again_ms = False, 0
        # Rule 11: a fetch is not an fsync.
        # The last word counts, not the highest: after a cut it has less than it acknowledged before.
        view.acked = fetch.flushed if self._options.sync_flush else fetch.end
        view.address = fetch.address or view.address
        view.end = fetch.end
        view.seen_ms = now_ms
        return None

    def answer(self, fetch: Fetch, now_ms: int) -> FetchAnswer | None:
        """Return records for an acknowledged fetch; None when its log ends where this one does."""
        if fetch.end < self._log.start:
            self.hold(fetch.member, False, now_ms)
            return self._reset(fetch, fetch.end)
        if fetch.end >= self._log.end:
            return None
        data = self._log.read_raw(fetch.end, fetch.max_bytes)  # Rule 6: whole records.
        return self.records(fetch, data, now_ms)

    def needed_from(self, now_ms: int) -> int:
        """Return the lowest acknowledgement of the followers that the leader waits for, or that fetched recently.

        A follower that is gone for good would otherwise hold back retention for this whole leadership.
        """
        waited, members = self.waited_for(), self.counted()
        needed = [
            view.acked
            for member, view in self.followers.items()
            if view.acked >= 0
            and (member in waited or view.waiting or now_ms - view.seen_ms <= self._options.keep_for_ms)
            and (member in members or now_ms - self._guests.get(member.member, now_ms) <= self._options.keep_guest_ms)
        ]
        return min(needed, default=self._log.end)

    def counted(self) -> frozenset[MemberId]:
        """Return the members whose acknowledgements may count: recorded or proposed."""
        return self.recorded.union(*(proposal.in_sync for proposal in self._proposals))

    def has_news(self, fetch: Fetch) -> bool:
        """Return whether the fetch misses a newer confirmed offset: worth an answer without records, if none come
        soon.
        """
        return fetch.confirmed < min(self._log.confirmed, fetch.end)

    def records(self, fetch: Fetch, data: bytes | memoryview, now_ms: int) -> FetchAnswer:
        """Return an answer with `data`, which may be empty when a held fetch ends."""
        view = self.followers.get(fetch.member)
        if view is not None:
            view.seen_ms = max(view.seen_ms, now_ms)
            view.waiting = False
        return self._answer(AnswerKind.RECORDS, fetch, data=data)

    def hold(self, member: MemberId, waiting: bool, now_ms: int) -> None:
        """Note whether the driver holds a fetch of `member`: a held fetch shows that the member is alive."""
        view = self.followers.get(member)
        if view is not None:
            view.waiting = waiting

    def _truncate(self, fetch: Fetch, to: int) -> FetchAnswer:
        if to < self._log.start:
            return self._reset(fetch, to)
        return self._answer(AnswerKind.TRUNCATE, fetch, to=to, divergence_offset=to)

    def _reset(self, fetch: Fetch, divergence_offset: int) -> FetchAnswer:
        to = self._log.start
        leader_epochs, state = truncate(self._log.leader_epochs, to), self._log.reset_state()
        return self._answer(
            AnswerKind.RESET, fetch, to=to, divergence_offset=divergence_offset, data=state, leader_epochs=leader_epochs
        )

    def _answer(
        self,
        kind: AnswerKind,
        fetch: Fetch,
        *,
        to: int = 0,
        divergence_offset: int = 0,
        data: bytes | memoryview = b"",
        leader_epochs: LeaderEpochs = (),
    ) -> FetchAnswer:
        log = self._log
        return FetchAnswer(
            kind, self.epoch, fetch.position, log.confirmed, log.end, to, divergence_offset, data, leader_epochs
        )

    def _refuse(self, fetch: Fetch, reason: str) -> FetchAnswer:
        return FetchAnswer(AnswerKind.REFUSED, self.epoch, fetch.position, reason=reason)

    def _is_impossible(self, fetch: Fetch) -> bool:
        """Rule 12. A log of former epochs may be longer than this one (it is truncated), but not one of this epoch."""
        too_long = fetch.end > self._log.end and last_epoch(fetch.leader_epochs) >= self.epoch
        return too_long or fetch.flushed > fetch.end

    def _refuse_impossible(self, fetch: Fetch) -> FetchAnswer:
        """Rule 12: report an acknowledgement beyond this log, once for each member, since such fetches may repeat
        endlessly.
        """
        reason = f"{fetch.member} acknowledges {max(fetch.end, fetch.flushed)}, but this log ends at {self._log.end}"
        self._refused("fetch", "range", reason)
        if fetch.member.member not in self._reported:
            self._reported.add(fetch.member.member)
            self._report(reason)
        return self._refuse(fetch, reason)

    # ---- the table of followers: one entry for each member number

    def _holder(self, member: MemberId, now_ms: int) -> MemberId | None:
        """Return the incarnation of the same number whose entry `member` must not take; None: `member` may take it.

        An incarnation that is recorded, proposed, or in the table goes first. Another one takes the entry only if the
        holder is silent or was not heard in this leadership. A disk has one incarnation at a time, so if two are heard,
        one of them is false.
        """
        if member in self.followers or member in self.counted():
            return None
        for other, view in self.followers.items():
            if other.member == member.member and view.acked >= 0 and not self._silent(view, now_ms):
                return other
        return None

    def _admit(self, member: MemberId, now_ms: int) -> FollowerView:
        """Return the entry of a member that fetched; a former incarnation of its number loses it."""
        if member not in self.followers:
            for other in [m for m in self.followers if m.member == member.member]:
                del self.followers[other]
        if member in self.counted():
            self._guests.pop(member.member, None)
        else:
            self._guests.setdefault(member.member, now_ms)
        return self._view(member, now_ms)

    def _view(self, member: MemberId, now_ms: int) -> FollowerView:
        view = self.followers.get(member)
        if view is None:
            view = self.followers[member] = FollowerView(seen_ms=now_ms)
        return view

    # ---- the in-sync set

    @property
    def proposal(self) -> InSyncSetProposal | None:
        """Return the set that this leader proposes; the operator applies it on its base version or rejects it."""
        return self._proposals[-1] if self._proposals else None

    def apply_record(self, leadership: LeadershipRecord, now_ms: int) -> None:
        """Take a newer version of the leadership record of this epoch (rule 14); it answers proposals on lower
        versions (rule 18).
        """
        answered = [a for a in self._proposals if a.base_version < leadership.version]
        for member in frozenset().union(*(a.in_sync for a in answered)) - leadership.in_sync:
            view = self.followers.get(member)
            if view is None:
                continue  # Another incarnation of its number has the entry.
            view.leaving, view.propose_again_ms = False, now_ms + self._options.propose_again_ms
        for member in self.recorded - leadership.in_sync:
            view = self.followers.get(member)
            if view is not None and not self._silent(view, now_ms):
                view.leaving, view.propose_again_ms = True, now_ms + self._options.removed_ms
        # A refusal raises the version, too. Before that, the leader must not stop waiting for those that it proposed.
        self._proposals = [a for a in self._proposals if a.base_version >= leadership.version]
        self.recorded, self.version = leadership.in_sync, leadership.version
        if self.pause_writes is not None and leadership.version > self.pause_writes.version:
            self.pause_writes = None

    def review(self, now_ms: int) -> None:
        """Propose the followers that have caught up (rule 17: only the operator removes)."""
        for view in self.followers.values():
            if view.catch_up_until_ms and now_ms >= view.catch_up_until_ms:
                view.catch_up_until_ms, view.catch_up_again_ms = 0, now_ms + self._options.catch_up_ms
                view.stalled_at = view.acked if view.acked == view.catch_up_from else -1
        if self._proposals or self.pause_writes is not None:
            return  # One proposal at a time; its answer raises the version.
        missing = [m for m in sorted(set(self.followers) - self.recorded) if self._may_be_proposed(m, now_ms)]
        caught_up = frozenset(m for m in missing if self._caught_up(self.followers[m], now_ms))
        if caught_up:
            self._proposals.append(InSyncSetProposal(self.version, self.recorded | caught_up))
            for view in self.followers.values():
                view.catch_up_until_ms = 0

    def _may_be_proposed(self, member: MemberId, now_ms: int) -> bool:
        if any(m.member == member.member for m in self.recorded):
            return False  # Two incarnations of one disk would count as two copies; the operator removes the former one.
        view = self.followers[member]
        return not self._silent(view, now_ms) and now_ms >= view.propose_again_ms

    def _caught_up(self, view: FollowerView, now_ms: int) -> bool:
        """Rule 19. The leader waits for a follower that is close; otherwise a growing log would always be ahead of
        it.
        """
        # Confirmed alone is too little: a new leader learns late what its predecessor had confirmed, and that lies
        # below the end at which it took the role.
        if view.acked >= self._log.confirmed and view.acked >= self._role_end:
            return True
        near = view.acked >= self._role_end and self._log.end - view.acked <= self._options.catch_up_bytes
        if near and not view.catch_up_until_ms and now_ms >= view.catch_up_again_ms and view.acked != view.stalled_at:
            view.catch_up_until_ms, view.catch_up_from = now_ms + self._options.catch_up_ms, view.acked
        return False

    def _silent(self, view: FollowerView | None, now_ms: int) -> bool:
        return view is None or (not view.waiting and now_ms - view.seen_ms > self._options.silent_ms)

    def extend_deadlines(self, late_ms: int, now_ms: int) -> None:
        """Extend deadlines by `late_ms`, in which this process stood still: silence in that time proves nothing."""
        for view in self.followers.values():
            view.seen_ms = min(now_ms, view.seen_ms + late_ms)
            if view.catch_up_until_ms:
                view.catch_up_until_ms += late_ms

    # ---- handover

    def pause_for(self, target: MemberId, version: int) -> str:
        """Begin a handover; return the reason for a refusal, or nothing. One at a time: a target that has everything
        may still get the role.
        """
        if self.pause_writes is None:
            self.pause_writes = WritePause(target, version)
        return "" if self.pause_writes.target == target else f"already hands over to {self.pause_writes.target}"

    def handed_over(self) -> bool:
        """Rule 23: return whether the target has all records and no follower outstanding can still change that."""
        if self.pause_writes is None:
            return False
        view = self.followers.get(self.pause_writes.target)
        # To the end of the log, not to the confirmed offset: under Async the rest was acknowledged as well.
        has_all = view is not None and view.acked >= self._log.end
        promised = self._log.confirmed >= self._log.end or len(self.recorded) < self._options.min_in_sync
        return has_all and promised

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself; for tests and simulations, after any call."""
        for member, view in self.followers.items():
            # Rule 12: an acknowledgement beyond this log's end was refused.
            assert -1 <= view.acked <= self._log.end, f"{member} acknowledged {view.acked}, the log ends earlier"
        numbers = [member.member for member in self.followers]
        assert len(numbers) == len(set(numbers)), "two incarnations of one disk count"  # Rule 16.
        assert self.me not in self.followers, "the leader follows itself"
        for proposal in self._proposals:
            assert proposal.base_version >= self.version, "a proposal outlived its answer"  # Rule 18.
            assert proposal.in_sync <= self.waited_for(), "does not wait for a member that it proposed"  # Rule 18.
        pause = self.pause_writes
        assert pause is None or pause.target != self.me, "hands over to itself"
