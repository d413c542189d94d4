"""Cutting logs into partitions: ranges of segments, at record borders, sized for the cores."""

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
"""Few, since Spark needs 15 to 20 ms for a task, in which 20 MiB could be read."""
CLOCK_SLACK_MS: Final = 5 * 60_000
"""Store times of a log may step back by this much (masters with different clocks) without a record being missed."""


class LogSegment(Protocol):
    """A segment as a log's own listing gives it; see `directory.Segment`."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def limit(self) -> int: ...


class OpenSegment(LogBytes, AbstractContextManager["OpenSegment"], Protocol):
    """Bytes of a segment that are closed after use."""


class Log(Protocol):
    """A log that can be planned: a directory's, or a broker's."""

    @property
    def name(self) -> str: ...
    @property
    def segments(self) -> Sequence[LogSegment]: ...
    def open(self, index: int) -> AbstractContextManager[LogBytes]: ...


@dataclass(frozen=True)
class LogRange:
    """One partition: a range of one segment, and the store times between which its records lie (None: unknown)."""

    segment: int
    range: Range
    first_ms: int | None
    last_ms: int | None


def partition_bytes_for(total: int, cores: int) -> int:
    """Bytes of a partition so that every core gets a few."""
    return max(MIN_PARTITION_BYTES, min(MAX_PARTITION_BYTES, -(-total // max(1, cores * PARTITIONS_PER_CORE))))


def plan_ranges(
    log: Log,
    target: int,
    where: RecordFilter,
    within: Sequence[tuple[int, int]] | None = None,
    slack_ms: int = CLOCK_SLACK_MS,
) -> list[LogRange]:
    """The partitions of a log that may hold wanted records, each of about `target` bytes.

    `within`: only records that start in these ranges, whose starts are record borders (the ends of earlier reads).
    Reads a record's head at every cut. Raises OSError or SourceError when the log cannot be read.
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
            # It went between the listing and now. Who reads it says so, as of one that goes a little later.
            parts += [LogRange(index, Range(a, b, segment.limit, segment.end, last), None, None) for a, b in spans]
    return _matching(log, parts, where, slack_ms)


def pack_tasks(parts: Sequence[LogRange], target: int) -> list[tuple[LogRange, ...]]:
    """The parts of a log, in order, of which one task reads several if together they are hardly more than `target`.

    Else the few records of a segment that is just begun, or a small piece of many segments, would be a task each.
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
    """What these ranges have of each segment, in order; None: all of it."""
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
    """Record borders near every `target` bytes of the range."""
    cuts: list[int] = []
    nominal = segment_range.start + target
    while nominal + target // 2 < segment_range.stop:
        boundary = next_record(source, nominal, segment_range, until=nominal + target)
        if boundary is not None and boundary < segment_range.stop:
            cuts.append(boundary)
        nominal += target
    return cuts


def _matching(log: Log, parts: list[LogRange], where: RecordFilter, slack_ms: int) -> list[LogRange]:
    """Parts that may hold wanted records; a part's last time is at most the first time of the one after it.

    A head has no checksum. A time that cannot be, as one from the future, is not believed, nor is any of two that are
    out of order by more than clocks may be off; where no part follows whose time could be compared, that of the second
    record is. So one damaged head hides other records only if its time is still in order, between the first times of
    the parts before and after: too late a one begins its own part too late, too early a one ends that before too early.
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
    """Whether the second record of a part is there, and no older than this."""
    with suppress(Expired), log.open(part.segment) as source:
        second = store_time_after(source, part.range.start, part.range)
        return second is not None and second >= least_ms
    return False


def gaps(log: Log) -> list[tuple[int, int]]:
    """Bytes [from, to) in the middle of a log that no segment holds. Segments before the first have expired."""
    return [(a.end, b.start) for a, b in pairwise(log.segments) if a.end < b.start]


def require_records(logs: Sequence[Log], source: str) -> None:
    """Files without a single record are no commit log, whatever their names. Raises NoLog.

    One read where a segment begins with a record, as all do but damaged ones; else the log is searched for the first.
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
                return  # What expires was a log's.
            if end is not None:
                written += end - segment.start
                first = first or f"offset {segment.start} of {log.name}"
    if written:
        raise NotACommitLog(
            f"{source} holds no commit log: none of its {written:,} bytes, from {first} on, are records"
        )


def stream_end_offset(log: Log, at: int, most: int) -> int:
    """A record border up to which a stream may read from `at`: at most about `most` bytes further (0: to the end).

    A log that is being written may end in the middle of a record: its last whole record is found by its sizes. What
    has expired since it was listed is passed over.
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
