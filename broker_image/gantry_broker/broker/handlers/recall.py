"""RECALL_MESSAGE (5.x): takes back a timer message by the handle from the answer to its send."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from gantry_broker.broker.errors import RequestRejected
from gantry_broker.broker.handlers.requests import ok
from gantry_broker.broker.send.messages import build_put, timed, timer_window
from gantry_broker.protocol.codes import DEFAULT_REGION, Prop, ResponseCode, SendStatus
from gantry_broker.protocol.digits import whole_number
from gantry_broker.protocol.headers import RecallHeader
from gantry_broker.protocol.recall_handle import RecallHandle

if TYPE_CHECKING:
    from gantry_broker.broker.clock import Clock
    from gantry_broker.broker.log_writer import LogWriter
    from gantry_broker.broker.metadata.tables import Metadata
    from gantry_broker.config import BrokerConfig
    from gantry_broker.protocol.frame import Frame
    from gantry_broker.remoting.connection import Connection
    from gantry_broker.settings import BrokerSettings

TAG: Final = "_RECALL_TAG_"


class Parts(Protocol):
    """What these functions use of a member."""

    config: BrokerConfig
    settings: BrokerSettings
    clock: Clock
    writer: LogWriter
    meta: Metadata


async def recall(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    """Append the recall, which waits beside its message; see `delay.py`. Checks and texts are those of 5.5.0."""
    header = RecallHeader.parse(frame)
    if not broker.settings.recallMessageEnable:
        raise RequestRejected(ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden")
    if header.topic not in broker.meta.working.topics:
        raise RequestRejected(ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{header.topic[:255]}] not exist")
    try:
        handle = RecallHandle.decode(header.recallHandle)
    except ValueError as error:
        raise RequestRejected(ResponseCode.ILLEGAL_OPERATION, str(error)) from None
    if handle.topic != header.topic:
        raise RequestRejected(ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match")
    if handle.broker != broker.config.group:
        raise RequestRejected(ResponseCode.ILLEGAL_OPERATION, "recall failed, broker service not available")
    now, settings = broker.clock.unix_ms(), broker.settings
    due = whole_number(handle.due)
    if due is None or not now < due < now + settings.timerMaxDelaySec * 1_000:
        raise RequestRejected(ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid")
    props = {
        Prop.TAGS: TAG,
        Prop.TIMER_DEL_UNIQKEY: handle.key,
        Prop.UNIQ_CLIENT_MESSAGE_ID_KEYIDX: handle.key,
        Prop.PRODUCER_GROUP: header.producerGroup or "",
    }
    put = build_put(header.topic, 0, props, b"0", now, conn.peer_bytes)
    put = timed(put, props, due, now, timer_window(settings.fileReservedTime))
    done: asyncio.Future[SendStatus] = asyncio.get_running_loop().create_future()
    broker.writer.append([put])
    broker.writer.appended(lambda status: None if done.done() else done.set_result(status))
    if await done is not SendStatus.SEND_OK:
        raise RequestRejected(ResponseCode.SYSTEM_ERROR, "recall failed, execute error")
    return ok(frame, {"msgId": handle.key, "MSG_REGION": DEFAULT_REGION})
