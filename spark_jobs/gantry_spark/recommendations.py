"""The recommendation for a topic, as text with the numbers behind it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gantry_spark.format import format_bytes, format_count, format_hours, format_share
from gantry_spark.report_context import Context

COMPACT: Final = "compact"
SHORTEN: Final = "shorten retention"
LENGTHEN: Final = "lengthen retention"
NO_CHANGE: Final = "no change"

MIN_SAVED_SHARE: Final = 0.2
"""The least share of a topic's bytes that compaction must save before it is recommended."""
MIN_KEYED_SHARE: Final = 0.95
"""The least share of a topic's records that must have a key before compaction is recommended."""
NEAR_EXPIRY_SHARE: Final = 0.8
"""A group with a lag beyond this share of the retention is about to lose records."""
PROMPT_READ_SHARE: Final = 0.25
"""A shorter retention is recommended only if the lag of all groups is within this share of the retention."""
LARGE_TOPIC_SHARE: Final = 0.1
"""A topic with at least this share of the log's bytes matters for the disk."""


def recommend(
    topic: Mapping[str, Any], groups: Sequence[Mapping[str, Any]], growth: Mapping[str, Any], context: Context
) -> tuple[str, str]:
    """Return the recommendation for a topic of the report, and its reason with the numbers.

    `groups`: the report's consumer groups of this topic. `growth`: the report's forecast.
    """
    if topic["kind"] != "user":
        return NO_CHANGE, f"This is a system topic ({topic['kind']}): not compactable."
    lost = [g for g in groups if g["expiredUnreadRecords"]]
    reserved = context.reserved_hours
    late = [g for g in groups if g["lagRecords"] and g["lagHours"] >= NEAR_EXPIRY_SHARE * reserved]
    if lost or late:
        return LENGTHEN, _lengthen(lost, late, reserved)
    if topic["compacted"] is not None:
        return NO_CHANGE, _compacted(topic)
    keyless = topic["records"] - topic["keyedRecords"]
    ratio = topic["savedBytes"] / topic["bytes"] if topic["bytes"] else 0.0
    mostly_keyed = topic["keyedRecords"] >= MIN_KEYED_SHARE * topic["records"]
    if topic["compactable"] and context.complete and mostly_keyed and ratio >= MIN_SAVED_SHARE:
        return COMPACT, _compact(topic, groups, keyless)
    why = _not_compact(topic, ratio)
    worst = max((g["lagHours"] for g in groups if g["lagRecords"]), default=0.0)
    large = topic["bytes"] >= LARGE_TOPIC_SHARE * max(1, context.log_bytes)
    if groups and worst <= PROMPT_READ_SHARE * reserved and large and growth["diskFullBeforeRetention"]:
        lag = f"a lag of at most {format_hours(worst)}" if worst else "no lag"
        return SHORTEN, (
            f"{why} All consumer groups ({len(groups)}) have {lag}, and retention is {reserved} h. "
            f"At {format_bytes(growth['bytesPerHour'])} an hour the disk is full in "
            f"{format_hours(growth['hoursToFull'])}. A retention of {format_hours(max(1.0, 2 * worst))} is enough."
        )
    return NO_CHANGE, why


def _compacted(topic: Mapping[str, Any]) -> str:
    done = topic["compacted"]
    return (
        f"The brokers compact this topic: {format_bytes(done['savedBytes'])} are saved of the "
        f"{format_bytes(done['seenBytes'])} that they have looked at. Of the log as it is, compaction would save "
        f"{format_bytes(topic['savedBytes'])}: superseded records leave the disk with their segments."
    )


def _lengthen(lost: Sequence[Mapping[str, Any]], late: Sequence[Mapping[str, Any]], reserved: int) -> str:
    parts = []
    if lost:
        worst = max(lost, key=lambda g: int(g["expiredUnreadRecords"]))
        missed = format_count(worst["expiredUnreadRecords"], "record")
        parts.append(f"Group {worst['group']} has missed {missed} that expired unread.")
    if late:
        slow = max(late, key=lambda g: float(g["lagHours"]))
        parts.append(
            f"Group {slow['group']} has a lag of {format_hours(slow['lagHours'])} and "
            f"{format_count(slow['lagRecords'], 'record')}."
        )
    return f"{' '.join(parts)} Retention is {reserved} h."


def _compact(topic: Mapping[str, Any], groups: Sequence[Mapping[str, Any]], keyless: int) -> str:
    text = (
        f"{topic['supersededRecords']:,} of {topic['records']:,} records are older versions of "
        f"{format_count(topic['distinctKeys'], 'key')}: compaction saves {format_bytes(topic['savedBytes'])}, "
        f"{format_share(topic['savedBytes'], topic['bytes'])} of the topic."
    )
    if keyless:
        text += f" Records without a key stay: {keyless:,}."
    text += f" Run: {shlex.join(['gantry', 'topic', 'compact', topic['topic']])}."
    affected = [g for g in groups if g["compactedUnreadRecords"]]
    if affected:
        worst = max(affected, key=lambda g: int(g["compactedUnreadRecords"]))
        others = f" and {len(affected) - 1} more" if len(affected) > 1 else ""
        text += (
            f" Wait for group {worst['group']}{others}: it has not read {worst['compactedUnreadRecords']:,} of the "
            f"records that compaction removes."
        )
    return text


def not_compactable(topic: Mapping[str, Any]) -> str | None:
    """Return the reason for which `gantry compact` refuses a user's topic, or None if it accepts the topic."""
    if not topic["keyedRecords"]:
        return f"none of its {topic['records']:,} records has a key"
    if topic["ambiguousKeys"]:
        return "it has keys that are not UTF-8 or contain U+FFFD, and these are ambiguous"
    return None


def _not_compact(topic: Mapping[str, Any], ratio: float) -> str:
    refused = not_compactable(topic)
    if refused is not None:
        return f"Not compactable: {refused}."
    saved = format_bytes(topic["savedBytes"])
    share = format_share(topic["savedBytes"], topic["bytes"])
    if topic["keyedRecords"] < MIN_KEYED_SHARE * topic["records"]:
        return (
            f"Only {topic['keyedRecords']:,} of {topic['records']:,} records have a key, so the topic is no table of "
            f"newest values. Compaction would save {saved} ({share})."
        )
    if not topic["savedBytes"]:
        keys = format_count(topic["distinctKeys"], "key")
        return f"Compaction would save nothing: each key has one version ({keys})."
    if ratio >= MIN_SAVED_SHARE:
        return (
            f"Compaction would save {saved} ({share}), but a part of the log is missing (see the notes). That part "
            f"may hold newer versions."
        )
    return (
        f"Compaction would save {saved}, only {share}: {format_count(topic['distinctKeys'], 'key')} in "
        f"{format_count(topic['keyedRecords'], 'record')}."
    )
