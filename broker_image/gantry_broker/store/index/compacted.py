"""The compacted records of one queue: where each of them lies in the log. Pure.

A row says it of one record. Rows are kept in blocks of packed bytes, sorted by queue offset, so a million of them take
53 MB. A block never changes; a change replaces it. So another thread may look through the blocks of a moment.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import chain
from struct import Struct
from typing import Final, NamedTuple

ROW: Final = Struct(">qqqiqB16s")
BLOCK: Final = 256
"""Rows of a block; up to twice as many before it is split."""
TOMBSTONE: Final = 1
"""Flag of a record without a body: it says that its key is deleted."""
NO_KEY: Final = bytes(16)
"""The key of a record without one: nothing replaces it."""
_NUMBER: Final = Struct(">q")


class Row(NamedTuple):
    """One record that compaction keeps."""

    number: int
    """Its queue offset."""
    own: int
    """Where it was stored first, which the record itself says: an offset of the log."""
    place: int
    """Where its bytes lie now: an offset of the log."""
    size: int
    """Its bytes."""
    store_ms: int
    flags: int
    key: bytes
    """What `key_of` returns."""


def key_of(keys: bytes | None) -> bytes:
    """Return a hash of the property KEYS as a whole, as RocketMQ compares it; `NO_KEY` for a blank one.

    No two keys are known to have the same hash of 16 bytes, and none can be made.
    """
    if keys is None or not keys.strip():
        return NO_KEY
    return blake2b(keys, digest_size=16).digest()


def row_with_key(block: bytes, key: bytes) -> Row | None:
    """Return the row of a key in a block."""
    if key not in block:
        return None
    return next((Row._make(row) for row in ROW.iter_unpack(block) if row[6] == key), None)


class QueueRows:
    """The rows of one queue, and how far compaction is."""

    __slots__ = (
        "_firsts",
        "_newest",
        "_oldest",
        "_places",
        "blocks",
        "boundary",
        "bytes",
        "count",
        "seen",
        "seen_bytes",
        "segment_size",
        "tombstones",
    )

    def __init__(self, segment_size: int) -> None:
        self.segment_size = segment_size
        self.boundary = 0
        """Readers see of the records below this queue offset only those that have a row."""
        self.blocks: list[bytes] = []
        self.count = 0
        self.bytes = 0
        """Of all records that have a row."""
        self.tombstones = 0
        """Rows of records without a body."""
        self.seen = 0
        """Records that compaction has looked at since the topic is compacted, and their bytes: `seen_bytes`."""
        self.seen_bytes = 0
        self._firsts: list[int] = []
        self._newest: list[int] = []
        """By block: the highest store time (ms)."""
        self._oldest: list[int] = []
        self._places: dict[int, int] = {}
        """Rows by the number of the segment that has their bytes."""

    def first(self) -> int | None:
        """Return the first queue offset with a row."""
        return self._firsts[0] if self._firsts else None

    def least(self, low: int) -> int:
        """Return the first queue offset of the queue, if the log alone gives those from `low` on."""
        return min(self._firsts[0], low) if self._firsts else low

    def floor(self) -> int | None:
        """Return the first offset of the segment with the oldest bytes that a row names; None without rows."""
        return min(self._places) * self.segment_size if self._places else None

    def from_number(self, number: int) -> Iterator[Row]:
        """Yield the rows from a queue offset on."""
        at = max(bisect_right(self._firsts, number) - 1, 0)
        for block in self.blocks[at:]:
            for row in ROW.iter_unpack(block):
                if row[0] >= number:
                    yield Row._make(row)

    def get(self, number: int) -> Row | None:
        """Return the row of a queue offset."""
        row = next(self.from_number(number), None)
        return row if row is not None and row.number == number else None

    def with_own(self, own: int) -> Row | None:
        """Return the row of the record that was stored at an offset of the log."""
        low, high = 0, len(self.blocks)
        while low < high:
            middle = (low + high) // 2
            if ROW.unpack_from(self.blocks[middle])[1] <= own:
                low = middle + 1
            else:
                high = middle
        if not low:
            return None
        return next((Row._make(row) for row in ROW.iter_unpack(self.blocks[low - 1]) if row[1] == own), None)

    def at_time(self, ms: int) -> int | None:
        """Return the first queue offset whose record was stored at `ms` or later; None without one."""
        for newest, block in zip(self._newest, self.blocks, strict=True):
            if newest >= ms:
                return int(next(row[0] for row in ROW.iter_unpack(block) if row[4] >= ms))
        return None

    def until_time(self, ms: int) -> int | None:
        """Return the last queue offset whose record was stored at `ms` or earlier; None without one."""
        for at in range(len(self.blocks) - 1, -1, -1):
            if self._oldest[at] <= ms:
                return int(max(row[0] for row in ROW.iter_unpack(self.blocks[at]) if row[4] <= ms))
        return None

    def change(self, rows: Iterable[Row], dropped: Iterable[int] = ()) -> None:
        """Remove the rows of some queue offsets, then set others. One with the number of another replaces it."""
        rows_by_number: dict[int, Row | None] = dict.fromkeys(dropped)
        rows_by_number.update((row.number, row) for row in rows)
        numbers = sorted(rows_by_number)
        at = 0
        while at < len(numbers):
            block = max(bisect_right(self._firsts, numbers[at]) - 1, 0)
            limit = self._firsts[block + 1] if block + 1 < len(self._firsts) else 1 << 63
            stop = bisect_left(numbers, limit, at)
            self._change_block(block, [(number, rows_by_number[number]) for number in numbers[at:stop]])
            at = stop

    def _change_block(self, at: int, changes: list[tuple[int, Row | None]]) -> None:
        by_number: dict[int, Row] = {}
        if at < len(self.blocks):
            by_number = {row[0]: Row._make(row) for row in ROW.iter_unpack(self.blocks[at])}
        for number, row in changes:
            old = by_number.pop(number, None)
            if old is not None:
                self._count(old, -1)
            if row is not None:
                by_number[number] = row
                self._count(row, 1)
        rows = [by_number[number] for number in sorted(by_number)]
        step = BLOCK if len(rows) > 2 * BLOCK else max(len(rows), 1)
        parts = [rows[start : start + step] for start in range(0, len(rows), step)]
        place = slice(at, at + 1)
        self.blocks[place] = [b"".join([ROW.pack(*row) for row in part]) for part in parts]
        self._firsts[place] = [part[0].number for part in parts]
        self._newest[place] = [max(row.store_ms for row in part) for part in parts]
        self._oldest[place] = [min(row.store_ms for row in part) for part in parts]

    def _count(self, row: Row, step: int) -> None:
        self.count += step
        self.bytes += step * row.size
        self.tombstones += step if row.flags & TOMBSTONE else 0
        segment = row.place // self.segment_size
        left = self._places.get(segment, 0) + step
        if left:
            self._places[segment] = left
        else:
            del self._places[segment]

    def drop(self, *, place_below: int = 0, own_below: int = 0) -> None:
        """Remove the rows whose bytes lie below an offset of the log, or that were stored first below one."""
        segment = min(self._places, default=None)
        if segment is None:
            return
        oldest = ROW.unpack_from(self.blocks[0])[1]  # Rows lie in the order in which their records were stored.
        if segment * self.segment_size >= place_below and oldest >= own_below:
            return
        gone = [row[0] for row in self._each() if row[2] < place_below or row[1] < own_below]
        if gone:
            self.change((), gone)

    def _each(self) -> Iterator[tuple[int, int, int, int, int, int, bytes]]:
        return chain.from_iterable(map(ROW.iter_unpack, self.blocks))

    def __iter__(self) -> Iterator[Row]:
        return map(Row._make, self._each())

    def check_invariants(self) -> None:
        """Raise AssertionError if the parts contradict each other; for tests."""
        rows = list(self)
        assert [row.number for row in rows] == sorted({row.number for row in rows})
        assert self.count == len(rows)
        assert self.bytes == sum(row.size for row in rows)
        assert self.tombstones == sum(row.flags & TOMBSTONE for row in rows)
        assert self._firsts == [ROW.unpack_from(block)[0] for block in self.blocks]
        assert not rows or rows[-1].number < self.boundary
        keys = [row.key for row in rows if row.key != NO_KEY]
        assert len(keys) == len(set(keys)), "a key has two rows"
        assert self.floor() == (
            min(row.place for row in rows) // self.segment_size * self.segment_size if rows else None
        )
