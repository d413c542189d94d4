"""How fast the logs grow, and from that when the disks fill."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

HOUR_MS: Final = 3_600_000
GROWTH_HOURS: Final = 72
"""Hours of growth that the forecast is made from, at most."""
LISTED_HOURS: Final = 24 * 31
DEVICE_PREFIX: Final = "device "
"""Before the number of a disk of this machine, as a `Disk.place`."""


@dataclass(frozen=True)
class Disk:
    """The disk under one log: bytes in all, and bytes that are free.

    `place`: the device, or the machine that it is on; empty: not known.
    """

    log: str
    total: int
    free: int
    location: str = ""

    def is_same_disk(self, other: Disk) -> bool:
        """Whether two logs fill one disk. Brokers of one machine are asked in turn, so their answers may differ by what
        was written in between."""
        if self.total != other.total:
            return False
        if self.location.startswith(DEVICE_PREFIX) and other.location.startswith(DEVICE_PREFIX):
            return self.location == other.location
        near = abs(self.free - other.free) <= self.total // 1000
        return self.free == other.free or (near and self.location != "" and self.location == other.location)


def newest_hour(hours: Iterable[int], now_ms: int) -> int:
    """The last of these hours since 1970. After a record from the future, of a clock that was ahead or a damaged head,
    all others would seem to be old, and the log to be idle."""
    present = now_ms // HOUR_MS
    known = sorted(hours)
    return max((h for h in known if h <= present), default=known[-1] if known else present)


def first_hour(hours: Iterable[int], otherwise: int) -> int:
    """The first of these hours; that of 1970 is where times lie that a damaged head has and that cannot be."""
    return min((h for h in hours if h > 0), default=otherwise)


def forecast(hours: Mapping[int, int], now_ms: int, disks: Sequence[Disk], reserved_hours: int) -> dict[str, Any]:
    """Growth by hour (`hours`: bytes by hour since 1970, of all that the logs hold) and what it leads to.

    The rate is that of the last full hours, up to `LOOK_BACK_H`, idle ones counted. Retention keeps a log at the rate
    times the reserved hours; only if the disk is smaller than that it fills, and then the broker deletes earlier.
    """
    newest = newest_hour(hours, now_ms)
    first = first_hour(hours, newest)
    start = max(first, newest - GROWTH_HOURS)
    span_h = newest - start
    if span_h >= 2:
        # The first and the last hour are only partly there.
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
        # Logs are taken to grow alike; a disk takes what comes to those that lie on it.
        hours_to_full = min(d.free * len(disks) / sum(d.is_same_disk(other) for other in disks) for d in disks) / rate
        result["hoursToFull"] = round(hours_to_full, 1)
        at = now_ms + int(hours_to_full * HOUR_MS)
        result["fullAt"] = _iso_ms(at) if hours_to_full < 24 * 3650 else None
        growing_for = max(0.0, reserved_hours - used / rate)
        result["diskFullBeforeRetention"] = bool(hours_to_full < growing_for)
    return result


def _iso(hour: int) -> str:
    return _iso_ms(hour * HOUR_MS)


def _iso_ms(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
