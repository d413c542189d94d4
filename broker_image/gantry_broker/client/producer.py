"""The producer: single, batch and one-way sends with retries.

A send is tried until a broker acknowledges it or its timeout is over. Refused or lost connections and "not now" answers
are retried quickly, on another broker if there is one: a failover takes less than a second and keeps the address. Sends
avoid a silent broker for a while if there is another one (RocketMQ's clients call this fault latency). A send that a
broker refuses is tried on other brokers, `retries` times. Every attempt has the same unique key.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from gantry_broker.client.credentials import Credentials
from gantry_broker.client.errors import BrokerError, InvalidMessage, NoRoute, SendFailed
from gantry_broker.client.message import MAX_BODY, Message, ReceivedMessage, SendResult, check_group, pack_properties
from gantry_broker.client.proxy_address import ONLY_REMOTING, proxy_of
from gantry_broker.client.selection import QueueSelector, RoundRobin, select_by_hash, writable_queues
from gantry_broker.client.session import (
    BACKOFF_FIRST,
    CALL_SECONDS,
    ROUTE_POLL_SECONDS,
    Session,
    next_backoff,
    session_of,
)
from gantry_broker.client.spans import Spans, spans_of
from gantry_broker.client.trace import GROUP_PREFIX, MessageTrace, Sent, TraceRecord, now_ms, sent
from gantry_broker.client.uniqueid import create_unique_key
from gantry_broker.protocol.bodies import TopicRoute
from gantry_broker.protocol.codes import (
    AUTO_CREATE_TOPIC,
    FLAG_ONEWAY,
    RETRY_PREFIX,
    Prop,
    RequestCode,
    ResponseCode,
    SendStatus,
    SysFlag,
)
from gantry_broker.protocol.compression import Compression, compress
from gantry_broker.protocol.fastjson import MessageQueue
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import RecallHeader, parse_int
from gantry_broker.protocol.message import BatchItem, encode_batch
from gantry_broker.protocol.recall_handle import RecallHandle
from gantry_broker.remoting.errors import RemotingError, RequestTimeout
from gantry_broker.remoting.tls import TlsOptions
from gantry_broker.tasks import Started

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from gantry_broker.client.grpc_endpoint import GrpcSender

SEND_SECONDS: Final = 3.0
RETRIES: Final = 2
SILENCE_TIMEOUT_SECONDS: Final = 2.1
"""A request on a connection that is silent for this long fails, so that the next attempt can reach the new master in
time.
"""
FIRST_SILENCE_TIMEOUT_SECONDS: Final = 1.0
"""The same for a first attempt when another group can take the message, so that the send need not wait for a
failover.
"""
AVOID_SILENT_SECONDS: Final = 2.0
"""Sends avoid a silent broker for this long if there is another one. A failover takes about as long."""
COMPRESS_OVER: Final = 4096
"""Bytes of the smallest body that is compressed."""
MAX_LONG: Final = 2**63 - 1
DEFAULT_GROUP: Final = "DEFAULT_PRODUCER"
_DEFAULT_QUEUES: Final = 4
_BODY_FLAGS: Final = SysFlag.COMPRESSED | SysFlag.COMPRESSION_MASK
"""The bits of the system flag that describe the body's compression."""

_STATUS: Final = {
    int(ResponseCode.SUCCESS): SendStatus.SEND_OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
}
_TRANSIENT_CODES: Final = frozenset((ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE))
_OTHER_BROKER_CODES: Final = frozenset(
    (
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
    )
)


class _Watch:
    """A send under way: properties to add, and its result once there is one."""

    __slots__ = ("properties", "result")

    def __init__(self) -> None:
        self.properties: dict[str, str] = {}
        self.result: SendResult | None = None


class Begun(NamedTuple):
    """The first attempt of a send: the queue, and the future of the broker's answer."""

    queue: MessageQueue
    answer: asyncio.Future[Frame]


class Producer(Started):
    """Sends messages.

    async with Producer("127.0.0.1:9876") as producer:
        result = await producer.send("Orders", b"...", keys="4711")

    With "grpc://HOST:PORT", a proxy, it speaks gRPC (docs/client.md says what that cannot do).
    """

    _GRPC_TOO: ClassVar[bool] = True

    def __init__(
        self,
        name_servers: str | Sequence[str] | Session,
        group: str = DEFAULT_GROUP,
        *,
        timeout: float = SEND_SECONDS,
        retries: int = RETRIES,
        compress_over: int = COMPRESS_OVER,
        compression: Compression = Compression.ZLIB,
        max_body: int = MAX_BODY,
        tls: TlsOptions | ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
        trace: bool = False,
        tracer_provider: TracerProvider | None = None,
    ) -> None:
        """`timeout` is in seconds and covers all attempts of one send; `compress_over` and `max_body` are bytes.

        Consumers of 4.x read only `compression` ZLIB. `tls`: see `Session`; a given session has its own. `trace`:
        write RocketMQ's message trace (`trace.py`). `tracer_provider`: of OpenTelemetry (`spans.py`); None: the one
        that the program has set, if any.
        """
        check_group(group)
        self.group = group
        self.timeout = timeout
        self._grpc: GrpcSender | None = None
        proxy = proxy_of(name_servers)
        if proxy is None:
            self.session = session_of(name_servers, credentials, tls)
        elif not self._GRPC_TOO:
            raise ValueError(ONLY_REMOTING.format(name_servers))
        elif trace:
            raise ValueError("by gRPC a client writes no message trace: leave out trace=True, spans are there")
        else:
            from gantry_broker.client.grpc_endpoint import GrpcSender

            self._grpc = GrpcSender(proxy, timeout, max_body, credentials, tls)
        self.retries = retries
        self._compress_over = compress_over
        self._compression = compression
        self._max_body = max_body
        self._trace: MessageTrace | None = None
        if trace:
            self._trace = MessageTrace(Producer(self.session, f"{GROUP_PREFIX}{group[:200]}-PRODUCE"))
        self._tracer_provider = tracer_provider
        self._spans: Spans | None = None
        self._round_robins: dict[str, RoundRobin] = {}
        self._cache: dict[str, tuple[TopicRoute, list[MessageQueue]]] = {}
        self._auto_created: dict[str, tuple[float, list[MessageQueue]]] = {}
        """Topics that brokers create on demand: (monotonic time until which to use these queues, queues)."""

    async def start(self) -> None:
        if self._grpc is not None:
            await self._grpc.endpoint.start()
            self._spans = spans_of(self._tracer_provider, self.group)
            return
        self.session.producer_groups.add(self.group)
        await self.session.start()
        if not self.group.startswith(GROUP_PREFIX):
            self._spans = spans_of(self._tracer_provider, self.group)
        if self._trace is not None:
            await self._trace.start()

    async def close(self) -> None:
        if self._grpc is not None:
            await self._grpc.close()
            return
        if self._trace is not None:
            await self._trace.close()
        await self.session.unregister(producer=self.group)
        self.session.producer_groups.discard(self.group)
        await self.session.close()

    async def send(
        self,
        message: Message | str,
        body: bytes | None = None,
        *,
        tags: str = "",
        keys: str = "",
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        key: object = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send a Message, or a topic and a body, and wait for the acknowledgement.

        `queue` selects one queue. `key` selects a queue by its hash, so that messages of one key keep their order;
        `selector` replaces the hash. Raises InvalidMessage, NoRoute, BrokerError (refused), SendFailed (not
        acknowledged in time: it may be stored nevertheless).
        """
        if isinstance(message, str):
            message = Message(message, body or b"", tags, keys)
        if self._grpc is not None:
            if queue is not None or selector is not None:
                raise InvalidMessage("by gRPC the proxy chooses the queue: write key=... for an order, not queue")
            return await self._send_by_grpc(self._grpc, [message], key, timeout)
        if selector is None and key is not None:
            selector = select_by_hash
        timeout_s = timeout or self.timeout
        if self._spans is None and self._trace is None:
            frame, unique_key = self._frame(message)
            return await self._deliver(frame, message, unique_key, queue, selector, key, timeout_s)
        async with self._watched([message]) as watch:
            frame, unique_key = self._frame(message, watch.properties)
            result = await self._deliver(frame, message, unique_key, queue, selector, key, timeout_s)
            watch.result = result
        return result

    async def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None, timeout: float | None = None
    ) -> SendResult:
        """Send messages of one topic in one request, to one queue. Raises as `send`."""
        if self._grpc is not None:
            if queue is not None or len({message.topic for message in messages}) != 1:
                raise InvalidMessage("by gRPC a batch has messages of one topic, and the proxy chooses the queue")
            return await self._send_by_grpc(self._grpc, messages, None, timeout)
        timeout_s = timeout or self.timeout
        if self._spans is None and self._trace is None:
            frame, unique_keys = self._batch_frame(messages)
            return await self._deliver(frame, messages[0], ",".join(unique_keys), queue, None, None, timeout_s)
        async with self._watched(messages) as watch:
            frame, unique_keys = self._batch_frame(messages, watch.properties)
            result = await self._deliver(frame, messages[0], ",".join(unique_keys), queue, None, None, timeout_s)
            watch.result = result
        return result

    async def send_oneway(self, message: Message | str, body: bytes | None = None) -> None:
        """Send without an acknowledgement. Raises InvalidMessage, NoRoute, or RemotingError when the request was
        not sent.
        """
        if isinstance(message, str):
            message = Message(message, body or b"")
        if self._grpc is not None:
            raise InvalidMessage("gRPC acknowledges each message: write send, not send_oneway")
        if self._spans is None:
            await self._send_oneway(message, None)
            return
        with self._spans.send([message]) as (_, properties):
            await self._send_oneway(message, properties)

    async def _send_by_grpc(
        self, sender: GrpcSender, messages: Sequence[Message], key: object, timeout: float | None
    ) -> SendResult:
        async with self._watched(messages) as watch:
            wire = [sender.wire_message(message, key, watch.properties) for message in messages]
            result = watch.result = await sender.send(wire, timeout or self.timeout)
        return result

    async def _send_oneway(self, message: Message, extra: dict[str, str] | None) -> None:
        frame, _ = self._frame(message, extra)
        queue = self._round_robin(message.topic).choose(await self._queues(message.topic))
        self._set_queue(frame, queue)
        frame.flag |= FLAG_ONEWAY
        await self.session.remoting.oneway(await self.session.master(queue.broker, message.topic), frame)

    async def recall(self, topic: str, handle: str, timeout: float | None = None) -> None:
        """Take back a message that is not delivered yet. `handle`: `SendResult.recall_handle`.

        Brokers refuse it unless their setting `recallMessageEnable` is on. Raises BrokerError, RemotingError, NoRoute.
        """
        if self._grpc is not None:
            await self._grpc.recall(topic, handle, timeout or CALL_SECONDS)
            return
        try:
            broker = RecallHandle.decode(handle).broker
        except ValueError as error:
            raise BrokerError(f"recall in {topic}", ResponseCode.ILLEGAL_OPERATION, str(error)) from None
        header = RecallHeader(topic, handle, self.group)
        address = await self.session.master(broker, topic)
        frame = Frame(RequestCode.RECALL_MESSAGE, ext=header.ext())
        await self.session.call_checked(address, frame, f"recall in {topic}", timeout or CALL_SECONDS)

    async def send_reply(self, message: Message, extra: dict[str, str], timeout: float | None = None) -> SendResult:
        """Send a reply. The properties in `extra` name the client that the broker pushes it to. Raises as `send`."""
        frame, unique_key = self._frame(message, extra)
        frame.code = RequestCode.SEND_REPLY_MESSAGE_V2
        return await self._deliver(frame, message, unique_key, None, None, None, timeout or self.timeout)

    async def send_stored(
        self, message: ReceivedMessage, topic: str, properties: dict[str, str], timeout: float | None = None
    ) -> SendResult:
        """Send a received message again, to another topic and with the given stored properties.

        The body stays as stored, compressed or not. Raises as `send`.
        """
        body, keys = message.record.body, properties.get(Prop.KEYS, "")
        copy = Message(topic, body, keys=keys, flag=message.record.flag, deletes_key=not body)
        copy.check(self._max_body)
        ext = self._ext(copy, pack_properties(properties).decode(), message.record.sys_flag & _BODY_FLAGS)
        frame = Frame(RequestCode.SEND_MESSAGE_V2, ext=ext, body=copy.body)
        return await self._deliver(frame, copy, message.id, None, None, None, timeout or self.timeout)

    async def forward(
        self,
        frame: Frame,
        topic: str,
        unique_key: str,
        *,
        selector: QueueSelector | None = None,
        key: object = None,
        timeout: float | None = None,
        begun: Begun | None = None,
    ) -> SendResult:
        """Send a request that the caller has built, SEND_MESSAGE_V2 or SEND_BATCH_MESSAGE without its queue. `begun`:
        the first attempt.

        Raises as `send`.
        """
        message = Message(topic, b"")
        return await self._deliver(frame, message, unique_key, None, selector, key, timeout or self.timeout, begun)

    def begin(
        self, frame: Frame, topic: str, selector: QueueSelector | None, key: object, timeout: float
    ) -> Begun | None:
        """Send such a request at once, without a task; None: its queue is not known, or no connection takes it now.

        Give the outcome to `forward` when its answer is not one of success (`finished`).
        """
        session = self.session
        route = session.cached_route(topic)
        cached = self._cache.get(topic)
        if cached is None or cached[0] is not route or session.remoting.fell_silent(AVOID_SILENT_SECONDS):
            return None
        queues = cached[1]
        elsewhere = False
        if selector is None:
            queue = self._round_robin(topic).choose(queues)
            elsewhere = queues[0].broker != queues[-1].broker
        else:
            queue = selector(queues, Message(topic, b""), key)
        address = session.address(queue.broker)
        if address is None:
            return None
        self._set_queue(frame, queue)
        future = session.remoting.submit(address, frame, timeout, self._silence(elsewhere, timeout))
        return None if future is None else Begun(queue, future)

    def finished(self, begun: Begun, unique_key: str) -> SendResult | None:
        """Return the result of a send whose answer has come; None: it failed, or must be tried again."""
        future = begun.answer
        if future.cancelled() or future.exception() is not None:
            return None
        answer = future.result()
        status = _STATUS.get(answer.code)
        return None if status is None else self._result(status, answer, unique_key, begun.queue)

    @staticmethod
    def _silence(elsewhere: bool, left: float) -> float:
        return FIRST_SILENCE_TIMEOUT_SECONDS if elsewhere else max(SILENCE_TIMEOUT_SECONDS, left * 0.7)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the writable queues of a topic. Raises NoRoute."""
        if self._grpc is not None:
            return await self._grpc.queues(topic)
        return await self._queues(topic)

    # What is seen of a send

    @asynccontextmanager
    async def _watched(self, messages: Sequence[Message], half: bool = False) -> AsyncIterator[_Watch]:
        """Put a span and a record of the message trace around a send. `half`: of a transaction."""
        watch, begun_ms = _Watch(), now_ms()
        try:
            if self._spans is None or not messages:
                yield watch
            else:
                with self._spans.send(messages) as (span, properties):
                    watch.properties = properties
                    yield watch
                    if watch.result is not None:
                        self._spans.sent(span, watch.result)
        finally:
            if self._trace is not None and watch.result is not None and self._trace.wants(messages[0].topic):
                self._trace.add(self._records(messages, watch.result, begun_ms, half))

    def _records(self, messages: Sequence[Message], result: SendResult, begun_ms: int, half: bool) -> list[TraceRecord]:
        address = self.session.address(result.queue.broker) or result.queue.broker
        ok = result.status is SendStatus.SEND_OK
        how = Sent(self.group, begun_ms, now_ms() - begun_ms, address, ok, half)
        ids, places = result.message_id.split(","), result.offset_id.split(",")
        return [sent(m, id, place, how) for m, id, place in zip(messages, ids, places, strict=False)]

    # Frames

    def _frame(self, message: Message, extra: dict[str, str] | None = None, sys_flag: int = 0) -> tuple[Frame, str]:
        message.check(self._max_body)
        unique_key = create_unique_key()
        properties = message.wire_properties(unique_key)
        if extra:
            properties |= extra
        body = message.body
        if len(body) >= self._compress_over:
            smaller = compress(body, self._compression)
            if len(smaller) < len(body):
                body = smaller
                sys_flag |= self._compression.value
        ext = self._ext(message, pack_properties(properties).decode(), sys_flag)
        return Frame(RequestCode.SEND_MESSAGE_V2, ext=ext, body=body), unique_key

    def _batch_frame(self, messages: Sequence[Message], extra: dict[str, str] | None = None) -> tuple[Frame, list[str]]:
        if not messages:
            raise InvalidMessage("a batch needs at least one message")
        items = []
        unique_keys = []
        first = messages[0]
        for message in messages:
            message.check(self._max_body)
            if message.topic != first.topic or message.wait_stored != first.wait_stored:
                raise InvalidMessage("messages of a batch must have one topic and the same wait_stored")
            if message.delay_level or message.deliver_at_ms is not None or message.topic.startswith(RETRY_PREFIX):
                raise InvalidMessage("a batch cannot hold delayed messages or messages for a retry topic")
            unique_key = create_unique_key()
            unique_keys.append(unique_key)
            properties = message.wire_properties(unique_key) | (extra or {})
            items.append(BatchItem(message.body, pack_properties(properties), message.flag))
        body = encode_batch(items)
        if len(body) > self._max_body:
            raise InvalidMessage(f"the batch has {len(body)} bytes; at most {self._max_body} are allowed")
        wait = {Prop.WAIT_STORE_MSG_OK: "true" if first.wait_stored else "false"}
        ext = self._ext(first, pack_properties(wait).decode(), 0)
        ext["m"] = "true"
        return Frame(RequestCode.SEND_BATCH_MESSAGE, ext=ext, body=body), unique_keys

    def _ext(self, message: Message, properties: str, sys_flag: int) -> dict[str, str]:
        """Return the fields of SendHeader under their short names; `_set_queue` adds the queue."""
        return {
            "a": self.group,
            "b": message.topic,
            "c": AUTO_CREATE_TOPIC,
            "d": str(_DEFAULT_QUEUES),
            "e": "0",
            "f": str(sys_flag),
            "g": str(time.time_ns() // 1_000_000),
            "h": str(message.flag),
            "i": properties,
            "j": "0",
            "k": "false",
            "m": "false",
        }

    @staticmethod
    def _set_queue(frame: Frame, queue: MessageQueue) -> None:
        frame.ext["e"] = str(queue.queue_id)
        frame.ext["n"] = queue.broker

    # Delivery

    def _round_robin(self, topic: str) -> RoundRobin:
        round_robin = self._round_robins.get(topic)
        if round_robin is None:
            round_robin = self._round_robins[topic] = RoundRobin()
        return round_robin

    async def _queues(self, topic: str, *, failed: bool = False) -> list[MessageQueue]:
        """Return the queues of a topic; `failed`: fetch the route again. Raises NoRoute, RemotingError."""
        if not failed:
            route = self.session.cached_route(topic)
            cached = self._cache.get(topic)
            if cached is not None and cached[0] is route:
                return cached[1]
            until, assumed = self._auto_created.get(topic, (0.0, []))
            if route is None and time.monotonic() < until:
                return assumed
        self._auto_created.pop(topic, None)
        ask = self.session.route_after_failure if failed else self.session.route
        route = await ask(topic)
        queues = writable_queues(topic, route) if route is not None else []
        if queues and route is not None:
            self._cache[topic] = (route, queues)
        if not queues and route is None:
            # Brokers may create the topic with its first message. Such brokers register this default topic.
            route = await ask(AUTO_CREATE_TOPIC)
            queues = writable_queues(topic, route, as_default=_DEFAULT_QUEUES) if route is not None else []
            if len({queue.broker for queue in queues}) > 1:
                # As RocketMQ's client does: every group gets messages and creates the topic. The first route would name
                # one group only, and all sends would wait for it when it is down.
                self._auto_created[topic] = (time.monotonic() + ROUTE_POLL_SECONDS, queues)
        if not queues:
            raise NoRoute(
                f"no broker accepts messages for topic {topic}: it does not exist and is not created on demand, "
                "or its brokers have no master or no write permission"
            )
        return queues

    async def _deliver(
        self,
        frame: Frame,
        message: Message,
        unique_key: str,
        fixed: MessageQueue | None,
        selector: QueueSelector | None,
        key: object,
        timeout: float,
        begun: Begun | None = None,
    ) -> SendResult:
        clock = time.monotonic
        deadline = clock() + timeout
        refused = 0
        failed: set[str] = set()
        attempts: list[str] = []
        pause = BACKOFF_FIRST
        again = False
        while True:
            queue: MessageQueue | None = fixed
            elsewhere = False
            try:
                if begun is not None:
                    queue = begun.queue
                elif queue is None:
                    queues = await self._queues(message.topic, failed=again)
                    if selector is None:
                        avoid = failed | self._silent_brokers(queues)
                        queue = self._round_robin(message.topic).choose(queues, avoid)
                        elsewhere = queues[0].broker != queues[-1].broker and any(
                            other.broker != queue.broker and other.broker not in avoid for other in queues
                        )
                    else:
                        queue = selector(queues, message, key)
                if begun is None:
                    self._set_queue(frame, queue)
                    address = self.session.address(queue.broker)
                    if address is None:
                        address = await self.session.master(queue.broker, message.topic)
                    left = deadline - clock()
                    if left <= 0:
                        raise SendFailed(message.topic, attempts, timeout)
                    silence = self._silence(elsewhere, left)
                    answer = await self.session.remoting.request(address, frame, left, silence=silence)
                else:
                    first, begun = begun, None
                    answer = await first.answer
            except (RemotingError, NoRoute) as error:
                attempts.append(str(error))
                if isinstance(error, NoRoute) and message.topic not in self._round_robins:
                    # Nothing was ever sent to this topic. Its route may appear soon, but a wrong name must fail fast.
                    refused += 1
                    if refused > self.retries:
                        raise
                elif isinstance(error, RequestTimeout) and clock() >= deadline:
                    raise SendFailed(message.topic, attempts, timeout) from None
                if queue is not None:
                    failed.add(queue.broker)
            else:
                status = _STATUS.get(answer.code)
                if status is not None:
                    return self._result(status, answer, unique_key, queue)
                attempts.append(f"{queue.broker}: {answer.code} {answer.remark or ''}")
                failed.add(queue.broker)
                if answer.code not in _TRANSIENT_CODES:
                    refused += 1
                    if answer.code not in _OTHER_BROKER_CODES or refused > self.retries:
                        raise BrokerError(f"send to {queue}", answer.code, answer.remark)
            again = True
            if queue is not None and fixed is None and selector is None and self._others(message.topic, failed):
                continue  # another broker can take it at once
            failed.clear()
            if clock() + pause >= deadline:
                raise SendFailed(message.topic, attempts, timeout)
            await asyncio.sleep(pause)
            pause = next_backoff(pause)

    def _others(self, topic: str, failed: set[str]) -> set[str]:
        """Return the brokers that accept messages for a topic, by the cached route, without those that failed."""
        route = self.session.cached_route(topic)
        return set() if route is None else {queue.broker for queue in writable_queues(topic, route)} - failed

    def _silent_brokers(self, queues: Sequence[MessageQueue]) -> set[str]:
        """Return the brokers of these queues that were silent a short while ago."""
        silent = self.session.remoting.fell_silent(AVOID_SILENT_SECONDS)
        return {q.broker for q in queues if self.session.address(q.broker) in silent} if silent else set()

    @staticmethod
    def _result(status: SendStatus, answer: Frame, unique_key: str, queue: MessageQueue) -> SendResult:
        ext = answer.ext
        return SendResult(
            status,
            unique_key,
            ext.get("msgId", ""),
            MessageQueue(queue.topic, queue.broker, parse_int("queueId", ext.get("queueId"))),
            parse_int("queueOffset", ext.get("queueOffset"), 0, MAX_LONG),
            ext.get("transactionId", ""),
            ext.get("recallHandle", ""),
        )
