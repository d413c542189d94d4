"""The names of a store's files and JSON keys: tools and later versions read them."""

from __future__ import annotations

import json
from pathlib import Path

from gantry_broker.settings import BrokerSettings
from gantry_broker.store.sealed import unseal
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import Put, StoreConfig

HOST = bytes((10, 0, 0, 7, 0, 0, 4, 210))


def test_names_of_files_and_keys_do_not_change(quick_dir: Path, small: BrokerSettings) -> None:
    root = quick_dir / "store"
    store = MessageStore.open(StoreConfig(root, small))
    store.appender.begin_epoch(1, b"", 1)
    store.appender.put([Put("Orders", 3, 0, 0, 1, HOST, b"body", b"", keys=("key",))], 1)
    store.indexer.confirm(store.log.end)
    store.checkpointer.run_periodic_tasks(10**12)
    files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    index = {name for name in files if name.startswith("index/")}
    assert len(index) == 1
    assert files - index == {
        "abort",
        "checkpoint",
        "commitlog/00000000000000000000",
        "config/epochs.json",
        "config/recoveryPoint.json",
        "consumequeue/Orders/3/00000000000000000000",
        "consumequeue/rmq_sys_GANTRY_CONTROL/0/00000000000000000000",
        "lock",
    }
    store.close()
    assert json.loads(unseal((root / "config" / "epochs.json").read_bytes())) == {
        "segmentSize": 65_536,
        "epochs": [[1, 0]],
    }
    point = json.loads(unseal((root / "config" / "recoveryPoint.json").read_bytes()))
    assert set(point) == {
        "boot",
        "clean",
        "durable",
        "durable_index",
        "written",
        "written_index",
        "flushed",
        "confirmed",
        "reindexing",
    }
