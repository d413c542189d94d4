"""One object of the archive with a range of the log: blocks of records, and an index of their queues and times.

    magic (8)  block ...  piece ...  keys  directory  footer (44)

A block is a zstd frame of about 1 MiB of whole records. A piece has, for one queue, the place, size, tag code and store
time of each of its records; the keys have the hash and the place of each message key. The directory (JSON, zstd) says
where all of them lie. So a reader gets a range of the log, or the messages of one queue or one key, by ranged reads.
Each of these parts has a CRC-32 of its stored bytes.
`docs/archive-format.md` is the specification.
"""

from __future__ import annotations

import base64
import struct
import sys
import threading
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Final, NamedTuple

import orjson
import zstandard
from gantry_core import archived_columns, archived_keys, archived_records, key_hash

from gantry_broker.archive.errors import ArchiveError, Damaged, Missing
from gantry_broker.archive.numbers import natural, read_json
from gantry_broker.archive.sealing import Plain, Sealer
from gantry_broker.protocol import plausible
from gantry_broker.protocol.codes import CONTROL_TOPIC, SCHEDULE_TOPIC
from gantry_broker.protocol.digits import MAX_INT
from gantry_broker.protocol.limits import MAX_KEYS
from gantry_broker.protocol.plausible import MAX_OFFSET
from gantry_broker.store.log.epochs import EpochStart, epoch_of
from gantry_broker.store.log.record_reader import (
    Damage,
    Meta,
    in_index,
    in_queue,
    index_keys,
    is_cut,
    read_next,
    read_records,
    tags_code,
)

VERSION: Final = 1
MAGIC: Final = b"GANTRYA1"
BLOCK: Final = 1 << 20
"""Bytes of the log in a block; one record more where it does not end at this size."""
LEVEL: Final = 1
"""Of zstd. Level 3 costs half as much CPU again and saves 4 % of the bytes of typical messages."""
_OF_THREAD: Final = threading.local()
BLOCKS_AHEAD: Final = 3
"""Blocks that wait to be compressed, at most."""
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
_KEY_COLUMNS: Final = ("i", "q")
"""Hash and place of each key, by hash and then by place: arrays, little endian, one after the other."""
_KEY_ROW: Final = 4 + 8
_NEW_ROW: Final = Struct(">qiqq")
"""Place, size, tag code and store time of a record, as `archived_records` has them."""
_NO_ROW: Final = _NEW_ROW.pack(-1, 0, 0, 0)
_NEW_KEY: Final = Struct(">iq")
"""Hash and place of a key, as `archived_records` has them."""
MAX_HOLE: Final = MAX_PIECE // _ROW
"""Queue offsets without a record that one object bridges in a queue, at most."""
_UNUSUAL: Final = [CONTROL_TOPIC, SCHEDULE_TOPIC]
"""Topics whose records need a look at more than queue and keys."""


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


class Keys(NamedTuple):
    """The keys of an object: how many, their place in the object, the CRC of their stored bytes."""

    rows: int
    at: int
    size: int
    crc: int


class Columns(NamedTuple):
    """The records of a queue in one object, by row: row i has queue offset `first + i`. A place of -1 is no record."""

    first: int
    places: array[int]
    sizes: array[int]
    tags: array[int]
    times: array[int]
    """Store times in ms."""


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
    keys: Keys | None = None
    """None: the object was written before archives had keys."""

    def blocks_of(self, start: int, end: int) -> list[Block]:
        """Return the blocks with bytes of [start, end)."""
        first = max(bisect_right(self.blocks, start, key=lambda b: b.start) - 1, 0)
        blocks = []
        for block in self.blocks[first:]:
            if block.start >= end:
                break
            if block.end > start:
                blocks.append(block)
        return blocks


@dataclass(slots=True)
class _Queue:
    """The rows of one queue, packed, from queue offset `first` on."""

    first: int
    rows: bytearray = field(default_factory=bytearray)
    count: int = 0

    def add(self, number: int, rows: bytes) -> None:
        """Add rows from a queue offset on, behind those that are there.

        Numbers of a queue have no holes in the log of one leader; where they do, a place of -1 says "no record".
        """
        missing = number - self.first - self.count
        if missing > 0:
            self.rows += _NO_ROW * missing
            self.count += missing
        self.rows += rows
        self.count += len(rows) // _NEW_ROW.size


@dataclass(slots=True)
class _Contents:
    """What the records of one block add to an object."""

    runs: list[tuple[bytes, int, int, bytes]] = field(default_factory=list)
    """Topic, queue, first queue offset, packed rows."""
    keys: list[bytes] = field(default_factory=list)
    """Packed keys."""
    epochs: list[EpochStart] = field(default_factory=list)
    records: int = 0
    low: int = 0
    """The lowest store time that is not 0. `high`: the highest."""
    high: int = 0

    def note_ms(self, low: int, high: int) -> None:
        self.low = min(self.low or low, low or self.low)
        self.high = max(self.high, high)


class SegmentWriter:
    """Builds one object in memory from the log's bytes, in order. The caller bounds how many bytes it adds."""

    def __init__(
        self,
        start: int,
        segment_size: int,
        delays: Sequence[int],
        *,
        level: int = LEVEL,
        sealer: Sealer | None = None,
        threads: Executor | None = None,
    ) -> None:
        """`start`: offset of the log; `delays`: as for `tags_code`; `level`: of zstd, 0 stores blocks as they are.
        `threads`: blocks are compressed there while others are read; None: at once.
        """
        self.start = self.end = start
        self._segment_size = segment_size
        self._delays = delays
        self._sealer: Sealer = sealer or Plain()
        self._level = level
        self._threads = threads
        self._added: list[tuple[int, int, int, int, Future[bytes] | bytes]] = []
        """Start, end, lowest and highest store time of each block, and its stored bytes."""
        self._queues: dict[tuple[bytes, int], _Queue] = {}
        self._keys = bytearray()
        self._epochs: list[EpochStart] = []
        self._records = 0
        self._first_ms = self._last_ms = 0

    def add(self, data: bytes) -> None:
        """Add whole records and fillers that lie at `end` of the log. Raises Damaged: not all of them are added."""
        added = self.add_whole(data)
        if added != len(data):
            raise Damaged(f"the bytes at {self.end} of the log end within a record or filler")

    def add_whole(self, data: bytes | memoryview, done: Callable[[], None] | None = None) -> int:
        """Add the whole records and fillers that `data` begins with, and that lie at `end` of the log. `done` is
        called, perhaps in another thread, once they are added and `data` is not read any more.

        Returns their bytes: 0 where not even the first one is whole. Raises Damaged: nothing is added then.
        """
        contents, size = self._read(data)
        if size == 0:
            return 0
        for topic, queue_id, number, rows in contents.runs:
            queue = self._queues.get((topic, queue_id))
            if queue is None:
                queue = self._queues[topic, queue_id] = _Queue(number)
            queue.add(number, rows)
        for keys in contents.keys:
            self._keys += keys
        self._epochs += contents.epochs
        self._records += contents.records
        self._first_ms = min(self._first_ms or contents.low, contents.low or self._first_ms)
        self._last_ms = max(self._last_ms, contents.high)
        end = self.end + size
        whole = data if size == len(data) else memoryview(data)[:size]  # A copy costs as much as reading the records.
        context = _context(self.start, "block", self.end)
        stored: Future[bytes] | bytes
        if self._threads is None:
            stored = self._stored(whole, context, done)
        else:
            stored = self._threads.submit(self._stored, whole, context, done)
        self._added.append((self.end, end, contents.low, contents.high, stored))
        self.end = end
        if len(self._added) > BLOCKS_AHEAD and not isinstance(ahead := self._added[-1 - BLOCKS_AHEAD][-1], bytes):
            ahead.result()  # Blocks that wait for a thread are not compressed yet: a few of them are enough.
        return size

    def _stored(self, data: bytes | memoryview, context: bytes, done: Callable[[], None] | None = None) -> bytes:
        compressed = _compressor(self._level).compress(data)
        if done is not None:
            done()
        return self._sealer.seal(compressed, context)

    def _read(self, data: bytes | memoryview) -> tuple[_Contents, int]:
        """Return what the whole records at `end` add, and their bytes. Raises Damaged."""
        contents = _Contents()
        base, have, done = self.end, len(data), 0
        try:
            while done < have:
                done, runs, keys, records, low, high = archived_records(
                    data, done, base, self._segment_size, _UNUSUAL, MAX_KEYS
                )
                contents.runs += runs
                contents.keys.append(keys)
                contents.records += records
                contents.note_ms(low, high)
                if done == have or is_cut(data, done):
                    break
                data = bytes(data)  # Other records take bytes.
                record = read_next(data, done, base, self._segment_size, check=True)
                if isinstance(record, int):
                    if done + record > have:
                        break
                    done += record
                    continue
                self._note(record, contents)
                done += record.size
            self._check_holes(contents)
        except (Damage, ValueError) as error:
            raise Damaged(f"the record at {base + done} of the log: {error}") from None
        return contents, done

    def _check_holes(self, contents: _Contents) -> None:
        """Check that no queue offset is far behind the one before: the rows between would fill the memory.
        Raises Damage.
        """
        ends: dict[tuple[bytes, int], int] = {}
        for topic, queue_id, number, rows in contents.runs:
            key = topic, queue_id
            if key not in ends and (queue := self._queues.get(key)) is not None:
                ends[key] = queue.first + queue.count
            if number - ends.get(key, number) > MAX_HOLE:
                raise Damage(
                    f"queue {queue_id} of topic {topic.decode('utf-8', 'replace')} goes from {ends[key]} to {number}"
                )
            ends[key] = number + len(rows) // _NEW_ROW.size

    def _note(self, record: Meta, contents: _Contents) -> None:
        """Note a record that is not plain."""
        epoch = epoch_of(record)
        if epoch is not None:
            contents.epochs.append(EpochStart(epoch, record.phys))
        ms = record.store_ms
        if in_queue(record.sys_flag):
            tag = _tag(record.topic, record.properties, ms, self._delays)
            row = _NEW_ROW.pack(record.phys, record.size, tag, ms)
            contents.runs.append((record.topic, record.queue_id, record.queue_offset, row))
        if in_index(record.sys_flag) and record.topic != CONTROL_TOPIC.encode():
            topic = record.topic.decode("utf-8", "replace")
            contents.keys += [_NEW_KEY.pack(key_hash(topic, key), record.phys) for key in index_keys(record.properties)]
        contents.note_ms(ms, ms)
        contents.records += 1

    @property
    def first_ms(self) -> int:
        """The store time of the first record (Unix ms); 0 without one."""
        return self._first_ms

    @property
    def size(self) -> int:
        """Bytes in memory: the stored blocks and the rows of queues and keys. It waits for blocks that are being
        compressed.
        """
        blocks = sum(len(s if isinstance(s, bytes) else s.result()) for *_, s in self._added)
        return blocks + sum(len(queue.rows) for queue in self._queues.values()) + len(self._keys)

    def finish(self) -> tuple[bytes, Directory]:
        """Return the whole object and its directory. It frees what it has put into the object as it goes: the writer
        is used up.
        """
        out: list[bytes] = [MAGIC]
        size = len(MAGIC)

        def put(stored: bytes) -> tuple[int, int, int]:
            nonlocal size
            at = size
            out.append(stored)
            size += len(stored)
            return at, len(stored), zlib.crc32(stored)

        blocks = []
        for start, end, low, high, stored in self._added:
            at, length, crc = put(stored if isinstance(stored, bytes) else stored.result())
            blocks.append(Block(start, end, at, length, crc, low, high))
        self._added.clear()
        queues: dict[tuple[str, int], Piece] = {}
        for topic, queue_id in list(self._queues):
            queue = self._queues.pop((topic, queue_id))
            name = topic.decode("utf-8", "surrogateescape")
            columns = archived_columns(bytes(queue.rows))
            stored = self._stored(columns, _context(self.start, f"piece {name} {queue_id}", 0))
            queues[name, queue_id] = Piece(queue.first, queue.count, *put(stored))
            del columns, queue
        by_hash = archived_keys(bytes(self._keys))
        self._keys.clear()
        rows = len(by_hash) // _KEY_ROW
        keys = Keys(rows, *put(self._stored(by_hash, _context(self.start, "keys", 0))))
        del by_hash
        directory = Directory(
            self.start,
            self.end,
            self._segment_size,
            self._records,
            self._first_ms,
            self._last_ms,
            tuple(self._epochs),
            tuple(blocks),
            queues,
            keys,
        )
        at, length, crc = put(self._stored(_to_json(directory), _context(self.start, "directory", 0)))
        flags = ENCRYPTED if self._sealer.key_id else 0
        out.append(_FOOTER.pack(at, length, crc, VERSION, flags, self.start, MAGIC))
        return b"".join(out), directory


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
        directory = _from_json(self._name, data, at)
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

    def columns(self, directory: Directory, topic: str, queue_id: int) -> Columns | None:
        """Read the rows of a queue; None without a record. Raises as `block`."""
        piece = directory.queues.get((topic, queue_id))
        if piece is None:
            return None
        what = f"piece {topic} {queue_id}"
        stored = self._fetch(piece.at, piece.size)
        data = self._plain(stored, piece.size, piece.crc, _context(directory.start, what, 0), MAX_PIECE, what)
        if len(data) != piece.length * _ROW:
            raise Damaged(f"{self._name}: the {what} has {len(data)} bytes for {piece.length} records")
        places, sizes, tags, times = _unpacked(data, _COLUMNS, piece.length)
        return Columns(piece.first, places, sizes, tags, times)

    def entries(self, directory: Directory, topic: str, queue_id: int) -> list[Entry]:
        """Read the entries of a queue, in order, without its holes; [] without a record. Raises as `block`."""
        columns = self.columns(directory, topic, queue_id)
        if columns is None:
            return []
        numbers = range(columns.first, columns.first + len(columns.places))
        return [Entry(*row) for row in zip(numbers, *columns[1:], strict=True) if row[1] >= 0]

    def keys(self, directory: Directory) -> tuple[array[int], array[int]]:
        """Read the hashes of all keys, in order, and the place of the record of each. Raises as `block`, and Missing
        for an object without keys.
        """
        keys = directory.keys
        if keys is None:
            raise Missing(f"{self._name}: it has no keys")
        stored = self._fetch(keys.at, keys.size)
        data = self._plain(stored, keys.size, keys.crc, _context(directory.start, "keys", 0), MAX_PIECE, "keys")
        if len(data) != keys.rows * _KEY_ROW:
            raise Damaged(f"{self._name}: the keys have {len(data)} bytes for {keys.rows}")
        hashes, places = _unpacked(data, _KEY_COLUMNS, keys.rows)
        return hashes, places

    def _plain(self, stored: bytes, size: int, crc: int, context: bytes, most: int, what: str) -> bytes:
        if len(stored) != size or zlib.crc32(stored) != crc:
            raise Damaged(f"{self._name}: the {what} does not match its checksum")
        try:
            data = self._sealer.open(stored, context)
        except Damaged as error:
            raise Damaged(f"{self._name}: the {what}: {error}") from None
        return decompress(data, most, f"{self._name}: the {what}")


def _compressor(level: int) -> zstandard.ZstdCompressor:
    """Return this thread's compressor: a new one for each block would cost as much as some of its work."""
    kept = getattr(_OF_THREAD, "compressor", None)
    if kept is None or kept[0] != level:
        kept = _OF_THREAD.compressor = (level, zstandard.ZstdCompressor(level=level))
    compressor: zstandard.ZstdCompressor = kept[1]
    return compressor


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


def _unpacked(data: bytes, kinds: Sequence[str], rows: int) -> list[array[int]]:
    columns, at = [], 0
    for kind in kinds:
        column = array(kind)
        size = column.itemsize * rows
        column.frombytes(data[at : at + size])
        columns.append(_little(column))
        at += size
    return columns


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
            "keys": None if directory.keys is None else list(directory.keys),
        }
    )


def _from_json(name: str, data: bytes, room: int) -> Directory:
    """Read a directory; its parts lie in the first `room` bytes of the object. Raises Damaged."""
    value = read_json(f"{name}: its directory", data, MAX_DIRECTORY)
    try:
        directory = Directory(
            natural(value["start"]),
            natural(value["end"]),
            natural(value["segmentSize"]),
            natural(value["records"]),
            natural(value["firstMs"]),
            natural(value["lastMs"]),
            tuple(EpochStart(*map(natural, epoch)) for epoch in value["epochs"]),
            tuple(_block(block, room) for block in value["blocks"]),
            {
                (base64.b64decode(topic).decode("utf-8", "surrogateescape"), _queue_id(queue_id)): _piece(piece, room)
                for topic, queue_id, *piece in value["queues"]
            },
            None if value.get("keys") is None else _keys(value["keys"], room),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"{name}: its directory is invalid: {error!r}") from None
    at = directory.start
    for block in directory.blocks:
        if block.start != at or block.end <= at:
            raise Damaged(f"{name}: its block at {block.start} does not continue {at}")
        at = block.end
    if at != directory.end:
        raise Damaged(f"{name}: its blocks end at {at}, not at {directory.end}")
    return directory


def _queue_id(value: Any) -> int:
    return plausible.number("queue", value, 0, MAX_INT)


def _block(value: Any, room: int) -> Block:
    block = Block(*map(natural, value))
    if not 0 < block.end - block.start <= MAX_BLOCK or block.at + block.size > room:
        raise ValueError(f"a block of {block.end - block.start} bytes, with {block.size} at {block.at}")
    return block


def _piece(value: Any, room: int) -> Piece:
    piece = Piece(*map(natural, value))
    if piece.length > MAX_HOLE or piece.first + piece.length > MAX_OFFSET or piece.at + piece.size > room:
        raise ValueError(f"{piece.length} rows of a queue from {piece.first} on, with {piece.size} at {piece.at}")
    return piece


def _keys(value: Any, room: int) -> Keys:
    keys = Keys(*map(natural, value))
    if keys.rows * _KEY_ROW > MAX_PIECE or keys.at + keys.size > room:
        raise ValueError(f"{keys.rows} keys, with {keys.size} bytes at {keys.at}")
    return keys


def read_range(reader: RangeReader, directory: Directory, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, bytes) of [start, end), a block or a part of one at a time. Raises Missing, and as `block`."""
    if not directory.start <= start <= end <= directory.end:
        raise Missing(f"the object has {directory.start} to {directory.end} of the log, not {start} to {end}")
    for block in directory.blocks_of(start, end):
        data = reader.block(directory, block)
        first, last = max(start, block.start), min(end, block.end)
        yield first, data[first - block.start : last - block.start]
