"""Tables of offsets by message queue: offsets of topics and groups in answers, and in requests that reset them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gantry_broker.protocol.digits import MAX_LONG, MIN_LONG
from gantry_broker.protocol.fastjson import MessageQueue
from gantry_broker.protocol.fields import BodyError, Fields, parse, queue_from_json, short


@dataclass(slots=True)
class TopicOffset:
    """The offset range of a queue, in the answer to GET_TOPIC_STATS_INFO. `last_update` in ms."""

    min_offset: int
    max_offset: int
    last_update: int = 0


@dataclass(slots=True)
class ConsumeOffset:
    """A group's offset in a queue, in the answer to GET_CONSUME_STATS. `last_timestamp` in ms."""

    broker_offset: int
    consumer_offset: int
    last_timestamp: int = 0
    pull_offset: int = 0


def topic_stats_to_json(table: Mapping[MessageQueue, TopicOffset], put_tps: float = 0.0) -> dict[str, Any]:
    return {
        "offsetTable": {
            queue: {
                "lastUpdateTimestamp": item.last_update,
                "maxOffset": item.max_offset,
                "minOffset": item.min_offset,
            }
            for queue, item in table.items()
        },
        "topicPutTps": put_tps,
    }


def topic_stats_from_json(body: bytes) -> dict[MessageQueue, TopicOffset]:
    """Parse the answer to GET_TOPIC_STATS_INFO. Raises BodyError."""
    out = {}
    for queue, item in _queue_table(parse(body, "topicStats"), "offsetTable").items():
        fields = Fields(item, "topicOffset")
        out[queue] = TopicOffset(
            fields.long("minOffset"), fields.long("maxOffset"), fields.long("lastUpdateTimestamp", 0)
        )
    return out


def consume_stats_to_json(table: Mapping[MessageQueue, ConsumeOffset], tps: float = 0.0) -> dict[str, Any]:
    return {
        "consumeTps": tps,
        "offsetTable": {
            queue: {
                "brokerOffset": item.broker_offset,
                "consumerOffset": item.consumer_offset,
                "lastTimestamp": item.last_timestamp,
                "pullOffset": item.pull_offset,
            }
            for queue, item in table.items()
        },
    }


def consume_stats_from_json(body: bytes) -> tuple[dict[MessageQueue, ConsumeOffset], float]:
    """Parse the answer to GET_CONSUME_STATS: offsets by queue, messages per second. Raises BodyError."""
    stats = parse(body, "consumeStats")
    out = {}
    for queue, item in _queue_table(stats, "offsetTable").items():
        fields = Fields(item, "offset")
        out[queue] = ConsumeOffset(
            fields.long("brokerOffset"),
            fields.long("consumerOffset"),
            fields.long("lastTimestamp", 0),
            fields.long("pullOffset", 0),
        )
    return out, stats.real("consumeTps")


def offset_table(body: bytes) -> dict[MessageQueue, int]:
    """Parse `{"offsetTable":{queue:offset}}`, the offsets of a reset (220, 222). Raises BodyError.

    It also reads the Go and C++ clients' form, a list of `{"brokerName","queueId","topic","offset"}`.
    """
    fields = parse(body, "offsets")
    out: dict[MessageQueue, int] = {}
    try:
        table: Mapping[Any, Any] = _queue_table(fields, "offsetTable")
    except BodyError:
        for item in fields.items("offsetTable"):
            entry = Fields(item, "offset")
            out[queue_from_json(item)] = entry.long("offset")
        return out
    for queue, offset in table.items():
        if type(offset) is not int or not MIN_LONG <= offset <= MAX_LONG:
            raise BodyError(f"offsets.offsetTable has {short(offset)} for {queue}; a whole number is expected")
        out[queue] = offset
    return out


def _queue_table(fields: Fields, name: str) -> Mapping[MessageQueue, Any]:
    table = fields.map(name)
    for queue in table:
        if not isinstance(queue, MessageQueue):
            raise BodyError(f"a key of {name} is {short(queue)}; a message queue is expected")
    return table
