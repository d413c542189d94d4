"""One commit of a table: executors write Parquet files from ranges of offsets, the driver commits them by PyIceberg.

The table itself says where the next commit begins (`offsets`), so no checkpoint is needed. The steps of a commit, each
of which may be the last one of this process:

1. plan: from the offsets in the table's newest snapshot up to what the brokers have;
2. write: files that no table knows yet;
3. reject: commit the rejected rows to `<table>__rejected`, which has offsets of its own;
4. commit: the rows, by a commit that fails unless the table still ends where the plan begins.

A process that begins again after any of them repeats nothing and misses nothing. Files of a commit that did not come
about belong to no table.
"""

from __future__ import annotations

import functools
import logging
import time
import uuid
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from gantry_broker.protocol.fastjson import MessageQueue
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError, ValidationError
from pyiceberg.expressions import In
from pyiceberg.io import load_file_io
from pyiceberg.table import Table, Transaction

from gantry_spark.errors import GantrySparkError, SourceError
from gantry_spark.tables.decoders import AVRO, PROTOBUF, fields_of
from gantry_spark.tables.entry_cache import CATALOG
from gantry_spark.tables.fields import (
    SYSTEM,
    BadSchema,
    Field,
    joined,
    parse_schema,
    settle,
    to_schema,
    unknown_fields,
    widened,
)
from gantry_spark.tables.offsets import (
    NotContinued,
    acknowledged,
    check_continues,
    covered,
    former_group_of,
    group_of,
    marks_in,
    next_marks,
    store_times,
    summary,
    with_losses,
)
from gantry_spark.tables.parquet import TYPE as PARQUET
from gantry_spark.tables.parquet import ParquetCatalog, ParquetTable, iceberg_schema
from gantry_spark.tables.partitions import CommitTooLarge, check_parts, names_of, parse_parts
from gantry_spark.tables.rows import MESSAGES, MODES, REJECTED, Place, Shape, convert_batch, newest, places, without
from gantry_spark.topics.columns import batches, property_names
from gantry_spark.topics.options import PLACES, READERS_GROUP, SHARED, Access, Given, logs_of
from gantry_spark.topics.pull import PullSettings, read_range
from gantry_spark.topics.queues import Bounds, Offsets, QueueRange, limited, plan, queue_text
from gantry_spark.topics.ways import Logs, Way
from gantry_spark.topics.wire import Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

SCHEMAS: Final = ("Raw", "Inferred", "JsonSchema", AVRO, PROTOBUF)
BAD_RECORDS: Final = ("Reject", "Suspend")
PER_COMMIT: Final = 1_000_000
PER_UPSERT: Final = 200_000
"""Messages of one commit. The driver holds those of a commit by key in memory."""
STAGED_BYTES: Final = 128 * 1_048_576
"""Bytes of rows that the driver holds; it has copies of them while it commits."""
SAMPLE: Final = 1_000
"""Messages from which a schema is inferred."""
MAX_ROUNDS: Final = 16
"""Schemas that one commit tries, each with fields that the one before lacked."""
TOPIC: Final = "gantry.topic"
MODE: Final = "gantry.mode"
SCHEMA_KIND: Final = "gantry.schema-kind"
SCHEMA: Final = "gantry.schema"
PARTITION_BY: Final = "gantry.partition-by"
DEFINITION: Final = "gantry.definition"
MESSAGE: Final = "gantry.message"
"""Avro's schema, or Protobuf's descriptors and message, so that a table can be made again."""
_HASHED_PATHS: Final = ("write.object-storage.enabled", "true")
_PLAIN_PATHS: Final = ("write.object-storage.partitioned-paths", "false")
"""The names of files leave out the partition: its value may be longer than a name can be."""
_NO_RETRY: Final = {"commit.retry.num-retries": "0"}
"""PyIceberg repeats a commit that another one has overtaken, on top of that one. Then both would stay."""


class BadRecord(GantrySparkError):
    """A message does not fit, and the table stands still at it."""

    retry = False


class SchemaProposed(GantrySparkError):
    """The schema is inferred, and a person has to accept it. `schema`: as JSON Schema."""

    retry = False

    def __init__(self, topic: str, fields: Field) -> None:
        shown = ", ".join(f"{f.name} {f.kind}" for f in fields.fields[:50])
        super().__init__(
            f"topic {topic}: its messages have the fields {shown}; no table is made before the schema is frozen: write "
            f"freeze: true in spec.table, or --freeze in the command, or take these fields into jsonSchema"
        )
        self.schema = to_schema(fields)


class CatalogFailed(SourceError):
    """The catalog does not answer, or refuses."""


@dataclass(frozen=True)
class TableSpec:
    """A topic and its table. `schema`: JSON Schema, for the kind JsonSchema. `catalog`: properties for PyIceberg.
    `definition`: Avro's schema as JSON, or Protobuf's descriptors in Base64 with the name of a `message`.
    """

    topic: str
    name_servers: str
    catalog: Mapping[str, str]
    namespace: str = "rocketmq"
    mode: str = "Append"
    kind: str = "Raw"
    schema: Any = None
    definition: str = ""
    message: str = ""
    freeze: bool = True
    """Accept an inferred schema. False: `SchemaProposed` is raised with it."""
    on_bad_record: str = "Reject"
    partition_by: tuple[str, ...] = ()
    group: str = READERS_GROUP
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of the source `rocketmq` that say how to reach the brokers: accessKey, tls, ..."""
    per_commit: int = 0

    def __post_init__(self) -> None:
        """Check the fields. Raises BadSchema."""
        if self.mode not in MODES:
            raise BadSchema(f"mode {self.mode!r}; write {' or '.join(MODES)}")
        if self.kind not in SCHEMAS:
            raise BadSchema(f"schema {self.kind!r}; write one of {', '.join(SCHEMAS)}")
        if (self.kind == "JsonSchema") != (self.schema is not None):
            raise BadSchema("a JSON Schema belongs to the schema JsonSchema, and only to that")
        if self.by_key and self.catalog.get("type") == PARQUET:
            raise BadSchema("format Parquet has the mode Append only: a row cannot be replaced; write format Iceberg")
        if self.on_bad_record not in BAD_RECORDS:
            raise BadSchema(f"onBadRecord {self.on_bad_record!r}; write {' or '.join(BAD_RECORDS)}")
        if (self.kind in (AVRO, PROTOBUF)) != bool(self.definition) or (self.kind == PROTOBUF) != bool(self.message):
            raise BadSchema("the schemas Avro and Protobuf need a definition, and Protobuf a message")
        self.fields()
        parse_parts(self.partition_by)

    def fields(self) -> Field | None:
        """Return the fields of a schema that is given; None: the messages decide, or there are none. Raises
        BadSchema.
        """
        if self.schema is not None:
            return parse_schema(self.schema)
        if self.kind in (AVRO, PROTOBUF):
            # By way of JSON Schema, which names what no table can have.
            return parse_schema(to_schema(fields_of(self.kind, self.definition, self.message)))
        return None

    def shape(self, fields: Field | None) -> Shape:
        """Return the shape of the rows."""
        return Shape(fields, self.by_key, self.kind, self.definition, self.message, self.taken)

    @property
    def taken(self) -> frozenset[str]:
        """Names of columns that readers may see besides those of the bodies, in lower case."""
        return names_of(parse_parts(self.partition_by))

    @property
    def staged(self) -> bool:
        """The driver brings the rows into the table's files, by key or by partition."""
        return self.by_key or bool(self.partition_by)

    @property
    def by_key(self) -> bool:
        return self.mode == "Upsert"

    @property
    def identifier(self) -> tuple[str, str]:
        return self.namespace, self.topic

    @property
    def table_group(self) -> str:
        """The consumer group that has the table's progress."""
        return group_of(self.namespace, self.topic, self.catalog)

    @property
    def former_group(self) -> str:
        """The consumer group that had it before, together with the tables of other catalogs."""
        return former_group_of(self.namespace, self.topic, self.catalog)

    @property
    def rejected_identifier(self) -> tuple[str, str]:
        return self.namespace, f"{self.topic}__rejected"

    def cluster(self) -> Cluster:
        """Return the cluster. Raises SourceError."""
        access = Access(self._given())
        return Cluster(access.name_servers, access.trust, access.timeout_s)

    def logs(self) -> Logs:
        """Return where logs are looked for. Raises SourceError."""
        return logs_of(self._given())

    def _given(self) -> Given:
        return Given({**self.options, "nameServers": self.name_servers}, (*SHARED, *PLACES))


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


@dataclass(frozen=True)
class Outcome:
    """What a commit did. `behind`: messages that are left."""

    rows: int
    rejected: int
    behind: int
    losses: tuple[str, ...]
    snapshot_id: int | None


def _ignore(step: str) -> None:
    """Do nothing after a step."""


class TableJob:
    """The job of one table. `after` is called with the name of each step that is complete; tests end the job there."""

    def __init__(self, spec: TableSpec, spark: SparkSession | None, after: Callable[[str], None] = _ignore) -> None:
        """Without a session the driver writes the files itself."""
        self.spec = spec
        self.spark = spark
        self.after = after
        self.cluster = spec.cluster()
        self.settings = PullSettings(spec.group, (), True, False)
        self.unacknowledged = ""
        """Why drains do not wait for this table; empty: they do."""
        self._acknowledged: Offsets = {}
        self._with_former: set[str] | None = None
        """Broker groups that have the former consumer group; None: not asked yet."""

    @functools.cached_property
    def catalog(self) -> Any:
        """The catalog. Raises CatalogFailed, BadSchema."""
        return open_catalog(self.spec.catalog)

    # ---- one run

    def run(self, progress: Callable[[int, int], None] | None = None, *, is_kept: bool = True) -> list[Outcome]:
        """Commit until the table has all messages that there were at the start.

        `progress` is called after each commit with the messages done, and all of them. Without `is_kept` no drain waits
        for a table that does not exist yet. Raises SourceError, BadSchema, SchemaProposed, NotContinued.
        """
        # Before the bounds: what comes by an older route than this is not yet within them.
        closed = self.cluster.closed(self.spec.topic)
        target = self._bounds()
        outcomes: list[Outcome] = []
        count = 0
        self._acknowledge(target, is_kept)  # First: what fails below must not hide from drains what the table lacks.
        moved = self._moved(target)
        most = self.spec.per_commit or (PER_UPSERT if self.spec.staged else PER_COMMIT)
        while True:
            try:
                done = self.commit(target, most, moved, closed)
            except CommitTooLarge:
                if most == 1:
                    raise
                most = max(1, most // 8)
                continue
            if done is None:
                break
            outcomes.append(done)
            self._acknowledge(target)
            moved = {}
            count += done.rows + done.rejected
            if progress is not None:
                progress(count, count + done.behind)
            if not done.behind:
                break
        return outcomes

    def _bounds(self) -> dict[Any, Bounds]:
        queues = self.cluster.queues(self.spec.topic)
        if not queues:
            raise SourceError(f"topic {self.spec.topic} does not exist, or no broker of it can be read")
        return self.cluster.bounds(queues)

    def _acknowledge(self, target: Mapping[Any, Bounds], is_kept: bool = True) -> None:
        """Commit the progress of the table to its consumer group, so that a drain waits for what it lacks.

        It lacks all of a queue that it does not know. While the catalog does not say what the table has, the progress
        that the group has stays.
        """
        progress: Offsets = {}
        failure: Exception | None = None
        try:
            table = self.find()
            if table is not None:
                progress = acknowledged(ends_of(table), marks_in(_summaries(table)))
            elif not is_kept:
                return
        except Exception as error:
            failure = error
        offsets = {q: progress.get(q, b.first) for q, b in target.items() if b.by_master}
        group = self.spec.table_group
        try:
            if failure is not None:
                offsets = {q: first for q, first in offsets.items() if self.cluster.offset_of(group, q) is None}
            if offsets != self._acknowledged:
                self.cluster.commit(group, offsets)
                if failure is None:
                    self._commit_former(offsets)
                self._acknowledged, self.unacknowledged = offsets, ""
        except SourceError as error:
            # The table counts, and the next run commits again.
            self.unacknowledged = f"drains do not wait for it: its group {group}: {error}"
            logger.warning("table %s: %s", self.spec.topic, self.unacknowledged)
        if failure is not None:
            raise failure

    def _commit_former(self, offsets: Offsets) -> None:
        """Commit to the former group where there is one, so that no drain waits for what nobody commits any more.
        Raises SourceError.
        """
        group = self.spec.former_group
        if self._with_former is None:
            first = {queue.broker: queue for queue in sorted(offsets, key=lambda q: -q.queue_id)}
            self._with_former = {b for b, q in first.items() if self.cluster.offset_of(group, q) is not None}
        self.cluster.commit(group, {q: offset for q, offset in offsets.items() if q.broker in self._with_former})

    def _moved(self, target: Mapping[Any, Bounds]) -> Offsets:
        """Return where the table goes on in queues whose last messages are no longer those that it has: their broker
        has lost them, or the topic was made again. Raises SourceError.

        There it goes on with the first message that was stored after the last one that it has.
        """
        table = self.find()
        if table is None:
            return {}
        times = store_times(_summaries(table))
        moved: Offsets = {}
        for queue, end in ends_of(table).items():
            bound, newest_ms = target.get(queue), times.get(queue)
            if bound is None or not bound.by_master or newest_ms is None or end <= bound.first:
                continue
            if end <= bound.after and self._store_ms(queue, end - 1) in (newest_ms, None):
                continue
            low, high = bound.first, min(end, bound.after)
            while low < high:
                middle = (low + high) // 2
                found_ms = self._store_ms(queue, middle)
                if found_ms is None or found_ms <= newest_ms:
                    low = middle + 1
                else:
                    high = middle
            if low != end:
                moved[queue] = low
        return moved

    def _store_ms(self, queue: MessageQueue, offset: int) -> int | None:
        """Return the store time of a message; None: there is none. Raises SourceError."""
        for records in read_range(self.cluster, QueueRange(queue, offset, offset + 1), self.settings):
            return int(records.store_ms[0])
        return None

    def commit(
        self,
        target: Mapping[Any, Bounds],
        most: int,
        moved: Offsets,
        closed: Collection[MessageQueue] = frozenset(),
    ) -> Outcome | None:
        """Make one commit of at most so many messages up to `target`; None: the table has them all. `moved`: where
        queues go on, other than the table says; `closed`: queues that take no more messages. Raises as `run`, and
        CommitTooLarge.
        """
        table = self.find()
        if table is not None:
            self._check_settings(table)
        committed_ends = {} if table is None else ends_of(table)
        before = marks_in(() if table is None else _summaries(table))
        now_ms = _now_ms()
        start = {**committed_ends, **moved}
        end = limited(start, target, most)
        if end == committed_ends and next_marks(before, end, target, closed, now_ms)[0] == before:
            self._take_schema(table)
            return None
        # A queue that had ended and takes messages again is another one; of one that does not, messages were lost.
        others = {q for q, ended in before.ended.items() if ended == committed_ends.get(q) and q not in closed}
        first = {queue: bound.first for queue, bound in target.items()}
        planned = plan(start, end, first, others)
        if table is None and not planned.ranges:
            self._take_schema(None)
            return None
        for loss in planned.losses:
            logger.warning("%s", loss)
        shape, table = self._table(table, planned.ranges)
        rejected = self._rejected_table()
        self.after("plan")
        held = _held(rejected, planned.ranges)
        shape, parts = self._write(planned.ranges, shape, table, held)
        if self.spec.on_bad_record == "Suspend" and any(part.first_bad for part in parts):
            remove(table, [f for part in parts for f in (*part.files, *part.rejected_files)])
            bad = _first_bad(parts)
            end = {q: min(e, bad.get((q.topic, f"{q.broker}:{q.queue_id}"), (e, ""))[0]) for q, e in end.items()}
            planned = plan(start, end, first, others)
            if not planned.ranges:
                (_, partition), (offset, reason) = min(bad.items())
                raise BadRecord(
                    f"message {offset} of queue {partition} does not fit, and onBadRecord is Suspend: {reason}; widen "
                    f"the schema, or write onBadRecord: Reject, which moves the message to the table of rejected ones"
                )
            shape, parts = self._write(planned.ranges, shape, table, held)
        if self.spec.staged and most > 1 and sum(part.size for part in parts) > STAGED_BYTES:
            remove(table, [f for part in parts for f in (*part.files, *part.rejected_files)])
            raise CommitTooLarge(f"one commit would have more than {STAGED_BYTES} bytes of rows")
        self.after("write")
        losses = [*planned.losses, *(loss for part in parts for loss in part.losses)]
        losses += [
            f"queue {queue_text(q)} of topic {q.topic}: its broker has other messages from offset {offset} on than the "
            f"table, which ended at {committed_ends[q]}: it has lost them, or the topic was made again"
            for q, offset in moved.items()
            if q not in others
        ]
        marks, gone = next_marks(before, end, target, closed, now_ms)
        for loss in gone:
            logger.warning("%s", loss)
        losses += gone
        newest: dict[MessageQueue, tuple[int, int]] = {}
        for part in parts:
            newest |= {q: max(one, newest.get(q, one)) for q, one in part.newest.items()}
        times = store_times(_summaries(table)) | {q: ms for q, (_, ms) in newest.items()}
        properties = summary(committed_ends, planned.ranges, end, losses, times, marks)
        self._commit_rejected(rejected, parts, properties)
        self.after("reject")
        committed = self._commit_rows(table, shape, parts, committed_ends, properties, losses)
        self.after("commit")
        behind = sum(max(0, bound.after - end.get(queue, bound.first)) for queue, bound in target.items())
        return Outcome(
            sum(part.rows for part in parts),
            sum(part.rejected for part in parts),
            behind,
            tuple(losses),
            None if committed is None else committed,
        )

    # ---- tables

    def find(self) -> Table | None:
        """Return the table; None: it does not exist yet."""
        return self._find(self.spec.identifier)

    def both(self) -> list[Table]:
        """Return the table and that of its rejected rows, as far as they exist."""
        tables = (self._find(one) for one in (self.spec.identifier, self.spec.rejected_identifier))
        return [table for table in tables if table is not None]

    def _find(self, identifier: tuple[str, str]) -> Table | None:
        try:
            table: Table = self.catalog.load_table(identifier)
        except NoSuchTableError:
            return None
        return table

    def _create(
        self, identifier: tuple[str, str], columns: Any, properties: dict[str, str], partition_by: Sequence[str] = ()
    ) -> Any:
        if isinstance(self.catalog, ParquetCatalog):
            return self.catalog.create(identifier, columns, properties, partition_by, _now_ms())
        self.catalog.create_namespace_if_not_exists(identifier[0])
        parts = parse_parts(partition_by)
        try:
            transaction = self.catalog.create_table_transaction(identifier, columns, properties=properties | _NO_RETRY)
            check_parts(parts, transaction.table_metadata.schema())
            if parts:
                with transaction.update_spec() as update:
                    for part in parts:
                        update.add_field(part.column, part.transform, part.name)
            transaction.commit_transaction()
        except (TableAlreadyExistsError, CommitFailedException):
            logger.info("table %s exists already", ".".join(identifier))
        return self.catalog.load_table(identifier)

    def _rejected_table(self) -> Table:
        table = self._find(self.spec.rejected_identifier)
        return table or self._create(self.spec.rejected_identifier, REJECTED, {TOPIC: self.spec.topic})

    def _table(self, table: Table | None, ranges: tuple[QueueRange, ...]) -> tuple[Shape, Table]:
        """Return the table and the shape of its rows. A table that does not exist is made."""
        spec = self.spec
        if table is None:
            fields = self._infer(ranges) if spec.kind == "Inferred" else spec.fields()
            if spec.kind == "Inferred" and not spec.freeze and fields is not None:
                raise SchemaProposed(spec.topic, fields)
            shape = spec.shape(fields)
            properties = {TOPIC: spec.topic, MODE: spec.mode, SCHEMA_KIND: spec.kind}
            if spec.partition_by:
                properties[PARTITION_BY] = orjson.dumps(spec.partition_by).decode()
            if spec.definition:
                properties |= {DEFINITION: spec.definition, MESSAGE: spec.message}
            if fields is not None:
                properties[SCHEMA] = orjson.dumps(to_schema(fields)).decode()
            table = self._create(spec.identifier, shape.arrow(), properties, spec.partition_by)
        own = table.properties
        fields = parse_schema(orjson.loads(own[SCHEMA])) if SCHEMA in own else None
        given = spec.fields()
        if given is not None and fields is not None:
            fields = widened(fields, given)
        shape = spec.shape(fields)
        check_parts(parse_parts(spec.partition_by), iceberg_schema(shape.arrow()))
        return shape, table

    def _take_schema(self, table: Table | None) -> None:
        """Compare the table with a specification that may have changed, and add the columns that it lacks. Raises
        BadSchema, NotContinued.

        Without a table compare only what is given: a schema that is inferred needs messages.
        """
        spec = self.spec
        if table is None:
            if spec.kind != "Inferred":
                check_parts(parse_parts(spec.partition_by), iceberg_schema(spec.shape(spec.fields()).arrow()))
            return
        shape, _ = self._table(table, ())
        if isinstance(table, ParquetTable):
            changed = self._schema_properties(table, shape)
            if changed:
                table.commit([], table.summary, table.properties | changed, now_ms=_now_ms())
            return
        transaction = table.transaction()
        self._set_schema(transaction, table, shape)
        _commit(transaction, table)

    def _schema_properties(self, table: Table | ParquetTable, shape: Shape) -> dict[str, str]:
        """Return the properties by which a table keeps its schema, as far as they change."""
        if shape.fields is None:
            return {}
        text = orjson.dumps(to_schema(shape.fields)).decode()
        if table.properties.get(SCHEMA) == text:
            return {}
        more = {DEFINITION: self.spec.definition, MESSAGE: self.spec.message} if self.spec.definition else {}
        return {SCHEMA: text, **more}

    def _set_schema(self, transaction: Transaction, table: Table, shape: Shape) -> None:
        """Add columns and set the properties of the schema. Raises BadSchema, NotContinued."""
        if table.properties.get("commit.retry.num-retries") != "0":
            name = ".".join(self.spec.identifier)
            raise NotContinued(f"table {name}: set its property commit.retry.num-retries to 0, as it was made with")
        _add_columns(transaction, table, shape)
        if changed := self._schema_properties(table, shape):
            transaction.set_properties(changed)

    def _check_settings(self, table: Table) -> None:
        """Raise BadSchema if a table was made with other settings."""
        spec = self.spec
        own = table.properties
        parts = orjson.dumps(spec.partition_by).decode() if spec.partition_by else None
        for name, value in (
            (TOPIC, spec.topic), (MODE, spec.mode), (SCHEMA_KIND, spec.kind), (PARTITION_BY, parts),
        ):  # fmt: skip
            if own.get(name) != value:
                raise BadSchema(
                    f"table {'.'.join(spec.identifier)} has {name} = {own.get(name)}, not {value}: rebuild it, or "
                    f"leave the setting as it was"
                )

    def _infer(self, ranges: tuple[QueueRange, ...]) -> Field:
        inferred: Field | None = None
        none = Field(SYSTEM, "object")
        seen = 0
        values = pa.schema([("value", pa.binary())])
        for queue_range in ranges:
            for records in read_range(self.cluster, queue_range, self.settings):
                for batch in batches(records, queue_range.queue.topic, queue_range.queue.broker, ("value",), values):
                    for body in batch.column("value").to_pylist()[:SAMPLE]:
                        try:
                            value = orjson.loads(body or b"")
                        except orjson.JSONDecodeError:
                            continue
                        more = unknown_fields(none, value) if isinstance(value, dict) else None
                        if more is not None:
                            with suppress(BadSchema):  # The row is rejected then.
                                inferred = joined(none, inferred, more, self.spec.taken)
                                seen += 1
                if seen >= SAMPLE:
                    break
        if inferred is None:
            raise BadSchema(
                f"topic {self.spec.topic}: no message is a JSON object with fields that a table can have, so no schema "
                f"can be inferred; use Raw"
            )
        return parse_schema(to_schema(settle(inferred)))

    # ---- writing

    def _write(
        self, ranges: tuple[QueueRange, ...], shape: Shape, table: Table, held: frozenset[Place]
    ) -> tuple[Shape, list[Part]]:
        """Write the files of all ranges; again with a wider schema while messages have fields that it lacks."""
        place = rejected_place = f"{table.location().rstrip('/')}/data"
        if isinstance(self.catalog, ParquetCatalog):
            place = self.catalog.staging(self.spec.identifier)
            rejected_place = self.catalog.staging(self.spec.rejected_identifier)
        location = uuid.uuid4().hex
        way = self.spec.logs().way(self.cluster, ranges)
        tasks = way.divide(ranges, 1)
        for round_number in range(MAX_ROUNDS):
            task = Task(
                self.spec, replace(shape, complete=round_number == MAX_ROUNDS - 1),
                f"{place}/{location}-{round_number}", f"{rejected_place}/{location}-{round_number}",
                dict(table.io.properties), way, held,
            )  # fmt: skip
            work = functools.partial(write_part, task)
            if self.spark is None or not tasks:
                parts = [work(one) for one in tasks]
            else:
                parts = self.spark.sparkContext.parallelize(tasks, len(tasks)).map(work).collect()
            more: Field | None = None
            for part in parts:
                if part.new_fields is not None and shape.fields is not None:
                    with suppress(BadSchema):  # In the next round, what does not fit beside the others is rejected.
                        more = joined(shape.fields, more, part.new_fields, self.spec.taken)
            if more is None or shape.fields is None:
                break
            remove(table, [f for part in parts for f in (*part.files, *part.rejected_files)])
            shape = self.spec.shape(widened(shape.fields, settle(more)))
        return shape, parts

    # ---- commits

    def _commit_rejected(self, table: Table, parts: list[Part], properties: dict[str, str]) -> None:
        files = [file for part in parts for file in part.rejected_files]
        if not files:
            return
        if isinstance(table, ParquetTable):
            table.commit(table.described(files), properties, now_ms=_now_ms())
            return
        transaction = table.transaction()
        _append_files(transaction, files, properties)
        _commit(transaction, table)

    def _commit_rows(
        self, table: Table, shape: Shape, parts: list[Part], start: Offsets, properties: dict[str, str],
        losses: Sequence[str],
    ) -> int | None:  # fmt: skip
        name = ".".join(self.spec.identifier)
        # The requirement of PyIceberg's commit is the snapshot that this object has loaded.
        table.refresh()
        check_continues(start, ends_of(table), name)
        if isinstance(table, ParquetTable):
            return self._commit_parquet(table, shape, parts, properties, losses)
        transaction = table.transaction()
        files = [file for part in parts for file in part.files]
        self._set_schema(transaction, table, shape)
        if lost := with_losses(table.properties, losses, _now_ms()):
            transaction.set_properties(lost)
        if self.spec.partition_by and table.properties.get(_PLAIN_PATHS[0]) != _PLAIN_PATHS[1]:
            transaction.set_properties(dict([_PLAIN_PATHS, _HASHED_PATHS]))
        if not self.spec.staged:
            _append_files(transaction, files, properties)
            _commit(transaction, table)
        else:
            staged = [_read_file(table, file) for file in files]
            rows: Any = None
            keys: list[str] = []
            if staged:
                rows = pa.concat_tables(staged)
                if shape.by_key:
                    rows, keys = newest(rows, shape)
            if keys and table.current_snapshot() is not None:
                # Its snapshot lacks the new rows: a table that is set back to it begins where this commit began.
                before = marks_in(_summaries(table))
                lacking = summary(start, (), {}, (), store_times(_summaries(table)), before)
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", "Delete operation did not match any records")
                    transaction.delete(_is_in(shape.key, keys), snapshot_properties=lacking)
            if rows is not None and len(rows):
                transaction.append(rows, snapshot_properties=properties)
            else:
                _append_files(transaction, [], properties)
            _commit(transaction, table)
            remove(table, files)
        snapshot = table.current_snapshot()
        return None if snapshot is None else snapshot.snapshot_id

    def _commit_parquet(
        self, table: ParquetTable, shape: Shape, parts: list[Part], properties: dict[str, str], losses: Sequence[str]
    ) -> int:
        files = [file for part in parts for file in part.files]
        own = table.properties | with_losses(table.properties, losses, _now_ms())
        own |= self._schema_properties(table, shape)
        placed = files
        if self.spec.partition_by and files:
            rows = pa.concat_tables([_read_file(table, file) for file in files])
            placed = table.stage(rows, parse_parts(self.spec.partition_by))
        version = table.commit(table.described(placed), properties, own, now_ms=_now_ms(), after=self.after)
        if placed is not files:
            remove(table, files)
        return version


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _is_in(column: str, values: list[str]) -> Any:
    make: Any = In  # Its annotations hide the arguments.
    return make(column, values)


def _held(rejected: Table, ranges: Sequence[QueueRange]) -> frozenset[Place]:
    """Return the messages of these ranges that are in the table of rejected ones. It has some only if a commit ended
    before its last step, if the table was set back, or if the topic was made again.
    """
    ends = ends_of(rejected)
    if all(ends.get(one.queue, 0) <= one.start for one in ranges):
        return frozenset()
    rows = rejected.scan(selected_fields=(SYSTEM,)).to_arrow()
    if not len(rows):
        return frozenset()
    system = pa.Table.from_struct_array(rows.column(SYSTEM).combine_chunks())
    by_partition = {f"{one.queue.broker}:{one.queue.queue_id}": one for one in ranges}
    return frozenset(
        place
        for place in places(system)
        if (queue_range := by_partition.get(place[0])) is not None and queue_range.start <= place[1] < queue_range.end
    )


def _first_bad(parts: list[Part]) -> dict[tuple[str, str], tuple[int, str]]:
    """Return the first rejected message of each queue."""
    bad: dict[tuple[str, str], tuple[int, str]] = {}
    for part in parts:
        for place, first in part.first_bad.items():
            bad[place] = min(first, bad.get(place, first))
    return bad


def open_catalog(properties: Mapping[str, str]) -> Any:
    """Open a catalog. Raises CatalogFailed, BadSchema."""
    if properties.get("type") == PARQUET:
        return ParquetCatalog(properties)
    try:
        return load_catalog(CATALOG, **dict(properties))
    except Exception as error:
        raise CatalogFailed(f"the catalog cannot be opened: {error}") from None


def ends_of(table: Table) -> Offsets:
    """Return the ends of the queues in a table. Raises NotContinued."""
    if isinstance(table, ParquetTable):
        return table.ends()
    return covered(_summaries(table), ".".join(table.name()))


def _summaries(table: Table) -> Iterator[Mapping[str, str]]:
    """Yield the summaries of a table's snapshots from the current one back to the first that still exists."""
    if isinstance(table, ParquetTable):
        yield table.summary
        return
    at = table.current_snapshot()
    while at is not None:
        yield dict(at.summary.additional_properties) if at.summary is not None else {}
        at = None if at.parent_snapshot_id is None else table.metadata.snapshot_by_id(at.parent_snapshot_id)


def _append_files(transaction: Transaction, files: list[str], properties: dict[str, str]) -> None:
    """Add files to a table. Without files the snapshot has the offsets alone."""
    if files:
        transaction.add_files(files, snapshot_properties=properties, check_duplicate_files=False)
    else:
        with transaction.update_snapshot(snapshot_properties=properties).fast_append():
            pass


def _add_columns(transaction: Transaction, table: Table, shape: Shape) -> None:
    """Add the columns that a table lacks: new ones, and those that another engine has removed or given another name.
    Raises BadSchema.
    """
    name = ".".join(table.name())
    columns = shape.arrow()
    lacking = set(iceberg_schema(columns).column_names) - set(table.schema().column_names)
    if shape.by_key and shape.key in lacking:
        raise BadSchema(f"table {name} lacks the column {shape.key}, by which it is kept: rebuild it")
    try:
        # Also without new names: it compares the types.
        with transaction.update_schema() as update:
            update.union_by_name(columns)
    except (ValidationError, ValueError) as error:
        raise BadSchema(
            f"table {name} has a column of another type than its messages ({error}): another program changed it; "
            f"give that column another name, or rebuild the table"
        ) from None
    if lacking and table.current_snapshot() is not None:
        logger.info("table %s gets the columns %s", name, ", ".join(sorted(lacking)))


def _commit(transaction: Transaction, table: Table) -> None:
    try:
        transaction.commit_transaction()
    except CommitFailedException as error:
        raise NotContinued(f"table {'.'.join(table.name())}: another commit came first: {error}") from None


def remove(table: Any, files: list[str]) -> None:
    """Delete files that belong to no table."""
    for file in files:
        try:
            table.io.delete(file)
        except Exception as error:
            logger.warning("%s cannot be deleted: %s", file, error)


def _read_file(table: Any, file: str) -> Any:
    with table.io.new_input(file).open() as opened:
        return pq.read_table(opened)


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
