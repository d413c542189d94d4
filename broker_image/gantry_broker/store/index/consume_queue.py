"""One consume queue: 20-byte entries (offset in the log i64, size i32, tag code i64), numbered by queue offset.

`add` puts entries into memory, `write_piece` moves them to files; reads see both. A queue contains confirmed records
only, so readers see no others (rule 9).
"""

from __future__ import annotations

import os
from struct import Struct
from typing import Final

from gantry_broker.protocol.digits import whole_number
from gantry_broker.store.files import FdCache, data_extents, read_all, write_all, zero
from gantry_broker.store.index.compacted import QueueRows

ENTRY: Final = Struct(">qiq")
ENTRY_SIZE: Final = 20
BLANK_SIZE: Final = 0x7FFFFFFF
"""The size field of an entry without a record. Source: `fillPreBlank`, below a queue's first record."""
BLANK: Final = ENTRY.pack(0, BLANK_SIZE, 0)
PHYS: Final = Struct(">q")


class ConsumeQueue:
    """A queue of one topic. Offsets are queue offsets (entries); `phys` are offsets of the log."""

    __slots__ = (
        "_fds",
        "_first",
        "_min",
        "_min_for",
        "_prefix",
        "compacted",
        "file_size",
        "key",
        "next",
        "pending",
        "trusted_from",
        "written",
    )

    def __init__(self, directory: str, topic: str, queue_id: int, file_size: int, fds: FdCache) -> None:
        self.key = (topic, queue_id)
        self.compacted: QueueRows | None = None
        """The rows of its compacted records; None: it has none."""
        self.file_size = file_size
        self.pending = bytearray()
        self.written = 0
        """The queue offset after the last entry in a file."""
        self.trusted_from = 0
        """This process wrote the entries from here on. Reads compare those before it with the log."""
        self.next = -1
        """The queue offset of the next record, after unconfirmed ones too; -1: not loaded yet."""
        self._first = 0
        self._min = 0
        self._min_for = -1
        self._prefix = directory + os.sep
        self._fds = fds

    @property
    def max(self) -> int:
        """The queue offset after the last entry."""
        return self.written + len(self.pending) // ENTRY_SIZE

    # Loading and repairing

    def _bases(self) -> list[int]:
        try:
            names = os.listdir(self._prefix)
        except FileNotFoundError:
            return []
        return sorted(int(name) for name in names if len(name) == 20 and whole_number(name) is not None)

    def files(self) -> list[str]:
        """Every file of the queue."""
        return [self._path(base) for base in self._bases()]

    def files_since(self, phys: int) -> list[str]:
        """Return the last file and all others with entries of records at or above `phys`. Raises OSError."""
        paths = []
        for base in reversed(self._bases()):
            paths.append(self._path(base))
            number = max(base // ENTRY_SIZE, self._first)
            if number < self.max and self.entry(number)[0] < phys:
                break
        return paths

    def _path(self, base: int) -> str:
        return f"{self._prefix}{base:020d}"

    def load(self) -> int:
        """Find out from the files what the queue contains; returns `next`. Raises OSError."""
        bases = [base for base in self._bases() if base % self.file_size == 0]
        self._first = self.written = 0
        self._min_for = -1
        for base in reversed(bases):
            low, count = self._span(base, None)
            if count > low:
                self.written = base // ENTRY_SIZE + count
                self._first = base // ENTRY_SIZE + low
                for earlier in bases[: bases.index(base)]:
                    low, count = self._span(earlier, None)
                    if count > low:
                        self._first = earlier // ENTRY_SIZE + low
                        break
                break
        else:
            if bases:  # A truncation emptied it after retention had removed earlier files.
                self.written = self._first = bases[0] // ENTRY_SIZE
        self.trusted_from = self.written
        self.next = self.max
        return self.next

    def first_in_files(self) -> int:
        """Return the queue offset at which the first file begins; 0 without one."""
        bases = self._bases()
        return bases[0] // ENTRY_SIZE if bases else 0

    def reaches_beyond(self, end: int) -> bool:
        """Whether the files have an entry at or behind this queue offset. Raises OSError."""
        within = end * ENTRY_SIZE % self.file_size
        base = end * ENTRY_SIZE - within
        bases = self._bases()
        if bases and bases[-1] > base:
            return True
        return base in bases and self._is_entry(self._fds.get(self._path(base)), within // ENTRY_SIZE, None)

    def entry_of(self, number: int, first: int, end: int) -> tuple[int, int, int]:
        """As `entry`, of a queue that is not loaded and has the entries of [first, end). Raises OSError."""
        self._first, self.written = first, end
        return self.entry(number)

    def sizes(self) -> list[int]:
        """Bytes of each file. Raises OSError."""
        return [os.stat(self._path(base)).st_size for base in self._bases()]

    def damaged_from(self, first: int, end: int) -> int | None:
        """Return the first queue offset of the first file that lacks entries of [first, end); None: none does.

        It compares names, sizes and the entries at both ends, so its cost grows with the number of files only. Raises
        OSError.
        """
        if first >= end:
            return None
        per_file = self.file_size // ENTRY_SIZE
        there = set(self._bases())
        for number in range(first - first % per_file, end, per_file):
            base = number * ENTRY_SIZE
            if base not in there or os.stat(self._path(base)).st_size < self.file_size:
                return number
            fd = self._fds.get(self._path(base))
            ends = (max(first, number), min(end, number + per_file) - 1)
            if not all(self._is_entry(fd, at - number, None) for at in ends):
                return number
        return None

    def open_at(self, first: int, end: int) -> None:
        """Load a queue whose files have the entries of [first, end), and maybe later ones. Raises OSError."""
        self._first, self.written, self._min_for = first, end, -1
        per_file = self.file_size // ENTRY_SIZE
        there = set(self._bases())
        while True:
            within = self.written % per_file
            base = (self.written - within) * ENTRY_SIZE
            if base not in there:
                break
            fd = self._fds.get(self._path(base))
            low, high = within, per_file
            while low < high:
                middle = (low + high) // 2
                if self._is_entry(fd, middle, None):
                    low = middle + 1
                else:
                    high = middle
            self.written += low - within
            if low < per_file:
                break
        self.trusted_from = self.written
        self.next = self.max

    def cut(self, first: int, number: int) -> bool:
        """Keep the entries of [first, number), which the files have; True when files changed. Raises OSError."""
        self.pending.clear()
        self._first = first
        self._min_for = -1
        if number <= first:
            changed = bool(self._bases())
            self._empty(number)
            return changed
        self.written = number + 1  # So that everything behind it goes, however far the files reach.
        changed = self._forget_from(number)
        self.trusted_from = max(self.trusted_from, self.written)
        self.next = self.max
        return changed

    def begin_at(self, number: int) -> None:
        """Let the first entry of an empty queue have this queue offset. Raises OSError."""
        if self.is_empty and number != self.max:
            self._empty(max(number - 1, 0))
            if number:
                self.pending += BLANK

    def skip_to(self, number: int, phys: int) -> None:
        """Give the next entry the queue offset `number`, behind blanks: no record has the offsets before it."""
        if self.is_empty:
            self.begin_at(number)
        elif number > self.max:
            self.pending += ENTRY.pack(phys, BLANK_SIZE, 0) * (number - self.max)
        self.next = self.max

    def correct(self, number: int, entry: bytes) -> str:
        """Write an entry in the place of a damaged one; returns the file. Raises OSError."""
        self._first = min(self._first, number)
        self._min_for = -1
        return self._write(number, entry)

    def _span(self, base: int, limit: int | None) -> tuple[int, int]:
        """(index of the first entry, index after the last one) in a file, by bisection.

        `limit`: only entries of records below it count.
        """
        fd = self._fds.get(self._path(base))
        size = min(self.file_size, os.fstat(fd).st_size) // ENTRY_SIZE
        low = 0
        if not self._is_entry(fd, 0, limit):
            # A queue that starts within a file has zeros before its first entry.
            low = self._first_data(fd, size)
            if low >= size or not self._is_entry(fd, low, limit):
                return (0, 0)
        high = size
        first = low
        while low < high:
            middle = (low + high) // 2
            if self._is_entry(fd, middle, limit):
                low = middle + 1
            else:
                high = middle
        if limit is not None and low > first and not self._follows(fd, base, first, low - 1):
            low -= 1
        return (first, low)

    @staticmethod
    def _follows(fd: int, base: int, first: int, index: int) -> bool:
        """Whether the record follows that of the entry before. An interrupted truncation leaves parts of entries."""
        phys, size, _ = ENTRY.unpack(os.pread(fd, ENTRY_SIZE, index * ENTRY_SIZE))
        if size == BLANK_SIZE:
            return True
        if index == first:
            return bool(phys > 0 or base + index == 0)
        before, size, _ = ENTRY.unpack(os.pread(fd, ENTRY_SIZE, (index - 1) * ENTRY_SIZE))
        # A blank has the offset of the next record.
        return bool(phys > before or (phys == before and size == BLANK_SIZE))

    @staticmethod
    def _is_entry(fd: int, index: int, limit: int | None) -> bool:
        data = os.pread(fd, ENTRY_SIZE, index * ENTRY_SIZE)
        if len(data) < ENTRY_SIZE:
            return False
        phys, size, _ = ENTRY.unpack(data)
        return size > 0 and phys >= 0 and (limit is None or phys < limit)

    @staticmethod
    def _first_data(fd: int, size: int) -> int:
        for start, stop in data_extents(fd, 0, size * ENTRY_SIZE):
            at = start
            while at < stop:
                data = os.pread(fd, min(65_536, stop - at), at)
                stripped = data.lstrip(b"\0")
                if stripped:
                    return (at + len(data) - len(stripped)) // ENTRY_SIZE
                if not data:
                    break
                at += len(data)
        return size

    def truncate(self, limit: int) -> bool:
        """Remove the entries of records at or above `limit`, from memory and disk; True when files changed.

        Bytes beyond the last entry are zeros afterwards, also after a crash. Raises OSError.
        """
        kept = self.pending
        while kept and PHYS.unpack_from(kept, len(kept) - ENTRY_SIZE)[0] >= limit:
            del kept[-ENTRY_SIZE:]
        if kept:
            # All files have older records, but a failed write may have left parts of newer entries.
            self.next = self.max
            self._min_for = -1
            return self._zero_unwritten()
        changed = False
        bases = [base for base in self._bases() if base % self.file_size == 0]
        kept_any = False
        for base in reversed(bases):
            path = self._path(base)
            if kept_any:
                break
            first, count = self._span(base, limit)
            if count > first or base == bases[0]:
                fd = self._fds.get(path)
                changed |= zero(fd, count * ENTRY_SIZE, max(self.file_size, os.fstat(fd).st_size))
                kept_any = True
            else:
                self._fds.close(path)
                os.unlink(path)
                changed = True
        self.load()
        return changed

    def _zero_unwritten(self) -> bool:
        within = self.written * ENTRY_SIZE % self.file_size
        path = self._path(self.written * ENTRY_SIZE - within)
        return os.path.exists(path) and zero(self._fds.get(path), within, self.file_size)

    def rebase(self, offset: int) -> list[str]:
        """Empty the queue and start it at `offset`; returns the written files, which are not durable yet.

        Raises OSError, after which only memory has the new offset.
        """
        self._empty(offset)
        if not offset:
            return []
        files = [self._write(offset - 1, BLANK)]
        self._first = offset - 1
        return files

    @property
    def first(self) -> int:
        """The queue offset of the first entry on the disk or in memory."""
        return self._first

    @property
    def is_empty(self) -> bool:
        """There is no entry that gives the next queue offset."""
        return self._first == self.max

    def start_at(self, number: int) -> None:
        """Start an empty queue at a queue offset. No file keeps it: call it after each `load`."""
        self.written = self._first = number
        self.next = max(self.next, number)
        self._min_for = -1

    def _empty(self, offset: int) -> None:
        """Remove all entries and files; the next entry gets the queue offset `offset`."""
        self.pending.clear()
        for base in self._bases():
            self._fds.close(self._path(base))
            os.unlink(self._path(base))
        self.written = self._first = self.next = offset
        self._min_for = -1

    # Adding

    def oldest_pending(self) -> int | None:
        """Return the offset of the oldest record with an entry in memory only; None without one."""
        at = ENTRY_SIZE if self.pending.startswith(BLANK) else 0
        return int(PHYS.unpack_from(self.pending, at)[0]) if len(self.pending) > at else None

    def add(self, offset: int, entries: bytes) -> bool:
        """Add entries from queue offset `offset` on, behind blanks if there is a gap.

        Recovery may add existing entries again; they do not change. The first one that differs, as an interrupted
        truncation may leave it, is replaced with all later ones; True then. Raises OSError.
        """
        differs = None
        if self.max == 0 and offset > 0:
            self._empty(offset - 1)
            self.pending += BLANK
        behind = offset - self.max
        if behind == 0:
            self.pending += entries
        elif behind > 0:
            self.pending += ENTRY.pack(PHYS.unpack_from(entries)[0], BLANK_SIZE, 0) * behind
            self.pending += entries
        else:
            differs = self._differs(offset, entries[: -behind * ENTRY_SIZE])
            if differs is not None:
                self._forget_from(differs)
            self.pending += entries[(self.max - offset) * ENTRY_SIZE :]
        return differs is not None

    def fill_in(self, number: int, entry: bytes, touched: set[str]) -> None:
        """Replace the blank that stands for a damaged record with the entry of the repaired one.

        `touched` gets the written file. Raises OSError.
        """
        if not self._first <= number < self.max:
            return
        phys, size, below = self.entry(number)
        if size != BLANK_SIZE or (phys == 0 and below):
            return
        self._min_for = -1
        if number >= self.written:
            at = (number - self.written) * ENTRY_SIZE
            self.pending[at : at + ENTRY_SIZE] = entry
        else:
            touched.add(self._write(number, entry))

    def _differs(self, offset: int, entries: bytes) -> int | None:
        """Return the queue offset of the first entry that differs from these and is no blank; None without one."""
        for at in range(max(offset, self._first), offset + len(entries) // ENTRY_SIZE):
            there = self.read(at, 1)
            expected = entries[(at - offset) * ENTRY_SIZE : (at - offset + 1) * ENTRY_SIZE]
            if there == expected:
                continue
            phys, size, _ = ENTRY.unpack(there)
            if size != BLANK_SIZE or 0 < phys <= PHYS.unpack_from(expected)[0]:
                return at
        return None

    def _forget_from(self, offset: int) -> bool:
        """Remove the entries from this queue offset on, to write them again; True when files changed."""
        del self.pending[max(0, offset - self.written) * ENTRY_SIZE :]
        self._min_for = -1
        if offset >= self.written:
            return False
        self.written = offset
        changed = False
        for base in reversed(self._bases()):
            if base <= offset * ENTRY_SIZE:
                break
            self._fds.close(self._path(base))
            os.unlink(self._path(base))
            changed = True
        return self._zero_unwritten() or changed

    def write_piece(self) -> str:
        """Move entries from memory to one file; returns the file.

        Raises OSError; unwritten entries stay in memory.
        """
        pending = self.pending
        at = self.written * ENTRY_SIZE
        room = self.file_size - at % self.file_size
        piece = bytes(pending[:room]) if len(pending) > room else bytes(pending)
        path = self._write(self.written, piece)
        self.written += len(piece) // ENTRY_SIZE
        del pending[: len(piece)]
        return path

    def _write(self, offset: int, data: bytes) -> str:
        at = offset * ENTRY_SIZE
        within = at % self.file_size
        path = self._path(at - within)
        write_all(self._fds.get(path, create_size=self.file_size), data, within)
        return path

    # Reading

    def read(self, offset: int, count: int) -> bytes:
        """At most `count` entries from `offset`, which must lie between the first entry and `max`. Raises OSError."""
        stop = min(offset + count, self.max)
        if stop <= offset:
            return b""
        written = self.written
        if offset >= written:
            first = (offset - written) * ENTRY_SIZE
            return bytes(self.pending[first : first + (stop - offset) * ENTRY_SIZE])
        parts = []
        at = offset
        while at < min(stop, written):
            within = at * ENTRY_SIZE % self.file_size
            step = min(min(stop, written) - at, (self.file_size - within) // ENTRY_SIZE)
            fd = self._fds.get(self._path(at * ENTRY_SIZE - within))
            data = read_all(fd, step * ENTRY_SIZE, within)
            if len(data) < step * ENTRY_SIZE:
                data = data.ljust(step * ENTRY_SIZE, b"\0")
            parts.append(data)
            at += step
        if stop > written:
            parts.append(bytes(self.pending[: (stop - written) * ENTRY_SIZE]))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def entry(self, offset: int) -> tuple[int, int, int]:
        """(phys, size, tag code) of the entry at `offset`, which must be in the queue. Raises OSError."""
        phys, size, code = ENTRY.unpack(self.read(offset, 1))
        return phys, size, code

    def first_at(self, phys: int) -> int:
        """Return the first queue offset whose record lies at or above `phys`; `max` without one. Raises OSError."""
        low, high = self._first, self.max
        # First the last one: of a queue whose log is gone each pull asks for this, and the answer cannot be kept.
        middle = high - 1
        while low < high:
            at, size, _ = self.entry(middle)
            if at < phys or (at == 0 and size == BLANK_SIZE):
                low = middle + 1
            else:
                high = middle
            middle = (low + high) // 2
        return low

    def min_at(self, log_start: int) -> int:
        """Return the first queue offset that the log alone gives: its record is in a log that begins at `log_start`,
        and compaction has not come so far. Raises OSError.
        """
        if self._min_for != log_start:
            rows = self.compacted
            if rows is not None and rows.boundary >= self.max:
                return self.max
            self._min = self.first_at(log_start)
            if rows is not None:
                self._min = max(self._min, rows.boundary)
            self._min_for = log_start
            if self._min == self.max:
                # The next entry may get this number.
                self._min_for = -1
        return self._min

    def compact(self, rows: QueueRows | None) -> None:
        """Set the rows of its compacted records, or note that they changed."""
        self.compacted = rows
        self._min_for = -1

    # Retention

    def drop_before(self, phys: int, dropped: list[str]) -> None:
        """Give up files whose entries all lie below `phys`, except the last file, which gives the next queue offset.

        Adds the files to remove to `dropped`. Raises OSError.
        """
        if self.compacted is not None:
            self.compacted.drop(place_below=phys)
        per_file = self.file_size // ENTRY_SIZE
        number = self._first - self._first % per_file
        while number + per_file < self.written:
            after = number + per_file
            if self.entry(after - 1)[0] >= phys:
                break
            path = self._path(number * ENTRY_SIZE)
            self._fds.close(path)
            dropped.append(path)
            self._first = number = after
            self._min_for = -1
