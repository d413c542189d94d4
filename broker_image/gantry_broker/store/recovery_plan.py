"""Decides from the files on disk where recovery starts. Pure, except that it reads files.

The log is scanned from an offset below which it is known to be valid, not from its beginning.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gantry_broker.store.files import is_there
from gantry_broker.store.log.epochs import FOREIGN, EpochFile, LeaderEpochs, extend_epochs, truncate_epochs
from gantry_broker.store.log.record_reader import NEVER, Meta, read_record
from gantry_broker.store.log.record_reader import Damage as RecordDamage
from gantry_broker.store.log.scan import LogBytes, Scan
from gantry_broker.store.recovery_point import RecoveryPoint, boot_id, load_checkpoint
from gantry_broker.store.types import Damage

FOREIGN_SEGMENTS: Final = 3
"""Recovery scans this many segments of a cleanly stopped RocketMQ store, as RocketMQ does."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Plan:
    """Where recovery starts."""

    foreign: bool
    """RocketMQ wrote the store, and we have never had it open."""
    clean: bool
    """The store was closed cleanly."""
    scan_from: int
    """The log is valid below this offset."""
    trusted: int | None
    """Queues are complete below this offset and get truncated to it; None: they are complete as they are."""
    trusted_index: int | None
    """The same for the key index."""
    rebooted: bool
    """Unflushed bytes may be lost, in any order of writes."""


def plan(root: Path, log: LogBytes, point: RecoveryPoint | None, *, opened_before: bool) -> Plan:
    """Decide where recovery starts. `opened_before`: we have had the store open before. Raises OSError."""
    aborted = is_there(root / "abort")
    bases = log.bases()
    start = first_offset(bases, log.segment_size)
    has_queues = any((root / "consumequeue").glob("*/*/*"))
    has_index = any((root / "index").glob("*"))
    if not opened_before and bases:
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
    if point is None:
        return Plan(False, False, start, start, start, True)
    rebooted = point.boot != boot_id()
    # With `durable` above `written`, the point does not say what the queues contain between the two.
    clean = point.clean and not aborted and point.durable <= point.written
    durable, index = point.durable, point.durable_index
    if not rebooted:
        # Only the process ended: the kernel still has what was written, flushed or not.
        durable, index = point.written, point.written_index
    limit = bases[-1] + log.segment_size if bases else start
    if not start <= durable <= limit:
        durable = start  # The point is of another log, or segments were removed by hand: trust nothing.
    trusted = durable if has_queues else start
    return Plan(False, clean, durable, trusted, max(start, min(index, trusted)) if has_index else start, rebooted)


def lost_from(plan: Plan, point: RecoveryPoint | None) -> int:
    """Return the offset from which pages of the log may be lost, for `scan`."""
    # Flushed bytes are there, unless the disk had failed.
    flushed = point.flushed if point is not None and point.boot else 0
    return flushed if plan.rebooted else NEVER


def confirmed_after(plan: Plan, point: RecoveryPoint | None, start: int, end: int) -> int:
    """Return the confirmed offset after a start that finds a log of [start, end)."""
    # RocketMQ has acknowledged all that its store has. Our own file may claim more than the log still has.
    return end if plan.foreign else min(max((point or RecoveryPoint()).confirmed, start), end)


def epochs_after(plan: Plan, scanned: Scan, epoch_file: EpochFile | None) -> LeaderEpochs:
    """Return the leader epochs after a start: those in the scanned part of the log, earlier ones from the file.

    Raises StoreError when the two contradict each other.
    """
    if plan.foreign:
        return FOREIGN
    kept = epoch_file.epochs if epoch_file else ()
    # The file may name epochs whose control records were lost with the end of the log: the scan decides there.
    earlier = tuple(epoch for epoch in kept if epoch.start < plan.scan_from or epoch in FOREIGN)
    return truncate_epochs(extend_epochs(earlier, scanned.epochs), scanned.end)


def find_damage(
    log: LogBytes, scanned: Scan, point: RecoveryPoint | None, epoch_file: EpochFile | None
) -> Damage | None:
    """Return the damage when acknowledged records are missing. Raises OSError.

    Without a recovery point the end of our log is not known: non-zero bytes behind `scanned.end` then count as damage.
    """
    before = point or RecoveryPoint()
    end_known = point is not None or epoch_file is None
    if scanned.end >= max(before.flushed, before.confirmed) and (end_known or not log.holds_beyond(scanned.end)):
        return None
    return Damage(scanned.end, scanned.reason, before.flushed, before.confirmed)


def first_offset(bases: list[int], segment_size: int) -> int:
    """Return the first offset of the unbroken run of segments that ends with the last one."""
    if not bases:
        return 0
    start = bases[-1]
    for base in reversed(bases[:-1]):
        if base + segment_size != start:
            _log.error(
                "segments are missing between %d and %d; the store does not use earlier ones",
                base + segment_size,
                start,
            )
            break
        start = base
    return start


def _foreign_start(root: Path, log: LogBytes, bases: list[int], start: int) -> int:
    """Return the newest segment whose first record RocketMQ had flushed and indexed: `isMappedFileMatchedRecover`."""
    flushed = [ms for ms in load_checkpoint(root / "checkpoint") if ms > 0]
    for base in reversed(bases):
        data = log.raw(base, 1 << 16)
        try:
            record = read_record(data, 0, len(data), base, check=False)
        except RecordDamage:
            continue
        if isinstance(record, Meta) and flushed and record.store_ms <= min(flushed) and base >= start:
            return base
    return start
