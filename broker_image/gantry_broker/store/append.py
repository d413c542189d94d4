"""Appends records: a leader's messages, which get their numbers here, and a leader's bytes, which are verified here.

An append is all or nothing: after a failure, its bytes are zeros again.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final

from gantry_core import batch_records, key_hash, place_sends

from gantry_broker.protocol.codes import CONTROL_TOPIC, SysFlag
from gantry_broker.protocol.frame import Sends
from gantry_broker.protocol.limits import MAX_KEYS
from gantry_broker.protocol.message import MAX_PROPERTIES, RECORD_V4, decode_batch, encode_record, format_properties
from gantry_broker.store.batch import Batch, read_batch
from gantry_broker.store.errors import BadRecords, FlushFailed, MessageTooLarge, StoreError, StoreFull
from gantry_broker.store.files import NO_DESCRIPTORS, NO_ROOM
from gantry_broker.store.index.consume_queue import ENTRY, ENTRY_SIZE, ConsumeQueue
from gantry_broker.store.index.index_file import KEY
from gantry_broker.store.index.key_index import KeyIndex
from gantry_broker.store.index.queue_table import QueueTable
from gantry_broker.store.indexing import Indexer
from gantry_broker.store.log.commit_log import CommitLog
from gantry_broker.store.log.epochs import EPOCH_PROPERTY, FOREIGN, EpochCache, EpochStart, LeaderEpochs, extend_epochs
from gantry_broker.store.log.record_reader import (
    FILLER_MIN,
    LOST,
    ROOM_MIN,
    filler,
    index_keys,
    plain_tags_code,
    tags_code,
)
from gantry_broker.store.state import StoreState
from gantry_broker.store.types import PlainBatch, Put, Row, Stored, StoredBatch, row_of
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

    def put(self, batch: Sequence[Put], now_ms: int) -> list[Stored]:
        """As `put_rows`, for messages that are not rows yet."""
        return self.put_rows(map(row_of, batch), now_ms)

    def put_rows(self, batch: Iterable[Row], now_ms: int, *, room_min: int = ROOM_MIN) -> list[Stored]:
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
        written = Batch(phys, phys)
        written.checked = True
        written.last_ms = now_ms
        entries = written.entries
        indexed = index is not None and not index.behind
        keys = bytearray()
        pack_key = KEY.pack
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
                        keys += pack_key(key_hash(topic.name, key), phys, now_ms)
                if topic.is_control:
                    written.control.append((phys, body))
                stored.append(_make(Stored, (phys, size, number)))
                phys += size
                room -= size
            pieces.append((piece_at, b"".join(parts)))
            self._write(pieces, phys)
        except BaseException as error:
            # A number that stays taken would be a hole in the queue, for which no record ever comes.
            for queue, _, _ in entries:
                queue.next -= 1
            if isinstance(error, struct.error):
                raise ValueError(f"a number does not fit its field of the record: {error}") from error
            raise
        written.end = phys
        written.keys = keys if indexed or index is None else None
        self._appended(written, now_ms)
        return stored

    def put_batches(self, batches: Sequence[PlainBatch], now_ms: int) -> list[StoredBatch]:
        """Append plain batches, all or none, and give them queue offsets. Raises as `put_rows`."""
        state, log, table = self._state, self._log, self._queues
        host = self._host
        phys = log.end
        room = log.room(phys)
        indexed = self._index is not None and not self._index.behind
        written = Batch(phys, phys)
        written.checked = True
        written.last_ms = now_ms
        parts: list[bytes] = []
        hashes: list[bytes] = []
        placed: list[StoredBatch] = []
        try:
            if state.failed is not None:
                raise FlushFailed(f"the store takes no writes after: {state.failed}")
            for batch in batches:
                name = batch.topic
                topic = table.topics.get(name) or table.topic(name)
                queue = topic.queues.get(batch.queue_id)
                if queue is None or queue.next < 0:
                    queue = table.queue(topic, batch.queue_id)
                packed = None
                if len(host) == 8 and len(batch.born_host) == 8 and not topic.is_schedule and not topic.is_control:
                    packed = batch_records(
                        batch.body,
                        batch.suffix,
                        name,
                        topic.magic,
                        batch.queue_id,
                        queue.next,
                        phys,
                        room,
                        ROOM_MIN,
                        batch.sys_flag & ~0x30,
                        batch.born_ms,
                        batch.born_host,
                        now_ms,
                        host,
                        MAX_KEYS,
                    )
                if packed is None:
                    break
                records, entries, keys = packed
                written.entries.append((queue, queue.next, entries))
                written.in_runs += batch.messages - 1
                placed.append(StoredBatch(queue.next, entries))
                queue.next += batch.messages
                parts.append(records)
                hashes.append(keys)
                phys += len(records)
                room -= len(records)
            else:
                self._write([(log.end, b"".join(parts))], phys)
        except BaseException:
            self._give_back(written)
            raise
        if len(placed) < len(batches):  # A segment ends here, or something else is not common.
            self._give_back(written)
            return self._put_each(batches, now_ms)
        written.end = phys
        written.keys = b"".join(hashes) if indexed else None if self._index is not None else b""
        self._appended(written, now_ms)
        return placed

    def put_sends(self, sends: Sends, now_ms: int) -> bytes | None:
        """Append plain sends, all or none, and give them queue offsets; returns their places for
        `gantry_core.send_answers`. None: `put_rows` has to do it. Raises as `put_rows`.
        """
        log, host = self._log, self._host
        if self._state.failed is not None:
            raise FlushFailed(f"the store takes no writes after: {self._state.failed}")
        queues = self._queues_of(sends)
        if queues is None or len(host) != 8:
            return None
        phys = log.end
        numbers = [queue.next for queue in queues]
        records = sends.records
        placed = place_sends(records, sends.rows, sends.hashes, numbers, phys, log.room(phys), ROOM_MIN, now_ms, host)
        if placed is None:
            return None
        entries, keys, places = placed
        written = Batch(phys, phys + len(records))
        written.entries = list(zip(queues, numbers, entries, strict=True))  # What may fail comes before the write.
        self._write([(phys, records)], written.end)
        for queue, number, packed in written.entries:
            queue.next = number + len(packed) // ENTRY_SIZE
        written.in_runs = sends.messages - len(queues)
        written.checked = True
        written.last_ms = now_ms
        index = self._index
        written.keys = b"" if index is None else None if index.behind else keys
        self._appended(written, now_ms)
        return places

    def _queues_of(self, sends: Sends) -> list[ConsumeQueue] | None:
        """Return the queues of plain sends, in their order; None: one of their topics is not common. Raises ValueError,
        OSError.
        """
        table = self._queues
        topics = [table.topics.get(topic[0]) or table.topic(topic[0]) for topic in sends.topics]
        if any([topic.is_schedule or topic.is_control for topic in topics]):
            return None
        if len(topics) == 1:
            existing = list(map(topics[0].queues.get, sends.queues))
        else:
            existing = [topics[at].queues.get(number) for at, number in zip(sends.topic_of, sends.queues, strict=True)]
        queues = []
        for at, queue in enumerate(existing):
            if queue is None or queue.next < 0:
                queue = table.queue(topics[sends.topic_of[at]], sends.queues[at])
            queues.append(queue)
        return queues

    @staticmethod
    def _give_back(batch: Batch) -> None:
        """Give back the queue offsets of a batch that was not written."""
        for queue, _, entries in batch.entries:
            queue.next -= len(entries) // ENTRY_SIZE

    def _put_each(self, batches: Sequence[PlainBatch], now_ms: int) -> list[StoredBatch]:
        """As `put_batches`, message by message."""
        stored = iter(self.put_rows([row for batch in batches for row in rows_of_batch(batch)], now_ms))
        placed = []
        for batch in batches:
            places = list(islice(stored, batch.messages))
            entries = b"".join([ENTRY.pack(place.phys_offset, place.size, 0) for place in places])
            placed.append(StoredBatch(places[0].queue_offset, entries))
        return placed

    def _appended(self, batch: Batch, now_ms: int) -> None:
        """Note what was written."""
        state = self._state
        if state.reset_in_progress and batch.start == self._log.start:
            state.reset_in_progress = False  # The log was empty, as the reset wants it.
        state.last_store_ms = now_ms
        if batch.end != batch.start:
            self._unconfirmed.push(batch)

    def _write(self, pieces: Sequence[tuple[int, bytes | bytearray]], end: int) -> None:
        """Write pieces of the log, all or none.

        Raises StoreFull; StoreError when no descriptor is free; FlushFailed, after which the store takes no writes.
        """
        try:
            self._log.write(pieces, end)
        except OSError as error:
            # Then no byte was written. After any other failure nobody knows what is on the disk: the next append could
            # leave a record that is mixed from two.
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
        # The record before the file: an epoch without its record would claim the records that take its place.
        stored = self.put_rows([row_of(record)], now_ms, room_min=0)[0]
        self._set_epochs((*before, EpochStart(epoch, stored.phys_offset)), end)
        return stored

    def _set_epochs(self, epochs: LeaderEpochs, end: int) -> None:
        """Set the epochs; after a failure take everything from `end` on back. Raises StoreFull, OSError."""
        try:
            self._epochs.set(epochs)
        except OSError as error:
            # Without its entry in the file, the records would be compared as those of the former epoch.
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
        # Checked before the write: a damaged record would be acknowledged here as a good copy of it.
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


def rows_of_batch(batch: PlainBatch) -> list[Row]:
    """Return the messages of a plain batch one by one."""
    rows: list[Row] = []
    for item in decode_batch(batch.body):
        properties = item.properties
        if properties and not properties.endswith(b"\x02"):
            properties += b"\x02"
        properties += batch.suffix
        code, keys = plain_tags_code(properties), tuple(index_keys(properties))
        head = (batch.topic, batch.queue_id, item.flag, batch.sys_flag, batch.born_ms, batch.born_host)
        rows.append((*head, item.body, properties, 0, 0, code, keys))
    return rows


def _with_zeros(properties: bytes) -> bytes:
    """Return properties with zero bytes as the log stores them.

    Recovery takes a final zero for a torn write, and a page that begins with `LOST` zeros (one may belong to the length
    field) for a lost one. The broker refuses so many zeros from clients.
    """
    properties = properties.replace(bytes(LOST - 1), b"")
    return properties + b"\x02" if properties.endswith(b"\0") else properties
