"""Events of the controller of a Raft group: changes of the leader, and members that leave."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
from gantry_broker.contracts.leadership import LeadershipRecord, MemberId
from gantry_operator.cluster import group_controller as base
from gantry_operator.cluster import raft_controller as raft
from gantry_operator.cluster.group_controller import SwitchoverFailed
from gantry_operator.cluster.member_client import MemberClient
from gantry_operator.cluster.member_http import httpx
from gantry_operator.cluster.member_watch import MemberWatch
from gantry_operator.cluster.platform import Change, MemberEndpoint, ProcessState
from gantry_operator.cluster.raft_controller import RaftController
from gantry_operator.failover.model import FailoverSettings, FollowerView, Report
from gantry_operator.plan.order import MemberState, Step, next_step

from tests.support.led_group import Place
from tests.support.running import running

HTTP = cast(httpx.AsyncClient, None)
WAIT_S = 0.06


class FakeMembers(MemberClient):
    """Answers as the test sets it."""

    def __init__(self, wake: Callable[[], None]) -> None:
        super().__init__(HTTP, wake, time.monotonic)
        self.handovers: list[MemberId] = []
        self.removals: list[int] = []
        self.handover_answer: tuple[bool, str] = (True, "")
        self.removal_answer = ""

    async def handover(
        self, url: str, target: MemberId, leadership: LeadershipRecord, timeout_ms: int
    ) -> tuple[bool, str]:
        self.handovers.append(target)
        return self.handover_answer

    async def remove(self, url: str, member: int) -> str:
        self.removals.append(member)
        return self.removal_answer


class Group(RaftController):
    """A controller without connections. `look` is one pass and its requests."""

    def __init__(self, count: int = 3) -> None:
        self.place = Place(count)
        super().__init__("a", self.place, HTTP, FailoverSettings)
        self.fake_members = FakeMembers(self.wake)
        self._member_client = self.fake_members
        self.ids = [MemberId(n, "x") for n in range(count)]
        for member in self.ids:
            watch = MemberWatch(f"m{member.member}", f"http://m{member.member}", HTTP, self.wake, self._clock.now)
            watch.reach = "ok"
            self.watches[member.member] = watch
        self.led_by(0, epoch=1)

    def _follow(self, endpoints: list[MemberEndpoint]) -> None:
        """The test sets the members' reports."""

    def led_by(self, leader: int, epoch: int, version: int = 1, **says: Any) -> None:
        for member in self.ids[: self.place.planned]:
            role: Any = "Master" if member.member == leader else "Slave"
            watch = self.watches[member.member]
            watch.report = Report(member, role, epoch, version, in_sync=frozenset(self.ids))
            if member.member == leader:
                silent = tuple(FollowerView(m, 1, 10_000) for m in self.ids[self.place.planned :])
                watch.report = replace(watch.report, followers=silent, **says)

    async def look(self, *, guarded: bool = False) -> None:
        """`guarded`: like the loop, so that the pass's result does not hide an earlier failure."""
        for watch in self.watches.values():
            watch.line_at = self._clock.now()
        await (self._guarded_pass() if guarded else self._pass())
        for _ in range(3):
            await asyncio.sleep(0)

    def events_of(self, reason: str) -> list[str]:
        return [e.message for e in self.place.events if e.reason == reason]


async def kill_and_elect(group: Group) -> Change:
    group.watches[0].reach = "refused"
    await group.look()
    await asyncio.sleep(WAIT_S)
    group.led_by(1, epoch=2)
    await group.look()
    [change] = group.place.changes
    return change


async def test_the_next_member_is_not_replaced_while_a_voter_has_much_to_copy() -> None:
    """It stays a voter, but a majority with it confirms nothing before it has caught up."""
    group, end = Group(), 600 << 20

    def step(*acked: int) -> Step:
        followers = tuple(FollowerView(m, n, 0) for m, n in zip(group.ids[1:], acked, strict=False))
        assert group.watches[0].report is not None
        group.watches[0].report = replace(group.watches[0].report, end=end, confirmed=end, followers=followers)
        reports = [w.report for w in group.watches.values() if w.report is not None]
        return next_step(
            [
                MemberState(f"m{n}", n, outdated=n < 2, ready=True, in_sync=group.in_sync(r), master=n == 0)
                for n, r in enumerate(reports)
            ]
        )

    await group.look()
    assert step(end, end - (100 << 20)).reason.startswith("m2 is not in sync")
    assert step(end).reason.startswith("m2 is not in sync"), "it was not heard of yet"
    assert (step(end, end - (1 << 20)).kind, step(end, end).member) == ("replace", "m1")


async def test_how_long_a_group_was_without_a_leader() -> None:
    group = Group()
    await group.look()
    change = await kill_and_elect(group)
    assert change.duration_ms >= WAIT_S * 1000
    assert (change.old, change.new, change.planned, change.reason) == ("m0", "m1", False, "elected by the group")
    assert [e.kind for e in group.place.events if e.reason == "LeaderElected"] == ["Warning"]
    group.led_by(2, epoch=3)  # No member was away, so there was no wait.
    await group.look()
    assert group.place.changes[1].duration_ms < WAIT_S * 1000


@pytest.mark.parametrize("deleting", [False, True])
async def test_a_leader_that_should_not_lead_hands_over_as_planned(deleting: bool) -> None:
    group = Group()
    await group.look()
    if deleting:
        group.place.known["m0"] = ProcessState(deleting=True)
    else:
        group.led_by(0, epoch=1, not_promotable="its disk is full")
    for _ in range(3):
        await group.look()  # The last line of the former leader may still say that it leads.
    [target] = group.fake_members.handovers
    await asyncio.sleep(WAIT_S)
    group.led_by(target.member, epoch=2)
    await group.look()
    [change] = group.place.changes
    reason = "m0 is about to be stopped" if deleting else "m0 should not lead: its disk is full"
    assert (change.planned, change.reason) == (True, reason)
    assert change.duration_ms >= WAIT_S * 1000
    assert group.events_of("LeadershipTransferred") == [f"m{target.member} leads epoch 2: {reason}"]
    assert group.events_of("LeaderElected") == []


async def test_a_leader_that_died_before_it_handed_over_was_not_replaced_as_planned() -> None:
    group = Group()
    group.fake_members.handover_answer = (False, "the master did not answer the handover request")
    await group.look()
    group.led_by(0, epoch=1, not_promotable="its disk is full")
    await group.look()
    assert len(group.fake_members.handovers) == 1
    change = await kill_and_elect(group)
    assert (change.planned, change.reason) == (False, "elected by the group")


async def test_a_switchover_takes_as_long_as_it_took_since_it_was_asked_for() -> None:
    group = Group()
    await group.look()
    asked = asyncio.create_task(group.switchover(2, "asked for"))
    await asyncio.sleep(WAIT_S)
    await group.look()
    assert group.fake_members.handovers == [group.ids[2]]
    group.led_by(2, epoch=2)
    await group.look()
    assert await asyncio.wait_for(asked, 60) == "m2 leads a in epoch 2"
    [change] = group.place.changes
    assert (change.planned, change.reason) == (True, "asked for")
    assert change.duration_ms >= WAIT_S * 1000
    assert len(group.fake_members.handovers) == 1, "it was asked for one change"


def with_two_gone() -> Group:
    group = Group(5)
    group.place.planned = 3
    group.led_by(0, epoch=1, version=1)
    return group


async def test_a_member_is_removed_once_though_the_old_status_line_still_has_it() -> None:
    group = with_two_gone()
    for _ in range(3):
        await group.look()
    assert group.fake_members.removals == [4]
    assert group.events_of("MemberRemoved") == ["member 4 has left the group"]
    group.ids.pop()
    group.led_by(0, epoch=1, version=2)
    for _ in range(3):
        await group.look()
    assert group.fake_members.removals == [4, 3]
    assert group.events_of("GroupControllerFailed") == []


async def test_a_removal_that_was_undone_is_requested_again() -> None:
    group = with_two_gone()
    await group.look()
    group.led_by(1, epoch=2, version=1)
    await group.look()
    assert group.fake_members.removals == [4, 4]


async def test_a_removal_that_has_to_wait_for_a_moment_is_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raft, "HANDOVER_AGAIN_S", 0.0)
    group = with_two_gone()
    group.fake_members.removal_answer = "the last change of members is not confirmed yet"
    for _ in range(3):
        await group.look()
    assert group.fake_members.removals == [4] * 3
    assert group.events_of("GroupControllerFailed") == []
    monkeypatch.setattr(raft, "EVENT_AFTER_S", 0.0)
    await group.look()
    [problem] = group.events_of("GroupControllerFailed")
    assert problem == f"member 4 cannot leave the group: {group.fake_members.removal_answer}"


async def test_a_refused_removal_is_reported_once_until_the_reason_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raft, "HANDOVER_AGAIN_S", 0.0)
    monkeypatch.setattr(raft, "EVENT_AFTER_S", 0.0)
    group = with_two_gone()
    group.fake_members.removal_answer = "nothing is confirmed yet"
    for _ in range(4):
        await group.look(guarded=True)
    assert len(group.fake_members.removals) > 2
    assert group.events_of("GroupControllerFailed") == ["member 4 cannot leave the group: nothing is confirmed yet"]
    assert group.problem == "member 4 cannot leave the group: nothing is confirmed yet"
    group.fake_members.removal_answer = "it does not lead"
    for _ in range(2):
        await group.look(guarded=True)
    assert len(group.events_of("GroupControllerFailed")) == 2
    group.fake_members.removal_answer = ""
    await group.look(guarded=True)
    assert group.problem == ""


async def test_members_that_start_are_not_missed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "EVENT_AFTER_S", WAIT_S)
    monkeypatch.setattr(raft, "EVENT_AFTER_S", WAIT_S)
    group = Group()
    for watch in group.watches.values():
        watch.reach = "refused"
    await group.look()
    await asyncio.sleep(2 * WAIT_S)
    await group.look()
    assert group.waits is not None
    assert "no majority" in group.waits.reason
    assert group.events_of("ElectionInProgress") == []
    for watch in group.watches.values():
        watch.reach = "ok"
    await group.look()
    for watch in group.watches.values():
        watch.reach = "refused"
    await group.look()
    await asyncio.sleep(2 * WAIT_S)
    await group.look()
    assert len(group.events_of("ElectionInProgress")) == 1, "once there was a leader it is missed soon"


async def test_a_request_that_cannot_be_fulfilled_does_not_keep_a_sick_leader() -> None:
    group = Group()
    await group.look()
    group.watches[2].reach = "refused"
    group.led_by(0, epoch=1, not_promotable="its disk is full")
    asked = asyncio.create_task(group.switchover(2, "asked for", timeout_s=0.3))
    await asyncio.sleep(0)
    await group.look()
    assert group.fake_members.handovers == [group.ids[1]]
    group.led_by(1, epoch=2)
    await group.look()
    [change] = group.place.changes
    assert change.reason == "m0 should not lead: its disk is full"
    with pytest.raises(SwitchoverFailed, match="member 2 cannot lead"):
        await asked


async def test_a_leader_that_was_elected_again_is_not_the_requested_other_one() -> None:
    group = Group()
    group.fake_members.handover_answer = (False, "the target is behind")
    await group.look()
    asked = asyncio.create_task(group.switchover(None, "asked for", timeout_s=0.3))
    await asyncio.sleep(0)
    group.led_by(0, epoch=2)
    await group.look()
    with pytest.raises(SwitchoverFailed, match="the target is behind"):
        await asked


async def test_a_controller_before_its_first_pass_does_not_report_a_missing_leader() -> None:
    """As with `gantry switchover` without a supervisor, or with an operator that has just started to lead."""
    group = Group()
    asked = asyncio.create_task(group.switchover(1, "asked for", timeout_s=5))
    await asyncio.sleep(0)
    while not (group.fake_members.handovers or asked.done()):
        await group.look()
        await asyncio.sleep(0.01)
    group.led_by(1, epoch=2)
    await group.look()
    assert await asked == "m1 leads a in epoch 2"


async def test_a_group_that_elects_for_long_says_so() -> None:
    group = Group()
    for watch in group.watches.values():
        watch.reach = "refused"
    await group.look()
    with pytest.raises(SwitchoverFailed, match="a has no leader that could hand over"):
        await group.switchover(1, "asked for", timeout_s=0.1)


@pytest.mark.parametrize("elected", [True, False])
async def test_a_handover_does_not_fail_before_its_target_is_heard(
    monkeypatch: pytest.MonkeyPatch, elected: bool
) -> None:
    """The leader has reported another leader, whose own line comes a moment later."""
    monkeypatch.setattr(raft, "ELECTED_S", 60.0 if elected else 0.3)
    group = Group()

    async def handover(url: str, target: MemberId, leadership: LeadershipRecord, timeout_ms: int) -> tuple[bool, str]:
        await asyncio.sleep(0.2)
        if elected:
            asyncio.get_running_loop().call_later(0.1, group.led_by, target.member, 2)
        return True, ""

    monkeypatch.setattr(group.fake_members, "handover", handover)
    async with running(group):
        await group.known_leadership()
        asked = asyncio.create_task(group.switchover(1, "asked for", timeout_s=0.1))
        if elected:
            assert await asked == "m1 leads a in epoch 2"
            return
        with pytest.raises(SwitchoverFailed, match="no new leader took over in time"):
            await asyncio.wait_for(asked, 60)
