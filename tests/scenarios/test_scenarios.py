"""Stories with the expected trace below each step. Stories with the name `rule_NN_...` fail without that rule.

The language is that of tests/simulation/scenario.py, and of raft_scenario.py for groups in mode Raft. After a change
that is meant to change a trace: `python -m tests.simulation.scenario tests/scenarios/*.txt`, then read the diff.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.simulation.mutants import RULES, planted
from tests.simulation.scenario import run

HERE = Path(__file__).parent
STORIES = sorted(HERE.glob("*.txt"))
PLAYED_WITHOUT_HARM = {
    # Without these rules the trace changes, but no invariant breaks.
    "rule_03_a_follower_never_truncates_below_confirmed",
    "rule_08_without_enough_members_nothing_is_confirmed",
    "rule_14_a_higher_epoch_stops_a_master_at_once",
    "rule_17_a_proposal_is_never_rebased",
    "rule_23_a_handover_that_fails_ends_with_a_newer_leadership_record",
    "rule_24_a_leader_without_a_majority_steps_down",
    "rule_24_a_pre_vote_is_refused_while_a_leader_is_heard",
}
BAD_ENDS = [story for story in STORIES if story.stem.startswith("rule_") and story.stem not in PLAYED_WITHOUT_HARM]


@pytest.mark.parametrize("story", STORIES, ids=lambda p: p.stem)
def test_story(story: Path) -> None:
    written, violation = run(story)
    assert violation is None
    assert written == story.read_text(), f"{story.name} has another trace; the module describes how to rewrite it"


@pytest.mark.parametrize("story", BAD_ENDS, ids=lambda p: p.stem)
def test_without_its_rule_the_story_ends_badly(story: Path) -> None:
    number = re.match(r"rule_(\d+)_", story.stem)
    assert number is not None
    with planted(int(number[1])):
        _, violation = run(story)
    assert violation is not None, f"nothing was found with {RULES[int(number[1])]}"


def test_every_rule_has_a_story_that_ends_badly_without_it() -> None:
    assert {int(story.stem.split("_")[1]) for story in BAD_ENDS} >= set(range(1, 28))
