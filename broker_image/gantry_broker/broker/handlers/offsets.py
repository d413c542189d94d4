"""Offsets of consumers and of queues, and offsets by time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from gantry_broker.admission import owners_of
from gantry_broker.broker.errors import RequestRejected
from gantry_broker.broker.handlers.requests import ok
from gantry_broker.broker.metadata.creation_limits import MAX_OFFSET_QUEUES
from gantry_broker.broker.metadata.tables import offset_key
from gantry_broker.broker.metadata.topics import group_fault, topic_fault
from gantry_broker.protocol.bad_field import BadField
from gantry_broker.protocol.bodies import TopicConfig
from gantry_broker.protocol.codes import TABLE_GROUP_PREFIX, ResponseCode
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import QueryOffsetHeader, QueueHeader, SearchOffsetHeader, UpdateOffsetHeader

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from gantry_broker.broker.archive_reads import ArchiveReads
    from gantry_broker.broker.metadata.changes import MetadataChanges
    from gantry_broker.broker.metadata.creation import OnDemandCreation
    from gantry_broker.broker.metadata.tables import Metadata
    from gantry_broker.broker.role import RoleState
    from gantry_broker.remoting.connection import Connection
    from gantry_broker.settings import BrokerSettings
    from gantry_broker.store.store import MessageStore

SETTLES_S = 2.0
"""Seconds that a request may wait until a new leader knows its confirmed offset. Clients wait for 3 s."""
SETTLE_LOOK_S = 0.01
RECENT_BYTES = 1 << 30
"""A queue counts as in memory when it begins within this many bytes of the log's end (see `query_offset`)."""


class Parts(Protocol):
    """What these functions use of a member."""

    settings: BrokerSettings
    store: MessageStore
    archive_reads: ArchiveReads
    role: RoleState
    meta: Metadata
    changes: MetadataChanges
    creation: OnDemandCreation


def known_queue(broker: Parts, topic: str, queue_id: int) -> TopicConfig:
    """Return the topic of a queue. Raises RequestRejected for an unknown topic, BadField for an unknown queue."""
    fault = topic_fault(topic, longest=255)
    if fault is not None:
        raise RequestRejected(ResponseCode.SYSTEM_ERROR, f"the field topic: {fault}")
    config = broker.meta.working.topics.get(topic)
    if config is None:
        raise RequestRejected(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!")
    queues = max(config.read_queues, config.write_queues)
    if not 0 <= queue_id < queues:
        raise BadField("queueId", str(queue_id), f"a queue of topic {topic}, from 0 to {queues - 1}")
    return config


def query_offset(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    """Return a group's offset. As 4.9.7: without one it is 0 if the queue never lost a message and is young."""
    header = QueryOffsetHeader.parse(frame)
    offset = broker.meta.working.offset(header.topic, header.consumerGroup, header.queueId)
    if offset >= 0:
        return ok(frame, {"offset": str(offset)})
    minimum = broker.store.reader.min_offset(header.topic, header.queueId)
    if header.setZeroIfNotFound is not False and minimum <= 0 and _in_memory(broker, header.topic, header.queueId):
        return ok(frame, {"offset": "0"})
    raise RequestRejected(
        ResponseCode.QUERY_NOT_FOUND, "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
    )


def _in_memory(broker: Parts, topic: str, queue_id: int) -> bool:
    """Return whether a queue begins within the log's last GiB. 4.9.7 tests whether its first message is cached."""
    first = broker.store.reader.get(topic, queue_id, 0, 1, 1, None)
    if not first.data:
        return True
    return broker.store.log.end - int.from_bytes(first.data[28:36], "big") <= RECENT_BYTES


def update_offset(broker: Parts, conn: Connection, frame: Frame) -> Coroutine[None, None, Frame] | None:
    """Note a group's offset. A request that waits for an answer gets it when the offset is replicated; those without
    an answer, as Java's consumers send them, are written with `flushConsumerOffsetInterval`.
    """
    header = UpdateOffsetHeader.parse(frame)
    for name, fault in (
        ("topic", topic_fault(header.topic, longest=255)),
        ("consumerGroup", group_fault(header.consumerGroup)),
    ):
        if fault is not None:
            raise RequestRejected(ResponseCode.SYSTEM_ERROR, f"the field {name}: {fault}")
    if header.queueId < 0 or header.commitOffset < 0:
        name = "queueId" if header.queueId < 0 else "commitOffset"
        raise BadField(name, str(getattr(header, name)), "a whole number of 0 or more")
    if not broker.role.leading:
        raise RequestRejected(ResponseCode.SERVICE_NOT_AVAILABLE, broker.role.refusal())
    config = broker.meta.working.topics.get(header.topic)
    if config is None:
        raise RequestRejected(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} not exist!")
    if header.queueId >= max(config.read_queues, config.write_queues):
        raise BadField("queueId", str(header.queueId), f"a queue of topic {header.topic}")
    exists = header.consumerGroup in broker.meta.working.groups
    of_table = header.consumerGroup.startswith(TABLE_GROUP_PREFIX)
    if not exists and not of_table and not broker.settings.autoCreateSubscriptionGroup:
        raise RequestRejected(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.consumerGroup} not exist!")
    offsets, owner = broker.meta.working.offsets, owners_of(conn)[1]
    if (key := offset_key(header.topic, header.consumerGroup)) not in offsets:
        if fault := broker.meta.no_room_for_offsets((key,), owner=owner):
            raise RequestRejected(ResponseCode.SYSTEM_ERROR, fault)
        if not exists:  # a member's heartbeat creates it; its offsets count as new
            broker.creation.check_limits(groups=[header.consumerGroup])
    if not broker.meta.commit_offset_of(key, header.queueId, int(header.commitOffset), owner):
        raise RequestRejected(
            ResponseCode.SYSTEM_ERROR,
            f"of {MAX_OFFSET_QUEUES} queues with offsets, which is the limit, {owner} has as many as are free, or none "
            "are: delete groups that are not used",
        )
    return None if frame.is_oneway else _when_stored(broker, frame, key, header.queueId)


async def _when_stored(broker: Parts, frame: Frame, key: str, queue_id: int) -> Frame:
    await broker.changes.offset_stored(key, queue_id)
    return ok(frame)


def max_offset(broker: Parts, conn: Connection, frame: Frame) -> Frame | Coroutine[None, None, Frame]:
    """Return the end of a queue.

    A new leader may not know yet that acknowledged records are confirmed. It waits until its epoch is confirmed: a
    reader would otherwise take the known part for the whole queue (rule 9).
    """
    header = QueueHeader.parse(frame)
    known_queue(broker, header.topic, header.queueId)
    return _max_when_settled(broker, frame, header) if _unsettled(broker) else _max(broker, frame, header)


def _unsettled(broker: Parts) -> bool:
    return broker.role.leading and not broker.role.epoch_confirmed


def _max(broker: Parts, frame: Frame, header: QueueHeader) -> Frame:
    return ok(frame, {"offset": str(broker.store.reader.max_offset(header.topic, header.queueId))})


async def _max_when_settled(broker: Parts, frame: Frame, header: QueueHeader) -> Frame:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + SETTLES_S
    while _unsettled(broker):
        if loop.time() > deadline:
            raise RequestRejected(
                ResponseCode.SYSTEM_BUSY,
                "this master has just taken over and does not know yet how far the queue is confirmed; ask again",
            )
        await asyncio.sleep(SETTLE_LOOK_S)
    return _max(broker, frame, header)


def min_offset(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    header = QueueHeader.parse(frame)
    known_queue(broker, header.topic, header.queueId)
    return ok(frame, {"offset": str(broker.archive_reads.min_offset(header.topic, header.queueId))})


def search_offset(broker: Parts, conn: Connection, frame: Frame) -> Frame | Coroutine[None, None, Frame]:
    header = SearchOffsetHeader.parse(frame)
    known_queue(broker, header.topic, header.queueId)
    offset = offset_at_time(
        broker, header.topic, header.queueId, int(header.timestamp), upper=header.upper, owner=owners_of(conn)[1]
    )
    if isinstance(offset, int):
        return ok(frame, {"offset": str(offset)})
    return _when_found(frame, "offset", offset)


def offset_at_time(
    broker: Parts, topic: str, queue_id: int, ms: int, *, owner: str, upper: bool = False
) -> int | Coroutine[None, None, int]:
    """Return the offset of a queue for a time, as `Reader.offset_at_time`: here, or in the archive.

    The coroutine raises RequestRejected.
    """
    store = broker.store
    local = store.reader.offset_at_time(topic, queue_id, ms, upper=upper)
    if not broker.archive_reads.may_have_time(topic, queue_id, ms):
        return local
    low, high = store.reader.bounds(topic, queue_id)
    if upper and low < high and store.reader.store_time(topic, queue_id, local) in range(ms + 1):
        return local  # The last one so far is a local one.
    return _archived_at_time(broker, topic, queue_id, ms, local, upper=upper, owner=owner)


async def _archived_at_time(
    broker: Parts, topic: str, queue_id: int, ms: int, local: int, *, upper: bool, owner: str
) -> int:
    offset = await broker.archive_reads.offset_at_time(topic, queue_id, ms, upper=upper, owner=owner)
    return local if offset is None else offset


async def _when_found(frame: Frame, name: str, number: Coroutine[None, None, int]) -> Frame:
    return ok(frame, {name: str(await number)})


def earliest_store_time(broker: Parts, conn: Connection, frame: Frame) -> Frame | Coroutine[None, None, Frame]:
    header = QueueHeader.parse(frame)
    known_queue(broker, header.topic, header.queueId)
    first = broker.archive_reads.min_offset(header.topic, header.queueId)
    if first < broker.store.reader.min_offset(header.topic, header.queueId):
        owner = owners_of(conn)[1]
        store_time = broker.archive_reads.store_time(header.topic, header.queueId, first, owner)
        return _when_found(frame, "timestamp", store_time)
    return ok(frame, {"timestamp": str(broker.store.reader.store_time(header.topic, header.queueId, first))})
