"""The failover of one group in mode MasterSlave: observe, decide, swap, assign, announce.

One pass reads the registry, collects the members' reports, calls `decide`, and acts on the result. A pass follows every
event at once, and a timer otherwise. The pass awaits the swap. Assignments are sent in the background, so that a member
that does not answer delays no other. A pass that raises is reported, and the next one follows.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

from gantry_broker.contracts.leadership import Assignment, LeadershipRecord, MemberId
from gantry_broker.protocol import plausible

from gantry_operator.cluster.group_controller import HANDOVER_AGAIN_S, HANDOVER_MS, GroupController, SwitchoverFailed
from gantry_operator.cluster.member_http import httpx
from gantry_operator.cluster.member_watch import MemberWatch
from gantry_operator.cluster.platform import Change, FailoverPlatform, MemberEndpoint
from gantry_operator.cluster.stall_compensated_clock import StallCompensatedClock
from gantry_operator.failover.choose_leader import decide
from gantry_operator.failover.model import (
    Bootstrap,
    CancelHandover,
    Demote,
    ExpandInSyncSet,
    FailoverSettings,
    HandoverReady,
    MemberView,
    Observation,
    Promote,
    Recover,
    RejectProposal,
    RequestHandover,
    Retire,
    SendAssignment,
    ShrinkInSyncSet,
    Switchover,
    Wait,
    Write,
)
from gantry_operator.registry.base import Entry, RegistryUnavailable, RoleRegistry

log = logging.getLogger(__name__)

READY_S = 2.0
"""Seconds within which a ready handover is recorded or ended. The leader pauses writes for longer than that. The
wait for the new leader has the same limit.
"""
ANNOUNCE_AFTER_S = 1.0
"""Seconds for which the move of the address waits until the old leader has forwarded its paused writes."""


PROMOTION_REASONS = {"handover": "SwitchoverStarted", "unclean": "UncleanFailoverStarted"}
"""The event reason of a promotion, by its kind; any other kind: FailoverStarted."""
WRITE_REASONS: dict[type, str] = {
    Bootstrap: "GroupBootstrapped",
    Recover: "RegistryRecovered",
    Retire: "GroupRetired",
    ShrinkInSyncSet: "InSyncSetShrunk",
    ExpandInSyncSet: "InSyncSetExpanded",
    RejectProposal: "InSyncSetProposalRejected",
    CancelHandover: "HandoverCancelled",
}
"""The event reason of every other write to the registry."""


class MasterSlaveController(GroupController):
    """The controller of one group in mode MasterSlave: the operator decides about the leader."""

    def __init__(
        self,
        group: str,
        registry: RoleRegistry,
        platform: FailoverPlatform,
        client: httpx.AsyncClient,
        settings: Callable[[], FailoverSettings],
        clock: StallCompensatedClock | None = None,
    ) -> None:
        super().__init__(group, platform, client, settings, clock)
        self.entry: Entry | None = None
        self._registry = registry
        self._goals: dict[MemberId, tuple[int, int, float]] = {}
        """By follower: an epoch, the end of the leader's log in it, and the time."""
        self._switchover: Switchover | None = None
        self._handover_requested = False
        self._handover_ready: tuple[HandoverReady, float] | None = None
        self._handover_not_before = 0.0
        self._handover_problem = ""
        """Why the last handover for the present request failed."""
        self._waited_for: Wait | None = None
        """Why the last pass waited without a handover. A handover for another reason may be under way."""
        self._recorded_until = 0.0
        self._promoting = False
        """The last pass found that another leader is needed. Recording it may fail."""
        self._pending_change: tuple[Promote, float] | None = None
        self._unsure: tuple[Write, dict[MemberId, str]] | None = None
        """A write with unknown outcome, and the members' names."""

    # ---- called from outside

    @property
    def leadership(self) -> LeadershipRecord | None:
        return None if self.entry is None else self.entry.leadership

    async def _perform_switchover(self, request: Switchover, deadline: float) -> str:
        while self.leadership is None and self._keep_waiting(request, deadline, under_way=False):
            await self.next_look()  # The former leader is not known yet.
        before = self.leadership
        self._switchover = request
        self._handover_not_before, self._handover_problem = 0.0, ""
        try:
            while self._keep_waiting(request, deadline, self._under_way()):
                await self.next_look()
                leadership = self.leadership
                if before is None or leadership is None or leadership.master is None or not self._leads(leadership):
                    continue
                name = self.watches[leadership.master.member].name
                if leadership.epoch == before.epoch and leadership.master.member == request.to:
                    return f"{name} is master already"
                if leadership.epoch > before.epoch and request.fulfilled(before.master, leadership.master):
                    return f"{name} leads {self.group} in epoch {leadership.epoch}"
        finally:
            self._switchover = None
        # The reason of the last pass is outdated if no pass is possible now.
        failed = self._handover_problem or self._problems.get("pass", "")
        why = failed or (self._waited_for.reason if self._waited_for is not None else "") or self.problem
        raise SwitchoverFailed(why or "no new master took over in time")

    def _under_way(self) -> bool:
        """Return whether a handover was requested, is ready, is being recorded, or was recorded just now."""
        now, ready = time.monotonic(), self._handover_ready
        return self._handover_requested or now <= self._recorded_until or (ready is not None and now <= ready[1])

    def _leads(self, leadership: LeadershipRecord) -> bool:
        """Return whether the recorded leader reports that it leads."""
        watch = None if leadership.master is None else self.watches.get(leadership.master.member)
        if watch is None or watch.report is None or watch.reach != "ok":
            return False
        report = watch.report
        return report.id == leadership.master and report.role == "Master" and report.epoch == leadership.epoch

    # ---- the pass

    def _changing(self) -> bool:
        return self._promoting or self._pending_change is not None

    async def _pass(self) -> bool:
        """Look and act once. True: the leadership record changed, so look again at once."""
        endpoints = list(self._platform.members(self.group))
        self._follow(endpoints)
        self.entry = await self._registry.read(self.group)
        self._look_for_write()
        obs = self.observe(endpoints)
        self._look_for_role(obs)
        decisions = decide(obs)
        # An assignment may fail. It is sent again soon, not only at the next event.
        self._unfinished = bool(decisions)
        self._promoting = any(isinstance(d, Promote) and d.kind != "handover" for d in decisions)
        wait = next((d for d in decisions if isinstance(d, Wait)), None)
        self._note_wait(wait)
        if self._promoting and self._noticed_at is None:
            self._noticed_at = time.monotonic()
        if wait is None or wait.code != "handover":
            self._waited_for = wait
        for decision in decisions:
            if isinstance(decision, SendAssignment | Demote):
                self._send_assignment(decision.member, decision.assignment)
            elif isinstance(decision, RequestHandover):
                self._request_handover(decision)
            elif not isinstance(decision, Wait):
                return await self._write(obs, decision)
        await self._announce_if_due(endpoints)
        return False

    def observe(self, endpoints: list[MemberEndpoint]) -> Observation:
        """Return the present observation of the group."""
        now = self._clock.now()
        settings = self._settings()
        leadership = self.leadership
        views = []
        for e in endpoints:
            watch = self.watches[e.member]
            process_state = self._platform.process_state(e.name)
            report, heard_at = watch.last
            age = int((now - heard_at) * 1000)
            reach, reach_ms = watch.reach, int((now - watch.reach_at) * 1000)
            if reach == "ok" and age >= settings.detection_ms:
                reach, reach_ms = "silent", age
            if self._unusable(e.member, None if leadership is None else leadership.epoch):
                # It counts as a member that does not answer. Its last usable report remains.
                reach, reach_ms = "silent", int((now - self._unusable_since[e.member]) * 1000)
                if not watch.unusable:
                    report = None
            refused = "" if leadership is None else self._member_client.refusal(e.member, leadership)
            accepted = (0, 0) if report is None else report.order
            views.append(
                MemberView(
                    number=e.member,
                    name=e.name,
                    address=e.replication_address,
                    report=report,
                    age_ms=age,
                    reach=reach,
                    reach_ms=reach_ms,
                    gone=process_state.gone,
                    deleting=process_state.deleting,
                    never_ran=process_state.never_ran,
                    pending=self._member_client.pending(e.member, heard_at, accepted),
                    assigned_order=self._member_client.assigned_order(e.member),
                    accepted_order=self._member_client.accepted_order(e.member),
                    assigned_unclean=self._member_client.assigned_unclean(e.member),
                    stalled_ms=self._stalled_ms(leadership, watch, now),
                    refused=refused,
                    lacks_token=self._member_client.lacks_token(e.member),
                    refused_ms=int(self._member_client.refusing_s(e.member) * 1000) if refused else 0,
                )
            )
        ready = self._handover_ready
        if ready is not None and time.monotonic() > ready[1]:
            # The old leader takes writes again soon, and its successor would lack them.
            ready = self._handover_ready = None
        return Observation(
            group=self.group,
            members=tuple(views),
            leadership=leadership,
            settings=settings,
            switchover=self._switchover,
            handover=None if ready is None else ready[0],
            handover_requested=self._handover_requested,
        )

    def _stalled_ms(self, leadership: LeadershipRecord | None, follower: MemberWatch, now: float) -> int:
        """Milliseconds for which a follower has not acknowledged the records that its leader had at the start of
        that time.
        """
        if leadership is None or leadership.master is None or follower.report is None:
            return 0
        id = follower.report.id
        master = self.watches.get(leadership.master.member)
        if master is None or master.report is None or id == leadership.master or id not in leadership.in_sync:
            self._goals.pop(id, None)
            return 0
        acked = next((f.acked for f in master.report.followers if f.id == id), -1)
        epoch, goal, since = self._goals.get(id, (0, 0, now))
        if epoch != leadership.epoch or acked >= goal:
            self._goals[id] = (leadership.epoch, master.report.end, now)
            return 0
        return int((now - since) * 1000)

    # ---- actions

    async def _write(self, obs: Observation, write: Write) -> bool:
        names = {m.report.id: m.name for m in obs.members if m.report is not None}
        # A damaged report may name any epoch. Once recorded, a huge one would leave no room for later leaders.
        jump = plausible.jump_refusal(
            write.leadership.epoch if self.leadership is None else self.leadership.epoch, write.leadership.epoch
        )
        if jump or write.leadership.version > plausible.MAX_EPOCH:
            self._report_problem(
                "record", f"not recorded: {jump or f'version {write.leadership.version} is out of range'}"
            )
            return False
        self._solved("record")
        if isinstance(write, Promote):
            self._recorded_until = math.inf
        try:
            # The whole old record is compared: two operators that each name a leader for one epoch would split the log.
            swapped = await self._registry.swap(self.group, self.entry, write.leadership)
        except RegistryUnavailable:
            # It may be written all the same. `_look_for_write` finds out, so that the change is reported once.
            self._unsure = (write, names)
            raise
        finally:
            if isinstance(write, Promote):
                self._recorded_until = 0.0
        if swapped:
            self._written(write, names)
        else:
            log.info("group %s: another program has written the leadership record; looking again", self.group)
        return True

    def _look_for_write(self) -> None:
        """Look for a write whose answer was lost: it succeeded if the registry holds the new record. An older record
        proves nothing yet.
        """
        if self._unsure is None or self.leadership is None:
            return
        write, names = self._unsure
        if self.leadership == write.leadership:
            self._written(write, names)
        elif self.leadership.order >= write.leadership.order:
            self._unsure = None

    def _written(self, write: Write, name: dict[MemberId, str]) -> None:
        """Act on a record that the registry has accepted."""
        now = time.monotonic()
        self._unsure = self._handover_ready = None
        request = self._switchover
        if isinstance(write, Promote) and request is not None and request.fulfilled(write.old, write.new):
            self._switchover = None
        if isinstance(write, Promote):
            self._recorded_until = now + READY_S
            noticed = self._noticed_at if self._noticed_at is not None and write.kind != "handover" else now
            self._promoting = False
            self._pending_change = (write, noticed)
            message = (
                f"{name.get(write.new, write.new)} becomes master in epoch {write.leadership.epoch}: {write.reason}"
            )
            kind = "Normal" if write.kind in ("handover", "restart") else "Warning"
            self._event(kind, PROMOTION_REASONS.get(write.kind, "FailoverStarted"), message)
        else:
            self._event("Normal", WRITE_REASONS[type(write)], write.reason)

    def _send_assignment(self, member: int, assignment: Assignment) -> None:
        watch = self.watches[member]
        is_master = assignment.leadership.master is not None and assignment.leadership.master.member == member
        then: Callable[[], None] | None = self._master_took_role if is_master else None
        self._member_client.send_assignment(member, watch.url, assignment, then)

    def _look_for_role(self, obs: Observation) -> None:
        """Look for an assignment whose answer was lost: the new leader's own status line confirms that it leads."""
        if self._pending_change is not None:
            promoted = self._pending_change[0]
            reports = (m.report for m in obs.members if m.report is not None and m.report.id == promoted.new)
            if any(r.role == "Master" and r.epoch == promoted.leadership.epoch for r in reports):
                self._master_took_role()

    def _master_took_role(self) -> None:
        change = self._pending_change
        if change is None:
            return
        promoted, noticed = change
        self._pending_change, self._noticed_at = None, None
        names = {w.report.id: w.name for w in self.watches.values() if w.report is not None}
        numbers = {n: w.name for n, w in self.watches.items()}
        old = None if promoted.old is None else names.get(promoted.old, numbers.get(promoted.old.member))
        done = Change(
            group=self.group,
            old=old,
            new=names.get(promoted.new, numbers.get(promoted.new.member, str(promoted.new))),
            reason=promoted.reason,
            epoch=promoted.leadership.epoch,
            at_unix_ms=time.time_ns() // 1_000_000,
            duration_ms=int((time.monotonic() - noticed) * 1000),
            planned=promoted.kind == "handover",
            kind=promoted.kind,
        )
        self._platform.changed(done)

    def _request_handover(self, ask: RequestHandover) -> None:
        if self._handover_requested or time.monotonic() < self._handover_not_before:
            return
        self._handover_requested = True
        self._spawn(self._handover(ask, self.watches[ask.master].url))

    async def _handover(self, ask: RequestHandover, url: str) -> None:
        try:
            ready, reason = await self._member_client.handover(url, ask.target, ask.leadership, HANDOVER_MS)
            if ready:
                expires = time.monotonic() + READY_S
                self._handover_ready = (HandoverReady(ask.leadership.order, ask.target, ask.reason), expires)
            else:
                self._handover_not_before = time.monotonic() + HANDOVER_AGAIN_S
                if ask.request is not None and ask.request is self._switchover:
                    self._handover_problem = reason
        finally:
            self._handover_requested = False
            self.wake()

    async def _announce_if_due(self, endpoints: list[MemberEndpoint]) -> None:
        leadership = self.leadership
        if leadership is None or leadership.master is None or not self._may_announce(leadership.epoch):
            return
        master = next((e for e in endpoints if e.member == leadership.master.member), None)
        # A member that does not report the role yet would refuse the clients that the address leads to it.
        if master is None or not self._leads(leadership) or self._old_master_forwards():
            return
        self._spawn(self._announce(master, leadership.epoch))

    def _old_master_forwards(self) -> bool:
        """Rule 23: announce the address after the old leader's paused writes are stored, to keep their order."""
        if self._announced == 0 or not self._member_client.any_underway():
            return False
        pauses = any(w.report is not None and w.report.writes_paused and w.reach == "ok" for w in self.watches.values())
        return pauses and self._member_client.busy_for_s() < ANNOUNCE_AFTER_S
