"""Ends transactions (commit, rollback, undecided), and resumes the checks of a half message that was given up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from gantry_broker.broker.errors import RequestRejected
from gantry_broker.broker.handlers.requests import Result, ok
from gantry_broker.broker.handlers.retry import Parts as RetryParts
from gantry_broker.broker.handlers.retry import stored_record
from gantry_broker.broker.send.messages import copy_of
from gantry_broker.protocol.bad_field import BadField
from gantry_broker.protocol.codes import (
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    Prop,
    ResponseCode,
    SendStatus,
    SysFlag,
)
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import EndTransactionHeader, ResumeCheckHeader
from gantry_broker.protocol.message import parse_message_id, parse_properties
from gantry_broker.tasks import set_within

if TYPE_CHECKING:
    from gantry_broker.broker.transactions import Transactions
    from gantry_broker.remoting.connection import Connection

log = logging.getLogger(__name__)


WAIT_S = 3.0
"""Seconds that a decision waits until its half message is confirmed, and until a new leader knows all decisions."""


class Parts(RetryParts, Protocol):
    """What these functions use of a member."""

    transactions: Transactions


def end_transaction(broker: Parts, conn: Connection, frame: Frame) -> Result:
    """End a transaction. Clients send this request one-way, so the broker logs a refusal."""
    header = EndTransactionHeader.parse(frame)
    try:
        if broker.transactions.loaded.is_set() and header.commitLogOffset < broker.store.state.confirmed:
            return _end(broker, conn, frame, header)
    except RequestRejected as error:
        log.warning("end of a transaction refused: %s", error.remark)
        raise
    return _end_later(broker, conn, frame, header)


async def _end_later(broker: Parts, conn: Connection, frame: Frame, header: EndTransactionHeader) -> Frame | None:
    deadline = asyncio.get_running_loop().time() + WAIT_S
    await set_within(broker.transactions.loaded, WAIT_S)
    if not broker.transactions.loaded.is_set():
        # The half message may be committed already. The broker will ask its producer again.
        log.warning("end of a transaction refused: this master has not read all decisions yet")
        raise RequestRejected(
            ResponseCode.SYSTEM_BUSY, "this master has just taken over and has not read all decisions yet"
        )
    while broker.store.state.confirmed <= header.commitLogOffset < broker.store.log.end:
        if asyncio.get_running_loop().time() > deadline:
            break
        await asyncio.sleep(0.01)
    return _end(broker, conn, frame, header)


def _end(broker: Parts, conn: Connection, frame: Frame, header: EndTransactionHeader) -> Frame | None:
    kind = header.commitOrRollback
    if kind == SysFlag.TRANSACTION_NOT:
        return None  # Undecided: a check asks the producer later.
    if kind not in (SysFlag.TRANSACTION_COMMIT, SysFlag.TRANSACTION_ROLLBACK):
        raise BadField(
            "commitOrRollback",
            str(kind),
            f"{SysFlag.TRANSACTION_COMMIT} (commit), {SysFlag.TRANSACTION_ROLLBACK} (rollback) or 0",
        )
    half = stored_record(broker, int(header.commitLogOffset))
    if half.topic != TRANS_HALF_TOPIC:
        raise RequestRejected(
            ResponseCode.SYSTEM_ERROR, f"at commitLogOffset {header.commitLogOffset} is no half message"
        )
    if parse_properties(half.properties).get(Prop.PRODUCER_GROUP) != header.producerGroup:
        raise RequestRejected(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
    if half.queue_offset != header.tranStateTableOffset:
        raise RequestRejected(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
    transactions = broker.transactions
    if transactions.is_decided(half):
        return ok(frame)
    puts = [transactions.decision(half)]
    if kind == SysFlag.TRANSACTION_COMMIT:
        puts.insert(0, transactions.committed(half))
    broker.writer.append(puts)
    transactions.note_decided(half)

    broker.writer.appended(_answer_when_confirmed(conn, frame))
    return None


def resume_check(broker: Parts, conn: Connection, frame: Frame) -> Frame | None:
    """Restores a half message that was given up after its last check. Its checks are counted from 0 again."""
    header = ResumeCheckHeader.parse(frame)
    expected = f"the offset id of a message in {TRANS_CHECK_MAX_TIME_TOPIC}"
    try:
        _, _, phys = parse_message_id(header.msgId or "")
    except ValueError:
        raise BadField("msgId", header.msgId, expected) from None
    record = stored_record(broker, phys)
    props = parse_properties(record.properties)
    if record.topic != TRANS_CHECK_MAX_TIME_TOPIC or Prop.REAL_TOPIC not in props:
        raise BadField("msgId", header.msgId, f"{expected}, not in {record.topic},")
    props[Prop.TRANSACTION_CHECK_TIMES] = "0"
    broker.writer.append([copy_of(record, TRANS_HALF_TOPIC, 0, props=props)])
    broker.writer.appended(_answer_when_confirmed(conn, frame))
    return None


def _answer_when_confirmed(conn: Connection, frame: Frame) -> Callable[[SendStatus], None]:
    """Return a callback that answers the request once its records are confirmed, or are not in time."""

    def on_status(status: SendStatus) -> None:
        if not frame.is_oneway and not conn.closed:
            good = status is SendStatus.SEND_OK
            code = ResponseCode.SUCCESS if good else ResponseCode.SYSTEM_ERROR
            conn.send(Frame.response_to(frame, code, None if good else status.name))

    return on_status
