"""Handles of popped messages, and the fields of pop answers that clients make handles from.

RocketMQ's text, separated by spaces: `startOffset popTime invisibleTime reviveQueueId type broker queue offset`, and
after it the offset in the log when a gRPC proxy made the handle. Source: answers of 5.5.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from gantry_broker.protocol.codes import RETRY_PREFIX
from gantry_broker.protocol.digits import whole_number

ORDERLY_QUEUE: Final = 999
"""The revive queue of handles of orderly pops."""
MAX_HANDLE: Final = 512
"""Characters of a handle: a broker's name has at most 255."""
_MAX_LONG: Final = (1 << 63) - 1
_MAX_QUEUE: Final = (1 << 31) - 1

NORMAL: Final = 0
RETRY_V1: Final = 1
RETRY_V2: Final = 2


class BadHandle(ValueError):
    """The handle is malformed, or it no longer stands for a message in flight."""


def retry_topic_v2(group: str, topic: str) -> str:
    """Return the retry topic of a group's topic in its second form."""
    return f"{RETRY_PREFIX}{group}+{topic}"


def retry_topic_v1(group: str, topic: str) -> str:
    """Return the retry topic of a group's topic in its first form."""
    return f"{RETRY_PREFIX}{group}_{topic}"


def topic_type(topic: str) -> int:
    """Return a topic's type in handles: 0, or 1 and 2 for the two forms of retry topics."""
    if not topic.startswith(RETRY_PREFIX):
        return NORMAL
    return RETRY_V2 if "+" in topic else RETRY_V1


def real_topic(topic: str, group: str, kind: int) -> str:
    """Return the topic that a handle of this type means; `topic`: the one that the request names."""
    if kind == NORMAL or topic.startswith(RETRY_PREFIX):
        return topic
    return retry_topic_v2(group, topic) if kind == RETRY_V2 else retry_topic_v1(group, topic)


class Handle(NamedTuple):
    """One delivery of one message."""

    start_offset: int
    pop_ms: int
    invisible_ms: int
    revive_queue: int
    kind: int
    """The type of the message's topic, see `topic_type`."""
    broker: str
    queue_id: int
    offset: int

    @property
    def visible_ms(self) -> int:
        """When the message is visible again, Unix ms."""
        return self.pop_ms + self.invisible_ms

    @property
    def orderly(self) -> bool:
        return self.revive_queue == ORDERLY_QUEUE

    def __str__(self) -> str:
        return (
            f"{self.start_offset} {self.pop_ms} {self.invisible_ms} {self.revive_queue} {self.kind} {self.broker} "
            f"{self.queue_id} {self.offset}"
        )


_PLAIN: Final = re.compile(
    r"([0-9]{1,18} [0-9]{1,18} [0-9]{1,18} [0-9]{1,9} [0-2]) ([^ ]+) ([0-9]{1,9} [0-9]{1,18})(?: [0-9]{1,18})?\Z"
)
"""Handles whose numbers need no further look."""


def parse_handle(text: str, offset: int | None = None) -> Handle:
    """Parse a handle. `offset`: the queue offset for handles without one. Raises BadHandle."""
    if len(text) > MAX_HANDLE:
        raise BadHandle(f"the handle has {len(text)} characters, at most {MAX_HANDLE} are valid")
    plain = _PLAIN.match(text)
    if plain is not None:
        numbers, broker, place = plain[1].split(" "), plain[2], plain[3].split(" ")
        revive, queue_id = int(numbers[3]), int(place[0])
        if revive <= ORDERLY_QUEUE and queue_id <= _MAX_QUEUE:
            start, pop_ms, invisible_ms = int(numbers[0]), int(numbers[1]), int(numbers[2])
            return Handle(start, pop_ms, invisible_ms, revive, int(numbers[4]), broker, queue_id, int(place[1]))
    parts = text.split(" ")
    if len(parts) == 7 and offset is not None:
        parts.append(str(offset))
    if not 8 <= len(parts) <= 9:
        raise BadHandle(f"the handle {text[:80]!r} has {len(parts)} parts; 8 or 9 are expected")
    start = _number(text, parts[0], "start offset", _MAX_LONG)
    pop_ms = _number(text, parts[1], "pop time", _MAX_LONG >> 1)
    invisible_ms = _number(text, parts[2], "invisible time", _MAX_LONG >> 1)
    revive = _number(text, parts[3], "revive queue", ORDERLY_QUEUE)
    kind = _number(text, parts[4], "type of topic", RETRY_V2)
    queue_id = _number(text, parts[6], "queue", _MAX_QUEUE)
    at = _number(text, parts[7], "offset", _MAX_LONG)
    if len(parts) == 9:
        _number(text, parts[8], "offset in the log", _MAX_LONG)
    if not parts[5]:
        raise BadHandle(f"the handle {text[:80]!r} names no broker")
    return Handle(start, pop_ms, invisible_ms, revive, kind, parts[5], queue_id, at)


def of_delivery(text: str | None, pop_ms: int, invisible_ms: int, broker: str, offset: int) -> str | None:
    """Return the handle in a record's property POP_CK, with its offset, if it is of this delivery; None: it is not.

    A broker writes it into messages of retry topics. A message that was received before and sent on may have the one of
    that delivery, which would acknowledge another message.
    """
    if not text:
        return None
    try:
        handle = parse_handle(text, offset)
    except BadHandle:
        return None
    same = (handle.pop_ms, handle.invisible_ms, handle.broker, handle.offset) == (pop_ms, invisible_ms, broker, offset)
    return str(handle) if same else None


def _number(text: str, part: str, what: str, most: int) -> int:
    number = whole_number(part, 0, most)
    if number is None:
        raise BadHandle(f"the handle {text[:80]!r}: its {what} is {part[:24]!r}, a whole number to {most} is expected")
    return number


def start_offset_info(parts: Iterable[tuple[int, int, int]]) -> str:
    """Return the field startOffsetInfo of (type of topic, queue, start offset)."""
    return ";".join([f"{kind} {queue_id} {start}" for kind, queue_id, start in parts])


def message_offset_info(parts: Iterable[tuple[int, int, Sequence[int]]]) -> str:
    """Return the field msgOffsetInfo of (type of topic, queue, offsets of the messages)."""
    return ";".join([f"{kind} {queue_id} {','.join(map(str, offsets))}" for kind, queue_id, offsets in parts])


def order_count_info(kind: int, queue_id: int, counts: Sequence[tuple[int, int]], messages: int) -> str:
    """Return the part of orderCountInfo for one queue.

    `counts`: (offset, earlier deliveries) of the messages that had any; `messages`: all of this answer. The last entry
    is for clients that know one count for each queue.
    """
    parts = [f"{kind} qo{queue_id}%{offset} {count}" for offset, count in counts]
    least = min((count for _, count in counts), default=0) if len(counts) == messages else 0
    parts.append(f"{kind} {queue_id} {least}")
    return ";".join(parts)
