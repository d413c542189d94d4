"""The tables of a catalog: what they hold, and queries over them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import orjson
from gantry_broker.protocol.digits import whole_number
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table

from gantry_spark.errors import GantrySparkError, SourceError
from gantry_spark.tables.job import (
    DEFINITION,
    MESSAGE,
    MODE,
    PARTITION_BY,
    SCHEMA,
    SCHEMA_KIND,
    TOPIC,
    TableSpec,
    ends_of,
)
from gantry_spark.tables.offsets import LOST, NotContinued
from gantry_spark.topics.queues import to_table
from gantry_spark.topics.wire import Cluster

NAMESPACE: Final = "rocketmq"
MAX_ROWS: Final = 10_000
"""Rows of a query's answer."""


class NoSuchTable(GantrySparkError):
    """The catalog has no such table."""

    retry = False


class BadQuery(GantrySparkError):
    """A query that cannot be answered."""

    retry = False


def tables(catalog: Catalog, namespace: str = NAMESPACE) -> Iterator[Table]:
    """Yield the tables of topics in a catalog, by name."""
    try:
        names = sorted(catalog.list_tables(namespace))
    except NoSuchNamespaceError:
        return
    for name in names:
        table = catalog.load_table(name)
        if MODE in table.properties:
            yield table


def load(catalog: Catalog, name: str, namespace: str = NAMESPACE) -> Table:
    """Return a table. Raises NoSuchTable."""
    try:
        return catalog.load_table((namespace, name))
    except (NoSuchTableError, NoSuchNamespaceError):
        known = ", ".join(table.name()[-1] for table in tables(catalog, namespace)) or "none"
        raise NoSuchTable(f"there is no table {name}; the catalog has {known}") from None


def describe(catalog: Catalog, table: Table, cluster: Cluster | None) -> dict[str, Any]:
    """Return what a table holds. `behindRecords`: messages that it lacks; None: no broker says it, or the table does
    not.
    """
    snapshot = table.current_snapshot()
    summary = _summary(table)
    problem: str | None = None
    behind: int | None = None
    ends = {}
    try:
        ends = ends_of(table)
        if cluster is not None:
            bounds = cluster.bounds(cluster.queues(table.properties[TOPIC]))
            behind = sum(max(0, b.after - max(ends.get(q, b.first), b.first)) for q, b in bounds.items())
    except (NotContinued, SourceError) as error:
        problem = str(error)
    namespace, name = table.name()[-2:]
    try:
        rejected: int | None = _rows(catalog.load_table((namespace, f"{name}__rejected")))
    except NoSuchTableError:
        rejected = 0
    summaries = [s.summary.additional_properties for s in table.metadata.snapshots if s.summary is not None]
    lost = [one[LOST] for one in summaries if LOST in one]
    return {
        "name": name,
        "topic": table.properties[TOPIC],
        "mode": table.properties[MODE],
        "schema": table.properties[SCHEMA_KIND],
        "partitionBy": orjson.loads(table.properties[PARTITION_BY]) if PARTITION_BY in table.properties else [],
        "fields": orjson.loads(table.properties[SCHEMA]) if SCHEMA in table.properties else None,
        "columns": [{"name": f.name, "type": str(f.field_type)} for f in table.schema().fields],
        "location": table.location(),
        "rows": _rows(table),
        "bytes": _number(summary, "total-files-size"),
        "files": _number(summary, "total-data-files"),
        "rejected": rejected,
        "lastCommitMs": None if snapshot is None else snapshot.timestamp_ms,
        "behindRecords": behind,
        "offsets": to_table(ends),
        "lost": lost,
        "problem": problem,
    }


def _summary(table: Table) -> Mapping[str, str]:
    snapshot = table.current_snapshot()
    return {} if snapshot is None or snapshot.summary is None else dict(snapshot.summary.additional_properties)


def _number(summary: Mapping[str, str], name: str) -> int:
    return whole_number(summary.get(name, "")) or 0


def _rows(table: Table) -> int:
    return _number(_summary(table), "total-records")


def query(catalog: Catalog, sql: str, namespace: str = NAMESPACE) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Run SQL over the tables by their names. Return the columns and at most MAX_ROWS rows. Raises BadQuery."""
    import duckdb

    # The text may come from someone who may read these tables, and no other files.
    connection = duckdb.connect(config={"enable_external_access": "false", "python_enable_replacements": "false"})
    try:
        for name in sorted(connection.get_table_names(sql)):
            connection.register(name, load(catalog, name, namespace).scan().to_arrow())
        found = connection.execute(sql)
        columns = [column[0] for column in found.description or ()]
        return columns, found.fetchmany(MAX_ROWS)
    except duckdb.Error as error:
        raise BadQuery(f"the query fails: {error}") from None
    finally:
        connection.close()


def rejected(catalog: Catalog, name: str, namespace: str = NAMESPACE) -> list[Table]:
    """Return the table of a table's rejected rows, if there is one."""
    try:
        return [catalog.load_table((namespace, f"{name}__rejected"))]
    except NoSuchTableError:
        return []


def spec_of(table: Table, like: TableSpec) -> TableSpec:
    """Return the specification that a table was made by, with the addresses and the catalog of `like`."""
    own = table.properties
    fields = orjson.loads(own[SCHEMA]) if own[SCHEMA_KIND] == "JsonSchema" else None
    parts = orjson.loads(own[PARTITION_BY]) if PARTITION_BY in own else ()
    return replace(
        like, topic=own[TOPIC], mode=own[MODE], kind=own[SCHEMA_KIND], schema=fields, partition_by=tuple(parts),
        definition=own.get(DEFINITION, ""), message=own.get(MESSAGE, ""),
    )  # fmt: skip


def drop(catalog: Catalog, table: Table) -> None:
    """Drop a table and its rejected rows from the catalog. Their files stay."""
    namespace, name = table.name()[-2:]
    for one in (name, f"{name}__rejected"):
        try:
            catalog.drop_table((namespace, one))
        except NoSuchTableError:
            continue
