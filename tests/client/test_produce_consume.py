"""Producer and consumers against a real broker."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from gantry_broker.client import (
    Admin,
    BrokerError,
    Consumer,
    FromWhere,
    InvalidMessage,
    Message,
    MessageQueue,
    NoRoute,
    OrderedConsumer,
    Producer,
    PullConsumer,
    ReceivedMessage,
    Requester,
    RequestFailed,
    RetryLater,
    SendStatus,
    Session,
    TransactionProducer,
    TransactionState,
    averagely_by_circle,
    reply,
)
from gantry_broker.client.process_queue import FlowLimits
from gantry_broker.namesrv.server import NameServer
from gantry_broker.namesrv.settings import NameServerSettings
from gantry_broker.remoting.errors import RemotingError

from tests.client.cluster import Cluster, Inbox, until


def first(cluster: Cluster, group: str = "g", **options: object) -> Consumer:
    return Consumer(cluster.name_server, group, from_where=FromWhere.FIRST, **options)  # type: ignore[arg-type]


async def fill(cluster: Cluster, count: int, topic: str = "T", tags: Sequence[str] = ("",)) -> list[bytes]:
    async with Producer(cluster.name_server) as producer:
        await asyncio.gather(
            *(producer.send(Message(topic, b"%d" % n, tags[n % len(tags)], f"k{n}")) for n in range(count))
        )
    return sorted(b"%d" % n for n in range(count))


async def test_a_sent_message_is_received_once(cluster: Cluster, inbox: Inbox) -> None:
    async with Producer(cluster.name_server) as producer, first(cluster) as consumer:
        await consumer.subscribe("T", inbox)
        results = await asyncio.gather(
            *(producer.send(Message("T", b"m%d" % n, "A", f"k{n}", {"n": str(n)})) for n in range(200))
        )
        assert {result.status for result in results} == {SendStatus.SEND_OK}
        assert Counter(result.queue.queue_id for result in results) == {0: 50, 1: 50, 2: 50, 3: 50}
        await inbox.wait(200)
        assert inbox.bodies == sorted(b"m%d" % n for n in range(200))
        received = next(message for message in inbox.messages if message.body == b"m7")
        assert (received.tags, received.keys, received.properties["n"]) == ("A", ("k7",), "7")
        assert received.id == results[7].message_id
        assert received.offset_id == results[7].offset_id


async def test_a_large_body_is_compressed(cluster: Cluster, inbox: Inbox) -> None:
    body = b"the same again, " * 10_000
    async with Producer(cluster.name_server) as producer, first(cluster) as consumer:
        await producer.send("T", body)
        await consumer.subscribe("T", inbox)
        await inbox.wait(1)
    [message] = inbox.messages
    assert message.body == body
    assert len(message.record.body) < len(body) / 10


async def test_a_batch_goes_to_one_queue_in_its_order(cluster: Cluster, inbox: Inbox) -> None:
    async with Producer(cluster.name_server) as producer, first(cluster) as consumer:
        result = await producer.send_batch([Message("T", b"%d" % n, keys=f"b{n}") for n in range(20)])
        assert len(result.offset_id.split(",")) == len(result.message_id.split(",")) == 20
        await consumer.subscribe("T", inbox)
        await inbox.wait(20)
    assert {message.queue for message in inbox.messages} == {result.queue}
    assert [message.queue_offset for message in sorted(inbox.messages, key=lambda m: int(m.body))] == list(range(20))
    assert sorted(message.id for message in inbox.messages) == sorted(result.message_id.split(","))


async def test_oneway_messages_arrive(cluster: Cluster, inbox: Inbox) -> None:
    async with Producer(cluster.name_server) as producer, first(cluster) as consumer:
        for n in range(10):
            await producer.send_oneway("T", b"%d" % n)
        await consumer.subscribe("T", inbox)
        await inbox.wait(10)


async def test_messages_of_one_key_go_to_one_queue(cluster: Cluster) -> None:
    async with Producer(cluster.name_server) as producer:
        results = [await producer.send("T", b"x", key=f"order-{n % 3}") for n in range(12)]
        for start in range(3):
            assert len({result.queue for result in results[start::3]}) == 1
        queue = MessageQueue("T", "a", 2)
        assert (await producer.send("T", b"x", queue=queue)).queue == queue


async def test_invalid_messages_are_not_sent(cluster: Cluster) -> None:
    async with Producer(cluster.name_server) as producer:
        for bad in (
            Message("T", b""),
            Message("T", b"", keys="k"),
            Message("T", b"", deletes_key=True),
            Message("T", b"x", keys="k", deletes_key=True),
            Message("T", bytes(5_000_000)),
            Message("no such name!", b"x"),
            Message("", b"x"),
            Message("x" * 128, b"x"),
            Message("T", b"x", properties={"KEYS": "k"}),
            Message("T", b"x", properties={"a": "b\x02"}),
            Message("SCHEDULE_TOPIC_XXXX", b"x"),
        ):
            with pytest.raises(InvalidMessage):
                await producer.send(bad)
        with pytest.raises(InvalidMessage, match="one topic"):
            await producer.send_batch([Message("T", b"x"), Message("U", b"x")])
        with pytest.raises(InvalidMessage, match="at least one"):
            await producer.send_batch([])
        with pytest.raises(InvalidMessage, match="delayed"):
            await producer.send_batch([Message("T", b"x", delay_level=1)])


async def test_the_first_message_creates_a_topic(cluster: Cluster, inbox: Inbox) -> None:
    async with Producer(cluster.name_server) as producer, first(cluster) as consumer:
        assert (await producer.send("Fresh", b"x")).queue.topic == "Fresh"
        await cluster.has_topic("Fresh")
        await consumer.subscribe("Fresh", inbox)
        await inbox.wait(1)


async def test_every_group_creates_a_topic_on_demand(cluster: Cluster) -> None:
    """Otherwise all messages would go to one group, and wait when it is down."""
    await cluster.add("b")
    async with Producer(cluster.name_server) as producer:
        results = [await producer.send("Fresh", b"x") for _ in range(8)]
        assert {result.queue.broker for result in results} == {"a", "b"}
        await cluster.has_topic("Fresh")
        await cluster.brokers["b"].stop()
        assert {(await producer.send("Fresh", b"x")).queue.broker for _ in range(8)} == {"a"}


async def test_an_empty_name_server_is_not_trusted_alone(cluster: Cluster) -> None:
    """It has no routes yet, and its "no such topic" must not end a send while another NameServer has the route."""
    async with NameServer(NameServerSettings("new", "127.0.0.1", 0)) as empty:
        both = f"127.0.0.1:{empty.port};{cluster.name_server}"
        async with Producer(both) as producer:
            assert (await producer.send("T", b"x")).status is SendStatus.SEND_OK
            assert (await producer.send("Fresh", b"x")).status is SendStatus.SEND_OK


async def test_an_unknown_topic_has_no_route(empty_cluster: Cluster) -> None:
    await empty_cluster.add("a", autoCreateTopicEnable=False)
    async with Producer(empty_cluster.name_server, timeout=60) as producer:
        started = time.monotonic()
        with pytest.raises(NoRoute, match="Nowhere"):
            await producer.send("Nowhere", b"x")
        assert time.monotonic() - started < 20, "not only when the time for the send is over"


async def test_an_unreachable_name_server_is_an_error() -> None:
    async with Producer("127.0.0.1:1", timeout=0.5) as producer:
        with pytest.raises((RemotingError, Exception), match=r"127\.0\.0\.1:1"):
            await producer.send("T", b"x")
    with pytest.raises(ValueError, match="host:port"):
        Producer(" ; ")


async def test_tags_are_filtered(cluster: Cluster, inbox: Inbox) -> None:
    await fill(cluster, 40, tags=("A", "B", "C", ""))
    async with first(cluster) as consumer:
        await consumer.subscribe("T", inbox, "A || C")
        await inbox.wait(20)
        await until(lambda: consumer.in_flight == 0, "all is consumed")
        await until(lambda: sum(consumer.progress()[q].next_offset for q in queues(consumer)) == 40, "all is read")
        assert Counter(message.tags for message in inbox.messages) == {"A": 10, "C": 10}
        # Filtered messages count as consumed.
        await consumer.commit()
        async with Admin(cluster.name_server) as admin:
            stats = await admin.consume_stats("g", "T")
            assert sum(item.broker_offset - item.consumer_offset for item in stats.values()) == 0


async def test_tags_of_equal_hash_are_distinguished(cluster: Cluster, inbox: Inbox) -> None:
    await fill(cluster, 4, tags=("Aa", "BB"))
    async with first(cluster) as consumer:
        await consumer.subscribe("T", inbox, "Aa")
        await inbox.wait(2)
        await until(
            lambda: all(consumer.progress()[queue].next_offset == 1 for queue in queues(consumer)), "all is read"
        )
    assert {message.tags for message in inbox.messages} == {"Aa"}


async def test_sql_conditions_filter_and_bad_ones_are_refused(cluster: Cluster, inbox: Inbox) -> None:
    async with Producer(cluster.name_server) as producer, first(cluster) as consumer:
        for n in range(20):
            await producer.send(Message("T", b"%d" % n, properties={"n": str(n), "color": "red" if n % 2 else "blue"}))
        await consumer.subscribe("T", inbox, "n >= 10 AND color IN ('red', 'green')", sql=True)
        await inbox.wait(5)
        assert inbox.bodies == [b"11", b"13", b"15", b"17", b"19"]
        with pytest.raises(BrokerError, match="SUBSCRIPTION_PARSE_FAILED"):
            await consumer.subscribe("T", inbox, "n >= 10 AND", sql=True)
        with pytest.raises(InvalidMessage):
            await consumer.subscribe("T", inbox, " ", sql=True)


@pytest.mark.parametrize(
    ("where", "expected"), [(FromWhere.FIRST, b"old"), (FromWhere.LAST, b"new"), (FromWhere.TIMESTAMP, b"middle")]
)
async def test_where_a_new_group_begins(cluster: Cluster, inbox: Inbox, where: FromWhere, expected: bytes) -> None:
    queue = MessageQueue("T", "a", 0)
    async with Producer(cluster.name_server) as producer:
        await producer.send("T", b"old", queue=queue)
        await asyncio.sleep(0.02)
        now_ms = int(time.time() * 1000)
        await asyncio.sleep(0.02)
        await producer.send("T", b"middle", queue=queue)
        async with Consumer(cluster.name_server, "g", from_where=where, from_time_ms=now_ms) as consumer:
            await consumer.subscribe("T", inbox)
            await until(lambda: len(consumer.assigned) >= 4, "queues are assigned")
            await producer.send("T", b"new", queue=queue)
            await until(lambda: any(m.body == b"new" for m in inbox.messages), "the new message")
    assert next(iter(sorted(inbox.messages, key=lambda m: m.queue_offset))).body == expected


async def test_a_group_continues_at_its_offset(cluster: Cluster) -> None:
    sent = await fill(cluster, 50)
    one, two = Inbox(), Inbox()
    async with first(cluster) as consumer:
        await consumer.subscribe("T", one)
        await one.wait(50)
    async with first(cluster) as consumer, Producer(cluster.name_server) as producer:
        await consumer.subscribe("T", two)
        await until(lambda: len(consumer.assigned) >= 4, "queues are assigned")
        await producer.send("T", b"later")
        await two.wait(1)
    assert one.bodies == sent
    assert two.bodies == [b"later"]


async def test_a_group_whose_offset_lies_beyond_the_end_continues_at_the_end(cluster: Cluster) -> None:
    """It must not read everything again, and must not wait for the queue to grow up to its offset."""
    await fill(cluster, 40)
    inbox = Inbox()
    async with Admin(cluster.name_server) as admin:
        for queue_id in range(4):
            await admin.set_offset("g", MessageQueue("T", "a", queue_id), 1_000)
        async with first(cluster) as consumer, Producer(cluster.name_server) as producer:
            await consumer.subscribe("T", inbox)
            await until(lambda: len(queues(consumer)) == 4, "queues are assigned")
            for queue_id in range(4):
                await until_pulled(consumer, MessageQueue("T", "a", queue_id), 10)
            await producer.send("T", b"later")
            await inbox.wait(1)
    assert inbox.bodies == [b"later"]


async def until_pulled(consumer: Consumer, queue: MessageQueue, offset: int) -> None:
    await until(lambda: consumer._assigned[queue].process.next_offset == offset, f"{queue} is pulled from {offset}")


async def test_members_share_the_queues_and_take_over_from_each_other(cluster: Cluster) -> None:
    one, two = first(cluster), first(cluster, strategy=averagely_by_circle)
    inboxes = Inbox(), Inbox()
    async with one:
        await one.subscribe("T", inboxes[0])
        await until(lambda: len(queues(one)) == 4, "one has all queues")
        async with Consumer(cluster.name_server, "g", from_where=FromWhere.FIRST) as other:
            await other.subscribe("T", inboxes[1])
            await until(lambda: len(queues(one)) == len(queues(other)) == 2, "both have two queues")
            assert not set(queues(one)) & set(queues(other))
            sent = await fill(cluster, 40)
            await until(lambda: len(inboxes[0].messages) + len(inboxes[1].messages) >= 40, "all have come")
            assert sorted(inboxes[0].bodies + inboxes[1].bodies) == sent
        await until(lambda: len(queues(one)) == 4, "one has all queues again")
    assert two.assigned == []


def queues(consumer: Consumer) -> list[MessageQueue]:
    return [queue for queue in consumer.assigned if queue.topic == "T"]


async def test_a_failed_message_is_redelivered(cluster: Cluster) -> None:
    seen: list[tuple[bytes, int]] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append((message.body, message.reconsume_times))
        assert message.topic == "T"
        if message.reconsume_times < 2:
            raise RetryLater(1) if message.reconsume_times else RuntimeError("the first time fails")

    async with Producer(cluster.name_server) as producer, first(cluster, rebalance_s=0.2) as consumer:
        await consumer.subscribe("T", handle)
        await producer.send("T", b"x")
        await until(lambda: len(seen) == 3, f"three deliveries, {seen}", 20)
    assert seen == [(b"x", 0), (b"x", 1), (b"x", 2)]


async def test_a_message_that_always_fails_becomes_a_dead_letter(cluster: Cluster) -> None:
    count = 0

    async def handle(message: ReceivedMessage) -> bool:
        nonlocal count
        count += 1
        return False

    async with (
        Producer(cluster.name_server) as producer,
        first(cluster, max_retries=1, rebalance_s=0.2) as consumer,
        Admin(cluster.name_server) as admin,
    ):
        await consumer.subscribe("T", handle)
        await producer.send("T", b"bad", keys="the-bad-one")

        async def dead() -> bool:
            return "%DLQ%g" in await admin.topics()

        await until(dead, "a dead-letter topic", 20)
        puller = admin.puller()
        await admin.topic_route("%DLQ%g")
        await until(lambda: count == 2, "two deliveries", 20)
        assert await puller.max_offset(MessageQueue("%DLQ%g", "a", 0)) == 1


async def test_broadcasting_gives_every_member_everything(cluster: Cluster, tmp_path: Path) -> None:
    one, two, again = Inbox(), Inbox(), Inbox()
    path = tmp_path / "offsets.json"
    async with first(cluster, broadcasting=True, offset_file=path) as a, first(cluster, broadcasting=True) as b:
        await a.subscribe("T", one)
        await b.subscribe("T", two)
        sent = await fill(cluster, 30)
        await one.wait(30)
        await two.wait(30)
    assert one.bodies == two.bodies == sent
    async with first(cluster, broadcasting=True, offset_file=path) as a, Producer(cluster.name_server) as producer:
        await a.subscribe("T", again)
        await producer.send("T", b"later")
        await again.wait(1)
    assert again.bodies == [b"later"], "the file says what was consumed"


async def test_pulling_stops_at_the_flow_limit(cluster: Cluster) -> None:
    sent = await fill(cluster, 100)
    gate = asyncio.Event()
    inbox = Inbox()
    most = 0

    async def handle(message: ReceivedMessage) -> None:
        nonlocal most
        await gate.wait()
        most = max(most, consumer.in_flight)
        await inbox(message)

    async with first(cluster, limits=FlowLimits(messages=3), concurrency=2) as consumer:
        await consumer.subscribe("T", handle)
        await until(lambda: consumer.in_flight >= 4 * 3, "the limit is reached")
        await asyncio.sleep(0.1)
        assert consumer.in_flight <= 4 * 32, "one pull beyond the limit, no more"
        gate.set()
        await inbox.wait(100)
    assert inbox.bodies == sent


async def test_suspended_consumers_do_not_pull(cluster: Cluster, inbox: Inbox) -> None:
    async with Producer(cluster.name_server) as producer, first(cluster) as consumer:
        consumer.suspend()
        await consumer.subscribe("T", inbox)
        await until(lambda: len(queues(consumer)) == 4, "queues are assigned")
        await producer.send("T", b"x")
        await asyncio.sleep(0.2)
        assert inbox.messages == []
        consumer.resume()
        await inbox.wait(1)


async def test_ordered_consumption_keeps_the_order_and_retries_in_place(cluster: Cluster) -> None:
    seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
    at_once = 0
    failed = False

    async def handle(message: ReceivedMessage) -> None:
        nonlocal at_once, failed
        key, number = (int(part) for part in message.body.split(b"-"))
        at_once += 1
        try:
            await asyncio.sleep(0)
            if (key, number) == (1, 5) and not failed:
                failed = True
                raise RuntimeError("once")
            seen[key].append(number)
        finally:
            at_once -= 1

    async with (
        Producer(cluster.name_server) as producer,
        OrderedConsumer(cluster.name_server, "o", from_where=FromWhere.FIRST, suspend_s=0.1) as consumer,
    ):
        for number in range(30):
            for key in seen:
                await producer.send("T", b"%d-%d" % (key, number), key=key)
        await consumer.subscribe("T", handle)
        await until(lambda: all(len(numbers) == 30 for numbers in seen.values()), "all have come")
    assert failed
    assert all(numbers == list(range(30)) for numbers in seen.values())


async def test_a_queue_is_locked_by_one_member_at_a_time(cluster: Cluster) -> None:
    inbox, other_inbox = Inbox(), Inbox()
    options = {"from_where": FromWhere.FIRST, "rebalance_s": 0.3}
    async with OrderedConsumer(cluster.name_server, "o", **options) as one:
        await one.subscribe("T", inbox)
        await until(lambda: len(queues(one)) == 4, "one has all locks")
        async with OrderedConsumer(cluster.name_server, "o", **options) as two:
            await two.subscribe("T", other_inbox)
            await until(lambda: len(queues(one)) == len(queues(two)) == 2, "locks have moved")
            await fill(cluster, 20)
            await until(lambda: len(inbox.messages) + len(other_inbox.messages) == 20, "all have come")
        await until(lambda: len(queues(one)) == 4, "locks are given back")


async def test_an_ordered_message_that_always_fails_goes_to_the_retry_topic(cluster: Cluster) -> None:
    seen: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)
        if message.body == b"bad" and message.topic == "T" and message.reconsume_times < 3:
            raise RuntimeError("never")

    queue = MessageQueue("T", "a", 1)
    async with (
        Producer(cluster.name_server) as producer,
        OrderedConsumer(
            cluster.name_server, "o", from_where=FromWhere.FIRST, suspend_s=0.05, max_retries=2
        ) as consumer,
    ):
        for body in (b"one", b"bad", b"two"):
            await producer.send("T", body, queue=queue)
        await consumer.subscribe("T", handle)
        await until(lambda: b"two" in seen, "the next message")
    assert seen[:5] == [b"one", b"bad", b"bad", b"bad", b"two"]


async def test_polling(cluster: Cluster) -> None:
    sent = await fill(cluster, 40)
    got: list[bytes] = []
    async with PullConsumer(cluster.name_server, "p", from_where=FromWhere.FIRST) as consumer:
        await consumer.subscribe_to("T")
        while len(got) < 40:
            batch = await consumer.poll(5, max_messages=7)
            assert 0 < len(batch) <= 7
            got += [message.body for message in batch]
        assert await consumer.poll(0.05) == []
        assert sorted(got) == sent
        await consumer.commit()
        assert [await consumer.committed(queue) for queue in await consumer.queues("T")] == [10] * 4


async def test_polling_assigned_queues(cluster: Cluster) -> None:
    await fill(cluster, 40)
    queue = MessageQueue("T", "a", 3)
    async with PullConsumer(cluster.name_server, "p", from_where=FromWhere.FIRST, auto_commit=False) as consumer:
        await consumer.assign([queue])
        assert len(await consumer.poll(5, 100)) == 10
        await consumer.seek(queue, 8)
        assert [message.queue_offset for message in await consumer.poll(5, 100)] == [8, 9]
        await consumer.seek_to_begin(queue)
        assert (await consumer.poll(5, 1))[0].queue_offset == 0
        await consumer.seek_to_end(queue)
        with pytest.raises(KeyError):
            await consumer.seek(MessageQueue("T", "a", 0), 0)


async def test_a_request_gets_its_reply(cluster: Cluster) -> None:
    async with (
        Session(cluster.name_server) as session,
        Requester(cluster.name_server, "askers") as requester,
        Producer(session, "answerers") as producer,
        first(cluster, "answering") as consumer,
    ):

        async def handle(message: ReceivedMessage) -> None:
            if message.body != b"be silent":
                await reply(producer, message, message.body.upper())

        await consumer.subscribe("T", handle)
        await until(lambda: len(queues(consumer)) == 4, "queues are assigned")
        answers = await asyncio.gather(*(requester.request(Message("T", b"q%d" % n), 10) for n in range(5)))
        assert [answer.body for answer in answers] == [b"Q%d" % n for n in range(5)]
        with pytest.raises(RequestFailed):
            await requester.request(Message("T", b"be silent"), 0.5)


async def test_transactions(cluster: Cluster, inbox: Inbox) -> None:
    checked: list[bytes] = []

    async def check(message: ReceivedMessage) -> TransactionState:
        checked.append(message.body)
        return TransactionState.COMMIT

    async def work(message: Message, transaction_id: str) -> TransactionState:
        if message.body == b"fails":
            raise RuntimeError("no")
        return TransactionState.ROLLBACK if message.body == b"rolled back" else TransactionState.COMMIT

    async with TransactionProducer(cluster.name_server, "tx", check) as producer, first(cluster) as consumer:
        await consumer.subscribe("T", inbox)
        for body, state in (
            (b"committed", TransactionState.COMMIT),
            (b"rolled back", TransactionState.ROLLBACK),
            (b"fails", TransactionState.UNKNOWN),
        ):
            result, became = await producer.send_in_transaction(Message("T", body), work)
            assert (result.status, became) == (SendStatus.SEND_OK, state)
        await inbox.wait(1)
        await asyncio.sleep(0.2)
        assert inbox.bodies == [b"committed"]


async def test_several_clients_share_a_session(cluster: Cluster, inbox: Inbox) -> None:
    async with Session(cluster.name_server) as session:
        async with Producer(session, "p") as producer, Consumer(session, "c", from_where=FromWhere.FIRST) as consumer:
            await consumer.subscribe("T", inbox)
            await producer.send("T", b"x")
            await inbox.wait(1)
        assert (await Admin(session).topics()) != []
