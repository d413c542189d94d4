"""Where the tables of a cluster on this machine lie. Commands that read them need no more of runs."""

from __future__ import annotations

import json
from pathlib import Path

from gantry_operator.api.table import Tables
from gantry_operator.platforms.local.folder import ClusterFolder, make_private, secret_folder


def tables_folder(folder: ClusterFolder) -> Path:
    """Return the folder with tables, their catalog, and the order and the report of the newest run."""
    return folder.root / "tables"


def saved_tables(folder: ClusterFolder) -> Tables | None:
    """Return what the manifest of a cluster says of tables; None: nothing. The rest of it, whose models take a command
    long to load, is not looked at. Raises OSError, ValueError.
    """
    spec = json.loads(folder.manifest.read_bytes())["spec"]
    return None if spec.get("tables") is None else Tables.model_validate(spec["tables"])


def local_catalog(folder: ClusterFolder, tables: Tables | None) -> dict[str, str]:
    """Return the properties of the cluster's catalog: those of the spec, or a catalog in SQLite. Raises OSError."""
    if tables is not None and tables.catalog:
        secret = {} if tables.catalogSecret is None else _properties(secret_folder(tables.catalogSecret))
        return {**tables.catalog, **secret}
    place = tables_folder(folder)
    make_private(place)
    return {"type": "sql", "uri": f"sqlite:///{place}/catalog.db", "warehouse": place.as_uri()}


def _properties(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text().strip() for path in sorted(folder.iterdir()) if path.is_file()}
