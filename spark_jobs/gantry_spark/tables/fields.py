"""The columns of a table from a schema of bodies, and the conversion of one body. Pure.

A schema is a subset of JSON Schema: `object` with `properties` and `required`, `array` with `items`, `string` (also
with format `date-time`), `integer` (64 bits), `number`, `boolean`, and `null` beside one of them. A field with any
other schema is kept as JSON text.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final

import orjson
import pyarrow as pa

from gantry_spark.errors import GantrySparkError

SYSTEM: Final = "rocketmq"
"""The struct column with place, times, key and properties of the message."""
KEY: Final = "_key"
"""The key of a row, in tables by key."""
MAX_FIELDS: Final = 1_000
MAX_DEPTH: Final = 16
MAX_VALUES: Final = 1_000_000
"""Values of one row: a short list of empty objects has as many as their columns."""
_INT64: Final = range(-(2**63), 2**63)
_TIME: Final = pa.timestamp("us", tz="UTC")


class BadSchema(GantrySparkError):
    """A schema of bodies that no table can have."""

    retry = False


class Rejected(Exception):
    """A body does not fit its schema. The text is the reason."""


@dataclass(frozen=True)
class Field:
    """One field. `kind`: string, bytes, time, integer, number, boolean, object, array or json."""

    name: str
    kind: str
    required: bool = False
    fields: tuple[Field, ...] = ()
    item: Field | None = None

    @cached_property
    def width(self) -> int:
        """Values of one instance, a list counted as one."""
        return sum(one.width for one in self.fields) + 1

    def arrow(self) -> Any:
        """Return the Arrow type."""
        if self.kind == "object":
            return pa.struct([pa.field(f.name, f.arrow()) for f in self.fields])
        if self.kind == "array":
            assert self.item is not None
            return pa.list_(self.item.arrow())
        return {
            "string": pa.string(), "bytes": pa.binary(), "json": pa.string(), "time": _TIME, "integer": pa.int64(),
            "number": pa.float64(), "boolean": pa.bool_(),
        }[self.kind]  # fmt: skip


def parse_schema(schema: Any) -> Field:
    """Return the fields of a JSON Schema. Raises BadSchema."""
    root = _parse(SYSTEM, schema, False, 0)
    if root.kind != "object" or not root.fields:
        raise BadSchema("the schema needs type object and at least one property")
    check_names(root)
    return root


def check_names(table: Field, taken: Collection[str] = ()) -> None:
    """Raise BadSchema unless a table can have these fields. `taken`: names of columns that it has besides, in lower
    case.
    """
    paths: set[str] = set()
    for path in _paths(table):
        if path in paths:
            raise BadSchema(f"field {path}: another field has this name, maybe in other case, or by its parts")
        paths.add(path)
    for field in table.fields:
        name = field.name.lower()
        if not name:
            raise BadSchema("a field has no name")
        if name in (SYSTEM, KEY, *taken) or name.startswith(f"{SYSTEM}."):
            raise BadSchema(f"field {field.name}: the table has a column of its own with this name")
    if len(paths) >= MAX_FIELDS:
        raise BadSchema(f"the schema has more than {MAX_FIELDS} fields")


def _paths(field: Field, prefix: str = "") -> Iterator[str]:
    """Yield the name of each field within a field as Iceberg writes it, with those around it, in lower case."""
    if field.item is not None:
        yield f"{prefix}element"
        yield from _paths(field.item, f"{prefix}element.")
    for one in field.fields:
        path = f"{prefix}{one.name.lower()}"
        yield path
        yield from _paths(one, f"{path}.")


def _are_distinct(field: Field) -> bool:
    paths = list(_paths(field))
    return len(set(paths)) == len(paths)


def _parse(name: str, schema: Any, required: bool, depth: int) -> Field:
    if depth > MAX_DEPTH:
        raise BadSchema(f"field {name}: fields lie deeper than {MAX_DEPTH} levels")
    if schema is True or schema == {}:
        return Field(name, "json", required)
    if not isinstance(schema, Mapping):
        raise BadSchema(f'field {name}: {str(schema)[:80]!r} is no schema; write an object, as {{"type": "string"}}')
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else list(kinds or ())
    kinds = [kind for kind in kinds if kind != "null"]
    if len(kinds) != 1:
        return Field(name, "json", required)
    (kind,) = kinds
    if kind == "object":
        properties = schema.get("properties")
        if not isinstance(properties, Mapping) or not properties:
            return Field(name, "json", required)
        needed = set(schema.get("required") or ())
        folded: set[str] = set()
        for one in properties:
            if not one or one.lower() in folded:
                raise BadSchema(f"field {name}: {one!r} is empty, or differs from another field in case only")
            folded.add(one.lower())
        fields = tuple(_parse(n, s, n in needed, depth + 1) for n, s in properties.items())
        return Field(name, "object", required, fields)
    if kind == "array":
        return Field(name, "array", required, item=_parse("element", schema.get("items", True), False, depth + 1))
    if kind == "string":
        if schema.get("contentEncoding") == "base64":
            return Field(name, "bytes", required)
        return Field(name, "time" if schema.get("format") == "date-time" else "string", required)
    if kind in ("integer", "number", "boolean"):
        return Field(name, kind, required)
    raise BadSchema(
        f"field {name}: type {kind!r} is unknown; there are object, array, string, integer, number, boolean"
    )


def to_schema(field: Field) -> dict[str, Any]:
    """Return a field as JSON Schema."""
    if field.kind == "object":
        schema: dict[str, Any] = {"type": "object", "properties": {f.name: to_schema(f) for f in field.fields}}
        if needed := [f.name for f in field.fields if f.required]:
            schema["required"] = needed
        return schema
    if field.kind == "array":
        assert field.item is not None
        return {"type": "array", "items": to_schema(field.item)}
    if field.kind == "time":
        return {"type": "string", "format": "date-time"}
    if field.kind == "bytes":
        return {"type": "string", "contentEncoding": "base64"}
    return {} if field.kind == "json" else {"type": field.kind}


class Values:
    """Counts the values of a row. Raises Rejected when they are too many."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, number: int, place: str) -> None:
        self.count += number
        if self.count > MAX_VALUES:
            raise Rejected(f"field {place}: the row would have more than {MAX_VALUES:,} values")


def convert(field: Field, body: bytes, values: Values | None = None) -> dict[str, Any]:
    """Return the columns of a body. Raises Rejected."""
    if not body:
        raise Rejected("the body is empty")
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Rejected(f"the body is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise Rejected(f"the body is {_kind_of(value)}, not an object")
    return fit(field, value, values=values)


def fit(
    field: Field, value: Mapping[str, Any], json_text: Callable[[Any], str] | None = None, values: Values | None = None
) -> dict[str, Any]:
    """Return the columns of a decoded body. `json_text`: writes a value as JSON. `values`: counts them. Raises
    Rejected.
    """
    values = values or Values()
    values.add(field.width, "")
    columns: dict[str, Any] = _value(field, value, "", json_text or _json_text, values)
    return columns


def _json_text(value: Any) -> str:
    return orjson.dumps(value).decode()


def _value(field: Field, value: Any, place: str, json_text: Callable[[Any], str], values: Values) -> Any:
    if value is None:
        if field.required:
            raise Rejected(f"field {place} is null and is required")
        return None
    kind = field.kind
    if kind == "json":
        try:
            return json_text(value)
        except orjson.JSONEncodeError as error:
            raise Rejected(f"field {place} cannot be written as JSON: {error}") from None
    if kind == "object" and isinstance(value, dict):
        return {
            f.name: _value(f, value[f.name], f"{place}.{f.name}".lstrip("."), json_text, values)
            if f.name in value
            else _absent(f, f"{place}.{f.name}".lstrip("."))
            for f in field.fields
        }
    if kind == "array" and isinstance(value, list) and field.item is not None:
        values.add(len(value) * field.item.width, place)
        return [_value(field.item, one, f"{place}[{index}]", json_text, values) for index, one in enumerate(value)]
    if kind == "string" and isinstance(value, str):
        return value
    if kind == "boolean" and isinstance(value, bool):
        return value
    if kind == "number" and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if kind == "integer" and not isinstance(value, bool):
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            return int(value)
        if isinstance(value, int):
            if value in _INT64:
                return value
            raise Rejected(f"field {place}: {str(value)[:40]} has more than 64 bits")
    if kind == "bytes":
        if isinstance(value, bytes):
            return value
        if isinstance(value, str):
            try:
                return base64.b64decode(value, validate=True)
            except ValueError:
                raise Rejected(f"field {place}: {value[:80]!r} is no Base64") from None
    if kind == "time" and isinstance(value, datetime):
        return _utc(value, place)
    if kind == "time" and isinstance(value, str):
        try:
            time = datetime.fromisoformat(value)
        except ValueError:
            raise Rejected(f"field {place}: {value[:80]!r} is no time; RFC 3339 is expected") from None
        return _utc(time, place)
    raise Rejected(f"field {place} is {_kind_of(value)}, not {kind}")


def _utc(time: datetime, place: str) -> datetime:
    """Return a time in UTC, which it is without a zone. Raises Rejected."""
    try:
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except OverflowError:
        raise Rejected(f"field {place}: {time.isoformat()} is not of the years 1 to 9999 in UTC") from None


def _absent(field: Field, place: str) -> Any:
    if field.required:
        raise Rejected(f"field {place} is missing and is required")
    return None


def _kind_of(value: Any) -> str:
    for kind, name in (
        (bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array"), (dict, "object"),
    ):  # fmt: skip
        if isinstance(value, kind):
            return name
    return "null"


def infer(values: Iterable[Any], name: str = SYSTEM, depth: int = 0) -> Field:
    """Return the field that all JSON values fit. Of null the kind is `unknown`. Odd and deep values are JSON text. It
    looks at each part of them once: one body may have a million objects.
    """
    field = Field(name, "unknown")
    objects, lists = False, False
    by_name: dict[str, list[Any]] = {}
    items: list[Any] = []
    for value in values:
        if depth < MAX_DEPTH and isinstance(value, dict) and "" not in value:
            objects = True
            for inner, one in value.items():
                by_name.setdefault(inner, []).append(one)
        elif depth < MAX_DEPTH and isinstance(value, list):
            lists = True
            items += value
        else:
            field = merge(field, _simple(value, name))
    if objects and len(by_name) >= MAX_FIELDS:
        return Field(name, "json")
    if objects:
        whole = Field(name, "object", fields=tuple(infer(v, n, depth + 1) for n, v in by_name.items()))
        field = merge(field, whole if _are_distinct(whole) else Field(name, "json"))
    if lists:
        field = merge(field, Field(name, "array", item=infer(items, "element", depth + 1)))
    return field


def _simple(value: Any, name: str) -> Field:
    """Return the field of a value without parts. One with parts comes here when it is odd or too deep."""
    kind = _kind_of(value)
    if value is None:
        return Field(name, "unknown")
    if kind in ("string", "number", "boolean") or (kind == "integer" and value in _INT64):
        return Field(name, kind)
    return Field(name, "json")


def merge(a: Field, b: Field) -> Field:
    """Return the field that values of both fit."""
    if a.kind == "unknown" or b.kind == "unknown":
        return b if a.kind == "unknown" else a
    if a.kind == b.kind == "object":
        others = {f.name: f for f in b.fields}
        fields = [merge(f, others.pop(f.name)) if f.name in others else f for f in a.fields]
        both = Field(a.name, "object", fields=(*fields, *others.values()))
        return both if len(both.fields) < MAX_FIELDS and _are_distinct(both) else Field(a.name, "json")
    if a.kind == b.kind == "array" and a.item is not None and b.item is not None:
        return Field(a.name, "array", item=merge(a.item, b.item))
    if a.kind == b.kind:
        return a
    if {a.kind, b.kind} == {"integer", "number"}:
        return Field(a.name, "number")
    return Field(a.name, "json")


def settle(field: Field) -> Field:
    """Return a field without unknown parts, which become JSON text."""
    if field.kind == "unknown" or (field.kind == "object" and not field.fields):
        return Field(field.name, "json")
    item = None if field.item is None else settle(field.item)
    return Field(field.name, field.kind, field.required, tuple(map(settle, field.fields)), item)


def widened(old: Field, new: Field) -> Field:
    """Return the fields of an object, and those that only the new schema has. Those that only the old one has may be
    absent from now on. Raises BadSchema for a field that changed.
    """
    others = {f.name: f for f in new.fields}
    fields = [
        _widened(f, others.pop(f.name)) if f.name in others else replace(f, required=False) for f in old.fields
    ]  # fmt: skip
    return replace(old, required=new.required, fields=(*fields, *others.values()))


def _widened(old: Field, new: Field) -> Field:
    if old.kind == new.kind == "object":
        return widened(old, new)
    if old.item is not None and new.item is not None:
        return replace(new, item=_widened(old.item, new.item))
    if old.arrow() != new.arrow():
        raise BadSchema(
            f"field {new.name} is {old.arrow()} in the table and {new.arrow()} in the schema: give it another name, or "
            f"rebuild the table"
        )
    return new


def unknown_fields(field: Field, value: Mapping[str, Any], depth: int = 0) -> Field | None:
    """Return the fields of a body that the schema lacks, within those that it has; None: it has all of them. A field
    that is null is not missed.
    """
    return _unknown_within(field, [value], depth)


def _unknown_within(field: Field, values: Iterable[Any], depth: int) -> Field | None:
    """Return the fields that a field lacks for any of these values."""
    if field.item is not None:
        items = [one for value in values if isinstance(value, list) for one in value]
        item = _unknown_within(field.item, items, depth + 1)
        return None if item is None else Field(field.name, "array", item=item)
    if field.kind != "object":
        return None
    by_name: dict[str, list[Any]] = {}
    for value in values:
        if isinstance(value, dict):
            for name, one in value.items():
                if one is not None:
                    by_name.setdefault(name, []).append(one)
    by_field = {f.name: f for f in field.fields}
    more = []
    for name, some in by_name.items():
        there = by_field.get(name)
        lacking = infer(some, name, depth + 1) if there is None else _unknown_within(there, some, depth + 1)
        if lacking is not None:
            more.append(lacking)
    return Field(field.name, "object", fields=tuple(more)) if more else None


def joined(table: Field, before: Field | None, more: Field, taken: Collection[str]) -> Field:
    """Return new fields of some bodies and of more. `table`: its fields; `before`: the new fields of the bodies so far;
    `taken` as in `check_names`. Raises BadSchema if the table cannot have them all.
    """
    both = more if before is None else merge(before, more)
    if both == before:
        return both
    if both.kind != "object":
        raise BadSchema(
            f"names of new fields differ in case only, or by their parts, or there are more than {MAX_FIELDS} fields"
        )
    check_names(widened(table, settle(both)), taken)
    return both
