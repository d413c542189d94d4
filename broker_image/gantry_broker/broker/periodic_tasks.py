"""The broker's periodic tasks, on one timer.

A task that fails is reported and runs again; no task stops another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from gantry_broker.broker.clock import Clock

log = logging.getLogger(__name__)

TICK_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class PeriodicTask:
    """One task of the timer."""

    name: str
    interval_ms: Callable[[], int]
    """The time between two runs; settings may change it while the broker runs."""
    run: Callable[[int], bool | None]
    """Gets the monotonic time in ms. Returns True when there is more to do: it runs again with the next tick."""


class PeriodicTasks:
    """Runs each task that is due, ten times a second at most."""

    def __init__(self, tasks: Sequence[PeriodicTask], clock: Clock) -> None:
        self._tasks = tasks
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._due: dict[str, int] = {}
        self._reported: dict[str, str] = {}

    def start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)
        now = self._clock.now_ms()
        for task in self._tasks:
            if now >= self._due.get(task.name, 0):
                self._run(task, now)

    def _run(self, task: PeriodicTask, now: int) -> None:
        self._due[task.name] = now + task.interval_ms()
        try:
            if task.run(now):
                self._due[task.name] = 0
            self._reported.pop(task.name, None)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            if self._reported.get(task.name) != text:
                self._reported[task.name] = text
                log.exception("the periodic task (%s) failed", task.name)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
