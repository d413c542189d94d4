"""Dead letters of a consumer group: list, read and resend them.

A message that fails too often goes to `%DLQ%group`, which no group consumes. A resent letter goes to the group's own
retry topic: this group gets it with all retries, and no other group of the topic sees it. Members that pull read
`%RETRY%group`, members that pop (POP, gRPC) read `%RETRY%group+topic`. The brokers store the progress of resends, as an
offset of a tools group in the dead-letter queue.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Final, Self

from gantry_broker.client.admin import Admin
from gantry_broker.client.credentials import Credentials
from gantry_broker.client.errors import CannotResend, NoRoute
from gantry_broker.client.message import ReceivedMessage, SendResult, check_group, check_topic
from gantry_broker.client.producer import Producer
from gantry_broker.client.pulling import BATCH, PullStatus
from gantry_broker.client.session import Session
from gantry_broker.client.subscription import subscription
from gantry_broker.protocol.bodies import TopicConfig
from gantry_broker.protocol.codes import DLQ_PREFIX, MASTER_ID, RETRY_PREFIX, Prop
from gantry_broker.protocol.fastjson import MessageQueue
from gantry_broker.protocol.pop_handle import retry_topic_v1, retry_topic_v2
from gantry_broker.remoting.tls import TlsOptions

MARK_GROUP: Final = "TOOLS_CONSUMER"
"""The group whose offset marks the resent part of a dead-letter queue. Every RocketMQ broker knows it."""
_DROPPED_PROPERTIES: Final = frozenset(
    {
        Prop.DELAY_TIME_LEVEL,
        Prop.DLQ_ORIGIN_MESSAGE_ID,
        Prop.DLQ_ORIGIN_TOPIC,
        Prop.FIRST_POP_TIME,
        Prop.POP_ORIGIN,
        Prop.POP_CK,
        Prop.MAX_OFFSET,
        Prop.MAX_RECONSUME_TIMES,
        Prop.MIN_OFFSET,
        Prop.PRODUCER_GROUP,
        Prop.REAL_QUEUE_ID,
        Prop.REAL_TOPIC,
        Prop.RECONSUME_TIME,
        Prop.CLUSTER,
        Prop.TIMER_DELAY_MS,
        Prop.TIMER_DELAY_SEC,
        Prop.TIMER_DELIVER_MS,
        Prop.TIMER_OUT_MS,
        Prop.TRANSACTION_PREPARED,
        Prop.WAIT_STORE_MSG_OK,
    }
)
"""Properties that belong to the failed deliveries; a resent letter does not carry them."""


PULL: Final = "pull"
POP: Final = "pop"
WAYS: Final = (PULL, POP)
"""How the members of a group consume."""
KNOWN_S: Final = 5.0
"""Seconds for which it is remembered how a group consumes."""


@dataclass(slots=True, frozen=True)
class Consumption:
    """What is known of how a group consumes a topic."""

    pulls_now: bool = False
    """It has members that read `%RETRY%group`."""
    pops_now: bool = False
    """Pops of it wait."""
    pulled: bool = False
    """It has offsets in `%RETRY%group`."""
    popped: bool = False
    """It has popped from the topic, or from its retries."""
    in_order: bool = False
    """Its configuration says that it consumes in order."""

    def way(self, *, letter_popped: bool) -> str | None:
        """Return `PULL` or `POP`; None: it is not known. `letter_popped`: the letter shows that it was popped.

        Who is there counts first: where some pull and some pop, a letter for those that pull reaches the group.
        """
        if self.pulls_now or self.pops_now:
            return PULL if self.pulls_now else POP
        if self.pulled != self.popped:
            return PULL if self.pulled else POP
        return POP if letter_popped and not self.pulled else None


@dataclass(slots=True, frozen=True)
class DeadGroup:
    """The dead letters of one consumer group. Times are milliseconds since 1970, 0: none."""

    group: str
    letters: int
    """Messages in the dead-letter queues."""
    waiting: int
    """Messages after the mark, not passed by `send_again` with `mark` yet."""
    last_ms: int
    """Store time of the last one."""


@dataclass(slots=True, frozen=True)
class Page:
    """Consecutive letters of one queue; the next page begins at `next_offset`."""

    queue: MessageQueue
    letters: list[ReceivedMessage]
    next_offset: int


def origin_topic(letter: ReceivedMessage) -> str:
    """Return the topic that the producer sent a dead letter to."""
    properties = letter.properties
    return properties.get(Prop.RETRY_TOPIC) or properties.get(Prop.DLQ_ORIGIN_TOPIC) or letter.topic


class DeadLetters:
    """Dead letters of all brokers that a NameServer knows.

    async with DeadLetters("127.0.0.1:9876") as dead:
        async for page in dead.pages("billing"):
            for letter in page.letters:
                await dead.send_again("billing", letter)
    """

    def __init__(
        self,
        name_servers: str | Sequence[str] | Session,
        *,
        timeout: float = 10.0,
        credentials: Credentials | None = None,
        tls: TlsOptions | ssl.SSLContext | None = None,
    ) -> None:
        """`timeout`: seconds for all attempts to send one letter."""
        self._producer = Producer(name_servers, timeout=timeout, credentials=credentials, tls=tls)
        self.admin = Admin(self._producer.session)
        self._consumptions: dict[tuple[str, str], tuple[float, Consumption]] = {}

    async def __aenter__(self) -> Self:
        await self._producer.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._producer.close()

    async def groups(self) -> list[DeadGroup]:
        """Return the groups that have dead letters. Raises RemotingError, BrokerError, BodyError."""
        topics = [topic for topic in await self.admin.topics() if topic.startswith(DLQ_PREFIX)]
        groups = await asyncio.gather(*(self._count(topic) for topic in topics))
        return [group for group in groups if group is not None]

    async def group(self, group: str) -> DeadGroup | None:
        """Return one group's counts; None: it has no dead-letter topic. Raises as `groups`, and InvalidMessage for
        a bad name.
        """
        check_group(group)
        return await self._count(DLQ_PREFIX + group)

    async def _count(self, topic: str) -> DeadGroup | None:
        try:
            table = await self.admin.topic_stats(topic)
        except NoRoute:
            return None
        letters = waiting = last = 0
        for queue, where in table.items():
            letters += where.max_offset - where.min_offset
            waiting += where.max_offset - max(where.min_offset, await self._read_mark(queue))
            last = max(last, where.last_update)
        return DeadGroup(topic.removeprefix(DLQ_PREFIX), letters, max(waiting, 0), last)

    async def pages(self, group: str, *, waiting_only: bool = False) -> AsyncGenerator[Page, None]:
        """Yield the letters that exist at the start, queue by queue; `waiting_only`: only those after the mark.

        Raises NoRoute when the group has none, BrokerError when a queue cannot be read.
        """
        check_group(group)
        topic = DLQ_PREFIX + group
        puller = self.admin.puller()
        everything = subscription(topic, "*")
        for queue in await self.admin.readable_queues(topic):
            end = await puller.max_offset(queue)
            at = await puller.min_offset(queue)
            if waiting_only:
                at = max(at, await self._read_mark(queue))
            while at < end:
                result = await puller.pull(queue, at, everything, count=BATCH, suspend_ms=0)
                if result.status is PullStatus.NO_NEW or result.next_offset <= at:
                    break
                letters = [letter for letter in result.messages if at <= letter.queue_offset < end]
                at = min(result.next_offset, end)
                yield Page(queue, letters, at)

    async def find(self, group: str, message_id: str) -> list[ReceivedMessage]:
        """Return the group's letters with this unique id. Raises as `pages`."""
        check_group(group)
        return await self.admin.query(DLQ_PREFIX + group, message_id, unique=True)

    async def send_again(
        self, group: str, letter: ReceivedMessage, *, to: str | None = None, way: str | None = None
    ) -> SendResult:
        """Send a letter to its group again, or to topic `to`, where every group of that topic gets it.

        The letter keeps its body, tags, keys, unique id and application properties. Its retry count starts at 0. `way`:
        how the group consumes, `PULL` or `POP`; None: as the brokers know it. Raises as `Producer.send`,
        InvalidMessage, and CannotResend when no topic is known that the group reads.
        """
        if to is None:
            topic = await self.topic_for(group, letter, way=way, make=True)
        else:
            check_topic(to)
            topic = to
        properties = {name: value for name, value in letter.properties.items() if name not in _DROPPED_PROPERTIES}
        if to is None:
            properties[Prop.RETRY_TOPIC] = origin_topic(letter)
        else:
            properties.pop(Prop.RETRY_TOPIC, None)
            properties.pop(Prop.ORIGIN_MESSAGE_ID, None)
        return await self._producer.send_stored(letter, topic, properties)

    async def topic_for(
        self, group: str, letter: ReceivedMessage, *, way: str | None = None, make: bool = False
    ) -> str:
        """Return the topic in which a letter reaches its group, however that consumes. `make`: creates the topic where
        it does not exist. Raises CannotResend, InvalidMessage, RemotingError, BrokerError and BodyError.
        """
        check_group(group)
        origin = origin_topic(letter)
        consumption = await self._consumption(group, origin)
        popped = bool({Prop.FIRST_POP_TIME, Prop.POP_ORIGIN} & letter.properties.keys())
        way = consumption.way(letter_popped=popped) if way is None else way
        if way is None:
            before = "has both pulled and popped before" if consumption.pulled else "has no offsets that show it"
            raise CannotResend(
                f"it is not known how group {group} consumes {origin}: it has no member now, and {before}. Start a "
                "member, or say how it consumes: --consume pull, or --consume pop for POP and gRPC"
            )
        if way == PULL:
            return RETRY_PREFIX + group
        if consumption.in_order:
            raise CannotResend(
                f"group {group} pops in order, and such members read no retry topic: send the letters to the topic "
                f"itself, where every group of it gets them: --to {origin}"
            )
        topic = retry_topic_v2(group, origin)
        if make:
            await self._make(topic, origin)
        return topic

    async def _make(self, topic: str, origin: str) -> None:
        """Create a topic with retries of POP on the brokers of its topic. Raises CannotResend."""
        try:
            route = await self.admin.topic_route(origin)
        except NoRoute:
            text = f"topic {origin} does not exist any more: send the letters to another one by --to"
            raise CannotResend(text) from None
        try:
            have = {data.broker for data in (await self.admin.topic_route(topic)).queues}
        except NoRoute:
            have = set()
        if have:
            return
        for broker in route.brokers:
            address = broker.addresses.get(MASTER_ID)
            if address is not None:
                await self.admin.create_topic_at(address, TopicConfig(topic, 1, 1))

    async def _consumption(self, group: str, topic: str) -> Consumption:
        """Return how far a group is in a topic. Raises RemotingError, BrokerError and BodyError."""
        at, consumption = self._consumptions.get((group, topic), (0.0, None))
        if consumption is None or time.monotonic() - at > KNOWN_S:
            consumption = await self._ask_consumption(group, topic)
            self._consumptions[group, topic] = time.monotonic(), consumption
        return consumption

    async def _ask_consumption(self, group: str, topic: str) -> Consumption:
        members = await self.admin.consumer_connections(group)
        read = {queue.topic for queue in await self.admin.consume_stats(group)}
        pops_now = in_order = False
        popped = bool(read & {retry_topic_v2(group, topic), retry_topic_v1(group, topic)})
        for address in (await self.admin.masters()).values():
            config = (await self.admin.groups(address)).get(group)
            if config is None:
                continue  # A question about its pops would make it.
            in_order = in_order or config.orderly
            waiting, ever = await self.admin.pops(address, group, topic)
            pops_now, popped = pops_now or waiting > 0, popped or ever
        return Consumption(
            pulls_now=members is not None and RETRY_PREFIX + group in members.subscriptions,
            pops_now=pops_now,
            pulled=RETRY_PREFIX + group in read,
            popped=popped,
            in_order=in_order,
        )

    async def mark(self, page: Page) -> None:
        """Mark a queue as resent up to the end of a page. A mark only moves forward.

        Raises BrokerError.
        """
        if page.next_offset > await self._read_mark(page.queue):
            await self.admin.set_offset(MARK_GROUP, page.queue, page.next_offset)

    async def _read_mark(self, queue: MessageQueue) -> int:
        return await self.admin.offset(MARK_GROUP, queue) or 0
