"""The numbers of the report in plain Python, record by record: the reference for Spark's numbers."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gantry_broker.protocol.message import Record

HOUR = 3_600_000
SYSTEM = ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC")
Offsets = Mapping[tuple[str, str, str, int], int]
"""(group, log, topic, queue): offset. A group has no offset of a queue that it has not begun to read."""
Spans = dict[tuple[str, int], tuple[int, int]]
"""(log, queue): first and last queue offset."""


def expected_topics(
    logs: Mapping[str, list[Record]], now_ms: int, tombstone_ms: int, offsets: Offsets, since_ms: int | None = None
) -> dict[str, dict[str, Any]]:
    """Return the compared numbers of the report by topic."""
    by_topic: dict[str, list[tuple[str, Record]]] = defaultdict(list)
    spans = _spans(logs)
    for log, records in logs.items():
        for record in records:
            if since_ms is None or record.store_ms >= since_ms:
                by_topic[record.topic].append((log, record))
    newest_ms = max((r.store_ms for rows in by_topic.values() for _, r in rows), default=now_ms)
    return {
        t: _topic(t, rows, now_ms, tombstone_ms, offsets, newest_ms, spans.get(t, {})) for t, rows in by_topic.items()
    }


def growth(
    logs: Mapping[str, list[Record]], now_ms: int, disks: Sequence[tuple[int, int]], reserved_hours: int
) -> dict[str, Any]:
    """Return the growth in the report, of the whole logs for every window.

    `disks`: the free bytes and the number of logs of each disk (not of each log).
    """
    stored = [(r.store_ms // HOUR, r.size) for records in logs.values() for r in records]
    last = max((hour for hour, _ in stored if hour <= now_ms // HOUR), default=now_ms // HOUR)
    begin = max(min((hour for hour, _ in stored), default=last), last - 72)
    if last - begin >= 2:
        rate = sum(size for hour, size in stored if begin < hour < last) / (last - begin - 1)
    else:
        rate = sum(size for hour, size in stored if hour >= begin) / (last - begin + 1)
    full = [free / (rate * count / len(logs)) for free, count in disks] if rate else []
    kept = sum(size for _, size in stored)
    return {
        "bytesPerHour": round(rate),
        "steadyStateBytes": round(rate * reserved_hours),
        "hoursToFull": round(min(full), 1) if full else None,
        "diskFullBeforeRetention": bool(full) and min(full) < reserved_hours - kept / rate,
    }


def _key(record: Record) -> str:
    return record.props.get("KEYS", "")


def _newest_versions(rows: Iterable[tuple[str, Record]]) -> dict[str, tuple[str, Record]]:
    """Return the newest version of each key: the last in its log; across logs the last by store time."""
    last: dict[tuple[str, str], Record] = {}
    for log, record in rows:
        if _key(record):
            last[log, _key(record)] = record
    best: dict[str, tuple[str, Record]] = {}
    for (log, key), record in last.items():
        known = best.get(key)
        if known is None or (record.store_ms, log) > (known[1].store_ms, known[0]):
            best[key] = (log, record)
    return best


def _spans(logs: Mapping[str, list[Record]]) -> dict[str, Spans]:
    """Return the first and last offset by topic, log and queue, for every window."""
    found: dict[str, Spans] = defaultdict(dict)
    for log, records in logs.items():
        for r in records:
            low, high = found[r.topic].get((log, r.queue_id), (r.queue_offset, r.queue_offset))
            found[r.topic][log, r.queue_id] = (min(low, r.queue_offset), max(high, r.queue_offset))
    return found


def _topic(
    name: str,
    rows: list[tuple[str, Record]],
    now_ms: int,
    tombstone_ms: int,
    offsets: Offsets,
    newest_ms: int,
    spans: Spans,
) -> dict[str, Any]:
    keyed = [(log, r) for log, r in rows if _key(r)]
    newest = _newest_versions(rows)
    dropped = {k: v for k, v in newest.items() if len(v[1].body) == 0 and v[1].store_ms < now_ms - tombstone_ms}
    kept = {id(r) for k, (_, r) in newest.items() if k not in dropped}
    compactable = bool(keyed) and not name.startswith(("%", "rmq_sys_")) and name not in SYSTEM
    versions = Counter(_key(r) for _, r in keyed)
    sizes: Counter[int] = Counter(r.size.bit_length() - 1 for _, r in rows)
    by_version: Counter[int] = Counter(n.bit_length() - 1 for n in versions.values())
    total = sum(r.size for _, r in rows)
    gone = [(log, r) for log, r in keyed if id(r) not in kept]
    ids = {id(r) for _, r in newest.values()}
    older = [r for _, r in keyed if id(r) not in ids]
    key_bytes: Counter[str] = Counter()
    for _, r in keyed:
        key_bytes[_key(r)] += r.size
    hot_keys = sorted(versions.items(), key=lambda kv: (-kv[1], -key_bytes[kv[0]], kv[0].encode()))
    hours = Counter(r.store_ms // HOUR for _, r in rows)
    return {
        "records": len(rows),
        "bytes": total,
        "bodyBytes": sum(len(r.body) for _, r in rows),
        "keyedRecords": len(keyed),
        "keyedBytes": sum(r.size for _, r in keyed),
        "distinctKeys": len(newest),
        "supersededRecords": len(older),
        "supersededBytes": sum(r.size for r in older),
        "tombstones": sum(1 for _, r in keyed if not r.body),
        "liveTombstones": sum(1 for _, r in newest.values() if not r.body),
        "expiredTombstones": len(dropped),
        "savedRecords": len(gone) if compactable else 0,
        "savedBytes": sum(r.size for _, r in gone) if compactable else 0,
        "redelivered": sum(1 for _, r in rows if r.reconsume_times > 0),
        "delayed": sum(1 for _, r in rows if re.fullmatch("[0-9]{1,9}", r.props.get("DELAY", ""))),
        "transactions": {
            "prepared": sum(1 for _, r in rows if r.sys_flag & 12 == 4),
            "committed": sum(1 for _, r in rows if r.sys_flag & 12 == 8),
            "rolledBack": sum(1 for _, r in rows if r.sys_flag & 12 == 12),
        },
        "versions": [{"from": 2**b, "keys": n} for b, n in sorted(by_version.items())],
        "sizes": [{"from": 2**b, "records": n} for b, n in sorted(sizes.items())],
        "hotKeys": [{"key": k, "records": n, "bytes": key_bytes[k]} for k, n in hot_keys],
        "hours": sorted(hours.items()),
        "windows": _windows(rows, {id(r) for _, r in gone}, newest_ms) if compactable else [],
        "queues": _queues(rows, ids, kept, compactable),
        "groups": _groups(name, spans, gone if compactable else [], offsets),
    }


def _windows(rows: list[tuple[str, Record]], gone: set[int], newest_ms: int) -> list[dict[str, Any]]:
    oldest = min(r.store_ms for _, r in rows) // HOUR
    last = newest_ms // HOUR
    found = []
    for window in (*(w for w in (1, 6, 24, 72, 168, 720) if last - w + 1 > oldest), None):
        first = oldest if window is None else last - window + 1
        inside = [r for _, r in rows if r.store_ms // HOUR >= first]
        saved = sum(r.size for r in inside if id(r) in gone)
        found.append({"hours": window, "bytes": sum(r.size for r in inside), "savedBytes": saved})
    return found


def _queues(
    rows: list[tuple[str, Record]], newest: set[int], kept: set[int], compactable: bool
) -> list[dict[str, Any]]:
    places: dict[tuple[str, int], list[Record]] = defaultdict(list)
    for log, r in rows:
        places[log, r.queue_id].append(r)
    found = []
    for (log, queue), mine in sorted(places.items()):
        keyed = [r for r in mine if _key(r)]
        found.append(
            {
                "log": log,
                "queueId": queue,
                "records": len(mine),
                "bytes": sum(r.size for r in mine),
                "distinctKeys": len({_key(r) for r in keyed}),
                "supersededRecords": sum(1 for r in keyed if id(r) not in newest),
                "supersededBytes": sum(r.size for r in keyed if id(r) not in newest),
                "savedRecords": sum(1 for r in keyed if id(r) not in kept) if compactable else 0,
                "savedBytes": sum(r.size for r in keyed if id(r) not in kept) if compactable else 0,
                "tombstones": sum(1 for r in keyed if not r.body),
                "minOffset": min(r.queue_offset for r in mine),
                "maxOffset": max(r.queue_offset for r in mine),
            }
        )
    return found


def _groups(
    topic: str, spans: Spans, gone: list[tuple[str, Record]], offsets: Offsets
) -> dict[str, tuple[int, int, int]]:
    """Return by group: lag in records, unread records that compaction removes, records that expired unread."""
    found: dict[str, tuple[int, int, int]] = {}
    if topic in SYSTEM:
        return found
    for group in {group for group, _, name, _ in offsets if name == topic}:
        for (log, queue), (low, high) in spans.items():
            offset = offsets.get((group, log, topic, queue), low)
            behind, affected, lost = found.get(group, (0, 0, 0))
            behind += max(0, high + 1 - max(offset, low))
            affected += sum(1 for at, r in gone if at == log and r.queue_id == queue and r.queue_offset >= offset)
            found[group] = (behind, affected, lost + max(0, low - offset))
    return found


def comparable(topic: Mapping[str, Any]) -> dict[str, Any]:
    """Return a topic of the report in the form of `expected_topics`."""
    same = (
        "records", "bytes", "bodyBytes", "keyedRecords", "keyedBytes", "distinctKeys", "supersededRecords",
        "supersededBytes", "tombstones", "liveTombstones", "expiredTombstones", "savedRecords", "savedBytes",
        "redelivered", "delayed", "transactions",
    )  # fmt: skip
    from datetime import datetime

    return {name: topic[name] for name in same} | {
        "versions": [{"from": v["from"], "keys": v["keys"]} for v in topic["versions"]],
        "sizes": [{"from": s["from"], "records": s["records"]} for s in topic["sizes"]],
        "hotKeys": [{"key": h["key"], "records": h["records"], "bytes": h["bytes"]} for h in topic["hotKeys"]],
        "hours": [(round(datetime.fromisoformat(h["hour"]).timestamp()) // 3600, h["records"]) for h in topic["hours"]],
        "windows": [{k: w[k] for k in ("hours", "bytes", "savedBytes")} for w in topic["savingsByWindow"]],
        "queues": topic["queues"],
        "groups": {
            g["group"]: (g["lagRecords"], g["compactedUnreadRecords"], g["expiredUnreadRecords"])
            for g in topic["groups"]
        },
    }
