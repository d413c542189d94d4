"""Opening a store: how far is the log sound, and what do queues and index lack or have too much?

The log is walked from a point below which everything is known to be there (`Points`), not from its beginning. The first
record that is not sound ends the log; it and everything after it become zeros, durably. Then queues and index are cut
to the point from which they are sure and get the rest from the log again.
"""

from __future__ import annotations

import logging
import sys
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gantry_broker.protocol.codes import CONTROL_TOPIC, SysFlag
from gantry_broker.protocol.message import FIXED_V4, MAGIC_V1, RECORD_V4
from gantry_broker.store.log.commit_log import CommitLog
from gantry_broker.store.log.epochs import EpochStart
from gantry_broker.store.log.record_reader import (
    FILLER_MIN,
    MAX_RECORD,
    PAGE,
    SIZE_AND_MAGIC,
    Damage,
    Meta,
    has_lost_page,
    read_meta,
)
from gantry_broker.store.recovery_point import RecoveryPoint, boot_id, load_checkpoint
from gantry_broker.store.unconfirmed import epoch_of

FOREIGN_SEGMENTS: Final = 3
"""How many segments of a cleanly stopped RocketMQ store are looked at (as RocketMQ does)."""
_CHUNK: Final = 4 * 1024 * 1024
_V6: Final = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
_CONTROL: Final = CONTROL_TOPIC.encode()
_log = logging.getLogger(__name__)


@dataclass
class Scan:
    """What a walk over the log found."""

    end: int
    """Where the first unsound record, or nothing, begins."""
    reason: str = ""
    records: int = 0
    last_ms: int = 0
    epochs: list[EpochStart] = field(default_factory=list)


def scan(log: CommitLog, offset: int, *, lost_from: int | None = None) -> Scan:
    """Walk the log from a record border to the first place that holds no sound record. Raises OSError.

    `lost_from`: blocks from there on may never have reached the disk, since the machine lost power.
    """
    found = Scan(offset)
    want = _CHUNK
    while True:
        data = log.raw(found.end, want)
        if not data:
            found.reason = "no more segments"
            return found
        base = found.end
        partial = len(data) < log.room(base)
        try:
            _scan_chunk(log, base, data, found, sys.maxsize if lost_from is None else lost_from)
            want = _CHUNK
        except Damage as damage:
            if not partial:
                found.reason = str(damage)
                return found
            if found.end > base:
                want = _CHUNK
                continue  # The chunk may end within the record: look again from its beginning.
            size = SIZE_AND_MAGIC.unpack_from(data)[0] if len(data) >= FILLER_MIN else 0
            if len(data) < size <= MAX_RECORD and want < size:
                want = size
                continue
            found.reason = str(damage)
            return found


def _scan_chunk(log: CommitLog, base: int, data: bytes, found: Scan, lost_from: int) -> None:
    """Raises Damage at the first record that is not sound or not whole; `found` has those before it."""
    at = 0
    have = len(data)
    while at < have:
        at = scan_plain(base, data, at, log.segment_size, found, lost_from)
        found.end = base + at
        if at >= have:
            return
        room = log.room(base + at)
        meta = read_meta(data, at, have, base + at, check=True, torn=True, lost=base + at >= lost_from)
        if isinstance(meta, Meta):
            if meta.size + FILLER_MIN > room:
                raise Damage(f"record of {meta.size} bytes crosses the end of its segment")
            at += meta.size
            found.records += 1
            found.last_ms = meta.store_ms
            epoch = epoch_of(meta)
            if epoch is not None:
                found.epochs.append(EpochStart(epoch, meta.phys))
        else:
            if meta != room:
                raise Damage(f"filler of {meta} bytes where {room} are left")
            at = have
            found.end = base - base % log.segment_size + log.segment_size
            return
        found.end = base + at


def scan_plain(base: int, data: bytes, at: int, segment_size: int, found: Scan, lost_from: int = sys.maxsize) -> int:
    """Pass over sound records of the common kind; answers where the first other one begins."""
    unpack, crc32 = RECORD_V4.unpack_from, zlib.crc32
    have = len(data)
    last = have - FIXED_V4 - 4
    view = memoryview(data)
    while at <= last:
        size, magic, crc, _, _, _, phys, flags, _, _, stored, _, _, _, length = unpack(data, at)
        body_end = at + FIXED_V4 + length
        end = at + size
        if (
            magic != MAGIC_V1
            or phys != base + at
            or flags & _V6
            or length < 0
            or not body_end + 4 <= end <= have
            or size + FILLER_MIN > segment_size - phys % segment_size
        ):
            break
        properties_at = body_end + 3 + data[body_end]
        if (
            properties_at > end
            or data[properties_at - 2] << 8 | data[properties_at - 1] != end - properties_at
            or crc32(view[at + FIXED_V4 : body_end]) & 0x7FFFFFFF != crc
            or data[body_end + 1 : properties_at - 2] == _CONTROL
            or b"\0" in data[body_end : properties_at - 2]
            or (end > properties_at and not data[end - 1])
            or (
                phys >= lost_from
                and (phys + size - 1) // PAGE != (body_end + base) // PAGE
                and has_lost_page(data, body_end, end, base)
            )
        ):
            break
        found.last_ms = stored
        found.records += 1
        at = end
    return at


@dataclass(frozen=True, slots=True)
class Plan:
    """From where recovery goes on."""

    foreign: bool
    """RocketMQ wrote it, and we have never had it open."""
    clean: bool
    """It was closed as it should be."""
    scan_from: int
    """The log is sound below."""
    trusted: int | None
    """Queues and index are complete below and are cut to it; None: they are complete as they are."""
    trusted_index: int | None
    rebooted: bool
    """Nothing that was not flushed can be relied on, nor the order of writes."""


def plan(root: Path, log: CommitLog, recovery_point: RecoveryPoint | None, *, known: bool) -> Plan:
    """Decide by what lies there. `known`: we have had the store open before."""
    aborted = (root / "abort").exists()
    bases = log.bases()
    start = first_offset(bases, log.segment_size)
    has_queues = any((root / "consumequeue").glob("*/*/*"))
    has_index = any((root / "index").glob("*"))
    if not known and bases:
        if aborted:
            scan_from = _foreign_start(root, log, bases, start)
            trusted: int | None = scan_from
        else:
            scan_from = max(start, bases[-min(FOREIGN_SEGMENTS, len(bases))])
            trusted = None
        return Plan(
            True,
            not aborted,
            scan_from if has_queues else start,
            trusted if has_queues else start,
            trusted if has_index else start,
            aborted,
        )
    if recovery_point is None:
        return Plan(False, False, start, start, start, True)
    rebooted = recovery_point.boot != boot_id()
    # Points of which one is newer than the other say nothing of what lies between them in the queues.
    clean = recovery_point.clean and not aborted and recovery_point.durable <= recovery_point.written
    durable, index = recovery_point.durable, recovery_point.durable_index
    if not rebooted:
        durable, index = recovery_point.written, recovery_point.written_index
    limit = bases[-1] + log.segment_size if bases else start
    if not start <= durable <= limit:
        durable = start
    trusted = durable if has_queues else start
    return Plan(False, clean, durable, trusted, max(start, min(index, trusted)) if has_index else start, rebooted)


def first_offset(bases: list[int], segment_size: int) -> int:
    """The first offset of the unbroken run of segments that ends with the last one."""
    if not bases:
        return 0
    start = bases[-1]
    for base in reversed(bases[:-1]):
        if base + segment_size != start:
            _log.error(
                "segments are missing between %d and %d; what lies before is not read", base + segment_size, start
            )
            break
        start = base
    return start


def _foreign_start(root: Path, log: CommitLog, bases: list[int], start: int) -> int:
    """The newest segment whose first record RocketMQ had surely flushed and filed (`isMappedFileMatchedRecover`)."""
    flushed = [ms for ms in load_checkpoint(root / "checkpoint") if ms > 0]
    for base in reversed(bases):
        data = log.raw(base, 1 << 16)
        try:
            meta = read_meta(data, 0, len(data), base, check=False)
        except Damage:
            continue
        if isinstance(meta, Meta) and flushed and meta.store_ms <= min(flushed) and base >= start:
            return base
    return start
