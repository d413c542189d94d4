"""The simple consumer: receives messages on request, and acknowledges each one (POP, RocketMQ 5.x).

No queue belongs to a member, so members come and go without a rebalance, and a slow one holds up no one. A message that
is not acknowledged within its invisible time is delivered again, to any member. A failover of the broker changes
neither what is acknowledged nor until when a message is invisible.

A poll waits at each broker group and for each topic. The first one that finds messages ends `receive`; what the others
find later is kept for the next call.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import ssl
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from gantry_broker.client.credentials import Credentials
from gantry_broker.client.errors import BrokerError, ClientError, NoRoute
from gantry_broker.client.message import FromWhere, ReceivedMessage, check_group, check_topic
from gantry_broker.client.proxy_address import proxy_of
from gantry_broker.client.session import BACKOFF_FIRST, Session, next_backoff, session_of
from gantry_broker.client.subscription import subscription, wanted
from gantry_broker.protocol.bad_field import BadField
from gantry_broker.protocol.bodies import ConsumerData, SubscriptionData
from gantry_broker.protocol.codes import Perm, Prop, RequestCode, ResponseCode
from gantry_broker.protocol.digits import whole_number
from gantry_broker.protocol.fastjson import MessageQueue
from gantry_broker.protocol.fields import BodyError
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import (
    AckHeader,
    ChangeInvisibleAnswerHeader,
    ChangeInvisibleHeader,
    Long,
    PopAnswerHeader,
    PopHeader,
)
from gantry_broker.protocol.message import Record, RecordError, decode_records
from gantry_broker.protocol.pop_batches import batch_frame, batch_of, without_effect
from gantry_broker.protocol.pop_handle import Handle, of_delivery, parse_handle, topic_type
from gantry_broker.remoting.errors import RemotingError
from gantry_broker.remoting.tls import TlsOptions
from gantry_broker.tasks import Started, end_tasks, set_within

if TYPE_CHECKING:
    from gantry_broker.client.grpc_endpoint import GrpcReceiver

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_MESSAGES: Final = 32
MAX_INVISIBLE_S: Final = 43_200.0
MAX_WAIT_S: Final = 60.0
ANSWER_S: Final = 5.0
"""Seconds for the answer to a request, beside the time for which it waits at the broker."""
PROXY_ANSWER_S: Final = 1.0
"""The same at a proxy, which waits for at least 5 s: what it finds later is kept for the next `receive`."""
TRY_S: Final = 15.0
"""Seconds for which an acknowledgement or a change is tried again while a broker group has no master."""
LEAST_LEFT: Final = 0.2
"""A message that was kept needs this part of its invisible time when it is given out."""
_EMPTY: Final = frozenset(
    {ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL, ResponseCode.PULL_NOT_FOUND, ResponseCode.NO_MESSAGE}
)
_AGAIN: Final = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR})
"""Codes of answers after which the same request may succeed: the group changes its master."""
_POP_CK: Final = Prop.POP_CK.encode()
_FAILURES: Final = (RemotingError, BrokerError, ClientError, BodyError, BadField, RecordError)

TopicAtGroup = tuple[str, str]
"""(topic, broker group)."""


class PoppedMessage(ReceivedMessage):
    """A message that waits for its acknowledgement."""

    __slots__ = ("_handle", "visible_at")

    def __init__(self, record: Record, broker: str, topic: str, handle: str | Handle, visible_at: float) -> None:
        """`visible_at`: about when others may get the message, by the event loop's clock."""
        super().__init__(record, broker, topic)
        self._handle = handle
        self.visible_at = visible_at

    @property
    def handle(self) -> str:
        """RocketMQ's text for this delivery."""
        return str(self._handle)

    @handle.setter
    def handle(self, text: str) -> None:
        self._handle = text

    def parsed_handle(self) -> Handle:
        """Parse the handle. Raises BadHandle."""
        handle = self._handle
        return handle if isinstance(handle, Handle) else parse_handle(handle, self.queue_offset)

    @property
    def delivery_attempt(self) -> int:
        """1 for the first delivery."""
        return self.reconsume_times + 1


Waiting = tuple[PoppedMessage, "asyncio.Future[None]"]
"""An acknowledgement, and its end."""


class SimpleConsumer(Started):
    """Receives and acknowledges as a member of a group.

    async with SimpleConsumer("127.0.0.1:9876", "billing") as consumer:
        await consumer.subscribe("Orders")
        for message in await consumer.receive():
            ...
            await consumer.ack(message)

    With "grpc://HOST:PORT", a proxy, it speaks gRPC.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str] | Session,
        group: str,
        *,
        from_where: FromWhere = FromWhere.FIRST,
        invisible_s: float = 30.0,
        ordered: bool = False,
        tls: TlsOptions | ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """`from_where`: FIRST or LAST, for queues that the group has never read. `invisible_s`: for `receive` calls
        that name no other time. `ordered`: the messages of a queue come one batch after the other, the next after the
        acknowledgement of the one before. `tls`, `credentials`: see `Session`. By gRPC the proxy says where a new group
        begins, and the group's `consumeMessageOrderly` whether it is ordered.
        """
        check_group(group)
        if from_where is FromWhere.TIMESTAMP:
            raise ValueError("from_where is TIMESTAMP; write FIRST or LAST, and reset the group's offsets by time")
        self.group = group
        self._grpc: GrpcReceiver | None = None
        proxy = proxy_of(name_servers)
        if proxy is None:
            self.session = session_of(name_servers, credentials, tls)
        elif ordered:
            raise ValueError("by gRPC the group says whether it is ordered (consumeMessageOrderly): leave out ordered")
        else:
            from gantry_broker.client.grpc_endpoint import GrpcReceiver

            self._grpc = GrpcReceiver(proxy, group, credentials, tls)
        self._from_where = from_where
        self._invisible_s = _seconds("invisible_s", invisible_s, MAX_INVISIBLE_S)
        self._ordered = ordered
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._polls: dict[TopicAtGroup, asyncio.Task[None]] = {}
        self._former: set[asyncio.Task[None]] = set()
        """Polls for a subscription that is no more, and what gives their messages back."""
        self._attempts: dict[TopicAtGroup, str] = {}
        """The mark of an orderly pop whose answer did not come: with it the broker gives the same messages."""
        self._kept: deque[PoppedMessage] = deque()
        self._arrived = asyncio.Event()
        self._failures: dict[TopicAtGroup, Exception] = {}
        self._acks: dict[TopicAtGroup, list[Waiting]] = {}
        """Acknowledgements that this pass of the event loop has gathered."""
        self._turns = itertools.count()
        self._open = False

    async def start(self) -> None:
        if self._grpc is not None:
            await self._grpc.endpoint.start()
            self._open = True
            return
        await self.session.start()
        self._open = True
        self.session.consumers[self.group] = self.consumer_data
        await self._register()

    async def close(self) -> None:
        """Give back what no `receive` took, and leave the group."""
        if not self._open:
            return
        self._open = False
        polls = [*self._polls.values(), *self._former]
        await end_tasks(*polls)
        kept, self._kept = list(self._kept), deque()
        await asyncio.gather(*(self._give_back(message) for message in kept))
        if self._grpc is not None:
            await self._grpc.endpoint.close()
            return
        await self.session.unregister(consumer=self.group)
        self.session.consumers.pop(self.group, None)
        await self.session.close()

    async def subscribe(self, topic: str, expression: str = "*", *, sql: bool = False) -> None:
        """Receives a topic's messages with one of these tags ("A || B"), or that match an SQL92 condition.

        Raises InvalidMessage for a malformed expression.
        """
        check_topic(topic)
        self._subscriptions[topic] = data = subscription(topic, expression, sql=sql)
        self._drop(topic)
        if self._grpc is not None:
            self._grpc.subscribe(topic, data)
        elif self._open:
            await self._register()

    async def unsubscribe(self, topic: str) -> None:
        self._subscriptions.pop(topic, None)
        self._drop(topic)
        if self._grpc is not None:
            self._grpc.unsubscribe(topic)
        elif self._open:
            await self._register()

    def _drop(self, topic: str) -> None:
        """Give back what was received for another subscription, or none: now, and when its polls end."""
        for place in [place for place in self._polls if place[0] == topic]:
            poll = self._polls.pop(place)
            self._former.add(poll)
            poll.add_done_callback(self._former.discard)
        dropped = [message for message in self._kept if message.topic == topic]
        if dropped:
            self._kept = deque(message for message in self._kept if message.topic != topic)
            self._return(dropped)

    def _return(self, messages: Sequence[PoppedMessage]) -> None:
        for message in messages:
            task = asyncio.get_running_loop().create_task(self._give_back(message))
            self._former.add(task)
            task.add_done_callback(self._former.discard)

    def consumer_data(self) -> ConsumerData:
        """Return this consumer's part of a heartbeat."""
        data = list(self._subscriptions.values())
        return ConsumerData(self.group, "CONSUME_ACTIVELY", "CLUSTERING", self._from_where.value, data)

    async def _register(self) -> None:
        for topic in list(self._subscriptions):
            try:
                await self.session.route(topic)
            except _FAILURES as error:
                log.info("%s: route of %s: %s", self.group, topic, error)
        await self.session.send_heartbeats()

    # Receiving

    async def receive(
        self, max_messages: int = 16, *, invisible_s: float | None = None, wait_s: float = 15.0
    ) -> list[PoppedMessage]:
        """Wait up to `wait_s` seconds for a first message, and return up to `max_messages` (at most 32).

        They are invisible to others for `invisible_s`. Raises BrokerError when a broker refuses (permission, group,
        condition), ValueError for a number out of range, NoRoute when no topic that is subscribed to exists.
        """
        if not 1 <= max_messages <= MAX_MESSAGES:
            raise ValueError(f"max_messages is {max_messages}; 1 to {MAX_MESSAGES} are allowed")
        invisible = self._invisible_s if invisible_s is None else _seconds("invisible_s", invisible_s, MAX_INVISIBLE_S)
        wait = 0.0 if wait_s == 0 else _seconds("wait_s", wait_s, MAX_WAIT_S)
        if not self._open:
            raise ClientError("the consumer is not started")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        pause = BACKOFF_FIRST
        while True:
            messages = self._take(max_messages, invisible)
            if messages:
                return messages
            places = await self._places()
            self._arrived.clear()
            left = max(deadline - loop.time(), 0.0)
            self._failures.clear()
            for place in places:
                if place not in self._polls:
                    poll = loop.create_task(self._poll(place, max_messages, invisible, left))
                    self._polls[place] = poll
                    poll.add_done_callback(partial(self._polled, place))
            if not await set_within(self._arrived, left + (ANSWER_S if self._grpc is None else PROXY_ANSWER_S)):
                return self._take(max_messages, invisible)
            if self._kept:
                continue
            left = deadline - loop.time()
            if self._failures.keys() >= set(places):
                failure = next(iter(self._failures.values()))
                if left <= 0 or (isinstance(failure, BrokerError) and failure.code not in _AGAIN):
                    raise failure
                await asyncio.sleep(min(pause, left))
                pause = next_backoff(pause)
            elif left <= 0:
                return []

    def keep(self, messages: Sequence[PoppedMessage]) -> None:
        """Keep messages that `receive` returned for the next call of it, before all others."""
        self._kept.extendleft(reversed(messages))

    def _take(self, most: int, invisible_s: float) -> list[PoppedMessage]:
        """Take kept messages that are invisible long enough; the broker delivers the others again."""
        now = asyncio.get_running_loop().time()
        messages: list[PoppedMessage] = []
        while self._kept and len(messages) < most:
            message = self._kept.popleft()
            if message.visible_at - now >= LEAST_LEFT * invisible_s:
                messages.append(message)
        return messages

    async def _places(self) -> list[TopicAtGroup]:
        """Return the topics and broker groups to ask, another one first each time. Raises NoRoute."""
        places = []
        for topic in self._subscriptions if self._grpc is None else ():
            route = await self.session.route(topic)
            if route is None:
                route = await self.session.route(topic, fresh=True, max_age=1.0)
            for data in route.queues if route is not None else ():
                if data.perm & Perm.READ and data.read_queues:
                    places.append((topic, data.broker))
        if self._grpc is not None:
            places = [(topic, broker) for topic in self._subscriptions for broker in await self._grpc.brokers(topic)]
        if not places:
            raise NoRoute(f"no broker has a topic of {sorted(self._subscriptions)}")
        first = next(self._turns) % len(places)
        return places[first:] + places[:first]

    def _polled(self, place: TopicAtGroup, poll: asyncio.Task[None]) -> None:
        if self._polls.get(place) is poll:
            del self._polls[place]
        self._arrived.set()

    async def _poll(self, place: TopicAtGroup, most: int, invisible_s: float, wait_s: float) -> None:
        topic, broker = place
        data = self._subscriptions.get(topic)
        if data is None:
            return
        try:
            messages = await self._pop(topic, broker, most, invisible_s, wait_s)
        except _FAILURES as error:
            if self._subscriptions.get(topic) is not data:
                return
            self._failures[place] = error
            if not isinstance(error, BrokerError) or error.code in _AGAIN:
                log.info("%s: pop of %s at %s: %s", self.group, topic, broker, error)
                await self._look_again(topic)
        else:
            if self._subscriptions.get(topic) is data:
                self._kept += messages
            else:
                self._return(messages)

    async def _look_again(self, topic: str) -> None:
        """Fetch the route of a topic whose broker group failed."""
        if self._grpc is None:
            await self.session.route_after_failure(topic)
        else:
            self._grpc.endpoint.forget(topic)

    async def _pop(self, topic: str, broker: str, most: int, invisible_s: float, wait_s: float) -> list[PoppedMessage]:
        loop = asyncio.get_running_loop()
        if self._grpc is not None:
            found_there = await self._grpc.pop(MessageQueue(topic, broker, -1), most, invisible_s, wait_s)
            until = loop.time() + invisible_s
            return [PoppedMessage(record, broker, topic, handle, until) for record, handle in found_there]
        data = self._subscriptions[topic]
        attempt = self._attempts.setdefault((topic, broker), uuid.uuid4().hex) if self._ordered else None
        header = PopHeader(
            self.group,
            topic,
            -1,
            most,
            Long(int(invisible_s * 1000)),
            Long(int(wait_s * 1000)),
            Long(0),
            0 if self._from_where is FromWhere.FIRST else 1,
            data.expression_type,
            data.expression,
            self._ordered,
            attempt,
        )
        address = await self.session.master(broker, topic)
        frame = Frame(RequestCode.POP_MESSAGE, ext=header.ext())
        answer = await self.session.call(address, frame, wait_s + ANSWER_S)
        self._attempts.pop((topic, broker), None)
        if answer.code in _EMPTY:
            return []
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(f"pop of {topic}", answer.code, answer.remark)
        pop = PopAnswerHeader.parse(answer)
        counts = _order_counts(pop.orderCountInfo)
        starts = _starts(pop.startOffsetInfo)
        messages, visible_at = [], loop.time() + invisible_s
        for record in decode_records(answer.body):
            text = record.props.get(Prop.POP_CK) if _POP_CK in record.properties else None
            stated = of_delivery(text, pop.popTime, pop.invisibleTime, broker, record.queue_offset)
            handle = stated or _handle(record, broker, pop, starts)
            record.reconsume_times = counts.get(f"qo{record.queue_id}%{record.queue_offset}", record.reconsume_times)
            message = PoppedMessage(record, broker, topic, handle, visible_at)
            if data.expression_type != "TAG" or wanted(message, data):
                messages.append(message)
            else:
                await self.ack(message)  # Its tag has the hash of another one.
        return messages

    # What is done with a message

    async def ack(self, message: PoppedMessage) -> None:
        """Finishes a message. A second time changes nothing. Calls that are made together go to the broker together.

        Raises BrokerError with NO_MESSAGE when its invisible time was over and the message is delivered again,
        RemotingError and NoRoute when the broker group is not reached for 15 s.
        """
        if self._grpc is not None:
            if await self._ack_by_grpc(self._grpc, message.topic, [message]):
                reason = "its invisible time was over, and it is delivered again"
                raise BrokerError(f"ack of {message.id}", ResponseCode.NO_MESSAGE, reason)
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        place = message.topic, message.broker
        waiting = self._acks.setdefault(place, [])
        waiting.append((message, done))
        if len(waiting) == 1:
            self.session.spawn(self._ack_all(place))
        await done

    async def _ack_all(self, place: TopicAtGroup) -> None:
        """Acknowledges what one pass of the event loop has gathered: by one request, if there is more than one."""
        waiting = self._acks.pop(place)
        try:
            left = waiting
            if len(waiting) > 1:
                alone = set(map(id, await self._ack_together(place[0], [message for message, _ in waiting])))
                left = [one for one in waiting if id(one[0]) in alone]
            if len(left) == 1:
                await self._ack_waiting(*left[0])
            elif left:
                await asyncio.gather(*(self._ack_waiting(message, done) for message, done in left))
            for _, done in waiting:
                if not done.done():
                    done.set_result(None)
        except (RemotingError, NoRoute, BrokerError) as error:
            for _, done in waiting:
                if not done.done():
                    done.set_exception(error)
        finally:
            for _, done in waiting:
                done.cancel()  # without an effect on those that have their result

    async def ack_all(self, messages: Sequence[PoppedMessage]) -> list[PoppedMessage]:
        """Finishes messages by as few requests as possible, and returns those that were too late: their invisible time
        was over and they are delivered again.

        Raises as `ack`; then some may be finished, and a second call is no harm.
        """
        places: dict[TopicAtGroup, list[PoppedMessage]] = {}
        for message in messages:
            places.setdefault((message.topic, message.broker), []).append(message)
        late = []
        if self._grpc is not None:
            for (topic, _), some in places.items():
                late += await self._ack_by_grpc(self._grpc, topic, some)
            return late
        for (topic, _), some in places.items():
            for message in some if len(some) == 1 else await self._ack_together(topic, some):
                try:
                    await self._ack_one(message)
                except BrokerError as error:
                    if error.code != ResponseCode.NO_MESSAGE:
                        raise
                    late.append(message)
        return late

    async def _ack_by_grpc(
        self, receiver: GrpcReceiver, topic: str, messages: Sequence[PoppedMessage]
    ) -> list[PoppedMessage]:
        """Acknowledge messages of one topic, and return those that were too late. Raises as `ack`."""
        entries = [(message.id, message.handle) for message in messages]
        late = await self._try_again(topic, lambda: receiver.ack(topic, entries))
        return [message for message in messages if message.handle in late]

    async def _ack_together(self, topic: str, messages: list[PoppedMessage]) -> list[PoppedMessage]:
        """Return those that need a request of their own: it says what is wrong with each. Raises as `ack`."""
        try:
            handles = [message.parsed_handle() for message in messages]
            batch = batch_of(self.group, topic, handles)
            if batch is None:
                return messages
            answer = await self._insist(messages[0], batch_frame(batch), "ack")
            void = without_effect(batch, answer)
        except BrokerError as error:
            if error.code in _AGAIN:
                raise
            return messages
        except ValueError as error:
            log.info("%s: acknowledgements in %s: %s", self.group, topic, error)
            return messages
        if void is None:
            return messages
        return [one for one, handle in zip(messages, handles, strict=True) if handle in void] if void else []

    async def _ack_one(self, message: PoppedMessage) -> None:
        header = AckHeader(self.group, message.topic, _queue_of(message), message.handle, Long(_offset_of(message)))
        await self._insist(message, Frame(RequestCode.ACK_MESSAGE, ext=header.ext()), "ack")

    async def _ack_waiting(self, message: PoppedMessage, done: asyncio.Future[None]) -> None:
        try:
            await self._ack_one(message)
        except Exception as error:
            if not done.done():
                done.set_exception(error)
        else:
            if not done.done():
                done.set_result(None)

    async def change_invisible_duration(self, message: PoppedMessage, seconds: float, *, suspend: bool = False) -> None:
        """Make a message visible to others in `seconds` from now, 0: at once, and give it a new handle.

        `suspend`: this delivery does not count as an attempt. Raises as `ack`, and ValueError.
        """
        duration = 0.0 if seconds == 0 else _seconds("seconds", seconds, MAX_INVISIBLE_S)
        if (receiver := self._grpc) is not None:
            until = asyncio.get_running_loop().time() + duration
            message.handle = await self._try_again(
                message.topic,
                lambda: receiver.change(message.topic, message.id, message.handle, duration, suspend),
            )
            message.visible_at = until
            return
        header = ChangeInvisibleHeader(
            self.group,
            message.topic,
            _queue_of(message),
            message.handle,
            Long(_offset_of(message)),
            Long(int(duration * 1000)),
            suspend,
        )
        frame = Frame(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ext=header.ext())
        visible_at = asyncio.get_running_loop().time() + duration
        answer = await self._insist(message, frame, "change of invisible time")
        changed = ChangeInvisibleAnswerHeader.parse(answer)
        words = message.handle.split(" ")
        words[0] = str(_offset_of(message))
        words[1:4] = [str(changed.popTime), str(changed.invisibleTime), str(changed.reviveQid)]
        message.handle, message.visible_at = " ".join(words), visible_at

    async def _insist(self, message: PoppedMessage, frame: Frame, what: str) -> Frame:
        """Asks until the broker group has a master that answers. Raises BrokerError, RemotingError and NoRoute."""

        async def ask() -> Frame:
            address = await self.session.master(message.broker, message.topic)
            request = Frame(frame.code, ext=dict(frame.ext), body=frame.body)
            return await self.session.call_checked(address, request, f"{what} of {message.id}")

        return await self._try_again(message.topic, ask)

    async def _try_again(self, topic: str, ask: Callable[[], Awaitable[T]]) -> T:
        """Repeat a request that may succeed later, for `TRY_S`. Raises BrokerError, RemotingError and NoRoute."""
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + TRY_S, BACKOFF_FIRST
        while True:
            try:
                return await ask()
            except (RemotingError, BrokerError, NoRoute) as error:
                if isinstance(error, BrokerError) and error.code not in _AGAIN:
                    raise
                if loop.time() + pause > deadline:
                    raise
            await asyncio.sleep(pause)
            pause = next_backoff(pause)
            await self._look_again(topic)

    async def _give_back(self, message: PoppedMessage) -> None:
        """Make a message that no one got visible again."""
        try:
            async with asyncio.timeout(1.0):
                await self.change_invisible_duration(message, 0, suspend=True)
        except (TimeoutError, *_FAILURES) as error:
            log.info("%s: %r stays invisible for its time: %s", self.group, message, error)


def _seconds(name: str, value: float, most: float) -> float:
    if not 0.001 <= value <= most:
        raise ValueError(f"{name} is {value}; seconds from 0.001 to {most:g} are allowed")
    return float(value)


def _queue_of(message: PoppedMessage) -> int:
    """Return the queue by the handle: one of the retry topic may have another number."""
    return int(message.handle.split(" ")[6])


def _offset_of(message: PoppedMessage) -> int:
    words = message.handle.split(" ")
    return int(words[7]) if len(words) > 7 else message.queue_offset


def _handle(record: Record, broker: str, header: PopAnswerHeader, starts: dict[tuple[int, int], int]) -> Handle:
    kind, queue, offset = topic_type(record.topic), record.queue_id, record.queue_offset
    start = starts.get((kind, queue), offset)
    return Handle(start, header.popTime, header.invisibleTime, header.reviveQid, kind, broker, queue, offset)


def _starts(text: str | None) -> dict[tuple[int, int], int]:
    """Return the first offset of each queue's messages, by the type of the topic and the queue."""
    starts = {}
    for part in (text or "").split(";"):
        words = part.split(" ")
        kind, queue_id, start = (whole_number(word) for word in (*words, "", "", "")[:3])
        if len(words) == 3 and kind is not None and queue_id is not None and start is not None:
            starts[kind, queue_id] = start
    return starts


def _order_counts(text: str | None) -> dict[str, int]:
    """Earlier deliveries of the messages of an orderly pop, by `qoQUEUE%OFFSET`."""
    counts = {}
    for part in (text or "").split(";"):
        words = part.split(" ")
        if len(words) == 3 and (count := whole_number(words[2])) is not None:
            counts[words[1]] = count
    return counts
