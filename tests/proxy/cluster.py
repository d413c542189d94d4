"""A real NameServer, a real broker and a real proxy in this process, with a gRPC client of another library."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from gantry_broker.client.session import Session
from gantry_broker.namesrv.server import NameServer
from gantry_broker.namesrv.settings import NameServerSettings
from gantry_broker.protocol import fastjson
from gantry_broker.protocol.codes import AUTO_CREATE_TOPIC, RequestCode, ResponseCode
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.grpc_contract import SERVICE, v2
from gantry_broker.proxy.config import ProxyConfig
from gantry_broker.proxy.process import Proxy

from tests.client.cluster import Cluster

POLL_S = 5
"""Seconds that a receive waits, if a test does not say more."""
UNARY = [
    "QueryRoute",
    "Heartbeat",
    "SendMessage",
    "QueryAssignment",
    "AckMessage",
    "ForwardMessageToDeadLetterQueue",
    "EndTransaction",
    "NotifyClientTermination",
    "ChangeInvisibleDuration",
    "RecallMessage",
    "SyncLiteSubscription",
]


class Stub:
    """The methods of the service over one channel."""

    def __init__(self, channel: Any) -> None:
        for name in UNARY:
            call = channel.unary_unary(
                SERVICE + name,
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=getattr(v2, f"{name}Response").FromString,
            )
            setattr(self, name, call)
        for name in ("PullMessage", "UpdateOffset", "GetOffset", "QueryOffset"):
            setattr(self, name, channel.unary_unary(SERVICE + name))
        self.ReceiveMessage = channel.unary_stream(
            SERVICE + "ReceiveMessage",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=v2.ReceiveMessageResponse.FromString,
        )
        self.Telemetry = channel.stream_stream(
            SERVICE + "Telemetry",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=v2.TelemetryCommand.FromString,
        )

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def metadata(client: str | None, **more: str | None) -> list[tuple[str, str]]:
    found = {
        "x-mq-client-id": client,
        "x-mq-language": "PYTHON",
        "x-mq-client-version": "5.1.2",
        "x-mq-protocol": "v2",
        "x-mq-date-time": time.strftime("%Y%m%dT%H%M%SZ"),
        "x-mq-request-id": "r",
    } | {name.replace("_", "-"): value for name, value in more.items()}
    return [(name, value) for name, value in found.items() if value is not None]


async def make_topic(cluster: Cluster, name: str, kind: str = "NORMAL", queues: int = 2) -> None:
    """A topic with a type, on every group."""
    async with Session(cluster.name_server) as session:
        for broker in cluster.brokers.values():
            ext = {
                "topic": name,
                "defaultTopic": AUTO_CREATE_TOPIC,
                "readQueueNums": str(queues),
                "writeQueueNums": str(queues),
                "perm": "6",
                "topicFilterType": "SINGLE_TAG",
                "order": "false",
                "attributes": f"+message.type={kind}",
            }
            frame = Frame(RequestCode.UPDATE_AND_CREATE_TOPIC, ext=ext)
            answer = await session.call(broker.address, frame)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
    await cluster.has_topic(name)


async def make_group(cluster: Cluster, name: str, *, orderly: bool = False, retries: int = 16, **more: Any) -> None:
    config = {"groupName": name, "consumeEnable": True, "consumeMessageOrderly": orderly, "retryMaxTimes": retries}
    config |= more
    async with Session(cluster.name_server) as session:
        for broker in cluster.brokers.values():
            frame = Frame(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=fastjson.dumps(config))
            answer = await session.call(broker.address, frame)
            assert answer.code == ResponseCode.SUCCESS, answer.remark


@asynccontextmanager
async def served(path: Path, *groups: str, **settings: object) -> AsyncIterator[Cluster]:
    """A NameServer and broker groups."""
    names = NameServerSettings("ns", "127.0.0.1", 0, cluster="test", registration_port=0)
    async with NameServer(names) as server:
        cluster = Cluster(path, server)
        try:
            for group in groups or ("a",):
                await cluster.add(group, **settings)
            yield cluster
        finally:
            await cluster.close()


def config_of(cluster: Cluster, **more: Any) -> ProxyConfig:
    values: dict[str, Any] = {
        "cluster": "test",
        "name_servers": [cluster.name_server],
        "listen_host": "127.0.0.1",
        "port": 0,
        "http_port": 0,
        "drain_s": 2.0,
    }
    return ProxyConfig.model_validate(values | more)


@asynccontextmanager
async def proxied(cluster: Cluster, **more: Any) -> AsyncIterator[tuple[Proxy, Stub]]:
    """A proxy of the cluster, and a client of it."""
    async with Proxy(config_of(cluster, **more)) as proxy, grpc.aio.insecure_channel(f"127.0.0.1:{proxy.port}") as ch:
        yield proxy, Stub(ch)


class Line:
    """The telemetry stream of one client."""

    def __init__(self, stub: Stub, client: str, **more: str | None) -> None:
        self._queue: asyncio.Queue[Any] = asyncio.Queue()
        self.call = stub.Telemetry(self._commands(), metadata=metadata(client, **more))

    async def _commands(self) -> AsyncIterator[Any]:
        while (command := await self._queue.get()) is not None:
            yield command

    async def settings(self, settings: Any) -> Any:
        """Send settings, and return the first answer."""
        await self.send(v2.TelemetryCommand(settings=settings))
        return await self.read()

    async def send(self, command: Any) -> None:
        await self._queue.put(command)

    async def read(self, timeout: float = 10.0) -> Any:
        return await asyncio.wait_for(self.call.read(), timeout)

    async def end(self) -> None:
        """Both ends are done with the stream."""
        await self._queue.put(None)
        try:
            async with asyncio.timeout(2):
                while await self.call.read() != grpc.aio.EOF:
                    pass
        except (TimeoutError, grpc.aio.AioRpcError, asyncio.CancelledError):
            self.call.cancel()


@asynccontextmanager
async def consuming(
    cluster: Cluster, client: str, settings: Any, **more: Any
) -> AsyncIterator[tuple[Proxy, Stub, Line]]:
    """A proxy of the cluster, and a client of it that has sent these settings."""
    async with proxied(cluster, **more) as (proxy, stub):
        line = Line(stub, client)
        await line.settings(settings)
        yield proxy, stub, line
        await line.end()


def producer(*topics: str) -> Any:
    found = v2.Settings(client_type=1)
    found.request_timeout.seconds = 3
    found.publishing.SetInParent()
    for topic in topics:
        found.publishing.topics.add(name=topic)
    return found


def consumer(group: str, *topics: str, kind: int = 3) -> Any:
    found = v2.Settings(client_type=kind)
    found.request_timeout.seconds = 3
    found.subscription.group.name = group
    for topic in topics:
        entry = found.subscription.subscriptions.add()
        entry.topic.name = topic
        entry.expression.type = 1
        entry.expression.expression = "*"
    return found


def message(topic: str, body: bytes = b"hello", **more: Any) -> Any:
    """`keys`, `props`, `at` (Unix seconds), `kind`, and other fields of the system properties."""
    found = v2.Message(body=body)
    found.topic.name = topic
    system = found.system_properties
    system.message_id = more.pop("mid", "01" + f"{time.time_ns():032X}")
    system.message_type = more.pop("kind", 1)
    system.body_encoding = more.pop("encoding", 1)
    system.born_timestamp.seconds = int(time.time())
    system.born_host = "here"
    found.user_properties.update(more.pop("props", {}))
    system.keys.extend(more.pop("keys", []))
    if "at" in more:
        system.delivery_timestamp.seconds = int(more.pop("at"))
    for name, value in more.items():
        setattr(system, name, value)
    return found


def receive(group: str, topic: str, broker: str = "a", **more: Any) -> Any:
    """`n`, `invisible` (seconds or None), `poll`, `expression`, `kind`, `queue`, `auto`, `attempt`."""
    found = v2.ReceiveMessageRequest(batch_size=more.get("n", 4), auto_renew=more.get("auto", False))
    found.group.name = group
    found.message_queue.topic.name = topic
    found.message_queue.id = more.get("queue", -1)
    found.message_queue.broker.name = broker
    found.filter_expression.type = more.get("kind", 1)
    found.filter_expression.expression = more.get("expression", "*")
    if more.get("invisible", 20) is not None:
        found.invisible_duration.seconds = more.get("invisible", 20)
    found.long_polling_timeout.seconds = more.get("poll", POLL_S)
    if "attempt" in more:
        found.attempt_id = more["attempt"]
    return found


async def received(stub: Stub, client: str, request: Any, **more: str | None) -> tuple[Any, list[Any]]:
    """The status and the messages of one receive."""
    parts = [part async for part in stub.ReceiveMessage(request, metadata=metadata(client, **more), timeout=20)]
    assert parts[-1].WhichOneof("content") == "delivery_timestamp"
    assert parts[0].WhichOneof("content") == "status"
    return parts[0].status, [part.message for part in parts[1:-1]]


def ack(topic: str, group: str, *messages: Any, handle: str | None = None) -> Any:
    found = v2.AckMessageRequest()
    found.topic.name, found.group.name = topic, group
    for one in messages:
        system = one.system_properties
        found.entries.add(message_id=system.message_id, receipt_handle=handle or system.receipt_handle)
    return found
