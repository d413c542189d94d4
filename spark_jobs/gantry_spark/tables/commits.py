"""How the driver commits: rejected rows, then rows, to tables of Iceberg or of Parquet files.

A commit of rows fails unless the table still ends where its plan began.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException, ValidationError
from pyiceberg.expressions import In
from pyiceberg.table import Table, Transaction

from gantry_spark.tables.entry_cache import CATALOG
from gantry_spark.tables.executor import Part
from gantry_spark.tables.fields import (
    BadSchema,
    to_schema,
)
from gantry_spark.tables.offsets import (
    NotContinued,
    check_continues,
    covered,
    marks_in,
    store_times,
    summary,
    with_losses,
)
from gantry_spark.tables.parquet import TYPE as PARQUET
from gantry_spark.tables.parquet import ParquetCatalog, ParquetTable, iceberg_schema
from gantry_spark.tables.partitions import parse_parts
from gantry_spark.tables.rows import Shape, newest
from gantry_spark.tables.spec import DEFINITION, MESSAGE, SCHEMA, CatalogFailed, TableSpec
from gantry_spark.topics.queues import Offsets

logger = logging.getLogger(__name__)

_HASHED_PATHS: Final = ("write.object-storage.enabled", "true")
_PLAIN_PATHS: Final = ("write.object-storage.partitioned-paths", "false")
"""The names of files leave out the partition: its value may be longer than a name can be."""


def commit_rejected(table: Table, parts: list[Part], properties: dict[str, str], now_ms: int) -> None:
    """Commit the rejected rows to their table. Raises NotContinued."""
    files = [file for part in parts for file in part.rejected_files]
    if not files:
        return
    if isinstance(table, ParquetTable):
        table.commit(table.described(files), properties, now_ms=now_ms)
        return
    transaction = table.transaction()
    _append_files(transaction, files, properties)
    commit_transaction(transaction, table)


def commit_rows(
    spec: TableSpec, table: Table, shape: Shape, parts: list[Part], start: Offsets, properties: dict[str, str],
    losses: Sequence[str], now_ms: int, after: Callable[[str], None],
) -> int | None:  # fmt: skip
    """Commit the rows, if the table still ends at `start`. Return the snapshot or the version. Raises NotContinued,
    BadSchema.
    """
    name = ".".join(spec.identifier)
    # The requirement of PyIceberg's commit is the snapshot that this object has loaded.
    table.refresh()
    check_continues(start, ends_of(table), name)
    if isinstance(table, ParquetTable):
        return _commit_parquet(spec, table, shape, parts, properties, losses, now_ms, after)
    transaction = table.transaction()
    files = [file for part in parts for file in part.files]
    set_schema(spec, transaction, table, shape)
    if lost := with_losses(table.properties, losses, now_ms):
        transaction.set_properties(lost)
    if spec.partition_by and table.properties.get(_PLAIN_PATHS[0]) != _PLAIN_PATHS[1]:
        transaction.set_properties(dict([_PLAIN_PATHS, _HASHED_PATHS]))
    if not spec.staged:
        _append_files(transaction, files, properties)
        commit_transaction(transaction, table)
    else:
        staged = [_read_file(table, file) for file in files]
        rows: Any = None
        keys: list[str] = []
        if staged:
            rows = pa.concat_tables(staged)
            if shape.by_key:
                rows, keys = newest(rows, shape)
        if keys and table.current_snapshot() is not None:
            # Its snapshot lacks the new rows: a table that is set back to it begins where this commit began.
            before = marks_in(summaries_of(table))
            lacking = summary(start, (), {}, (), store_times(summaries_of(table)), before)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Delete operation did not match any records")
                transaction.delete(_is_in(shape.key, keys), snapshot_properties=lacking)
        if rows is not None and len(rows):
            transaction.append(rows, snapshot_properties=properties)
        else:
            _append_files(transaction, [], properties)
        commit_transaction(transaction, table)
        remove(table, files)
    snapshot = table.current_snapshot()
    return None if snapshot is None else snapshot.snapshot_id


def _commit_parquet(
    spec: TableSpec, table: ParquetTable, shape: Shape, parts: list[Part], properties: dict[str, str],
    losses: Sequence[str], now_ms: int, after: Callable[[str], None],
) -> int:  # fmt: skip
    files = [file for part in parts for file in part.files]
    own = table.properties | with_losses(table.properties, losses, now_ms)
    own |= schema_properties(spec, table, shape)
    placed = files
    if spec.partition_by and files:
        rows = pa.concat_tables([_read_file(table, file) for file in files])
        placed = table.stage(rows, parse_parts(spec.partition_by))
    version = table.commit(table.described(placed), properties, own, now_ms=now_ms, after=after)
    if placed is not files:
        remove(table, files)
    return version


def set_schema(spec: TableSpec, transaction: Transaction, table: Table, shape: Shape) -> None:
    """Add columns and set the properties of the schema. Raises BadSchema, NotContinued."""
    if table.properties.get("commit.retry.num-retries") != "0":
        name = ".".join(spec.identifier)
        raise NotContinued(f"table {name}: set its property commit.retry.num-retries to 0, as it was made with")
    _add_columns(transaction, table, shape)
    if changed := schema_properties(spec, table, shape):
        transaction.set_properties(changed)


def schema_properties(spec: TableSpec, table: Table | ParquetTable, shape: Shape) -> dict[str, str]:
    """Return the properties by which a table keeps its schema, as far as they change."""
    if shape.fields is None:
        return {}
    text = orjson.dumps(to_schema(shape.fields)).decode()
    if table.properties.get(SCHEMA) == text:
        return {}
    more = {DEFINITION: spec.definition, MESSAGE: spec.message} if spec.definition else {}
    return {SCHEMA: text, **more}


def _is_in(column: str, values: list[str]) -> Any:
    make: Any = In  # Its annotations hide the arguments.
    return make(column, values)


def open_catalog(properties: Mapping[str, str]) -> Any:
    """Open a catalog. Raises CatalogFailed, BadSchema."""
    if properties.get("type") == PARQUET:
        return ParquetCatalog(properties)
    try:
        return load_catalog(CATALOG, **dict(properties))
    except Exception as error:
        raise CatalogFailed(f"the catalog cannot be opened: {error}") from None


def ends_of(table: Table) -> Offsets:
    """Return the ends of the queues in a table. Raises NotContinued."""
    if isinstance(table, ParquetTable):
        return table.ends()
    return covered(summaries_of(table), ".".join(table.name()))


def summaries_of(table: Table) -> Iterator[Mapping[str, str]]:
    """Yield the summaries of a table's snapshots from the current one back to the first that still exists."""
    if isinstance(table, ParquetTable):
        yield table.summary
        return
    at = table.current_snapshot()
    while at is not None:
        yield dict(at.summary.additional_properties) if at.summary is not None else {}
        at = None if at.parent_snapshot_id is None else table.metadata.snapshot_by_id(at.parent_snapshot_id)


def _append_files(transaction: Transaction, files: list[str], properties: dict[str, str]) -> None:
    """Add files to a table. Without files the snapshot has the offsets alone."""
    if files:
        transaction.add_files(files, snapshot_properties=properties, check_duplicate_files=False)
    else:
        with transaction.update_snapshot(snapshot_properties=properties).fast_append():
            pass


def _add_columns(transaction: Transaction, table: Table, shape: Shape) -> None:
    """Add the columns that a table lacks: new ones, and those that another engine has removed or given another name.
    Raises BadSchema.
    """
    name = ".".join(table.name())
    columns = shape.arrow()
    lacking = set(iceberg_schema(columns).column_names) - set(table.schema().column_names)
    if shape.by_key and shape.key in lacking:
        raise BadSchema(f"table {name} lacks the column {shape.key}, by which it is kept: rebuild it")
    try:
        # Also without new names: it compares the types.
        with transaction.update_schema() as update:
            update.union_by_name(columns)
    except (ValidationError, ValueError) as error:
        raise BadSchema(
            f"table {name} has a column of another type than its messages ({error}): another program changed it; "
            f"give that column another name, or rebuild the table"
        ) from None
    if lacking and table.current_snapshot() is not None:
        logger.info("table %s gets the columns %s", name, ", ".join(sorted(lacking)))


def commit_transaction(transaction: Transaction, table: Table) -> None:
    try:
        transaction.commit_transaction()
    except CommitFailedException as error:
        raise NotContinued(f"table {'.'.join(table.name())}: another commit came first: {error}") from None


def remove(table: Any, files: list[str]) -> None:
    """Delete files that belong to no table."""
    for file in files:
        try:
            table.io.delete(file)
        except Exception as error:
            logger.warning("%s cannot be deleted: %s", file, error)


def _read_file(table: Any, file: str) -> Any:
    with table.io.new_input(file).open() as opened:
        return pq.read_table(opened)
