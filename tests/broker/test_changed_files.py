"""A digit of a small state file is another one after damage: the file counts as damaged, never as another state."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from gantry_broker.access.table import AccessTable, table_json
from gantry_broker.archive import restore
from gantry_broker.archive.errors import ArchiveError
from gantry_broker.broker.migration.member import FOLLOWING, MARK, Migration, mark_of
from gantry_broker.broker.site import Site, mark_origin
from gantry_broker.config import MigrateConfig
from gantry_broker.namesrv.access import NameServerAccess
from gantry_broker.store.errors import StoreError
from gantry_broker.store.restored import RESTORED, restored

from tests.broker.conftest import Bench

TABLE = AccessTable.model_validate(
    {"version": 3, "mode": "Enabled", "users": [{"name": "orders", "keys": ["orders-secret"]}]}
)


def change(path: Path, before: bytes, after: bytes) -> None:
    data = path.read_bytes()
    assert data.count(before) == 1
    path.write_bytes(data.replace(before, after))


async def test_a_members_access_table(tmp_path: Path) -> None:
    """A higher version would be kept against every newer table: a user that lost a right would still have it."""
    bench = Bench(tmp_path, authentication="Enabled")
    folder = bench.config.data_dir / "config"
    folder.mkdir(exist_ok=True)
    assert await bench.broker.access.put(table_json(TABLE)) == 3
    await bench.close()
    again = Bench(tmp_path, authentication="Enabled")
    again.broker.access.load()
    assert again.broker.access.table == TABLE
    await again.close()
    change(folder / "access.json", b'"version":3', b'"version":7')
    damaged = Bench(tmp_path, authentication="Enabled")
    damaged.broker.access.load()
    assert damaged.broker.access.table is None
    assert await damaged.broker.access.put(table_json(TABLE)) == 3
    await damaged.close()


async def test_a_name_servers_access_table(tmp_path: Path) -> None:
    path = tmp_path / "access.json"
    assert await NameServerAccess("demo", "Enabled", path).put(table_json(TABLE)) == 3
    again = NameServerAccess("demo", "Enabled", path)
    again.load()
    assert again.version == 3
    change(path, b'"version":3', b'"version":7')
    damaged = NameServerAccess("demo", "Enabled", path)
    damaged.load()
    assert damaged.version == 0


def test_the_mark_of_a_restored_log(tmp_path: Path) -> None:
    mark_origin(tmp_path, Site("Active", origin="u"), 4_000, 0)
    assert restored(tmp_path).end == 4_000
    change(tmp_path / RESTORED, b"4000", b"4004")
    with pytest.raises(StoreError, match="checksum"):
        restored(tmp_path)


def test_the_progress_of_a_restore(tmp_path: Path) -> None:
    log, mark = tmp_path / "commitlog", tmp_path / restore.MARK
    log.mkdir()
    mark.parent.mkdir()
    goal: dict[str, object] = {"url": "file:///x", "group": "a", "offset": 4_000, "timeMs": None}
    assert restore._begun(mark, goal, log) == (0, None)
    assert restore._begun(mark, goal, log) == (0, None)
    change(mark, b'"upto":0', b'"upto":9')
    with pytest.raises(ArchiveError, match="checksum"):
        restore._begun(mark, goal, log)


async def test_the_mark_of_a_migration(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    migration = Migration(bench.config, MigrateConfig(name_servers=["127.0.0.1:1"], broker="a"))
    migration._save_mark({"broker": "a", "cluster": "c", "segmentSize": 4_000, "state": FOLLOWING})
    found = mark_of(bench.config.data_dir)
    assert found == orjson.loads(orjson.dumps(found))
    assert found is not None
    assert found["segmentSize"] == 4_000
    change(bench.config.data_dir / MARK, b"4000", b"5000")
    with pytest.raises(StoreError, match="checksum"):
        mark_of(bench.config.data_dir)
    await bench.close()
