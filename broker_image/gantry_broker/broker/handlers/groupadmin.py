"""Consumer groups for administrators: configuration, members, progress, offsets."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from gantry_broker.admission import owners_of
from gantry_broker.broker.clients import Client, ConsumerGroup, Link
from gantry_broker.broker.errors import RequestRejected
from gantry_broker.broker.handlers.offsets import Parts as OffsetParts
from gantry_broker.broker.handlers.offsets import offset_at_time
from gantry_broker.broker.handlers.requests import configurations, json_body, json_object, ok
from gantry_broker.broker.metadata.tables import offset_key, position
from gantry_broker.broker.metadata.topics import group_fault
from gantry_broker.protocol import fastjson
from gantry_broker.protocol.bad_field import BadField
from gantry_broker.protocol.bodies import SubscriptionData, SubscriptionGroup
from gantry_broker.protocol.codes import RETRY_PREFIX, RequestCode, ResponseCode
from gantry_broker.protocol.fastjson import MessageQueue
from gantry_broker.protocol.frame import CREDENTIALS, Frame
from gantry_broker.protocol.headers import (
    BrokerConsumeStatsHeader,
    CloneOffsetHeader,
    ConsumeDirectlyHeader,
    ConsumerConnectionsHeader,
    ConsumerStatusHeader,
    ConsumeStatsHeader,
    ConsumeTimeSpanHeader,
    CorrectionOffsetHeader,
    DeleteGroupHeader,
    GroupHeader,
    ProducerGroupHeader,
    ResetOffsetHeader,
    RunningInfoHeader,
    SubscriptionOfGroupHeader,
)
from gantry_broker.protocol.message import parse_message_id
from gantry_broker.protocol.offset_tables import ConsumeOffset, consume_stats_to_json
from gantry_broker.remoting.errors import RemotingError
from gantry_broker.store.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gantry_broker.broker.clients import ClientTable
    from gantry_broker.broker.clock import Clock
    from gantry_broker.broker.metadata.changes import MetadataChanges
    from gantry_broker.broker.pop.service import PopService
    from gantry_broker.broker.stats import Stats
    from gantry_broker.config import BrokerConfig
    from gantry_broker.remoting.connection import Connection
    from gantry_broker.timeslice import TimeSlices

log = logging.getLogger(__name__)

ASK_S: Final = 5.0
QUEUES_AT_ONCE: Final = 100
"""Queues of a table that one step writes."""
OFFSETS_AT_ONCE: Final = 4_096
"""Offsets in one record of a clone, approximately."""
MAX_ANSWER: Final = 8 << 20
"""Bytes of an answer about all groups. A client takes frames of 16 MiB."""


class Parts(OffsetParts, Protocol):
    """What these functions use of a member."""

    config: BrokerConfig
    clock: Clock
    changes: MetadataChanges
    clients: ClientTable
    next_opaque: Callable[[], int]
    pop: PopService
    stats: Stats
    slices: TimeSlices


def checked_group(config: SubscriptionGroup) -> SubscriptionGroup:
    fault = group_fault(config.name)
    if fault is not None:
        raise RequestRejected(ResponseCode.SYSTEM_ERROR, f"the field groupName: {fault}")
    return config


async def create_group(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    config = checked_group(SubscriptionGroup.from_json(json_body(frame, "subscriptionGroupConfig")))
    broker.creation.check_limits(groups=[config.name], on_demand=False)
    await broker.changes.append_and_wait({"groups": [config.to_json()]})
    return ok(frame)


async def create_groups(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    items = configurations(frame, "group")
    groups = [checked_group(SubscriptionGroup.from_json(item)) for item in items]
    broker.creation.check_limits(groups=[g.name for g in groups], on_demand=False)
    await broker.changes.append_and_wait({"groups": [g.to_json() for g in groups]})
    return ok(frame)


async def all_groups(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    tables = broker.meta.working
    version = orjson.dumps(tables.group_version.to_json())
    table = await json_object(broker.slices, tables.groups, SubscriptionGroup.to_json)
    return ok(frame, body=b'{"dataVersion":' + version + b',"subscriptionGroupTable":' + table + b"}")


def group_config(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    name = GroupHeader.parse(frame).group
    config = broker.meta.working.groups.get(name)
    if config is None:
        raise RequestRejected(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"No group in this broker. group: {name[:255]}"
        )
    return ok(frame, body=orjson.dumps(config.to_json()))


async def delete_group(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    header = DeleteGroupHeader.parse(frame)
    fault = group_fault(header.groupName)
    if fault is not None:
        raise RequestRejected(ResponseCode.SYSTEM_ERROR, f"the field groupName: {fault}")
    change: dict[str, Any] = {"dropGroups": [header.groupName]}
    if header.removeOffset or header.cleanOffset:
        tail = "@" + header.groupName
        change["dropOffsets"] = [key for key in broker.meta.working.offsets if key.endswith(tail)]
    await broker.changes.append_and_wait(change)
    return ok(frame)


# ---- members


def consumer_connections(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    header = ConsumerConnectionsHeader.parse(frame)
    members = broker.clients.consumers.get(header.consumerGroup)
    proxied = broker.clients.proxied.of_group(header.consumerGroup)
    if members is None and not proxied:
        raise RequestRejected(
            ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{header.consumerGroup[:255]}] not online"
        )
    topics = {topic: expression for client in proxied for topic, expression in client.topics.items()}
    subscriptions = {topic: SubscriptionData(topic, expression).to_json() for topic, expression in topics.items()}
    if members is None:
        push = any(client.push for client in proxied)
        members = ConsumerGroup(header.consumerGroup, "CONSUME_PASSIVELY" if push else "CONSUME_ACTIVELY")
    body = {
        "connectionSet": [
            *(client.connection().to_json() for client in members.clients.values()),
            *(client.connection() for client in proxied),
        ],
        "consumeFromWhere": members.consume_from,
        "consumeType": members.consume_type,
        "messageModel": members.message_model,
        "subscriptionTable": subscriptions
        | {topic: sub.data.to_json() for topic, sub in members.subscriptions.items()},
    }
    return ok(frame, body=orjson.dumps(body))


def producer_connections(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    header = ProducerGroupHeader.parse(frame)
    members = broker.clients.producers.get(header.producerGroup)
    if not members:
        raise RequestRejected(ResponseCode.SYSTEM_ERROR, f"the producer group[{header.producerGroup[:255]}] not exist")
    return ok(frame, body=orjson.dumps({"connectionSet": [c.connection().to_json() for c in members.values()]}))


async def all_producers(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    now, unix = broker.clock.now_ms(), broker.clock.unix_ms()

    def to_json(members: dict[Link, Client]) -> list[dict[str, Any]]:
        return [
            {
                "clientId": c.client_id,
                "remoteIP": f"/{c.address}",  # as Java writes an address
                "language": c.language,
                "version": c.version,
                "lastUpdateTimestamp": unix - (now - c.last_ms),
            }
            for c in members.values()
        ]

    return ok(frame, body=b'{"data":' + await json_object(broker.slices, broker.clients.producers, to_json) + b"}")


async def running_info(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    header = RunningInfoHeader.parse(frame)
    return await _ask_client(broker, frame, header.consumerGroup, header.clientId)


async def consume_directly(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    """Let a client consume a record, and return the result."""
    header = ConsumeDirectlyHeader.parse(frame)
    body = b""
    if header.msgId:
        try:
            _, _, phys = parse_message_id(header.msgId)
            archived = broker.archive_reads.may_have_place(phys)
            reads, reader = broker.archive_reads, broker.store.reader
            record = await reads.record(phys, owners_of(conn)[1]) if archived else reader.named_record(phys)
            body = record.encode()
        except (ValueError, StoreError) as error:
            raise BadField("msgId", header.msgId[:80], f"the id of a message of this broker ({error})") from None
    return await _ask_client(broker, frame, header.consumerGroup, header.clientId, body)


async def _ask_client(broker: Parts, frame: Frame, group: str, client_id: str | None, body: bytes = b"") -> Frame:
    members = broker.clients.consumers.get(group)
    client = None
    if members is not None:
        client = members.find(client_id) if client_id else next(iter(members.clients.values()), None)
    if client is None:
        if any(client_id in (None, "", one.client_id) for one in broker.clients.proxied.of_group(group)):
            raise RequestRejected(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer <{group[:255]}> <{(client_id or '')[:255]}> speaks gRPC, which has no such request",
            )
        raise RequestRejected(
            ResponseCode.SYSTEM_ERROR, f"The Consumer <{group[:255]}> <{(client_id or '')[:255]}> not online"
        )
    link: Any = client.conn
    try:
        ext = {name: value for name, value in frame.ext.items() if name not in CREDENTIALS}
        answer: Frame = await link.request(Frame(frame.code, ext=ext, body=body), ASK_S)
    except RemotingError as error:
        raise RequestRejected(
            ResponseCode.CONSUME_MSG_TIMEOUT, f"consumer <{group}> <{client.client_id}> did not answer: {error}"
        ) from None
    return Frame.response_to(frame, answer.code, answer.remark, dict(answer.ext), answer.body)


# ---- progress and offsets


async def progress(broker: Parts, group: str, topic: str) -> dict[MessageQueue, ConsumeOffset]:
    """Return a group's offsets in all queues of a topic: where it goes on, by the rule of all lags."""
    config = broker.meta.working.topics.get(topic)
    if config is None:
        return {}
    table = {}
    offsets = broker.meta.working.offsets.get(offset_key(topic, group), {})
    popped = {queue.queue_id: queue.next_offset for queue in broker.pop.in_flight(group, topic)}
    async for queue_id in broker.slices.sliced(range(config.read_queues)):
        low, high = broker.archive_reads.bounds(topic, queue_id)
        at = position(offsets, queue_id, low, high)
        last = broker.store.reader.store_time(topic, queue_id, at - 1) if at > 0 else 0
        table[MessageQueue(topic, broker.config.group, queue_id)] = ConsumeOffset(
            high, at, max(last, 0), max(popped.get(queue_id, 0), at)
        )
    return table


def _topics_of(broker: Parts, group: str) -> list[str]:
    return sorted(set(broker.meta.working.topics_of_group(group)))


async def consume_stats(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    header = ConsumeStatsHeader.parse(frame)
    topics = [header.topic] if header.topic else _topics_of(broker, header.consumerGroup)
    table: dict[MessageQueue, ConsumeOffset] = {}
    tps = 0.0
    for topic in topics:
        table.update(await progress(broker, header.consumerGroup, topic))
        tps += broker.stats.tps("GROUP_GET_NUMS", f"{topic}@{header.consumerGroup}", broker.clock.now_ms())
    return ok(frame, body=await _consume_stats_body(broker, table, tps))


async def _consume_stats_body(broker: Parts, table: dict[MessageQueue, ConsumeOffset], tps: float) -> bytes:
    """Encode the table in slices: it may have very many queues, and each key is encoded alone."""
    parts = []
    items = list(table.items())
    async for start in broker.slices.sliced(range(0, len(items), QUEUES_AT_ONCE)):
        part = consume_stats_to_json(dict(items[start : start + QUEUES_AT_ONCE]), tps)["offsetTable"]
        parts.append(fastjson.dumps(part)[1:-1])
    head = fastjson.dumps(consume_stats_to_json({}, tps))
    return head.replace(b'"offsetTable":{}', b'"offsetTable":{' + b",".join(parts) + b"}", 1)


async def broker_consume_stats(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    header = BrokerConsumeStatsHeader.parse(frame)
    stats = []
    size = total = 0
    topics_of: dict[str, list[str]] = {}
    async for pairs in broker.slices.sliced(broker.meta.working.pairs_in_parts()):
        for group, topic in pairs:
            topics_of.setdefault(group, []).append(topic)
    for group in sorted(broker.meta.working.groups):
        rows = []
        for topic in sorted(topics_of.get(group, ())):
            config = broker.meta.working.topics.get(topic)
            if config is None or (header.isOrder and not config.order):
                continue
            table = await progress(broker, group, topic)
            total += sum(max(o.broker_offset - o.consumer_offset, 0) for o in table.values())
            tps = broker.stats.tps("GROUP_GET_NUMS", f"{topic}@{group}", broker.clock.now_ms())
            rows.append(await _consume_stats_body(broker, table, tps))
            size += len(rows[-1])
            if size > MAX_ANSWER:
                raise RequestRejected(
                    ResponseCode.SYSTEM_ERROR,
                    f"the answer would have over {MAX_ANSWER} bytes, which is the limit: ask for each group alone",
                )
        stats.append(b"{" + fastjson.dumps(group) + b":[" + b",".join(rows) + b"]}")
    head = fastjson.dumps({"brokerAddr": broker.role.address, "consumeStatsList": [], "totalDiff": total})
    body = head.replace(b'"consumeStatsList":[]', b'"consumeStatsList":[' + b",".join(stats) + b"]", 1)
    return ok(frame, body=body)


def topics_by_consumer(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    name = GroupHeader.parse(frame).group
    return ok(frame, body=orjson.dumps({"topicList": _topics_of(broker, name)}))


def subscription_by_consumer(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    header = SubscriptionOfGroupHeader.parse(frame)
    group, topic = header.group, header.topic
    members = broker.clients.consumers.get(group)
    subscription = members.subscriptions.get(topic) if members is not None else None
    data = subscription.data.to_json() if subscription is not None else None
    return ok(frame, body=orjson.dumps({"group": group, "topic": topic, "subscriptionData": data}))


async def consume_time_span(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    header = ConsumeTimeSpanHeader.parse(frame)
    config = broker.meta.working.topics.get(header.topic)
    if config is None:
        raise RequestRejected(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic[:255]}] not exist")
    store = broker.store
    spans = []
    async for queue_id in broker.slices.sliced(range(max(config.write_queues, config.read_queues))):
        low, high = store.reader.bounds(config.name, queue_id)
        at = broker.meta.working.offset(config.name, header.group, queue_id)
        consumed = store.reader.store_time(config.name, queue_id, at - 1) if at > 0 else -1
        first = store.reader.store_time(config.name, queue_id, low)
        delay = (
            max(broker.clock.unix_ms() - store.reader.store_time(config.name, queue_id, at), 0) if 0 <= at < high else 0
        )
        spans.append(
            {
                "messageQueue": {"brokerName": broker.config.group, "queueId": queue_id, "topic": config.name},
                "minTimeStamp": first,
                "maxTimeStamp": store.reader.store_time(config.name, queue_id, high - 1),
                "consumeTimeStamp": consumed if consumed > 0 else first,
                "delayTime": delay,
            }
        )
    return ok(frame, body=orjson.dumps({"consumeTimeSpanSet": spans}))


async def correction_offset(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    """Return the smallest offset that any group has in each queue. Groups in `filterGroups` do not count."""
    header = CorrectionOffsetHeader.parse(frame)
    skipped = set((header.filterGroups or "").split(","))
    tables = broker.meta.working
    lowest: dict[int, int] = {}
    async for group in broker.slices.sliced(tables.groups_of_topic(header.topic)):
        if group in skipped:
            continue
        for queue_id, offset in tables.offsets.get(f"{header.topic}@{group}", {}).items():
            if offset >= broker.archive_reads.min_offset(header.topic, queue_id):
                lowest[queue_id] = min(lowest.get(queue_id, offset), offset)
    if header.compareGroup:
        for queue_id, offset in tables.offsets.get(f"{header.topic}@{header.compareGroup}", {}).items():
            lowest[queue_id] = offset if lowest.get(queue_id, offset) > offset else -1
    return ok(frame, body=fastjson.dumps({"correctionOffsets": lowest}))


async def clone_offsets(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    """Set the destination group's offsets to those of the source group, in one topic or in all of its topics."""
    header = CloneOffsetHeader.parse(frame)
    fault = group_fault(header.destGroup)
    if fault is not None:
        raise RequestRejected(ResponseCode.SYSTEM_ERROR, f"the field destGroup: {fault}")
    tables = broker.meta.working
    topics = [header.topic] if header.topic else tables.topics_of_group(header.srcGroup)
    offsets: dict[str, dict[str, int]] = {}
    more = 0
    async for topic in broker.slices.sliced(topics):
        if topic not in tables.topics or topic.startswith(RETRY_PREFIX):
            continue
        members = broker.clients.consumers.get(header.srcGroup)
        if members is not None and not header.offline and topic not in members.subscriptions:
            continue
        queues = tables.offsets.get(f"{topic}@{header.srcGroup}")
        if queues:
            key = f"{topic}@{header.destGroup}"
            present = tables.offsets.get(key, {})
            more += sum(queue not in present for queue in queues)
            offsets[key] = {str(q): o for q, o in queues.items()}
    owner = owners_of(conn)[1]
    if fault := broker.meta.no_room_for_offsets(offsets, more, owner):
        raise RequestRejected(ResponseCode.SYSTEM_ERROR, fault)
    part: dict[str, dict[str, int]] = {}
    size = 0
    for number, (key, cloned) in enumerate(offsets.items(), 1):
        part[key] = cloned
        size += len(cloned)
        if size >= OFFSETS_AT_ONCE or number == len(offsets):
            await broker.slices.grant()
            _check_room(broker, owner, part)  # Others have asked meanwhile.
            await broker.changes.append_and_wait({"offsets": part}, owner)
            part, size = {}, 0
    return ok(frame)


def _check_room(broker: Parts, owner: str, offsets: Mapping[str, Mapping[str, int]]) -> None:
    """Raise RequestRejected if offsets, by pair of topic and group, have no room, or no share for who asks."""
    present = broker.meta.working.offsets
    more = sum(int(queue) not in present.get(key, {}) for key, queues in offsets.items() for queue in queues)
    if fault := broker.meta.no_room_for_offsets(offsets, more, owner):
        raise RequestRejected(ResponseCode.SYSTEM_ERROR, fault)


async def reset_offsets(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    """Set a group's offsets by time, and notify its members (request 220), which drop their messages in flight.

    As 4.9.7: the broker refuses a group that has no offset in a queue of the topic, and a group without a member;
    `mqadmin` then writes the offsets itself. The broker alone carries out a request that names a queue or an offset
    (5.x).
    """
    header = ResetOffsetHeader.parse(frame)
    config = broker.meta.working.topics.get(header.topic)
    if config is None:
        raise RequestRejected(
            ResponseCode.SYSTEM_ERROR,
            f"[reset-offset] reset offset failed, no topic in this broker. topic={header.topic[:255]}",
        )
    queues = range(config.write_queues)
    if header.queueId is not None and header.queueId >= 0:
        if header.queueId >= config.write_queues:
            raise BadField("queueId", str(header.queueId), f"a queue below {config.write_queues}")
        queues = range(header.queueId, header.queueId + 1)
    members = broker.clients.consumers.get(header.group)
    server_side = header.queueId is not None
    if not server_side and any(broker.meta.working.offset(config.name, header.group, q) < 0 for q in queues):
        raise RequestRejected(ResponseCode.SYSTEM_ERROR, f"THe consumer group <{header.group[:255]}> not exist")
    if members is None and not server_side:
        raise RequestRejected(
            ResponseCode.CONSUMER_NOT_ONLINE,
            f"Consumer not online, so can not reset offset, Group: {header.group} Topic: {header.topic} "
            f"Timestamp: {header.timestamp}",
        )
    table: dict[MessageQueue, int] = {}
    owner = owners_of(conn)[1]
    async for queue_id in broker.slices.sliced(queues):
        now = broker.meta.working.offset(header.topic, header.group, queue_id)
        target = await _reset_to(broker, header, queue_id, owner)
        if now < 0 or header.isForce or target <= now or header.timestamp < 0 or server_side:
            table[MessageQueue(header.topic, broker.config.group, queue_id)] = target
        else:
            table[MessageQueue(header.topic, broker.config.group, queue_id)] = now
    change = {f"{header.topic}@{header.group}": {str(mq.queue_id): offset for mq, offset in table.items()}}
    _check_room(broker, owner, change)
    await broker.changes.append_and_wait({"offsets": change}, owner)
    body = fastjson.dumps({"offsetTable": table})
    if members is not None:
        ext = {
            "topic": header.topic,
            "group": header.group,
            "timestamp": str(header.timestamp),
            "isForce": "true" if header.isForce else "false",
        }
        as_list = orjson.dumps({"offsetTable": [_as_item(mq, offset) for mq, offset in table.items()]})
        async for client in broker.slices.sliced(list(members.clients.values())):
            table_body = as_list if client.language in ("CPP", "GO") else body
            client.conn.send(
                Frame(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, broker.next_opaque(), 2, dict(ext), table_body)
            )
    return ok(frame, body=body)


def _as_item(queue: MessageQueue, offset: int) -> dict[str, Any]:
    return {"brokerName": queue.broker, "queueId": queue.queue_id, "topic": queue.topic, "offset": offset}


async def _reset_to(broker: Parts, header: ResetOffsetHeader, queue_id: int, owner: str) -> int:
    if header.queueId is not None and header.offset is not None and header.offset != -1:
        low = broker.archive_reads.min_offset(header.topic, queue_id)
        high = broker.store.reader.max_offset(header.topic, queue_id)
        if not low <= header.offset <= high:
            raise RequestRejected(
                ResponseCode.SYSTEM_ERROR,
                f"Target offset {header.offset} not in consume queue range [{low}-{high}]",
            )
        return int(header.offset)
    if header.timestamp < 0:
        return broker.store.reader.max_offset(header.topic, queue_id)
    offset = offset_at_time(broker, header.topic, queue_id, int(header.timestamp), owner=owner)
    return offset if isinstance(offset, int) else await offset


MAX_STATUS: Final = 64 * 1024
"""Bytes of one consumer's answer to request 221: some 600 queues, read in 7 ms. The broker leaves out a longer answer.
"""
MAX_STATUSES: Final = 1024 * 1024
"""Bytes of all consumers' answers. The broker leaves out the rest."""


async def consumer_status(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    """Asks the group's members for their offsets (request 221)."""
    header = ConsumerStatusHeader.parse(frame)
    members = broker.clients.consumers.get(header.group)
    if members is None:
        raise RequestRejected(
            ResponseCode.SYSTEM_ERROR, f"No Any Consumer online in the consumer group: [{header.group[:255]}]"
        )
    table: dict[str, Any] = {}
    room = MAX_STATUSES
    for client in list(members.clients.values()):
        if header.clientAddr and header.clientAddr != client.client_id:
            continue
        link: Any = client.conn
        ext = {"topic": header.topic, "group": header.group}
        try:
            answer = await link.request(Frame(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ext=ext), ASK_S)
        except RemotingError:
            continue
        size = len(answer.body)
        if answer.code == ResponseCode.SUCCESS and 0 < size <= min(MAX_STATUS, room):
            room -= size
            await broker.slices.grant()
            try:
                value = fastjson.loads(answer.body, MAX_STATUS)
            except fastjson.JsonError as error:
                log.info("%s: what client %s consumes cannot be read: %s", header.group, client.client_id, error)
                continue
            if isinstance(value, dict):
                table[client.client_id] = value.get("messageQueueTable", {})
    return ok(frame, body=fastjson.dumps({"consumerTable": table, "messageQueueTable": {}}))


async def all_offsets(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    table = await json_object(broker.slices, broker.meta.working.offsets, dict)
    return ok(frame, body=b'{"offsetTable":' + table + b"}")


def all_delay(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    return ok(frame, body=fastjson.dumps({"offsetTable": broker.meta.working.delay}))
