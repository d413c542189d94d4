"""What an executor does for a commit: it reads ranges of offsets, and writes their rows to Parquet files."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from gantry_broker.protocol.fastjson import MessageQueue
from pyiceberg.io import load_file_io

from gantry_spark.tables.fields import (
    SYSTEM,
    Field,
)
from gantry_spark.tables.rows import MESSAGES, REJECTED, Place, Shape, convert_batch, without
from gantry_spark.tables.spec import TableSpec
from gantry_spark.topics.columns import batches, property_names
from gantry_spark.topics.pull import PullSettings
from gantry_spark.topics.queues import QueueRange
from gantry_spark.topics.ways import Way


@dataclass(frozen=True)
class Task:
    """What an executor needs to write its part."""

    spec: TableSpec
    shape: Shape
    location: str
    rejected_location: str
    io: Mapping[str, str]
    way: Way
    held: frozenset[Place]
    """Messages that the table of rejected ones has already: a commit ended before its last step."""


@dataclass
class Part:
    """What an executor wrote."""

    files: list[str] = field(default_factory=list)
    rejected_files: list[str] = field(default_factory=list)
    rows: int = 0
    rejected: int = 0
    size: int = 0
    """Bytes of the rows in memory."""
    new_fields: Field | None = None
    losses: list[str] = field(default_factory=list)
    newest: dict[MessageQueue, tuple[int, int]] = field(default_factory=dict)
    """Offset and store time of the newest message of each queue."""
    first_bad: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)
    """By topic and partition: the offset of the first rejected message, and the reason."""

    def note_newest(self, topic: str, group: str, records: Any) -> None:
        """Note the newest message of each queue."""
        queues, offsets = records.field("queue_id"), records.field("queue_offset")
        for queue_id in np.unique(queues).tolist():
            rows = np.flatnonzero(queues == queue_id)
            at = rows[int(offsets[rows].argmax())]
            queue = MessageQueue(topic, group, queue_id)
            newest = int(offsets[at]), int(records.store_ms[at])
            self.newest[queue] = max(newest, self.newest.get(queue, newest))

    def note_bad(self, rejected: Any) -> None:
        """Note the place and the reason of the first rejected message of each queue."""
        system = rejected.column(SYSTEM).combine_chunks()
        columns = [system.field(n).to_pylist() for n in ("topic", "partition", "offset")]
        for topic, queue, offset, reason in zip(*columns, rejected.column("reason").to_pylist(), strict=True):
            first = (offset, reason)
            self.first_bad[topic, queue] = min(first, self.first_bad.get((topic, queue), first))


def first_bad(parts: list[Part]) -> dict[tuple[str, str], tuple[int, str]]:
    """Return the first rejected message of each queue."""
    bad: dict[tuple[str, str], tuple[int, str]] = {}
    for part in parts:
        for place, first in part.first_bad.items():
            bad[place] = min(first, bad.get(place, first))
    return bad


def write_part(task: Task, ranges: tuple[QueueRange, ...]) -> Part:
    """Read ranges, and write their rows and rejected rows to a file each. Runs in an executor. Raises SourceError."""
    settings = PullSettings(task.spec.group, (), True, False, property_names(MESSAGES.names))
    part = Part()
    io = load_file_io(dict(task.io), task.location)
    name = uuid.uuid4().hex
    good = _File(io, f"{task.location}/{name}.parquet", task.shape.staged())
    bad = _File(io, f"{task.rejected_location}/{name}-rejected.parquet", REJECTED)
    cluster = task.spec.cluster()
    try:
        for topic, group, records in task.way.read(cluster, ranges, settings):
            part.note_newest(topic, group, records)
            for batch in batches(records, topic, group, MESSAGES.names, MESSAGES):
                left = without(batch, task.held)
                while len(left):
                    converted = convert_batch(left, task.shape, part.new_fields)
                    left = left.slice(converted.count)
                    part.new_fields = converted.new_fields
                    if len(converted.rejected):
                        part.note_bad(converted.rejected)
                    good.write(converted.rows)
                    bad.write(converted.rejected)
    finally:
        cluster.close()
        good.close()
        bad.close()
    part.rows, part.rejected, part.size = good.rows, bad.rows, good.size
    part.files, part.rejected_files = good.names(), bad.names()
    part.losses = settings.losses
    return part


class _File:
    """A Parquet file that begins with its first row."""

    def __init__(self, io: Any, path: str, schema: Any) -> None:
        self._io = io
        self._path = path
        self._schema = schema
        self._stream: Any = None
        self._writer: Any = None
        self.rows = self.size = 0

    def write(self, table: Any) -> None:
        if not len(table):
            return
        if self._writer is None:
            self._stream = self._io.new_output(self._path).create(overwrite=True)
            self._writer = pq.ParquetWriter(self._stream, self._schema, compression="zstd")
        self._writer.write_table(table)
        self.rows += len(table)
        self.size += table.nbytes

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._stream.close()

    def names(self) -> list[str]:
        return [self._path] if self.rows else []
