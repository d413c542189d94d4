"""The Spark queries of the report, from partial aggregates to small results as plain rows.

The results are small for every size of the log: rows by topic and queue, by topic and hour, by topic and bucket, and
the top keys. Tables with one row per key stay in Spark.

The newest version of a key is, within one log, the one with the highest offset; across the logs of a cluster, the one
with the latest store time. All other versions of the key in the topic are superseded.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Window as SqlWindow
from pyspark.sql import functions as f

from gantry_spark.aggregates import BITMAP_BITS, SUMS
from gantry_spark.forecast import HOUR_MS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Row = dict[str, Any]
RECHECKED_DAMAGE: Final = 100
"""Number of damaged ranges of a segment that the next run checks again. A broker that repairs one repairs all."""
QUEUES: Final = 64
"""Number of queues in the bitmap of one `locations` entry."""


@dataclass(frozen=True)
class GroupOffset:
    """The offset of a consumer group in a queue of one log."""

    group: str
    log: str
    topic: str
    queue_id: int
    offset: int


@dataclass
class Summary:
    """All collected rows. The column names are those of the queries below."""

    queues: list[Row] = field(default_factory=list)
    hours: list[Row] = field(default_factory=list)
    sizes: list[Row] = field(default_factory=list)
    topic_keys: list[Row] = field(default_factory=list)
    queue_keys: list[Row] = field(default_factory=list)
    kept_queues: list[Row] = field(default_factory=list)
    kept_hours: list[Row] = field(default_factory=list)
    versions: list[Row] = field(default_factory=list)
    hot_keys: list[Row] = field(default_factory=list)
    groups: list[Row] = field(default_factory=list)
    spans: list[Row] = field(default_factory=list)
    """First and last queue offset by log, topic and queue, of the whole log for every window."""
    damage: list[Row] = field(default_factory=list)

    @property
    def keys_span_blocks(self) -> bool:
        """Whether a key can be in more than one log, or in queues of more than one block."""
        return len({q["log"] for q in self.queues}) > 1 or any(not 0 <= q["queue_id"] < QUEUES for q in self.queues)


def _rows(frame: DataFrame) -> list[Row]:
    return [row.asDict() for row in frame.collect()]


def counted_segments(rows: DataFrame) -> list[Row]:
    """Return the results of these rows by log and segment.

    Columns: end of the last record (null: none), least and greatest store time, checksums at the ends of tasks, the
    first damaged offsets, and the end of the last damaged range.
    """
    segments = rows.filter(f.col("kind").isin("count", "end", "damage")).groupBy("log", "segment")
    return _rows(
        segments.agg(
            f.max("end").alias("end"),
            f.min("min_ms").alias("min_ms"),
            f.max("max_ms").alias("max_ms"),
            f.collect_list(f.when(f.col("kind") == "end", f.struct("end", "phys", "bits"))).alias("checksums"),
            f.coalesce(
                f.min_by("phys", f.when(f.col("kind") == "damage", f.col("phys")), RECHECKED_DAMAGE), f.array()
            ).alias("damaged_at"),
            f.max(f.when(f.col("kind") == "damage", f.col("phys") + f.col("bytes"))).alias("damaged"),
        )
    )


def queue_spans(counts: DataFrame) -> list[Row]:
    """Return the first and the last queue offset of these counts by log, topic and queue."""
    spans = counts.groupBy("log", "topic", "queue_id")
    return _rows(spans.agg(f.min("min_qo").alias("min_qo"), f.max("max_qo").alias("max_qo")))


def with_unread_queues(
    offsets: Sequence[GroupOffset], spans: Sequence[Row], unknown: Container[str] = ()
) -> list[GroupOffset]:
    """Return the offsets, completed by the first offset of each queue that a group has not begun to read.

    `unknown`: logs whose offsets could not be read.
    """
    committed = {(o.group, o.log, o.topic, o.queue_id) for o in offsets}
    queues: dict[str, list[Row]] = {}
    for span in spans:
        queues.setdefault(span["topic"], []).append(span)
    return [
        *offsets,
        *(
            GroupOffset(group, q["log"], topic, q["queue_id"], q["min_qo"])
            for group, topic in sorted({(o.group, o.topic) for o in offsets})
            for q in queues.get(topic, ())
            if (group, q["log"], topic, q["queue_id"]) not in committed and q["log"] not in unknown
        ),
    ]


def newest_by_key(rows: DataFrame, keys_span_blocks: bool) -> DataFrame:
    """Return one row for each key and topic: versions, bytes, the newest version, and the queues.

    `keys_span_blocks`: as `Summary.keys_span_blocks` of these rows. `locations` has the queues as bits, for each log
    and each 64 queues (`block`). Aggregates over plain numbers use hash tables; Spark sorts for all other types. Only
    the merge of several logs needs that.
    """
    newest = [f.max_by(name, "phys").alias(name) for name in ("size", "ms", "qo", "tombstone", "queue_id")]
    bit = f.call_function("shiftleft", f.lit(1).cast("long"), (f.col("queue_id") % QUEUES).cast("int"))
    by_log = (
        rows.filter(f.col("kind") == "key")
        .select("*", f.floor(f.col("queue_id") / QUEUES).cast("int").alias("block"), bit.alias("bit"))
        .groupBy("log", "topic", "key", "block")
        .agg(
            f.sum("n").alias("n"), f.sum("bytes").alias("bytes"), f.max("phys").alias("phys"), *newest,
            f.bit_or("bit").alias("queues"),
        )
    )  # fmt: skip
    location = f.struct("log", "block", "queues")
    if not keys_span_blocks:
        return by_log.select(
            "topic", "key", "n", "bytes", "ms", "log", "phys", "size", "qo", "tombstone", "queue_id",
            f.array(location).alias("locations"),
        )  # fmt: skip
    # Within a log the newest version has the highest offset. So first one row a log, then one a topic.
    version = f.struct("phys", "ms", "size", "qo", "tombstone", "queue_id")
    by_log = by_log.groupBy("log", "topic", "key").agg(
        f.sum("n").alias("n"),
        f.sum("bytes").alias("bytes"),
        f.max(version).alias("v"),
        f.collect_list(location).alias("locations"),
    )
    ordered = f.struct("v.ms", "log", "v.phys", "v.size", "v.qo", "v.tombstone", "v.queue_id")
    by_topic = by_log.groupBy("topic", "key").agg(
        f.sum("n").alias("n"),
        f.sum("bytes").alias("bytes"),
        f.max(ordered).alias("v"),
        f.flatten(f.collect_list("locations")).alias("locations"),
    )
    return by_topic.select("topic", "key", "n", "bytes", "v.*", "locations")


def summarize(rows: DataFrame) -> Summary:
    """Return everything without a key in one pass: by queue, by hour, by size, and the damaged ranges."""
    result = Summary()
    sums = ", ".join(f"sum({name}) as {name}" for name in SUMS)
    small = rows.filter(f.col("kind").isin("count", "size", "damage"))
    small.createOrReplaceTempView("gantry_small")
    session = rows.sparkSession
    sums_of_sets = session.sql(
        f"""select kind, log, topic, queue_id, hour, bucket, segment, phys, reason, {sums}, min(min_qo) as min_qo,
              max(max_qo) as max_qo, min(min_ms) as min_ms, max(max_ms) as max_ms,
              grouping_id(kind, log, topic, queue_id, hour, bucket, segment, phys, reason) as grouped
            from gantry_small
            group by grouping sets ((kind, log, topic, queue_id), (kind, topic, hour), (kind, topic, bucket),
                                    (kind, log, segment, phys, reason))"""
    )
    by_queue, by_hour, by_size, by_damage = 0b000011111, 0b010101111, 0b010110111, 0b001111000
    in_report = (
        ((f.col("kind") == "count") & f.col("grouped").isin(by_queue, by_hour))
        | ((f.col("kind") == "size") & (f.col("grouped") == by_size))
        | ((f.col("kind") == "damage") & (f.col("grouped") == by_damage))
    )
    lists = {by_queue: result.queues, by_hour: result.hours, by_size: result.sizes, by_damage: result.damage}
    for row in _rows(sums_of_sets.filter(in_report)):
        lists[row["grouped"]].append(row)
    result.damage.sort(key=lambda d: (d["log"], d["phys"]))
    return result


def summarize_keys(
    result: Summary,
    rows: DataFrame,
    keys: DataFrame,
    tombstone_cutoff_ms: int,
    top: int,
    offsets: Sequence[GroupOffset],
    counts: DataFrame,
) -> None:
    """Add everything with a key, and the groups. `keys` is the stored result of `newest_by_key(rows)`.

    `counts`: the counts of the whole log for every window. `tombstone_cutoff_ms`: compaction drops a key if its newest
    version is a tombstone stored before this time (Unix milliseconds).
    """
    _summarize_keys(result, keys, tombstone_cutoff_ms, top)
    if offsets:
        _summarize_groups(result, rows, keys, tombstone_cutoff_ms, offsets, counts)


def _kept(tombstone_cutoff_ms: int) -> Any:
    """Return whether compaction keeps the newest version of a key."""
    return ~(f.col("tombstone") & (f.col("ms") < tombstone_cutoff_ms))


def _summarize_keys(result: Summary, keys: DataFrame, tombstone_cutoff_ms: int, top: int) -> None:
    classified = keys.select(
        "topic", "log", "queue_id",
        f.floor(f.col("ms") / HOUR_MS).cast("long").alias("hour"),
        (f.length(f.bin("n")) - 1).alias("bucket"),
        f.when(_kept(tombstone_cutoff_ms), 1).otherwise(0).alias("kept"),
        f.when(f.col("tombstone"), 1).otherwise(0).alias("is_tombstone"),
        # Invalid UTF-8 has become U+FFFD.
        f.when(f.col("key").contains("\ufffd"), 1).otherwise(0).alias("ambiguous"),
        f.col("n").alias("versions"), "size",
    )  # fmt: skip
    classified.createOrReplaceTempView("gantry_keys")
    sums_of_sets = keys.sparkSession.sql(
        """select topic, log, queue_id, hour, bucket,
             count(*) as keys, sum(versions) as n, sum(size) as newest_bytes, sum(is_tombstone) as tombstones,
             sum(ambiguous) as ambiguous,
             sum(kept) as kept, sum(kept * size) as kept_bytes,
             grouping_id(topic, log, queue_id, hour, bucket) as grouped
           from gantry_keys
           group by grouping sets ((topic), (topic, log, queue_id), (topic, hour), (topic, bucket))"""
    )
    lists = {
        0b01111: result.topic_keys,
        0b00011: result.kept_queues,
        0b01101: result.kept_hours,
        0b01110: result.versions,
    }
    for row in _rows(sums_of_sets):
        lists[row["grouped"]].append(row)
    _count_keys_of_queues(result, keys)
    # Spark keeps only the first `top` rows of each task before the shuffle, so one topic may have all the keys.
    rank = SqlWindow.partitionBy("topic").orderBy(f.desc("n"), f.desc("bytes"), f.asc("key"))
    ranked = keys.select("topic", "key", "n", "bytes", f.row_number().over(rank).alias("rank"))
    result.hot_keys = _rows(ranked.filter(f.col("rank") <= top))
    result.hot_keys.sort(key=lambda h: (h["topic"], h["rank"]))


def _count_keys_of_queues(result: Summary, keys: DataFrame) -> None:
    """Count the distinct keys by queue: the set bits of each queue."""
    locations = keys.select("topic", f.explode("locations").alias("location"))
    bits = [
        f.sum(f.call_function("shiftrightunsigned", f.col("location.queues"), f.lit(i)).bitwiseAND(1)).alias(f"q{i}")
        for i in range(QUEUES)
    ]
    by_block = locations.groupBy(
        "topic", f.col("location.log").alias("log"), f.col("location.block").alias("block")
    ).agg(*bits)
    for row in _rows(by_block):
        for i in range(QUEUES):
            if row[f"q{i}"]:
                queue = {
                    "location_log": row["log"],
                    "location_queue": row["block"] * QUEUES + i,
                    "locations": row[f"q{i}"],
                }
                result.queue_keys.append({"topic": row["topic"], **queue})


def _summarize_groups(
    result: Summary,
    rows: DataFrame,
    keys: DataFrame,
    tombstone_cutoff_ms: int,
    offsets: Sequence[GroupOffset],
    counts: DataFrame,
) -> None:
    """Count the unread records that compaction would remove for each group: unread keyed records minus kept ones."""
    table = f.broadcast(
        rows.sparkSession.createDataFrame(
            [(o.group, o.log, o.topic, o.queue_id, o.offset) for o in offsets],
            "group string, log string, topic string, queue_id int, offset long",
        )
    )
    on = ["log", "topic", "queue_id"]
    # Damaged headers have arbitrary offsets. Sums by bucket do not overflow with them.
    at = f.call_function("shiftright", f.col("offset"), f.lit(BITMAP_BITS.bit_length() - 1))
    skip = f.when(f.col("bucket") > at, 0).otherwise(f.col("offset").bitwiseAND(BITMAP_BITS - 1)).cast("int")
    ahead_bits = f.call_function("shiftrightunsigned", f.col("bits"), skip)
    none = f.lit(None).cast("long")
    bitmaps = rows.filter(f.col("kind") == "bitmap").select(*on, "bucket", "bits").join(table, on)
    ahead = bitmaps.filter(f.col("bucket") >= at).select(
        "group", *on, f.bit_count(ahead_bits).cast("long").alias("keyed"), none.alias("kept"), none.alias("oldest")
    )
    newest = keys.filter(_kept(tombstone_cutoff_ms)).join(table, on).filter(f.col("qo") >= f.col("offset"))
    kept_rows = newest.select(
        "group", *on, none.alias("keyed"), f.lit(1).cast("long").alias("kept"), none.alias("oldest")
    )
    spans = counts.select(*on, "max_qo", "min_ms").join(table, on)
    # A time in the first hour of 1970 is that of a damaged header.
    unread = spans.filter((f.col("max_qo") >= f.col("offset")) & (f.col("min_ms") >= HOUR_MS)).select(
        "group", *on, none.alias("keyed"), none.alias("kept"), f.col("min_ms").alias("oldest")
    )
    whole = ahead.unionByName(kept_rows).unionByName(unread).groupBy("group", *on)
    result.groups = _rows(
        whole.agg(
            f.coalesce(f.sum("keyed"), f.lit(0)).alias("keyed"),
            f.coalesce(f.sum("kept"), f.lit(0)).alias("kept"),
            f.min("oldest").alias("oldest"),
        )
    )
