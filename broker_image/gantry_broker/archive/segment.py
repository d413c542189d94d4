"""One object of the archive with a range of the log: blocks of records, and an index of their queues and times.

    magic (8)  block ...  piece ...  directory  footer (40)

A block is a zstd frame of about 1 MiB of whole records. A piece has, for one queue, the place, size, tag code and store
time of each of its records. The directory (JSON, zstd) says where blocks and pieces lie. So a reader gets a range of
the log, or the messages of one queue, by ranged reads. Each of these parts has a CRC-32 of its stored bytes.
`docs/archive-format.md` is the specification.
"""

from __future__ import annotations

import base64
import struct
import sys
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import orjson
import zstandard

from gantry_broker.archive.errors import ArchiveError, Damaged, Missing
from gantry_broker.archive.sealing import Plain, Sealer
from gantry_broker.store.log.epochs import EpochStart, epoch_of
from gantry_broker.store.log.record_reader import (
    Damage,
    Meta,
    in_queue,
    read_records,
    tags_code,
)

VERSION: Final = 1
MAGIC: Final = b"GANTRYA1"
BLOCK: Final = 1 << 20
"""Bytes of the log in a block; one record more where it does not end at this size."""
MAX_DIRECTORY: Final = 64 << 20
"""Bytes of a directory, compressed or not: larger ones are refused."""
MAX_BLOCK: Final = 80 << 20
"""Bytes of a block: one of the largest records (64 MiB), and room."""
MAX_PIECE: Final = 256 << 20
"""Bytes of one queue's piece: more than an object of the largest size can need."""
_FOOTER: Final = struct.Struct(">QIIIIQ8s")
"""Where the directory begins, its stored size, its CRC, format version, flags, first offset of the log, magic."""
FOOTER_SIZE: Final = _FOOTER.size
ENCRYPTED: Final = 1
_COLUMNS: Final = ("q", "i", "q", "q")
"""Place, size, tag code, store time in ms of each record: arrays, little endian, one after the other."""
_ROW: Final = 8 + 4 + 8 + 8


class Block(NamedTuple):
    """A block: its range of the log, its place in the object, the CRC of its stored bytes, its store times (ms)."""

    start: int
    end: int
    at: int
    size: int
    crc: int
    first_ms: int
    last_ms: int


class Piece(NamedTuple):
    """The entries of one queue: first queue offset, count, place in the object, CRC of its stored bytes."""

    first: int
    length: int
    """Queue offsets from `first` on."""
    at: int
    size: int
    crc: int


class Entry(NamedTuple):
    """A record of a queue."""

    number: int
    phys: int
    size: int
    tag: int
    store_ms: int


@dataclass(frozen=True, slots=True)
class Directory:
    """What an object holds, by place. Offsets of the log are bytes."""

    start: int
    end: int
    segment_size: int
    records: int
    first_ms: int
    """The lowest store time of its records, ms; 0 without records. `last_ms`: the highest."""
    last_ms: int
    epochs: tuple[EpochStart, ...]
    """The leader epochs that begin in it."""
    blocks: tuple[Block, ...]
    queues: dict[tuple[str, int], Piece]

    def blocks_of(self, start: int, end: int) -> list[Block]:
        """Return the blocks with bytes of [start, end)."""
        first = max(bisect_right(self.blocks, start, key=lambda b: b.start) - 1, 0)
        found = []
        for block in self.blocks[first:]:
            if block.start >= end:
                break
            if block.end > start:
                found.append(block)
        return found


@dataclass(slots=True)
class _Queue:
    first: int
    places: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("i"))
    tags: array[int] = field(default_factory=lambda: array("q"))
    times: array[int] = field(default_factory=lambda: array("q"))


class SegmentWriter:
    """Builds one object in memory from the log's bytes, in order. The caller bounds how many bytes it adds."""

    def __init__(
        self, start: int, segment_size: int, delays: Sequence[int], *, level: int = 3, sealer: Sealer | None = None
    ) -> None:
        """`start`: offset of the log; `delays`: as for `tags_code`; `level`: of zstd, 0 stores blocks as they are."""
        self.start = self.end = start
        self._segment_size = segment_size
        self._delays = delays
        self._sealer: Sealer = sealer or Plain()
        self._compress: Callable[[bytes], bytes] = zstandard.ZstdCompressor(level=level).compress
        self._parts: list[bytes] = [MAGIC]
        self._size = len(MAGIC)
        self._blocks: list[Block] = []
        self._queues: dict[tuple[bytes, int], _Queue] = {}
        self._epochs: list[EpochStart] = []
        self._records = 0
        self._first_ms = self._last_ms = 0

    def add(self, data: bytes) -> None:
        """Add whole records and fillers that lie at `end`. Raises Damaged: nothing is added then."""
        begun = at = self.end
        low, high = 0, 0
        found: list[tuple[bytes, int, int, int, int, bytes, int]] = []
        epochs: list[EpochStart] = []
        records = 0
        try:
            for item in read_records(data, begun, self._segment_size, check=True):
                if isinstance(item, int):
                    at += item
                    continue
                if isinstance(item, Meta):
                    at, size, topic, queue_id, number = (
                        item.phys,
                        item.size,
                        item.topic,
                        item.queue_id,
                        item.queue_offset,
                    )
                    flags, ms, properties = item.sys_flag, item.store_ms, item.properties
                    epoch = epoch_of(item)
                    if epoch is not None:
                        epochs.append(EpochStart(epoch, item.phys))
                else:
                    at, size, topic, queue_id, number, flags, ms, properties = item
                if in_queue(flags):
                    if queue_id < 0 or number < 0:
                        raise Damage(f"impossible queue {queue_id} or queue offset {number}")
                    found.append((topic, queue_id, number, at, size, properties, ms))
                low = min(low or ms, ms)
                high = max(high, ms)
                records += 1
                at += size
        except Damage as error:
            raise Damaged(f"the record at {at} of the log: {error}") from None
        if at != begun + len(data):
            raise Damaged(f"the bytes at {begun} of the log end within a filler")
        self._append_block(data, low, high)
        for topic, queue_id, number, phys, size, properties, ms in found:
            queue = self._queues.get((topic, queue_id))
            if queue is None:
                queue = self._queues[topic, queue_id] = _Queue(number)
            # Numbers of a queue have no holes in the log of one leader; where they do, zeros say "no record".
            for _ in range(number - queue.first - len(queue.places)):
                queue.places.append(-1)
                queue.sizes.append(0)
                queue.tags.append(0)
                queue.times.append(0)
            queue.places.append(phys)
            queue.sizes.append(size)
            queue.tags.append(_tag(topic, properties, ms, self._delays))
            queue.times.append(ms)
        self._epochs += epochs
        self._records += records
        self._first_ms = min(self._first_ms or low, low or self._first_ms)
        self._last_ms = max(self._last_ms, high)

    @property
    def size(self) -> int:
        """Stored bytes so far, without pieces and directory."""
        return self._size

    def _append_block(self, data: bytes, low: int, high: int) -> None:
        stored = self._sealer.seal(self._compress(data), _context(self.start, "block", self.end))
        end = self.end + len(data)
        self._blocks.append(Block(self.end, end, self._size, len(stored), zlib.crc32(stored), low, high))
        self._put(stored)
        self.end = end

    def _put(self, stored: bytes) -> None:
        self._parts.append(stored)
        self._size += len(stored)

    def finish(self) -> tuple[bytes, Directory]:
        """Return the whole object and its directory."""
        queues: dict[tuple[str, int], Piece] = {}
        for (topic, queue_id), queue in self._queues.items():
            plain = b"".join(
                _little(column).tobytes() for column in (queue.places, queue.sizes, queue.tags, queue.times)
            )
            name = topic.decode("utf-8", "surrogateescape")
            stored = self._sealer.seal(self._compress(plain), _context(self.start, f"piece {name} {queue_id}", 0))
            queues[name, queue_id] = Piece(queue.first, len(queue.places), self._size, len(stored), zlib.crc32(stored))
            self._put(stored)
        directory = Directory(
            self.start,
            self.end,
            self._segment_size,
            self._records,
            self._first_ms,
            self._last_ms,
            tuple(self._epochs),
            tuple(self._blocks),
            queues,
        )
        stored = self._sealer.seal(self._compress(_to_json(directory)), _context(self.start, "directory", 0))
        flags = ENCRYPTED if self._sealer.key_id else 0
        footer = _FOOTER.pack(self._size, len(stored), zlib.crc32(stored), VERSION, flags, self.start, MAGIC)
        self._put(stored)
        self._put(footer)
        return b"".join(self._parts), directory


class RangeReader:
    """Reads parts of one object by `fetch(at, size)`, and checks each of them."""

    def __init__(self, name: str, size: int, fetch: Callable[[int, int], bytes], sealer: Sealer | None = None) -> None:
        """`name` is for messages; `size`: bytes of the object."""
        self._name = name
        self._size = size
        self._fetch = fetch
        self._sealer: Sealer = sealer or Plain()
        self._start = -1

    def directory(self, guess: int = 64 << 10) -> Directory:
        """Read the directory, usually by one read of `guess` bytes. Raises Damaged, ArchiveError, and as `fetch`."""
        if self._size < len(MAGIC) + FOOTER_SIZE:
            raise Damaged(f"{self._name}: {self._size} bytes are too few for an object of the archive")
        count = min(max(guess, FOOTER_SIZE), self._size)
        tail = self._fetch(self._size - count, count)
        if len(tail) != count:
            raise Damaged(f"{self._name}: {len(tail)} of its last {count} bytes came")
        at, size, crc, version, flags, start, magic = _FOOTER.unpack_from(tail, count - FOOTER_SIZE)
        if magic != MAGIC:
            raise Damaged(f"{self._name}: it does not end as an object of the archive")
        if version != VERSION:
            raise ArchiveError(f"{self._name}: it has format version {version}, this program reads version {VERSION}")
        if bool(flags & ENCRYPTED) != bool(self._sealer.key_id):
            missing = "is encrypted: name the key" if flags & ENCRYPTED else "is not encrypted: name no key"
            raise ArchiveError(f"{self._name}: it {missing}")
        if at + size + FOOTER_SIZE != self._size or size > MAX_DIRECTORY:
            raise Damaged(f"{self._name}: its directory of {size} bytes cannot lie at {at}")
        inside = count - FOOTER_SIZE - size
        stored = tail[inside : inside + size] if inside >= 0 else self._fetch(at, size)
        self._start = start
        data = self._plain(stored, size, crc, _context(start, "directory", 0), MAX_DIRECTORY, "directory")
        directory = _from_json(self._name, data)
        if directory.start != start:
            raise Damaged(f"{self._name}: its directory begins at {directory.start}, its footer says {start}")
        return directory

    def block(self, directory: Directory, block: Block) -> bytes:
        """Read the records of a block, [block.start, block.end) of the log. Raises Damaged, and as `fetch`."""
        stored = self._fetch(block.at, block.size)
        context = _context(directory.start, "block", block.start)
        data = self._plain(stored, block.size, block.crc, context, MAX_BLOCK, f"block at {block.start}")
        if len(data) != block.end - block.start:
            raise Damaged(f"{self._name}: the block at {block.start} has {len(data)} bytes")
        return data

    def entries(self, directory: Directory, topic: str, queue_id: int) -> list[Entry]:
        """Read the entries of a queue, in order, without its holes; [] without a record. Raises as `block`."""
        piece = directory.queues.get((topic, queue_id))
        if piece is None:
            return []
        stored = self._fetch(piece.at, piece.size)
        context = _context(directory.start, f"piece {topic} {queue_id}", 0)
        data = self._plain(stored, piece.size, piece.crc, context, MAX_PIECE, f"piece of {topic} {queue_id}")
        if len(data) != piece.length * _ROW:
            raise Damaged(
                f"{self._name}: the piece of {topic} {queue_id} has {len(data)} bytes for {piece.length} records"
            )
        columns, at = [], 0
        for kind in _COLUMNS:
            column = array(kind)
            size = column.itemsize * piece.length
            column.frombytes(data[at : at + size])
            columns.append(_little(column))
            at += size
        numbers = range(piece.first, piece.first + piece.length)
        return [Entry(*row) for row in zip(numbers, *columns, strict=True) if row[1] >= 0]

    def _plain(self, stored: bytes, size: int, crc: int, context: bytes, most: int, what: str) -> bytes:
        if len(stored) != size or zlib.crc32(stored) != crc:
            raise Damaged(f"{self._name}: the {what} does not match its checksum")
        try:
            data = self._sealer.open(stored, context)
        except Damaged as error:
            raise Damaged(f"{self._name}: the {what}: {error}") from None
        return decompress(data, most, f"{self._name}: the {what}")


def decompress(data: bytes, most: int, what: str) -> bytes:
    """Return the content of a zstd frame of at most `most` bytes. Raises Damaged."""
    try:
        size = zstandard.frame_content_size(data)
        if not 0 <= size <= most:
            raise Damaged(f"{what} would have {size} bytes, the limit is {most}")
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=most)
    except zstandard.ZstdError as error:
        raise Damaged(f"{what}: {error}") from None


def cut_at_time(data: bytes, start: int, segment_size: int, until_ms: int) -> int:
    """Return the offset of the first record in `data` that was stored after `until_ms`; the end of `data` without one.

    `data` are whole records and fillers that lie at `start` of the log. Raises Damaged.
    """
    at = start
    try:
        for item in read_records(data, start, segment_size, check=False):
            if isinstance(item, int):
                at += item
                continue
            phys, size, ms = (
                (item.phys, item.size, item.store_ms) if isinstance(item, Meta) else (item[0], item[1], item[6])
            )
            if ms > until_ms:
                return phys
            at = phys + size
    except Damage as error:
        raise Damaged(f"the record at {at} of the log: {error}") from None
    return at


def _tag(topic: bytes, properties: bytes, ms: int, delays: Sequence[int]) -> int:
    return tags_code(topic.decode("utf-8", "replace"), properties, ms, delays)


def _context(start: int, what: str, at: int) -> bytes:
    return f"{start}\0{what}\0{at}".encode("utf-8", "surrogateescape")


def _little(column: array[int]) -> array[int]:
    if sys.byteorder == "big":
        column = array(column.typecode, column)
        column.byteswap()
    return column


def _to_json(directory: Directory) -> bytes:
    return orjson.dumps(
        {
            "version": VERSION,
            "start": directory.start,
            "end": directory.end,
            "segmentSize": directory.segment_size,
            "records": directory.records,
            "firstMs": directory.first_ms,
            "lastMs": directory.last_ms,
            "epochs": [list(epoch) for epoch in directory.epochs],
            "blocks": [list(block) for block in directory.blocks],
            "queues": [
                [base64.b64encode(topic.encode("utf-8", "surrogateescape")).decode(), queue_id, *piece]
                for (topic, queue_id), piece in directory.queues.items()
            ],
        }
    )


def _from_json(name: str, data: bytes) -> Directory:
    try:
        value: dict[str, Any] = orjson.loads(data)
        directory = Directory(
            _natural(value["start"]),
            _natural(value["end"]),
            _natural(value["segmentSize"]),
            _natural(value["records"]),
            _natural(value["firstMs"]),
            _natural(value["lastMs"]),
            tuple(EpochStart(*map(_natural, epoch)) for epoch in value["epochs"]),
            tuple(Block(*map(_natural, block)) for block in value["blocks"]),
            {
                (base64.b64decode(topic).decode("utf-8", "surrogateescape"), _natural(queue_id)): Piece(
                    *map(_natural, piece)
                )
                for topic, queue_id, *piece in value["queues"]
            },
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise Damaged(f"{name}: its directory is invalid: {error!r}") from None
    at = directory.start
    for block in directory.blocks:
        if block.start != at or block.end <= at:
            raise Damaged(f"{name}: its block at {block.start} does not continue {at}")
        at = block.end
    if at != directory.end:
        raise Damaged(f"{name}: its blocks end at {at}, not at {directory.end}")
    return directory


def _natural(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a number from 0 up")
    return value


def read_range(reader: RangeReader, directory: Directory, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, bytes) of [start, end), a block or a part of one at a time. Raises Missing, and as `block`."""
    if not directory.start <= start <= end <= directory.end:
        raise Missing(f"the object has {directory.start} to {directory.end} of the log, not {start} to {end}")
    for block in directory.blocks_of(start, end):
        data = reader.block(directory, block)
        first, last = max(start, block.start), min(end, block.end)
        yield first, data[first - block.start : last - block.start]
