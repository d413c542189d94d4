"""POP: a member asks for messages, acknowledges each one, and keeps no queue to itself (5.x).

The checks come in the order of 5.5.0, with its codes. What is in flight is the matter of `gantry_broker.broker.pop`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, Protocol

from gantry_broker.admission import owners_of
from gantry_broker.broker.errors import RequestRejected, failure_answer
from gantry_broker.broker.forward import FORWARDED_HERE
from gantry_broker.broker.handlers.requests import Later, Result, forget_content, json_body, ok
from gantry_broker.broker.metadata.topics import group_fault, topic_fault
from gantry_broker.broker.pop.queue import offsets_of
from gantry_broker.broker.pop.requests import (
    MAX_INVISIBLE_MS,
    MAX_MESSAGES,
    MAX_POLL_MS,
    Ack,
    AckResult,
    ChangeInvisible,
    Pop,
    Popped,
    PopStatus,
)
from gantry_broker.broker.pop.retry import retry_target
from gantry_broker.protocol.bad_field import BadField
from gantry_broker.protocol.bodies import BatchAck, BatchAcks, TopicConfig
from gantry_broker.protocol.codes import EXPRESSION_SQL92, EXPRESSION_TAG, FAQ, RETRY_PREFIX, Perm, ResponseCode
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import (
    POPPED,
    AckHeader,
    ChangeInvisibleAnswerHeader,
    ChangeInvisibleHeader,
    Long,
    NotificationHeader,
    PeekHeader,
    PollingInfoHeader,
    PopAnswerHeader,
    PopHeader,
    error_answer,
)
from gantry_broker.protocol.pop_batches import NO_EFFECT, RESULTS, named
from gantry_broker.protocol.pop_handle import BadHandle, Handle, parse_handle, real_topic

if TYPE_CHECKING:
    from gantry_broker.broker.archive_reads import ArchiveReads
    from gantry_broker.broker.clock import Clock
    from gantry_broker.broker.metadata.creation import OnDemandCreation
    from gantry_broker.broker.metadata.tables import Metadata
    from gantry_broker.broker.pop.service import PopService
    from gantry_broker.broker.role import RoleState
    from gantry_broker.broker.stats import MessageCounts
    from gantry_broker.remoting.connection import Connection
    from gantry_broker.settings import BrokerSettings
    from gantry_broker.store.store import MessageStore

LATE_MS: Final = 500
"""A pop that arrives this long after its wait was over is not carried out: its client has given it up."""
NOT_STORED: Final = "the acknowledgement was not replicated in time; ask again"
_STATUS: Final = {
    PopStatus.FOUND: (ResponseCode.SUCCESS, "FOUND"),
    PopStatus.POLLING_FULL: (ResponseCode.POLLING_FULL, "NO_MESSAGE_IN_QUEUE"),
    PopStatus.POLLING_TIMEOUT: (ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE"),
    PopStatus.NO_MESSAGE: (ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE"),
}


class Parts(Protocol):
    """What these functions use of a member."""

    settings: BrokerSettings
    clock: Clock
    store: MessageStore
    archive_reads: ArchiveReads
    role: RoleState
    meta: Metadata
    creation: OnDemandCreation
    pop: PopService
    counts: MessageCounts


def pop(broker: Parts, conn: Connection, frame: Frame) -> Result:
    header = PopHeader.parse(frame)
    now = broker.clock.unix_ms()
    born = int(header.bornTime) or now
    if born + header.pollTime - now < -LATE_MS:
        remark = f"the broker[{broker.role.address}] pop message is timeout too much"
        nothing = PopAnswerHeader(Long(0), Long(0), 0, Long(0)).ext()
        return Frame.response_to(frame, ResponseCode.POLLING_TIMEOUT, remark, nothing)
    _readable(broker, "pop message")
    if header.maxMsgNums > MAX_MESSAGES:
        raise RequestRejected(
            ResponseCode.INVALID_PARAMETER,
            f"the broker[{broker.role.address}] pop message's num is greater than {MAX_MESSAGES}",
        )
    _check_target(broker, conn, header.topic, header.consumerGroup, header.queueId)
    if header.maxMsgNums < 0:
        raise BadField("maxMsgNums", str(header.maxMsgNums), f"a whole number from 1 to {MAX_MESSAGES}")
    if not 1 <= header.invisibleTime <= MAX_INVISIBLE_MS and header.maxMsgNums > 0:
        expected = f"milliseconds from 1 to {MAX_INVISIBLE_MS}"
        raise BadField("invisibleTime", str(header.invisibleTime), expected, ResponseCode.INVALID_PARAMETER)
    if header.exp and header.expType not in (None, "", EXPRESSION_TAG, EXPRESSION_SQL92):
        raise RequestRejected(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed")
    # Of the client's time only what is left; its clock may be ahead.
    wait_ms = min(max(int(header.pollTime), 0), max(born + int(header.pollTime) - now, 0), MAX_POLL_MS)
    request = Pop(
        group=header.consumerGroup,
        topic=header.topic,
        queue_id=max(header.queueId, -1),
        max_messages=header.maxMsgNums,
        invisible_ms=int(header.invisibleTime),
        poll_ms=0 if FORWARDED_HERE in conn.attrs else wait_ms,
        init_mode=0 if header.initMode == 0 else 1,
        expression=header.exp or "*",
        expression_type=header.expType if header.exp and header.expType else EXPRESSION_TAG,
        order=header.order,
        attempt_id=header.attemptId or None,
        closed=lambda: conn.closed,
        owners=owners_of(conn),
    )
    if header.maxMsgNums == 0:
        nothing_asked = Popped(status=PopStatus.NO_MESSAGE, pop_ms=now, invisible_ms=int(header.invisibleTime))
        return _popped(frame, nothing_asked)
    forget_content(frame)
    give: list[Callable[[Frame], None]] = []

    def respond(popped: Popped | Exception) -> None:
        answer = failure_answer(frame, popped) if isinstance(popped, Exception) else _popped(frame, popped)
        give[0](answer)

    return give.append if broker.pop.pop_at_once(request, respond) else _wait_for_messages(broker, frame, request)


async def _wait_for_messages(broker: Parts, frame: Frame, request: Pop) -> Frame:
    return _popped(frame, await broker.pop.pop(request))


def _popped(frame: Frame, popped: Popped) -> Frame:
    code, remark = _STATUS[popped.status]
    answer = PopAnswerHeader(
        Long(popped.pop_ms),
        Long(popped.invisible_ms),
        popped.revive_queue,
        Long(popped.rest),
        popped.start_offset_info,
        popped.message_offset_info,
        popped.order_count_info,
    )
    return Frame.response_to(frame, code, remark, answer.ext(), popped.data)


def peek(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    header = PeekHeader.parse(frame)
    _readable(broker, "peeking message")
    _check_target(broker, conn, header.topic, header.consumerGroup, header.queueId)
    if header.maxMsgNums > MAX_MESSAGES:
        raise BadField("maxMsgNums", str(header.maxMsgNums), f"a whole number from 1 to {MAX_MESSAGES}")
    request = Pop(
        group=header.consumerGroup,
        topic=header.topic,
        queue_id=max(header.queueId, -1),
        max_messages=header.maxMsgNums,
    )
    peeked = broker.pop.peek(request) if header.maxMsgNums > 0 else Popped(status=PopStatus.NO_MESSAGE)
    if peeked.count:
        broker.counts.gets(header.topic, header.consumerGroup, peeked.count, len(peeked.data), {})
    answer = PopAnswerHeader(Long(0), Long(0), 0, Long(peeked.rest)).ext()
    if peeked.status is PopStatus.FOUND:
        return ok(frame, answer, peeked.data, "FOUND")
    return Frame.response_to(frame, ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE", answer)


async def notification(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    """Whether a pop would find messages: at once, or when some come within the time of the poll."""
    header = NotificationHeader.parse(frame)
    _readable(broker, "peeking message")
    _check_target(broker, conn, header.topic, header.consumerGroup, header.queueId)
    now = broker.clock.unix_ms()
    born = int(header.bornTime) or now
    wait_ms = min(max(int(header.pollTime), 0), max(born + int(header.pollTime) - now, 0), MAX_POLL_MS)
    request = Pop(
        group=header.consumerGroup,
        topic=header.topic,
        queue_id=max(header.queueId, -1),
        poll_ms=0 if FORWARDED_HERE in conn.attrs else wait_ms,
        order=header.order,
        attempt_id=header.attemptId or None,
        owners=owners_of(conn),
    )
    forget_content(frame)
    has_some, full = await broker.pop.has_messages(request)
    return ok(frame, {"hasMsg": "true" if has_some else "false", "pollingFull": "true" if full else "false"})


def polling_info(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    header = PollingInfoHeader.parse(frame)
    _readable(broker, "peeking message")
    _check_target(broker, conn, header.topic, header.consumerGroup, header.queueId)
    waiting = broker.pop.waiting(header.consumerGroup, header.topic)
    queues = range(broker.meta.working.topics[header.topic].read_queues)
    popped = any(broker.pop.knows(header.consumerGroup, header.topic, queue_id) for queue_id in queues)
    return ok(frame, {"pollingNum": str(waiting), POPPED: "true" if popped else "false"})


def ack(broker: Parts, conn: Connection, frame: Frame) -> Result:
    if not broker.pop.ready:
        return _when_ready(broker, lambda: ack(broker, conn, frame))
    header = AckHeader.parse(frame)
    handle, low, high = _delivery(broker, conn, header)
    if not low <= header.offset <= high:
        raise RequestRejected(
            ResponseCode.NO_MESSAGE,
            f"offset is illegal, key:{header.topic}@{header.queueId}, commit:{header.offset}, store:{low}~{high}",
        )
    _check_agreement(header, handle)
    result = broker.pop.ack(Ack(group=header.consumerGroup, topic=header.topic, handle=handle))
    if result is not AckResult.OK:
        raise RequestRejected(ResponseCode.NO_MESSAGE, f"the acknowledgement has no effect: {result.value}")
    return _when_stored(broker, frame, ok(frame))


def batch_ack(broker: Parts, conn: Connection, frame: Frame) -> Result:
    """As 5.5.0, SUCCESS also when some of the deliveries have expired: their messages come again. The answer names them
    if the request asks for that.
    """
    if not broker.pop.ready:
        return _when_ready(broker, lambda: batch_ack(broker, conn, frame))
    if not frame.body:
        raise RequestRejected(ResponseCode.NO_MESSAGE, "the request has no body")
    body = BatchAcks.from_json(json_body(frame, "batchAck"))
    if not body.acks:
        raise RequestRejected(ResponseCode.NO_MESSAGE, "the field batchAck.acks is empty")
    finished = broker.pop.ack_batches([(entry, _present(broker, entry)) for entry in body.acks])
    ext = None
    if frame.ext.get(RESULTS) == "true":
        ext = {
            NO_EFFECT: named(
                (number, offset)
                for number, (entry, done) in enumerate(zip(body.acks, finished, strict=True))
                for offset in offsets_of(entry.start_offset, entry.bits & ~done)
            )
        }
    answer = ok(frame, ext)
    return _when_stored(broker, frame, answer) if any(finished) else answer


def _when_ready(broker: Parts, handler: Callable[[], Result]) -> Coroutine[Any, Any, Frame]:
    """Carries out a request when a new leader has read the state."""

    async def wait() -> Frame:
        await broker.pop.until_ready()
        result = handler()
        if callable(result):
            done: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
            result(lambda answer: None if done.done() else done.set_result(answer))
            return await done
        return result if isinstance(result, Frame) else await result  # type: ignore[misc]

    return wait()


def _when_stored(broker: Parts, frame: Frame, answer: Frame) -> Later:
    """Answers when the acknowledgements are replicated."""

    def later(give: Callable[[Frame], None]) -> None:
        def stored(all_is_well: bool) -> None:
            give(answer if all_is_well else error_answer(frame, ResponseCode.SYSTEM_ERROR, NOT_STORED))

        broker.pop.when_stored(stored)

    return later


def _present(broker: Parts, entry: BatchAck) -> int:
    """Return the bits of those messages of an entry that are in the log."""
    topic = real_topic(entry.topic, entry.group, entry.kind)
    config = _config_for(broker, entry.group, topic, entry.queue_id)
    if config is None or not 0 <= entry.queue_id < config.read_queues:
        return 0
    start, bits = entry.start_offset, entry.bits
    if min(start, entry.pop_ms, entry.invisible_ms, entry.revive_queue) < 0:
        return 0  # No broker gave such a handle; the other entries count.
    low = broker.archive_reads.least(topic, entry.queue_id)
    high = broker.store.reader.max_offset(topic, entry.queue_id)
    size = bits.bit_length()
    if high < start + size:
        bits &= (1 << max(high - start, 0)) - 1
    if low > start:
        bits = bits >> min(low - start, size) << min(low - start, size)
    return bits


async def change_invisible(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    header = ChangeInvisibleHeader.parse(frame)
    await broker.pop.until_ready()
    handle, low, high = _delivery(broker, conn, header)
    if not low <= header.offset < high:
        raise RequestRejected(ResponseCode.NO_MESSAGE, f"the queue has messages {low} to {high - 1}")
    _check_agreement(header, handle)
    if not 0 <= header.invisibleTime <= MAX_INVISIBLE_MS:
        expected = f"milliseconds from 0 to {MAX_INVISIBLE_MS}"
        raise BadField("invisibleTime", str(header.invisibleTime), expected, ResponseCode.INVALID_PARAMETER)
    try:
        changed = await broker.pop.change_invisible(
            ChangeInvisible(
                group=header.consumerGroup,
                topic=header.topic,
                handle=handle,
                invisible_ms=int(header.invisibleTime),
                suspend=header.suspend,
            )
        )
    except BadHandle as error:
        raise RequestRejected(ResponseCode.NO_MESSAGE, str(error)) from None
    answer = ChangeInvisibleAnswerHeader(Long(changed.pop_ms), Long(changed.invisible_ms), changed.revive_queue)
    return ok(frame, answer.ext())


# ---- checks


def _readable(broker: Parts, what: str) -> None:
    if not broker.settings.brokerPermission & Perm.READ:
        raise RequestRejected(ResponseCode.NO_PERMISSION, f"the broker[{broker.role.address}] {what} is forbidden")


def _check_target(broker: Parts, conn: Connection, topic: str, group: str, queue_id: int) -> None:
    """Check topic and group, and create an unknown group where settings allow that. Raises RequestRejected."""
    fault = topic_fault(topic, longest=255)
    if fault is not None:
        raise RequestRejected(ResponseCode.TOPIC_NOT_EXIST, f"the field topic: {fault}")
    config = broker.meta.working.topics.get(topic)
    if config is None:
        raise RequestRejected(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!{FAQ}")
    if not config.perm & Perm.READ:
        raise RequestRejected(ResponseCode.NO_PERMISSION, f"the topic[{topic}] peeking message is forbidden")
    if queue_id >= config.read_queues:
        raise RequestRejected(ResponseCode.INVALID_PARAMETER, _illegal_queue(conn, topic, queue_id, config.read_queues))
    fault = group_fault(group)
    if fault is not None:
        raise RequestRejected(ResponseCode.SYSTEM_ERROR, f"the field consumerGroup: {fault}")
    retry = retry_target(group, topic)
    if len(retry) > 255:
        raise RequestRejected(
            ResponseCode.INVALID_PARAMETER,
            f"the field consumerGroup: the name of the retry topic of group and topic would have {len(retry)} "
            "characters, at most 255 are valid: use a shorter name for the group or the topic",
        )
    group_config = broker.creation.group_config(group)
    if group_config is None:
        raise RequestRejected(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{group}] does not exist{FAQ}"
        )
    if not group_config.consume_enable:
        raise RequestRejected(ResponseCode.NO_PERMISSION, f"subscription group no permission, {group}")


def _illegal_queue(conn: Connection, topic: str, queue_id: int, queues: int) -> str:
    return (
        f"queueId[{queue_id}] is illegal, topic:[{topic[:255]}] topicConfig.readQueueNums:[{queues}] "
        f"consumer:[{conn.peer[0]}:{conn.peer[1]}]"
    )


def _config_for(broker: Parts, group: str, topic: str, queue_id: int) -> TopicConfig | None:
    """Return the topic of a delivery; None: it does not exist, or it has another group's retries."""
    tables = broker.meta.working
    foreign = topic.startswith(RETRY_PREFIX) and not tables.is_retry_topic(group, topic)
    if foreign and not broker.pop.knows(group, topic, queue_id):
        return None
    return tables.topics.get(topic)


def _delivery(broker: Parts, conn: Connection, header: AckHeader | ChangeInvisibleHeader) -> tuple[Handle, int, int]:
    """Return a delivery's handle, and the first queue offset, and the one after the last, of its queue.

    Raises RequestRejected.
    """
    topics = broker.meta.working.topics
    if header.topic not in topics:
        raise RequestRejected(
            ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic[:255]}] not exist, apply first please!{FAQ}"
        )
    try:
        handle = parse_handle(header.extraInfo, int(header.offset))
    except BadHandle as error:
        raise RequestRejected(ResponseCode.SYSTEM_ERROR, str(error)) from None
    topic = real_topic(header.topic, header.consumerGroup, handle.kind)
    config = _config_for(broker, header.consumerGroup, topic, header.queueId)
    queues = 0 if config is None else config.read_queues
    if not 0 <= header.queueId < queues:
        raise RequestRejected(ResponseCode.MESSAGE_ILLEGAL, _illegal_queue(conn, topic, header.queueId, queues))
    low = broker.archive_reads.least(topic, header.queueId)
    return handle, low, broker.store.reader.max_offset(topic, header.queueId)


def _check_agreement(header: AckHeader | ChangeInvisibleHeader, handle: Handle) -> None:
    """Check that the handle names the queue and the offset of the request. Raises RequestRejected."""
    if (handle.queue_id, handle.offset) != (header.queueId, header.offset):
        raise RequestRejected(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the field extraInfo is for offset {handle.offset} of queue {handle.queue_id}, "
            f"the request is for offset {header.offset} of queue {header.queueId}",
        )
