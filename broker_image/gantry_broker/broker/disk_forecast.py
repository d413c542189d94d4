"""When the disk will be full, from its free bytes over the last hour. Pure: time is an argument."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gantry_broker.store.types import DiskUsage

FORECAST_MS: Final = 60_000
"""Between two samples."""
WINDOW: Final = 60
"""Samples from the first to the last."""
SHORTEST_MS: Final = 300_000
"""Samples of less time say little: a segment is written, and an old one deleted, in steps."""
LONGEST_S: Final = 10 * 365 * 86_400
"""A later end counts as none."""


class DiskForecast:
    """Deletions by retention count, too: a disk on which as much is deleted as written does not fill."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int]] = deque(maxlen=WINDOW + 1)

    def note(self, now_ms: int, usage: DiskUsage | None) -> None:
        """Add a sample. `now_ms`: monotonic; `usage` None: not known, which is no sample."""
        if usage is not None:
            self._samples.append((now_ms, usage.free))

    @property
    def full_in_s(self) -> int | None:
        """Seconds until no byte is free; None: the disk does not fill, or the samples are too few."""
        if len(self._samples) < 2:
            return None
        (first_ms, before), (last_ms, free) = self._samples[0], self._samples[-1]
        used, took_ms = before - free, last_ms - first_ms
        if took_ms < SHORTEST_MS or used <= 0:
            return None
        seconds = free * took_ms // used // 1000
        return seconds if seconds <= LONGEST_S else None
