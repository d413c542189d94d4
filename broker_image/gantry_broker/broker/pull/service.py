"""Pulls: each is answered with messages, answered without, or held. Codes and remarks are those of 4.9.7.

A pull sees confirmed records only, because the consume queues hold no others. A new leader may not know yet how far its
log is confirmed. It holds a pull beyond the records that it knows, and never answers "offset moved". A slave that
cannot serve a pull answers PULL_RETRY_IMMEDIATELY and names the master.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Coroutine
from time import perf_counter
from typing import TYPE_CHECKING, Final

from gantry_broker.broker.clients import Subscription
from gantry_broker.broker.errors import RequestRejected
from gantry_broker.broker.metadata.topics import group_fault, topic_fault
from gantry_broker.broker.pull.held import HeldPull, HeldPulls
from gantry_broker.broker.pull.sql92 import Filter, FilterSyntaxError
from gantry_broker.protocol.bodies import SubscriptionData, SubscriptionGroup, TopicConfig
from gantry_broker.protocol.codes import FAQ, GetStatus, Perm, PullFlag, ResponseCode
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import BadField, PullHeader
from gantry_broker.protocol.message import parse_properties
from gantry_broker.store.types import Got
from gantry_broker.timeslice import SLICE_S

if TYPE_CHECKING:
    from gantry_broker.broker.clients import ClientTable
    from gantry_broker.broker.clock import Clock
    from gantry_broker.broker.metadata.creation import OnDemandCreation
    from gantry_broker.broker.metadata.tables import Metadata
    from gantry_broker.broker.pull.filters import Filters
    from gantry_broker.broker.pull.slave_reads import SlaveReads
    from gantry_broker.broker.role import RoleState
    from gantry_broker.broker.stats import MessageCounts
    from gantry_broker.remoting.connection import Connection
    from gantry_broker.store.store import MessageStore
    from gantry_broker.timeslice import TimeSlices


MAX_HOLD_MS: Final = 120_000
DUE_AT_ONCE: Final = 100
"""Expired pulls that one step answers between two checks of the time."""
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
    """One pull, from its request to its answer."""

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
        """A subscription whose expression is not compiled into `filter` yet."""
        self.filter: Filter | None = None
        self.max_count = max_count
        self.offset = int(header.queueOffset)


class PullService:
    """Answers pulls, holds them, and tries them again when messages are available."""

    def __init__(
        self,
        store: MessageStore,
        meta: Metadata,
        role: RoleState,
        *,
        held: HeldPulls[Pull],
        filters: Filters,
        clients: ClientTable,
        creation: OnDemandCreation,
        slave_reads: SlaveReads,
        counts: MessageCounts,
        slices: TimeSlices,
        clock: Clock,
    ) -> None:
        self._settings = store.config.settings
        self._store = store
        self._meta = meta
        self._role = role
        self._held = held
        self._filters = filters
        self._clients = clients
        self._creation = creation
        self._slave_reads = slave_reads
        self._count_gets = counts.gets
        self._slices = slices
        self._clock = clock
        self._waking: set[tuple[str, int]] = set()
        """Queues whose held pulls are being tried, in slices."""

    def handle(self, conn: Connection, frame: Frame) -> Coroutine[None, None, None] | None:
        made = self._read_request(conn, frame)
        if made.sql is not None and self._slices.left_s <= 0:
            return self._pull_in_turn(made)
        self._serve(made)
        return None

    async def _pull_in_turn(self, made: Pull) -> None:
        """Serves a pull with an SQL92 filter in a later slice, when this pass of the event loop has done enough."""
        await self._slices.grant()
        if not made.conn.closed:
            self._serve(made)

    def _serve(self, made: Pull) -> None:
        header = made.header
        if made.sql is not None:
            made.filter = self._sql(made.sql)
        if header.sysFlag & PullFlag.COMMIT_OFFSET and self._role.leading and header.commitOffset >= 0:
            self._meta.commit_offset(header.topic, header.consumerGroup, header.queueId, int(header.commitOffset))
        got, code = self._read(made)
        if (
            code == ResponseCode.PULL_NOT_FOUND
            and header.sysFlag & PullFlag.SUSPEND
            and self._settings.longPollingEnable
        ):
            hold_ms = min(max(int(header.suspendTimeoutMillis), 0), MAX_HOLD_MS)
            if hold_ms and self._held.hold(header.topic, header.queueId, made, self._clock.now_ms() + hold_ms):
                return
        self.answer(made, got, code)

    def wake(self, topic: str, queue_id: int) -> None:
        """Tries the waiting pulls of a queue with new messages again."""
        key = (topic, queue_id)
        if key in self._waking:
            self._held.passed_over.add(key)
            return
        waiting = self._held.waiting(topic, queue_id)
        if waiting:
            self._try_each(key, waiting)

    def _try_each(self, key: tuple[str, int], waiting: deque[HeldPull[Pull]]) -> None:
        """Tries pulls for one slice of the event loop, and the rest in a later pass."""
        ends = perf_counter() + SLICE_S
        self._held.try_each(waiting, lambda made: self._attempt(made), lambda: perf_counter() < ends)
        if waiting:
            self._waking.add(key)
            self._slices.charge(SLICE_S)
            self._slices.run(lambda: self._try_each(key, waiting))
        else:
            self._waking.discard(key)

    async def settle_all(self) -> None:
        """Answers every held pull from this member's present state, after a change of role."""
        async for held in self._slices.sliced(self._held.everything()):
            if held.done:
                continue
            self._held.end(held)
            self._answer_now(held.pull)

    def expire(self, now_ms: int) -> None:
        """Answers the pulls whose time is over, and tries the pulls again that could not take new messages before."""
        again, self._held.passed_over = self._held.passed_over, set()
        for topic, queue_id in again:
            self.wake(topic, queue_id)
        self._answer_due(now_ms)

    def _answer_due(self, now_ms: int) -> None:
        ends = perf_counter() + SLICE_S
        while due := self._held.due(now_ms, DUE_AT_ONCE):
            for held in due:
                self._answer_now(held.pull)
            if perf_counter() > ends:
                self._slices.charge(SLICE_S)
                self._slices.run(lambda: self._answer_due(now_ms))
                return

    def _answer_now(self, made: Pull) -> None:
        if not made.conn.closed:
            got, code = self._read(made)
            self.answer(made, got, code)

    def _attempt(self, made: Pull) -> bool:
        """Tries a pull; returns True when it is answered or given up."""
        if made.conn.closed:
            return True
        if made.conn.paused:
            self._held.passed_over.add((made.header.topic, made.header.queueId))
            return False
        if made.filter is not None and self._slices.left_s <= 0:
            self._held.passed_over.add((made.header.topic, made.header.queueId))
            return False
        got, code = self._read(made)
        if code == ResponseCode.PULL_NOT_FOUND:
            return False
        at_end = got.next_offset >= got.max_offset  # False: more messages came than one read examines
        if code == ResponseCode.PULL_RETRY_IMMEDIATELY and got.status == GetStatus.NO_MATCHED_MESSAGE and at_end:
            made.offset = got.next_offset
            return False
        self.answer(made, got, code)
        return True

    def _read_request(self, conn: Connection, frame: Frame) -> Pull:
        """Checks a request in RocketMQ's order and returns its pull. Raises RequestRejected and BadField."""
        header = PullHeader.parse(frame)
        fault = topic_fault(header.topic, longest=255)
        if fault is not None:
            raise RequestRejected(ResponseCode.TOPIC_NOT_EXIST, f"the field topic: {fault}")
        fault = group_fault(header.consumerGroup)
        if fault is not None:
            raise RequestRejected(ResponseCode.SYSTEM_ERROR, f"the field consumerGroup: {fault}")
        if not self._settings.brokerPermission & Perm.READ:
            raise RequestRejected(
                ResponseCode.NO_PERMISSION, f"the broker[{self._role.address}] pulling message is forbidden"
            )
        group = self._creation.group_config(header.consumerGroup)
        if group is None:
            raise RequestRejected(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{header.consumerGroup}] does not exist{FAQ}",
            )
        if not group.consume_enable:
            raise RequestRejected(
                ResponseCode.NO_PERMISSION, f"subscription group no permission, {header.consumerGroup}"
            )
        topic = self._meta.working.topics.get(header.topic)
        if topic is None:
            raise RequestRejected(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first please!{FAQ}"
            )
        if not topic.perm & Perm.READ:
            raise RequestRejected(ResponseCode.NO_PERMISSION, f"the topic[{header.topic}] pulling message is forbidden")
        if not 0 <= header.queueId < topic.read_queues:
            raise RequestRejected(
                ResponseCode.SYSTEM_ERROR,
                f"queueId[{header.queueId}] is illegal, topic:[{header.topic}] topicConfig.readQueueNums:"
                f"[{topic.read_queues}] consumer:[{conn.peer[0]}:{conn.peer[1]}]",
            )
        if header.maxMsgNums < 1:
            raise BadField("maxMsgNums", str(header.maxMsgNums), "a whole number of 1 or more")
        subscription = self._subscription(header, group)
        codes: frozenset[int] | None = None
        sql: SubscriptionData | None = None
        if subscription.is_tag:
            if subscription.data.expression not in ("", "*"):
                codes = subscription.codes or None
        else:
            sql = subscription.data
            self._may_filter(sql)
        return Pull(conn, frame, header, topic, group, codes, sql, header.maxMsgNums)

    def _subscription(self, header: PullHeader, group: SubscriptionGroup) -> Subscription:
        if header.sysFlag & PullFlag.SUBSCRIPTION:
            try:
                return self._filters.subscription(header.topic, header.subscription or "*", header.expressionType)
            except FilterSyntaxError as error:
                raise RequestRejected(
                    ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"parse the consumer's subscription failed: {error}"
                ) from None
        members = self._clients.consumers.get(header.consumerGroup)
        if members is None:
            raise RequestRejected(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist{FAQ}")
        if not group.consume_broadcast_enable and members.message_model == "BROADCASTING":
            raise RequestRejected(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{header.consumerGroup}] can not consume by broadcast way",
            )
        subscription = members.subscriptions.get(header.topic)
        if subscription is None:
            raise RequestRejected(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{FAQ}")
        if subscription.data.version < header.subVersion:
            raise RequestRejected(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        return subscription

    def _may_filter(self, data: SubscriptionData) -> None:
        """Checks that filters by properties are enabled. Raises RequestRejected."""
        if not self._settings.enablePropertyFilter:
            raise RequestRejected(
                ResponseCode.SYSTEM_ERROR,
                f"The broker does not support consumer to filter message by {data.expression_type}",
            )

    def _sql(self, data: SubscriptionData) -> Filter:
        """Compiles an expression. Raises RequestRejected."""
        begun = perf_counter()
        try:
            return self._filters.compiled(data.expression)
        except FilterSyntaxError as error:
            raise RequestRejected(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"parse the consumer's subscription failed: {error}"
            ) from None
        finally:
            self._slices.charge(perf_counter() - begun)

    def _read(self, made: Pull) -> tuple[Got, int]:
        """Reads the records and returns them with the code of an answer at this moment."""
        header = made.header
        most = min(made.max_count, self._settings.maxTransferCountOnMessageInMemory)
        most_bytes = self._settings.maxTransferBytesOnMessageInMemory
        condition = made.filter
        if condition is None:
            got = self._store.get(header.topic, header.queueId, made.offset, most, most_bytes, made.codes)
        else:
            begun = perf_counter()
            ends = begun + SLICE_S
            got = self._store.get(
                header.topic,
                header.queueId,
                made.offset,
                most,
                most_bytes,
                None,
                lambda record: condition(parse_properties(record.properties)),
                lambda: perf_counter() > ends,
            )
            self._slices.charge(perf_counter() - begun)
        status = got.status
        if status in (GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE):
            code = ResponseCode.PULL_NOT_FOUND if made.offset == 0 else ResponseCode.PULL_OFFSET_MOVED
        else:
            code = _CODES[status]
        if self._role.leading:
            if got.damaged >= 0:
                code = ResponseCode.SYSTEM_ERROR
            elif (
                code == ResponseCode.PULL_OFFSET_MOVED
                and not self._role.epoch_confirmed
                and made.offset >= got.max_offset
            ):
                code = ResponseCode.PULL_NOT_FOUND
        elif self._role.draining and code == ResponseCode.PULL_OFFSET_MOVED:
            code = ResponseCode.PULL_NOT_FOUND
        elif self._role.draining and code == ResponseCode.PULL_NOT_FOUND:
            pass
        elif code != ResponseCode.SUCCESS and status != GetStatus.NO_MATCHED_MESSAGE:
            code = ResponseCode.PULL_RETRY_IMMEDIATELY
        return got, int(code)

    def answer(self, made: Pull, got: Got, code: int) -> None:
        header = made.header
        next_offset = made.offset if code == ResponseCode.PULL_NOT_FOUND else got.next_offset
        ext = {
            "suggestWhichBrokerId": str(self._suggest(made, got, code)),
            "nextBeginOffset": str(next_offset),
            "minOffset": str(got.min_offset),
            "maxOffset": str(got.max_offset),
        }
        if (
            not self._role.leading
            and code == ResponseCode.PULL_RETRY_IMMEDIATELY
            and got.status != GetStatus.NO_MATCHED_MESSAGE
        ):
            ext["nextBeginOffset"] = str(made.offset)
        if code == ResponseCode.SUCCESS:
            self._count_gets(header.topic, header.consumerGroup, header.queueId, got.count, len(got.data), next_offset)
            made.conn.send(Frame.response_to(made.frame, code, "FOUND", ext, got.data))
        else:
            remark = GetStatus(got.status).name
            if got.damaged >= 0:
                remark = f"the record at offset {got.damaged} of the log is damaged on the disk and waits for repair"
            made.conn.send(Frame.response_to(made.frame, code, remark, ext))

    def _suggest(self, made: Pull, got: Got, code: int) -> int:
        """Returns the brokerId from which the consumer should pull next; 0 is the master."""
        settings = self._settings
        if self._role.leading:
            if not settings.slaveReadEnable or code != ResponseCode.SUCCESS:
                return _MASTER
            if self._slave_reads.far_behind(got):
                return self._slave_reads.slave_for(made.group.which_broker_when_slow, got)
            return made.group.broker_id
        served = code == ResponseCode.SUCCESS or got.status == GetStatus.NO_MATCHED_MESSAGE
        if not served or not settings.slaveReadEnable or not self._slave_reads.far_behind(got):
            return _MASTER
        return self._role.broker_id
