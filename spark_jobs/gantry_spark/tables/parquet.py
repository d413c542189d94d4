"""Tables without a catalog: folders of Parquet files, and a manifest for each commit, which alone decides.

    WAREHOUSE/parquet/NAMESPACE/TABLE/_gantry/commits/000000/000000000007.json    commit 7
                                      _gantry/staging/...                         files of commits under way
                                      orders_day=2026-11-27/000000000007-0.parquet

A commit is complete when its manifest exists. The manifest is created by a conditional write, so of two writers one
succeeds. It names the offsets that the table covers, and the files: they lie in the staging folder first, which readers
of a folder leave out as its name begins with an underscore, and move into the table afterwards. A process that ends in
between leaves this to the next one, which moves them before it does anything else. So a reader of the folder never sees
a message twice, nor one of a commit that did not come about.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from gantry_broker.archive.errors import ArchiveError, Missing
from gantry_broker.archive.objects import Location, ObjectStore
from gantry_broker.protocol.digits import whole_number
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import _ConvertToIcebergWithoutIDs, visit_pyarrow
from pyiceberg.schema import Schema, assign_fresh_schema_ids

from gantry_spark.errors import SourceError
from gantry_spark.tables.fields import SYSTEM, BadSchema
from gantry_spark.tables.offsets import ENDS, PARQUET, NotContinued, covered
from gantry_spark.tables.partitions import MAX_PARTITIONS, CommitTooLarge, Part, check_parts, parse_parts
from gantry_spark.topics.queues import Offsets

logger = logging.getLogger(__name__)

TYPE: Final = PARQUET
"""The property `type` of a catalog of such tables."""
ROOT: Final = "parquet"
MAX_COMMIT: Final = 256 << 20
"""Bytes of a commit: larger ones are refused."""
COMMITS: Final = "_gantry/commits"
STAGING: Final = "_gantry/staging"
COMPLETE: Final = 50
"""Each so many commits the manifest has the list of all files."""
PER_FOLDER: Final = 1_000_000
ORPHAN_MS: Final = 24 * 3_600_000
"""Age from which a staged file belongs to a commit that will not come about."""
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,200}")
_WAREHOUSE: Final = re.compile(r"(s3|gs|file)://.+")
_ODD: Final = re.compile(r"[^A-Za-z0-9_.-]")
_KEYS: Final = {
    "s3.access-key-id": "access_key_id", "s3.secret-access-key": "secret_access_key",
    "s3.session-token": "session_token", "s3.region": "region",
}  # fmt: skip


class _Store(ObjectStore):
    """The folder of one table. Properties are PyIceberg's."""

    def __init__(self, url: str, properties: Mapping[str, str]) -> None:
        super().__init__(Location(url, properties.get("s3.endpoint")))
        self._given = {ours: properties[theirs] for theirs, ours in _KEYS.items() if theirs in properties}

    def _credentials(self) -> dict[str, str]:
        return self._given

    def move(self, source: str, target: str) -> None:
        """Give an object another name. Nothing happens when this was done before. Raises Missing."""
        import obstore

        try:
            self._call(lambda store: obstore.copy(store, source, target, overwrite=True), f"copy {source}")
        except Missing:
            self.size(target)
            return
        self.delete(source)


@dataclass(frozen=True)
class File:
    """A file of a table. `staged`: its name before it moves. `last_ms`: the newest store time in it."""

    path: str
    rows: int
    size: int
    last_ms: int
    staged: str = ""


class ParquetTable:
    """One table. It has of PyIceberg's `Table` what the job and the library use."""

    def __init__(self, catalog: ParquetCatalog, identifier: tuple[str, str]) -> None:
        self.catalog = catalog
        self.identifier = identifier
        self.url = catalog.url(identifier)
        self.io = load_file_io(dict(catalog.properties), self.url)
        self._store = _Store(self.url, catalog.properties)
        self.version = 0
        self.manifest: dict[str, Any] = {}
        """The newest one."""
        self._published = 0
        """The newest commit whose files are known to be in the table."""
        self.refresh()

    def name(self) -> tuple[str, str]:
        return self.identifier

    def location(self) -> str:
        return self.url

    @property
    def properties(self) -> dict[str, str]:
        properties: dict[str, str] = self.manifest.get("properties", {})
        return properties

    @property
    def summary(self) -> dict[str, str]:
        summary: dict[str, str] = self.manifest.get("summary", {})
        return summary

    # ---- manifests

    def refresh(self) -> None:
        """Read the newest manifest, and complete its commit."""
        try:
            version = self._newest(self.version)
            if version != self.version or not self.manifest:
                self.manifest = {} if version == 0 else self._read(version)
                self.version = version
            if self.version != self._published:
                self._publish(self.manifest)
        except ArchiveError as error:
            raise SourceError(f"table {'.'.join(self.identifier)}: {error}") from None

    def _newest(self, since: int) -> int:
        """Return the number of the newest commit; 0: there is none."""
        folder = since // PER_FOLDER
        newest = since
        while True:
            after = _commit_name(since) if since and folder == since // PER_FOLDER else ""
            numbers = [_number(one.name) for one in self._store.list(f"{COMMITS}/{folder:06d}/", after)]
            newest = max([newest, *(n for n in numbers if n is not None)])
            if newest < (folder + 1) * PER_FOLDER - 1:
                return newest
            folder += 1

    def _read(self, version: int) -> dict[str, Any]:
        manifest = orjson.loads(self._store.get(_commit_name(version), MAX_COMMIT))
        if not isinstance(manifest, dict):
            raise NotContinued(f"table {'.'.join(self.identifier)}: commit {version} cannot be read")
        return manifest

    def commit(
        self,
        added: Sequence[File],
        summary: Mapping[str, str],
        properties: Mapping[str, str] | None = None,
        removed: Sequence[File] = (),
        now_ms: int = 0,
        after: Callable[[str], None] = lambda step: None,
    ) -> int:
        """Make the next commit, which continues the manifest that this object has read. Raises NotContinued."""
        version = self.version + 1
        gone = {file.path for file in removed}
        totals = self.manifest.get("totals", {"rows": 0, "files": 0, "bytes": 0})
        manifest: dict[str, Any] = {
            "id": uuid.uuid4().hex,
            "timestampMs": now_ms,
            "properties": dict(self.properties if properties is None else properties),
            "summary": dict(summary),
            "totals": {
                "rows": totals["rows"] + sum(f.rows for f in added) - sum(f.rows for f in removed),
                "files": totals["files"] + len(added) - len(removed),
                "bytes": totals["bytes"] + sum(f.size for f in added) - sum(f.size for f in removed),
            },
            "added": [_to_json(file) for file in added],
            "removed": sorted(gone),
        }
        if version % COMPLETE == 0:
            manifest["files"] = [_to_json(f) for f in (*self.files(), *added) if f.path not in gone]
        try:
            if self.version != self._published:  # The store failed after the last manifest.
                self._publish(self.manifest)
            created = self._store.create(_commit_name(version), orjson.dumps(manifest))
            if not created and self._read(version).get("id") != manifest["id"]:
                raise NotContinued(f"table {'.'.join(self.identifier)}: another commit came first: {version}")
            self.version, self.manifest = version, manifest
            after("manifest")
            self._publish(manifest)
        except ArchiveError as error:
            raise SourceError(f"table {'.'.join(self.identifier)}: {error}") from None
        return version

    def _publish(self, manifest: Mapping[str, Any]) -> None:
        """Move the files of a commit into the table, and delete those that it removed."""
        for one in manifest.get("added", ()):
            with suppress(Missing):  # It was moved, and a later commit has removed it.
                self._store.move(one["staged"], one["path"])
        for path in manifest.get("removed", ()):
            self._store.delete(path)
        self._published = self.version

    def ends(self) -> Offsets:
        """Return the ends of the queues. Raises NotContinued."""
        return {} if ENDS not in self.summary else covered([self.summary], ".".join(self.identifier))

    def files(self) -> list[File]:
        """Return the files of the table."""
        added: dict[str, File] = {}
        gone: set[str] = set()
        for version in range(self.version, 0, -1):
            manifest = self.manifest if version == self.version else self._read(version)
            gone.update(manifest.get("removed", ()))
            whole = manifest.get("files")
            for one in manifest.get("added", ()) if whole is None else whole:
                if one["path"] not in gone:
                    added[one["path"]] = File(one["path"], one["rows"], one["bytes"], one["lastMs"])
            if whole is not None:
                break
        return sorted(added.values(), key=lambda f: f.path)

    # ---- rows

    def stage(self, rows: Any, parts: Sequence[Part]) -> list[str]:
        """Write rows to staged files, one for each partition, and return their names. Raises BadSchema."""
        paths: list[str] = []
        for folder, some in partitioned(rows, parts):
            place = f"{self.catalog.staging(self.identifier)}/{uuid.uuid4().hex}"
            path = f"{place}/{folder}/0.parquet" if folder else f"{place}/0.parquet"
            with self.io.new_output(path).create() as stream:
                pq.write_table(some, stream, compression="zstd")
            paths.append(path)
        return paths

    def described(self, paths: Iterable[str]) -> list[File]:
        """Return staged files as those of the next commit."""
        files = []
        for number, path in enumerate(paths):
            staged = path.removeprefix(self.url + "/")
            opened = self.io.new_input(path)
            with opened.open() as stream:
                footer = pq.read_metadata(stream)
            folder = "/".join(part for part in staged.split("/") if "=" in part)
            name = f"{folder}{'/' if folder else ''}{self.version + 1:012d}-{number}.parquet"
            files.append(File(name, footer.num_rows, len(opened), _newest_ms(footer), staged))
        return files

    def to_arrow(self, columns: Sequence[str] | None = None) -> Any:
        """Return all rows; `columns`: only these, None: all. Columns that a file lacks are null."""
        tables = []
        for file in self.files():
            with self.io.new_input(f"{self.url}/{file.path}").open() as stream:
                tables.append(pq.ParquetFile(stream).read(columns))
        return pa.concat_tables(tables, promote_options="default") if tables else pa.table({})

    def scan(self, selected_fields: Sequence[str] | None = None) -> Any:
        """Return an object with `to_arrow`."""
        return SimpleNamespace(to_arrow=partial(self.to_arrow, selected_fields))

    # ---- maintenance

    def maintain(self, now_ms: int, rows_ms: int | None) -> tuple[int, int]:
        """Remove files whose rows are all older than `rows_ms`, and staged files without a commit.

        Return the rows and the staged files that went. Raises NotContinued.
        """
        self.refresh()
        removed = [] if rows_ms is None else [f for f in self.files() if f.last_ms < now_ms - rows_ms]
        if removed:
            self.commit([], self.summary, removed=removed, now_ms=now_ms)
        orphans = [f for f in self._store.list(f"{STAGING}/") if f.modified_ms < now_ms - ORPHAN_MS]
        for one in orphans:
            self._store.delete(one.name)
        return sum(f.rows for f in removed), len(orphans)

    def drop(self) -> None:
        """Delete everything. The manifests go last: until then the table can be dropped again."""
        for prefix in ("", f"{COMMITS}/"):
            for one in list(self._store.list(prefix)):
                if prefix or not one.name.startswith(COMMITS):
                    self._store.delete(one.name)


class ParquetCatalog:
    """The tables below a warehouse."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self.properties = {name: value for name, value in properties.items() if name not in ("type", "uri")}
        self.warehouse = properties.get("warehouse", "").rstrip("/")
        if not _WAREHOUSE.fullmatch(self.warehouse):
            raise BadSchema(
                f"format Parquet needs the property warehouse of the catalog as a URL, not {self.warehouse[:80]!r}: "
                f"write s3://bucket/folder or file:///folder"
            )

    def url(self, identifier: tuple[str, str]) -> str:
        """Return the folder of a table. Raises BadSchema."""
        for name in identifier:
            if not _NAME.fullmatch(name):
                raise BadSchema(f"format Parquet: {name[:80]!r} is no name of a folder; use letters, digits, _ and -")
        return f"{self.warehouse}/{ROOT}/{identifier[0]}/{identifier[1]}"

    def staging(self, identifier: tuple[str, str]) -> str:
        """Return the folder for files of commits under way. Raises BadSchema."""
        return f"{self.url(identifier)}/{STAGING}"

    def load_table(self, identifier: tuple[str, str]) -> ParquetTable:
        """Return a table. Raises NoSuchTableError."""
        table = ParquetTable(self, identifier)
        if not table.version:
            raise NoSuchTableError(f"there is no table {'.'.join(identifier)}")
        return table

    def create(self, identifier: tuple[str, str], columns: Any, properties: Mapping[str, str],
               partition_by: Sequence[str], now_ms: int) -> ParquetTable:  # fmt: skip
        """Make a table, or return the one that another process has made. Raises BadSchema."""
        check_parts(parse_parts(partition_by), iceberg_schema(columns))
        table = ParquetTable(self, identifier)
        if not table.version:
            try:
                table.commit([], {}, properties, now_ms=now_ms)
            except NotContinued:
                table.refresh()
        return table

    def list_tables(self, namespace: str) -> list[tuple[str, str]]:
        """Return the tables of a namespace."""
        import obstore

        if not _NAME.fullmatch(namespace):
            return []
        store = _Store(f"{self.warehouse}/{ROOT}/{namespace}", self.properties)
        folders = store._call(lambda opened: obstore.list_with_delimiter(opened)["common_prefixes"], "list", new=True)
        return [(namespace, str(name).rstrip("/")) for name in folders]

    def drop_table(self, identifier: tuple[str, str]) -> None:
        """Delete a table and its files. Raises NoSuchTableError."""
        self.load_table(identifier).drop()


def iceberg_schema(columns: Any) -> Schema:
    """Return an Arrow schema as one of Iceberg, whose transforms say the partition of a row."""
    return assign_fresh_schema_ids(visit_pyarrow(columns, _ConvertToIcebergWithoutIDs()))


def partitioned(rows: Any, parts: Sequence[Part]) -> Iterator[tuple[str, Any]]:
    """Yield the folder of each partition and its rows. Raises BadSchema."""
    if not parts:
        yield "", rows
        return
    schema = iceberg_schema(rows.schema)
    folders: list[str] = [""] * len(rows)
    for part in parts:
        kind = schema.find_field(part.column).field_type
        values = rows
        for name in part.column.split("."):
            values = values.column(name).combine_chunks() if values is rows else values.field(name)
        result = part.transform.result_type(kind)
        name = part.name if part.name != part.column else f"{part.name}_part"
        for index, value in enumerate(part.transform.pyarrow_transform(kind)(values).to_pylist()):
            text = "__HIVE_DEFAULT_PARTITION__" if value is None else _folder(part.transform, result, value)
            folders[index] += f"{'/' if folders[index] else ''}{name}={text}"
    order: dict[str, list[int]] = {}
    for index, folder in enumerate(folders):
        order.setdefault(folder, []).append(index)
    if len(order) > MAX_PARTITIONS:
        raise CommitTooLarge(f"one commit would write to {len(order)} partitions, and {MAX_PARTITIONS} are possible")
    for folder, indices in sorted(order.items()):
        yield folder, rows.take(pa.array(indices))


def _folder(transform: Any, kind: Any, value: Any) -> str:
    if isinstance(value, datetime):
        value = int(value.timestamp() * 1_000_000)
    elif isinstance(value, date):
        value = (value - date(1970, 1, 1)).days
    # Only characters that no file system and no reader of folders takes for others. The column has the value itself.
    text = str(transform.to_human_string(kind, value))
    return _ODD.sub(lambda m: f"_x{ord(m[0]):x}_", text)[:200] or "__HIVE_DEFAULT_PARTITION__"


def _to_json(file: File) -> dict[str, Any]:
    entry = {"path": file.path, "rows": file.rows, "bytes": file.size, "lastMs": file.last_ms}
    return entry | {"staged": file.staged} if file.staged else entry


def _commit_name(version: int) -> str:
    return f"{COMMITS}/{version // PER_FOLDER:06d}/{version:012d}.json"


def _number(name: str) -> int | None:
    return whole_number(name.rpartition("/")[2].removesuffix(".json"))


def _newest_ms(footer: Any) -> int:
    newest = 0
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        for index in range(group.num_columns):
            column = group.column(index)
            if column.path_in_schema == f"{SYSTEM}.timestamp":
                if not column.is_stats_set or not column.statistics.has_min_max:
                    return 1 << 62
                newest = max(newest, int(column.statistics.max.timestamp() * 1000))
    return newest
