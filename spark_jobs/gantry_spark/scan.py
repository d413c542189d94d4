"""Finds the valid records in a range of the log.

Size fields lead from one record to the next (`record_boundaries`). Then numpy validates all headers of a block
together: the magic, the physical offset in every record, the sum of the lengths, the CRC of the body. At an invalid
structure the scan skips to the next position with a matching magic and physical offset, and reports the skipped range.
Records with a wrong body CRC or an invalid topic are skipped alone, since their lengths still lead to the next record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final, Protocol

import gantry_core
import numpy as np
from gantry_broker.protocol.codes import SysFlag
from gantry_broker.protocol.message import MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from gantry_core import record_rows

from gantry_spark.layout import (
    FILLER_HEADER_BYTES,
    MAX_RECORD,
    MIN_RECORD,
    RECORD_HEADER,
    Buffer,
    nullable_strings,
    strings,
)
from gantry_spark.record_boundaries import find_record_boundaries
from gantry_spark.records import ROW_COLUMNS, CoreColumns, check, first_malformed
from gantry_spark.records import Damage as Damage
from gantry_spark.records import Records as Records

BLOCK: Final = 16 * 1024 * 1024
"""Bytes of a block. A reader needs about three times this much memory."""
COMPILED: Final = gantry_core.NAME == "rust"
"""The Python body of the core makes an object of each record. Where it runs, numpy costs a tenth of it."""
_WINDOW: Final = 1024 * 1024
_size_at = Struct(">i").unpack_from
_size_magic_at = Struct(">iI").unpack_from
_phys_at = Struct(">q").unpack_from
_PHYS_AT = RECORD_HEADER.fields["phys"][1] if RECORD_HEADER.fields else 28
_MAGIC_START: Final = MAGIC_V1.to_bytes(4, "big")[:3]
_BLANK_BYTES: Final = MAGIC_BLANK.to_bytes(4, "big")


class LogBytes(Protocol):
    """A source of log bytes."""

    def read_into(self, offset: int, into: memoryview) -> int:
        """Fill `into` with the bytes from log offset `offset`; return their number, smaller only at the log's end."""
        ...

    def map_range(self, offset: int, size: int) -> memoryview | None:
        """Map up to `size` bytes from log offset `offset`. None: these bytes must be read."""
        ...


@dataclass(frozen=True)
class Range:
    """A range to read: records that start in [start, stop). `limit`: the end of the available bytes.

    `segment_end`: the end of the segment by its size, and so of its filler. `last`: no segment follows, so trailing
    zeros are unwritten space.
    """

    start: int
    stop: int
    limit: int
    segment_end: int
    last: bool


class _BlockReader:
    """Reads the bytes of the log block by block, mapped if possible."""

    def __init__(self, source: LogBytes, size: int) -> None:
        self.size = size
        self._source = source
        self._buf = bytearray()
        self._base = 0
        self._filled = 0

    def at(self, base: int, reach: int) -> tuple[Buffer, int]:
        """Return the bytes from `base` up to `reach` or `size`, and their number: fewer only at the end of the log.

        The bytes are valid until the next call. A call reuses bytes that the last call has read.
        """
        want = min(self.size, reach - base)
        mapped = self._source.map_range(base, want)
        if mapped is not None:
            return mapped, len(mapped)
        rest = max(0, self._base + self._filled - base) if base >= self._base else 0
        old = memoryview(self._buf)[self._filled - rest : self._filled]
        if len(self._buf) < self.size:
            self._buf = bytearray(self.size)
        room = memoryview(self._buf)
        room[:rest] = old
        got = self._source.read_into(base + rest, room[rest : max(rest, want)])
        self._base, self._filled = base, rest + got
        return self._buf, self._filled


def scan(
    source: LogBytes, part_range: Range, verify: bool = True, block: int = BLOCK, names: Sequence[str] = ()
) -> Iterator[Records | Damage]:
    """Yield blocks of records and damaged ranges in log order.

    A block is valid only until the next one. `verify`: check the CRC of bodies. `names`: properties that the reader
    will ask for, which are cheapest found at once. Raises OSError if the bytes cannot be read.
    """
    blocks = _BlockReader(source, block)
    base = part_range.start
    reach = part_range.stop
    while base < part_range.stop:
        buf, filled = blocks.at(base, reach)
        short = base + filled < reach and filled < blocks.size
        ended = short or base + filled >= part_range.limit
        plain = plain_records(buf, filled, base, part_range.stop - base, verify, names)
        if plain is not None:
            yield plain
            base = plain.end
            if base >= part_range.stop or (ended and base == plain.base + filled):
                return
            if plain.base + filled >= reach:
                reach = part_range.limit
            continue
        whole = np.frombuffer(buf, dtype=np.uint8)[:filled]
        starts, after = find_record_boundaries(buf, filled, part_range.stop - base)
        good, damage = check(whole, base, starts, verify)
        used = after
        if good is not None:
            malformed = first_malformed(good.structure)
            if malformed is not None:
                used = int(good.at[malformed])
            records = good.records(malformed)
            yield from _in_order(records, [d for d in damage if d.start < base + used])
        verdict = "more"
        if base + used < part_range.stop:
            verdict = _classify(buf, base, used, filled, part_range, ended)
            if verdict == "more" and used < after:
                verdict = "damage"
        if verdict == "filler":
            return
        if verdict == "damage":
            place = base + used
            next_start = next_record(source, place + 1, part_range)
            yield from _damage_from(source, place, next_start, part_range)
            base = part_range.limit if next_start is None else next_start
            if next_start is None or next_start >= part_range.segment_end or _is_filler(source, next_start, part_range):
                return
            continue
        if base + used >= part_range.stop or (ended and used == filled):
            return
        if base + filled >= reach:
            reach = part_range.limit
        if used == 0 and filled == blocks.size:
            blocks.size = max(2 * filled, min(_size_at(buf, 0)[0], MAX_RECORD) + MIN_RECORD)
        base += used


def plain_records(
    buf: Buffer, filled: int, base: int | None, stop: int, verify: bool, names: Sequence[str]
) -> Records | None:
    """Return the valid records that a block begins with, found by the compiled core. None: numpy has to look.

    `base`: where the block lies in the log; None: it is no piece of a log.
    """
    if not COMPILED:
        return None
    data = memoryview(buf)[:filled]
    end, rows, topics, columns = record_rows(data, base, min(stop, filled), verify, [name.encode() for name in names])
    if not end:
        return None
    properties = {name: nullable_strings(*column) for name, column in zip(names, columns, strict=True)}
    core = CoreColumns(data, strings(*topics), properties)
    whole = np.frombuffer(data, dtype=np.uint8)
    return Records(whole, base or 0, np.frombuffer(rows, dtype="<i8").reshape(ROW_COLUMNS, -1), core)


def _in_order(records: Records, damage: list[Damage]) -> Iterator[Records | Damage]:
    yield from damage
    if len(records):
        yield records


def _classify(buf: Buffer, base: int, at: int, filled: int, part_range: Range, ended: bool) -> str:
    """Return the reason for a stop at `at`: "more" (bytes are missing), "filler" (end of the segment) or "damage"."""
    left = filled - at
    if left < FILLER_HEADER_BYTES:
        if not ended:
            return "more"
        return "more" if left == 0 else "damage"
    size, magic = _size_magic_at(buf, at)
    if magic == MAGIC_BLANK and base + at + size == part_range.segment_end:
        return "filler"
    if left < MIN_RECORD:
        return "damage" if ended else "more"
    plausible = (
        MIN_RECORD <= size <= MAX_RECORD
        and base + at + size <= part_range.limit
        and magic in (MAGIC_V1, MAGIC_V2)
        and _phys_at(buf, at + _PHYS_AT)[0] == base + at
    )
    return "more" if plausible and not ended else "damage"


def _damage_from(source: LogBytes, place: int, next_start: int | None, part_range: Range) -> Iterator[Damage]:
    """Yield the damage from `place` to the next valid record, unless that range is unwritten space."""
    end = part_range.limit if next_start is None else next_start
    written = last_nonzero_end(source, place, end)
    if next_start is not None:
        yield Damage(place, end, "no records" if written is not None else "zeros between records")
    elif written is not None:
        yield Damage(place, end if not part_range.last else written, "a torn tail" if part_range.last else "no records")
    elif not part_range.last and part_range.limit == part_range.segment_end:
        yield Damage(place, end, "zeros before the end of the segment")


def last_nonzero_end(source: LogBytes, start: int, end: int) -> int | None:
    """Return the offset after the last nonzero byte in [start, end), or None."""
    buf = bytearray(_WINDOW)
    result = None
    at = start
    while at < end:
        got = source.read_into(at, memoryview(buf)[: min(_WINDOW, end - at)])
        if got == 0:
            break
        filled = np.flatnonzero(np.frombuffer(buf, dtype=np.uint8)[:got])
        if len(filled):
            result = at + int(filled[-1]) + 1
        at += got
    return result


def next_record(source: LogBytes, start: int, part_range: Range, until: int | None = None) -> int | None:
    """Return the first offset in [start, until) at which a record or the segment's filler begins, or None."""
    end = part_range.limit if until is None else min(until, part_range.limit)
    at = start
    buf = bytearray(_WINDOW)
    while at < end:
        got = source.read_into(at, memoryview(buf)[: min(_WINDOW, part_range.limit - at)])
        if got < FILLER_HEADER_BYTES:
            return None
        for candidate in _candidates(bytes(buf[:got])):
            offset = at + candidate - 4
            if offset >= end:
                return None
            if offset >= start and is_record(source, offset, part_range):
                return offset
        if got < _WINDOW:
            return None
        at += got - FILLER_HEADER_BYTES
    return None


def _candidates(data: bytes) -> Iterator[int]:
    """Yield the positions of a magic with room for the size before it, in order."""
    message = data.find(_MAGIC_START, 4)
    blank = data.find(_BLANK_BYTES, 4)
    while message >= 0 or blank >= 0:
        if blank < 0 or 0 <= message < blank:
            yield message
            message = data.find(_MAGIC_START, message + 1)
        else:
            yield blank
            blank = data.find(_BLANK_BYTES, blank + 1)


def _is_filler(source: LogBytes, offset: int, part_range: Range) -> bool:
    raw = bytearray(FILLER_HEADER_BYTES)
    if source.read_into(offset, memoryview(raw)) < FILLER_HEADER_BYTES:
        return False
    size, magic = _size_magic_at(raw, 0)
    return bool(magic == MAGIC_BLANK and offset + size == part_range.segment_end)


def is_record(source: LogBytes, offset: int, part_range: Range) -> bool:
    """Return whether a record with a valid structure, or the segment's filler, begins at `offset`."""
    return _is_filler(source, offset, part_range) or is_good_record(source, offset, part_range, None)


def is_good_record(source: LogBytes, offset: int, part_range: Range, verify: bool | None) -> bool:
    """Return whether `scan` with this `verify` accepts a record at `offset`. None: ignore body and topic."""
    header = bytearray(MIN_RECORD)
    if source.read_into(offset, memoryview(header)[: max(0, part_range.limit - offset)]) < MIN_RECORD:
        return False
    size, magic = _size_magic_at(header, 0)
    if magic not in (MAGIC_V1, MAGIC_V2) or _phys_at(header, _PHYS_AT)[0] != offset:
        return False
    if not MIN_RECORD <= size <= MAX_RECORD or offset + size > part_range.limit:
        return False
    raw = bytearray(size)
    if source.read_into(offset, memoryview(raw)) < size:
        return False
    checked, _ = check(np.frombuffer(raw, dtype=np.uint8), offset, np.zeros(1, dtype=np.int64), bool(verify))
    return checked is not None and bool(checked.structure[0]) and (verify is None or bool(checked.content[0]))


def store_time_at(source: LogBytes, offset: int, part_range: Range) -> int | None:
    """Return the store time of the record at `offset` in Unix milliseconds, or None if no record begins there."""
    header = bytearray(MIN_RECORD)
    if source.read_into(offset, memoryview(header)[: max(0, part_range.limit - offset)]) < MIN_RECORD:
        return None
    fields = np.frombuffer(header, dtype=np.uint8)[: RECORD_HEADER.itemsize].view(RECORD_HEADER)[0]
    if int(fields["magic"]) not in (MAGIC_V1, MAGIC_V2) or int(fields["phys"]) != offset:
        return None
    moved = 12 if int(fields["sys_flag"]) & int(SysFlag.BORN_HOST_V6) else 0
    return int(_phys_at(header, 56 + moved)[0])


def store_time_after(source: LogBytes, offset: int, part_range: Range) -> int | None:
    """Return the store time of the record that follows the one at `offset`, as `store_time_at`."""
    raw = bytearray(4)
    if source.read_into(offset, memoryview(raw)) < len(raw) or _size_at(raw, 0)[0] < MIN_RECORD:
        return None
    return store_time_at(source, offset + _size_at(raw, 0)[0], part_range)


def last_boundary(source: LogBytes, part_range: Range, block: int = BLOCK) -> int:
    """Return the offset after the last valid record of a range: the present end of a log in use."""
    end = part_range.start
    for piece in scan(source, part_range, verify=False, block=block):
        if isinstance(piece, Records) and len(piece):
            end = piece.end
    return end
