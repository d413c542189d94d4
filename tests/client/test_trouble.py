"""Consumers with unreachable brokers and faulty handlers."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from gantry_broker.client import (
    Admin,
    Consumer,
    FromWhere,
    Message,
    OrderedConsumer,
    Producer,
    PullConsumer,
    Requester,
    Session,
    TransactionProducer,
    TransactionState,
    reply,
)
from gantry_broker.client import consumer as consumer_module
from gantry_broker.client.consumer import AssignedQueue
from gantry_broker.client.errors import SendFailed
from gantry_broker.client.message import ReceivedMessage
from gantry_broker.client.offsets import BrokerOffsets, FileOffsets
from gantry_broker.client.process_queue import FlowLimits
from gantry_broker.client.transaction_state import Check
from gantry_broker.protocol.codes import RequestCode
from gantry_broker.protocol.frame import Frame
from gantry_broker.remoting.connection import Connection
from gantry_broker.remoting.errors import RemotingError
from gantry_broker.remoting.server import RemotingServer

from tests.client.cluster import Cluster, Inbox, until
from tests.support.remoting import RequestOnly

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("kind", [Consumer, OrderedConsumer])
async def test_an_unreachable_group_does_not_block_other_queues(
    empty_cluster: Cluster, inbox: Inbox, kind: type[Consumer]
) -> None:
    for group in ("a", "b", "c"):
        await empty_cluster.add(group)
    async with Admin(empty_cluster.name_server) as admin:
        await admin.create_topic("T", queues=1)
    async with kind(empty_cluster.name_server, "G", from_where=FromWhere.FIRST) as consumer:
        await consumer.session.route("T")
        await empty_cluster.brokers["a"].stop()
        await consumer.subscribe("T", inbox)
        await until(lambda: {queue.broker for queue in consumer.assigned if queue.topic == "T"} == {"b", "c"}, "queues")
        await empty_cluster.brokers["a"].start()
        await until(lambda: len({queue.broker for queue in consumer.assigned if queue.topic == "T"}) == 3, "queues")


@pytest.mark.parametrize("kind", [Consumer, OrderedConsumer])
async def test_a_handler_whose_inner_task_was_cancelled_has_failed(cluster: Cluster, kind: type[Consumer]) -> None:
    """The cancellation does not reach the consumer, which continues."""
    seen: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)
        if len(seen) <= 2:
            inner = asyncio.create_task(asyncio.sleep(60))
            inner.cancel()
            await inner

    async with kind(
        cluster.name_server, "G", from_where=FromWhere.FIRST, concurrency=2, limits=FlowLimits(messages=4)
    ) as consumer:
        await consumer.subscribe("T", handle)
        async with Producer(cluster.name_server) as producer:
            for number in range(4):
                await producer.send("T", b"%d" % number)
        await until(lambda: set(seen) == {b"0", b"1", b"2", b"3"}, "all messages")
        await until(lambda: len(seen) == 6, "the failed ones again")


@pytest.mark.parametrize("kind", [Consumer, OrderedConsumer])
async def test_close_gives_up_on_a_stuck_handler(cluster: Cluster, kind: type[Consumer]) -> None:
    begun = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        begun.set()
        await asyncio.Event().wait()

    consumer = kind(cluster.name_server, "G", from_where=FromWhere.FIRST)
    await consumer.start()
    await consumer.subscribe("T", handle)
    async with Producer(cluster.name_server) as producer:
        await producer.send("T", b"stuck")
    await begun.wait()
    async with asyncio.timeout(10):
        await consumer.close(patience_s=0.1)
    inbox = Inbox()
    async with kind(cluster.name_server, "G") as successor:
        await successor.subscribe("T", inbox)
        await inbox.wait(1)
    assert inbox.bodies == [b"stuck"]


@pytest.mark.parametrize("kind", [Consumer, OrderedConsumer])
@pytest.mark.parametrize("meanwhile", ["rebalance", "close"])
async def test_a_queue_whose_offset_is_reset_has_one_reader(
    cluster: Cluster, inbox: Inbox, monkeypatch: pytest.MonkeyPatch, kind: type[Consumer], meanwhile: str
) -> None:
    ended, goes_on = asyncio.Event(), asyncio.Event()
    end = AssignedQueue.end

    async def ends_slowly(item: AssignedQueue) -> None:
        await end(item)
        if not ended.is_set():
            ended.set()
            await goes_on.wait()

    consumer = kind(cluster.name_server, "G", from_where=FromWhere.FIRST)
    await consumer.start()
    await consumer.subscribe("T", inbox)
    await until(lambda: len([queue for queue in consumer.assigned if queue.topic == "T"]) == 4, "queues")
    queues = [queue for queue in consumer.assigned if queue.topic == "T"]
    monkeypatch.setattr(AssignedQueue, "end", ends_slowly)
    reset = asyncio.create_task(consumer.reset_offsets({queues[0]: 0}))
    await ended.wait()
    if meanwhile == "rebalance":
        await consumer._apply_allocation("T", queues)
    else:
        await consumer.close()
    goes_on.set()
    await reset
    readers = [task for task in asyncio.all_tasks() if getattr(task.get_coro(), "__name__", "") == "_pull_forever"]
    assert len(readers) == (len(consumer.assigned) if meanwhile == "rebalance" else 0)
    await consumer.close()


class Silent(RequestOnly):
    """Accepts requests, and answers none."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def on_frames(self, conn: Connection, frames: list[Frame]) -> None:
        self.asked += [frame.code for frame in frames]


@pytest.mark.parametrize("kind", [Consumer, OrderedConsumer])
async def test_a_commit_waits_for_a_silent_broker_once(
    empty_cluster: Cluster, inbox: Inbox, kind: type[Consumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not once for each of its queues, and offsets of other brokers do not wait for it."""
    monkeypatch.setattr("gantry_broker.client.offsets.AT_ONCE", 4)
    for group in ("a", "b"):
        await empty_cluster.add(group)
    async with Admin(empty_cluster.name_server) as admin:
        await admin.create_topic("T", queues=8)
    consumer = kind(empty_cluster.name_server, "G", from_where=FromWhere.FIRST, commit_s=3600)
    await consumer.start()
    await consumer.subscribe("T", inbox)
    async with Producer(empty_cluster.name_server) as producer:
        queues = await producer.queues("T")
        for queue in queues:
            await producer.send("T", b"x", queue=queue)
        await inbox.wait(len(queues))
        broker = empty_cluster.brokers["a"]
        await broker.stop()
        silent = Silent()
        server = RemotingServer(silent, "127.0.0.1", int(broker.address.rpartition(":")[2]))
        await server.start()
        async with asyncio.timeout(20):
            await consumer.close()
        if kind is Consumer:
            assert silent.asked.count(RequestCode.UPDATE_CONSUMER_OFFSET) <= 4
        await server.close()
        offsets = BrokerOffsets(producer.session, "G")
        assert [await offsets.read(queue) for queue in queues if queue.broker == "b"] == [1] * 8


async def test_offsets_are_written_after_a_full_disk(cluster: Cluster, inbox: Inbox, tmp_path: Path) -> None:
    path = tmp_path / "G.json"
    path.with_suffix(".tmp").mkdir(parents=True)
    async with Consumer(
        cluster.name_server, "G", from_where=FromWhere.FIRST, broadcasting=True, offset_file=path, commit_s=0.05
    ) as consumer:
        await consumer.subscribe("T", inbox)
        async with Producer(cluster.name_server) as producer:
            await producer.send("T", b"x")
        await inbox.wait(1)
        await consumer.commit()
        await consumer.unsubscribe("T")
        await until(lambda: not consumer.assigned, "the queues are given up")
        await consumer.subscribe("T", inbox)
        await until(lambda: len(consumer.assigned) == 4, "the queues are read again")
        path.with_suffix(".tmp").rmdir()
        await until(path.exists, "the offsets are written")
    assert sorted(FileOffsets(path)._pending.values()) == [0, 0, 0, 1]


async def test_an_uncommitted_message_is_delivered_again(cluster: Cluster) -> None:
    async with Producer(cluster.name_server) as producer:
        queue = (await producer.queues("T"))[0]
        for number in range(3):
            await producer.send("T", b"%d" % number, queue=queue)
        async with PullConsumer(
            cluster.name_server, "G", from_where=FromWhere.FIRST, auto_commit=False, limits=FlowLimits(messages=1)
        ) as consumer:
            await consumer.assign([queue])
            polled: list[bytes] = []
            while len(polled) < 2:
                polled += [message.body for message in await consumer.poll(max_messages=1)]
            await consumer.commit()
            while len(polled) < 3:
                polled += [message.body for message in await consumer.poll(max_messages=1)]
            broker = cluster.brokers["a"].process
            assert broker is not None
            await until(lambda: len(broker.broker.held) > 0, "it waits for the next message")
            assert await consumer.committed(queue) == 2
        async with PullConsumer(cluster.name_server, "G") as successor:
            await successor.assign([queue])
            assert [message.body for message in await successor.poll()] == [b"2"]


async def test_a_broker_that_stops_reading_blocks_no_other(empty_cluster: Cluster) -> None:
    """One-way messages fill the connection, which has no reader; its master is frozen and has a successor."""
    broker = await empty_cluster.add("a")
    async with Admin(empty_cluster.name_server) as admin:
        await admin.create_topic("T", queues=1)
    async with Producer(empty_cluster.name_server, compress_over=1 << 30) as producer:
        await producer.send("T", b"known")
        await broker.stop()
        connections: list[Connection] = []

        class Frozen(RequestOnly):
            def on_open(self, conn: Connection) -> None:
                conn.stop_reading()
                connections.append(conn)

        server = RemotingServer(Frozen(), "127.0.0.1", int(broker.address.rpartition(":")[2]))
        await server.start()

        async def fill() -> None:
            while len(connections) < 2:
                with contextlib.suppress(RemotingError):
                    await producer.send_oneway("T", bytes(1 << 20))

        async with asyncio.timeout(30):
            await fill()
            with pytest.raises(SendFailed):
                await producer.send("T", b"refused", timeout=0.5)
        await server.close()


async def test_a_topic_is_read_after_an_immediate_resubscription(cluster: Cluster, inbox: Inbox) -> None:
    """Messages may arrive in between: this is the usual way to change the subscription of a busy topic."""
    async with (
        Producer(cluster.name_server) as producer,
        Consumer(cluster.name_server, "G", from_where=FromWhere.FIRST) as consumer,
    ):
        await consumer.subscribe("T", inbox)
        await until(lambda: len([queue for queue in consumer.assigned if queue.topic == "T"]) == 4, "queues")
        consumer._tasks[0].cancel()  # no rebalance in between
        queues = await producer.queues("T")
        await consumer.unsubscribe("T")
        for queue in queues:
            await producer.send("T", b"between", queue=queue)
        await until(lambda: all(consumer.progress()[queue].next_offset == 1 for queue in queues), "pulled")
        await consumer.subscribe("T", inbox)
        assert await consumer._apply_allocation("T", queues)
        for queue in queues:
            await producer.send("T", b"after", queue=queue)
        await until(lambda: sum(m.body == b"after" for m in inbox.messages) == 4, "messages")


async def test_requests_reach_the_right_client_of_a_shared_session(empty_cluster: Cluster, inbox: Inbox) -> None:
    await empty_cluster.add("a", transactionCheckInterval=100, transactionTimeOut=100)
    async with Admin(empty_cluster.name_server) as admin:
        await admin.create_topic("T", queues=1)
    asked: list[tuple[str, bytes]] = []

    def answers(name: str, state: TransactionState) -> Check:
        async def check(message: ReceivedMessage) -> TransactionState:
            asked.append((name, message.body))
            return state

        return check

    async def work(message: Message, transaction_id: str) -> TransactionState:
        return TransactionState.UNKNOWN

    session = Session(empty_cluster.name_server)
    async with (
        TransactionProducer(session, "first", answers("first", TransactionState.ROLLBACK)) as first,
        TransactionProducer(session, "second", answers("second", TransactionState.COMMIT)) as second,
        Requester(session, "third") as third,
        Requester(session, "fourth") as fourth,
        Consumer(session, "G", from_where=FromWhere.FIRST) as consumer,
    ):
        await first.send_in_transaction(Message("T", b"one"), work)
        await second.send_in_transaction(Message("T", b"two"), work)
        await until(lambda: len(asked) >= 2, "both are asked")
        assert {*asked} == {("first", b"one"), ("second", b"two")}
        await consumer.subscribe("T", inbox)
        await inbox.wait(1)
        assert inbox.bodies == [b"two"]

        async def replies(message: ReceivedMessage) -> None:
            await reply(third, message, message.body.upper())

        await consumer.subscribe("Asked", replies)
        for requester in (third, fourth):
            assert (await requester.request(Message("Asked", b"what"), 10)).body == b"WHAT"


@pytest.mark.parametrize("kind", [Consumer, OrderedConsumer])
async def test_a_failed_message_is_handled_again_if_send_back_fails(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, kind: type[Consumer]
) -> None:
    """The broker takes no writes, and a property value of another producer contains a separator, so that the client
    cannot encode a copy either.
    """
    monkeypatch.setattr(consumer_module, "LOCAL_RETRY_SECONDS", 0.05)
    seen: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)
        if len(seen) <= 2:
            raise RuntimeError("twice")

    async with (
        Producer(cluster.name_server) as producer,
        kind(cluster.name_server, "G", from_where=FromWhere.FIRST, concurrency=1, max_retries=0) as consumer,
    ):
        queue = (await producer.queues("T"))[0]
        frame, _ = producer._frame(Message("T", b"odd"))
        frame.ext["i"] += "\x02odd\x01a\x01b"
        producer._set_queue(frame, queue)
        address = cluster.brokers["a"].address
        await producer.session.call_checked(address, frame, "send")
        await Admin(producer.session).update_broker_config(address, {"brokerPermission": "4"})
        await consumer.subscribe("T", handle)
        await until(lambda: seen == [b"odd"] * 3, "it is handled again")
        await until(lambda: consumer.in_flight == 0, "it counts as consumed")
