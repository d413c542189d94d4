"""Builds the report from the collected rows: plain data in, plain data out."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from gantry_broker.protocol.codes import CONTROL_TOPIC, SYSTEM_TOPICS

from gantry_spark.aggregates import SUMS
from gantry_spark.compacted import Compacted
from gantry_spark.forecast import HOUR_MS, first_hour, forecast, newest_hour
from gantry_spark.recommendations import recommend
from gantry_spark.report_context import Context
from gantry_spark.summary import Row, Summary

WINDOWS_H: Final = (1, 6, 24, 72, 168, 720)
"""The report gives the savings for these hours back from the newest record, and for the whole log."""
AGES_H: Final = (1, 6, 24, 72, 168, 720)
RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
DAMAGE_LISTED: Final = 100


def topic_kind(topic: str) -> str:
    """Return the kind of a topic: user, retry, dead letters or system. Compaction applies only to user topics."""
    if topic.startswith(RETRY_PREFIX):
        return "retry"
    if topic.startswith(DLQ_PREFIX):
        return "dead letters"
    system = topic in SYSTEM_TOPICS or topic == CONTROL_TOPIC or topic.startswith("rmq_sys_")
    return "system" if system or topic.endswith("_REPLY_TOPIC") else "user"


def iso(ms: int | None) -> str | None:
    """Format Unix milliseconds as a time in UTC; None for a missing or impossible time."""
    if ms is None or ms < 0 or ms > 253_402_300_799_999:
        return None
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def build(summary: Summary, context: Context) -> dict[str, Any]:
    """Build the report, the content of report.json."""
    by_topic = _ByTopic(summary)
    newest = newest_hour({h["hour"] for h in summary.hours}, context.now_ms)
    topics = [_topic(name, by_topic, context, newest) for name in sorted(by_topic.queues)]
    groups = _groups(summary, context, {t["topic"] for t in topics if t["compactable"]})
    topics.sort(key=lambda t: (t["kind"] != "user", -t["savedBytes"], -t["bytes"], t["topic"]))
    hours = _per_hour(summary.hours) if context.hours is None else context.hours
    growth = forecast(hours, context.now_ms, context.disks, context.reserved_hours)
    for topic in topics:
        of_topic = [g for g in groups if g["topic"] == topic["topic"]]
        topic["groups"] = of_topic
        topic["recommendation"], topic["reason"] = recommend(topic, of_topic, growth, context)
    return {
        "version": 1,
        "source": context.source,
        "asOf": iso(context.now_ms),
        "asOfMs": context.now_ms,
        "since": iso(context.since_ms),
        "tombstoneHours": context.tombstone_ms / HOUR_MS,
        "scan": {
            "logBytes": context.log_bytes,
            "scannedBytes": context.new_bytes,
            "segments": context.segments,
            "incremental": context.new_bytes < context.log_bytes,
        },
        "totals": _totals(topics),
        "topics": topics,
        "groups": groups,
        "retries": _retries(topics),
        "growth": growth,
        "damage": {
            "ranges": len(summary.damage),
            "bytes": sum(d["bytes"] for d in summary.damage),
            "list": [
                {"log": d["log"], "offset": d["phys"], "bytes": d["bytes"], "reason": d["reason"]}
                for d in summary.damage[:DAMAGE_LISTED]
            ],
        },
        "missing": list(context.missing),
        "notes": list(context.notes),
    }


class _ByTopic:
    """The rows of a summary by topic."""

    def __init__(self, summary: Summary) -> None:
        self.queues = _grouped(summary.queues)
        self.hours = _grouped(summary.hours)
        self.sizes = _grouped(summary.sizes)
        self.topic_keys = _grouped(summary.topic_keys)
        self.queue_keys = _grouped(summary.queue_keys)
        self.kept_queues = _grouped(summary.kept_queues)
        self.kept_hours = _grouped(summary.kept_hours)
        self.versions = _grouped(summary.versions)
        self.hot_keys = _grouped(summary.hot_keys)


def _grouped(rows: Iterable[Row]) -> dict[str, list[Row]]:
    result: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        result[row["topic"]].append(row)
    return result


def _compacted(counts: Compacted | None) -> dict[str, int] | None:
    """Return what the brokers' own compaction has done; None: they do not compact the topic, or it is not known."""
    if counts is None:
        return None
    return {
        "seenRecords": counts.seen_records,
        "seenBytes": counts.seen_bytes,
        "keptRecords": counts.kept_records,
        "keptBytes": counts.kept_bytes,
        "savedRecords": counts.seen_records - counts.kept_records,
        "savedBytes": counts.seen_bytes - counts.kept_bytes,
    }


def _topic(name: str, summary: _ByTopic, context: Context, newest: int) -> dict[str, Any]:
    rows = summary.queues[name]
    total = {column: sum(r[column] for r in rows) for column in SUMS}
    keys = next(iter(summary.topic_keys[name]), None)
    distinct = keys["keys"] if keys else 0
    superseded = total["keyed"] - distinct
    superseded_bytes = total["keyed_bytes"] - (keys["newest_bytes"] if keys else 0)
    kind = topic_kind(name)
    ambiguous = keys["ambiguous"] if keys else 0
    compactable = kind == "user" and total["keyed"] > 0 and not ambiguous
    hours = sorted(summary.hours[name], key=lambda h: int(h["hour"]))
    kept = {h["hour"]: h for h in summary.kept_hours[name]}
    return {
        "topic": name,
        "kind": kind,
        "records": total["n"],
        "bytes": total["bytes"],
        "bodyBytes": total["body_bytes"],
        "keyedRecords": total["keyed"],
        "keyedBytes": total["keyed_bytes"],
        "distinctKeys": distinct,
        "supersededRecords": superseded,
        "supersededBytes": superseded_bytes,
        "tombstones": total["tombstones"],
        "liveTombstones": keys["tombstones"] if keys else 0,
        "expiredTombstones": keys["keys"] - keys["kept"] if keys else 0,
        "ambiguousKeys": ambiguous,
        "compactable": compactable,
        "savedRecords": total["keyed"] - keys["kept"] if compactable and keys else 0,
        "savedBytes": total["keyed_bytes"] - keys["kept_bytes"] if compactable and keys else 0,
        "compacted": _compacted(context.compacted.get(name)),
        "savingsByWindow": _windows(hours, kept, newest) if compactable else [],
        "versions": _versions(summary.versions[name]),
        "hotKeys": [
            {"key": h["key"], "records": h["n"], "bytes": h["bytes"], "share": _ratio(h["n"], total["n"])}
            for h in summary.hot_keys[name]
        ],
        "sizes": _sizes(summary.sizes[name]),
        "ages": _ages(hours, context.now_ms),
        "hours": [
            {"hour": iso(h["hour"] * HOUR_MS), "records": h["n"], "bytes": h["bytes"]}
            for h in hours
        ],
        "firstStoreTime": iso(min(r["min_ms"] for r in rows)),
        "lastStoreTime": iso(max(r["max_ms"] for r in rows)),
        "redelivered": total["redelivered"],
        "delayed": total["delayed"],
        "transactions": {
            "prepared": total["prepared"],
            "committed": total["committed"],
            "rolledBack": total["rolled_back"],
        },
        "queues": _queues(name, rows, summary, compactable),
    }  # fmt: skip


def _queues(name: str, rows: list[Row], summary: _ByTopic, compactable: bool) -> list[dict[str, Any]]:
    """Return the numbers by queue. A superseded record has a key and is not the newest of its key in the topic."""
    newest = {(k["log"], k["queue_id"]): k for k in summary.kept_queues[name]}
    distinct = {(k["location_log"], k["location_queue"]): k["locations"] for k in summary.queue_keys[name]}
    result = []
    for row in sorted(rows, key=lambda r: (r["log"], r["queue_id"])):
        key = (row["log"], row["queue_id"])
        stays = newest.get(key, {"keys": 0, "newest_bytes": 0, "kept": 0, "kept_bytes": 0})
        result.append(
            {
                "log": row["log"],
                "queueId": row["queue_id"],
                "records": row["n"],
                "bytes": row["bytes"],
                "distinctKeys": distinct.get(key, 0),
                "supersededRecords": row["keyed"] - stays["keys"],
                "supersededBytes": row["keyed_bytes"] - stays["newest_bytes"],
                "savedRecords": row["keyed"] - stays["kept"] if compactable else 0,
                "savedBytes": row["keyed_bytes"] - stays["kept_bytes"] if compactable else 0,
                "tombstones": row["tombstones"],
                "minOffset": row["min_qo"],
                "maxOffset": row["max_qo"],
            }
        )
    return result


def _windows(hours: list[Row], kept: Mapping[int, Row], newest: int) -> list[dict[str, Any]]:
    """Return the savings of compacting only the newest hours. Newer versions are always in the same window."""
    oldest = first_hour((h["hour"] for h in hours), newest)
    result = []
    for window in (*[w for w in WINDOWS_H if newest - w + 1 > oldest], None):
        inside = [h for h in hours if window is None or h["hour"] > newest - window]
        total = sum(h["bytes"] for h in inside)
        saved = sum(h["keyed_bytes"] - kept.get(h["hour"], {"kept_bytes": 0})["kept_bytes"] for h in inside)
        result.append({"hours": window, "bytes": total, "savedBytes": saved, "savedRatio": _ratio(saved, total)})
    return result


def _versions(rows: list[Row]) -> list[dict[str, Any]]:
    ordered = sorted(rows, key=lambda r: int(r["bucket"]))
    return [
        {"from": 2 ** r["bucket"], "to": 2 ** (r["bucket"] + 1) - 1, "keys": r["keys"], "records": r["n"]}
        for r in ordered
    ]


def _sizes(rows: list[Row]) -> list[dict[str, Any]]:
    ordered = sorted(rows, key=lambda r: int(r["bucket"]))
    return [
        {"from": 2 ** r["bucket"], "to": 2 ** (r["bucket"] + 1) - 1, "records": r["n"], "bytes": r["bytes"]}
        for r in ordered
    ]


def _ages(hours: list[Row], now_ms: int) -> list[dict[str, Any]]:
    """Return records and bytes by age in whole hours. Records from the future belong to the first class."""
    now = now_ms // HOUR_MS
    edges = [0, *AGES_H]
    sums = [[0, 0] for _ in edges]
    for row in hours:
        age = now - row["hour"]
        index = max((i for i, edge in enumerate(edges) if age >= edge), default=0)
        sums[index][0] += row["n"]
        sums[index][1] += row["bytes"]
    ends = [*AGES_H, None]
    return [
        {"fromHours": edge, "toHours": end, "records": n, "bytes": size}
        for edge, end, (n, size) in zip(edges, ends, sums, strict=True)
        if n
    ]


def _groups(summary: Summary, context: Context, compactable: Collection[str]) -> list[dict[str, Any]]:
    """Return consumer groups by topic: their lag, and the unread records lost to compaction or to retention."""
    ends = {(r["log"], r["topic"], r["queue_id"]): r for r in summary.spans}
    compacted_unread = {
        (g["group"], g["log"], g["topic"], g["queue_id"]): g["keyed"] - g["kept"] for g in summary.groups
    }
    oldest: dict[tuple[str, str], int] = {}
    for g in summary.groups:
        if g["oldest"] is not None:
            key = (g["group"], g["topic"])
            oldest[key] = min(oldest.get(key, g["oldest"]), g["oldest"])
    by_group: dict[tuple[str, str], dict[str, Any]] = {}
    for o in context.offsets:
        end = ends.get((o.log, o.topic, o.queue_id))
        if end is None or topic_kind(o.topic) == "system":
            continue
        entry = by_group.setdefault(
            (o.group, o.topic),
            {
                "group": o.group,
                "topic": o.topic,
                "lagRecords": 0,
                "compactedUnreadRecords": 0,
                "expiredUnreadRecords": 0,
            },
        )
        entry["lagRecords"] += max(0, end["max_qo"] + 1 - max(o.offset, end["min_qo"]))
        entry["expiredUnreadRecords"] += max(0, end["min_qo"] - o.offset)
        if o.topic in compactable:
            entry["compactedUnreadRecords"] += compacted_unread.get((o.group, o.log, o.topic, o.queue_id), 0)
    for (group, topic), entry in by_group.items():
        unread = oldest.get((group, topic))
        entry["lagHours"] = 0.0 if unread is None else round(max(0, context.now_ms - unread) / HOUR_MS, 2)
    return sorted(
        by_group.values(), key=lambda g: (-g["compactedUnreadRecords"], -g["lagRecords"], g["group"], g["topic"])
    )


def _retries(topics: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return retries and dead letters by consumer group."""
    by_group: dict[str, dict[str, Any]] = {}
    for topic in topics:
        for prefix, column in ((RETRY_PREFIX, "retries"), (DLQ_PREFIX, "deadLetters")):
            if topic["topic"].startswith(prefix):
                group = topic["topic"][len(prefix) :]
                entry = by_group.setdefault(
                    group, {"group": group, "retries": 0, "retryBytes": 0, "deadLetters": 0, "deadLetterBytes": 0}
                )
                entry[column] += topic["records"]
                entry["retryBytes" if column == "retries" else "deadLetterBytes"] += topic["bytes"]
    return sorted(by_group.values(), key=lambda g: (-g["deadLetters"], -g["retries"], g["group"]))


def _totals(topics: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    names = ("records", "bytes", "distinctKeys", "supersededRecords", "supersededBytes", "savedBytes", "tombstones")
    return {name: sum(t[name] for t in topics) for name in names} | {"topics": len(topics)}


def _per_hour(hours: Iterable[Row]) -> dict[int, int]:
    total: dict[int, int] = defaultdict(int)
    for row in hours:
        total[row["hour"]] += row["bytes"]
    return dict(total)


def _ratio(part: float, complete: float) -> float:
    return round(part / complete, 4) if complete and math.isfinite(part) else 0.0
