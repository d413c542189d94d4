"""Requests of brokers and administrators to a running consumer, and reads that move to a slave."""

from __future__ import annotations

import asyncio

from gantry_broker.client import Consumer, FromWhere, Message, MessageQueue, OrderedConsumer, Producer, ReceivedMessage
from gantry_broker.client.pulling import Puller, PullStatus
from gantry_broker.client.session import Session
from gantry_broker.client.subscription import subscription
from gantry_broker.protocol import fastjson
from gantry_broker.protocol.bodies import BrokerData, QueueData, TopicRoute
from gantry_broker.protocol.codes import PullFlag, RequestCode, ResponseCode
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import PullAnswer, PullHeader
from gantry_broker.remoting.client import RemotingClient
from gantry_broker.remoting.connection import Connection
from gantry_broker.remoting.server import RemotingServer

from tests.client.cluster import Cluster, Inbox, until
from tests.support.present import present
from tests.support.remoting import RequestOnly


async def ask(cluster: Cluster, code: int, **ext: object) -> Frame:
    """Sends an administrator's request to the broker, which forwards it to the consumer."""
    async with RemotingClient() as client:
        frame = Frame(code, ext={key: str(value) for key, value in ext.items()})
        return await client.request(cluster.brokers["a"].address, frame, 5)


async def test_running_information_of_a_consumer(cluster: Cluster, inbox: Inbox) -> None:
    async with Producer(cluster.name_server) as producer, Consumer(cluster.name_server, "g") as consumer:
        await consumer.subscribe("T", inbox, "A")
        await until(lambda: len(consumer.assigned) >= 4, "queues are assigned")
        await producer.send("T", b"x", tags="A")
        await inbox.wait(1)
        answer = await ask(
            cluster, RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup="g", clientId=consumer.session.client_id
        )
        assert answer.code == 0, answer.remark
        info = fastjson.loads(answer.body)
        assert info["properties"]["PROP_CONSUMEORDERLY"] == "false"
        assert {data["topic"]: data["subString"] for data in info["subscriptionSet"]}["T"] == "A"
        assert sum(info["mqTable"][MessageQueue("T", "a", n)]["commitOffset"] for n in range(4)) == 1


async def test_a_broker_asks_a_consumer_for_its_offsets(cluster: Cluster, inbox: Inbox) -> None:
    async with (
        Producer(cluster.name_server) as producer,
        OrderedConsumer(cluster.name_server, "g", from_where=FromWhere.FIRST) as consumer,
    ):
        await consumer.subscribe("T", inbox)
        for n in range(8):
            await producer.send(Message("T", b"%d" % n))
        await inbox.wait(8)
        await consumer.commit()
        [conn] = [conn for conn in _connections(cluster) if await _is(conn)]
        status = await conn.request(
            Frame(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ext={"topic": "T", "group": "g"}), 5
        )
        assert fastjson.loads(status.body)["messageQueueTable"] == {MessageQueue("T", "a", n): 2 for n in range(4)}
        message = inbox.messages[0]
        direct = await conn.request(
            Frame(
                RequestCode.CONSUME_MESSAGE_DIRECTLY,
                ext={"consumerGroup": "g", "clientId": consumer.session.client_id, "brokerName": "a"},
                body=message.record.encode(),
            ),
            5,
        )
        assert fastjson.loads(direct.body)["consumeResult"] == "CR_SUCCESS"
        assert len(inbox.messages) == 9
        table = fastjson.dumps({"offsetTable": {MessageQueue("T", "a", 1): 0}})
        reset = Frame(
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext={"topic": "T", "group": "g", "timestamp": "0"}, body=table
        )
        assert (await conn.request(reset, 5)).code == 0
        await inbox.wait(11)
        unknown = await conn.request(
            Frame(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ext={"topic": "T", "group": "zzz"}), 5
        )
        assert (unknown.code, "zzz" in (unknown.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
        broken = await conn.request(
            Frame(RequestCode.CONSUME_MESSAGE_DIRECTLY, ext={"consumerGroup": "g"}, body=b"junk"), 5
        )
        assert broken.code == ResponseCode.SYSTEM_ERROR


def _connections(cluster: Cluster) -> list[Connection]:
    group = present(cluster.brokers["a"].process).parts.ports._group
    return list(present(group).connections)


async def _is(conn: Connection) -> bool:
    """Whether this connection belongs to a client with a consumer of the group `g`."""
    frame = Frame(RequestCode.GET_CONSUMER_RUNNING_INFO, ext={"consumerGroup": "g", "clientId": "x"})
    return (await conn.request(frame, 5)).code == 0


async def test_close_waits_for_running_handlers(cluster: Cluster) -> None:
    finished: list[bytes] = []
    begun = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        begun.set()
        await asyncio.sleep(0.3)
        finished.append(message.body)

    async with Producer(cluster.name_server) as producer:
        async with Consumer(cluster.name_server, "g", from_where=FromWhere.FIRST) as consumer:
            await consumer.subscribe("T", handle)
            await producer.send("T", b"slow")
            await asyncio.wait_for(begun.wait(), 10)
        assert finished == [b"slow"], "close waits for it"
        async with Consumer(cluster.name_server, "g", from_where=FromWhere.FIRST) as consumer:
            await consumer.subscribe("T", handle)
            await until(lambda: len(consumer.assigned) >= 4, "queues are assigned")
            await asyncio.sleep(0.2)
    assert finished == [b"slow"], "and commits it"


class TwoBrokers(RequestOnly):
    """A master that sends its readers to a slave, which sends them back when it has nothing."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, PullHeader]] = []
        self.addresses: dict[int, str] = {}

    def on_frames(self, conn: Connection, frames: list[Frame]) -> None:
        for frame in frames:
            if frame.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
                route = TopicRoute([QueueData("a", 1, 1, 6)], [BrokerData("c", "a", self.addresses)])
                conn.send(Frame.response_to(frame, 0, body=fastjson.dumps(route.to_json())))
            elif frame.code == RequestCode.PULL_MESSAGE:
                header = PullHeader.parse(frame)
                self.asked.append((conn.listener, header))
                suggestion = 1 if conn.listener == "master" else 0
                reply = PullAnswer(suggestion, header.queueOffset + 1, 0, 9)  # type: ignore[arg-type]
                conn.send(Frame.response_to(frame, ResponseCode.PULL_RETRY_IMMEDIATELY, ext=reply.ext()))


async def test_a_puller_follows_the_suggested_broker() -> None:
    handler = TwoBrokers()
    servers = [RemotingServer(handler, "127.0.0.1", 0, name=name) for name in ("master", "slave")]
    for broker_id, server in enumerate(servers):
        handler.addresses[broker_id] = f"127.0.0.1:{await server.start()}"
    queue = MessageQueue("T", "a", 0)
    async with Session(handler.addresses[0]) as session:
        await session.route("T")
        puller = Puller(session, "g")
        for offset in range(3):
            result = await puller.pull(queue, offset, subscription("T"), suspend_ms=0, commit=offset)
            assert (result.status, result.next_offset) == (PullStatus.NO_MATCH, offset + 1)
        puller.failed(queue)
        await puller.pull(queue, 3, subscription("T"), suspend_ms=0)
    assert [who for who, _ in handler.asked] == ["master", "slave", "master", "master"]
    commits = [bool(header.sysFlag & PullFlag.COMMIT_OFFSET) for _, header in handler.asked]
    assert commits == [False, False, True, False], "a slave is never asked to commit"
    for server in servers:
        await server.close(0.1)
