"""The columns of the source `rocketmq`, and Arrow batches of them.

Names and types are those of Kafka's connector where it has the column. A queue is `BROKER_GROUP:QUEUE_ID`, since every
group numbers its queues from 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from gantry_broker.protocol.codes import SysFlag
from gantry_broker.protocol.compression import decompress
from gantry_broker.protocol.errors import RecordError
from gantry_broker.protocol.message import offset_message_id, unpack_host
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from gantry_spark.errors import SourceError
from gantry_spark.layout import MAX_RECORD, Bools
from gantry_spark.properties import CoreProperties, Properties, properties_of
from gantry_spark.records import Records

_TIME = pa.timestamp("us", tz="UTC")
_MAX_TIME_MS: Final = 253_402_300_799_999
COLUMNS: Final[dict[str, tuple[DataType, bool, str]]] = {
    "key": (BinaryType(), True, "the KEYS property as one text, or null"),
    "value": (BinaryType(), True, "the body, decompressed; null: it cannot be decompressed"),
    "topic": (StringType(), False, ""),
    "partition": (StringType(), False, "broker group and queue id, as demo-a:0"),
    "offset": (LongType(), False, "position within the queue, in messages"),
    "timestamp": (TimestampType(), False, "store time at the broker"),
    "tags": (StringType(), True, "the TAGS property, or null"),
    "keys": (ArrayType(StringType(), False), False, "the words of the KEYS property"),
    "bornTime": (TimestampType(), False, "send time at the producer"),
    "msgId": (StringType(), False, "the producer's unique key, or the offset id of a message without one"),
    "properties": (MapType(StringType(), StringType(), False), False, "all properties"),
}
"""Name: (Spark type, whether it may be null, meaning)."""
DEFAULT: Final = tuple(name for name in COLUMNS if name != "properties")
_PROPERTY_OF_COLUMN: Final = {"key": "KEYS", "keys": "KEYS", "tags": "TAGS", "msgId": "UNIQ_KEY"}
PLAIN_BYTES: Final = 32 * 1024 * 1024
"""Bytes of decompressed bodies in one batch: a small compressed body can become a large one."""


def property_names(columns: Sequence[str]) -> tuple[str, ...]:
    """Return the properties that these columns show, for `PullSettings`."""
    return tuple(dict.fromkeys(_PROPERTY_OF_COLUMN[name] for name in columns if name in _PROPERTY_OF_COLUMN))


def spark_schema(columns: Sequence[str]) -> StructType:
    """Return the schema of these columns. Raises SourceError for an unknown name."""
    for name in columns:
        if name not in COLUMNS:
            raise SourceError(f"option columns: {name!r} is not a column; there are {', '.join(COLUMNS)}")
    return StructType([StructField(name, *COLUMNS[name][:2]) for name in columns])


def check_schema(schema: StructType) -> None:
    """Check a schema from a user. Raises SourceError for an unknown name or another type."""
    for ours, given in zip(spark_schema(schema.fieldNames()).fields, schema.fields, strict=True):
        if ours.dataType.simpleString() != given.dataType.simpleString():
            raise SourceError(
                f"column {given.name} is {ours.dataType.simpleString()}, not {given.dataType.simpleString()}"
            )
        if ours.nullable and not given.nullable:
            raise SourceError(f"column {given.name} may be null: leave out NOT NULL")


def batches(records: Records, topic: str, group: str, columns: Sequence[str], schema: Any) -> Iterator[Any]:
    """Yield Arrow batches with the columns of messages from queues of one topic on one broker group."""
    if not len(records):
        return
    flags = records.field("sys_flag")
    compressed = (flags & SysFlag.COMPRESSED) != 0
    if "value" not in columns or not bool(compressed.any()):
        yield _batch(records, topic, group, columns, schema, None)
        return
    values: list[bytes | None] = []
    first = held = 0
    for row, (squeezed, flag) in enumerate(zip(compressed.tolist(), flags.tolist(), strict=True)):
        at = int(records.body_at[row])
        body: bytes | None = bytes(records.buf[at : at + int(records.body_len[row])])
        if squeezed and body is not None:
            try:
                body = decompress(body, flag, MAX_RECORD)
            except RecordError:
                body = None
        values.append(body)
        held += len(body or b"")
        if held >= PLAIN_BYTES:
            yield _batch(_between(records, first, row + 1), topic, group, columns, schema, values)
            values, first, held = [], row + 1, 0
    if values:
        yield _batch(_between(records, first, len(records)), topic, group, columns, schema, values)


def _between(records: Records, first: int, stop: int) -> Records:
    if first == 0 and stop == len(records):
        return records
    keep: Bools = np.zeros(len(records), dtype=np.bool_)
    keep[first:stop] = True
    return records.where(keep)


def _batch(
    records: Records, topic: str, group: str, columns: Sequence[str], schema: Any, values: list[bytes | None] | None
) -> Any:
    if not columns:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(records), type=pa.struct([])))
    build = _Builder(records, topic, group, values)
    arrays = [getattr(build, f"column_{name.lower()}")() for name in columns]
    arrays = [a if a.type.equals(f.type) else a.cast(f.type) for a, f in zip(arrays, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class _Builder:
    def __init__(self, records: Records, topic: str, group: str, values: list[bytes | None] | None) -> None:
        self.records = records
        self.topic = topic
        self.group = group
        self.values = values
        self._pairs: CoreProperties | Properties | None = None
        self._keys: Any = None

    @property
    def pairs(self) -> CoreProperties | Properties:
        if self._pairs is None:
            self._pairs = properties_of(self.records)
        return self._pairs

    def key_texts(self) -> Any:
        if self._keys is None:
            self._keys = self.pairs.values("KEYS")
        return self._keys

    def column_key(self) -> Any:
        return self.key_texts().cast(pa.binary())

    def column_value(self) -> Any:
        if self.values is not None:
            return pa.array(self.values, type=pa.binary())
        return self.records.bodies

    def column_topic(self) -> Any:
        return pa.repeat(pa.scalar(self.topic, pa.string()), len(self.records))

    def column_partition(self) -> Any:
        queues = self.records.field("queue_id")
        if len(queues) and bool((queues == queues[0]).all()):
            return pa.repeat(pa.scalar(f"{self.group}:{queues[0]}", pa.string()), len(queues))
        ids, places = np.unique(queues, return_inverse=True)
        names = pa.array([f"{self.group}:{number}" for number in ids.tolist()], type=pa.string())
        return names.take(pa.array(places.reshape(-1)))

    def column_offset(self) -> Any:
        return pa.array(self.records.field("queue_offset"))

    def column_timestamp(self) -> Any:
        return _time(self.records.store_ms)

    def column_borntime(self) -> Any:
        return _time(self.records.field("born_ms"))

    def column_tags(self) -> Any:
        return self.pairs.values("TAGS")

    def column_keys(self) -> Any:
        texts = pc.fill_null(pc.utf8_trim(self.key_texts(), characters=" "), "")
        lists = pc.split_pattern_regex(texts, " +")
        empty = pc.equal(texts, "")
        if not pc.any(empty).as_py():
            return lists
        kept = [[] if none else words for words, none in zip(lists.to_pylist(), empty.to_pylist(), strict=True)]
        return pa.array(kept, type=pa.list_(pa.string()))

    def column_msgid(self) -> Any:
        ids = self.pairs.values("UNIQ_KEY")
        if not ids.null_count:
            return ids
        r = self.records
        texts = ids.to_pylist()
        physical = r.field("phys")
        for row in np.flatnonzero(ids.is_null().to_numpy(zero_copy_only=False)).tolist():
            at = int(r.at[row]) + 64 + 12 * int(r.born_v6[row])
            host, port = unpack_host(bytes(r.buf[at : at + (20 if r.store_v6[row] else 8)]))
            texts[row] = offset_message_id(host, port, int(physical[row]))
        return pa.array(texts, type=pa.string())

    def column_properties(self) -> Any:
        return self.pairs.maps()


def _time(ms: Any) -> Any:
    """Convert milliseconds to timestamps, clipped to the years 1970 to 9999 that Spark supports."""
    return pa.array(np.clip(ms, 0, _MAX_TIME_MS) * 1000, type=pa.int64()).view(_TIME)
