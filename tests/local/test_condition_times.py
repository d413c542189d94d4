"""When the supervisor looks at the conditions of its cluster."""

from __future__ import annotations

import asyncio

import pytest
from gantry_broker.tasks import end_tasks
from gantry_operator.api.status import BrokerClusterStatus, Condition
from gantry_operator.platforms.local import condition_times
from gantry_operator.platforms.local.condition_times import UNWELL_S, WELL_S, ConditionTimes, pause_s

from tests.support.running import until


def status(**conditions: str) -> BrokerClusterStatus:
    made = [
        Condition(type=kind, status=value, reason="R", message="", lastTransitionTime="t")
        for kind, value in conditions.items()
    ]
    return BrokerClusterStatus(conditions=made)


def test_a_cluster_that_is_not_well_is_looked_at_more_often() -> None:
    assert pause_s(status(Ready="True", Progressing="False")) == WELL_S
    for unwell in (status(Ready="False", Progressing="False"), status(Ready="True", Progressing="True"), status()):
        assert pause_s(unwell) == UNWELL_S


async def test_news_cause_a_look_and_a_failure_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(condition_times, "SETTLE_S", 0.0)
    monkeypatch.setattr(condition_times, "UNWELL_S", 3_600.0)
    looks = 0

    async def look() -> BrokerClusterStatus:
        nonlocal looks
        looks += 1
        if looks == 2:
            raise OSError("no room")
        return status(Ready="True", Progressing="False")

    times = ConditionTimes(look)
    task = asyncio.create_task(times.run())
    try:
        for number in range(1, 5):
            await until(lambda number=number: looks == number)  # type: ignore[misc]
            times.wake()
            times.wake()
    finally:
        await end_tasks(task)
