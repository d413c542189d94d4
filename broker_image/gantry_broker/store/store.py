"""The message store: the log, the queues and index of its confirmed records, and how far each of them is.

`MessageStore` is a façade. It builds the parts, each of which names in its constructor what it needs; below all of
them is `StoreState`. The store is synchronous and single-threaded: it belongs to the event loop of its broker. Only
`flush` and `Checkpoint.run` may run in another thread (see `group_commit`). Offsets are bytes of the log. All reads by
queue, key or time return confirmed records only, because a record enters queues and index when `confirm` passes it,
not before (rule 9).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, Self

from gantry_broker.protocol.message import Record, pack_host
from gantry_broker.store.append import Appender
from gantry_broker.store.checkpoint import Checkpoint, Checkpointer
from gantry_broker.store.errors import OffsetGone
from gantry_broker.store.files import NO_DESCRIPTORS, fsync_dir
from gantry_broker.store.index import queue_ends
from gantry_broker.store.index.key_index import KeyIndex
from gantry_broker.store.index.queue_ends import QueueEnds
from gantry_broker.store.index.queue_table import QueueTable
from gantry_broker.store.indexing import Indexer
from gantry_broker.store.log.commit_log import CommitLog, OpenSegment
from gantry_broker.store.log.epochs import EpochCache, EpochFile, LeaderEpochs
from gantry_broker.store.log.record_reader import decode_records, delay_table
from gantry_broker.store.read import LogPieces, Reader
from gantry_broker.store.recovery import Recovery, lock_store, lost_epochs, segment_size
from gantry_broker.store.recovery_point import RecoveryPoint, RecoveryPointFile
from gantry_broker.store.removals import Removals
from gantry_broker.store.retention import Retention, disk_usage
from gantry_broker.store.scrub import Scrubber
from gantry_broker.store.state import StoreState
from gantry_broker.store.truncate import Truncator
from gantry_broker.store.types import (
    Confirmed,
    Damage,
    DiskUsage,
    FlushPoint,
    Got,
    PlainBatch,
    Put,
    Row,
    StoreConfig,
    Stored,
    StoredBatch,
    row_of,
)
from gantry_broker.store.unconfirmed import UnconfirmedBuffer
from gantry_broker.store.warnings import RateLimitedWarnings

__all__ = ["Confirmed", "MessageStore"]

SMALL_FLUSH: Final = 256 << 10
"""Bytes. After smaller flushes, which come often, the log writes zeros ahead."""


class MessageStore:
    """A store on disk. `open` makes one, `close` ends it."""

    def __init__(self, config: StoreConfig, segment_size: int, *, known: bool) -> None:
        """Build the parts. Callers use `open`, which also recovers. `known`: we have had the store open before."""
        settings, root = config.settings, config.path
        self.config = config
        self.state = state = StoreState()
        self.warnings = warnings = RateLimitedWarnings()
        """Warnings about a disk that refuses the same write again and again."""
        self.log = log = CommitLog(root / "commitlog", segment_size)
        self.queues = queues = QueueTable(root / "consumequeue", settings.mappedFileSizeConsumeQueue)
        index: KeyIndex | None = None
        if settings.messageIndexEnable:
            index = KeyIndex(root / "index", settings.maxHashSlotNum, settings.maxIndexNum, known=known)
        self.index = index
        self.epoch_cache = epochs = EpochCache(root / "config" / "epochs.json", segment_size, warnings)
        self.unconfirmed = unconfirmed = UnconfirmedBuffer()
        self.recovery_point_file = point_file = RecoveryPointFile(root / "config" / "recoveryPoint.json")
        delays = delay_table(settings.messageDelayLevel)
        self._scrubber = scrubber = Scrubber(state, log)
        self._indexer = indexer = Indexer(state, log, queues, index, unconfirmed, scrubber, delays, warnings)
        self._checkpointer = checkpointer = Checkpointer(
            root, state, log, queues, index, epochs, indexer, point_file, warnings
        )
        host = pack_host(*config.store_host)
        self._appender = Appender(
            state, log, queues, index, epochs, unconfirmed, indexer, delays, host, checkpointer.mark_failed
        )
        self._reader = Reader(state, log, queues, index, scrubber, indexer)
        self._removals = removals = Removals(warnings)
        self._truncator = Truncator(state, log, queues, index, epochs, unconfirmed, indexer, checkpointer, removals)
        self._retention = Retention(state, log, queues, index, self._reader, removals, settings)
        ends = QueueEnds.load(root / "config" / queue_ends.NAME) if known else None
        queues.use_file_size(None if ends is None else ends.file_size)
        self._recovery = Recovery(root, state, log, queues, index, epochs, indexer, checkpointer, point_file, ends)
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
            found = epochs.segment_size if epochs else segment_size(root)
            store = cls(config, found or config.settings.mappedFileSizeCommitLog, known=epochs is not None)
        except BaseException:
            os.close(lock)
            raise
        store._lock = lock
        try:
            store._recovery.recover(epochs, epochs_lost=lost is not None)
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
            self._removals.close()  # No thread may remove a file once another process has the lock.
            if clean and state.failed is None:
                self._indexer.write_out(None)
                self._flush_all()
                persisted = self.epoch_cache.persisted and self.queues.oldest_pending() is None
                if persisted and not state.reset_in_progress:
                    self._checkpointer.save_clean()
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
            checkpoint = self.checkpoint()
            checkpoint.run()
        except OSError as error:
            if error.errno not in NO_DESCRIPTORS:
                self.mark_failed(error)
            raise
        self.checkpointed(checkpoint)

    # State

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

    @property
    def start(self) -> int:
        """The first offset of the log."""
        return self.log.start

    @property
    def end(self) -> int:
        """The offset after the last record."""
        return self.log.end

    @property
    def confirmed(self) -> int:
        """Records below this offset are confirmed."""
        return self.state.confirmed

    @property
    def flushed(self) -> int:
        """Bytes below this offset are durable."""
        return self.state.flushed

    @property
    def epochs(self) -> LeaderEpochs:
        """The leader epochs of the log."""
        return self.epoch_cache.epochs

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record; 0 for an empty log."""
        return self.epoch_cache.last_epoch

    @property
    def last_store_ms(self) -> int:
        """Store time of the newest record; 0 before the first one of this process."""
        return self.state.last_store_ms

    @property
    def recovery_point(self) -> RecoveryPoint:
        """The last recovery point that was written or is about to be written."""
        return self.state.recovery_point

    @property
    def was_clean(self) -> bool:
        """The store had been closed cleanly; True for a new store."""
        return self.state.was_clean

    @property
    def damage(self) -> Damage | None:
        """Acknowledged records that recovery found missing."""
        return self.state.damage

    @damage.setter
    def damage(self, damage: Damage | None) -> None:
        self.state.damage = damage

    @property
    def on_damage(self) -> Callable[[int], None]:
        """Gets the offset of each record that a read finds damaged."""
        return self.state.on_damage

    @on_damage.setter
    def on_damage(self, callback: Callable[[int], None]) -> None:
        self.state.on_damage = callback

    @property
    def on_queue_damage(self) -> Callable[[str, int, int], None]:
        """Gets topic, queue and queue offset of each damaged entry that a read finds and does not repair itself."""
        return self.state.on_queue_damage

    @on_queue_damage.setter
    def on_queue_damage(self, callback: Callable[[str, int, int], None]) -> None:
        self.state.on_queue_damage = callback

    @property
    def on_failed(self) -> Callable[[], None]:
        """Called once after a write or a flush has failed."""
        return self.state.on_failed

    @on_failed.setter
    def on_failed(self, callback: Callable[[], None]) -> None:
        self.state.on_failed = callback

    @property
    def failed(self) -> BaseException | None:
        """The failure of the disk after which the store takes no writes."""
        return self.state.failed

    @property
    def disk_untrusted(self) -> bool:
        """The kernel may have dropped written bytes: after every failure except a shortage of descriptors."""
        return self.state.disk_untrusted

    # Appending and truncating

    def put(self, batch: Sequence[Put], now_ms: int) -> list[Stored]:
        """Append messages, all or none, and give them queue offsets.

        Raises StoreFull, MessageTooLarge, ValueError for an impossible topic, queue or number, FlushFailed after a
        failure of the disk, OSError.
        """
        return self._appender.put(map(row_of, batch), now_ms)

    def put_rows(self, batch: Sequence[Row], now_ms: int) -> list[Stored]:
        """As `put`, for messages that are rows."""
        return self._appender.put(batch, now_ms)

    def put_batches(self, batches: Sequence[PlainBatch], now_ms: int) -> list[StoredBatch]:
        """As `put`, for plain batches."""
        return self._appender.put_batches(batches, now_ms)

    def begin_epoch(self, epoch: int, control_body: bytes, now_ms: int) -> Stored:
        """Append the control record of a new epoch and add the epoch to the leader epochs, durably (rule 7).

        Raises ValueError when `epoch` is not above the last one, and as `put`.
        """
        return self._appender.begin_epoch(epoch, control_body, now_ms)

    def append_raw(self, at: int, data: bytes) -> int:
        """Append the leader's bytes unchanged; returns the new end.

        Raises ValueError when `at` is not `end`, BadRecords when `data` are not whole, valid records of that place,
        StoreFull, FlushFailed, OSError; nothing is appended then.
        """
        return self._appender.append_raw(at, data)

    def read_raw(self, at: int, max_bytes: int, limit: int | None = None) -> bytes:
        """Whole records and fillers from `at` for a follower: about `max_bytes`, at least one; b"" at the end.

        `limit` is a record boundary, by default `end`; `confirmed` limits the read to final records. Raises OffsetGone
        when `at` is not in the log, ValueError when it is not a record boundary, OSError.
        """
        limit = self.log.end if limit is None else min(limit, self.log.end)
        if at < self.log.start:
            raise OffsetGone(at, self.log.start, limit)
        return self.log.whole_records(at, max_bytes, limit)

    def read_view(self, at: int, max_bytes: int) -> memoryview:
        """As `read_raw` up to `end`, without a copy of what was read."""
        if at < self.log.start:
            raise OffsetGone(at, self.log.start, self.log.end)
        return self.log.whole_records_view(at, max_bytes, self.log.end)

    def read_soon(self, at: int, size: int) -> None:
        """Ask the kernel to read these bytes of the log in the background, for a later read."""
        self.log.read_soon(at, size)

    def truncate(self, to: int) -> None:
        """End the log at `to`, with everything that derives from it, durably (rule 5).

        The caller decides whether a truncation below `confirmed` is allowed (rule 3). Raises OffsetGone when `to` is
        not in the log, ValueError when it lies within a record, OSError.
        """
        self._truncator.truncate(to)

    def reset(
        self,
        to: int,
        epochs: Sequence[tuple[int, int]] = (),
        queue_starts: Mapping[tuple[str, int], int] | None = None,
    ) -> None:
        """Empty the log, durably, and continue it at `to`, the first offset of a segment.

        A follower does so when the leader no longer has the records that the follower needs. `epochs` and
        `queue_starts` come from the leader: the epochs up to `to`, and the first queue offset at or after `to` of every
        queue (`queue_starts()` of a leader that starts at `to`). Raises ValueError, StoreError for impossible epochs,
        OSError.
        """
        self._truncator.reset(to, epochs, queue_starts or {})

    def queue_starts(self) -> dict[tuple[str, int], int]:
        """Return the first queue offset of every queue that is still in the log: a follower needs them for `reset`."""
        return {queue.key: queue.first_at(self.log.start) for queue in self.queues.loaded()}

    # Overrides: deletions and queue offsets from control records, in memory only. The broker, which keeps the tables of
    # these records, sets all overrides after each start, and again after a truncation of some of the records. A leader
    # also sets those of unconfirmed records, before its first append.

    def drop_topic(self, topic: str, below: int) -> None:
        """Hide all records of the topic below this offset of the log; its queue offsets continue."""
        watermarks = self.queues.deletion_watermarks
        watermarks[topic] = max(below, watermarks.get(topic, 0))

    def ensure_next(self, topic: str, queue_id: int, number: int) -> None:
        """Give the next record of the queue the queue offset `number` or a higher one.

        This concerns a queue whose records have left the log; a queue with records knows its next number. Raises
        ValueError for an impossible topic or queue.
        """
        self.queues.override_next(topic, queue_id, number)

    def clear_overrides(self) -> None:
        """Forget all deletions and queue offsets from control records. Raises OSError."""
        self.queues.clear_overrides()

    # Confirming, flushing, checkpoints

    def confirm(self, offset: int, until: float = math.inf) -> Confirmed:
        """Raise the confirmed offset to `offset` and index the records below it.

        Stops early when `time.monotonic` passes `until`, and at unreadable records. A lower offset changes nothing.
        Raises ValueError when `offset` lies above `end` or within a record, BadRecords, OSError; nothing is indexed
        then.
        """
        return self._indexer.confirm(offset, until)

    def run_periodic_tasks(self, now_ms: int) -> None:
        """Write out a bounded number of entries and save the recovery point; call it about ten times a second.

        A full disk is no error: the next call tries again.
        """
        self._checkpointer.run_periodic_tasks(now_ms)

    def flush(self, opened: OpenSegment | None = None) -> FlushPoint:
        """Make the log durable; blocks, may run in another thread. `mark_flushed` takes the result.

        `opened`: the segment that the caller keeps open between calls. Raises OSError, after which the caller must call
        `mark_failed`.
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

    def acknowledge_damage(self) -> None:
        """Forget `damage` durably, so that the next start finds none. Raises OSError.

        The caller has recorded the damage durably before.
        """
        self._recovery.acknowledge_damage()

    def mark_failed(self, error: BaseException) -> None:
        """Take no more writes: after a failed write or fsync the content of the disk is unknown."""
        self._checkpointer.mark_failed(error)

    @property
    def checkpoint_due(self) -> bool:
        """Recovery would have to read many bytes of the log."""
        return self._checkpointer.due

    def checkpoint(self) -> Checkpoint:
        """Write everything out; returns a checkpoint for `run`, in any thread, and then `checkpointed`."""
        return self._checkpointer.checkpoint()

    def checkpointed(self, done: Checkpoint) -> None:
        """Record a checkpoint that has run. It does not count when a truncation came in between."""
        self._checkpointer.checkpointed(done)

    def set_background_writer(self, writer: Callable[[Callable[[], None]], None] | None) -> None:
        """Set the function that runs work on the disk that no caller waits for, in its order; None: at once.

        It writes small files, removes expired ones, and looks how full the disk is.
        """
        self._checkpointer.set_background_writer(writer)
        self._removals.in_background = self._in_background = writer or _now

    def in_background(self, work: Callable[[], None]) -> None:
        """Run work on the disk where `set_background_writer` says."""
        self._in_background(work)

    # Reading: confirmed records only

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int,
        tag_hashes: frozenset[int] | None = None,
        record_filter: Callable[[Record], bool] | None = None,
        enough: Callable[[], bool] | None = None,
    ) -> Got:
        """Read messages of a queue from `offset`. Source of the statuses: `DefaultMessageStore.getMessage`.

        `enough` is asked before each further record that `record_filter` would look at; True ends the read there, with
        what was found and the offset to go on from.

        An offset above `max` that unconfirmed records may yet reach is "nothing yet", never "moved" (rule 9). Raises
        OSError.
        """
        return self._reader.get(topic, queue_id, offset, max_count, max_bytes, tag_hashes, record_filter, enough)

    def together(self) -> LogPieces:
        """Return reads of records at the end of the log, many in one step without a pause."""
        return self._reader.together()

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the first queue offset whose record is still there; 0 for an unknown queue."""
        return self._reader.min_offset(topic, queue_id)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset after the last confirmed record; 0 for an unknown queue."""
        queue = self.queues.find(topic, queue_id)
        return 0 if queue is None else queue.max

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """`min_offset` and `max_offset` in one step."""
        queue = self.queues.find(topic, queue_id)
        return (0, 0) if queue is None else (self._reader.min_of(queue), queue.max)

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the next record, after unconfirmed ones too."""
        queue = self.queues.find(topic, queue_id)
        return 0 if queue is None else queue.next

    def offset_at_time(self, topic: str, queue_id: int, ms: int, *, upper: bool = False) -> int:
        """Return the first queue offset whose record was stored at `ms` or later; the max offset without one.

        `upper`: the last one whose record was stored at `ms` or earlier; 0 without one. Store times need not rise: a
        clock may have been set back, or the next leader's may have been behind.
        """
        return self._reader.offset_at_time(topic, queue_id, ms, upper=upper)

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Store time (ms) of a record; -1 without such a record."""
        return self._reader.store_time(topic, queue_id, offset)

    def place(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Return the offset in the log of a queue's first record at or after a queue offset; None without one.

        Raises OSError.
        """
        queue = self.queues.find(topic, queue_id)
        if queue is None:
            return None
        offset = max(offset, queue.first)
        if offset < queue.max and (phys := queue.entry(offset)[0]) >= self.log.start:
            return phys
        offset = max(offset, self.min_offset(topic, queue_id))
        return queue.entry(offset)[0] if offset < queue.max else None

    def record(self, phys: int) -> Record:
        """Return the confirmed record at an offset of the log, which must be a boundary of records.

        Raises OffsetGone, BadRecords when none begins there, OSError.
        """
        return self._reader.record(phys)

    def named_record(self, phys: int) -> Record:
        """Return the confirmed record at an offset that a client names: one that its queue has.

        The bytes of a message may look like a record that lies at that very offset, so `record` alone is no proof.
        Raises as `record`.
        """
        return self._reader.named_record(phys)

    def query(
        self,
        topic: str,
        key: str,
        max_num: int,
        begin_ms: int,
        end_ms: int,
        unique: bool = False,
        max_bytes: int = 1 << 62,
    ) -> list[Record]:
        """Return records of a topic with that key, stored between the two times (ms), newest first.

        `unique`: only the unique key of the client counts, otherwise also the words of KEYS. The query ends once the
        records that it has read have `max_bytes` bytes.
        """
        return self._reader.query(topic, key, max_num, begin_ms, end_ms, unique, max_bytes)

    def topics_queues(self) -> dict[str, list[int]]:
        """Return the queues that have or had a confirmed record, by topic."""
        found: dict[str, list[int]] = {}
        for queue in self.queues.loaded():
            if queue.max > 0:
                found.setdefault(queue.key[0], []).append(queue.key[1])
        return {topic: sorted(numbers) for topic, numbers in found.items()}

    def queue_numbers(self, topic: str) -> list[int]:
        """Return the queues of a topic that exist on this disk."""
        known = self.queues.topics.get(topic)
        return [] if known is None else list(known.queues)

    def next_offsets(self, keys: Iterable[tuple[str, int]]) -> dict[str, dict[int, int]]:
        """Return the queue offset of the next record by topic and queue, of those queues that have or had a record.

        Raises OSError.
        """
        found: dict[str, dict[int, int]] = {}
        for key in keys:
            queue = self.queues.find(*key)
            if queue is not None and queue.next > 0:
                found.setdefault(queue.key[0], {})[queue.key[1]] = queue.next
        return found

    def walk(self, start: int, stop: int | None = None) -> Iterator[Record]:
        """Every record of [start, stop), by default up to `confirmed`. Raises OffsetGone, BadRecords."""
        stop = self.state.confirmed if stop is None else stop
        for _, data in self.log.chunks(max(start, self.log.start), stop):
            yield from decode_records(data)

    def unconfirmed_control(self) -> list[bytes]:
        """Bodies of the unconfirmed control records, in the order of the log.

        Raises BadRecords, ValueError when not even a record boundary is readable, OSError.
        """
        confirmed = self.state.confirmed
        found = [item for batch in self.unconfirmed.batches for item in batch.control if item[0] >= confirmed]
        for start, stop in self.unconfirmed.gaps(confirmed, self.log.end):
            for offset, data in self.log.chunks(start, stop):
                found += self._indexer.read_batch(offset, data, keys=False).control
        return [body for _, body in sorted(found)]

    def read_bytes(self, at: int, max_bytes: int) -> bytes:
        """Return confirmed bytes of one segment from any offset, fewer at its end.

        Raises OffsetGone below `start`, OSError.
        """
        confirmed = self.state.confirmed
        if at < self.log.start:
            raise OffsetGone(at, self.log.start, confirmed)
        if at >= confirmed:
            return b""
        return self.log.read(at, max(0, min(max_bytes, confirmed - at, self.log.room(at))))

    # Damage

    def verify(self, at: int, max_bytes: int) -> int:
        """Verify about `max_bytes` of confirmed records from the boundary `at` on; returns the next boundary.

        Raises BadRecords with the offset of the first damaged record, OffsetGone, OSError.
        """
        return self._scrubber.verify(at, max_bytes)

    def verified_bytes(self, at: int, max_bytes: int) -> bytes:
        """Return the bytes that `verify` covers, for another member. Raises as `verify`."""
        return self._scrubber.verified_bytes(at, max_bytes)

    @property
    def unindexed_from(self) -> int:
        """The first record that recovery could not read and so could not index; beyond the log without one."""
        return min(self.state.unindexed, default=1 << 63)

    def check_queues(self, at: int, stop: int) -> None:
        """Compare the queue entries of the records of [at, stop), whole records, and repair those that differ.

        Raises BadRecords, ValueError, OSError.
        """
        self._indexer.check_entries(at, stop)

    def repair_queue(self, topic: str, queue_id: int, number: int) -> Iterator[None]:
        """Write the damaged entries around a queue offset again; one piece of the log at each step. Raises OSError."""
        queue = self.queues.find(topic, queue_id)
        if queue is not None and queue.first <= number < queue.max:
            yield from self._indexer.repair_entries(queue, number)

    def repair(self, at: int, data: bytes) -> None:
        """Overwrite the log from `at` on with another member's bytes, durably; blocks on the disk.

        All members have the same confirmed bytes, so nothing else changes. Raises ValueError when the range is not
        confirmed, BadRecords when `data` are not whole, valid records of that place, OSError.
        """
        self._scrubber.repair(at, data)
        try:
            self._indexer.fill_in(at, data)
        except OSError as error:
            self.warnings.warn("repaired records stay hidden until a start rebuilds all queues", error)

    # Retention

    def disk(self) -> DiskUsage:
        """Usage of the file system of the log. Blocks on the disk: the event loop asks `DiskWatch`. Raises OSError."""
        return disk_usage(self.log.directory)

    @property
    def removed_at(self) -> float:
        """When the last expired file was removed, by the monotonic clock; infinity: some wait for it. A usage of the
        disk that was read before is too high.
        """
        return self._removals.ended

    def expire(self, now_ms: int, keep_from: int | None = None, disk: DiskUsage | None = None) -> int:
        """Remove expired segments, none at or above `keep_from`. Call it about every 10 s.

        `disk`: None when it is not known; then no segment goes for lack of room. Returns the offset below which no
        file has records: the new `start` may be higher while the files wait for their removal. Raises OSError.
        """
        return self._retention.expire(now_ms, keep_from, disk)

    def remove_before(self, offset: int) -> None:
        """Remove the segments below `offset`, the first offset of a segment, and what refers only to them.

        The files go in the background. Raises OSError when a queue cannot be read.
        """
        self._retention.remove_before(offset)


def _now(work: Callable[[], None]) -> None:
    work()
