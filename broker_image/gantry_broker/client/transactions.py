"""Transactional messages: a half message, the application's own work, then commit or rollback.

A broker without a decision asks back (`check`), also another client of the same group. END_TRANSACTION has no answer:
if it is lost, the broker asks.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from gantry_broker.client.message import Message, ReceivedMessage, SendResult, check_topic
from gantry_broker.client.producer import Producer
from gantry_broker.client.session import Session
from gantry_broker.client.trace import ended, now_ms
from gantry_broker.client.transaction_state import Check, TransactionState
from gantry_broker.protocol.bad_field import BadField
from gantry_broker.protocol.codes import Prop, RequestCode, ResponseCode, SendStatus, SysFlag
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import CheckTransactionHeader, EndTransactionHeader, Long
from gantry_broker.protocol.message import RecordError, decode_record, parse_message_id
from gantry_broker.remoting.connection import Connection
from gantry_broker.remoting.errors import RemotingError

if TYPE_CHECKING:
    from gantry_broker.client.grpc_endpoint import GrpcSender

log = logging.getLogger(__name__)


LocalWork = Callable[[Message, str], Awaitable[TransactionState]]
"""(message, transaction id): does the work that the message belongs to."""


class TransactionProducer(Producer):
    """A producer whose messages become visible only after the application's own work is done."""

    def __init__(
        self,
        name_servers: str | Sequence[str] | Session,
        group: str,
        check: Check,
        *,
        topics: Sequence[str] = (),
        **options: Any,
    ) -> None:
        """Options are Producer's. `check` gets the messages of any client of the group. By gRPC brokers ask by the
        topic, not by the group: a producer is asked about the topics to which it has sent, and from its start on about
        `topics`.
        """
        super().__init__(name_servers, group, **options)
        self._check = check
        if self._grpc is not None:
            self._grpc.check = check
            for topic in topics:
                check_topic(topic)
                self._grpc.know(topic)

    async def start(self) -> None:
        if self._grpc is not None:
            await super().start()
            return
        self.session.checks[self.group] = self._check
        self.session.remoting.register(RequestCode.CHECK_TRANSACTION_STATE, self._on_check)
        await super().start()
        await self.session.send_heartbeats()

    async def close(self) -> None:
        await super().close()
        if self._grpc is not None:
            return
        self.session.checks.pop(self.group, None)

    async def send_in_transaction(
        self, message: Message, work: LocalWork, *, timeout: float | None = None
    ) -> tuple[SendResult, TransactionState]:
        """Send a half message, do the work, and commit or roll back by its result.

        When the work raises, the check decides later. A half message without SEND_OK is rolled back, and the work is
        not done. Raises as `send`.
        """
        if self._grpc is not None:
            return await self._send_half_by_grpc(self._grpc, message, work, timeout or self.timeout)
        extra = {Prop.TRANSACTION_PREPARED: "true", Prop.PRODUCER_GROUP: self.group}
        connected = set(self.session.remoting.addresses)
        async with self._watched([message], half=True) as watch:
            frame, unique_key = self._frame(message, extra | watch.properties, SysFlag.TRANSACTION_PREPARED)
            result = await self._deliver(frame, message, unique_key, None, None, None, timeout or self.timeout)
            watch.result = result
        address = await self.session.master(result.queue.broker, message.topic)
        if address not in connected:
            await self.session.send_heartbeats([address])  # so that the broker knows this client and can ask it
        transaction_id = result.transaction_id or unique_key
        state = await _outcome(result, message, transaction_id, work)
        header = EndTransactionHeader(
            self.group,
            Long(result.queue_offset),
            Long(parse_message_id(result.offset_id)[2]),
            state.value,
            False,
            unique_key,
            transaction_id,
        )
        ext = header.ext() | {"bname": result.queue.broker, "topic": message.topic}
        try:
            await self.session.remoting.oneway(address, Frame(RequestCode.END_TRANSACTION, ext=ext))
        except RemotingError as error:
            log.warning("end of transaction %s was not sent; the broker will ask: %s", transaction_id, error)
        if self._trace is not None:
            self._trace.add([ended(message, unique_key, transaction_id, state, self.group, now_ms(), address)])
        return result, state

    async def _send_half_by_grpc(
        self, sender: GrpcSender, message: Message, work: LocalWork, timeout: float
    ) -> tuple[SendResult, TransactionState]:
        async with self._watched([message], half=True) as watch:
            half = sender.wire_message(message, None, watch.properties, half=True)
            result = watch.result = await sender.send([half], timeout)
        state = await _outcome(result, message, result.transaction_id, work)
        await sender.end_transaction(message.topic, result.message_id, result.transaction_id, state)
        return result, state

    async def _on_check(self, conn: Connection, frame: Frame) -> Frame | None:
        try:
            header = CheckTransactionHeader.parse(frame)
            message = ReceivedMessage(decode_record(frame.body), frame.ext.get("bname", ""))
        except (BadField, RecordError) as error:
            return Frame.response_to(frame, ResponseCode.SYSTEM_ERROR, str(error))
        message.topic = message.properties.get(Prop.REAL_TOPIC, message.topic)
        group = message.properties.get(Prop.PRODUCER_GROUP, self.group)
        check = self.session.checks.get(group)  # it may belong to another producer of this session
        if check is None:
            return None
        try:
            state = await check(message)
        except Exception:
            log.exception("check of transaction %s failed", header.transactionId)
            state = TransactionState.UNKNOWN
        end = EndTransactionHeader(
            group,
            header.tranStateTableOffset,
            header.commitLogOffset,
            state.value,
            True,
            header.msgId or message.id,
            header.transactionId,
        )
        ext = end.ext() | {"bname": message.broker, "topic": message.topic}
        self.session.remoting.oneway_on(conn, Frame(RequestCode.END_TRANSACTION, ext=ext))
        return None


async def _outcome(result: SendResult, message: Message, transaction_id: str, work: LocalWork) -> TransactionState:
    """Do the work, if the half message is safe, and return what becomes of it."""
    if result.status is not SendStatus.SEND_OK:
        return TransactionState.ROLLBACK
    try:
        return await work(message, transaction_id)
    except Exception:
        log.exception("work of transaction %s failed; the broker will ask for its state", transaction_id)
        return TransactionState.UNKNOWN
