"""What to do with a topic, in words, with the numbers behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from gantry_spark.format import format_bytes, format_count, format_hours

if TYPE_CHECKING:
    from gantry_spark.report_model import Context

COMPACT: Final = "compact"
SHORTEN: Final = "shorten retention"
LENGTHEN: Final = "lengthen retention"
NO_CHANGE: Final = "leave"

MIN_SAVED_SHARE: Final = 0.2
"""Share of a topic's bytes that compaction must save to be worth it."""
MIN_KEYED_SHARE: Final = 0.95
"""Share of a topic's records that must have a key before it looks like a table of newest values."""
NEAR_EXPIRY_SHARE: Final = 0.8
"""Share of the retention at which a group that is still behind is about to lose records."""
PROMPT_READ_SHARE: Final = 0.25
"""Share of the retention within which all groups must have read, before a shorter one is proposed."""
LARGE_TOPIC_SHARE: Final = 0.1
"""Share of the log's bytes from which a topic matters for the disk."""


def recommend(
    topic: Mapping[str, Any], groups: Sequence[Mapping[str, Any]], growth: Mapping[str, Any], context: Context
) -> tuple[str, str]:
    """The recommendation for a topic of the report, and the reason with its numbers."""
    if topic["kind"] != "user":
        return NO_CHANGE, f"It is one of the broker's own topics ({topic['kind']}): not compactable."
    lost = [g for g in groups if g["expiredUnreadRecords"]]
    reserved = context.reserved_hours
    late = [g for g in groups if g["lagRecords"] and g["lagHours"] >= NEAR_EXPIRY_SHARE * reserved]
    if lost or late:
        return LENGTHEN, _lengthen(lost, late, reserved)
    keyless = topic["records"] - topic["keyedRecords"]
    ratio = topic["savedBytes"] / topic["bytes"] if topic["bytes"] else 0.0
    mostly_keyed = topic["keyedRecords"] >= MIN_KEYED_SHARE * topic["records"]
    if topic["compactable"] and context.complete and mostly_keyed and ratio >= MIN_SAVED_SHARE:
        return COMPACT, _compact(topic, groups, ratio, keyless)
    why = _not_compact(topic, ratio)
    worst = max((g["lagHours"] for g in groups if g["lagRecords"]), default=0.0)
    total = max(1, context.log_bytes)
    if (
        groups
        and worst <= PROMPT_READ_SHARE * reserved
        and topic["bytes"] >= LARGE_TOPIC_SHARE * total
        and growth["diskFullBeforeRetention"]
    ):
        return SHORTEN, (
            f"{why} All consumer groups ({len(groups)}) have read it up to {format_hours(worst)} ago, records are kept "
            f"for {reserved} h, and at {format_bytes(growth['bytesPerHour'])} an hour the disk is full in "
            f"{format_hours(growth['hoursToFull'])}: {format_hours(max(1.0, 2 * worst))} would do."
        )
    return NO_CHANGE, why


def _lengthen(lost: Sequence[Mapping[str, Any]], late: Sequence[Mapping[str, Any]], reserved: int) -> str:
    parts = []
    if lost:
        worst = max(lost, key=lambda g: int(g["expiredUnreadRecords"]))
        missed = format_count(worst["expiredUnreadRecords"], "record")
        parts.append(f"group {worst['group']} has missed {missed} that expired unread")
    if late:
        slow = max(late, key=lambda g: float(g["lagHours"]))
        parts.append(
            f"group {slow['group']} is {format_hours(slow['lagHours'])} behind, with "
            f"{format_count(slow['lagRecords'], 'record')} to read"
        )
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}; records are kept for {reserved} h."


def _compact(topic: Mapping[str, Any], groups: Sequence[Mapping[str, Any]], ratio: float, keyless: int) -> str:
    text = (
        f"{topic['supersededRecords']:,} of {topic['records']:,} records are older versions of "
        f"{format_count(topic['distinctKeys'], 'key')}: compaction saves {format_bytes(topic['savedBytes'])}, "
        f"{ratio:.0%} of the topic."
    )
    if keyless:
        text += f" Records without a key stay: {keyless:,}."
    affected = [g for g in groups if g["compactedUnreadRecords"]]
    if affected:
        worst = max(affected, key=lambda g: int(g["compactedUnreadRecords"]))
        others = f" and {len(affected) - 1} more" if len(affected) > 1 else ""
        text += (
            f" Wait for group {worst['group']}{others}: it has not read {worst['compactedUnreadRecords']:,} of the "
            f"records that would go."
        )
    return text


def not_compactable(topic: Mapping[str, Any]) -> str | None:
    """Why `gantry compact` refuses a user's topic; None: it does not."""
    if not topic["keyedRecords"]:
        return f"none of its {topic['records']:,} records has a key"
    if topic["ambiguousKeys"]:
        return (
            "it has keys that are not UTF-8, or hold U+FFFD in the place of what was not, and these are not told apart"
        )
    return None


def _not_compact(topic: Mapping[str, Any], ratio: float) -> str:
    refused = not_compactable(topic)
    if refused is not None:
        return f"Not compactable: {refused}."
    if topic["keyedRecords"] < MIN_KEYED_SHARE * topic["records"]:
        return (
            f"Only {topic['keyedRecords']:,} of {topic['records']:,} records have a key, so it is no table of newest "
            f"values; compaction would save {format_bytes(topic['savedBytes'])} ({ratio:.0%})."
        )
    if not topic["savedBytes"]:
        return (
            f"Compaction would save nothing: each key has one version ({format_count(topic['distinctKeys'], 'key')})."
        )
    if ratio >= MIN_SAVED_SHARE:
        return (
            f"Compaction would save {format_bytes(topic['savedBytes'])} ({ratio:.0%}), but a part of the log is missing "
            f"(see the notes), and newest versions may have been there."
        )
    return (
        f"Compaction would save {format_bytes(topic['savedBytes'])}, just {ratio:.0%}: "
        f"{format_count(topic['distinctKeys'], 'key')} in {format_count(topic['keyedRecords'], 'record')}."
    )
