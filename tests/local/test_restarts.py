"""When a process that ended is started again."""

from __future__ import annotations

from gantry_operator.local.children import BACK_OFF_S, SUCCESSOR_FIRST_S, lived_well, pause_before_start


def test_the_pauses_grow_to_a_limit() -> None:
    pauses = [pause_before_start(failures, False) for failures in range(8)]
    assert pauses == [*BACK_OFF_S, BACK_OFF_S[-1], BACK_OFF_S[-1]]


def test_a_member_leaves_the_processors_to_its_successor_first() -> None:
    assert pause_before_start(0, True) == SUCCESSOR_FIRST_S
    assert pause_before_start(0, False) < SUCCESSOR_FIRST_S
    assert pause_before_start(5, True) == BACK_OFF_S[-1]


def test_one_that_dies_soon_after_each_start_waits_longer_each_time() -> None:
    pause, failures, pauses = 0.0, 0, []
    for _ in range(7):
        failures = 0 if lived_well(2.0, pause) else failures
        pause = pause_before_start(failures, True)
        failures += 1
        pauses.append(pause)
    assert pauses == [1.0, 1.0, 1.0, 2.0, 5.0, 10.0, 10.0]


def test_one_that_is_killed_now_and_then_never_waits_long() -> None:
    pause, failures = 0.0, 0
    for _ in range(7):
        failures = 0 if lived_well(4.0, pause) else failures
        pause = pause_before_start(failures, True)
        failures += 1
        assert pause == SUCCESSOR_FIRST_S


def test_after_a_long_pause_a_longer_life_is_wanted() -> None:
    assert not lived_well(20.0, BACK_OFF_S[-1])
    assert lived_well(31.0, BACK_OFF_S[-1])
