"""Where store times go back: a clock was set back, or the next leader's clock was behind. Pure.

Between two such places store times only rise, so a search by time may bisect there, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile
from typing import Final

MAX_STEPS: Final = 64
"""A search by time costs two bisections for each. Beyond it the smallest step is forgotten."""


class ClockSteps:
    """The offsets of the log at which the store time is lower than that of the record before."""

    def __init__(self) -> None:
        self.last_ms = 0
        """Store time (ms) of the last record that was noted; 0 without one."""
        self._steps: list[tuple[int, int]] = []
        """Offset and size (ms) of each step, in the order of the log."""

    def note(self, at: int, ms: int) -> None:
        """Note the store time (ms) of the record at an offset of the log."""
        if ms < self.last_ms:
            self._add(at, self.last_ms - ms)
        self.last_ms = ms

    def extend(self, steps: Iterable[tuple[int, int]], last_ms: int) -> None:
        """Note steps within a stretch of the log, and the store time of its last record."""
        for at, size in steps:
            self._add(at, size)
        self.last_ms = last_ms

    def _add(self, at: int, size: int) -> None:
        if self._steps and at <= self._steps[-1][0]:
            return
        self._steps.append((at, size))
        if len(self._steps) > MAX_STEPS:
            del self._steps[min(range(len(self._steps)), key=lambda n: self._steps[n][1])]

    def __bool__(self) -> bool:
        return bool(self._steps)

    def behind(self, start: int) -> list[int]:
        """Return the offsets of the steps behind the first record of a log that begins at `start`, which rise."""
        return [at for at, _ in self._steps if at > start]

    def saved(self, start: int) -> list[tuple[int, int]]:
        """Return what `extend` takes, for a log that begins at `start`."""
        return [step for step in self._steps if step[0] > start]

    def truncate(self, end: int) -> None:
        """Forget what lies behind a new end. The time of the last record is not known: a step too many may follow."""
        self._steps = list(takewhile(lambda step: step[0] < end, self._steps))

    def clear(self) -> None:
        """Forget all: the log is empty."""
        self._steps.clear()
        self.last_ms = 0
