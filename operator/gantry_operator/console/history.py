"""The points of the chart in a file, so that they outlive the console."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gantry_operator.console.snapshot import WINDOWS, Point
from gantry_operator.platforms.local.folder import read_json
from gantry_operator.registry.file import write_whole

KEEP_EVERY_S: Final = 60.0
MAX_POINTS: Final = 5_000
"""Of a file. The console writes about 1,000."""


def read_points(path: Path | None, now: float) -> tuple[Point, ...]:
    """Return the points of the file that are not too old, in their order; none for a file that is damaged.

    `path`: None where this platform has no file.
    """
    known = None if path is None else read_json(path)
    if not isinstance(known, list) or len(known) > MAX_POINTS:
        return ()
    found: list[Point] = []
    for row in known:
        if not isinstance(row, list) or len(row) != 3 or not all(type(n) in (int, float) for n in row):
            return ()
        if not all(math.isfinite(n) and n >= 0 for n in row):
            return ()
        point = Point(*map(float, row))
        if now - max(WINDOWS.values()) <= point.at <= now and (not found or found[-1].at < point.at):
            found.append(point)
    return tuple(found)


def keep_points(path: Path | None, points: Sequence[Point]) -> None:
    """Write the points. A disk that refuses them costs only the history."""
    if path is None:
        return
    rows = [[round(p.at, 3), round(p.received, 3), round(p.sent, 3)] for p in points]
    try:
        write_whole(path, json.dumps(rows))
    except OSError:
        return
