"""Source and sink by topic against a running cluster, with kinds of messages that a consumer sees in different ways.

`python -m tests.spark.topic_tour NAMESERVERS FOLDER` runs it in a process of its own, which may be in another network.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gantry_broker.client import Admin, Message, Producer
from gantry_broker.client.transactions import TransactionProducer, TransactionState
from gantry_broker.protocol.bodies import SubscriptionGroup
from gantry_broker.protocol.fastjson import MessageQueue

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Expected = dict[tuple[str, int, int], tuple[bytes, str | None, str | None]]


DECISIONS = ((b"yes", TransactionState.COMMIT), (b"no", TransactionState.ROLLBACK), (b"open", TransactionState.UNKNOWN))


async def _undecided(_: object) -> TransactionState:
    return TransactionState.UNKNOWN


def _work(state: TransactionState) -> Any:
    async def work(*_: object) -> TransactionState:
        return state

    return work


class Tour:
    """One tour in one topic. `levels`: seconds of delay level 1."""

    def __init__(self, spark: SparkSession, name_servers: str, folder: Path, topic: str) -> None:
        self.spark = spark
        self.servers = name_servers
        self.folder = folder
        self.topic = topic
        self.expected: Expected = {}

    def options(self, **more: Any) -> dict[str, str]:
        return {"nameServers": self.servers, "timeoutMs": "20000"} | {k: str(v) for k, v in more.items()}

    def read(self, **more: Any) -> DataFrame:
        return self.spark.read.format("rocketmq").options(**self.options(subscribe=self.topic) | more).load()

    def rows(self, **more: Any) -> Expected:
        found: Expected = {}
        for row in self.read(**more).collect():
            group, _, queue = row.partition.rpartition(":")
            place = (group, int(queue), row.offset)
            assert place not in found
            found[place] = (bytes(row.value), None if row.key is None else bytes(row.key).decode(), row.tags)
        return found

    async def send(self) -> None:
        """Send messages of all kinds, and note where the visible ones are."""
        async with Admin(self.servers) as admin:
            await admin.create_topic(self.topic, queues=3)
            await admin.create_topic(f"{self.topic}-copy", queues=2)
            await admin.create_group(SubscriptionGroup(f"{self.topic}-group"))
        async with Producer(self.servers, f"{self.topic}-producer") as producer:
            for number in range(90):
                body = f"{number}".encode() * (1 if number % 10 else 3000)
                message = Message(self.topic, body, tags="ABC"[number % 3], keys=f"k{number}" if number % 4 else "")
                self._note(await producer.send(message), message)
            many = [Message(self.topic, b"batch %d" % n, keys=["b", str(n)]) for n in range(50)]
            result = await producer.send_batch(many)
            for number, message in enumerate(many):
                place = (result.queue.broker, result.queue.queue_id, result.queue_offset + number)
                self.expected[place] = (message.body, f"b {number}", None)
            await producer.send(Message(self.topic, b"late", delay_level=1))
        async with TransactionProducer(self.servers, f"{self.topic}-half", _undecided) as half:
            for text, state in DECISIONS:
                await half.send_in_transaction(Message(self.topic, text), _work(state))

    def _note(self, result: Any, message: Message) -> None:
        place = (result.queue.broker, result.queue.queue_id, result.queue_offset)
        keys = message.keys if isinstance(message.keys, str) else " ".join(message.keys)
        self.expected[place] = (message.body, keys or None, message.tags or None)

    def run(self) -> None:
        """Check the source and the sink."""
        asyncio.run(self.send())
        self.all_that_a_consumer_sees()
        self.tags_and_ranges()
        self.a_stream_with_a_group()
        self.written_rows_come_back()

    def all_that_a_consumer_sees(self) -> None:
        end = time.monotonic() + 60
        while True:
            found = self.rows()
            others = {place: row for place, row in found.items() if place not in self.expected}
            # The delayed message once due, and the committed half message.
            if sorted(row[0] for row in others.values()) == [b"late", b"yes"]:
                break
            assert time.monotonic() < end, others
        assert {place: found[place] for place in self.expected} == self.expected
        self.expected = found

    def tags_and_ranges(self) -> None:
        assert self.rows(tags="A || C") == {p: r for p, r in self.expected.items() if r[2] in ("A", "C")}
        ends = {
            q: max(o for g, n, o in self.expected if f"{g}:{n}" == q) + 1
            for q in {f"{g}:{n}" for g, n, _ in self.expected}
        }
        starting = "{" + f'"{self.topic}": {{' + ", ".join(f'"{q}": 3' for q in ends) + "}}"
        ending = "{" + f'"{self.topic}": {{' + ", ".join(f'"{q}": {e - 2}' for q, e in ends.items()) + "}}"
        wanted = {p: r for p, r in self.expected.items() if 3 <= p[2] < ends[f"{p[0]}:{p[1]}"] - 2}
        assert self.rows(startingOffsets=starting, endingOffsets=ending, minPartitions="5") == wanted
        times = sorted(row.timestamp for row in self.read(columns="timestamp").collect())
        middle = int(times[len(times) // 2].timestamp() * 1000)
        first = self.rows(endingTimestamp=str(middle))
        second = self.rows(startingTimestamp=str(middle))
        assert first
        assert second
        assert not first.keys() & second.keys()
        assert first | second == self.expected

    def a_stream_with_a_group(self) -> None:
        group = f"{self.topic}-group"
        batches: dict[int, list[Any]] = {}
        source = self.spark.readStream.format("rocketmq").options(
            **self.options(subscribe=self.topic, startingOffsets="earliest", maxOffsetsPerTrigger=60, groupId=group)
        )
        query = (
            source.load()
            .writeStream.option("checkpointLocation", str(self.folder / f"{self.topic}-checkpoint"))
            .foreachBatch(lambda rows, number: batches.update({number: rows.collect()}))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert all(len(rows) <= 60 for rows in batches.values()), {n: len(rows) for n, rows in batches.items()}
        rows = [row for batch in batches.values() for row in batch]
        assert len(rows) == len(self.expected)
        assert {(*_split(row.partition), row.offset) for row in rows} == self.expected.keys()

        async def committed() -> int:
            async with Admin(self.servers) as admin:
                queues = {MessageQueue(self.topic, g, n) for g, n, _ in self.expected}
                stats = await admin.consume_stats(group)
                return sum(stats[q].consumer_offset for q in queues)

        assert asyncio.run(committed()) == len(self.expected)

    def written_rows_come_back(self) -> None:
        target = f"{self.topic}-copy"
        frame = self.read(includeProperties="true").selectExpr("*", "if(value = 'late', 1, 0) as delay").drop("topic")
        frame.write.format("rocketmq").mode("append").options(**self.options(topic=target, orderByKey=True)).save()
        wanted = sorted((r[0], r[1] or "", r[2] or "") for r in self.expected.values())
        end = time.monotonic() + 60
        while True:
            rows = self.read(subscribe=target).collect()
            found = sorted((bytes(r.value), bytes(r.key or b"").decode(), r.tags or "") for r in rows)
            if found == wanted:
                break
            assert time.monotonic() < end, (len(found), len(wanted))
        assert len({row.msgId for row in rows}) == len(rows)


def _split(partition: str) -> tuple[str, int]:
    group, _, queue = partition.rpartition(":")
    return group, int(queue)


if __name__ == "__main__":
    from gantry_spark.session import SHORT_RUN_OPTIONS, session

    made = session(
        "tour", "local[2]", {"spark.sql.shuffle.partitions": "2", "spark.driver.extraJavaOptions": SHORT_RUN_OPTIONS}
    )
    Tour(made, sys.argv[1], Path(sys.argv[2]), "SparkTour").run()
    made.stop()
    print("the tour is complete")
