"""RocketMQ's own message trace: who sent, received and finished a message, as records of a topic.

`mqadmin queryMsgTraceById` and RocketMQ's dashboard read them. The format is that of the Java client 4.9.7. A text that
is missing is written as `null` there, and readers need a value in the last place. The upper half makes records and is
pure; `MessageTrace` sends them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from gantry_broker.client.errors import ClientError
from gantry_broker.client.message import Message, ReceivedMessage, SendResult
from gantry_broker.client.uniqueid import create_unique_key
from gantry_broker.protocol.codes import KEY_SEPARATOR, RETRY_PREFIX, TRACE_TOPIC, Prop
from gantry_broker.remoting.errors import RemotingError
from gantry_broker.tasks import end_tasks, set_within

if TYPE_CHECKING:
    from gantry_broker.client.transaction_state import TransactionState

log = logging.getLogger(__name__)

GROUP_PREFIX: Final = "_INNER_TRACE_PRODUCER-"
"""Begins the producer group that sends the records, as in the Java client."""
MOST_WAITING: Final = 2_048
"""Records that wait to be sent; further ones are dropped."""
MOST_TOGETHER: Final = 100
"""Records in one message."""
MOST_CHARACTERS: Final = 128_000
"""Characters in one message, and of one record."""
EVERY_S: Final = 0.5
"""A record waits this long for others."""
CLOSE_S: Final = 3.0
"""Seconds in which the last records must leave when the client closes."""
_FIELD: Final = "\x01"
_END: Final = "\x02"
_REGION: Final = "DefaultRegion"
_NORMAL, _HALF, _COMMIT, _DELAY = range(4)
_CONSUMED, _FAILED = 0, 4
_STATES: Final = {8: "COMMIT_MESSAGE", 12: "ROLLBACK_MESSAGE", 0: "UNKNOW"}
"""Names in RocketMQ's enum, by the value in an END_TRANSACTION."""


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """One record, and the keys by which queries find it."""

    text: str
    keys: tuple[str, ...]


def _record(keys: str, message_id: str, *fields: object) -> TraceRecord:
    text = _FIELD.join(str(field) or "null" for field in fields)
    return TraceRecord(text.replace(_END, " ") + _END, (message_id, *keys.split()))


def _keys(message: Message) -> str:
    return message.keys if isinstance(message.keys, str) else KEY_SEPARATOR.join(message.keys)


@dataclass(frozen=True, slots=True)
class Sent:
    """A send that ended."""

    group: str
    begun_ms: int
    took_ms: int
    broker: str
    """Address of the broker; empty: none took the message."""
    success: bool
    half: bool = False


def sent(message: Message, message_id: str, offset_id: str, how: Sent) -> TraceRecord:
    """Return the record of one message that was sent."""
    delayed = message.delay_level or message.deliver_at_ms is not None
    kind = _HALF if how.half else _DELAY if delayed else _NORMAL
    return _record(
        _keys(message), message_id, "Pub", how.begun_ms, _REGION, how.group, message.topic, message_id, message.tags,
        _keys(message), how.broker, len(message.body), how.took_ms, kind, offset_id, _flag(how.success),
    )  # fmt: skip


def ended(
    message: Message, message_id: str, transaction_id: str, state: TransactionState, group: str, at_ms: int, broker: str
) -> TraceRecord:
    """Return the record of a transaction that its producer decided."""
    return _record(
        _keys(message), message_id, "EndTransaction", at_ms, _REGION, group, message.topic, message_id, message.tags,
        _keys(message), broker, _COMMIT, transaction_id, _STATES[state.value], "false",
    )  # fmt: skip


def consumed(
    message: ReceivedMessage, group: str, begun_ms: int, took_ms: int, success: bool
) -> tuple[TraceRecord, ...]:
    """Return the records of one delivery: its begin and its end. None if the producer switched the trace off."""
    props = message.properties
    if props.get(Prop.TRACE_SWITCH) == "false":
        return ()
    keys, request = props.get(Prop.KEYS, ""), create_unique_key(begun_ms)
    region = props.get(Prop.MSG_REGION, _REGION)
    code = _CONSUMED if success else _FAILED
    return (
        _record(
            keys, message.id, "SubBefore", begun_ms, region, group, request, message.id, message.reconsume_times, keys
        ),
        _record(
            keys, message.id, "SubAfter", request, message.id, took_ms, _flag(success), keys, code, begun_ms, group
        ),
    )


def _flag(value: bool) -> str:
    return "true" if value else "false"


def batches(records: deque[TraceRecord]) -> Iterator[tuple[str, set[str]]]:
    """Take records away, and yield the body and the keys of each message."""
    while records:
        texts: list[str] = []
        keys: set[str] = set()
        size = 0
        while records and len(texts) < MOST_TOGETHER and size < MOST_CHARACTERS:
            record = records.popleft()
            texts.append(record.text)
            keys.update(record.keys)
            size += len(record.text)
        yield "".join(texts), keys


class RecordSender(Protocol):
    """Sends the records: a producer."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def send(self, message: Message, /) -> SendResult: ...


class MessageTrace:
    """Sends the records of one producer or consumer, in the background. A record that is lost costs nothing else."""

    def __init__(self, producer: RecordSender, topic: str = TRACE_TOPIC) -> None:
        """Send by `producer`: its own, on the session of the client."""
        self.topic = topic
        self.dropped = 0
        """Records that were not sent."""
        self._producer = producer
        self._records: deque[TraceRecord] = deque()
        self._task: asyncio.Task[None] | None = None
        self._enough = asyncio.Event()

    async def start(self) -> None:
        await self._producer.start()
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Send what waits, for a short time."""
        if self._task is not None:
            await end_tasks(self._task)
            self._task = None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await self._send()
            await self._producer.close()

    def wants(self, topic: str) -> bool:
        """Whether messages of this topic are traced; the trace itself is not."""
        return topic != self.topic and not topic.startswith(RETRY_PREFIX)

    def add(self, records: Iterable[TraceRecord]) -> None:
        for record in records:
            if len(self._records) >= MOST_WAITING or len(record.text) > MOST_CHARACTERS:
                self.dropped += 1
            else:
                self._records.append(record)
        if len(self._records) >= MOST_TOGETHER:
            self._enough.set()

    async def _run(self) -> None:
        while True:
            await set_within(self._enough, EVERY_S)
            self._enough.clear()
            await self._send()

    async def _send(self) -> None:
        for body, keys in batches(self._records):
            try:
                await self._producer.send(Message(self.topic, body.encode(), keys=sorted(keys)))
            except (ClientError, RemotingError) as error:
                self.dropped += body.count(_END)
                log.warning("records of the message trace were not sent: %s", error)


def now_ms() -> int:
    """Return the time in Unix milliseconds."""
    return time.time_ns() // 1_000_000
