"""One file of the key index, in RocketMQ's format.

Header (40 bytes): first and last store time (ms), first and last offset in the log, used slots, entry count + 1. Then
the slots (i32: newest entry of that hash, 0 for none), then entries of 20 bytes: key hash i32, offset in the log i64,
seconds since the header's first time i32, the next older entry of the slot i32. RocketMQ never uses entry 0. In a file
whose store times do not rise, because the clock was set back, it has the earliest and the latest of them here.

The slots are mapped into memory, over allocated blocks, so that a full disk cannot kill the process. Entries are
written first, then slots, then the header: a process that dies in between leaves entries beyond the count, which
`truncate` removes.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from struct import Struct, iter_unpack
from typing import Final

from gantry_core import index_entries, key_times, set_slots

from gantry_broker.store.files import read_all, write_all, zero

HEADER: Final = Struct(">qqqqii")
ENTRY: Final = Struct(">iqii")
KEY: Final = Struct(">iqq")
"""A packed index key: hash, offset in the log, store time in ms."""
ENTRY_SIZE: Final = 20
_SLOT: Final = Struct(">i")
_SLOTS_AT: Final = 40
_MAX_SECONDS: Final = 0x7FFFFFFF
_TIMES: Final = Struct(">4sqq")
"""Entry 0 of a file whose store times do not rise: mark, earliest and latest store time (ms)."""
_TIMES_MARK: Final = b"\xffGTM"
_ANY_TIMES: Final = (0, (1 << 63) - 1)
"""For a file of RocketMQ, or after a power loss: the times do not rise, and their range is not known."""


def keys_within(keys: bytes | bytearray, start: int, stop: int) -> bytearray:
    """Return the packed keys of records in [start, stop)."""
    return bytearray().join([KEY.pack(*key) for key in KEY.iter_unpack(keys) if start <= key[1] < stop])


def file_size(slots: int, entries: int) -> int:
    """Bytes of an index file."""
    return _SLOTS_AT + 4 * slots + ENTRY_SIZE * entries


MAX_STEPS: Final = 5_000
"""Entries of one slot that a query looks at in one file: some 20 ms. A key that more messages have is found among the
newest of them."""


class IndexFile:
    """An open index file, for one thread."""

    def __init__(self, path: str, slots: int, entries: int, *, create: bool = False) -> None:
        """Open the file, or make it with `create`. Raises OSError: ENOSPC without room for the slots of a new file."""
        self.path = path
        self.slots = slots
        self.capacity = entries
        self._entries_at = _SLOTS_AT + 4 * slots
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0), 0o644)
        self._map: mmap.mmap | None = None
        try:
            if create:
                os.posix_fallocate(self._fd, 0, self._entries_at)
                os.ftruncate(self._fd, file_size(slots, entries))
            head = read_all(self._fd, HEADER.size, 0).ljust(HEADER.size, b"\0")
        except BaseException:
            os.close(self._fd)
            if create:
                os.unlink(path)
            raise
        self.begin_ms: int
        self.end_ms: int
        self.begin_phys: int
        self.end_phys: int
        self.used_slots: int
        count: int
        self.begin_ms, self.end_ms, self.begin_phys, self.end_phys, self.used_slots, count = HEADER.unpack(head)
        self.count = min(max(count, 1), entries)
        """The number of the next entry, 1 or more."""
        self._times: tuple[int, int] | None = self._read_times()
        """The earliest and the latest store time of a file whose times do not rise; None: they rise."""

    def _read_times(self) -> tuple[int, int] | None:
        data = read_all(self._fd, ENTRY_SIZE, self._entries_at)
        if len(data) == ENTRY_SIZE and data.startswith(_TIMES_MARK):
            _, earliest, latest = _TIMES.unpack(data)
            return min(earliest, self.begin_ms, self.end_ms), max(latest, self.begin_ms, self.end_ms)
        return _ANY_TIMES if self.end_ms < self.begin_ms else None

    def _set_times(self, times: tuple[int, int] | None) -> None:
        """Note the range of store times that do not rise. Raises OSError."""
        if times != self._times:
            write_all(self._fd, _TIMES.pack(_TIMES_MARK, *times) if times else bytes(ENTRY_SIZE), self._entries_at)
            self._times = times

    def may_have(self, begin_ms: int, end_ms: int) -> bool:
        """Whether the file may have entries of this range of store times."""
        earliest, latest = self._times or (self.begin_ms, self.end_ms)
        return self.count > 1 and earliest <= end_ms and latest + 999 >= begin_ms

    @property
    def full(self) -> bool:
        """There is no room for another entry."""
        return self.count >= self.capacity

    def _slot_map(self) -> mmap.mmap:
        if self._map is None:
            # Allocate the blocks that RocketMQ left as holes before a write through the map.
            os.posix_fallocate(self._fd, 0, self._entries_at)
            self._map = mmap.mmap(self._fd, self._entries_at)
        return self._map

    def add(self, items: bytes) -> int:
        """Add packed keys in order; returns how many of them found room in the file.

        Raises OSError on a full disk, and adds nothing then.
        """
        room = (self.capacity - self.count) * KEY.size
        if len(items) > room:
            items = items[:room]
        if not items:
            return 0
        slots = self._slot_map()
        first_ms, last_ms, earliest, latest, rising = key_times(items)
        begin = self.begin_ms if self.count > 1 else first_ms
        before = self.end_ms if self.count > 1 else begin
        if self._times is not None or not rising or before > first_ms:
            times = self._times or (begin, max(begin, before))
            self._set_times((min(times[0], earliest), max(times[1], latest)))
        entries, changes, used = index_entries(items, slots, self.slots, self.count, begin)
        write_all(self._fd, entries, self._entries_at + self.count * ENTRY_SIZE)
        set_slots(slots, changes)
        if self.count == 1:
            self.begin_ms, self.begin_phys = begin, KEY.unpack_from(items)[1]
        self.end_ms, self.end_phys = last_ms, KEY.unpack_from(items, len(items) - KEY.size)[1]
        self.used_slots += used
        self.count += len(items) // KEY.size
        self._write_header()
        return len(items) // KEY.size

    def _write_header(self) -> None:
        HEADER.pack_into(
            self._slot_map(),
            0,
            self.begin_ms,
            self.end_ms,
            self.begin_phys,
            self.end_phys,
            self.used_slots,
            self.count,
        )

    def _entry(self, number: int) -> tuple[int, int, int, int]:
        data = read_all(self._fd, ENTRY_SIZE, self._entries_at + number * ENTRY_SIZE)
        key_hash, phys, seconds, older = ENTRY.unpack(data.ljust(ENTRY_SIZE, b"\0"))
        return key_hash, phys, seconds, older

    def _slot(self, key_hash: int) -> int:
        at = _SLOTS_AT + key_hash % self.slots * 4
        newest: int = _SLOT.unpack(read_all(self._fd, 4, at).ljust(4, b"\0"))[0]
        return newest

    def find(self, key_hash: int, begin_ms: int, end_ms: int, limit: int, stored_ms: Callable[[int], int]) -> list[int]:
        """Offsets of records that may have the key and a store time (in seconds) in that range, newest first.

        Looks at the `MAX_STEPS` newest entries with the same hash slot. An entry cannot have a time before the first
        one: where times do not rise, `stored_ms` gives the store time of the record at an offset, -1 for none.
        Raises OSError.
        """
        offsets: list[int] = []
        number = self._slot(key_hash)
        above = self.count
        steps = 0
        rising = self._times is None
        while 0 < number < above and len(offsets) < limit and steps < MAX_STEPS:
            steps += 1
            own, phys, seconds, older = self._entry(number)
            stored = self.begin_ms + seconds * 1000
            if rising and stored + 999 < begin_ms:
                break
            if own == key_hash:
                if not rising and seconds in (0, _MAX_SECONDS):
                    stored = stored_ms(phys)
                if stored <= end_ms and stored + 999 >= begin_ms:
                    offsets.append(phys)
            above, number = number, older
        return offsets

    def _on_disk(self) -> int:
        """Return the number after the last written entry, counted by the header or not."""
        number = self.count
        while number < self.capacity:
            data = read_all(self._fd, ENTRY_SIZE * 512, self._entries_at + number * ENTRY_SIZE)
            for index in range(0, len(data) - ENTRY_SIZE + 1, ENTRY_SIZE):
                if not any(data[index : index + ENTRY_SIZE]):
                    return number + index // ENTRY_SIZE
            if len(data) < ENTRY_SIZE * 512:
                return min(number + len(data) // ENTRY_SIZE, self.capacity)
            number += 512
        return self.capacity

    def truncate(self, limit: int) -> None:
        """Remove the entries of records at or above `limit`, newest first, and entries that the header does not count.

        Raises OSError.
        """
        number = self._on_disk()
        slots = self._slot_map()
        while number > 1:
            key_hash, phys, _, older = self._entry(number - 1)
            if number <= self.count and phys < limit:
                break
            number -= 1
            at = _SLOTS_AT + key_hash % self.slots * 4
            if key_hash >= 0 and _SLOT.unpack_from(slots, at)[0] == number:
                _SLOT.pack_into(slots, at, older if 0 <= older < number else 0)
        if number == self.count and number > 1:
            zero(self._fd, self._entries_at + number * ENTRY_SIZE, file_size(self.slots, self.capacity))
            return
        self._end_before(number, self.used_slots)

    def _end_before(self, number: int, used_slots: int) -> None:
        """Make the entry before `number` the last one, in the header and on the disk. Raises OSError."""
        self.count, self.used_slots = number, used_slots
        if number <= 1:
            self.begin_ms = self.end_ms = self.begin_phys = self.end_phys = self.used_slots = 0
            self._set_times(None)
        else:
            _, self.end_phys, seconds, _ = self._entry(number - 1)
            self.end_ms = self.begin_ms + seconds * 1000
        self._write_header()
        zero(self._fd, self._entries_at + number * ENTRY_SIZE, file_size(self.slots, self.capacity))

    def rebuild(self, limit: int) -> None:
        """Rebuild the slots from the entries below `limit`: after a power loss, no order of writes holds.

        Raises OSError.
        """
        slots = self._slot_map()
        slots[_SLOTS_AT : self._entries_at] = bytes(self._entries_at - _SLOTS_AT)
        number, used, phys_before = 1, 0, -1
        seconds_before, rising = 0, True
        entries: list[bytes] = []
        start = 1
        while number < self.count:
            data = read_all(self._fd, ENTRY_SIZE * 4096, self._entries_at + number * ENTRY_SIZE)
            data = data[: len(data) - len(data) % ENTRY_SIZE]
            stop = not data
            entries.clear()
            for key_hash, phys, seconds, _ in iter_unpack(ENTRY.format, data):
                if number >= self.count or phys >= limit or phys < phys_before or key_hash < 0:
                    stop = True
                    break
                if phys == 0 and key_hash == 0 and number > 1:
                    stop = True
                    break
                phys_before = phys
                rising = rising and seconds >= seconds_before
                seconds_before = seconds
                at = _SLOTS_AT + key_hash % self.slots * 4
                older = _SLOT.unpack_from(slots, at)[0]
                used += not older
                entries.append(ENTRY.pack(key_hash, phys, seconds, older))
                _SLOT.pack_into(slots, at, number)
                number += 1
            if entries:
                write_all(self._fd, b"".join(entries), self._entries_at + start * ENTRY_SIZE)
            start = number
            if stop:
                break
        if not rising and self._times is None:
            self._set_times(_ANY_TIMES)
        self._end_before(number, used)

    def plausible(self) -> bool:
        """Whether the slots of the newest entries point to them."""
        for number in range(max(1, self.count - 8), self.count):
            key_hash, phys, _, _ = self._entry(number)
            newest = self._slot(key_hash) if key_hash > 0 or phys > 0 else 0
            if not number <= newest < self.count:
                return False
        return True

    def release(self) -> None:
        """Unmap the slots; the kernel writes them back. Reads still work."""
        if self._map is not None:
            self._map.close()
            self._map = None

    def sync(self) -> None:
        """Make the file durable. Raises OSError."""
        if self._map is not None:
            self._map.flush()
        os.fsync(self._fd)

    def close(self) -> None:
        """Close the file."""
        self.release()
        os.close(self._fd)


def guess_slots(path: str, settings: tuple[int, int]) -> tuple[int, int] | None:
    """(slots, entries) of an index file of any settings; None when the file is none.

    Raises OSError.
    """
    size = os.stat(path).st_size
    candidates = []
    if file_size(*settings) == size:
        candidates.append(settings)
    for ratio_10 in range(5, 201):  # 0.5 to 20 entries a slot; RocketMQ's default is 4.
        slots, rest = divmod((size - _SLOTS_AT) * 10, 40 + ENTRY_SIZE * ratio_10)
        entries = slots * ratio_10 // 10
        if rest == 0 and slots > 0 and file_size(slots, entries) == size:
            candidates.append((slots, entries))
    if size <= 1 << 22:
        for slots in range(1, (size - _SLOTS_AT) // 4):
            entries, rest = divmod(size - _SLOTS_AT - 4 * slots, ENTRY_SIZE)
            if rest == 0 and entries > 1:
                candidates.append((slots, entries))
    for slots, entries in candidates:
        file = IndexFile(path, slots, entries)
        try:
            if file.plausible():
                return slots, entries
        finally:
            file.close()
    return None
