"""What a command does that takes long: a bar where stderr is a terminal, else a line now and then. Both go to stderr.

Nothing is shown in the first two seconds, so a quick command stays quiet.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final

FIRST_S: Final = 2.0
"""Seconds after which the first sign is due."""
AGAIN_S: Final = 10.0
"""Seconds between two lines, without a terminal."""
REDRAW_S: Final = 0.1

Count = tuple[int, int | None]
"""Done, and all; None: not known."""


def plain_line(label: str, step: str, count: Count, seconds: float, unit: str = "") -> str:
    """One line about a command, for example `sending to T: 1,000 of 4,000 (25%), 12 s`."""
    done, total = count
    parts = [step] if step else []
    if total:
        parts.append(f"{done:,} of {total:,}{unit and ' '}{unit} ({min(done / total, 1):.0%})")
    elif done:
        parts.append(f"{done:,}")
    return f"{label}: {', '.join([*parts, f'{seconds:.0f} s'])}"


class Progress:
    """Use it as a context manager around the work. `advance` and `say` may be called at any rate."""

    def __init__(
        self,
        label: str,
        total: int | None = None,
        *,
        unit: str = "",
        shown: bool = True,
        poll: Callable[[], Count | None] | None = None,
    ) -> None:
        """Set up; nothing is shown before it is entered. `unit`: what is counted, in the plural. `shown`: False shows
        nothing.

        `poll`: asked for the count before each line, by a thread; None: no change.
        """
        self._label = label
        self._step = ""
        self._unit = unit
        self._count: Count = (0, total)
        self._poll = poll
        self._shown = shown
        self._started = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True, name="progress")

    def advance(self, step: int = 1) -> None:
        """Count this many more as done."""
        done, total = self._count
        self._count = (done + step, total)

    def say(self, text: str) -> None:
        """Name the present step."""
        self._step = text

    def __enter__(self) -> Progress:
        if self._shown:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._shown:
            self._thread.join()

    def _show(self) -> None:
        if self._ended.wait(FIRST_S):
            return
        if sys.stderr.isatty():
            self._bar()
        else:
            self._lines()

    def _now(self) -> Count:
        if self._poll is not None:
            self._count = self._poll() or self._count
        return self._count

    def _lines(self) -> None:
        while True:
            line = plain_line(self._label, self._step, self._now(), time.monotonic() - self._started, self._unit)
            print(line, file=sys.stderr, flush=True)
            if self._ended.wait(AGAIN_S):
                return

    def _bar(self) -> None:
        from rich import progress
        from rich.console import Console
        from rich.markup import escape

        columns = (
            progress.SpinnerColumn(), progress.TextColumn("{task.description}"), progress.BarColumn(),
            progress.TaskProgressColumn(show_speed=True), progress.TimeElapsedColumn(),
        )  # fmt: skip
        with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(self._label, total=None)
            while True:
                done, total = self._now()
                description = f"{self._label}: {self._step}" if self._step else self._label
                bar.update(task, completed=done, total=total, description=escape(description))
                if self._ended.wait(REDRAW_S):
                    return
