"""Mode Raft: random schedules find no violation with all rules, and find one without rule 24, 26 or 27.

For rule 25 they are too weak: tests/scenarios has figure 8 of the Raft paper.
"""

from __future__ import annotations

import os
import random

import pytest
from gantry_broker.replication.members import ids
from gantry_broker.replication.raft import RaftOptions, RaftReplica
from gantry_broker.replication.raft_messages import RaftRequest, RaftRequestKind, RaftResponse

from tests.simulation.mutants import RULES, planted
from tests.simulation.profiles import RAFT_PROFILES
from tests.simulation.raft_world import RaftMember, RaftProfile, RaftSchedule, RaftWorld, draw_raft, run_raft_seed

SCHEDULES = int(os.environ.get("GANTRY_RAFT_SCHEDULES", "3600"))
PARTS = 4

PLANTED = {  # The broken rule, and the kind of schedules that finds the violation.
    24: "raft-elections",
    26: "raft",
    27: "raft-changes",
}


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", RAFT_PROFILES)
def test_random_schedules(name: str, part: int) -> None:
    count = SCHEDULES // len(RAFT_PROFILES) // PARTS
    for seed in range(part * 1_000_000, part * 1_000_000 + count):
        violation = run_raft_seed(seed, profile=RAFT_PROFILES[name])
        assert violation is None, f"python -m tests.simulation.run --profile {name} --seed {seed}: {violation}"


@pytest.mark.parametrize("rule", PLANTED, ids=lambda rule: str(RULES[rule]))
def test_random_schedules_find_the_mutant(rule: int) -> None:
    with planted(rule):
        for seed in range(3_000):
            if run_raft_seed(seed, profile=RAFT_PROFILES[PLANTED[rule]]) is not None:
                return
    pytest.fail(f"no schedule of {PLANTED[rule]} finds it")


def test_a_seed_gives_the_same_schedule_after_any_other_run() -> None:
    first = draw_raft(5, profile=RAFT_PROFILES["raft-changes"])
    draw_raft(6, profile=RAFT_PROFILES["raft-changes"])
    assert draw_raft(5, profile=RAFT_PROFILES["raft-changes"]) == first


def elected_after_ms(seed: int) -> int:
    """Three members; the leader freezes, and its last message reached only one of the others, or both at their
    times.
    Milliseconds until another one leads.
    """
    rng = random.Random(seed)
    world = RaftWorld(3, RaftOptions(sync_flush=True), seed=seed, trace=lambda text: None)

    def passes(ms: int, members: list[RaftMember]) -> None:
        world.now += ms
        for member in members:
            world.tick(member)
        while world.messages:
            message = world.messages[0]
            if {message.source, message.target} <= {m.name for m in members}:
                world.deliver(message)
            else:
                world.messages.remove(message)

    def hears(member: RaftMember) -> None:
        world.fetch(member)
        passes(0, world.members)
        world.flush(member)

    for member in world.members:
        member.start()
    leader = world.members[0]
    while leader.core is None or leader.core.leader is None:
        passes(100, world.members)
    others = world.members[1:]
    for member in others * 3:
        hears(member)
    for ident in range(rng.randrange(3)):
        world.now += rng.randrange(250)
        leader.send(ident)
        hears(rng.choice(others))
    frozen = world.now
    while not any(m.core is not None and m.core.leader is not None for m in others):
        passes(rng.randrange(100, 130), others)
        assert world.now - frozen < 10_000, seed
    return world.now - frozen


@pytest.mark.parametrize(("members", "lost", "away"), [(3, 1, 0), (5, 1, 0), (5, 2, 0), (5, 1, 1)])
def test_members_with_lost_disks_vote_again_while_a_majority_exists(members: int, lost: int, away: int) -> None:
    """Rule 26. Each waits as a learner until its former incarnation is removed; another lost disk must not prevent
    that.
    """
    schedule = RaftSchedule(7, profile=RaftProfile(members=members))
    world = schedule.world
    for member in world.members:
        member.start()
    schedule.rounds(20)
    world.client_send()
    schedule.rounds(5)
    others = [m for m in world.members if m.core is not None and m.core.leader is None]
    for member in others[: lost + away]:
        member.crash(lose_tail=False)
    for member in others[:lost]:
        member.log.reset(0, (), b"")
        member.disk.saved = None
        member.log.recover(schedule.rng, lose_tail=False)
        member.start()
    schedule.rounds(250)
    leader = next(m.core for m in world.members if m.core is not None and m.core.leader is not None)
    present = {m.core.me for m in world.members if m.core is not None}
    assert len(present) == members - away
    assert present <= ids(leader.members)


def led_group() -> tuple[RaftReplica, RaftMember, RaftMember]:
    """The leader of three members, and two followers that hear it."""
    schedule = RaftSchedule(7, profile=RaftProfile(members=3))
    for member in schedule.world.members:
        member.start()
    schedule.rounds(20)
    leader = next(m.core for m in schedule.world.members if m.core is not None and m.core.leader is not None)
    one, other = (m for m in schedule.world.members if m.core is not leader)
    return leader, one, other


def core_of(member: RaftMember) -> RaftReplica:
    assert member.core is not None
    return member.core


def vote_for(candidate: RaftReplica, epoch: int, *, transfer: bool = True) -> RaftRequest:
    return RaftRequest(RaftRequestKind.VOTE, epoch, candidate.me, "", candidate.rank, transfer, candidate.members)


def test_rule_24_the_disk_has_the_vote_and_not_only_its_epoch() -> None:
    """Two candidates of one epoch: the second one's request comes late, after a restart of the voter for the first."""
    leader, voter, other = led_group()
    first, second = (vote_for(core, leader.epoch + 1) for core in (leader, core_of(other)))
    assert core_of(voter).on_raft_request(first, voter.now()).granted
    voter.crash(lose_tail=True)
    voter.start()
    assert not core_of(voter).on_raft_request(second, voter.now()).granted
    assert core_of(voter).on_raft_request(first, voter.now()).granted, "the answer may have been lost"


def test_rule_24_the_disk_has_an_epoch_before_its_leader_is_followed() -> None:
    """Without this, a former leader could truncate records after a restart that this leader has confirmed."""
    leader, follower, other = led_group()
    begins = RaftRequest(RaftRequestKind.BEGIN, leader.epoch + 3, core_of(other).me, "", core_of(other).rank)
    core_of(follower).on_raft_request(begins, follower.now())
    assert core_of(follower).follower is not None
    follower.crash(lose_tail=True)
    follower.start()
    assert core_of(follower).epoch == leader.epoch + 3


def test_rule_24_a_member_that_hears_a_leader_votes_only_at_the_request_of_that_leader() -> None:
    leader, voter, other = led_group()
    wanted = leader.epoch + 1
    assert not core_of(voter).on_raft_request(vote_for(core_of(other), wanted, transfer=False), voter.now()).granted
    assert core_of(voter).epoch == leader.epoch
    assert core_of(voter).on_raft_request(vote_for(core_of(other), wanted), voter.now()).granted


def test_rule_24_a_late_vote_for_another_epoch_does_not_count() -> None:
    leader, candidate, other = led_group()
    core = core_of(candidate)
    core.on_raft_request(
        RaftRequest(RaftRequestKind.TIMEOUT_NOW, leader.epoch, leader.me, "", leader.rank), candidate.now()
    )
    voted = core.epoch
    assert voted == leader.epoch + 1
    for asked in (voted - 1, voted + 1, voted):
        assert core.leader is None, asked
        core.raft_answered(
            RaftResponse(RaftRequestKind.VOTE, asked, core_of(other).me, voted, granted=True), candidate.now()
        )
    assert core.leader is not None


def test_rule_26_a_disk_with_a_new_copy_of_the_log_does_not_vote_for_its_former_incarnation() -> None:
    """It may lack records that it acknowledged, and would elect a member that lacks them, too."""
    _, lost, other = led_group()
    lost.crash(lose_tail=False)
    lost.log.reset(0, (), b"")
    lost.disk.saved = None
    lost.start()
    lost.log.append_raw(0, other.log.read_raw(0, 1 << 20))
    core = core_of(lost)
    assert {v.id.member for v in core.members} == {0, 1, 2}
    assert not core.is_voter
    assert not core.on_raft_request(vote_for(core_of(other), core_of(other).epoch + 1), lost.now()).granted


def test_rule_27_no_change_of_members_before_this_epoch_has_confirmed_a_record() -> None:
    leader, candidate, other = led_group()
    core = core_of(candidate)
    core.on_raft_request(
        RaftRequest(RaftRequestKind.TIMEOUT_NOW, leader.epoch, leader.me, "", leader.rank), candidate.now()
    )
    core.raft_answered(
        RaftResponse(RaftRequestKind.VOTE, core.epoch, core_of(other).me, core.epoch, True), candidate.now()
    )
    without_other = tuple(v for v in core.members if v.id != core_of(other).me)
    assert core.change_members(without_other, candidate.now()) == "no record of this epoch is confirmed yet"
    assert len(core.members) == 3


def test_a_frozen_leader_is_replaced_in_time() -> None:
    longest = max((elected_after_ms(seed), seed) for seed in range(400))
    options = RaftOptions()
    assert longest[0] <= options.election_ms + options.spread_ms + options.gone_ms + 400, longest
