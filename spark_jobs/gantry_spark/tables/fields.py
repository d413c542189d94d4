"""The columns of a table from a schema of bodies, and the conversion of one body. Pure.

A schema is a subset of JSON Schema: `object` with `properties` and `required`, `array` with `items`, `string` (also
with format `date-time`), `integer` (64 bits), `number`, `boolean`, and `null` beside one of them. A field with any
other schema is kept as JSON text.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
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
    found = _parse(SYSTEM, schema, False, 0)
    if found.kind != "object" or not found.fields:
        raise BadSchema("the schema needs type object and at least one property")
    for field in found.fields:
        if field.name in (SYSTEM, KEY):
            raise BadSchema(f"field {field.name}: the table has a column of its own with this name")
    if _count(found) > MAX_FIELDS:
        raise BadSchema(f"the schema has more than {MAX_FIELDS} fields")
    return found


def _count(field: Field) -> int:
    return 1 + sum(map(_count, field.fields)) + (0 if field.item is None else _count(field.item))


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
        found: dict[str, Any] = {"type": "object", "properties": {f.name: to_schema(f) for f in field.fields}}
        if needed := [f.name for f in field.fields if f.required]:
            found["required"] = needed
        return found
    if field.kind == "array":
        assert field.item is not None
        return {"type": "array", "items": to_schema(field.item)}
    if field.kind == "time":
        return {"type": "string", "format": "date-time"}
    if field.kind == "bytes":
        return {"type": "string", "contentEncoding": "base64"}
    return {} if field.kind == "json" else {"type": field.kind}


def convert(field: Field, body: bytes) -> dict[str, Any]:
    """Return the columns of a body. Raises Rejected."""
    if not body:
        raise Rejected("the body is empty")
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Rejected(f"the body is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise Rejected(f"the body is {_kind_of(value)}, not an object")
    return fit(field, value)


def fit(field: Field, value: Mapping[str, Any], json_text: Callable[[Any], str] | None = None) -> dict[str, Any]:
    """Return the columns of a decoded body. `json_text`: writes a value as JSON. Raises Rejected."""
    found: dict[str, Any] = _value(field, value, "", json_text or _json_text)
    return found


def _json_text(value: Any) -> str:
    return orjson.dumps(value).decode()


def _value(field: Field, value: Any, place: str, json_text: Callable[[Any], str]) -> Any:
    if value is None:
        if field.required:
            raise Rejected(f"field {place} is null and is required")
        return None
    kind = field.kind
    if kind == "json":
        return json_text(value)
    if kind == "object" and isinstance(value, dict):
        return {
            f.name: _value(f, value[f.name], f"{place}.{f.name}".lstrip("."), json_text)
            if f.name in value
            else _absent(f, f"{place}.{f.name}".lstrip("."))
            for f in field.fields
        }
    if kind == "array" and isinstance(value, list) and field.item is not None:
        return [_value(field.item, one, f"{place}[{index}]", json_text) for index, one in enumerate(value)]
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
        return value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    if kind == "time" and isinstance(value, str):
        try:
            time = datetime.fromisoformat(value)
        except ValueError:
            raise Rejected(f"field {place}: {value[:80]!r} is no time; RFC 3339 is expected") from None
        return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    raise Rejected(f"field {place} is {_kind_of(value)}, not {kind}")


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


def infer(value: Any, name: str = SYSTEM, depth: int = 0) -> Field:
    """Return the field that a JSON value fits. Of null the kind is `unknown`. Odd and deep values are JSON text."""
    kind = _kind_of(value)
    if value is None:
        return Field(name, "unknown")
    if kind in ("string", "number", "boolean") or (kind == "integer" and value in _INT64):
        return Field(name, kind)
    if depth < MAX_DEPTH and isinstance(value, dict) and len({n.lower() for n in value} - {""}) == len(value):
        return Field(name, "object", fields=tuple(infer(v, n, depth + 1) for n, v in value.items()))
    if depth < MAX_DEPTH and isinstance(value, list):
        item = Field("element", "unknown")
        for one in value:
            item = merge(item, infer(one, "element", depth + 1))
        return Field(name, "array", item=item)
    return Field(name, "json")


def merge(a: Field, b: Field) -> Field:
    """Return the field that values of both fit."""
    if a.kind == "unknown" or b.kind == "unknown":
        return b if a.kind == "unknown" else a
    if a.kind == b.kind == "object":
        others = {f.name: f for f in b.fields}
        fields = [merge(f, others.pop(f.name)) if f.name in others else f for f in a.fields]
        fields += others.values()
        if len({f.name.lower() for f in fields}) < len(fields):
            return Field(a.name, "json")
        return Field(a.name, "object", fields=tuple(fields))
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


def unknown_fields(field: Field, value: Any) -> Field | None:
    """Return the top-level fields of a body that the schema lacks; None: it has all of them."""
    if not isinstance(value, dict):
        return None
    known = {f.name.lower() for f in field.fields} | {SYSTEM, KEY}
    more = {n: v for n, v in value.items() if n and n.lower() not in known}
    if not more or len({n.lower() for n in more}) < len(more):
        return None
    return settle(infer(more))
