"""A run that does not end is stopped, and reports where it stands."""

from __future__ import annotations

import asyncio
import io
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.chaos.bound import DidNotEnd, at_the_latest, within

ROOT = Path(__file__).resolve().parents[2]
STUCK = """
import sys, time
from tests.chaos.bound import at_the_latest

def stands_still():
    time.sleep(60)

with at_the_latest(0.2, "seed 7; again: run it", lambda: print("cleared away", flush=True), sys.stdout):
    stands_still()
"""


async def test_work_that_ends_in_time_returns_its_result_or_error() -> None:
    async def fails() -> None:
        raise ValueError("wrong")

    assert await within(asyncio.sleep(0, 7), 5) == 7
    with pytest.raises(ValueError, match="wrong"):
        await within(fails(), 5)


async def test_work_that_waits_forever_is_reported_to_the_innermost_line_and_cancelled() -> None:
    ended = asyncio.Event()

    async def waits() -> None:
        try:
            await asyncio.Queue[int]().get()
        finally:
            ended.set()

    async def outer() -> None:
        async with asyncio.TaskGroup() as both:
            both.create_task(waits(), name="the one that waits")

    with pytest.raises(DidNotEnd, match=r"the one that waits: test_bound.py:\d+ waits > queues.py:\d+ get") as error:
        await within(outer(), 0.05)
    assert ended.is_set()
    assert "after it was cancelled" not in str(error.value)


async def test_work_that_ignores_its_cancellation_is_left_alone() -> None:
    enough = asyncio.Event()

    async def stubborn() -> None:
        while not enough.is_set():
            with suppress(asyncio.CancelledError):
                await enough.wait()

    with pytest.raises(DidNotEnd, match=r"(?s)after it was cancelled.*the run: test_bound.py:\d+ stubborn"):
        await within(stubborn(), 0.05, settles_s=0.05)
    enough.set()


async def test_a_cancelled_run_ends_its_work() -> None:
    ended = asyncio.Event()

    async def waits() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    run = asyncio.create_task(within(waits(), 60))
    await asyncio.sleep(0)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert ended.is_set()


def test_a_process_with_a_blocked_event_loop_is_ended() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STUCK], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 1
    assert "seed 7; again: run it: no end after 0 s" in done.stdout
    assert "stands_still" in done.stdout
    assert "cleared away" in done.stdout


def test_work_that_ends_is_left_alone() -> None:
    out = io.StringIO()
    with at_the_latest(30, "it", lambda: None, out):
        pass
    assert out.getvalue() == ""
