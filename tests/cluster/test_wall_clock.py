"""Waits for a time of day while the wall clock is set, or goes on without the process."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from gantry_operator.certificates import renewal
from gantry_operator.certificates.renewal import Certificates, is_due
from gantry_operator.cluster import wall_clock


async def test_a_step_of_the_wall_clock_ends_a_long_wait() -> None:
    looks = 0

    def is_due() -> bool:
        nonlocal looks
        looks += 1
        return looks == 3

    async with asyncio.timeout(20):
        assert not await wall_clock.wait(3_600, is_due, look_s=0.01)
    assert looks == 3


async def test_the_pause_and_the_event_end_it_too() -> None:
    assert not await wall_clock.wait(0.01, lambda: False, look_s=3_600)
    assert not await wall_clock.wait(-1, lambda: False)
    event = asyncio.Event()
    waiting = asyncio.create_task(wall_clock.wait(3_600, lambda: False, event, look_s=0.01))
    await asyncio.sleep(0)
    event.set()
    assert await asyncio.wait_for(waiting, 20)


def test_a_renewal_is_due_from_its_time_on(monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    held = Certificates()
    assert not is_due(held, now), "nothing is held"
    renewal_at = now + timedelta(days=1)

    monkeypatch.setattr(renewal, "next_look", lambda _: renewal_at)
    assert not is_due(held, now)
    assert is_due(held, renewal_at)
    assert is_due(held, now + timedelta(days=30)), "the machine has slept"
