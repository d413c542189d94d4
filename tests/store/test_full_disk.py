"""A full disk: the store refuses whole writes, still reads, and continues once there is room."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from gantry_broker.protocol.message import pack_host
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.errors import StoreFull
from gantry_broker.store.index.consume_queue import ConsumeQueue
from gantry_broker.store.log.epochs import EpochFile
from gantry_broker.store.recovery_point import RecoveryPoint
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import Put, StoreConfig

from tests.support.failing_calls import raising
from tests.support.present import present

HOST = pack_host("10.1.2.3", 50_000)
SETTINGS = BrokerSettings(
    mappedFileSizeCommitLog=1 << 20, mappedFileSizeConsumeQueue=20_000, maxHashSlotNum=20_000, maxIndexNum=80_000
)


class SmallDisk:
    """A tmpfs of 2 MiB, and a file that fills it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def fill(self) -> None:
        with open(self.root / "ballast", "ab", buffering=0) as ballast, contextlib.suppress(OSError):
            while True:
                ballast.write(bytes(4096))

    def free(self) -> None:
        (self.root / "ballast").unlink(missing_ok=True)


@pytest.fixture
def disk(small_disk: Callable[[Path, int], Path], tmp_path: Path) -> SmallDisk:
    return SmallDisk(small_disk(tmp_path / "disk", 2 << 20))


def messages(first: int, count: int, size: int = 1_000) -> list[Put]:
    return [
        Put(
            topic="Orders",
            queue_id=n % 2,
            flag=0,
            sys_flag=0,
            born_ms=n,
            born_host=HOST,
            body=os.urandom(size),
            properties=b"KEYS\x01k%d\x02" % n,
            keys=(f"k{n}",),
        )
        for n in range(first, first + count)
    ]


def opened(path: Path) -> MessageStore:
    return MessageStore.open(StoreConfig(path, SETTINGS))


def reopened(store: MessageStore, clean: bool = True) -> MessageStore:
    store.close(clean=clean)
    return opened(store.config.path)


def put(store: MessageStore, first: int, count: int, size: int = 1_000) -> None:
    """Store messages, and confirm all that the store has."""
    store.appender.put(messages(first, count, size), 1)
    store.indexer.confirm(store.log.end)


def put_until_full(store: MessageStore, first: int) -> int:
    """The number of stored messages."""
    for n in range(first, first + 5_000, 16):
        end = store.log.end
        numbers = [store.queues.next_offset("Orders", q) for q in range(2)]
        try:
            store.appender.put(messages(n, 16), 1_000 + n)
        except StoreFull:
            assert store.log.end == end
            assert [store.queues.next_offset("Orders", q) for q in range(2)] == numbers
            return n
    raise AssertionError("the disk never filled")


def readable(store: MessageStore) -> int:
    count = 0
    for queue_id in range(2):
        for offset in range(store.reader.max_offset("Orders", queue_id)):
            count += store.reader.get("Orders", queue_id, offset, 1, 1).count
    return count


def test_a_full_disk_refuses_writes_serves_reads_and_recovers(disk: SmallDisk) -> None:
    store = opened(disk.root / "store")
    put(store, 0, 64)
    store.checkpointer.run_periodic_tasks(10**12)
    disk.fill()
    last = put_until_full(store, 64)
    store.indexer.confirm(store.log.end)
    for now in range(5):
        store.checkpointer.run_periodic_tasks(10**12 + now * 1_000)
    assert readable(store) == last
    with pytest.raises(StoreFull):
        store.appender.put(messages(last, 16), 1)
    # The bytes of the refused batch are zeros again: none of its records appears after a crash.
    segment = disk.root / "store" / "commitlog" / f"{store.log.end - store.log.end % (1 << 20):020d}"
    with segment.open("rb") as file:
        file.seek(store.log.end % (1 << 20))
        assert not any(file.read())
    disk.free()
    put(store, last, 16)
    store.checkpointer.run_periodic_tasks(10**12 + 100_000)
    assert readable(store) == last + 16
    for n in (0, 63, last - 1, last + 15):
        assert len(store.reader.query("Orders", f"k{n}", 9, 0, 10**9)) == 1
    end = store.log.end
    store = reopened(store, clean=False)
    assert store.log.end == end
    store.indexer.confirm(end)
    assert readable(store) == last + 16
    store.close()


def test_the_index_stops_on_a_full_disk_and_continues_at_its_position(disk: SmallDisk) -> None:
    store = opened(disk.root / "store")
    store.appender.put(messages(0, 16), 1)
    disk.fill()
    store.indexer.confirm(store.log.end)
    store.checkpointer.run_periodic_tasks(10**12)
    assert store.index is not None
    # Without room for an index file, readers still see every message.
    assert store.index.behind
    assert readable(store) == 16
    last = put_until_full(store, 16)
    store.indexer.confirm(store.log.end)
    assert store.reader.query("Orders", "k1", 9, 0, 10**9) == []
    disk.free()
    now = 10**12
    while store.index.behind:
        now += 1_000
        store.checkpointer.run_periodic_tasks(now)
        assert now < 10**12 + 60_000
    for n in (0, 1, 15, last - 1):
        assert len(store.reader.query("Orders", f"k{n}", 9, 0, 10**9)) == 1
    store.close()


def test_a_store_opens_reads_truncates_and_closes_on_a_full_disk(disk: SmallDisk) -> None:
    store = opened(disk.root / "store")
    put(store, 0, 32)
    store.checkpointer.run_periodic_tasks(10**12)
    boundary = store.log.end
    store.appender.put(messages(32, 32), 1)
    store.close(clean=False)
    disk.fill()
    store = opened(disk.root / "store")
    assert not store.state.was_clean
    assert readable(store) == 32
    store.truncator.truncate(boundary)
    assert (store.log.end, store.state.confirmed) == (boundary, boundary)
    store = reopened(store, clean=False)
    assert store.log.end == boundary
    assert store.state.damage is None
    disk.free()
    store.indexer.confirm(store.log.end)
    assert readable(store) == 32
    put(store, 32, 4)
    assert readable(store) == 36
    store.close()


def test_an_epoch_truncated_on_a_full_disk_does_not_come_back(disk: SmallDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(disk.root / "store")
    store.appender.begin_epoch(5, b"{}", 1)
    put(store, 0, 16)
    boundary = store.log.end
    store.appender.begin_epoch(6, b"{}", 1)
    cut_log = store.log.truncate

    def others_are_faster(to: int) -> None:
        cut_log(to)
        disk.fill()

    monkeypatch.setattr(store.log, "truncate", others_are_faster)
    store.truncator.truncate(boundary)
    store.checkpointer.run_periodic_tasks(10**12)
    assert EpochFile.load(store.epoch_cache.path) != (store.log.segment_size, store.epoch_cache.epochs)
    disk.free()
    put(store, 16, 16)
    store.checkpointer.run_periodic_tasks(10**12 + 10_000)
    store = reopened(store, clean=False)
    assert store.state.verified_from > boundary
    assert [epoch for epoch, _ in store.epoch_cache.epochs] == [5]
    store.close()


def test_a_stop_without_room_for_its_first_recovery_point_shows_nothing_unconfirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path / "store")
    put(store, 0, 16)
    store.checkpointer.run_periodic_tasks(10**12)
    put(store, 16, 16)
    end = store.state.confirmed
    save, full = RecoveryPoint.save, True

    def once(recovery_point: RecoveryPoint, path: Path, *, durable: bool) -> None:
        nonlocal full
        if full:
            full = False
            raise OSError(errno.ENOSPC, "No space left on device")
        save(recovery_point, path, durable=durable)

    monkeypatch.setattr(RecoveryPoint, "save", once)
    store = reopened(store)
    assert not full
    assert (store.state.was_clean, store.state.confirmed, readable(store)) == (True, end, 32)
    store.close()


def test_a_write_refused_each_second_is_logged_once_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(tmp_path / "store")
    with monkeypatch.context() as full:
        full.setattr(RecoveryPoint, "save", raising(OSError(errno.ENOSPC, "No space left on device")))
        put(store, 0, 16)
        now = 10**12
        for _ in range(50):
            store.checkpointer.run_periodic_tasks(now := now + 1_000)
        assert [r.getMessage() for r in caplog.records] == [
            f"cannot save {store.recovery_point_file.path}: [Errno 28] No space left on device"
        ]
        later = time.monotonic() + 61
        full.setattr(time, "monotonic", lambda: later)
        store.checkpointer.run_periodic_tasks(now + 1_000)
        assert len(caplog.records) == 2
    store.close()


def test_a_recovery_point_with_durable_above_written_is_not_clean(tmp_path: Path) -> None:
    """A stop on a disk that got room only at its end leaves such a file: the queues contain more than it claims."""
    store = opened(tmp_path / "store")
    put(store, 0, 16)
    boundary = store.log.end
    put(store, 16, 16)
    path, end = store.recovery_point_file.path, store.log.end
    store.close()
    replace(present(RecoveryPoint.load(path)).at_most(boundary), durable=end).save(path, durable=False)
    store = opened(tmp_path / "store")
    assert (store.state.was_clean, store.state.confirmed) == (False, boundary)
    assert sum(store.reader.max_offset("Orders", q) for q in range(2)) == 16
    store.close()


def test_a_partly_written_queue_hides_no_entries_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its old file has room and a new one has none; its waiting entries are younger than those of other queues."""
    store = opened(tmp_path / "store")
    put(store, 0, 2_200, size=10)
    real = ConsumeQueue._write

    def write(queue: ConsumeQueue, offset: int, data: bytes) -> str:
        if offset:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(queue, offset, data)

    monkeypatch.setattr(ConsumeQueue, "_write", write)
    store.checkpointer.run_periodic_tasks(10**12)
    monkeypatch.undo()
    written, unsynced = set((tmp_path / "store" / "consumequeue").glob("*/*/*")), set(map(Path, store.queues.unsynced))
    store = reopened(store, clean=False)
    assert readable(store) == 2_200
    assert unsynced == written != set()
    store.close()


def test_an_epoch_whose_file_was_replaced_before_the_disk_failed_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path / "store")
    store.appender.begin_epoch(5, b"{}", 1)
    sync, replaced = os.fsync, False

    def replace(old: Path, new: Path) -> None:
        nonlocal replaced
        os.rename(old, new)
        replaced = True

    def fsync(fd: int) -> None:
        nonlocal replaced
        if replaced:
            replaced = False
            raise OSError(errno.EIO, "Input/output error")
        sync(fd)

    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="Input/output error"):
        store.appender.begin_epoch(6, b"{}", 1)
    monkeypatch.undo()
    assert [epoch for epoch, _ in store.epoch_cache.epochs] == [5]
    put(store, 0, 16)
    store.checkpointer.run_periodic_tasks(10**12)
    store = reopened(store, clean=False)
    assert [epoch for epoch, _ in store.epoch_cache.epochs] == [5]
    store.close()


def test_a_follower_without_room_appends_nothing(disk: SmallDisk, tmp_path: Path) -> None:
    leader = opened(tmp_path / "leader")
    leader.appender.begin_epoch(1, b"", 1)
    for n in range(0, 1_600, 16):
        leader.appender.put(messages(n, 16), 1)
    leader.appender.begin_epoch(2, b"", 1)
    follower = opened(disk.root / "store")
    disk.fill()
    refused = False
    while not refused:
        end = follower.log.end
        try:
            follower.appender.append_raw(end, leader.log.read_raw(end, 50_000))
        except StoreFull:
            refused = True
    assert follower.log.end == end < leader.log.end
    assert follower.epoch_cache.epochs in ((), ((1, 0),))
    disk.free()
    while follower.log.end < leader.log.end:
        try:
            follower.appender.append_raw(follower.log.end, leader.log.read_raw(follower.log.end, 50_000))
        except StoreFull:
            break  # The disk is full.
    follower.indexer.confirm(follower.log.end)
    assert readable(follower) >= 900
    follower.close(clean=False)
    leader.close(clean=False)


def test_a_reset_without_room_leaves_the_store_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next leader may still have the missing records; then the member continues from its end."""
    store = opened(tmp_path / "store")
    put(store, 0, 16)
    with monkeypatch.context() as refused:
        refused.setattr(EpochFile, "save", raising(OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises(OSError, match="No space"):
            store.truncator.reset(3 << 20, [(1, 0)], {("Orders", 0): 100})
    put(store, 16, 16)
    store.checkpointer.run_periodic_tasks(10**12)
    assert (store.state.recovery_point.written, store.state.recovery_point.confirmed) == (store.log.end, store.log.end)
    assert readable(store) == 32
    store.close()


def test_a_queue_file_of_size_zero_gets_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, without the files before it, a start takes it for a file of other settings and finds no entries."""
    monkeypatch.setattr("gantry_broker.store.checkpoint._SECONDS_AT_ONCE", 60.0)
    store = opened(tmp_path / "store")
    put(store, 0, 2_000, size=10)
    store.checkpointer.run_periodic_tasks(10**12)
    real = os.ftruncate

    def ftruncate(fd: int, size: int) -> None:
        if "consumequeue" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(fd, size)

    with monkeypatch.context() as full:
        full.setattr(os, "ftruncate", ftruncate)
        put(store, 2_000, 100, size=10)
        store.checkpointer.run_periodic_tasks(10**12)
        queue = present(store.queues.find("Orders", 0))
        assert [os.stat(path).st_size for path in queue.files()] == [20_000, 0]
        queue.truncate(store.log.end)  # This opens the file.
    store.indexer.confirm(store.log.end)
    store.checkpointer.run_periodic_tasks(10**12 + 2_000)
    sizes = {path.stat().st_size for path in (tmp_path / "store" / "consumequeue").glob("*/*/*")}
    assert sizes == {SETTINGS.mappedFileSizeConsumeQueue}
    store.close()
