"""Tables after what others do to them, and bodies that would cost far more memory or time than they have bytes."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import random
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fastavro
import orjson
import pyarrow as pa
import pytest
from gantry_broker.client import Admin, Message, Producer
from gantry_broker.contracts.table_runs import RunOrder, TableOrder
from gantry_broker.testing import LocalBroker
from gantry_spark.errors import SourceError
from gantry_spark.tables import commits as commits_module
from gantry_spark.tables import fields as fields_module
from gantry_spark.tables import library
from gantry_spark.tables import rows as rows_module
from gantry_spark.tables.commits import ends_of, open_catalog
from gantry_spark.tables.decoders import as_field, decoder
from gantry_spark.tables.fields import BadSchema, Rejected, Values, convert, infer, parse_schema, unknown_fields
from gantry_spark.tables.job import TableJob
from gantry_spark.tables.maintenance import Rules, maintain, now_ms
from gantry_spark.tables.offsets import NotContinued
from gantry_spark.tables.parquet import ParquetTable
from gantry_spark.tables.run import Run, reason_of
from gantry_spark.tables.spec import SchemaProposed, TableSpec
from pyiceberg.types import LongType

from tests.spark.test_authentication import ADMIN, secured
from tests.spark.test_table_care import AVRO, avro, descriptors
from tests.spark.test_tables import SCHEMA, catalog, check, one_at_a_time, rows_of, send
from tests.support.broker_group import MakeGroup, make_group
from tests.support.present import present

__all__ = ["catalog", "make_group"]


def spec_of(mq: LocalBroker, warehouse: dict[str, str], **more: Any) -> TableSpec:
    return TableSpec(mq.create_topic(queues=1), mq.name_servers, warehouse, **more)


# ---- what others do to a table


def ancestors(job: TableJob) -> list[int]:
    """Snapshots of the table, the newest first."""
    table = present(job.find())
    found: list[int] = []
    at = table.current_snapshot()
    while at is not None:
        found.append(at.snapshot_id)
        at = None if at.parent_snapshot_id is None else table.metadata.snapshot_by_id(at.parent_snapshot_id)
    return found


@pytest.mark.parametrize("parts", [(), ("bucket(2, rocketmq.offset)",)])
@pytest.mark.parametrize("mode", ["Append", "Upsert"])
def test_a_table_that_is_set_back_to_any_snapshot_continues_from_there(
    mq: LocalBroker, warehouse: dict[str, str], mode: str, parts: tuple[str, ...]
) -> None:
    """A commit by key has several snapshots, and the first ones lack its rows."""
    spec = spec_of(mq, warehouse, mode=mode, partition_by=parts)
    job = TableJob(spec, None)
    sent: list[tuple[str, bytes]] = []
    for some in ([("a", b"1"), ("b", b"2"), ("c", b"3")], [("a", b"4"), ("d", b"5")], [("b", b""), ("d", b"6")]):
        some = [one for one in some if one[1] or mode == "Upsert"]
        send(mq, spec.topic, some)
        sent += some
        one_at_a_time(job)
    maintain(job.find(), Rules(now_ms(), 10**9), ends_of)
    for snapshot in ancestors(job):
        present(job.find()).manage_snapshots().set_current_snapshot(snapshot).commit()
        one_at_a_time(TableJob(spec, None))
        check(job, sent)


@pytest.mark.parametrize("kind", ["JsonSchema", "Raw"])
@pytest.mark.parametrize("mode", ["Append", "Upsert"])
@pytest.mark.parametrize("column", ["name", "rocketmq.tags", "rocketmq.timestamp"])
@pytest.mark.parametrize("how", ["removed", "renamed"])
def test_a_column_that_another_engine_takes_away_comes_back(
    mq: LocalBroker, warehouse: dict[str, str], mode: str, kind: str, column: str, how: str
) -> None:
    column = "value" if (kind, column) == ("Raw", "name") else column
    spec = spec_of(mq, warehouse, mode=mode, kind=kind, schema=SCHEMA if kind == "JsonSchema" else None)
    job = TableJob(spec, None)
    send(mq, spec.topic, [("a", b'{"id": 1, "name": "x"}')])
    one_at_a_time(job)
    table = present(job.find())
    with table.update_schema(allow_incompatible_changes=True) as update:
        if how == "removed":
            update.delete_column(column)
        else:
            update.rename_column(column, "theirs")
    send(mq, spec.topic, [("b", b'{"id": 2, "name": "y"}')])
    one_at_a_time(TableJob(spec, None))
    (new,) = [r for r in rows_of(job, spec.identifier) if r["rocketmq"]["key"] == "b"]
    assert (new["name"] if kind == "JsonSchema" else new["value"]) == (
        "y" if kind == "JsonSchema" else b'{"id": 2, "name": "y"}'
    )
    assert len(rows_of(job, spec.identifier)) == 2
    maintain(job.find(), Rules(now_ms(), 0, 3_600_000), ends_of)
    assert len(rows_of(job, spec.identifier)) == 2, "a row whose time was taken away is not an old one"


@pytest.mark.parametrize("mode", ["Append", "Upsert"])
@pytest.mark.parametrize("fields", [{}, {"total": {"type": "number"}}], ids=["rows", "rows and a column"])
def test_a_column_that_another_engine_adds_within_a_commit_stays(
    mq: LocalBroker, warehouse: dict[str, str], monkeypatch: pytest.MonkeyPatch, mode: str, fields: dict[str, Any]
) -> None:
    spec = spec_of(mq, warehouse, mode=mode, kind="JsonSchema", schema=SCHEMA)
    send(mq, spec.topic, [("a", b'{"id": 1}')])
    one_at_a_time(TableJob(spec, None))
    real, added = commits_module.commit_transaction, False

    def late(transaction: Any, table: Any) -> None:
        nonlocal added
        if not added:
            added = True
            other = present(TableJob(spec, None).find())
            with other.update_schema() as update:
                update.add_column("theirs", LongType())
        real(transaction, table)

    monkeypatch.setattr(commits_module, "commit_transaction", late)
    send(mq, spec.topic, [("b", b'{"id": 2}')])
    spec = replace(spec, schema=wide(**fields))
    with contextlib.suppress(NotContinued):  # Or it is made on top of the other one.
        TableJob(spec, None).run()
    one_at_a_time(TableJob(spec, None))
    table = present(TableJob(spec, None).find())
    assert {"theirs", *fields} <= set(table.schema().column_names)
    assert sorted((r["id"], r["theirs"]) for r in rows_of(TableJob(spec, None), spec.identifier)) == [
        (1, None), (2, None),
    ]  # fmt: skip


def test_what_another_engine_makes_impossible_is_said(mq: LocalBroker, warehouse: dict[str, str]) -> None:
    for name, words in (
        ("_key", "lacks the column _key, by which it is kept: rebuild it"),
        ("name", "of another type"),
    ):
        spec = spec_of(mq, warehouse, mode="Upsert", kind="JsonSchema", schema=SCHEMA)
        send(mq, spec.topic, [("a", b'{"id": 1, "name": "x"}')])
        one_at_a_time(TableJob(spec, None))
        table = present(TableJob(spec, None).find())
        with table.update_schema(allow_incompatible_changes=True) as update:
            update.delete_column(name)
        if name == "name":
            with table.update_schema() as update:
                update.union_by_name(pa.schema([("name", pa.int32())]))
        send(mq, spec.topic, [("a", b'{"id": 2, "name": "y"}')])
        with pytest.raises(BadSchema, match=words):
            TableJob(spec, None).run()
        assert [r["id"] for r in rows_of(TableJob(spec, None), spec.identifier)] == [1]


def wide(**more: Any) -> dict[str, Any]:
    """SCHEMA with other properties beside its own, or in their place."""
    return {**SCHEMA, "properties": {**SCHEMA["properties"], **more}}


def test_a_changed_spec_is_compared_without_new_messages(mq: LocalBroker, catalog: dict[str, str]) -> None:
    parts = ("truncate(2, name)",)
    spec = spec_of(mq, catalog, kind="JsonSchema", schema=SCHEMA, partition_by=parts)
    send(mq, spec.topic, [("a", b'{"id": 1, "name": "x"}')])
    one_at_a_time(TableJob(spec, None))

    def report(**more: Any) -> tuple[str, str]:
        fields: dict[str, Any] = {
            "kind": "JsonSchema", "partition_by": list(parts), "json_schema": json.dumps(SCHEMA),
            "format": "Parquet" if catalog["type"] == "parquet" else "Iceberg",
        }  # fmt: skip
        tables = [TableOrder(topic=spec.topic, **fields | more)]
        order = RunOrder(
            run="r", name_servers=mq.name_servers, tables=tables, catalog={**catalog, "type": "sql"}, report="r"
        )
        (found,) = Run(order, lambda report: None).run().tables
        return found.reason, found.message

    changes: list[tuple[dict[str, Any], str]] = [
        ({"json_schema": json.dumps(wide(name={"type": "integer"}))}, "field name is string in the table and int64"),
        ({"partition_by": []}, "gantry.partition-by"),
        ({"partition_by": ["day(rocketmq.timestamp)"]}, "gantry.partition-by"),
        ({"kind": "Raw", "json_schema": None, "partition_by": list(parts)}, "gantry.schema-kind = JsonSchema, not Raw"),
    ]
    if catalog["type"] != "parquet":
        changes.append(({"mode": "Upsert"}, "gantry.mode = Append, not Upsert"))
    for change, words in changes:
        reason, message = report(**change)
        assert reason == "BadSchema"
        assert words in message
        assert "rebuild" in message
    assert report() == ("Current", "")
    assert report(json_schema=json.dumps(wide(total={"type": "number"}))) == ("Current", "")
    found = TableJob(spec, None)
    columns = [c["name"] for c in library.describe(found.catalog, found.find(), None)["columns"]]
    assert "total" in columns, "a new field is a column before a message has it"
    version = version_of(TableJob(spec, None))
    assert report(json_schema=json.dumps(wide(total={"type": "number"}))) == ("Current", "")
    assert report() == ("Current", ""), "a field that the schema lacks stays"
    assert report() == ("Current", "")
    after = version_of(TableJob(spec, None))
    send(mq, spec.topic, [("b", b'{"id": 2, "name": "y", "total": 2.5}')])
    assert report(json_schema=json.dumps(wide(total={"type": "number"}))) == ("Current", "")
    assert {r["id"]: r["total"] for r in rows_of(found, spec.identifier)} == {1: None, 2: 2.5}
    assert version == after, "a run without a change commits nothing"


def version_of(job: TableJob) -> str:
    table = present(job.find())
    return str(table.version if isinstance(table, ParquetTable) else table.metadata_location)


@pytest.mark.parametrize("kind", ["Raw", "Inferred", "Avro", "Protobuf", "JsonSchema"])
def test_a_run_without_messages_and_changes_commits_nothing(
    mq: LocalBroker, catalog: dict[str, str], kind: str
) -> None:
    more: dict[str, Any] = {}
    body = b'{"id": 1, "name": "x", "place": {"x": [1.5]}}'
    if kind == "Avro":
        more, body = {"definition": json.dumps(AVRO)}, avro(id=7, note="x", lines=[{"count": 3}], more={})
    elif kind == "Protobuf":
        text, made = descriptors()
        more, body = {"definition": text, "message": "shop.Order"}, made(id=7).SerializeToString()
    elif kind == "JsonSchema":
        more = {"schema": wide(place={"type": "object", "properties": {"x": {"type": "array"}}})}
    spec = spec_of(mq, catalog, kind=kind, **more)
    send(mq, spec.topic, [("a", body)])
    one_at_a_time(TableJob(spec, None))
    assert len(rows_of(TableJob(spec, None), spec.identifier)) == 1
    version = version_of(TableJob(spec, None))
    for _ in range(2):
        assert TableJob(spec, None).run() == []
    assert version_of(TableJob(spec, None)) == version


def test_partitions_that_a_schema_cannot_have_are_said_before_the_first_message(
    mq: LocalBroker, catalog: dict[str, str]
) -> None:
    spec = spec_of(mq, catalog, kind="JsonSchema", schema=SCHEMA, partition_by=("day(name)",))
    with pytest.raises(BadSchema, match="column name is string"):
        TableJob(spec, None).run()


def group_of_table(mq: LocalBroker, spec: TableSpec, group: str = "") -> int | None:
    """The offset of a table's consumer group, or of another one, in the first queue; None: it has none."""

    async def work() -> int | None:
        async with Admin(mq.name_servers) as admin:
            found = await admin.consume_stats(group or spec.table_group)
            return next((one.consumer_offset for q, one in found.items() if q.queue_id == 0), None)

    return asyncio.run(work())


def test_a_table_that_is_set_back_takes_its_acknowledgement_back(mq: LocalBroker, warehouse: dict[str, str]) -> None:
    spec = spec_of(mq, warehouse)
    job = TableJob(spec, None)
    send(mq, spec.topic, [("a", b"1"), ("b", b"2")])
    one_at_a_time(job)
    (first,) = ancestors(job)
    send(mq, spec.topic, [("c", b"3"), ("d", b"4")])
    one_at_a_time(job)
    assert group_of_table(mq, spec) == 3
    present(job.find()).manage_snapshots().rollback_to_snapshot(first).commit()
    seen: list[int | None] = []
    one_at_a_time(TableJob(spec, None, lambda step: seen.append(group_of_table(mq, spec))))
    assert seen[0] == 1, "before it reads"
    assert group_of_table(mq, spec) == 3
    check(job, [("a", b"1"), ("b", b"2"), ("c", b"3"), ("d", b"4")])


def test_a_drain_waits_for_a_table_that_has_nothing_yet(mq: LocalBroker, warehouse: dict[str, str]) -> None:
    proposed = spec_of(mq, warehouse, kind="Inferred", freeze=False)
    send(mq, proposed.topic, [("a", b'{"id": 1}'), ("b", b'{"id": 2}')])
    with pytest.raises(SchemaProposed):
        TableJob(proposed, None).run(is_kept=False)
    assert group_of_table(mq, proposed) is None, "somebody only looks at the schema"
    with pytest.raises(SchemaProposed):
        TableJob(proposed, None).run()
    assert group_of_table(mq, proposed) == 0
    one_at_a_time(TableJob(replace(proposed, freeze=True), None))
    send(mq, proposed.topic, [("c", b'{"id": 3}')])
    assert group_of_table(mq, proposed) == 1

    # A catalog that never answered, and one that does not answer any more.
    away = {"type": "sql", "uri": "sqlite:////nowhere/catalog.db", "warehouse": warehouse["warehouse"]}
    other = spec_of(mq, away)
    send(mq, other.topic, [("a", b"1")])
    database = Path(warehouse["uri"].removeprefix("sqlite:///"))
    database.rename(database.with_suffix(".away"))
    database.mkdir()
    for spec, offset in ((other, 0), (replace(proposed, freeze=True), 1)):
        with pytest.raises(Exception, match="unable to open database file"):
            TableJob(spec, None).run()
        assert group_of_table(mq, spec) == offset


@pytest.mark.parametrize(
    ("mode", "step"), [("Append", "plan"), ("Upsert", "plan"), ("Append", "write"), ("Upsert", "commit")]
)
async def test_a_failover_within_a_commit_repeats_no_message_and_misses_none(
    make_group: MakeGroup, warehouse: dict[str, str], mode: str, step: str
) -> None:
    group = await make_group(2)
    await group.lead(0)
    await group.registered()
    loop, chance = asyncio.get_running_loop(), random.Random(step)
    servers: Any = SimpleNamespace(name_servers=group.name_server)
    async with Admin(group.name_server) as admin:
        await admin.create_topic("Orders", queues=2)
    sent: list[tuple[str, bytes]] = []

    def more(count: int) -> None:
        some = [(chance.choice("abc"), json.dumps({"id": chance.choice([1, "x"])}).encode()) for _ in range(count)]
        send(servers, "Orders", some)
        sent.extend(some)

    async def fail_over() -> None:
        await group.all_in_sync()
        await group.members[0].kill()
        await group.lead(1, [1])

    def after(name: str) -> None:
        if name == step and not failed_over:
            failed_over.append(name)
            asyncio.run_coroutine_threadsafe(fail_over(), loop).result()
            more(10)

    failed_over: list[str] = []
    spec = TableSpec("Orders", group.name_server, warehouse, mode=mode, kind="JsonSchema", schema=SCHEMA, per_commit=20)
    await asyncio.to_thread(more, 60)
    job = TableJob(spec, None, after)
    await asyncio.to_thread(one_at_a_time, job)
    assert failed_over == [step]
    check(job, sent)


async def test_a_table_whose_user_may_not_acknowledge_goes_on_and_says_so(
    make_group: MakeGroup, warehouse: dict[str, str]
) -> None:
    group = await secured(make_group)
    rules = [{"type": "Topic", "name": "Orders", "actions": ["Sub"]},
             {"type": "Group", "name": "TOOLS_CONSUMER", "actions": ["Sub"]}]  # fmt: skip
    more = {"type": "Group", "name": "CID_RMQ_SYS_TABLE_", "pattern": "Prefix", "actions": ["Sub"]}
    admin = {"name": "admin", "keys": [ADMIN.secret_key], "super": True}
    said: list[str] = []
    for version, given in enumerate((rules, [*rules, more]), 2):
        users = [admin, {"name": "lake", "keys": ["the-right-key-of-lake"], "rules": given}]
        table = {"version": version, "mode": "Enabled", "users": users}
        answer = await group.members[0].http.put("/v1/access", content=orjson.dumps(table))
        assert answer.status_code == 200, answer.text
        async with Producer(group.name_server, credentials=ADMIN) as producer:
            await producer.send(Message("Orders", b"%d" % version))
        keys = {"accessKey": "lake", "secretKey": "the-right-key-of-lake"}
        spec = TableSpec("Orders", group.name_server, warehouse, namespace="secured", options=keys)
        job = TableJob(spec, None)
        (done,) = await asyncio.to_thread(job.run)
        assert done.rows == 1
        said.append(job.unacknowledged)
    assert said[0].startswith("drains do not wait for it: its group CID_RMQ_SYS_TABLE_secured_Orders_")
    assert said[1] == ""


def test_tables_of_one_topic_in_two_catalogs_have_their_own_progress(mq: LocalBroker, tmp_path: Path) -> None:
    """A drain waits for both."""
    slow, fast = (
        {"type": "sql", "uri": f"sqlite:///{tmp_path}/{name}.db", "warehouse": f"file://{tmp_path}/{name}"}
        for name in ("slow", "fast")
    )
    spec = spec_of(mq, slow)
    other = replace(spec, catalog=fast)
    send(mq, spec.topic, [("a", b"1"), ("b", b"2")])
    one_at_a_time(TableJob(spec, None))
    send(mq, spec.topic, [("c", b"3")])
    one_at_a_time(TableJob(other, None))
    assert [group_of_table(mq, one) for one in (spec, other)] == [1, 2]
    assert group_of_table(mq, spec, spec.former_group) is None


def test_the_group_that_a_table_had_before_follows_it(mq: LocalBroker, warehouse: dict[str, str]) -> None:
    spec = spec_of(mq, warehouse)
    send(mq, spec.topic, [("a", b"1"), ("b", b"2")])
    queue = spec.cluster().queues(spec.topic)[0]
    spec.cluster().commit(spec.former_group, {queue: 0})
    one_at_a_time(TableJob(spec, None))
    assert group_of_table(mq, spec) == group_of_table(mq, spec, spec.former_group) == 1
    tables = [TableOrder(topic=spec.topic, drop=True)]
    order = RunOrder(run="r", name_servers=mq.name_servers, tables=tables, catalog=warehouse, report="r")
    assert [t.reason for t in Run(order, lambda report: None).run().tables] == ["Dropped"]
    assert group_of_table(mq, spec) is None
    assert group_of_table(mq, spec, spec.former_group) == 1, "a table of another catalog may have no other group"


def test_only_the_table_of_the_topic_is_dropped(mq: LocalBroker, warehouse: dict[str, str]) -> None:
    opened = open_catalog(warehouse)
    spec, theirs = spec_of(mq, warehouse), mq.create_topic(queues=1)
    send(mq, spec.topic, [("a", b"1")])
    one_at_a_time(TableJob(spec, None))
    opened.create_table(("rocketmq", theirs), pa.schema([("x", pa.int64())]))
    assert group_of_table(mq, spec) == 0, "its last message is not acknowledged yet"
    # A process that dropped the table, and ended before it dropped that of the rejected messages.
    opened.drop_table(spec.identifier)
    tables = [TableOrder(topic=topic, drop=True) for topic in (spec.topic, theirs)]
    order = RunOrder(run="r", name_servers=mq.name_servers, tables=tables, catalog=warehouse, report="r")
    assert [t.reason for t in Run(order, lambda report: None).run().tables] == ["Dropped", "Dropped"]
    assert opened.list_tables("rocketmq") == [("rocketmq", theirs)]
    assert group_of_table(mq, spec) is None, "no drain waits for it"


def test_a_table_of_no_topic_is_named(mq: LocalBroker, warehouse: dict[str, str]) -> None:
    spec = spec_of(mq, warehouse)
    send(mq, spec.topic, [("a", b"1")])
    one_at_a_time(TableJob(spec, None))
    open_catalog(warehouse).create_table(("rocketmq", "theirs"), pa.schema([("x", pa.int64())]))
    assert library.find(warehouse, spec.topic)[1].name() == spec.identifier
    for name, words in (
        (f"{spec.topic}__rejected", "has the rejected messages of topic test-"),
        ("theirs", "no topic"),
    ):
        with pytest.raises(library.NoSuchTable, match=words):
            library.find(warehouse, name)


# ---- messages that are gone


@pytest.mark.parametrize(("kind", "mode"), [("iceberg", "Append"), ("iceberg", "Upsert"), ("parquet", "Append")])
def test_a_table_goes_on_after_messages_that_expired_while_it_was_off(
    mq: LocalBroker, warehouse: dict[str, str], monkeypatch: pytest.MonkeyPatch, mode: str, kind: str
) -> None:
    catalog = warehouse if kind == "iceberg" else {**warehouse, "type": "parquet"}
    spec = spec_of(mq, catalog, mode=mode)
    sent = [(f"k{n}", b"%d" % n) for n in range(10)]
    send(mq, spec.topic, sent[:2])
    one_at_a_time(TableJob(spec, None))
    send(mq, spec.topic, sent[2:])
    job = TableJob(spec, None)
    real = job.cluster.bounds
    monkeypatch.setattr(job.cluster, "bounds", lambda qs: {q: replace(b, first=6) for q, b in real(qs).items()})
    (done,) = job.run()
    assert done.losses == (f"queue test:0 of topic {spec.topic}: messages 2 to 5 expired before they were read",)
    check(job, sent[:2] + sent[6:])
    assert TableJob(spec, None).run() == []
    send(mq, spec.topic, [("k10", b"10")])
    one_at_a_time(TableJob(spec, None))
    if catalog["type"] != "parquet":
        maintain(job.both()[0], Rules(now_ms() + 1, 0), ends_of)
    opened, table = library.find(warehouse, spec.topic)
    (lost,) = library.describe(opened, table, None)["lost"]
    assert lost.endswith(f"Z: {done.losses[0]}"), "when the snapshot has expired, too"


def test_store_times_that_step_back_repeat_no_message(
    mq: LocalBroker, warehouse: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Apache RocketMQ has them after its clock was set. Those of Gantry do not go back."""
    spec = spec_of(mq, warehouse, per_commit=1)
    sent = [(f"k{n}", b"%d" % n) for n in range(6)]
    times = [100, 500, 300, 200, 400, 350]
    send(mq, spec.topic, sent)

    def job() -> TableJob:
        made = TableJob(spec, None)
        monkeypatch.setattr(made, "_store_ms", lambda queue, offset: times[offset])
        return made

    from gantry_spark.tables import executor as module

    real = module.Part.note_newest

    def note(part: Any, topic: str, group: str, records: Any) -> None:
        real(part, topic, group, records)
        part.newest = {q: (offset, times[offset]) for q, (offset, _) in part.newest.items()}

    monkeypatch.setattr(module.Part, "note_newest", note)
    for _ in sent:
        bounds = job()._bounds()
        assert job()._moved(bounds) == {}
        job().commit(bounds, 1, {})
    assert job().run() == []
    check(job(), sent)


# ---- bodies that cost more than they have bytes

WIDE = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "l": {"type": "array", "items": {"type": "object", "properties": {f"f{n}": {} for n in range(50)}}},
    },
}


def test_a_row_has_a_limit_of_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields_module, "MAX_VALUES", 1_000)
    field, values = parse_schema(WIDE), Values()
    assert len(convert(field, b'{"l": [' + b"{}," * 9 + b"{}]}", values)["l"]) == 10
    assert values.count == field.width + 10 * 51
    with pytest.raises(Rejected, match="field l: the row would have more than 1,000 values"):
        convert(field, b'{"l": [' + b"{}," * 30 + b"{}]}")
    text, made = descriptors()
    order = made(counts=[1] * 990)
    assert len(decoder("Protobuf", text, "shop.Order")(order.SerializeToString())["counts"]) == 990


def test_rows_of_many_values_are_written_in_parts(
    mq: LocalBroker, warehouse: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "BATCH_VALUES", 300)
    parts: list[int] = []
    from gantry_spark.tables import executor as module

    real = module.convert_batch

    def counted(*args: Any) -> Any:
        found = real(*args)
        parts.append(found.count)
        return found

    monkeypatch.setattr(module, "convert_batch", counted)
    spec = spec_of(mq, warehouse, kind="JsonSchema", schema=WIDE, mode="Upsert")
    sent = [(f"k{n}", b'{"id": %d, "l": [{}, {}]}' % n) for n in range(7)]
    send(mq, spec.topic, [*sent, ("k", b"no json"), ("k1", b"")])
    job = TableJob(spec, None)
    one_at_a_time(job)
    assert sorted(r["id"] for r in rows_of(job, spec.identifier)) == [0, 2, 3, 4, 5, 6]
    assert len(rows_of(job, spec.rejected_identifier)) == 1
    assert parts == [3, 3, 3]


def test_a_list_of_objects_with_many_names_is_looked_at_once() -> None:
    """A body of a few MiB took hours."""
    many = [{f"n{i}": i} for i in range(200_000)]
    assert infer([many]).item == fields_module.Field("element", "json")
    wide = [{f"n{i}": i for i in range(900)}, *({} for _ in range(200_000))]
    assert len(present(infer([wide]).item).fields) == 900
    table = fields_module.Field("t", "object", fields=(fields_module.settle(infer([[{"a": 1}]], "l")),))
    more = present(unknown_fields(table, {"l": [{"a": 1, "b": 2}, {"c": None}, {"b": 2.5, "d": [1]}, *wide]}))
    item = present(more.fields[0].item)
    kinds = {f.name: f.kind for f in item.fields}
    assert (len(kinds), kinds["b"], kinds["d"], "c" in kinds) == (902, "number", "array", False)


@pytest.mark.parametrize("kind", ["bytes", "fixed"])
def test_a_decimal_is_exact_or_rejected(kind: str) -> None:
    size = 100_000 if kind == "bytes" else 16
    plain = "bytes" if kind == "bytes" else {"type": "fixed", "name": "F", "size": size}
    named = {"type": kind, "logicalType": "decimal", "precision": 20, "scale": 2, "name": "F", "size": size}
    # The second field has the type by its name.
    schema = {"type": "record", "name": "T", "fields": [
        {"name": "d", "type": named}, {"name": "e", "type": "F" if kind == "fixed" else named}]}  # fmt: skip
    writer = {"type": "record", "name": "T", "fields": [
        {"name": "d", "type": plain}, {"name": "e", "type": "F" if kind == "fixed" else plain}]}  # fmt: skip

    def decoded(data: bytes) -> Any:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, fastavro.parse_schema(writer, named_schemas={}), {"d": data, "e": data})
        found = as_field(decoder("Avro", json.dumps(schema), "")(stream.getvalue()))
        assert found["d"] == found["e"]
        return found["d"]

    for number in (0, 1, -1, 99, -12_345, 10**20 - 1, 1 - 10**20, 12_345_678_901_234_567_890):
        for length in (16,) if kind == "fixed" else (9, 16, size):
            assert Decimal(decoded(number.to_bytes(length, "big", signed=True))) == Decimal(number) * Decimal("0.01")
    for wrong in (10**20, -(10**20), 2**120):
        with pytest.raises(Rejected, match="has more than 20 digits"):
            decoded(wrong.to_bytes(16, "big", signed=True))
    if kind == "bytes":
        with pytest.raises(Rejected, match="a decimal of 100000 bytes has more than 20 digits"):
            decoded(b"\x7f" * size)


# ---- what a run says


def test_an_error_of_a_worker_has_its_own_reason() -> None:
    java = "An error occurred while calling o1.collect.\n: org.apache.spark.SparkException: Job aborted\n"
    for name, reason in (
        ("errors.SourceError", "SourceFailed"), ("topics.wire.Broken", "SourceFailed"),
        ("topics.wire.Refused", "SourceFailed"), ("tables.fields.BadSchema", "BadSchema"),
    ):  # fmt: skip
        assert reason_of(RuntimeError(f"{java}Traceback\ngantry_spark.{name}: why\n")) == reason
    assert reason_of(RuntimeError(java)) == "Failed"
    assert reason_of(SourceError("gantry_spark.errors.BadSchema: x")) == "SourceFailed"
