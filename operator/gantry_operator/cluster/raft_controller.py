"""The controller of a group in mode Raft, which elects its leader by itself.

The controller watches the group, moves its address, and requests leadership transfers. It records and assigns nothing:
the members' reports are authoritative, and the highest epoch wins. A leader with a full disk, or one that is about to
be stopped, is asked to hand over.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from gantry_broker.contracts.leadership import LeadershipRecord, MemberId

from gantry_operator.cluster.group_controller import (
    EVENT_AFTER_S,
    HANDOVER_AGAIN_S,
    HANDOVER_MS,
    GroupController,
    SwitchoverFailed,
)
from gantry_operator.cluster.member_watch import MemberWatch
from gantry_operator.cluster.platform import Change, MemberEndpoint
from gantry_operator.failover.model import Report, Switchover, Wait
from gantry_operator.failover.raft import keeping_up, leader_of, transfer_candidates
from gantry_operator.failover.second_site import STANDBY

ELECTED_S = 2.0
"""Seconds to wait for a leader that another leader has named as its successor."""
START_S = 15.0
"""Seconds before a missing leader is reported after a start of the members."""


@dataclass(frozen=True, slots=True)
class _Transfer:
    """A request for a leadership transfer."""

    target: MemberId
    epoch: int
    """The epoch of the leader that got the request."""
    reason: str
    since: float
    """Time of the request, by the monotonic clock."""


class RaftController(GroupController):
    """The controller of one group in mode Raft."""

    _leadership: LeadershipRecord | None = None
    _request: Switchover | None = None
    _requested_at = 0.0
    _asked = False
    _transfer_asked: _Transfer | None = None
    _handed_over = 0
    """The epoch whose leader now reports another leader."""
    _handed_over_until = 0.0
    """Time until which that leader is awaited."""
    _not_before = 0.0
    _refused = ""
    _removing = False
    _removed_in: tuple[int, int] | None = None
    """(epoch, version) in the leader's line at the last removal of a member."""
    _stuck_since: float | None = None
    _former: tuple[int, ...] = ()

    @property
    def still_counted(self) -> Sequence[int]:
        return self._former

    @property
    def leadership(self) -> LeadershipRecord | None:
        """As the leader reports: its epoch, the number of member changes, the voters. The last known values without
        a leader.
        """
        return self._leadership

    def in_sync(self, report: Report) -> bool:
        watch = self.leader_watch
        leader = None if watch is None else watch.report
        return leader is not None and leader.role == "Master" and report.id in keeping_up(leader)

    async def _perform_switchover(self, request: Switchover, deadline: float) -> str:
        while self._leadership is None and self._keep_waiting(request, deadline, under_way=False):
            await self.next_look()  # The leader is not known yet.
        before = self._leadership
        if before is None or before.master is None:
            raise SwitchoverFailed(f"{self.group} has no leader that could hand over: it elects one by itself")
        if request.to == before.master.member and self.waits is None:
            return f"{self.watches[request.to].name} is master already"
        self._request, self._refused, self._not_before = request, "", 0.0
        self._requested_at = time.monotonic()
        try:
            while self._keep_waiting(request, deadline, self._asked or time.monotonic() <= self._handed_over_until):
                await self.next_look()
                now = self._leadership
                if now is None or now.master is None or now.epoch <= before.epoch:
                    continue
                if request.fulfilled(before.master, now.master):
                    return f"{self.watches[now.master.member].name} leads {self.group} in epoch {now.epoch}"
        finally:
            self._request = None
        raise SwitchoverFailed(self._refused or "no new leader took over in time")

    def _patience_s(self) -> float:
        return START_S if self._leadership is None else EVENT_AFTER_S

    async def _pass(self) -> bool:
        endpoints = list(self._platform.members(self.group))
        self._follow(endpoints)
        heard = self._heard(endpoints)
        leader = leader_of([w.report for w in heard if w.report is not None])
        if leader is None and heard and all(w.report is not None and w.report.standby for w in heard):
            self._leadership = None
            self._note_wait(Wait(STANDBY, "the group follows the archive of another cluster, so no member leads"))
            return False
        if leader is None:
            self._note_wait(Wait("election-in-progress", self._why_no_leader(heard, endpoints), available=False))
            return False
        noticed_at = self._noticed_at  # Before the request is forgotten, since the wait is over.
        self._note_wait(None)
        former, self._leadership = (
            self._leadership,
            LeadershipRecord(leader.epoch, leader.version, leader.id, leader.in_sync),
        )
        if former is None or former.epoch != leader.epoch:
            self._leads(leader, former, noticed_at)
        self._announce_if_due(endpoints, leader)
        self._start_handover(heard, leader)
        self._remove_former(endpoints, leader)
        return False

    def _heard(self, endpoints: list[MemberEndpoint]) -> list[MemberWatch]:
        detection = self._settings().detection_ms / 1000
        able = []
        for e in endpoints:
            watch = self.watches[e.member]
            usable = not self._unusable(e.member, None if self._leadership is None else self._leadership.epoch)
            answers = watch.reach == "ok" and usable and self.silence_s(e.member) < detection
            if answers and not self._platform.process_state(e.name).gone:
                able.append(watch)
        return able

    def _why_no_leader(self, heard: list[MemberWatch], endpoints: list[MemberEndpoint]) -> str:
        away = [e.name for e in endpoints if self.watches[e.member] not in heard]
        if 2 * len(heard) <= len(endpoints):
            return f"no majority: {', '.join(away)} does not answer"
        waits = [f"{w.name}: {reason}" for w in heard if (reason := str((w.status or {}).get("reason", "")))]
        parts = ["the members elect a leader", *([f"{', '.join(away)} does not answer"] if away else []), *waits]
        return "; ".join(parts)

    def _leads(self, leader: Report, former: LeadershipRecord | None, noticed_at: float | None) -> None:
        name = self.watches[leader.id.member].name
        transfer, self._transfer_asked = self._transfer_asked, None
        self._handed_over_until = 0.0
        if former is None or former.master is None:
            # The state before this watch is not known, so this is no change.
            self._event("Normal", "LeaderDiscovered", f"{name} leads epoch {leader.epoch}")
            return
        if self._request is not None and self._request.fulfilled(former.master, leader.id):
            self._request = None
        now = time.monotonic()
        started = noticed_at if noticed_at is not None else now
        planned, reason = False, "elected by the group"
        if transfer is not None and (transfer.target, transfer.epoch) == (leader.id, former.epoch):
            planned, reason, started = True, transfer.reason, transfer.since
        old = self.watches.get(former.master.member)
        self._event("Normal" if planned else "Warning", "LeadershipTransferred" if planned else "LeaderElected",
                    f"{name} leads epoch {leader.epoch}: {reason}")  # fmt: skip
        self._platform.changed(
            Change(
                group=self.group,
                old=None if old is None else old.name,
                new=name,
                reason=reason,
                epoch=leader.epoch,
                at_unix_ms=time.time_ns() // 1_000_000,
                duration_ms=int((now - started) * 1000),
                planned=planned,
                kind="handover" if planned else "election",
            )
        )

    def _announce_if_due(self, endpoints: list[MemberEndpoint], leader: Report) -> None:
        if not self._may_announce(leader.epoch):
            return
        master = next(e for e in endpoints if e.member == leader.id.member)
        self._spawn(self._announce(master, leader.epoch))

    def _start_handover(self, heard: list[MemberWatch], leader: Report) -> None:
        if self._asked or time.monotonic() < self._not_before or leader.epoch == self._handed_over:
            return
        able = transfer_candidates(
            leader, [w.report for w in heard if w.report is not None and not self._sick(w.report)]
        )
        # A request that cannot be fulfilled does not keep a leader that should not lead.
        for request in (self._request, self._sick(leader)):
            if request is None or request.to == leader.id.member:
                continue
            chosen = [r for r in able if request.to in (None, r.id.member)]
            if chosen:
                self._ask(request, chosen[0].id, leader)
                return
            if request is self._request:
                none = "no member that could lead answers"
                self._refused = none if request.to is None else f"member {request.to} cannot lead"

    def _ask(self, request: Switchover, target: MemberId, leader: Report) -> None:
        self._asked = True
        since = self._requested_at if request is self._request else time.monotonic()
        self._transfer_asked = _Transfer(target, leader.epoch, request.reason, since)
        leadership = LeadershipRecord(leader.epoch, leader.version, leader.id, leader.in_sync)
        self._spawn(self._transfer(self.watches[leader.id.member].url, target, leadership, request))

    def _remove_former(self, endpoints: list[MemberEndpoint], leader: Report) -> None:
        """Remove members that have left the plan from the group, one at a time, once they are silent.

        The leader would add a member that still fetches again as a learner.
        """
        planned = {e.member for e in endpoints}
        self._former = tuple(sorted(m.member for m in leader.in_sync if m.member not in planned))
        silent_ms = {f.id.member: f.last_fetch_ms for f in leader.followers if f.id in leader.in_sync}
        gone = [n for n in self._former if silent_ms.get(n, 0) >= self._settings().detection_ms]
        if not gone:
            self._stuck_since = None
            self._solved("removal")
        elif not self._removing and time.monotonic() >= self._not_before and leader.order != self._removed_in:
            self._removing = True
            self._spawn(self._remove(self.watches[leader.id.member].url, gone[-1], leader.order))

    async def _remove(self, url: str, member: int, order: tuple[int, int]) -> None:
        try:
            reason = await self._member_client.remove(url, member)
            now = time.monotonic()
            if reason:
                # The previous change may be a moment from being confirmed, which is not worth an event.
                self._stuck_since = now if self._stuck_since is None else self._stuck_since
                if now - self._stuck_since >= EVENT_AFTER_S:
                    self._report_problem("removal", f"member {member} cannot leave the group: {reason}")
                self._not_before = now + HANDOVER_AGAIN_S
            else:
                # The leader's next line is still to come. The known line still has the member.
                self._removed_in, self._stuck_since = order, None
                self._solved("removal")
                self._event("Normal", "MemberRemoved", f"member {member} has left the group")
        finally:
            self._removing = False
            self.wake()

    def _sick(self, report: Report) -> Switchover | None:
        """Why the leader should not lead although it runs; empty: it may."""
        watch = self.watches[report.id.member]
        if self._platform.process_state(watch.name).deleting:
            return Switchover(reason=f"{watch.name} is about to be stopped")
        return (
            Switchover(reason=f"{watch.name} should not lead: {report.not_promotable}")
            if report.not_promotable
            else None
        )

    async def _transfer(self, url: str, target: MemberId, leadership: LeadershipRecord, request: Switchover) -> None:
        try:
            ready, reason = await self._member_client.handover(url, target, leadership, HANDOVER_MS)
            if request is self._request:
                self._refused = reason
            if ready:
                self._handed_over = leadership.epoch  # Its last line may still say that it leads.
                self._handed_over_until = time.monotonic() + ELECTED_S
            else:
                self._transfer_asked = None  # The next leader has not received this request.
                self._not_before = time.monotonic() + HANDOVER_AGAIN_S
        finally:
            self._asked = False
            self.wake()
