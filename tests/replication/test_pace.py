"""A follower that catches up while producers send: few per cent of the leader's time, and it arrives."""

from __future__ import annotations

import random

import pytest
from gantry_broker.replication.pace import AHEAD, COPIES, CREDIT_S, LONGEST_S, SHARE, Pace

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
        now = max(pace.due(now, took, MIB, int(end)), now + turnaround_s, now + took)
    return float("inf"), reading / now


@pytest.mark.parametrize("growth_mib", [0.5, 2, 8, 20, 40])
@pytest.mark.parametrize("took_ms", [0.5, 2, 12])
def test_a_slave_that_lacks_much_catches_up_on_a_busy_machine(growth_mib: float, took_ms: float) -> None:
    seconds, _ = catch_up(200 * MIB, growth_mib * MIB, took_ms / 1000, 0.01, 1200)
    # Faster than the log grows by a quarter, or sixteen pieces a second: then 200 MiB are made up for in this time.
    assert seconds < 10 + 200 / max(0.23 * growth_mib, 15 - growth_mib)


@pytest.mark.parametrize("turnaround_s", [0.001, 0.01, 0.02])
def test_how_soon_a_follower_asks_again_does_not_change_its_rate(turnaround_s: float) -> None:
    pace, now = Pace(), 0.0
    pace.due(now, 1.0, MIB, 0)
    for n in range(1, 1001):
        now = max(pace.due(now, 1.0, MIB, int(30 * MIB * now)), now + turnaround_s)
        if n == 200:
            since = now
    assert 800 / (now - since) == pytest.approx(30 * AHEAD, rel=0.02)


def test_a_follower_that_stood_still_is_not_given_everything_at_once() -> None:
    pace, now = Pace(), 0.0
    for _ in range(100):
        now = pace.due(now, 0.001, MIB, 0)
    now += 3.0
    without_pause = 0
    while (due := pace.due(now, 0.001, MIB, 0)) <= now:
        without_pause += 1
        assert due >= now - CREDIT_S
    assert without_pause <= CREDIT_S / (COPIES * 0.001 / SHARE) + 1


def test_serving_takes_a_few_per_cent_of_the_time_where_that_is_enough_to_arrive() -> None:
    _, share = catch_up(200 * MIB, 8 * MIB, 0.001, 0.005, 600)
    assert COPIES * share <= SHARE * 1.1


def test_the_pause_after_a_piece_that_took_long_is_short_all_the_same() -> None:
    assert Pace().due(0.0, 10.0, MIB, 0) == LONGEST_S


def test_growth_of_long_ago_counts_no_more() -> None:
    pace = Pace()
    pace.due(0.0, 0.01, MIB, 0)
    before = pace.due(1.0, 0.0, MIB, 100 * MIB)
    assert pace.due(1.0, 0.01, MIB, 100 * MIB) - before == pytest.approx(1 / 100 / AHEAD)
    assert pace.due(10.0, 0.001, MIB, 100 * MIB) == pytest.approx(10.0 + 0.001 * COPIES / SHARE)
