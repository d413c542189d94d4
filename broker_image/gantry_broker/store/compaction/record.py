"""The body of a compaction record: what the leader decided for one queue, in the log for every member. Pure.

Compaction records lie in the queue of `COMPACTION_TOPIC`. Each one stands for itself: it removes rows, sets rows, and
says below which queue offset readers see rows only. It may carry copies of old records, so that their segments can go.
Layout, big endian: magic, CRC of the directory behind it, lengths and counts, topic, removed queue offsets, rows
(`index.compacted.ROW`), and the copies, byte for byte. A row with a negative place `-1 - n` has its bytes at n of the
copies.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from gantry_broker.store.index.compacted import ROW, Row

MAGIC: Final = b"GCR1"
HEAD: Final = Struct(">4sIHiqqqII")
"""Magic, CRC, bytes of the topic, queue, boundary, records and bytes seen so far, removed rows, rows."""
_NUMBER: Final = Struct(">q")
_CHECKED_FROM: Final = 8
MOST_ROWS: Final = 2_000
"""Rows, and removed ones, of one record: a few milliseconds of work for each member."""


class Directory(NamedTuple):
    """What a compaction record says."""

    topic: str
    queue_id: int
    boundary: int
    seen: int
    seen_bytes: int
    dropped: tuple[int, ...]
    rows: list[Row]
    """Places of copies are relative, see above."""
    size: int
    """Bytes of the body before the copies."""


class BadDirectory(ValueError):
    """The bytes are no compaction record, or a damaged one."""


def encode(
    topic: str,
    queue_id: int,
    boundary: int,
    seen: tuple[int, int],
    dropped: Sequence[int],
    rows: Sequence[Row],
    copies: Sequence[bytes] = (),
) -> bytes:
    """Return the body of a compaction record. `seen`: records and bytes."""
    name = topic.encode()
    directory = b"".join(
        (
            HEAD.pack(MAGIC, 0, len(name), queue_id, boundary, *seen, len(dropped), len(rows)),
            name,
            *[_NUMBER.pack(number) for number in dropped],
            *[ROW.pack(*row) for row in rows],
        )
    )[_CHECKED_FROM:]
    return b"".join((MAGIC, zlib.crc32(directory).to_bytes(4), directory, *copies))


def directory_size(head: bytes) -> int:
    """Return the size of a directory by its first bytes. Raises BadDirectory."""
    if len(head) < HEAD.size or not head.startswith(MAGIC):
        raise BadDirectory("it does not begin as a compaction record")
    _, _, length, _, _, _, _, dropped, rows = HEAD.unpack_from(head)
    if dropped > MOST_ROWS or rows > MOST_ROWS:
        raise BadDirectory(f"it names {dropped + rows} rows")
    return HEAD.size + int(length) + int(dropped) * _NUMBER.size + int(rows) * ROW.size


def decode(data: bytes) -> Directory:
    """Read a directory from the first bytes of a body. Raises BadDirectory."""
    size = directory_size(data)
    _, crc, length, queue_id, boundary, seen, seen_bytes, dropped, _ = HEAD.unpack_from(data)
    if len(data) < size or zlib.crc32(data[_CHECKED_FROM:size]) != crc:
        raise BadDirectory("its checksum does not match")
    at = HEAD.size + length
    numbers_end = at + dropped * _NUMBER.size
    return Directory(
        data[HEAD.size : at].decode(),
        queue_id,
        boundary,
        seen,
        seen_bytes,
        tuple(number for (number,) in _NUMBER.iter_unpack(data[at:numbers_end])),
        [Row._make(row) for row in ROW.iter_unpack(data[numbers_end:size])],
        size,
    )


def pieces(values: Sequence[int]) -> Iterator[Sequence[int]]:
    """Split removed queue offsets into those of one record each."""
    for start in range(0, len(values), MOST_ROWS):
        yield values[start : start + MOST_ROWS]
