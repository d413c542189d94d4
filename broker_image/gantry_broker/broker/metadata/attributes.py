"""Attributes of topics (5.x): which exist, and what a change of them may say. Rules and codes are those of 5.5.0.

Gantry refuses values whose meaning it does not have, instead of keeping them without effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from gantry_broker.protocol.bad_field import BadField
from gantry_broker.protocol.codes import ResponseCode
from gantry_broker.protocol.digits import MAX_LONG, whole_number

MESSAGE_TYPE: Final = "message.type"
MIXED: Final = "MIXED"
RETENTION: Final = "retention.ms"
"""Gantry's own: messages of the topic are readable for this time at most."""
MIN_RETENTION_MS: Final = 60_000
CLEANUP: Final = "cleanup.policy"
COMPACTION: Final = "COMPACTION"
"""The value of `CLEANUP` with which brokers keep the newest message of each key. Source: RIP-30, 5.5.0."""
TOMBSTONES: Final = "delete.retention.ms"
"""Gantry's own, named as in Kafka: how long a compacted topic keeps a message without a body after it was stored."""
TOMBSTONES_MS: Final = 86_400_000
"""Without that attribute."""


class Attribute(NamedTuple):
    """`expected`: what to write; `changeable`: also after the topic was created."""

    valid: Callable[[str], bool]
    expected: str
    changeable: bool


def _one_of(*names: str) -> Callable[[str], bool]:
    return lambda value: value in names


def _number(low: int, high: int) -> Callable[[str], bool]:
    def valid(value: str) -> bool:
        return whole_number(value, low, high) is not None

    return valid


TYPES: Final = ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", MIXED)
ATTRIBUTES: Final = {
    MESSAGE_TYPE: Attribute(_one_of(*TYPES), f"one of {', '.join(TYPES)} (PRIORITY and LITE are not supported)", True),
    "queue.type": Attribute(_one_of("SimpleCQ"), "SimpleCQ (BatchCQ is not supported)", False),
    CLEANUP: Attribute(_one_of("DELETE", COMPACTION), f"DELETE or {COMPACTION}", True),
    TOMBSTONES: Attribute(_number(0, MAX_LONG), "milliseconds: a whole number of 0 or more", True),
    "reserve.time": Attribute(_number(-1, MAX_LONG), "a whole number of -1 or more", True),
    RETENTION: Attribute(
        _number(MIN_RETENTION_MS, MAX_LONG), f"milliseconds: a whole number of {MIN_RETENTION_MS} or more", True
    ),
    "lite.topic.expiration": Attribute(_number(-1, 43_200), "a whole number from -1 to 43200", True),
}


def retention_ms(attributes: Mapping[str, str]) -> int | None:
    """Return how long messages of a topic with these attributes are readable; None: as long as the log has them."""
    text = attributes.get(RETENTION, "")
    return int(text) if ATTRIBUTES[RETENTION].valid(text) else None


def is_compacted(attributes: Mapping[str, str]) -> bool:
    """Whether brokers keep the newest message of each key of a topic with these attributes."""
    return attributes.get(CLEANUP) == COMPACTION


def tombstone_ms(attributes: Mapping[str, str]) -> int:
    """Return how long a compacted topic keeps messages without a body (ms)."""
    text = attributes.get(TOMBSTONES, "")
    return int(text) if ATTRIBUTES[TOMBSTONES].valid(text) else TOMBSTONES_MS


def parsed(text: str) -> dict[str, str]:
    """Return the parts of "+name=value,-name". Raises BadField."""
    parts = text.split(",")
    while parts and not parts[-1]:
        parts.pop()  # Java drops the empty ones at the end.
    attributes: dict[str, str] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        value = value.partition("=")[0]
        if not (value if equals else not key.startswith("+")) or key in attributes:
            raise _bad(text)
        attributes[key] = value
    return attributes


def changed(change: Mapping[str, str], former: Mapping[str, str] | None, mixed: bool) -> dict[str, str]:
    """Return a topic's attributes after a change: "+name" to value, and "-name" to remove one. Raises BadField.

    `former`: the attributes so far; None: the topic is new. `mixed`: the setting `enableMixedMessageType`.
    """
    result = dict(former or {})
    names = [key[1:] for key in change]
    for key, value in change.items():
        name = key[1:]
        if key[:1] not in ("+", "-") or names.count(name) > 1:
            raise _bad(key)
        attribute = ATTRIBUTES.get(name)
        if attribute is None:
            raise BadField("attributes", key, f"+ or - and one of {', '.join(ATTRIBUTES)}")
        if former is not None and not attribute.changeable:
            raise BadField("attributes", key, f"no change: {name} is set when the topic is created")
        if key[0] == "-":
            if former is None or name not in former:
                raise BadField("attributes", key, "- and an attribute that the topic has")
            del result[name]
        elif name == MESSAGE_TYPE and value == MIXED and not mixed:
            expected = "another type, or the setting enableMixedMessageType"
            raise BadField("attributes", f"{key}={value}", expected, ResponseCode.INVALID_PARAMETER)
        elif not attribute.valid(value):
            raise BadField("attributes", f"{key}={value}", attribute.expected)
        else:
            result[name] = value
    return result


def _bad(text: str) -> BadField:
    return BadField("attributes", text, "+name=value or -name, joined by commas, each name once")
