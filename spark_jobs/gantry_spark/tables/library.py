"""The tables of a catalog: what they hold, and queries over them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import orjson
from gantry_broker.protocol.digits import whole_number
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.types import IcebergType, ListType, MapType, StructType

from gantry_spark.errors import GantrySparkError, SourceError
from gantry_spark.tables.commits import ends_of, open_catalog
from gantry_spark.tables.entry_cache import NAMESPACE, REJECTED, Entry, Facts, with_behind
from gantry_spark.tables.fields import BadSchema, parse_schema
from gantry_spark.tables.offsets import NotContinued, losses_of
from gantry_spark.tables.parquet import TYPE as PARQUET
from gantry_spark.tables.parquet import ParquetTable, iceberg_schema
from gantry_spark.tables.rows import Shape
from gantry_spark.tables.spec import DEFINITION, MESSAGE, MODE, PARTITION_BY, SCHEMA, SCHEMA_KIND, TOPIC, TableSpec
from gantry_spark.topics.queues import Offsets, to_table
from gantry_spark.topics.wire import Cluster

logger = logging.getLogger(__name__)

MAX_ROWS: Final = 10_000
"""Rows of a query's answer."""


class NoSuchTable(GantrySparkError):
    """The catalog has no such table."""

    retry = False


class BadQuery(GantrySparkError):
    """A query that cannot be answered."""

    retry = False


def catalogs(properties: Mapping[str, str]) -> list[Any]:
    """Return the catalog, and the one of tables of Parquet files beside it, if its warehouse is a folder."""
    opened = [open_catalog(properties)]
    if properties.get("type") != PARQUET:
        with suppress(BadSchema):
            opened.append(open_catalog({**properties, "type": PARQUET}))
    return opened


def find(properties: Mapping[str, str], name: str, namespace: str = NAMESPACE) -> tuple[Any, Table]:
    """Return the table of a topic and its catalog. Raises NoSuchTable, also for another table."""
    opened = catalogs(properties)
    table = _of(opened, name, namespace)
    if MODE not in table.properties:
        what = f"the rejected messages of topic {table.properties[TOPIC]}" if TOPIC in table.properties else "no topic"
        raise NoSuchTable(f"table {name} has {what}: name the table of a topic; gantry table query reads any table")
    return opened[-1 if is_parquet(table) else 0], table


def is_parquet(table: Any) -> bool:
    """Return whether a table is of format Parquet."""
    return isinstance(table, ParquetTable)


def tables(catalog: Any, namespace: str = NAMESPACE) -> Iterator[Any]:
    """Yield the tables of topics in a catalog, by name."""
    return (table for table in _every(catalog, namespace) if MODE in table.properties)


def _every(catalog: Any, namespace: str) -> Iterator[Any]:
    try:
        names = sorted(catalog.list_tables(namespace))
    except NoSuchNamespaceError:
        return
    for name in names:
        with suppress(NoSuchTableError):  # It may be dropped meanwhile.
            yield catalog.load_table(name)


def describe(catalog: Any, table: Any, cluster: Cluster | None) -> Facts:
    """Return what a table holds. `behindRecords`: messages that it lacks; None: no broker says it, or the table does
    not.
    """
    return with_behind(_facts(table, _rejected(catalog, table)), cluster)


def entries(catalog: Any, table: Any) -> list[Entry]:
    """Return what a table holds as an entry, and the entry of its rejected rows behind it."""
    behind = _rejected(catalog, table)
    return [_entry(table, behind), *([] if behind is None else [_entry(behind, None)])]


def all_entries(catalogs: Sequence[Any], namespace: str = NAMESPACE) -> list[Entry]:
    """Return the entries of all tables, those of no topic too."""
    entries: list[Entry] = []
    for catalog in catalogs:
        by_name = {table.name()[-1]: table for table in _every(catalog, namespace)}
        entries += [_entry(table, by_name.get(name + REJECTED)) for name, table in by_name.items()]
    return entries


def _entry(table: Any, rejected: Any) -> Entry:
    namespace, name = table.name()[-2:]
    return Entry(
        namespace, name, "Parquet" if is_parquet(table) else "Iceberg", _version(table),
        "" if rejected is None else _version(rejected),
        _facts(table, rejected) if MODE in table.properties else None,
    )  # fmt: skip


def _version(table: Any) -> str:
    return str(table.manifest.get("id")) if isinstance(table, ParquetTable) else str(table.metadata_location)


def _rejected(catalog: Any, table: Any) -> Any:
    """Return the table of a table's rejected rows. None: there is none."""
    namespace, name = table.name()[-2:]
    return next(iter(rejected(catalog, name, namespace)), None)


def _facts(table: Any, rejected: Any) -> Facts:
    """Return what a table holds, without what brokers say."""
    summary = _summary(table)
    problem: str | None = None
    ends: Offsets = {}
    try:
        ends = ends_of(table)
    except (NotContinued, SourceError) as error:
        problem = str(error)
    if isinstance(table, ParquetTable):
        last_ms = table.manifest.get("timestampMs")
        columns = _columns(table)
    else:
        snapshot = table.current_snapshot()
        last_ms = None if snapshot is None else snapshot.timestamp_ms
        columns = [{"name": f.name, "type": type_text(f.field_type)} for f in table.schema().fields]
    return {
        "name": table.name()[-1],
        "topic": table.properties[TOPIC],
        "mode": table.properties[MODE],
        "schema": table.properties[SCHEMA_KIND],
        "partitionBy": orjson.loads(table.properties[PARTITION_BY]) if PARTITION_BY in table.properties else [],
        "fields": orjson.loads(table.properties[SCHEMA]) if SCHEMA in table.properties else None,
        "format": "Parquet" if is_parquet(table) else "Iceberg",
        "columns": columns,
        "location": table.location(),
        "rows": _rows(table),
        "bytes": _number(summary, "total-files-size"),
        "files": _number(summary, "total-data-files"),
        "rejected": 0 if rejected is None else _rows(rejected),
        "lastCommitMs": last_ms,
        "behindRecords": None,
        "offsets": to_table(ends),
        "lost": losses_of(table.properties),
        "problem": problem,
    }


def type_text(kind: IcebergType) -> str:
    """Return a type as engines write it: without the numbers that Iceberg gives to fields."""
    if isinstance(kind, StructType):
        return f"struct<{', '.join(f'{f.name} {type_text(f.field_type)}' for f in kind.fields)}>"
    if isinstance(kind, ListType):
        return f"list<{type_text(kind.element_type)}>"
    if isinstance(kind, MapType):
        return f"map<{type_text(kind.key_type)}, {type_text(kind.value_type)}>"
    return str(kind)


def _columns(table: ParquetTable) -> list[dict[str, str]]:
    """Return the columns of a table of Parquet files: those of its schema."""
    own = table.properties
    fields = parse_schema(orjson.loads(own[SCHEMA])) if SCHEMA in own else None
    schema = iceberg_schema(Shape(fields, False).arrow())
    return [{"name": f.name, "type": type_text(f.field_type)} for f in schema.fields]


def _summary(table: Table) -> Mapping[str, str]:
    if isinstance(table, ParquetTable):
        totals = table.manifest.get("totals", {})
        return {
            "total-records": str(totals.get("rows", 0)), "total-files-size": str(totals.get("bytes", 0)),
            "total-data-files": str(totals.get("files", 0)),
        }  # fmt: skip
    snapshot = table.current_snapshot()
    return {} if snapshot is None or snapshot.summary is None else dict(snapshot.summary.additional_properties)


def _number(summary: Mapping[str, str], name: str) -> int:
    return whole_number(summary.get(name, "")) or 0


def _rows(table: Table) -> int:
    return _number(_summary(table), "total-records")


def query(catalogs: Sequence[Any], sql: str, namespace: str = NAMESPACE) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Run SQL over the tables by their names. Return the columns and at most MAX_ROWS rows. Raises BadQuery."""
    import duckdb

    # The text may come from someone who may read these tables, and no other files.
    connection = duckdb.connect(config={"enable_external_access": "false", "python_enable_replacements": "false"})
    try:
        for name in sorted(connection.get_table_names(sql)):
            connection.register(name, _of(catalogs, name, namespace).scan().to_arrow())
        result = connection.execute(sql)
        columns = [column[0] for column in result.description or ()]
        return columns, result.fetchmany(MAX_ROWS)
    except duckdb.Error as error:
        raise BadQuery(f"the query fails: {error}") from None
    finally:
        connection.close()


def _of(catalogs: Sequence[Any], name: str, namespace: str) -> Any:
    for catalog in catalogs:
        with suppress(NoSuchTableError, NoSuchNamespaceError, BadSchema):
            return catalog.load_table((namespace, name))
    there = ", ".join(table.name()[-1] for one in catalogs for table in tables(one, namespace)) or "none"
    raise NoSuchTable(f"there is no table {name}; the catalog has {there}")


def rejected(catalog: Catalog, name: str, namespace: str = NAMESPACE) -> list[Table]:
    """Return the table of a table's rejected rows, if there is one."""
    try:
        return [catalog.load_table((namespace, f"{name}{REJECTED}"))]
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


def drop(catalog: Catalog, topic: str, namespace: str = NAMESPACE) -> None:
    """Drop the table of a topic and that of its rejected rows from the catalog. Files of Iceberg's tables stay. A table
    of that name which is not the topic's stays, too.
    """
    for name in (topic, f"{topic}{REJECTED}"):
        with suppress(NoSuchTableError, NoSuchNamespaceError):
            table = catalog.load_table((namespace, name))
            if table.properties.get(TOPIC) == topic:
                catalog.drop_table((namespace, name))
            else:
                logger.warning("table %s.%s is not that of topic %s, and stays", namespace, name, topic)
