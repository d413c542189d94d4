"""Spark reads an archive: the same records as the store that was archived, up to the archived offset."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.archive.archiver import Archiver
from gantry_broker.archive.chain import Archive
from gantry_broker.archive.objects import Location, ObjectStore
from gantry_broker.archive.sealing import sealer
from gantry_broker.archive.upload import Settings, View
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import Put, StoreConfig
from gantry_spark import archived
from gantry_spark.directory import DirectoryLog, find
from gantry_spark.errors import SourceError
from gantry_spark.scan import Range, Records, scan

SEGMENT = 1 << 18
KEY = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="


def archive_of(folder: Path, key: str | None = None) -> tuple[MessageStore, str, list[int]]:
    """A store with some segments, its archive's URL, and the clock."""
    settings = BrokerSettings(mappedFileSizeCommitLog=SEGMENT, mappedFileSizeConsumeQueue=20_000, maxHashSlotNum=100)
    store = MessageStore.open(StoreConfig(folder / "store", settings))
    rng, now = random.Random(5), [1_700_000_000_000]
    store.appender.begin_epoch(1, b"{}", now[0])
    for n in range(900):
        now[0] += 10
        body = rng.randbytes(rng.choice([10, 500, 3_000]))
        store.appender.put(
            [Put(f"T{n % 3}", n % 4, 0, 0, now[0], b"\x7f\0\0\1\0\0\0\1", body, b"KEYS\x01k\x02")], now[0]
        )
    store.indexer.confirm(store.log.end)
    url = f"file://{folder}/archive"
    archiver = Archiver(
        Archive(ObjectStore(Location(url)), sealer(key)), group="a", uid="u", cluster="shop",
        log_dir=folder / "store" / "commitlog", view=lambda: None, turn=lambda: True, settings=lambda: Settings(),
        delays=(1_000,), clock_ms=lambda: now[0],
    )  # fmt: skip
    view = View(store.log.start, store.state.confirmed, SEGMENT, store.epoch_cache.epochs)
    while True:
        now[0] += 70_000
        if not archiver._step(view, Settings(part=100_000), True):
            return store, url, now


def records(log: Any) -> list[tuple[int, int]]:
    """Offset and size of each record."""
    found = []
    for index, segment in enumerate(log.segments):
        last = index == len(log.segments) - 1
        with log.open(index) as source:
            wanted = Range(segment.start, segment.limit, segment.limit, segment.end, last)
            for block in scan(source, wanted):
                assert isinstance(block, Records), block
                found += [
                    (block.base + int(at), int(size)) for at, size in zip(block.at, block.field("size"), strict=True)
                ]
    return found


@pytest.mark.parametrize("key", [None, KEY])
def test_an_archive_has_the_records_of_its_store(tmp_path: Path, key: str | None) -> None:
    store, url, _ = archive_of(tmp_path, key)
    key_file = tmp_path / "key"
    key_file.write_text(key or "")
    place = archived.ArchivePlace(url, key_file=str(key_file) if key else None)
    (log,) = archived.open_logs(place)
    assert log.name == "a"
    assert len(log.segments) > 3
    assert records(log) == records(DirectoryLog(find(str(tmp_path / "store"))))
    # Small reads at any place, as the planner makes them.
    with log.open(1) as source:
        at = log.segments[1].start + 5
        into = bytearray(100)
        assert source.read_into(at, memoryview(into)) == 100
        assert bytes(into) == store.log.read(at, 100)
    store.close()


def test_a_damaged_object_fails_the_read(tmp_path: Path) -> None:
    store, url, _ = archive_of(tmp_path)
    store.close()
    part = sorted((tmp_path / "archive" / "groups" / "a" / "parts").iterdir())[2]
    data = bytearray(part.read_bytes())
    data[200] ^= 1
    part.write_bytes(bytes(data))
    (log,) = archived.open_logs(archived.ArchivePlace(url))
    with pytest.raises(SourceError, match="does not match the SHA-256"):
        records(log)


def test_a_folder_of_an_archive_is_recognised(tmp_path: Path) -> None:
    store, url, _ = archive_of(tmp_path)
    store.close()
    assert archived.archive_url(str(tmp_path / "archive")) == url
    assert archived.archive_url(f"file://{tmp_path}/archive") == url
    assert archived.archive_url(str(tmp_path / "store")) is None
    assert archived.archive_url("s3://bucket/prefix") == "s3://bucket/prefix"


def test_spark_counts_the_same(tmp_path: Path, spark: Any) -> None:
    store, url, _ = archive_of(tmp_path)
    store.close()
    frames = [
        spark.read.format("commitlog").option("columns", "topic,queue_id,queue_offset,size").load(path)
        for path in (url, str(tmp_path / "store"))
    ]
    rows = [sorted(map(tuple, frame.collect())) for frame in frames]
    assert rows[0] == rows[1]
    assert len(rows[0]) == 901
