"""Group commit: one fsync serves many callers, nothing blocks the loop, and a failed disk gets no more writes."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from gantry_broker.protocol.message import pack_host
from gantry_broker.settings import BrokerSettings
from gantry_broker.store import checkpoint, files, group_commit
from gantry_broker.store.checkpoint import Checkpoint
from gantry_broker.store.errors import FlushFailed
from gantry_broker.store.group_commit import GroupCommit
from gantry_broker.store.index.consume_queue import ConsumeQueue
from gantry_broker.store.log import commit_log
from gantry_broker.store.recovery_point import RecoveryPoint, RecoveryPointFile
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import Put, StoreConfig

from tests.support.failing_calls import raising
from tests.support.planted_syncs import Report, plant_async_sync, plant_fdatasync
from tests.support.present import present

HOST = pack_host("10.1.2.3", 50_000)


def messages(count: int) -> list[Put]:
    return [Put("Orders", n % 3, 0, 0, 1, HOST, b"x" * 200, b"") for n in range(count)]


@pytest_asyncio.fixture
async def store(tmp_path: Path, small: BrokerSettings) -> AsyncIterator[MessageStore]:
    made = MessageStore.open(StoreConfig(tmp_path / "store", small, sync_flush=True))
    yield made
    made.close(clean=False)


@pytest_asyncio.fixture
async def commit(store: MessageStore, flushed_by: str) -> AsyncIterator[GroupCommit]:
    """Of a store with one record: the name of the first segment is durable."""
    made = GroupCommit(store)
    store.appender.put(messages(1), 1)
    await made.flush()
    yield made
    await made.close()


class SlowDisk:
    """An fdatasync that counts its calls and waits for a release, in both ways of group commit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started = threading.Event()
        self.calls = 0
        self.ways: set[str] = set()
        self.error: OSError | None = None
        self._go = threading.Event()
        self._reports: list[Callable[[], None]] = []
        real = os.fdatasync

        def fdatasync(fd: int) -> None:
            self._begun("thread")
            assert self._go.wait(30)
            if self.error is not None:
                raise self.error
            real(fd)

        monkeypatch.setattr(files.os, "fdatasync", fdatasync)
        plant_async_sync(monkeypatch.setattr, self._in_kernel)

    def _begun(self, way: str) -> None:
        self.calls += 1
        self.ways.add(way)
        self.started.set()

    def _in_kernel(self, fd: int) -> Callable[[int, Report], None]:
        def ended(result: int, report: Report) -> None:
            self._reports.append(lambda: report(result if self.error is None else -(self.error.errno or errno.EIO)))
            if self._go.is_set():
                self.release()

        self._begun("kernel")
        return ended

    def release(self) -> None:
        """Let all calls end, in the event loop."""
        self._go.set()
        reports, self._reports = self._reports, []
        for report in reports:
            report()

    async def entered(self) -> None:
        """Wait until the first fsync has begun."""
        assert await asyncio.to_thread(self.started.wait, 30)


@pytest.fixture
def disk(commit: GroupCommit, monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    """From the second flush on."""
    return SlowDisk(monkeypatch)


async def test_one_fsync_serves_all_waiting_callers_and_the_loop_runs(
    store: MessageStore, commit: GroupCommit, disk: SlowDisk, flushed_by: str
) -> None:
    before = store.log.end
    waits = []
    for _ in range(50):
        store.appender.put(messages(2), 1)
        waits.append(asyncio.create_task(commit.wait(store.log.end)))
    await disk.entered()
    # Other callers arrive during the fsync; none of them returns, and the loop runs.
    started = time.monotonic()
    for _ in range(50):
        store.appender.put(messages(2), 1)
        waits.append(asyncio.create_task(commit.wait(store.log.end)))
        await asyncio.sleep(0)
    assert time.monotonic() - started < 5
    assert not any(wait.done() for wait in waits)
    assert store.state.flushed == before
    disk.release()
    assert min(await asyncio.gather(*waits)) > before
    assert store.state.flushed == store.log.end
    assert disk.calls == 2
    assert disk.ways == {flushed_by}


async def test_rule_11_flushed_counts_only_durable_bytes(
    store: MessageStore, commit: GroupCommit, disk: SlowDisk
) -> None:
    store.appender.put(messages(2), 1)
    end = store.log.end
    waiting = asyncio.create_task(commit.wait(end))
    await disk.entered()
    store.appender.put(messages(2), 1)
    disk.release()
    assert await waiting == end < store.log.end


async def test_zeros_written_ahead_are_never_records_and_never_extend_a_segment(
    store: MessageStore, commit: GroupCommit, small: BrokerSettings
) -> None:
    for _ in range(300):
        store.appender.put(messages(3), 1)
        await commit.flush()
    written = store.log.read_raw(store.log.start, 1 << 24)
    assert len(written) == store.log.end > 2 * small.mappedFileSizeCommitLog
    assert {os.stat(store.log.path(base)).st_size for base in store.log.bases()} == {small.mappedFileSizeCommitLog}
    assert not any(store.log.raw(store.log.end, small.mappedFileSizeCommitLog))
    assert (
        os.stat(store.log.path(store.log.end)).st_blocks * 512 >= small.mappedFileSizeCommitLog
    )  # The file has no hole.
    path, count = store.config.path, len(list(store.reader.walk(store.log.start, store.log.end)))
    store.close(clean=False)
    again = MessageStore.open(StoreConfig(path, small, sync_flush=True))
    assert (again.state.damage, again.log.end, len(list(again.reader.walk(again.log.start, again.log.end)))) == (
        None,
        len(written),
        count,
    )
    again.close()


async def test_a_full_disk_for_zeros_is_no_error(
    store: MessageStore, commit: GroupCommit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwritev", raising(OSError(errno.ENOSPC, "full")))
    store.appender.put(messages(2), 1)
    assert await commit.flush() == store.log.end
    assert store.state.failed is None


async def test_a_flush_does_not_count_after_a_truncation_during_it(store: MessageStore, commit: GroupCommit) -> None:
    store.appender.put(messages(2), 1)
    boundary = store.log.end
    await commit.flush()
    store.appender.put(messages(20), 1)
    point = store.flush()
    store.truncator.truncate(boundary)
    store.appender.put(messages(30), 2)
    assert store.mark_flushed(point) == boundary
    assert await commit.flush() == store.log.end


@pytest.mark.parametrize("number", [errno.EIO, errno.ENFILE])
async def test_a_failed_fsync_ends_all_writes(
    store: MessageStore, commit: GroupCommit, disk: SlowDisk, flushed_by: str, number: int
) -> None:
    """Also with an error of the file system that elsewhere means that nothing was tried."""
    before = store.log.end
    disk.release()
    disk.error = OSError(number, "the disk is gone")
    store.appender.put(messages(2), 1)
    store.indexer.confirm(store.log.end)
    with pytest.raises(FlushFailed):
        await commit.wait(store.log.end)
    assert store.state.flushed == before
    assert store.state.disk_untrusted
    disk.error = None
    # A second fsync would report success without the lost bytes.
    with pytest.raises(FlushFailed):
        await commit.wait(store.log.end)
    with pytest.raises(FlushFailed):
        store.appender.put(messages(1), 1)
    assert (disk.calls, disk.ways) == (1, {flushed_by})
    assert store.reader.get("Orders", 0, 0, 1, 1).count == 1


async def test_a_call_comes_with_the_flush_that_covers_it(
    store: MessageStore, commit: GroupCommit, disk: SlowDisk
) -> None:
    said: list[tuple[str, FlushFailed | None, bool]] = []

    def call_at_end(name: str) -> None:
        end = store.log.end
        commit.when_durable(end, lambda error: said.append((name, error, store.state.flushed >= end)))

    call_at_end("durable already")
    assert said.pop() == ("durable already", None, True)
    store.appender.put(messages(1), 2)
    call_at_end("first")
    await disk.entered()
    store.appender.put(messages(1), 3)
    call_at_end("second, after the start of the flush")
    assert said == []
    disk.release()
    await commit.wait(store.log.end)
    assert said == [("first", None, True), ("second, after the start of the flush", None, True)]
    assert disk.calls == 2


async def test_a_call_gets_the_failure_of_the_disk(store: MessageStore, commit: GroupCommit, disk: SlowDisk) -> None:
    disk.error = OSError(errno.EIO, "Input/output error")
    said: list[FlushFailed | None] = []
    store.appender.put(messages(1), 2)
    commit.when_durable(store.log.end, said.append)
    disk.release()
    with pytest.raises(FlushFailed):
        await commit.wait(store.log.end)
    commit.when_durable(store.log.end, said.append)
    assert [type(error) for error in said] == [FlushFailed, FlushFailed]


async def test_a_cancelled_waiter_does_not_end_the_flush_of_others(
    store: MessageStore, commit: GroupCommit, disk: SlowDisk
) -> None:
    store.appender.put(messages(2), 1)
    impatient = asyncio.create_task(commit.wait(store.log.end))
    patient = asyncio.create_task(commit.wait(store.log.end))
    await disk.entered()
    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    disk.release()
    assert await patient == store.log.end


async def test_a_checkpoint_moves_the_recovery_point_for_a_power_loss(store: MessageStore, commit: GroupCommit) -> None:
    store.appender.put(messages(200), 1)
    store.indexer.confirm(store.log.end)
    assert store.state.recovery_point.durable == 0
    await commit.checkpoint()
    assert (
        store.state.recovery_point.durable
        == store.state.recovery_point.durable_index
        == store.log.end
        == store.state.flushed
    )


async def test_the_loop_waits_for_no_fsync_and_no_replaced_file(
    store: MessageStore, commit: GroupCommit, monkeypatch: pytest.MonkeyPatch, flushed_by: str
) -> None:
    threads: set[str] = set()
    for name in ("fsync", "fdatasync", "replace"):
        real = getattr(os, name)

        def recording(*words: object, real: Callable[..., None] = real) -> None:
            threads.add(threading.current_thread().name)
            real(*words)

        monkeypatch.setattr(files.os, name, recording)
    store.appender.put(messages(200), 1)
    store.indexer.confirm(store.log.end)
    await commit.checkpoint()
    store.appender.put(messages(200), 2)
    store.checkpointer.run_periodic_tasks(10_000)
    await commit.close()
    flushing = {"store-flush"} if flushed_by == "thread" else set()
    assert threads == {*flushing, "store-checkpoint_0", "store-background_0"}
    assert present(RecoveryPoint.load(store.recovery_point_file.path)).durable == store.state.confirmed


def test_an_older_recovery_point_never_replaces_a_newer_one(tmp_path: Path) -> None:
    file = RecoveryPointFile(tmp_path / "config" / "recoveryPoint.json")
    before = file.prepare(RecoveryPoint(confirmed=1_000), durable=False)
    truncate = file.prepare(RecoveryPoint(confirmed=10), durable=True)
    assert file.busy
    truncate()
    before()
    assert RecoveryPoint.load(file.path) == RecoveryPoint(confirmed=10)
    assert not file.busy


async def test_many_confirmed_bytes_start_a_checkpoint(
    store: MessageStore, commit: GroupCommit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantry_broker.store.checkpoint.CHECKPOINT_BYTES", 1_000)
    store.appender.put(messages(50), 1)
    store.indexer.confirm(store.log.end)
    done = asyncio.Event()
    real = store.checkpointer.checkpointed

    def checkpointed(checkpoint: Checkpoint) -> None:
        real(checkpoint)
        done.set()

    monkeypatch.setattr(store.checkpointer, "checkpointed", checkpointed)
    await commit.flush()
    await asyncio.wait_for(done.wait(), 20)
    assert store.state.recovery_point.durable == store.log.end


async def test_flushes_and_checkpoints_at_the_same_time_never_stop_the_loop(
    store: MessageStore, commit: GroupCommit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantry_broker.store.checkpoint.CHECKPOINT_BYTES", -1)
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(0)
            beats += 1
            if store.log.end < 500_000:
                store.appender.put(messages(3), 1)
                store.indexer.confirm(store.log.end)

    beating = asyncio.create_task(beat())
    async with asyncio.timeout(60):
        for _ in range(60):
            before = beats
            await commit.wait(store.log.end)
            await asyncio.sleep(0)
            assert beats > before or store.state.flushed == store.log.end
    beating.cancel()
    await commit.flush()
    await commit.checkpoint()
    assert store.state.recovery_point.durable <= store.state.flushed == store.log.end


async def test_a_new_segment_is_not_taken_for_an_open_one_of_the_same_name(
    commit: GroupCommit, store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flush keeps the last segment open; after a truncation the name may belong to another file."""
    synced: list[tuple[int, int]] = []

    def begun(fd: int) -> Callable[[int], int]:
        synced.append((os.fstat(fd).st_ino, os.fstat(fd).st_nlink))
        return lambda result: result

    size = store.log.segment_size
    while store.log.end < size + size // 2:
        store.appender.put(messages(5), 1)
        await commit.flush()
    plant_fdatasync(monkeypatch.setattr, begun)
    for _ in range(3):
        store.truncator.truncate(size)
        while store.log.end < size + size // 2:
            store.appender.put(messages(5), 1)
            await commit.flush()
            assert synced[-1] == (os.stat(store.log.path(store.log.end)).st_ino, 1)


async def test_a_flush_after_one_without_descriptors_makes_the_name_of_a_segment_durable(
    store: MessageStore, commit: GroupCommit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "AGAIN_S", 0.01)
    real, tried = commit_log.fsync_dir, 0

    def fsync_dir(path: Path) -> None:
        nonlocal tried
        tried += 1
        if tried == 1:
            raise OSError(errno.EMFILE, "Too many open files")
        real(path)

    monkeypatch.setattr(commit_log, "fsync_dir", fsync_dir)
    while store.log.end < store.log.segment_size:
        store.appender.put(messages(1), 1)
    assert await commit.flush() == store.log.end
    assert tried == 2


def test_a_flush_during_the_creation_of_a_segment_does_not_cover_its_name(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flush thread does not wait for the loop."""
    log = store.log
    while store.log.end < log.segment_size - 5_000:
        store.appender.put(messages(5), 1)
    store.mark_flushed(store.flush())
    real, fsync_dir = files.open_sized, commit_log.fsync_dir
    durable: list[str] = []

    def synced(path: Path) -> None:
        durable[:] = os.listdir(path)
        fsync_dir(path)

    def open_sized(path: str, create_size: int | None) -> int:
        if not os.path.exists(path):
            log.sync(0, store.log.end)
        return real(path, create_size)

    monkeypatch.setattr(commit_log, "fsync_dir", synced)
    monkeypatch.setattr(files, "open_sized", open_sized)
    while store.log.end < log.segment_size:
        store.appender.put(messages(5), 1)
    store.mark_flushed(store.flush())
    assert store.state.flushed == store.log.end
    assert os.path.basename(log.path(store.log.end)) in durable


async def test_a_close_syncs_the_files_of_a_failed_checkpoint(
    store: MessageStore, commit: GroupCommit, disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a clean stop claims queue entries that a power loss removes."""
    store.appender.put(messages(1), 1)
    commit.begin()
    await disk.entered()
    store.appender.put(messages(3), 1)
    store.indexer.confirm(store.log.end)
    asked = asyncio.create_task(commit.checkpoint())
    await asyncio.sleep(0.01)
    closing = asyncio.create_task(commit.close())
    await asyncio.sleep(0.01)
    disk.release()
    await closing
    with pytest.raises(FlushFailed):
        await asked
    synced: list[str] = []
    monkeypatch.setattr(checkpoint, "sync_file", synced.append)
    path = store.queues.topics["Orders"].queues[0].files()[0]
    store.close()
    assert path in synced


def test_a_flush_that_fails_at_the_close_proves_nothing(
    tmp_path: Path, small: BrokerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = StoreConfig(tmp_path / "store", small)
    store = MessageStore.open(config)
    store.appender.put(messages(1), 1)
    store.mark_flushed(store.flush())
    flushed = store.state.flushed
    store.appender.put(messages(1), 1)
    store.checkpointer.run_periodic_tasks(10_000)
    reported: list[str] = []
    store.state.on_failed = lambda: reported.append("failed")
    with monkeypatch.context() as broken:
        broken.setattr(files.os, "fdatasync", raising(OSError(errno.EIO, "Input/output error")))
        with pytest.raises(OSError, match="Input/output error"):
            store.close()
    assert reported == ["failed"]
    recovery_point = present(RecoveryPoint.load(config.path / "config" / "recoveryPoint.json"))
    assert (recovery_point.boot, recovery_point.flushed, recovery_point.clean) == ("", flushed, False)


def test_a_start_makes_the_names_of_the_last_process_durable(
    tmp_path: Path, small: BrokerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process was killed before a flush, and the start reports everything as flushed."""
    config = StoreConfig(tmp_path / "store", small)
    store = MessageStore.open(config)
    while store.log.end < store.log.segment_size:
        store.appender.put(messages(5), 1)
    store.close(clean=False)
    durable: list[str] = []
    monkeypatch.setattr(commit_log, "fsync_dir", lambda path: durable.extend(os.listdir(path)))
    store = MessageStore.open(config)
    assert os.path.basename(store.log.path(store.log.end)) in durable
    store.close(clean=False)


async def test_a_due_checkpoint_does_not_wait_for_a_flush(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk takes no message, and retention waits until the entries are durable."""
    commit = GroupCommit(store)
    store.appender.put(messages(3), 1)
    await commit.flush()
    store.indexer.confirm(store.log.end)
    commit.checkpoint_if_behind()
    assert store.state.recovery_point.durable < store.log.end
    for name in ("CHECKPOINT_S", "RETRY_CHECKPOINT_S"):
        monkeypatch.setattr(group_commit, name, 0.0)
    commit.checkpoint_if_behind()
    await commit.checkpoint()
    assert store.state.recovery_point.durable == store.log.end
    await commit.close()


async def test_a_checkpoint_that_moves_nothing_is_not_repeated_at_once(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of one queue refuses writes, the log does not, and many bytes lie between the two."""
    monkeypatch.setattr(checkpoint, "CHECKPOINT_BYTES", 1_000)
    real, made = ConsumeQueue._write, 0

    def write(queue: ConsumeQueue, offset: int, data: bytes) -> str:
        if queue.key == ("Orders", 0):
            raise OSError(errno.EIO, "Input/output error")
        return real(queue, offset, data)

    def counted() -> Checkpoint:
        nonlocal made
        made += 1
        return begin()

    begin = store.checkpointer.checkpoint
    monkeypatch.setattr(ConsumeQueue, "_write", write)
    monkeypatch.setattr(store.checkpointer, "checkpoint", counted)
    commit = GroupCommit(store)

    async def send(times: int) -> None:
        for _ in range(times):
            store.appender.put(messages(9), 1)
            await commit.flush()
            store.indexer.confirm(store.log.end)
            await asyncio.sleep(0.01)

    await send(20)
    assert made == 1
    monkeypatch.setattr(group_commit, "RETRY_CHECKPOINT_S", 0.0)
    async with asyncio.timeout(30):
        while made <= 2:  # One that is under way keeps the next one from beginning.
            await send(1)
    monkeypatch.undo()
    monkeypatch.setattr(checkpoint, "CHECKPOINT_BYTES", 1_000)
    monkeypatch.setattr(group_commit, "RETRY_CHECKPOINT_S", 1e9)
    await commit.checkpoint()  # It may be one that had begun before.
    await send(1)
    await commit.checkpoint()
    async with asyncio.timeout(30):
        for _ in range(3):  # Each checkpoint moves something now, so the next one does not wait.
            before = store.state.recovery_point.durable
            while store.state.recovery_point.durable == before:
                await send(1)
    await commit.close()


async def test_the_queues_of_very_many_new_topics_are_written_in_slices(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First messages to thousands of topics: no step writes all their files, and the kernel gets them together."""
    commit = GroupCommit(store)
    count = 700
    store.appender.put([Put(f"New{n}", 0, 0, 0, 1, HOST, b"x", b"") for n in range(count)], 1)
    await commit.flush()
    store.indexer.confirm(store.log.end)
    real, written = store.queues.write_out, []

    def write_out(limit: int | None = None, until: float | None = None) -> None:
        before = len(store.queues.dirty)
        real(limit, until)
        written.append(before - len(store.queues.dirty))

    steps: list[str] = []
    sync_file = files.sync_file
    monkeypatch.setattr(store.queues, "write_out", write_out)
    monkeypatch.setattr(checkpoint, "write_back", lambda path: steps.append("all"))
    monkeypatch.setattr(checkpoint, "sync_file", lambda path: (steps.append(path), sync_file(path)))
    await commit.checkpoint()
    assert store.state.recovery_point.durable == store.log.end
    assert sum(written) == count
    assert max(written) <= 128
    assert steps[0] == "all"
    assert steps.count("all") == 1
    assert len(set(steps)) == count + 1, "each file is synced by itself"
    await commit.close()


def test_writing_a_file_system_back_promises_nothing(tmp_path: Path) -> None:
    files.write_back(str(tmp_path / "none"))
    (tmp_path / "file").write_bytes(b"x")
    files.write_back(str(tmp_path / "file"))
