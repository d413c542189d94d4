"""Appending: a master's messages, which are numbered here, and a leader's bytes, which are checked here.

All or nothing in both cases: what an append that failed had written is zeros again.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from gantry_broker.protocol.codes import CONTROL_TOPIC, SysFlag
from gantry_broker.protocol.message import MAX_PROPERTIES, RECORD_V4, encode_record, format_properties
from gantry_broker.store.errors import BadRecords, FlushFailed, MessageTooLarge, StoreError, StoreFull
from gantry_broker.store.files import NO_DESCRIPTORS, NO_ROOM
from gantry_broker.store.index.consume_queue import ENTRY
from gantry_broker.store.indexing import push_unconfirmed, truncate_unconfirmed, warn_rate_limited
from gantry_broker.store.log.epochs import EPOCH_PROPERTY, FOREIGN, EpochFile, EpochStart, LeaderEpochs, extend_epochs
from gantry_broker.store.log.record_reader import FILLER_MIN, LOST, ROOM_MIN, filler, tags_code
from gantry_broker.store.types import Put, Stored
from gantry_broker.store.unconfirmed import Batch, parse

if TYPE_CHECKING:
    from gantry_broker.store.store import MessageStore

_U16: Final = tuple(n.to_bytes(2, "big") for n in range(2048))
_make: Final = tuple.__new__


def put(store: MessageStore, batch: Sequence[Put], now_ms: int, *, room_min: int = ROOM_MIN) -> list[Stored]:
    """Append messages, all of them or none, and number them within their queues.

    Raises StoreFull, MessageTooLarge, ValueError for a topic that cannot be, FlushFailed after the disk failed,
    OSError.
    """
    log = store.log
    phys = piece_at = log.end
    segment = log.segment_size
    room = segment - phys % segment
    table = store.queues
    topics = table.topics
    host = store.host
    plain = len(host) == 8
    pack, pack_entry, crc32 = RECORD_V4.pack, ENTRY.pack, zlib.crc32
    lengths, short = _U16, len(_U16)
    made = Batch(phys, phys)
    made.checked = True
    made.last_ms = now_ms
    entries = made.entries
    indexed = store.index is not None and not store.index.behind
    keys: list[tuple[int, int, int]] = []
    pieces: list[tuple[int, bytes]] = []
    parts: list[bytes] = []
    stored: list[Stored] = []
    try:
        if store.failed is not None:
            raise FlushFailed(f"the store takes nothing after: {store.failed}")
        for message in batch:
            topic = topics.get(message.topic) or table.topic(message.topic)
            body = message.body
            properties = message.properties
            if b"\0" in properties:
                properties = _with_zeros(properties)
            size = topic.fixed + len(body) + len(properties)
            sys_flag = message.sys_flag
            quick = plain and len(message.born_host) == 8 and len(properties) < short
            if quick:
                sys_flag &= ~0x30
            else:
                size += len(message.born_host) + len(host) - 16
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
                queue = topic.queues.get(message.queue_id)
                if queue is None or queue.next < 0:
                    queue = table.queue(topic, message.queue_id)
                number = queue.next
                queue.next = number + 1
                code = message.tags_hash
                if topic.is_schedule:
                    code = tags_code(topic.name, properties, now_ms, store.delays)
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
                parts.append(_encode(message, properties, number, phys, now_ms, host))
            if indexed and sys_flag & 12 != 12:
                for key in message.keys:
                    keys.append((topic.hasher.hash(key), phys, now_ms))
            if topic.is_control:
                made.control.append((phys, body))
            stored.append(_make(Stored, (phys, size, number)))
            phys += size
            room -= size
        pieces.append((piece_at, b"".join(parts)))
        _write(store, pieces, phys)
    except BaseException as error:
        for queue, _, _ in entries:
            queue.next -= 1
        if isinstance(error, struct.error):
            raise ValueError(f"a number does not fit its field of the record: {error}") from error
        raise
    if store.reset_in_progress and made.start == log.start:
        store.reset_in_progress = False  # It was empty, as it was to be.
    made.end = phys
    made.keys = keys if indexed or store.index is None else None
    store.last_store_ms = now_ms
    if phys != made.start:
        store.unconfirmed.push(made)
    return stored


def _with_zeros(properties: bytes) -> bytes:
    """As they are stored: recovery takes a zero at their end for a write that was cut off, and a block of the disk that
    begins with `LOST` zeros, one of which may be of their length, for one that was never written. A broker refuses so
    many; earlier versions did not."""
    properties = properties.replace(bytes(LOST - 1), b"")
    return properties + b"\x02" if properties.endswith(b"\0") else properties


def _write(store: MessageStore, pieces: list[tuple[int, bytes]], end: int) -> None:
    """Raises StoreFull; FlushFailed, after which nothing is taken any more; StoreError where descriptors were short."""
    try:
        store.log.write(pieces, end)
    except OSError as error:
        if error.errno in NO_DESCRIPTORS:
            raise StoreError(f"nothing can be written: {error}") from error
        store.mark_failed(error)
        raise FlushFailed(f"the disk failed: {error}") from error


def _encode(message: Put, properties: bytes, number: int, phys: int, now_ms: int, host: bytes) -> bytes:
    return encode_record(
        topic=message.topic.encode(),
        body=message.body,
        properties=properties,
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


def begin_epoch(store: MessageStore, epoch: int, control_body: bytes, now_ms: int) -> Stored:
    """Append the control record with which an epoch begins, and add the epoch to the history, durably (rule 7).

    Raises ValueError when `epoch` is not above the last one, and what `put` raises.
    """
    if store.epochs and epoch <= store.last_epoch:
        raise ValueError(f"epoch {epoch} does not come after {store.last_epoch}")
    end = store.end
    before = store.epochs
    record = Put(
        topic=CONTROL_TOPIC,
        queue_id=0,
        flag=0,
        sys_flag=0,
        born_ms=now_ms,
        born_host=store.host,
        body=control_body,
        properties=format_properties({EPOCH_PROPERTY: str(epoch)}),
    )
    # It may begin where others may not (rule 7): histories tell where epochs began.
    stored = put(store, [record], now_ms, room_min=0)[0]
    try:
        set_epochs(store, (*before, EpochStart(epoch, stored.phys_offset)))
    except OSError as error:
        undo(store, end)
        if error.errno in NO_ROOM:
            raise StoreFull(f"no room for {store.epochs_path}: {error.strerror}") from error
        raise
    return stored


def set_epochs(store: MessageStore, epochs: LeaderEpochs) -> None:
    store.epochs_persisted = False  # One that fails may have replaced the file all the same.
    EpochFile(store.log.segment_size, epochs).save(store.epochs_path)
    store.epochs = epochs
    store.epochs_persisted = True


def set_epochs_lazily(store: MessageStore, epochs: LeaderEpochs) -> None:
    """As `set_history`, but for its file a full disk can wait: the log says the same, where recovery still walks it.

    So until the file is written no start may begin behind what it is wrong about (`save_points`).
    """
    store.epochs, store.epochs_persisted = epochs, False
    persist_epochs(store)


def persist_epochs(store: MessageStore) -> bool:
    """Write the history that a full disk did not take. False: it has no room for it. Raises OSError of other kinds."""
    if not store.epochs_persisted:
        try:
            set_epochs(store, store.epochs)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            warn_rate_limited(store, f"cannot write {store.epochs_path}", error)
    return store.epochs_persisted


def undo(store: MessageStore, end: int) -> None:
    """Take back what was appended last; nothing of it is confirmed. Raises OSError, after which nothing is taken."""
    store.flushed = min(store.flushed, end)
    try:
        store.log.truncate(end)
        truncate_unconfirmed(store, end)
    except OSError as error:
        store.mark_failed(error)
        raise


def append_raw(store: MessageStore, at: int, data: bytes) -> int:
    """Append the leader's bytes as they are; answers the new end.

    Raises ValueError when `at` is not `end`, BadRecords when they are not whole, sound records for that place,
    StoreFull, FlushFailed, OSError; then nothing is appended.
    """
    log = store.log
    if at != log.end:
        raise ValueError(f"bytes for {at}, but the log ends at {log.end}")
    if store.failed is not None:
        raise FlushFailed(f"the store takes nothing after: {store.failed}")
    if not data:
        return at
    batch = parse(
        at,
        data,
        store.queues,
        log.segment_size,
        store.delays,
        check=True,
        keys=store.index is not None and not store.index.behind,
    )
    epochs = store.epochs
    if at == 0 and not epochs and not (batch.epochs and batch.epochs[0].start == 0):
        epochs = FOREIGN  # A log of ours begins with an epoch's record (rule 7).
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
    _write(store, pieces, at + len(data))
    if epochs != store.epochs:
        try:
            set_epochs(store, epochs)
        except OSError as error:
            undo(store, at)
            if error.errno in NO_ROOM:
                raise StoreFull(f"no room for {store.epochs_path}: {error.strerror}") from error
            raise
    push_unconfirmed(store, batch)
    if at == 0:
        store.reset_in_progress = False
    return log.end
