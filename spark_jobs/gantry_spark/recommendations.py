"""What to do with a topic, in words, with the numbers behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from gantry_spark.format import count_text, size_text, span_text

if TYPE_CHECKING:
    from gantry_spark.report_model import Context

COMPACT: Final = "compact"
SHORTEN: Final = "shorten retention"
LENGTHEN: Final = "lengthen retention"
LEAVE: Final = "leave"

WORTH: Final = 0.2
"""Share of a topic's bytes that compaction must save to be worth it."""
KEYED: Final = 0.95
"""Share of a topic's records that must have a key before it looks like a table of newest values."""
NEAR_END: Final = 0.8
"""Share of the retention at which a group that is still behind is about to lose records."""
READ_EARLY: Final = 0.25
"""Share of the retention within which all groups must have read, before a shorter one is proposed."""
BIG: Final = 0.1
"""Share of the log's bytes from which a topic matters for the disk."""


def recommend(
    topic: Mapping[str, Any], groups: Sequence[Mapping[str, Any]], growth: Mapping[str, Any], context: Context
) -> tuple[str, str]:
    """The recommendation for a topic of the report, and the reason with its numbers."""
    if topic["kind"] != "user":
        return LEAVE, f"It is one of the broker's own topics ({topic['kind']}): not compactable."
    lost = [g for g in groups if g["alreadyLostRecords"]]
    reserved = context.reserved_hours
    late = [g for g in groups if g["behindRecords"] and g["behindHours"] >= NEAR_END * reserved]
    if lost or late:
        return LENGTHEN, _lengthen(lost, late, reserved)
    keyless = topic["records"] - topic["keyedRecords"]
    ratio = topic["savedBytes"] / topic["bytes"] if topic["bytes"] else 0.0
    mostly_keyed = topic["keyedRecords"] >= KEYED * topic["records"]
    if topic["compactable"] and context.whole and mostly_keyed and ratio >= WORTH:
        return COMPACT, _compact(topic, groups, ratio, keyless)
    why = _not_compact(topic, ratio)
    worst = max((g["behindHours"] for g in groups if g["behindRecords"]), default=0.0)
    total = max(1, context.log_bytes)
    if groups and worst <= READ_EARLY * reserved and topic["bytes"] >= BIG * total and growth["fillsBeforeRetention"]:
        return SHORTEN, (
            f"{why} All consumer groups ({len(groups)}) have read it up to {span_text(worst)} ago, records are kept "
            f"for {reserved} h, and at {size_text(growth['bytesPerHour'])} an hour the disk is full in "
            f"{span_text(growth['hoursToFull'])}: {span_text(max(1.0, 2 * worst))} would do."
        )
    return LEAVE, why


def _lengthen(lost: Sequence[Mapping[str, Any]], late: Sequence[Mapping[str, Any]], reserved: int) -> str:
    parts = []
    if lost:
        worst = max(lost, key=lambda g: int(g["alreadyLostRecords"]))
        missed = count_text(worst["alreadyLostRecords"], "record")
        parts.append(f"group {worst['group']} has missed {missed} that expired unread")
    if late:
        slow = max(late, key=lambda g: float(g["behindHours"]))
        parts.append(
            f"group {slow['group']} is {span_text(slow['behindHours'])} behind, with "
            f"{count_text(slow['behindRecords'], 'record')} to read"
        )
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}; records are kept for {reserved} h."


def _compact(topic: Mapping[str, Any], groups: Sequence[Mapping[str, Any]], ratio: float, keyless: int) -> str:
    text = (
        f"{topic['supersededRecords']:,} of {topic['records']:,} records are older versions of "
        f"{count_text(topic['distinctKeys'], 'key')}: compaction saves {size_text(topic['savedBytes'])}, "
        f"{ratio:.0%} of the topic."
    )
    if keyless:
        text += f" Records without a key stay: {keyless:,}."
    hurt = [g for g in groups if g["wouldLoseRecords"]]
    if hurt:
        worst = max(hurt, key=lambda g: int(g["wouldLoseRecords"]))
        others = f" and {len(hurt) - 1} more" if len(hurt) > 1 else ""
        text += (
            f" Wait for group {worst['group']}{others}: it has not read {worst['wouldLoseRecords']:,} of the "
            f"records that would go."
        )
    return text


def not_compactable(topic: Mapping[str, Any]) -> str | None:
    """Why `gantry compact` refuses a user's topic; None: it does not."""
    if not topic["keyedRecords"]:
        return f"none of its {topic['records']:,} records has a key"
    if topic["unclearKeys"]:
        return (
            "it has keys that are not UTF-8, or hold U+FFFD in the place of what was not, and these are not told apart"
        )
    return None


def _not_compact(topic: Mapping[str, Any], ratio: float) -> str:
    refused = not_compactable(topic)
    if refused is not None:
        return f"Not compactable: {refused}."
    if topic["keyedRecords"] < KEYED * topic["records"]:
        return (
            f"Only {topic['keyedRecords']:,} of {topic['records']:,} records have a key, so it is no table of newest "
            f"values; compaction would save {size_text(topic['savedBytes'])} ({ratio:.0%})."
        )
    if not topic["savedBytes"]:
        return f"Compaction would save nothing: each key has one version ({count_text(topic['distinctKeys'], 'key')})."
    if ratio >= WORTH:
        return (
            f"Compaction would save {size_text(topic['savedBytes'])} ({ratio:.0%}), but a part of the log is missing "
            f"(see the notes), and newest versions may have been there."
        )
    return (
        f"Compaction would save {size_text(topic['savedBytes'])}, just {ratio:.0%}: "
        f"{count_text(topic['distinctKeys'], 'key')} in {count_text(topic['keyedRecords'], 'record')}."
    )
