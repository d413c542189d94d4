"""Streams by topic, batch by batch as Spark runs them, without Spark: kills at any moment, failover, and what changes
in the brokers meanwhile. A kill ends everything but the checkpoint and the sink.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.client import Admin, Message, Producer
from gantry_broker.protocol.bodies import SubscriptionGroup
from gantry_broker.protocol.fastjson import MessageQueue
from gantry_broker.testing import LocalBroker
from gantry_spark.errors import SourceError
from gantry_spark.topics.columns import spark_schema
from gantry_spark.topics.options import ReadOptions
from gantry_spark.topics.source import TopicReader, TopicStream

from tests.spark.test_authentication import ADMIN, secured
from tests.support.broker_group import MakeGroup, make_group
from tests.support.tls_group import tls_group

__all__ = ["make_group"]

COLUMNS = spark_schema(("value", "topic", "partition", "offset"))


class Killed(Exception):
    """The process ended."""


class Query:
    """A streaming query: its checkpoint and its sink, which replaces the rows of a batch that comes again."""

    def __init__(self, servers: str, topic: str, **more: str) -> None:
        self.options = {"nameServers": servers, "subscribe": topic, "startingOffsets": "earliest"} | more
        self.offsets: list[Any] = []
        self.done = 0
        self.sink: dict[int, list[tuple[str, int, bytes]]] = {}
        self.stream = self.fresh()

    def fresh(self) -> TopicStream:
        """A stream as after a restart."""
        return TopicStream(COLUMNS, ReadOptions(self.options, stream=True))

    def batch(self, kill_at: int = -1) -> bool:
        """Run the next batch, or the last one again if it is not done; False: there is nothing new."""

        def step(number: int) -> None:
            if number == kill_at:
                self.stream.stop()
                self.stream = self.fresh()
                raise Killed

        if not self.offsets:
            self.offsets.append(self.stream.initialOffset())
        step(0)
        if len(self.offsets) - 1 == self.done:
            start = self.offsets[-1]
            end = self.stream.latestOffset(start, self.stream.getDefaultReadLimit())
            if end == start:
                return False
            step(1)
            self.offsets.append(end)
        step(2)
        rows: list[tuple[str, int, bytes]] = []
        for task in self.stream.partitions(self.offsets[-2], self.offsets[-1]):
            for found in self.stream.read(task):
                rows += [(r["partition"], r["offset"], r["value"]) for r in found.to_pylist()]
            step(3)
        self.sink[self.done] = rows
        step(4)
        self.done += 1
        step(5)
        return True

    def run(self) -> None:
        while self.batch():
            pass

    def rows(self) -> list[tuple[str, int, bytes]]:
        return [row for number in sorted(self.sink) for row in self.sink[number]]

    def values(self) -> list[bytes]:
        return sorted(row[2] for row in self.rows())


def send(servers: str, topic: str, first: int, count: int) -> list[bytes]:
    bodies = [b"%06d" % number for number in range(first, first + count)]

    async def work() -> None:
        async with Producer(servers) as producer:
            for body in bodies:
                await producer.send(Message(topic, body))

    asyncio.run(work())
    return bodies


def administer(servers: str, work: str, *given: Any, **more: Any) -> None:
    async def call() -> None:
        async with Admin(servers) as admin:
            await getattr(admin, work)(*given, **more)

    asyncio.run(call())


@pytest.mark.parametrize("seed", range(4))
def test_kills_at_any_moment_repeat_nothing_and_miss_nothing(mq: LocalBroker, seed: int) -> None:
    chance = random.Random(seed)
    topic = mq.create_topic(queues=3)
    query = Query(mq.name_servers, topic, maxOffsetsPerTrigger=str(chance.randint(3, 40)), minPartitions="3")
    sent: list[bytes] = []
    for _ in range(25):
        if chance.random() < 0.4:
            sent += send(mq.name_servers, topic, len(sent), chance.randint(1, 30))
        try:
            query.batch(chance.choice([-1, 0, 1, 2, 3, 4, 5]))
        except Killed:
            continue
    query.run()
    assert query.values() == sorted(sent)
    by_queue: dict[str, list[int]] = {}
    for partition, offset, _ in query.rows():
        by_queue.setdefault(partition, []).append(offset)
    assert all(offsets == list(range(len(offsets))) for offsets in by_queue.values())


def test_added_queues_are_read_from_their_first_message(mq: LocalBroker) -> None:
    topic = mq.create_topic(queues=1)
    query = Query(mq.name_servers, topic, startingOffsets="latest")
    before = send(mq.name_servers, topic, 0, 3)
    assert not query.batch()
    administer(mq.name_servers, "create_topic", topic, queues=4)
    after: list[bytes] = []
    while len({row[0] for row in query.rows()}) < 3:
        after += send(mq.name_servers, topic, len(before) + len(after), 8)
        query.stream.cluster.forget(topic)
        query.run()
    assert query.values() == sorted(after)


def test_a_topic_that_was_made_again(mq: LocalBroker) -> None:
    topic = mq.create_topic(queues=1)
    strict = Query(mq.name_servers, topic, timeoutMs="1000")
    lenient = Query(mq.name_servers, topic, timeoutMs="1000", failOnDataLoss="false")
    send(mq.name_servers, topic, 0, 5)
    strict.run()
    lenient.run()
    administer(mq.name_servers, "delete_topic", topic)
    for query in (strict, lenient):
        query.stream.cluster.forget(topic)
        assert not query.batch()

    def run_on() -> None:
        for _ in range(200):
            strict.stream.cluster.forget(topic)
            strict.batch()
            time.sleep(0.02)

    with pytest.raises(SourceError, match="no longer exists, and messages from offset 5 on may not have been read"):
        run_on()
    mq.create_topic(topic, queues=1)
    more = send(mq.name_servers, topic, 100, 3)
    lenient.stream.cluster.forget(topic)
    lenient.run()
    assert lenient.values()[-3:] == more
    assert len(lenient.values()) == 8


@pytest.mark.parametrize("now", [False, True], ids=["stream", "availableNow"])
def test_a_queue_that_ended_stays_ended_after_a_restart(mq: LocalBroker, now: bool) -> None:
    topic, group = mq.create_topic(queues=2), mq.new_group()
    administer(mq.name_servers, "create_group", SubscriptionGroup(group))
    query = Query(mq.name_servers, topic, groupId=group, timeoutMs="1000")
    sent = send(mq.name_servers, topic, 0, 10)
    query.run()
    administer(mq.name_servers, "create_topic", topic, queues=2, write_queues=1)
    query.stream.cluster.forget(topic)
    query.run()
    assert query.offsets[-1] == {topic: {"test:0": 5, "test:1": 5}, f"{topic}!ended": {"test:1": 5}}
    administer(mq.name_servers, "create_topic", topic, queues=1)
    sent += send(mq.name_servers, topic, 10, 3)
    query.stream = query.fresh()
    if now:
        query.stream.prepareForTriggerAvailableNow()
    query.run()
    assert query.values() == sent
    # The queue takes messages again.
    administer(mq.name_servers, "create_topic", topic, queues=2)
    query.stream = query.fresh()
    query.run()
    assert query.offsets[-1] == {topic: {"test:0": 8, "test:1": 5}}


def test_a_queue_that_is_gone_is_a_loss_once(mq: LocalBroker) -> None:
    """No group of the stream held the removal of the queue, so nobody knows whether all of it was read."""
    topic = mq.create_topic(queues=2)
    query = Query(mq.name_servers, topic, timeoutMs="1000")
    sent = send(mq.name_servers, topic, 0, 10)
    query.run()
    administer(mq.name_servers, "create_topic", topic, queues=2, write_queues=1)
    query.stream.cluster.forget(topic)
    query.run()
    administer(mq.name_servers, "create_topic", topic, queues=1)

    def run_for(seconds: float) -> None:
        query.stream = query.fresh()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            query.run()
            time.sleep(0.05)

    with pytest.raises(SourceError, match="no longer exists, and messages from offset 5 on may not have been read"):
        run_for(60)
    query.options["failOnDataLoss"] = "false"
    run_for(1.5)
    assert query.offsets[-1][f"{topic}!ended"] == {"test:1": 5}
    query.options["failOnDataLoss"] = "true"
    sent += send(mq.name_servers, topic, 10, 3)
    run_for(1.5)
    assert query.values() == sent


def test_a_group_that_leaves_between_route_and_offsets(mq: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = mq.create_topic(queues=1)
    query = Query(mq.name_servers, topic)
    sent = send(mq.name_servers, topic, 0, 3)
    real = query.stream.cluster.queues
    shown = [MessageQueue(topic, "gone", 0)]

    def queues(wanted: str) -> Any:
        return real(wanted) + [shown.pop() for _ in list(shown)]

    monkeypatch.setattr(query.stream.cluster, "queues", queues)
    query.offsets = [{topic: {"test:0": 0}}]
    query.run()
    assert query.values() == sent


def test_expired_messages_are_an_error_or_a_warning(mq: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = mq.create_topic(queues=1)
    sent = send(mq.name_servers, topic, 0, 10)
    strict, lenient = Query(mq.name_servers, topic), Query(mq.name_servers, topic, failOnDataLoss="false")
    for query in (strict, lenient):
        query.offsets = [{topic: {"test:0": 2}}]
        real = query.stream.cluster.bounds

        def bounds(queues: Any, real: Any = real, **more: Any) -> Any:
            return {q: replace(b, first=6) for q, b in real(queues, **more).items()}

        monkeypatch.setattr(query.stream.cluster, "bounds", bounds)
    with pytest.raises(SourceError, match="messages 2 to 5 expired before they were read; set failOnDataLoss"):
        strict.run()
    lenient.run()
    assert lenient.values() == sent[6:]


def test_available_now_ends_at_what_there_was(mq: LocalBroker) -> None:
    topic = mq.create_topic(queues=2)
    sent = send(mq.name_servers, topic, 0, 10)
    query = Query(mq.name_servers, topic, maxOffsetsPerTrigger="3")
    query.stream.prepareForTriggerAvailableNow()
    assert query.batch()
    send(mq.name_servers, topic, 10, 10)
    query.run()
    assert query.values() == sorted(sent)


def test_a_group_follows_the_stream(mq: LocalBroker) -> None:
    topic, group = mq.create_topic(queues=1), mq.new_group()
    administer(mq.name_servers, "create_group", SubscriptionGroup(group))
    query = Query(mq.name_servers, topic, groupId=group, maxOffsetsPerTrigger="4")
    send(mq.name_servers, topic, 0, 10)

    def committed() -> int | None:
        async def ask() -> int | None:
            async with Admin(mq.name_servers) as admin:
                return await admin.offset(group, MessageQueue(topic, "test", 0))

        return asyncio.run(ask())

    seen = []
    while query.batch():
        seen.append(committed())
    assert seen == [0, 4, 8]
    assert committed() == 10


async def test_a_failover_in_the_middle(make_group: MakeGroup) -> None:
    group = await make_group(2)
    await group.lead(0)
    await group.registered()
    servers = group.name_server
    async with Admin(servers) as admin:
        await admin.create_topic("Orders", queues=2)
    sent = await asyncio.to_thread(send, servers, "Orders", 0, 60)
    await group.all_in_sync()
    query = Query(servers, "Orders", maxOffsetsPerTrigger="25")
    assert await asyncio.to_thread(query.batch)
    await group.members[0].kill()
    # The batch after next waits for a master.
    waiting = asyncio.create_task(asyncio.to_thread(query.run))
    await group.lead(1, [1])
    sent += await asyncio.to_thread(send, servers, "Orders", 60, 20)
    await waiting
    await asyncio.to_thread(query.run)
    assert query.values() == sorted(sent)


async def test_access_keys_are_needed_and_used(make_group: MakeGroup) -> None:
    group = await secured(make_group)
    servers = group.name_server
    async with Producer(servers, credentials=ADMIN) as producer:
        for number in range(5):
            await producer.send("Orders", b"%d" % number)
    keys = {"accessKey": ADMIN.access_key, "secretKey": ADMIN.secret_key}
    good = Query(servers, "Orders", **keys)
    await asyncio.to_thread(good.run)
    assert len(good.values()) == 5
    for wrong in ({}, keys | {"secretKey": "wrong"}):
        with pytest.raises(SourceError, match=r"refuses request .*accessKey and secretKey"):
            await asyncio.to_thread(Query(servers, "Orders", timeoutMs="1000", **wrong).run)


async def test_topics_are_read_with_tls(tmp_path: Path) -> None:
    async with tls_group(tmp_path, 1) as started:
        await started.group.lead(0)
        await started.group.registered()
        async with Producer(started.name_server, tls=started.options) as producer:
            await producer.send("Orders", b"1")

        def read() -> list[Any]:
            options = {"nameServers": started.name_server, "subscribe": "Orders", "timeoutMs": "3000"}
            tls = {"tls": "true", "caFile": str(started.files.ca)}
            reader = TopicReader(COLUMNS, ReadOptions(options | tls, stream=False))
            with pytest.raises(SourceError, match="no NameServer answers"):
                TopicReader(COLUMNS, ReadOptions(options | {"tls": "true"}, stream=False)).partitions()
            return [row["value"] for task in reader.partitions() for b in reader.read(task) for row in b.to_pylist()]

        assert await asyncio.to_thread(read) == [b"1"]
