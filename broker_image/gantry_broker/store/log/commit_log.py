"""The commit log's bytes: segments of one size, written with pwrite and read with pread.

The log is never mapped into memory: a full disk must be an error code and not a signal, and read pages must not count
as memory of the process. All bytes beyond `end` are zeros, on the disk too. After a crash, truncated bytes therefore
cannot look like records.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from gantry_core import size_of_whole

from gantry_broker.protocol.digits import whole_number
from gantry_broker.store.errors import OffsetGone, StoreFull
from gantry_broker.store.files import NO_ROOM, FdCache, fdatasync, fsync_dir, is_zero, read_all, sync_file, write_all
from gantry_broker.store.log.record_reader import FILLER_MIN, size_of_first

NAME_DIGITS: Final = 20
MAX_OPEN_SEGMENTS: Final = 32
AHEAD: Final = 1 << 20
"""Bytes of zeros that one `write_ahead` writes: one in about thirty small flushes takes a millisecond longer."""
AHEAD_LOW: Final = 128 << 10
"""`write_ahead` writes when fewer zeros than this are left."""
_SECTOR: Final = 4096
"""Bytes that a disk reads as a whole or not at all; some disks have smaller sectors."""
_ZEROS: Final = bytes(64 << 10)


def segment_bases(directory: Path) -> list[int]:
    """First offsets of the segments in a directory, in order; other files do not count."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    return sorted(int(name) for name in names if len(name) == NAME_DIGITS and whole_number(name) is not None)


class OpenSegment:
    """A segment that one thread keeps open for `CommitLog.sync_end` and closes with `close`."""

    __slots__ = ("fd", "generation", "path")

    def __init__(self) -> None:
        self.fd = -1
        self.path = ""
        self.generation = -1

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class CommitLog:
    """Segments of one size in one directory. `start` and `end` are byte offsets of the log.

    Invariant: there are no gaps between segments, and `start` is the first offset of the first one, unless the log is
    empty.
    """

    def __init__(self, directory: Path, segment_size: int) -> None:
        self.directory = directory
        self.segment_size = segment_size
        self.start = 0
        self.end = 0
        self.generation = 0
        """Grows with every truncation: a flush that began before it says nothing about bytes written after it."""
        self._prefix = str(directory) + os.sep
        self._fds = FdCache(MAX_OPEN_SEGMENTS)
        self._new_names = True
        """The directory may have names that no flush has made durable, also those of an earlier process."""
        self._named = (-1, "")
        self._ahead = 0
        """The end of the zeros that were written ahead, if it is above `end`."""
        directory.mkdir(parents=True, exist_ok=True)

    def path(self, offset: int) -> str:
        """Return the file of the segment that contains `offset`."""
        first = offset - offset % self.segment_size
        if self._named[0] != first:
            self._named = (first, f"{self._prefix}{first:020d}")  # Usually the last segment.
        return self._named[1]

    def path_of(self, offset: int) -> str:
        """As `path`, for other threads."""
        return f"{self._prefix}{offset - offset % self.segment_size:020d}"

    def bases(self) -> list[int]:
        """First offsets of the segments, in order."""
        return segment_bases(self.directory)

    def room(self, offset: int) -> int:
        """Bytes from `offset` to the end of its segment."""
        return self.segment_size - offset % self.segment_size

    # Writing

    def write(self, pieces: Sequence[tuple[int, bytes | bytearray]], end: int) -> None:
        """Append pieces (offset, bytes), all or none, and move `end`. No piece may cross a segment.

        Raises StoreFull when the disk has no room and OSError when it fails.
        """
        try:
            # Open all files first: a shortage of descriptors then leaves nothing to take back.
            fd = -1
            for offset, _ in pieces:
                path = self.path(offset)
                is_new = offset % self.segment_size == 0 and not os.path.exists(path)
                try:
                    fd = self._fds.get(path, create_size=self.segment_size)
                finally:
                    if is_new:
                        self._new_names = True  # Afterwards: a concurrent flush would not find the name.
            for offset, data in pieces:
                if len(pieces) > 1:
                    fd = self._fds.get(self.path(offset))
                write_all(fd, data, offset % self.segment_size)
        except OSError as error:
            # What a broken write left would look like records to a start after a crash.
            self._erase(self.end)
            if error.errno in NO_ROOM:
                raise StoreFull(f"the disk of {self.directory} is full: {error.strerror}") from error
            raise
        self.end = end

    def write_ahead(self) -> None:
        """Write zeros behind `end`, within its segment, so that the next flushes find their blocks allocated.

        Such a flush takes little more than half the time. This is a hint and raises nothing: on a full disk, the next
        append fails.
        """
        end = self.end
        at = max(self._ahead, end)
        count = min(AHEAD, end + self.room(end) - at)
        if self._ahead - end >= AHEAD_LOW or count <= 0:
            return
        self._ahead = at + count  # Also after a failure: no retry with each flush.
        whole, rest = divmod(count, len(_ZEROS))
        with contextlib.suppress(OSError):
            os.pwritev(self._fds.get(self.path(end)), [_ZEROS] * whole + [_ZEROS[:rest]], at % self.segment_size)

    def holds_beyond(self, offset: int) -> bool:
        """Whether the log has non-zero bytes from `offset` on. Raises OSError."""
        bases = self.bases()
        if not bases or bases[-1] > offset:
            return bool(bases)
        if offset - bases[-1] >= self.segment_size:
            return False
        fd = self._fds.get(self.path(offset))
        return not is_zero(fd, offset % self.segment_size, os.fstat(fd).st_size)

    def overwrite(self, offset: int, data: bytes) -> None:
        """Replace bytes below `end`, from `offset` on. Raises OSError."""
        view = memoryview(data)
        while view:
            step = min(len(view), self.room(offset))
            write_all(self._fds.get(self.path(offset)), bytes(view[:step]), offset % self.segment_size)
            offset += step
            view = view[step:]

    def _erase(self, offset: int) -> None:
        """Zero or remove all bytes from `offset` on, later segments first, so that a prefix remains at any time."""
        self._ahead = 0
        for base in reversed(self.bases()):
            path = self.path(base)
            if base > offset or (base == offset and base != self.start):
                self._fds.close(path)
                os.unlink(path)
                self._new_names = True
            elif base + self.segment_size > offset:
                fd = self._fds.get(path)
                self._fds.may_shrink(path)
                # Zeros, not only a lower `end`: bytes that stay would look like records again once the log has grown up
                # to them.
                if not is_zero(fd, offset - base, self.segment_size):
                    os.ftruncate(fd, offset - base)
                if os.fstat(fd).st_size < self.segment_size:  # Also after a kill between the two calls.
                    os.ftruncate(fd, self.segment_size)
            else:
                break
        # Again: a thread that opened a file during its removal must not use it as the new file of that name.
        self.generation += 1

    def truncate(self, offset: int) -> None:
        """Durably end the log at `offset`, a record boundary at or below `end` (rule 5). Raises OSError."""
        self.generation += 1
        self.end = offset
        self._erase(offset)
        self.sync(offset, offset)

    def reset(self, offset: int) -> None:
        """Durably empty the log. The next record will lie at `offset`, the first of a segment. Raises OSError."""
        self._ahead = 0
        self.generation += 1
        for base in reversed(self.bases()):
            self._fds.close(self.path(base))
            os.unlink(self.path(base))
        self.start = self.end = offset
        self.generation += 1  # Again, as in `_erase`.
        # The name of the empty segment keeps the offset.
        self._fds.get(self.path(offset), create_size=self.segment_size)
        self.sync(offset, offset)
        fsync_dir(self.directory)

    def sync(self, start: int, stop: int) -> None:
        """Make [start, stop) durable. It opens its own descriptors and may run in any thread. Raises OSError."""
        offset = start - start % self.segment_size
        while offset <= stop:
            sync_file(self.path_of(offset))
            offset += self.segment_size
        # A file without a durable name is gone after a power loss, and its records with it.
        if self._new_names:
            self._new_names = False
            try:
                fsync_dir(self.directory)
            except OSError:
                self._new_names = True  # The next flush tries again.
                raise

    def sync_end(self, start: int, stop: int, opened: OpenSegment) -> None:
        """As `sync`, for a thread that calls it often and keeps the last segment open in `opened`. Raises OSError."""
        fd = self.file_to_sync(start, stop, opened)
        if fd is None:
            self.sync(start, stop)
        else:
            fdatasync(fd)

    def file_to_sync(self, start: int, stop: int, opened: OpenSegment) -> int | None:
        """Return the descriptor of `opened` whose fdatasync makes [start, stop) durable; None: only `sync` does. Raises
        OSError.
        """
        path = self.path_of(stop)
        if start < stop - stop % self.segment_size or self._new_names:
            return None
        if opened.fd < 0 or opened.path != path or opened.generation != self.generation:
            opened.close()
            generation = self.generation
            try:
                opened.fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
            opened.path, opened.generation = path, generation
        return opened.fd

    def drop_before(self, offset: int) -> list[str]:
        """Take whole segments below `offset` out of the log, never the last one; returns the files to remove."""
        dropped = []
        while self.start + self.segment_size <= min(offset, self.end):
            path = self.path(self.start)
            self._fds.close(path)
            dropped.append(path)
            self.start += self.segment_size
        return dropped

    def close(self) -> None:
        """Close all files."""
        self._fds.close_all()

    # Reading

    def read(self, offset: int, count: int) -> bytes:
        """At most `count` bytes from `offset`, fewer at `end`. Raises OffsetGone below `start` or beyond `end`."""
        if not self.start <= offset <= self.end:
            raise OffsetGone(offset, self.start, self.end)
        count = min(count, self.end - offset)
        at = offset % self.segment_size
        if at + count <= self.segment_size:
            return read_all(self._fds.get(self.path(offset)), count, at) if count else b""
        parts = []
        while count > 0:
            at = offset % self.segment_size
            step = min(count, self.segment_size - at)
            parts.append(read_all(self._fds.get(self.path(offset)), step, at))
            offset += step
            count -= step
        return b"".join(parts)

    def read_soon(self, offset: int, count: int) -> None:
        """Ask the kernel to read [offset, offset + count) in the background, as far as it lies in one segment.

        This is a hint and raises nothing; the read itself reports errors.
        """
        count = min(count, self.end - offset, self.room(offset))
        if offset >= self.start and count > 0:
            with contextlib.suppress(OSError):
                fd = self._fds.get(self.path(offset))
                os.posix_fadvise(fd, offset % self.segment_size, count, os.POSIX_FADV_WILLNEED)

    def raw(self, offset: int, count: int) -> bytes:
        """Bytes of one segment, also beyond `end`, for recovery; b"" without a file. Raises OSError."""
        path = self.path(offset)
        try:
            fd = self._fds.get(path)
        except FileNotFoundError:
            return b""
        return read_all(fd, min(count, self.room(offset)), offset % self.segment_size)

    def whole_records(self, offset: int, max_bytes: int, limit: int) -> bytes:
        """Whole records and fillers from `offset` up to `limit`, a boundary; at least one, or b"" at `limit`.

        Raises OffsetGone; ValueError when no record begins at `offset`, as far as its size and magic show; OSError.
        """
        data, size = self._read_whole(offset, max_bytes, limit)
        return data[:size] if size < len(data) else data

    def whole_records_view(self, offset: int, max_bytes: int, limit: int) -> memoryview:
        """As `whole_records`, without a copy of what was read."""
        data, size = self._read_whole(offset, max_bytes, limit)
        return memoryview(data)[:size]

    def read_raw(self, at: int, max_bytes: int, limit: int | None = None) -> bytes:
        """Whole records and fillers from `at` for a follower: about `max_bytes`, at least one; b"" at the end.

        `limit` is a record boundary, by default `end`; the confirmed offset limits the read to final records. Raises
        OffsetGone when `at` is not in the log, ValueError when it is not a record boundary, OSError.
        """
        limit = self.end if limit is None else min(limit, self.end)
        if at < self.start:
            raise OffsetGone(at, self.start, limit)
        return self.whole_records(at, max_bytes, limit)

    def read_view(self, at: int, max_bytes: int) -> memoryview:
        """As `read_raw` up to `end`, without a copy of what was read."""
        if at < self.start:
            raise OffsetGone(at, self.start, self.end)
        return self.whole_records_view(at, max_bytes, self.end)

    def _read_whole(self, offset: int, max_bytes: int, limit: int) -> tuple[bytes, int]:
        """Bytes of the log, and how many of them are whole records and fillers."""
        if offset >= limit:
            if offset > limit:
                raise OffsetGone(offset, self.start, limit)
            return b"", 0
        data = self.read_some(offset, min(max(max_bytes, FILLER_MIN), limit - offset))
        size = size_of_first(data)
        if not 0 < size <= min(limit - offset, self.room(offset)):
            raise ValueError(f"offset {offset} is not a record boundary")
        have = len(data)
        if offset + have == limit:
            return data, have
        if size > have:
            return self.read(offset, size), size
        return data, size_of_whole(data, size)

    def begins_record(self, offset: int) -> bool:
        """Whether `offset` is the end, or a record or filler begins there, as far as its size and magic show.

        An offset that the disk cannot read counts as a boundary: only a faulty member names another one.
        """
        if not self.start <= offset < self.end:
            return offset == self.end
        count = min(FILLER_MIN, self.end - offset, self.room(offset))
        try:
            return size_of_first(self.read(offset, count)) > 0
        except OSError:
            return True

    def read_some(self, offset: int, count: int) -> bytes:
        """At most `count` bytes, fewer when the disk cannot read the later ones. Raises as `read`."""
        try:
            return self.read(offset, count)
        except OSError as error:
            if error.errno != errno.EIO or count <= FILLER_MIN:
                raise
        # A read that fails may take seconds, so this makes few of them.
        head = self.read(offset, FILLER_MIN)
        while count > _SECTOR:
            count = max(count // 8, _SECTOR)
            try:
                return self.read(offset, count)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
        return head

    def chunks(self, offset: int, limit: int, chunk: int = 1 << 20) -> Iterator[tuple[int, bytes]]:
        """[offset, limit) in pieces of whole records: (offset, bytes). Raises as `whole_records`."""
        while offset < limit:
            data = self.whole_records(offset, chunk, limit)
            yield offset, data
            offset += len(data)
