"""The message store: the log, what is filed from it once confirmed, and how far each of them is.

Synchronous and single-threaded: it belongs to the event loop of its broker. Only `flush` and a checkpoint's `run` go to
another thread (`store.flush` does that). Offsets are bytes of the log. Everything that can be read by queue, key or
time is confirmed, because queues and index get a record when `confirm` passes it and not before (rule 9).
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, Self

from gantry_broker.protocol.message import Record, pack_host
from gantry_broker.store import append, checkpoint, indexing, read, recovery, retention, scrub, truncate
from gantry_broker.store.checkpoint import Checkpoint
from gantry_broker.store.errors import OffsetGone
from gantry_broker.store.files import NO_DESCRIPTORS, fsync_dir
from gantry_broker.store.index.key_index import KeyIndex
from gantry_broker.store.index.queue_table import QueueTable
from gantry_broker.store.log.commit_log import CommitLog, OpenSegment
from gantry_broker.store.log.epochs import EpochFile, LeaderEpochs
from gantry_broker.store.log.record_reader import delay_table
from gantry_broker.store.recovery_point import RecoveryPoint, RecoveryPointFile
from gantry_broker.store.types import Confirmed, Damage, DiskUsage, FlushPoint, Got, Put, StoreConfig, Stored
from gantry_broker.store.unconfirmed import UnconfirmedBuffer

__all__ = ["Confirmed", "MessageStore"]

_log = logging.getLogger(__name__)
SMALL_FLUSH: Final = 256 << 10
"""Bytes."""


def _makes_disk_untrusted(error: BaseException) -> bool:
    return not (isinstance(error, OSError) and error.errno in NO_DESCRIPTORS)


class MessageStore:
    """See the module's docstring. Made by `open`, ended by `close`."""

    def __init__(self, config: StoreConfig, segment_size: int, *, known: bool) -> None:
        """Not for callers: `open` recovers first."""
        settings = config.settings
        self.config = config
        self.damage: Damage | None = None
        """What recovery found amiss that touches acknowledged records."""
        self.was_clean = False
        """Whether the store had been closed as it should be (a new one counts as such)."""
        self.failed: BaseException | None = None
        """Set when the disk failed in a way after which nothing may be appended."""
        self.epochs: LeaderEpochs = ()
        self.epochs_persisted = True
        """Its file says the same; a full disk may have kept it from that."""
        self.reset_in_progress = False
        """A reset has not come to its end: whoever asked for it asks again, and until then the points claim nothing."""
        self.confirmed = 0
        self.flushed = 0
        self.log = CommitLog(config.path / "commitlog", segment_size)
        self.queues = QueueTable(config.path / "consumequeue", settings.mappedFileSizeConsumeQueue)
        self.index: KeyIndex | None = None
        if settings.messageIndexEnable:
            self.index = KeyIndex(config.path / "index", settings.maxHashSlotNum, settings.maxIndexNum, known=known)
        self.delays = delay_table(settings.messageDelayLevel)
        self.verified_from = 0
        """From here on a start has looked at every record; what lies before is checked when it is read."""
        self.on_damage: Callable[[int], None] = lambda at: None
        """Told where a record lies that a read found damaged."""
        self.on_failed: Callable[[], None] = lambda: None
        """Told once, after a write or a flush failed."""
        self.last_store_ms = 0
        """Store time of the newest record; 0 before the first one of this process."""
        self.host = pack_host(*config.store_host)
        self.unconfirmed = UnconfirmedBuffer()
        self.recovery_point_file = RecoveryPointFile(config.path / "config" / "recoveryPoint.json")
        self.epochs_path = config.path / "config" / "epochs.json"
        self.recovery_point = RecoveryPoint()
        self.recovery_point_saved_ms = 0
        self.background_writer: Callable[[Callable[[], None]], None] = lambda work: work()
        """Writes small files that nobody waits for: here, or in another thread while a `GroupCommit` is in use."""
        self.known_directories: set[str] = set()
        self.truncations = 0
        """How often confirmed records were taken back: what was made durable of their queues before says nothing."""
        self.unindexed: dict[int, int] = {}
        """Where stretches of the log begin, and end, that a start could not read when it had to file them."""
        self.renumber = False
        """A queue's entries were replaced: what its next record gets follows from those and the tail."""
        self.recovery_point_unsaved = False
        """The disk refused the last points."""
        self._lock: int | None = None
        self.warned: dict[str, tuple[int | None, float]] = {}
        """Which error the disk had, by what was to be done, and when (of the monotonic clock) that was logged."""

    # Opening and closing

    @classmethod
    def open(cls, config: StoreConfig) -> Self:
        """Open the store at `config.path`, made if there is none, and recover it.

        Stores of RocketMQ 4.9 and 5.x open too: everything in them is confirmed. Raises StoreLocked, StoreError for a
        history that cannot be read, OSError.
        """
        root = config.path
        root.mkdir(parents=True, exist_ok=True)
        lock = recovery.lock_store(root)
        try:
            epochs = EpochFile.load(root / "config" / "epochs.json")
            found = epochs.segment_size if epochs else recovery.segment_size(root)
            store = cls(config, found or config.settings.mappedFileSizeCommitLog, known=epochs is not None)
        except BaseException:
            os.close(lock)
            raise
        store._lock = lock
        try:
            recovery.recover(store, epochs)
        except BaseException:
            store.close(clean=False)
            raise
        return store

    def close(self, clean: bool = True) -> None:
        """Make everything durable and mark the store as cleanly closed. `clean=False` leaves it as a crash would.

        Raises OSError; the files are closed all the same.
        """
        if self._lock is None:
            return
        try:
            if clean and self.failed is None:
                indexing.write_out(self, None)
                self._flush_all()
                if self.epochs_persisted and not self.reset_in_progress and self.queues.oldest_pending() is None:
                    # Not those that were saved last: there may have been no room for later ones.
                    self.recovery_point = replace(checkpoint.current_recovery_point(self), clean=True)
                    self.recovery_point_file.prepare(self.recovery_point, durable=True)()
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

    # The log

    @property
    def start(self) -> int:
        """The first offset that the log still has."""
        return self.log.start

    @property
    def end(self) -> int:
        """The offset after the last record."""
        return self.log.end

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record; 0 for an empty log."""
        return self.epochs[-1].epoch if self.epochs else 0

    def put(self, batch: Sequence[Put], now_ms: int) -> list[Stored]:
        """Append messages, all of them or none, and number them within their queues.

        Raises StoreFull, MessageTooLarge, ValueError for a topic, queue or number that cannot be, FlushFailed after
        the disk failed, OSError.
        """
        return append.put(self, batch, now_ms)

    def begin_epoch(self, epoch: int, control_body: bytes, now_ms: int) -> Stored:
        """Append the control record with which an epoch begins, and add the epoch to the history, durably (rule 7).

        Raises ValueError when `epoch` is not above the last one, and what `put` raises.
        """
        return append.begin_epoch(self, epoch, control_body, now_ms)

    def append_raw(self, at: int, data: bytes) -> int:
        """Append the leader's bytes as they are; answers the new end.

        Raises ValueError when `at` is not `end`, BadRecords when they are not whole, sound records for that place,
        StoreFull, FlushFailed, OSError; then nothing is appended.
        """
        return append.append_raw(self, at, data)

    def read_raw(self, at: int, max_bytes: int, limit: int | None = None) -> bytes:
        """Whole records and fillers from `at` for a follower: about `max_bytes`, at least one; b"" at the end.

        `limit` is a record border, by default `end`; with `confirmed` only what nobody can undo. Raises OffsetGone
        when `at` is not in the log; ValueError when it is not a record border.
        """
        limit = self.log.end if limit is None else min(limit, self.log.end)
        if at < self.log.start:
            raise OffsetGone(at, self.log.start, limit)
        return self.log.whole_records(at, max_bytes, limit)

    def read_soon(self, at: int, size: int) -> None:
        """These bytes of the log are read next: brings them into memory without waiting for the disk."""
        self.log.read_soon(at, size)

    def truncate(self, to: int) -> None:
        """End the log at `to`, with everything that derives from it, durably (rule 5).

        Raises OffsetGone when `to` is outside of the log, ValueError when it lies within a record, OSError. Whether a
        cut below `confirmed` is allowed is for the caller to know (rule 3).
        """
        truncate.truncate(self, to)

    def reset(
        self,
        to: int,
        epochs: Sequence[tuple[int, int]] = (),
        queue_starts: Mapping[tuple[str, int], int] | None = None,
    ) -> None:
        """An empty log that goes on at `to`, the first offset of a segment: the leader no longer has what we lack.

        `history` and `queue_starts` are the leader's: the epochs up to `to`, and the first queue offset at or after
        `to` of every queue (`queue_starts()` when `to` is its `start`). Durable when it returns. Raises ValueError,
        StoreError for an impossible history, OSError.
        """
        truncate.reset(self, to, epochs, queue_starts or {})

    def prepare_master(self) -> None:
        """Everything that `put` needs is kept up with each append, so a promotion waits for nothing."""

    def queue_starts(self) -> dict[tuple[str, int], int]:
        """The first queue offset that is still in the log, of every queue: what a follower needs for `reset`."""
        return {queue.key: queue.first_at(self.log.start) for queue in self.queues.loaded()}

    # What control records tell of queues. It is in memory only, as long as the store is open: whoever keeps the tables
    # that are made of those records tells all of it after each start, and anew after what takes some of them back. A
    # master tells what is not confirmed as well, before it puts anything.

    def drop_topic(self, topic: str, below: int) -> None:
        """Show no record of the topic below this offset of the log any more; queue offsets go on where they were."""
        self.queues.deletion_watermarks[topic] = max(below, self.queues.deletion_watermarks.get(topic, 0))

    def ensure_next(self, topic: str, queue_id: int, number: int) -> None:
        """The next record of the queue gets `number` or more: what came before may have left the log long ago.

        A queue that has records here already knows. Raises ValueError for a topic or queue that cannot be.
        """
        self.queues.begin(topic, queue_id, number)

    def clear_overrides(self) -> None:
        """Records that told of queues were undone: what is left is told anew. Raises OSError."""
        self.queues.clear_overrides()

    # Upkeep, flush and checkpoint

    def confirm(self, offset: int, until: float = math.inf) -> Confirmed:
        """Records below `offset` cannot be undone any more: file them in queues and index.

        Ends early, after some of it, when it is later than `until` by `time.monotonic`. Never goes back. Raises
        ValueError above `end` or within a record; OSError.
        """
        return indexing.confirm(self, offset, until)

    # Upkeep, flush and checkpoint

    def run_periodic_tasks(self, now_ms: int) -> None:
        """Called about ten times a second: writes out a bounded part of what waits in memory, notes how far it is.

        A full disk is no error here; what could not be written is tried again.
        """
        checkpoint.run_periodic_tasks(self, now_ms)

    def flush(self, opened: OpenSegment | None = None) -> FlushPoint:
        """Make the log durable; blocks, may run in another thread. Tell `mark_flushed` what it answers.

        `opened`: what the caller keeps open from one call to the next. Raises OSError, after which the store must not
        be used for writing (`mark_failed`).
        """
        point = FlushPoint(self.log.generation, self.log.end)
        start = min(self.flushed, point.offset)
        if point.offset > start and opened is not None:
            self.log.sync_end(start, point.offset, opened)
        elif point.offset > start:
            self.log.sync(start, point.offset)
        return point

    def write_ahead(self) -> None:
        """Called when a flush has begun. Where flushes are small, and so come often, the next ones are made cheaper."""
        if self.log.end - self.flushed <= SMALL_FLUSH:
            self.log.write_ahead()

    def mark_flushed(self, point: FlushPoint) -> int:
        """Take over what a flush made durable, unless a cut came in between; answers `flushed`."""
        if point.generation == self.log.generation and point.offset > self.flushed:
            self.flushed = min(point.offset, self.log.end)
        return self.flushed

    def acknowledge_damage(self) -> None:
        """Who has to know of `damage` has written it down: the next start finds none. Raises OSError."""
        (self.config.path / "config" / recovery.DAMAGED).unlink(missing_ok=True)

    def mark_failed(self, error: BaseException) -> None:
        """After a failed fsync nobody knows what is on the disk: nothing more is taken until it is opened anew."""
        if self.failed is None or (not self.disk_untrusted and _makes_disk_untrusted(error)):
            _log.error("the disk of %s failed: %s", self.config.path, error)
            self.failed = error
            # Not flushed, which may fail as well: it is for who reads it before the machine boots anew.
            checkpoint.save_recovery_point(self, durable=False, background_writer=True)
            self.on_failed()

    @property
    def disk_untrusted(self) -> bool:
        """Whether the kernel may hold no longer what was written: after any failure but a want of descriptors."""
        return self.failed is not None and _makes_disk_untrusted(self.failed)

    @property
    def checkpoint_due(self) -> bool:
        """Whether so much was filed since the last checkpoint that recovery would take its time."""
        return self.confirmed - self.recovery_point.durable > checkpoint.CHECKPOINT_BYTES

    def checkpoint(self) -> Checkpoint:
        """Write everything out and tell what must be made durable so that recovery after a power loss starts here.

        `run` it, in any thread, then tell `checkpointed`.
        """
        return checkpoint.checkpoint(self)

    def checkpointed(self, done: Checkpoint) -> None:
        """Note a checkpoint that has run; what a cut came between counts for nothing."""
        checkpoint.checkpointed(self, done)

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
    ) -> Got:
        """Messages of a queue from `offset`, as a pull answers them; statuses as RocketMQ's `getMessage`.

        An offset above `max` that unconfirmed records may yet reach is "nothing yet", never "moved" (rule 9). Raises
        OSError.
        """
        return read.get(self, topic, queue_id, offset, max_count, max_bytes, tag_hashes, record_filter)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The first queue offset whose record is still there; 0 for a queue that is not."""
        queue = self.queues.find(topic, queue_id)
        return 0 if queue is None else queue.min_at(self.queues.visible_from(topic, self.log.start))

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The queue offset after the last confirmed record; 0 for a queue that is not there."""
        queue = self.queues.find(topic, queue_id)
        return 0 if queue is None else queue.max

    def next_offset(self, topic: str, queue_id: int) -> int:
        """The queue offset that the next record gets, unconfirmed ones counted."""
        queue = self.queues.find(topic, queue_id)
        return 0 if queue is None else queue.next

    def offset_at_time(self, topic: str, queue_id: int, ms: int) -> int:
        """The first queue offset whose record was stored at `ms` or later; the max offset when there is none."""
        return read.offset_at_time(self, topic, queue_id, ms)

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """When the record was stored (ms); -1 when there is no such record."""
        return read.store_time(self, topic, queue_id, offset)

    def record(self, phys: int) -> Record:
        """The confirmed record at an offset of the log. Raises OffsetGone, or BadRecords when none begins there."""
        return read.record(self, phys)

    def query(
        self, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int, unique: bool = False
    ) -> list[Record]:
        """Records of a topic with that key, stored between the two times (ms), newest first.

        `unique`: only the clients' unique key counts, otherwise also the words of KEYS.
        """
        return read.query(self, topic, key, max_num, begin_ms, end_ms, unique)

    def topics_queues(self) -> dict[str, list[int]]:
        """The queues that have a confirmed record or had one, by topic."""
        found: dict[str, list[int]] = {}
        for queue in self.queues.loaded():
            if queue.max > 0:
                found.setdefault(queue.key[0], []).append(queue.key[1])
        return {topic: sorted(numbers) for topic, numbers in found.items()}

    def next_offsets(self) -> dict[str, dict[int, int]]:
        """By topic and queue what the next record gets, unconfirmed ones counted; of queues that have or had some."""
        found: dict[str, dict[int, int]] = {}
        for queue in self.queues.loaded():
            if queue.next > 0:
                found.setdefault(queue.key[0], {})[queue.key[1]] = queue.next
        return found

    def walk(self, start: int, stop: int | None = None) -> Iterator[Record]:
        """Every record of [start, stop), by default up to `confirmed`. Raises OffsetGone, BadRecords."""
        stop = self.confirmed if stop is None else stop
        for _, data in self.log.chunks(max(start, self.log.start), stop):
            yield from read.records(data)

    def unconfirmed_control(self) -> list[bytes]:
        """Bodies of the control records that are not confirmed yet, in the order of the log. Raises BadRecords;
        ValueError where not even the border of a record is left; OSError."""
        found = [item for batch in self.unconfirmed.batches for item in batch.control if item[0] >= self.confirmed]
        for start, stop in self.unconfirmed.gaps(self.confirmed, self.log.end):
            for offset, data in self.log.chunks(start, stop):
                found += indexing.read_batch(self, offset, data, keys=False).control
        return [body for _, body in sorted(found)]

    def read_bytes(self, at: int, max_bytes: int) -> bytes:
        """Confirmed bytes from any offset, of one segment, fewer at its end. Raises OffsetGone below `start`."""
        if at < self.log.start:
            raise OffsetGone(at, self.log.start, self.confirmed)
        return (
            self.log.read(at, max(0, min(max_bytes, self.confirmed - at, self.log.room(at))))
            if at < self.confirmed
            else b""
        )

    # Damage

    def verify(self, at: int, max_bytes: int) -> int:
        """Look at the confirmed records from the border `at` on, about `max_bytes` of them; answers the next border.

        Raises BadRecords with the offset of the first that is damaged, OffsetGone, OSError.
        """
        return scrub.verify(self, at, max_bytes)

    def verified_bytes(self, at: int, max_bytes: int) -> bytes:
        """What `verify` has looked at, for another member that lacks it. Raises as `check`."""
        return scrub.verified_bytes(self, at, max_bytes)

    def repair(self, at: int, data: bytes) -> None:
        """Put what another member holds from `at` on in the place of what the disk has lost, durably; it blocks.

        Confirmed bytes are the same for all members, so nothing else changes. Raises ValueError when it is not
        confirmed here, BadRecords when `data` is not sound, whole records for that place, OSError.
        """
        scrub.repair(self, at, data)
        try:
            indexing.fill_in(self, at, data)
        except OSError as error:
            indexing.warn_rate_limited(self, "mended records stay unseen until a start files all queues anew", error)

    # Retention

    def disk(self) -> DiskUsage:
        """The file system of the log."""
        return retention.disk_usage(self.log.directory)

    def expire(self, now_ms: int, keep_from: int | None = None) -> int:
        """Remove what retention no longer keeps, never what lies at or above `keep_from`; answers the new `start`.

        Call it about every 10 s. Raises OSError.
        """
        return retention.expire(self, now_ms, keep_from)
