"""Mode Raft: random schedules find nothing with every rule in place, and find what each of rules 24 to 27 prevents."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from checker import Violation
from gantry_broker.replication.raft import RaftOptions
from gantry_broker.replication.rules import ALL, Rule, Rules, without
from profiles import RAFT_PROFILES
from raft_world import RaftMember, RaftWorld, run_raft_seed

SCHEDULES = int(os.environ.get("GANTRY_RAFT_SCHEDULES", "3600"))
PARTS = 4

PLANTED = {
    Rule.DURABLE_VOTE: "raft-elections",
    Rule.LEARNERS: "raft",
    Rule.SINGLE_CHANGES: "raft-changes",
}


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", RAFT_PROFILES)
def test_random_schedules(name: str, part: int) -> None:
    count = SCHEDULES // len(RAFT_PROFILES) // PARTS
    for seed in range(part * 1_000_000, part * 1_000_000 + count):
        violation = run_raft_seed(seed, profile=RAFT_PROFILES[name])
        assert violation is None, f"python tests/simulation/run.py --profile {name} --seed {seed}: {violation}"


@pytest.mark.parametrize("rule", PLANTED, ids=lambda r: f"rule_{r.value:02}_{r.name.lower()}")
def test_random_schedules_find_it_without(rule: Rule) -> None:
    for seed in range(3_000):
        if run_raft_seed(seed, profile=RAFT_PROFILES[PLANTED[rule]], rules=without(rule)) is not None:
            return
    pytest.fail(f"no schedule of {PLANTED[rule]} finds it")


class Story:
    """A group of five, moved by hand."""

    def __init__(self, rules: Rules) -> None:
        self.world = RaftWorld(5, RaftOptions(sync_flush=True), rules=rules, trace=lambda text: None)
        for member in self.world.members:
            member.start()
        self.members = self.world.members

    def deliver(self, *allowed: RaftMember) -> None:
        """Everything that is under way between these members arrives, the rest is lost."""
        names = {m.name for m in allowed}
        while self.world.messages:
            message = self.world.messages[0]
            if message.source in names and message.target in names:
                self.world.deliver(message)
            else:
                self.world.messages.remove(message)

    def elect(self, candidate: RaftMember, *voters: RaftMember) -> None:
        """Time passes until `candidate`, and nobody else, holds an election among `voters`."""
        for member in (candidate, *voters):
            if member.core is not None:
                member.core.leader_gone(member.now())
        for _ in range(60):
            self.world.now += 100
            self.world.tick(candidate)
            self.deliver(candidate, *voters)
            if candidate.core is not None and candidate.core.leader is not None:
                break
        assert candidate.core is not None
        assert candidate.core.leader is not None, self.world.draw()

    def fetch(self, follower: RaftMember, max_bytes: int) -> None:
        """The follower takes up to `max_bytes` from its leader, and acknowledges what it has then."""
        for size in (max_bytes, 0) if max_bytes else (0,):
            assert follower.core is not None
            fetch = follower.core.next_fetch(max_bytes=max_bytes)
            assert fetch is not None
            leader = self.members[follower.core.cell.master.member]  # type: ignore[union-attr]
            assert leader.core is not None
            answer = leader.core.fetched(fetch, leader.now())
            if answer is None and size:
                answer = leader.core.again(fetch, leader.now(), empty=True)
            if answer is not None:
                follower.core.answered(answer, follower.now())
                follower.log.flush()
                self.world.checker.look(follower)
        self.world.checker.look(leader)


def figure_8(rules: Rules) -> Violation | None:
    """Figure 8 of the Raft paper: a record of an old epoch is on a majority, and is overwritten all the same."""
    story = Story(rules)
    s1, s2, s3, s4, s5 = story.members
    try:
        assert s1.core is not None
        while s1.core.leader is None:
            story.world.now += 200
            for member in story.members:
                story.world.tick(member)
            story.deliver(*story.members)
        assert s1.core.leader is not None
        s1.log.flush()
        for follower in (s2, s3, s4, s5):
            story.fetch(follower, 1_000)
        s1.send(1)
        s1.log.flush()
        story.fetch(s2, 1_000)  # (a) x is on s1 and s2.
        s1.crash(lose_tail=False)
        story.elect(s5, s3, s4)  # (b) s5 leads with the votes of s3 and s4, and has only its control record.
        s5.log.flush()
        s5.crash(lose_tail=False)
        s1.start()
        story.elect(s1, s2, s3)  # (c) s1 leads again; x reaches s3, the new epoch's control record does not.
        s1.log.flush()
        story.fetch(s2, 0)
        story.fetch(s3, 1)
        s1.step(lambda core: core.appended())
        s1.crash(lose_tail=False)
        s5.start()
        story.elect(s5, s3, s4)  # (d) s5 may lead: its last record is of a higher epoch than x.
        story.fetch(s3, 1_000)
    except Violation as violation:
        return violation
    return None


def test_rule_25_figure_8() -> None:
    assert figure_8(ALL) is None


def test_rule_25_figure_8_ends_badly_when_any_majority_confirms() -> None:
    assert figure_8(without(Rule.COMMIT_OWN_EPOCH)) is not None
