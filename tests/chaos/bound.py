"""A time limit for every run. A run that exceeds it reports where each task and thread stands, and is stopped."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from tests.chaos.cluster import NotInTime

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

T = TypeVar("T")
_FRAME = ("cr_frame", "gi_frame", "ag_frame")
_AWAITED = ("cr_await", "gi_yieldfrom", "ag_await")
"""Of coroutines, generators and asynchronous generators."""
SETTLES_S = 40.0
"""Cancelled work should have ended after this time."""
REPORT = Path(__file__).resolve().parents[2] / "build" / "chaos-did-not-end.txt"
"""The report of runs whose process was ended."""
LEAVES_S = 60.0
"""After this many more seconds a thread kills the processes, because the event loop itself may be blocked."""


class DidNotEnd(NotInTime):
    """A run exceeded its limit. The message has the stack of every task."""


async def within(work: Coroutine[Any, Any, T], seconds: float, settles_s: float = SETTLES_S) -> T:
    """Return the result of `work`. Raises DidNotEnd when `work` takes longer: it is cancelled, and left alone if it
    goes on.
    """
    task = asyncio.create_task(work, name="the run")
    stacks = ""
    try:
        await asyncio.wait({task}, timeout=seconds)
        if task.done():
            return task.result()
        stacks = where_tasks_stand()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=settles_s)
    after = "" if task.done() else f"\nand {settles_s:.0f} s after it was cancelled:\n{where_tasks_stand()}"
    raise DidNotEnd(f"not within {seconds:.0f} s: the end of the run. It stood at\n{stacks}{after}")


def where_tasks_stand(loop: asyncio.AbstractEventLoop | None = None) -> str:
    """Every task with the lines that wait for one another, the innermost last."""
    tasks = sorted(asyncio.all_tasks(loop), key=lambda t: t.get_name())
    return "\n".join(f"  {task.get_name()}: {' > '.join(_waits(task)) or 'does not wait'}" for task in tasks)


def _waits(task: asyncio.Task[Any]) -> list[str]:
    """The lines at which a task waits, the innermost last. Task.get_stack has the outermost line only."""
    lines: list[str] = []
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame = next((f for f in (getattr(awaited, n, None) for n in _FRAME) if f), None)
        if frame is None:
            lines.append(type(awaited).__name__)
            break
        lines.append(_line(frame))
        awaited = next((w for w in (getattr(awaited, n, None) for n in _AWAITED) if w), None)
    return lines


def _line(frame: FrameType) -> str:
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno} {frame.f_code.co_name}"


def where_threads_stand() -> str:
    names = {t.ident: t.name for t in threading.enumerate()}
    found = []
    for ident, top in sys._current_frames().items():
        lines = []
        frame: FrameType | None = top
        while frame is not None:
            lines.append(_line(frame))
            frame = frame.f_back
        found.append(f"  thread {names.get(ident, ident)}: {' > '.join(reversed(lines))}")
    return "\n".join(found)


@contextmanager
def at_the_latest(
    seconds: float, what: str, clear_away: Callable[[], None], out: TextIO | None = None
) -> Iterator[Callable[[asyncio.AbstractEventLoop], None]]:
    """End this whole process with exit code 1 when the enclosed work takes longer.

    Before the end, another thread reports where each thread and task stands, and calls `clear_away`. Yields a function
    that takes the event loop whose tasks the report covers.
    """
    done = threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    REPORT.parent.mkdir(exist_ok=True)

    def watch() -> None:
        if done.wait(seconds):
            return
        stream = out or sys.stderr
        try:
            for part in (
                f"{what}: no end after {seconds:.0f} s",
                where_threads_stand(),
                *map(where_tasks_stand, loops),
            ):
                print(part, file=stream, flush=True)
                with REPORT.open("a") as report:  # pytest loses the output of a process that ends.
                    print(part, file=report)
            clear_away()
        finally:
            os._exit(1)

    threading.Thread(target=watch, name="at the latest", daemon=True).start()
    try:
        yield loops.append
    finally:
        done.set()
