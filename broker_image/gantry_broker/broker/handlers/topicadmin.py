"""Topics for administrators: create, delete, list, statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import orjson

from gantry_broker.broker.errors import RequestRejected
from gantry_broker.broker.handlers.requests import MAX_AT_ONCE, configurations, json_object, ok
from gantry_broker.broker.metadata import attributes
from gantry_broker.broker.metadata.topics import is_system_topic, topic_fault
from gantry_broker.protocol import fastjson
from gantry_broker.protocol.bad_field import BadField
from gantry_broker.protocol.bodies import FILTER_TYPES, TopicConfig, topic_list
from gantry_broker.protocol.codes import (
    CONTROL_TOPIC,
    DLQ_PREFIX,
    RETRY_PREFIX,
    SYSTEM_TOPICS,
    RequestCode,
    ResponseCode,
)
from gantry_broker.protocol.fastjson import MessageQueue
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import CreateTopicHeader, TopicHeader, TopicStatsHeader
from gantry_broker.protocol.limits import MAX_QUEUES
from gantry_broker.protocol.offset_tables import TopicOffset, topic_stats_to_json

if TYPE_CHECKING:
    from gantry_broker.broker.archive_reads import ArchiveReads
    from gantry_broker.broker.clients import ClientTable
    from gantry_broker.broker.clock import Clock
    from gantry_broker.broker.metadata.changes import MetadataChanges
    from gantry_broker.broker.metadata.creation import OnDemandCreation
    from gantry_broker.broker.metadata.tables import Metadata
    from gantry_broker.broker.retention import LogRetention, TopicRetention
    from gantry_broker.broker.role import RoleState
    from gantry_broker.broker.stats import Stats
    from gantry_broker.config import BrokerConfig
    from gantry_broker.remoting.connection import Connection
    from gantry_broker.settings import BrokerSettings
    from gantry_broker.store.store import MessageStore
    from gantry_broker.timeslice import TimeSlices


class Parts(Protocol):
    """What these functions use of a member."""

    config: BrokerConfig
    settings: BrokerSettings
    clock: Clock
    store: MessageStore
    retention: LogRetention
    topic_retention: TopicRetention
    archive_reads: ArchiveReads
    role: RoleState
    meta: Metadata
    changes: MetadataChanges
    creation: OnDemandCreation
    clients: ClientTable
    stats: Stats
    slices: TimeSlices


def checked_topic(broker: Parts, config: TopicConfig) -> TopicConfig:
    """Check a topic's configuration and return it. Raises RequestRejected and BadField."""
    longest = 255 if config.name.startswith((RETRY_PREFIX, DLQ_PREFIX)) else 127
    fault = topic_fault(config.name, longest=longest)
    if fault is not None:
        raise RequestRejected(ResponseCode.SYSTEM_ERROR, f"the field topic: {fault}")
    if is_system_topic(config.name) or config.name == broker.config.cluster:
        raise RequestRejected(ResponseCode.SYSTEM_ERROR, f"The topic[{config.name}] is conflict with system topic.")
    for name, value in (("readQueueNums", config.read_queues), ("writeQueueNums", config.write_queues)):
        if not 0 < value <= MAX_QUEUES:
            raise BadField(name, str(value), f"a whole number from 1 to {MAX_QUEUES}")
    if not 0 <= config.perm <= 7:
        raise BadField("perm", str(config.perm), "2 (write), 4 (read) or 6 (both)")
    return config


async def create_topic(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    header = CreateTopicHeader.parse(frame)
    if header.topicFilterType not in FILTER_TYPES:
        raise BadField("topicFilterType", header.topicFilterType, " or ".join(FILTER_TYPES))
    present = broker.meta.working.topics.get(header.topic)
    config = TopicConfig(
        header.topic,
        header.readQueueNums,
        header.writeQueueNums,
        header.perm,
        header.topicFilterType,
        header.topicSysFlag or 0,
        header.order,
        attributes.changed(
            attributes.parsed(header.attributes or ""),
            None if present is None else present.attributes,
            broker.settings.enableMixedMessageType,
        ),
    )
    checked_topic(broker, config)
    broker.creation.check_limits(topics=[config.name], on_demand=False)
    await broker.changes.append_and_wait({"topics": [config.to_json()]})
    return ok(frame)


async def create_topics(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    items = configurations(frame, "topic")
    configs = [checked_topic(broker, TopicConfig.from_json(item)) for item in items]
    for config in configs:
        present = broker.meta.working.topics.get(config.name)
        before = None if present is None else present.attributes
        config.attributes = attributes.changed(config.attributes, before, broker.settings.enableMixedMessageType)
    broker.creation.check_limits(topics=[config.name for config in configs], on_demand=False)
    await broker.changes.append_and_wait({"topics": [c.to_json() for c in configs]})
    return ok(frame)


async def delete_topic(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    """Delete a topic and all offsets in it. Its messages stay invisible when the topic is created again."""
    header = TopicHeader.parse(frame)
    fault = topic_fault(header.topic, longest=255)
    if fault is not None:
        raise RequestRejected(ResponseCode.SYSTEM_ERROR, f"the field topic: {fault}")
    if is_system_topic(header.topic):
        raise RequestRejected(ResponseCode.SYSTEM_ERROR, f"The topic[{header.topic}] is conflict with system topic.")
    await delete_topics(broker, [header.topic])
    return ok(frame)


def _pop_retry_topics(broker: Parts, names: list[str]) -> list[str]:
    """Return the topics with the retries of POP consumption of these topics: a new topic begins without them."""
    tables = broker.meta.working
    ends = tuple([f"+{name}" for name in names])
    retries = {name for name in tables.topics if name.startswith(RETRY_PREFIX) and name.endswith(ends)}
    for topic in names:
        old = [tables.old_pop_retries(group, topic) for group in tables.groups_of_topic(topic)]
        retries.update([name for name in old if name is not None])
    return sorted(retries.difference(names))


async def delete_topics(broker: Parts, names: list[str]) -> None:
    names = [*names, *_pop_retry_topics(broker, names)]
    gone = set(names)
    offsets = [key for key in broker.meta.working.offsets if key.partition("@")[0] in gone]
    await broker.changes.append_and_wait(
        {"dropTopics": names, "dropOffsets": offsets, "dropData": broker.store.log.end}
    )
    broker.stats.forget(gone)


async def all_topics(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    tables = broker.meta.working
    version = orjson.dumps(tables.topic_version.to_json())
    table = await json_object(
        broker.slices,
        {name: topic for name, topic in tables.topics.items() if name != CONTROL_TOPIC},
        TopicConfig.to_json,
    )
    return ok(frame, body=b'{"dataVersion":' + version + b',"topicConfigTable":' + table + b"}")


def topic_config(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    header = TopicHeader.parse(frame)
    config = broker.meta.working.topics.get(header.topic)
    if config is None:
        raise RequestRejected(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {header.topic[:255]}")
    return ok(frame, body=orjson.dumps(config.to_json()))


def system_topic_list(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    names = sorted({*SYSTEM_TOPICS, broker.config.cluster, broker.config.group})
    return ok(frame, body=topic_list(names, broker.role.address))


async def topic_stats(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    header = TopicStatsHeader.parse(frame)
    config = broker.meta.working.topics.get(header.topic)
    if config is None:
        raise RequestRejected(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic[:255]}] not exist")
    store = broker.store
    table = {}
    async for queue_id in broker.slices.sliced(range(max(config.write_queues, config.read_queues))):
        low = broker.archive_reads.min_offset(config.name, queue_id)
        high = store.reader.max_offset(config.name, queue_id)
        last = store.reader.store_time(config.name, queue_id, high - 1) if high > low else 0
        table[MessageQueue(config.name, broker.config.group, queue_id)] = TopicOffset(low, high, max(last, 0))
    tps = broker.stats.tps("TOPIC_PUT_NUMS", config.name, broker.clock.now_ms())
    return ok(frame, body=fastjson.dumps(topic_stats_to_json(table, tps)))


def consumed_by(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    """Return the groups with a member that subscribes to the topic, and the groups with offsets in it."""
    header = TopicHeader.parse(frame)
    groups = {*broker.clients.groups_of_topic(header.topic), *broker.meta.working.groups_of_topic(header.topic)}
    return ok(frame, body=orjson.dumps({"groupList": sorted(groups)}))


def clean_queues(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    """Run retention at once. Retention truncates the queues together with the log."""
    broker.retention.expire()
    broker.topic_retention.expire()
    return ok(frame)


def clean_log(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    broker.retention.expire()
    return ok(frame)


async def clean_unused(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    """Drop the queues of topics without a configuration; a store taken over from RocketMQ may have some. As 4.9.7.

    The queues of system topics stay.
    """
    topics, store = broker.meta.working.topics, broker.store
    unused = [
        name
        for name, queues in store.queues.topics_queues().items()
        if name not in topics
        and not is_system_topic(name)
        and any(store.reader.min_offset(name, queue) < store.reader.max_offset(name, queue) for queue in queues)
    ]
    for start in range(0, len(unused), MAX_AT_ONCE):
        await delete_topics(broker, unused[start : start + MAX_AT_ONCE])
    return ok(frame)


def unit_topics(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    flag = 1 if frame.code == RequestCode.GET_UNIT_TOPIC_LIST else 2
    return ok(frame, body=topic_list(t.name for t in broker.meta.working.topics.values() if t.sys_flag & flag))
