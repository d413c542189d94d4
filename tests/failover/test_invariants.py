"""Invariants of every decision over thousands of generated observations."""

from __future__ import annotations

from dataclasses import replace

from gantry_broker.contracts.leadership import InSyncSetProposal, LeadershipRecord, MemberId
from gantry_operator.failover import (
    Bootstrap,
    Demote,
    ExpandInSyncSet,
    FailoverSettings,
    FollowerView,
    HandoverReady,
    MemberView,
    Observation,
    Promote,
    Recover,
    Report,
    RequestHandover,
    SendAssignment,
    ShrinkInSyncSet,
    Switchover,
    Wait,
    decide,
)
from gantry_operator.failover.model import CancelHandover, RejectProposal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

WRITES = (Bootstrap, Promote, Recover, ShrinkInSyncSet, ExpandInSyncSet, RejectProposal, CancelHandover)
numbers = st.integers(0, 3)
ids = st.builds(MemberId, numbers, st.sampled_from(["x", "x", "x", "y"]))
sets = st.frozensets(ids, max_size=4)
ages = st.sampled_from([0, 100, 400, 900, 1_500, 2_000, 2_600, 5_000, 11_000])


@st.composite
def leaderships(draw: st.DrawFn) -> LeadershipRecord:
    master = draw(ids)
    return LeadershipRecord(draw(st.integers(1, 4)), draw(st.integers(1, 6)), master, draw(sets) | {master})


@st.composite
def reports(draw: st.DrawFn, number: int, leadership: LeadershipRecord | None) -> Report:
    id = MemberId(number, draw(st.sampled_from(["x", "x", "x", "y"])))
    epoch, version = draw(st.integers(0, 4)), draw(st.integers(0, 6))
    if leadership is not None and draw(st.booleans()):
        epoch, version = leadership.epoch, leadership.version
    if leadership is not None and (epoch, version) > leadership.order and draw(st.integers(0, 9)) > 0:
        epoch, version = leadership.order
    master = draw(st.none() | ids) if leadership is None or draw(st.integers(0, 3)) == 0 else leadership.master
    return Report(
        id=id,
        role=draw(st.sampled_from(["Master", "Slave", "Slave", "Waiting"])),
        epoch=epoch,
        version=version,
        highest_seen_epoch=draw(st.sampled_from([0, epoch, epoch, epoch + 1])),
        last_epoch=draw(st.integers(0, 4)),
        end=draw(st.integers(0, 5)) * 100,
        in_sync=draw(sets),
        proposal=draw(st.none() | st.builds(InSyncSetProposal, st.integers(0, 6), sets)),
        followers=tuple(draw(st.lists(st.builds(FollowerView, ids, st.integers(-1, 500), ages), max_size=3))),
        link=draw(st.sampled_from(["none", "connected", "refused", "silent"])),
        link_leader=master,
        link_answer_ms=draw(st.sampled_from([-1, 0, 900, 2_000, 4_500])),
        writes_paused=draw(st.booleans()),
    )


@st.composite
def observations(draw: st.DrawFn) -> Observation:
    leadership = draw(st.none() | leaderships())
    members = []
    for number in range(draw(st.integers(1, 4))):
        members.append(
            MemberView(
                number=number,
                name=f"demo-a-{number}",
                address=f"127.0.0.1:{10_911 + number}",
                report=draw(st.none() | reports(number, leadership)),
                age_ms=draw(ages),
                reach=draw(st.sampled_from(["ok", "ok", "refused", "silent"])),
                reach_ms=draw(ages),
                gone=draw(st.integers(0, 4)) == 0,
                deleting=draw(st.integers(0, 4)) == 0,
                never_ran=draw(st.integers(0, 4)) == 0,
                pending=draw(st.integers(0, 4)) == 0,
                stalled_ms=draw(ages),
                refused=draw(st.sampled_from(["", "", "", "its disk is new"])),
            )
        )
    return Observation(
        group="a",
        members=tuple(members),
        leadership=leadership,
        settings=FailoverSettings(
            automatic=draw(st.integers(0, 3)) > 0,
            unclean=draw(st.integers(0, 3)) == 0,
            async_flush=draw(st.booleans()),
            min_in_sync=draw(st.integers(1, 3)),
            filled=draw(st.sampled_from([None, None, 0])),
        ),
        switchover=draw(st.none() | st.builds(Switchover, st.none() | numbers, force=st.booleans())),
        handover=draw(st.none() | st.builds(HandoverReady, st.tuples(st.integers(1, 4), st.integers(1, 6)), ids)),
        handover_requested=draw(st.integers(0, 5)) == 0,
    )


def heard(obs: Observation) -> list[Report]:
    return [m.report for m in obs.members if m.heard and m.report is not None]


def writes_move_the_record_forward_one_at_a_time(obs: Observation) -> None:
    decisions = decide(obs)
    writes = [d for d in decisions if isinstance(d, WRITES)]
    assert len(writes) <= 1
    old = obs.leadership or LeadershipRecord()
    for write in writes:
        new = write.leadership
        assert new.master in new.in_sync
        if isinstance(write, Promote | Recover | Bootstrap):
            assert new.epoch > old.epoch
            assert new.epoch > max((m.report.epoch for m in obs.members if m.report), default=0)
            assert new.version > old.version
        else:
            assert (new.epoch, new.master) == (old.epoch, old.master)
            assert new.version == old.version + 1
    for d in decisions:
        assert d.reason


def only_the_recorded_leadership_is_assigned(obs: Observation) -> None:
    for d in decide(obs):
        if isinstance(d, SendAssignment | Demote):
            assert d.assignment.leadership == obs.leadership
            view = obs.view(d.member)
            assert view is not None
            assert view.heard
            if d.assignment.unclean:
                assert obs.settings.unclean


def a_promotion_stays_within_the_recorded_set(obs: Observation) -> None:
    for d in decide(obs):
        if not isinstance(d, Promote):
            continue
        assert obs.leadership is not None
        assert heard(obs), "an operator without any contact decides nothing"
        assert d.new in [r.id for r in heard(obs)]
        assert d.leadership.master == d.new
        if d.kind in ("failover", "restart", "handover"):
            assert d.new in obs.leadership.in_sync
            assert d.leadership.in_sync <= obs.leadership.in_sync
        elif d.kind == "unclean":
            assert obs.settings.unclean
        else:
            assert obs.settings.async_flush
            here = {r.id.member: r.id for r in heard(obs)}
            assert all(i.member in here and here[i.member] != i for i in obs.leadership.in_sync)
        if not obs.settings.automatic and d.kind == "failover":
            assert obs.switchover is not None
            assert obs.switchover.force


def the_highest_epoch_and_offset_of_the_set_is_chosen(obs: Observation) -> None:
    for d in decide(obs):
        if not isinstance(d, Promote) or d.kind != "failover" or obs.leadership is None:
            continue
        if obs.switchover is not None and obs.switchover.force:
            continue
        able = [
            m.report
            for m in obs.members
            if m.heard and m.report and m.report.id in obs.leadership.in_sync and not m.deleting and not m.refused
        ]
        able = [r for r in able if r.id != obs.leadership.master or d.new == r.id]
        chosen = next(r for r in heard(obs) if r.id == d.new)
        assert all(chosen.rank >= r.rank for r in able)


def a_master_that_leads_is_not_replaced_by_a_failover(obs: Observation) -> None:
    if obs.leadership is None or obs.leadership.master is None or obs.settings.min_in_sync > 1:
        return
    view = obs.view(obs.leadership.master.member)
    if view is None or not view.heard or view.refused or view.report is None:
        return
    r = view.report
    if (
        r.id != obs.leadership.master
        or r.role != "Master"
        or r.order != obs.leadership.order
        or r.highest_seen_epoch > r.epoch
    ):
        return
    if any(m.report and m.report.order > obs.leadership.order for m in obs.members):
        return
    for d in decide(obs):
        assert not isinstance(d, Promote) or d.kind == "handover"


def silence_for_the_operator_alone_moves_nothing(obs: Observation) -> None:
    if obs.leadership is None or obs.leadership.master is None:
        return
    view = obs.view(obs.leadership.master.member)
    if view is None or view.heard or view.gone or view.deleting:
        return
    if any(m.report and m.report.order > obs.leadership.order for m in obs.members):
        return
    fetches = [
        m
        for m in obs.members
        if m.heard and m.number != view.number and m.report and m.report.link == "connected"
        and m.report.link_leader == obs.leadership.master and 0 <= m.report.link_answer_ms < obs.settings.detection_ms
    ]  # fmt: skip
    if fetches:
        assert not any(isinstance(d, Promote) for d in decide(obs))


def the_set_changes_by_the_rules(obs: Observation) -> None:
    for d in decide(obs):
        if isinstance(d, ShrinkInSyncSet):
            assert obs.leadership is not None
            assert d.leadership.in_sync == obs.leadership.in_sync - d.removed
            assert obs.leadership.master not in d.removed
            # A former incarnation keeps no copy: it may leave even below the minimum.
            lives = {r.id.member: r.id for r in heard(obs)}
            former = {id for id in d.removed if lives.get(id.member, id) != id}
            assert d.removed == former or len(d.leadership.in_sync) >= obs.settings.min_in_sync
        if isinstance(d, ExpandInSyncSet):
            assert obs.leadership is not None
            assert obs.leadership.master is not None
            leader = obs.heard_as(obs.leadership.master)
            assert leader is not None
            assert leader.proposal is not None
            assert leader.proposal.base_version == obs.leadership.version
            assert d.leadership.in_sync == leader.proposal.in_sync
            assert d.leadership.in_sync >= obs.leadership.in_sync


def a_missing_record_is_never_guessed(obs: Observation) -> None:
    obs = replace(obs, leadership=None, settings=replace(obs.settings, unclean=False))
    [d] = decide(obs)
    if isinstance(d, Recover):
        assert all(m.heard for m in obs.members)
        assert not any(r.empty for r in heard(obs))
        newest = max((r for r in heard(obs) if r.in_sync), key=lambda r: r.order)
        assert d.leadership.in_sync <= newest.in_sync
    elif isinstance(d, Bootstrap):
        assert all(m.heard or m.never_ran for m in obs.members)
        assert all(m.heard for m in obs.members if m.number == obs.settings.filled)
        assert all(r.order == (0, 0) for r in heard(obs))
    else:
        assert isinstance(d, Wait)
        assert not d.available


def a_lost_leader_is_followed_by_a_leader_or_by_a_reason(obs: Observation) -> None:
    if obs.leadership is None or obs.leadership.master is None:
        return
    if any(m.report and m.report.order > obs.leadership.order for m in obs.members):
        return
    members = tuple(replace(m, gone=True) if m.number == obs.leadership.master.member else m for m in obs.members)
    obs = replace(obs, members=members, switchover=None, settings=replace(obs.settings, automatic=True))
    assert obs.leadership is not None
    able = [
        m
        for m in members
        if m.heard
        and m.report
        and m.report.id in obs.leadership.in_sync
        and m.report.id != obs.leadership.master
        and not m.refused
    ]
    first = decide(obs)[0]
    if able:
        assert isinstance(first, Promote)
    else:
        assert isinstance(first, Promote | Wait)
        assert not isinstance(first, Wait) or not first.available


def a_handover_is_requested_from_a_leader_to_a_member_of_the_set(obs: Observation) -> None:
    for d in decide(obs):
        if isinstance(d, RequestHandover):
            assert obs.leadership is not None
            assert d.leadership == obs.leadership
            assert d.target in obs.leadership.in_sync
            assert d.target != obs.leadership.master
            assert obs.heard_as(d.target) is not None


CHECKS = (
    writes_move_the_record_forward_one_at_a_time,
    only_the_recorded_leadership_is_assigned,
    a_promotion_stays_within_the_recorded_set,
    the_highest_epoch_and_offset_of_the_set_is_chosen,
    a_master_that_leads_is_not_replaced_by_a_failover,
    silence_for_the_operator_alone_moves_nothing,
    the_set_changes_by_the_rules,
    a_missing_record_is_never_guessed,
    a_lost_leader_is_followed_by_a_leader_or_by_a_reason,
    a_handover_is_requested_from_a_leader_to_a_member_of_the_set,
)


@settings(max_examples=2_500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(observations())
def test_every_decision(obs: Observation) -> None:
    """All checks on each observation: generating one costs a hundred times more than a decision."""
    for check in CHECKS:
        check(obs)
