"""Mode Raft: random schedules find nothing with every rule in place, and find what rules 24, 26 and 27 prevent.

For rule 25 they are too weak: tests/scenarios has figure 8 of the Raft paper.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from gantry_broker.replication.rules import Rule, without
from profiles import RAFT_PROFILES
from raft_world import draw_raft, run_raft_seed

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


def test_a_seed_gives_the_same_schedule_again_whatever_was_played_before() -> None:
    first = draw_raft(5, profile=RAFT_PROFILES["raft-changes"])
    draw_raft(6, profile=RAFT_PROFILES["raft-changes"])
    assert draw_raft(5, profile=RAFT_PROFILES["raft-changes"]) == first
