"""What was found in the tables of a cluster on this machine, for readers that need no more. PyIceberg takes a second to
load.

Each entry names the version of the table that it was found in: the metadata file that the catalog names, or the commit
of a table of Parquet files. Versions are asked again by each reader. A table that has another one by now is read by
PyIceberg: nothing here reads a table.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import orjson
from gantry_broker.store.sealed import seal, unseal

from gantry_spark.errors import SourceError
from gantry_spark.topics.queues import from_table

if TYPE_CHECKING:
    from gantry_spark.topics.wire import Cluster

Facts = dict[str, Any]
"""What `library.describe` returns, of the table alone."""
CATALOG: Final = "gantry"
"""The name by which PyIceberg opens a catalog."""
NAMESPACE: Final = "rocketmq"
REJECTED: Final = "__rejected"
FILE: Final = "known.json"
MAX_BYTES: Final = 64 << 20
WAIT_S: Final = 1.0
"""Seconds for another program that changes the catalog."""
NUMBERS: Final = ("rows", "bytes", "files", "rejected")
FIELDS: Final = frozenset(
    ("name", "topic", "mode", "schema", "partitionBy", "fields", "format", "columns", "location", *NUMBERS,
     "lastCommitMs", "behindRecords", "offsets", "lost", "problem")
)  # fmt: skip
_COMMITS: Final = "_gantry/commits"
_COMMIT: Final = re.compile(rb'\{"id":"([0-9a-f]{32})"')
_START: Final = 64
"""Bytes of a commit that begin with its id."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A table of the catalog. `rejected`: the version of its rejected rows; empty: there are none."""

    namespace: str
    name: str
    format: str
    version: str
    rejected: str
    facts: Facts | None
    """None: no table of a topic."""


def with_behind(facts: Facts, cluster: Cluster | None) -> Facts:
    """Add the messages that the table lacks (`behindRecords`), or why no broker says it."""
    if cluster is None or facts["problem"] is not None:
        return facts
    try:
        ends = from_table(facts["offsets"], "the table's offsets")
        bounds = cluster.bounds(cluster.queues(facts["topic"]))
    except SourceError as error:
        return {**facts, "problem": str(error)}
    behind = sum(max(0, b.after - max(ends.get(q, b.first), b.first)) for q, b in bounds.items())
    return {**facts, "behindRecords": behind}


def keep(properties: Mapping[str, str], entries: Iterable[Entry]) -> None:
    """Keep entries for the next reader, if the catalog is one of this machine. Never raises for a disk."""
    folder = _folder(properties)
    if folder is None:
        return
    kept = _load(folder)
    for one in entries:
        kept[f"{one.format}/{one.namespace}/{one.name}"] = [one.version, one.rejected, one.facts]
    now = _versions(folder, None)
    if now is not None:
        kept = {key: entry for key, entry in kept.items() if key in now}
    part = folder / f".{FILE}.{os.getpid()}"
    with suppress(OSError):
        part.write_bytes(seal(orjson.dumps(kept)))
        os.replace(part, folder / FILE)


def read(properties: Mapping[str, str], namespace: str = NAMESPACE) -> list[Facts] | None:
    """Return what is known of all tables of topics in a namespace, by format and name. None: not all is known."""
    folder = _folder(properties)
    now = None if folder is None else _versions(folder, namespace)
    if folder is None or now is None:
        return None
    kept = _load(folder)
    facts: list[Facts] = []
    for key, version in sorted(now.items()):
        entry = kept.get(key)
        if entry is None or not _belongs(entry, version, now.get(key + REJECTED, "")):
            return None
        if entry[2] is not None:
            facts.append(entry[2])
    return facts


def _belongs(entry: Any, version: str, rejected: str) -> bool:
    """Whether an entry was found in these versions, and has what readers need."""
    if not isinstance(entry, list) or len(entry) != 3 or entry[:2] != [version, rejected]:
        return False
    facts = entry[2]
    if facts is None:
        return True
    if not isinstance(facts, dict) or facts.keys() != FIELDS:
        return False
    return all(type(facts[name]) is int for name in NUMBERS)


def _folder(properties: Mapping[str, str]) -> Path | None:
    """Return the folder of a catalog that `gantry up` has made. None: another catalog."""
    uri = properties.get("uri", "")
    file = Path(uri.removeprefix("sqlite:///"))
    if not uri.startswith("sqlite:///") or not file.is_absolute():
        return None
    return file.parent if properties.get("warehouse") == file.parent.as_uri() else None


def _load(folder: Path) -> dict[str, Any]:
    """Return the entries. A file that is not there, damaged or too large has none."""
    try:
        with open(folder / FILE, "rb") as file:
            data = file.read(MAX_BYTES + 1)
        entries = orjson.loads(unseal(data)) if len(data) <= MAX_BYTES else None
    except (OSError, ValueError):
        return {}
    return entries if isinstance(entries, dict) else {}


def _versions(folder: Path, namespace: str | None) -> dict[str, str] | None:
    """Return the version of each table. None: they cannot be told. `namespace` None: those of all."""
    versions: dict[str, str] = {}
    catalog = folder / "catalog.db"
    try:
        if catalog.exists():
            with closing(sqlite3.connect(f"file:{quote(str(catalog))}?mode=ro", uri=True, timeout=WAIT_S)) as opened:
                for space, name, version in opened.execute(
                    "SELECT table_namespace, table_name, metadata_location FROM iceberg_tables WHERE catalog_name = ?",
                    (CATALOG,),
                ):
                    if namespace in (None, space):
                        versions[f"Iceberg/{space}/{name}"] = str(version)
        for place in (folder / "parquet").glob(f"{namespace or '*'}/*"):
            newest = _newest(place / _COMMITS)
            if newest is not None:
                with open(newest, "rb") as file:
                    begin = _COMMIT.match(file.read(_START))
                if begin is None:
                    return None
                versions[f"Parquet/{place.parent.name}/{place.name}"] = begin[1].decode()
    except (OSError, sqlite3.Error):
        return None
    return versions


def _newest(commits: Path) -> Path | None:
    """Return the file of the newest commit of a table of Parquet files. Raises OSError."""
    if commits.is_dir():
        for folder in sorted(commits.iterdir(), reverse=True):
            name = max((name for name in os.listdir(folder) if name.endswith(".json")), default=None)
            if name is not None:
                return folder / name
    return None
