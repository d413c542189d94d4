"""One member of a group in MasterSlave mode: the state machine that keeps the rules.

The rules in short (docs/replication.md has the full text):

- The member writes an assignment to disk before it acts, and never acts on an older one (14, 15).
- A member that stops being leader answers its waiting sends before anything else (10).
- A higher epoch seen anywhere ends a leadership at once, but is no assignment (14).
- A leadership begins with a control record (7) and an empty table of acknowledgements (4). It begins once: a leader
  that restarts waits for a new epoch (21).
- A name in a leadership record means exactly this (member, incarnation) (16).

Every input is a call with the time. Outputs are answers, calls of the two ports, and the statuses of waiting sends. One
`Replica` is one life of a process: what must survive a restart is in `HardState` and in the log.
"""

from __future__ import annotations

from collections.abc import Callable

from gantry_broker.contracts.leadership import Assignment, LeadershipRecord, MemberId
from gantry_broker.protocol import plausible
from gantry_broker.protocol.codes import SendStatus
from gantry_broker.replication.core import MOVING_MS, Assigned, MemberCore, Moving, Role
from gantry_broker.replication.epochs import last_epoch
from gantry_broker.replication.follower import Follower
from gantry_broker.replication.leader import Leader, Options, Refused, ignore_refusal
from gantry_broker.replication.messages import Fetch, meant_for
from gantry_broker.replication.ports import Log, StateDisk
from gantry_broker.replication.state import HardState


class Replica(MemberCore):
    """See the module. Not safe for threads; the port calls are synchronous."""

    def __init__(
        self,
        state: HardState,
        log: Log,
        disk: StateDisk,
        options: Options,
        *,
        report: Callable[[str], None] = lambda text: None,
        refused: Refused = ignore_refusal,
        now_ms: int = 0,
    ) -> None:
        """Return a start of the process. `state.me` has a new incarnation already if the disk proves nothing (rule 16).

        `report` gets texts for a person: an impossible acknowledgement, a follower that stopped. `refused(entrance,
        reason, text)` counts a value that no correct member sends (`refusals.Refusals.add`).
        """
        super().__init__(state, log, disk, options, "no assignment yet", report, refused)
        # The log's epochs count as well: the file may be an old copy, and would let an old assignment in.
        self._highest_seen_epoch = max(state.leadership.epoch, last_epoch(log.leader_epochs))
        self._go_on(now_ms)

    def _go_on(self, now_ms: int) -> None:
        """Rule 21: a follower goes on following; a leader waits for a new epoch, which may be its own again."""
        leadership = self._state.leadership
        if leadership.master is None:
            return
        if not self._is_me(leadership.master):
            if leadership.master.member != self.me.member:
                self._follow()
            else:
                self.reason = (
                    f"this disk is a new incarnation ({self.me}); the leadership record names {leadership.master}"
                )
        else:
            self.reason = f"restarted as the master of epoch {leadership.epoch}: waits for a new epoch"

    # ---- state

    @property
    def leadership(self) -> LeadershipRecord:
        """The newest assignment that it holds."""
        return self._state.leadership

    @property
    def highest_seen_epoch(self) -> int:
        return self._highest_seen_epoch

    @property
    def state(self) -> HardState:
        return self._state

    @property
    def role(self) -> Role:
        if self.leader is not None:
            return Role.MASTER
        return Role.SLAVE if self.follower is not None else Role.WAITING

    # ---- assignments

    def assign(self, assignment: Assignment, now_ms: int) -> Assigned:
        """Take an assignment; refuse it when it is older than the present one (rules 14, 15) or impossible."""
        leadership, held = assignment.leadership, self._state.leadership
        refusal = self._refusal(leadership)
        if refusal:
            return Assigned(False, refusal)
        if assignment == self._held:
            return Assigned(True, self.reason)  # A repeated assignment.
        paused_for = self._paused_for
        new_epoch = leadership.epoch != held.epoch
        if new_epoch:
            # If the write below fails, they are answered all the same, and the role is gone.
            self.stop(f"epoch {leadership.epoch} under {leadership.master}")  # Rule 10: the waiting sends first.
        state = HardState(self.me, leadership, assignment.leader_address, assignment.unclean)
        self._disk.save(state)  # Rule 15: on disk before it is acted upon.
        self._state = state
        self._highest_seen_epoch = max(self._highest_seen_epoch, leadership.epoch)
        if self.leader is not None:
            self.leader.apply_record(leadership, now_ms)
            self.leader.review(now_ms)
            self._confirm()
            done = Assigned(True)
        else:
            done = self._take_role(new_epoch, now_ms)
        self._end_handover(paused_for, assignment)
        return done

    def _end_handover(self, paused_for: MemberId | None, assignment: Assignment) -> None:
        """Rule 23: an assignment says where the sends go that were buffered until it came.

        They are forwarded only to the member for which writes were paused: it had the whole log then. Under another
        leader a send may already be stored that its client sent later, so they are refused, and their clients ask for
        the route again.
        """
        self._moving = None
        if self.leader is not None:
            self.handed_to = None
        elif paused_for is not None:
            self.handed_to = assignment.leader_address if assignment.leadership.master == paused_for else None

    @property
    def _held(self) -> Assignment:
        return Assignment(self._state.leadership, self._state.leader_address, self._state.unclean)

    def _refusal(self, leadership: LeadershipRecord) -> str:
        held = self._state.leadership
        if leadership.order < held.order:
            return (
                f"holds epoch {held.epoch} version {held.version}, "
                f"received epoch {leadership.epoch} version {leadership.version}"
            )
        # One version with two contents: members would wait for two different sets.
        if leadership.order == held.order and leadership != held:
            return f"epoch {leadership.epoch} version {leadership.version} was assigned before with other content"
        if self.highest_seen_epoch and (jump := plausible.jump_refusal(self.highest_seen_epoch, leadership.epoch)):
            self._refused("assignment", "epoch-jump", jump)  # A member that knows no epoch yet takes any epoch.
            return f"{jump}; a member that was away for longer must begin with an empty disk"
        newest = last_epoch(self._log.leader_epochs)
        if leadership.epoch < newest:
            return f"its log has epoch {newest}, received epoch {leadership.epoch}: the registry is older than the log"
        if leadership.master is None:
            return f"epoch {leadership.epoch} names no master"
        return ""

    def _take_role(self, new_epoch: bool, now_ms: int) -> Assigned:
        leadership = self._state.leadership
        assert leadership.master is not None
        if self._is_me(leadership.master):
            # It may have appended in this epoch before: going on would put two records of one epoch at one offset.
            if not new_epoch:
                self.reason = f"was the master of epoch {leadership.epoch} before: waits for a new epoch"  # Rule 21.
                return Assigned(True, self.reason)
            if leadership.epoch < self.highest_seen_epoch:
                self.reason = (
                    f"saw epoch {self.highest_seen_epoch}, above its own {leadership.epoch}: waits for a new epoch"
                )
                return Assigned(True, self.reason)
            self._lead(now_ms)
            return Assigned(True)
        if leadership.master.member == self.me.member:
            # Rule 16: a former incarnation was promoted; it cannot be this disk.
            self.follower = None
            self.reason = (
                f"epoch {leadership.epoch} names {leadership.master} as master, but this disk is now {self.me}"
            )
            return Assigned(False, self.reason)
        self._follow()
        return Assigned(True)

    def _is_me(self, master: MemberId) -> bool:
        return master == self.me  # Rule 16.

    def saw_epoch(self, epoch: int, now_ms: int) -> None:
        """Note a higher epoch: it stops a leader at once and is no assignment (rule 14). An impossible one changes
        nothing. Writes that were paused stay so until the new leader has a name, or for `MOVING_MS`.
        """
        if epoch <= self.highest_seen_epoch or not plausible.possible_successor(self.highest_seen_epoch, epoch):
            return
        paused_for = self._paused_for
        self._highest_seen_epoch = epoch
        if self.leader is not None:
            self.stop(f"saw epoch {epoch}, above its own {self.leadership.epoch}: waits for an assignment")
        if paused_for is not None:
            self._moving = Moving(paused_for, now_ms + MOVING_MS)

    # ---- roles

    def _lead(self, now_ms: int) -> None:
        leadership = self._state.leadership
        # Before the control record: a follower is in sync when it has all that may have been promised before this role.
        role_end = self._log.end
        self.follower = None
        self._log.begin_epoch(leadership.epoch, now_ms)  # Rule 7, also when the leader stays the same.
        self._control_end = self._log.end
        self.leader = Leader(
            self.me,
            leadership,
            self._log,
            self.options,
            now_ms,
            role_end=role_end,
            report=self._report,
            refused=self._refused,
        )
        self.reason = ""
        self._confirm()

    def _follow(self) -> None:
        leadership = self._state.leadership
        assert leadership.master is not None
        held = self.follower
        unchanged = held is not None and held.epoch == leadership.epoch and held.unclean is self._state.unclean
        if held is not None and unchanged and not held.stopped:
            return
        self.follower = Follower(
            self.me,
            leadership.epoch,
            leadership.master,
            self._log,
            unclean=self._state.unclean,
            report=self._report,
        )
        self.reason = ""

    # ---- the leader

    def epoch_counts(self, fetch: Fetch) -> bool:
        return meant_for(self.me, fetch) and fetch.member in self.leadership.in_sync

    def tick(self, now_ms: int) -> None:
        """Check deadlines and silent followers; every `tick_ms` while there is a role."""
        self._late_ms(now_ms)
        self._end_moving(now_ms)
        self.waiters.expire(now_ms, self._log.flushed, self.options.sync_flush)
        if self.leader is not None:
            self.leader.review(now_ms)
            self._confirm()
            if len(self.waiters) and self.options.sync_replication and not self.leader.enough_alive(now_ms):
                self.waiters.fail(SendStatus.SLAVE_NOT_AVAILABLE)

    def _settle(self) -> None:
        if self.options.sync_replication or self.leader is None:
            self.waiters.reached(self._log.confirmed)
        else:
            self.waiters.reached(self.leader.own_end)  # Rule 8: under Async only SEND_OK comes earlier.

    # ---- handover (rule 23)

    def _pause_refusal(self, leader: Leader, target: MemberId, version: int) -> str:
        if version != leader.version:
            return f"holds version {leader.version} of the leadership record, the request is on version {version}"
        # A promotion only writes a subset of the recorded set: another target may lack promised records.
        return "" if target in leader.recorded else f"{target} is not in the in-sync set"

    def handed_over(self) -> bool:
        """Return whether the target of the handover has everything; once true, only a leadership record ends the
        write pause.
        """
        leader = self.leader
        if leader is None or leader.pause_writes is None or not leader.handed_over():
            return False
        leader.pause_writes.ready = True
        return True

    def give_up_handover(self) -> None:
        """Resume writes when the target was too slow. After `handed_over` has returned true, this changes nothing."""
        # Once it reported the target ready, the swap may be under way: what it appended now would be missing there.
        if self.leader is not None and self.leader.pause_writes is not None and not self.leader.pause_writes.ready:
            self.leader.pause_writes = None
