"""Partial aggregates of a log, computed where it is read. The report and its incremental state consist of them.

The data source `commitlog-aggregates` has the partitions and options of `commitlog`, but returns aggregates instead of
records. Only these rows pass through the JVM. Aggregates of parts add up, so Spark merges them across partitions and
runs. Kinds of rows:

- `count`: sums per log, segment, topic, queue and hour of storing.
- `key`: versions, bytes and the newest version per log, segment, topic, queue and key.
- `size`: records and bytes per log, segment, topic and power of two of the record's size.
- `bitmap`: one bit for each queue offset with a keyed record, per log, segment, topic, queue and 64 queue offsets.
- `damage`: a range without records.
- `end`: the end of a task's last record, and a checksum of the bytes before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import BooleanType, IntegerType, LongType, StringType, StructField, StructType

from gantry_spark.decode import MAX_TIME_MS, RecordFilter, batch_of, property_names
from gantry_spark.errors import Expired
from gantry_spark.forecast import HOUR_MS
from gantry_spark.layout import Ints
from gantry_spark.partitioning import LogRange
from gantry_spark.scan import Damage, Records, scan
from gantry_spark.schema import arrow_schema, spark_schema
from gantry_spark.source import LogPartition, Options, partitions_of

BITMAP_BITS: Final = 64
FLUSH_ROWS: Final = 200_000
"""A task flushes its rows at this many key rows."""
CHECKSUM_BYTES: Final = 60 * 1024
"""Length in bytes of the checksum before the end of a segment's last counted record, at most. Together with the
bytes after it, this fits one request to a broker.
"""

SUMS: Final = (
    "n", "bytes", "body_bytes", "keyed", "keyed_bytes", "tombstones", "redelivered", "delayed", "prepared", "committed",
    "rolled_back",
)  # fmt: skip
"""Columns of `count` rows that add up."""

SCHEMA: Final = StructType(
    [
        StructField("kind", StringType()),
        StructField("log", StringType()),
        StructField("segment", LongType()),
        StructField("topic", StringType()),
        StructField("queue_id", IntegerType()),
        StructField("hour", LongType()),
        StructField("key", StringType()),
        StructField("bucket", LongType()),
        *(StructField(name, LongType()) for name in SUMS),
        StructField("min_qo", LongType()),
        StructField("max_qo", LongType()),
        StructField("min_ms", LongType()),
        StructField("max_ms", LongType()),
        StructField("end", LongType()),
        StructField("phys", LongType()),
        StructField("size", LongType()),
        StructField("ms", LongType()),
        StructField("qo", LongType()),
        StructField("tombstone", BooleanType()),
        StructField("bits", LongType()),
        StructField("reason", StringType()),
    ]
)
_READ: Final = ("topic", "queue_id", "queue_offset", "physical_offset", "size", "body_size", "keys", "reconsume_times",
                "transaction", "delay_level")  # fmt: skip


@dataclass(frozen=True)
class EndChecksum:
    """A checksum of the bytes [begin, end) that end with a record.

    The bytes contain a record's offset, time and CRC, so other records in their place yield another checksum.
    """

    begin: int
    end: int
    checksum: int


def end_checksum(records: Records) -> EndChecksum:
    """Return the checksum at the end of these records."""
    begin = max(records.base, records.end - CHECKSUM_BYTES)
    return EndChecksum(
        begin, records.end, crc32(records.buf[begin - records.base : records.end - records.base].tobytes())
    )


class Aggregator:
    """The aggregates of one partition so far. `should_flush` bounds their memory."""

    def __init__(self, log: str, segment: int) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        self.log = log
        self.segment = segment
        self._schema = to_arrow_schema(SCHEMA, timezone="UTC")
        self._counts: list[Any] = []
        self._keys: list[Any] = []
        self._key_rows = 0
        self._sizes: list[Any] = []
        self._bitmaps: list[Any] = []

    def add(self, batch: Any, ms: Ints) -> None:
        """Add the records of a block. `batch` has the columns `_READ`, `ms` the store times in Unix milliseconds."""
        ms = np.clip(ms, 0, MAX_TIME_MS)
        keys = batch.column("keys")
        keyed = pc.fill_null(pc.not_equal(keys, ""), False)
        mask = keyed.to_numpy(zero_copy_only=False)
        size = batch.column("size").cast(pa.int64())
        sizes = size.to_numpy()
        empty = (batch.column("body_size").to_numpy() == 0) & mask
        transaction = batch.column("transaction").dictionary_encode()

        def is_(kind: str) -> Any:
            equal = pc.fill_null(pc.equal(transaction.dictionary_decode(), kind), False)
            return equal.cast(pa.int64())

        table = pa.table(
            {
                "topic": batch.column("topic"),
                "queue_id": batch.column("queue_id"),
                "hour": pa.array(ms // HOUR_MS),
                "n": pa.array(np.ones(len(ms), dtype=np.int64)),
                "bytes": size,
                "body_bytes": batch.column("body_size").cast(pa.int64()),
                "keyed": pa.array(mask.astype(np.int64)),
                "keyed_bytes": pa.array(np.where(mask, sizes, 0)),
                "tombstones": pa.array(empty.astype(np.int64)),
                "redelivered": pc.greater(batch.column("reconsume_times"), 0).cast(pa.int64()),
                "delayed": pc.is_valid(batch.column("delay_level")).cast(pa.int64()),
                "prepared": is_("prepared"),
                "committed": is_("committed"),
                "rolled_back": is_("rolled back"),
                "qo": batch.column("queue_offset"),
                "ms": pa.array(ms),
                "end": pc.add(batch.column("physical_offset"), size),
            }
        )
        sums = [(name, "sum") for name in SUMS]
        extremes = [("qo", "min"), ("qo", "max"), ("ms", "min"), ("ms", "max"), ("end", "max")]
        grouped = table.group_by(["topic", "queue_id", "hour"], use_threads=False).aggregate(sums + extremes)
        self._counts.append(
            grouped.rename_columns(
                [*(("topic", "queue_id", "hour")), *SUMS, "min_qo", "max_qo", "min_ms", "max_ms", "end"]
            )
        )
        self._add_sizes(batch.column("topic"), sizes)
        if bool(mask.any()):
            self._add_keys(batch, mask, ms, empty)

    def _add_sizes(self, topic: Any, sizes: Any) -> None:
        bucket = np.floor(np.log2(np.maximum(sizes, 1))).astype(np.int64)
        table = pa.table({"topic": topic, "bucket": bucket, "bytes": sizes})
        grouped = table.group_by(["topic", "bucket"], use_threads=False).aggregate(
            [("bytes", "count"), ("bytes", "sum")]
        )
        self._sizes.append(grouped.rename_columns(["topic", "bucket", "n", "bytes"]))

    def _add_keys(self, batch: Any, mask: Any, ms: Ints, empty: Any) -> None:
        every = bool(mask.all())
        chosen = batch if every else batch.filter(pa.array(mask))
        topics = chosen.column("topic").dictionary_encode()
        queues = chosen.column("queue_id")
        offsets = chosen.column("queue_offset")
        table = pa.table(
            {
                "topic": topics.cast(pa.string()),
                "queue_id": queues,
                "key": chosen.column("keys"),
                "bytes": chosen.column("size").cast(pa.int64()),
                "phys": chosen.column("physical_offset"),
                "size": chosen.column("size").cast(pa.int64()),
                "ms": pa.array(ms if every else ms[mask]),
                "qo": offsets,
                "tombstone": pa.array(empty if every else empty[mask]),
                "n": pa.array(np.ones(len(chosen), dtype=np.int64)),
            }
        )
        merged = _merge_keys(table)
        self._keys.append(merged)
        self._key_rows += merged.num_rows
        self._add_bitmaps(topics, queues.to_numpy(), offsets.to_numpy())

    def _add_bitmaps(self, topics: Any, queues: Any, offsets: Any) -> None:
        code = topics.indices.to_numpy().astype(np.int64)
        bucket = offsets // BITMAP_BITS
        order = np.lexsort((bucket, queues, code))
        code, queue, place = code[order], queues[order], bucket[order]
        change = (np.diff(code) != 0) | (np.diff(queue) != 0) | (np.diff(place) != 0)
        first = np.concatenate([[0], np.flatnonzero(change) + 1])
        bit = np.left_shift(np.uint64(1), (offsets[order] % BITMAP_BITS).astype(np.uint64))
        bitmaps = {
            "topic": topics.dictionary.take(pa.array(code[first])),
            "queue_id": pa.array(queue[first], type=pa.int32()),
            "bucket": pa.array(place[first]),
            "bits": pa.array(np.bitwise_or.reduceat(bit, first).view(np.int64)),
        }
        self._bitmaps.append(pa.table(bitmaps))

    @property
    def should_flush(self) -> bool:
        return self._key_rows >= FLUSH_ROWS or len(self._counts) >= 64

    def rows(self) -> Iterator[Any]:
        """Return the aggregates since the last call, as record batches of `SCHEMA`."""
        if self._counts:
            yield from self._batches("count", _sum_counts(pa.concat_tables(self._counts)))
        if self._keys:
            yield from self._batches("key", _merge_keys(pa.concat_tables(self._keys)))
        if self._sizes:
            sizes = pa.concat_tables(self._sizes).group_by(["topic", "bucket"], use_threads=False)
            summed = sizes.aggregate([("n", "sum"), ("bytes", "sum")])
            yield from self._batches("size", summed.rename_columns(["topic", "bucket", "n", "bytes"]))
        if self._bitmaps:
            yield from self._batches("bitmap", pa.concat_tables(self._bitmaps))
        self._counts, self._keys, self._sizes, self._bitmaps, self._key_rows = [], [], [], [], 0

    def damage(self, damage: Damage) -> Any:
        """Return a damaged range as a row."""
        table = pa.table({"phys": [damage.start], "bytes": [damage.end - damage.start], "reason": [damage.reason]})
        return next(self._batches("damage", table))

    def end(self, of: EndChecksum) -> Any:
        """Return the end of a partition's last record as a row."""
        return next(self._batches("end", pa.table({"phys": [of.begin], "end": [of.end], "bits": [of.checksum]})))

    def _batches(self, kind: str, table: Any) -> Iterator[Any]:
        count = table.num_rows
        fixed = {"kind": kind, "log": self.log, "segment": self.segment}
        columns = []
        for field in self._schema:
            if field.name in fixed:
                columns.append(pa.repeat(pa.scalar(fixed[field.name], field.type), count))
            elif field.name in table.column_names:
                columns.append(table.column(field.name).cast(field.type))
            else:
                columns.append(pa.nulls(count, field.type))
        yield from pa.table(columns, schema=self._schema).combine_chunks().to_batches(max_chunksize=50_000)


def _merge_keys(table: Any) -> Any:
    """Merge rows of a key. Rows are in log order, so the last row of a key is its newest version."""
    newest = ("phys", "size", "ms", "qo", "tombstone")
    grouped = table.group_by(["topic", "queue_id", "key"], use_threads=False).aggregate(
        [("n", "sum"), ("bytes", "sum"), *((name, "last") for name in newest)]
    )
    return grouped.rename_columns(["topic", "queue_id", "key", "n", "bytes", *newest])


def _sum_counts(table: Any) -> Any:
    extremes = (("min_qo", "min"), ("max_qo", "max"), ("min_ms", "min"), ("max_ms", "max"), ("end", "max"))
    grouped = table.group_by(["topic", "queue_id", "hour"], use_threads=False).aggregate(
        [*((name, "sum") for name in SUMS), *extremes]
    )
    return grouped.rename_columns(["topic", "queue_id", "hour", *SUMS, *(name for name, _ in extremes)])


class AggregatesReader(DataSourceReader):
    """Reads the partitions of `CommitLogReader` and aggregates them."""

    def __init__(self, options: Options, where: RecordFilter) -> None:
        self.options = options
        self.where = where

    def partitions(self) -> list[InputPartition]:
        return partitions_of(self.options, self.where)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, LogPartition):
            for part in partition.parts:
                yield from self._count(partition.log, part)

    def _count(self, log: Any, part: LogRange) -> Iterator[Any]:
        aggregator = Aggregator(log.name, log.segments[part.segment].start)
        schema = arrow_schema(spark_schema(_READ))
        at = part.range.start
        last: EndChecksum | None = None
        try:
            with log.open(part.segment) as source:
                for piece in scan(source, part.range, self.options.verify, names=property_names(_READ)):
                    at = max(at, piece.end)
                    if isinstance(piece, Damage):
                        if self.where.matches_all:
                            yield aggregator.damage(piece)
                        continue
                    last = end_checksum(piece)
                    keep = self.where.matching_rows(piece)
                    counted = piece if keep is None else piece.where(keep)
                    batch = batch_of(log.name, aggregator.segment, counted, _READ, schema, RecordFilter())
                    if batch is not None:
                        aggregator.add(batch, counted.store_ms)
                    if aggregator.should_flush:
                        yield from aggregator.rows()
        except Expired as gone:
            yield aggregator.damage(Damage(at, part.range.stop, f"expired during the read: {gone}"))
        yield from aggregator.rows()
        if last is not None:
            yield aggregator.end(last)


class AggregatesSource(DataSource):
    """The data source of this module. Additional option `sinceMs`: the least store time, in Unix milliseconds."""

    @classmethod
    def name(cls) -> str:
        return "commitlog-aggregates"

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> AggregatesReader:
        options = {name.lower(): value for name, value in self.options.items()}
        since = options.pop("sincems", None)
        return AggregatesReader(Options(options), RecordFilter(min_ms=int(since) if since else None))
