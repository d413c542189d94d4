"""Tables of format Parquet: no catalog, the same rule for each message once."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.dataset
import pytest
from gantry_broker.archive.errors import ArchiveError
from gantry_broker.testing import LocalBroker
from gantry_spark.errors import SourceError
from gantry_spark.tables import library
from gantry_spark.tables.commits import ends_of, open_catalog
from gantry_spark.tables.fields import BadSchema
from gantry_spark.tables.job import TableJob
from gantry_spark.tables.maintenance import Rules, maintain, now_ms
from gantry_spark.tables.offsets import NotContinued
from gantry_spark.tables.parquet import COMPLETE, ParquetCatalog, ParquetTable
from gantry_spark.tables.spec import TableSpec
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.spark.test_tables import EXAMPLES, SCHEMA, Interrupted, check, messages, one_at_a_time, send
from tests.support.failing_calls import raising
from tests.support.present import present

STEPS = ("plan", "write", "reject", "manifest", "commit", "maintain")


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {"type": "parquet", "warehouse": f"file://{tmp_path_factory.mktemp('warehouse')}"}


def in_folder(table: ParquetTable) -> list[tuple[str, int]]:
    """The places of the messages that a reader of the folder sees."""
    root = Path(table.location().removeprefix("file://"))
    dataset = pyarrow.dataset.dataset(root, format="parquet")
    found = dataset.to_table(columns=["rocketmq"] if dataset.files else [])
    return sorted((row["rocketmq"]["partition"], row["rocketmq"]["offset"]) for row in found.to_pylist())


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@pytest.mark.timeout(7200 if EXAMPLES > 8 else 120)
@given(
    st.lists(st.tuples(messages, st.lists(st.sampled_from(STEPS), max_size=3)), min_size=1, max_size=3),
    st.booleans(), st.integers(1, 20),
    st.sampled_from([(), ("bucket(3, rocketmq.offset)",), ("hour(rocketmq.timestamp)", "rocketmq.key")]),
)  # fmt: skip
def test_a_table_equals_the_model_whatever_interrupts_its_commits(
    mq: LocalBroker, warehouse: dict[str, str], work: Any, schema: bool, per_commit: int, parts: Any
) -> None:
    topic = mq.create_topic(queues=2)
    spec = TableSpec(
        topic, mq.name_servers, warehouse, per_commit=per_commit, partition_by=parts,
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

            if step == "maintain":
                for table in TableJob(spec, None).both():
                    maintain(table, Rules(now_ms(), 0), ends_of)
                continue
            with contextlib.suppress(Interrupted):
                assert TableJob(spec, None, interrupt).run() == [], "nothing was left to commit"
        job = TableJob(spec, None)
        one_at_a_time(job)
        check(job, sent)
        found = job.find()
        if found is not None:
            places = in_folder(found)
            assert len(set(places)) == len(places) == library.describe(job.catalog, found, None)["rows"]


def test_of_two_drivers_with_one_plan_one_commits(mq: LocalBroker, warehouse: dict[str, str]) -> None:
    spec = TableSpec(mq.create_topic(queues=1), mq.name_servers, warehouse)
    send(mq, spec.topic, [("a", b"1")])
    assert TableJob(spec, None).run()
    send(mq, spec.topic, [("b", b"2")])
    job = TableJob(spec, None)
    late = present(job.find())

    def other(step: str) -> None:
        if step == "write":
            assert TableJob(spec, None).run()

    with pytest.raises(NotContinued, match="another commit came first"):
        TableJob(spec, None, other).run()
    # Between the look at the table and the commit only the conditional write decides.
    with pytest.raises(NotContinued, match="another commit came first"):
        late.commit([], late.summary)
    check(job, [("a", b"1"), ("b", b"2")])


def test_old_rows_go_and_a_table_is_dropped(mq: LocalBroker, warehouse: dict[str, str]) -> None:
    spec = TableSpec(mq.create_topic(queues=1), mq.name_servers, warehouse, per_commit=1)
    sent = [(f"k{number}", json.dumps(number).encode()) for number in range(COMPLETE + 3)]
    send(mq, spec.topic, sent)
    job = TableJob(spec, None)
    one_at_a_time(job)
    check(job, sent)
    table = present(job.find())
    assert len(table.files()) == len(sent)
    times = sorted(row["rocketmq"]["timestamp"].timestamp() * 1000 for row in table.to_arrow().to_pylist())
    cutoff = int(times[30])
    done = maintain(table, Rules(cutoff + 1000, 0, 1000), ends_of)
    left = [t for t in times if int(t) >= cutoff]
    assert done.removed_rows == len(times) - len(left)
    assert len(in_folder(table)) == len(left)
    assert job.run() == [], "what went is not read again"
    opened = open_catalog(warehouse)
    assert spec.topic in [t.name()[-1] for t in library.tables(opened)]
    assert library.query([opened], f'select count(*) from "{spec.topic}"')[1] == [(len(left),)]
    library.drop(opened, spec.topic)
    assert TableJob(spec, None).find() is None


def test_what_parquet_cannot_do_is_said(mq: LocalBroker, warehouse: dict[str, str]) -> None:
    with pytest.raises(BadSchema, match="format Parquet has the mode Append only"):
        TableSpec("T", mq.name_servers, warehouse, mode="Upsert")
    with pytest.raises(BadSchema, match="needs the property warehouse of the catalog as a URL, not 'lake'"):
        open_catalog({"type": "parquet", "warehouse": "lake"})
    with pytest.raises(BadSchema, match="'a%b' is no name of a folder"):
        TableJob(TableSpec("a%b", mq.name_servers, warehouse), None).find()


def test_a_commit_completes_the_one_before_whose_files_did_not_move(
    warehouse: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store fails after the manifest, and the same process goes on."""
    rows = pyarrow.table({"n": [1, 2]})
    table = ParquetCatalog(warehouse).create(("t", "unmoved"), rows.schema, {}, (), 0)
    with monkeypatch.context() as away:
        away.setattr(table._store, "move", raising(ArchiveError("the store is away")))
        with pytest.raises(SourceError, match="the store is away"):
            table.commit(table.described(table.stage(rows, ())), {})
    table.commit(table.described(table.stage(rows, ())), {})
    assert table.to_arrow().num_rows == 4
