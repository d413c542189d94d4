"""Rows of a table from messages: for each schema and mode, with the rejected ones apart. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from gantry_spark.tables.decoders import AVRO, PROTOBUF, as_field, decoder, json_text
from gantry_spark.tables.fields import (
    KEY,
    SYSTEM,
    BadSchema,
    Field,
    Rejected,
    Values,
    convert,
    fit,
    joined,
    unknown_fields,
)

MODES: Final = ("Append", "Upsert")
_TIME: Final = pa.timestamp("us", tz="UTC")
_PROPERTIES: Final = pa.map_(pa.string(), pa.string())
SYSTEM_TYPE: Final = pa.struct(
    [
        ("topic", pa.string()), ("partition", pa.string()), ("offset", pa.int64()), ("timestamp", _TIME),
        ("bornTime", _TIME), ("key", pa.string()), ("tags", pa.string()), ("msgId", pa.string()),
        ("properties", _PROPERTIES),
    ]
)  # fmt: skip
MESSAGES: Final = pa.schema(
    [
        ("key", pa.binary()), ("value", pa.binary()),
        *((SYSTEM_TYPE.field(n).name, SYSTEM_TYPE.field(n).type) for n in SYSTEM_TYPE.names if n != "key"),
    ]
)  # fmt: skip
"""The columns of the source that rows are made from."""
REJECTED: Final = pa.schema([("reason", pa.string()), ("value", pa.binary()), (SYSTEM, SYSTEM_TYPE)])
BATCH_VALUES: Final = 2_000_000
"""Values of rows that are in memory as objects of Python."""
DELETED: Final = f"{SYSTEM}.deleted"
"""Column, with a name that no field has, of staged rows of a table by key: the message deletes its key."""


@dataclass(frozen=True)
class Shape:
    """What rows a table has. `fields` None: the raw message. `by_key`: one row for each key, the newest."""

    fields: Field | None
    by_key: bool
    kind: str = "JsonSchema"
    """How bodies are written: Avro, Protobuf, or JSON for all others."""
    definition: str = ""
    message: str = ""
    taken: frozenset[str] = frozenset()
    """Names that a new field of kind Inferred cannot have, in lower case."""
    complete: bool = False
    """A new field makes a row a rejected one."""

    def decode(self, body: bytes, values: Values) -> dict[str, Any]:
        """Return the columns of a body, and count its values. Raises Rejected, BadSchema."""
        assert self.fields is not None
        if self.kind not in (AVRO, PROTOBUF):
            return convert(self.fields, body, values)
        decoded = decoder(self.kind, self.definition, self.message)(body)
        return fit(self.fields, as_field(decoded), json_text, values)

    @property
    def key(self) -> str:
        """The column with the key, in tables by key."""
        return "key" if self.fields is None else KEY

    def arrow(self) -> Any:
        """Return the columns of the table."""
        if self.fields is None:
            own = [("key", pa.string()), ("value", pa.binary()), ("properties", _PROPERTIES)]
        else:
            own = [(f.name, f.arrow()) for f in self.fields.fields]
            own += [(KEY, pa.string())] if self.by_key else []
        return pa.schema([*own, (SYSTEM, SYSTEM_TYPE)])

    def staged(self) -> Any:
        """Return the columns of the files that executors write."""
        columns = self.arrow()
        return columns.append(pa.field(DELETED, pa.bool_())) if self.by_key else columns


@dataclass
class Converted:
    """Rows of the first messages of a batch, the rejected ones, and fields that the schema lacks. `count`: messages."""

    rows: Any
    rejected: Any
    count: int
    new_fields: Field | None = None


def convert_batch(batch: Any, shape: Shape, new_fields: Field | None = None) -> Converted:
    """Convert messages: an Arrow batch with the columns MESSAGES, or as many of its first ones as have about
    BATCH_VALUES values. `new_fields`: of the batches before.
    """
    keys = _texts(batch.column("key"))
    values = batch.column("value")
    reasons: list[str | None] = [None] * len(batch)
    bodies: list[Any] = [None] * len(batch)
    deleted = np.zeros(len(batch), dtype=np.bool_)
    held = 0
    if shape.fields is not None or shape.by_key or values.null_count:
        for index, (body, key) in enumerate(zip(values.to_pylist(), keys.to_pylist(), strict=True)):
            if body is None:
                reasons[index] = "the body cannot be decompressed"
            elif shape.by_key and not key:
                reasons[index] = "the message has no key"
            elif shape.by_key and not body:
                deleted[index] = True
            elif shape.fields is not None:
                one = Values()
                try:
                    bodies[index] = shape.decode(body, one)
                    if shape.kind == "Inferred":
                        new_fields = _with_those_of(body, shape, new_fields)
                except Rejected as error:
                    bodies[index], reasons[index] = None, str(error)
                held += one.count
                if held >= BATCH_VALUES:
                    count = index + 1
                    batch, keys, values = batch.slice(0, count), keys.slice(0, count), values.slice(0, count)
                    reasons, bodies, deleted = reasons[:count], bodies[:count], deleted[:count]
                    break
    system = pa.StructArray.from_arrays(
        [batch.column(n) if n != "key" else keys for n in SYSTEM_TYPE.names], fields=list(SYSTEM_TYPE)
    )
    good = np.array([reason is None for reason in reasons], dtype=np.bool_)
    columns: dict[str, Any] = {SYSTEM: system}
    if shape.fields is None:
        columns |= {"key": keys, "value": values, "properties": batch.column("properties")}
    else:
        for field in shape.fields.fields:
            columns[field.name] = pa.array([f and f[field.name] for f in bodies], type=field.arrow())
        columns[KEY] = keys
    columns[DELETED] = pa.array(deleted)
    staged = shape.staged()
    rows = pa.Table.from_arrays([columns[name] for name in staged.names], schema=staged)
    rejected = pa.Table.from_arrays([pa.array(reasons, type=pa.string()), values, system], schema=REJECTED)
    return Converted(rows.filter(pa.array(good)), rejected.filter(pa.array(~good)), len(batch), new_fields)


def _with_those_of(body: bytes, shape: Shape, before: Field | None) -> Field | None:
    """Return new fields with those of one more body. Raises Rejected if the table cannot have them."""
    assert shape.fields is not None
    more = unknown_fields(shape.fields, orjson.loads(body))
    if more is None:
        return before
    if shape.complete:
        raise Rejected(f"field {more.fields[0].name} is one of too many new fields for one commit")
    try:
        return joined(shape.fields, before, more, shape.taken)
    except BadSchema as error:
        raise Rejected(f"the table cannot have the new fields of the body: {error}") from None


def _texts(values: Any) -> Any:
    """Return binary keys as texts. The source has replaced bytes that are not UTF-8."""
    return values.cast(pa.string())


def newest(staged: Any, shape: Shape) -> tuple[Any, list[str]]:
    """Return the newest row of each key that is not deleted, and all keys. `staged`: an Arrow table of staged rows.

    Of one queue the message with the highest offset is the newest, across queues the one that was stored last.
    """
    if not len(staged):
        return staged.drop_columns([DELETED]), []
    system = staged.column(SYSTEM).combine_chunks()
    order = pa.table(
        {
            "partition": system.field("partition"),
            "offset": system.field("offset"),
            "time": system.field("timestamp").cast(pa.int64()),
            "row": pa.array(np.arange(len(staged))),
        }
    ).sort_by([("partition", "ascending"), ("offset", "ascending")])
    partitions = order.column("partition").combine_chunks().dictionary_encode().indices.to_numpy()
    times = order.column("time").to_numpy().copy()
    # A clock that stepped back does not make a later message of the queue older.
    for number in range(int(partitions.max()) + 1):
        at = np.flatnonzero(partitions == number)
        times[at] = np.maximum.accumulate(times[at])
    rows = order.column("row").to_numpy()
    by_age = rows[np.lexsort((np.arange(len(times)), times))]
    keys = staged.column(shape.key).to_pylist()
    last = {keys[row]: row for row in by_age.tolist()}
    kept = staged.take(pa.array(sorted(last.values())))
    kept = kept.filter(pc.invert(kept.column(DELETED)))
    return kept.drop_columns([DELETED]), sorted(last)


Place = tuple[str, int, int, str]
"""A message: its queue and offset, and its store time and id, which differ in a topic that was made again."""


def places(messages: Any) -> list[Place]:
    """Return the places of messages: an Arrow batch or table with the columns partition, offset, timestamp, msgId."""
    times = messages.column("timestamp").cast(pa.int64())
    columns = [messages.column(name) for name in ("partition", "offset")] + [times, messages.column("msgId")]
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def without(messages: Any, held: frozenset[Place]) -> Any:
    """Return the messages of an Arrow batch that are not at one of these places."""
    return messages.filter(pa.array([place not in held for place in places(messages)])) if held else messages
