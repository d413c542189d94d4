"""Control records of the tables in words."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from gantry_broker.broker.metadata.tables import Change, decode_change

_SHOWN: Final = 5
"""Entries of one part that a line lists."""
_NAMES: Final = {
    "topics": "sets topics",
    "dropTopics": "deletes topics",
    "groups": "sets groups",
    "dropGroups": "deletes groups",
    "offsets": "consumer offsets",
    "dropOffsets": "deletes consumer offsets",
    "settings": "sets settings",
    "dropSettings": "resets settings",
    "marks": "marks the broker group",
    "ends": "next queue offsets",
    "delay": "progress of delay levels",
    "timer": "progress of timers",
    "timerDone": "delivered timers",
    "modes": "ways of consumption",
}


def describe_tables(body: bytes) -> str | None:
    """Return the changes in a control record as text; None for other control records and unreadable ones."""
    change = decode_change(body)
    return None if change is None else describe_change(change)


def describe_change(change: Change) -> str:
    """Return a change on one line: at most five entries of each part, and the number of the others."""
    parts = [f"{text} {_list(change[name])}" for name, text in _NAMES.items() if change.get(name)]
    if change.get("dropData"):
        parts.append(f"hides their records below {change['dropData']}")
    return "; ".join(parts) or "changes nothing"


def _list(part: Any) -> str:
    if not isinstance(part, Collection) or isinstance(part, str):
        return str(part)
    if isinstance(part, Mapping):
        names = [f"{name} {_value(value)}" for name, value in list(part.items())[:_SHOWN]]
    else:
        names = [_name(entry) for entry in list(part)[:_SHOWN]]
    more = len(part) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "(" + ", ".join(f"{key}: {item}" for key, item in list(value.items())[:_SHOWN]) + ")"
    return str(value[0]) if isinstance(value, list) and len(value) == 2 else str(value)


def _name(entry: Any) -> str:
    if isinstance(entry, Mapping):
        return str(entry.get("topicName") or entry.get("groupName") or "?")
    return str(entry)
