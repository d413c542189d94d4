"""The message store: the log, the queues and index of its confirmed records, and how far each of them is.

`MessageStore` builds the parts, each of which names in its constructor what it needs; below all of them is
`StoreState`. Callers use the parts: `appender`, `indexer` (which confirms), `reader`, `queues`, `log` and so on. The
class itself has only what needs several of them. The store is synchronous and single-threaded: it belongs to the event
loop of its broker. Only `flush` and `Checkpoint.run` may run in another thread (see `group_commit`). Offsets are bytes
of the log. All reads by queue, key or time return confirmed records only, because a record enters queues and index when
`Indexer.confirm` passes it, not before (rule 9).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from typing import Final, Self

from gantry_broker.protocol.message import pack_host
from gantry_broker.store.append import Appender
from gantry_broker.store.checkpoint import Checkpointer
from gantry_broker.store.compaction.table import CompactionTable
from gantry_broker.store.files import NO_DESCRIPTORS, fsync_dir
from gantry_broker.store.index import queue_ends
from gantry_broker.store.index.key_index import KeyIndex
from gantry_broker.store.index.queue_ends import QueueEnds
from gantry_broker.store.index.queue_table import QueueTable
from gantry_broker.store.indexing import Indexer
from gantry_broker.store.log.commit_log import CommitLog, OpenSegment
from gantry_broker.store.log.epochs import EpochCache, EpochFile
from gantry_broker.store.log.record_reader import delay_table
from gantry_broker.store.read import Reader
from gantry_broker.store.recovery import Recovery, lock_store, lost_epochs, segment_size
from gantry_broker.store.recovery_point import RecoveryPointFile
from gantry_broker.store.removals import Removals
from gantry_broker.store.retention import Retention
from gantry_broker.store.scrub import Scrubber
from gantry_broker.store.state import StoreState
from gantry_broker.store.truncate import Truncator
from gantry_broker.store.types import (
    FlushPoint,
    StoreConfig,
)
from gantry_broker.store.unconfirmed import UnconfirmedBuffer
from gantry_broker.store.warnings import RateLimitedWarnings

SMALL_FLUSH: Final = 256 << 10
"""Bytes. After smaller flushes, which come often, the log writes zeros ahead."""


class MessageStore:
    """A store on disk. `open` makes one, `close` ends it."""

    def __init__(self, config: StoreConfig, segment_size: int, *, opened_before: bool) -> None:
        """Build the parts. Callers use `open`, which also recovers. `opened_before`: by us."""
        settings, root = config.settings, config.path
        self.config = config
        self.state = state = StoreState()
        self.warnings = warnings = RateLimitedWarnings()
        """Warnings about a disk that refuses the same write again and again."""
        self.log = log = CommitLog(root / "commitlog", segment_size)
        self.queues = queues = QueueTable(root / "consumequeue", settings.mappedFileSizeConsumeQueue)
        index: KeyIndex | None = None
        if settings.messageIndexEnable:
            index = KeyIndex(root / "index", settings.maxHashSlotNum, settings.maxIndexNum, own_files=opened_before)
        self.index = index
        self.epoch_cache = epochs = EpochCache(root / "config" / "epochs.json", segment_size, warnings)
        self.unconfirmed = unconfirmed = UnconfirmedBuffer()
        self.recovery_point_file = point_file = RecoveryPointFile(root / "config" / "recoveryPoint.json")
        delays = delay_table(settings.messageDelayLevel)
        self.scrubber = scrubber = Scrubber(state, log)
        self.indexer = indexer = Indexer(state, log, queues, index, unconfirmed, scrubber, delays, warnings)
        self.checkpointer = checkpointer = Checkpointer(
            root, state, log, queues, index, epochs, indexer, point_file, warnings
        )
        host = pack_host(*config.store_host)
        self.appender = Appender(
            state, log, queues, index, epochs, unconfirmed, indexer, delays, host, checkpointer.mark_failed
        )
        self.compaction = compaction = CompactionTable(state, log, queues)
        self.reader = Reader(state, log, queues, index, scrubber, indexer, compaction)
        self.removals = removals = Removals(warnings)
        self.truncator = Truncator(state, log, queues, index, epochs, unconfirmed, indexer, checkpointer, removals)
        self.retention = Retention(state, log, queues, index, self.reader, removals, settings)
        ends = QueueEnds.load(root / "config" / queue_ends.NAME) if opened_before else None
        queues.use_file_size(None if ends is None else ends.file_size)
        self.recovery = Recovery(root, state, log, queues, index, epochs, indexer, checkpointer, point_file, ends)
        self._lock: int | None = None
        self._in_background: Callable[[Callable[[], None]], None] = _now

    # Opening and closing

    @classmethod
    def open(cls, config: StoreConfig) -> Self:
        """Open the store at `config.path`, or make a new one, and recover it.

        It also opens stores of RocketMQ 4.9 and 5.x: all their records count as confirmed. Raises StoreLocked,
        StoreError for invalid leader epochs, OSError.
        """
        root = config.path
        root.mkdir(parents=True, exist_ok=True)
        lock = lock_store(root)
        try:
            epochs = EpochFile.load(root / "config" / "epochs.json")
            lost = None if epochs else lost_epochs(root)
            epochs = epochs or lost
            stored_size = epochs.segment_size if epochs else segment_size(root)
            store = cls(
                config, stored_size or config.settings.mappedFileSizeCommitLog, opened_before=epochs is not None
            )
        except BaseException:
            os.close(lock)
            raise
        store._lock = lock
        try:
            store.recovery.recover(epochs, epochs_lost=lost is not None)
            store.compaction.apply()
        except BaseException:
            store.close(clean=False)
            raise
        return store

    def close(self, clean: bool = True) -> None:
        """Make everything durable and mark the store as cleanly closed; `clean=False` leaves it as a crash would.

        Raises OSError; the files are closed all the same.
        """
        if self._lock is None:
            return
        state = self.state
        try:
            self.removals.close()  # No thread may remove a file once another process has the lock.
            if clean and state.failed is None:
                self.indexer.write_out(None)
                self._flush_all()
                persisted = self.epoch_cache.persisted and self.queues.oldest_pending() is None
                if persisted and not state.reset_in_progress:
                    self.checkpointer.save_clean()
                    (self.config.path / "abort").unlink(missing_ok=True)
                    fsync_dir(self.config.path)
        finally:
            self.log.close()
            self.queues.close()
            if self.index is not None:
                self.index.close()
            os.close(self._lock)
            self._lock = None

    def _flush_all(self) -> None:
        try:
            self.mark_flushed(self.flush())
            checkpoint = self.checkpointer.checkpoint()
            checkpoint.run()
        except OSError as error:
            if error.errno not in NO_DESCRIPTORS:
                self.checkpointer.mark_failed(error)
            raise
        self.checkpointer.checkpointed(checkpoint)

    def check_invariants(self) -> None:
        """Raise AssertionError if the parts contradict each other; for tests."""
        log, confirmed, epochs = self.log, self.state.confirmed, self.epoch_cache.epochs
        # Rule 9: queues and index are built from records below `confirmed`, which a truncation never leaves above.
        assert log.start <= confirmed <= log.end, f"confirmed {confirmed} is not in [{log.start}, {log.end}]"
        assert self.state.flushed <= log.end, f"{self.state.flushed} are durable of a log that ends at {log.end}"
        self.unconfirmed.check_invariants(confirmed, log.end)
        assert all(a.epoch < b.epoch and a.start < b.start for a, b in pairwise(epochs)), f"{epochs} do not rise"
        assert not epochs or epochs[-1].start < log.end or log.start == log.end, (
            "an epoch without its record"
        )  # Rule 7.
        assert all(0 <= start < end <= log.end for start, end in self.state.unindexed.items()), "stretches not indexed"

    def queue_starts(self) -> dict[tuple[str, int], int]:
        """Return the first queue offset of every queue that is still in the log.

        A follower needs them for `Truncator.reset`.
        """
        return {queue.key: queue.first_at(self.log.start) for queue in self.queues.loaded()}

    # Flushing

    def flush(self, opened: OpenSegment | None = None) -> FlushPoint:
        """Make the log durable; blocks, may run in another thread. `mark_flushed` takes the result.

        `opened`: the segment that the caller keeps open between calls. Raises OSError, after which the caller must call
        `Checkpointer.mark_failed`.
        """
        point = FlushPoint(self.log.generation, self.log.end)
        start = min(self.state.flushed, point.offset)
        if point.offset > start and opened is not None:
            self.log.sync_end(start, point.offset, opened)
        elif point.offset > start:
            self.log.sync(start, point.offset)
        return point

    def flush_of_one_file(self, opened: OpenSegment) -> tuple[int, FlushPoint] | None:
        """Return a descriptor of `opened`, and what its fdatasync covers; None: only `flush` does. Raises OSError."""
        point = FlushPoint(self.log.generation, self.log.end)
        start = min(self.state.flushed, point.offset)
        fd = self.log.file_to_sync(start, point.offset, opened) if point.offset > start else None
        return None if fd is None else (fd, point)

    def write_ahead(self) -> None:
        """Make the next flushes cheaper if flushes are small; call it after the start of a flush."""
        if self.log.end - self.state.flushed <= SMALL_FLUSH:
            self.log.write_ahead()

    def mark_flushed(self, point: FlushPoint) -> int:
        """Take over the result of a flush, unless a truncation came in between; returns `flushed`."""
        state = self.state
        if point.generation == self.log.generation and point.offset > state.flushed:
            state.flushed = min(point.offset, self.log.end)
        return state.flushed

    # Work on the disk that no caller waits for

    def set_background_writer(self, writer: Callable[[Callable[[], None]], None] | None) -> None:
        """Set the function that runs work on the disk that no caller waits for, in its order; None: at once.

        It writes small files, removes expired ones, and looks how full the disk is.
        """
        self.checkpointer.set_background_writer(writer)
        self.removals.in_background = self._in_background = writer or _now

    def in_background(self, work: Callable[[], None]) -> None:
        """Run work on the disk where `set_background_writer` says."""
        self._in_background(work)

    # Damage

    def repair(self, at: int, data: bytes) -> None:
        """Overwrite the log from `at` on with another member's bytes, durably; blocks on the disk.

        All members have the same confirmed bytes, so nothing else changes. Raises ValueError when the range is not
        confirmed, BadRecords when `data` are not whole, valid records of that place, OSError.
        """
        self.scrubber.repair(at, data)
        try:
            self.indexer.fill_in(at, data)
        except OSError as error:
            self.warnings.warn("repaired records stay hidden until a start rebuilds all queues", error)


def _now(work: Callable[[], None]) -> None:
    work()
