"""Batches of over `BATCH_PART` messages: checked as a whole, then stored in parts, each in a slice of the event loop.

Each part is stored as a whole, and other sends may come between two of them. If this member stops being the leader in
between, or its disk is full, the batch is refused although its first parts are stored: its producer sends it again, as
after any other answer that got lost.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gantry_broker.broker.errors import NotWritable, RequestRejected, failure_answer
from gantry_broker.broker.send.sender import STATUS_CODE, check_sizes
from gantry_broker.protocol.codes import DEFAULT_REGION, ResponseCode, SendStatus
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import Long, SendAnswer, SendHeader
from gantry_broker.protocol.message import MAX_BATCH, batch_parts
from gantry_broker.store.errors import MessageTooLarge, StoreError

if TYPE_CHECKING:
    from gantry_broker.broker.clock import Clock
    from gantry_broker.broker.health import MemberHealth
    from gantry_broker.broker.log_writer import LogWriter
    from gantry_broker.broker.role import RoleState
    from gantry_broker.broker.send.sender import Sender
    from gantry_broker.broker.stats import Stats
    from gantry_broker.remoting.connection import Connection
    from gantry_broker.settings import BrokerSettings
    from gantry_broker.timeslice import TimeSlices


class LargeBatches:
    """Stores and answers large batches."""

    def __init__(
        self,
        sender: Sender,
        settings: BrokerSettings,
        *,
        role: RoleState,
        writer: LogWriter,
        health: MemberHealth,
        stats: Stats,
        slices: TimeSlices,
        clock: Clock,
    ) -> None:
        self._sender = sender
        self._settings = settings
        self._role = role
        self._writer = writer
        self._store_failed = health.store_failed
        self._count_refused = stats.refuse
        self._slices = slices
        self._clock = clock

    async def take(self, conn: Connection, frame: Frame) -> Frame:
        """Store a batch and return the answer."""
        try:
            answer = await self._take(conn.peer_bytes, frame)
        except Exception as error:
            if isinstance(error, StoreError) and not isinstance(error, MessageTooLarge):
                self._store_failed(error)
            answer = failure_answer(frame, error)
        if answer.code != ResponseCode.SUCCESS:
            self._count_refused(answer.code)
        return answer

    async def _take(self, born_host: bytes, frame: Frame) -> Frame:
        check_sizes(frame, SendHeader.parse(frame), self._settings.maxMessageSize)
        count = 0
        async for part in self._slices.sliced(batch_parts(frame.body)):
            count += self._sender.check_part(frame, part, born_host)
            if count > MAX_BATCH:
                raise RequestRejected(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"the message is illegal: the batch has over {MAX_BATCH} messages, which is the limit",
                )
        ids: list[str] = []
        first, queue_id, waits, ext = -1, 0, True, frame.ext
        async for part in self._slices.sliced(batch_parts(frame.body)):
            if not self._role.may_append:
                raise NotWritable(self._role.refusal())
            part_frame = Frame(frame.code, frame.opaque, frame.flag, ext, part)
            queue_id, offset, names, waits = self._sender.store_part(part_frame, born_host, self._clock.unix_ms())
            self._writer.appended(None)
            if first < 0:  # A queue that the broker has chosen is that of all parts.
                first, ext = offset, {**ext, "e": str(queue_id)}
            ids.append(names)
        status = await self._confirmed() if waits else SendStatus.SEND_OK
        answer = SendAnswer(
            msgId=",".join(ids),
            queueId=queue_id,
            queueOffset=Long(first),
            MSG_REGION=DEFAULT_REGION,
            TRACE_ON="true",
        )
        return Frame.response_to(frame, STATUS_CODE[status], None, answer.ext())

    async def _confirmed(self) -> SendStatus:
        """Wait until all that is stored is confirmed, or the time is over. Return the status for the producer."""
        done: asyncio.Future[SendStatus] = asyncio.get_running_loop().create_future()
        self._writer.appended(lambda status: None if done.done() else done.set_result(status))
        return await done
