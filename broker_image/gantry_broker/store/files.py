"""Small things about files: open descriptors with a bound, whole writes, durable replacement, erasing."""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
SYNCS: Final = 16
"""Files that are made durable at the same time, where there are more."""
_ZEROS: Final = bytes(65_536)


class FdCache:
    """Open files by path, the least recently used closed beyond `limit`. Not for use by several threads."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._fds: OrderedDict[str, int] = OrderedDict()

    def get(self, path: str, *, create_size: int | None = None) -> int:
        """A descriptor for reading and writing. With `create_size` a missing file is made, that many bytes of hole, and
        one that is shorter is made as long. Raises OSError.
        """
        fd = self._fds.get(path)
        if fd is not None:
            self._fds.move_to_end(path)
            if create_size is not None:
                _grow(fd, create_size)  # It may have been left without its size, and opened for reading since.
            return fd
        fd = open_sized(path, create_size)
        self._fds[path] = fd
        if len(self._fds) > self._limit:
            _, oldest = self._fds.popitem(last=False)
            os.close(oldest)
        return fd

    def close(self, path: str) -> None:
        fd = self._fds.pop(path, None)
        if fd is not None:
            os.close(fd)

    def close_all(self) -> None:
        while self._fds:
            os.close(self._fds.popitem()[1])

    def __len__(self) -> int:
        return len(self._fds)


def open_sized(path: str, create_size: int | None) -> int:
    """Open for reading and writing; with `create_size` the file is made and has at least that size. Raises OSError."""
    if create_size is None:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _grow(fd, create_size)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _grow(fd: int, size: int) -> None:
    if os.fstat(fd).st_size < size:
        os.ftruncate(fd, size)


def write_all(fd: int, data: bytes | bytearray | memoryview, at: int) -> None:
    """Write all of `data` at `at`. Raises OSError, after which some of it may be written."""
    written = os.pwrite(fd, data, at)
    if written == len(data):
        return
    rest = memoryview(data)[written:]
    while rest:
        at += written
        written = os.pwrite(fd, rest, at)
        if written == 0:
            raise OSError(errno.ENOSPC, "nothing could be written")
        rest = rest[written:]


def read_all(fd: int, count: int, at: int) -> bytes:
    """`count` bytes from `at`, fewer only at the file's end. Raises OSError."""
    data = os.pread(fd, count, at)
    if len(data) == count or not data:
        return data
    parts = [data]
    have = len(data)
    while have < count:
        data = os.pread(fd, count - have, at + have)
        if not data:
            break
        parts.append(data)
        have += len(data)
    return b"".join(parts)


def fsync_dir(path: str | Path) -> None:
    """Make names within a directory durable. Raises OSError."""
    fd = _open_dir(path)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _open_dir(path: str | Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def sync_file(path: str) -> None:
    """Make a file's content durable; a file that retention has removed meanwhile needs nothing. Raises OSError."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.fdatasync(fd)
    finally:
        os.close(fd)


def sync_names(paths: list[str], depth: int = 3) -> None:
    """Make files durable, and so many directories above each of them. Raises OSError."""
    directories: set[str] = set()
    if len(paths) > SYNCS:
        with ThreadPoolExecutor(SYNCS) as pool:  # The file system brings several to the disk in one go.
            list(pool.map(sync_file, paths))
    else:
        for path in paths:
            sync_file(path)
    for path in paths:
        for _ in range(depth):
            path = os.path.dirname(path)
            directories.add(path)
    for path in sorted(directories):
        fsync_dir(path)


def atomic_write(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace a file: a reader, and a crash, sees the old content or the new one. Raises OSError.

    What can be short (room, descriptors) is taken before the old content goes: then it is still there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    directory = _open_dir(path.parent)
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            write_all(fd, data, 0)
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
        if durable:
            os.fsync(directory)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(directory)


def data_extents(fd: int, at: int, size: int) -> list[tuple[int, int]]:
    """Where a file may hold something other than zeros, from `at` on: (from, to) pairs; holes are left out."""
    extents = []
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
            stop = min(os.lseek(fd, start, os.SEEK_HOLE), size)
        except OSError as error:
            if error.errno == errno.ENXIO:
                break
            start, stop = at, size  # A file system that cannot tell holes.
        extents.append((start, stop))
        at = stop
    return extents


def is_zero(fd: int, start: int, stop: int) -> bool:
    """Whether [start, stop) holds only zeros."""
    for first, last in data_extents(fd, start, stop):
        at = first
        while at < last:
            data = os.pread(fd, min(len(_ZEROS), last - at), at)
            if not data:
                return True
            if data.count(0) != len(data):
                return False
            at += len(data)
    return True


def zero(fd: int, start: int, stop: int) -> bool:
    """Overwrite what is not zero in [start, stop); True when anything was. Raises OSError."""
    changed = False
    for first, last in data_extents(fd, start, stop):
        at = first
        while at < last:
            count = min(len(_ZEROS), last - at)
            data = os.pread(fd, count, at)
            if not data:
                return changed
            if data.count(0) != len(data):
                write_all(fd, _ZEROS[: len(data)], at)
                changed = True
            at += len(data)
    return changed
