"""Maintenance of a table: small files become large ones, old rows and old snapshots go.

A step replaces files by others in one snapshot. It is committed only if no other commit came first, so an append that
runs beside it wins, and the step is tried again. Each snapshot repeats the offsets that the table covers, so the ones
before it may expire.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, _dataframe_to_data_files
from pyiceberg.table import Table

from gantry_spark.tables.fields import SYSTEM
from gantry_spark.tables.offsets import ENDED, ENDS, MISSING, STARTS, TIMES, NotContinued
from gantry_spark.tables.parquet import ParquetTable
from gantry_spark.topics.queues import to_table

logger = logging.getLogger(__name__)

TARGET_BYTES: Final = 128 * 1_048_576
"""Bytes of a large file. Files of half of this stay as they are."""
STEP_BYTES: Final = 256 * 1_048_576
"""Bytes of files, as stored, that one step reads into memory."""
LEAST_FILES: Final = 2
"""Small files of a partition that are worth a step."""
MAX_STEPS: Final = 1_000
_TRIES: Final = 3
"""Tries of a step that another commit overtakes."""


@dataclass(frozen=True)
class Rules:
    """What to keep. Times in milliseconds."""

    now_ms: int
    snapshots_ms: int
    """Age from which snapshots expire."""
    rows_ms: int | None = None
    """Age from which rows go, by the store time of their messages; None: they stay."""


@dataclass
class Done:
    """What was done."""

    merged: int = 0
    """Files that were replaced."""
    removed_rows: int = 0
    expired: int = 0
    """Snapshots."""
    deleted_files: int = 0
    skipped: str = ""
    """Why it ended early."""


@dataclass(frozen=True)
class _Group:
    """Files that one step replaces."""

    tasks: Sequence[Any]
    expire_rows: bool
    size: int = field(default=0)


def maintain(
    table: Table,
    rules: Rules,
    ends: Callable[[Table], Mapping[Any, int]],
    after: Callable[[str], None] = lambda step: None,
) -> Done:
    """Maintain one table. `ends`: the offsets that it covers; it raises NotContinued. `after`: is called at steps."""
    done, ages = Done(), _Ages()
    if isinstance(table, ParquetTable):
        try:
            done.removed_rows, done.deleted_files = table.maintain(rules.now_ms, rules.rows_ms)
        except NotContinued as error:
            done.skipped = str(error)
        return done
    for _ in range(MAX_STEPS):
        table.refresh()
        if table.current_snapshot() is None:
            return done
        group = _next_group(table, rules, ages)
        if group is None:
            break
        for number in range(_TRIES):
            try:
                merged, gone = _replace(table, group, rules, ends(table), after)
            except CommitFailedException as error:
                # The files of this step may be gone now, so they are chosen again.
                if number == _TRIES - 1:
                    done.skipped = f"other commits came first {_TRIES} times: {error}"
                    return done
                table.refresh()
                group = _next_group(table, rules, ages)
                if group is None:
                    break
            else:
                done.merged += merged
                done.removed_rows += gone
                break
    _expire(table, rules, done, after)
    return done


def _cutoff(rules: Rules) -> int | None:
    return None if rules.rows_ms is None else rules.now_ms - rules.rows_ms


class _Ages:
    """The store time of the oldest row of each file. Iceberg's own statistics have no fields of structs, so the footers
    of the files say it.
    """

    def __init__(self) -> None:
        self._oldest: dict[str, int | None] = {}

    def oldest_ms(self, table: Table, path: str) -> int | None:
        """Milliseconds since 1970; None: the file does not say it."""
        if path not in self._oldest:
            with table.io.new_input(path).open() as opened:
                self._oldest[path] = _oldest_ms(pq.read_metadata(opened))
        return self._oldest[path]


def _oldest_ms(footer: Any) -> int | None:
    times: list[int] = []
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        for index in range(group.num_columns):
            column = group.column(index)
            if column.path_in_schema == f"{SYSTEM}.timestamp":
                if not column.is_stats_set or not column.statistics.has_min_max:
                    return None
                times.append(int(column.statistics.min.timestamp() * 1000))
    return min(times, default=None)


def _next_group(table: Table, rules: Rules, ages: _Ages) -> _Group | None:
    """Return the next files to replace: those with expired rows, then small ones of a partition. None: none."""
    cutoff = _cutoff(rules)
    small: dict[Any, list[Any]] = {}
    for task in table.scan().plan_files():
        oldest = None if cutoff is None else ages.oldest_ms(table, task.file.file_path)
        if cutoff is not None and oldest is not None and oldest < cutoff:
            return _Group([task], True, task.file.file_size_in_bytes)
        if task.file.file_size_in_bytes < TARGET_BYTES // 2:
            small.setdefault(_partition(task.file), []).append(task)
    for tasks in small.values():
        chosen: list[Any] = []
        size = 0
        for task in sorted(tasks, key=lambda t: (t.file.file_size_in_bytes, t.file.file_path)):
            if chosen and size + task.file.file_size_in_bytes > STEP_BYTES:
                break
            chosen.append(task)
            size += task.file.file_size_in_bytes
        if len(chosen) >= LEAST_FILES:
            return _Group(chosen, False, size)
    return None


def _partition(file: Any) -> tuple[Any, ...]:
    return (file.spec_id, *(file.partition[i] for i in range(len(file.partition))))


def _replace(
    table: Table, group: _Group, rules: Rules, ends: Mapping[Any, int], after: Callable[[str], None]
) -> tuple[int, int]:
    """Replace files. Returns their number, and that of rows that went. Raises CommitFailedException."""
    scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
    rows = scan.to_table(group.tasks)
    before = len(rows)
    cutoff = _cutoff(rules)
    if group.expire_rows and cutoff is not None:
        times = pc.struct_field(rows.column(SYSTEM), "timestamp")
        young = pc.greater_equal(times, pa.scalar(cutoff * 1000, pa.int64()).cast(times.type))
        rows = rows.filter(pc.fill_null(young, True))  # Another engine may have taken the times away.
    after("read")
    transaction = table.transaction()
    properties = {ENDS: orjson.dumps(to_table(dict(ends))).decode(), STARTS: "{}", "gantry.maintenance": "true"}
    newest = _newest(table)
    properties |= {name: newest[name] for name in (TIMES, ENDED, MISSING) if name in newest}
    files = list(_dataframe_to_data_files(table.metadata, rows, table.io)) if len(rows) else []
    after("written")
    with transaction.update_snapshot(snapshot_properties=properties).overwrite() as update:
        for task in group.tasks:
            update.delete_data_file(task.file)
        for file in files:
            update.append_data_file(file)
    try:
        transaction.commit_transaction()
    except CommitFailedException:
        _delete(table, [file.file_path for file in files])
        raise
    after("replaced")
    return len(group.tasks), before - len(rows)


# ---- snapshots


def _newest(table: Table) -> Mapping[str, str]:
    """Return the properties of the newest snapshot that says where the table ends; empty: there is none."""
    at = table.current_snapshot()
    while at is not None:
        if at.summary is not None and ENDS in at.summary.additional_properties:
            return dict(at.summary.additional_properties)
        at = None if at.parent_snapshot_id is None else table.metadata.snapshot_by_id(at.parent_snapshot_id)
    return {}


def _expire(table: Table, rules: Rules, done: Done, after: Callable[[str], None]) -> None:
    table.refresh()
    keep = _kept_snapshots(table, rules)
    gone = [s for s in table.metadata.snapshots if s.snapshot_id not in keep]
    if not gone:
        return
    before = _files_of(table, gone)
    try:
        table.maintenance.expire_snapshots().by_ids([s.snapshot_id for s in gone]).commit()
    except CommitFailedException as error:
        done.skipped = f"another commit came first: {error}"
        return
    done.expired = len(gone)
    after("expired")
    # What no snapshot of the table names any more. A commit that comes now cannot name these files again.
    table.refresh()
    orphans = before - _files_of(table, table.metadata.snapshots)
    done.deleted_files = _delete(table, sorted(orphans))


def _kept_snapshots(table: Table, rules: Rules) -> set[int]:
    """Snapshots that stay: young ones, heads of branches, tags, and the newest one that says where the table ends."""
    keep = {ref.snapshot_id for ref in table.metadata.refs.values()}
    limit = rules.now_ms - rules.snapshots_ms
    keep |= {s.snapshot_id for s in table.metadata.snapshots if s.timestamp_ms >= limit}
    at = table.current_snapshot()
    while at is not None:
        keep.add(at.snapshot_id)
        if at.summary is not None and ENDS in at.summary.additional_properties:
            break
        at = None if at.parent_snapshot_id is None else table.metadata.snapshot_by_id(at.parent_snapshot_id)
    return keep


def _files_of(table: Table, snapshots: Iterable[Any]) -> set[str]:
    """Manifest lists, manifests and data files that snapshots name."""
    paths: set[str] = set()
    manifests: dict[str, Any] = {}
    for snapshot in snapshots:
        paths.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            manifests[manifest.manifest_path] = manifest
    for path, manifest in manifests.items():
        paths.add(path)
        entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        paths |= {entry.data_file.file_path for entry in entries}
    return paths


def _delete(table: Table, paths: Sequence[str]) -> int:
    count = 0
    for path in paths:
        try:
            table.io.delete(path)
            count += 1
        except Exception as error:
            logger.warning("%s cannot be deleted: %s", path, error)
    return count


def now_ms() -> int:
    """Milliseconds since 1970."""
    return int(datetime.now(UTC).timestamp() * 1000)
