"""Writes the compacted log of one topic as a new store directory.

Compaction keeps the newest record of each key and all records without a key. It drops a newest record that is a
tombstone older than the tombstone retention. The new log holds only this topic. Records keep their queues and queue
offsets, but their physical offsets change. A broker that opens the directory builds the queues from the log. Queue
offsets of dropped records stay empty. `savedBytes` is the size of the dropped records, without the fillers at the ends
of segments.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson
import pyarrow.compute as pc
from gantry_broker.protocol.message import MAGIC_BLANK
from gantry_broker.store.files import is_there

from gantry_spark.decode import RecordFilter
from gantry_spark.directory import DirectoryLog
from gantry_spark.environment import Environment, read_environment
from gantry_spark.errors import Expired, OutputError, SourceError
from gantry_spark.layout import RECORD_HEADER, Ints, gather_slices, offsets_and_bytes
from gantry_spark.output_store import escape_glob, open_output_store
from gantry_spark.partitioning import plan_ranges
from gantry_spark.properties import properties_of
from gantry_spark.recommendations import not_compactable
from gantry_spark.report import IncrementalScan, Job, preflight, report_time_ms, require_complete_logs
from gantry_spark.report_context import Context
from gantry_spark.report_model import build, topic_kind
from gantry_spark.scan import Records, scan
from gantry_spark.source import Options
from gantry_spark.summary import newest_by_key, summarize, summarize_keys

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

RANGE_BYTES: Final = 256 * 1024 * 1024
_PHYS_AT: Final = RECORD_HEADER.fields["phys"][1] if RECORD_HEADER.fields else 28
_BLANK: Final = 8


def check_compaction(job: Job, topic: str, out: Path | None) -> int:
    """Check everything that needs no Spark session, and return the bytes of the logs.

    Raises GantrySparkError as `compact` does.
    """
    if topic_kind(topic) != "user":
        raise SourceError(f"{topic} is a system topic ({topic_kind(topic)}); compaction does not apply to it")
    if out is not None:
        _require_new_directory(out)
    return preflight(job, whole=True)


def compact(spark: SparkSession, job: Job, topic: str, out: Path | None) -> dict[str, Any]:
    """Compute the savings of compacting the topic, and write the compacted log if `out` is given.

    With several logs (broker groups), `out` holds one store directory for each. Raises GantrySparkError, also if a part
    of the log is missing or keys are ambiguous: compaction could then keep a record that a lost version had replaced.
    """
    check_compaction(job, topic, out)
    with tempfile.TemporaryDirectory(prefix="gantry-compact-") as folder:
        now_ms = report_time_ms(job)
        options = job.options(spark.sparkContext.defaultParallelism)
        logs = Options(options).logs()
        require_complete_logs(logs)
        incremental = IncrementalScan(spark, open_output_store(spark, folder), options, logs, "compact")
        rows = incremental.rows(None).filter(f"kind = 'damage' or topic = {_quoted(topic)}")
        at = f"{folder}/keys"
        logger.info("looking for the newest record of each key")
        summary = summarize(rows)
        newest_by_key(rows, summary.keys_span_blocks).write.parquet(f"file://{at}")
        keys = spark.read.parquet(escape_glob(f"file://{at}"))
        tombstone_cutoff = now_ms - int(job.tombstone_hours * 3_600_000)
        context = Context(job.source, now_ms, tombstone_ms=now_ms - tombstone_cutoff)
        summarize_keys(summary, rows, keys, tombstone_cutoff, 1, [], rows)
        report = build(summary, context)
        mine = next((t for t in report["topics"] if t["topic"] == topic), None)
        if mine is None:
            raise SourceError(f"{job.source} holds no record of topic {topic}")
        refused = not_compactable(mine)
        if refused is not None:
            raise SourceError(f"{topic} cannot be compacted: {refused}")
        result: dict[str, Any] = {
            "topic": topic,
            "asOf": now_ms,
            "records": mine["records"],
            "bytes": mine["bytes"],
            "savedRecords": mine["savedRecords"],
            "savedBytes": mine["savedBytes"],
            "keptRecords": mine["records"] - mine["savedRecords"],
            "keptBytes": mine["bytes"] - mine["savedBytes"],
            "damage": {name: report["damage"][name] for name in ("ranges", "bytes")},
            "stores": [],
        }
        if out is not None:
            # The logs may have grown since they were listed, so the aggregates may include later records.
            logs = Options(options).logs()
            environment = read_environment(logs, job.token_file)
            for log in logs:
                root = out if len(logs) == 1 else out / log.name
                kept = _kept_offsets(keys, log.name, tombstone_cutoff)
                logger.info("writing %s", root)
                within = incremental.ranges(log.name)
                result["stores"].append(_write(log, topic, kept, within, root, environment, incremental.options))
            written = sum(s["bytes"] for s in result["stores"])
            if written != result["keptBytes"]:
                raise OutputError(
                    f"{written} bytes were written to {out} instead of {result['keptBytes']}: the log has changed "
                    f"(expired segments?); delete the directory and run this again"
                )
        return result


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _require_new_directory(out: Path) -> None:
    try:
        if is_there(out) and (not out.is_dir() or any(out.iterdir())):
            raise OutputError(f"{out} already exists: name a new or an empty directory")
        # `_write` creates the directory, so a refused command leaves nothing behind.
        existing = next(path for path in (out.absolute(), *out.absolute().parents) if is_there(path))
    except OSError as error:
        raise OutputError(f"output {out} cannot be written: {error.strerror}") from None
    if not existing.is_dir():
        raise OutputError(f"output {out} cannot be written: {existing} is not a directory")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise OutputError(f"output {out} cannot be written: {existing} is not writable")


def _kept_offsets(keys: DataFrame, log: str, tombstone_cutoff_ms: int) -> Ints:
    """Return the sorted physical offsets of the newest versions that stay in this log: 8 bytes a key."""
    chosen = keys.filter((keys.log == log) & ~(keys.tombstone & (keys.ms < tombstone_cutoff_ms))).select("phys")
    places: Ints = chosen.toArrow().column("phys").to_numpy().astype(np.int64)
    places.sort()
    return places


@dataclass
class _LogWriter:
    """Appends records to a new log, segment by segment."""

    folder: Path
    segment: int
    end: int = 0
    records: int = 0
    written: int = 0
    _fd: int = -1

    def append(self, data: Any, sizes: Ints) -> None:
        """Append whole, adjacent records of these sizes, with their new physical offsets."""
        begin = 0
        first = 0
        edges = np.cumsum(sizes)
        while first < len(sizes):
            left = self.segment - self.end % self.segment
            # A broker's rule: a record fits if a filler still fits behind it.
            fit = int(np.searchsorted(edges, begin + left - _BLANK, side="right"))
            if fit == first:
                if left == self.segment:
                    raise OutputError(f"a record of {int(sizes[first])} bytes does not fit a segment of {self.segment}")
                self._fill(left)
                continue
            stop = int(edges[fit - 1])
            piece = np.array(data[begin:stop])
            within = np.concatenate([[0], edges[first : fit - 1] - begin]).astype(np.int64)
            places = (within + self.end).astype(">i8").view(np.uint8).reshape(-1, 8)
            piece[within[:, None] + np.arange(_PHYS_AT, _PHYS_AT + 8)] = places
            self._write(piece.tobytes())
            self.end += stop - begin
            self.records += fit - first
            self.written += stop - begin
            begin, first = stop, fit

    def _fill(self, left: int) -> None:
        self._write(left.to_bytes(4, "big") + MAGIC_BLANK.to_bytes(4, "big"))
        self.end += left
        self.close()

    def _write(self, data: bytes) -> None:
        if self._fd < 0:
            base = self.end - self.end % self.segment
            self._fd = os.open(self.folder / f"{base:020d}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            os.ftruncate(self._fd, self.segment)
        at = self.end % self.segment
        view = memoryview(data)
        while view:
            done = os.pwrite(self._fd, view, at)
            view, at = view[done:], at + done
        if at == self.segment:
            self.close()

    def close(self) -> None:
        if self._fd >= 0:
            os.fsync(self._fd)
            os.close(self._fd)
            self._fd = -1


def _write(
    log: Any,
    topic: str,
    kept: Ints,
    within: Sequence[tuple[int, int]],
    root: Path,
    environment: Environment,
    options: dict[str, str],
) -> dict[str, Any]:
    folder = root / "commitlog"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        size = log.segments[0].end - log.segments[0].start if log.segments else 1 << 30
        writer = _LogWriter(folder, size)
        queues = 0
        try:
            for records in _topic_records(log, topic, within, options):
                queues = max(queues, int(np.max(records.field("queue_id"))) + 1)
                chosen = _kept_records(records, kept)
                if len(chosen):
                    sizes = chosen.field("size")
                    _, data = offsets_and_bytes(gather_slices(chosen.buf, chosen.at, sizes))
                    writer.append(data, sizes)
        finally:
            writer.close()
        _write_config(root, log, topic, max(1, queues), environment)
    except Expired as gone:
        raise OutputError(f"output {root} is incomplete: {gone}; delete the directory and run this again") from None
    except OSError as error:
        raise OutputError(f"output {root} cannot be written: {error.strerror or error}") from None
    return {"log": log.name, "path": str(root), "records": writer.records, "bytes": writer.written}


def _topic_records(
    log: Any, topic: str, within: Sequence[tuple[int, int]], options: dict[str, str]
) -> Iterator[Records]:
    where = RecordFilter(topics=frozenset({topic}))
    verify = Options(options).verify
    for part in plan_ranges(log, RANGE_BYTES, RecordFilter(), within):
        with log.open(part.segment) as source:
            for records in scan(source, part.range, verify, names=("KEYS",)):
                if not isinstance(records, Records):
                    continue
                rows = where.matching_rows(records)
                mine = records if rows is None else records.where(rows)
                if len(mine):
                    yield mine


def _kept_records(records: Records, kept: Ints) -> Records:
    """Return the records without a key, and the records at the kept offsets."""
    values = properties_of(records).values("KEYS")
    keyless = pc.fill_null(pc.equal(values, ""), True).to_numpy(zero_copy_only=False)
    places = records.base + records.at
    index = np.searchsorted(kept, places)
    newest = np.zeros(len(places), dtype=np.bool_)
    inside = index < len(kept)
    newest[inside] = kept[index[inside]] == places[inside]
    return records.where(keyless | newest)


def _write_config(root: Path, log: Any, topic: str, queues: int, environment: Environment) -> None:
    """Write topics.json and consumerOffset.json in RocketMQ's format, with the source's own entry for the topic."""
    config = root / "config"
    config.mkdir(exist_ok=True)
    entry: dict[str, Any] = {
        "topicName": topic, "readQueueNums": queues, "writeQueueNums": queues, "perm": 6, "order": False,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0,
    }  # fmt: skip
    if isinstance(log, DirectoryLog):
        entry = _topic_entry(log.files.root / "config" / "topics.json", topic) or entry
    version = {"counter": 1, "timestamp": 0}
    topics = {"topicConfigTable": {topic: entry}, "dataVersion": version}
    (config / "topics.json").write_bytes(orjson.dumps(topics, option=orjson.OPT_INDENT_2))
    offsets: dict[str, dict[str, int]] = {}
    for o in environment.offsets:
        if o.log == log.name and o.topic == topic:
            offsets.setdefault(f"{topic}@{o.group}", {})[str(o.queue_id)] = o.offset
    (config / "consumerOffset.json").write_bytes(orjson.dumps({"offsetTable": offsets}, option=orjson.OPT_INDENT_2))


def _topic_entry(path: Path, topic: str) -> dict[str, Any] | None:
    from gantry_broker.protocol.fastjson import JsonError, loads

    try:
        entry = loads(path.read_bytes())["topicConfigTable"][topic]
    except (OSError, JsonError, KeyError, TypeError):
        return None
    return {str(k): v for k, v in entry.items()} if isinstance(entry, dict) else None
