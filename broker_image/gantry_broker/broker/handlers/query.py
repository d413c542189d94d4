"""Messages by key, by the client's unique key and by offset id; entries of a consume queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import orjson

from gantry_broker.admission import owners_of
from gantry_broker.broker.archive_reads import ArchiveQuery
from gantry_broker.broker.errors import RequestRejected
from gantry_broker.broker.handlers.offsets import Parts as OffsetParts
from gantry_broker.broker.handlers.offsets import known_queue
from gantry_broker.broker.handlers.requests import ok
from gantry_broker.broker.handlers.retry import Parts as RetryParts
from gantry_broker.broker.handlers.retry import stored_record
from gantry_broker.broker.metadata.topics import topic_fault
from gantry_broker.protocol.bad_field import BadField
from gantry_broker.protocol.codes import GetStatus, ResponseCode
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import ConsumeQueueHeader, QueryMessageHeader, ViewMessageHeader
from gantry_broker.protocol.message import Record, decode_records, tags_hash

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from gantry_broker.broker.clients import ClientTable
    from gantry_broker.remoting.connection import Connection
    from gantry_broker.timeslice import TimeSlices

MAX_FOUND: Final = 64
MAX_BYTES: Final = 8 << 20
MAX_KEY: Final = 4_096
MAX_ENTRIES: Final = 512


class Parts(OffsetParts, RetryParts, Protocol):
    """What these functions use of a member."""

    clients: ClientTable
    slices: TimeSlices


def query_message(broker: Parts, conn: Connection, frame: Frame) -> Frame | Coroutine[None, None, Frame]:
    header = QueryMessageHeader.parse(frame)
    fault = topic_fault(header.topic, longest=255)
    if fault is not None:
        raise RequestRejected(ResponseCode.SYSTEM_ERROR, f"the field topic: {fault}")
    if not header.key or len(header.key) > MAX_KEY:
        raise BadField("key", header.key[:40], f"a text of 1 to {MAX_KEY} characters")
    unique = header.uniqueKeyQuery or header.indexType == "U"
    limit = MAX_FOUND if unique else min(max(header.maxNum, 1), MAX_FOUND)
    begin_ms, end_ms = int(header.beginTimestamp), int(header.endTimestamp)
    records = broker.store.reader.query(header.topic, header.key, limit, begin_ms, end_ms, unique, MAX_BYTES)
    complete = len(records) >= limit or (unique and bool(records))
    if not complete and (broker.archive_reads.may_have_older(begin_ms) or broker.store.reader.has_copies(header.topic)):
        return _with_older(broker, conn, frame, header, limit, unique, records)
    return _found(broker, frame, records)


async def _with_older(
    broker: Parts,
    conn: Connection,
    frame: Frame,
    header: QueryMessageHeader,
    limit: int,
    unique: bool,
    records: list[Record],
) -> Frame:
    """Add the messages that compaction has copied, and those that only the archive has. Raises RequestRejected."""
    reader, begin_ms, end_ms = broker.store.reader, int(header.beginTimestamp), int(header.endTimestamp)
    copied: list[Record] = []
    room = MAX_BYTES - sum(record.size for record in records)
    if not unique:
        async for record in broker.slices.sliced(reader.copies(header.topic, header.key, begin_ms, end_ms)):
            if record is not None and room > 0:
                copied.append(record)
                room -= record.size
    records = [*records, *sorted(copied, key=lambda record: -record.store_ms)][:limit]
    if len(records) < limit and broker.archive_reads.may_have_older(begin_ms):
        older = await broker.archive_reads.query(
            header.topic, header.key, limit - len(records), begin_ms, end_ms, unique, room, owners_of(conn)[1]
        )
        places = {record.phys_offset for record in records}
        records += [r for r in older if r.phys_offset not in places and not reader.is_replaced(r)]
    return _found(broker, frame, records)


def _found(broker: Parts, frame: Frame, records: list[Record]) -> Frame:
    """Return the answer to a query. Raises RequestRejected."""
    if not records:
        raise RequestRejected(ResponseCode.QUERY_NOT_FOUND, "can not find message, maybe time range not correct")
    body = bytearray()
    for record in records:
        if len(body) + record.size > MAX_BYTES:
            break
        body += record.encode()
    ext = {
        "indexLastUpdateTimestamp": str(broker.store.state.last_store_ms),
        "indexLastUpdatePhyoffset": str(broker.store.state.confirmed),
    }
    return ok(frame, ext, bytes(body))


def view_message(broker: Parts, conn: Connection, frame: Frame) -> Frame | Coroutine[None, None, Frame]:
    header = ViewMessageHeader.parse(frame)
    if broker.archive_reads.may_have_place(int(header.offset)):
        return _view_archived(broker, conn, frame, int(header.offset))
    return ok(frame, body=stored_record(broker, int(header.offset)).encode())


async def _view_archived(broker: Parts, conn: Connection, frame: Frame, phys: int) -> Frame:
    record = await broker.archive_reads.record(phys, owners_of(conn)[1])
    if broker.store.reader.is_replaced(record):
        raise RequestRejected(
            ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {phys}: a newer message has its key"
        )
    return ok(frame, body=record.encode())


async def query_consume_queue(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    """Return entries of a queue, and a group's subscription, for mqadmin's `queryCq`.

    As 4.9.7 without extended queues: `eval` is always false.
    """
    header = ConsumeQueueHeader.parse(frame)
    known_queue(broker, header.topic, header.queueId)
    if header.index < 0 or not 0 < header.count <= MAX_ENTRIES:
        name = "index" if header.index < 0 else "count"
        raise BadField(name, str(getattr(header, name)), f"an index of 0 or more and a count from 1 to {MAX_ENTRIES}")
    store, reads = broker.store, broker.archive_reads
    members = broker.clients.consumers.get(header.consumerGroup or "")
    subscription = members.subscriptions.get(header.topic) if members is not None else None
    filter_data = "null" if header.consumerGroup else None
    if header.consumerGroup and subscription is None:
        filter_data = f"{header.consumerGroup}@{header.topic} is not online!"
    entries = []
    offset, left = int(header.index), header.count
    while left > 0:
        await broker.slices.grant()
        got = store.reader.get(header.topic, header.queueId, offset, left, 1 << 20)
        if got.status == GetStatus.OFFSET_TOO_SMALL and reads.may_have(header.topic, header.queueId, offset):
            read = ArchiveQuery(header.topic, header.queueId, offset, left, 1 << 20)
            got = await reads.get(read, owners_of(conn)[1])
        records = decode_records(got.data)
        if not records:
            break
        for record in records:
            entry = {
                "physicOffset": record.phys_offset,
                "physicSize": record.size,
                "tagsCode": tags_hash(record.tags or ""),
                "eval": False,
            }
            entries.append(entry)
        left -= len(records)
        offset = records[-1].queue_offset + 1
    body = {
        "subscriptionData": subscription.data.to_json() if subscription is not None else None,
        "filterData": filter_data,
        "queueData": entries,
        "maxQueueIndex": store.reader.max_offset(header.topic, header.queueId),
        "minQueueIndex": reads.min_offset(header.topic, header.queueId),
    }
    return ok(frame, body=orjson.dumps(body))
