"""A walk over the log up to its end: how far are the records valid, and which epochs do they begin?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol

import gantry_core
from gantry_core import checked_records

from gantry_broker.protocol.codes import CONTROL_TOPIC
from gantry_broker.store.log.epochs import EpochStart, epoch_of
from gantry_broker.store.log.record_reader import (
    FILLER_MIN,
    MAX_RECORD,
    NEVER,
    SIZE_AND_MAGIC,
    Damage,
    Meta,
    PlainRecord,
    read_next,
    read_records,
)

_OTHERS: Final = [CONTROL_TOPIC]
"""Topics whose records say more: they may begin an epoch."""
_CHUNK: Final = 4 * 1024 * 1024


class LogBytes(Protocol):
    """The log as recovery reads it: `CommitLog` or `ReadOnlyLog`."""

    segment_size: int

    def bases(self) -> list[int]:
        """First offsets of the segments, in order."""
        ...

    def room(self, offset: int) -> int:
        """Bytes from `offset` to the end of its segment."""
        ...

    def raw(self, offset: int, count: int) -> bytes:
        """Bytes of one segment, also beyond the end of the log; b"" without a file. Raises OSError."""
        ...

    def holds_beyond(self, offset: int) -> bool:
        """Whether the log has non-zero bytes from `offset` on. Raises OSError."""
        ...


@dataclass
class Scan:
    """The result of a walk over the log."""

    end: int
    """The offset after the last valid record."""
    reason: str = ""
    """Why the walk ended there."""
    records: int = 0
    last_ms: int = 0
    """Store time of the last record; 0 without one."""
    epochs: list[EpochStart] = field(default_factory=list)


def scan(log: LogBytes, offset: int, *, lost_from: int = NEVER) -> Scan:
    """Walk over the log from a record boundary to the first place without a valid record. Raises OSError.

    After a power loss, pages from `lost_from` on may be lost.
    """
    result = Scan(offset)
    want = _CHUNK
    while True:
        data = log.raw(result.end, want)
        if not data:
            result.reason = "no more segments"
            return result
        base = result.end
        partial = len(data) < log.room(base)
        try:
            _scan_chunk(base, data, log.segment_size, result, lost_from)
            want = _CHUNK
        except Damage as damage:
            if not partial:
                result.reason = str(damage)
                return result
            if result.end > base:
                want = _CHUNK
                continue  # The chunk may end within the record: read again from its beginning.
            size = SIZE_AND_MAGIC.unpack_from(data)[0] if len(data) >= FILLER_MIN else 0
            if len(data) < size <= MAX_RECORD and want < size:
                want = size
                continue
            result.reason = str(damage)
            return result


def _scan_chunk(base: int, data: bytes, segment_size: int, scan: Scan, lost_from: int) -> None:
    """Add the records of `data` to `scan`. Raises Damage at the first one that is damaged or not whole."""
    if gantry_core.WHY_PYTHON or base + len(data) > lost_from:  # The core does not look for lost pages.
        for record in read_records(data, base, segment_size, check=True, torn=True, lost_from=lost_from):
            _add(scan, record)
        return
    done = 0
    while done < len(data):
        done, count, last_ms = checked_records(data, done, base, segment_size, _OTHERS)
        if count:
            scan.records += count
            scan.last_ms = last_ms
            scan.end = base + done
        if done < len(data):
            _add(scan, read_next(data, done, base, segment_size, check=True, torn=True))
            done = scan.end - base


def _add(scan: Scan, record: PlainRecord | Meta | int) -> None:
    if isinstance(record, Meta):
        scan.records += 1
        scan.last_ms = record.store_ms
        scan.end += record.size
        epoch = epoch_of(record)
        if epoch is not None:
            scan.epochs.append(EpochStart(epoch, record.phys))
    elif isinstance(record, int):
        scan.end += record
    else:
        phys, size, _, _, _, _, scan.last_ms, _ = record
        scan.records += 1
        scan.end = phys + size
