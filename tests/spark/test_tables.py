"""Tables against a real broker and a real catalog: random messages, and a job that ends at any step of a commit."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from gantry_broker.client import Message, MessageQueue, Producer
from gantry_broker.contracts.table_runs import RunOrder
from gantry_broker.testing import LocalBroker, broker
from gantry_spark.tables import fields as fields_module
from gantry_spark.tables import job as job_module
from gantry_spark.tables import parquet as parquet_module
from gantry_spark.tables import run as run_module
from gantry_spark.tables.commits import ends_of
from gantry_spark.tables.fields import BadSchema, Rejected, convert, parse_schema
from gantry_spark.tables.job import TableJob
from gantry_spark.tables.maintenance import Rules, maintain, now_ms
from gantry_spark.tables.offsets import NotContinued
from gantry_spark.tables.spec import TableSpec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.present import present

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = {
    "type": "object", "required": ["id"],
    "properties": {"id": {"type": "integer"}, "name": {"type": "string"}, "tags": {"type": "array"}},
}  # fmt: skip
EXAMPLES = 300 if os.environ.get("HYPOTHESIS_PROFILE") == "explore" else 8
"""Each makes dozens of commits. At night there is time for more."""
STEPS = ("plan", "write", "reject", "commit")
MAINTENANCE = ("read", "written", "replaced", "expired", "end")
BACK = "set back"


class Interrupted(Exception):
    """The process ended here."""


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("warehouse")
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}


@pytest.fixture(params=["iceberg", "parquet"])
def catalog(warehouse: dict[str, str], request: pytest.FixtureRequest) -> dict[str, str]:
    """For tables of each format."""
    return {**warehouse, "type": "parquet"} if request.param == "parquet" else warehouse


def send(mq: LocalBroker, topic: str, messages: list[tuple[str, bytes]]) -> None:
    async def work() -> None:
        async with Producer(mq.name_servers) as producer:
            for key, body in messages:
                message = Message(topic, body, keys=key, properties={"n": "1"}, deletes_key=not body)
                await producer.send(message, key=key)

    asyncio.run(work())


def rows_of(job: TableJob, identifier: tuple[str, str]) -> list[dict[str, Any]]:
    table = job._find(identifier)
    return [] if table is None else table.scan().to_arrow().to_pylist()


def one_at_a_time(job: TableJob) -> None:
    """Run a job to its end, whatever ends it meanwhile."""
    while job.run():
        pass


def model(sent: list[tuple[str, bytes]], spec: TableSpec) -> tuple[list[Any], list[str]]:
    """What the table and the table of rejected rows hold: bodies or values, in any order."""
    rows: list[tuple[str, Any]] = []
    rejected: list[str] = []
    for key, body in sent:
        deletes = spec.by_key and body == b""
        if spec.by_key and not key:
            rejected.append("the message has no key")
            continue
        value: Any = body
        if spec.schema is not None and not deletes:
            try:
                value = convert(parse_schema(spec.schema), body)
            except Rejected as reason:
                rejected.append(str(reason))
                continue
        if spec.by_key:
            rows = [row for row in rows if row[0] != key]
        if not deletes:
            rows.append((key, value))
    return rows, sorted(rejected)


def check(job: TableJob, sent: list[tuple[str, bytes]]) -> None:
    wanted, reasons = model(sent, job.spec)
    rows = rows_of(job, job.spec.identifier)
    found: list[Any] = []
    for row in rows:
        own = {n: v for n, v in row.items() if n not in ("rocketmq", "_key")}
        found.append((row["rocketmq"]["key"] or "", row["value"] if job.spec.schema is None else own))
    assert sorted(found, key=repr) == sorted(wanted, key=repr)
    places = [(r["rocketmq"]["partition"], r["rocketmq"]["offset"]) for r in rows]
    assert len(set(places)) == len(places)
    assert sorted(r["reason"] for r in rows_of(job, job.spec.rejected_identifier)) == reasons


def set_back(job: TableJob, number: int) -> None:
    """Make one of the snapshots of a table its present one, as a person may by hand."""
    table = job.find()
    found = table.metadata.snapshots if table is not None else []
    if table is not None and found:
        table.manage_snapshots().set_current_snapshot(found[number % len(found)].snapshot_id).commit()


keys = st.sampled_from(["", "a", "b", "c", "d e"])
json_bodies = st.one_of(
    st.builds(
        lambda n, s: json.dumps({"id": n, "name": s, "tags": [s]}).encode(), st.integers(-9, 9), st.text(max_size=3)
    ),
    st.sampled_from([b"{", b"[]", b"{}", b'{"id": "x"}', b"\xff\x00", b'{"id": 1, "extra": {"a": 1}}']),
)  # fmt: skip
messages = st.lists(
    st.tuples(keys, json_bodies | st.binary(min_size=1, max_size=5))
    | st.tuples(st.sampled_from(["a", "b", "c"]), st.just(b"")),
    min_size=1, max_size=25,
)  # fmt: skip
rounds = st.lists(
    st.tuples(messages, st.lists(st.sampled_from((*STEPS, *MAINTENANCE, BACK)), max_size=3)), min_size=1, max_size=3
)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.timeout(7200 if EXAMPLES > 8 else 120)
@given(
    rounds, st.sampled_from(["Append", "Upsert"]), st.booleans(), st.integers(1, 20),
    st.sampled_from([(), ("bucket(3, rocketmq.offset)",), ("hour(rocketmq.timestamp)",)]),
)  # fmt: skip
def test_a_table_equals_the_model_whatever_interrupts_its_commits(
    mq: LocalBroker, warehouse: dict[str, str], work: Any, mode: str, schema: bool, per_commit: int, parts: Any
) -> None:
    topic = mq.create_topic(queues=2)
    spec = TableSpec(
        topic, mq.name_servers, warehouse, mode=mode, per_commit=per_commit, partition_by=parts,
        kind="JsonSchema" if schema else "Raw", schema=SCHEMA if schema else None,
    )  # fmt: skip
    sent: list[tuple[str, bytes]] = []
    for some, ends in work:
        send(mq, topic, some)
        sent += some
        for step in ends:

            def interrupt(name: str, step: str = step) -> None:
                if name == step:
                    raise Interrupted(name)

            with contextlib.suppress(Interrupted):
                if step == BACK:
                    set_back(TableJob(spec, None), len(sent))
                elif step in MAINTENANCE:
                    for table in TableJob(spec, None).both():
                        maintain(table, Rules(now_ms(), 0), ends_of, interrupt)
                else:
                    assert TableJob(spec, None, interrupt).run() == [], "nothing was left to commit"
        job = TableJob(spec, None)
        one_at_a_time(job)
        check(job, sent)
        assert job.run() == []


def test_of_two_drivers_with_one_plan_one_commits(mq: LocalBroker, warehouse: dict[str, str]) -> None:
    for mode in ("Append", "Upsert"):
        topic = mq.create_topic(queues=1)
        spec = TableSpec(topic, mq.name_servers, warehouse, mode=mode)
        sent = [("a", b"1"), ("b", b"2")]
        send(mq, topic, sent)
        assert TableJob(spec, None).run()
        send(mq, topic, [("c", b"3")])

        def other(step: str, spec: TableSpec = spec) -> None:
            if step == "write":
                assert TableJob(spec, None).run()

        with pytest.raises(NotContinued, match="another commit came first"):
            TableJob(spec, None, other).run()
        check(TableJob(spec, None), [*sent, ("c", b"3")])


def test_a_commit_between_check_and_commit_is_not_built_upon(
    mq: LocalBroker, warehouse: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyIceberg would repeat the commit on top of the other one."""
    from gantry_spark.tables import commits as module

    topic = mq.create_topic(queues=1)
    spec = TableSpec(topic, mq.name_servers, warehouse)
    send(mq, topic, [("a", b"1")])
    one_at_a_time(TableJob(spec, None))
    send(mq, topic, [("b", b"2")])
    real = module.commit_transaction
    done: list[bool] = []

    def late(transaction: Any, table: Any) -> None:
        if not done:
            done.append(True)
            assert TableJob(spec, None).run()
        real(transaction, table)

    monkeypatch.setattr(module, "commit_transaction", late)
    with pytest.raises(NotContinued, match="another commit came first"):
        TableJob(spec, None).run()
    check(TableJob(spec, None), [("a", b"1"), ("b", b"2")])


def test_a_table_that_was_set_back_continues_from_there(mq: LocalBroker, warehouse: dict[str, str]) -> None:
    topic = mq.create_topic(queues=2)
    spec = TableSpec(topic, mq.name_servers, warehouse)
    job = TableJob(spec, None)
    send(mq, topic, [("a", b"1"), ("b", b"2")])
    one_at_a_time(job)
    table = present(job._find(spec.identifier))
    first = present(table.current_snapshot())
    send(mq, topic, [("c", b"3")])
    one_at_a_time(job)
    table.refresh()
    table.manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    assert sum(ends_of(table).values()) == 2
    one_at_a_time(job)
    check(job, [("a", b"1"), ("b", b"2"), ("c", b"3")])


def test_an_inferred_schema_is_frozen_and_takes_new_fields(
    spark: SparkSession, mq: LocalBroker, warehouse: dict[str, str]
) -> None:
    """With executors: they find the new field, and the driver lets them write again."""
    topic = mq.create_topic(queues=2)
    spec = TableSpec(topic, mq.name_servers, warehouse, kind="Inferred")
    job = TableJob(spec, spark)
    send(mq, topic, [("", b'{"id": 1, "name": "a"}'), ("", b'{"id": 2}'), ("", b"no json")])
    (first,) = job.run()
    assert (first.rows, first.rejected, first.behind) == (2, 1, 0)
    send(mq, topic, [("", b'{"id": 3, "place": {"x": 1}}'), ("", b'{"id": "4"}'), ("", b'{"id": 5, "last": true}')])
    (second,) = job.run()
    assert (second.rows, second.rejected) == (2, 1)
    found = {r["id"]: (r["name"], r["place"], r["last"]) for r in rows_of(job, spec.identifier)}
    assert found == {1: ("a", None, None), 2: (None,) * 3, 3: (None, {"x": 1}, None), 5: (None, None, True)}
    reasons = sorted(r["reason"] for r in rows_of(job, spec.rejected_identifier))
    assert reasons == ["field id is string, not integer", reasons[1]]
    assert "no JSON" in reasons[1]
    assert {r["value"] for r in rows_of(job, spec.rejected_identifier)} == {b"no json", b'{"id": "4"}'}


def test_a_message_that_was_rejected_stays_so_and_takes_no_other_with_it(
    mq: LocalBroker, catalog: dict[str, str]
) -> None:
    """Of two names that differ in case the first one becomes a column. Another one is first after the interruption."""
    topic = mq.create_topic(queues=2)

    def send_to(queue_id: int, *bodies: bytes) -> None:
        async def work() -> None:
            async with Producer(mq.name_servers) as producer:
                for body in bodies:
                    await producer.send(Message(topic, body), queue=MessageQueue(topic, "test", queue_id))

        asyncio.run(work())

    def interrupt(name: str) -> None:
        if name == "reject":
            raise Interrupted(name)

    spec = TableSpec(topic, mq.name_servers, catalog, kind="Inferred")
    send_to(1, b'{"id": 0}')
    TableJob(spec, None).run()
    send_to(1, b'{"id": 1, "Foo": 1}', b'{"id": 2, "foo": 2}')
    with pytest.raises(Interrupted):
        TableJob(spec, None, interrupt).run()
    send_to(0, b'{"id": 3, "foo": 3}')
    job = TableJob(spec, None)
    one_at_a_time(job)
    rejected = [json.loads(r["value"])["id"] for r in rows_of(job, spec.rejected_identifier)]
    assert sorted([r["id"] for r in rows_of(job, spec.identifier)] + rejected) == [0, 1, 2, 3]


NUMBER = {"type": "object", "properties": {"n": {"type": "number"}, "at": {"type": "string", "format": "date-time"}}}
ANY = {"type": "object", "properties": {"any": {}}}
DELETED = {"type": "object", "properties": {"_deleted": {"type": "boolean"}}}
TEXT = {"type": "object", "properties": {"s": {"type": "string"}}}


@pytest.mark.parametrize(
    ("bodies", "more", "rows", "reasons"),
    [
        pytest.param(
            [[b'{"any":' + b"[" * 300 + b"]" * 300 + b"}", b'{"any": 1}']],
            {"schema": ANY}, 1, ["field any cannot be written as JSON"], id="deep",
        ),
        pytest.param(
            [[b'{"at": "0001-01-01T00:00:00+14:00"}', b'{"at": "9999-12-31T23:59:59-14:00"}', b'{"n": 1}']],
            {"schema": NUMBER, "partition_by": ("year(at)",)}, 1, ["of the years 1 to 9999"] * 2, id="times",
        ),
        pytest.param(
            [[b'{"a.b": 1, "a": {"b": 2}}', b'{"a": {"b": 1}}'], [b'{"a.b": 1}', b'{"a": {"b": 3}}']],
            {}, 2, ["field a.b: another field"] * 2, id="names by parts",
        ),
        pytest.param(
            [[b'{"Foo": 1}', b'{"foo": 2}'], [b'{"Bar": 1}', b'{"bar": 2}'], [b'{"foo": 2, "Foo": 1}']],
            {}, 2, ["another field has this name, maybe in other case"] * 3, id="case",
        ),
        pytest.param(
            [[b'{"id": 1}', b'{"rocketmq": 2}'], [b'{"_KEY": 1}', b'{"": 1}', b'{"rocketmq.topic": 1, "id": 1}']],
            {}, 1, ["a column of its own"] * 3 + ["no name"], id="reserved names",
        ),
        pytest.param(
            [[b'{"id": 1}'], [json.dumps({f"f{i}": i for i in range(18)}).encode(), b'{"g": 1, "h": 2}'],
             [b'{"i": 1}', b'{"f7": 1}']],
            {}, 3, ["more than 20 fields"] * 2, id="many fields",
        ),
        pytest.param(
            [[b'{"id": 1}'], [b'{"id_bucket": 5}', b'{"id": 2}']],
            {"partition_by": ("bucket(3, id)",)}, 2, ["a column of its own"], id="names of partitions",
        ),
        pytest.param(
            [[json.dumps({"s": s}).encode() for s in ("x" * 5_000, "\u00e9" * 200, "../x", "", "a\0b", "a=b")]],
            {"schema": TEXT, "partition_by": ("s",)}, 6, [], id="values of partitions",
        ),
    ],
)  # fmt: skip
def test_no_body_stops_those_beside_it(
    mq: LocalBroker, catalog: dict[str, str], monkeypatch: pytest.MonkeyPatch,
    bodies: list[list[bytes]], more: dict[str, Any], rows: int, reasons: list[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(fields_module, "MAX_FIELDS", 20)
    topic = mq.create_topic(queues=1)
    kind = "JsonSchema" if "schema" in more else "Inferred"
    job = TableJob(TableSpec(topic, mq.name_servers, catalog, kind=kind, **more), None)
    for some in bodies:
        send(mq, topic, [("k", body) for body in some])
        job.run()
    assert len(rows_of(job, job.spec.identifier)) == rows
    found = sorted(r["reason"] for r in rows_of(job, job.spec.rejected_identifier))
    assert len(found) == len(reasons), found
    assert all(any(reason in one for one in found) for reason in reasons), found


def test_a_commit_of_too_many_partitions_becomes_several(
    mq: LocalBroker, warehouse: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_module, "MAX_PARTITIONS", 8)
    topic = mq.create_topic(queues=1)
    spec = TableSpec(topic, mq.name_servers, {**warehouse, "type": "parquet"}, partition_by=("rocketmq.offset",))
    job = TableJob(spec, None)
    send(mq, topic, [("k", b"x")] * 13)
    assert [outcome.rows for outcome in job.run()] == [6, 6, 1]
    assert len(rows_of(job, spec.identifier)) == 13


def test_a_commit_of_too_many_bytes_becomes_several(
    mq: LocalBroker, warehouse: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that runs out of memory would do so in each run."""
    monkeypatch.setattr(job_module, "STAGED_BYTES", 4_000)
    topic = mq.create_topic(queues=1)
    spec = TableSpec(topic, mq.name_servers, warehouse, mode="Upsert", per_commit=40)
    send(mq, topic, [(f"k{n}", b"x" * 400) for n in range(20)] + [("k0", b"x" * 9_000)])
    job = TableJob(spec, None)
    assert [outcome.rows for outcome in job.run()] == [5, 5, 5, 5, 1]
    assert {r["key"]: len(r["value"]) for r in rows_of(job, spec.identifier)} == {
        "k0": 9_000, **{f"k{n}": 400 for n in range(1, 20)}
    }  # fmt: skip


def test_partitions_by_floating_point_numbers_are_refused(mq: LocalBroker, warehouse: dict[str, str]) -> None:
    """-0 and 0 are one number and two partitions, so PyIceberg writes such rows twice; it divides by 0 for NaN."""
    topic = mq.create_topic(queues=1)
    spec = TableSpec(topic, mq.name_servers, warehouse, kind="JsonSchema", schema=NUMBER, partition_by=("n",))
    send(mq, topic, [("k", b'{"n": -0.0}'), ("k", b'{"n": 0.0}')])
    with pytest.raises(BadSchema, match="column n is a floating-point number"):
        TableJob(spec, None).run()
    assert TableJob(spec, None).find() is None


def test_a_field_of_any_name_is_no_mark_of_a_deletion(mq: LocalBroker, warehouse: dict[str, str]) -> None:
    topic = mq.create_topic(queues=1)
    spec = TableSpec(topic, mq.name_servers, warehouse, kind="JsonSchema", schema=DELETED, mode="Upsert")
    job = TableJob(spec, None)
    send(mq, topic, [("a", b'{"_deleted": true}'), ("b", b'{"_deleted": false}'), ("c", b"{}"), ("c", b"")])
    job.run()
    assert {r["_key"]: r["_deleted"] for r in rows_of(job, spec.identifier)} == {"a": True, "b": False}


def test_new_fields_within_objects_and_arrays_become_columns(mq: LocalBroker, catalog: dict[str, str]) -> None:
    topic = mq.create_topic(queues=1)
    job = TableJob(TableSpec(topic, mq.name_servers, catalog, kind="Inferred"), None)
    for body in (
        b'{"a": {"b": 1}, "l": [{"x": 1}]}',
        b'{"a": {"c": {"d": 2}}, "l": [{"x": 2}, {"y": [3]}], "n": null}',
    ):
        send(mq, topic, [("k", body)])
        job.run()
    found = [{n: r[n] for n in ("a", "l")} for r in rows_of(job, job.spec.identifier)]
    assert {"a": {"b": None, "c": {"d": 2}}, "l": [{"x": 2, "y": None}, {"x": None, "y": [3]}]} in found
    assert len(found) == 2
    assert rows_of(job, job.spec.rejected_identifier) == []


def test_a_run_takes_settings_beside_its_order(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Apache's Spark operator mounts them, and the image makes them arguments."""
    order = RunOrder(
        run="r", name_servers="n:9876", tables=[], catalog={}, spark=True, conf={"spark.a": "1"}, report="r"
    )  # fmt: skip
    given = ["--order", order.model_dump_json(), "--conf", "spark.b=x=y"]
    found: list[RunOrder] = []
    monkeypatch.setattr(run_module, "carry_out", lambda one: found.append(one) or 0)
    assert run_module.main(given) == 0
    assert found[0].conf == {"spark.a": "1", "spark.b": "x=y"}
    assert run_module.main([*given, "--conf", "x"]) == run_module.EXIT_FAILED
    assert "write key=value" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("case", "catalog"),
    [("lost", "iceberg"), ("lost and grown", "parquet"), ("made again", "iceberg")],
    indirect=["catalog"],
)
def test_messages_that_took_the_offsets_of_others_are_read_once(
    tmp_path: Path, catalog: dict[str, str], case: str
) -> None:
    """As after a failover that gave up confirmed messages, or a topic that was deleted and made again."""
    topic = f"T{tmp_path.name[-8:]}".replace("_", "-")
    sent: list[bytes] = []

    def life(folder: str, count: int, run: bool = True) -> list[bytes]:
        """Send messages to the broker with this folder, and run the table. Returns the bodies that it has then."""
        with broker(data_dir=tmp_path / folder) as mq:
            mq.create_topic(topic, queues=1)
            bodies = [f"{folder} {len(sent) + n}".encode() for n in range(count)]
            send(mq, topic, [("k", body) for body in bodies])
            sent.extend(bodies)
            job = TableJob(TableSpec(topic, mq.name_servers, catalog), None)
            if run:
                job.run()
                assert job.run() == []
            return sorted(row["value"] for row in rows_of(job, job.spec.identifier))

    life("one", 5, run=False)
    if case != "made again":
        shutil.copytree(tmp_path / "one", tmp_path / "two")
    assert life("one", 3) == sorted(sent)
    if case == "lost":
        assert life("two", 0) == sorted(sent), "nothing is repeated"
    assert life("two", 10 if case == "made again" else 4) == sorted(sent)
    assert life("two", 1) == sorted(sent)
