"""Forecast of the logs' growth and of the time until the disks are full."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

HOUR_MS: Final = 3_600_000
GROWTH_HOURS: Final = 72
"""The forecast uses at most this many hours of growth."""
LISTED_HOURS: Final = 24 * 31
DEVICE_PREFIX: Final = "device "
"""Prefix of a `Disk.location` that is a device number of this machine."""


@dataclass(frozen=True)
class Disk:
    """The disk under one log, with its total and free bytes.

    `location`: the device or the machine of the disk; empty: not known.
    """

    log: str
    total: int
    free: int
    location: str = ""

    def is_same_disk(self, other: Disk) -> bool:
        """Return whether two logs share one disk.

        Brokers of one machine report their free bytes at different times, so small differences are accepted.
        """
        if self.total != other.total:
            return False
        if self.location.startswith(DEVICE_PREFIX) and other.location.startswith(DEVICE_PREFIX):
            return self.location == other.location
        near = abs(self.free - other.free) <= self.total // 1000
        return self.free == other.free or (near and self.location != "" and self.location == other.location)


def newest_hour(hours: Iterable[int], now_ms: int) -> int:
    """Return the newest of these hours since 1970, without hours in the future.

    A fast clock or a damaged header yields store times in the future.
    """
    present = now_ms // HOUR_MS
    ordered = sorted(hours)
    return max((h for h in ordered if h <= present), default=ordered[-1] if ordered else present)


def first_hour(hours: Iterable[int], default: int) -> int:
    """Return the first of these hours without hour 0, which holds the impossible times of damaged headers."""
    return min((h for h in hours if h > 0), default=default)


def forecast(hours: Mapping[int, int], now_ms: int, disks: Sequence[Disk], reserved_hours: int) -> dict[str, Any]:
    """Return the growth of the logs and its forecast, as in the report.

    `hours`: bytes by hour since 1970, of the whole logs. The rate is the mean of the last full hours, at most
    `GROWTH_HOURS`, idle hours included. Retention bounds a log to the rate times the reserved hours. A smaller disk
    fills before that, and the broker then deletes segments earlier.
    """
    newest = newest_hour(hours, now_ms)
    first = first_hour(hours, newest)
    start = max(first, newest - GROWTH_HOURS)
    span_h = newest - start
    if span_h >= 2:
        # The first and the last hour are incomplete.
        inside = [hours.get(h, 0) for h in range(start + 1, newest)]
        rate = sum(inside) / len(inside)
    else:
        total = sum(n for h, n in hours.items() if h >= start)
        rate = float(total) / max(1, span_h + 1)
    used = sum(n for h, n in hours.items())
    result: dict[str, Any] = {
        "bytesPerHour": round(rate),
        "hours": [
            {"hour": _iso(h), "bytes": hours.get(h, 0)} for h in range(max(first, newest - LISTED_HOURS), newest + 1)
        ],
        "reservedHours": reserved_hours,
        "steadyStateBytes": round(rate * reserved_hours),
        "disks": [{"log": d.log, "totalBytes": d.total, "freeBytes": d.free} for d in disks],
        "hoursToFull": None,
        "fullAt": None,
        "diskFullBeforeRetention": False,
    }
    if disks and rate > 0:
        # Assumption: all logs grow alike. The logs of a disk share its free bytes.
        hours_to_full = min(d.free * len(disks) / sum(d.is_same_disk(other) for other in disks) for d in disks) / rate
        result["hoursToFull"] = round(hours_to_full, 1)
        at = now_ms + int(hours_to_full * HOUR_MS)
        result["fullAt"] = _iso_ms(at) if hours_to_full < 24 * 3650 else None
        hours_to_steady_state = max(0.0, reserved_hours - used / rate)
        result["diskFullBeforeRetention"] = bool(hours_to_full < hours_to_steady_state)
    return result


def _iso(hour: int) -> str:
    return _iso_ms(hour * HOUR_MS)


def _iso_ms(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
