"""A migration by messages: a source whose log cannot be followed is copied topic by topic, until clients have moved.

It works between any two clusters that a client reaches. The source is only read: no permission of it changes, and its
NameServers keep their routes.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

from gantry_broker.broker.metadata.topics import is_system_topic
from gantry_broker.client import Admin, MessageQueue, NoRoute
from gantry_broker.protocol.bodies import ClusterInfo
from gantry_broker.protocol.codes import Perm

from gantry_operator.migration.copied import QueueCopy
from gantry_operator.migration.copy_state import CopyState
from gantry_operator.migration.copying import Rounds
from gantry_operator.migration.cutover_edge import FAILURES
from gantry_operator.migration.cutover_steps import Refused
from gantry_operator.registry.file import write_durably

ROUND_S: Final = 1.0
GROUPS_S: Final = 10.0
"""Seconds between two copies of the groups' offsets."""
QUIET_S: Final = 5.0
"""Seconds without a new message at the source after which a cutover takes it for the end."""
Say = Callable[[int, int | None], None]
"""Is called with the messages that were copied, and those of the last round."""


@dataclass(frozen=True, slots=True)
class Record:
    """What is kept of a migration by messages, beside what was copied. It has no key."""

    name_servers: str
    secret: str | None = None
    topics: tuple[str, ...] | None = None
    """None: all."""
    done: bool = False

    @classmethod
    def load(cls, path: Path) -> Self | None:
        """Read the file; None: there is none. Raises Refused for one of another form."""
        try:
            value = json.loads(path.read_text())
            topics, secret = value["topics"], value["secret"]
            return cls(
                str(value["from"]),
                None if secret is None else str(secret),
                None if topics is None else tuple(map(str, topics)),
                value["done"] is True,
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise Refused(f"{path} is no record of a migration: {error!r}") from None

    def save(self, path: Path) -> None:
        """Write the file durably. Raises OSError."""
        topics = None if self.topics is None else list(self.topics)
        value = {"from": self.name_servers, "secret": self.secret, "topics": topics, "done": self.done}
        write_durably(path, json.dumps(value))


def is_copied(name: str, perm: int, info: ClusterInfo) -> bool:
    """Whether a topic of the source is one of its users': no broker's own, and readable."""
    clusters = {broker.cluster for broker in info.brokers.values()}
    own = {*info.brokers, *clusters, *(f"{cluster}_REPLY_TOPIC" for cluster in clusters)}
    return not is_system_topic(name) and name not in own and bool(perm & Perm.READ)


class TopicsCopy(Rounds):
    """The copy of all topics of a source, or of some."""

    def __init__(self, source: Admin, target: Admin, topics: Sequence[str] | None, state: CopyState | Path) -> None:
        super().__init__(source, target, topics or (), state)
        self._all = topics is None
        self._groups_at = time.monotonic()
        self.problems: dict[str, str] = {}
        """By topic: why it, or a queue of it, is not copied."""

    async def compare(self) -> None:
        """Compare the source, which has other addresses now, with what was copied. Raises Refused for another one, and
        errors of clients.
        """
        await self.load()
        for topic, queues in self.queues.items():
            copied = [queue for queue in queues if queue.runs]
            try:
                ends = await self._source.topic_stats(topic) if copied else {}
            except NoRoute:
                ends = {}
            for queue in copied:
                end = ends.get(MessageQueue(topic, queue.broker, queue.queue))
                if end is None or end.max_offset < queue.next:
                    raise Refused(
                        f"queue {queue.queue} of {topic} at {queue.broker} was copied up to {queue.next}, and is not "
                        "so long at these addresses: they are of another source"
                    )
                await self._check_last(queue, topic)

    async def look_for_topics(self) -> None:
        names = set(self._topics)
        if self._all:
            info = await self._source.cluster_info()
            for address in (await self._source.masters()).values():
                topics = (await self._source.topic_config(address)).topics
                names.update(name for name, topic in topics.items() if is_copied(name, topic.perm, info))
        for name in sorted(names):
            try:
                await self._take_up(name)
            except (Refused, NoRoute) as error:  # A new topic has no route for a moment.
                if not self._all and name not in self.queues:
                    raise Refused(f"topic {name}: {error}") from None
                self.problems[name] = str(error)
            else:
                self.problems.pop(name, None)

    async def _take_up(self, topic: str) -> None:
        """Copy a topic from now on, and queues that it got. Raises Refused."""
        copies = self.queues.get(topic)
        if copies is None:
            self.queues[topic] = await self._pair(topic)
            self._changed = True
            return
        copied = {(queue.broker, queue.queue) for queue in copies}
        new = [q for q in sorted(await self._source.readable_queues(topic)) if (q.broker, q.queue_id) not in copied]
        if not new:
            return
        taken = {(queue.to_broker, queue.to_queue) for queue in copies}
        targets = sorted(await self._target.readable_queues(topic))
        free = [queue for queue in targets if (queue.broker, queue.queue_id) not in taken]
        same = {(queue.broker, queue.queue_id): queue for queue in free}
        ends = await self._target.topic_stats(topic)
        for queue in new:
            to = same.pop((queue.broker, queue.queue_id), None)
            if to is None:
                if len(free) < len(new):
                    raise Refused(
                        f"topic {topic} got queue {queue.queue_id} of {queue.broker}, and the target has no queue for "
                        f"it: give it {len(targets) + len(new) - len(free)} queues there"
                    )
                to = next(one for one in free if (one.broker, one.queue_id) in same)
                del same[to.broker, to.queue_id]
            end = ends[to].max_offset if to in ends else 0
            copies.append(QueueCopy(queue.broker, queue.queue_id, to.broker, to.queue_id, end))
        self._changed = True

    async def step(self) -> None:
        """Make a round, and copy the groups' offsets now and then."""
        await self.round()
        if time.monotonic() - self._groups_at >= GROUPS_S:
            await self.move_groups()
            self._groups_at = time.monotonic()


async def follow(copy: TopicsCopy, say: Say, trouble: Callable[[Exception], None] = lambda error: None) -> None:
    """Copy until it is cancelled. `trouble`: gets errors of clients once it has copied: brokers may be away for a
    while. Raises Refused, and errors of clients before that.
    """
    await copy.begin()
    copies = False
    while True:
        try:
            await copy.step()
        except FAILURES as error:
            if not copies:
                raise
            trouble(error)
        else:
            copies = True
            say(copy.sent(), copy.missing)
        await asyncio.sleep(ROUND_S)


async def finish(copy: TopicsCopy, timeout: float, say: Say) -> dict[str, int]:
    """Copy the rest and the groups' offsets once the source gets no message any more. Returns the queues by group
    whose offsets were set. Raises Refused when it still gets some after `timeout` seconds, and errors of clients.
    """
    await copy.begin()
    ends = time.monotonic() + timeout
    while True:
        await copy.round()
        say(copy.sent(), copy.missing)
        if copy.quiet_since is not None and time.monotonic() - copy.quiet_since >= QUIET_S:
            break
        if time.monotonic() > ends:
            raise Refused(
                f"the source still gets messages after {timeout:g} s ({copy.missing} in the last round): give its "
                "producers the new addresses first"
            )
        await asyncio.sleep(ROUND_S)
    if copy.problems:
        raise Refused("; ".join(f"topic {name} is not copied: {why}" for name, why in sorted(copy.problems.items())))
    return await copy.move_groups()


def done(record: Record) -> Record:
    """Return the record of a migration that has ended."""
    return replace(record, done=True)
