"""END_TRANSACTION: a half message is committed, rolled back, or left undecided."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from gantry_broker.broker.faults import Answer
from gantry_broker.protocol.codes import TRANS_HALF_TOPIC, Prop, RequestCode, ResponseCode, SendStatus, SysFlag
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import BadField, EndTransactionHeader
from gantry_broker.protocol.message import parse_properties

from .retry import stored_record
from .table import Result, handles, ok

if TYPE_CHECKING:
    from gantry_broker.broker.core import Broker
    from gantry_broker.remoting.connection import Connection

log = logging.getLogger(__name__)


WAIT_S = 3.0
"""How long a decision waits for its half message to be confirmed, and for a new master to know what is decided."""


@handles(RequestCode.END_TRANSACTION)
def end_transaction(broker: Broker, conn: Connection, frame: Frame) -> Result:
    """Clients send this one-way: a refusal is logged, since nobody may hear it."""
    header = EndTransactionHeader.parse(frame)
    try:
        if broker.transactions.loaded.is_set() and header.commitLogOffset < broker.store.confirmed:
            return _end(broker, conn, frame, header)
    except Answer as error:
        log.warning("end of a transaction refused: %s", error.remark)
        raise
    return _end_later(broker, conn, frame, header)


async def _end_later(broker: Broker, conn: Connection, frame: Frame, header: EndTransactionHeader) -> Frame | None:
    deadline = asyncio.get_running_loop().time() + WAIT_S
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(WAIT_S):
            await broker.transactions.loaded.wait()
    while broker.store.confirmed <= header.commitLogOffset < broker.store.end:
        if asyncio.get_running_loop().time() > deadline:
            break
        await asyncio.sleep(0.01)
    return _end(broker, conn, frame, header)


def _end(broker: Broker, conn: Connection, frame: Frame, header: EndTransactionHeader) -> Frame | None:
    kind = header.commitOrRollback
    if kind == SysFlag.TRANSACTION_NOT:
        return None  # Undecided: the producer is asked later.
    if kind not in (SysFlag.TRANSACTION_COMMIT, SysFlag.TRANSACTION_ROLLBACK):
        raise BadField(
            "commitOrRollback",
            str(kind),
            f"{SysFlag.TRANSACTION_COMMIT} (commit), {SysFlag.TRANSACTION_ROLLBACK} (rollback) or 0",
        )
    half = stored_record(broker, int(header.commitLogOffset))
    if half.topic != TRANS_HALF_TOPIC:
        raise Answer(ResponseCode.SYSTEM_ERROR, f"at commitLogOffset {header.commitLogOffset} is no half message")
    if parse_properties(half.properties).get(Prop.PRODUCER_GROUP) != header.producerGroup:
        raise Answer(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
    if half.queue_offset != header.tranStateTableOffset:
        raise Answer(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
    transactions = broker.transactions
    if transactions.is_decided(half):
        return ok(frame)
    puts = [transactions.decision(half)]
    if kind == SysFlag.TRANSACTION_COMMIT:
        puts.insert(0, transactions.committed(half))
    broker.append(puts)
    transactions.note_decided(half)

    def told(status: SendStatus) -> None:
        if not frame.is_oneway and not conn.closed:
            good = status is SendStatus.SEND_OK
            code = ResponseCode.SUCCESS if good else ResponseCode.SYSTEM_ERROR
            conn.send(Frame.response_to(frame, code, None if good else status.name))

    broker.appended(told)
    return None
