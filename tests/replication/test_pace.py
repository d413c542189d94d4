"""A follower that catches up while producers send: few per cent of the leader's time, and it arrives."""

from __future__ import annotations

import random

import pytest
from gantry_broker.replication.pace import LONGEST_S, SHARE, Pace

MIB = 1 << 20


def catch_up(lacks: int, growth: float, took_s: float, turnaround_s: float, limit_s: float) -> tuple[float, float]:
    """(seconds until everything is given, part of the time that reading took); infinite: not within the limit."""
    pace = Pace()
    draw = random.Random(1)
    now, given, reading = 0.0, 0.0, 0.0
    while now < limit_s:
        end = lacks + growth * now
        if given >= end - MIB:
            return now, reading / now
        took = took_s * draw.uniform(0.5, 1.5)
        reading += took
        given += MIB
        now += max(pace.pause(now, took, MIB, int(end)), turnaround_s, took)
    return float("inf"), reading / now


@pytest.mark.parametrize("growth_mib", [0.5, 2, 8, 20, 40])
@pytest.mark.parametrize("took_ms", [0.5, 2, 12])
def test_whoever_lacks_much_arrives_however_busy_the_machine_is(growth_mib: float, took_ms: float) -> None:
    seconds, _ = catch_up(200 * MIB, growth_mib * MIB, took_ms / 1000, 0.01, 600)
    # Twice as fast as the log grows, or four pieces a second: then 200 MiB are made up for in this time.
    assert seconds < 5 + 200 / max(growth_mib, 4 - growth_mib)


def test_reading_takes_a_few_per_cent_of_the_time_where_that_is_enough_to_arrive() -> None:
    _, share = catch_up(200 * MIB, 8 * MIB, 0.001, 0.005, 600)
    assert share <= SHARE * 1.1


def test_pieces_that_take_long_are_not_waited_for_longer_than_a_quarter_of_a_second() -> None:
    assert Pace().pause(0.0, 10.0, MIB, 0) == LONGEST_S


def test_growth_of_long_ago_counts_no_more() -> None:
    pace = Pace()
    pace.pause(0.0, 0.01, MIB, 0)
    assert pace.pause(1.0, 0.01, MIB, 100 * MIB) == pytest.approx(0.005)
    assert pace.pause(10.0, 0.01, MIB, 100 * MIB) == pytest.approx(0.2)
