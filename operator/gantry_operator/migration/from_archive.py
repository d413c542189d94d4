"""Writes one topic of an archive to a running cluster under another name, with the copier of migrations.

The archive is read by ranges: an index of its objects, and then the blocks with records of the topic. Queues keep their
order and their numbers; keys, tags, properties, ids and born times stay. What was begun is in a folder, so that a
restore that was killed goes on.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from gantry_broker.archive.chain import Archive, GroupArchive
from gantry_broker.archive.errors import Damaged, Missing, Replaced, Unavailable
from gantry_broker.archive.manifest import State
from gantry_broker.archive.restore import end_at_time
from gantry_broker.archive.threads import in_daemon_thread
from gantry_broker.archive.tiered import Below, TieredLog
from gantry_broker.broker.metadata.tables import Tables, decode_change
from gantry_broker.broker.metadata.topics import is_system_topic, topic_fault
from gantry_broker.client import Admin, BrokerError, MessageQueue, NoRoute, ReceivedMessage
from gantry_broker.client.pulling import PullResult, PullStatus
from gantry_broker.protocol.bodies import SubscriptionData, TopicConfig
from gantry_broker.protocol.codes import CONTROL_TOPIC, Perm, ResponseCode
from gantry_broker.protocol.fields import BodyError
from gantry_broker.protocol.limits import MAX_QUEUES
from gantry_broker.protocol.message import decode_records
from gantry_broker.remoting.errors import RemotingError

from gantry_operator.cluster.failures import in_words
from gantry_operator.migration.copying import QueuesCopy
from gantry_operator.migration.cutover_steps import Refused
from gantry_operator.registry.file import write_durably

GOAL: Final = "restore.json"
"""In the folder of a restore: what is restored."""
COPIED: Final = "copied.json"
"""What was written to the cluster."""
INDEX: Final = "index"
"""The indexes of the archive's groups, and pieces of its objects. They are made again if they are lost."""
CACHE_BYTES: Final = 256 << 20
"""Pieces on the disk for each group."""
READ_BYTES: Final = 1 << 20
"""Of messages that one read brings; one larger message comes alone."""
READING: Final = 4
"""Reads of the archive at the same time."""
PATIENCE_S: Final = 60.0
"""A restore that writes nothing for so many seconds ends with what fails."""
AGAIN_S: Final = 1.0
_PASSING: Final = frozenset({
    ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE,
})  # fmt: skip
"""Answers of a broker after which the same message is sent again, unless it is there."""
_OF_TOPICS: Final = frozenset({"topics", "dropTopics", "dropData", "deleted", "expired"})
"""Parts of a change in the tables that say something of topics."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What is restored. It is written before the first change, so that the same command knows its own topic."""

    url: str
    owner: str
    """Unique id of the archive's owner: a URL may lead to another archive."""
    topic: str
    name: str
    """In the cluster."""
    time_ms: int | None
    ends: Mapping[str, int] = field(default_factory=dict)
    """By group of the archive: the offset of its log at which the restored part ends."""

    @classmethod
    def load(cls, path: Path) -> Self | None:
        """Read the file; None: there is none. Raises Refused for one of another form."""
        try:
            value = json.loads(path.read_text())
            time_ms = value["timeMs"]
            return cls(
                str(value["url"]), str(value["owner"]), str(value["topic"]), str(value["as"]),
                None if time_ms is None else int(time_ms), {str(g): int(end) for g, end in value["ends"].items()},
            )  # fmt: skip
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise Refused(f"{path} is no record of a restore: {error!r}") from None

    def save(self, path: Path) -> None:
        """Write the file durably. Raises OSError."""
        value = {
            "url": self.url, "owner": self.owner, "topic": self.topic, "as": self.name, "timeMs": self.time_ms,
            "ends": dict(self.ends),
        }  # fmt: skip
        write_durably(path, json.dumps(value))


def check_names(topic: str, name: str) -> None:
    """Check what a person wrote. Raises Refused."""
    if is_system_topic(topic):
        raise Refused(f"topic {topic} is one of the brokers' own: restore the cluster (spec.bootstrap.fromArchive)")
    fault = "it is a name of the brokers' own topics" if is_system_topic(name) else topic_fault(name)
    if fault:
        raise Refused(f"--as {name}: {fault}")


class ArchivedTopic:
    """One topic in the archive of one group, up to an offset of the log. All calls block."""

    def __init__(self, group: GroupArchive, topic: str, end: int, folder: Path) -> None:
        self.group = group.name
        self.topic = topic
        self.end = end
        self.config: TopicConfig | None = None
        """None: not known."""
        self.queues: dict[int, tuple[int, int]] = {}
        """By queue: the first queue offset, and the one behind the last."""
        self.deleted = False
        """The topic was deleted before, and not made again."""
        self._group = group
        self._tiered = TieredLog(group, folder, CACHE_BYTES)
        self._visible_from = 0

    def open(self, state: State) -> None:
        """Read the index of the archive, and which messages are the topic's. Raises ArchiveError, OSError, Refused."""
        self._tiered.open()
        parts = tuple(part for part in state.parts if part.start < self.end)
        gaps = tuple(gap for gap in state.gaps if gap.start < self.end)
        self._tiered.refresh(replace(state, parts=parts, gaps=gaps), self.end, {})
        if self._tiered.view.damaged:
            raise Damaged(f"{self._tiered.view.damaged[0].name} of the archive is damaged, and may have messages")
        tables = self._tables(state.segment_size)
        self.config = tables.topics.get(self.topic)
        marks = tables.deletion_watermarks, tables.expired
        self._visible_from = max(mark.get(self.topic, 0) for mark in marks)
        self.deleted = self.config is None and self.topic in tables.deletion_watermarks
        for queue_id, (first, behind) in self._tiered.spans(self.topic).items():
            if queue_id >= MAX_QUEUES:
                raise Refused(f"group {self.group} has queue {queue_id} of {self.topic}, a topic has {MAX_QUEUES}")
            if self._visible_from:
                first = self._from(queue_id, self._visible_from, behind)
            self.queues[queue_id] = first, max(first, self._from(queue_id, self.end, behind))

    def _from(self, queue_id: int, mark: int, otherwise: int) -> int:
        first = self._tiered.first_from(self.topic, queue_id, mark)
        return otherwise if first is None else first

    def _tables(self, segment_size: int) -> Tables:
        """Return the tables at the end: each segment has all of them near its start, and their changes."""
        begin = max(self.end - self.end % segment_size - segment_size, 0)
        tables = Tables()
        _, behind = self._tiered.spans(CONTROL_TOPIC).get(0, (0, 0))
        at = self._tiered.first_from(CONTROL_TOPIC, 0, begin)
        while at is not None and at < behind:
            got = self._tiered.get(CONTROL_TOPIC, 0, at, Below(behind, begin, self.end), 1_000, READ_BYTES)
            for record in decode_records(got.data):
                change = decode_change(record.body) if record.phys_offset < self.end else None
                if change is None:
                    continue
                try:
                    tables.apply({part: value for part, value in change.items() if part in _OF_TOPICS})
                except (BodyError, KeyError, TypeError, ValueError, AttributeError) as error:
                    raise Damaged(f"the control record at {record.phys_offset} of the log: {error!r}") from None
            at = got.next_offset
        return tables

    def numbers(self) -> int:
        """Return the number of queues: those of the configuration, and those with messages."""
        configured = 0 if self.config is None else min(self.config.read_queues, MAX_QUEUES)
        return max([configured, *(queue_id + 1 for queue_id in self.queues)])

    @property
    def messages(self) -> int:
        """Queue offsets with a message; in a gap of the archive some have none."""
        return sum(behind - first for first, behind in self.queues.values())

    def read(self, queue_id: int, offset: int, count: int) -> PullResult:
        """Read messages from a queue offset on. Raises ArchiveError, OSError, RecordError."""
        first, behind = self.queues.get(queue_id, (0, 0))
        at = max(offset, first)
        if at >= behind:
            return PullResult(PullStatus.NO_NEW, [], offset, first, behind)
        below = Below(behind, self._visible_from, self.end)
        got = self._tiered.get(self.topic, queue_id, at, below, count, READ_BYTES)
        messages = [ReceivedMessage(record, self.group) for record in decode_records(got.data)]
        return PullResult(
            PullStatus.FOUND if messages else PullStatus.NO_MATCH, messages, got.next_offset, first, behind
        )

    def close(self) -> None:
        self._tiered.close()


class ArchivedQueues:
    """The queues of one topic in all groups of an archive, as a copy reads them. Groups have the names of brokers."""

    def __init__(self, topics: Mapping[str, ArchivedTopic]) -> None:
        """`topics`: by the broker's name that each group has in the cluster."""
        self._topics = topics
        self._slots = asyncio.Semaphore(READING)

    async def readable_queues(self, topic: str) -> list[MessageQueue]:
        return [
            MessageQueue(topic, b, queue) for b, archived in self._topics.items() for queue in range(archived.numbers())
        ]

    def puller(self, group: str) -> Self:
        return self

    async def pull(
        self, queue: MessageQueue, offset: int, data: SubscriptionData, *, count: int, suspend_ms: int
    ) -> PullResult:
        """Read from the archive, in a thread beside the event loop. Raises ArchiveError, OSError."""
        async with self._slots:
            return await in_daemon_thread(partial(self._topics[queue.broker].read, queue.queue_id, offset, count))

    def config(self) -> TopicConfig | None:
        """Return the topic's configuration; None: no group knows it."""
        return next((archived.config for archived in self._topics.values() if archived.config is not None), None)


class TopicRestore(QueuesCopy):
    """The copy of one topic of an archive."""

    def __init__(self, source: ArchivedQueues, target: Admin, topic: str, name: str, state: Path) -> None:
        super().__init__(source, target, [topic], state)
        self._archived, self._name = source, name

    async def config_of(self, topic: str) -> TopicConfig | None:
        config = self._archived.config()
        return None if config is None else replace(config, perm=Perm.READ | Perm.WRITE)

    def name_of(self, topic: str) -> str:
        return self._name


def begin(archive: Archive, goal: Goal, folder: Path) -> Goal:
    """Return what is restored: what was begun in the folder, or something new, whose ends are found. Blocks. Raises
    Refused, ArchiveError, OSError.
    """
    before = Goal.load(folder / GOAL)
    if before is not None:
        if replace(before, ends={}) != goal:
            raise Refused(
                f"{folder} has another restore: topic {before.topic} of {before.url}. Name another folder with --state"
            )
        return before
    ends = {}
    for name in archive.groups():
        group = archive.group(name)
        state = group.load()
        if state.parts:
            ends[name] = end_at_time(group, state, goal.time_ms)
    if not ends:
        raise Refused(f"there is no archive at {goal.url}: nothing was uploaded yet, or the URL is another one")
    return replace(goal, ends=ends)


def open_topics(archive: Archive, goal: Goal, folder: Path) -> list[ArchivedTopic]:
    """Return the topic in each group that has it. Blocks. Raises Refused when none has it, ArchiveError, OSError."""
    topics, deleted = [], False
    for name, end in goal.ends.items():
        group = archive.group(name)
        state = group.load()
        if end > state.end:
            raise Missing(f"group {name} of the archive ends at {state.end}, and ended at {end} when the restore began")
        if end <= state.start:
            continue
        place = folder / INDEX / name
        place.mkdir(parents=True, exist_ok=True)
        topic = ArchivedTopic(group, goal.topic, end, place)
        try:
            topic.open(state)
        except BaseException:
            topic.close()
            raise
        deleted = deleted or topic.deleted
        if topic.config is not None or topic.messages:
            topics.append(topic)
        else:
            topic.close()
    if not topics:
        moment = "" if goal.time_ms is None else " at that time"
        raise Refused(
            f"topic {goal.topic} was deleted before: write --time with a moment at which it was there"
            if deleted
            else f"the archive has no topic {goal.topic}{moment}: gantry restore FILE --dry-run shows those it has"
        )
    return topics


def by_broker(topics: Sequence[ArchivedTopic], brokers: Mapping[str, str]) -> dict[str, ArchivedTopic]:
    """Return the topics by the name that their group's broker has in the cluster: queues keep their place there.
    `brokers`: broker names of the cluster by group. A group that the cluster lacks keeps its own name.
    """
    named = {brokers.get(topic.group, topic.group): topic for topic in topics}
    return named if len(named) == len(topics) else {topic.group: topic for topic in topics}


async def check_target(target: Admin, goal: Goal, folder: Path) -> None:
    """Check that the cluster lacks the topic, and note that it will be this restore's. Raises Refused, OSError, errors
    of clients.
    """
    if (folder / GOAL).exists():
        return
    if await target.session.route(goal.name, fresh=True) is not None:
        raise Refused(f"the cluster has a topic {goal.name} already: write another name with --as")
    goal.save(folder / GOAL)


def summary(copy: QueuesCopy) -> dict[str, Any]:
    """Return what was restored, for people and programs."""
    queues = [queue for of_topic in copy.queues.values() for queue in of_topic]
    return {
        "messages": sum(queue.messages for queue in queues),
        "queues": [
            {"from": f"{q.broker}/{q.queue}", "to": f"{q.to_broker}/{q.to_queue}", "messages": q.messages}
            for q in queues
        ],
    }


async def copy_topic(
    source: ArchivedQueues, target: Admin, goal: Goal, folder: Path, say: Callable[[int, str], None]
) -> TopicRestore:
    """Write the topic to the cluster, and go on after failures that pass. `say` gets the messages written so far, and
    what the copy waits for.

    Raises what failed for `PATIENCE_S` without a message in between, Refused, ArchiveError, OSError.
    """
    written, since = -1, time.monotonic()
    while True:
        copy = TopicRestore(source, target, goal.topic, goal.name, folder / COPIED)
        try:
            await copy.prepare()
            await copy.run(follow=False, say=lambda sent, missing: say(sent, ""))
            return copy
        except (RemotingError, BrokerError, NoRoute, Unavailable, Replaced) as error:
            if isinstance(error, BrokerError) and error.code not in _PASSING:
                raise
            now = time.monotonic()
            if copy.sent() > written:
                written, since = copy.sent(), now
            elif now - since > PATIENCE_S:
                raise
            say(copy.sent(), in_words(error))
        await asyncio.sleep(AGAIN_S)
        await target.session.route_after_failure(goal.name)
