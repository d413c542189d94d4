"""Pulls: what a consumer is given, told, or made to wait for. Codes and remarks are those of 4.9.7.

A pull only ever sees confirmed records, because the consume queues hold no others. On a master that has just taken
the role a position beyond them means "not known yet": such a pull is held and never told that its offset moved. A
slave that cannot serve says PULL_RETRY_IMMEDIATELY and names the master.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Coroutine
from time import perf_counter
from typing import TYPE_CHECKING, Final

from gantry_broker.broker.clients import MAX_EXPRESSION, Subscription
from gantry_broker.broker.errors import Answer
from gantry_broker.broker.handlers.table import handles
from gantry_broker.broker.metadata.topics import group_fault, topic_fault
from gantry_broker.broker.pull.held import Held
from gantry_broker.broker.pull.sql92 import Filter, FilterSyntaxError
from gantry_broker.protocol.bodies import SubscriptionData, SubscriptionGroup, TopicConfig
from gantry_broker.protocol.codes import EXPRESSION_TAG, FAQ, GetStatus, Perm, PullFlag, RequestCode, ResponseCode
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import BadField, PullHeader
from gantry_broker.protocol.message import parse_properties
from gantry_broker.store.types import Got
from gantry_broker.timeslice import SLICE_S

if TYPE_CHECKING:
    from gantry_broker.broker.core import Broker
    from gantry_broker.remoting.connection import Connection

MAX_HOLD_MS: Final = 120_000
DUE_AT_ONCE: Final = 100
"""Pulls whose time is over that are answered before the clock is looked at."""
_CODES: Final = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
_MASTER: Final = 0


class Pull:
    """One pull, as long as it is held."""

    __slots__ = ("codes", "conn", "filter", "frame", "group", "header", "max_count", "offset", "sql", "topic")

    def __init__(
        self,
        conn: Connection,
        frame: Frame,
        header: PullHeader,
        topic: TopicConfig,
        group: SubscriptionGroup,
        codes: frozenset[int] | None,
        sql: SubscriptionData | None,
        max_count: int,
    ) -> None:
        self.conn = conn
        self.frame = frame
        self.header = header
        self.topic = topic
        self.group = group
        self.codes = codes
        self.sql = sql
        """A subscription whose expression still has to be compiled into `filter`."""
        self.filter: Filter | None = None
        self.max_count = max_count
        self.offset = int(header.queueOffset)


@handles(RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
def pull(broker: Broker, conn: Connection, frame: Frame) -> Coroutine[None, None, None] | None:
    made = _read_request(broker, conn, frame)
    if made.sql is not None and broker.slices.left_s <= 0:
        return _pull_in_turn(broker, made)
    _serve(broker, made)
    return None


async def _pull_in_turn(broker: Broker, made: Pull) -> None:
    """A pull with an SQL92 filter when this pass of the event loop has done enough."""
    await broker.slices.grant()
    if not made.conn.closed:
        _serve(broker, made)


def _serve(broker: Broker, made: Pull) -> None:
    header = made.header
    if made.sql is not None:
        made.filter = _sql(broker, made.sql)
    if header.sysFlag & PullFlag.COMMIT_OFFSET and broker.leading and header.commitOffset >= 0:
        broker.meta.commit_offset(header.topic, header.consumerGroup, header.queueId, int(header.commitOffset))
    got, code = _look(broker, made)
    if code == ResponseCode.PULL_NOT_FOUND and header.sysFlag & PullFlag.SUSPEND and broker.settings.longPollingEnable:
        hold_ms = min(max(int(header.suspendTimeoutMillis), 0), MAX_HOLD_MS)
        if hold_ms and broker.held.hold(header.topic, header.queueId, made, broker.now_ms() + hold_ms):
            return
    answer(broker, made, got, code)


def wake(broker: Broker, topic: str, queue_id: int) -> None:
    """A queue grew: the pulls that wait for it are tried again."""
    key = (topic, queue_id)
    if key in broker.waking:
        broker.held.passed_over.add(key)
        return
    waiting = broker.held.waiting(topic, queue_id)
    if waiting:
        _try_each(broker, key, waiting)


def _try_each(broker: Broker, key: tuple[str, int], waiting: deque[Held[Pull]]) -> None:
    """Tries pulls for one slice of the event loop, and the rest in a later pass."""
    ends = perf_counter() + SLICE_S
    broker.held.try_each(waiting, lambda made: _attempt(broker, made), lambda: perf_counter() < ends)
    if waiting:
        broker.waking.add(key)
        broker.slices.charge(SLICE_S)
        broker.slices.run(lambda: _try_each(broker, key, waiting))
    else:
        broker.waking.discard(key)


async def settle_all(broker: Broker) -> None:
    """The role changed: everything that waits is answered with what this member can say now."""
    async for held in broker.slices.sliced(broker.held.everything()):
        if held.done:
            continue
        broker.held.end(held)
        _answer_now(broker, held.pull)


def expire(broker: Broker, now_ms: int) -> None:
    """Answers the pulls whose time is over, and those that could not be told of new messages when these came."""
    again, broker.held.passed_over = broker.held.passed_over, set()
    for topic, queue_id in again:
        wake(broker, topic, queue_id)
    _answer_due(broker, now_ms)


def _answer_due(broker: Broker, now_ms: int) -> None:
    ends = perf_counter() + SLICE_S
    while due := broker.held.due(now_ms, DUE_AT_ONCE):
        for held in due:
            _answer_now(broker, held.pull)
        if perf_counter() > ends:
            broker.slices.charge(SLICE_S)
            broker.slices.run(lambda: _answer_due(broker, now_ms))
            return


def _answer_now(broker: Broker, made: Pull) -> None:
    if not made.conn.closed:
        got, code = _look(broker, made)
        answer(broker, made, got, code)


def _attempt(broker: Broker, made: Pull) -> bool:
    """Whether the pull is done with."""
    if made.conn.closed:
        return True
    if made.conn.paused:
        broker.held.passed_over.add((made.header.topic, made.header.queueId))
        return False
    if made.filter is not None and broker.slices.left_s <= 0:
        broker.held.passed_over.add((made.header.topic, made.header.queueId))
        return False
    got, code = _look(broker, made)
    if code == ResponseCode.PULL_NOT_FOUND:
        return False
    at_end = got.next_offset >= got.max_offset  # or what came was more than one read looks at
    if code == ResponseCode.PULL_RETRY_IMMEDIATELY and got.status == GetStatus.NO_MATCHED_MESSAGE and at_end:
        made.offset = got.next_offset
        return False
    answer(broker, made, got, code)
    return True


def _read_request(broker: Broker, conn: Connection, frame: Frame) -> Pull:
    """All checks, in RocketMQ's order. Raises Answer and BadField."""
    header = PullHeader.parse(frame)
    fault = topic_fault(header.topic, longest=255)
    if fault is not None:
        raise Answer(ResponseCode.TOPIC_NOT_EXIST, f"the field topic: {fault}")
    fault = group_fault(header.consumerGroup)
    if fault is not None:
        raise Answer(ResponseCode.SYSTEM_ERROR, f"the field consumerGroup: {fault}")
    if not broker.settings.brokerPermission & Perm.READ:
        raise Answer(ResponseCode.NO_PERMISSION, f"the broker[{broker.address}] pulling message is forbidden")
    group = broker.group_config(header.consumerGroup)
    if group is None:
        raise Answer(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"subscription group [{header.consumerGroup}] does not exist{FAQ}",
        )
    if not group.consume_enable:
        raise Answer(ResponseCode.NO_PERMISSION, f"subscription group no permission, {header.consumerGroup}")
    topic = broker.meta.working.topics.get(header.topic)
    if topic is None:
        raise Answer(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first please!{FAQ}")
    if not topic.perm & Perm.READ:
        raise Answer(ResponseCode.NO_PERMISSION, f"the topic[{header.topic}] pulling message is forbidden")
    if not 0 <= header.queueId < topic.read_queues:
        raise Answer(
            ResponseCode.SYSTEM_ERROR,
            f"queueId[{header.queueId}] is illegal, topic:[{header.topic}] topicConfig.readQueueNums:"
            f"[{topic.read_queues}] consumer:[{conn.peer[0]}:{conn.peer[1]}]",
        )
    if header.maxMsgNums < 1:
        raise BadField("maxMsgNums", str(header.maxMsgNums), "a whole number of 1 or more")
    subscription = _subscription(broker, header, group)
    codes: frozenset[int] | None = None
    sql: SubscriptionData | None = None
    if subscription.is_tag:
        if subscription.data.expression not in ("", "*"):
            codes = subscription.codes or None
    else:
        sql = subscription.data
        _may_filter(broker, sql)
    return Pull(conn, frame, header, topic, group, codes, sql, header.maxMsgNums)


def _subscription(broker: Broker, header: PullHeader, group: SubscriptionGroup) -> Subscription:
    if header.sysFlag & PullFlag.SUBSCRIPTION:
        try:
            return broker.filters.subscription(header.topic, header.subscription or "*", header.expressionType)
        except FilterSyntaxError as error:
            raise Answer(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"parse the consumer's subscription failed: {error}"
            ) from None
    members = broker.clients.consumers.get(header.consumerGroup)
    if members is None:
        raise Answer(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist{FAQ}")
    if not group.consume_broadcast_enable and members.message_model == "BROADCASTING":
        raise Answer(
            ResponseCode.NO_PERMISSION, f"the consumer group[{header.consumerGroup}] can not consume by broadcast way"
        )
    subscription = members.subscriptions.get(header.topic)
    if subscription is None:
        raise Answer(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{FAQ}")
    if subscription.data.version < header.subVersion:
        raise Answer(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
    return subscription


def _may_filter(broker: Broker, data: SubscriptionData) -> None:
    """Raises Answer."""
    if not broker.settings.enablePropertyFilter:
        raise Answer(
            ResponseCode.SYSTEM_ERROR,
            f"The broker does not support consumer to filter message by {data.expression_type}",
        )


def _sql(broker: Broker, data: SubscriptionData) -> Filter:
    """Raises Answer."""
    begun = perf_counter()
    try:
        return broker.filters.compiled(data.expression)
    except FilterSyntaxError as error:
        raise Answer(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"parse the consumer's subscription failed: {error}"
        ) from None
    finally:
        broker.slices.charge(perf_counter() - begun)


def _look(broker: Broker, made: Pull) -> tuple[Got, int]:
    """Reads, and says with which code the pull would be answered now."""
    header = made.header
    most = min(made.max_count, broker.settings.maxTransferCountOnMessageInMemory)
    most_bytes = broker.settings.maxTransferBytesOnMessageInMemory
    condition = made.filter
    if condition is None:
        got = broker.store.get(header.topic, header.queueId, made.offset, most, most_bytes, made.codes)
    else:
        begun = perf_counter()
        ends = begun + SLICE_S
        got = broker.store.get(
            header.topic,
            header.queueId,
            made.offset,
            most,
            most_bytes,
            None,
            lambda record: condition(parse_properties(record.properties)),
            lambda: perf_counter() > ends,
        )
        broker.slices.charge(perf_counter() - begun)
    status = got.status
    if status in (GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE):
        code = ResponseCode.PULL_NOT_FOUND if made.offset == 0 else ResponseCode.PULL_OFFSET_MOVED
    else:
        code = _CODES[status]
    if broker.leading:
        if got.damaged >= 0:
            code = ResponseCode.SYSTEM_ERROR
        elif code == ResponseCode.PULL_OFFSET_MOVED and not broker.settled and made.offset >= got.max_offset:
            code = ResponseCode.PULL_NOT_FOUND
    elif broker.letting_go and code == ResponseCode.PULL_OFFSET_MOVED:
        code = ResponseCode.PULL_NOT_FOUND
    elif broker.letting_go and code == ResponseCode.PULL_NOT_FOUND:
        pass
    elif code != ResponseCode.SUCCESS and status != GetStatus.NO_MATCHED_MESSAGE:
        code = ResponseCode.PULL_RETRY_IMMEDIATELY
    return got, int(code)


def answer(broker: Broker, made: Pull, got: Got, code: int) -> None:
    header = made.header
    next_offset = made.offset if code == ResponseCode.PULL_NOT_FOUND else got.next_offset
    ext = {
        "suggestWhichBrokerId": str(_suggest(broker, made, got, code)),
        "nextBeginOffset": str(next_offset),
        "minOffset": str(got.min_offset),
        "maxOffset": str(got.max_offset),
    }
    if (
        not broker.leading
        and code == ResponseCode.PULL_RETRY_IMMEDIATELY
        and got.status != GetStatus.NO_MATCHED_MESSAGE
    ):
        ext["nextBeginOffset"] = str(made.offset)
    if code == ResponseCode.SUCCESS:
        broker.count_gets(header.topic, header.consumerGroup, got.count, len(got.data))
        made.conn.send(Frame.response_to(made.frame, code, "FOUND", ext, got.data))
    else:
        remark = GetStatus(got.status).name
        if got.damaged >= 0:
            remark = f"the record at offset {got.damaged} of the log is damaged on the disk and waits to be mended"
        made.conn.send(Frame.response_to(made.frame, code, remark, ext))


def _suggest(broker: Broker, made: Pull, got: Got, code: int) -> int:
    """Where the consumer should pull from next: 0 is the master."""
    settings = broker.settings
    if broker.leading:
        if not settings.slaveReadEnable or code != ResponseCode.SUCCESS:
            return _MASTER
        if broker.far_behind(got):
            return broker.slave_to_read(made.group.which_broker_when_slow, got)
        return made.group.broker_id
    served = code == ResponseCode.SUCCESS or got.status == GetStatus.NO_MATCHED_MESSAGE
    if not served or not settings.slaveReadEnable or not broker.far_behind(got):
        return _MASTER
    return broker.broker_id


class Filters:
    """Subscriptions and compiled SQL92 expressions that pulls name: each is made once and kept, up to a bound."""

    MAX: Final = 4_096
    MAX_CHARACTERS: Final = 1 << 20
    """Of all expressions that are kept, of each kind: made ready they take some twenty times as much memory."""

    def __init__(self) -> None:
        self._subscription_characters = 0
        self._compiled_characters = 0
        self._subscriptions: dict[tuple[str, str, str], Subscription] = {}
        self._compiled: dict[str, Filter | FilterSyntaxError] = {}

    def subscription(self, topic: str, expression: str, kind: str) -> Subscription:
        """Raises FilterSyntaxError for one that is too long."""
        if len(expression) > MAX_EXPRESSION:
            raise _too_long(expression)
        key = (topic, expression, kind)
        known = self._subscriptions.get(key)
        if known is None:
            self._subscription_characters += len(expression)
            if len(self._subscriptions) >= self.MAX or self._subscription_characters > self.MAX_CHARACTERS:
                self._subscriptions.clear()
                self._subscription_characters = len(expression)
            known = self._subscriptions[key] = Subscription(tag_subscription(topic, expression, kind))
        return known

    def compiled(self, expression: str) -> Filter:
        """Raises FilterSyntaxError."""
        if len(expression) > MAX_EXPRESSION:
            raise _too_long(expression)
        from gantry_broker.broker.pull.sql92 import compile_filter

        known = self._compiled.get(expression)
        if known is None:
            self._compiled_characters += len(expression)
            if len(self._compiled) >= self.MAX or self._compiled_characters > self.MAX_CHARACTERS:
                self._compiled.clear()
                self._compiled_characters = len(expression)
            try:
                known = compile_filter(expression)
            except FilterSyntaxError as error:
                known = error
            self._compiled[expression] = known
        if isinstance(known, FilterSyntaxError):
            raise known.with_traceback(None)  # or it would keep the frames of all who were ever told
        return known


def _too_long(expression: str) -> FilterSyntaxError:
    return FilterSyntaxError(f"the expression has {len(expression)} characters, the limit is {MAX_EXPRESSION}")


def tag_subscription(topic: str, expression: str, kind: str) -> SubscriptionData:
    """`A || B` as the set of its tags; for SQL92 the expression alone."""
    tags = []
    if kind in ("", EXPRESSION_TAG) and expression not in ("", "*"):
        tags = [tag for part in expression.split("||") if (tag := part.strip())]
    return SubscriptionData(topic, expression, kind or EXPRESSION_TAG, tags)
