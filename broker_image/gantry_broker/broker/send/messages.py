"""From a sent message to the stored record: delayed, timed and half messages wait under other topics.

The forms are RocketMQ's own (`ScheduleMessageService`, `TransactionalMessageBridge`), so its tools read this log: the
properties REAL_TOPIC and REAL_QID hold the wanted topic and queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from gantry_broker.broker.metadata.topics import TIMER_TOPIC
from gantry_broker.protocol.codes import (
    KEY_SEPARATOR,
    SCHEDULE_TOPIC,
    TRANS_HALF_TOPIC,
    Prop,
    SysFlag,
)
from gantry_broker.protocol.digits import MAX_INT, whole_number
from gantry_broker.protocol.limits import MAX_KEYS
from gantry_broker.protocol.message import (
    MAX_PROPERTIES,
    Record,
    RecordError,
    format_properties,
    pack_host,
    parse_properties,
    repack_properties,
    tags_hash,
)
from gantry_broker.store.log.record_reader import words_of
from gantry_broker.store.types import Put

BROKER_ONLY: Final = frozenset(
    {
        Prop.CRC32,
        Prop.FIRST_POP_TIME,
        Prop.INNER_MULTI_QUEUE_OFFSET,
        Prop.POP_CK,
        Prop.POP_CK_OFFSET,
        Prop.POP_ORIGIN,
        Prop.REAL_QUEUE_ID,
        Prop.REAL_TOPIC,
        Prop.TIMER_DEQUEUE_MS,
        Prop.TIMER_ENQUEUE_MS,
        Prop.TIMER_OUT_MS,
        Prop.TIMER_ROLL_LABEL,
        Prop.TIMER_ROLL_TIMES,
        Prop.TRANSACTION_PREPARED_QUEUE_OFFSET,
    }
)
"""Properties that a broker alone sets. An application that sends a received message on sends those of its former
delivery: they are removed, as RocketMQ removes POP_CK.
"""
MAX_CHECKS: Final = 99_999
MAX_IMMUNITY_S: Final = 9_999_999
_CHECKED: Final = {
    Prop.TRANSACTION_CHECK_TIMES: MAX_CHECKS, Prop.CHECK_IMMUNITY_TIME_IN_SECONDS: MAX_IMMUNITY_S,
}  # fmt: skip
"""The largest numbers of properties that the checks of transactions read."""
NOT_IN_BATCH: Final = frozenset(
    {
        Prop.DELAY_TIME_LEVEL,
        Prop.TRANSACTION_PREPARED,
        Prop.TIMER_DELIVER_MS,
        Prop.TIMER_DELAY_SEC,
        Prop.TIMER_DELAY_MS,
    }
)
"""Properties of messages that are not visible at once, as those of a batch are."""
SPECIAL: Final = NOT_IN_BATCH | BROKER_ONLY | _CHECKED.keys()
"""Properties that make a message more than a plain one."""

MAX_TIME: Final = 10**18 - 1
"""The largest number of a timer property."""
MAX_ROLLS: Final = 99_999_999
ROOM: Final = 2_048
"""Bytes of properties that no send may use: a broker adds them later. The most are a topic and its group with the
longest names that wait for a retry, with the places of the first message, the dead letter and the delivery by POP.
"""
ADDED: Final = frozenset(
    {
        *BROKER_ONLY,
        *_CHECKED,
        Prop.CLUSTER,
        Prop.DELAY_TIME_LEVEL,
        Prop.DLQ_ORIGIN_MESSAGE_ID,
        Prop.DLQ_ORIGIN_TOPIC,
        Prop.ORIGIN_MESSAGE_ID,
        Prop.RETRY_TOPIC,
        Prop.TIMER_DELIVER_MS,
        Prop.WAIT_STORE_MSG_OK,
    }
)
"""What the room is for. Where a message has some of it already, as a retry that its consumer sends, that is replaced
and takes no other room.
"""
MOST_SENT: Final = MAX_PROPERTIES - ROOM
"""Bytes that the properties of a send may have, those in `ADDED` aside."""
MOST_STORED: Final = MAX_PROPERTIES - 64
"""Bytes that they may have altogether."""
TIMER_BUCKET_MS: Final = 60_000
TIMER_BUCKETS: Final = 4_608
"""Queues of the timer topic, one for each minute; they repeat after 3.2 days."""
TIMER_WINDOW_MS: Final = 2 * 86_400_000
"""A message that is due later waits in the bucket of a minute before, and is written again then."""


class MessageIllegal(ValueError):
    """The broker refuses the message with MESSAGE_ILLEGAL."""


def without_broker_properties(text: str, props: dict[str, str]) -> str:
    """Return the properties of a send without those that a broker alone sets; also removes these from `props`."""
    if BROKER_ONLY.isdisjoint(props):
        return text
    for name in BROKER_ONLY:
        props.pop(name, None)
    return "\x02".join([piece for piece in text.split("\x02") if piece.partition("\x01")[0] not in BROKER_ONLY])


def check_properties(props: Mapping[str, str], stored: int) -> None:
    """Raise MessageIllegal for properties that a broker cannot work with later.

    `stored`: bytes that the properties have in the log.
    """
    for name, most in _CHECKED.items():
        text = props.get(name)
        if text is not None and whole_number(text, 0, most) is None:
            raise MessageIllegal(f"the property {name} is {text[:40]!r}; a whole number from 0 to {most} is expected")
    if stored <= MOST_SENT:
        return
    added = sum([len(f"{name}{props[name]}".encode("utf-8", "replace")) + 2 for name in ADDED if name in props])
    if stored - added > MOST_SENT or stored > MOST_STORED:
        raise MessageIllegal(
            f"the message is illegal: its properties have {stored} bytes, at most {MOST_SENT} are stored: a broker "
            "adds others when it delays, retries or checks the message"
        )


def timer_bucket(deliver_ms: int) -> int:
    """Return the timer topic's queue for a delivery time."""
    return deliver_ms // TIMER_BUCKET_MS % TIMER_BUCKETS


def index_keys(props: Mapping[str, str]) -> tuple[str, ...]:
    """Return the keys under which queries find a message: `MAX_KEYS` at most, and the unique one."""
    keys = props.get(Prop.KEYS)
    uniq = props.get(Prop.UNIQ_CLIENT_MESSAGE_ID_KEYIDX)
    words = tuple(words_of(keys)) if keys else ()
    return (uniq, *words) if uniq else words


def check_keys(props: Mapping[str, str]) -> None:
    """Raise MessageIllegal for a message that is sent with more than `MAX_KEYS` keys."""
    keys = props.get(Prop.KEYS)
    if not keys or keys.count(KEY_SEPARATOR) < MAX_KEYS:
        return
    if len([key for key in keys.split(KEY_SEPARATOR) if key]) > MAX_KEYS:
        raise MessageIllegal(
            f"the message is illegal: it has over {MAX_KEYS} keys (property KEYS), the limit is {MAX_KEYS}"
        )


def build_put(
    topic: str,
    queue_id: int,
    props: Mapping[str, str],
    body: bytes,
    born_ms: int,
    born_host: bytes,
    *,
    flag: int = 0,
    sys_flag: int = 0,
    reconsume_times: int = 0,
    prepared_offset: int = 0,
) -> Put:
    """Return a message of the broker itself. Raises RecordError when the properties do not fit."""
    return Put(
        topic,
        queue_id,
        flag,
        sys_flag,
        born_ms,
        born_host,
        body,
        format_properties(props),
        reconsume_times,
        prepared_offset,
        tags_hash(props.get(Prop.TAGS, "")),
        index_keys(props),
    )


def copy_of(
    record: Record,
    topic: str,
    queue_id: int,
    *,
    props: Mapping[str, str] | None = None,
    sys_flag: int | None = None,
    reconsume_times: int | None = None,
    prepared_offset: int = 0,
) -> Put:
    """Return a stored message for another topic (delivered, retried, committed), with its first born time."""
    named = parse_properties(record.properties) if props is None else props
    return Put(
        topic,
        queue_id,
        record.flag,
        record.sys_flag & ~SysFlag.STORE_HOST_V6 if sys_flag is None else sys_flag,
        record.born_ms,
        pack_host(*record.born_host),
        record.body,
        record.properties if props is None else repack_properties(props),
        record.reconsume_times if reconsume_times is None else reconsume_times,
        prepared_offset,
        tags_hash(named.get(Prop.TAGS, "")),
        index_keys(named),
    )


def with_real_target(put: Put, props: dict[str, str], topic: str, queue_id: int) -> Put:
    """Move the message to a topic where it waits; properties hold its own topic and queue."""
    props[Prop.REAL_TOPIC] = put.topic
    props[Prop.REAL_QUEUE_ID] = str(put.queue_id)
    put.properties = repack_properties(props)
    put.topic = topic
    put.queue_id = queue_id
    return put


def delay_level(props: Mapping[str, str], levels: int) -> int:
    """Return a message's delay level, 0 for none, at most the last level. Raises MessageIllegal."""
    text = props.get(Prop.DELAY_TIME_LEVEL, "0")
    level = whole_number(text, -MAX_INT, MAX_INT)
    if level is None:
        raise MessageIllegal(f"the property DELAY is {text[:40]!r}; a level from 0 to {levels} is expected")
    return max(min(level, levels), 0)


def delayed(put: Put, props: dict[str, str], levels: Sequence[int], now_ms: int) -> Put:
    """Move a message with a DELAY level above 0 to that level's queue. Raises MessageIllegal.

    `levels`: milliseconds of each level, level 1 first. The queue's entry holds the time of delivery for a tag code.
    """
    level = delay_level(props, len(levels))
    if level == 0:
        return put
    put.tags_hash = now_ms + levels[level - 1]
    return with_real_target(put, props, SCHEDULE_TOPIC, level - 1)


def timer_window(reserved_hours: int) -> int:
    """Return the longest time in ms that a timer message waits in one place: half of what the log keeps it.

    `reserved_hours`: hours for which the log keeps a message.
    """
    return min(TIMER_WINDOW_MS, reserved_hours * 1_800_000)


def timer_time(props: Mapping[str, str], now_ms: int, most_s: int) -> int | None:
    """Return when a 5.x timer message is due, in Unix ms; None: the message has no time. Raises MessageIllegal.

    `most_s`: the setting `timerMaxDelaySec`.
    """
    for name, factor, base in (
        (Prop.TIMER_DELAY_SEC, 1_000, now_ms),
        (Prop.TIMER_DELAY_MS, 1, now_ms),
        (Prop.TIMER_DELIVER_MS, 1, 0),
    ):
        text = props.get(name)
        if text is None:
            continue
        number = whole_number(text, 0, MAX_TIME)
        if number is None:
            raise MessageIllegal(f"the property {name} is {text[:40]!r}; a whole number of 0 or more is expected")
        due = base + number * factor
        if due - now_ms > most_s * 1_000:
            raise MessageIllegal(
                f"the property {name} is {text}: due in over {most_s} s, which is the setting timerMaxDelaySec"
            )
        return due
    return None


def timed(put: Put, props: dict[str, str], due_ms: int, now_ms: int, window_ms: int) -> Put:
    """Move a message to the bucket of its minute; a message that is due already stays as it is.

    `window_ms`: see `timer_window`. TIMER_OUT_MS says until when the message waits in this place, TIMER_DELIVER_MS when
    it is due. Raises MessageIllegal for a recall of a message that is due already.
    """
    if due_ms <= now_ms:
        if Prop.TIMER_DEL_UNIQKEY in props:
            raise MessageIllegal(f"the property TIMER_DEL_UNIQKEY names a message that was due at {due_ms}")
        return put
    props[Prop.TIMER_DELIVER_MS] = str(due_ms)
    until = _waits_until(props, due_ms, now_ms, window_ms)
    return with_real_target(put, props, TIMER_TOPIC, timer_bucket(until))


def _waits_until(props: dict[str, str], due_ms: int, now_ms: int, window_ms: int) -> int:
    """Set until when a message waits in one place. Its last place is the bucket of its minute, and it is there a
    minute early: so a recall and its message meet.
    """
    until = due_ms if due_ms - now_ms <= window_ms else min(now_ms + window_ms, due_ms - TIMER_BUCKET_MS)
    props[Prop.TIMER_OUT_MS] = str(until)
    return until


def rolled_over(record: Record, props: dict[str, str], due_ms: int, now_ms: int, window_ms: int) -> Put:
    """Return a waiting message for its next place."""
    props[Prop.TIMER_ROLL_TIMES] = str((whole_number(props.get(Prop.TIMER_ROLL_TIMES, "0"), 0, MAX_ROLLS) or 0) + 1)
    until = _waits_until(props, due_ms, now_ms, window_ms)
    try:
        return copy_of(record, TIMER_TOPIC, timer_bucket(until), props=props)
    except RecordError:  # No room for the counter, which nothing needs: an earlier release has stored the message.
        del props[Prop.TIMER_ROLL_TIMES]
        return copy_of(record, TIMER_TOPIC, timer_bucket(until), props=props)


def half(put: Put, props: dict[str, str]) -> Put:
    """Turn a message into a half message, invisible until it is committed."""
    put.sys_flag &= ~SysFlag.TRANSACTION_MASK
    return with_real_target(put, props, TRANS_HALF_TOPIC, 0)
