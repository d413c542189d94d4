"""The commit log's bytes for a reader that changes nothing: it works beside a running broker and on a copy."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final, NamedTuple

from gantry_broker.store.files import is_zero, read_all, read_into
from gantry_broker.store.log.commit_log import NAME_DIGITS, segment_bases
from gantry_broker.store.log.record_reader import HEAD_SIZE, begins_at, find_magic

_CHUNK: Final = 1 << 20


class Boundary(NamedTuple):
    """The next place where a record or a filler begins, or the end of the segment."""

    offset: int
    blank: bool
    """All bytes before it are zeros."""


class ReadOnlyLog:
    """Segments in one directory. It keeps one file open and makes none. Use as a context manager."""

    def __init__(self, directory: Path, segment_size: int) -> None:
        self.directory = directory
        self.segment_size = segment_size
        self._fd = -1
        self._base = -1

    def bases(self) -> list[int]:
        """First offsets of the segments, in order."""
        return segment_bases(self.directory)

    def room(self, offset: int) -> int:
        """Bytes from `offset` to the end of its segment."""
        return self.segment_size - offset % self.segment_size

    def raw(self, offset: int, count: int) -> bytes:
        """Bytes of one segment, fewer at its end; b"" where no file has them. Raises OSError."""
        if not self._open(offset):
            return b""
        return read_all(self._fd, min(count, self.room(offset)), offset % self.segment_size)

    def raw_into(self, offset: int, buffer: memoryview) -> int:
        """Fill a buffer with bytes of one segment, as `raw` returns them, and return how many. Raises OSError."""
        if not self._open(offset):
            return 0
        return read_into(self._fd, buffer[: self.room(offset)], offset % self.segment_size)

    def holds_beyond(self, offset: int) -> bool:
        """Whether the log has non-zero bytes from `offset` on. Raises OSError."""
        bases = self.bases()
        if not bases or bases[-1] > offset:
            return bool(bases)
        if not self._open(offset):
            return False
        return not is_zero(self._fd, offset % self.segment_size, os.fstat(self._fd).st_size)

    def next_boundary(self, offset: int) -> Boundary:
        """Return the first place from `offset` on, within its segment, where the head of a record or filler is valid.

        A head names its own offset, so bytes of a body are not taken for one. Raises OSError.
        """
        end = offset + self.room(offset)
        blank, at = True, offset
        while at < end:
            at = max(at, self._next_data(at, end) - HEAD_SIZE)  # A record begins with zeros: its size.
            data = self.raw(at, _CHUNK)
            if not data:
                break
            for index in find_magic(data):
                if at + index >= offset and begins_at(
                    self.raw(at + index, HEAD_SIZE), at + index, self.room(at + index)
                ):
                    return Boundary(at + index, blank and data.count(0, 0, index) == index)
            blank = blank and data.count(0) == len(data)
            last = len(data) < _CHUNK or at + len(data) >= end
            at = end if last else at + len(data) - HEAD_SIZE
        return Boundary(end, blank)

    def _next_data(self, offset: int, end: int) -> int:
        """Return the first offset from `offset` on that is not in a hole of the file; `end` when there is none."""
        if not self._open(offset):
            return end
        base = offset - offset % self.segment_size
        try:
            return min(base + os.lseek(self._fd, offset - base, os.SEEK_DATA), end)
        except OSError as error:
            return end if error.errno == errno.ENXIO else offset  # The file system may not report holes.

    def _open(self, offset: int) -> bool:
        base = offset - offset % self.segment_size
        if base != self._base:
            self.close()
            try:
                self._fd = os.open(self.directory / f"{base:0{NAME_DIGITS}d}", os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return False
            self._base = base
        return True

    def close(self) -> None:
        """Close the open file."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = self._base = -1

    def __enter__(self) -> ReadOnlyLog:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
