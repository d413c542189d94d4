"""The columns of the `commitlog` source, with their Spark and Arrow types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from gantry_spark.errors import SourceError

_TIME = pa.timestamp("us", tz="UTC")
COLUMNS: Final[dict[str, tuple[DataType, Any, str]]] = {
    "log": (StringType(), pa.string(), "name of the log: that of the broker group or of the directory"),
    "segment": (LongType(), pa.int64(), "first offset of the record's segment"),
    "topic": (StringType(), pa.string(), "as stored: delayed and half messages have system topics"),
    "queue_id": (IntegerType(), pa.int32(), "queue of the topic"),
    "queue_offset": (LongType(), pa.int64(), "position within the queue, in messages"),
    "physical_offset": (LongType(), pa.int64(), "position in the log, in bytes"),
    "size": (IntegerType(), pa.int32(), "bytes of the whole record"),
    "store_time": (TimestampType(), _TIME, "store time at the broker, in milliseconds"),
    "born_time": (TimestampType(), _TIME, "send time at the producer, in milliseconds"),
    "born_host": (StringType(), pa.string(), "the producer's address:port"),
    "store_host": (StringType(), pa.string(), "the broker's address:port"),
    "keys": (StringType(), pa.string(), "the KEYS property as one text (keys separated by spaces), or null"),
    "unique_id": (StringType(), pa.string(), "the id from the producer's client, or null"),
    "tags": (StringType(), pa.string(), "the TAGS property, or null"),
    "properties": (MapType(StringType(), StringType()), pa.map_(pa.string(), pa.string()), "all properties"),
    "body_size": (IntegerType(), pa.int32(), "bytes of the body as stored"),
    "flag": (IntegerType(), pa.int32(), "the producer's flag"),
    "system_flag": (IntegerType(), pa.int32(), "RocketMQ's MessageSysFlag bits"),
    "delay_level": (IntegerType(), pa.int32(), "the DELAY property, or null"),
    "reconsume_times": (IntegerType(), pa.int32(), "number of times that a consumer sent it back"),
    "transaction": (StringType(), pa.string(), "prepared, committed or rolled back; null: not transactional"),
    "prepared_offset": (LongType(), pa.int64(), "offset of the half message that this record ends, else 0"),
    "damage": (StringType(), pa.string(), "reason for which these `size` bytes hold no records; null for records"),
    "body": (BinaryType(), pa.binary(), "the body as stored"),
}
"""Name: (Spark type, Arrow type, meaning)."""

DEFAULT_COLUMNS: Final = tuple(name for name in COLUMNS if name not in ("body", "damage"))
"""The default columns of a read: all but the body and the damage."""

NULLABLE_COLUMNS: Final = frozenset(("keys", "unique_id", "tags", "delay_level", "transaction", "damage"))
"""Columns that a record may lack."""
DAMAGE_COLUMNS: Final = frozenset(("log", "segment", "physical_offset", "size", "damage"))
"""Columns of damaged ranges. All other columns are null there."""


def nullable(column: str, damage_rows: bool) -> bool:
    """Return whether a column may be null. Spark checks every value of such a column."""
    return column in NULLABLE_COLUMNS or (damage_rows and column not in DAMAGE_COLUMNS)


def spark_schema(columns: Sequence[str], damage_rows: bool = False) -> StructType:
    """Return the Spark schema of these columns. Raises SourceError for an unknown name."""
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown:
        raise SourceError(f"option columns: {unknown[0]!r} is not a column; there are {', '.join(COLUMNS)}")
    return StructType([StructField(name, COLUMNS[name][0], nullable(name, damage_rows)) for name in columns])


def check_schema(schema: StructType, damage_rows: bool) -> None:
    """Check a schema from a user. Raises SourceError for an unknown name or a wrong type."""
    spark_schema(schema.fieldNames())
    for field in schema.fields:
        expected = COLUMNS[field.name][0]
        if field.dataType.simpleString() != expected.simpleString():
            raise SourceError(f"column {field.name} is {expected.simpleString()}, not {field.dataType.simpleString()}")
        if not field.nullable and nullable(field.name, damage_rows):
            raise SourceError(f"column {field.name} may be null: leave out NOT NULL")


def arrow_schema(schema: StructType) -> Any:
    """Return the Arrow schema that Spark expects for a Spark schema."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
