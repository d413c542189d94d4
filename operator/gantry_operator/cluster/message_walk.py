"""Pages of a topic's messages, newest first, in both directions, with filters. The walk is pure but for its reads.

All messages of a topic have one order: store time, broker group, queue, offset. A place in it is a `Place`, so a page
begins where another one ended without a list of offsets for each queue. Each page reads a bounded number of messages,
however many the topic holds: a queue gives its messages in small parts, and only while the page may still need them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, NamedTuple, Protocol

from gantry_broker.client import Admin, BrokerError, ReceivedMessage
from gantry_broker.client.pulling import Puller, PullStatus
from gantry_broker.client.subscription import subscription
from gantry_broker.protocol.codes import SysFlag
from gantry_broker.protocol.digits import MAX_LONG, whole_number
from gantry_broker.protocol.fastjson import MessageQueue
from gantry_broker.protocol.message import RecordError

PAGE: Final = 50
"""Messages of a page."""
QUEUES: Final = 1_024
"""Queues of a topic that a page looks at."""
PART: Final = 32
"""Messages of one part of a queue, at most: as many as a broker sends in one answer."""
TAG_PART: Final = 4_096
"""Offsets of one part of a queue where the broker filters by tag, at most: as many as a broker looks at for one answer.
"""
READS: Final = 512
"""Answers of brokers that one page reads, at most; four times the queues, where there are that many."""
BYTES: Final = 64 * 1024 * 1024
"""Bytes of bodies that one page reads, at most."""
SEARCH_S: Final = 5.0
"""Seconds after which a search with filters ends its page."""
AT_ONCE: Final = 16
"""Requests at the same time."""
SMALL: Final = 65_536
"""Bytes of a body that is searched within the event loop."""
MAX_PLAIN: Final = 8 * 1024 * 1024
"""Bytes of a decompressed body, at most; a larger one is not shown."""
_FAR_MS: Final = 253_402_300_800_000


class Place(NamedTuple):
    """A place in the order of all messages of a topic; no message need be there."""

    store_ms: int
    broker: str = ""
    queue: int = -1
    offset: int = -1

    def __str__(self) -> str:
        return f"{self.store_ms},{self.queue},{self.offset},{self.broker}"

    @classmethod
    def parse(cls, text: str) -> Place:
        """Return the place that `str` wrote. Raises ValueError."""
        ms, queue, offset, broker = (*text.split(",", 3), "", "", "", "")[:4]
        at, in_queue, in_group = whole_number(ms, 0, _FAR_MS), whole_number(offset, -1), whole_number(queue, -1)
        if at is None or in_queue is None or in_group is None:
            raise ValueError(f"{text[:40]!r} is no place in a topic: follow the links of the page")
        return cls(at, broker, in_group, in_queue)


def place_of(message: ReceivedMessage) -> Place:
    return Place(message.store_ms, message.broker, message.queue_id, message.queue_offset)


@dataclass(frozen=True, slots=True)
class Filters:
    """What a message must have. Empty: anything.

    `tags`: one of these, as "A || B"; `prop`: a property's name, or name=value; `text`: part of the body as UTF-8,
    in any case.
    """

    tags: str = ""
    prop: str = ""
    text: str = ""

    @property
    def by_content(self) -> bool:
        """Whether messages must be read to be chosen: a broker filters by tags only."""
        return bool(self.prop or self.text)

    def fits(self, message: ReceivedMessage) -> bool:
        """Whether properties and body are as wanted. A damaged body has no text."""
        if self.prop:
            name, given, value = self.prop.partition("=")
            present = message.properties.get(name.strip())
            if present is None or (given and present != value.strip()):
                return False
        if self.text:
            body, _ = body_of(message)
            return self.text.lower() in body.decode("utf-8", "replace").lower()
        return True

    def costly(self, message: ReceivedMessage) -> bool:
        """Whether `fits` may take longer than an event loop should wait."""
        return bool(self.text) and (
            len(message.record.body) > SMALL or bool(message.record.sys_flag & SysFlag.COMPRESSED)
        )


def body_of(message: ReceivedMessage) -> tuple[bytes, str]:
    """Return the body, decompressed, and why it cannot be read: empty if it can."""
    try:
        return message.record.payload(MAX_PLAIN), ""
    except RecordError as error:
        return b"", str(error)


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Offsets of a queue: the first one, and the one after the last.

    `last_ms`: the store time of the last message (Unix ms; 0: not known).
    """

    first: int
    end: int
    last_ms: int = 0


class TopicReader(Protocol):
    """Reads one topic."""

    async def ranges(self) -> Mapping[MessageQueue, QueueRange]: ...

    async def offset_at(self, queue: MessageQueue, ms: int) -> int:
        """Return the first offset with a store time at or after `ms`, or the one after the last message."""
        ...

    async def pull(
        self, queue: MessageQueue, offset: int, count: int, tags: str
    ) -> tuple[Sequence[ReceivedMessage], int]:
        """Messages from `offset` on, and where to continue: further than `offset`, unless nothing is there."""
        ...


@dataclass(slots=True)
class Page:
    """Messages, newest first. `older`, `newer`: where the next pages begin; None: there is nothing."""

    messages: list[ReceivedMessage] = field(default_factory=list)
    older: Place | None = None
    newer: Place | None = None
    looked_at: int = 0
    """Messages that were compared with the filter."""
    stopped_at: Place | None = None
    """How far a search came that found less than a page within its limits; None: it looked at everything."""


@dataclass(slots=True)
class _Part:
    """What is left of one queue in the direction of the walk."""

    queue: MessageQueue
    low: int
    high: int
    """Offsets that are not read yet: from `low` to the one before `high`."""
    bound: int
    """No message that is not read yet is further ahead in the walk than this time (Unix ms)."""
    tag_size: int = 0
    """Offsets of the next part where the broker filters by tag; 0: none was read yet."""
    read: list[tuple[Place, ReceivedMessage | None]] = field(default_factory=list)
    """Read and not given yet; the next one is last. None: a place that the search passed, without a message."""

    @property
    def more(self) -> bool:
        return self.low < self.high


class Walk:
    """One page in one direction. `older`: towards older messages, from `begin` on (None: from the newest)."""

    def __init__(
        self,
        reader: TopicReader,
        filters: Filters,
        begin: Place | None,
        *,
        older: bool,
        count: int = PAGE,
        search_s: float = SEARCH_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin a page. `search_s`: seconds after which a search with filters ends it."""
        self._reader = reader
        self._filters = filters
        self._begin = begin
        self._older = older
        self._count = count
        self._search_s = search_s
        self._clock = clock
        self._reads = 0
        self._bytes = 0
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def page(self) -> Page:
        """Read the page. Raises what the reader raises."""
        ends_at = self._clock() + self._search_s
        parts = [part for part in await self._parts() if part.more]
        reads = max(READS, 4 * len(parts))
        page = Page()
        last: Place | None = None
        filtered = self._filters.by_content or bool(self._filters.tags)
        while len(page.messages) < self._count:
            ahead = self._ahead(parts)
            need = self._needed(parts, ahead)
            if need:
                spent = self._reads >= reads or self._bytes >= BYTES or (filtered and self._clock() > ends_at)
                if spent:
                    page.stopped_at = last or self._begin
                    break
                await asyncio.gather(*(self._read(part, len(parts)) for part in need))
                continue
            if ahead is None:
                break
            place, message = ahead.read.pop()
            last = place
            if message is None:
                continue
            page.looked_at += 1
            fits = self._filters.fits
            if await asyncio.to_thread(fits, message) if self._filters.costly(message) else fits(message):
                page.messages.append(message)
        rest = any(part.read or part.more for part in parts)
        self._links(page, last, rest)
        return page

    def _links(self, page: Page, last: Place | None, rest: bool) -> None:
        if self._older:
            page.older = last if rest else None
            # The walk began somewhere: what is newer begins behind the newest message that was shown.
            if page.messages:
                page.newer = None if self._begin is None else place_of(page.messages[0])
            elif self._begin is not None:  # The message at this place itself may have been the end of another page.
                page.newer = self._begin._replace(offset=max(self._begin.offset - 1, -1))
        else:
            page.newer = last if rest else None
            page.older = place_of(page.messages[0]) if page.messages else self._begin
            page.messages.reverse()

    def _ahead(self, parts: Sequence[_Part]) -> _Part | None:
        """Return the queue whose next message comes first."""
        ready = [part for part in parts if part.read]
        if not ready:
            return None
        return (max if self._older else min)(ready, key=lambda part: part.read[-1][0])

    def _needed(self, parts: Sequence[_Part], ahead: _Part | None) -> list[_Part]:
        """Queues that may hold a message before the next one, the likeliest first."""
        empty = [part for part in parts if not part.read and part.more]
        if ahead is not None:
            at = ahead.read[-1][0].store_ms
            empty = [part for part in empty if (part.bound >= at if self._older else part.bound <= at)]
        empty.sort(key=lambda part: -part.bound if self._older else part.bound)
        return empty[:AT_ONCE]

    async def _parts(self) -> list[_Part]:
        ranges = dict(sorted((await self._reader.ranges()).items())[:QUEUES])
        begin = self._begin
        if begin is None:
            bounds = [r.last_ms or _FAR_MS for r in ranges.values()]
            return [_Part(q, r.first, r.end, b) for (q, r), b in zip(ranges.items(), bounds, strict=True)]
        at = await asyncio.gather(*(self._offset(queue, begin) for queue in ranges))
        parts = []
        for (queue, bounds_of), offset in zip(ranges.items(), at, strict=True):
            offset = min(max(offset, bounds_of.first), bounds_of.end)
            low, high = (bounds_of.first, offset) if self._older else (offset, bounds_of.end)
            parts.append(_Part(queue, low, high, begin.store_ms))
        return parts

    async def _offset(self, queue: MessageQueue, begin: Place) -> int:
        """Return the first offset of the queue that is behind the place, in order of time; at the place itself only
        when the walk goes towards older messages.
        """
        mine, place = (queue.broker, queue.queue_id), (begin.broker, begin.queue)
        if mine == place:
            return begin.offset if self._older else begin.offset + 1
        async with self._turn:
            # Messages of the same millisecond are before the place in queues of a lower order.
            return await self._reader.offset_at(queue, begin.store_ms + (1 if mine < place else 0))

    async def _read(self, part: _Part, queues: int) -> None:
        async with self._turn:
            # Every queue brings a share of the page, and double as much at once as it will likely need.
            share = min(max(2 * self._count // queues, 4), PART)
            if self._filters.tags:
                await self._read_by_tag(part, share)
            else:
                await self._read_all(part, PART if self._filters.by_content else share)
        if part.read:
            part.bound = part.read[0][0].store_ms

    async def _read_all(self, part: _Part, count: int) -> None:
        if not self._older:
            messages_read, part.low = await self._pull(part.queue, part.low, min(count, part.high - part.low), "")
            part.read = [(place_of(m), m) for m in reversed(messages_read) if m.queue_offset < part.high]
            return
        at = first = max(part.low, part.high - count)
        messages: list[ReceivedMessage] = []
        while at < part.high:
            messages_read, behind = await self._pull(part.queue, at, part.high - at, "")
            messages += [m for m in messages_read if m.queue_offset < part.high]
            if behind <= at:
                break
            at = behind
        part.high = first
        part.read = [(place_of(m), m) for m in messages]

    async def _read_by_tag(self, part: _Part, share: int) -> None:
        """Read a part that has about a share of messages: the next one is larger when the tag turns out to be rare."""
        size = min(part.high - part.low, part.tag_size or share)
        at, end = (part.high - size, part.high) if self._older else (part.low, part.low + size)
        # The message at the far end says how far the search came, whether it has the tag or not.
        edge, _ = await self._pull(part.queue, at if self._older else end - 1, 1, "")
        rows: list[tuple[Place, ReceivedMessage | None]] = []
        low = at
        while low < end:
            some, behind = await self._pull(part.queue, low, PART, self._filters.tags)
            rows += [(place_of(m), m) for m in some if m.queue_offset < end]
            if behind <= low:
                break
            low = behind
        if 2 * len(rows) < share:
            part.tag_size = min(4 * size, TAG_PART)
        elif len(rows) > 2 * share:
            part.tag_size = max(size // 4, share)
        places = {place for place, _ in rows}
        rows += [(place_of(m), None) for m in edge if place_of(m) not in places and at <= m.queue_offset < end]
        part.read = sorted(rows, key=lambda row: row[0].offset, reverse=not self._older)
        if self._older:
            part.high = at
        else:
            part.low = end

    async def _pull(
        self, queue: MessageQueue, offset: int, count: int, tags: str
    ) -> tuple[Sequence[ReceivedMessage], int]:
        self._reads += 1
        messages, behind = await self._reader.pull(queue, offset, min(count, PART), tags)
        self._bytes += sum(len(m.record.body) for m in messages)
        return messages, max(behind, offset)


class AdminReader:
    """Reads a topic of a cluster by RocketMQ's requests."""

    def __init__(self, admin: Admin, topic: str) -> None:
        self._admin = admin
        self._topic = topic
        self._puller: Puller = admin.puller()

    async def ranges(self) -> Mapping[MessageQueue, QueueRange]:
        readable = set(await self._admin.readable_queues(self._topic))
        stats = await self._admin.topic_stats(self._topic)
        return {q: QueueRange(s.min_offset, s.max_offset, s.last_update) for q, s in stats.items() if q in readable}

    async def offset_at(self, queue: MessageQueue, ms: int) -> int:
        return await self._puller.offset_at(queue, min(max(ms, 0), _FAR_MS))

    async def pull(
        self, queue: MessageQueue, offset: int, count: int, tags: str
    ) -> tuple[Sequence[ReceivedMessage], int]:
        data = subscription(self._topic, tags or "*")
        try:
            result = await self._puller.pull(queue, offset, data, count=count, suspend_ms=0)
        except RecordError:  # A damaged message does not hide those behind it.
            return ([], offset + 1) if count == 1 else await self.pull(queue, offset, 1, tags)
        return (result.messages if result.status is PullStatus.FOUND else []), result.next_offset


async def by_key(admin: Admin, topic: str, key: str, filters: Filters, before: Place | None) -> Page:
    """Return a page of the messages with a key, from the index of the brokers: newest first, older than `before`."""
    limit = 64  # as RocketMQ's tools ask
    end_ms = MAX_LONG if before is None else before.store_ms
    hits = await admin.query(topic, key, count=limit, end_ms=end_ms)
    tags = {tag.strip() for tag in filters.tags.split("||") if tag.strip()} - {"*"}
    ordered = sorted(hits, key=place_of, reverse=True)
    rest = [m for m in ordered if before is None or place_of(m) < before]
    page = Page(looked_at=len(rest))
    page.messages = [m for m in rest if (not tags or m.tags in tags) and filters.fits(m)][:PAGE]
    full = len(hits) >= limit or len(page.messages) < len(rest)
    if rest and full:
        page.older = place_of(page.messages[-1] if len(page.messages) == PAGE else rest[-1])
    return page


async def by_id(admin: Admin, topic: str, message_id: str) -> list[ReceivedMessage]:
    """Return the messages with a producer's id within the topic, or the one with an offset id. Raises ValueError."""
    hits = await admin.query(topic, message_id, count=64, unique=True) if topic else []
    if hits:
        return hits
    try:
        return [await admin.view(message_id, topic or None)]
    except ValueError:
        if not topic:
            raise ValueError(
                f"{message_id[:80]} is no offset id: name the topic to search for a producer's id"
            ) from None
        return []
    except BrokerError:
        return []


def time_of(text: str) -> int:
    """Unix milliseconds from a time as `datetime-local` and people write it, in UTC. Raises ValueError."""
    try:
        moment = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return min(max(int(moment.timestamp() * 1000), 0), _FAR_MS)
    except (ValueError, OverflowError):
        raise ValueError(f"{text[:40]!r} is no time: write it like 2026-11-25T08:30:00, in UTC") from None
