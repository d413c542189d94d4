"""What consumers of RocketMQ 5.x have popped and not acknowledged, from the topic in which it keeps that. Pure.

A check point says which messages of a queue were given together, and for how long; acknowledgements name the check
point and the message. RocketMQ keeps both as timer messages until that time is over; its timer then delivers them to
the revive topic, where its reader decides. Source: `PopCheckPoint`, `AckMsg`, `BatchAckMsg` and `PopAckConstants` of
5.5.0, and the log of a broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import orjson

from gantry_broker.broker.metadata.tables import offset_key
from gantry_broker.protocol import plausible
from gantry_broker.protocol.codes import REVIVE_PREFIX

LONGEST_MS: Final = 12 * 3_600_000
"""For so long a message is with a consumer at most, by RocketMQ's proxies."""
REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
CHECK_POINT, ACK, ACKS = "ck", "ack", "bAck"
MOST: Final = 64
"""Messages of one check point: it counts them in a byte, and its bits in an int."""


class _Given(NamedTuple):
    topic: str
    group: str
    queue: int
    start: int
    time: int


class InFlight:
    """Takes the records in any order, and each as often as it comes."""

    def __init__(self) -> None:
        self._given: dict[_Given, set[int]] = {}
        self._acknowledged: dict[_Given, set[int]] = {}
        self.unreadable = 0
        """Records that are none of RocketMQ's."""

    def take(self, tag: str, body: bytes) -> None:
        """Take a record over."""
        try:
            value = orjson.loads(body)
            given = _Given(
                str(value["t"]), str(value["c"]), _number(value["q"]), _number(value["so"]), _number(value["pt"])
            )
            if tag == CHECK_POINT:
                diffs = value.get("d") or range(min(_number(value["n"]), MOST))
                offsets = {given.start + _number(diff) for diff in list(diffs)[:MOST]}
                self._given.setdefault(given, set()).update(offsets or {given.start})
            elif tag in (ACK, ACKS):
                done = {_number(offset) for offset in (value["aol"] if tag == ACKS else [value["ao"]])[:MOST]}
                self._acknowledged.setdefault(given, set()).update(done)
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
            self.unreadable += 1

    def forget(self, before_ms: int) -> None:
        """Forget what was given before a time: RocketMQ's reader has it."""
        for table in (self._given, self._acknowledged):
            for given in [given for given in table if given.time < before_ms]:
                del table[given]

    def lowest(self) -> dict[str, dict[int, int]]:
        """Return the first message in flight, by topic and group, and by queue."""
        by_group: dict[str, dict[int, int]] = {}
        for given, offsets in self._given.items():
            left = offsets - self._acknowledged.get(given, set())
            if left:
                queues = by_group.setdefault(offset_key(given.topic, given.group), {})
                queues[given.queue] = min(queues.get(given.queue, plausible.MAX_OFFSET), min(left))
        return by_group


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= plausible.MAX_OFFSET:
        raise ValueError(f"{value!r} is no offset")
    return value


def give_again(offsets: dict[str, dict[int, int]], lowest: Mapping[str, Mapping[int, int]]) -> int:
    """Set groups back to what they have in flight: all from there on comes again. Returns how many queues are set."""
    count = 0
    for key, queues in lowest.items():
        of_group = offsets.setdefault(key, {})
        for queue, offset in queues.items():
            if offset < of_group.get(queue, plausible.MAX_OFFSET):
                of_group[queue] = offset
                count += 1
    return count


def revive_topics(topics: Iterable[str]) -> list[str]:
    """Return the topics with check points."""
    return sorted(name for name in topics if name.startswith(REVIVE_PREFIX))
