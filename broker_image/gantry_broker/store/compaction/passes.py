"""The work of a pass of compaction: it reads records and yields the bodies of compaction records. For another thread.

It reads files of its own and changes nothing. `Pace` keeps it from taking the disk or the interpreter from others.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Self

from gantry_broker.store.compaction.decide import COPY_BYTES, bodies_of, bodies_of_copies, clean
from gantry_broker.store.errors import BadRecords
from gantry_broker.store.files import read_all
from gantry_broker.store.index.compacted import ROW, TOMBSTONE, Row, key_of
from gantry_broker.store.index.consume_queue import BLANK_SIZE, ENTRY, ENTRY_SIZE
from gantry_broker.store.log.record_reader import Damage, Meta, compaction_keys, is_record_of, read_record

MOST_RECORDS: Final = 50_000
"""Records of a queue that one pass looks at."""
SHARE: Final = 0.2
"""The part of a core that a pass uses at most."""
BYTES_A_SECOND: Final = 32 << 20
"""That a pass reads, and that it appends, at most."""
_STEP_S: Final = 0.002


class Pace:
    """Sleeps so that work keeps to a share of a core and a number of bytes a second."""

    def __init__(self, share: float = SHARE, bytes_a_second: float = BYTES_A_SECOND) -> None:
        self._share = share
        self._rate = bytes_a_second
        self._worked = time.thread_time()
        self._bytes = 0

    def read(self, size: int) -> None:
        """Note bytes that were read; it may sleep."""
        self._bytes += size
        worked = time.thread_time() - self._worked
        if worked < 0:  # Another thread goes on.
            worked, self._worked = 0.0, time.thread_time()
        if worked < _STEP_S and self._bytes < self._rate * _STEP_S:
            return
        time.sleep(max(worked / self._share - worked, self._bytes / self._rate))
        self._worked, self._bytes = time.thread_time(), 0


class Segments:
    """Reads of the log's files beside the event loop. Use as a context manager."""

    def __init__(self, path_of: Callable[[int], str], segment_size: int, pace: Pace | None = None) -> None:
        """`path_of`: returns the file of the segment that contains an offset."""
        self._path_of = path_of
        self._size = segment_size
        self._pace = pace
        self._fd, self._base = -1, -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = self._base = -1

    def read(self, offset: int, count: int) -> bytes:
        """Return bytes of one segment. Raises OSError."""
        base = offset - offset % self._size
        if base != self._base:
            self._close()
            self._fd = os.open(self._path_of(offset), os.O_RDONLY | os.O_CLOEXEC)
            self._base = base
        if self._pace is not None:
            self._pace.read(count)
        return read_all(self._fd, count, offset - base)


class Work(NamedTuple):
    """A pass over one queue: what it needs of the store, taken in one moment."""

    topic: str
    queue_id: int
    start: int
    """The queue offset of the first entry."""
    entries: bytes
    """Entries of the consume queue, `ENTRY_SIZE` bytes each."""
    boundary: int
    blocks: Sequence[bytes]
    """The rows so far."""
    seen: tuple[int, int]


def records(work: Work, segments: Segments, *, skip_damaged: bool = False) -> Iterator[Row]:
    """Yield a row for each record of the pass. A blank entry has none.

    `skip_damaged`: leave out records that cannot be read. Raises BadRecords for a damaged one, OSError.
    """
    name = work.topic.encode()
    for at in range(len(work.entries) // ENTRY_SIZE):
        phys, size, _ = ENTRY.unpack_from(work.entries, at * ENTRY_SIZE)
        number = work.start + at
        if size == BLANK_SIZE:
            continue
        record = _record(segments, name, work.queue_id, number, phys, phys, size)
        if isinstance(record, str):
            if not skip_damaged:
                raise BadRecords(phys, record)
            continue
        flags = 0 if record.body_size else TOMBSTONE
        key = key_of(compaction_keys(record.properties))
        yield Row(number, phys, phys, size, record.store_ms, flags, key)


def _record(
    segments: Segments, topic: bytes, queue_id: int, number: int, place: int, own: int, size: int
) -> Meta | str:
    """Return a record, or what is wrong with it. Raises OSError other than EIO."""
    try:
        data = segments.read(place, size)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return str(error)
    if len(data) != size or not is_record_of(data, 0, size, own, topic, queue_id, number):
        return "it is not the record that its queue names"
    try:
        record = read_record(data, 0, size, own, check=True)
    except Damage as error:
        return str(error)
    return record if isinstance(record, Meta) else "a filler"


def clean_bodies(
    work: Work, segments: Segments, now_ms: int, tombstone_ms: int, *, skip_damaged: bool = False
) -> Iterator[bytes]:
    """Yield the compaction records of a pass over new records. Raises BadRecords, OSError."""
    cleaned = clean(records(work, segments, skip_damaged=skip_damaged), work.blocks, now_ms, tombstone_ms)
    stop = work.start + len(work.entries) // ENTRY_SIZE
    yield from bodies_of(work.topic, work.queue_id, work.start, stop, work.seen, cleaned)


def copy_bodies(
    work: Work, segments: Segments, below: int, most_bytes: int = COPY_BYTES, *, skip_damaged: bool = False
) -> Iterator[bytes]:
    """Yield the compaction records that hold copies of the records whose bytes lie below an offset of the log.

    Raises BadRecords, OSError.
    """
    yield from bodies_of_copies(
        work.topic,
        work.queue_id,
        work.boundary,
        work.seen,
        _copies(work, segments, below, skip_damaged=skip_damaged),
        most_bytes,
    )


def _copies(work: Work, segments: Segments, below: int, *, skip_damaged: bool) -> Iterator[tuple[Row, bytes]]:
    name = work.topic.encode()
    for block in work.blocks:
        for row in map(Row._make, ROW.iter_unpack(block)):
            if row.place >= below:
                continue
            record = _record(segments, name, work.queue_id, row.number, row.place, row.own, row.size)
            if isinstance(record, str):
                if not skip_damaged:
                    raise BadRecords(row.place, record)
                yield row, b""
            else:
                yield row, segments.read(row.place, row.size)
