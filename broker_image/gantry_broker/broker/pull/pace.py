"""How long answers to held pulls wait for others, by their number a second. Pure: time is an argument.

Each answer that leaves alone costs a pass of the event loop, a system call and a read for the next pull. While
they are few, each leaves at once. While they are many, they leave together every few milliseconds.
"""

from __future__ import annotations

from typing import Final

CALM: Final = 2_000
"""Answers a second up to which each leaves at once; for each further so many they wait a millisecond more."""
MOST_MS: Final = 4
"""The longest wait. The average is half of it, because answers come all the time."""
PERIOD_S: Final = 0.02
"""Answers are counted for at least this time."""
_MEMORY_S: Final = 0.08
"""A rate counts less with its age, and not at all after this time."""


class WakePace:
    """The rate of answers that could leave at once, and the wait that follows from it."""

    def __init__(self) -> None:
        self.rate = 0.0
        """Answers a second, lately."""
        self._count = 0
        self._since = 0.0

    def note(self, count: int) -> None:
        """Count answers that could leave now, whether they wait or not."""
        self._count += count

    def wait_ms(self, now_s: float) -> int:
        """Return how long the answers from now on wait for others; 0: each leaves at once."""
        passed = now_s - self._since
        # Not at each call: after a few microseconds two answers would look like a rate of many thousands.
        if passed >= PERIOD_S:
            if passed < _MEMORY_S:
                # A period counts by its share of the memory: one burst after calm makes nobody wait long.
                self.rate += (self._count / passed - self.rate) * passed / _MEMORY_S
            else:
                self.rate = 0.0  # There was a pause: the rate before it would hold the first answer after it.
            self._count = 0
            self._since = now_s
        return min(int(self.rate / CALM), MOST_MS)
