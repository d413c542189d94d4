"""The sink `df.write.format("rocketmq")`, for batches and streams. docs/spark.md has its options and columns.

At least once: a task that Spark repeats, and a request without an answer, write rows again. Each row has a unique key
(`UNIQ_KEY`) that is the same in every repetition, so readers can drop repeats: it is a hash of the write (the query's
id and batch in a stream), the task's partition, and the row's content. Equal rows of a partition are numbered.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

from gantry_broker.client.errors import InvalidMessage
from gantry_broker.client.message import MAX_BODY, RESERVED, check_topic
from gantry_broker.client.selection import queue_of_key, writable_queues
from gantry_broker.protocol.codes import AUTO_CREATE_TOPIC, NOT_ALLOWED_SEND_TOPICS, Prop, RequestCode, ResponseCode
from gantry_broker.protocol.fastjson import MessageQueue
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import Long, SendHeader
from gantry_broker.protocol.message import BatchItem, RecordError, encode_batch, format_properties
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from gantry_spark.errors import SourceError
from gantry_spark.topics.columns import COLUMNS as READ_COLUMNS
from gantry_spark.topics.options import WriteOptions
from gantry_spark.topics.ways import is_compacted
from gantry_spark.topics.wire import NOT_NOW, Broken, Cluster, Pauses, Refused

BATCH_MESSAGES: Final = 500
BATCH_BYTES: Final = 512 * 1024
STORE_TRIES: Final = 3
"""Sends of a batch that a broker stores, but not as safely as it should, before the write fails."""
_UNSAFE: Final = frozenset(
    (ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE)
)
_ELSEWHERE: Final = frozenset((*NOT_NOW, *_UNSAFE, ResponseCode.SYSTEM_ERROR))
COLUMNS: Final[dict[str, tuple[tuple[type[DataType], ...], str]]] = {
    "value": ((BinaryType, StringType), "binary or string"),
    "key": ((StringType, BinaryType), "string or binary"),
    "topic": ((StringType,), "string"),
    "tags": ((StringType,), "string"),
    "properties": ((MapType,), "map<string,string>"),
    "delay": ((IntegerType, LongType, ShortType, TimestampType), "int (delay level) or timestamp (delivery time)"),
}
IGNORED: Final = frozenset(READ_COLUMNS) - frozenset(COLUMNS)
"""Columns of the source that a write leaves out, so that what was read can be written."""


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """Rows that a task wrote."""

    rows: int


@dataclass(slots=True)
class Row:
    """A message to send."""

    body: bytes
    properties: dict[str, str]
    key: str
    delayed: bool

    @property
    def size(self) -> int:
        return len(self.body) + 64 + sum(len(k) + len(v) for k, v in self.properties.items())


def check_schema(schema: StructType, topic: str | None) -> None:
    """Check the columns of a write. Raises SourceError."""
    names = schema.fieldNames()
    for column in schema.fields:
        if column.name in IGNORED:
            continue
        if column.name not in COLUMNS:
            raise SourceError(f"column {column.name} is none that can be written; there are {', '.join(COLUMNS)}")
        kinds, what = COLUMNS[column.name]
        good = isinstance(column.dataType, kinds)
        if isinstance(column.dataType, MapType):
            good = all(isinstance(t, StringType) for t in (column.dataType.keyType, column.dataType.valueType))
        if not good:
            raise SourceError(f"column {column.name} is {column.dataType.simpleString()}; write {what}")
    if "value" not in names:
        raise SourceError("column value is missing: the body of each message, binary or string")
    if topic is None and "topic" not in names:
        raise SourceError("give option topic, or a column topic")


class UniqueKeys:
    """Unique keys of the rows of one task: the same for the same rows, in whatever order they come."""

    def __init__(self, write: str, partition: int) -> None:
        self._scope = blake2b(f"{write}\0{partition}".encode(), digest_size=16).digest()
        self._seen: dict[bytes, int] = {}

    def next(self, topic: str, row: Row) -> str:
        """Return the key: 32 hexadecimal digits, as the clients' keys have them.

        The digits of the time within the month are zero, because `mqadmin` searches messages from that time on.
        """
        digest = blake2b(self._scope, digest_size=12)
        for part in (topic, *(f"{k}\1{v}" for k, v in sorted(row.properties.items()))):
            raw = part.encode()
            digest.update(len(raw).to_bytes(4, "big") + raw)
        digest.update(row.body)
        content = digest.digest()
        number = self._seen.get(content, 0)
        self._seen[content] = number + 1
        if number:
            digest.update(number.to_bytes(8, "big"))
            content = digest.digest()
        return (content[:10] + bytes(4) + content[10:]).hex().upper()


@dataclass
class _Queue:
    rows: list[Row] = field(default_factory=list)
    size: int = 0


class Sender:
    """Sends the rows of one task, in batches for one queue each."""

    def __init__(self, cluster: Cluster, options: WriteOptions) -> None:
        self.sent = 0
        self._cluster = cluster
        self._options = options
        self._held: dict[MessageQueue, _Queue] = {}
        self._queues: dict[str, list[MessageQueue]] = {}
        self._turn: dict[str, int] = {}
        self._by_key: set[str] = set()
        """Topics whose rows of one key go to one queue."""

    def add(self, topic: str, row: Row) -> None:
        """Take a row, and send what is complete. Raises SourceError."""
        queues = self._queues.get(topic) or self._look_up(topic)
        if row.key and topic in self._by_key:
            queue = queue_of_key(queues, row.key)
        else:
            queue = queues[self._turn[topic] % len(queues)]
        if row.delayed:
            self._send(queue, [row])
            return
        held = self._held.setdefault(queue, _Queue())
        size = row.size
        if held.rows and held.size + size > BATCH_BYTES:
            self._flush(queue)
            held = self._held.setdefault(queue, _Queue())
        held.rows.append(row)
        held.size += size
        if len(held.rows) >= BATCH_MESSAGES or held.size >= BATCH_BYTES:
            self._flush(queue)

    def finish(self) -> None:
        """Send what is left. Raises SourceError."""
        for queue in list(self._held):
            self._flush(queue)

    def _look_up(self, topic: str) -> list[MessageQueue]:
        try:
            check_topic(topic)
        except InvalidMessage as error:
            raise SourceError(str(error)) from None
        if topic in NOT_ALLOWED_SEND_TOPICS:
            raise SourceError(f"topic {topic} is a system topic; applications cannot send to it")
        pauses = Pauses(self._cluster.timeout_s)
        while True:
            route = self._cluster.route(topic)
            writable = [] if route is None else writable_queues(topic, route)
            if writable:
                if topic not in self._queues and (self._options.by_key or is_compacted(self._cluster, writable[0])):
                    self._by_key.add(topic)
                self._queues[topic] = writable
                # Tasks begin with different queues.
                self._turn.setdefault(topic, time.monotonic_ns() // 1000)
                return writable
            if route is None or not pauses.wait():
                raise SourceError(f"topic {topic} does not exist, or no broker takes messages for it: create it first")
            self._cluster.forget(topic)

    def _flush(self, queue: MessageQueue) -> None:
        held = self._held.pop(queue, None)
        if held is not None:
            self._turn[queue.topic] += 1
            self._send(queue, held.rows)

    def _send(self, queue: MessageQueue, rows: list[Row]) -> None:
        """Send rows until a broker has stored them. Raises SourceError."""
        frame = _frame(self._options.group, queue, rows)
        pauses = Pauses(self._cluster.timeout_s)
        unsafe = 0
        while True:
            problem = f"no NameServer knows the master of group {queue.broker}"
            address = next((a for master, a in self._cluster.addresses(queue.topic, queue.broker) if master), None)
            if address is not None:
                try:
                    connection = self._cluster.connection(address)
                    answer = connection.answer(connection.send_all([frame])[0])
                    if answer.code == ResponseCode.SUCCESS:
                        self.sent += len(rows)
                        return
                    refused = Refused(f"broker {address}", frame.code, answer)
                    unsafe += answer.code in _UNSAFE
                    if answer.code not in _ELSEWHERE or unsafe >= STORE_TRIES:
                        raise refused
                    problem = str(refused)
                except Broken as error:
                    problem = str(error)
                    self._cluster.drop(address)
            if not pauses.wait():
                raise SourceError(f"{len(rows)} messages for {queue} are not acknowledged: {problem}")
            self._cluster.forget(queue.topic)
            if queue.topic not in self._by_key:
                # Another group may take them.
                queues = self._look_up(queue.topic)
                self._turn[queue.topic] += 1
                queue = queues[self._turn[queue.topic] % len(queues)]
                frame = _frame(self._options.group, queue, rows)


def _frame(group: str, queue: MessageQueue, rows: Sequence[Row]) -> Frame:
    batch = len(rows) > 1
    properties = {Prop.WAIT_STORE_MSG_OK: "true"} if batch else rows[0].properties
    header = SendHeader(
        group, queue.topic, AUTO_CREATE_TOPIC, 4, queue.queue_id, 0, Long(time.time_ns() // 1_000_000), 0,
        format_properties(properties).decode(), 0, False, None, batch, queue.broker,
    )  # fmt: skip
    if not batch:
        return Frame(RequestCode.SEND_MESSAGE_V2, ext=header.short_ext(), body=rows[0].body)
    body = encode_batch(BatchItem(row.body, format_properties(row.properties)) for row in rows)
    return Frame(RequestCode.SEND_BATCH_MESSAGE, ext=header.short_ext(), body=body)


def rows_of(batch: Any, topic: str | None, delay_is_time: bool) -> Iterator[tuple[str, Row]]:
    """Yield (topic, message) of the rows of an Arrow batch. Raises SourceError for a row that cannot be sent."""
    count = batch.num_rows
    names = batch.schema.names

    def column(name: str) -> list[Any]:
        return batch.column(name).to_pylist() if name in names else [None] * count

    for number, (value, key, own_topic, tags, properties, delay) in enumerate(
        zip(*(column(n) for n in ("value", "key", "topic", "tags", "properties", "delay")), strict=True)
    ):
        target = topic or own_topic
        if not target:
            raise SourceError(f"row {number} has no topic: fill the column, or give option topic")
        body = b"" if value is None else value.encode() if isinstance(value, str) else bytes(value)
        if len(body) > MAX_BODY:
            raise SourceError(f"row {number} for topic {target} has {len(body)} bytes; at most {MAX_BODY} are allowed")
        own = {name: text or "" for name, text in properties or () if name not in RESERVED}
        try:
            text = key.decode() if isinstance(key, bytes) else key or ""
        except UnicodeDecodeError:
            raise SourceError(f"row {number} for topic {target}: the key is not UTF-8") from None
        if text:
            own[Prop.KEYS] = text
        if tags:
            own[Prop.TAGS] = tags
        delayed = delay is not None and delay != 0
        if delayed and delay_is_time:
            own[Prop.TIMER_DELIVER_MS] = str(round(delay.timestamp() * 1000))
        elif delayed:
            if not 1 <= delay <= 1_000:
                raise SourceError(f"row {number} for topic {target}: {delay} is no delay level; write 1 or more")
            own[Prop.DELAY_TIME_LEVEL] = str(delay)
        yield target, Row(body, own, text, delayed)


class _Writer:
    def __init__(self, schema: StructType, options: WriteOptions) -> None:
        check_schema(schema, options.topic)
        self.options = options
        self.delay_is_time = any(f.name == "delay" and isinstance(f.dataType, TimestampType) for f in schema.fields)

    def send(self, iterator: Iterator[Any]) -> Written:
        """Send the rows of a task. Raises SourceError."""
        from pyspark import TaskContext

        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        batch = None if context is None else context.getLocalProperty("streaming.sql.batchId")
        query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
        write = f"{query}/{batch}" if batch is not None and query is not None else self.options.write_id
        keys = UniqueKeys(write, partition)
        access = self.options.access
        cluster = Cluster(access.name_servers, access.trust, access.timeout_s)
        try:
            sender = Sender(cluster, self.options)
            for arrow in iterator:
                for topic, row in rows_of(arrow, self.options.topic, self.delay_is_time):
                    unique = keys.next(topic, row)
                    row.properties[Prop.UNIQ_CLIENT_MESSAGE_ID_KEYIDX] = unique
                    row.properties[Prop.WAIT_STORE_MSG_OK] = "true"
                    try:
                        sender.add(topic, row)
                    except RecordError as error:
                        raise SourceError(f"a row for topic {topic} cannot be sent: {error}") from None
            sender.finish()
            return Written(sender.sent)
        finally:
            cluster.close()


class TopicWriter(_Writer, DataSourceArrowWriter):
    """Writes a batch."""

    def write(self, iterator: Iterator[Any]) -> Written:
        return self.send(iterator)


class TopicStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes the batches of a stream."""

    def write(self, iterator: Iterator[Any]) -> Written:
        return self.send(iterator)
