"""A small delivery scenario: `python -m tests.delivery.scenario` runs it with a million messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.delivery.plan import ALL, ORDERED, POP_GROUPS, POPPED, POPPED_ORDERED, RETRIES, Plan
from tests.delivery.scenario import DeliveryLog, Scenario, judge, judge_dead, judge_popped
from tests.interop5.clients import ToolMissing, python_environment

SMALL = Plan(8_000, 400, 50)


@pytest.mark.timeout(150)
async def test_everything_is_delivered_across_a_failover(tmp_path: Path) -> None:
    outcome = await Scenario(tmp_path, SMALL, patience_s=90).play()
    assert not outcome.problems, (outcome, (tmp_path / "workers.log").read_text()[-2000:])
    assert outcome.dead >= sum(SMALL.poisoned(n) for n in range(SMALL.per_key)) * 8


@pytest.mark.timeout(240)
async def test_everything_is_delivered_through_proxies(tmp_path: Path) -> None:
    try:
        python_environment()
    except ToolMissing as e:
        pytest.skip(f"POP by gRPC is not tested here: {e}")
    outcome = await Scenario(tmp_path, Plan(4_000, 400, 50), patience_s=150, groups=POP_GROUPS).play()
    assert not outcome.problems, (outcome, (tmp_path / "workers.log").read_text()[-2000:])
    assert outcome.proxies_killed


def correct_log(group: str) -> list[tuple[int, int, int, int]]:
    """Returns the log of a group without faults: one key after the other."""
    lines = []
    for key in range(8):
        for number in range(SMALL.per_key):
            tries = 0 if group != ALL else RETRIES if SMALL.poisoned(number) else SMALL.transient_failures(number)
            lines += [(len(lines) + tried, key, number, tried) for tried in range(tries + 1)]
    return lines


def test_judge_accepts_a_correct_run() -> None:
    for group in (ALL, ORDERED):
        assert judge(SMALL, group, DeliveryLog(correct_log(group))) == ([], 0)


@pytest.mark.parametrize(
    ("group", "spoil", "says"),
    [
        (ALL, lambda lines: lines[:100] + lines[101:], "never got 1 messages"),
        (ALL, lambda lines: [*lines, (0, 0, SMALL.per_key, 0)], "none of its own"),
        (ALL, lambda lines: [*lines, (0, 0, 1, 1)], "it never failed there"),
        (ALL, lambda lines: [line for line in lines if line[3] < RETRIES], "tried again 15 times, not 16"),
        (ORDERED, lambda lines: [lines[1], lines[0], *lines[2:]], "for the first time after 1"),
        (ORDERED, lambda lines: [*lines, (0, 0, 3, 1)], "it never failed there"),
    ],
)
def test_judge_reports_each_fault(group: str, spoil: object, says: str) -> None:
    assert callable(spoil)
    problems, _ = judge(SMALL, group, DeliveryLog(spoil(correct_log(group))))
    assert any(says in problem for problem in problems), problems


def test_judge_counts_repeated_deliveries() -> None:
    lines = correct_log(ORDERED)
    assert judge(SMALL, ORDERED, DeliveryLog([*lines, *lines[-50:]])) == ([], 50)


def test_dead_letters_are_exactly_those_that_failed_every_time() -> None:
    right = [(key, n) for key in range(8) for n in range(SMALL.per_key) if SMALL.poisoned(n)]
    assert judge_dead(SMALL, right + right[:3]) == []
    assert "missing" in judge_dead(SMALL, right[1:])[0]
    assert "should live" in judge_dead(SMALL, [*right, (0, 1)])[0]


@pytest.mark.parametrize("group", [POPPED, POPPED_ORDERED])
def test_the_judge_of_pop_groups_sees_each_fault(group: str) -> None:
    lines = correct_log(ORDERED)
    s = 1_000_000_000
    right = DeliveryLog([(line[0] * s, *line[1:]) for line in lines])
    acknowledged = DeliveryLog([(ns + s, *rest) for ns, *rest in right.lines])  # type: ignore[misc]

    def faults(changed: list[tuple[int, int, int, int]]) -> list[str]:
        return judge_popped(SMALL, group, DeliveryLog(sorted(changed)), acknowledged)[0]

    assert judge_popped(SMALL, group, right, acknowledged) == ([], 0)
    again = (right.lines[7][0] + s, *right.lines[7][1:])
    assert judge_popped(SMALL, group, DeliveryLog(sorted([*right.lines, again])), acknowledged) == ([], 1)
    assert "never got 1" in faults(right.lines[1:])[0]
    assert "after its acknowledgement" in faults([*right.lines, (lines[-1][0] * s + 9 * s, *right.lines[0][1:])])[0]
    assert "none of its own" in faults([*right.lines, (5, 0, SMALL.per_key, 0)])[0]
    first, second = right.lines[3], right.lines[4]
    swapped = [*right.lines[:3], (first[0], *second[1:]), (second[0], *first[1:]), *right.lines[5:]]
    assert any("for the first time" in fault for fault in faults(swapped)) is (group == POPPED_ORDERED)
