"""Messages as an application sends and receives them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from gantry_broker.client.errors import InvalidMessage
from gantry_broker.protocol.codes import (
    KEY_SEPARATOR,
    NOT_ALLOWED_SEND_TOPICS,
    RETRY_PREFIX,
    TOPIC_MAX_LENGTH,
    Prop,
    SendStatus,
)
from gantry_broker.protocol.fastjson import MessageQueue
from gantry_broker.protocol.message import Record, RecordError, format_properties

MAX_BODY: Final = 4 * 1024 * 1024
"""Bytes of the largest body that a client sends by default, as in RocketMQ."""
_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")

RESERVED: Final = frozenset(
    value for name, value in vars(Prop).items() if not name.startswith("_") and isinstance(value, str)
) - {
    Prop.CHECK_IMMUNITY_TIME_IN_SECONDS,
    Prop.INNER_MULTI_DISPATCH,
    Prop.SHARDING_KEY,
    Prop.TIMER_DELAY_SEC,
    Prop.TIMER_DELAY_MS,
    Prop.TIMER_DELIVER_MS,
}
"""Property names with a meaning of their own. Applications set them by the fields of `Message`."""


class FromWhere(StrEnum):
    """Start position of a consumer group without offsets."""

    LAST = "CONSUME_FROM_LAST_OFFSET"
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


def check_topic(topic: str) -> None:
    """Check a topic name by RocketMQ's rules. Raises InvalidMessage."""
    retry = topic.startswith(RETRY_PREFIX)  # %RETRY%group, or %RETRY%group+topic
    plain, longest = (topic.replace("+", "", 1), 255) if retry else (topic, TOPIC_MAX_LENGTH)
    if not topic or len(topic) > longest or not _NAME.fullmatch(plain):
        raise InvalidMessage(
            f"topic {topic[:150]!r}: 1 to {TOPIC_MAX_LENGTH} letters, digits, '_', '-', '%' and '|' are allowed"
        )


def check_group(group: str) -> None:
    """Check a group name by RocketMQ's rules. Raises InvalidMessage."""
    if not group or len(group) > 248 or not _NAME.fullmatch(group):
        raise InvalidMessage(f"group {group[:150]!r}: 1 to 248 letters, digits, '_', '-', '%' and '|' are allowed")


@dataclass(slots=True)
class Message:
    """A message to send.

    Queries find it by its `keys`. `delay_level` is one of the broker's levels (1 and up, 0: none). `deliver_at_ms` is
    the earliest delivery time in milliseconds since 1970. With `wait_stored` False the broker answers before the
    message is flushed or replicated. With `deletes_key` it has keys and an empty body: a compacted topic deletes them.
    """

    topic: str
    body: bytes
    tags: str = ""
    keys: str | Iterable[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    flag: int = 0
    delay_level: int = 0
    deliver_at_ms: int | None = None
    wait_stored: bool = True
    deletes_key: bool = False

    def wire_properties(self, unique_key: str) -> dict[str, str]:
        """Return all properties in their stored form. Raises InvalidMessage for a reserved name."""
        out = dict(self.properties)
        if not RESERVED.isdisjoint(out):
            name = next(name for name in out if name in RESERVED)
            raise InvalidMessage(
                f"property {name!r} has a meaning of its own; use the message's fields or another name"
            )
        if self.keys:
            out[Prop.KEYS] = self.keys if isinstance(self.keys, str) else KEY_SEPARATOR.join(self.keys)
        if self.tags:
            out[Prop.TAGS] = self.tags
        if self.delay_level:
            out[Prop.DELAY_TIME_LEVEL] = str(self.delay_level)
        if self.deliver_at_ms is not None:
            out[Prop.TIMER_DELIVER_MS] = str(self.deliver_at_ms)
        out[Prop.UNIQ_CLIENT_MESSAGE_ID_KEYIDX] = unique_key
        out[Prop.WAIT_STORE_MSG_OK] = "true" if self.wait_stored else "false"
        return out

    def check(self, max_body: int = MAX_BODY) -> None:
        """Check topic and body. Raises InvalidMessage."""
        check_topic(self.topic)
        if self.topic in NOT_ALLOWED_SEND_TOPICS:
            raise InvalidMessage(f"topic {self.topic} is a system topic; applications cannot send to it")
        if self.deletes_key and (self.body or not self.keys):
            raise InvalidMessage("a message with deletes_key has keys and an empty body")
        if not self.body and not self.deletes_key:
            raise InvalidMessage(
                "the body is empty; RocketMQ takes messages of at least one byte. "
                "To delete a key of a compacted topic, write deletes_key=True"
            )
        if len(self.body) > max_body:
            raise InvalidMessage(f"the body has {len(self.body)} bytes; at most {max_body} are allowed")


def pack_properties(properties: Mapping[str, str]) -> bytes:
    """Encode properties. Raises InvalidMessage."""
    try:
        return format_properties(properties)
    except RecordError as error:
        raise InvalidMessage(str(error)) from None


@dataclass(slots=True, frozen=True)
class SendResult:
    """The result of a send. Only a message with `SEND_OK` survives every failover."""

    status: SendStatus
    message_id: str
    """The client's unique key (for a batch: all keys, joined by commas)."""
    offset_id: str
    """The broker's address and the offset in its log (for a batch: all ids, joined by commas)."""
    queue: MessageQueue
    queue_offset: int
    transaction_id: str = ""
    recall_handle: str = ""
    """For `Producer.recall`: of a message with a delivery time of its own."""


class ReceivedMessage:
    """A message that a consumer received."""

    __slots__ = ("_body", "_props", "broker", "record", "topic")

    def __init__(self, record: Record, broker: str, topic: str | None = None) -> None:
        self.record = record
        self.broker = broker
        self.topic = record.topic if topic is None else topic
        self._props: dict[str, str] | None = None
        self._body: bytes | None = None

    def __repr__(self) -> str:
        return f"<ReceivedMessage {self.topic}@{self.broker}:{self.queue_id} offset={self.queue_offset} id={self.id}>"

    @property
    def body(self) -> bytes:
        """The decompressed body. Raises RecordError when the compressed one is damaged.

        It is kept for the next access, one of over `MAX_BODY` bytes is not: some KiB may become 64 MiB, and a consumer
        holds many messages.
        """
        if self._body is not None:
            return self._body
        body = self.record.payload()
        if len(body) <= MAX_BODY:
            self._body = body
        return body

    @property
    def properties(self) -> dict[str, str]:
        if self._props is None:
            self._props = self.record.props
        return self._props

    @property
    def tags(self) -> str:
        return self.properties.get(Prop.TAGS, "")

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(key for key in self.properties.get(Prop.KEYS, "").split(KEY_SEPARATOR) if key)

    @property
    def id(self) -> str:
        """The producer's unique key, or the offset id of a message without one."""
        return self.properties.get(Prop.UNIQ_CLIENT_MESSAGE_ID_KEYIDX) or self.record.offset_id

    @property
    def offset_id(self) -> str:
        return self.record.offset_id

    @property
    def queue_id(self) -> int:
        return self.record.queue_id

    @property
    def queue_offset(self) -> int:
        return self.record.queue_offset

    @property
    def queue(self) -> MessageQueue:
        """The queue that the consumer read the message from."""
        return MessageQueue(self.record.topic, self.broker, self.record.queue_id)

    @property
    def reconsume_times(self) -> int:
        """The number of failed deliveries before this one."""
        return self.record.reconsume_times

    @property
    def born_ms(self) -> int:
        return self.record.born_ms

    @property
    def store_ms(self) -> int:
        return self.record.store_ms


def restore_topic(record: Record, broker: str, group: str) -> ReceivedMessage:
    """Convert a record into a consumer's message: one from the group's retry topic gets its original topic."""
    message = ReceivedMessage(record, broker)
    if record.topic == f"%RETRY%{group}":
        message.topic = message.properties.get(Prop.RETRY_TOPIC, record.topic)
    return message


class Reply:
    """The reply to a request."""

    __slots__ = ("body", "properties")

    def __init__(self, body: bytes, properties: dict[str, str]) -> None:
        self.body = body
        self.properties = properties
