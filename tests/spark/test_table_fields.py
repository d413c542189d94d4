"""Schemas of tables, the conversion of bodies, and the rows of a commit by key."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import orjson
import pyarrow as pa
import pytest
from gantry_broker.broker.metadata.topics import group_fault
from gantry_broker.protocol.fastjson import MessageQueue
from gantry_spark.tables.fields import (
    BadSchema,
    Rejected,
    convert,
    infer,
    merge,
    parse_schema,
    settle,
    to_schema,
    unknown_fields,
    widened,
)
from gantry_spark.tables.offsets import (
    ENDED,
    ENDS,
    PATIENCE_MS,
    TIMES,
    Marks,
    NotContinued,
    acknowledged,
    check_continues,
    covered,
    former_group_of,
    group_of,
    marks_in,
    next_marks,
    store_times,
    summary,
)
from gantry_spark.tables.rows import DELETED, SYSTEM_TYPE, Shape, newest, places, without
from gantry_spark.tables.spec import TableSpec
from gantry_spark.topics.queues import Bounds, QueueRange
from hypothesis import given
from hypothesis import strategies as st

ORDER = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "integer"},
        "when": {"type": ["string", "null"], "format": "date-time"},
        "price": {"type": "number"},
        "open": {"type": "boolean"},
        "lines": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}},
        "more": {},
    },
}


def test_a_body_becomes_columns() -> None:
    body = {
        "id": 7.0, "when": "2026-01-02T03:04:05Z", "price": 3, "open": True, "lines": [{"name": "a"}, {}, None],
        "more": [1, {"x": None}], "other": 1,
    }  # fmt: skip
    assert convert(parse_schema(ORDER), orjson.dumps(body)) == {
        "id": 7, "when": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "price": 3.0, "open": True,
        "lines": [{"name": "a"}, {"name": None}, None], "more": '[1,{"x":null}]',
    }  # fmt: skip
    assert convert(parse_schema(ORDER), b'{"id": 1}')["lines"] is None


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "the body is empty"),
        (b"{", "the body is no JSON"),
        (b"\xff\xfe", "the body is no JSON"),
        (b"[]", "the body is array, not an object"),
        (b"{}", "field id is missing and is required"),
        (b'{"id": null}', "field id is null and is required"),
        (b'{"id": true}', "field id is boolean, not integer"),
        (b'{"id": 1.5}', "field id is number, not integer"),
        (b'{"id": 18446744073709551615}', "has more than 64 bits"),
        (b'{"id": 1, "when": "soon"}', "field when: 'soon' is no time"),
        (b'{"id": 1, "lines": [{"name": 1}]}', r"field lines\[0\].name is integer, not string"),
    ],
)
def test_a_body_that_does_not_fit_has_a_reason(body: bytes, reason: str) -> None:
    with pytest.raises(Rejected, match=reason):
        convert(parse_schema(ORDER), body)


@pytest.mark.parametrize(
    ("schema", "error"),
    [
        ([], "is no schema"),
        ({"type": "string"}, "needs type object"),
        ({"type": "object", "properties": {"rocketmq": {}}}, "field rocketmq: the table has a column of its own"),
        ({"type": "object", "properties": {"a": {}, "A": {}}}, "differs from another field in case only"),
        ({"type": "object", "properties": {"a": {"type": "decimal"}}}, "type 'decimal' is unknown"),
        ({"type": "object", "properties": {str(n): {} for n in range(1001)}}, "more than 1000 fields"),
    ],
)
def test_a_schema_that_no_table_can_have(schema: Any, error: str) -> None:
    with pytest.raises(BadSchema, match=error):
        parse_schema(schema)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1, max_size=3), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
bodies = st.lists(st.dictionaries(st.sampled_from("abcd"), json_values, min_size=1), min_size=1, max_size=4)


@given(bodies)
def test_an_inferred_schema_takes_every_body_it_was_inferred_from(found: list[dict[str, Any]]) -> None:
    field = infer([found[0]])
    for body in found[1:]:
        field = merge(field, infer([body]))
    schema = parse_schema(to_schema(settle(field)))
    assert parse_schema(to_schema(schema)) == schema
    for body in found:
        row = convert(schema, orjson.dumps(body))
        assert row.keys() == {name for one in found for name in one}
        assert unknown_fields(schema, body) is None
        for name, value in row.items():
            arrow = next(f for f in schema.fields if f.name == name).arrow()
            assert pa.array([value], type=arrow).to_pylist() is not None


def test_fields_may_be_added_and_not_changed() -> None:
    old = parse_schema({"type": "object", "properties": {"a": {"type": "integer"}}})
    more = unknown_fields(old, {"a": 1, "b": "x"})
    assert more is not None
    assert [f.name for f in widened(old, more).fields] == ["a", "b"]
    other = parse_schema({"type": "object", "properties": {"a": {"type": "string"}}})
    with pytest.raises(BadSchema, match="field a is int64 in the table and string in the schema"):
        widened(old, other)
    needed = parse_schema({"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}})
    assert convert(widened(needed, more), b'{"b": "x"}') == {"a": None, "b": "x"}, "the new schema lacks it"


def staged(rows: list[tuple[str, str, int, int, bool]]) -> Any:
    """Rows of (key, partition, offset, second, deleted)."""
    system = [
        {"topic": "T", "partition": p, "offset": o, "timestamp": datetime.fromtimestamp(s, UTC)}
        for _, p, o, s, _ in rows
    ]
    shape = Shape(None, True)
    columns = {
        "key": [r[0] for r in rows], "value": [b"%d" % r[2] for r in rows], "properties": [[] for _ in rows],
        "rocketmq": system, DELETED: [r[4] for r in rows],
    }  # fmt: skip
    return pa.Table.from_pydict(columns, schema=shape.staged())


def test_the_newest_message_of_a_key_wins_and_deletes_apply_to_the_same_commit() -> None:
    table = staged(
        [
            ("a", "g:0", 0, 10, False), ("a", "g:0", 1, 5, False), ("b", "g:0", 2, 12, False),
            ("b", "g:0", 3, 13, True),
            ("c", "g:1", 0, 13, True), ("c", "g:1", 1, 14, False), ("d", "g:0", 9, 20, False),
            ("d", "g:1", 2, 30, False),
        ]
    )  # fmt: skip
    rows, keys = newest(table, Shape(None, True))
    assert keys == ["a", "b", "c", "d"]
    found = {k: s["offset"] for k, s in zip(rows["key"].to_pylist(), rows["rocketmq"].to_pylist(), strict=True)}
    assert found == {"a": 1, "c": 1, "d": 2}
    system = pa.Table.from_struct_array(table["rocketmq"].combine_chunks())
    known = places(system)
    assert places(without(system, frozenset(known[1:]))) == known[:1]
    assert without(system, frozenset()) is system
    assert SYSTEM_TYPE.names[0] == "topic"


def test_a_table_continues_its_newest_snapshot_that_says_where() -> None:
    queue = MessageQueue("T", "g", 0)
    first = summary({}, [QueueRange(queue, 0, 5)], {queue: 5}, ["a loss"], {queue: 1_700})
    assert store_times([{}, first]) == {queue: 1_700}
    assert store_times([{ENDS: "{}"}, first]) == store_times([{ENDS: "{}", TIMES: "{"}]) == {}
    assert first["gantry.lost"] == "a loss"
    assert covered([], "t") == {}
    assert covered([{}, first], "t") == {queue: 5}
    other = MessageQueue("T", "h", 0)
    assert covered([summary({queue: 5}, [], {other: 2}, [], {}), first], "t") == {queue: 5, other: 2}
    with pytest.raises(NotContinued, match="none says which messages it holds"):
        covered([{}, {}], "t")
    with pytest.raises(NotContinued, match=r"property gantry\.offsets"):
        covered([{ENDS: "{"}], "t")
    with pytest.raises(NotContinued, match=r"another commit came first; T@g:0 ends at 6, not at 5"):
        check_continues({queue: 5}, {queue: 6}, "t")
    check_continues({queue: 5}, {queue: 5}, "t")


A, B = MessageQueue("T", "a", 0), MessageQueue("T", "b", 0)
NOW = 1_000_000
LATER = NOW + PATIENCE_MS


def test_a_queue_ends_once_it_takes_no_more_and_all_of_it_is_in_the_table() -> None:
    there = {A: Bounds(0, 5), B: Bounds(0, 5)}
    marks, losses = next_marks(Marks(), {A: 5, B: 4}, there, {A, B}, NOW)
    assert (marks, losses) == (Marks({A: 5}), [])
    assert acknowledged({A: 5, B: 4}, marks) == {A: 5, B: 3}
    assert marks_in([{}, summary({}, [], {A: 5, B: 4}, [], {}, marks)]) == marks
    assert next_marks(marks, {A: 5}, {}, (), NOW) == (marks, []), "it is gone"
    assert next_marks(marks, {A: 6}, {}, (), NOW) == (Marks({}, {A: NOW}), []), "it had ended, but not there"
    assert next_marks(marks, {A: 5}, there, (), NOW) == (Marks(), []), "it takes messages again"
    slave = {A: Bounds(0, 5, by_master=False)}
    assert next_marks(marks, {A: 5}, slave, (), NOW) == (marks, []), "a slave does not know"
    assert next_marks(Marks(), {A: 5}, slave, {A}, NOW) == (Marks(), [])
    assert next_marks(Marks(), {A: 5, B: 0}, {A: Bounds(5, 5), B: Bounds(0, 0)}, (), NOW)[0] == Marks({A: 5, B: 0})


def test_a_queue_that_is_gone_and_had_not_ended_is_a_loss_that_is_named_once() -> None:
    marks, losses = next_marks(Marks(), {A: 5}, {B: Bounds(0, 1)}, (), NOW)
    assert (marks, losses) == (Marks({}, {A: NOW}), []), "its broker may come back"
    assert marks_in([summary({}, [], {A: 5}, [], {}, marks)]) == marks
    assert next_marks(marks, {A: 5}, {}, (), LATER - 1) == (marks, [])
    assert next_marks(marks, {A: 5}, {A: Bounds(0, 9)}, (), LATER) == (Marks(), []), "it came back"
    marks, losses = next_marks(marks, {A: 5}, {}, (), LATER)
    assert losses == ["queue a:0 of topic T no longer exists, and messages from offset 5 on may not have been read"]
    assert next_marks(marks, {A: 5}, {}, (), LATER + 1) == (marks, [])


def test_marks_that_cannot_be_read_are_none() -> None:
    assert marks_in([]) == marks_in([{ENDED: "{}"}]) == marks_in([{ENDS: "{}", ENDED: "{"}]) == Marks()
    assert marks_in([{ENDS: "{}", ENDED: '{"T": {"a:0": -1}}'}]) == Marks()


def test_the_group_of_a_table_is_a_name_that_brokers_take() -> None:
    assert re.fullmatch("CID_RMQ_SYS_TABLE_rocketmq_Orders_[0-9a-f]{8}", group_of("rocketmq", "Orders", {}))
    parquet = {"type": "parquet", "warehouse": "s3://a"}
    assert re.fullmatch("CID_RMQ_SYS_TABLE_PARQUET_a_b_Orders_[0-9a-f]{8}", group_of("a.b", "Orders", parquet))
    assert former_group_of("a.b", "Orders", parquet) == "CID_RMQ_SYS_TABLE_PARQUET_a_b_Orders"
    long = group_of("n" * 250, "Orders", {})
    assert group_fault(long) is None
    assert long != group_of("n" * 250, "Invoices", {})


def test_tables_of_different_catalogs_have_different_groups() -> None:
    catalogs = [
        {"uri": "https://a.example.org"}, {"uri": "https://b.example.org"},
        {"uri": "https://a.example.org", "warehouse": "s3://a"}, {"uri": "https://a.example.org", "warehouse": "s3://b"},
        {"type": "parquet", "warehouse": "s3://a"}, {"type": "parquet", "warehouse": "s3://b"},
        {"type": "glue"}, {"type": "glue", "glue.region": "eu-west-1"}, {"uri": "sqlite:////a/catalog.db"},
    ]  # fmt: skip
    groups = [group_of("rocketmq", "Orders", catalog) for catalog in catalogs]
    assert len(set(groups)) == len(catalogs)
    assert all(group_fault(group) is None for group in groups)


def test_a_catalog_keeps_its_group_when_its_credentials_change() -> None:
    uris = (
        "postgresql://h:5432/lake", "postgresql://me:x@h:5432/lake", "postgresql://me:y%40@h:5432/lake/",
        "postgresql://h:5432/lake?password=z",
    )  # fmt: skip
    groups = {group_of("rocketmq", "Orders", {"uri": uri, "token": uri, "type": "sql"}) for uri in uris}
    assert len(groups) == 1


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"mode": "Merge"}, "write Append or Upsert"),
        ({"kind": "Thrift"}, "write one of Raw, Inferred, JsonSchema"),
        ({"kind": "Avro"}, "need a definition"),
        ({"kind": "JsonSchema"}, "a JSON Schema belongs to"),
        ({"schema": {}}, "a JSON Schema belongs to"),
        ({"kind": "JsonSchema", "schema": {"type": "array"}}, "needs type object"),
    ],
)
def test_a_wrong_specification_is_named(more: dict[str, Any], error: str) -> None:
    with pytest.raises(BadSchema, match=error):
        TableSpec("T", "h:1", {}, **more)
