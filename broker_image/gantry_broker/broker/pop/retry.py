"""Copies of messages whose invisible time is over: to the group's retry topic, or to its dead letters. Pure."""

from __future__ import annotations

from gantry_broker.broker.metadata.topics import dlq_topic
from gantry_broker.broker.send.messages import copy_of
from gantry_broker.protocol.codes import RETRY_PREFIX, Prop
from gantry_broker.protocol.digits import MAX_INT, whole_number
from gantry_broker.protocol.message import Record, RecordError, parse_properties
from gantry_broker.protocol.pop_handle import retry_topic_v1, retry_topic_v2
from gantry_broker.store.types import Put


def original_topic(group: str, topic: str) -> str:
    """Return the topic that a retry topic of the group belongs to; another topic itself."""
    for mark in ("+", "_"):
        head = f"{RETRY_PREFIX}{group}{mark}"
        if topic.startswith(head) and len(topic) > len(head):
            return topic[len(head) :]
    return topic


def retry_target(group: str, topic: str) -> str:
    """Return where messages of a topic are retried: a retry topic is its own, but for one in the first form, whose
    name may be that of another group's retries.
    """
    if not topic.startswith(RETRY_PREFIX):
        return retry_topic_v2(group, topic)
    return retry_topic_v2(group, topic[len(head) :]) if topic.startswith(head := retry_topic_v1(group, "")) else topic


def target_topics(group: str, topic: str) -> tuple[str, str]:
    """Return the topics to which copies of a topic's messages go."""
    return retry_target(group, topic), dlq_topic(group)


def origin_of(record: Record) -> tuple[str, int, int] | None:
    """Return (topic, queue, queue offset) of the message that a copy replaces; None: the record is no copy."""
    parts = parse_properties(record.properties).get(Prop.POP_ORIGIN, "").split(" ")
    if len(parts) != 3:
        return None
    queue_id, offset = whole_number(parts[1], 0, MAX_INT), whole_number(parts[2])
    return None if queue_id is None or offset is None else (parts[0], queue_id, offset)


def revived(record: Record, group: str, pop_ms: int, *, counts: bool, max_retries: int) -> Put:
    """Return the copy of a message whose delivery ended without an acknowledgement.

    `counts`: that delivery was an attempt. After `max_retries` retries the copy is a dead letter.
    """
    topic, times = record.topic, record.reconsume_times
    props = parse_properties(record.properties)
    props[Prop.POP_ORIGIN] = f"{topic} {record.queue_id} {record.queue_offset}"
    props.pop(Prop.POP_CK, None)
    target = retry_target(group, topic)
    if counts and times >= max_retries:
        target = dlq_topic(group)
        props.setdefault(Prop.ORIGIN_MESSAGE_ID, record.offset_id)
        props[Prop.DLQ_ORIGIN_TOPIC] = original_topic(group, topic)
        props[Prop.DLQ_ORIGIN_MESSAGE_ID] = props[Prop.ORIGIN_MESSAGE_ID]
        props[Prop.RETRY_TOPIC] = props[Prop.DLQ_ORIGIN_TOPIC]
    else:
        props.setdefault(Prop.FIRST_POP_TIME, str(pop_ms))
    try:
        return copy_of(record, target, 0, props=props, reconsume_times=times + counts)
    except RecordError:  # No room for more properties: an earlier release has stored the message.
        rest = parse_properties(record.properties)
        for name in (Prop.POP_ORIGIN, Prop.POP_CK, Prop.FIRST_POP_TIME):
            rest.pop(name, None)
        return copy_of(record, target, 0, props=rest, reconsume_times=times + counts)
