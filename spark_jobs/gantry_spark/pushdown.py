"""Converts Spark's filters to a `RecordFilter` on topic, store time, queue and physical offset."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from gantry_spark.decode import RecordFilter

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def push(filters: Iterable[Filter]) -> tuple[RecordFilter, list[Filter]]:
    """Return the filter that the source applies exactly, and the filters that Spark must still apply."""
    where = RecordFilter()
    rest: list[Filter] = []
    for one in filters:
        narrowed = _narrow(where, one)
        if narrowed is None:
            rest.append(one)
        else:
            where = narrowed
    return where, rest


def _narrow(where: RecordFilter, one: Filter) -> RecordFilter | None:
    if isinstance(one, IsNotNull):
        # Spark adds this filter to `topic = 'x'`. Alone it excludes only damaged ranges.
        return None
    column: tuple[str, ...] = getattr(one, "attribute", ())
    value: Any = getattr(one, "value", None)
    if len(column) != 1 or value is None:
        return None
    name = column[0]
    if isinstance(one, EqualTo | In):
        values = frozenset(one.value if isinstance(one, In) else (one.value,))
        if None in values:
            return None
        if name == "topic":
            return replace(where, topics=values if where.topics is None else where.topics & values)
        if name == "queue_id":
            return replace(where, queues=values if where.queues is None else where.queues & values)
    if name == "store_time" and isinstance(value, datetime):
        low, high = _milliseconds(one, value)
        return replace(where, min_ms=_max(where.min_ms, low), max_ms=_min(where.max_ms, high)) if low or high else None
    if name == "physical_offset" and isinstance(value, int):
        low, high = _integers(one, value)
        if low is None and high is None:
            return None
        return replace(where, min_offset=_max(where.min_offset, low), max_offset=_min(where.max_offset, high))
    return None


def _milliseconds(one: Filter, value: datetime) -> tuple[int | None, int | None]:
    """Return inclusive bounds in whole milliseconds, the resolution of the log. `value` may have microseconds."""
    aware = value if value.tzinfo else value.replace(tzinfo=UTC)
    micros = (aware - _EPOCH) // timedelta(microseconds=1)
    down, up = micros // 1000, -(-micros // 1000)
    if isinstance(one, GreaterThanOrEqual):
        return up, None
    if isinstance(one, GreaterThan):
        return down + 1, None
    if isinstance(one, LessThanOrEqual):
        return None, down
    if isinstance(one, LessThan):
        return None, up - 1
    if isinstance(one, EqualTo):
        return up, down
    return None, None


def _integers(one: Filter, value: int) -> tuple[int | None, int | None]:
    if isinstance(one, GreaterThanOrEqual):
        return value, None
    if isinstance(one, GreaterThan):
        return value + 1, None
    if isinstance(one, LessThanOrEqual):
        return None, value
    if isinstance(one, LessThan):
        return None, value - 1
    if isinstance(one, EqualTo):
        return value, value
    return None, None


def _max(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else max(a, b)


def _min(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)
