"""Reads confirmed records: by queue, by time, by key, by offset of the log."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import islice, pairwise, repeat
from struct import Struct
from typing import Final

from gantry_core import gather_records, key_hash, near_records, records_named, records_whole, wanted_records

from gantry_broker.protocol.codes import GetStatus
from gantry_broker.protocol.message import FIXED_V4, Record, RecordError, decode_record, tags_hash
from gantry_broker.store.compaction.table import CompactionTable
from gantry_broker.store.errors import BadRecords, OffsetGone
from gantry_broker.store.index.compacted import QueueRows, Row, key_of, row_with_key
from gantry_broker.store.index.consume_queue import BLANK_SIZE, ENTRY, ENTRY_SIZE, ConsumeQueue
from gantry_broker.store.index.key_index import KeyIndex
from gantry_broker.store.index.queue_table import QueueTable
from gantry_broker.store.indexing import Indexer
from gantry_broker.store.log.commit_log import CommitLog
from gantry_broker.store.log.record_reader import (
    LMQ,
    MAX_RECORD,
    SIZE_AND_MAGIC,
    TIME_HEAD_SIZE,
    decode_records,
    is_record_of,
    is_valid_record,
    store_ms_of,
)
from gantry_broker.store.scrub import CACHED_BYTES, Scrubber
from gantry_broker.store.state import StoreState
from gantry_broker.store.types import Got

MAX_SCAN: Final = 4_096
"""Entries that one read examines when a filter rejects most of them; the next read continues there."""
_SPREAD: Final = 8
"""Records are read in one go if that reads at most this many times the wanted bytes."""
_GAP: Final = 1 << 14
"""Bytes between two records that cost less to read than another call."""
_SHORT_SPAN: Final = 1 << 17
"""Bytes from the first record of a pull to its last that are one read without a look at what lies between."""
_MOST_SPAN: Final = 1 << 20
"""Bytes of a read that has bytes between records."""
_PIECE: Final = 1 << 16
_MAX_PIECES: Final = 16
_SHARED: Final = 16
"""Records that fill more than this part of a piece are read alone: the rest of a piece costs more than it helps."""
_PLACE: Final = Struct(">i8xi4xqq48xi")
"""Of a record with IPv4 hosts: size, queue, queue offset, own offset, bytes of the body."""
_REPAIR_STEPS: Final = 4
"""Mebibytes of the log that a read looks through for the record of a damaged entry."""


@lru_cache
def _place_and_topic(length: int, topic: int, rest: int) -> Struct:
    """Return a whole record as `_PLACE`, with its topic and the byte before that, behind a body of `length` bytes."""
    return Struct(f"{_PLACE.format}{length}x{topic}s{rest}x")


def read_spread(log: CommitLog, extents: list[tuple[int, int]], total: int) -> list[bytes]:
    """Return the bytes of records in rising order, in one read if they lie close together. Raises OSError."""
    first = extents[0][0]
    span = extents[-1][0] + extents[-1][1] - first
    if span == total:
        return [log.read(first, span)]
    if 0 < span <= min(total * _SPREAD, _MOST_SPAN):
        block = memoryview(log.read(first, span))
        return [bytes(block[phys - first : phys - first + size]) for phys, size in extents]
    return [log.read(phys, size) for phys, size in extents]


def read_wanted(log: CommitLog, entries: bytes, count: int, first: int, last: int, total: int) -> bytes:
    """As `read_spread`, for the records of the first entries. `first`, `last`: where they begin and end; `total`: their
    bytes. Raises OSError.
    """
    span = last - first
    if span == total:
        return log.read(first, span)
    if span <= min(total * _SPREAD, _SHORT_SPAN):
        block = log.read(first, span)
        if len(block) == span:
            return gather_records(block, first, entries, count)
    parts: list[bytes] = []
    at = 0
    for start, span, records, size in near_records(entries, count, _GAP, _MOST_SPAN):
        block = log.read(start, span)
        if span != size:
            if len(block) != span:
                places = ENTRY.iter_unpack(entries[: count * ENTRY_SIZE])
                return b"".join([log.read(phys, size) for phys, size, _ in places])
            block = gather_records(block, start, entries[at : at + records * ENTRY_SIZE], records)
        parts.append(block)
        at += records * ENTRY_SIZE
    return b"".join(parts)


def _is_full(entries: bytes, count: int, total: int, max_bytes: int) -> bool:
    """Whether it is for the limit of bytes that an answer gets no more records than the first `count`."""
    size: int = ENTRY.unpack_from(entries, count * ENTRY_SIZE)[1]
    return 0 < size < BLANK_SIZE and total + size > max_bytes


def are_named(queue: ConsumeQueue, number: int, entries: bytes, count: int, data: bytes) -> bool:
    """Whether `data` are the records that entries of a queue name, from the queue offset `number` on."""
    topic, queue_id = queue.key
    if records_named(data, entries, count, topic.encode(), queue_id, number):
        return True
    extents = [(phys, size) for phys, size, _ in ENTRY.iter_unpack(entries[: count * ENTRY_SIZE])]
    return count_named(queue, range(number, number + count), extents, [data]) == count


def count_named(queue: ConsumeQueue, places: Sequence[int], extents: list[tuple[int, int]], data: list[bytes]) -> int:
    """How many of the records that entries of a queue name are the right ones, up to the first that is not.

    `places`: their queue offsets; `extents`: offset in the log and size, as the entries have them; `data`: one piece
    for each record, or one for all. The files of a queue have no checksum: a changed bit leads to another record.
    """
    topic, queue_id = queue.key
    name = topic.encode()
    short = bytes((len(name),)) + name if len(name) < 128 else name
    if name.startswith(LMQ):
        return len(extents)
    unpack, together = _PLACE.unpack_from, len(data) == 1
    piece, at = data[0], 0
    left = len(piece) - FIXED_V4
    count = 0
    size = extents[0][1]
    if together and left >= 0 and len(extents) * size == len(piece) and len(short) > len(name):
        # Mostly all have the same size, and bodies of one length: one comparison for all of them.
        length = unpack(piece)[4]
        rest = size - FIXED_V4 - length - len(short)
        if length >= 0 and rest >= 0:
            heads = [*_place_and_topic(length, len(short), rest).iter_unpack(piece)]
            offsets, sizes = zip(*extents, strict=True)
            same = (repeat(queue_id), places, offsets, repeat(length), repeat(short))
            if heads == [*zip(sizes, *same, strict=False)]:
                return len(extents)
    for (phys, size), number in zip(extents, places, strict=False):
        if not together:
            piece = data[count]
            left = len(piece) - FIXED_V4
        # Most records, without the cost of a call: IPv4 hosts, a short topic.
        if at > left:
            return count
        own_size, own_queue, own_number, own_phys, length = unpack(piece, at)
        if not (
            own_phys == phys
            and own_number == number
            and own_size == size
            and own_queue == queue_id
            and piece.startswith(short, at + FIXED_V4 + length)
        ) and not is_record_of(piece, at, size, phys, name, queue_id, number):
            return count
        count += 1
        if together:
            at += size
    return count


def _lies_before(queue: ConsumeQueue, phys: int, number: int) -> bool:
    return queue.entry(number)[0] < phys


def _bisect(low: int, high: int, is_before: Callable[[int], bool]) -> int:
    """Return the first number of [low, high) that is not before what is looked for; `high` without one."""
    while low < high:
        middle = (low + high) // 2
        if is_before(middle):
            low = middle + 1
        else:
            high = middle
    return low


class LogPieces:
    """Bytes of the end of the log, which one system call reads for many records.

    For one step without a pause: nothing may be appended, truncated or repaired during its life.
    """

    __slots__ = (
        "_data",
        "_end",
        "_log",
        "_older",
        "_queues",
        "_start",
        "_table",
        "_topic",
        "_visible_from",
        "oldest",
        "recent",
    )

    def __init__(self, log: CommitLog, table: QueueTable, oldest: int, confirmed: int) -> None:
        self.oldest = oldest
        """Records before this offset of the log are gone, or have to be verified."""
        self.recent = confirmed - _PIECE * _MAX_PIECES
        """Records before this offset are read one by one."""
        self._log = log
        self._end = confirmed
        self._start = 0
        self._data = b""
        self._older: list[tuple[int, bytes]] = []
        self._table = table
        self._topic = ""
        """Of the last `try_get`, with its queues and the place from which its records are visible."""
        self._queues: dict[int, ConsumeQueue] = {}
        self._visible_from = 0

    def try_get(self, topic: str, queue_id: int, offset: int, max_count: int, max_bytes: int) -> Got | None:
        """As `Reader.get` without a filter, for records at the end of the log; None: `get` has to look.

        Raises OSError.
        """
        if topic != self._topic:
            topic_queues = self._table.topics.get(topic)
            if topic_queues is None:
                return None
            self._topic, self._queues = topic, topic_queues.queues
            self._visible_from = self._table.visible_from(topic, self._log.start)
        queue = self._queues.get(queue_id)
        if queue is None:
            return None
        if queue.next < 0:
            self._table.find(topic, queue_id)  # It loads the queue.
        low = queue.min_at(self._visible_from)
        pending, at = queue.pending, (offset - queue.written) * ENTRY_SIZE
        high = queue.written + len(pending) // ENTRY_SIZE
        if not low <= offset < high:
            return None
        if queue.compacted is not None:
            low = queue.compacted.least(low)
        if at >= 0 and (max_count == 1 or high - offset == 1):
            phys, size, _ = ENTRY.unpack_from(pending, at)
            if not 0 < size < BLANK_SIZE or phys < self.oldest or phys + size > self._end:
                return None
            place = phys - self._start
            data = self._data
            if 0 <= place <= len(data) - size:
                return Got(GetStatus.FOUND, data[place : place + size], 1, offset + 1, low, high)
            try:
                return Got(GetStatus.FOUND, self.read(phys, size), 1, offset + 1, low, high)
            except OSError:
                return None
        return self._several(queue, offset, min(high - offset, max_count), max_bytes, low, high)

    def _several(self, queue: ConsumeQueue, offset: int, most: int, max_bytes: int, low: int, high: int) -> Got | None:
        at = (offset - queue.written) * ENTRY_SIZE
        in_files = at < 0
        try:
            if not in_files:
                entries = bytes(queue.pending[at : at + most * ENTRY_SIZE])
            else:
                entries = queue.read(offset, min(most, MAX_SCAN))
            count, first, last, total = wanted_records(entries, max_bytes, self.oldest, self._end)
            if not count:
                return None
            if first < self.recent:
                data = read_wanted(self._log, entries, count, first, last, total)  # of a backlog
            elif self._start <= first and last <= self._start + len(self._data):
                data = gather_records(self._data, self._start, entries, count)
            else:
                data = self._gather(entries, count, first, last, total)
        except OSError:
            return None
        if in_files and offset < queue.trusted_from and not are_named(queue, offset, entries, count, data):
            return None
        return Got(GetStatus.FOUND, data, count, offset + count, low, high)

    def _gather(self, entries: bytes, count: int, first: int, last: int, total: int) -> bytes:
        """Return the records of the first entries, which the present piece has not. Raises OSError."""
        span = last - first
        if total >= _PIECE // _SHARED and (span == total or span > _PIECE):
            return read_wanted(self._log, entries, count, first, last, total)
        if span <= _PIECE:
            self._turn_to(first, span)
            if last <= self._start + len(self._data):
                return gather_records(self._data, self._start, entries, count)
        places = ENTRY.iter_unpack(entries[: count * ENTRY_SIZE])
        return b"".join([self.read(phys, size) for phys, size, _ in places])

    def read(self, phys: int, size: int) -> bytes:
        """Return the bytes of a confirmed record. Raises OSError."""
        at = phys - self._start
        if at < 0 or at + size > len(self._data):
            if size > _PIECE or phys < self.recent:
                return self._log.read(phys, size)
            self._turn_to(phys, size)
            at = phys - self._start
        return self._data[at : at + size]

    def _turn_to(self, phys: int, size: int) -> None:
        """Make the piece that has the record the present one."""
        older = self._older
        if self._data:
            older.append((self._start, self._data))
        for number, (start, data) in enumerate(older):
            if start <= phys and phys + size <= start + len(data):
                self._start, self._data = older.pop(number)
                return
        if len(older) > _MAX_PIECES:
            del older[0]
        self._data = b""  # In case the read raises.
        self._data = self._log.read(phys, min(_PIECE, self._end - phys))
        self._start = phys


class Reader:
    """Reads what is confirmed."""

    def __init__(
        self,
        state: StoreState,
        log: CommitLog,
        queues: QueueTable,
        index: KeyIndex | None,
        scrubber: Scrubber,
        indexer: Indexer,
        compaction: CompactionTable,
    ) -> None:
        self._compaction = compaction
        self._indexer = indexer
        self._state = state
        self._log = log
        self._queues = queues
        self._index = index
        self._scrubber = scrubber

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the first queue offset whose record is still there; 0 for an unknown queue."""
        queue = self._queues.find(topic, queue_id)
        return 0 if queue is None else self.min_of(queue)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset after the last confirmed record; 0 for an unknown queue."""
        queue = self._queues.find(topic, queue_id)
        return 0 if queue is None else queue.max

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return `min_offset` and `max_offset` in one step."""
        queue = self._queues.find(topic, queue_id)
        return (0, 0) if queue is None else (self.min_of(queue), queue.max)

    def min_of(self, queue: ConsumeQueue) -> int:
        """Return the first offset of the queue whose record is still there. Raises OSError."""
        low = queue.min_at(self._queues.visible_from(queue.key[0], self._log.start))
        return low if queue.compacted is None else queue.compacted.least(low)

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
        what was read and the offset to go on from.

        An offset above `max` that unconfirmed records may yet reach is "nothing yet", never "moved" (rule 9). Raises
        OSError.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            status = GetStatus.NO_MATCHED_LOGIC_QUEUE
            if offset > 0 and self._state.confirmed < self._log.end:
                return Got(GetStatus.OFFSET_OVERFLOW_ONE, b"", 0, offset, 0, 0)
            return Got(status, b"", 0, 0, 0, 0)
        from_log, high = queue.min_at(self._queues.visible_from(topic, self._log.start)), queue.max
        rows = queue.compacted
        low = from_log if rows is None else rows.least(from_log)
        if offset >= high:
            if offset == high and high > 0:
                return Got(GetStatus.OFFSET_OVERFLOW_ONE, b"", 0, offset, low, high)
            if offset > high and self._state.confirmed < self._log.end:
                return Got(GetStatus.OFFSET_OVERFLOW_ONE, b"", 0, offset, low, high)
            if high == 0:
                return Got(GetStatus.NO_MESSAGE_IN_QUEUE, b"", 0, 0, low, high)
            return Got(GetStatus.OFFSET_OVERFLOW_BADLY, b"", 0, high, low, high)
        count = max(max_count, 1)
        if offset < from_log:
            if rows is None:
                return Got(GetStatus.OFFSET_TOO_SMALL, b"", 0, low, low, high)
            compacted = self._compacted(
                queue, rows, offset, from_log, high, count, max_bytes, tag_hashes, record_filter, enough
            )
            if compacted.count or from_log == high or compacted.next_offset < from_log or compacted.damaged >= 0:
                return compacted
            offset = from_log
        if tag_hashes is None and record_filter is None:
            plain = self._plain(queue, offset, low, high, count, max_bytes)
            if plain is not None:
                return plain
        return self._collect(queue, offset, low, high, count, max_bytes, tag_hashes, record_filter, enough)

    def _compacted(
        self,
        queue: ConsumeQueue,
        rows: QueueRows,
        offset: int,
        low: int,
        high: int,
        max_count: int,
        max_bytes: int,
        tag_hashes: frozenset[int] | None,
        record_filter: Callable[[Record], bool] | None,
        enough: Callable[[], bool] | None,
    ) -> Got:
        """Read compacted records of a queue: those with a row, below the queue offset `low`. The next read goes on
        behind the last one, so it skips the offsets that compaction has removed, as RocketMQ's does.
        """
        least = rows.least(low)
        data: list[bytes] = []
        total, at = 0, low
        looked = 0
        for row in rows.from_number(offset):
            if len(data) >= max_count or looked >= MAX_SCAN or (data and total + row.size > max_bytes):
                at = row.number  # The next read begins here.
                break
            if looked and record_filter is not None and enough is not None and enough():
                at = row.number
                break
            looked += 1
            try:
                raw = self._compaction.read(queue, row)
                if tag_hashes is not None or record_filter is not None:
                    record = decode_record(raw)
                    if tag_hashes is not None and tags_hash(record.tags or "") not in tag_hashes:
                        continue
                    if record_filter is not None and not record_filter(record):
                        continue
            except (RecordError, OSError) as error:
                if isinstance(error, OSError) and error.errno != errno.EIO:
                    raise
                if not data:
                    return self._damaged(self._compaction.holder(row.place), row.number, least, high)
                at = row.number  # The next read reports it.
                break
            data.append(raw)
            total += row.size
        status = GetStatus.FOUND if data else GetStatus.NO_MATCHED_MESSAGE
        return Got(status, b"".join(data), len(data), at, least, high)

    def _plain(
        self, queue: ConsumeQueue, offset: int, low: int, high: int, max_count: int, max_bytes: int
    ) -> Got | None:
        """As `_collect`, for records without damage and without a filter; None: `_collect` has to look."""
        state, log = self._state, self._log
        try:
            entries = queue.read(offset, min(max_count, MAX_SCAN))
            count, first, last, total = wanted_records(entries, max_bytes, log.start, state.confirmed)
            if not count or (count * ENTRY_SIZE < len(entries) and not _is_full(entries, count, total, max_bytes)):
                return None
            data = read_wanted(log, entries, count, first, last, total)
        except OSError:
            return None
        if offset < queue.trusted_from and not are_named(queue, offset, entries, count, data):
            return None
        if not self._scrubber.counts_as_valid(first) and not records_whole(data, entries, count):
            return None
        return Got(GetStatus.FOUND, data, count, offset + count, low, high)

    def together(self) -> LogPieces:
        """Return reads of records at the end of the log, many in one step without a pause."""
        state, log = self._state, self._log
        oldest = max(log.start, state.verified_from, state.confirmed - CACHED_BYTES)
        return LogPieces(log, self._queues, oldest, state.confirmed)

    def _collect(
        self,
        queue: ConsumeQueue,
        offset: int,
        low: int,
        high: int,
        max_count: int,
        max_bytes: int,
        tag_hashes: frozenset[int] | None,
        record_filter: Callable[[Record], bool] | None,
        enough: Callable[[], bool] | None,
    ) -> Got:
        status = GetStatus.NO_MATCHED_MESSAGE
        start, end = self._log.start, self._state.confirmed
        extents: list[tuple[int, int]] = []
        places: list[int] = []
        data: list[bytes] = []
        total = 0
        count = 0
        at = offset
        # Without a filter, every entry read can be returned.
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
                    if size != BLANK_SIZE:
                        if count:
                            at -= 1  # The next read reports it.
                            scanned = MAX_SCAN
                            full = True
                            break
                        if self._repaired(queue, at - 1):
                            return self._collect(
                                queue, offset, low, high, max_count, max_bytes, tag_hashes, record_filter, enough
                            )
                        return self._entry_damaged(phys, at - 1, queue, low, high)
                    if not count:
                        status = GetStatus.MESSAGE_WAS_REMOVING
                    continue
                if tag_hashes is not None and code not in tag_hashes:
                    continue
                if record_filter is not None:
                    if enough is not None and scanned > 1 and enough():
                        at -= 1  # The next read begins here.
                        full = True
                        break
                    try:
                        raw = self._log.read(phys, size)
                        if at <= queue.trusted_from and not count_named(queue, (at - 1,), [(phys, size)], [raw]):
                            if count:
                                at -= 1
                                full = True
                                break
                            if self._repaired(queue, at - 1):
                                return self._collect(
                                    queue, offset, low, high, max_count, max_bytes, tag_hashes, record_filter, enough
                                )
                            return self._entry_damaged(phys, at - 1, queue, low, high)
                        if not record_filter(decode_record(raw)):
                            continue
                    except (RecordError, OSError) as error:
                        if isinstance(error, OSError) and error.errno != errno.EIO:
                            raise
                        if not count:
                            return self._damaged(phys, at - 1, low, high)
                        at -= 1  # The next read reports it.
                        full = True
                        break
                    data.append(raw)
                else:
                    extents.append((phys, size))
                    places.append(at - 1)
                total += size
                count += 1
        if extents:
            try:
                data = read_spread(self._log, extents, total)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                if count == 1:
                    return self._damaged(extents[0][0], places[0], low, high)
                half = count // 2  # Until only the records before the unreadable place are left.
                return self._collect(queue, offset, low, high, half, max_bytes, tag_hashes, record_filter, enough)
            if places[0] < queue.trusted_from:
                named = count_named(queue, places, extents, data)
                if named < len(extents):
                    if named:
                        # Only the records before it; the next read reports it.
                        return self._collect(
                            queue, offset, low, high, named, max_bytes, tag_hashes, record_filter, enough
                        )
                    if self._leads_nowhere(queue, places[0], *extents[0]):
                        if self._repaired(queue, places[0]):
                            return self._collect(
                                queue, offset, low, high, max_count, max_bytes, tag_hashes, record_filter, enough
                            )
                        return self._entry_damaged(extents[0][0], places[0], queue, low, high)
                    return self._damaged(extents[0][0], places[0], low, high)
            valid = self._scrubber.count_valid(extents, data)
            if valid < len(extents):
                if valid == 0:
                    return self._damaged(extents[0][0], places[0], low, high)
                count, at = valid, places[valid]
                data = read_spread(self._log, extents[:valid], sum(size for _, size in extents[:valid]))
        if count:
            return Got(GetStatus.FOUND, data[0] if len(data) == 1 else b"".join(data), count, at, low, high)
        return Got(status, b"", 0, at, low, high)

    def _leads_nowhere(self, queue: ConsumeQueue, number: int, phys: int, size: int) -> bool:
        """Whether the entry, and not the record, is damaged: its neighbours or the log say that no record is there."""
        try:
            return is_valid_record(self._log.read(phys, size), 0, phys, size) or not self._begins_between(
                queue, number, phys, size
            )
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return False

    def _begins_between(self, queue: ConsumeQueue, number: int, phys: int, size: int) -> bool:
        """Whether the entry fits between its neighbours, and a record or filler follows: the log has the damage."""
        before = queue.entry(number - 1)[0] if number - 1 >= queue.first else -1
        after = queue.entry(number + 1)[0] if number + 1 < queue.max else self._state.confirmed
        return before < phys < after and self._log.begins_record(phys + size)

    def _repaired(self, queue: ConsumeQueue, number: int) -> bool:
        """Repair a damaged entry at once if that takes little; True when it leads to its record then."""
        if number >= queue.written:
            return False
        for _ in islice(self._indexer.repair_entries(queue, number), _REPAIR_STEPS):
            pass
        phys, size, _ = queue.entry(number)
        return size != BLANK_SIZE and self._indexer.leads_to_record(queue, number, phys, size)

    def _entry_damaged(self, phys: int, number: int, queue: ConsumeQueue, low: int, high: int) -> Got:
        self._state.on_queue_damage(*queue.key, number)
        return Got(GetStatus.OFFSET_FOUND_NULL, b"", 0, number, low, high, damaged=max(phys, 0))

    def _damaged(self, phys: int, at: int, low: int, high: int) -> Got:
        self._state.on_damage(phys)
        return Got(GetStatus.OFFSET_FOUND_NULL, b"", 0, at, low, high, damaged=phys)

    def stored_ms(self, phys: int) -> int:
        """Store time (ms) of the record at `phys`; -1 when the log does not have it. Raises OSError."""
        if not self._log.start <= phys < self._log.end:
            return -1
        try:
            head = self._log.read(phys, TIME_HEAD_SIZE)
        except OSError as error:
            if error.errno == errno.EIO:
                self._state.on_damage(phys)
            raise
        return -1 if len(head) < TIME_HEAD_SIZE else store_ms_of(head)

    def _indexed_ms(self, phys: int) -> int:
        """As `stored_ms`; -1 also for a record that the disk cannot read. Raises OSError of other kinds."""
        try:
            return self.stored_ms(phys)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return -1

    def offset_at_time(self, topic: str, queue_id: int, ms: int, *, upper: bool = False) -> int:
        """Return the first queue offset whose record was stored at `ms` or later; the max offset without one.

        `upper`: the last one whose record was stored at `ms` or earlier; 0 without one. Store times need not rise: a
        clock may have been set back, or the next leader's may have been behind. Source: the boundaries of 5.5.0; 4.9
        may skip equal times, and neither is right where a clock was set back.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return 0
        first, high = queue.min_at(self._queues.visible_from(topic, self._log.start)), queue.max
        rows = queue.compacted
        if rows is not None and not upper:
            older = rows.at_time(ms)
            if older is not None:
                return older
        borders = [first]
        for step in self._indexer.steps.behind(self._log.start):
            borders.append(_bisect(borders[-1], high, partial(_lies_before, queue, step)))
        borders.append(high)
        limit = ms + 1 if upper else ms

        def is_before(number: int) -> bool:
            return self.stored_ms(queue.entry(number)[0]) < limit  # A blank has the offset of the record behind it.

        runs = [(low, end) for low, end in pairwise(borders) if low < end]
        for low, end in reversed(runs) if upper else runs:
            least = _bisect(low, end, is_before)
            if upper and least > low:
                return least - 1
            if not upper and least < end:
                return least
        if upper:
            return (rows.until_time(ms) or 0) if rows is not None else 0
        return high

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Store time (ms) of a record; -1 without such a record. Raises OSError."""
        queue = self._queues.find(topic, queue_id)
        if queue is None or not self.min_offset(topic, queue_id) <= offset < queue.max:
            return -1
        if queue.compacted is not None and offset < queue.compacted.boundary:
            row = queue.compacted.get(offset)
            return -1 if row is None else row.store_ms
        phys, size, _ = queue.entry(offset)
        return -1 if size == BLANK_SIZE else self.stored_ms(phys)

    def place(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Return the offset in the log of a queue's first record at or after a queue offset; None without one.

        Raises OSError.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return None
        if queue.compacted is not None and offset < queue.compacted.boundary:
            row = next(queue.compacted.from_number(offset), None)
            if row is not None:
                return row.own
            offset = queue.compacted.boundary
        offset = max(offset, queue.first)
        if offset < queue.max and (phys := queue.entry(offset)[0]) >= self._log.start:
            return phys
        offset = max(offset, self.min_of(queue))
        return queue.entry(offset)[0] if offset < queue.max else None

    def record(self, phys: int) -> Record:
        """Return the confirmed record at an offset of the log, which must be a boundary of records; also one that was
        stored there and that compaction has copied.

        Raises OffsetGone, BadRecords when none begins there, OSError.
        """
        if phys < self._log.start:
            try:
                copied = self._compaction.record(phys)
            except RecordError as error:
                raise BadRecords(phys, str(error)) from None
            if copied is not None:
                return copied
        if not self._log.start <= phys < self._state.confirmed:
            raise OffsetGone(phys, self._log.start, self._state.confirmed)
        head = self._log.read(phys, 8)
        size = SIZE_AND_MAGIC.unpack(head)[0] if len(head) == 8 else 0
        if not 8 < size <= min(MAX_RECORD, self._state.confirmed - phys):
            raise BadRecords(phys, f"size of {size} bytes")
        try:
            record = decode_record(self._log.read(phys, size))
        except RecordError as error:
            raise BadRecords(phys, str(error)) from None
        if record.phys_offset != phys:
            raise BadRecords(phys, f"record says that it lies at {record.phys_offset}")
        return record

    def named_record(self, phys: int) -> Record:
        """Return the confirmed record at an offset that a client names: one that its queue has.

        The bytes of a message may look like a record that lies at that very offset, so `record` alone is no proof.
        Raises as `record`.
        """
        record = self.record(phys)
        number, queue = record.queue_offset, self._queues.find(record.topic, record.queue_id)
        if queue is not None and queue.compacted is not None and number < queue.compacted.boundary:
            row = queue.compacted.get(number)
            if row is None or row.own != phys:
                raise BadRecords(phys, "compaction has removed it: a newer record has its key")
            return record
        if (
            queue is None
            or not queue.min_at(self._queues.visible_from(record.topic, self._log.start)) <= number < queue.max
            or queue.entry(number)[:2] != (phys, record.size)
        ):
            raise BadRecords(phys, "no entry of a queue leads there")
        return record

    def walk(self, start: int, stop: int | None = None) -> Iterator[Record]:
        """Every record of [start, stop), by default up to the confirmed offset. Raises OffsetGone, BadRecords."""
        stop = self._state.confirmed if stop is None else stop
        for _, data in self._log.chunks(max(start, self._log.start), stop):
            yield from decode_records(data)

    def read_bytes(self, at: int, max_bytes: int) -> bytes:
        """Return confirmed bytes of one segment from any offset, fewer at its end.

        Raises OffsetGone below the start of the log, OSError.
        """
        confirmed = self._state.confirmed
        if at < self._log.start:
            raise OffsetGone(at, self._log.start, confirmed)
        if at >= confirmed:
            return b""
        return self._log.read(at, max(0, min(max_bytes, confirmed - at, self._log.room(at))))

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
        index = self._index
        if index is None or not key or max_num <= 0:
            return []
        visible_from = self._queues.visible_from(topic, self._log.start)
        records: list[Record] = []
        seen: set[int] = set()
        read = 0
        # Hashes collide: the checks below reject some candidates.
        for phys in index.find(key_hash(topic, key), begin_ms, end_ms, max_num * 2 + 16, self._indexed_ms):
            if phys in seen or phys < visible_from:
                continue
            if len(records) >= max_num or read > max_bytes:
                break
            seen.add(phys)
            try:
                candidate = self.record(phys)
            except (OffsetGone, BadRecords):
                continue
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                self._state.on_damage(phys)
                continue
            read += candidate.size
            if self.is_replaced(candidate):
                continue
            if candidate.topic != topic or not begin_ms <= candidate.store_ms <= end_ms:
                continue
            if candidate.uniq_key == key or (not unique and key in candidate.keys):
                records.append(candidate)
        return records

    def is_replaced(self, record: Record) -> bool:
        """Whether compaction has removed a record that the log, or the archive, still has."""
        rows = self._compaction.rows(record.topic, record.queue_id)
        if rows is None or record.queue_offset >= rows.boundary:
            return False
        return rows.get(record.queue_offset) is None

    def has_copies(self, topic: str) -> bool:
        """Whether compaction may have copied records of a topic: `query` does not find those."""
        topic_queues = self._queues.topics.get(topic)
        return topic_queues is not None and any(queue.compacted is not None for queue in topic_queues.queues.values())

    def copies(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[Record | None]:
        """Yield the records with a key that compaction has copied, stored between the two times (ms); between them
        None, so that the caller may pause: it looks through all rows of the topic. Raises OSError.
        """
        key_bytes = key_of(key.encode())
        topic_queues = self._queues.topics.get(topic)
        for queue in [] if topic_queues is None else list(topic_queues.queues.values()):
            blocks = [] if queue.compacted is None else list(queue.compacted.blocks)
            for block in blocks:
                row = row_with_key(block, key_bytes)
                yield None if row is None else self._copy(queue, row, begin_ms, end_ms)

    def _copy(self, queue: ConsumeQueue, row: Row, begin_ms: int, end_ms: int) -> Record | None:
        if queue.compacted is None or row.own >= self._log.start or not begin_ms <= row.store_ms <= end_ms:
            return None
        now = queue.compacted.get(row.number)  # It may have gone, or moved, since the look began.
        if now is None:
            return None
        try:
            return decode_record(self._compaction.read(queue, now))
        except RecordError:
            self._state.on_damage(self._compaction.holder(now.place))
            return None
