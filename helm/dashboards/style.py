"""Colours, units and value words of all dashboards. A colour has one meaning everywhere."""

from __future__ import annotations

from typing import Final, Literal

GOOD: Final = "#3B8A5A"
WARNING: Final = "#C77D0A"
BAD: Final = "#C4314B"
PLAIN: Final = "#5B6B7B"
"""Figures that are neither good nor bad."""

IN: Final = "#2F6FB5"
"""What producers send."""
OUT: Final = "#7A5BB0"
"""What consumers get."""
LOW: Final = "#9CC3E6"
MIDDLE: Final = "#4A8AC9"
HIGH: Final = "#1D4E89"
"""Percentiles 50, 95 and 99 of a duration or a size."""

SERIES: Final = (
    "#2F6FB5", "#C77D0A", "#3B8A5A", "#7A5BB0", "#1F9AA0", "#B5588A", "#8A6B3B", "#5B6B7B", "#6FA8DC", "#9BBF3F",
)  # fmt: skip
"""Series whose names are data: members, topics, groups."""

Unit = Literal[
    "short", "messages", "messages/s", "bytes", "bytes/s", "seconds", "milliseconds", "percent", "per second", "cores",
    "time", "none",
]  # fmt: skip
"""The last two: a point in time (Unix seconds), and text."""

GRAFANA_UNIT: Final[dict[Unit, str]] = {
    "short": "short",
    "messages": "short",
    "messages/s": "suffix:msg/s",
    "bytes": "bytes",
    "bytes/s": "binBps",
    "seconds": "s",
    "milliseconds": "ms",
    "percent": "percentunit",
    "per second": "suffix:/s",
    "cores": "suffix:cores",
    "time": "dateTimeFromNow",
    "none": "none",
}

DAY: Final = 86_400
