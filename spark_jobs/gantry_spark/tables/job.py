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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import orjson
import pyarrow as pa
from gantry_broker.protocol.fastjson import MessageQueue
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.table import Table

from gantry_spark.errors import SourceError
from gantry_spark.tables.commits import (
    commit_rejected,
    commit_rows,
    commit_transaction,
    ends_of,
    open_catalog,
    remove,
    schema_properties,
    set_schema,
    summaries_of,
)
from gantry_spark.tables.executor import Part, Task, first_bad, write_part
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
    acknowledged,
    marks_in,
    next_marks,
    store_times,
    summary,
)
from gantry_spark.tables.parquet import ParquetCatalog, ParquetTable, iceberg_schema
from gantry_spark.tables.partitions import CommitTooLarge, check_parts, parse_parts
from gantry_spark.tables.rows import REJECTED, Place, Shape, places
from gantry_spark.tables.spec import (
    DEFINITION,
    MESSAGE,
    MODE,
    PARTITION_BY,
    SCHEMA,
    SCHEMA_KIND,
    TOPIC,
    BadRecord,
    SchemaProposed,
    TableSpec,
)
from gantry_spark.topics.columns import batches
from gantry_spark.topics.pull import PullSettings, read_range
from gantry_spark.topics.queues import Bounds, Offsets, QueueRange, limited, plan, queue_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

PER_COMMIT: Final = 1_000_000
PER_UPSERT: Final = 200_000
"""Messages of one commit. The driver holds those of a commit by key in memory."""
STAGED_BYTES: Final = 128 * 1_048_576
"""Bytes of rows that the driver holds; it has copies of them while it commits."""
SAMPLE: Final = 1_000
"""Messages from which a schema is inferred."""
MAX_ROUNDS: Final = 16
"""Schemas that one commit tries, each with fields that the one before lacked."""
_NO_RETRY: Final = {"commit.retry.num-retries": "0"}
"""PyIceberg repeats a commit that another one has overtaken, on top of that one. Then both would stay."""


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
                progress = acknowledged(ends_of(table), marks_in(summaries_of(table)))
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
        times = store_times(summaries_of(table))
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
        before = marks_in(() if table is None else summaries_of(table))
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
            _remove(table, parts)
            bad = first_bad(parts)
            end = {q: min(e, bad.get((q.topic, f"{q.broker}:{q.queue_id}"), (e, ""))[0]) for q, e in end.items()}
            planned = plan(start, end, first, others)
            if not planned.ranges:
                raise _does_not_fit(bad)
            shape, parts = self._write(planned.ranges, shape, table, held)
        if self.spec.staged and most > 1 and sum(part.size for part in parts) > STAGED_BYTES:
            _remove(table, parts)
            raise CommitTooLarge(f"one commit would have more than {STAGED_BYTES} bytes of rows")
        self.after("write")
        losses = [*planned.losses, *(loss for part in parts for loss in part.losses)]
        losses += [_other_messages(q, offset, committed_ends[q]) for q, offset in moved.items() if q not in others]
        marks, gone = next_marks(before, end, target, closed, now_ms)
        for loss in gone:
            logger.warning("%s", loss)
        losses += gone
        times = store_times(summaries_of(table)) | _newest_times(parts)
        properties = summary(committed_ends, planned.ranges, end, losses, times, marks)
        commit_rejected(rejected, parts, properties, now_ms)
        self.after("reject")
        committed = commit_rows(self.spec, table, shape, parts, committed_ends, properties, losses, now_ms, self.after)
        self.after("commit")
        behind = sum(max(0, bound.after - end.get(queue, bound.first)) for queue, bound in target.items())
        return Outcome(
            sum(part.rows for part in parts),
            sum(part.rejected for part in parts),
            behind,
            tuple(losses),
            committed,
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
            changed = schema_properties(spec, table, shape)
            if changed:
                table.commit([], table.summary, table.properties | changed, now_ms=_now_ms())
            return
        transaction = table.transaction()
        set_schema(spec, transaction, table, shape)
        commit_transaction(transaction, table)

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
            _remove(table, parts)
            shape = self.spec.shape(widened(shape.fields, settle(more)))
        return shape, parts


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _remove(table: Table, parts: Iterable[Part]) -> None:
    """Delete the files of parts that no commit takes."""
    remove(table, [file for part in parts for file in (*part.files, *part.rejected_files)])


def _newest_times(parts: Iterable[Part]) -> dict[MessageQueue, int]:
    """Return the store time of the newest message of each queue."""
    newest: dict[MessageQueue, tuple[int, int]] = {}
    for part in parts:
        newest |= {q: max(one, newest.get(q, one)) for q, one in part.newest.items()}
    return {q: ms for q, (_, ms) in newest.items()}


def _other_messages(queue: MessageQueue, offset: int, end: int) -> str:
    return (
        f"queue {queue_text(queue)} of topic {queue.topic}: its broker has other messages from offset {offset} on than "
        f"the table, which ended at {end}: it has lost them, or the topic was made again"
    )


def _does_not_fit(bad: Mapping[tuple[str, str], tuple[int, str]]) -> BadRecord:
    (_, partition), (offset, reason) = min(bad.items())
    return BadRecord(
        f"message {offset} of queue {partition} does not fit, and onBadRecord is Suspend: {reason}; widen "
        f"the schema, or write onBadRecord: Reject, which moves the message to the table of rejected ones"
    )


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
