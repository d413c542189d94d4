"""A loop that is held is counted, and named in the log with the line that holds it."""

from __future__ import annotations

import asyncio
import logging
import re
import time

import pytest
from gantry_broker.loopwatch import IDLE_S, Holds, LoopWatch, loop_families


def _hold(seconds: float) -> None:
    time.sleep(seconds)


async def until(watch: LoopWatch, count: int) -> None:
    async with asyncio.timeout(20):
        while watch.holds.count < count:  # noqa: ASYNC110 (nothing says so)
            await asyncio.sleep(0.01)


def test_holds_over_the_limit_are_counted_once() -> None:
    holds = Holds(0.05)
    for late in (0.0, 0.049, 0.06, 0.2):
        holds.late(late)
    assert (holds.count, holds.longest_s, round(holds.total_s, 3)) == (2, 0.2, 0.26)
    holds.ran(0.04)
    holds.ran(0.3)
    holds.late(0.32)  # the same hold, as the timer saw it
    assert (holds.count, holds.longest_s, round(holds.total_s, 3)) == (3, 0.3, 0.56)
    holds.ran(0.1)
    holds.late(0.2)
    assert holds.count == 5, "the timer saw more than what was measured"
    names = [name for name, _, _, _ in loop_families(holds, "x")]
    assert names == ["x_event_loop_holds_total", "x_event_loop_hold_seconds_total", "x_event_loop_longest_hold_seconds"]


async def test_a_blocked_loop_is_counted_and_logged_with_its_line(caplog: pytest.LogCaptureFixture) -> None:
    watch = LoopWatch(0.1, log_every_s=0.0)
    watch.start()
    with caplog.at_level(logging.WARNING):
        await asyncio.sleep(0.05)
        _hold(IDLE_S + 0.6)
        await until(watch, 1)
        await asyncio.sleep(0.05)
    watch.close()
    assert watch.holds.longest_s > 0.5
    # A busy machine may hold the loop at other times, too, which is then reported as well.
    held = [i for i, said in enumerate(caplog.messages) if "_hold < " in said]
    assert held, caplog.messages
    said, after = caplog.messages[held[0] : held[0] + 2]
    assert re.search(r"has stood still for \d+\.\d+ s", said)
    assert "test_loopwatch.py:" in said
    assert re.fullmatch(r"the event loop stood still for (0\.[4-9]|[1-9]\.\d) s", after)


async def test_many_holds_are_counted_but_not_all_logged(caplog: pytest.LogCaptureFixture) -> None:
    watch = LoopWatch(0.1, log_every_s=60.0)
    watch.start()
    with caplog.at_level(logging.WARNING):
        for count in range(1, 4):
            _hold(IDLE_S + 0.3)
            await until(watch, count)
    watch.close()
    assert watch.holds.count >= 3
    assert sum("has stood still" in said for said in caplog.messages) == 1
    assert sum("loop stood still" in said for said in caplog.messages) <= 1


async def test_a_free_loop_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    watch = LoopWatch(20.0)
    watch.start()
    with caplog.at_level(logging.WARNING):
        await asyncio.sleep(0.3)
    watch.close()
    assert caplog.messages == []


async def test_a_watch_that_was_never_started_can_be_closed() -> None:
    LoopWatch().close()
