"""Lists of tables without PyIceberg: what is known is what PyIceberg reads, or it is not used."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from gantry_broker.store.sealed import seal, unseal
from gantry_broker.testing import LocalBroker
from gantry_spark.tables import entry_cache, library
from gantry_spark.tables.commits import ends_of, open_catalog
from gantry_spark.tables.job import TableJob
from gantry_spark.tables.maintenance import Rules, maintain, now_ms
from gantry_spark.tables.spec import TableSpec

from tests.spark.test_tables import SCHEMA, one_at_a_time, send


@pytest.fixture
def local(tmp_path: Path) -> dict[str, str]:
    """A catalog as `gantry up` makes it."""
    return {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": tmp_path.as_uri()}


def read_again(properties: dict[str, str]) -> list[entry_cache.Facts]:
    """What PyIceberg reads, which is kept."""
    entries = library.all_entries(library.catalogs(properties))
    entry_cache.keep(properties, entries)
    return [one.facts for one in entries if one.facts is not None]


def test_what_is_known_is_what_is_read(mq: LocalBroker, local: dict[str, str]) -> None:
    topics = [mq.create_topic(queues=1) for _ in range(3)]
    for topic, catalog in zip(topics, (local, {**local, "type": "parquet"}, local), strict=True):
        send(mq, topic, [("a", b'{"id": 1}'), ("b", b"no json")])
        one_at_a_time(TableJob(TableSpec(topic, mq.name_servers, catalog, kind="JsonSchema", schema=SCHEMA), None))
    opened = open_catalog(local)
    opened.create_table(("rocketmq", "theirs"), pa.schema([("x", pa.int64())]))
    opened.create_namespace_if_not_exists("other")
    opened.create_table(("other", "elsewhere"), pa.schema([("x", pa.int64())]))
    assert entry_cache.read(local) is None
    read = read_again(local)
    assert entry_cache.read(local) == read
    assert [(one["name"], one["format"]) for one in read] == [
        *((topic, "Iceberg") for topic in sorted((topics[0], topics[2]))), (topics[1], "Parquet")
    ]  # fmt: skip
    assert all(one["rejected"] >= 1 for one in read)
    cluster = TableJob(TableSpec(topics[0], mq.name_servers, local), None).cluster
    send(mq, topics[0], [("c", b'{"id": 2}')])
    behind = {one["name"]: entry_cache.with_behind(one, cluster)["behindRecords"] for one in read}
    assert behind == {topics[0]: 1, topics[1]: 0, topics[2]: 0}
    opened.drop_table(("rocketmq", topics[2]))
    assert [one["name"] for one in entry_cache.read(local) or ()] == topics[:2], "the rest is as it was"


def interfere(how: str, local: dict[str, str], spec: TableSpec, mq: LocalBroker) -> None:
    """Change a table, or what is known of it, behind the back of readers."""
    opened, table = library.find(local, spec.topic)
    if how == "commit":
        send(mq, spec.topic, [("c", b"3")])
        one_at_a_time(TableJob(spec, None))
    elif how == "maintain":
        assert maintain(table, Rules(now_ms() + 1, 0, 1), ends_of).removed_rows
    elif how == "again":
        library.drop(opened, spec.topic)
        one_at_a_time(TableJob(spec, None))
    elif how == "new":
        other = open_catalog(local)
        other.create_namespace_if_not_exists("rocketmq")
        other.create_table(("rocketmq", "theirs"), pa.schema([("x", pa.int64())]))
    else:
        opened.drop_table(("rocketmq", f"{spec.topic}__rejected"))


@pytest.mark.parametrize("kind", ["sql", "parquet"])
@pytest.mark.parametrize("how", ["commit", "maintain", "again", "new", "rejected"])
def test_after_a_change_it_is_read_again(mq: LocalBroker, local: dict[str, str], kind: str, how: str) -> None:
    spec = TableSpec(mq.create_topic(queues=1), mq.name_servers, {**local, "type": kind}, per_commit=1)
    send(mq, spec.topic, [("a", b"1"), ("b", b"2")])
    one_at_a_time(TableJob(spec, None))
    before = read_again(local)
    assert entry_cache.read(local) == before
    interfere(how, local, spec, mq)
    assert entry_cache.read(local) is None
    assert read_again(local) == entry_cache.read(local)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"", lambda data: data[:-9], lambda data: data.replace(b'"rows":1', b'"rows":2'),
        lambda data: b"[]", lambda data: seal(unseal(data).replace(b'"rows":1', b'"rows":"1"')),
        lambda data: seal(unseal(data).replace(b'"lost"', b'"gone"')), lambda data: b"\xff" + data,
        lambda data: seal(json.dumps({key: 1 for key in json.loads(unseal(data))}).encode()),
    ],
)  # fmt: skip
def test_a_damaged_file_says_nothing(mq: LocalBroker, local: dict[str, str], tmp_path: Path, damage: Any) -> None:
    spec = TableSpec(mq.create_topic(queues=1), mq.name_servers, local)
    send(mq, spec.topic, [("a", b"1")])
    one_at_a_time(TableJob(spec, None))
    (read,) = read_again(local)
    assert read["rows"] == 1
    file = tmp_path / entry_cache.FILE
    file.write_bytes(damage(file.read_bytes()))
    assert entry_cache.read(local) is None
    assert read_again(local) == entry_cache.read(local) == [read]


def test_only_a_catalog_of_a_local_cluster_is_known(local: dict[str, str], tmp_path: Path) -> None:
    for other in (
        {"type": "rest", "uri": "https://catalog.example.org"},
        {**local, "warehouse": "s3://bucket/tables"},
        {**local, "uri": "sqlite:///:memory:"},
        {**local, "uri": "postgresql://host/db"},
    ):
        entry_cache.keep(other, [])
        assert entry_cache.read(other) is None
    assert not list(tmp_path.iterdir())
    assert entry_cache.read(local) == [], "there is no table"
    with sqlite3.connect(tmp_path / "catalog.db") as opened:
        opened.execute("CREATE TABLE iceberg_tables (place TEXT)")
    assert entry_cache.read(local) is None, "the columns are not those that are known"
    (tmp_path / "catalog.db").write_bytes(b"no database" * 100)
    assert entry_cache.read(local) is None
