"""The compaction report: `python -m gantry_spark.main --out DIR (--path DIR | --brokers URLS | --cluster NAMESRV)`.

A run aggregates the new parts of the logs (`aggregates`), adds the aggregates of earlier runs (`scan_state`), queries
Spark for the numbers (`summary`), and writes these files to the output directory, in this order:

- `reports/<run>/report.json`, `report.html`, `keys/`, `hours.parquet`, `queues.parquet`;
- `report.json` and `report.html`: the last successful report.
"""

from __future__ import annotations

import contextlib
import fnmatch
import logging
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import orjson
import pyarrow as pa
from gantry_broker.protocol.message import MAGIC_V1, MAGIC_V2
from pyarrow import parquet

from gantry_spark import scan_state
from gantry_spark.aggregates import SCHEMA, SUMS
from gantry_spark.directory import MUTABLE_TAIL_BYTES
from gantry_spark.environment import read_environment
from gantry_spark.errors import Expired, NoSuchTopic, SourceError
from gantry_spark.format import format_bytes, format_count
from gantry_spark.layout import FILLER_HEADER_BYTES
from gantry_spark.output_store import (
    LocalOutputStore,
    OutputStore,
    escape_glob,
    is_local,
    lock_output,
    open_output_store,
)
from gantry_spark.page import render
from gantry_spark.partitioning import Log, gaps, require_records
from gantry_spark.report_context import Context
from gantry_spark.report_model import build
from gantry_spark.scan import Range, is_good_record, store_time_at
from gantry_spark.session import cores
from gantry_spark.source import Options, unreachable_warnings
from gantry_spark.summary import (
    counted_segments,
    newest_by_key,
    queue_spans,
    summarize,
    summarize_keys,
    with_unread_queues,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

ROWS_DIR: Final = "state/rows"
STATE_FILE: Final = "state/state.json"
HOUR_COLUMNS: Final = ("n", "bytes", "keyed", "keyed_bytes")


@dataclass(frozen=True)
class Job:
    """The parameters of a report. Exactly one of `paths`, `brokers` and `cluster` is set."""

    paths: tuple[str, ...] = ()
    brokers: tuple[str, ...] = ()
    cluster: str = ""
    name: str = ""
    out: str | None = None
    topics: tuple[str, ...] = ()
    since_ms: int | None = None
    window_hours: float | None = None
    now_ms: int | None = None
    tombstone_hours: float = 24.0
    reserved_hours: int | None = None
    top: int = 20
    rate: int = 0
    token_file: str | None = None
    ca_file: str | None = None
    tls: bool = False
    credentials_file: str | None = None
    history: int = 10
    read_options: dict[str, str] = field(default_factory=dict)

    @property
    def source(self) -> str:
        """The name of the source for users."""
        return self.name or self.cluster or ", ".join(self.paths or self.brokers)

    def options(self, cores: int) -> dict[str, str]:
        """Return the options of the data source."""
        options = {"parallelism": str(max(1, cores)), **self.read_options}
        if self.paths:
            options["paths"] = orjson.dumps(list(self.paths)).decode()
        if self.brokers:
            options["brokers"] = ",".join(self.brokers)
        if self.cluster:
            options["cluster"] = self.cluster
        if self.rate:
            options["rateLimit"] = str(max(1, self.rate // max(1, cores)))
        if self.token_file:
            options["tokenFile"] = self.token_file
        if self.ca_file:
            options["caFile"] = self.ca_file
        if self.tls:
            options["tls"] = "true"
        if self.credentials_file:
            options["credentialsFile"] = self.credentials_file
        return options


@dataclass(frozen=True)
class ReportResult:
    """A report, its page, and its output directory (None: not kept)."""

    report: dict[str, Any]
    page: str
    out: str | None


def preflight(job: Job, whole: bool = False) -> int:
    """Check everything that needs no Spark session, and return the bytes of the logs.

    Raises GantrySparkError as `run` does; with `whole` also as `require_complete_logs` does.
    """
    logs = Options(job.options(1)).logs()
    if whole:
        require_complete_logs(logs)
    logger.info("%s of %s", format_count(len(logs), "log"), job.source)
    require_records(logs, job.source)
    if job.out is not None and is_local(job.out):
        LocalOutputStore(job.out)
    return total_bytes(logs)


def run(spark: SparkSession, job: Job) -> ReportResult:
    """Make the report. Raises GantrySparkError with a message for the user."""
    started = time.monotonic()
    with _output(job) as out, lock_output(out):
        store = open_output_store(spark, out)
        now_ms = report_time_ms(job)
        since_ms = job.since_ms
        if since_ms is None and job.window_hours is not None:
            since_ms = now_ms - int(job.window_hours * 3_600_000)
        name = _run_name(now_ms, store)
        options = job.options(cores(spark))
        logs = Options(options).logs()
        require_records(logs, job.source)
        incremental = IncrementalScan(spark, store, options, logs, name)
        rows = incremental.rows(since_ms)
        logger.info("counted %s of log, looking for the newest record of each key", format_bytes(incremental.scanned))
        # Without a filter, the rows already hold the counts of the whole log.
        part = bool(job.topics) or since_ms is not None
        counts = incremental.counts() if part else rows.filter("kind = 'count'")
        rows, topics = _select_topics(rows, counts, job.topics)
        keys_at = f"reports/{name}/keys"
        results = summarize(rows)
        results.spans = queue_spans(counts) if part else results.queues
        newest_by_key(rows, results.keys_span_blocks).write.mode("overwrite").parquet(store.url(keys_at))
        keys = spark.read.parquet(escape_glob(store.url(keys_at)))
        environment = read_environment(logs, job.token_file)
        missing = _missing(logs)
        context = Context(
            source=cluster_name(logs) or job.source,
            now_ms=now_ms,
            since_ms=since_ms,
            tombstone_ms=int(job.tombstone_hours * 3_600_000),
            reserved_hours=job.reserved_hours or environment.reserved_hours,
            disks=environment.disks,
            offsets=with_unread_queues(
                [o for o in environment.offsets if topics is None or o.topic in topics],
                results.spans,
                environment.without_offsets,
            ),
            log_bytes=incremental.log_bytes,
            new_bytes=incremental.scanned,
            segments=sum(len(log.segments) for log in logs),
            notes=[*missing, *environment.notes, *incremental.notes],
            complete=not missing,
            missing=environment.missing,
            compacted=environment.compacted,
            hours=_bytes_by_hour(counts) if part else None,
        )
        logger.info("found the newest record of each key, counting by topic")
        summarize_keys(results, rows, keys, now_ms - context.tombstone_ms, job.top, context.offsets, counts)
        report = build(results, context)
        if not report["totals"]["records"] and not report["damage"]["ranges"]:
            report["notes"].append("The report covers no record: the log has none, or none in the window.")
        report["run"] = name
        report["durationSeconds"] = round(time.monotonic() - started, 1)
        logger.info("drawing the page")
        page = render(report)
        data = orjson.dumps(report, option=orjson.OPT_INDENT_2)
        for folder in (f"reports/{name}/", ""):
            store.write(f"{folder}report.json", data)
            store.write(f"{folder}report.html", page.encode())
        store.write(f"reports/{name}/hours.parquet", _table(results.hours, ("topic", "hour", *HOUR_COLUMNS)))
        store.write(f"reports/{name}/queues.parquet", _table(results.queues, ("log", "topic", "queue_id", *SUMS)))
        _delete_old_reports(store, job.history)
        return ReportResult(report, page, None if job.out is None else out)


def require_complete_logs(logs: Sequence[Any]) -> None:
    """Raise SourceError if a log of the cluster or a part of a log may be missing."""
    missing = _missing(logs)
    if missing:
        raise SourceError(f"{'; '.join(missing)}. The missing parts may hold newer versions, so nothing is compacted")


def cluster_name(logs: Sequence[Any]) -> str | None:
    """Return the name of the cluster that all logs say they belong to; None: a directory or an archive says nothing."""
    names = {getattr(log, "cluster", None) for log in logs}
    return names.pop() if len(names) == 1 else None


def _missing(logs: Sequence[Any]) -> list[str]:
    """Return a message for each part of the logs that is or may be missing."""
    between = [(log.name, start, end) for log in logs for start, end in gaps(log)]
    return [
        *unreachable_warnings(logs),
        *(f"{name}: no segment holds bytes {start:,} to {end:,}" for name, start, end in between),
    ]


def total_bytes(logs: Sequence[Log]) -> int:
    """Return the bytes from the start of the first segment of each log to the end of its last one."""
    return sum(s.limit - s.start for log in logs for s in log.segments)


def report_time_ms(job: Job) -> int:
    """Return the time of the report in Unix milliseconds. Ages count from it."""
    return int(time.time() * 1000) if job.now_ms is None else job.now_ms


@contextmanager
def _output(job: Job) -> Iterator[str]:
    if job.out is not None:
        yield job.out
        return
    folder = tempfile.mkdtemp(prefix="gantry-report-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run_name(now_ms: int, store: OutputStore) -> str:
    base = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
    taken = set(store.names("reports")) | {n.removeprefix("run=") for n in store.names(ROWS_DIR)}
    number = 1
    name = base
    while name in taken:
        number += 1
        name = f"{base}-{number}"
    return name


class IncrementalScan:
    """Aggregates the new parts of the logs, and returns the rows of all runs."""

    def __init__(
        self, spark: SparkSession, store: OutputStore, options: dict[str, str], logs: Sequence[Any], run: str
    ) -> None:
        self.spark = spark
        self.store = store
        self.options = options
        self.logs = logs
        self.run = run
        self.scanned = 0
        self.log_bytes = 0
        self.notes: list[str] = []
        self._segments: Sequence[scan_state.CountedSegment] = ()

    def rows(self, since_ms: int | None) -> DataFrame:
        """Return the rows of the records stored since `since_ms`, of this run and of earlier runs."""
        previous = scan_state.State.from_json(self.store.read(STATE_FILE))
        self._require_known_logs(previous)
        if not previous.runs <= {name.removeprefix("run=") for name in self.store.names(ROWS_DIR)}:
            previous = scan_state.State()  # The rows of an earlier run were deleted.
        self._clean(previous.runs)
        present_logs = [scan_state.LogSnapshot(log.name, log.segments, _first_times(log)) for log in self.logs]
        verify = Options(self.options).verify
        present_checksums = _current_checksums(self.logs, previous.segments) | _repaired_segments(
            self.logs, previous.segments, verify
        )
        pending = scan_state.pending_scan(previous, present_logs, present_checksums)
        counted: dict[tuple[str, int], scan_state.SegmentCount] = {}
        damaged_at: dict[tuple[str, int], list[int]] = {}
        damaged: dict[tuple[str, int], int] = {}
        task_ends: list[scan_state.CountedSegment] = []
        if pending.ranges:
            logger.info("reading %s of %s", format_bytes(pending.bytes), format_count(len(pending.ranges), "log"))
            self._count(pending.ranges, None, f"{ROWS_DIR}/run={self.run}")
            for r in counted_segments(self._read([self.run])):
                key = (r["log"], r["segment"])
                damaged_at[key], damaged[key] = r["damaged_at"], r["damaged"] or 0
                if r["checksums"]:
                    *earlier, (end, begin, checksum) = sorted(tuple(row) for row in r["checksums"])
                    counted[key] = scan_state.SegmentCount(end, r["min_ms"], r["max_ms"], begin, checksum)
                    task_ends += [scan_state.CountedSegment(*key, e, -1, -1, -1, (), e, b, m) for e, b, m in earlier]
        state = scan_state.advance(pending, present_logs, self.run, counted, damaged_at)
        state = scan_state.with_checksums(
            state, _end_checksums(self.logs, scan_state.fully_read(state, self.run), verify)
        )
        state = scan_state.with_checksums(state, _truncated_segments(self.logs, pending, task_ends))
        ends = {(k.log, k.segment): max(k.end, damaged.get((k.log, k.segment), 0)) for k in state.segments}
        unwritten = sum(
            log.segments[-1].limit - ends[log.name, log.segments[-1].start] for log in self.logs if log.segments
        )
        self.scanned = pending.bytes - unwritten
        self.log_bytes = total_bytes(self.logs) - unwritten
        if len(state.runs) > scan_state.MERGE_AT:
            state = self._merge(state)
        self.store.write(STATE_FILE, state.to_json())
        self._clean(state.runs)
        self._segments = state.segments
        chosen = scan_state.window(state, since_ms)
        rows = self._rows_of(chosen.complete)
        if chosen.partial and since_ms is not None:
            ranges: dict[str, list[tuple[int, int]]] = {}
            for segment in chosen.partial:
                ranges.setdefault(segment.log, []).append((segment.segment, segment.end))
            self.scanned += sum(b - a for spans in ranges.values() for a, b in spans)
            at = f"reports/{self.run}/partial/run={self.run}"
            self._count(ranges, since_ms, at)
            rows = rows.unionByName(self._parquet([at], f"reports/{self.run}/partial").select(rows.columns))
        return rows

    def _require_known_logs(self, previous: scan_state.State) -> None:
        """Drop the counts of a missing log, but fail if its brokers may only be unreachable."""
        unreachable = unreachable_warnings(self.logs)
        gone = {segment.log for segment in previous.segments} - {log.name for log in self.logs}
        if unreachable and gone:
            raise SourceError(
                f"the last run read log {min(gone)}, and none of its members answers: {'; '.join(unreachable)}"
            )
        self.notes += [f"{log}: the last run read this log, and it no longer exists: left out" for log in sorted(gone)]

    def ranges(self, log: str) -> list[tuple[int, int]]:
        """Return the counted ranges of a log, after `rows`. Records start in them."""
        return [(k.segment, k.end) for k in self._segments if k.log == log]

    def counts(self) -> DataFrame:
        """Return the counts of the whole log, after `rows`. Lag and growth do not depend on the window."""
        return self._rows_of(self._segments).filter("kind = 'count'")

    def _count(self, ranges: dict[str, list[tuple[int, int]]], since_ms: int | None, at: str) -> None:
        options = self.options | {"ranges": orjson.dumps(ranges).decode()}
        if since_ms is not None:
            options["sinceMs"] = str(since_ms)
        frame = self.spark.read.format("commitlog-aggregates").options(**options).load()
        frame.write.mode("overwrite").partitionBy("kind").parquet(self.store.url(at))

    def _parquet(self, names: Sequence[str], base: str) -> DataFrame:
        from pyspark.sql.types import StringType, StructField, StructType

        schema = StructType([*SCHEMA.fields, StructField("run", StringType())])
        reader = self.spark.read.schema(schema).option("basePath", self.store.url(base))
        return reader.parquet(*(escape_glob(self.store.url(name)) for name in names))

    def _read(self, runs: Sequence[str]) -> DataFrame:
        return self._parquet([f"{ROWS_DIR}/run={run}" for run in runs], ROWS_DIR)

    def _rows_of(self, segments: Sequence[scan_state.CountedSegment]) -> DataFrame:
        """Return the valid rows of these segments.

        The next run reads a torn tail again. So damage beyond the end of a run is valid only until a later run has read
        that range.
        """
        from pyspark.sql import functions as f

        table = [
            (run, k.log, k.segment, end, run == k.runs[-1][0]) for k in segments for run, end in k.runs
        ]  # fmt: skip
        valid = self.spark.createDataFrame(
            table, "run string, log string, segment long, counted_end long, latest boolean"
        )
        runs = sorted({row[0] for row in table})
        if not runs:
            return self.spark.createDataFrame([], SCHEMA)
        rows = self._read(runs).join(f.broadcast(valid), ["run", "log", "segment"])
        rows = rows.filter((f.col("kind") != "damage") | (f.col("phys") < f.col("counted_end")) | f.col("latest"))
        return rows.select(*SCHEMA.fieldNames())

    def _merge(self, state: scan_state.State) -> scan_state.State:
        """Merge the rows of all runs into one run: the sums of each segment."""
        from pyspark.sql import functions as f

        name = f"{self.run}-merged"
        rows = self._rows_of(state.segments)
        columns = SCHEMA.fieldNames()

        def padded(frame: DataFrame) -> DataFrame:
            types = {field.name: field.dataType for field in SCHEMA.fields}
            return frame.select(
                *(f.col(c) if c in frame.columns else f.lit(None).cast(types[c]).alias(c) for c in columns)
            )

        sums = [f.sum(s).alias(s) for s in SUMS]
        spans = [f.min("min_qo").alias("min_qo"), f.max("max_qo").alias("max_qo"), f.min("min_ms").alias("min_ms"),
                 f.max("max_ms").alias("max_ms"), f.max("end").alias("end")]  # fmt: skip
        by = ["kind", "log", "segment", "topic"]
        counts = rows.filter("kind = 'count'").groupBy(*by, "queue_id", "hour").agg(*sums, *spans)
        newest = f.max(f.struct("phys", "size", "ms", "qo", "tombstone")).alias("v")
        keys = (
            rows.filter("kind = 'key'")
            .groupBy(*by, "queue_id", "key")
            .agg(f.sum("n").alias("n"), f.sum("bytes").alias("bytes"), newest)
            .select(*by, "queue_id", "key", "n", "bytes", "v.*")
        )
        sizes = rows.filter("kind = 'size'").groupBy(*by, "bucket")
        summed = sizes.agg(f.sum("n").alias("n"), f.sum("bytes").alias("bytes"))
        rest = rows.filter("kind in ('bitmap', 'damage')")
        whole = padded(counts).unionByName(padded(keys)).unionByName(padded(summed)).unionByName(rest)
        whole.write.mode("overwrite").partitionBy("kind").parquet(self.store.url(f"{ROWS_DIR}/run={name}"))
        return scan_state.merged(state, name)

    def _clean(self, valid_runs: set[str]) -> None:
        """Delete rows that are not valid: of failed or merged runs, and of expired segments."""
        for name in self.store.names(ROWS_DIR):
            if name.startswith("run=") and name.removeprefix("run=") not in valid_runs:
                self.store.delete(f"{ROWS_DIR}/{name}")


def _first_times(log: Any) -> list[int]:
    """Return the store time of each segment's first record, listed or read; -1: no record begins there."""
    times = []
    for index, segment in enumerate(log.segments):
        first_ms = segment.first_ms if segment.first_ms > 0 else None
        if first_ms is None:
            whole = Range(segment.start, segment.limit, segment.limit, segment.end, index == len(log.segments) - 1)
            with contextlib.suppress(Expired), log.open(index) as source:
                first_ms = store_time_at(source, segment.start, whole)
        times.append(-1 if first_ms is None else first_ms)
    return times


def _current_checksums(
    logs: Sequence[Any], segments: Sequence[scan_state.CountedSegment]
) -> dict[tuple[str, int], int | None]:
    """Return the present value of `CountedSegment.checksum` by log and segment; None: the bytes are not available."""
    return {(k.log, k.segment): None if data is None else crc32(data) for k, data in _segment_ends(logs, segments)}


def _truncated_segments(
    logs: Sequence[Any], pending: scan_state.PendingScan, task_ends: Sequence[scan_state.CountedSegment]
) -> dict[tuple[str, int], None]:
    """Return the segments that were truncated before the start of a task: their checksums no longer match.

    An earlier run or another task has counted the bytes before that start. `task_ends`: the ends of the tasks.
    """
    least = {log.name: log.segments[-1].limit - MUTABLE_TAIL_BYTES for log in logs if log.segments}
    begins = {(log, a) for log, spans in pending.ranges.items() for a, _ in spans}
    old = [k for k in pending.kept if (k.log, k.end) in begins]
    mine = [*old, *(k for k in task_ends if k.records_end > least[k.log])]
    return {
        (k.log, k.segment): None for k, data in _segment_ends(logs, mine) if data is None or crc32(data) != k.checksum
    }


def _repaired_segments(
    logs: Sequence[Any], segments: Sequence[scan_state.CountedSegment], verify: bool
) -> dict[tuple[str, int], None]:
    """Return the segments with a record in a damaged place: a broker has repaired it from another member."""
    by_key = _segments_by_key(logs)
    candidates = (k for k in segments if k.damaged and (k.log, k.segment) in by_key)
    return {(k.log, k.segment): None for k in candidates if _has_record(*by_key[k.log, k.segment], k.damaged, verify)}


def _end_checksums(
    logs: Sequence[Any], segments: Sequence[scan_state.CountedSegment], verify: bool
) -> dict[tuple[str, int], int | None]:
    """Return the checksums of segments that were read to their end, extended over the header of the filler.

    A broker may truncate the filler with the records before it. None: that happened, and uncounted records are there.
    """
    by_key = _segments_by_key(logs)
    checksums: dict[tuple[str, int], int | None] = {}
    for segment, data in _segment_ends(logs, segments):
        before = segment.records_end - segment.checksum_start
        if data is not None and crc32(data[:before]) != segment.checksum:
            data = None
        # A damaged record stays damaged, so only a valid one means a truncation.
        if data is not None and _is_message(data[before:]):
            log, index = by_key[segment.log, segment.segment]
            data = None if _has_record(log, index, [segment.records_end], verify) else data
        checksums[segment.log, segment.segment] = None if data is None else crc32(data)
    return checksums


def _is_message(header: bytearray) -> bool:
    return len(header) == FILLER_HEADER_BYTES and int.from_bytes(header[4:], "big") in (MAGIC_V1, MAGIC_V2)


def _has_record(log: Any, index: int, offsets: Sequence[int], verify: bool) -> bool:
    """Return whether a valid record begins at one of these offsets. True if the segment has expired."""
    segment = log.segments[index]
    whole = Range(segment.start, segment.limit, segment.limit, segment.end, index == len(log.segments) - 1)
    with contextlib.suppress(Expired), log.open(index) as source:
        return any(is_good_record(source, at, whole, verify) for at in offsets)
    return True


def _segments_by_key(logs: Sequence[Any]) -> dict[tuple[str, int], tuple[Any, int]]:
    return {(log.name, s.start): (log, index) for log in logs for index, s in enumerate(log.segments)}


def _segment_ends(
    logs: Sequence[Any], segments: Sequence[scan_state.CountedSegment]
) -> Iterator[tuple[scan_state.CountedSegment, bytearray | None]]:
    """Yield the existing segments with the bytes around the end of their last counted record; None: not available."""
    by_key = _segments_by_key(logs)
    for segment in segments:
        if (segment.log, segment.segment) in by_key:
            yield segment, _end_bytes(*by_key[segment.log, segment.segment], segment)


def _end_bytes(log: Any, index: int, segment: scan_state.CountedSegment) -> bytearray | None:
    data = bytearray(min(segment.end, segment.records_end + FILLER_HEADER_BYTES) - segment.checksum_start)
    if segment.checksum_start + len(data) > log.segments[index].limit:
        return None
    with contextlib.suppress(Expired), log.open(index) as source:
        if source.read_into(segment.checksum_start, memoryview(data)) == len(data):
            return data
    return None


def _select_topics(rows: DataFrame, counts: DataFrame, patterns: Sequence[str]) -> tuple[DataFrame, set[str] | None]:
    """Return the rows of the matching topics, and these topics (None: all). Damage has no topic and stays.

    `counts`: the counts of the whole log, since a topic may have no record in a window.
    """
    if not patterns:
        return rows, None
    from pyspark.sql import functions as f

    names = [r["topic"] for r in counts.select("topic").distinct().collect()]
    topics = {n for n in names if any(fnmatch.fnmatchcase(n, p) for p in patterns)}
    if not topics:
        raise NoSuchTopic(
            f"no topic matches {', '.join(patterns)}; there are {', '.join(sorted(names)[:20]) or 'none'}"
        )
    return rows.filter(f.col("topic").isin(sorted(topics)) | (f.col("kind") == "damage")), topics


def _bytes_by_hour(counts: DataFrame) -> dict[int, int]:
    from pyspark.sql import functions as f

    return {r["hour"]: r["sum"] for r in counts.groupBy("hour").agg(f.sum("bytes").alias("sum")).collect()}


def _table(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> bytes:
    """Return rows as a Parquet file."""
    table = pa.table({c: [row[c] for row in rows] for c in columns})
    sink = pa.BufferOutputStream()
    parquet.write_table(table, sink)
    return bytes(sink.getvalue())


def _delete_old_reports(store: OutputStore, history: int) -> None:
    """Delete all but the last `history` reports, and all incomplete ones."""
    names = store.names("reports")
    whole = [n for n in names if store.read(f"reports/{n}/report.json") is not None]
    for name in names:
        if name not in whole[-history:]:
            store.delete(f"reports/{name}")
        else:
            store.delete(f"reports/{name}/partial")
