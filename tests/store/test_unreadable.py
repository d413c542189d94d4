"""An unreadable sector: reads return the records before it, with few tries on the disk."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.protocol.codes import CONTROL_TOPIC
from gantry_broker.protocol.message import pack_host
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import Put, StoreConfig

HOST = pack_host("10.1.2.3", 50_000)
SETTINGS = BrokerSettings(mappedFileSizeCommitLog=8 << 20, maxHashSlotNum=100, maxIndexNum=400)


def opened(path: Path) -> MessageStore:
    """A store with a control record, a message, and 400 KB more; all unconfirmed, none in memory."""
    store = MessageStore.open(StoreConfig(path, SETTINGS))
    for topic, size in ((CONTROL_TOPIC, 10), ("T", 10), *[("T", 5_000)] * 80):
        store.appender.put([Put(topic, 0, 0, 0, 1, HOST, b"y" * size, b"")], time.time_ns() // 1_000_000)
    store.unconfirmed.clear()
    return store


@pytest.mark.parametrize("sector", range(1, 90, 8))
def test_confirm_reports_the_records_before_an_unreadable_one_and_loses_no_other(
    tmp_path: Path, bad_sector: dict[str, Any], sector: int
) -> None:
    store = opened(tmp_path)
    bad_sector.update(path=store.log.path(0), at=sector * 4096)
    control: list[tuple[int, bytes]] = []
    available: set[tuple[str, int]] = set()
    for _ in range(90):
        began = store.state.confirmed
        try:
            done = store.indexer.confirm(store.log.end)
        except OSError:
            assert store.state.confirmed == began
            break
        control += done.control
        available |= set(done.available)
        assert began < done.offset == store.state.confirmed <= sector * 4096
    assert sector * 4096 - 5_200 < store.state.confirmed
    bad_sector.clear()
    done = store.indexer.confirm(store.log.end)
    assert done.offset == store.log.end
    assert len(control + done.control) == 1
    assert available | set(done.available) == {("T", 0), (CONTROL_TOPIC, 0)}
    assert store.queues.next_offset("T", 0) == 81
    store.close()


@pytest.mark.parametrize(("sector", "most"), [(0, 2), (1, 5), (40, 4), (99, 3)])
def test_an_unreadable_sector_costs_few_reads(
    tmp_path: Path, bad_sector: dict[str, Any], monkeypatch: pytest.MonkeyPatch, sector: int, most: int
) -> None:
    """Each failing read may take seconds and blocks the loop."""
    store = opened(tmp_path)
    bad_sector.update(path=store.log.path(0), at=sector * 4096)
    real, failed = store.log.read, 0

    def read(offset: int, count: int) -> bytes:
        nonlocal failed
        try:
            return real(offset, count)
        except OSError:
            failed += 1
            raise

    monkeypatch.setattr(store.log, "read", read)
    if sector:
        assert 0 < len(store.log.whole_records(0, 1 << 20, store.log.end)) <= sector * 4096
    else:
        with pytest.raises(OSError, match="Input/output error"):
            store.log.whole_records(0, 1 << 20, store.log.end)
    assert failed <= most
    bad_sector.clear()
    store.close(clean=False)


def test_a_query_by_key_finds_the_readable_records(tmp_path: Path, bad_sector: dict[str, Any]) -> None:
    store = MessageStore.open(StoreConfig(tmp_path, SETTINGS))
    for _ in range(3):
        store.appender.put([Put("T", 0, 0, 0, 1, HOST, b"y" * 20_000, b"KEYS\x01k\x02", keys=("k",))], 1_000)
    store.indexer.confirm(store.log.end)
    places = [record.phys_offset for record in store.reader.walk(0)]
    reported: list[int] = []
    store.state.on_damage = reported.append
    bad_sector.update(path=store.log.path(0), at=7 * 4096)
    assert [record.phys_offset for record in store.reader.query("T", "k", 10, 0, 10_000)] == [places[2], places[0]]
    assert reported == [places[1]]
    bad_sector.clear()
    store.close()
