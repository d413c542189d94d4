"""Numbers as text for readers."""

from __future__ import annotations


def format_bytes(count: float) -> str:
    """Format a number of bytes, for example `1.4 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def format_count(count: int, name: str) -> str:
    """Format a number of things, for example `1 key` or `1,200 keys`."""
    return f"{count:,} {name}" if count == 1 else f"{count:,} {name}s"


def format_hours(hours: float) -> str:
    """Format a duration in hours, for example `3.5 h` or `12.0 days`."""
    return f"{hours:,.1f} h" if hours < 48 else f"{hours / 24:,.1f} days"


def format_time(iso: str) -> str:
    """Format a time in UTC of a report, for example `2026-01-31 12:00 UTC`."""
    return f"{iso[:10]} {iso[11:16]} UTC"


def format_share(part: float, whole: float) -> str:
    """Format `part` as a percentage of `whole`: `0%` only for nothing, and `100%` only for all of it."""
    share = part / whole if whole else 0.0
    if 0 < share < 0.01:
        return "<1%"
    if 0.99 < share < 1:
        return ">99%"
    return f"{share:.0%}"
