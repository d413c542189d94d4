"""Invariants of every decision over thousands of generated observations."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Literal

from gantry_broker.contracts.leadership import InSyncSetProposal, LeadershipRecord, MemberId
from gantry_operator.failover.choose_leader import decide
from gantry_operator.failover.model import (
    Bootstrap,
    CancelHandover,
    Demote,
    ExpandInSyncSet,
    FailoverSettings,
    FollowerView,
    HandoverReady,
    MemberView,
    Observation,
    Promote,
    Recover,
    RejectProposal,
    Report,
    RequestHandover,
    SendAssignment,
    ShrinkInSyncSet,
    Switchover,
    Wait,
)

from tests.support.present import present

WRITES = (Bootstrap, Promote, Recover, ShrinkInSyncSet, ExpandInSyncSet, RejectProposal, CancelHandover)
CASES = 20_000
AGES = (0, 100, 400, 900, 1_500, 2_000, 2_600, 5_000, 11_000)


class Drawn(random.Random):
    """Observations of a seed. They contradict themselves in the ways that late and partial news do."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.calm = 8 if seed % 2 else 1
        """In every second one, little is wrong: most decisions need a group that works."""

    def one_in(self, count: int) -> bool:
        return self.randrange(count * self.calm) == 0

    def age(self) -> int:
        return self.choice(AGES) if self.one_in(3) else 100

    def member(self) -> MemberId:
        return MemberId(self.randrange(4), self.choice("xxxxxy"))

    def members(self) -> frozenset[MemberId]:
        return frozenset(self.member() for _ in range(self.randrange(5)))

    def leadership(self) -> LeadershipRecord:
        master = MemberId(self.randrange(3), "x")
        return LeadershipRecord(self.randint(1, 4), self.randint(1, 6), master, self.members() | {master})

    def follower(self) -> FollowerView:
        return FollowerView(self.member(), self.randint(-1, 500), self.age())

    def report(self, number: int, leadership: LeadershipRecord | None) -> Report:
        epoch, version = self.randint(0, 4), self.randint(0, 6)
        if leadership is not None and not self.one_in(4):
            epoch, version = leadership.order
        if leadership is not None and (epoch, version) > leadership.order and not self.one_in(10):
            epoch, version = leadership.order
        master = None if leadership is None else leadership.master
        if leadership is None or self.one_in(4):
            master = self.choice((None, self.member()))
        return Report(
            id=MemberId(number, self.choice("xxxxxy")),
            role=self.role(number, master),
            epoch=epoch,
            version=version,
            highest_seen_epoch=self.choice((0, epoch, epoch, epoch + 1)),
            last_epoch=self.randint(0, 4),
            end=self.randint(0, 5) * 100,
            in_sync=self.members(),
            proposal=self.choice((None, InSyncSetProposal(self.randint(0, 6), self.members()))),
            followers=tuple(self.follower() for _ in range(self.randrange(4))),
            link=self.choice(("none", "connected", "connected", "refused", "silent")),
            link_leader=master,
            link_answer_ms=self.choice((-1, 0, 900, 2_000, 4_500)),
            writes_paused=self.one_in(2),
        )

    def role(self, number: int, master: MemberId | None) -> Literal["Master", "Slave", "Waiting"]:
        if self.one_in(4):
            return self.choice(("Master", "Slave", "Waiting"))
        return "Master" if master is not None and master.member == number else "Slave"

    def view(self, number: int, leadership: LeadershipRecord | None) -> MemberView:
        return MemberView(
            number=number,
            name=f"demo-a-{number}",
            address=f"127.0.0.1:{10_911 + number}",
            report=None if self.one_in(5) else self.report(number, leadership),
            age_ms=self.age(),
            reach=self.choice(("ok", "ok", "ok", "ok", "refused", "silent")),
            reach_ms=self.age(),
            gone=self.one_in(8),
            deleting=self.one_in(8),
            never_ran=self.one_in(8),
            pending=self.one_in(8),
            stalled_ms=self.age(),
            refused=self.choice(("", "", "", "its disk is new")),
        )

    def observation(self) -> Observation:
        leadership = None if self.one_in(6) else self.leadership()
        target = self.choice((None, self.randrange(4)))
        return Observation(
            group="a",
            members=tuple(self.view(number, leadership) for number in range(self.randint(1, 4))),
            leadership=leadership,
            settings=FailoverSettings(
                automatic=not self.one_in(4),
                unclean=self.one_in(4),
                async_flush=self.one_in(2),
                min_in_sync=self.randint(1, 3),
                filled=self.choice((None, None, 0)),
            ),
            switchover=self.choice((None, None, Switchover(target, force=self.one_in(2)))),
            handover=self.choice((None, HandoverReady((self.randint(1, 4), self.randint(1, 6)), self.member()))),
            handover_requested=self.one_in(6),
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
            assert new.epoch > max((m.report.highest_seen_epoch for m in obs.members if m.report), default=0)
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
            assert present(obs.view(d.member)).heard
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
            assert present(obs.switchover).force


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
            leader = present(obs.heard_as(obs.leadership.master))
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


def test_every_decision() -> None:
    """All checks on each observation."""
    for seed in range(CASES):
        obs = Drawn(seed).observation()
        for check in CHECKS:
            try:
                check(obs)
            except AssertionError as error:
                raise AssertionError(f"{check.__name__}, seed {seed}: {obs}") from error
