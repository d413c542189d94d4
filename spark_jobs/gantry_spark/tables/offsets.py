"""What a table says about the offsets that it covers, and the rule that a commit continues the last one. Pure.

Each snapshot of ours has the ends of all queues in its summary, so the newest snapshot alone tells where to continue. A
table that was set back to an older snapshot continues from that one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import orjson
from gantry_broker.protocol.codes import TABLE_GROUP_PREFIX
from gantry_broker.protocol.fastjson import MessageQueue

from gantry_spark.errors import GantrySparkError, SourceError
from gantry_spark.topics.queues import Bounds, Offsets, QueueRange, from_table, queue_text, to_table

ENDS: Final = "gantry.offsets"
"""Property of a snapshot: the offset after the last message of each queue, as JSON by topic and queue."""
STARTS: Final = "gantry.offsets-from"
"""Property of a snapshot: where its own messages begin, in the queues that it has messages of."""
TIMES: Final = "gantry.store-times"
"""Property of a snapshot: the store time (Unix ms) of the newest message of each queue, as JSON by topic and queue. It
tells messages that took the offsets of others, which their broker has lost, or which were of a topic before.
"""
ENDED: Final = "gantry.ended"
"""Property of a snapshot: the ends of queues that may go without a loss, as JSON by topic and queue."""
MISSING: Final = "gantry.missing-since"
"""Property of a snapshot: since when (Unix ms) queues are not there, as JSON by topic and queue."""
PATIENCE_MS: Final = 3_600_000
"""Milliseconds for which a queue is not there before it counts as gone: a broker without a replica may be away."""
LOST: Final = "gantry.lost"
"""Property of a snapshot: messages that no longer existed when it was made."""

LOSSES: Final = "gantry.losses"
"""Property of a table: the last losses of all commits, each with its time, as a JSON list. Snapshots expire."""
MAX_LOSSES: Final = 100
PARQUET: Final = "parquet"
"""The type of a catalog that has tables of Parquet files."""
_MAX_GROUP: Final = 255


class NotContinued(GantrySparkError):
    """Another commit came first, or the table cannot say where it ends."""


@dataclass(frozen=True)
class Marks:
    """What a table notes of queues beside their ends.

    `ended`: ends of queues that may go without a loss: the table has all messages that they had, and they take no more,
    or have none. `missing`: queues that are not there, and since when (Unix ms).
    """

    ended: Offsets = field(default_factory=dict)
    missing: Offsets = field(default_factory=dict)

    def summary(self) -> dict[str, str]:
        """Return the properties of a snapshot."""
        named = ((ENDED, self.ended), (MISSING, self.missing))
        return {name: orjson.dumps(to_table(offsets)).decode() for name, offsets in named if offsets}


def marks_in(summaries: Iterable[Mapping[str, str]]) -> Marks:
    """Return the marks in the newest of these summaries that says where a table ends."""
    newest = next((one for one in summaries if ENDS in one), {})
    try:
        ended, missing = (from_table(orjson.loads(newest.get(name, "{}")), name) for name in (ENDED, MISSING))
    except (ValueError, SourceError):
        return Marks()
    return Marks(ended, missing)


def next_marks(
    before: Marks,
    ends: Mapping[MessageQueue, int],
    there: Mapping[MessageQueue, Bounds],
    closed: Collection[MessageQueue],
    now_ms: int,
) -> tuple[Marks, list[str]]:
    """Return the marks of a snapshot with these ends, and its losses: queues that are gone and had not ended.

    `there`: the queues that exist; `closed`: those that take no more messages by a route that is older than `there`. A
    queue may lose this permission and take messages by older routes; as long as it is there, it has not ended then.
    """
    ended: Offsets = {}
    missing: Offsets = {}
    losses: list[str] = []
    for queue, end in sorted(ends.items()):
        bounds = there.get(queue)
        was_ended = before.ended.get(queue) == end
        if bounds is None:
            since = before.missing.get(queue, now_ms)
            if was_ended:
                ended[queue] = end
            elif now_ms - since < PATIENCE_MS:
                missing[queue] = since
            else:
                losses.append(
                    f"queue {queue_text(queue)} of topic {queue.topic} no longer exists, and messages from offset "
                    f"{end} on may not have been read"
                )
                ended[queue] = end  # Said once.
        elif not bounds.by_master:
            if was_ended:
                ended[queue] = end
        elif bounds.after == end and (queue in closed or bounds.first == end):
            ended[queue] = end
    return Marks(ended, missing), losses


def acknowledged(ends: Mapping[MessageQueue, int], marks: Marks) -> Offsets:
    """Return the offsets of a table's consumer group.

    The last message of a queue is acknowledged when the table has noted that the queue has ended. So a drain goes on
    only after a run that has seen it, and a queue that is gone without this mark may have had more messages.
    """
    return {queue: end if marks.ended.get(queue) == end else max(0, end - 1) for queue, end in ends.items()}


def group_of(namespace: str, topic: str, catalog: Mapping[str, str]) -> str:
    """Return the name of a table's consumer group. `catalog`: the properties of its catalog. Tables of one topic in
    different catalogs have groups of their own.
    """
    is_parquet = catalog.get("type") == PARQUET
    # What a catalog is, without what changes with its credentials.
    names = ("warehouse",) if is_parquet else ("uri", "warehouse", "glue.id", "glue.region", "table-name")
    values = (re.sub("//[^/]*@", "//", catalog.get(name, "").partition("?")[0]).rstrip("/") for name in names)
    place = hashlib.sha256("\n".join(values).encode()).hexdigest()[:8]
    return _group(f"{_words(namespace, topic, is_parquet)}_{place}")


def former_group_of(namespace: str, topic: str, catalog: Mapping[str, str]) -> str:
    """Return the consumer group that tables of all catalogs had together before each had its own."""
    return _group(_words(namespace, topic, catalog.get("type") == PARQUET))


def _words(namespace: str, topic: str, is_parquet: bool) -> str:
    return re.sub("[^%|A-Za-z0-9_-]", "_", f"{'PARQUET_' if is_parquet else ''}{namespace}_{topic}")


def _group(name: str) -> str:
    if len(TABLE_GROUP_PREFIX + name) > _MAX_GROUP:
        name = hashlib.sha256(name.encode()).hexdigest()
    return TABLE_GROUP_PREFIX + name


def summary(
    last: Offsets,
    ranges: Iterable[QueueRange],
    ends: Offsets,
    losses: Iterable[str],
    times: Offsets,
    marks: Marks | None = None,
) -> dict[str, str]:
    """Return the properties of a snapshot that continues `last`. `times`: store times of the newest messages."""
    properties = {
        ENDS: orjson.dumps(to_table({**last, **ends})).decode(),
        STARTS: orjson.dumps(to_table({r.queue: r.start for r in ranges})).decode(),
        TIMES: orjson.dumps(to_table(times)).decode(),
        **(marks or Marks()).summary(),
    }
    if text := "; ".join(losses):
        properties[LOST] = text[:4_000]
    return properties


def covered(summaries: Iterable[Mapping[str, str]], name: str) -> Offsets:
    """Return the ends of a table's queues from the summaries of its snapshots, the newest first.

    Snapshots of other writers, such as a compaction, say nothing. Raises NotContinued if none says it and there are
    snapshots.
    """
    any_found = False
    for one in summaries:
        any_found = True
        text = one.get(ENDS)
        if text is None:
            continue
        try:
            return from_table(orjson.loads(text), "offsets")
        except (ValueError, SourceError) as error:
            raise NotContinued(f"table {name}: property {ENDS} of a snapshot cannot be read: {error}") from None
    if any_found:
        raise NotContinued(
            f"table {name} has snapshots, and none says which messages it holds: it is another table, or its snapshots "
            f"expired; rebuild it, or name another table"
        )
    return {}


def store_times(summaries: Iterable[Mapping[str, str]]) -> Offsets:
    """Return the store times in the newest of these summaries that says where a table ends; empty: it has none."""
    text = next((one.get(TIMES) for one in summaries if ENDS in one), None)
    try:
        return {} if text is None else from_table(orjson.loads(text), "store times")
    except (ValueError, SourceError):
        return {}


def losses_of(properties: Mapping[str, str]) -> list[str]:
    """Return the losses in the properties of a table."""
    try:
        losses = orjson.loads(properties.get(LOSSES, "[]"))
    except ValueError:
        return []
    return [str(one) for one in losses] if isinstance(losses, list) else []


def with_losses(properties: Mapping[str, str], losses: Iterable[str], now_ms: int) -> dict[str, str]:
    """Return the property of a table with the losses of one more commit; empty: there are none."""
    at = f"{datetime.fromtimestamp(now_ms / 1000, UTC):%Y-%m-%d %H:%M:%SZ}"
    more = [f"{at}: {text[:500]}" for text in losses]
    return {LOSSES: orjson.dumps([*losses_of(properties), *more][-MAX_LOSSES:]).decode()} if more else {}


def check_continues(expected: Offsets, ends: Offsets, name: str) -> None:
    """Raise NotContinued unless a table still ends where a commit begins."""
    if expected != ends:
        queue = next(q for q in sorted({*expected, *ends}) if expected.get(q) != ends.get(q))
        raise NotContinued(
            f"table {name}: another commit came first; {queue} ends at {ends.get(queue)}, not at {expected.get(queue)}"
        )
