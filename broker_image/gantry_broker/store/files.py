"""Helpers for files: a bounded cache of descriptors, whole writes, durable replacement, zeroing."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
SYNCS: Final = 16
"""At most this many files are made durable at the same time."""
_ZEROS: Final = bytes(65_536)


class FdCache:
    """Open files by path, at most `limit`; it closes the least recently used one. For one thread."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._fds: OrderedDict[str, int] = OrderedDict()
        self._sizes: dict[str, int] = {}
        """The size that an open file has at least."""

    def get(self, path: str, *, create_size: int | None = None) -> int:
        """Return a descriptor for reading and writing. Raises OSError.

        `create_size`: make a missing file with that many bytes of hole, and extend a shorter one.
        """
        fd = self._fds.get(path)
        if fd is not None:
            self._fds.move_to_end(path)
            if create_size is not None and self._sizes.get(path, -1) < create_size:
                _grow(fd, create_size)  # The file may be short, and have been opened for reading.
                self._sizes[path] = create_size
            return fd
        fd = open_sized(path, create_size)
        self._fds[path] = fd
        if create_size is not None:
            self._sizes[path] = create_size
        if len(self._fds) > self._limit:
            oldest, its_fd = self._fds.popitem(last=False)
            self._sizes.pop(oldest, None)
            os.close(its_fd)
        return fd

    def may_shrink(self, path: str) -> None:
        """Note that a file may become shorter: the next `get` with a size looks again."""
        self._sizes.pop(path, None)

    def close(self, path: str) -> None:
        """Close a file if it is open."""
        self._sizes.pop(path, None)
        fd = self._fds.pop(path, None)
        if fd is not None:
            os.close(fd)

    def close_all(self) -> None:
        """Close all files."""
        self._sizes.clear()
        while self._fds:
            os.close(self._fds.popitem()[1])

    def __len__(self) -> int:
        return len(self._fds)


def open_sized(path: str, create_size: int | None) -> int:
    """Open for reading and writing; `create_size`: make the file with at least that size. Raises OSError."""
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
    """Write all of `data` at `at`. Raises OSError, after which a part may be written."""
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
    """`count` bytes from `at`, fewer only at the end of the file. Raises OSError."""
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


def read_into(fd: int, buffer: memoryview, at: int) -> int:
    """Fill a buffer from `at` on, and return its bytes, fewer only at the end of the file. Raises OSError."""
    have = 0
    while have < len(buffer):
        count = os.preadv(fd, [buffer[have:]], at + have)
        if count == 0:
            break
        have += count
    return have


def fsync_dir(path: str | Path) -> None:
    """Make the names in a directory durable. Raises OSError."""
    fd = _open_dir(path)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _open_dir(path: str | Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def fdatasync(fd: int) -> None:
    """Make the content of a file durable. Raises `sync_failure`."""
    try:
        os.fdatasync(fd)
    except OSError as error:
        raise sync_failure(error.errno or errno.EIO) from error


def sync_failure(number: int) -> OSError:
    """Return the error of a failed fdatasync, never one of NO_DESCRIPTORS, after which a caller would try again."""
    return OSError(errno.EIO if number in NO_DESCRIPTORS else number, os.strerror(number))


def sync_file(path: str) -> None:
    """Make the content of a file durable; nothing to do for a removed file. Raises OSError."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        fdatasync(fd)
    finally:
        os.close(fd)


def write_back(path: str) -> None:
    """Let the kernel write all that waits in the file system of `path`, so that fsyncs of many files find little to do.

    It promises nothing: the fsyncs tell what is durable. Does nothing where there is no such call.
    """
    call = getattr(ctypes.CDLL(None), "syncfs", None)
    if call is None:
        return
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            call(fd)
        finally:
            os.close(fd)


def sync_names(paths: list[str], depth: int = 3) -> None:
    """Make files durable, and `depth` directories above each of them. Raises OSError."""
    directories: set[str] = set()
    if len(paths) > SYNCS:
        with ThreadPoolExecutor(SYNCS) as pool:  # The file system can commit several at once.
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


def is_there(path: Path | str) -> bool:
    """Return whether a file or folder exists. Raises OSError if that cannot be known.

    `Path.exists` returns False then, from Python 3.14 on.
    """
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def atomic_write(path: Path, data: bytes, *, durable: bool = True, mode: int = 0o644) -> None:
    """Replace a file: a reader, and a start after a crash, sees the old or the new content. Raises OSError.

    Without room or descriptors the old content stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    directory = _open_dir(path.parent)
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        try:
            write_all(fd, data, 0)
            if durable:
                # Before the rename: a power loss could leave the name with an empty file.
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


_BLOCK: Final = 4096


class ReservedFile:
    """A small text file that can be replaced on a full disk: a spare file beside it holds the room for the next
    content. A reader, and a start after a crash, sees the old or the new content, as with `atomic_write`.

    Both files have spaces behind their content. A file system that writes each block to a new place (btrfs, ZFS) needs
    free blocks all the same. For one writer.
    """

    def __init__(self, path: Path, reserved: int = 4 * _BLOCK) -> None:
        """`reserved`: bytes of each file; longer content needs room when it is written for the first time."""
        self.path = path
        self._reserved = reserved
        self._spare = path.with_name(path.name + ".spare")
        self._former = path.with_name(path.name + ".former")
        self._names_are_durable = False
        """False: after a power failure `path` may name the file that is the spare now."""

    def write(self, data: bytes) -> None:
        """Replace the content; it is durable on return. Raises OSError: the file has the old or the new content."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        size = max(self._reserved, -(-len(data) // _BLOCK) * _BLOCK)
        try:
            self._find_spare()
            fd = os.open(self._spare, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                write_all(fd, data.ljust(size), 0)
                os.ftruncate(fd, size)
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            # There was no spare yet. Without the spaces it may fit.
            self._spare.unlink(missing_ok=True)
            atomic_write(self.path, data)
            return
        former = self._keep_former()
        self._names_are_durable = False
        os.replace(self._spare, self.path)
        if former:
            os.replace(self._former, self._spare)
        self._sync_names()
        self._reserve(size)

    def _find_spare(self) -> None:
        """Undo what a crash left half done."""
        if is_there(self._former):
            if is_there(self.path) and os.path.samefile(self._former, self.path):
                self._former.unlink()
            else:
                os.replace(self._former, self._spare)
        if not self._names_are_durable:
            self._sync_names()

    def _keep_former(self) -> bool:
        """Give the present file a second name, under which it becomes the next spare."""
        try:
            os.link(self.path, self._former)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, *NO_ROOM):
                raise
            return False  # The file system has no links: `_reserve` makes a new spare.
        return True

    def _sync_names(self) -> None:
        fsync_dir(self.path.parent)
        self._names_are_durable = True

    def _reserve(self, size: int) -> None:
        """Give the spare its room, if that is possible: the content is durable already."""
        with contextlib.suppress(OSError):
            fd = os.open(self._spare, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                if os.fstat(fd).st_size < size:
                    write_all(fd, b" " * size, 0)
                    os.fsync(fd)
            finally:
                os.close(fd)


def data_extents(fd: int, at: int, size: int) -> list[tuple[int, int]]:
    """Ranges (from, to) of a file from `at` on that may have bytes other than zeros; holes are left out."""
    extents = []
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
            stop = min(os.lseek(fd, start, os.SEEK_HOLE), size)
        except OSError as error:
            if error.errno == errno.ENXIO:
                break
            start, stop = at, size  # The file system does not report holes.
        extents.append((start, stop))
        at = stop
    return extents


def is_zero(fd: int, start: int, stop: int) -> bool:
    """Whether [start, stop) has only zeros. Raises OSError."""
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
    """Overwrite non-zero bytes in [start, stop) with zeros; True when there were any. Raises OSError."""
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
