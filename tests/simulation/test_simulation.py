"""Random schedules find no violation with all rules, and find each mutant for which they are strong enough.

The stories of tests/scenarios find the others: every rule has a story that fails without it.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.simulation import model_log
from tests.simulation.machine import Profile, draw, run_seed
from tests.simulation.model_log import ModelLog
from tests.simulation.mutants import RULES, planted
from tests.simulation.profiles import PROFILES
from tests.simulation.world import World

SCHEDULES = int(os.environ.get("GANTRY_SCHEDULES", "20000"))
"""The number of schedules of all these tests together, mutants aside."""
PARTS = 4

PLANTED = {  # The broken rule, and the kind of schedules that finds the violation.
    1: "churn",
    3: "churn",
    5: "churn",
    6: "mixed",
    7: "churn",
    8: "churn",
    9: "mixed",
    10: "churn",
    11: "crash",
    13: "churn",
    16: "crash",
    17: "churn",
    20: "churn",
    21: "crash",
    23: "handover",
}


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", PROFILES)
def test_random_schedules(name: str, part: int) -> None:
    kind = PROFILES[name]
    count = SCHEDULES // len(PROFILES) // PARTS
    for seed in range(part * 1_000_000, part * 1_000_000 + count):
        violation = run_seed(seed, profile=kind.profile, make_operator=kind.operator)
        assert violation is None, f"python -m tests.simulation.run --profile {name} --seed {seed}: {violation}"


@pytest.mark.parametrize("rule", PLANTED, ids=lambda rule: str(RULES[rule]))
def test_random_schedules_find_the_mutant(rule: int) -> None:
    kind = PROFILES[PLANTED[rule]]
    with planted(rule):
        for seed in range(3_000):
            if run_seed(seed, profile=kind.profile) is not None:
                return
    pytest.fail(f"no schedule of {PLANTED[rule]} finds it")


def test_an_epoch_without_room_for_its_control_record_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 7: a filler is where a former master has a record, and both logs look alike."""
    monkeypatch.setattr(model_log, "ROOM", 0)
    kind = PROFILES["decided"]
    for seed in range(1, 3_000, 2):
        violation = run_seed(seed, profile=kind.profile, make_operator=kind.operator)
        if violation is not None:
            assert str(violation).startswith("(b)(e) - was shown"), violation
            return
    pytest.fail("no schedule finds it")


@pytest.mark.parametrize("seed", [500652, 3030142])
def test_a_leadership_record_is_not_recovered_while_an_assignment_of_the_lost_one_is_under_way(seed: int) -> None:
    """Rule 22. A report may be older than the assignment to its disk, although it arrived later."""
    kind = PROFILES["decided-lost-record"]
    violation = run_seed(seed, profile=kind.profile, make_operator=kind.operator)
    assert violation is None, violation


ASYNC = Profile(sync_replication=False, weights={"kill": 2, "arm": 2, "restart": 8, "send": 16, "think": 5, "swap": 6})


def test_async_loses_nothing_by_a_restart() -> None:
    for seed in range(600):
        violation = run_seed(seed, profile=ASYNC)
        assert violation is None, f"seed {seed}: {violation}"


def test_a_restart_that_loses_the_newest_records_under_async_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    recover = ModelLog.recover

    def forgets(log: ModelLog, rng: random.Random, *, lose_tail: bool) -> None:
        recover(log, rng, lose_tail=lose_tail)
        if log.records and log.end > max(log.confirmed, log.start):
            log.truncate(log.records[-1].offset)

    monkeypatch.setattr(ModelLog, "recover", forgets)
    for seed in range(600):
        violation = run_seed(seed, profile=ASYNC)
        if violation is not None and str(violation).startswith("(f) "):
            return
    pytest.fail("no schedule finds it")


def test_a_hibernation_that_loses_the_newest_records_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mark of a clean stop then says what is not so."""

    def without_flush(world: World) -> None:
        for member in world.members:
            member.crash(lose_tail=True)
            member.clean = True

    monkeypatch.setattr(World, "hibernate", without_flush)
    kind = PROFILES["decided-hibernation"]
    for seed in range(600):
        if run_seed(seed, profile=kind.profile, make_operator=kind.operator) is not None:
            return
    pytest.fail("no schedule finds it")


def test_a_seed_gives_the_same_schedule_again() -> None:
    kind = PROFILES["churn"]
    with planted(8):
        seed = next(s for s in range(3_000) if run_seed(s, profile=kind.profile) is not None)
        first = draw(seed, profile=kind.profile)
        assert first == draw(seed, profile=kind.profile)
    assert first[-1].startswith("VIOLATION")
