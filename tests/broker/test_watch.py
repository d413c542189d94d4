"""A loop that stands still is named in the log, with the line that holds it."""

from __future__ import annotations

import asyncio
import logging
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
        await _run(watch, 0.3)
        assert caplog.messages == []
        _hold(0.4)
        await _run(watch, 0.05)
    watch.close()
    assert len(caplog.messages) == 2, caplog.messages
    assert "stands still since 0." in caplog.messages[0]
    assert "_hold < " in caplog.messages[0]
    assert "test_watch.py:" in caplog.messages[0]
    assert "stood still for 0.4 s" in caplog.messages[1]


async def test_a_watch_that_was_never_started_can_be_closed() -> None:
    LoopWatch().close()
