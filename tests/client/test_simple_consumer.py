"""The simple consumer against real brokers: messages are received, acknowledged, and delivered again."""

from __future__ import annotations

import asyncio
import time

import pytest
from gantry_broker.client import (
    Admin,
    BrokerError,
    Consumer,
    FromWhere,
    Message,
    NoRoute,
    PoppedMessage,
    Producer,
    SimpleConsumer,
)
from gantry_broker.protocol import pop_batches as batches
from gantry_broker.protocol.bodies import SubscriptionGroup
from gantry_broker.protocol.codes import RequestCode, ResponseCode

from tests.client.cluster import Cluster, Inbox, until
from tests.support.present import present
from tests.support.remoting import codes_sent


async def _send(cluster: Cluster, *bodies: bytes, topic: str = "T", tags: str = "") -> None:
    async with Producer(cluster.name_server) as producer:
        for body in bodies:
            await producer.send(Message(topic, body, tags=tags))


async def _drain(
    consumer: SimpleConsumer, count: int, found: list[PoppedMessage] | None = None, seconds: float = 60.0
) -> list[PoppedMessage]:
    """Receives and acknowledges until `count` messages have come. `found`: with those of other consumers."""
    found = [] if found is None else found
    ends = time.monotonic() + seconds
    while len(found) < count and time.monotonic() < ends:
        for message in await consumer.receive(wait_s=1):
            found.append(message)
            await consumer.ack(message)
    return found


async def test_received_and_acknowledged_once(cluster: Cluster) -> None:
    await _send(cluster, *(b"%d" % number for number in range(50)))
    async with SimpleConsumer(cluster.name_server, "G") as consumer, SimpleConsumer(cluster.name_server, "G") as other:
        await consumer.subscribe("T")
        await other.subscribe("T")
        found: list[PoppedMessage] = []
        await asyncio.gather(_drain(consumer, 50, found), _drain(other, 50, found))
        assert sorted(int(message.body) for message in found) == list(range(50))
        assert await consumer.receive(wait_s=0.2) == []
        async with Admin(cluster.name_server) as admin:
            progress = [one for queue, one in (await admin.consume_stats("G")).items() if queue.topic == "T"]
            assert sum(one.broker_offset for one in progress) == 50
            assert sum(one.broker_offset - one.consumer_offset for one in progress) == 0


async def test_a_waiting_receive_gets_a_new_message_at_once(cluster: Cluster) -> None:
    async with SimpleConsumer(cluster.name_server, "G") as consumer:
        await consumer.subscribe("T")
        waiting = asyncio.create_task(consumer.receive(wait_s=30))
        await asyncio.sleep(0.3)
        began = time.monotonic()
        await _send(cluster, b"x")
        [message] = await waiting
        assert time.monotonic() - began < 15, "not only when its wait is over"
        assert (message.body, message.delivery_attempt) == (b"x", 1)


async def test_what_is_not_acknowledged_comes_again_and_then_to_the_dead_letters(cluster: Cluster) -> None:
    async with Admin(cluster.name_server) as admin:
        await admin.create_group(SubscriptionGroup("G", retry_max_times=1))
    await _send(cluster, b"x")
    async with SimpleConsumer(cluster.name_server, "G", invisible_s=0.5) as consumer:
        await consumer.subscribe("T")
        [first] = await consumer.receive()
        [second] = await consumer.receive(wait_s=5)
        assert [m.delivery_attempt for m in (first, second)] == [1, 2]
        assert (second.topic, second.body) == ("T", b"x")
        with pytest.raises(BrokerError) as late:
            await consumer.ack(first)
        assert late.value.code == ResponseCode.NO_MESSAGE
        assert await consumer.receive(wait_s=2) == []
    store = present(cluster.brokers["a"].process).broker.store
    await until(lambda: store.reader.max_offset("%DLQ%G", 0) == 1, "a dead letter")


async def test_acknowledgements_that_are_made_together_go_together(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that comes too late fails alone; and without the broker's word on each, each one is asked for."""
    codes = codes_sent(monkeypatch)
    await _send(cluster, *(b"%d" % number for number in range(8)))
    async with SimpleConsumer(cluster.name_server, "G", invisible_s=30) as consumer:
        await consumer.subscribe("T")
        got: list[PoppedMessage] = []
        while len(got) < 8:
            got += await consumer.receive(32, wait_s=5)
        late = got[0].handle.split(" ")
        got[0].handle = " ".join([late[0], str(int(late[1]) - 9), "1", *late[3:]])
        results = await asyncio.gather(*(consumer.ack(message) for message in got[:4]), return_exceptions=True)
        assert [isinstance(result, BrokerError) for result in results] == [True, False, False, False]
        assert (codes.count(RequestCode.BATCH_ACK_MESSAGE), codes.count(RequestCode.ACK_MESSAGE)) == (1, 1)
        assert await consumer.ack_all([got[0], got[7]]) == [got[0]]
        assert (codes.count(RequestCode.BATCH_ACK_MESSAGE), codes.count(RequestCode.ACK_MESSAGE)) == (2, 2)
        assert await consumer.ack_all([]) == []
        monkeypatch.setattr(batches, "RESULTS", "nobodyKnowsThis")
        await asyncio.gather(*(consumer.ack(message) for message in got[4:6]))
        await consumer.ack(got[6])
        assert (codes.count(RequestCode.BATCH_ACK_MESSAGE), codes.count(RequestCode.ACK_MESSAGE)) == (3, 5)


async def test_the_invisible_time_is_changed(cluster: Cluster) -> None:
    await _send(cluster, b"x")
    async with SimpleConsumer(cluster.name_server, "G", invisible_s=1) as consumer:
        await consumer.subscribe("T")
        [message] = await consumer.receive()
        before = message.handle
        await consumer.change_invisible_duration(message, 30)
        assert message.handle != before
        assert await consumer.receive(wait_s=2) == []
        await consumer.change_invisible_duration(message, 0.1)
        [again] = await consumer.receive(wait_s=5)
        assert again.delivery_attempt == 2
        await consumer.change_invisible_duration(again, 0.1, suspend=True)
        [third] = await consumer.receive(wait_s=5)
        assert third.delivery_attempt == 2, "a suspended delivery does not count"
        await consumer.ack(third)
        await consumer.ack(third)
        with pytest.raises(BrokerError):
            await consumer.change_invisible_duration(third, 1)


async def test_a_restart_of_the_broker_keeps_what_is_in_flight(cluster: Cluster) -> None:
    await _send(cluster, b"kept", b"done")
    async with SimpleConsumer(cluster.name_server, "G", invisible_s=4) as consumer:
        await consumer.subscribe("T")
        found: list[PoppedMessage] = []
        while len(found) < 2:
            found += await consumer.receive(wait_s=1)
        began = time.monotonic()
        [done] = [message for message in found if message.body == b"done"]
        await consumer.ack(done)
        waiting = asyncio.create_task(consumer.receive(wait_s=10))
        await cluster.brokers["a"].stop()
        await asyncio.sleep(0.3)
        await cluster.brokers["a"].start()
        [again] = await waiting
        assert again.body == b"kept"
        assert time.monotonic() - began > 3.5, "it stays invisible for its time"
        await consumer.ack(again)
        assert await consumer.receive(wait_s=0.5) == []


async def test_several_broker_groups_and_topics(cluster: Cluster) -> None:
    await cluster.add("b")
    async with Admin(cluster.name_server) as admin:
        for topic in ("T", "U"):
            await admin.create_topic(topic, queues=4)
    await cluster.has_topic("U")
    await asyncio.sleep(0.2)
    bodies = [b"%d" % number for number in range(40)]
    await _send(cluster, *bodies[:20])
    await _send(cluster, *bodies[20:], topic="U")
    async with SimpleConsumer(cluster.name_server, "G") as consumer:
        await consumer.subscribe("T")
        await consumer.subscribe("U")
        found = await _drain(consumer, 40)
        assert sorted(message.body for message in found) == sorted(bodies)
        assert {message.broker for message in found} == {"a", "b"}


async def test_what_nobody_took_is_given_back(cluster: Cluster) -> None:
    await cluster.add("b")
    async with Admin(cluster.name_server) as admin:
        await admin.create_topic("T", queues=4)
    await asyncio.sleep(0.2)
    await _send(cluster, *(b"%d" % number for number in range(8)))
    async with SimpleConsumer(cluster.name_server, "G", invisible_s=60) as consumer:
        await consumer.subscribe("T")
        [taken] = await consumer.receive(1)
        await consumer.ack(taken)
    async with SimpleConsumer(cluster.name_server, "G") as consumer:
        await consumer.subscribe("T")
        found = await _drain(consumer, 7)
        assert sorted([taken.body, *(message.body for message in found)]) == [b"%d" % number for number in range(8)]
        assert {message.delivery_attempt for message in found} == {1}


async def test_filters(cluster: Cluster) -> None:
    await _send(cluster, b"a", b"b", tags="A")
    await _send(cluster, b"c", tags="B")
    async with SimpleConsumer(cluster.name_server, "G") as consumer, SimpleConsumer(cluster.name_server, "S") as by_sql:
        await consumer.subscribe("T", "B || C")
        assert [message.body for message in await _drain(consumer, 1)] == [b"c"]
        await by_sql.subscribe("T", "TAGS = 'A'", sql=True)
        assert sorted([message.body for message in await _drain(by_sql, 2)]) == [b"a", b"b"]
        await by_sql.subscribe("T", "TAGS >", sql=True)
        with pytest.raises(BrokerError) as refused:
            await by_sql.receive(wait_s=5)
        assert refused.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


async def test_an_ordered_group_waits_for_the_acknowledgement(cluster: Cluster) -> None:
    async with Admin(cluster.name_server) as admin:
        await admin.create_topic("O", queues=1)
    await cluster.has_topic("O")
    await _send(cluster, *(b"%d" % number for number in range(5)), topic="O")
    async with SimpleConsumer(cluster.name_server, "G", ordered=True, invisible_s=1) as consumer:
        await consumer.subscribe("O")
        [first, second] = await consumer.receive(2)
        assert await consumer.receive(wait_s=0.2) == []
        await consumer.ack(first)
        again = await consumer.receive(2, wait_s=5)
        assert [(message.body, message.delivery_attempt) for message in again][:1] == [(b"1", 2)]
        del second
        for message in again:
            await consumer.ack(message)
        rest = await _drain(consumer, 5 - 1 - len(again))
        assert [message.body for message in [first, *again, *rest]] == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_new_group_may_begin_at_the_end(cluster: Cluster) -> None:
    async with Admin(cluster.name_server) as admin:
        await admin.create_topic("E", queues=1)
    await cluster.has_topic("E")
    await _send(cluster, b"old", topic="E")
    async with SimpleConsumer(cluster.name_server, "G", from_where=FromWhere.LAST) as consumer:
        await consumer.subscribe("E")
        await consumer.receive(wait_s=0.2)
        await _send(cluster, b"new", topic="E")
        found: set[bytes] = set()
        async with asyncio.timeout(60):
            while b"new" not in found:
                found |= {message.body for message in await consumer.receive(wait_s=2)}


async def test_wrong_numbers_and_unknown_topics_are_refused(cluster: Cluster) -> None:
    with pytest.raises(ValueError, match="TIMESTAMP"):
        SimpleConsumer(cluster.name_server, "G", from_where=FromWhere.TIMESTAMP)
    async with SimpleConsumer(cluster.name_server, "G") as consumer:
        await consumer.subscribe("NoSuch")
        with pytest.raises(NoRoute, match="NoSuch"):
            await consumer.receive(wait_s=1)
        for wrong in ({"max_messages": 33}, {"max_messages": 0}, {"invisible_s": 0.0}, {"wait_s": -1.0}):
            with pytest.raises(ValueError, match=next(iter(wrong))):
                await consumer.receive(**wrong)  # type: ignore[arg-type]


async def test_a_group_may_also_have_pulling_members(cluster: Cluster, inbox: Inbox) -> None:
    """Those who pull take over from what is committed; nothing is lost."""
    bodies = [b"%d" % number for number in range(30)]
    await _send(cluster, *bodies[:20])
    async with SimpleConsumer(cluster.name_server, "G") as consumer:
        await consumer.subscribe("T")
        popped = await _drain(consumer, 20)
    assert len(popped) == 20
    async with Consumer(cluster.name_server, "G", from_where=FromWhere.FIRST) as puller:
        await puller.subscribe("T", inbox)
        await _send(cluster, *bodies[20:])
        await inbox.wait(10)
    assert set(inbox.bodies) >= set(bodies[20:])
