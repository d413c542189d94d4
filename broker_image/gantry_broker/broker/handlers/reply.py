"""Request and reply: the broker pushes a consumer's reply to the requesting client (requests 324 to 326)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

from gantry_broker.broker.errors import RequestRejected
from gantry_broker.broker.metadata.tables import takes_sends
from gantry_broker.broker.metadata.topics import NOT_SENDABLE, topic_fault
from gantry_broker.broker.send.messages import (
    MessageIllegal,
    build_put,
    check_keys,
    check_properties,
    without_broker_properties,
)
from gantry_broker.broker.send.sender import check_sizes
from gantry_broker.protocol.codes import (
    DEFAULT_REGION,
    REPLY_TOPIC_SUFFIX,
    Perm,
    Prop,
    RequestCode,
    ResponseCode,
    SendStatus,
    SysFlag,
)
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import Long, PushReplyHeader, SendAnswer, SendHeader
from gantry_broker.protocol.message import parse_properties
from gantry_broker.remoting.errors import RemotingError
from gantry_broker.store.errors import StoreError

if TYPE_CHECKING:
    from gantry_broker.broker.clients import ClientTable
    from gantry_broker.broker.clock import Clock
    from gantry_broker.broker.health import MemberHealth
    from gantry_broker.broker.log_writer import LogWriter
    from gantry_broker.broker.metadata.creation import OnDemandCreation
    from gantry_broker.broker.metadata.tables import Metadata
    from gantry_broker.broker.role import RoleState
    from gantry_broker.config import BrokerConfig
    from gantry_broker.remoting.connection import Connection
    from gantry_broker.settings import BrokerSettings

PUSH_S: Final = 3.0


class Parts(Protocol):
    """What these functions use of a member."""

    config: BrokerConfig
    settings: BrokerSettings
    clock: Clock
    store_host: bytes
    writer: LogWriter
    role: RoleState
    health: MemberHealth
    meta: Metadata
    creation: OnDemandCreation
    clients: ClientTable


async def send_reply(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    """Pushes a reply, then stores it. The answer has the stored reply's ids; its code is the result of the push."""
    header = SendHeader.parse(frame)
    fault = topic_fault(header.topic)
    if fault is not None:
        raise RequestRejected(ResponseCode.SYSTEM_ERROR, f"the field topic: {fault}")
    if header.topic in NOT_SENDABLE:
        raise RequestRejected(ResponseCode.NO_PERMISSION, f"Sending message to topic[{header.topic}] is forbidden.")
    if not takes_sends(broker.settings.brokerPermission, broker.meta.working.marks):
        raise RequestRejected(
            ResponseCode.NO_PERMISSION, f"the broker[{broker.role.address}] sending message is forbidden"
        )
    check_sizes(frame, header, broker.settings.maxMessageSize)
    topic = broker.meta.working.topics.get(header.topic)
    if topic is None and header.topic == f"{broker.config.cluster}_{REPLY_TOPIC_SUFFIX}":
        topic = broker.creation.ensure_topic(header.topic, 1, Perm.READ | Perm.WRITE)
    if topic is None:
        raise RequestRejected(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first please!")
    if not topic.perm & Perm.WRITE:
        raise RequestRejected(ResponseCode.NO_PERMISSION, f"the topic[{topic.name}] sending message is forbidden")
    props = parse_properties(header.properties or "")
    text = without_broker_properties(header.properties or "", props)
    if header.sysFlag & SysFlag.TRANSACTION_MASK:
        raise MessageIllegal(
            f"the message is illegal: a reply cannot be part of a transaction (sysFlag {header.sysFlag})"
        )
    check_keys(props)
    check_properties(props, len(text.encode("utf-8", "replace")))
    code, remark = await _push(broker, conn, frame, header, dict(props))
    queue_id = header.queueId if 0 <= header.queueId < topic.write_queues else 0
    put = build_put(
        topic.name,
        queue_id,
        {**props, Prop.CLUSTER: broker.config.cluster},
        frame.body,
        header.bornTimestamp,
        conn.peer_bytes,
        flag=header.flag,
        sys_flag=header.sysFlag & ~0x30,
    )
    try:
        stored = broker.writer.append([put])[0]
    except StoreError as error:
        broker.health.store_failed(error)
        raise
    done: asyncio.Future[SendStatus] = asyncio.get_running_loop().create_future()
    broker.writer.appended(lambda status: None if done.done() else done.set_result(status))
    await done
    answer = SendAnswer(
        msgId=f"{broker.store_host.hex().upper()}{stored.phys_offset:016X}",
        queueId=queue_id,
        queueOffset=Long(stored.queue_offset),
        MSG_REGION=DEFAULT_REGION,
        TRACE_ON="true",
    )
    return Frame.response_to(frame, code, remark, answer.ext())


async def _push(
    broker: Parts, conn: Connection, frame: Frame, header: SendHeader, props: dict[str, str]
) -> tuple[int, str | None]:
    client_id = props.get(Prop.MESSAGE_REPLY_TO_CLIENT)
    if client_id is None:
        return int(ResponseCode.SYSTEM_ERROR), f"reply message properties[{Prop.MESSAGE_REPLY_TO_CLIENT}] is null"
    replies = f"{broker.config.cluster}_{REPLY_TOPIC_SUFFIX}"
    if header.topic != replies:  # Anybody may have the right to send to some other topic.
        return int(ResponseCode.NO_PERMISSION), (
            f"the field topic: {header.topic!r} has no replies, so nothing is pushed; a reply goes to {replies}"
        )
    client = broker.clients.find_client(client_id)
    if client is None:
        return int(ResponseCode.SYSTEM_ERROR), f"push reply message fail, channel of <{client_id[:200]}> not found."
    now = broker.clock.unix_ms()
    props[Prop.PUSH_REPLY_TIME] = str(now)
    pushed = PushReplyHeader(
        producerGroup=header.producerGroup,
        topic=header.topic,
        defaultTopic=header.defaultTopic,
        defaultTopicQueueNums=header.defaultTopicQueueNums,
        queueId=header.queueId,
        sysFlag=header.sysFlag,
        bornTimestamp=header.bornTimestamp,
        flag=header.flag,
        properties="\x02".join(f"{name}\x01{value}" for name, value in props.items()),
        reconsumeTimes=header.reconsumeTimes or 0,
        unitMode=bool(header.unitMode),
        bornHost=f"{conn.peer[0]}:{conn.peer[1]}",
        storeHost=broker.role.address,
        storeTimestamp=Long(now),
    )
    link: Any = client.conn
    try:
        answer = await link.request(
            Frame(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ext=pushed.ext(), body=frame.body), PUSH_S
        )
    except RemotingError as error:
        return int(ResponseCode.SYSTEM_ERROR), f"push reply message to {client_id[:200]} fail: {error}"
    if answer.code != ResponseCode.SUCCESS:
        return int(ResponseCode.SYSTEM_ERROR), f"push reply message to {client_id[:200]} fail: {answer.remark}"
    return int(ResponseCode.SUCCESS), None
