"""Pull requests and queue offsets, for all kinds of consumers."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum
from typing import Final

from gantry_broker.client.errors import BrokerError, NoRoute
from gantry_broker.client.message import FromWhere, ReceivedMessage, restore_topic
from gantry_broker.client.session import Session
from gantry_broker.client.spans import Spans
from gantry_broker.client.subscription import wanted
from gantry_broker.protocol.bodies import SubscriptionData
from gantry_broker.protocol.codes import (
    EXPRESSION_TAG,
    MASTER_ID,
    RETRY_PREFIX,
    PullFlag,
    RequestCode,
    ResponseCode,
)
from gantry_broker.protocol.fastjson import MessageQueue
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import Long, OffsetAnswer, PullAnswer, PullHeader, QueueHeader, SearchOffsetHeader
from gantry_broker.protocol.message import decode_records

SUSPEND_MS: Final = 15_000
"""Milliseconds for which a broker may hold a pull without messages."""
PULL_GRACE_SECONDS: Final = 5.0
"""Seconds after that time at which a pull fails."""
BATCH: Final = 32


class PullStatus(Enum):
    """The outcome of a pull."""

    FOUND = "found"
    NO_NEW = "nothing new"
    NO_MATCH = "no matching message"
    ILLEGAL = "the offset is outside of the queue"


@dataclass(slots=True)
class PullResult:
    """The messages of a pull; the next pull begins at `next_offset`. Offsets count a queue's messages."""

    status: PullStatus
    messages: list[ReceivedMessage]
    next_offset: int
    min_offset: int
    max_offset: int


_STATUS: Final = {
    int(ResponseCode.SUCCESS): PullStatus.FOUND,
    int(ResponseCode.PULL_NOT_FOUND): PullStatus.NO_NEW,
    int(ResponseCode.PULL_RETRY_IMMEDIATELY): PullStatus.NO_MATCH,
    int(ResponseCode.PULL_OFFSET_MOVED): PullStatus.ILLEGAL,
}


class Puller:
    """Pulls for one consumer group, and remembers from which broker to read each queue."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._suggested: dict[MessageQueue, int] = {}
        self.spans: Spans | None = None
        """Spans of pulls that bring messages; None: no tracer is configured."""

    def source(self, queue: MessageQueue) -> int:
        """Return the broker id for the queue's next pull."""
        return self._suggested.get(queue, MASTER_ID)

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        data: SubscriptionData,
        *,
        count: int = BATCH,
        suspend_ms: int = SUSPEND_MS,
        commit: int | None = None,
    ) -> PullResult:
        """Pull messages from `offset` on, and wait up to `suspend_ms` for the first. `commit`: an offset to commit.

        Raises RemotingError, BrokerError, NoRoute, RecordError.
        """
        broker_id, address = await self._address(queue)
        flags = PullFlag.SUSPEND if suspend_ms > 0 else 0
        if commit is not None and commit > 0 and broker_id == MASTER_ID:
            flags |= PullFlag.COMMIT_OFFSET
        by_tag = data.expression_type == EXPRESSION_TAG
        if by_tag:
            flags |= PullFlag.SUBSCRIPTION  # a new master may not know this client yet
        header = PullHeader(
            self._group,
            queue.topic,
            queue.queue_id,
            Long(offset),
            count,
            flags,
            Long(commit or 0),
            Long(suspend_ms),
            Long(data.version),
            data.expression if by_tag else None,
            data.expression_type,
            bname=queue.broker,
        )
        frame = Frame(RequestCode.PULL_MESSAGE, ext=header.ext())
        begun_ns = time.time_ns() if self.spans is not None else 0
        answer = await self._session.call(address, frame, suspend_ms / 1000 + PULL_GRACE_SECONDS)
        status = _STATUS.get(answer.code)
        if status is None:
            self._suggested.pop(queue, None)
            raise BrokerError(f"pull of {queue} at {offset}", answer.code, answer.remark)
        reply = PullAnswer.from_ext(answer.ext)
        self._suggested[queue] = reply.suggestWhichBrokerId
        messages = []
        if status is PullStatus.FOUND:
            for record in decode_records(answer.body):
                message = restore_topic(record, queue.broker, self._group)
                if wanted(message, data):
                    messages.append(message)
        if self.spans is not None and messages:
            self.spans.received(queue.topic, messages, begun_ns)
        return PullResult(status, messages, reply.nextBeginOffset, reply.minOffset, reply.maxOffset)

    async def _address(self, queue: MessageQueue) -> tuple[int, str]:
        broker_id = self.source(queue)
        address = self._session.address(queue.broker, broker_id)
        if address is not None:
            return broker_id, address
        if not self._session.addresses(queue.broker):
            await self._session.route_after_failure(queue.topic)
        for broker_id, address in sorted(self._session.addresses(queue.broker).items()):
            return broker_id, address
        raise NoRoute(f"no broker of group {queue.broker} is known")

    def failed(self, queue: MessageQueue) -> None:
        """Switches from the master to a slave after a failed pull, and back after the next one.

        So a consumer can read a backlog without a master.
        """
        if self._suggested.pop(queue, MASTER_ID) == MASTER_ID:
            slaves = [number for number in self._session.addresses(queue.broker) if number != MASTER_ID]
            if slaves:
                self._suggested[queue] = min(slaves)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset after the queue's last message. Raises RemotingError, BrokerError, NoRoute."""
        return await self._offset(queue, RequestCode.GET_MAX_OFFSET)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the queue's first message. Raises RemotingError, BrokerError, NoRoute."""
        return await self._offset(queue, RequestCode.GET_MIN_OFFSET)

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the first offset with a store time at or after a time. Raises RemotingError, BrokerError, NoRoute."""
        header = SearchOffsetHeader(queue.topic, queue.queue_id, Long(timestamp_ms))
        return await self._call_for_offset(queue, Frame(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext=header.ext()))

    async def first_offset(self, queue: MessageQueue, where: FromWhere, timestamp_ms: int) -> int:
        """Return the start offset of a group without offsets. Retry topics are always read from their beginning."""
        retry = queue.topic.startswith(RETRY_PREFIX)
        if where is FromWhere.LAST and not retry:
            return await self.max_offset(queue)
        if where is FromWhere.TIMESTAMP and not retry:
            return await self.offset_at(queue, timestamp_ms)
        return await self.min_offset(queue)

    async def _offset(self, queue: MessageQueue, code: int) -> int:
        header = QueueHeader(queue.topic, queue.queue_id)
        return await self._call_for_offset(queue, Frame(code, ext=header.ext()))

    async def _call_for_offset(self, queue: MessageQueue, frame: Frame) -> int:
        address = await self._session.master(queue.broker, queue.topic)
        answer = await self._session.call_checked(address, frame, f"request {frame.code} for {queue}")
        return OffsetAnswer.from_ext(answer.ext).offset
