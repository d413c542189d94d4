"""Messages of the contract to and from RocketMQ's properties and records. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from gantry_broker.protocol.codes import KEY_SEPARATOR, Prop, SysFlag
from gantry_broker.protocol.digits import whole_number
from gantry_broker.protocol.grpc_contract import Code, DigestType, Encoding, MessageType, v2
from gantry_broker.protocol.message import Record
from gantry_broker.proxy.answers import Refusal
from gantry_broker.proxy.wire import field, number, text, time_field

MAX_BODY: Final = 4 << 20
MAX_USER_PROPERTIES: Final = 128
MAX_USER_PROPERTY_BYTES: Final = 16 << 10
"""Of user properties, tag and keys together, as Apache's proxy counts them."""
MAX_MESSAGE_GROUP: Final = 64
MAX_DELAY_MS: Final = 40 * 86_400_000
"""The broker has its own limit (`timerMaxDelaySec`)."""
_MAX_SECONDS: Final = 253_402_300_799

_SYSTEM_TEXT: Final = """
1ST_POP_TIME ARRIVE_TIME BORN_TIMESTAMP BUYER_ID CLUSTER CONSUME_START_TIME CORRECTION_FLAG CORRELATION_ID DELAY
DLQ_ORIGIN_MESSAGE_ID DLQ_ORIGIN_TOPIC DUP_INFO EXTEND_UNIQ_INFO INNER_MULTI_QUEUE_OFFSET INSTANCE_ID KEYS MAX_OFFSET
MAX_RECONSUME_TIMES MIN_OFFSET MQ2_FLAG MSG_REGION MSG_TYPE ORIGIN_GROUP ORIGIN_MESSAGE_ID PGROUP POP_CK POP_CK_OFFSET
PUSH_REPLY_TIME REAL_QID REAL_TOPIC RECONSUME_TIME REPLY_TO_CLIENT RETRY_TOPIC TAGS TIMER_DELAY_LEVEL TIMER_DELAY_MS
TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_DEL_UNIQKEY TIMER_DEQUEUE_MS TIMER_ENQUEUE_MS TIMER_OUT_MS TIMER_ROLL_TIMES
TRACE_ON TRANSFER_FLAG TRAN_MSG TRAN_PREPARED_QUEUE_OFFSET TTL UNIQ_KEY WAIT _SYS_MSG_PRIORITY_ __BORNHOST __CRC32#
__LITE_TOPIC
"""
SYSTEM_PROPERTIES: Final = frozenset(_SYSTEM_TEXT.split())
"""Properties that a client may not set itself, and does not see as its own."""
_TIMED: Final = (Prop.TIMER_DELIVER_MS, Prop.TIMER_DELAY_SEC, Prop.TIMER_DELAY_MS, Prop.DELAY_TIME_LEVEL)
_TIMES: Final = frozenset(_TIMED)
_RARE: Final = frozenset((*_TIMED, Prop.DLQ_ORIGIN_TOPIC, Prop.PRIORITY))
_DIGEST: Final = bytes((0x22, 36, 0x08, DigestType.MD5, 0x12, 32))
_IDENTITY: Final = bytes((0x28, Encoding.IDENTITY))
_GZIP: Final = bytes((0x28, Encoding.GZIP))
_CONTROLS: Final = str.maketrans("", "", "".join(map(chr, [*range(32), *range(127, 160)])))


def millis(stamp: Any) -> int:
    """Return a Timestamp or Duration in milliseconds, kept within what both ends can hold."""
    seconds = min(max(stamp.seconds, -_MAX_SECONDS), _MAX_SECONDS)
    return int(seconds * 1_000 + stamp.nanos // 1_000_000)


def set_millis(stamp: Any, value: int) -> None:
    """Set a Timestamp or Duration."""
    stamp.seconds, rest = divmod(min(max(value, -_MAX_SECONDS * 1_000), _MAX_SECONDS * 1_000), 1_000)
    stamp.nanos = rest * 1_000_000


def has_control(text: str) -> bool:
    return not text.isprintable() and text.translate(_CONTROLS) != text


def stored_properties(message: Any, producer_group: str, now_ms: int) -> dict[str, str]:
    """Return the properties of a message that a client sends. Raises Refusal."""
    system = message.system_properties
    if len(message.body) > MAX_BODY:
        raise Refusal(Code.MESSAGE_BODY_TOO_LARGE, f"message body cannot exceed the max {MAX_BODY}")
    if not message.body:
        raise Refusal(Code.MESSAGE_BODY_EMPTY, "message body cannot be empty")
    properties: dict[str, str] = {}
    size = 0
    if message.user_properties:
        size = _take_user_properties(message.user_properties, properties)
    message_id: str = system.message_id
    if not message_id.strip():
        raise Refusal(Code.ILLEGAL_MESSAGE_ID, "message id cannot be empty")
    _refuse_control(message_id, Code.ILLEGAL_MESSAGE_ID, "message id")
    properties[Prop.UNIQ_CLIENT_MESSAGE_ID_KEYIDX] = message_id
    if system.HasField("tag") and system.tag:
        properties[Prop.TAGS] = tag = _tag(system.tag)
        size += _bytes_of(tag)
    if system.keys:
        for key in system.keys:
            size += _bytes_of(key)
            if not key.strip():
                raise Refusal(Code.ILLEGAL_MESSAGE_KEY, "key cannot be the char sequence of whitespace")
            _refuse_control(key, Code.ILLEGAL_MESSAGE_KEY, "key")
        properties[Prop.KEYS] = KEY_SEPARATOR.join(system.keys)
    if size > MAX_USER_PROPERTY_BYTES:
        raise Refusal(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the total size of user property is too large, max is {MAX_USER_PROPERTY_BYTES}",
        )
    if system.HasField("message_group"):
        properties[Prop.SHARDING_KEY] = _message_group(system.message_group)
    if system.message_type == MessageType.TRANSACTION:
        properties[Prop.TRANSACTION_PREPARED] = "true"
        properties[Prop.PRODUCER_GROUP] = producer_group
        if system.HasField("orphaned_transaction_recovery_duration"):
            seconds = millis(system.orphaned_transaction_recovery_duration) // 1_000
            if seconds > 0:
                properties[Prop.CHECK_IMMUNITY_TIME_IN_SECONDS] = str(seconds)
    if system.HasField("delivery_timestamp"):
        due = millis(system.delivery_timestamp)
        if due - now_ms > MAX_DELAY_MS:
            raise Refusal(
                Code.ILLEGAL_DELIVERY_TIME, f"the max delay time of message is too large, max is {MAX_DELAY_MS}"
            )
        properties[Prop.TIMER_DELIVER_MS] = str(due)
    if system.HasField("lite_topic") and system.lite_topic:
        raise Refusal(Code.ILLEGAL_LITE_TOPIC, "lite topics are not served")
    if system.HasField("priority"):
        properties[Prop.PRIORITY] = str(system.priority)
    if system.HasField("delivery_attempt") and system.delivery_attempt > 0:
        properties[Prop.RECONSUME_TIME] = str(system.delivery_attempt)
    if system.HasField("trace_context") and system.trace_context:
        _refuse_control(system.trace_context, Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "trace context")
        properties[Prop.TRACE_CONTEXT] = system.trace_context
    if system.born_host:
        _refuse_control(system.born_host, Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "born host")
        properties[Prop.BORN_HOST] = system.born_host
    if system.HasField("born_timestamp"):
        properties[Prop.BORN_TIMESTAMP] = str(millis(system.born_timestamp))
    return properties


def _bytes_of(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _take_user_properties(given: Mapping[str, str], properties: dict[str, str]) -> int:
    """Put the properties that a client gave into `properties`, and return their bytes. Raises Refusal."""
    if len(given) > MAX_USER_PROPERTIES:
        raise Refusal(Code.MESSAGE_PROPERTIES_TOO_LARGE, f"too many user properties, max is {MAX_USER_PROPERTIES}")
    size = 0
    for name, value in given.items():
        if name in SYSTEM_PROPERTIES:
            raise Refusal(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property is used by system: {name}")
        if not name.strip():
            raise Refusal(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "the key of property cannot be empty")
        if has_control(name):
            raise Refusal(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "the key of property cannot contain control character")
        if has_control(value):
            raise Refusal(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "the value of property cannot contain control character")
        size += _bytes_of(name) + _bytes_of(value)
    properties.update(given)
    return size


def _tag(tag: str) -> str:
    if not tag.strip():
        raise Refusal(Code.ILLEGAL_MESSAGE_TAG, "tag cannot be the char sequence of whitespace")
    if "|" in tag:
        raise Refusal(Code.ILLEGAL_MESSAGE_TAG, "tag cannot contain '|'")
    _refuse_control(tag, Code.ILLEGAL_MESSAGE_TAG, "tag")
    return tag


def _message_group(group: str) -> str:
    if not group.strip():
        raise Refusal(Code.ILLEGAL_MESSAGE_GROUP, "message group cannot be the char sequence of whitespace")
    if len(group.encode()) >= MAX_MESSAGE_GROUP:
        raise Refusal(Code.ILLEGAL_MESSAGE_GROUP, f"message group exceed the max size {MAX_MESSAGE_GROUP}")
    _refuse_control(group, Code.ILLEGAL_MESSAGE_GROUP, "message group")
    return group


def _refuse_control(text: str, code: Code, what: str) -> None:
    if not text.isprintable() and has_control(text):
        raise Refusal(code, f"{what} cannot contain control character")


def type_of(properties: Mapping[str, str]) -> MessageType:
    """Return the type of a message by its properties."""
    if properties.get(Prop.TRANSACTION_PREPARED) == "true":
        return MessageType.TRANSACTION
    if not _TIMES.isdisjoint(properties):
        return MessageType.DELAY
    if Prop.SHARDING_KEY in properties:
        return MessageType.FIFO
    if Prop.PRIORITY in properties:
        return MessageType.PRIORITY
    return MessageType.NORMAL


def sys_flag_of(message: Any) -> int:
    """Return the system flag of a message that a client sends: a body that it compressed stays as it is."""
    system = message.system_properties
    flag = int(SysFlag.COMPRESSED) if system.body_encoding == Encoding.GZIP else 0
    if system.message_type == MessageType.TRANSACTION:
        flag |= int(SysFlag.TRANSACTION_PREPARED)
    return flag


def received(
    record: Record, topic: Any, *, handle: str | None = None, attempt: int | None = None, out: Any = None
) -> Any:
    """Return the message of a record. `topic`: the `Resource` as the client names it."""
    message = v2.Message() if out is None else out
    message.topic.CopyFrom(topic)
    message.body = record.body
    properties = record.props
    for name, value in properties.items():
        if name not in SYSTEM_PROPERTIES:
            message.user_properties[name] = value
    system = message.system_properties
    if Prop.TAGS in properties:
        system.tag = properties[Prop.TAGS]
    keys = properties.get(Prop.KEYS)
    if keys:
        system.keys.extend([key for key in keys.split(KEY_SEPARATOR) if key])
    system.message_id = properties.get(Prop.UNIQ_CLIENT_MESSAGE_ID_KEYIDX) or record.offset_id
    system.body_digest.type = DigestType.MD5
    system.body_digest.checksum = hashlib.md5(record.body, usedforsecurity=False).hexdigest().upper()
    system.body_encoding = Encoding.GZIP if record.sys_flag & SysFlag.COMPRESSED else Encoding.IDENTITY
    kind = system.message_type = type_of(properties)
    set_millis(system.born_timestamp, _number(properties, Prop.BORN_TIMESTAMP, record.born_ms))
    system.born_host = properties.get(Prop.BORN_HOST) or record.born_host[0]
    set_millis(system.store_timestamp, record.store_ms)
    system.store_host = f"{record.store_host[0]}:{record.store_host[1]}"
    if kind == MessageType.DELAY and Prop.TIMER_DELIVER_MS in properties:
        set_millis(system.delivery_timestamp, _number(properties, Prop.TIMER_DELIVER_MS, 0))
    if handle is not None:
        system.receipt_handle = handle
    system.queue_id = record.queue_id
    system.queue_offset = record.queue_offset
    system.delivery_attempt = record.reconsume_times + 1 if attempt is None else attempt
    group = properties.get(Prop.SHARDING_KEY)
    if group is not None:
        system.message_group = group
    context = properties.get(Prop.TRACE_CONTEXT)
    if context is not None:
        system.trace_context = context
    if Prop.DLQ_ORIGIN_TOPIC in properties and Prop.DLQ_ORIGIN_MESSAGE_ID in properties:
        system.dead_letter_queue.topic = properties[Prop.DLQ_ORIGIN_TOPIC]
        system.dead_letter_queue.message_id = properties[Prop.DLQ_ORIGIN_MESSAGE_ID]
    if Prop.PRIORITY in properties:
        system.priority = min(_number(properties, Prop.PRIORITY, 0), 2**31 - 1)
    return message


def received_part(record: Record, properties: Mapping[str, str], topic: bytes, handle: str, attempt: int) -> bytes:
    """Return the bytes of a ReceiveMessageResponse with the message of a record: those of `received`, at less cost.
    `topic`: the bytes of the `Resource`.
    """
    born_ms = _number(properties, Prop.BORN_TIMESTAMP, record.born_ms)
    if _RARE & properties.keys() or min(born_ms, record.store_ms, record.queue_id, record.queue_offset, attempt) < 0:
        part = v2.ReceiveMessageResponse()
        part.message.topic.MergeFromString(topic)
        received(record, part.message.topic, handle=handle, attempt=attempt, out=part.message)
        return bytes(part.SerializeToString())
    body = record.body
    message = [field(b"\x0a", topic)]
    system = []
    for name, value in properties.items():
        if name not in SYSTEM_PROPERTIES:
            message.append(field(b"\x12", field(b"\x0a", name.encode()) + field(b"\x12", value.encode())))
    tag = properties.get(Prop.TAGS)
    if tag is not None:
        system.append(field(b"\x0a", tag.encode()))
    keys = properties.get(Prop.KEYS)
    if keys:
        system += [field(b"\x12", key.encode()) for key in keys.split(KEY_SEPARATOR) if key]
    digest = hashlib.md5(body, usedforsecurity=False).hexdigest().upper().encode()
    store_host, store_port = record.store_host
    system += (
        text(b"\x1a", properties.get(Prop.UNIQ_CLIENT_MESSAGE_ID_KEYIDX) or record.offset_id),
        _DIGEST + digest,
        _GZIP if record.sys_flag & SysFlag.COMPRESSED else _IDENTITY,
        b"\x30" + number(type_of(properties)),
        time_field(b"\x3a", born_ms),
        text(b"\x42", properties.get(Prop.BORN_HOST) or record.born_host[0]),
        time_field(b"\x4a", record.store_ms),
        field(b"\x52", f"{store_host}:{store_port}".encode()),
        field(b"\x62", handle.encode()),
        b"\x68" + number(record.queue_id) if record.queue_id else b"",
        b"\x70" + number(record.queue_offset),
        b"\x80\x01" + number(attempt),
    )
    group = properties.get(Prop.SHARDING_KEY)
    if group is not None:
        system.append(field(b"\x8a\x01", group.encode()))
    context = properties.get(Prop.TRACE_CONTEXT)
    if context is not None:
        system.append(field(b"\x92\x01", context.encode()))
    message.append(field(b"\x1a", b"".join(system)))
    message.append(field(b"\x22", body))
    return field(b"\x12", b"".join(message))


def _number(properties: Mapping[str, str], name: str, default: int) -> int:
    number = whole_number(properties.get(name, ""), 0, 10**15)
    return default if number is None else number


def consistent_hash(value: int, buckets: int) -> int:
    """Return the bucket of a number: jump consistent hash with a linear congruential generator, as Guava has it, by
    which Apache's proxy gives a message group its queue.
    """
    state = value & 0xFFFFFFFF_FFFFFFFF
    candidate = 0
    while True:
        state = (2_862_933_555_777_941_757 * state + 1) & 0xFFFFFFFF_FFFFFFFF
        step = ((state >> 33) + 1) / 2_147_483_648.0
        following = int((candidate + 1) / step)
        if following >= buckets:
            return candidate
        candidate = following
