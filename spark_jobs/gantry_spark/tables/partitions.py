"""How a table is partitioned: `country`, `day(rocketmq.timestamp)`, `bucket(16, id)`. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from gantry_broker.protocol.digits import whole_number
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import DoubleType

from gantry_spark.tables.fields import BadSchema

MAX_PARTS: Final = 8
MAX_PARTITIONS: Final = 1_000
"""Partitions that one commit writes to."""
_FORM: Final = re.compile(r"(?:(year|month|day|hour)\(([^(),]+)\)|(bucket|truncate)\(([0-9]+), *([^(),]+)\)|([^(),]+))")
_TIMES: Final[dict[str, Any]] = {
    "year": YearTransform,
    "month": MonthTransform,
    "day": DayTransform,
    "hour": HourTransform,
}


class CommitTooLarge(BadSchema):
    """One commit would have too many partitions or bytes; of fewer messages it may succeed."""


@dataclass(frozen=True)
class Part:
    """One field of a partitioning."""

    column: str
    transform: Any
    name: str


def parse_parts(given: Sequence[str]) -> list[Part]:
    """Return the parts of a partitioning. Raises BadSchema."""
    if len(given) > MAX_PARTS:
        raise BadSchema(f"partitionBy has {len(given)} parts, and a table has at most {MAX_PARTS}")
    parts = [_parse(text) for text in given]
    if len({part.name for part in parts}) < len(parts):
        raise BadSchema(f"partitionBy names a column twice in the same way: {', '.join(given)}")
    return parts


def names_of(parts: Sequence[Part]) -> frozenset[str]:
    """Return the names of partitions that no column can have, in lower case."""
    return frozenset(f"{part.name}_part".lower() if part.name == part.column else part.name.lower() for part in parts)


def _parse(text: str) -> Part:
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise BadSchema(
            f"partitionBy {text[:60]!r}: write a column, year, month, day or hour(column), or bucket or truncate(N, "
            f"column)"
        )
    time, timed, sized, size, column, plain = match.groups()
    if time is not None:
        return Part(timed.strip(), _TIMES[time](), f"{_flat(timed)}_{time}")
    if plain is not None:
        return Part(plain.strip(), IdentityTransform(), f"{_flat(plain)}_part" if "." in plain else _flat(plain))
    number = whole_number(size, 1, 1_000_000)
    if number is None:
        raise BadSchema(f"partitionBy {text[:60]!r}: {size} is not from 1 to 1000000")
    transform: Any = BucketTransform(number) if sized == "bucket" else TruncateTransform(number)
    return Part(column.strip(), transform, f"{_flat(column)}_{'bucket' if sized == 'bucket' else 'trunc'}")


def _flat(column: str) -> str:
    return column.strip().replace(".", "_")


def check_parts(parts: Sequence[Part], schema: Schema) -> None:
    """Raise BadSchema unless the columns exist and have types that fit."""
    for part in parts:
        try:
            field = schema.find_field(part.column)
        except ValueError:
            columns = ", ".join(f.name for f in schema.fields)
            raise BadSchema(f"partitionBy: there is no column {part.column}; the table has {columns}") from None
        if not field.field_type.is_primitive or not part.transform.can_transform(field.field_type):
            raise BadSchema(
                f"partitionBy: column {part.column} is {field.field_type}, which {part.transform} cannot take"
            )
        if isinstance(field.field_type, DoubleType):
            raise BadSchema(
                f"partitionBy: column {part.column} is a floating-point number, and engines do not agree on the "
                f"partition of 0, -0 and NaN: choose another column"
            )
