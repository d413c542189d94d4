"""What consumers of RocketMQ 5.x have popped and not acknowledged, from the topic in which it keeps that. Pure.

A check point says which messages of a queue were given together, and for how long; acknowledgements name the check
point and the message. Source: `PopCheckPoint`, `AckMsg`, `BatchAckMsg` and `PopAckConstants` of 5.5.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import orjson

from gantry_broker.broker.metadata.tables import offset_key
from gantry_broker.protocol import plausible

REVIVE_PREFIX: Final = "rmq_sys_REVIVE_LOG_"
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
    """Follows the records of the topic, queue by queue, from where RocketMQ's own reader is."""

    def __init__(self) -> None:
        self._open: dict[_Given, set[int]] = {}
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
                diffs = value.get("d") or range(_number(value["n"]))
                offsets = {given.start + _number(diff) for diff in list(diffs)[:MOST]}
                self._open[given] = offsets or {given.start}
            elif tag in (ACK, ACKS):
                done = value["aol"] if tag == ACKS else [value["ao"]]
                known = self._open.get(given)
                if known is not None:
                    known.difference_update(done)
                    if not known:
                        del self._open[given]
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
            self.unreadable += 1

    def lowest(self) -> dict[str, dict[int, int]]:
        """The first message in flight, by topic and group, and by queue."""
        found: dict[str, dict[int, int]] = {}
        for given, offsets in self._open.items():
            queues = found.setdefault(offset_key(given.topic, given.group), {})
            queues[given.queue] = min(queues.get(given.queue, plausible.MAX_OFFSET), min(offsets))
        return found


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= plausible.MAX_OFFSET:
        raise ValueError(f"{value!r} is no offset")
    return value


def give_again(offsets: dict[str, dict[int, int]], lowest: Mapping[str, Mapping[int, int]]) -> int:
    """Set groups back to what they have in flight: all from there on comes again. Returns how many queues are set."""
    count = 0
    for key, queues in lowest.items():
        known = offsets.setdefault(key, {})
        for queue, offset in queues.items():
            if offset < known.get(queue, plausible.MAX_OFFSET):
                known[queue] = offset
                count += 1
    return count


def revive_topics(topics: Iterable[str]) -> list[str]:
    """The topics with check points."""
    return sorted(name for name in topics if name.startswith(REVIVE_PREFIX))
