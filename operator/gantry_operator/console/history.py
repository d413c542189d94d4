"""The points of the chart outside the console, so that they outlive it."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from gantry_operator.console.snapshot import WINDOWS, Point
from gantry_operator.platforms.local.folder import read_json
from gantry_operator.registry.file import write_whole

MAX_POINTS: Final = 5_000
"""Of a history. The console writes about 1,000."""


class History(Protocol):
    """Where the points of one cluster are kept."""

    every_s: float
    """Seconds between two writes."""

    async def read(self, now: float) -> tuple[Point, ...] | None:
        """Return the points that are not too old, in their order; none for damaged ones. None: nobody knows now."""
        ...

    async def keep(self, points: Sequence[Point]) -> None:
        """Write the points. A failure costs only the history."""
        ...


class NoHistory:
    """The points end with the console."""

    every_s = math.inf

    async def read(self, now: float) -> tuple[Point, ...]:
        return ()

    async def keep(self, points: Sequence[Point]) -> None:
        """Do nothing."""


class FileHistory:
    """A file of a local cluster's folder."""

    every_s = 60.0

    def __init__(self, path: Path) -> None:
        self.path = path

    async def read(self, now: float) -> tuple[Point, ...]:
        return points_of(await asyncio.to_thread(read_json, self.path), now)

    async def keep(self, points: Sequence[Point]) -> None:
        try:
            await asyncio.to_thread(write_whole, self.path, json.dumps(rows_of(points)))
        except OSError:
            return


def points_of(rows: Any, now: float) -> tuple[Point, ...]:
    """Return the points of rows that are not too old, in their order; none if a row is damaged."""
    if not isinstance(rows, list) or len(rows) > MAX_POINTS:
        return ()
    points: list[Point] = []
    for row in rows:
        if not isinstance(row, list) or len(row) != 3 or not all(type(n) in (int, float) for n in row):
            return ()
        if not all(math.isfinite(n) and n >= 0 for n in row):
            return ()
        point = Point(*map(float, row))
        if now - max(WINDOWS.values()) <= point.at <= now and (not points or points[-1].at < point.at):
            points.append(point)
    return tuple(points)


def rows_of(points: Sequence[Point], apart_s: float = 0.0) -> list[list[float]]:
    """Return rows for JSON: time, received and sent messages a second. `apart_s`: seconds between two, at least."""
    rows: list[list[float]] = []
    for p in points:
        if not rows or p.at - rows[-1][0] >= apart_s:
            rows.append([round(p.at, 3), round(p.received, 3), round(p.sent, 3)])
    return rows
