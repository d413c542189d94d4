"""Bodies in Avro and Protobuf: the fields of their schemas, and one body as a value of these fields. Pure.

Schemas whose bodies could cost much more memory or depth than they have bytes are refused: a record within itself, and
lists of items without bytes.
"""

from __future__ import annotations

import base64
import binascii
import functools
import io
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from typing import Any, Final
from uuid import UUID

import orjson

from gantry_spark.tables.fields import MAX_DEPTH, BadSchema, Field, Rejected, Values

AVRO: Final = "Avro"
PROTOBUF: Final = "Protobuf"
MAX_DESCRIPTOR: Final = 1_048_576
"""Bytes of a set of Protobuf descriptors."""
_AVRO_KINDS: Final = {
    "string": "string", "enum": "string", "bytes": "bytes", "fixed": "bytes", "int": "integer", "long": "integer",
    "float": "number", "double": "number", "boolean": "boolean",
}  # fmt: skip
_AVRO_TIMES: Final = ("timestamp-millis", "timestamp-micros", "local-timestamp-millis", "local-timestamp-micros")
_AVRO_TEXTS: Final = ("date", "time-millis", "time-micros", "decimal", "uuid")
"""Logical types that a table has as text, exactly."""
_DECIMAL: Final = "gantry-decimal"
"""The logical type that the reader is given for decimal: the library's own rounds a number with too many digits, and
takes the square of its length.
"""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
Decoder = Callable[[bytes], dict[str, Any]]


def fields_of(kind: str, definition: str, message: str) -> Field:
    """Return the fields of a schema: Avro's JSON, or Protobuf's descriptors in Base64 and a message. Raises
    BadSchema.
    """
    return _avro_fields(definition) if kind == AVRO else _protobuf_fields(definition, message)


@functools.lru_cache(maxsize=64)
def decoder(kind: str, definition: str, message: str) -> Decoder:
    """Return the function that makes the columns of a body. It raises Rejected; this one raises BadSchema."""
    return _avro_decoder(definition) if kind == AVRO else _protobuf_decoder(definition, message)


def json_text(value: Any) -> str:
    """Return any decoded value as JSON text. Bytes are Base64."""

    def other(leaf: Any) -> Any:
        if isinstance(leaf, bytes):
            return base64.b64encode(leaf).decode()
        return str(leaf)

    return orjson.dumps(value, default=other, option=orjson.OPT_NON_STR_KEYS).decode()


# ---- Avro


def _avro_parsed(definition: str) -> Any:
    import fastavro
    from fastavro.schema import SchemaParseException, UnknownType

    try:
        given = orjson.loads(definition)
    except orjson.JSONDecodeError as error:
        raise BadSchema(f"the Avro schema is no JSON: {error}") from None
    try:
        return fastavro.parse_schema(given, named_schemas={})
    except (
        SchemaParseException,
        UnknownType,
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        RecursionError,
    ) as error:
        raise BadSchema(f"the Avro schema cannot be read: {error}") from None


def _avro_fields(definition: str) -> Field:
    parsed = _avro_parsed(definition)
    record = _Avro().field("rocketmq", parsed, required=False)
    if record.kind != "object":
        raise BadSchema("the Avro schema is no record: write type record with at least one field")
    return record


class _Avro:
    """The way through a parsed schema."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}
        self._inside: list[str] = []

    def field(self, name: str, schema: Any, required: bool) -> Field:
        if len(self._inside) > MAX_DEPTH:
            raise BadSchema(f"field {name}: records lie deeper than {MAX_DEPTH} levels")
        if isinstance(schema, list):
            others = [one for one in schema if one != "null"]
            if len(others) == 1:
                return self.field(name, others[0], required and len(others) == len(schema))
            for one in others:
                self.field(name, one, False)  # It may hold what is refused.
            return Field(name, "json", required and len(others) == len(schema))
        if isinstance(schema, str):
            if schema in self._inside:
                raise BadSchema(f"field {name}: record {schema} lies within itself, and a table has no such columns")
            if schema in self._named:
                return self.field(name, self._named[schema], required)
            schema = {"type": schema}
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.field(name, kind, required)
        if "name" in schema:
            self._named[schema["name"]] = schema
        logical = schema.get("logicalType")
        if logical in _AVRO_TIMES:
            return Field(name, "time", required)
        if logical in _AVRO_TEXTS:
            return Field(name, "string", required)
        if kind in ("record", "error"):
            self._inside.append(schema.get("name", ""))
            fields = tuple(self.field(f["name"], f["type"], True) for f in schema["fields"])
            self._inside.pop()
            _check_names(name, [f.name for f in fields])
            return Field(name, "object", required, fields) if fields else Field(name, "json", required)
        if kind == "array":
            self._check_size(name, schema["items"])
            return Field(name, "array", required, item=self.field("element", schema["items"], True))
        if kind == "map":
            self.field("element", schema["values"], True)
            return Field(name, "json", required)
        if kind in _AVRO_KINDS:
            return Field(name, _AVRO_KINDS[kind], required)
        return Field(name, "json", False)  # null

    def _check_size(self, name: str, items: Any) -> None:
        if not self._takes_bytes(items, 0):
            raise BadSchema(
                f"field {name}: its items have no bytes, so a short body could have any number of them; write another "
                f"type"
            )

    def _takes_bytes(self, schema: Any, depth: int) -> bool:
        if depth > MAX_DEPTH or isinstance(schema, list):
            return True  # A union has its index.
        if isinstance(schema, str):
            return self._takes_bytes(self._named[schema], depth + 1) if schema in self._named else schema != "null"
        kind = schema["type"]
        if kind in ("record", "error"):
            return any(self._takes_bytes(f["type"], depth + 1) for f in schema["fields"])
        if kind == "fixed":
            return bool(schema["size"] > 0)
        return self._takes_bytes(kind, depth + 1) if isinstance(kind, dict | list) else kind != "null"


def _check_names(name: str, names: list[str]) -> None:
    if len({one.lower() for one in names}) < len(names):
        raise BadSchema(f"field {name}: names of its fields differ in case only, which columns cannot")


def _avro_decoder(definition: str) -> Decoder:
    import fastavro
    from fastavro import read

    for kind in ("bytes", "fixed"):
        read.LOGICAL_READERS[f"{kind}-{_DECIMAL}"] = _decimal
    _avro_parsed(definition)
    parsed = fastavro.parse_schema(_with_decimals(orjson.loads(definition)), named_schemas={})

    def decode(body: bytes) -> dict[str, Any]:
        stream = io.BytesIO(body)
        try:
            record = fastavro.schemaless_reader(stream, parsed, None)
        except Exception as error:  # The library raises whatever the bytes lead to.
            raise Rejected(f"the body is not of the Avro schema: {type(error).__name__}: {error}"[:500]) from None
        if rest := stream.read():
            raise Rejected(f"the body has {len(rest)} bytes behind its Avro record")
        assert isinstance(record, dict)
        return record

    return decode


def _with_decimals(schema: Any) -> Any:
    """Return a schema whose decimals are read by `_decimal`."""
    if isinstance(schema, list):
        return [_with_decimals(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {n: _with_decimals(v) if n in ("type", "items", "values") else v for n, v in schema.items()}
    if "fields" in schema:
        changed["fields"] = [_with_decimals(one) for one in schema["fields"]]
    if schema.get("logicalType") == "decimal":
        changed["logicalType"] = _DECIMAL
    return changed


def _decimal(data: bytes, schema: Any, _: Any = None) -> Decimal:
    """Return a decimal. Raises ValueError if it has more digits than its schema allows."""
    precision, scale = schema["precision"], schema.get("scale", 0)
    sign = data[:1]
    # Bytes that repeat the sign. Of the others each has more than two digits.
    digits = sign + data.lstrip(sign) if sign in (b"\0", b"\xff") else data
    unscaled = int.from_bytes(digits, "big", signed=True) if len(digits) <= precision // 2 + 2 else None
    if unscaled is None or abs(unscaled) >= 10**precision:
        raise ValueError(f"a decimal of {len(data)} bytes has more than {precision} digits")
    return Decimal(unscaled).scaleb(-scale, Context(prec=precision))


# ---- Protobuf


def _protobuf_message(definition: str, message: str) -> Any:
    """Return the class of a message. Raises BadSchema."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from google.protobuf.message import DecodeError

    try:
        data = base64.b64decode(definition, validate=True)
    except (binascii.Error, ValueError):
        raise BadSchema("the Protobuf descriptors are no Base64: write the output of protoc -o, in Base64") from None
    if len(data) > MAX_DESCRIPTOR:
        raise BadSchema(f"the Protobuf descriptors have more than {MAX_DESCRIPTOR} bytes")
    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet()
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(data)
        for file in files.file:
            pool.Add(file)
        descriptor = pool.FindMessageTypeByName(message)
    except (DecodeError, TypeError, KeyError, ValueError) as error:
        names = sorted(f"{f.package}.{m.name}".lstrip(".") for f in files.file for m in f.message_type)
        raise BadSchema(
            f"message {message!r} cannot be read from the Protobuf descriptors ({error}); they have "
            f"{', '.join(names[:20]) or 'no message'}; write them with protoc --include_imports -o"
        ) from None
    return message_factory.GetMessageClass(descriptor)


def _protobuf_fields(definition: str, message: str) -> Field:
    root = _message_field("rocketmq", _protobuf_message(definition, message).DESCRIPTOR, ())
    if root.kind != "object":
        raise BadSchema(f"message {message} has no fields")
    return root


def _message_field(name: str, descriptor: Any, inside: tuple[str, ...]) -> Field:
    if descriptor.full_name == "google.protobuf.Timestamp":
        return Field(name, "time")
    if descriptor.full_name in inside:
        raise BadSchema(
            f"field {name}: message {descriptor.full_name} lies within itself, and a table has no such columns"
        )
    if len(inside) >= MAX_DEPTH:
        raise BadSchema(f"field {name}: messages lie deeper than {MAX_DEPTH} levels")
    inside = (*inside, descriptor.full_name)
    fields = tuple(_one_field(one, inside) for one in descriptor.fields)
    _check_names(name, [f.name for f in fields])
    return Field(name, "object", fields=fields) if fields else Field(name, "json")


def _is_map(one: Any) -> bool:
    return one.message_type is not None and bool(one.message_type.GetOptions().map_entry)


def _one_field(one: Any, inside: tuple[str, ...]) -> Field:
    if _is_map(one):
        return Field(one.name, "json")
    name = "element" if one.is_repeated else one.name
    if one.message_type is not None:
        item = _message_field(name, one.message_type, inside)
    else:
        item = Field(name, _protobuf_kind(one))
    return Field(one.name, "array", item=item) if one.is_repeated else item


def _protobuf_kind(one: Any) -> str:
    if one.enum_type is not None:
        return "string"
    if one.cpp_type in (one.CPPTYPE_FLOAT, one.CPPTYPE_DOUBLE):
        return "number"
    if one.cpp_type == one.CPPTYPE_BOOL:
        return "boolean"
    if one.cpp_type == one.CPPTYPE_STRING:
        return "bytes" if one.type == one.TYPE_BYTES else "string"
    return "integer"


def _protobuf_decoder(definition: str, message: str) -> Decoder:
    from google.protobuf.message import DecodeError

    message_class = _protobuf_message(definition, message)

    def decode(body: bytes) -> dict[str, Any]:
        try:
            fields: dict[str, Any] = _plain_message(message_class.FromString(body), Values(), message)
        except (DecodeError, ValueError, OverflowError) as error:
            raise Rejected(f"the body is not of Protobuf message {message}: {error}"[:500]) from None
        return fields

    return decode


def _plain_message(parsed: Any, values: Values, place: str) -> Any:
    """Return a message as a value. An empty one within another has two bytes and all of its fields. Raises Rejected."""
    descriptor = parsed.DESCRIPTOR
    if descriptor.full_name == "google.protobuf.Timestamp":
        return _EPOCH + timedelta(seconds=parsed.seconds, microseconds=parsed.nanos // 1000)
    values.add(len(descriptor.fields), place)
    out: dict[str, Any] = {}
    for one in descriptor.fields:
        if one.has_presence and not parsed.HasField(one.name):
            continue
        value = getattr(parsed, one.name)
        if _is_map(one):
            valued = one.message_type.fields_by_name["value"]
            out[one.name] = {str(key): _plain(valued, value[key], values) for key in value}
        elif one.is_repeated:
            out[one.name] = [_plain(one, item, values) for item in value]
        else:
            out[one.name] = _plain(one, value, values)
    return out


def _plain(one: Any, value: Any, values: Values) -> Any:
    if one.message_type is not None:
        return _plain_message(value, values, one.name)
    if one.enum_type is not None:
        label = one.enum_type.values_by_number.get(value)
        return str(value) if label is None else label.name
    return value


def as_field(value: Any) -> Any:
    """Return a decoded value as the fields have it: dates, decimals and UUIDs as text."""
    if isinstance(value, Mapping):
        return {name: as_field(one) for name, one in value.items()}
    if isinstance(value, list):
        return [as_field(one) for one in value]
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, date | time) and not isinstance(value, datetime):
        return value.isoformat()
    return value
