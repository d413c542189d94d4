"""Retention: removes whole segments by age at the hours of `deleteWhen`, or earlier when the disk fills up."""

from __future__ import annotations

import errno
import math
import os
import time
from pathlib import Path
from typing import Final

from gantry_broker.settings import BrokerSettings
from gantry_broker.store.index.key_index import KeyIndex
from gantry_broker.store.index.queue_table import QueueTable
from gantry_broker.store.log.commit_log import CommitLog
from gantry_broker.store.read import Reader
from gantry_broker.store.removals import Removals
from gantry_broker.store.state import StoreState
from gantry_broker.store.types import DiskUsage

FORCED_RATIO: Final = 0.85
"""With at least this part of the disk used, the oldest segments go at any age (`diskSpaceCleanForciblyRatio`)."""
MOST_AT_ONCE: Final = 10
"""One call removes at most this many segments (`deleteFileBatchMax`)."""


def disk_usage(directory: Path) -> DiskUsage:
    """Usage of the file system, as `df` and RocketMQ count it. Raises OSError.

    Reserved blocks are neither used nor free: counted as used, they would make retention remove messages too early.
    """
    stat = os.statvfs(directory)
    used, free = stat.f_blocks - stat.f_bfree, stat.f_bavail
    ratio = used / (used + free) if used + free else 0.0
    return DiskUsage((used + free) * stat.f_frsize, free * stat.f_frsize, ratio)


def is_time(settings: BrokerSettings, now_ms: int) -> bool:
    """Whether the local hour is one of `deleteWhen`."""
    return time.strftime("%H", time.localtime(now_ms / 1000)) in settings.deleteWhen.split(";")


def segments_to_remove(
    ends: list[tuple[int, int]],
    now_ms: int,
    settings: BrokerSettings,
    used: float,
    segment_ratio: float,
    keep_from: int,
) -> int:
    """How many of the oldest segments retention removes. Pure.

    `ends`: (end offset, store time in ms of the next record) of the full segments, oldest first; `used`: the used part
    of the disk, 0 to 1; `segment_ratio`: the part that one segment frees; segments above `keep_from` stay.
    """
    due = is_time(settings, now_ms) or used * 100 >= settings.diskMaxUsedSpaceRatio
    forced_at = max(FORCED_RATIO, settings.diskMaxUsedSpaceRatio / 100)
    count = 0
    for end, written_ms in ends[:MOST_AT_ONCE]:
        if end > keep_from:
            break
        expired = now_ms - written_ms >= settings.fileReservedTime * 3_600_000
        if not ((due and expired) or used >= forced_at):
            break
        count += 1
        used -= segment_ratio
    return count


class Retention:
    """Removes old segments of a store, and what refers only to them."""

    def __init__(
        self,
        state: StoreState,
        log: CommitLog,
        queues: QueueTable,
        index: KeyIndex | None,
        reader: Reader,
        removals: Removals,
        settings: BrokerSettings,
    ) -> None:
        self._state = state
        self._log = log
        self._queues = queues
        self._index = index
        self._stored_ms = reader.stored_ms
        self._removals = removals
        self._settings = settings
        self._removed_to = 0
        """No file has records below this offset, though files up to `log.start` may still wait for their removal."""

    def disk(self) -> DiskUsage:
        """Usage of the file system of the log. Blocks on the disk: the event loop asks `DiskWatch`. Raises OSError."""
        return disk_usage(self._log.directory)

    def expire(self, now_ms: int, keep_from: int | None = None, disk: DiskUsage | None = None) -> int:
        """Remove expired segments, none at or above `keep_from`. Call it about every 10 s.

        `disk`: None when it is not known; then no segment goes for lack of room. Returns the offset below which no
        file has records: the log's `start` may be higher while the files wait for their removal. Raises OSError.
        """
        state, log = self._state, self._log
        # Never an unconfirmed record: a leader may have to give it to its followers yet.
        keep = state.confirmed if keep_from is None else min(keep_from, state.confirmed)
        if self._index is not None and self._index.behind:
            keep = min(keep, self._index.position)
        # Below the last checkpoint, the queue entries (which give the next numbers), the list of their ends and the
        # epoch file are durable, so the records can go.
        keep = min(keep, state.recovery_point.durable, state.ends_offset)
        if self._removals.ended != math.inf:
            self._removed_to = log.start
        else:
            self._removals.add(())  # The disk may have refused the last removal.
        limit = self.due_below(now_ms, keep, disk)
        if limit > log.start:
            self.remove_before(limit)
        if self._removals.ended != math.inf:
            self._removed_to = log.start
        return self._removed_to

    def due_below(self, now_ms: int, keep: int, disk: DiskUsage | None) -> int:
        """Return the offset below which segments have to go, if those from `keep` on stay. Raises OSError."""
        log = self._log
        ends = []
        for base in range(log.start, log.end, log.segment_size)[:MOST_AT_ONCE]:
            end = base + log.segment_size
            if end >= log.end:
                break  # It is not full yet, or no next record shows when it was full.
            ends.append((end, self._filled_ms(end, now_ms)))
        used, share = 0.0, 0.0  # Of a disk that does not say how full it is, no segment goes for lack of room.
        if disk is not None and disk.total:
            used, share = disk.ratio, log.segment_size / disk.total
        count = segments_to_remove(ends, now_ms, self._settings, used, share, keep)
        return ends[count - 1][0] if count else log.start

    def _filled_ms(self, end: int, now_ms: int) -> int:
        """When the segment that ends at `end` was full: the store time of the next record.

        If that record is damaged, the segment counts as new and goes only when the disk is full.
        """
        try:
            return self._stored_ms(end) or now_ms
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return now_ms

    def remove_before(self, offset: int) -> None:
        """Remove the segments below `offset`, the first offset of a segment, and what refers only to them.

        The files go in the background. Raises OSError when a queue cannot be read.
        """
        # Entries go after their records: after a crash in between, `min_at` skips the entries that are left.
        dropped = self._log.drop_before(offset)
        try:
            self._queues.drop_before(self._log.start, dropped)
            if self._index is not None:
                dropped += self._index.drop_before(self._log.start)
        finally:
            self._removals.add(dropped)
