"""A running leader that should not lead (its disk is full) hands over to a better candidate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from gantry_broker.contracts.leadership import LeadershipRecord, MemberId
from gantry_operator.failover.choose_leader import decide
from gantry_operator.failover.model import (
    FailoverSettings,
    FollowerView,
    MemberView,
    Observation,
    Promote,
    Report,
    RequestHandover,
    SendAssignment,
    ShrinkInSyncSet,
    Switchover,
    Wait,
)

A, B, C = (MemberId(n, "x") for n in range(3))
LEADERSHIP = LeadershipRecord(3, 7, A, frozenset({A, B, C}))
FULL = "its disk is full"


def member(number: int, not_promotable: str = "", **view: Any) -> MemberView:
    values: dict[str, Any] = {"epoch": 3, "version": 7, "highest_seen_epoch": 3, "last_epoch": 3, "end": 1_000}
    if number == 0:
        values |= {"role": "Master", "followers": (FollowerView(B, 1_000, 100), FollowerView(C, 1_000, 100))}
    else:
        values |= {"role": "Slave", "link": "connected", "link_leader": A, "link_answer_ms": 100}
    report = Report(id=MemberId(number, "x"), in_sync=LEADERSHIP.in_sync, not_promotable=not_promotable, **values)
    return MemberView(number, f"m{number}", f"h{number}:1", report, **{"age_ms": 100, "reach": "ok"} | view)


def observed(*members: MemberView, **settings: Any) -> Observation:
    return Observation("a", members, LEADERSHIP, FailoverSettings(**settings))


def test_it_hands_over() -> None:
    [asked] = decide(observed(member(0, FULL), member(1), member(2)))
    assert isinstance(asked, RequestHandover)
    assert asked.reason == f"m0 should not lead: {FULL}"


def test_to_a_promotable_member() -> None:
    [asked] = decide(observed(member(0, FULL), member(1, FULL), member(2)))
    assert isinstance(asked, RequestHandover)
    assert asked.target == C


def test_a_request_for_a_member_that_should_not_lead_gets_the_reason() -> None:
    """It is in sync."""
    asked = replace(observed(member(0), member(1, FULL), member(2)), switchover=Switchover(to=1, force=True))
    assert decide(asked) == [Wait("switchover-target-not-ready", f"m1 should not lead: {FULL}")]


def test_not_when_all_candidates_have_the_same_problem() -> None:
    assert decide(observed(member(0, FULL), member(1, FULL), member(2, FULL))) == []


def test_not_without_a_request_in_manual_mode() -> None:
    assert decide(observed(member(0, FULL), member(1), member(2), automatic=False)) == []


def test_a_leader_that_gave_up_the_role_did_not_restart() -> None:
    failed = "its disk failed: [Errno 5] Input/output error"
    gave_up = member(0, failed)
    assert gave_up.report is not None
    gave_up = replace(gave_up, report=replace(gave_up.report, role="Waiting"))
    [promoted, *_] = decide(observed(gave_up, member(1), member(2)))
    assert isinstance(promoted, Promote)
    assert promoted.new == B
    assert promoted.reason == f"m0 does not lead epoch 3 any more ({failed})"


def test_a_promotable_member_follows_a_dead_leader() -> None:
    dead = member(0, gone=True, reach="refused", reach_ms=3_000, age_ms=3_000)
    refused = {"link": "refused", "link_answer_ms": 150}
    followers = [
        MemberView(n, f"m{n}", f"h{n}:1", Report(MemberId(n, "x"), "Slave", 3, 7, 3, last_epoch=3, end=end,
                   not_promotable=not_promotable,
                                                 link_leader=A, **refused), age_ms=100, reach="ok")  # type: ignore[arg-type]
        for n, end, not_promotable in ((1, 2_000, FULL), (2, 1_000, ""))
    ]  # fmt: skip
    first = decide(observed(dead, *followers))[0]
    assert isinstance(first, Promote)
    assert first.new == C


@pytest.mark.parametrize("why", ["deleting", "not_promotable", "user"])
def test_a_follower_that_refuses_its_assignment_delays_no_handover(why: str) -> None:
    """Its disk may be full, or its token wrong, for hours. It still gets assignments, but it is no candidate."""
    refusing = member(2, refused="500", refused_ms=60_000)
    assert refusing.report is not None
    refusing = replace(refusing, report=replace(refusing.report, version=6))
    master = member(0, FULL if why == "not_promotable" else "", deleting=why == "deleting")
    obs = replace(observed(master, member(1), refusing), leadership=replace(LEADERSHIP, in_sync=frozenset({A, B})))
    if why == "user":
        obs = replace(obs, switchover=Switchover())
    asked, assigned = decide(obs)
    assert isinstance(asked, RequestHandover)
    assert asked.target == B
    assert isinstance(assigned, SendAssignment)
    assert assigned.member == 2


def test_a_request_waits_for_a_follower_that_has_not_refused() -> None:
    late = member(2)
    assert late.report is not None
    late = replace(late, report=replace(late.report, version=6))
    obs = replace(observed(member(0), member(1), late), switchover=Switchover())
    [assigned] = decide(obs)
    assert isinstance(assigned, SendAssignment)


def test_a_former_master_that_refuses_to_follow_is_waited_for_no_longer() -> None:
    """It handed over because its disk is full, and cannot write its next assignment: nothing would be confirmed."""
    refusing = member(2, FULL, refused="No space left on device", refused_ms=600)
    assert refusing.report is not None
    refusing = replace(refusing, report=replace(refusing.report, role="Waiting", epoch=2, version=9))
    leads = member(0)
    assert leads.report is not None
    for seen, leaves in ((None, True), (700, True), (100, False)):
        followers = [FollowerView(B, 1_000, 100), *([] if seen is None else [FollowerView(C, -1, seen)])]
        obs = observed(
            replace(leads, report=replace(leads.report, followers=tuple(followers))),  # type: ignore[type-var]
            member(1),
            refusing,
        )
        first = decide(obs)[0]
        assert isinstance(first, ShrinkInSyncSet) is leaves
        if isinstance(first, ShrinkInSyncSet):
            assert first.reason == "m2 does not follow: No space left on device"
            assert first.leadership.in_sync == {A, B}
    for of_this_epoch in ("refused the version", "it answered 401"):
        # Refused for a second each time, since no client sends.
        follows = member(2, refused=of_this_epoch, refused_ms=60_000)
        assert follows.report is not None
        follows = replace(follows, report=replace(follows.report, version=6))
        seldom = (FollowerView(B, 1_000, 950), FollowerView(C, 1_000, 950))
        assert leads.report is not None
        idle = replace(leads, report=replace(leads.report, followers=seldom))
        assert not any(isinstance(d, ShrinkInSyncSet) for d in decide(observed(idle, member(1), follows)))
    moment = replace(refusing, refused_ms=100)
    assert not isinstance(decide(observed(leads, member(1), moment))[0], ShrinkInSyncSet)


@pytest.mark.parametrize("full", [False, True])
def test_a_follower_with_a_full_disk_leaves_the_set_sooner_than_one_that_is_slow(full: bool) -> None:
    """A member without contact to a NameServer is not slower for that."""

    def leaves(stalled_ms: int) -> bool:
        follower = member(2, FULL if full else "no NameServer answers it", stalled_ms=stalled_ms)
        assert follower.report is not None
        follower = replace(follower, report=replace(follower.report, disk_full=full))
        return any(isinstance(d, ShrinkInSyncSet) for d in decide(observed(member(0), member(1), follower)))

    assert next(ms for ms in range(0, 12_000, 500) if leaves(ms)) == (2_000 if full else 10_000)
