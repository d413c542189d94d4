"""What the log no longer keeps: whole segments, by age at the hours of `deleteWhen`, or sooner when the disk fills."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gantry_broker.settings import BrokerSettings
from gantry_broker.store.read import stored_ms
from gantry_broker.store.types import DiskUsage

if TYPE_CHECKING:
    from gantry_broker.store.store import MessageStore

FORCED_RATIO: Final = 0.85
"""From here on the oldest segments go whatever their age (`diskSpaceCleanForciblyRatio`)."""
MOST_AT_ONCE: Final = 10
"""Segments that one call removes at most (`deleteFileBatchMax`)."""


def disk_usage(directory: Path) -> DiskUsage:
    """Of the file system, as `df` and RocketMQ count it. Raises OSError.

    What is reserved for others is neither used nor there: counted as used, it would have retention remove messages for
    which there is room.
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
    """How many of the oldest segments go. Pure.

    `ends`: (end offset, store time of what came next, ms) of the segments that are not written any more, oldest first;
    `used`: the part of the disk that is used; `segment_ratio`: the part of it that one segment frees.
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


def expire(store: MessageStore, now_ms: int, keep_from: int | None) -> int:
    """See `MessageStore.expire`."""
    log = store.log
    keep = store.confirmed if keep_from is None else min(keep_from, store.confirmed)
    if store.index is not None and store.index.behind:
        keep = min(keep, store.index.position)
    # Without records and entries nothing would tell which numbers of a queue were given out, and without records and
    # history nobody which epochs there were: both are on disk below the last checkpoint, whatever becomes of the rest.
    keep = min(keep, store.recovery_point.durable)
    bases = log.bases()
    ends = []
    for base in bases[:MOST_AT_ONCE]:
        end = base + log.segment_size
        if end >= log.end:
            break  # It is written still, or nothing tells when it was full.
        ends.append((end, _filled_ms(store, end, now_ms)))
    if not ends:
        return log.start
    disk = disk_usage(log.directory)
    share = log.segment_size / disk.total if disk.total else 0.0
    count = segments_to_remove(ends, now_ms, store.config.settings, disk.ratio, share, keep)
    if count:
        remove_before(store, ends[count - 1][0])
    return log.start


def _filled_ms(store: MessageStore, end: int, now_ms: int) -> int:
    """When the segment that ends there was full: what comes next was stored then. If it is damaged nobody knows, and
    the segment goes no sooner than the disk is full."""
    try:
        return stored_ms(store, end) or now_ms
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return now_ms


def remove_before(store: MessageStore, offset: int) -> None:
    """Remove the segments below `offset`, a segment's first, and what only refers to them. Raises OSError."""
    # Entries go after their records: a crash in between leaves entries that `min_at` skips.
    store.log.drop_before(offset)
    store.queues.drop_before(store.log.start)
    if store.index is not None:
        store.index.drop_before(store.log.start)
