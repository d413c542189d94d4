"""Sends, transactions and recalls."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gantry_broker.client.message import Message, SendResult
from gantry_broker.client.producer import Begun, Producer
from gantry_broker.client.selection import QueueSelector
from gantry_broker.protocol.bad_field import BadField
from gantry_broker.protocol.codes import (
    AUTO_CREATE_TOPIC,
    MASTER_ID,
    Prop,
    RequestCode,
    ResponseCode,
    SendStatus,
    SysFlag,
)
from gantry_broker.protocol.fastjson import MessageQueue
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.grpc_contract import Code, MessageType, TransactionResolution, TransactionSource, v2
from gantry_broker.protocol.headers import CheckTransactionHeader, EndTransactionHeader, Long
from gantry_broker.protocol.message import (
    BatchItem,
    RecordError,
    decode_record,
    encode_batch,
    format_properties,
    java_hash,
    parse_message_id,
)
from gantry_broker.protocol.recall_handle import RecallHandle
from gantry_broker.proxy.answers import FAILURES, Answer, Refusal, set_status, status_bytes
from gantry_broker.proxy.brokers import Brokers
from gantry_broker.proxy.clients import Clients
from gantry_broker.proxy.messages import (
    MAX_BODY,
    consistent_hash,
    received,
    stored_properties,
    sys_flag_of,
    type_of,
)
from gantry_broker.proxy.names import resource_name
from gantry_broker.proxy.rpc import Call
from gantry_broker.proxy.wire import send_answer
from gantry_broker.remoting.connection import Connection

log = logging.getLogger(__name__)

SEND_S: Final = 3.0
"""Seconds for a send whose client does not say how long it waits."""
LONGEST_S: Final = 30.0
MARGIN_S: Final = 0.1
"""An answer leaves so long before the client gives up."""
TRANSACTION_S: Final = 30.0
"""How long the proxy knows where a half message is."""
MAX_TRANSACTIONS: Final = 200_000
MAX_RECALL_HANDLE: Final = 1_024

_STATUS: Final = {
    status: (code, status_bytes(code, code.name))
    for status, code in {
        SendStatus.SEND_OK: Code.OK,
        SendStatus.FLUSH_DISK_TIMEOUT: Code.MASTER_PERSISTENCE_TIMEOUT,
        SendStatus.FLUSH_SLAVE_TIMEOUT: Code.SLAVE_PERSISTENCE_TIMEOUT,
        SendStatus.SLAVE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
    }.items()
}
_DECISIONS: Final = {
    int(TransactionResolution.COMMIT): int(SysFlag.TRANSACTION_COMMIT),
    int(TransactionResolution.ROLLBACK): int(SysFlag.TRANSACTION_ROLLBACK),
    int(TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED): int(SysFlag.TRANSACTION_NOT),
}


@dataclass(frozen=True, slots=True)
class HalfMessage:
    """Where a message of a transaction waits for its end."""

    broker: str
    group: str
    message_id: str
    queue_offset: int
    log_offset: int
    until: float


def queue_of_group(queues: Sequence[MessageQueue], message: Message, key: object) -> MessageQueue:
    """Return the queue of a message group: few groups move when the number of queues changes. Pure."""
    return queues[consistent_hash(java_hash(str(key)), len(queues))]


class Send:
    """A checked request of a client to send."""

    __slots__ = ("_begun", "first_id", "frame", "group", "half", "patience", "topic", "unique_key")

    def __init__(self, topic: str, frame: Frame, stored: list[dict[str, str]], patience: float) -> None:
        first = stored[0]
        self.topic = topic
        self.frame = frame
        self.first_id = first[Prop.UNIQ_CLIENT_MESSAGE_ID_KEYIDX]
        self.unique_key = (
            self.first_id
            if len(stored) == 1
            else ",".join([properties[Prop.UNIQ_CLIENT_MESSAGE_ID_KEYIDX] for properties in stored])
        )
        self.group = first.get(Prop.SHARDING_KEY)
        self.half = Prop.TRANSACTION_PREPARED in first
        self.patience = patience
        """Seconds for all attempts."""
        self._begun = time.monotonic()

    @property
    def selector(self) -> QueueSelector | None:
        return None if self.group is None else queue_of_group

    def time_left(self) -> float:
        return max(self.patience - (time.monotonic() - self._begun), 0.001)

    def answer(self, result: SendResult) -> Answer:
        code, status = _STATUS[result.status]
        offset, handle = result.queue_offset, result.recall_handle
        return Answer(code, send_answer(status, self.unique_key, self.first_id, offset, handle))


class Sending:
    """What producers ask."""

    CHECK: Final = RequestCode.CHECK_TRANSACTION_STATE

    def __init__(self, brokers: Brokers, producer: Producer, clients: Clients) -> None:
        self._brokers = brokers
        self._producer = producer
        self._clients = clients
        self._half: OrderedDict[tuple[str, str], HalfMessage] = OrderedDict()
        """By topic and transaction, the oldest first."""
        self.checks = 0
        """Questions of brokers about transactions that reached a client."""
        self._tasks: set[asyncio.Task[None]] = set()

    # ---- sends

    def send(
        self, call: Call, topic: str, messages: Any, done: Callable[[Answer | Awaitable[Answer]], None]
    ) -> Awaitable[Answer] | None:
        """Serve a SendMessageRequest. None: it went out at once, and `done` gets what comes of it; otherwise await it.
        Raises Refusal; what is to be awaited raises `FAILURES` too.
        """
        kinds = self._brokers.known_types(topic)
        if kinds is None or any([one.system_properties.message_type == MessageType.TRANSACTION for one in messages]):
            return self._send(call, topic, messages)
        send = self._checked(topic, messages, kinds, self._patience(call))
        begun = self._producer.begin(send.frame, topic, send.selector, send.group, send.patience)
        if begun is None:
            return self._deliver(send)

        def answered(_: asyncio.Future[Frame]) -> None:
            result = self._producer.finished(begun, send.unique_key)
            done(self._deliver(send, begun) if result is None else send.answer(result))

        begun.answer.add_done_callback(answered)
        return None

    async def _send(self, call: Call, topic: str, messages: Any) -> Answer:
        kinds = await self._brokers.message_types(topic)
        return await self._deliver(self._checked(topic, messages, kinds, self._patience(call)))

    def _checked(self, topic: str, messages: Any, kinds: Sequence[MessageType], patience: float) -> Send:
        """Return what is to be sent. Raises Refusal."""
        now_ms = time.time_ns() // 1_000_000
        stored = []
        for message in messages:
            if resource_name(message.topic) != topic:
                raise Refusal(Code.MESSAGE_CORRUPTED, "topic in message is not same")
            stored.append(stored_properties(message, topic, now_ms))
        for properties in stored:
            kind = type_of(properties)
            if kind not in kinds:
                expected = kinds[0].name if kinds else "UNSPECIFIED"
                raise Refusal(
                    Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                    f"TopicMessageType validate failed, the expected type is {expected}, "
                    f"but actual type is {kind.name}",
                )
        return Send(topic, self._frame(topic, messages, stored, now_ms), stored, patience)

    async def _deliver(self, send: Send, begun: Begun | None = None) -> Answer:
        """`begun`: the first attempt. Raises Refusal and `FAILURES`."""
        topic = send.topic
        if send.half and topic not in self._brokers.session.producer_groups:
            await self._register(topic)
        result = await self._producer.forward(
            send.frame,
            topic,
            send.unique_key,
            selector=send.selector,
            key=send.group,
            timeout=send.time_left(),
            begun=begun,
        )
        if send.half and result.status is SendStatus.SEND_OK:
            self._note_half(
                topic,
                send.first_id,
                HalfMessage(
                    result.queue.broker,
                    topic,
                    send.unique_key,
                    result.queue_offset,
                    parse_message_id(result.offset_id)[2],
                    time.monotonic() + TRANSACTION_S,
                ),
            )
        return send.answer(result)

    @staticmethod
    def _patience(call: Call) -> float:
        left = call.time_left()
        return SEND_S if left is None else min(max(left - MARGIN_S, 0.05), LONGEST_S)

    @staticmethod
    def _frame(topic: str, messages: Any, stored: list[dict[str, str]], now_ms: int) -> Frame:
        first = messages[0]
        flag = sys_flag_of(first)
        if len(messages) == 1:
            code, batch, body = RequestCode.SEND_MESSAGE_V2, "false", first.body
            properties = format_properties(stored[0]).decode()
        else:
            if any(type_of(one) not in (MessageType.NORMAL, MessageType.FIFO) for one in stored):
                raise Refusal(Code.MESSAGE_CORRUPTED, "several messages of one request must be NORMAL or FIFO")
            if any(sys_flag_of(message) != flag for message in messages):
                raise Refusal(Code.MESSAGE_CORRUPTED, "several messages of one request need the same body encoding")
            if len({one.get(Prop.SHARDING_KEY) for one in stored}) > 1:
                raise Refusal(Code.MESSAGE_CORRUPTED, "several messages of one request need the same message group")
            items = [
                BatchItem(message.body, format_properties(one)) for message, one in zip(messages, stored, strict=True)
            ]
            code, batch, body = RequestCode.SEND_BATCH_MESSAGE, "true", encode_batch(items)
            if len(body) > MAX_BODY:
                raise Refusal(Code.MESSAGE_BODY_TOO_LARGE, f"message body cannot exceed the max {MAX_BODY}")
            properties = ""
        ext = {
            "a": topic,
            "b": topic,
            "c": AUTO_CREATE_TOPIC,
            "d": "4",
            "e": "0",
            "f": str(flag),
            "g": stored[0].get(Prop.BORN_TIMESTAMP) or str(now_ms),
            "h": "0",
            "i": properties,
            "j": "0",
            "k": "false",
            "m": batch,
        }
        return Frame(code, ext=ext, body=body)

    # ---- transactions

    def _note_half(self, topic: str, transaction_id: str, half: HalfMessage) -> None:
        if len(self._half) >= MAX_TRANSACTIONS:
            self._half.popitem(last=False)
        self._half[topic, transaction_id] = half

    async def end_transaction(self, topic: str, request: Any) -> Any:
        transaction_id: str = request.transaction_id
        if not transaction_id.strip():
            raise Refusal(Code.INVALID_TRANSACTION_ID, "transaction id cannot be empty")
        half = self._half.get((topic, transaction_id))
        if half is None or time.monotonic() > half.until:
            raise Refusal(Code.INTERNAL_SERVER_ERROR, "cannot found transaction data")
        if request.resolution not in _DECISIONS:
            raise Refusal(Code.BAD_REQUEST, f"resolution is {request.resolution}: write COMMIT or ROLLBACK")
        header = EndTransactionHeader(
            half.group,
            Long(half.queue_offset),
            Long(half.log_offset),
            _DECISIONS[request.resolution],
            request.source == TransactionSource.SOURCE_SERVER_CHECK,
            half.message_id,
            transaction_id,
        )
        ext = header.ext() | {"bname": half.broker, "topic": topic}
        address = await self._brokers.address(half.broker, topic)
        await self._brokers.session.remoting.oneway(address, Frame(RequestCode.END_TRANSACTION, ext=ext))
        self._half.pop((topic, transaction_id), None)  # not before: the client may try again while there is no master
        answer = v2.EndTransactionResponse()
        set_status(answer)
        return answer

    async def on_check(self, conn: Connection, frame: Frame) -> Frame | None:
        """Ask one of the clients that send to the topic for the end of a transaction: a broker wants to know it."""
        try:
            header = CheckTransactionHeader.parse(frame)
            record = decode_record(frame.body)
        except (BadField, RecordError) as error:
            return Frame.response_to(frame, ResponseCode.SYSTEM_ERROR, str(error))
        properties = record.props
        topic = properties.get(Prop.REAL_TOPIC, record.topic)
        group = properties.get(Prop.PRODUCER_GROUP, topic)
        client = self._clients.publisher(topic)
        broker = frame.ext.get("bname") or self._broker_at(topic, f"{conn.peer[0]}:{conn.peer[1]}")
        if client is None or client.line is None or broker is None:
            return None
        message_id = properties.get(Prop.UNIQ_CLIENT_MESSAGE_ID_KEYIDX) or record.offset_id
        transaction_id = header.transactionId or message_id
        until = time.monotonic() + TRANSACTION_S
        self._note_half(
            topic,
            transaction_id,
            HalfMessage(broker, group, message_id, header.tranStateTableOffset, header.commitLogOffset, until),
        )
        named = next((t for t in client.settings.publishing.topics if resource_name(t) == topic), None)
        command = v2.TelemetryCommand()
        part = command.recover_orphaned_transaction_command
        received(record, v2.Resource(name=topic) if named is None else named, out=part.message)
        part.message.system_properties.message_type = MessageType.TRANSACTION
        part.transaction_id = transaction_id
        if client.line.push(command.SerializeToString()):
            self.checks += 1
        return None

    def _broker_at(self, topic: str, address: str) -> str | None:
        route = self._brokers.session.cached_route(topic)
        brokers = [] if route is None else route.brokers
        return next((broker.name for broker in brokers if address in broker.addresses.values()), None)

    def client_came(self, settings: Any) -> None:
        """Let brokers ask for the transactions of a producer, which has said to which topics it sends."""
        topics = [resource_name(topic) for topic in settings.publishing.topics]
        missing = [topic for topic in topics if topic not in self._brokers.session.producer_groups]
        if missing and len(self._tasks) < 1_000:
            task = asyncio.ensure_future(self._register_all(missing))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _register_all(self, topics: list[str]) -> None:
        for topic in topics:
            try:
                if MessageType.TRANSACTION in await self._brokers.message_types(topic):
                    await self._register(topic)
            except FAILURES as error:
                log.info("producers of %s cannot be registered: %s", topic, error)

    async def _register(self, topic: str) -> None:
        """Send heartbeats to the brokers of a topic: this process has its producers."""
        session = self._brokers.session
        route = await self._brokers.route(topic)
        session.producer_groups.add(topic)
        if route is not None:
            await session.send_heartbeats(
                [broker.addresses[MASTER_ID] for broker in route.brokers if MASTER_ID in broker.addresses]
            )

    async def sweep(self) -> None:
        """Forget transactions without an end, and producers that have gone."""
        now = time.monotonic()
        while self._half and next(iter(self._half.values())).until < now:
            self._half.popitem(last=False)
        session = self._brokers.session
        for topic in session.producer_groups - {self._producer.group} - set(self._clients.published_topics()):
            session.producer_groups.discard(topic)
            await session.unregister(producer=topic)

    # ---- recalls

    async def recall(self, topic: str, request: Any) -> Any:
        handle: str = request.recall_handle
        try:
            broker = RecallHandle.decode(handle[:MAX_RECALL_HANDLE]).broker
        except ValueError as error:
            raise Refusal(Code.INTERNAL_SERVER_ERROR, str(error)) from None
        ext = {"producerGroup": topic, "topic": topic, "recallHandle": handle, "bname": broker}
        address = await self._brokers.address(broker, topic)
        answer_frame = await self._brokers.session.call_checked(
            address, Frame(RequestCode.RECALL_MESSAGE, ext=ext), f"recall from {topic}", SEND_S
        )
        answer = v2.RecallMessageResponse(message_id=answer_frame.ext.get("msgId", ""))
        set_status(answer)
        return answer
