"""The commit log of a store directory, of Gantry or of Apache RocketMQ 4.9 and 5.x."""

from __future__ import annotations

import errno
import mmap
import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gantry_broker.store.files import is_there

from gantry_spark.errors import Expired, SourceError
from gantry_spark.scan import Range, is_record, next_record

_NAME: Final = re.compile(r"[0-9]{20}")
_MAX_OFFSET: Final = 2**63 - 1
_FLAGS: Final = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
"""Maps all pages at once, if the system supports that: one page fault instead of many."""
MUTABLE_TAIL_BYTES: Final = 64 * 1024 * 1024
"""Bytes at the end of a log that its broker may still truncate. The unconfirmed bytes of a group are far fewer."""


@dataclass(frozen=True)
class Segment:
    """A file of the log, with the log offsets [start, end) by its size. `limit`: the end of the existing bytes."""

    start: int
    end: int
    limit: int
    path: str
    first_ms: int = -1
    """Store time of the first record in Unix milliseconds; -1: not known, as in every directory."""


@dataclass(frozen=True)
class LogFiles:
    """The segments of one log in order, and the names of unrelated files in its directory."""

    name: str
    root: Path
    segments: list[Segment]
    unrelated: list[str] = field(default_factory=list)


def find(path: str) -> LogFiles:
    """Find the log in a store directory, or in its `commitlog` directory. Raises SourceError with the reason."""
    root = Path(path.removeprefix("file://").removeprefix("file:"))
    try:
        return _find(root)
    except OSError as error:
        raise SourceError(f"{error.filename or root} cannot be read: {error.strerror}") from None


def _find(root: Path) -> LogFiles:
    """Find the files of a log. Raises SourceError as `find` does, and OSError if the directory cannot be read."""
    if not is_there(root):
        raise SourceError(f"{root} does not exist; give a store directory (with commitlog/ in it)")
    if not root.is_dir():
        raise SourceError(f"{root} is a file; give a store directory (with commitlog/ in it)")
    folder = root / "commitlog" if (root / "commitlog").is_dir() else root
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise SourceError(f"{folder} cannot be listed: {error.strerror}") from None
    sizes = {n: size for n in names if (size := _segment_size(folder / n)) is not None}
    files = _without_unrelated(folder, sizes)
    unrelated = [n for n in names if n not in files]
    if not files:
        inside = "is empty" if not names else f"holds {', '.join(names[:3])}" + (" and more" if len(names) > 3 else "")
        raise SourceError(
            f"no commit log in {root}: {folder} {inside}; expected files with names of 20 digits, such as "
            f"commitlog/{0:020d}"
        )
    name = (root if folder != root else root.parent if root.name == "commitlog" else root).resolve().name
    return LogFiles(name, root, _segments(folder, files), unrelated)


def _segment_size(path: Path) -> int | None:
    """Return the size of a file with a segment's name and valid offsets, or None if it is no such file or is gone."""
    if _NAME.fullmatch(path.name) is None:
        return None
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) and int(path.name) + status.st_size <= _MAX_OFFSET else None


def _without_unrelated(folder: Path, sizes: dict[str, int]) -> dict[str, int]:
    """Return the files without the unrelated ones: files without any record and with a size unlike other segments'."""
    if len(set(sizes.values())) < 2:
        return sizes
    segment_sizes = {size for name, size in sizes.items() if _has_record(folder / name, size, False)}
    if not segment_sizes:
        return sizes
    return {n: size for n, size in sizes.items() if size in segment_sizes or _has_record(folder / n, size, True)}


def _has_record(path: Path, size: int, anywhere: bool) -> bool:
    """Return whether a record begins at the start of the file, or with `anywhere` at any place in it."""
    start = int(path.name)
    whole = Range(start, start + size, start + size, start + size, last=False)
    with suppress(Expired), FileBytes(Segment(start, start + size, start + size, str(path)), 0) as source:
        if is_record(source, start, whole):
            return True
        return anywhere and next_record(source, start, whole) is not None
    return False


def _segments(folder: Path, files: dict[str, int]) -> list[Segment]:
    segments: list[Segment] = []
    for name, size in files.items():
        start = int(name)
        if segments and segments[-1].end > start:
            before = segments[-1]
            raise SourceError(
                f"{folder / name} begins within {Path(before.path).name}, which has {before.end - before.start} bytes"
            )
        if size:
            segments.append(Segment(start, start + size, start + size, str(folder / name)))
    # Brokers allocate the next file ahead. Zeros at the end of the log are not part of it.
    while segments:
        last = segments.pop()
        written = None if segments and _is_unwritten(last.path) else _data_end(last.path, last.end - last.start)
        if written is not None:
            segments.append(Segment(last.start, last.end, last.start + written, last.path))
            break
    return segments


def _is_unwritten(path: str) -> bool:
    """Return whether a file begins with zeros or is gone."""
    try:
        with open(path, "rb", buffering=0) as file:
            return not any(file.read(8) or b"")
    except FileNotFoundError:
        return True


def _data_end(path: str, size: int) -> int | None:
    """Return the end of the last data of a file, or None if the file is gone.

    The unwritten rest of the last segment is a hole in the file.
    """
    with suppress(FileNotFoundError), open(path, "rb", buffering=0) as file:
        end = at = 0
        while at < size:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA)
                at = end = os.lseek(file.fileno(), at, os.SEEK_HOLE)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return end
                return size  # This file system does not report holes.
        return min(end, size)
    return None


class FileBytes:
    """Bytes of one segment file by log offset."""

    def __init__(self, segment: Segment, immutable_end: int) -> None:
        """`immutable_end`: log offset up to which bytes never change. The whole file may still be deleted."""
        try:
            self._fd = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise Expired(f"{segment.path} is gone") from None
        except OSError as error:
            raise SourceError(f"{segment.path} cannot be read: {error.strerror}") from error
        self._start = segment.start
        self._immutable_end = immutable_end

    def map_range(self, offset: int, size: int) -> memoryview | None:
        """Map bytes of the file, see `scan.LogBytes`.

        Only immutable bytes are mapped, because access to truncated pages kills the process. A mapping stays valid
        after the file is deleted.
        """
        if offset + size > self._immutable_end:
            return None
        before = (offset - self._start) % mmap.ALLOCATIONGRANULARITY
        try:
            mapping = mmap.mmap(self._fd, before + size, _FLAGS, mmap.PROT_READ, offset=offset - self._start - before)
        except (OSError, ValueError):  # The file system supports no mapping, or the range is beyond the end.
            return None
        return memoryview(mapping)[before:]

    def read_into(self, offset: int, into: memoryview) -> int:
        done = 0
        while done < len(into):
            got = os.preadv(self._fd, [into[done:]], offset - self._start + done)
            if got == 0:
                break
            done += got
        return done

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> FileBytes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class DirectoryLog:
    """The log of a directory, as the planner and the tasks use it."""

    unreachable: tuple[str, ...] = ()
    """See `remote.RemoteLog`. Always empty for a directory."""

    def __init__(self, files: LogFiles) -> None:
        self.files = files
        self.name = files.name
        self.segments = files.segments

    def open(self, index: int) -> FileBytes:
        """Open a segment. Raises SourceError if the file is gone or not readable."""
        return FileBytes(self.segments[index], self.segments[-1].limit - MUTABLE_TAIL_BYTES)
