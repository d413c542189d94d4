"""Concurrent switchover requests: each gets its own result, one after the other."""

from __future__ import annotations

import asyncio
import time

import pytest
from gantry_broker.contracts.leadership import LeadershipRecord
from gantry_operator.cluster import master_slave_controller as loop
from gantry_operator.cluster.group_controller import SwitchoverFailed
from gantry_operator.cluster.master_slave_controller import MasterSlaveController
from gantry_operator.cluster.platform import MemberEndpoint, ProcessState
from gantry_operator.failover.choose_leader import decide
from gantry_operator.failover.model import FailoverSettings, Promote, Report
from gantry_operator.registry.base import Entry, RegistryUnavailable

from tests.support.led_group import IDS, NO_HTTP, Place, Registry, ReportingMembers, led_by
from tests.support.running import running, until

LEADERSHIP = led_by(0)


class Group(ReportingMembers, MasterSlaveController):
    def __init__(self) -> None:
        self.place, self.registry = Place(), Registry(LEADERSHIP)
        MasterSlaveController.__init__(self, "a", self.registry, self.place, NO_HTTP, FailoverSettings)
        self.begin(LEADERSHIP)


async def test_two_users_each_get_their_own_answer() -> None:
    async with running(Group()) as group:
        first = asyncio.create_task(group.switchover(1, "one", timeout_s=5))
        second = asyncio.create_task(group.switchover(2, "two", timeout_s=5))
        assert await first == "m1 leads a in epoch 2"
        assert await second == "m2 leads a in epoch 3"
        assert group.fake_members.handovers == [1, 2]


async def test_an_automatic_request_fails_after_a_users_request() -> None:
    async with running(Group()) as group:
        user = asyncio.create_task(group.switchover(1, "asked for", timeout_s=5))
        await asyncio.sleep(0)
        with pytest.raises(SwitchoverFailed, match="another switchover of a is under way"):
            await group.switchover(2, "a planned restart", force=False, timeout_s=5)
        assert await user == "m1 leads a in epoch 2"


async def test_a_users_request_does_not_wait_for_one_without_progress() -> None:
    async with running(Group()) as group:
        group.fake_members.answer = (False, "m2 is behind")
        planned = asyncio.create_task(group.switchover(2, "a planned restart", force=False, timeout_s=30))
        await until(lambda: group.fake_members.handovers)
        assert set(group.fake_members.handovers) == {2}
        user = asyncio.create_task(group.switchover(1, "asked for", timeout_s=5))
        with pytest.raises(SwitchoverFailed, match="a user has requested another switchover of a"):
            await planned
        group.fake_members.answer = (True, "")
        assert await user == "m1 leads a in epoch 2"


async def test_a_failover_in_between_does_not_answer_a_request_for_another_member() -> None:
    async with running(Group()) as group:
        await group.next_look()
        group.fake_members.answer = (False, "not now")
        asked = asyncio.create_task(group.switchover(2, "asked for", timeout_s=10))
        await asyncio.sleep(0.05)
        group.watches[2].reach = "refused"
        group.place.gone = {"m0", "m2"}
        while group.registry.leadership.epoch == 1:
            await group.next_look()
        assert group.registry.leadership.master == IDS[1]
        assert not asked.done()
        group.registry.leadership = group.registry.leadership.with_set(frozenset({IDS[1], IDS[2]}))
        group.place.gone, group.watches[2].reach = {"m0"}, "ok"
        group.fake_members.answer = (True, "")
        assert await asked == f"m2 leads a in epoch {group.registry.leadership.epoch}"


async def test_a_handover_under_way_does_not_fail() -> None:
    async with running(Group()) as group:
        group.fake_members.handover_s = 0.4
        assert await group.switchover(1, "asked for", timeout_s=0.1) == "m1 leads a in epoch 2"


async def test_a_handover_that_is_being_recorded_does_not_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new leader without its assignment counts as under way, too. Both take longer here than a ready handover may
    wait.
    """
    monkeypatch.setattr(loop, "READY_S", 0.2)
    async with running(Group()) as group:
        group.fake_members.handover_s, group.registry.swap_s, group.fake_members.send_s = 0.2, 0.5, 0.1
        assert await group.switchover(1, "asked for", timeout_s=0.1) == "m1 leads a in epoch 2"


async def test_a_handover_with_a_lost_registry_answer_is_reported_as_one() -> None:
    """Nor is it ended because its target leads by then."""
    async with running(Group()) as group:
        group.registry.unanswered = 1
        assert await group.switchover(1, "asked for", timeout_s=5) == "m1 leads a in epoch 2"
        await group.next_look()
        assert group.place.reasons == ["GroupControllerFailed", "SwitchoverStarted"]
        assert [(c.old, c.new, c.planned) for c in group.place.changes] == [("m0", "m1", True)]
        assert group.registry.leadership.version == LEADERSHIP.promoted(IDS[1], frozenset(IDS)).version, (
            "nothing else was written"
        )


async def test_a_failover_with_a_lost_registry_answer_is_reported_as_one() -> None:
    async with running(Group()) as group:
        await group.next_look()
        group.registry.unanswered = 1
        group.place.gone = {"m0"}
        while not group.place.changes:
            await group.next_look()
        assert group.place.reasons[:2] == ["GroupControllerFailed", "FailoverStarted"]
        assert [(c.old, c.planned) for c in group.place.changes] == [("m0", False)]


async def test_how_long_a_failover_took_counts_the_time_in_which_it_could_not_be_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(Group()) as group:
        await group.next_look()
        refused: list[float] = []

        async def refuse(*_: object) -> bool:
            refused.append(time.monotonic())
            raise RegistryUnavailable("no room")

        with monkeypatch.context() as away:
            away.setattr(group.registry, "swap", refuse)
            group.place.gone = {"m0"}
            while len(refused) < 3:
                await group.next_look()
        while not group.place.changes:
            await group.next_look()
        assert group.place.changes[0].duration_ms >= (refused[-1] - refused[0]) * 1000


async def test_a_loop_that_has_not_looked_yet_does_not_take_the_present_master_for_the_new_one() -> None:
    """As with `gantry switchover` without a supervisor."""
    async with running(Group()) as group:
        group.fake_members.handover_s = 0.1
        assert group.leadership is None
        assert await group.switchover(None, "asked for", timeout_s=5) == "m1 leads a in epoch 2"


async def test_a_handover_that_cannot_be_recorded_blocks_no_request_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another request does not wait for ever, either."""
    monkeypatch.setattr(loop, "READY_S", 0.1)
    async with running(Group()) as group:
        group.fake_members.handover_s = 0.1
        asked = asyncio.create_task(group.switchover(1, "asked for", timeout_s=0.3))
        while not group.fake_members.handovers:
            await group.next_look()
        group.registry.away = True
        with pytest.raises(SwitchoverFailed, match="the role registry does not answer: it is away"):
            await asyncio.wait_for(asked, 3)


async def test_a_request_is_not_answered_with_the_reason_of_another_handover(monkeypatch: pytest.MonkeyPatch) -> None:
    """m2 is not in sync, and the leader, which is about to be stopped, is asked to hand over to m1 meanwhile."""
    monkeypatch.setattr(loop, "HANDOVER_AGAIN_S", 0.1)
    async with running(Group()) as group:
        await group.next_look()
        group.registry.leadership = group.registry.leadership.with_set(frozenset(IDS[:2]))
        for number in range(3):
            group.say(number, group.registry.leadership)
        monkeypatch.setattr(group.place, "process_state", lambda name: ProcessState(deleting=name == "m0"))
        group.fake_members.handover_s, group.fake_members.answer = 0.05, (False, "m1 has not caught up")
        with pytest.raises(SwitchoverFailed, match="m2 is not in sync with m0 yet"):
            await group.switchover(2, "asked for", timeout_s=0.4)
        assert set(group.fake_members.handovers) == {1}
        assert group.fake_members.handovers[1:], "tried again and again"


async def test_a_pods_last_report_outlives_its_address() -> None:
    """On Kubernetes a member has no address without a pod. An unclean failover still reports the number of bytes
    given up.
    """
    place = Place()
    alone = MasterSlaveController(
        "a", Registry(LEADERSHIP), place, NO_HTTP, lambda: FailoverSettings(unclean=True, unclean_after_ms=0)
    )
    alone.entry = Entry(LeadershipRecord(1, 1, IDS[0], frozenset(IDS[:1])))
    alone._follow(list(place.members("a")))
    for id, end in zip(IDS, (1_000, 100, 100), strict=True):
        watch = alone.watches[id.member]
        watch.reach = "ok"
        watch.report = Report(id, "Slave" if end == 100 else "Master", 1, 1, 1, last_epoch=1, end=end)
    place.gone = {"m0"}
    for url in ("http://m0.by-name", "http://m0.by-name", "http://m0.again"):
        members = [MemberEndpoint("m0", 0, url, "m0:1"), *place.members("a")[1:]]
        alone._follow(members)
        assert alone.watches[0].report is None, "nothing was said at this address"
        first = decide(alone.observe(members))[0]
        assert isinstance(first, Promote)
        assert (first.kind, first.lost_bytes) == ("unclean", 900)
    for task in alone._following.values():
        task.cancel()
