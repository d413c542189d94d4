"""Tables as Iceberg's own library in Spark 4.1 reads and changes them. With SPARK_TESTS=full, as `make nightly`
sets it: the reader is fetched once, and a run takes a minute.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.testing import LocalBroker
from gantry_spark.tables.commits import ends_of
from gantry_spark.tables.job import TableJob
from gantry_spark.tables.maintenance import Rules, maintain, now_ms
from gantry_spark.tables.spec import TableSpec

from benchmarks.rig.java import JavaMissing
from tests.spark.iceberg_reader import Reader
from tests.spark.test_tables import SCHEMA, check, one_at_a_time, rows_of, send

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def reader(tmp_path: Path, warehouse: dict[str, str]) -> Iterator[Reader]:
    try:
        made = Reader(tmp_path / "catalog.db", warehouse["warehouse"])
    except JavaMissing as missing:
        pytest.skip(str(missing))
    yield made
    made.close()


def plain(row: dict[str, Any]) -> Any:
    """A row as Spark writes it as JSON: without null fields."""

    def value(one: Any) -> Any:
        if isinstance(one, bytes):
            return base64.b64encode(one).decode()
        if hasattr(one, "isoformat"):
            return int(one.timestamp() * 1000)
        if isinstance(one, dict):
            return {n: value(v) for n, v in one.items() if v is not None}
        if isinstance(one, list) and one and isinstance(one[0], tuple):
            return dict(one)
        return [value(v) for v in one] if isinstance(one, list) else one

    found: Any = value(row)
    return found


def same(reader: Reader, job: TableJob, identifier: tuple[str, str]) -> None:
    """Compare all columns of all rows with those that PyIceberg reads."""
    ours = [plain(row) for row in rows_of(job, identifier)]
    theirs = reader.sql(f"select * from gantry.{identifier[0]}.`{identifier[1]}`")
    for row in theirs:
        for name in ("timestamp", "bornTime"):
            row["rocketmq"][name] = _ms(row["rocketmq"][name])
    assert sorted(map(_text, theirs)) == sorted(map(_text, ours))


def _ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def _text(row: Any) -> str:
    return json.dumps(row, sort_keys=True)


def test_iceberg_reads_the_same_rows_and_what_it_changes_stays(
    mq: LocalBroker, warehouse: dict[str, str], reader: Reader
) -> None:
    specs = [
        TableSpec(mq.create_topic(queues=2), mq.name_servers, warehouse, mode=mode, per_commit=7, partition_by=parts,
                  kind="JsonSchema" if schema else "Raw", schema=schema)
        for mode, schema, parts in (
            ("Append", None, ()), ("Append", SCHEMA, ("bucket(3, id)",)), ("Upsert", None, ()), ("Upsert", SCHEMA, ()),
        )
    ]  # fmt: skip
    jobs = [TableJob(spec, None) for spec in specs]
    sent: list[tuple[str, bytes]] = []
    for number in range(30):
        body = json.dumps({"id": number, "name": f"n{number}", "tags": [number]}).encode()
        sent.append((f"k{number % 11}", b"no json" if number % 7 == 3 else body))
    sent.append(("k4", b'{"id": -1}'))
    for job in jobs:
        send(mq, job.spec.topic, sent)
        one_at_a_time(job)
        same(reader, job, job.spec.identifier)
        if rows_of(job, job.spec.rejected_identifier):
            same(reader, job, job.spec.rejected_identifier)
        for table in job.both():
            maintain(table, Rules(now_ms() + 1000, 0), ends_of)
        same(reader, job, job.spec.identifier)

    # Another engine merges files and adds a column: the next commit continues, and both stay.
    more = [("k1", b'{"id": 100, "name": "later"}'), ("k99", b'{"id": 101}')]
    for job in jobs:
        name = f"gantry.rocketmq.`{job.spec.topic}`"
        for one in more:
            send(mq, job.spec.topic, [one])
            one_at_a_time(job)
        merged = reader.sql(
            f"call gantry.system.rewrite_data_files(table => 'rocketmq.`{job.spec.topic}`', "
            "options => map('rewrite-all', 'true'))"
        )
        assert merged[0]["rewritten_data_files_count"] > 1
        reader.sql(f"alter table {name} add column theirs int")
        last = [("k2", b'{"id": 200}')]
        send(mq, job.spec.topic, last)
        assert job.run()
        table = job.find()
        assert table is not None
        assert "theirs" in table.schema().column_names
        table.update_schema().delete_column("theirs").commit()
        check(job, [*sent, *more, *last])
        same(reader, job, job.spec.identifier)
