"""Reading what is confirmed: by queue, by time, by key, by offset of the log."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from struct import Struct
from typing import TYPE_CHECKING, Final

from gantry_broker.protocol.codes import GetStatus, SysFlag
from gantry_broker.protocol.message import MAGIC_BLANK, Record, RecordError, decode_record
from gantry_broker.store.errors import BadRecords, OffsetGone
from gantry_broker.store.index.consume_queue import BLANK_SIZE, ENTRY, ENTRY_SIZE, ConsumeQueue
from gantry_broker.store.index.key_hash import KeyHasher
from gantry_broker.store.log.record_reader import MAX_RECORD, SIZE_AND_MAGIC
from gantry_broker.store.scrub import count_valid
from gantry_broker.store.types import Got

if TYPE_CHECKING:
    from gantry_broker.store.store import MessageStore

MAX_SCAN: Final = 4_096
"""Entries that one read looks at when a filter lets few of them through; the reader goes on where it stopped."""
_SPREAD: Final = 8
"""Records are read in one go when that reads at most this many times what is wanted."""
_SYS_FLAG: Final = Struct(">i")
_STORE_MS: Final = Struct(">q")


def get(
    store: MessageStore,
    topic: str,
    queue_id: int,
    offset: int,
    max_count: int,
    max_bytes: int,
    tag_hashes: frozenset[int] | None,
    record_filter: Callable[[Record], bool] | None,
) -> Got:
    """See `MessageStore.get`."""
    queue = store.queues.find(topic, queue_id)
    if queue is None:
        status = GetStatus.NO_MATCHED_LOGIC_QUEUE
        if offset > 0 and store.confirmed < store.end:
            return Got(GetStatus.OFFSET_OVERFLOW_ONE, b"", 0, offset, 0, 0)
        return Got(status, b"", 0, 0, 0, 0)
    low, high = queue.min_at(store.queues.visible_from(topic, store.log.start)), queue.max
    if offset >= high:
        if offset == high and high > 0:
            return Got(GetStatus.OFFSET_OVERFLOW_ONE, b"", 0, offset, low, high)
        if offset > high and store.confirmed < store.end:
            return Got(GetStatus.OFFSET_OVERFLOW_ONE, b"", 0, offset, low, high)
        if high == 0:
            return Got(GetStatus.NO_MESSAGE_IN_QUEUE, b"", 0, 0, low, high)
        return Got(GetStatus.OFFSET_OVERFLOW_BADLY, b"", 0, low if low == 0 else high, low, high)
    if offset < low:
        return Got(GetStatus.OFFSET_TOO_SMALL, b"", 0, low, low, high)
    return _collect(store, queue, offset, low, high, max(max_count, 1), max_bytes, tag_hashes, record_filter)


def _collect(
    store: MessageStore,
    queue: ConsumeQueue,
    offset: int,
    low: int,
    high: int,
    max_count: int,
    max_bytes: int,
    tag_hashes: frozenset[int] | None,
    record_filter: Callable[[Record], bool] | None,
) -> Got:
    status = GetStatus.NO_MATCHED_MESSAGE
    start, end = store.log.start, store.confirmed
    wanted: list[tuple[int, int]] = []
    places: list[int] = []
    data: list[bytes] = []
    total = 0
    count = 0
    at = offset
    # Without a filter no more entries are read than can be answered.
    step = max_count if tag_hashes is None and record_filter is None else 256
    scanned = 0
    full = False
    while at < high and not full and scanned < MAX_SCAN:
        entries = queue.read(at, min(step, MAX_SCAN - scanned))
        if not entries:
            break
        for phys, size, code in ENTRY.iter_unpack(entries):
            if count >= max_count or (count and total + size > max_bytes):
                full = True
                break
            at += 1
            scanned += 1
            if size == BLANK_SIZE or size <= 0 or phys < start or phys + size > end:
                if not count:
                    status = GetStatus.MESSAGE_WAS_REMOVING
                continue
            if tag_hashes is not None and code not in tag_hashes:
                continue
            if record_filter is not None:
                try:
                    raw = store.log.read(phys, size)
                    if not record_filter(decode_record(raw)):
                        continue
                except (RecordError, OSError) as error:
                    if isinstance(error, OSError) and error.errno != errno.EIO:
                        raise
                    if not count:
                        return _damaged(store, phys, at - 1, low, high)
                    at -= 1  # The next read says so.
                    full = True
                    break
                data.append(raw)
            else:
                wanted.append((phys, size))
                places.append(at - 1)
            total += size
            count += 1
    if wanted:
        try:
            data = _read_records(store, wanted, total)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            if count == 1:
                return _damaged(store, wanted[0][0], places[0], low, high)
            half = count // 2  # What comes before the place that the disk does not give back.
            return _collect(store, queue, offset, low, high, half, max_bytes, tag_hashes, record_filter)
        valid = count_valid(store, wanted, data)
        if valid < len(wanted):
            if valid == 0:
                return _damaged(store, wanted[0][0], places[0], low, high)
            count, at = valid, places[valid]
            data = _read_records(store, wanted[:valid], sum(size for _, size in wanted[:valid]))
    if count:
        return Got(GetStatus.FOUND, data[0] if len(data) == 1 else b"".join(data), count, at, low, high)
    return Got(status, b"", 0, at, low, high)


def _damaged(store: MessageStore, phys: int, at: int, low: int, high: int) -> Got:
    store.on_damage(phys)
    return Got(GetStatus.OFFSET_FOUND_NULL, b"", 0, at, low, high, damaged=phys)


def _read_records(store: MessageStore, wanted: list[tuple[int, int]], total: int) -> list[bytes]:
    """The bytes of records in rising order: in one read where they lie close together."""
    first = wanted[0][0]
    span = wanted[-1][0] + wanted[-1][1] - first
    if span == total:
        return [store.log.read(first, span)]
    if span <= total * _SPREAD and span <= 1 << 20:
        block = memoryview(store.log.read(first, span))
        return [bytes(block[phys - first : phys - first + size]) for phys, size in wanted]
    read = store.log.read
    return [read(phys, size) for phys, size in wanted]


def stored_ms(store: MessageStore, phys: int) -> int:
    """Store time of the record at `phys`; -1 when the log no longer has it."""
    if not store.log.start <= phys < store.log.end:
        return -1
    try:
        head = store.log.read(phys, 80)
    except OSError as error:
        if error.errno == errno.EIO:
            store.on_damage(phys)
        raise
    if len(head) < 80:
        return -1
    v6 = _SYS_FLAG.unpack_from(head, 36)[0] & SysFlag.BORN_HOST_V6
    ms: int = _STORE_MS.unpack_from(head, 68 if v6 else 56)[0]
    return ms


def offset_at_time(store: MessageStore, topic: str, queue_id: int, ms: int) -> int:
    """See `MessageStore.offset_at_time` (5.x's lower boundary; 4.9 answers the nearest, which may skip equal times)."""
    queue = store.queues.find(topic, queue_id)
    if queue is None:
        return 0
    low, high = queue.min_at(store.queues.visible_from(topic, store.log.start)), queue.max
    while low < high:
        middle = (low + high) // 2
        phys, _, _ = queue.entry(middle)
        if stored_ms(store, phys) < ms:  # A blank has the place of the record behind it.
            low = middle + 1
        else:
            high = middle
    return low


def store_time(store: MessageStore, topic: str, queue_id: int, offset: int) -> int:
    """See `MessageStore.store_time`."""
    queue = store.queues.find(topic, queue_id)
    if queue is None or not store.min_offset(topic, queue_id) <= offset < queue.max:
        return -1
    phys, size, _ = queue.entry(offset)
    return -1 if size == BLANK_SIZE else stored_ms(store, phys)


def record(store: MessageStore, phys: int) -> Record:
    """See `MessageStore.record`."""
    if not store.log.start <= phys < store.confirmed:
        raise OffsetGone(phys, store.log.start, store.confirmed)
    head = store.log.read(phys, 8)
    size = SIZE_AND_MAGIC.unpack(head)[0] if len(head) == 8 else 0
    if not 8 < size <= min(MAX_RECORD, store.confirmed - phys):
        raise BadRecords(phys, f"size of {size} bytes")
    try:
        found = decode_record(store.log.read(phys, size))
    except RecordError as error:
        raise BadRecords(phys, str(error)) from None
    if found.phys_offset != phys:
        raise BadRecords(phys, f"record says that it lies at {found.phys_offset}")
    return found


def query(
    store: MessageStore, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int, unique: bool
) -> list[Record]:
    """See `MessageStore.query`."""
    index = store.index
    known = store.queues.topics.get(topic)
    if index is None or not key or max_num <= 0:
        return []
    hasher = KeyHasher(topic) if known is None else known.hasher
    visible_from = store.queues.visible_from(topic, store.log.start)
    found: list[Record] = []
    seen: set[int] = set()
    # Hashes collide: some candidates fall out below.
    for phys in index.find(hasher.hash(key), begin_ms, end_ms, max_num * 2 + 16):
        if phys in seen or phys < visible_from or len(found) >= max_num:
            continue
        seen.add(phys)
        try:
            candidate = record(store, phys)
        except (OffsetGone, BadRecords):
            continue
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            store.on_damage(phys)
            continue
        if candidate.topic != topic or not begin_ms <= candidate.store_ms <= end_ms:
            continue
        if candidate.uniq_key == key or (not unique and key in candidate.keys):
            found.append(candidate)
    return found


def records(data: bytes) -> Iterator[Record]:
    """The records within whole records and fillers. Raises BadRecords."""
    at = 0
    while at < len(data):
        size, magic = SIZE_AND_MAGIC.unpack_from(data, at)
        if magic != MAGIC_BLANK:
            try:
                yield decode_record(data, at)
            except RecordError as error:
                raise BadRecords(at, str(error)) from None
        at += max(size, ENTRY_SIZE) if magic != MAGIC_BLANK else size
