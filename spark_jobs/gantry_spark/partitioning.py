"""Splits logs into partitions: ranges of segments that begin and end at record boundaries."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Protocol

from gantry_spark.decode import MAX_TIME_MS, RecordFilter
from gantry_spark.errors import Expired, NotACommitLog
from gantry_spark.scan import (
    LogBytes,
    Range,
    last_boundary,
    last_nonzero_end,
    next_record,
    store_time_after,
    store_time_at,
)

MIN_PARTITION_BYTES: Final = 16 * 1024 * 1024
MAX_PARTITION_BYTES: Final = 512 * 1024 * 1024
PARTITIONS_PER_CORE: Final = 2
"""Spark spends 15 to 20 ms on a task, the time for reading 20 MiB. So there are few tasks."""
CLOCK_SLACK_MS: Final = 5 * 60_000
"""Store times of a log may step back by this many milliseconds, because masters' clocks differ."""


class LogSegment(Protocol):
    """A segment in the listing of a log; see `directory.Segment`."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def limit(self) -> int: ...


class Log(Protocol):
    """A log that can be partitioned: of a directory or of a broker."""

    @property
    def name(self) -> str: ...
    @property
    def segments(self) -> Sequence[LogSegment]: ...
    def open(self, index: int) -> AbstractContextManager[LogBytes]: ...


@dataclass(frozen=True)
class LogRange:
    """A range of one segment. Its records have store times from `first_ms` to `last_ms` (None: not known)."""

    segment: int
    range: Range
    first_ms: int | None
    last_ms: int | None


def partition_bytes_for(total: int, cores: int) -> int:
    """Return the size of a partition in bytes, so that each core gets a few."""
    return max(MIN_PARTITION_BYTES, min(MAX_PARTITION_BYTES, -(-total // max(1, cores * PARTITIONS_PER_CORE))))


def plan_ranges(
    log: Log,
    target: int,
    where: RecordFilter,
    within: Sequence[tuple[int, int]] | None = None,
    slack_ms: int = CLOCK_SLACK_MS,
) -> list[LogRange]:
    """Return the ranges of a log that may hold matching records, each of about `target` bytes.

    `within`: only records that start in these ranges. Their starts are record boundaries, the ends of earlier reads.
    Reads one record header at each boundary. Raises OSError or SourceError if the log cannot be read.
    """
    parts: list[LogRange] = []
    segments = log.segments
    for index, (segment, spans) in enumerate(zip(segments, _spans(segments, within), strict=True)):
        last = index == len(segments) - 1
        if where.min_offset is not None or where.max_offset is not None:
            spans = [span for span in spans if not _outside(span, where)]
        if not spans:
            continue
        try:
            parts += _parts_of(log, index, spans, target, last)
        except Expired:
            # The segment expired after the listing. The reader reports it, as it reports a later expiry.
            parts += [LogRange(index, Range(a, b, segment.limit, segment.end, last), None, None) for a, b in spans]
    return _matching(log, parts, where, slack_ms)


def pack_tasks(parts: Sequence[LogRange], target: int) -> list[tuple[LogRange, ...]]:
    """Group the ranges of a log into tasks of about `target` bytes, in order.

    Without this, each small range of a new or partly read segment would be a task.
    """
    packs: list[list[LogRange]] = []
    room = 0
    for part in parts:
        size = part.range.stop - part.range.start
        if not packs or size > room:
            packs.append([])
            room = target + target // 8
        packs[-1].append(part)
        room -= size
    return [tuple(task) for task in packs]


def _parts_of(log: Log, index: int, spans: Sequence[tuple[int, int]], target: int, last: bool) -> list[LogRange]:
    segment = log.segments[index]
    parts: list[LogRange] = []
    with log.open(index) as source:
        for start, stop in spans:
            segment_range = Range(start, stop, segment.limit, segment.end, last)
            boundaries = [start, *_split_points(source, segment_range, target), stop]
            times = [store_time_at(source, boundary, segment_range) for boundary in boundaries[:-1]] + [None]
            for k, (a, b) in enumerate(pairwise(boundaries)):
                parts.append(LogRange(index, Range(a, b, segment.limit, segment.end, last), times[k], times[k + 1]))
    return parts


def _spans(segments: Sequence[LogSegment], within: Sequence[tuple[int, int]] | None) -> list[list[tuple[int, int]]]:
    """Return the parts of these ranges in each segment, in order. None: all of the segment."""
    if within is None:
        return [[(segment.start, segment.limit)] for segment in segments]
    spans: list[list[tuple[int, int]]] = [[] for _ in segments]
    limits = [segment.limit for segment in segments]
    for a, b in sorted(within):
        for index in range(bisect_right(limits, a), len(segments)):
            if segments[index].start >= b:
                break
            start, stop = max(a, segments[index].start), min(b, limits[index])
            if start < stop:
                spans[index].append((start, stop))
    return spans


def _outside(span: tuple[int, int], where: RecordFilter) -> bool:
    if where.min_offset is not None and span[1] <= where.min_offset:
        return True
    return where.max_offset is not None and span[0] > where.max_offset


def _split_points(source: LogBytes, segment_range: Range, target: int) -> list[int]:
    """Return the record boundaries near every `target` bytes of the range."""
    cuts: list[int] = []
    nominal = segment_range.start + target
    while nominal + target // 2 < segment_range.stop:
        boundary = next_record(source, nominal, segment_range, until=nominal + target)
        if boundary is not None and boundary < segment_range.stop:
            cuts.append(boundary)
        nominal += target
    return cuts


def _matching(log: Log, parts: list[LogRange], where: RecordFilter, slack_ms: int) -> list[LogRange]:
    """Return the ranges that may hold matching records.

    The last store time of a range is at most the first store time of the next range. A record header has no checksum,
    so this function ignores impossible times, such as times in the future, and both of two times that are out of order
    by more than the clock slack. Without a next range, it compares the time of the second record. A damaged time can
    hide records only if it is still in order, between the first times of the neighbouring ranges.
    """
    kept = []
    latest = min(MAX_TIME_MS, int(time.time() * 1000) + slack_ms)
    for index, part in enumerate(parts):
        following = parts[index + 1] if index + 1 < len(parts) else None
        last = part.last_ms
        if last is None and following is not None:
            last = following.first_ms
        first, last = part.first_ms, _plausible(last, latest)
        if first is not None and (_plausible(first, latest) is None or (last is not None and first - slack_ms > last)):
            first = last = None
        excluded = where.excludes(first, last, slack_ms)
        if excluded and first is not None and last is None and not _is_confirmed(log, part, first - slack_ms):
            first, excluded = None, False
        if not excluded:
            kept.append(LogRange(part.segment, part.range, first, last))
    return kept


def _plausible(ms: int | None, latest_ms: int) -> int | None:
    return ms if ms is not None and 0 < ms <= latest_ms else None


def _is_confirmed(log: Log, part: LogRange, least_ms: int) -> bool:
    """Return whether the second record of a range exists and its store time is at least `least_ms`."""
    with suppress(Expired), log.open(part.segment) as source:
        second = store_time_after(source, part.range.start, part.range)
        return second is not None and second >= least_ms
    return False


def gaps(log: Log) -> list[tuple[int, int]]:
    """Return the ranges [from, to) inside a log that no segment holds. Segments before the first one have expired."""
    return [(a.end, b.start) for a, b in pairwise(log.segments) if a.end < b.start]


def require_records(logs: Sequence[Log], source: str) -> None:
    """Raise NotACommitLog if no file holds a record.

    This takes one read if a segment begins with a record. Otherwise it searches the log for the first record.
    """
    written = 0
    first = ""
    for log in logs:
        for index, segment in enumerate(log.segments):
            segment_range = Range(
                segment.start, segment.limit, segment.limit, segment.end, index == len(log.segments) - 1
            )
            try:
                with log.open(index) as opened:
                    if store_time_at(opened, segment.start, segment_range) is not None:
                        return
                    if next_record(opened, segment.start, segment_range) is not None:
                        return
                    end = last_nonzero_end(opened, segment.start, segment.limit)
            except Expired:
                return  # An expired segment was part of a log.
            if end is not None:
                written += end - segment.start
                first = first or f"offset {segment.start} of {log.name}"
    if written:
        raise NotACommitLog(
            f"{source} holds no commit log: none of its {written:,} bytes, from {first} on, are records"
        )


def stream_end_offset(log: Log, at: int, most: int) -> int:
    """Return a record boundary up to which a stream reads from `at`: at most about `most` bytes ahead (0: to the end).

    A log in use may end inside a record, so the end is the last whole record. Segments that expired after the listing
    are skipped.
    """
    segments = log.segments
    for index, segment in enumerate(segments):
        last = index == len(segments) - 1
        if not last and (segment.limit <= at or not most):
            continue
        start = max(at, segment.start)
        segment_range = Range(start, segment.limit, segment.limit, segment.end, last)
        with suppress(Expired), log.open(index) as source:
            if most and start + most < segment.limit:
                boundary = next_record(source, start + most, segment_range)
                if boundary is not None:
                    return boundary
            return last_boundary(source, segment_range) if last else segment.limit
    return at
