"""The state of earlier runs by segment. A run reads only new parts of the logs and drops expired ones.

A run writes its rows (`aggregates.SCHEMA` and the run's name) as Parquet to `state/rows`. `state/state.json` names the
valid rows: for each segment of each log, the end of the counted range and the runs that counted it. A run replaces that
file atomically at its end, so the rows of a failed run are never valid.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol
from zlib import crc32

import orjson

VERSION: Final = 5
MERGE_AT: Final = 12
"""Above this number of runs their rows are merged into one run."""


@dataclass(frozen=True)
class CountedSegment:
    """The counted part of a segment, and the runs that counted it, each with its end.

    Times are the store times of the counted records in Unix milliseconds; -1: no records. `records_end`: the end of the
    last counted record. `checksum`: of the bytes from `checksum_start` to that end (None: not known). If another
    segment follows, the checksum includes the header of the filler. `damaged`: offsets before `end` without a record.
    """

    log: str
    segment: int
    end: int
    first_ms: int
    min_ms: int
    max_ms: int
    runs: tuple[tuple[str, int], ...]
    records_end: int
    checksum_start: int
    checksum: int | None
    damaged: tuple[int, ...] = ()


@dataclass(frozen=True)
class State:
    """All counted segments."""

    segments: tuple[CountedSegment, ...] = ()

    @property
    def runs(self) -> set[str]:
        return {run for segment in self.segments for run, _ in segment.runs}

    def to_json(self) -> bytes:
        rows = [
            {"log": k.log, "segment": k.segment, "end": k.end, "firstMs": k.first_ms, "minMs": k.min_ms,
             "maxMs": k.max_ms, "runs": [list(r) for r in k.runs], "recordsEnd": k.records_end,
             "checksumStart": k.checksum_start, "checksum": k.checksum, "damaged": list(k.damaged)}
            for k in self.segments
        ]  # fmt: skip
        return orjson.dumps({"version": VERSION, "segments": rows}, option=orjson.OPT_INDENT_2)

    @classmethod
    def from_json(cls, data: bytes | None) -> State:
        """Parse a state. An unreadable or older state is treated as empty, so everything is read again."""
        if data is None:
            return cls()
        try:
            value = orjson.loads(data)
            if value["version"] != VERSION:
                return cls()
            return cls(
                tuple(
                    CountedSegment(
                        r["log"],
                        r["segment"],
                        r["end"],
                        r["firstMs"],
                        r["minMs"],
                        r["maxMs"],
                        tuple((str(run), int(end)) for run, end in r["runs"]),
                        r["recordsEnd"],
                        r["checksumStart"],
                        r["checksum"],
                        tuple(map(int, r["damaged"])),
                    )
                    for r in value["segments"]
                )
            )
        except (ValueError, KeyError, TypeError):
            return cls()


class SegmentBounds(Protocol):
    """A segment of a log at present."""

    @property
    def start(self) -> int: ...
    @property
    def limit(self) -> int: ...


@dataclass(frozen=True)
class LogSnapshot:
    """A log at present: its segments, and the store time of each segment's first record (-1: none)."""

    log: str
    segments: Sequence[SegmentBounds]
    first_ms: Sequence[int]


@dataclass(frozen=True)
class PendingScan:
    """The counted segments that a run keeps, and the ranges that it has to read: (start, stop) by log."""

    kept: tuple[CountedSegment, ...]
    ranges: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return sum(b - a for spans in self.ranges.values() for a, b in spans)


def pending_scan(
    state: State, logs: Iterable[LogSnapshot], checksums: Mapping[tuple[str, int], int | None]
) -> PendingScan:
    """Compare the state with the present logs. `checksums`: the present ones by log and start of the segment.

    An expired segment is dropped. A segment is read again from its start if it is shorter than its counted part, begins
    with another record, or has another checksum: the end of the log was truncated and rewritten.
    """
    counted = {(k.log, k.segment): k for k in state.segments}
    kept: list[CountedSegment] = []
    ranges: dict[str, list[tuple[int, int]]] = {}
    for log in logs:
        spans: list[tuple[int, int]] = []
        for segment, first_ms in zip(log.segments, log.first_ms, strict=True):
            have = counted.get((log.log, segment.start))
            if have is not None and (
                have.end > segment.limit
                or have.first_ms != first_ms
                or have.checksum is None
                or have.checksum != checksums.get((log.log, segment.start))
            ):
                have = None
            unread_from = segment.start if have is None else have.end
            if have is not None:
                kept.append(have)
            if unread_from < segment.limit:
                spans.append((unread_from, segment.limit))
        ranges[log.log] = spans
    return PendingScan(tuple(kept), {log: spans for log, spans in ranges.items() if spans})


@dataclass(frozen=True)
class SegmentCount:
    """The result of one run for a segment: end and store times of its records, and the checksum of [begin, end)."""

    end: int
    min_ms: int
    max_ms: int
    checksum_start: int
    checksum: int


def advance(
    pending: PendingScan,
    logs: Iterable[LogSnapshot],
    run: str,
    counted: Mapping[tuple[str, int], SegmentCount],
    damaged: Mapping[tuple[str, int], Sequence[int]],
) -> State:
    """Return the state after a run has counted all of `pending`. `damaged`: the offsets without a record.

    A segment with a successor is read completely. The last segment continues after its last record. The checksums end
    at the last counted record.
    """
    kept = {(k.log, k.segment): k for k in pending.kept}
    result: list[CountedSegment] = []
    for log in logs:
        for index, (segment, first_ms) in enumerate(zip(log.segments, log.first_ms, strict=True)):
            old = kept.get((log.log, segment.start))
            new = counted.get((log.log, segment.start))
            last = index == len(log.segments) - 1
            end = segment.limit if not last else max(new.end if new else 0, old.end if old else segment.start)
            segment_state = old or CountedSegment(
                log.log, segment.start, end, first_ms, -1, -1, (), segment.start, segment.start, crc32(b"")
            )
            if new is not None:
                low = new.min_ms if segment_state.min_ms < 0 else min(segment_state.min_ms, new.min_ms)
                segment_state = replace(
                    segment_state, min_ms=low, max_ms=max(segment_state.max_ms, new.max_ms), records_end=new.end
                )
                segment_state = replace(segment_state, checksum_start=new.checksum_start, checksum=new.checksum)
            unread_from = segment.start if old is None else old.end
            if unread_from < segment.limit:
                segment_state = replace(segment_state, runs=(*segment_state.runs, (run, end)))
            places = (*segment_state.damaged, *(at for at in damaged.get((log.log, segment.start), ()) if at < end))
            result.append(replace(segment_state, end=end, damaged=places))
    return State(tuple(result))


def fully_read(state: State, run: str) -> list[CountedSegment]:
    """Return the segments that a run has read to their end."""
    return [k for k in state.segments if k.end > k.records_end and k.runs and k.runs[-1][0] == run]


def with_checksums(state: State, checksums: Mapping[tuple[str, int], int | None]) -> State:
    """Return the state with these checksums by log and start of the segment."""
    return State(tuple(replace(k, checksum=checksums.get((k.log, k.segment), k.checksum)) for k in state.segments))


def merged(state: State, run: str) -> State:
    """Return the state after the rows of all its runs were merged into those of `run`."""
    return State(tuple(replace(k, runs=((run, k.end),)) if k.runs else k for k in state.segments))


@dataclass(frozen=True)
class Window:
    """The counted segments inside a window of time, and those that are partly inside and must be read with a filter."""

    complete: tuple[CountedSegment, ...]
    partial: tuple[CountedSegment, ...]


def window(state: State, since_ms: int | None) -> Window:
    """Split the counted segments by `since_ms`."""
    if since_ms is None:
        return Window(state.segments, ())
    complete = tuple(k for k in state.segments if k.min_ms >= since_ms)
    partial = tuple(k for k in state.segments if 0 <= k.min_ms < since_ms <= k.max_ms)
    return Window(complete, partial)
