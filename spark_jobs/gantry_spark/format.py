"""Numbers as people read them."""

from __future__ import annotations


def format_bytes(count: float) -> str:
    """Bytes: 1.4 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def format_count(count: int, name: str) -> str:
    """1 key, 1,200 keys."""
    return f"{count:,} {name}" if count == 1 else f"{count:,} {name}s"


def format_hours(hours: float) -> str:
    """A length of time: 3.5 h, 12.0 days."""
    return f"{hours:,.1f} h" if hours < 48 else f"{hours / 24:,.1f} days"
