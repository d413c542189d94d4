"""The key index: the offsets of the records with a key, in files under `index/`. New keys go to the newest file.

The index may lag behind the queues: a full disk stops it. Later it continues at `position` and reads the log again.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gantry_broker.protocol.digits import whole_number
from gantry_broker.store.files import fsync_dir
from gantry_broker.store.index.index_file import KEY, IndexFile, file_size, guess_slots, keys_within

DAMAGED: Final = ".damaged"
"""Ends the name of an empty file in the place of one that was damaged: its keys are to be read from the log again."""
PART: Final = ".part"
"""Ends the name of the file that gets them."""
BATCH: Final = 512
"""Keys that are added at once."""
APART: Final = 10
"""Between the numbers in the names of two files, at least. What does not fit a file that is made again gets a file of
its own before the next one, also where a file was full within a millisecond or the clock was set back.
"""
_log = logging.getLogger(__name__)


class KeyIndex:
    """All index files. `position`: the keys of all records below this offset are in a file or in memory."""

    def __init__(self, directory: Path, slots: int, entries: int, *, own_files: bool) -> None:
        """`own_files`: ours, so those of the expected size have the shape of the settings. Raises OSError."""
        self.directory = directory
        self.position = 0
        self.behind = False
        """True: records from `position` on must be read from the log before new ones are added."""
        self.stalled = False
        """The last try failed: the disk is full, or a record is unreadable."""
        self.pending = bytearray()
        """Packed keys of records below `position` that are in no file yet."""
        self._shape = (slots, entries)
        self._files: list[IndexFile] = []
        self.unsynced: set[str] = set()
        self.gaps: list[str] = []
        """Names of damaged files whose keys are in no file, in their order."""
        self._part: IndexFile | None = None
        """The file that gets the keys of the first gap, with the range of the log that it is to have."""
        self._range = (0, 0)
        directory.mkdir(parents=True, exist_ok=True)
        for name in sorted(os.listdir(directory)):
            if name.endswith(DAMAGED) and whole_number(name.removesuffix(DAMAGED)) is not None:
                self.gaps.append(name.removesuffix(DAMAGED))
            elif name.endswith(PART):
                os.unlink(directory / name)
            if whole_number(name) is None:
                continue
            path = str(directory / name)
            ours = own_files and os.stat(path).st_size == file_size(slots, entries)
            shape = self._shape if ours else guess_slots(path, self._shape)
            if shape is None:
                _log.warning(
                    "%s is not an index file: queries do not find its keys until they are read from the log again", path
                )
                os.truncate(path, 0)
                os.rename(path, path + DAMAGED)
                self.gaps.append(name)
                continue
            self._files.append(IndexFile(path, *shape))

    @property
    def written(self) -> int:
        """The keys of all records below this offset are in a file."""
        if not self.pending:
            return self.position
        phys: int = KEY.unpack_from(self.pending)[1]
        return phys

    @property
    def end_phys(self) -> int:
        """The offset of the last record in a file; -1 without one."""
        for file in reversed(self._files):
            if file.count > 1:
                return file.end_phys
        return -1

    @property
    def end_ms(self) -> int:
        """Store time (ms) of the last record in a file; 0 without one."""
        return self._files[-1].end_ms if self._files else 0

    def drain(self) -> bool:
        """Write pending keys to files. False, and `behind` is set, when the disk refuses them."""
        while self.pending:
            try:
                file = self._current()
                done = file.add(bytes(self.pending)) * KEY.size
            except OSError as error:
                _log.warning("the key index stops at %d: %s", self.written, error)
                self.position = self.written
                self.pending.clear()
                self.behind = self.stalled = True
                return False
            self.stalled = False
            self.unsynced.add(file.path)
            if done == len(self.pending):
                self.pending.clear()
            else:
                del self.pending[:done]
        return True

    def open_gap(self, log_start: int) -> tuple[int, int] | None:
        """Return the range of the log whose keys go to `fill_gap` next; None: no file is missing. Raises OSError.

        The record at its begin, and the one that is its last, may have some of their keys in the files around it.
        """
        while self.gaps and self._part is None:
            name = self.gaps[0]
            before = [file.end_phys for file in self._files if os.path.basename(file.path) < name and file.count > 1]
            after = [file.begin_phys for file in self._files if os.path.basename(file.path) > name and file.count > 1]
            start, stop = max(log_start, *before[-1:], 0), after[0] + 1 if after else self.written
            if start >= stop or (self.directory / name).exists():
                self._close_gap()
                continue
            self._part = IndexFile(str(self.directory / (name + PART)), *self._shape, create=True)
            self._range = start, stop
        return self._range if self._part is not None else None

    def fill_gap(self, keys: bytes, end: int) -> None:
        """Add the packed keys of the log up to `end`, from where the range of the gap began. Raises OSError."""
        part = self._part
        assert part is not None
        _, stop = self._range
        done = part.add(keys) * KEY.size
        full = done < len(keys)
        # The rest of a full file is a gap of its own, behind it.
        self._range = end, stop
        if not full and end < stop:
            return
        part.sync()
        name = self.gaps[0]
        part.close()
        self._part = None
        if part.count > 1:
            path = str(self.directory / name)
            os.rename(part.path, path)
            self._files.append(IndexFile(path, *self._shape))
            self._files.sort(key=lambda file: os.path.basename(file.path))
        else:
            os.unlink(part.path)
        following = f"{int(name) + 1:0{len(name)}}"
        if full:
            (self.directory / (following + DAMAGED)).touch()
            self.gaps.insert(1, following)
        self._close_gap()
        _log.warning("the keys of the damaged index file %s were read from the log again", name)

    def _close_gap(self) -> None:
        (self.directory / (self.gaps.pop(0) + DAMAGED)).unlink(missing_ok=True)
        fsync_dir(self.directory)

    def leave_gap(self) -> None:
        """Begin with the present gap again: files around it have changed, or the log cannot be read. Raises OSError."""
        part, self._part = self._part, None
        if part is not None:
            part.close()
            os.unlink(part.path)

    def _current(self) -> IndexFile:
        newest = os.path.basename(self._files[-1].path) if self._files else ""
        gap = self.gaps[-1] if self.gaps else ""
        if self._files and not self._files[-1].full and newest > gap:
            return self._files[-1]
        # The name is the local time of creation, and names must rise. Source: `getAndCreateLastIndexFile`.
        name = _file_name(time.time())
        newest = max(newest, gap)
        if newest:
            name = max(name, f"{int(newest) + APART:0{len(newest)}}")
        file = IndexFile(str(self.directory / name), *self._shape, create=True)
        if self._files:
            self._files[-1].release()
        self._files.append(file)
        return file

    def find(self, key_hash: int, begin_ms: int, end_ms: int, limit: int, stored_ms: Callable[[int], int]) -> list[int]:
        """Offsets of records that may have the key, newest first. `stored_ms`: see `IndexFile.find`. Raises OSError."""
        pending = KEY.iter_unpack(self.pending)
        offsets = [phys for own, phys, ms in pending if own == key_hash and begin_ms <= ms <= end_ms][::-1][:limit]
        for file in reversed(self._files):
            if len(offsets) >= limit:
                break
            if file.may_have(begin_ms, end_ms):
                offsets += file.find(key_hash, begin_ms, end_ms, limit - len(offsets), stored_ms)
        return offsets

    def truncate(self, limit: int, *, rebuild: bool = False) -> None:
        """Remove the keys of records at or above `limit`; `rebuild` after a power loss. Raises OSError."""
        self.leave_gap()
        self.pending = keys_within(self.pending, 0, limit)
        while self._files:
            last = self._files[-1]
            if rebuild:
                last.rebuild(limit)
            else:
                last.truncate(limit)
            self.unsynced.add(last.path)
            if last.count > 1:
                break
            self._files.pop()
            self._remove(last)
        self.position = min(self.position, limit)

    def _remove(self, file: IndexFile) -> None:
        file.close()
        os.unlink(file.path)
        self.unsynced.discard(file.path)

    def files_since(self, phys: int) -> list[str]:
        """Return the files with keys of records at or above `phys`."""
        return [file.path for file in self._files if file.end_phys >= phys]

    def drop_before(self, phys: int) -> list[str]:
        """Give up files whose records all lie below `phys`, except the newest; returns them."""
        dropped = []
        while len(self._files) > 1 and self._files[0].end_phys < phys:
            file = self._files.pop(0)
            file.close()
            self.unsynced.discard(file.path)
            dropped.append(file.path)
        return dropped

    def clear(self, position: int) -> None:
        """Remove all files and continue at `position`. Raises OSError."""
        self.leave_gap()
        while self.gaps:
            self._close_gap()
        self.pending.clear()
        while self._files:
            self._remove(self._files.pop())
        self.position = position
        self.behind = False

    def sync(self) -> None:
        """Make all files durable. Raises OSError."""
        for file in self._files:
            if file.path in self.unsynced:
                file.sync()
        self.unsynced.clear()
        fsync_dir(self.directory)

    def close(self) -> None:
        """Close all files."""
        if self._part is not None:
            self._part.close()
            self._part = None
        for file in self._files:
            file.close()
        self._files.clear()


def _file_name(now: float) -> str:
    return time.strftime("%Y%m%d%H%M%S", time.localtime(now)) + f"{int(now * 1000) % 1000:03d}"
