"""Copies topics message by message between two clusters, in either direction: from RocketMQ to Gantry, or back.

Keys, tags, properties, ids and born times stay, and the order within each queue. What was done is in a file, written
while it goes on; a copy that was killed reads the end of the target's queues and goes on exactly there. A message that
is itself a copy of one that the target has is not sent back.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol

from gantry_broker.client import Admin, BrokerError, ClientError, MessageQueue, ReceivedMessage
from gantry_broker.client.pulling import PullResult, PullStatus
from gantry_broker.client.session import CALL_SECONDS
from gantry_broker.client.subscription import subscription
from gantry_broker.protocol.bodies import SubscriptionData, SubscriptionGroup, TopicConfig
from gantry_broker.protocol.codes import AUTO_CREATE_TOPIC, PREDEFINED_GROUPS, RETRY_PREFIX, RequestCode, ResponseCode
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import Long, SendHeader
from gantry_broker.protocol.message import format_properties
from gantry_broker.tasks import end_tasks

from gantry_operator.migration.copied import KEPT_FLAGS, MARK, Place, QueueCopy, kept, place_of
from gantry_operator.migration.copy_state import CopyState, FileState
from gantry_operator.migration.cutover_steps import Refused

UNSURE: Final = frozenset(
    {ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE}
)
"""Codes of answers to a send that is in the master's log alone, such as that of a SYNC_MASTER whose slave is down."""
GROUP: Final = "TOOLS_CONSUMER"
PRODUCER: Final = "GANTRY_COPY"
SAVE_S: Final = 1.0
BATCH: Final = 32
ROUTED_S: Final = 0.2
ROUTED_TRIES: Final = 50
TOPICS_S: Final = 5.0
"""Seconds between two looks for new topics."""
SETTLE_S: Final = 1.0
"""Seconds before the target's end is read after a start: a send of a former process may be on its way."""


class Behind(ClientError):
    """A queue of the source ends before what was copied: it was emptied, lost its end, or a slave answers that has
    less. What is written there next would be taken for what was copied.
    """


class Pulls(Protocol):
    """Reads queues, as `Puller`."""

    async def pull(
        self, queue: MessageQueue, offset: int, data: SubscriptionData, *, count: int, suspend_ms: int
    ) -> PullResult:
        """Return messages from `offset` on."""
        ...


class Source(Protocol):
    """What a copy reads: a cluster, as `Admin` does, or an archive."""

    async def readable_queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic."""
        ...

    def puller(self, group: str) -> Pulls:
        """Return what reads them."""
        ...


class QueuesCopy(ABC):
    """One copy of some topics, without their consumer groups. `state`: what was done, or its file."""

    def __init__(self, source: Source, target: Admin, topics: Sequence[str], state: CopyState | Path) -> None:
        self._source, self._target = source, target
        self._topics = list(topics)
        self._state: CopyState = FileState(state) if isinstance(state, Path) else state
        self._saved_at = -math.inf
        self._kept = 0
        """Queues in the state."""
        self.queues: dict[str, list[QueueCopy]] = {}
        self._changed = False
        self._originals: dict[tuple[str, int], dict[int, ReceivedMessage]] = {}
        """By queue of the target: messages that were read to recognise copies of them."""

    @abstractmethod
    async def config_of(self, topic: str) -> TopicConfig | None:
        """Return a topic's configuration at the source; None: not known."""

    def name_of(self, topic: str) -> str:
        """Return a topic's name at the target."""
        return topic

    async def load(self) -> bool:
        """Read what was done; False: nothing is kept. Raises Refused for another form, and as the state does."""
        text = await self._state.load()
        if text is None:
            return False
        try:
            kept = json.loads(text)
            self.queues = {str(t): [QueueCopy.from_json(q) for q in queues] for t, queues in kept["topics"].items()}
            return True
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Refused(f"{self._state} is no record of a copy: {error!r}") from None

    async def save(self) -> None:
        """Keep what was done durably. Raises as the state does."""
        content: dict[str, Any] = {t: [q.to_json() for q in queues] for t, queues in self.queues.items()}
        count, self._changed = self._count(), False
        try:
            await self._state.save(json.dumps({"topics": content}))
        except BaseException:
            self._changed = True
            raise
        self._saved_at, self._kept = time.monotonic(), count

    def _count(self) -> int:
        return sum(map(len, self.queues.values()))

    async def _save_soon(self) -> None:
        """Keep what was done, unless that was done a moment ago: a copy that goes on finds the rest at the target."""
        if self._changed and time.monotonic() - self._saved_at >= self._state.pause_s:
            await self.save()

    async def prepare(self) -> None:
        """Find the queues, make topics that the target lacks, and go on behind what a former process sent. Raises
        Refused.
        """
        if await self.load():
            await asyncio.sleep(SETTLE_S)
        for topic in self._topics:
            if topic not in self.queues:
                self.queues[topic] = await self._pair(topic)
        await self.save()
        for queues in self.queues.values():
            for queue in queues:
                await self._read_end(queue, next(t for t, copies in self.queues.items() if queue in copies))
        await self.save()

    async def _pair(self, topic: str) -> list[QueueCopy]:
        sources = sorted(await self._source.readable_queues(topic))
        if not sources:
            raise Refused(f"the source has no readable queue of topic {topic}")
        masters = await self._target.masters()
        names, there = {queue.broker for queue in sources}, self.name_of(topic)
        if await self._target.session.route(there, fresh=True) is None:
            if names <= set(masters):
                for name in sorted(names):
                    await self._create(topic, sum(queue.broker == name for queue in sources), {name: masters[name]})
            else:
                await self._create(topic, -(-len(sources) // len(masters)), masters)
            await self._until_routed(there)
        targets = sorted(await self._target.readable_queues(there))
        same = {(queue.broker, queue.queue_id): queue for queue in targets}
        if all((queue.broker, queue.queue_id) in same for queue in sources):
            pairs = [(queue, same[queue.broker, queue.queue_id]) for queue in sources]
        elif len(targets) >= len(sources):
            pairs = list(zip(sources, targets, strict=False))
        else:
            raise Refused(
                f"topic {there} has {len(targets)} queues at the target, and {len(sources)} at the source: a queue's "
                "order needs a queue of its own. Make it with as many"
            )
        ends = await self._target.topic_stats(there)
        return [
            QueueCopy(queue.broker, queue.queue_id, to.broker, to.queue_id, ends[to].max_offset if to in ends else 0)
            for queue, to in pairs
        ]

    async def _create(self, topic: str, queues: int, masters: Mapping[str, str]) -> None:
        """Make a topic at these masters of the target as the source has it: attributes tell what its messages are."""
        config = await self.config_of(topic) or TopicConfig(topic)
        target = replace(config, name=self.name_of(topic), read_queues=queues, write_queues=queues)
        for address in masters.values():
            await self._target.create_topic_at(address, target)

    async def _until_routed(self, topic: str) -> None:
        """Wait until the target's NameServer has a new topic; RocketMQ registers it beside its answer. Raises
        Refused.
        """
        for _ in range(ROUTED_TRIES):
            if await self._target.session.route(topic, fresh=True) is not None:
                return
            await asyncio.sleep(ROUTED_S)
        raise Refused(f"the target's NameServer has no route of {topic}, which was just made there")

    async def _read_end(self, queue: QueueCopy, topic: str) -> None:
        """Take over what was sent and not recorded. Raises Refused for a source that is not the one that was copied."""
        await self._check_last(queue, topic)
        puller, at = self._target.puller(GROUP), queue.to_next
        while True:
            target = MessageQueue(self.name_of(topic), queue.to_broker, queue.to_queue)
            got = await puller.pull(target, at, subscription(topic), count=BATCH, suspend_ms=0)
            for message in got.messages:
                offset = queue.offset_of(message.properties.get(MARK, ""))
                if offset is not None and offset >= queue.next:
                    queue.copied(offset, message.queue_offset)
            if got.status is PullStatus.NO_NEW or got.next_offset <= at or got.status is PullStatus.ILLEGAL:
                return
            at = got.next_offset

    async def _check_last(self, queue: QueueCopy, topic: str) -> None:
        """Compare the last copy with its original. Raises Refused when they differ: the source was emptied and has
        grown again.
        """
        if not queue.runs:
            return
        begin, to, count = queue.runs[-1]
        original = await _message(self._source, MessageQueue(topic, queue.broker, queue.queue), begin + count - 1)
        target = MessageQueue(self.name_of(topic), queue.to_broker, queue.to_queue)
        copy = await _message(self._target, target, to + count - 1)
        if original is None or copy is None:  # Expired.
            return
        if (original.record.born_ms, original.record.body) != (copy.record.born_ms, copy.record.body):
            raise Refused(
                f"message {begin + count - 1} in queue {queue.queue} of {topic} at {queue.broker} is not the one that "
                "was copied: the source was emptied, or is another one; begin again with an empty target and state"
            )

    async def run(self, *, follow: bool, say: Callable[[int, int], None] = lambda copied, missing: None) -> None:
        """Copy all that is there, or with `follow` until it is cancelled. Raises Refused, errors of clients and of the
        state.
        """
        done: dict[tuple[str, int], int] = {}
        tasks = [
            asyncio.create_task(self._copy(topic, queue, follow, done))
            for topic, queues in self.queues.items()
            for queue in queues
        ]
        saving = asyncio.create_task(self._keep(done, say))
        try:
            waiting = [*tasks]
            while waiting:
                finished, _ = await asyncio.wait([*waiting, saving], return_when=asyncio.FIRST_EXCEPTION, timeout=1)
                for task in finished:
                    task.result()
                waiting = [task for task in tasks if not task.done()]
        finally:
            await end_tasks(*tasks, saving)
            await self._save_soon()

    async def _keep(self, missing: dict[tuple[str, int], int], say: Callable[[int, int], None]) -> None:
        while True:
            await asyncio.sleep(SAVE_S)
            await self._save_soon()
            say(sum(q.messages for copies in self.queues.values() for q in copies), sum(missing.values()))

    async def _copy(self, topic: str, queue: QueueCopy, follow: bool, missing: dict[tuple[str, int], int]) -> None:
        puller, source = self._source.puller(GROUP), MessageQueue(topic, queue.broker, queue.queue)
        name, there = (f"{topic}@{queue.broker}", queue.queue), self.name_of(topic)
        while True:
            got = await puller.pull(source, queue.next, subscription(topic), count=BATCH, suspend_ms=5_000 * follow)
            missing[name] = max(got.max_offset - queue.next, 0)
            for message in got.messages:
                if message.queue_offset < queue.next:
                    continue
                if MARK in message.properties and await self._has_original(topic, queue, message):
                    continue
                record = message.record
                origin = queue.origin(message.queue_offset)
                properties = kept(message.properties) | {MARK: origin}
                header = SendHeader(
                    PRODUCER, there, AUTO_CREATE_TOPIC, 4, queue.to_queue, record.sys_flag & KEPT_FLAGS,
                    Long(record.born_ms), record.flag, format_properties(properties).decode(),
                    # RocketMQ counts a message's retries in this field.
                    record.reconsume_times if there.startswith(RETRY_PREFIX) else 0, False, None, False,
                    queue.to_broker,
                )  # fmt: skip
                frame = Frame(RequestCode.SEND_MESSAGE_V2, ext=header.short_ext(), body=record.body)
                address = await self._target.session.master(queue.to_broker, there)
                answer = await self._target.session.remoting.request(address, frame, CALL_SECONDS)
                if answer.code != ResponseCode.SUCCESS and not (
                    answer.code in UNSURE and await self._is_readable(queue, there, answer, origin)
                ):
                    raise BrokerError(f"the copy of {source}", answer.code, answer.remark)
                queue.copied(message.queue_offset, int(answer.ext["queueOffset"]))
                self._changed = True
            if got.status is PullStatus.ILLEGAL and got.min_offset > queue.next:
                queue.expired += got.min_offset - queue.next
                queue.next = got.min_offset
                self._changed = True
            elif got.status is PullStatus.ILLEGAL and got.max_offset < queue.next:
                raise Behind(
                    f"queue {queue.queue} of {topic} at {queue.broker} ends at {got.max_offset}, and was copied up to "
                    f"{queue.next}: it was emptied or lost its end; begin again with an empty target and state"
                )
            elif got.status is not PullStatus.ILLEGAL and got.next_offset > queue.next:
                queue.next = got.next_offset
                self._changed = True
            elif not follow and not got.messages:
                missing[name] = 0
                return
            elif got.status is PullStatus.ILLEGAL:
                if not follow:
                    return
                await asyncio.sleep(1.0)

    async def _is_readable(self, queue: QueueCopy, there: str, answer: Frame, origin: str) -> bool:
        """Whether readers get the copy that an answer names. RocketMQ gives them all that a master has; Gantry only
        what no failover takes away, perhaps a moment later.
        """
        target = MessageQueue(there, queue.to_broker, queue.to_queue)
        for _ in range(ROUTED_TRIES):
            copy = await _message(self._target, target, int(answer.ext["queueOffset"]))
            if copy is not None:
                return copy.properties.get(MARK) == origin
            await asyncio.sleep(ROUTED_S)
        return False

    async def _has_original(self, topic: str, queue: QueueCopy, message: ReceivedMessage) -> bool:
        """Whether the message is a copy of one that the target has: it came from there."""
        place = place_of(message.properties[MARK])
        if self.name_of(topic) != topic:
            return False  # Its original is in another topic.
        if place is None or not self._target.session.addresses(place.broker):
            return False
        original = await self._original(topic, place)
        if original is None or (original.id, original.record.born_ms) != (message.id, message.record.born_ms):
            return False
        if (place.broker, place.queue) == (queue.to_broker, queue.to_queue) and queue.follows(place.offset):
            queue.copied(message.queue_offset, place.offset)
            queue.known += 1
        else:
            queue.next = message.queue_offset + 1
        self._changed = True
        return True

    async def _original(self, topic: str, place: Place) -> ReceivedMessage | None:
        originals = self._originals.setdefault((place.broker, place.queue), {})
        if place.offset not in originals:
            target = MessageQueue(topic, place.broker, place.queue)
            got = await self._target.puller(GROUP).pull(
                target, place.offset, subscription(topic), count=BATCH, suspend_ms=0
            )
            originals.clear()
            originals.update((message.queue_offset, message) for message in got.messages)
        return originals.get(place.offset)

    def sent(self) -> int:
        """Messages that were sent so far."""
        return sum(queue.messages for copies in self.queues.values() for queue in copies)

    def expired(self) -> int:
        """Messages that were gone at the source before they were read."""
        return sum(queue.expired for copies in self.queues.values() for queue in copies)


async def _message(source: Source, queue: MessageQueue, offset: int) -> ReceivedMessage | None:
    """Return one message; None: it is not there."""
    got = await source.puller(GROUP).pull(queue, offset, subscription(queue.topic), count=1, suspend_ms=0)
    return next((message for message in got.messages if message.queue_offset == offset), None)


class Copy(QueuesCopy):
    """One copy of some topics from a cluster. `state`: what was done, or its file."""

    _source: Admin

    def __init__(self, source: Admin, target: Admin, topics: Sequence[str], state: CopyState | Path) -> None:
        super().__init__(source, target, topics, state)

    async def config_of(self, topic: str) -> TopicConfig | None:
        for address in (await self._source.masters()).values():
            config = (await self._source.topic_config(address)).topics.get(topic)
            if config is not None:
                return config
        return None

    async def _make_groups(self, groups: Sequence[str]) -> None:
        """Make the consumer groups that the target lacks: RocketMQ 5.x takes no offset of an unknown one."""
        to_make: dict[str, SubscriptionGroup] = {}
        for address in (await self._source.masters()).values():
            present = await self._source.groups(address)
            to_make.update({name: present[name] for name in groups if name in present and name not in to_make})
        for broker, address in (await self._target.masters()).items():
            there = await self._target.groups(address)
            for name, group in to_make.items():
                if name not in there:
                    await self._target.create_group(group, groups=[broker])

    async def move_groups(self) -> dict[str, int]:
        """Set the offsets of the source's groups at the target, never back. Returns the queues by group."""
        moved: dict[str, int] = {}
        for topic, queues in self.queues.items():
            groups = [group for group in await self._source.topic_consumers(topic) if group not in PREDEFINED_GROUPS]
            await self._make_groups(groups)
            for group in groups:
                for queue in queues:
                    old = await self._source.offset(group, MessageQueue(topic, queue.broker, queue.queue))
                    if old is None:
                        continue
                    to = MessageQueue(topic, queue.to_broker, queue.to_queue)
                    new, present = queue.translate(old), await self._target.offset(group, to)
                    if present is None or present < new:
                        await self._target.set_offset(group, to, new)
                        moved[group] = moved.get(group, 0) + 1
        return moved


class Rounds(Copy, ABC):
    """A copy that goes around again and again, and takes new topics up."""

    def __init__(self, source: Admin, target: Admin, topics: Sequence[str], state: CopyState | Path) -> None:
        super().__init__(source, target, topics, state)
        self._topics_at = -math.inf
        self._unsure = False
        self._since = -math.inf
        """Only rounds that begin from then on say that nothing is missing."""
        self.missing: int | None = None
        """Messages that the last round found; None: none has ended."""
        self.quiet_since: float | None = None
        """The begin of the first round of those that found nothing."""

    @abstractmethod
    async def look_for_topics(self) -> None:
        """Take up topics and queues that are new at the source."""

    async def begin(self) -> None:
        """Go on behind what a former process sent. Raises Refused, errors of clients and of the state."""
        if await self.load():
            await asyncio.sleep(SETTLE_S)
            await self._read_ends()
        await self.save()

    def begin_anew(self) -> None:
        """Forget what former rounds found: writes have just ended, and a former round may lack the last ones."""
        self._since, self.missing, self.quiet_since = time.monotonic(), None, None

    async def _read_ends(self) -> None:
        for topic, queues in self.queues.items():
            for queue in queues:
                await self._read_end(queue, topic)

    async def round(self) -> None:
        """Copy all that is there."""
        began = time.monotonic()
        if self._topics_at < self._since or began - self._topics_at >= TOPICS_S:
            await self.look_for_topics()
            self._topics_at = began
        if self._count() != self._kept:  # Copies in a new queue are looked for from its first message on.
            await self.save()
        if self._unsure:  # The last round broke off: what it sent may not be noted.
            await self._read_ends()
        before, self._unsure = self.sent(), True
        await self.run(follow=False)
        self._unsure = False
        if began < self._since:
            return
        self.missing = self.sent() - before
        self.quiet_since = (self.quiet_since or began) if not self.missing else None
