"""Retention: which segments it removes and when, and which reads still work."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.protocol.codes import GetStatus
from gantry_broker.protocol.message import pack_host
from gantry_broker.settings import BrokerSettings
from gantry_broker.store import retention
from gantry_broker.store.errors import OffsetGone, StoreFull
from gantry_broker.store.log import commit_log
from gantry_broker.store.recovery_point import RecoveryPoint
from gantry_broker.store.retention import segments_to_remove
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import DiskUsage, Put, StoreConfig

from tests.store.opened import make_checkpoint

HOST = pack_host("10.1.2.3", 50_000)
HOUR = 3_600_000
SEGMENT = 65_536


def at_hour(hour: int) -> int:
    """A time (ms) with that hour of the local clock."""
    now = time.localtime(1_700_000_000)
    return int(time.mktime((now.tm_year, now.tm_mon, now.tm_mday, hour, 30, 0, 0, 0, -1)) * 1000)


def settings(**more: object) -> BrokerSettings:
    return BrokerSettings(
        mappedFileSizeCommitLog=SEGMENT,
        mappedFileSizeConsumeQueue=2_000,
        maxHashSlotNum=100,
        maxIndexNum=400,
        **more,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("hour", "ages", "used", "keep", "removed"),
    [
        (4, [100, 80, 73, 71], 0.1, 10**9, 3),
        (5, [100, 80, 73, 71], 0.1, 10**9, 0),
        (5, [100, 80, 73, 71], 0.76, 10**9, 3),
        (5, [3, 2, 1], 0.76, 10**9, 0),
        # Each segment is a tenth of the disk: below 85 % retention stops.
        (5, [3, 2, 1], 0.97, 10**9, 2),
        (5, [3, 2, 1], 0.97, SEGMENT, 1),
        (4, [100, 80, 73, 71], 0.1, 2 * SEGMENT, 2),
        (4, [100, 80, 73, 71], 0.1, 0, 0),
        (4, [100] * 30, 0.1, 10**9, 10),
    ],
)
def test_which_segments_retention_removes(hour: int, ages: list[int], used: float, keep: int, removed: int) -> None:
    now = at_hour(hour)
    ends = [((n + 1) * SEGMENT, now - age * HOUR) for n, age in enumerate(ages)]
    assert segments_to_remove(ends, now, settings(), used, 0.1, keep) == removed


def test_several_hours_may_be_named() -> None:
    named = settings(deleteWhen="04;16")
    assert [hour for hour in range(24) if retention.is_time(named, at_hour(hour))] == [4, 16]


def test_a_disk_is_as_full_as_df_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 250 blocks 60 are used and 30 are free; the others are reserved and no reason to remove messages."""
    real = os.statvfs(tmp_path)
    stat = os.statvfs_result((*real[:2], 250, 190, 30, *real[5:]))
    monkeypatch.setattr(retention.os, "statvfs", lambda directory: stat)
    usage = retention.disk_usage(tmp_path)
    assert usage.ratio == pytest.approx(60 / 90)
    assert (usage.total, usage.free) == (90 * stat.f_frsize, 30 * stat.f_frsize)


@pytest.fixture
def store(quick_dir: Path) -> Iterator[MessageStore]:
    made = MessageStore.open(StoreConfig(quick_dir / "store", settings()))
    yield made
    made.close(clean=False)


def put(store: MessageStore, first: int, count: int, now_ms: int) -> None:
    for n in range(first, first + count):
        topic = "Seldom" if n % 100 == 5 else "Orders"
        properties = b"KEYS\x01k%d\x02" % n
        store.appender.put([Put(topic, 0, 0, 0, 1, HOST, b"x" * 900, properties, keys=(f"k{n}",))], now_ms)
    store.indexer.confirm(store.log.end)


def indexed(store: MessageStore, now_ms: int) -> None:
    """Make a checkpoint, so that retention may remove the records."""
    store.checkpointer.run_periodic_tasks(now_ms)
    make_checkpoint(store)


@pytest.mark.parametrize("damaged", ["zeros", "unreadable"])
def test_damage_at_the_start_of_a_segment_keeps_no_other_segment(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch, damaged: str
) -> None:
    """The segment before it then has no age: it goes after a repair, or when the disk is full."""
    now = at_hour(4)
    put(store, 0, 150, now - 80 * HOUR)
    indexed(store, now)
    at = SEGMENT
    reported: list[int] = []
    store.state.on_damage = reported.append
    real = commit_log.CommitLog.read

    def read(log: commit_log.CommitLog, offset: int, count: int) -> bytes:
        if offset <= at < offset + count:
            if damaged == "unreadable":
                raise OSError(errno.EIO, "Input/output error")
            return bytes(count)
        return real(log, offset, count)

    monkeypatch.setattr(commit_log.CommitLog, "read", read)
    assert store.retention.expire(now) == 0
    assert reported == ([at] if damaged == "unreadable" else [])
    at = 2 * SEGMENT
    assert store.retention.expire(now) == SEGMENT
    assert store.retention.expire(now, disk=DiskUsage(100 << 30, 5 << 30, 0.95)) == 2 * SEGMENT


def test_expired_segments_go_with_their_queue_and_index_files(store: MessageStore, quick_dir: Path) -> None:
    now = at_hour(4)
    put(store, 0, 150, now - 80 * HOUR)
    put(store, 150, 400, now - 10 * HOUR)
    indexed(store, now)
    old = store.reader.get("Orders", 0, 0, 4, 10**6)
    assert store.retention.expire(now) == store.log.start
    # The segment with the first younger record stays.
    assert 0 < store.log.start <= 150 * 1_000
    assert sorted(os.listdir(quick_dir / "store" / "commitlog"))[0] == f"{store.log.start:020d}"
    low = store.reader.min_offset("Orders", 0)
    assert store.reader.get("Orders", 0, 0, 32, 10**6).status == GetStatus.OFFSET_TOO_SMALL
    assert store.reader.get("Orders", 0, 0, 32, 10**6).next_offset == low
    assert store.reader.get("Orders", 0, low, 32, 10**6).status == GetStatus.FOUND
    assert old.count == 4
    with pytest.raises(OffsetGone):
        store.log.read_raw(0, 1_000)
    with pytest.raises(OffsetGone):
        store.reader.record(0)
    assert store.reader.query("Orders", "k1", 9, 0, now) == []
    assert len(store.reader.query("Orders", "k549", 9, 0, now)) == 1
    assert len(os.listdir(quick_dir / "store" / "consumequeue" / "Orders" / "0")) < 6
    # The same holds after a restart, also after a crash.
    for clean in (True, False):
        bounds = (
            store.log.start,
            store.log.end,
            low,
            store.reader.max_offset("Orders", 0),
            store.reader.max_offset("Seldom", 0),
        )
        store.close(clean=clean)
        store = MessageStore.open(StoreConfig(quick_dir / "store", settings()))
        store.indexer.confirm(store.log.end)
        assert bounds == (
            store.log.start,
            store.log.end,
            store.reader.min_offset("Orders", 0),
            store.reader.max_offset("Orders", 0),
            store.reader.max_offset("Seldom", 0),
        )
    store.close(clean=False)


def test_retention_keeps_records_that_a_follower_needs_and_unconfirmed_ones(store: MessageStore) -> None:
    now = at_hour(4)
    put(store, 0, 300, now - 100 * HOUR)
    store.checkpointer.run_periodic_tasks(now)
    assert store.retention.expire(now) == 0, "entries that are not on disk have nothing but their records"
    indexed(store, now)
    assert store.retention.expire(now, keep_from=SEGMENT + 5_000) == SEGMENT
    assert store.retention.expire(now, keep_from=SEGMENT + 5_000) == SEGMENT
    assert store.retention.expire(now) > SEGMENT


def test_a_queue_without_records_keeps_its_queue_offsets(store: MessageStore, quick_dir: Path) -> None:
    now = at_hour(4)
    put(store, 0, 10, now - 100 * HOUR)
    for _ in range(10, 400):
        store.appender.put([Put("Other", 0, 0, 0, 1, HOST, b"x" * 900, b"")], now - 100 * HOUR)
    store.indexer.confirm(store.log.end)
    indexed(store, now)
    store.retention.expire(now)
    assert store.log.start > 10_000
    for _ in range(2):
        assert (
            store.reader.min_offset("Orders", 0)
            == store.reader.max_offset("Orders", 0)
            == store.queues.next_offset("Orders", 0)
            == 9
        )
        assert store.reader.get("Orders", 0, 9, 1, 1).status == GetStatus.OFFSET_OVERFLOW_ONE
        assert store.queue_starts()["Orders", 0] == 9
        store.close()
        store = MessageStore.open(StoreConfig(quick_dir / "store", settings()))
    assert store.appender.put([Put("Orders", 0, 0, 0, 1, HOST, b"", b"")], now)[0].queue_offset == 9
    store.close(clean=False)


def test_a_checkpoint_counts_while_the_store_refuses_messages(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention waits for the checkpoint, so a full disk must not prevent it."""
    put(store, 0, 10, 1)
    store.mark_flushed(store.flush())
    checkpoint = store.checkpointer.checkpoint()
    checkpoint.run()
    with monkeypatch.context() as full:
        full.setattr(commit_log, "write_all", no_room)
        with pytest.raises(StoreFull):
            put(store, 10, 1, 1)
    store.checkpointer.checkpointed(checkpoint)
    assert store.state.recovery_point.durable == store.log.end
    assert RecoveryPoint.load(store.recovery_point_file.path) == store.state.recovery_point


def no_room(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")
