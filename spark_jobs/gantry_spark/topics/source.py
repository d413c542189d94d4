"""The data source `spark.read.format("rocketmq")`, for batches and streams. docs/spark.md has its options.

The driver asks the brokers for the offsets of each queue (`wire`), plans ranges of offsets (`queues`), and each task
reads its ranges as Arrow batches (`pull`). A stream's offset is JSON by topic and queue. Two offsets fix a batch
of a stream, so Spark's checkpoint repeats it with the same messages.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from gantry_broker.protocol.fastjson import MessageQueue
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from gantry_spark.daemon import keep_blocks
from gantry_spark.errors import SourceError
from gantry_spark.schema import arrow_schema
from gantry_spark.topics.columns import DEFAULT, batches, check_schema, property_names, spark_schema
from gantry_spark.topics.options import Access, ReadOptions, WriteOptions
from gantry_spark.topics.pull import PullSettings
from gantry_spark.topics.queues import (
    Bounds,
    Offsets,
    OffsetTable,
    QueueRange,
    ended_in,
    from_table,
    limited,
    plan,
    queue_text,
    resolve,
    to_table,
)
from gantry_spark.topics.ways import Way
from gantry_spark.topics.wire import Cluster, GroupGone, Pauses

logger = logging.getLogger(__name__)

GIVEN_UP: Final = -1.0
"""In place of a time: the loss of a queue was reported, and the stream goes on without it."""


class QueuePartition(InputPartition):
    """One Spark partition: ranges of queues, and the way to them."""

    def __init__(self, ranges: tuple[QueueRange, ...], way: Way) -> None:
        super().__init__(ranges)
        self.ranges = ranges
        self.way = way


def cluster_of(access: Access) -> Cluster:
    """Return the cluster that options name."""
    return Cluster(access.name_servers, access.trust, access.timeout_s)


class _Reader:
    """What batch and stream have in common."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        check_schema(schema)
        self.schema = schema
        self.options = options
        names = property_names(schema.fieldNames())
        self.settings = PullSettings(options.reader, options.tags, options.verify, options.fail_on_loss, names)
        self._cluster: Cluster | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_cluster": None}

    @property
    def cluster(self) -> Cluster:
        if self._cluster is None:
            self._cluster = cluster_of(self.options.access)
        return self._cluster

    def queues(self) -> list[MessageQueue]:
        """Return the readable queues of the subscription."""
        topics = self.options.topics
        pattern = self.options.pattern
        if pattern is not None:
            topics = tuple(name for name in self.cluster.topics() if pattern.fullmatch(name))
        return [queue for topic in topics for queue in self.cluster.queues(topic)]

    def expect_topics(self, queues: list[MessageQueue]) -> None:
        """Raise SourceError if a named topic has no readable queue."""
        for topic in self.options.topics:
            if not any(queue.topic == topic for queue in queues):
                raise SourceError(f"topic {topic} does not exist, or no broker of it can be read")

    def starts(self, bounds: Mapping[MessageQueue, Bounds]) -> Offsets:
        """Return the offsets at which the read begins."""
        ms = self.options.start_ms
        if ms is None:
            return resolve(self.options.starting, bounds, "startingOffsets")
        # Of several messages at one time the search may name any, so it looks for the time before. The rows are
        # filtered by their times.
        by_time = {q: self.cluster.offset_at(q, max(0, ms - 1)) for q in bounds}
        return {q: min(max(by_time[q], b.first), b.after) for q, b in bounds.items()}

    def tasks(self, ranges: tuple[QueueRange, ...]) -> list[InputPartition]:
        timed = [QueueRange(r.queue, r.start, r.end, self.options.start_ms, self.options.end_ms) for r in ranges]
        way = self.options.logs.way(self.cluster, timed)
        return [QueuePartition(task, way) for task in way.divide(timed, self.options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the Arrow batches of a task."""
        assert isinstance(partition, QueuePartition)
        keep_blocks()  # The session may have a daemon of its own.
        columns, schema = self.schema.fieldNames(), arrow_schema(self.schema)
        cluster = cluster_of(self.options.access)
        try:
            for topic, group, records in partition.way.read(cluster, partition.ranges, self.settings):
                yield from batches(records, topic, group, columns, schema)
        finally:
            cluster.close()


class TopicReader(_Reader, DataSourceReader):
    """Reads topics once."""

    def partitions(self) -> list[InputPartition]:
        queues = self.queues()
        self.expect_topics(queues)
        bounds = self.cluster.bounds(queues)
        start = self.starts(bounds)
        end = self.ends(bounds)
        for queue, bound in bounds.items():
            for option, offset in (("startingOffsets", start[queue]), ("endingOffsets", end[queue])):
                if offset > bound.after:
                    raise SourceError(
                        f"option {option}: {offset} is behind the end {bound.after} of queue {queue_text(queue)} of "
                        f"topic {queue.topic}"
                    )
            named = isinstance(self.options.starting, dict) and isinstance(self.options.ending, dict)
            if named and end[queue] < start[queue]:
                raise SourceError(
                    f"option endingOffsets: {end[queue]} is before startingOffsets {start[queue]} of queue "
                    f"{queue_text(queue)} of topic {queue.topic}; write a later offset, or -1"
                )
            end[queue] = max(start[queue], end[queue])
        planned = plan(start, end, {queue: bound.first for queue, bound in bounds.items()})
        for loss in planned.losses:
            self.settings.lost(loss)
        return self.tasks(planned.ranges)

    def ends(self, bounds: Mapping[MessageQueue, Bounds]) -> Offsets:
        """Return the offsets at which the read ends."""
        ms = self.options.end_ms
        if ms is None:
            return resolve(self.options.ending, bounds, "endingOffsets")
        return {q: min(b.after, self.cluster.offset_at(q, ms) + 1) for q, b in bounds.items()}


class TopicStream(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as they grow."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        super().__init__(schema, options)
        self._target: dict[MessageQueue, Bounds] | None = None
        """The end of a query with the trigger availableNow; None: no end."""
        self._missing: dict[MessageQueue, float] = {}
        """Monotonic time since when a queue is not there, or GIVEN_UP."""
        self._read_up: set[MessageQueue] = set()
        """Queues whose messages were all read when they were last seen."""
        self._committed: Offsets = {}

    def initialOffset(self) -> OffsetTable:
        queues = self.queues()
        self.expect_topics(queues)
        bounds = self.cluster.bounds(queues)
        start = self.starts(bounds)
        for queue, bound in bounds.items():
            if start[queue] > bound.after:
                raise SourceError(
                    f"option startingOffsets: {start[queue]} is behind the end {bound.after} of queue "
                    f"{queue_text(queue)} of topic {queue.topic}"
                )
        return to_table(start)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.options.per_trigger) if self.options.per_trigger else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self.cluster.bounds(self.queues())

    def latestOffset(self, start: OffsetTable, limit: ReadLimit) -> OffsetTable:
        begin = from_table(start, "the checkpoint's offset")
        ended = ended_in(start)
        queues = self.queues()
        pauses = Pauses(self.options.access.timeout_s)
        while True:
            if self._gone(begin, queues, ended) and self._target is not None:
                # A query that ends soon cannot look again with the next batch.
                time.sleep(0.5)
            else:
                there = set(queues)
                closed = self._closed(queues)
                self._commit_progress(begin, there)
                try:
                    bounds = self.cluster.bounds(queues, wait=False)
                    break
                except GroupGone:  # It went after the route was asked for.
                    if not pauses.wait():
                        raise
            queues = self.queues()
        last = {q: b.after for q, b in bounds.items() if b.by_master}
        for queue, bound in bounds.items():
            if begin.get(queue) == bound.after:
                self._read_up.add(queue)
            else:
                self._read_up.discard(queue)
        if self._target is not None:
            bounds = {q: self._until(b, self._target[q]) for q, b in bounds.items() if q in self._target}
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        end = limited(begin, bounds, most)
        return to_table(end, [q for q in end if self._ends(q, end[q], last, closed, q in ended)])

    def _ends(self, queue: MessageQueue, end: int, last: Offsets, closed: set[MessageQueue], ended: bool) -> bool:
        """Return whether a queue may go after this batch, and no message is lost.

        A route without the permission to write is not enough: a broker that is drained still takes what producers send
        by an older route. It goes only after groups have read that, `groupId` too.
        """
        if queue not in last:
            return ended or self._missing.get(queue) == GIVEN_UP
        return bool(self.options.group) and queue in closed and last[queue] == end

    def _closed(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Return the queues of these topics that take no more messages by their route."""
        return {queue for topic in {q.topic for q in queues} for queue in self.cluster.closed(topic)}

    @staticmethod
    def _until(now: Bounds, target: Bounds) -> Bounds:
        after = min(now.after, target.after)
        return Bounds(min(now.first, after), after, now.by_master and target.by_master)

    def _gone(self, begin: Offsets, queues: list[MessageQueue], ended: frozenset[MessageQueue]) -> list[MessageQueue]:
        """Return queues of the checkpoint that are not there and may hold unread messages. Raises SourceError when they
        have not come back in time.

        A broker that restarts is not known to NameServers for a while. A queue of a topic that still exists has gone
        for good without a loss if all of it was read: its group was drained, or the topic has fewer queues now.
        """
        there = set(queues)
        topics = {queue.topic for queue in queues}
        now = time.monotonic()
        waiting: list[MessageQueue] = []
        for queue in begin:
            if queue in there:
                self._missing.pop(queue, None)
                continue
            if (queue in self._read_up or queue in ended) and queue.topic in topics:
                continue
            since = self._missing.setdefault(queue, now)
            if now - since < self.options.access.timeout_s:
                waiting.append(queue)
                self.cluster.forget(queue.topic)
            elif since != GIVEN_UP:
                self.settings.lost(
                    f"queue {queue_text(queue)} of topic {queue.topic} no longer exists, and messages from offset "
                    f"{begin[queue]} on may not have been read"
                )
                self._missing[queue] = GIVEN_UP  # Said once.
        return waiting

    def partitions(self, start: OffsetTable, end: OffsetTable) -> list[InputPartition]:
        begin = from_table(start, "the checkpoint's offset")
        stop = from_table(end, "the checkpoint's offset")
        changed = [q for q, offset in stop.items() if begin.get(q) != offset]
        there = {q for topic in {q.topic for q in changed} for q in self.cluster.queues(topic)}
        first = {q: b.first for q, b in self.cluster.bounds(q for q in changed if q in there).items()}
        # A queue that takes messages again is another one; of one that does not, a shorter queue has lost some.
        planned = plan(begin, stop, first, ended_in(start) - self._closed(changed))
        for loss in planned.losses:
            self.settings.lost(loss)
        return self.tasks(planned.ranges)

    def commit(self, end: OffsetTable) -> None:
        """Do nothing: Spark never calls this for the last batch of a query. See `_commit_progress`."""

    def _commit_progress(self, done: Offsets, there: set[MessageQueue]) -> None:
        """Commit the offsets of `groupId`, so that its lag is what Spark has not processed.

        Spark asks for the latest offset only when all batches up to the start are complete.
        """
        if not self.options.group or done == self._committed:
            return
        try:
            self.cluster.commit(self.options.group, {q: offset for q, offset in done.items() if q in there})
            self._committed = done
        except SourceError as error:
            # The checkpoint counts, and the next batch commits again.
            logger.warning("offsets of group %s are not committed: %s", self.options.group, error)

    def stop(self) -> None:
        self.cluster.close()


class TopicSource(DataSource):
    """The data source `rocketmq`. `gantry_spark.register` registers it with a session."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> StructType:
        options = ReadOptions(dict(self.options), stream=None)
        return spark_schema(options.columns or DEFAULT + (("properties",) if options.with_properties else ()))

    def reader(self, schema: StructType) -> TopicReader:
        return TopicReader(schema, ReadOptions(dict(self.options), stream=False))

    def streamReader(self, schema: StructType) -> TopicStream:
        return TopicStream(schema, ReadOptions(dict(self.options), stream=True))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from gantry_spark.topics.sink import TopicWriter

        if overwrite:
            raise SourceError("mode overwrite: messages of a topic cannot be replaced; write mode append")
        return TopicWriter(schema, WriteOptions(dict(self.options)))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from gantry_spark.topics.sink import TopicStreamWriter

        return TopicStreamWriter(schema, WriteOptions(dict(self.options)))
