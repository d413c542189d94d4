"""A broker as its program starts it, with a finer measure of how long its event loop is held.

`python held_broker.py FILE ARGUMENTS...`: the timer of the broker's own watch runs every millisecond. FILE has two
numbers: the longest delay of the timer, and the most CPU time of the loop's thread between two of its runs, both in
seconds and since somebody wrote zeros there. The second is not longer when other programs use the machine.
"""

from __future__ import annotations

import mmap
import struct
import sys
import time
from pathlib import Path
from typing import Final

from gantry_broker import loopwatch
from gantry_broker.broker.process import main

NUMBERS: Final = struct.Struct("dd")
EVERY_S: Final = 0.001


class Kept:
    """The two numbers, in a file that another process reads."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), NUMBERS.size)

    def longer(self, delay_s: float, cpu_s: float) -> None:
        """Keep the longer ones."""
        old = NUMBERS.unpack_from(self._map)
        NUMBERS.pack_into(self._map, 0, max(old[0], delay_s), max(old[1], cpu_s))

    def take(self) -> tuple[float, float]:
        """Return both in milliseconds, and begin again."""
        found: tuple[float, float] = NUMBERS.unpack_from(self._map)
        NUMBERS.pack_into(self._map, 0, 0.0, 0.0)
        return found[0] * 1000, found[1] * 1000


def new_file(path: Path) -> Kept:
    path.write_bytes(NUMBERS.pack(0.0, 0.0))
    return Kept(path)


class FinerHolds(loopwatch.Holds):
    """Keeps each delay of the timer and the CPU time since its last run."""

    kept: Kept
    _cpu_s = 0.0

    def late(self, seconds: float) -> None:
        now = time.thread_time()
        self.kept.longer(seconds, now - self._cpu_s)
        self._cpu_s = now
        super().late(seconds)


if __name__ == "__main__":
    FinerHolds.kept = Kept(Path(sys.argv.pop(1)))
    loopwatch.Holds = FinerHolds  # type: ignore[misc]
    loopwatch.IDLE_S = loopwatch.BUSY_S = EVERY_S  # type: ignore[misc]
    sys.exit(main())
