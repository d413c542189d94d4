"""Appends records: a leader's messages, which get their numbers here, and a leader's bytes, which are verified here.

An append is all or nothing: after a failure, its bytes are zeros again.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from gantry_broker.protocol.codes import CONTROL_TOPIC, SysFlag
from gantry_broker.protocol.message import MAX_PROPERTIES, RECORD_V4, encode_record, format_properties
from gantry_broker.store.batch import Batch, read_batch
from gantry_broker.store.errors import BadRecords, FlushFailed, MessageTooLarge, StoreError, StoreFull
from gantry_broker.store.files import NO_DESCRIPTORS, NO_ROOM
from gantry_broker.store.index.consume_queue import ENTRY
from gantry_broker.store.index.key_index import KeyIndex
from gantry_broker.store.index.queue_table import QueueTable
from gantry_broker.store.indexing import Indexer
from gantry_broker.store.log.commit_log import CommitLog
from gantry_broker.store.log.epochs import EPOCH_PROPERTY, FOREIGN, EpochCache, EpochStart, LeaderEpochs, extend_epochs
from gantry_broker.store.log.record_reader import FILLER_MIN, LOST, ROOM_MIN, filler, tags_code
from gantry_broker.store.state import StoreState
from gantry_broker.store.types import Put, Row, Stored, row_of
from gantry_broker.store.unconfirmed import UnconfirmedBuffer

_U16: Final = tuple(n.to_bytes(2, "big") for n in range(2048))
_make: Final = tuple.__new__


class Appender:
    """Appends to the log. `host`: this broker's packed address, for the records."""

    def __init__(
        self,
        state: StoreState,
        log: CommitLog,
        queues: QueueTable,
        index: KeyIndex | None,
        epochs: EpochCache,
        unconfirmed: UnconfirmedBuffer,
        indexer: Indexer,
        delays: Sequence[int],
        host: bytes,
        mark_failed: Callable[[BaseException], None],
    ) -> None:
        self._state = state
        self._log = log
        self._queues = queues
        self._index = index
        self._epochs = epochs
        self._unconfirmed = unconfirmed
        self._indexer = indexer
        self._delays = delays
        self._host = host
        self._mark_failed = mark_failed

    def put(self, batch: Iterable[Row], now_ms: int, *, room_min: int = ROOM_MIN) -> list[Stored]:
        """Append messages, all or none, and give them queue offsets. `room_min`: least room for a record, in bytes.

        Raises StoreFull, MessageTooLarge, ValueError for an impossible topic, queue or number, FlushFailed after a
        failure of the disk, OSError.
        """
        state, log, index = self._state, self._log, self._index
        phys = piece_at = log.end
        segment = log.segment_size
        room = segment - phys % segment
        table = self._queues
        topics = table.topics
        host = self._host
        plain = len(host) == 8
        pack, pack_entry, crc32 = RECORD_V4.pack, ENTRY.pack, zlib.crc32
        lengths, short = _U16, len(_U16)
        made = Batch(phys, phys)
        made.checked = True
        made.last_ms = now_ms
        entries = made.entries
        indexed = index is not None and not index.behind
        keys: list[tuple[int, int, int]] = []
        pieces: list[tuple[int, bytes]] = []
        parts: list[bytes] = []
        stored: list[Stored] = []
        try:
            if state.failed is not None:
                raise FlushFailed(f"the store takes no writes after: {state.failed}")
            for (
                name,
                queue_id,
                flag,
                sys_flag,
                born_ms,
                born_host,
                body,
                properties,
                reconsume_times,
                prepared_offset,
                code,
                names,
            ) in batch:
                topic = topics.get(name) or table.topic(name)
                if b"\0" in properties:
                    properties = _with_zeros(properties)
                size = topic.fixed + len(body) + len(properties)
                quick = plain and len(born_host) == 8 and len(properties) < short
                if quick:
                    sys_flag &= ~0x30
                else:
                    size += len(born_host) + len(host) - 16
                    if len(properties) > MAX_PROPERTIES:
                        raise MessageTooLarge(f"properties have {len(properties)} bytes; {MAX_PROPERTIES} fit")
                if room < room_min or size + FILLER_MIN > room:
                    if size + FILLER_MIN > segment:
                        raise MessageTooLarge(f"a record of {size} bytes fits no segment of {segment} bytes")
                    parts.append(filler(room))
                    pieces.append((piece_at, b"".join(parts)))
                    parts = []
                    phys = piece_at = phys + room
                    room = segment
                if sys_flag & 12 in (0, 8):
                    queue = topic.queues.get(queue_id)
                    if queue is None or queue.next < 0:
                        queue = table.queue(topic, queue_id)
                    number = queue.next
                    queue.next = number + 1
                    if topic.is_schedule:
                        code = tags_code(topic.name, properties, now_ms, self._delays)
                    entries.append((queue, number, pack_entry(phys, size, code)))
                else:
                    number = 0
                if quick:
                    parts += (
                        pack(
                            size,
                            topic.magic,
                            crc32(body) & 0x7FFFFFFF,
                            queue_id,
                            flag,
                            number,
                            phys,
                            sys_flag,
                            born_ms,
                            born_host,
                            now_ms,
                            host,
                            reconsume_times,
                            prepared_offset,
                            len(body),
                        ),
                        body,
                        topic.name_field,
                        lengths[len(properties)],
                        properties,
                    )
                else:
                    parts.append(
                        encode_record(
                            topic=name.encode(),
                            body=body,
                            properties=properties,
                            queue_id=queue_id,
                            flag=flag,
                            queue_offset=number,
                            phys_offset=phys,
                            sys_flag=sys_flag & ~(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6),
                            born_ms=born_ms,
                            born_host=born_host,
                            store_ms=now_ms,
                            store_host=host,
                            reconsume_times=reconsume_times,
                            prepared_offset=prepared_offset,
                        )
                    )
                if indexed and sys_flag & 12 != 12:
                    for key in names:
                        keys.append((topic.hasher.hash(key), phys, now_ms))
                if topic.is_control:
                    made.control.append((phys, body))
                stored.append(_make(Stored, (phys, size, number)))
                phys += size
                room -= size
            pieces.append((piece_at, b"".join(parts)))
            self._write(pieces, phys)
        except BaseException as error:
            for queue, _, _ in entries:
                queue.next -= 1
            if isinstance(error, struct.error):
                raise ValueError(f"a number does not fit its field of the record: {error}") from error
            raise
        if state.reset_in_progress and made.start == log.start:
            state.reset_in_progress = False  # The log was empty, as the reset wants it.
        made.end = phys
        made.keys = keys if indexed or index is None else None
        state.last_store_ms = now_ms
        if phys != made.start:
            self._unconfirmed.push(made)
        return stored

    def _write(self, pieces: list[tuple[int, bytes]], end: int) -> None:
        """

        aises StoreFull; StoreError when no descriptor is free; FlushFailed, after which the store takes no writes.
        """
        try:
            self._log.write(pieces, end)
        except OSError as error:
            if error.errno in NO_DESCRIPTORS:
                raise StoreError(f"nothing can be written: {error}") from error
            self._mark_failed(error)
            raise FlushFailed(f"the disk failed: {error}") from error

    def begin_epoch(self, epoch: int, control_body: bytes, now_ms: int) -> Stored:
        """Append the control record of a new epoch and add the epoch to the leader epochs, durably (rule 7).

        Raises ValueError when `epoch` is not above the last one, and as `put`.
        """
        before, end = self._epochs.epochs, self._log.end
        if before and epoch <= self._epochs.last_epoch:
            raise ValueError(f"epoch {epoch} does not come after {self._epochs.last_epoch}")
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
        # It may begin where other records may not (rule 7): the leader epochs show the difference.
        stored = self.put([row_of(record)], now_ms, room_min=0)[0]
        self._set_epochs((*before, EpochStart(epoch, stored.phys_offset)), end)
        return stored

    def _set_epochs(self, epochs: LeaderEpochs, end: int) -> None:
        """Set the epochs; after a failure take everything from `end` on back. Raises StoreFull, OSError."""
        try:
            self._epochs.set(epochs)
        except OSError as error:
            self._undo(end)
            if error.errno in NO_ROOM:
                raise StoreFull(f"no room for {self._epochs.path}: {error.strerror}") from error
            raise

    def _undo(self, end: int) -> None:
        """Take back unconfirmed records from `end` on. Raises OSError, after which the store takes no writes."""
        state = self._state
        state.flushed = min(state.flushed, end)
        try:
            self._log.truncate(end)
            self._indexer.truncate_unconfirmed(end)
        except OSError as error:
            self._mark_failed(error)
            raise

    def append_raw(self, at: int, data: bytes) -> int:
        """Append the leader's bytes unchanged; returns the new end.

        Raises ValueError when `at` is not the end of the log, BadRecords when `data` are not whole, valid records of
        that place, StoreFull, FlushFailed, OSError; nothing is appended then.
        """
        state, log, index = self._state, self._log, self._index
        if at != log.end:
            raise ValueError(f"bytes for {at}, but the log ends at {log.end}")
        if state.failed is not None:
            raise FlushFailed(f"the store takes no writes after: {state.failed}")
        if not data:
            return at
        indexed = index is not None and not index.behind
        batch = read_batch(at, data, self._queues, log.segment_size, self._delays, check=True, keys=indexed)
        before = epochs = self._epochs.epochs
        if at == 0 and not epochs and not (batch.epochs and batch.epochs[0].start == 0):
            epochs = FOREIGN  # A log of ours begins with the control record of an epoch (rule 7).
        try:
            epochs = extend_epochs(epochs, batch.epochs) if batch.epochs else epochs
        except Exception as error:
            raise BadRecords(at, str(error)) from error
        pieces = []
        offset, rest = at, memoryview(data)
        while rest:
            step = min(len(rest), log.room(offset))
            pieces.append((offset, bytes(rest[:step]) if step < len(data) else data))
            offset += step
            rest = rest[step:]
        self._write(pieces, at + len(data))
        if epochs != before:
            self._set_epochs(epochs, at)
        self._indexer.push_unconfirmed(batch)
        if at == 0:
            state.reset_in_progress = False
        return log.end


def _with_zeros(properties: bytes) -> bytes:
    """Properties with zero bytes as the log stores them.

    Recovery takes a final zero for a torn write, and a page that begins with `LOST` zeros (one may belong to the length
    field) for a lost one. The broker refuses so many zeros from clients.
    """
    properties = properties.replace(bytes(LOST - 1), b"")
    return properties + b"\x02" if properties.endswith(b"\0") else properties
