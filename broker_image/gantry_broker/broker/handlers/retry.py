"""CONSUMER_SEND_MSG_BACK: a message that a consumer failed on waits in a delay level, then goes to %RETRY%group.

After the group's last retry it goes to %DLQ%group instead. As `asyncConsumerSendMsgBack` of 4.9.7.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Protocol

from gantry_broker.admission import owners_of
from gantry_broker.broker.errors import RequestRejected
from gantry_broker.broker.handlers.requests import ok
from gantry_broker.broker.metadata.topics import dlq_topic, group_fault, retry_topic
from gantry_broker.broker.send.messages import BROKER_ONLY, copy_of, delayed
from gantry_broker.protocol.bad_field import BadField
from gantry_broker.protocol.codes import Perm, Prop, ResponseCode, SendStatus
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import SendBackHeader
from gantry_broker.protocol.message import Record, RecordError, parse_properties
from gantry_broker.store.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from gantry_broker.broker.archive_reads import ArchiveReads
    from gantry_broker.broker.clock import Clock
    from gantry_broker.broker.log_writer import LogWriter
    from gantry_broker.broker.metadata.creation import OnDemandCreation
    from gantry_broker.broker.metadata.tables import Metadata
    from gantry_broker.broker.role import RoleState
    from gantry_broker.broker.stats import Stats
    from gantry_broker.protocol.bodies import SubscriptionGroup
    from gantry_broker.remoting.connection import Connection
    from gantry_broker.settings import BrokerSettings
    from gantry_broker.store.store import MessageStore
    from gantry_broker.store.types import Put

log = logging.getLogger(__name__)

FIRST_LEVEL: Final = 3
"""The first retry waits in delay level 3 (10 s), the second in level 4, and so on."""


class Parts(Protocol):
    """What these functions use of a member."""

    settings: BrokerSettings
    clock: Clock
    store: MessageStore
    delay_levels: Sequence[int]
    writer: LogWriter
    archive_reads: ArchiveReads
    role: RoleState
    meta: Metadata
    creation: OnDemandCreation
    stats: Stats


def send_back(broker: Parts, conn: Connection, frame: Frame) -> Frame | Coroutine[None, None, Frame | None] | None:
    header = SendBackHeader.parse(frame)
    fault = group_fault(header.group)
    if fault is not None:
        raise RequestRejected(ResponseCode.SYSTEM_ERROR, f"the field group: {fault}")
    group = broker.meta.working.groups.get(header.group)
    if group is None:
        raise RequestRejected(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {header.group}"
        )
    if not broker.settings.brokerPermission & Perm.WRITE:
        raise RequestRejected(
            ResponseCode.NO_PERMISSION, f"the broker[{broker.role.address}] sending message is forbidden"
        )
    if group.retry_queues <= 0:
        return ok(frame)
    if broker.archive_reads.may_have_place(int(header.offset)):
        return _send_back_archived(broker, conn, frame, header, group)
    return _send_back(broker, conn, frame, header, group, stored_record(broker, int(header.offset)))


async def _send_back_archived(
    broker: Parts, conn: Connection, frame: Frame, header: SendBackHeader, group: SubscriptionGroup
) -> Frame | None:
    """Raise RequestRejected."""
    record = await broker.archive_reads.record(int(header.offset), owners_of(conn)[1])
    if not broker.role.leading:
        raise RequestRejected(ResponseCode.SERVICE_NOT_AVAILABLE, broker.role.refusal())
    return _send_back(broker, conn, frame, header, group, record)


def _send_back(
    broker: Parts,
    conn: Connection,
    frame: Frame,
    header: SendBackHeader,
    group: SubscriptionGroup,
    record: Record,
) -> Frame | None:
    props = parse_properties(record.properties)
    props.setdefault(Prop.RETRY_TOPIC, record.topic)
    props[Prop.WAIT_STORE_MSG_OK] = "false"
    props.setdefault(Prop.ORIGIN_MESSAGE_ID, record.offset_id)
    for name in (*BROKER_ONLY, Prop.DELAY_TIME_LEVEL):
        props.pop(name, None)
    limit = group.retry_max_times
    if header.maxReconsumeTimes is not None and header.maxReconsumeTimes >= 0:
        limit = header.maxReconsumeTimes
    if record.reconsume_times >= limit or header.delayLevel < 0:
        put = _dead_letter(broker, header.group, record, props)
    else:
        target = broker.creation.ensure_topic(
            retry_topic(header.group), max(group.retry_queues, 1), Perm.READ | Perm.WRITE
        )
        if not target.perm & Perm.WRITE:
            raise RequestRejected(ResponseCode.NO_PERMISSION, f"the topic[{target.name}] sending message is forbidden")
        level = header.delayLevel or FIRST_LEVEL + record.reconsume_times
        props[Prop.DELAY_TIME_LEVEL] = str(level)
        queue_id = record.phys_offset % max(target.write_queues, 1)
        try:
            put = copy_of(record, target.name, queue_id, props=props, reconsume_times=record.reconsume_times + 1)
            put = delayed(put, props, broker.delay_levels, broker.clock.unix_ms())
        except RecordError as error:  # An earlier release has stored the message.
            put = _set_aside(broker, header.group, record, error)
    if put.topic == dlq_topic(header.group):
        broker.stats.add("DLQ_PUT_NUMS", f"{record.topic}@{header.group}", 1)
    broker.writer.append([put])
    broker.stats.add("SNDBCK_PUT_NUMS", f"{record.topic}@{header.group}", 1)

    def on_status(status: SendStatus) -> None:
        if frame.is_oneway or conn.closed:
            return
        code = ResponseCode.SUCCESS if status is SendStatus.SEND_OK else ResponseCode.SYSTEM_ERROR
        conn.send(Frame.response_to(frame, code, None if status is SendStatus.SEND_OK else status.name))

    broker.writer.appended(on_status)
    return None


def _dead_letter(broker: Parts, group: str, record: Record, props: dict[str, str]) -> Put:
    props[Prop.DLQ_ORIGIN_TOPIC] = props[Prop.RETRY_TOPIC]
    props[Prop.DLQ_ORIGIN_MESSAGE_ID] = props[Prop.ORIGIN_MESSAGE_ID]
    try:
        return copy_of(record, _letters(broker, group), 0, props=props, reconsume_times=record.reconsume_times + 1)
    except RecordError as error:
        return _set_aside(broker, group, record, error)


def _set_aside(broker: Parts, group: str, record: Record, error: RecordError) -> Put:
    """Return a dead letter with the properties as they are: for more there is no room."""
    broker.stats.leave_aside("retry")
    log.warning("the message at %d cannot be retried, it is a dead letter of %s: %s", record.phys_offset, group, error)
    return copy_of(record, _letters(broker, group), 0, reconsume_times=record.reconsume_times + 1)


def _letters(broker: Parts, group: str) -> str:
    """Return the group's topic of dead letters."""
    return broker.creation.ensure_topic(dlq_topic(group), 1, Perm.READ | Perm.WRITE).name


def stored_record(broker: Parts, phys: int) -> Record:
    """Return the confirmed record at an offset of the log. Raises BadField and RequestRejected."""
    if phys < 0:
        raise BadField("offset", str(phys), "an offset of the commit log, 0 or more")
    try:
        return broker.store.reader.named_record(phys)
    except StoreError as error:
        raise RequestRejected(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {phys}: {error}") from None
