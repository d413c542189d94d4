"""The message store: the log, what is filed from it once confirmed, and how far each of them is.

Synchronous and single-threaded: it belongs to the event loop of its broker. Only `flush` and a checkpoint's `run` go to
another thread (`store.flush` does that). Offsets are bytes of the log. Everything that can be read by queue, key or
time is confirmed, because queues and index get a record when `confirm` passes it and not before (rule 9).
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Final, Self

from gantry_broker.protocol.codes import CONTROL_TOPIC, SysFlag
from gantry_broker.protocol.message import (
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MAX_PROPERTIES,
    PHYS_OFFSET_AT,
    RECORD_V4,
    Record,
    encode_record,
    format_properties,
    pack_host,
)
from gantry_broker.store import reading, recovery, retention
from gantry_broker.store.commitlog import CommitLog, segment_bases
from gantry_broker.store.consumequeue import ENTRY, ConsumeQueue
from gantry_broker.store.errors import BadRecords, FlushFailed, MessageTooLarge, OffsetGone, StoreFull, StoreLocked
from gantry_broker.store.files import NO_ROOM, fsync_dir, sync_file
from gantry_broker.store.history import (
    EPOCH_PROPERTY,
    FOREIGN,
    EpochFile,
    EpochStart,
    History,
    check_history,
    cut_history,
    extended,
)
from gantry_broker.store.keyindex import BATCH, KeyIndex
from gantry_broker.store.points import Points, boot_id, save_checkpoint
from gantry_broker.store.queues import QueueTable
from gantry_broker.store.records import FILLER_MIN, SIZE_AND_MAGIC, delay_table, filler, tags_code
from gantry_broker.store.tail import Batch, Tail, parse
from gantry_broker.store.types import Confirmed, Damage, DiskUsage, FlushPoint, Got, Put, StoreConfig, Stored

__all__ = ["MessageStore"]

_log = logging.getLogger(__name__)
_U16: Final = tuple(n.to_bytes(2, "big") for n in range(2048))
_WRITE_OUT_AFTER: Final = 20_000
"""Entries that wait in memory at most before they are written out, whatever the timer does."""
_CATCH_UP: Final = 1 << 20
"""Bytes of the log that the index reads in one go when it is behind."""
_POINTS_INTERVAL_MS: Final = 1_000


class Checkpoint:
    """What has to be made durable so that recovery need not look below `offset`. `run` may go to another thread."""

    def __init__(self, offset: int, index: int, generation: int, files: list[str], directories: list[str]) -> None:
        self.offset = offset
        self.index = index
        self.generation = generation
        self._files = files
        self._directories = directories

    def run(self) -> None:
        """Blocks on the disk. Raises OSError."""
        for path in self._files:
            sync_file(path)
        for path in self._directories:
            with contextlib.suppress(FileNotFoundError):
                fsync_dir(path)


class MessageStore:
    """See the module's docstring. Made by `open`, ended by `close`."""

    def __init__(self, config: StoreConfig, segment_size: int) -> None:
        """Not for callers: `open` recovers first."""
        settings = config.settings
        self.config = config
        self.damage: Damage | None = None
        """What recovery found amiss that touches acknowledged records."""
        self.was_clean = False
        """Whether the store had been closed as it should be (a new one counts as such)."""
        self.failed: BaseException | None = None
        """Set when the disk failed in a way after which nothing may be appended."""
        self.history: History = ()
        self.confirmed = 0
        self.flushed = 0
        self.log = CommitLog(config.path / "commitlog", segment_size)
        self.queues = QueueTable(config.path / "consumequeue", settings.mappedFileSizeConsumeQueue)
        self.index: KeyIndex | None = None
        if settings.messageIndexEnable:
            self.index = KeyIndex(config.path / "index", settings.maxHashSlotNum, settings.maxIndexNum)
        self.delays = delay_table(settings.messageDelayLevel)
        self.last_store_ms = 0
        """Store time of the newest record; 0 before the first one of this process."""
        self._host = pack_host(*config.store_host)
        self._tail = Tail()
        self._since_write_out = 0
        self._points_path = config.path / "config" / "storePoint.json"
        self._epochs_path = config.path / "config" / "epochs.json"
        self._points = Points()
        self._points_saved_ms = 0
        self._known_directories: set[str] = set()
        self._lock: int | None = None
        self._complained = ""

    # Opening and closing

    @classmethod
    def open(cls, config: StoreConfig) -> Self:
        """Open the store at `config.path`, made if there is none, and recover it.

        Stores of RocketMQ 4.9 and 5.x open too: everything in them is confirmed. Raises StoreLocked, StoreError for a
        history that cannot be read, OSError.
        """
        root = config.path
        root.mkdir(parents=True, exist_ok=True)
        lock = _lock(root)
        try:
            epochs = EpochFile.load(root / "config" / "epochs.json")
            size = epochs.segment_size if epochs else _segment_size(root) or config.settings.mappedFileSizeCommitLog
            store = cls(config, size)
            store._lock = lock
            store._recover(epochs)
        except BaseException:
            os.close(lock)
            raise
        return store

    def _recover(self, epochs: EpochFile | None) -> None:
        log = self.log
        points = Points.load(self._points_path)
        plan = recovery.plan(self.config.path, log, points, known=epochs is not None)
        bases = log.bases()
        log.start = recovery._start(bases, log.segment_size)
        found = recovery.scan(log, plan.scan_from) if bases else recovery.Scan(0, "an empty store")
        log.end = found.end
        if bases:
            log.cut(found.end)
        self.last_store_ms = found.last_ms
        before = points or Points()
        if found.end < max(before.flushed, before.confirmed):
            self.damage = Damage(found.end, found.reason, before.flushed, before.confirmed)
            _log.error("the log ends at %d (%s), but was known sound up to %s", found.end, found.reason, self.damage)
        self.was_clean = plan.clean or not bases
        if plan.foreign:
            self.history = FOREIGN
            self.confirmed = log.end
        else:
            self.history = cut_history(extended(epochs.history if epochs else (), found.epochs), log.end)
            self.confirmed = min(max(before.confirmed, log.start), log.end)
        if epochs is None or epochs.history != self.history:
            self._set_history(self.history)
        self._mark_open()
        trusted = min(self.confirmed if plan.trusted is None else plan.trusted, self.confirmed)
        self._points = before.at_most(trusted)
        if not plan.clean or trusted != plan.trusted:
            self.queues.cut(trusted)
        self._refile(trusted)
        self._recover_index(plan)
        for offset, data in log.chunks(self.confirmed, log.end):
            self._remember(self._parse(offset, data))
        log.sync(min(max(before.flushed, log.start), log.end), log.end)
        self.flushed = log.end
        self._save_points(durable=True)

    def _mark_open(self) -> None:
        """From here on only a clean close is one. A disk too full for the mark loses the old one instead."""
        try:
            with open(self.config.path / "abort", "w") as mark:
                mark.write(str(os.getpid()))
        except OSError as error:
            _log.warning("cannot write %s: %s", self.config.path / "abort", error)
            self._points_path.unlink(missing_ok=True)

    def _refile(self, start: int) -> None:
        """Give the queues what they lack of [start, confirmed)."""
        for offset, data in self.log.chunks(start, self.confirmed):
            for queue, number, entry in self._parse(offset, data, keys=False).entries:
                queue.add(number, entry)
                queue.next = queue.max
                if queue.pending:
                    self.queues.dirty[queue] = None
            self._write_out(None)

    def _recover_index(self, plan: recovery.Plan) -> None:
        index = self.index
        if index is None:
            return
        index.position = self.confirmed
        if plan.trusted_index is not None:
            limit = min(plan.trusted_index, self.confirmed)
            if not plan.clean:
                index.cut(limit, rebuild=plan.rebooted)
            index.position = limit
        index.behind = index.position < self.confirmed
        while index.behind and self._catch_up():
            pass

    def close(self, clean: bool = True) -> None:
        """Make everything durable and mark the store as cleanly closed. `clean=False` leaves it as a crash would.

        Raises OSError; the files are closed all the same.
        """
        if self._lock is None:
            return
        try:
            if clean and self.failed is None:
                self._write_out(None)
                if self.index is not None:
                    self.index.drain()
                point = self.flush()
                self.mark_flushed(point)
                checkpoint = self.checkpoint()
                checkpoint.run()
                self.checkpointed(checkpoint)
                self._points = replace(self._points, clean=True)
                self._points.save(self._points_path, durable=True)
                (self.config.path / "abort").unlink(missing_ok=True)
                fsync_dir(self.config.path)
        finally:
            self.log.close()
            self.queues.close()
            if self.index is not None:
                self.index.close()
            os.close(self._lock)
            self._lock = None

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
        return self.history[-1].epoch if self.history else 0

    def put(self, batch: Sequence[Put], now_ms: int) -> list[Stored]:
        """Append messages, all of them or none, and number them within their queues.

        Raises StoreFull, MessageTooLarge, ValueError for a topic that cannot be, FlushFailed after the disk failed,
        OSError.
        """
        log = self.log
        phys = piece_at = log.end
        segment = log.segment_size
        room = segment - phys % segment
        table = self.queues
        topics = table.topics
        host = self._host
        plain = len(host) == 8
        pack, pack_entry, crc32 = RECORD_V4.pack, ENTRY.pack, zlib.crc32
        lengths, short = _U16, len(_U16)
        made = Batch(phys, phys)
        made.checked = True
        made.last_ms = now_ms
        entries = made.entries
        indexed = self.index is not None and not self.index.behind
        keys: list[tuple[int, int, int]] = []
        pieces: list[tuple[int, bytes]] = []
        parts: list[bytes] = []
        stored: list[Stored] = []
        try:
            if self.failed is not None:
                raise FlushFailed(f"the store takes nothing after: {self.failed}")
            for message in batch:
                topic = topics.get(message.topic) or table.topic(message.topic)
                body = message.body
                properties = message.properties
                size = topic.fixed + len(body) + len(properties)
                sys_flag = message.sys_flag
                quick = plain and len(message.born_host) == 8 and len(properties) < short
                if quick:
                    sys_flag &= ~0x30
                else:
                    size += len(message.born_host) + len(host) - 16
                    if len(properties) > MAX_PROPERTIES:
                        raise MessageTooLarge(f"properties have {len(properties)} bytes; {MAX_PROPERTIES} fit")
                if size + FILLER_MIN > room:
                    if size + FILLER_MIN > segment:
                        raise MessageTooLarge(f"a record of {size} bytes fits no segment of {segment} bytes")
                    parts.append(filler(room))
                    pieces.append((piece_at, b"".join(parts)))
                    parts = []
                    phys = piece_at = phys + room
                    room = segment
                if sys_flag & 12 in (0, 8):
                    queue = topic.queues.get(message.queue_id)
                    if queue is None or queue.next < 0:
                        queue = table.queue(topic, message.queue_id)
                    number = queue.next
                    queue.next = number + 1
                    code = message.tags_hash
                    if topic.is_schedule:
                        code = tags_code(topic.name, properties, now_ms, self.delays)
                    entries.append((queue, number, pack_entry(phys, size, code)))
                else:
                    number = 0
                if quick:
                    parts += (
                        pack(
                            size,
                            topic.magic,
                            crc32(body) & 0x7FFFFFFF,
                            message.queue_id,
                            message.flag,
                            number,
                            phys,
                            sys_flag,
                            message.born_ms,
                            message.born_host,
                            now_ms,
                            host,
                            message.reconsume_times,
                            message.prepared_offset,
                            len(body),
                        ),
                        body,
                        topic.tail,
                        lengths[len(properties)],
                        properties,
                    )
                else:
                    parts.append(_encode(message, topic.name, number, phys, now_ms, host))
                if indexed and sys_flag & 12 != 12:
                    for key in message.keys:
                        keys.append((topic.hasher.hash(key), phys, now_ms))
                if topic.is_control:
                    made.control.append((phys, body))
                stored.append(Stored(phys, size, number))
                phys += size
                room -= size
            pieces.append((piece_at, b"".join(parts)))
            log.write(pieces, phys)
        except BaseException as error:
            for queue, _, _ in entries:
                queue.next -= 1
            if isinstance(error, OSError):
                self.failed = error
            raise
        made.end = phys
        made.keys = keys if indexed or self.index is None else None
        self.last_store_ms = now_ms
        if phys != made.start:
            self._tail.push(made)
        return stored

    def begin_epoch(self, epoch: int, control_body: bytes, now_ms: int) -> Stored:
        """Append the control record with which an epoch begins, and add the epoch to the history, durably (rule 7).

        Raises ValueError when `epoch` is not above the last one, and what `put` raises.
        """
        if self.history and epoch <= self.last_epoch:
            raise ValueError(f"epoch {epoch} does not come after {self.last_epoch}")
        end = self.end
        before = self.history
        record = Put(
            topic=CONTROL_TOPIC,
            queue_id=0,
            flag=0,
            sys_flag=0,
            born_ms=now_ms,
            born_host=self._host,
            body=control_body,
            properties=format_properties({EPOCH_PROPERTY: str(epoch)}),
        )
        stored = self.put([record], now_ms)[0]
        try:
            self._set_history((*before, EpochStart(epoch, stored.phys_offset)))
        except OSError as error:
            self._undo(end)
            if error.errno in NO_ROOM:
                raise StoreFull(f"no room for {self._epochs_path}: {error.strerror}") from error
            raise
        return stored

    def _set_history(self, history: History) -> None:
        EpochFile(self.log.segment_size, history).save(self._epochs_path)
        self.history = history

    def _undo(self, end: int) -> None:
        """Take back what was appended last; nothing of it is confirmed."""
        self.log.cut(end)
        self.flushed = min(self.flushed, end)
        self._shorten_tail(end)

    def append_raw(self, at: int, data: bytes) -> int:
        """Append the leader's bytes as they are; answers the new end.

        Raises ValueError when `at` is not `end`, BadRecords when they are not whole, sound records for that place,
        StoreFull, FlushFailed, OSError; then nothing is appended.
        """
        log = self.log
        if at != log.end:
            raise ValueError(f"bytes for {at}, but the log ends at {log.end}")
        if self.failed is not None:
            raise FlushFailed(f"the store takes nothing after: {self.failed}")
        if not data:
            return at
        batch, _ = parse(
            at,
            data,
            self.queues,
            log.segment_size,
            self.delays,
            check=True,
            keys=self.index is not None and not self.index.behind,
        )
        try:
            history = extended(self.history, batch.epochs) if batch.epochs else self.history
        except Exception as error:
            raise BadRecords(at, str(error)) from error
        pieces = []
        offset, rest = at, memoryview(data)
        while rest:
            step = min(len(rest), log.room(offset))
            pieces.append((offset, bytes(rest[:step]) if step < len(data) else data))
            offset += step
            rest = rest[step:]
        try:
            log.write(pieces, at + len(data))
        except OSError as error:
            self.failed = error
            raise
        if history != self.history:
            try:
                self._set_history(history)
            except OSError as error:
                self._undo(at)
                if error.errno in NO_ROOM:
                    raise StoreFull(f"no room for {self._epochs_path}: {error.strerror}") from error
                raise
        self._remember(batch)
        return log.end

    def _remember(self, batch: Batch) -> None:
        """A batch whose records were numbered elsewhere comes after the tail."""
        for queue, number, _ in batch.entries:
            queue.next = max(queue.next, number + 1)
        if batch.last_ms:
            self.last_store_ms = batch.last_ms
        self._tail.push(batch)

    def _parse(self, offset: int, data: bytes, *, keys: bool = True) -> Batch:
        """What a piece of our own log brings. Raises BadRecords when the disk no longer holds what it held."""
        batch, _ = parse(
            offset,
            data,
            self.queues,
            self.log.segment_size,
            self.delays,
            check=False,
            keys=keys and self.index is not None,
        )
        if self.index is None:
            batch.keys = []
        return batch

    def read_raw(self, at: int, max_bytes: int, limit: int | None = None) -> bytes:
        """Whole records and fillers from `at` for a follower: about `max_bytes`, at least one; b"" at the end.

        `limit` is a record border, by default `end`; with `confirmed` only what nobody can undo. Raises OffsetGone
        when `at` is not in the log; ValueError when it is not a record border.
        """
        limit = self.log.end if limit is None else min(limit, self.log.end)
        if at < self.log.start:
            raise OffsetGone(at, self.log.start, limit)
        return self.log.whole_records(at, max_bytes, limit)

    def cut(self, to: int) -> None:
        """End the log at `to`, with everything that derives from it, durably (rule 5).

        Raises OffsetGone when `to` is outside of the log, ValueError when it lies within a record, OSError. Whether a
        cut below `confirmed` is allowed is for the caller to know (rule 3).
        """
        log = self.log
        if not log.start <= to <= log.end:
            raise OffsetGone(to, log.start, log.end)
        if to == log.end:
            return
        self._check_border(to)
        self._points = self._points.at_most(to)
        self._points.save(self._points_path, durable=True)
        log.cut(to)
        self.flushed = min(self.flushed, to)
        if cut_history(self.history, to) != self.history:
            self._set_history(cut_history(self.history, to))
        if to < self.confirmed:
            self.confirmed = to
            self._tail.clear()
            self.queues.cut(to)
            if self.index is not None:
                self.index.cut(to)
                self.index.behind = self.index.position < to
        else:
            self._shorten_tail(to)

    def _check_border(self, offset: int) -> None:
        """A record or filler begins at `offset`, as it says itself. Raises ValueError."""
        room = self.log.room(offset)
        head = self.log.read(offset, min(PHYS_OFFSET_AT + 8, room))
        size, magic = SIZE_AND_MAGIC.unpack_from(head) if len(head) >= FILLER_MIN else (0, 0)
        if magic == MAGIC_BLANK and size == room:
            return
        if magic in (MAGIC_V1, MAGIC_V2) and int.from_bytes(head[PHYS_OFFSET_AT : PHYS_OFFSET_AT + 8]) == offset:
            return
        raise ValueError(f"no record begins at {offset}")

    def _shorten_tail(self, to: int) -> None:
        """Forget the batches at or above `to` and give their queue offsets back."""
        tail = self._tail
        touched: set[ConsumeQueue] = set()
        kept: list[Batch] = []
        for batch in tail.batches:
            touched.update(queue for queue, _, _ in batch.entries)
            if batch.start < to < batch.end:
                batch = batch.split(to)[0]
            if batch.end <= to:
                kept.append(batch)
        complete = not kept or all(a.end == b.start for a, b in pairwise(kept))
        complete = complete and (kept[0].start if kept else to) <= self.confirmed
        complete = complete and (kept[-1].end if kept else self.confirmed) == to
        tail.clear()
        for queue in touched if complete else self.queues:
            if queue.next >= 0:
                queue.next = queue.max
        if complete:
            for batch in kept:
                self._remember(batch)
        else:
            for offset, data in self.log.chunks(self.confirmed, to):
                self._remember(self._parse(offset, data))

    def reset(
        self,
        to: int,
        history: Sequence[tuple[int, int]] = (),
        queue_starts: Mapping[tuple[str, int], int] | None = None,
    ) -> None:
        """An empty log that goes on at `to`, the first offset of a segment: the leader no longer has what we lack.

        `history` and `queue_starts` are the leader's: the epochs up to `to`, and the first queue offset at or after
        `to` of every queue (`queue_starts()` when `to` is its `start`). Durable when it returns. Raises ValueError,
        StoreError for an impossible history, OSError.
        """
        if to % self.log.segment_size:
            raise ValueError(f"{to} is not the first offset of a segment of {self.log.segment_size} bytes")
        checked = check_history(history)
        self._points = Points(boot=boot_id())
        self._points.save(self._points_path, durable=True)
        self._set_history(())
        self._tail.clear()
        self.log.reset(to)
        self.flushed = self.confirmed = to
        self.queues.clear()
        if self.index is not None:
            self.index.clear(to)
        for (name, queue_id), number in (queue_starts or {}).items():
            queue = self.queues.queue(self.queues.topic(name), queue_id)
            queue.rebase(number)
        self._set_history(checked)
        self._save_points(durable=True)

    def prepare_master(self) -> None:
        """Everything that `put` needs is kept up with each append, so a promotion waits for nothing."""

    def queue_starts(self) -> dict[tuple[str, int], int]:
        """The first queue offset that is still in the log, of every queue: what a follower needs for `reset`."""
        starts = {}
        for queue in self.queues:
            if queue.next < 0:
                queue.load()
            starts[queue.key] = queue.min_at(self.log.start)
        return starts

    def ensure_next(self, topic: str, queue_id: int, number: int) -> None:
        """The next record of the queue gets `number` or more: what came before may have left the log long ago.

        For queue ends that a control record tells; a queue that has records here already knows. Raises ValueError for
        a topic that cannot be, OSError.
        """
        queue = self.queues.queue(self.queues.topic(topic), queue_id)
        if queue.next == 0 and number > 0:
            queue.rebase(number)

    # Confirming

    def confirm(self, offset: int) -> Confirmed:
        """Records below `offset` cannot be undone any more: file them in queues and index.

        Never goes back. Raises ValueError above `end` or within a record; OSError.
        """
        if offset <= self.confirmed:
            return Confirmed(self.confirmed, [], [])
        if offset > self.log.end:
            raise ValueError(f"confirmed {offset} is above the end of the log at {self.log.end}")
        grew: set[tuple[str, int]] = set()
        control: list[tuple[int, bytes]] = []
        tail = self._tail
        while self.confirmed < offset:
            batch = tail.pop(self.confirmed, offset)
            if batch is None:
                stop = min(offset, max(tail.first_start(offset), self.confirmed + 1))
                data = self.log.whole_records(self.confirmed, _CATCH_UP, stop)
                batch = self._parse(self.confirmed, data)
            self._file(batch, grew)
            if batch.control:
                control += batch.control
            self.confirmed = batch.end
        if self._since_write_out > _WRITE_OUT_AFTER:
            self._write_out(None)
        return Confirmed(self.confirmed, list(grew), control)

    def _file(self, batch: Batch, grew: set[tuple[str, int]]) -> None:
        dirty = self.queues.dirty
        if batch.checked:
            for queue, _, entry in batch.entries:
                pending = queue.pending
                if not pending:
                    dirty[queue] = None
                pending += entry
                grew.add(queue.key)
        else:
            for queue, number, entry in batch.entries:
                queue.add(number, entry)
                queue.next = max(queue.next, queue.max)
                if queue.pending:
                    dirty.setdefault(queue)
                grew.add(queue.key)
        self._since_write_out += len(batch.entries)
        index = self.index
        if index is not None and not index.behind:
            if batch.keys is None:
                index.drain()
                index.behind = True
            else:
                index.pending += batch.keys
                index.position = batch.end
                if len(index.pending) >= BATCH:
                    index.drain()

    def _write_out(self, limit: int | None) -> bool:
        """Move entries from memory to the queues' files. False when the disk has no room: they stay in memory."""
        try:
            self.queues.write_out(limit)
        except OSError as error:
            self._complain("consume queues wait in memory", error)
            return False
        self._since_write_out = 0
        self._complained = ""
        return True

    def _complain(self, what: str, error: OSError) -> None:
        text = f"{what}: {error}"
        if text != self._complained:
            self._complained = text
            _log.warning("%s", text)

    def _catch_up(self) -> bool:
        """Let an index that is behind read a piece of the log; False when it cannot go on or need not."""
        index = self.index
        if index is None or not index.behind:
            return False
        index.position = max(index.position, self.log.start)
        if index.position >= self.confirmed:
            index.behind = False
            return False
        index.behind = False
        data = self.log.whole_records(index.position, _CATCH_UP, self.confirmed)
        batch = self._parse(index.position, data)
        index.pending += batch.keys or []
        index.position = batch.end
        if not index.drain():
            return False
        index.behind = index.position < self.confirmed
        return index.behind

    # Upkeep, flush and checkpoint

    def upkeep(self, now_ms: int) -> None:
        """Called about ten times a second: writes out a bounded part of what waits in memory, notes how far it is.

        A full disk is no error here; what could not be written is tried again.
        """
        self._write_out(256)
        index = self.index
        if index is not None:
            if index.behind:
                self._catch_up()
            else:
                index.drain()
        if now_ms - self._points_saved_ms >= _POINTS_INTERVAL_MS or now_ms < self._points_saved_ms:
            self._points_saved_ms = now_ms
            self._save_points(durable=False)

    def _save_points(self, *, durable: bool) -> None:
        before = self._points
        pending = self.queues.oldest_pending()
        points = Points(
            boot=boot_id(),
            clean=False,
            durable=before.durable,
            durable_index=before.durable_index,
            written=self.confirmed if pending is None else min(pending, self.confirmed),
            written_index=self.confirmed if self.index is None else min(self.index.written, self.confirmed),
            flushed=self.flushed,
            confirmed=self.confirmed,
        )
        if points == before:
            return
        try:
            points.save(self._points_path, durable=durable)
            index_ms = self.index.end_ms if self.index is not None else 0
            save_checkpoint(self.config.path / "checkpoint", self.last_store_ms, self.last_store_ms, index_ms)
        except OSError as error:
            self._complain(f"cannot save {self._points_path}", error)
            return
        self._points = points

    def flush(self) -> FlushPoint:
        """Make the log durable; blocks, may run in another thread. Tell `mark_flushed` what it answers.

        Raises OSError, after which the store must not be used for writing (`mark_failed`).
        """
        point = FlushPoint(self.log.generation, self.log.end)
        start = min(self.flushed, point.offset)
        if point.offset > start:
            self.log.sync(start, point.offset)
        return point

    def mark_flushed(self, point: FlushPoint) -> int:
        """Take over what a flush made durable, unless a cut came in between; answers `flushed`."""
        if point.generation == self.log.generation and point.offset > self.flushed:
            self.flushed = min(point.offset, self.log.end)
        return self.flushed

    def mark_failed(self, error: BaseException) -> None:
        """After a failed fsync nobody knows what is on the disk: nothing more is taken until it is opened anew."""
        if self.failed is None:
            _log.error("the disk of %s failed: %s", self.config.path, error)
            self.failed = error

    def checkpoint(self) -> Checkpoint:
        """Write everything out and tell what must be made durable so that recovery after a power loss starts here."""
        self._write_out(None)
        files = sorted(self.queues.unsynced)
        self.queues.unsynced.clear()
        index_at = self.confirmed
        if self.index is not None:
            if not self.index.behind:
                self.index.drain()
            files += sorted(self.index.unsynced)
            self.index.unsynced.clear()
            index_at = min(self.index.written, self.confirmed)
        directories: set[str] = set()
        for path in files:
            directory = os.path.dirname(path)
            if path not in self._known_directories:
                self._known_directories.add(path)
                directories.update((directory, os.path.dirname(directory), os.path.dirname(os.path.dirname(directory))))
        pending = self.queues.oldest_pending()
        offset = self.confirmed if pending is None else min(pending, self.confirmed)
        return Checkpoint(offset, index_at, self.log.generation, files, sorted(directories))

    def checkpointed(self, done: Checkpoint) -> None:
        """Note a checkpoint that has run; what a cut came between counts for nothing."""
        if done.generation == self.log.generation:
            offset = min(done.offset, self.flushed)
            self._points = replace(self._points, durable=offset, durable_index=min(done.index, offset))
        self._save_points(durable=True)

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
        return reading.get(self, topic, queue_id, offset, max_count, max_bytes, tag_hashes, record_filter)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The first queue offset whose record is still there; 0 for a queue that is not."""
        queue = self.queues.find(topic, queue_id)
        return 0 if queue is None else queue.min_at(self.log.start)

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
        return reading.offset_at_time(self, topic, queue_id, ms)

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """When the record was stored (ms); -1 when there is no such record."""
        return reading.store_time(self, topic, queue_id, offset)

    def record(self, phys: int) -> Record:
        """The confirmed record at an offset of the log. Raises OffsetGone, or BadRecords when none begins there."""
        return reading.record(self, phys)

    def query(
        self, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int, unique: bool = False
    ) -> list[Record]:
        """Records of a topic with that key, stored between the two times (ms), newest first.

        `unique`: only the clients' unique key counts, otherwise also the words of KEYS.
        """
        return reading.query(self, topic, key, max_num, begin_ms, end_ms, unique)

    def topics_queues(self) -> dict[str, list[int]]:
        """The queues that have a confirmed record or had one, by topic."""
        found: dict[str, list[int]] = {}
        for topic in self.queues.topics.values():
            numbers = []
            for queue_id, queue in topic.queues.items():
                if queue.next < 0:
                    queue.load()
                if queue.max > 0:
                    numbers.append(queue_id)
            if numbers:
                found[topic.name] = sorted(numbers)
        return found

    def walk(self, start: int, stop: int | None = None) -> Iterator[Record]:
        """Every record of [start, stop), by default up to `confirmed`. Raises OffsetGone, BadRecords."""
        stop = self.confirmed if stop is None else stop
        for _, data in self.log.chunks(max(start, self.log.start), stop):
            yield from reading.records(data)

    def read_bytes(self, at: int, max_bytes: int) -> bytes:
        """Confirmed bytes from any offset, of one segment, fewer at its end. Raises OffsetGone below `start`."""
        if at < self.log.start:
            raise OffsetGone(at, self.log.start, self.confirmed)
        return (
            self.log.read(at, max(0, min(max_bytes, self.confirmed - at, self.log.room(at))))
            if at < self.confirmed
            else b""
        )

    # Retention

    def disk(self) -> DiskUsage:
        """The file system of the log."""
        return retention.disk_usage(self.log.directory)

    def expire(self, now_ms: int, keep_from: int | None = None) -> int:
        """Remove what retention no longer keeps, never what lies at or above `keep_from`; answers the new `start`.

        Call it about every 10 s. Raises OSError.
        """
        return retention.expire(self, now_ms, keep_from)

    def drop_topic(self, topic: str, below: int) -> None:
        """Show no record of the topic below `below` any more; queue offsets go on where they were. Raises OSError."""
        known = self.queues.topics.get(topic)
        for queue_id in list(known.queues) if known else []:
            queue = self.queues.find(topic, queue_id)
            if queue is not None:
                self.queues.unsynced.update(queue.blank_before(below))
                self.queues.dirty.pop(queue, None)
                self.queues.unsynced.difference_update(queue.drop_before(below))


def _encode(message: Put, topic: str, number: int, phys: int, now_ms: int, host: bytes) -> bytes:
    return encode_record(
        topic=topic.encode(),
        body=message.body,
        properties=message.properties,
        queue_id=message.queue_id,
        flag=message.flag,
        queue_offset=number,
        phys_offset=phys,
        sys_flag=message.sys_flag & ~(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6),
        born_ms=message.born_ms,
        born_host=message.born_host,
        store_ms=now_ms,
        store_host=host,
        reconsume_times=message.reconsume_times,
        prepared_offset=message.prepared_offset,
    )


def _lock(root: Path) -> int:
    """RocketMQ's own lock file, locked the way Java locks it. Raises StoreLocked, OSError."""
    fd = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
    except OSError as error:
        os.close(fd)
        raise StoreLocked(f"{root} is in use by another process") from error
    return fd


def _segment_size(root: Path) -> int | None:
    """The size of the segments of a store that we have never had open."""
    bases = segment_bases(root / "commitlog")
    if not bases:
        return None
    if len(bases) > 1:
        return bases[1] - bases[0]
    return os.stat(root / "commitlog" / f"{bases[0]:020d}").st_size or None
