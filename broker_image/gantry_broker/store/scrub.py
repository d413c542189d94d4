"""Verifies the log's bytes against what was written: for reads, for the scrub over the whole log, for repairs.

Reads do not verify the records that the last start has checked and those that were appended lately: the kernel still
has them in memory. The disk may have changed older ones. A CRC covers only the body of a record; of its head, topic and
properties the sizes and offsets must agree.
"""

from __future__ import annotations

import errno
import re
from typing import Final

from gantry_broker.protocol.message import MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from gantry_broker.store.errors import BadRecords, OffsetGone
from gantry_broker.store.log.commit_log import CommitLog
from gantry_broker.store.log.record_reader import (
    FILLER_MIN,
    MAX_RECORD,
    MIN_RECORD,
    SIZE_AND_MAGIC,
    Damage,
    is_valid_record,
    read_records,
)
from gantry_broker.store.state import StoreState

CACHED_BYTES: Final = 64 << 20
"""Bytes at the end of the log that count as still in memory."""
_SEARCHED: Final = 1 << 20
"""Bytes that a search for the next record reads at once."""
_MAGIC: Final = re.compile(
    b"|".join(re.escape(m.to_bytes(4, "big", signed=m < 0)) for m in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK))
)


class Scrubber:
    """Verifies and repairs the confirmed records of a log."""

    def __init__(self, state: StoreState, log: CommitLog) -> None:
        self._state = state
        self._log = log

    def counts_as_valid(self, phys: int) -> bool:
        """Whether records from this place on need no check: they count as still in memory."""
        return phys >= max(self._state.verified_from, self._state.confirmed - CACHED_BYTES)

    def count_valid(self, records: list[tuple[int, int]], data: list[bytes]) -> int:
        """How many of the records `records` (offset, size) are valid, counted up to the first damaged one.

        `data`: one piece for each record, or one for all.
        """
        if self.counts_as_valid(records[0][0]):
            return len(records)
        together = len(data) == 1
        at = 0
        for number, (phys, size) in enumerate(records):
            if not is_valid_record(data[0] if together else data[number], at, phys, size):
                return number
            if together:
                at += size
        return len(records)

    def verify(self, at: int, max_bytes: int) -> int:
        """Verify about `max_bytes` of confirmed records from the boundary `at` on; returns the next boundary.

        Raises BadRecords with the offset of the first damaged record, OffsetGone, OSError.
        """
        limit, log = self._state.confirmed, self._log
        if not log.start <= at < limit:
            raise OffsetGone(at, log.start, limit)
        data = log.read(at, min(max(max_bytes, FILLER_MIN), limit - at))
        end = self._verified_end(at, data)
        if end > at:
            return end
        size = SIZE_AND_MAGIC.unpack_from(data)[0] if len(data) >= FILLER_MIN else 0
        if not len(data) < size <= limit - at:
            raise BadRecords(at, f"record of {size} bytes, {limit - at} before the end of the confirmed ones")
        end = self._verified_end(at, log.read(at, size))
        if end == at:
            raise BadRecords(at, f"record of {size} bytes is not whole")
        return end

    def _verified_end(self, at: int, data: bytes) -> int:
        """Return the boundary after the last whole record of `data`. Raises BadRecords at the first damaged one."""
        log, end = self._log, at
        try:
            for record in read_records(data, at, log.segment_size, check=True):
                end += record if isinstance(record, int) else record[1]
        except Damage as damage:
            rest = at + len(data) - end
            size = SIZE_AND_MAGIC.unpack_from(data, end - at)[0] if rest >= FILLER_MIN else 0
            if rest >= FILLER_MIN and not rest < size <= min(MAX_RECORD, log.room(end) - FILLER_MIN):
                raise BadRecords(end, str(damage)) from None
            # The record continues behind `data`.
        return end

    def verified_bytes(self, at: int, max_bytes: int) -> bytes:
        """Return the bytes that `verify` covers, for another member. Raises as `verify`."""
        return self._log.read(at, self.verify(at, max_bytes) - at)

    def valid_prefix(self, at: int, limit: int) -> bytes:
        """Return the valid records of [at, limit) up to a damaged one, which `on_damage` gets. Raises OSError."""
        data = self._log.read_some(at, limit - at)
        try:
            return data[: self._verified_end(at, data) - at]
        except BadRecords as error:
            self._state.on_damage(error.at)
            return data[: error.at - at]

    def repair(self, at: int, data: bytes) -> None:
        """Overwrite the log from `at` on with another member's bytes, durably; blocks on the disk.

        Raises ValueError when the range is not confirmed, BadRecords when `data` are not whole, valid records of that
        place, OSError.
        """
        log, confirmed = self._log, self._state.confirmed
        if not data or not log.start <= at <= at + len(data) <= confirmed:
            raise ValueError(f"{len(data)} bytes for {at}, but only {log.start} to {confirmed} is confirmed")
        if self._verified_end(at, data) != at + len(data):
            raise BadRecords(at, "the bytes for its repair are not whole records")
        log.overwrite(at, data)
        log.sync(at, at + len(data))

    def next_boundary(self, at: int, stop: int) -> int:
        """Return the next valid record or filler behind damage at `at`; else the end of its segment, or `stop`.

        Raises OSError other than EIO.
        """
        log = self._log
        end = min(at - at % log.segment_size + log.segment_size, stop)
        at += 1
        while at + FILLER_MIN <= end:
            try:
                data = log.read(at, min(_SEARCHED, end - at))
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                at += _SEARCHED
                continue
            for match in _MAGIC.finditer(data):
                place = at + match.start() - 4
                if match.start() >= 4 and self._begins(place, end):
                    return place
            at += max(len(data) - FILLER_MIN + 1, 1)
        return end

    def _begins(self, at: int, end: int) -> bool:
        """Whether a valid record or filler begins at `at`."""
        log = self._log
        try:
            size, magic = SIZE_AND_MAGIC.unpack(log.read(at, FILLER_MIN))
            if magic == MAGIC_BLANK:
                return bool(size == log.room(at))
            return MIN_RECORD <= size <= min(MAX_RECORD, end - at) and is_valid_record(log.read(at, size), 0, at, size)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return False
