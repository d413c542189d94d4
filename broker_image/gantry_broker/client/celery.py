"""A transport of kombu, and so of Celery, over RocketMQ topics: `pip install gantry-mq-client[celery]`.

import gantry_broker.client.celery  # so that kombu knows rocketmq://

app = Celery("shop", broker="rocketmq://127.0.0.1:9876")

A queue of kombu is a topic, and all workers of a queue are members of one consumer group, which receive by POP. With
`task_acks_late` a task of a dead worker starts again after `visibility_timeout` seconds. Brokers keep tasks with a
countdown or an ETA until they are due. There is no fanout, so Celery's remote control and events stay off.

Options (`broker_transport_options`):

- `name_servers`: a list of addresses, instead of the URL's host
- `visibility_timeout`: seconds until the task of a dead worker starts again, 60
- `longest_task`: seconds after which a task that still runs may start elsewhere, 43,200
- `delays`: "broker", or "worker" for RocketMQ 4, which has no timers
- `group_prefix`: the group of a queue is this and the topic, "celery-"
- `create_topics`: create a topic that is missing, True

User and password of the URL are access key and secret key; `broker_use_ssl` takes True, or `ca_certs`, `certfile` and
`keyfile`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from queue import Empty
from typing import Any, Final, NamedTuple, TypeVar
from uuid import uuid4

from kombu.transport import TRANSPORT_ALIASES, virtual

from gantry_broker.client.admin import Admin
from gantry_broker.client.credentials import Credentials
from gantry_broker.client.errors import BrokerError, ClientError, NoRoute
from gantry_broker.client.holding import FAILURES, Holding
from gantry_broker.client.message import FromWhere, Message
from gantry_broker.client.producer import Producer
from gantry_broker.client.session import Session
from gantry_broker.client.simple_consumer import MAX_MESSAGES, PoppedMessage, SimpleConsumer
from gantry_broker.client.sync import LOOP
from gantry_broker.remoting.errors import RemotingError
from gantry_broker.remoting.tls import TlsOptions
from gantry_broker.tasks import end_tasks
from gantry_broker.version import VERSION

log = logging.getLogger(__name__)

T = TypeVar("T")
PORT: Final = 9876
GROUP_PREFIX: Final = "celery-"
VISIBILITY_S: Final = 60.0
LONGEST_S: Final = 43_200.0
POLL_S: Final = 10.0
"""Seconds of one poll, if the caller sets no shorter time."""
MOST_DELAY_S: Final = 259_200.0
"""RocketMQ's timers reach this far: `timerMaxDelaySec`, 3 days. A worker holds a later task for the rest."""
_OTHER: Final = re.compile(r"[^0-9A-Za-z_%|-]")


class _Queue(NamedTuple):
    """The consumer of one queue. All of it runs in the loop of the client."""

    consumer: SimpleConsumer
    holding: Holding


class _Clients:
    """The clients of one connection. All of it runs in the loop of the client."""

    def __init__(
        self,
        name_servers: str | list[str],
        credentials: Credentials | None,
        tls: TlsOptions | None,
        options: Mapping[str, Any],
    ) -> None:
        self._session = Session(name_servers, credentials=credentials, tls=tls)
        self._prefix = str(options.get("group_prefix", GROUP_PREFIX))
        self._visibility_s = float(options.get("visibility_timeout", VISIBILITY_S))
        self._longest_s = float(options.get("longest_task", LONGEST_S))
        self._create = bool(options.get("create_topics", True))
        self._producer = Producer(self._session, f"{self._prefix}producer")
        self.admin = Admin(self._session)
        self._queues: dict[str, _Queue] = {}
        self._topics: set[str] = set()

    async def start(self) -> None:
        await self._producer.start()
        try:
            await self.admin.cluster_info()
        except BaseException:
            await self._producer.close()
            raise

    async def close(self) -> None:
        queues, self._queues = list(self._queues.values()), {}
        for queue in queues:
            await queue.holding.close()
            await queue.consumer.close()
        await self._producer.close()

    def group(self, topic: str) -> str:
        return f"{self._prefix}{topic}"

    async def declare(self, topic: str) -> None:
        if self._create and topic not in self._topics:
            await self.admin.ensure_topic(topic)
        self._topics.add(topic)

    async def exists(self, topic: str) -> bool:
        try:
            await self.admin.topic_route(topic)
        except NoRoute:
            return False
        return True

    async def send(self, message: Message) -> None:
        await self._producer.send(message)

    async def receive(self, topics: list[str], most: int, wait_s: float) -> tuple[str, list[PoppedMessage]]:
        """Return the messages of the first queue that has some, held. Empty: none came in time."""
        for topic in topics:
            if topic not in self._queues:
                self._queues[topic] = await self._consume(topic)
        waiting = {
            asyncio.ensure_future(self._queues[topic].consumer.receive(most, wait_s=wait_s)): topic for topic in topics
        }
        left = set(waiting)
        failure: BaseException | None = None
        try:
            while left:
                done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                for one in done:
                    failure = one.exception() or failure
                    if one.exception() is None and one.result():
                        first = waiting.pop(one), one.result()
                        for message in first[1]:
                            self._queues[first[0]].holding.take(message)
                        return first
        finally:
            await end_tasks(*left)
            for one, topic in waiting.items():  # what came in the same moment waits for the next call
                if not one.cancelled() and one.exception() is None:
                    self._queues[topic].consumer.keep(one.result())
        if failure is not None:
            raise failure
        return "", []

    async def _consume(self, topic: str) -> _Queue:
        await self.declare(topic)
        consumer = SimpleConsumer(
            self._session, self.group(topic), from_where=FromWhere.FIRST, invisible_s=self._visibility_s
        )
        await consumer.start()
        await consumer.subscribe(topic)
        holding = Holding(consumer, self._visibility_s, self._longest_s)
        holding.start()
        return _Queue(consumer, holding)

    async def cancel(self, topic: str) -> None:
        """Leave a queue's group; its messages that are held stay held until they are finished."""
        queue = self._queues.get(topic)
        if queue is not None and not queue.holding:
            del self._queues[topic]
            await queue.holding.close()
            await queue.consumer.close()

    async def finish(self, topic: str, message: PoppedMessage) -> None:
        queue = self._queues.get(topic)
        if queue is None or not await queue.holding.finish(message):
            log.warning("message %s of %s was finished too late: it may come again", message.id, topic)

    async def give_back(self, topic: str, message: PoppedMessage) -> None:
        queue = self._queues.get(topic)
        if queue is not None:
            await queue.holding.give_back(message)

    async def release(self, topic: str, message: PoppedMessage) -> None:
        self._queues[topic].holding.release(message)

    async def size(self, topic: str) -> int:
        """Messages that the group has not read. 0 when no broker has the topic."""
        try:
            stats = await self.admin.topic_stats(topic)
        except (NoRoute, BrokerError):
            return 0
        try:
            read = await self.admin.consume_stats(self.group(topic), topic)
        except (NoRoute, BrokerError):
            read = {}  # no worker has read yet
        read_to = {queue: offset.consumer_offset for queue, offset in read.items()}
        return sum(
            max(offset.max_offset - max(read_to.get(queue, 0), offset.min_offset), 0) for queue, offset in stats.items()
        )

    async def purge(self, topic: str) -> int:
        waiting = await self.size(topic)
        await self.admin.reset_offsets(self.group(topic), topic, int(time.time() * 1000))
        return waiting


class Channel(virtual.Channel):  # type: ignore[misc]
    """Publishes to topics and receives from them."""

    do_restore = False  # Messages that are not acknowledged come back by themselves.

    @property
    def _clients(self) -> _Clients:
        return self.connection.clients  # type: ignore[no-any-return]

    # Queues

    def _new_queue(self, queue: str, **options: Any) -> None:
        LOOP.run(self._clients.declare(topic_of(queue)))

    def _has_queue(self, queue: str, **options: Any) -> bool:
        return LOOP.run(self._clients.exists(topic_of(queue)))

    def _size(self, queue: str) -> int:
        return LOOP.run(self._clients.size(topic_of(queue)))

    def _purge(self, queue: str) -> int:
        return LOOP.run(self._clients.purge(topic_of(queue)))

    def _delete(self, queue: str, *args: Any, **options: Any) -> None:
        LOOP.run(self._clients.admin.delete_topic(topic_of(queue)))

    # Messages

    def _put(self, queue: str, message: dict[str, Any], **options: Any) -> None:
        due_ms = due_of(message, time.time()) if self.connection.delays_at_broker else None
        key = str((message.get("headers") or {}).get("id") or "")
        body = json.dumps(message).encode()
        LOOP.run(self._clients.send(Message(topic_of(queue), body, keys=key, deliver_at_ms=due_ms)))

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        """Return one message, or raise `queue.Empty`."""
        payloads = self._receive([queue], 1, 0.0 if timeout is None else timeout)
        if not payloads:
            raise Empty
        return payloads[0][1]

    def _poll(self, cycle: object, callback: Callable[..., object], timeout: float | None = None) -> None:
        """Deliver what the first queue gives; raise `queue.Empty` when none gives anything in time."""
        most = self.qos.can_consume_max_estimate()
        most = MAX_MESSAGES if most is None else min(max(most, 1), MAX_MESSAGES)
        payloads = self._receive(self._active_queues, most, POLL_S if timeout is None else min(timeout, POLL_S))
        if not payloads:
            raise Empty
        for queue, payload in payloads:
            callback(payload, queue)

    def _receive(self, queues: list[str], most: int, wait_s: float) -> list[tuple[str, dict[str, Any]]]:
        topics = {topic_of(queue): queue for queue in queues}
        try:
            topic, messages = LOOP.run(self._clients.receive(list(topics), most, wait_s))
        except FAILURES as error:
            log.warning("no tasks of %s for now: %s", ", ".join(topics), error)
            return []
        payloads = []
        for message in messages:
            payload = payload_of(message.body)
            if payload is None:
                log.error(
                    "message %s of %s is not kombu's: after its last attempt it is a dead letter", message.id, topic
                )
                LOOP.run(self._clients.release(topic, message))
                continue
            tag = uuid4().hex
            payload["properties"]["delivery_tag"] = tag
            if message.delivery_attempt > 1:
                payload["properties"].setdefault("delivery_info", {})["redelivered"] = True
            self.connection.received[tag] = topic, message
            payloads.append((topics[topic], payload))
        return payloads

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """Acknowledge at the broker. Raises RemotingError when none answers."""
        self._finish(delivery_tag)
        super().basic_ack(delivery_tag, multiple)

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Make the message visible again at once, or drop it."""
        if requeue:
            self._give_back(delivery_tag)
        else:
            self._finish(delivery_tag)
        super().basic_ack(delivery_tag)

    def _finish(self, tag: str) -> None:
        received = self.connection.received.pop(tag, None)
        if received is not None:
            LOOP.run(self._clients.finish(*received))

    def _give_back(self, tag: str) -> None:
        received = self.connection.received.pop(tag, None)
        if received is not None:
            LOOP.run(self._clients.give_back(*received))

    def basic_consume(self, queue: str, no_ack: bool, *args: Any, **options: Any) -> None:
        """Consume from a queue. With `no_ack` a message is finished when it is delivered."""
        super().basic_consume(queue, no_ack, *args, **options)
        if no_ack:
            callback = self.connection._callbacks[queue]

            def finished(raw: dict[str, Any]) -> object:
                self._finish(raw["properties"]["delivery_tag"])
                return callback(raw)

            self.connection._callbacks[queue] = finished

    def basic_cancel(self, consumer_tag: str) -> None:
        """Stop to consume."""
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is not None and queue not in self._active_queues and self.connection is not None:
            LOOP.run(self._clients.cancel(topic_of(queue)))

    def close(self) -> None:
        """Give back what is not acknowledged."""
        if not self.closed:
            for tag in list(self.qos._delivered):
                self._give_back(tag)
        super().close()


class Transport(virtual.Transport):  # type: ignore[misc]
    """kombu's transport of `rocketmq://`."""

    Channel = Channel
    default_port = PORT
    driver_type = driver_name = "rocketmq"
    polling_interval = 0.1
    connection_errors = (*virtual.Transport.connection_errors, RemotingError, NoRoute, OSError)
    channel_errors = (*virtual.Transport.channel_errors, BrokerError, ClientError)

    clients: _Clients
    received: dict[str, tuple[str, PoppedMessage]]
    """Delivery tag to topic and message, of those that are not finished."""

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        self.received = {}
        delays = client.transport_options.get("delays", "broker")
        if delays not in ("broker", "worker"):
            raise ValueError(f"delays is {delays!r}; write 'broker', or 'worker' for brokers without timers")
        self.delays_at_broker = delays == "broker"

    def establish_connection(self) -> Transport:
        """Connect. Raises RemotingError when no NameServer answers."""

        async def opened() -> _Clients:
            clients = _Clients(
                name_servers_of(self.client),
                Credentials(self.client.userid, self.client.password or "") if self.client.userid else None,
                tls_of(self.client.ssl),
                self.client.transport_options,
            )
            await clients.start()
            return clients

        self.clients = LOOP.run(opened())
        return super().establish_connection()  # type: ignore[no-any-return]

    def close_connection(self, connection: Transport) -> None:
        """Give back what is not finished, and disconnect."""
        super().close_connection(connection)
        LOOP.run(self.clients.close())

    def driver_version(self) -> str:
        """Return the version of the client."""
        return VERSION


def topic_of(queue: str) -> str:
    """Return the topic of a queue: other characters than a topic may have become `-`."""
    return _OTHER.sub("-", queue)


def name_servers_of(client: Any) -> str | list[str]:
    """Return the addresses of NameServers: the option, or the URL's host."""
    stated = client.transport_options.get("name_servers")
    if stated:
        return stated if isinstance(stated, str) else list(stated)
    return f"{client.hostname or '127.0.0.1'}:{client.port or PORT}"


def tls_of(ssl: Any) -> TlsOptions | None:
    """Return the options of TLS for kombu's `ssl`. Raises ValueError for a name that is not known."""
    if not ssl:
        return None
    if not isinstance(ssl, Mapping):
        return TlsOptions()
    names = {"ca_certs": "ca_file", "certfile": "cert_file", "keyfile": "key_file"}
    other = ssl.keys() - names.keys()
    if other:
        raise ValueError(f"ssl has {sorted(other)}; write {', '.join(names)}")
    return TlsOptions(**{names[name]: value for name, value in ssl.items()})


def due_of(message: Mapping[str, Any], now: float) -> int | None:
    """Return when the broker shows a task, in milliseconds since 1970, from Celery's `eta`; None: at once."""
    eta = (message.get("headers") or {}).get("eta")
    if not isinstance(eta, str):
        return None
    try:
        due = datetime.fromisoformat(eta)
    except ValueError:
        return None
    seconds = (due if due.tzinfo else due.replace(tzinfo=UTC)).timestamp()
    return int(min(seconds, now + MOST_DELAY_S) * 1000) if seconds > now else None


def payload_of(body: bytes) -> dict[str, Any] | None:
    """Return the message that `_put` wrote; None for anything else."""
    try:
        payload = json.loads(body)
    except ValueError:
        return None
    if not isinstance(payload, dict) or not isinstance(payload.get("properties"), dict):
        return None
    if not isinstance(payload["properties"].get("delivery_info", {}), dict):
        return None
    return payload


TRANSPORT_ALIASES["rocketmq"] = f"{__name__}:Transport"
