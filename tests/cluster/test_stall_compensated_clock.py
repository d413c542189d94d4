"""Time in which this program did not run is no evidence of silence."""

from __future__ import annotations

import asyncio
import time

from gantry_operator.cluster.stall_compensated_clock import StallCompensatedClock


async def test_the_clock_stands_still_while_the_loop_does() -> None:
    clock = StallCompensatedClock()
    clock.start()
    try:
        await asyncio.sleep(0.05)
        before, real = clock.now(), time.monotonic()
        time.sleep(0.6)  # noqa: ASYNC251
        assert clock.now() - before < 0.2, "also before the late tick was noticed"
        await asyncio.sleep(0.15)
        assert clock.now() - before < 0.45
        assert time.monotonic() - real > 0.7
    finally:
        clock.stop()


async def test_it_runs_as_the_monotonic_clock_otherwise_and_never_goes_back() -> None:
    clock = StallCompensatedClock()
    clock.start()
    try:
        seen = [clock.now()]
        started = time.monotonic()
        while time.monotonic() - started < 0.4:
            await asyncio.sleep(0.005)
            seen.append(clock.now())
        assert seen == sorted(seen)
        assert seen[-1] - seen[0] > 0.2
    finally:
        clock.stop()
