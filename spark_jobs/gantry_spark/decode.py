"""Decodes the records of a block into an Arrow batch of the requested columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from gantry_broker.protocol.message import unpack_host

from gantry_spark.layout import Bools, Bytes, Ints, gather_fixed
from gantry_spark.properties import CoreProperties, Properties, properties_of
from gantry_spark.scan import Damage, Records

_TIME = pa.timestamp("us", tz="UTC")
MAX_TIME_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999."""
_TRANSACTION = 12
_PROPERTY_OF_COLUMN: Final = {"keys": "KEYS", "unique_id": "UNIQ_KEY", "tags": "TAGS", "delay_level": "DELAY"}
_TRANSACTION_NAMES: Final = {4: "prepared", 8: "committed", 12: "rolled back"}


@dataclass(frozen=True)
class RecordFilter:
    """A filter on records. Times are Unix milliseconds. All bounds are inclusive. None: no restriction."""

    topics: frozenset[str] | None = None
    min_ms: int | None = None
    max_ms: int | None = None
    queues: frozenset[int] | None = None
    min_offset: int | None = None
    max_offset: int | None = None

    @property
    def matches_all(self) -> bool:
        return self == RecordFilter()

    def matching_rows(self, records: Records) -> Bools | None:
        """Return a mask of the matching records, or None if all records match."""
        keep: Bools | None = None

        def restrict(mark: Bools) -> None:
            nonlocal keep
            keep = mark if keep is None else keep & mark

        if self.min_ms is not None:
            restrict(records.store_ms >= self.min_ms)
        if self.max_ms is not None:
            restrict(records.store_ms <= self.max_ms)
        if self.queues is not None:
            restrict(np.isin(records.field("queue_id"), list(self.queues)))
        if self.min_offset is not None:
            restrict(records.base + records.at >= self.min_offset)
        if self.max_offset is not None:
            restrict(records.base + records.at <= self.max_offset)
        if self.topics is not None:
            topics = pa.array(sorted(self.topics), type=pa.string())
            restrict(pc.is_in(records.topics, value_set=topics).to_numpy(zero_copy_only=False))
        return keep

    def excludes(self, first_ms: int | None, last_ms: int | None, slack_ms: int) -> bool:
        """Return whether no record with store times from `first_ms` to `last_ms` can match.

        `slack_ms`: the largest difference between the clocks of brokers, in milliseconds.
        """
        if self.min_ms is not None and last_ms is not None and last_ms + slack_ms < self.min_ms:
            return True
        return self.max_ms is not None and first_ms is not None and first_ms - slack_ms > self.max_ms


class _LazyBlock:
    """The records of a block. Their properties are parsed at the first use."""

    def __init__(self, log: str, segment: int, records: Records) -> None:
        self.log = log
        self.segment = segment
        self.records = records
        self._pairs: CoreProperties | Properties | None = None

    @property
    def pairs(self) -> CoreProperties | Properties:
        if self._pairs is None:
            self._pairs = properties_of(self.records)
        return self._pairs


def _int32(name: str) -> Callable[[_LazyBlock], Any]:
    return lambda block: pa.array(block.records.field(name).astype(np.int32))


def _time(ms: Ints) -> Any:
    """Convert milliseconds to timestamps, clipped to the years 1970 to 9999 that Spark supports."""
    return pa.array(np.clip(ms, 0, MAX_TIME_MS) * 1000, type=pa.int64()).view(_TIME)


def _hosts(buf: Bytes, at: Ints, v6: Bools) -> Any:
    """Return `address:port` of each record. Only the distinct hosts are converted to text."""
    result = np.empty(len(at), dtype=np.int64)
    names: list[str] = []
    for width, mask in ((8, ~v6), (20, v6)):
        rows = np.flatnonzero(mask)
        if not len(rows):
            continue
        raw = gather_fixed(buf, at[rows], f"V{width}")
        distinct, codes = np.unique(raw.view(np.uint64) if width == 8 else raw.view("S20"), return_inverse=True)
        packed = [v.tobytes().ljust(width, b"\0") for v in distinct]
        result[rows] = codes.reshape(-1) + len(names)
        for one in packed:
            address, port = unpack_host(one)
            names.append(f"[{address}]:{port}" if width == 20 else f"{address}:{port}")
    return pa.array(names, type=pa.string()).take(pa.array(result))


def _born_host(block: _LazyBlock) -> Any:
    r = block.records
    return _hosts(r.buf, r.at + 48, r.born_v6)


def _store_host(block: _LazyBlock) -> Any:
    r = block.records
    return _hosts(r.buf, r.at + 64 + 12 * r.born_v6, r.store_v6)


def _transaction(block: _LazyBlock) -> Any:
    kind = block.records.field("sys_flag") & _TRANSACTION
    names = pa.array([None, *_TRANSACTION_NAMES.values()], type=pa.string())
    return names.take(pa.array(kind // 4))


def _delay(block: _LazyBlock) -> Any:
    """Return the DELAY property as a number, or null if it is no number."""
    text = block.pairs.values(_PROPERTY_OF_COLUMN["delay_level"])
    number = pc.match_substring_regex(text, "^[0-9]{1,9}$")
    return pc.if_else(number, text, pa.scalar(None, pa.string())).cast(pa.int32())


_COLUMN_BUILDERS: Final[dict[str, Callable[[_LazyBlock], Any]]] = {
    "log": lambda block: pa.repeat(pa.scalar(block.log, pa.string()), len(block.records)),
    "segment": lambda block: pa.repeat(pa.scalar(block.segment, pa.int64()), len(block.records)),
    "topic": lambda block: block.records.topics,
    "queue_id": _int32("queue_id"),
    "queue_offset": lambda block: pa.array(block.records.field("queue_offset")),
    "physical_offset": lambda block: pa.array(block.records.base + block.records.at),
    "size": _int32("size"),
    "store_time": lambda block: _time(block.records.store_ms),
    "born_time": lambda block: _time(block.records.field("born_ms")),
    "born_host": _born_host,
    "store_host": _store_host,
    "keys": lambda block: block.pairs.values(_PROPERTY_OF_COLUMN["keys"]),
    "unique_id": lambda block: block.pairs.values(_PROPERTY_OF_COLUMN["unique_id"]),
    "tags": lambda block: block.pairs.values(_PROPERTY_OF_COLUMN["tags"]),
    "properties": lambda block: block.pairs.maps(),
    "body_size": lambda block: pa.array(block.records.body_len.astype(np.int32)),
    "flag": _int32("flag"),
    "system_flag": _int32("sys_flag"),
    "delay_level": _delay,
    "reconsume_times": _int32("reconsume"),
    "transaction": _transaction,
    "prepared_offset": lambda block: pa.array(block.records.field("prepared")),
    "damage": lambda block: pa.nulls(len(block.records), pa.string()),
    "body": lambda block: block.records.bodies,
}


def property_names(columns: Sequence[str]) -> list[str]:
    """Return the properties that these columns show, for `scan`."""
    return [_PROPERTY_OF_COLUMN[name] for name in columns if name in _PROPERTY_OF_COLUMN]


def batch_of(log: str, segment: int, records: Records, columns: Sequence[str], schema: Any, where: RecordFilter) -> Any:
    """Return the matching records as an Arrow RecordBatch of these columns, or None if there are none."""
    keep = where.matching_rows(records)
    if keep is not None:
        if not bool(keep.any()):
            return None
        if not bool(keep.all()):
            records = records.where(keep)
    if not len(records):
        return None
    block = _LazyBlock(log, segment, records)
    arrays = [_COLUMN_BUILDERS[name](block) for name in columns]
    if not columns:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(records), type=pa.struct([])))
    arrays = [a if a.type.equals(f.type) else a.cast(f.type) for a, f in zip(arrays, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def damage_batch(
    log: str, segment: int, damage: Damage, columns: Sequence[str], schema: Any, where: RecordFilter
) -> Any:
    """Return a damaged range as one row without a topic, or None if the filter excludes it."""
    if where.topics is not None or where.queues is not None or where.min_ms is not None or where.max_ms is not None:
        return None
    if where.min_offset is not None and damage.start < where.min_offset:
        return None
    if where.max_offset is not None and damage.start > where.max_offset:
        return None
    values: dict[str, Any] = {
        "log": log,
        "segment": segment,
        "physical_offset": damage.start,
        "size": min(damage.end - damage.start, 2**31 - 1),
        "damage": damage.reason,
    }
    arrays = [pa.array([values.get(name)], type=field.type) for name, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
