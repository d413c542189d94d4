"""Tables beyond plain commits: maintenance, messages that stop a table, Avro and Protobuf, and killed processes."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastavro
import pytest
from gantry_broker.client import Message, MessageQueue, Producer
from gantry_broker.contracts.table_runs import RunOrder, TableOrder, from_text
from gantry_broker.testing import LocalBroker
from gantry_spark.tables.commits import ends_of
from gantry_spark.tables.decoders import decoder, fields_of
from gantry_spark.tables.fields import BadSchema, Rejected, to_schema
from gantry_spark.tables.job import TableJob
from gantry_spark.tables.library import type_text
from gantry_spark.tables.maintenance import Rules, maintain, now_ms
from gantry_spark.tables.partitions import parse_parts
from gantry_spark.tables.spec import BadRecord, TableSpec
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from pyiceberg.types import ListType, LongType, MapType, NestedField, StringType, StructType

from tests.spark.test_tables import check, one_at_a_time, rows_of, send
from tests.support.present import present

KILLS = 60 if os.environ.get("HYPOTHESIS_PROFILE") == "explore" else 2
HOUR = 3_600_000


def files(job: TableJob) -> int:
    return len(list(present(job.find()).scan().plan_files()))


# ---- maintenance


def test_small_files_are_merged_and_old_snapshots_go(
    mq: LocalBroker, warehouse: dict[str, str], tmp_path: Path
) -> None:
    spec = TableSpec(mq.create_topic(queues=1), mq.name_servers, warehouse)
    job = TableJob(spec, None)
    sent = [(f"k{n}", str(n).encode()) for n in range(5)]
    for one in sent:
        send(mq, spec.topic, [one])
        one_at_a_time(job)
    assert files(job) == 5
    table = present(job.find())
    on_disk = set(tmp_path.rglob("*.parquet"))
    done = maintain(table, Rules(now_ms(), HOUR), ends_of)
    assert (done.merged, done.expired, files(job)) == (5, 0, 1), "young snapshots stay"
    assert set(tmp_path.rglob("*.parquet")) > on_disk
    done = maintain(table, Rules(now_ms() + 1000, 0), ends_of)
    assert (done.merged, done.expired) == (0, 5)
    assert len(list(tmp_path.rglob("*.parquet"))) == 1, "nothing is left of the former files"
    send(mq, spec.topic, [("k9", b"9")])
    assert TableJob(spec, None).run()
    check(job, [*sent, ("k9", b"9")])


def test_rows_go_when_their_time_is_over(mq: LocalBroker, warehouse: dict[str, str]) -> None:
    spec = TableSpec(mq.create_topic(queues=1), mq.name_servers, warehouse, per_commit=2)
    job = TableJob(spec, None)
    send(mq, spec.topic, [(f"k{n}", str(n).encode()) for n in range(5)])
    one_at_a_time(job)
    times = sorted(row["rocketmq"]["timestamp"] for row in rows_of(job, spec.identifier))
    table = present(job.find())
    cutoff = int(times[3].timestamp() * 1000)
    done = maintain(table, Rules(cutoff + HOUR, 10 * HOUR, HOUR), ends_of)
    left = [row["rocketmq"]["timestamp"] for row in rows_of(job, spec.identifier)]
    assert sorted(left) == [t for t in times if t.timestamp() * 1000 >= cutoff]
    assert done.removed_rows == 5 - len(left)
    assert job.run() == [], "what went is not read again"


def test_an_append_beside_the_maintenance_wins(mq: LocalBroker, warehouse: dict[str, str]) -> None:
    for mode in ("Append", "Upsert"):
        spec = TableSpec(mq.create_topic(queues=1), mq.name_servers, warehouse, mode=mode)
        job = TableJob(spec, None)
        sent = [(f"k{n}", str(n).encode()) for n in range(3)]
        for one in sent:
            send(mq, spec.topic, [one])
            one_at_a_time(job)
        meanwhile = [("k1", b"new"), ("k7", b"7")]

        def other(step: str, spec: TableSpec = spec, meanwhile: Any = meanwhile, sent: Any = sent) -> None:
            if step == "written" and meanwhile:
                send(mq, spec.topic, [meanwhile[-1]])
                sent.append(meanwhile.pop())
                assert TableJob(spec, None).run()

        assert not maintain(present(job.find()), Rules(now_ms(), HOUR), ends_of, other).skipped
        assert files(job) == 1
        check(job, sent)


# ---- bad messages


def test_a_table_stands_still_before_a_bad_message(mq: LocalBroker, warehouse: dict[str, str]) -> None:
    schema = {"type": "object", "properties": {"id": {"type": "integer"}}}
    more = {"kind": "JsonSchema", "schema": schema, "on_bad_record": "Suspend"}
    spec = TableSpec(mq.create_topic(queues=1), mq.name_servers, warehouse, **more)  # type: ignore[arg-type]
    send(mq, spec.topic, [("a", b'{"id": 1}'), ("b", b'{"id": 2}'), ("c", b"no json"), ("d", b'{"id": 4}')])
    job = TableJob(spec, None)
    with pytest.raises(BadRecord, match=r"message 2 of queue .*:0 does not fit, and onBadRecord is Suspend: .*no JSON"):
        job.run()
    assert [r["id"] for r in rows_of(job, spec.identifier)] == [1, 2]
    with pytest.raises(BadRecord):
        TableJob(spec, None).run()
    assert rows_of(job, spec.rejected_identifier) == []
    goes_on = TableSpec(spec.topic, mq.name_servers, warehouse, kind="JsonSchema", schema=schema)
    one_at_a_time(TableJob(goes_on, None))
    assert sorted(r["id"] for r in rows_of(job, spec.identifier)) == [1, 2, 4]
    assert [r["value"] for r in rows_of(job, spec.rejected_identifier)] == [b"no json"]


def test_other_queues_go_on_and_a_wider_schema_ends_the_stop(mq: LocalBroker, warehouse: dict[str, str]) -> None:
    schema = {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}, "n": {"type": "integer"}}}
    topic = mq.create_topic(queues=2)
    more: dict[str, Any] = {"kind": "JsonSchema", "on_bad_record": "Suspend", "per_commit": 4}
    spec = TableSpec(topic, mq.name_servers, warehouse, schema=schema, **more)

    async def send_all() -> None:
        async with Producer(mq.name_servers) as producer:
            for queue_id, bad in ((0, 3), (1, None)):
                for n in range(12):
                    body = json.dumps({"n": n} if n == bad else {"id": n, "n": n}).encode()
                    await producer.send(Message(topic, body), queue=MessageQueue(topic, "test", queue_id))

    asyncio.run(send_all())

    def places() -> list[tuple[str, int]]:
        rows = rows_of(TableJob(spec, None), spec.identifier)
        return sorted((r["rocketmq"]["partition"], r["rocketmq"]["offset"]) for r in rows)

    for _ in range(2):
        with pytest.raises(BadRecord, match=r"message 3 of queue test:0 does not fit.*field id is missing"):
            TableJob(spec, None).run()
        assert places() == [("test:0", n) for n in range(3)] + [("test:1", n) for n in range(12)]
    wider = TableSpec(topic, mq.name_servers, warehouse, schema={k: schema[k] for k in ("type", "properties")}, **more)
    one_at_a_time(TableJob(wider, None))
    assert places() == [(f"test:{q}", n) for q in range(2) for n in range(12)]
    assert rows_of(TableJob(spec, None), spec.rejected_identifier) == []


# ---- Avro and Protobuf

AVRO: dict[str, Any] = {
    "type": "record", "name": "Order", "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "raw", "type": "bytes"},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "lines", "type": {"type": "array", "items": {
            "type": "record", "name": "Line", "fields": [{"name": "count", "type": "int"}]}}},
        {"name": "more", "type": {"type": "map", "values": "bytes"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
    ],
}  # fmt: skip


def avro(**values: Any) -> bytes:
    at = datetime(2026, 5, 1, tzinfo=UTC)
    given = {
        "id": 1,
        "note": None,
        "at": at,
        "raw": b"\x00\xff",
        "day": at.date(),
        "lines": [],
        "more": {},
        "kind": "A",
    }
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(AVRO, named_schemas={}), given | values)
    return stream.getvalue()


def descriptors() -> tuple[str, Any]:
    """A set of descriptors in Base64, and the class of shop.Order."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    kinds = descriptor_pb2.FieldDescriptorProto
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=kinds.TYPE_UINT64, label=1)
    order.field.add(name="at", number=2, type=kinds.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp", label=1)
    order.field.add(name="raw", number=3, type=kinds.TYPE_BYTES, label=1)
    order.field.add(name="counts", number=4, type=kinds.TYPE_SINT32, label=3)
    order.field.add(name="line", number=5, type=kinds.TYPE_MESSAGE, type_name=".shop.Line", label=1)
    line = file.message_type.add(name="Line")
    line.field.add(name="name", number=1, type=kinds.TYPE_STRING, label=1)
    tree = file.message_type.add(name="Tree")
    tree.field.add(name="child", number=1, type=kinds.TYPE_MESSAGE, type_name=".shop.Tree", label=3)
    times = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(times)
    both = descriptor_pb2.FileDescriptorSet(file=[times, file])
    pool = descriptor_pool.DescriptorPool()
    for one in both.file:
        pool.Add(one)
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    return base64.b64encode(both.SerializeToString()).decode(), made


def test_avro_bodies_become_columns(mq: LocalBroker, warehouse: dict[str, str]) -> None:
    spec = TableSpec(
        mq.create_topic(queues=1), mq.name_servers, warehouse, kind="Avro", definition=json.dumps(AVRO),
        partition_by=("day(at)",),
    )  # fmt: skip
    good = avro(id=7, note="x", lines=[{"count": 3}], more={"k": b"\x01"})
    send(mq, spec.topic, [("", good), ("", good[:-3]), ("", good + b"x"), ("", b"\xff" * 20), ("", avro())])
    job = TableJob(spec, None)
    one_at_a_time(job)
    first, second = sorted(rows_of(job, spec.identifier), key=lambda r: -r["id"])
    del first["rocketmq"]
    assert first == {
        "id": 7, "note": "x", "at": datetime(2026, 5, 1, tzinfo=UTC), "raw": b"\x00\xff", "day": "2026-05-01",
        "lines": [{"count": 3}], "more": '{"k":"AQ=="}', "kind": "A",
    }  # fmt: skip
    assert second["note"] is None
    assert len(rows_of(job, spec.rejected_identifier)) == 3
    wider = json.loads(json.dumps(AVRO))
    wider["fields"].append({"name": "extra", "type": ["null", "string"]})
    send(mq, spec.topic, [("", good + b"\x02\x02z")])
    one_at_a_time(TableJob(TableSpec(**{**spec.__dict__, "definition": json.dumps(wider)}), None))
    assert sorted(str(r["extra"]) for r in rows_of(job, spec.identifier)) == ["None", "None", "z"], "a field was added"


def test_protobuf_bodies_become_columns(mq: LocalBroker, warehouse: dict[str, str]) -> None:
    text, made = descriptors()
    spec = TableSpec(
        mq.create_topic(queues=1), mq.name_servers, warehouse, kind="Protobuf", definition=text, message="shop.Order"
    )
    order = made(id=7, raw=b"\x00", counts=[-1, 2])
    order.at.FromSeconds(60)
    order.line.name = "x"
    send(mq, spec.topic, [("", order.SerializeToString()), ("", b"\xff\xff"), ("", made(id=2**63).SerializeToString())])
    job = TableJob(spec, None)
    one_at_a_time(job)
    (row,) = rows_of(job, spec.identifier)
    del row["rocketmq"]
    assert row == {
        "id": 7, "at": datetime(1970, 1, 1, 0, 1, tzinfo=UTC), "raw": b"\x00", "counts": [-1, 2], "line": {"name": "x"},
    }  # fmt: skip
    reasons = sorted(r["reason"] for r in rows_of(job, spec.rejected_identifier))
    assert "has more than 64 bits" in reasons[0]
    assert "not of Protobuf message shop.Order" in reasons[1]


def nested(levels: int) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "record", "name": "R0", "fields": [{"name": "x", "type": "int"}]}
    for n in range(1, levels):
        found = {"type": "record", "name": f"R{n}", "fields": [{"name": "x", "type": found}]}
    return found


def one(kind: Any) -> dict[str, Any]:
    return {"type": "record", "name": "T", "fields": [{"name": "x", "type": kind}]}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("{", "is no JSON"),
        ('"string"', "is no record"),
        (json.dumps({"type": "record", "name": "T", "fields": []}), "is no record"),
        (json.dumps(one("nothing")), "cannot be read"),
        (json.dumps(one({"type": "array", "items": "null"})), "have no bytes"),
        (json.dumps(one({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}})), "have no bytes"),
        (json.dumps(one({"type": "array", "items": {"type": "record", "name": "E", "fields": []}})), "have no bytes"),
        (json.dumps(one(["null", "T"])), "lies within itself"),
        (json.dumps(one({"type": "map", "values": "T"})), "lies within itself"),
        (json.dumps(nested(20)), "lie deeper than"),
        (json.dumps({"type": "record", "name": "T", "fields": [
            {"name": "a", "type": "int"}, {"name": "A", "type": "int"}]}), "in case only"),
    ],
)  # fmt: skip
def test_avro_schemas_that_no_table_can_have(schema: str, words: str) -> None:
    with pytest.raises(BadSchema, match=words):
        fields_of("Avro", schema, "")


@pytest.mark.parametrize(
    ("message", "words"), [("shop.Tree", "lies within itself"), ("shop.None", "they have .*shop.Line, shop.Order")]
)
def test_protobuf_messages_that_no_table_can_have(message: str, words: str) -> None:
    with pytest.raises(BadSchema, match=words):
        fields_of("Protobuf", descriptors()[0], message)


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_are_rejected_or_decoded(seed: int) -> None:
    """Damaged bodies cost one message, and nothing else."""
    chance = random.Random(seed)
    text, made = descriptors()
    good = {
        "Avro": avro(lines=[{"count": n} for n in range(9)]),
        "Protobuf": made(id=9, counts=[1] * 9).SerializeToString(),
    }
    for kind, definition, message in (("Avro", json.dumps(AVRO), ""), ("Protobuf", text, "shop.Order")):
        decode = decoder(kind, definition, message)
        for _ in range(200):
            body = bytearray(good[kind])
            for _ in range(chance.randint(1, 4)):
                body[chance.randrange(len(body))] = chance.randrange(256)
            with contextlib.suppress(Rejected):
                assert isinstance(decode(bytes(body)), dict)


def test_the_schema_of_a_table_can_be_read_again() -> None:
    from gantry_spark.tables.fields import parse_schema

    for kind, definition, message in (("Avro", json.dumps(AVRO), ""), ("Protobuf", descriptors()[0], "shop.Order")):
        fields = fields_of(kind, definition, message)
        assert parse_schema(to_schema(fields)).arrow() == fields.arrow()


@pytest.mark.parametrize(
    "text", ["", "day()", "week(x)", "bucket(x)", "bucket(0, x)", "a,b", "day(x))", "truncate(1e3,x)"]
)
def test_partitions_that_are_none(text: str) -> None:
    with pytest.raises(BadSchema, match="partitionBy"):
        parse_parts([text])


def test_partitions_must_fit_their_columns(mq: LocalBroker, warehouse: dict[str, str]) -> None:
    topic = mq.create_topic(queues=1)
    send(mq, topic, [("a", b"1")])
    for parts, words in (
        (("day(value)",), "column value is binary, which day cannot take"),
        (("nothing",), "there is no column nothing; the table has key, value, properties, rocketmq"),
        (("rocketmq",), "column rocketmq is struct"),
    ):
        with pytest.raises(BadSchema, match=words):
            TableJob(TableSpec(topic, mq.name_servers, warehouse, partition_by=parts), None).run()


# ---- killed processes


@pytest.mark.timeout(7200 if KILLS > 2 else 180)
def test_a_killed_process_repeats_nothing_and_misses_nothing(
    mq: LocalBroker, warehouse: dict[str, str], tmp_path: Path
) -> None:
    """SIGKILL at a random change of the files: in reads, writes, commits and maintenance of both modes."""
    chance = random.Random(os.environ.get("GANTRY_SEED", 5))
    jobs = {
        mode: TableJob(TableSpec(mq.create_topic(queues=2), mq.name_servers, warehouse, mode=mode), None)
        for mode in ("Append", "Upsert")
    }
    sent: dict[str, list[tuple[str, bytes]]] = {mode: [] for mode in jobs}

    def process(number: int) -> subprocess.Popen[bytes]:
        orders = [
            TableOrder(topic=job.spec.topic, mode=job.spec.mode, per_commit=7, maintain=True, snapshots_s=0)  # type: ignore[arg-type]
            for job in jobs.values()
        ]
        order = RunOrder(
            run=str(number), name_servers=mq.name_servers, tables=orders, catalog=warehouse,
            report=str(tmp_path / "report.json"),
        )  # fmt: skip
        path = tmp_path / "order.json"
        path.write_text(order.model_dump_json())
        words = [sys.executable, "-m", "gantry_spark.tables.run", "--order-file", str(path)]
        return subprocess.Popen(words, stderr=subprocess.DEVNULL)

    def entries() -> int:
        return sum(len(names) for _, _, names in os.walk(tmp_path))

    for number in range(KILLS):
        for mode, job in jobs.items():
            some = [(chance.choice("abcd"), b"%d" % n) for n in range(25)]
            send(mq, job.spec.topic, some)
            sent[mode] += some
        running = process(number)
        limit = entries() + chance.randint(1, 60)
        while running.poll() is None and entries() < limit:
            time.sleep(0.002)
        running.send_signal(signal.SIGKILL)
        running.wait()
    running = process(KILLS)
    assert running.wait(120) == 0
    report = present(from_text((tmp_path / "report.json").read_text()))
    assert [(t.reason, t.behind) for t in report.tables] == [("Current", 0)] * 2, report
    for mode, job in jobs.items():
        check(job, sent[mode])


def test_types_are_shown_without_the_numbers_of_iceberg() -> None:
    place = NestedField(3, "place", StructType(NestedField(4, "topic", StringType())), required=False)
    names = MapType(5, StringType(), 6, ListType(7, StructType(place)))
    assert type_text(names) == "map<string, list<struct<place struct<topic string>>>>"
    assert type_text(LongType()) == "long"
