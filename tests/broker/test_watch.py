"""A loop that stands still is named in the log, with the line that holds it."""

from __future__ import annotations

import asyncio
import logging
import re
import time

import pytest
from gantry_broker.broker.watch import LoopWatch


def _hold(seconds: float) -> None:
    time.sleep(seconds)


async def _run(watch: LoopWatch, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        await asyncio.sleep(0.01)
        watch.beat()


async def test_a_loop_that_stands_still_is_told_with_the_line(caplog: pytest.LogCaptureFixture) -> None:
    watch = LoopWatch(0.1)
    watch.start()
    with caplog.at_level(logging.WARNING):
        await _run(watch, 0.05)
        _hold(0.4)
        await _run(watch, 0.05)
    watch.close()
    # A busy machine may hold the loop at other times, too, which is then told as well.
    held = [i for i, said in enumerate(caplog.messages) if "_hold < " in said]
    assert held, caplog.messages
    said, after = caplog.messages[held[0] : held[0] + 2]
    assert "stands still since 0." in said
    assert "test_watch.py:" in said
    assert re.fullmatch(r"the event loop stood still for (0\.[4-9]|[1-9]\.\d) s", after)


async def test_a_loop_that_beats_is_not_told_of(caplog: pytest.LogCaptureFixture) -> None:
    watch = LoopWatch(20.0)
    watch.start()
    with caplog.at_level(logging.WARNING):
        await _run(watch, 0.3)
    watch.close()
    assert caplog.messages == []


async def test_a_watch_that_was_never_started_can_be_closed() -> None:
    LoopWatch().close()
