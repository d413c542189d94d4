"""Sending all dead letters of a group again: as long as it takes, beside the pages, with its progress."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from gantry_broker.tasks import end_tasks

from gantry_operator.actions.dead_letters import Choice, resend_letters
from gantry_operator.console import operations as do
from gantry_operator.console.sources import Source

KEPT: Final = 64
"""Groups whose last run is kept."""


@dataclass(slots=True)
class Resend:
    """One run. `done` of `total` letters; `said`: what came of it; `problem`: why it stopped before the end."""

    group: str
    done: int = 0
    total: int = 0
    said: str = ""
    problem: str = ""
    stopping: bool = False
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def running(self) -> bool:
        return not (self.said or self.problem)


class _Stopped(Exception):
    """A person has stopped it."""


class Resends:
    """The runs of one cluster, one of a group at a time."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._runs: dict[str, Resend] = {}

    def of(self, group: str) -> Resend | None:
        """Return the run of a group, or its last one; None: there was none."""
        return self._runs.get(group)

    def start(self, group: str) -> Resend:
        """Start a run; one that is under way goes on."""
        started = self._runs.get(group)
        if started is not None and started.running:
            return started
        self._runs.pop(group, None)
        ended = [name for name, run in self._runs.items() if not run.running]
        for name in ended[: max(len(self._runs) - KEPT + 1, 0)]:
            del self._runs[name]
        started = self._runs[group] = Resend(group)
        started.task = asyncio.create_task(self._run(started))
        return started

    def stop(self, group: str) -> None:
        """Stop a run after the letters that are under way: those behind them still wait."""
        run = self._runs.get(group)
        if run is not None:
            run.stopping = True

    async def close(self) -> None:
        """End all runs. Letters that were sent since the last mark are sent once more by the next run."""
        await end_tasks(*(run.task for run in self._runs.values()))

    async def _run(self, run: Resend) -> None:
        def counted(done: int, total: int) -> None:
            run.done, run.total = done, max(total, done)
            if run.stopping:
                raise _Stopped

        try:
            async with do.in_one_line():
                result = await resend_letters(
                    self._source.target, Choice(run.group, (), None, None, True), on_progress=counted
                )
        except _Stopped:
            run.problem = f"stopped after {run.done} letters; the others wait"
        except do.OperationError as error:
            run.problem = f"stopped after {run.done} letters: {error}"
        except Exception as error:  # The page says it; a task has no one else who reads it.
            run.problem = f"stopped after {run.done} letters: {str(error) or type(error).__name__}"
        else:
            if result["problem"]:
                run.problem = f"stopped after {result['sent']} letters: {result['problem']}"
            else:
                run.said = f"{result['sent']} of {result['found']} dead letters were sent to {result['to']}"
