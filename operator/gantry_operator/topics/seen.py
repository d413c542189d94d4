"""The tables of one broker group's master: its answer to GET /v1/tables, checked where it is used. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gantry_broker.broker.metadata.attributes import is_compacted
from gantry_broker.broker.metadata.tables import position
from gantry_broker.protocol.bodies import SubscriptionGroup, TopicConfig
from gantry_broker.protocol.codes import DLQ_PREFIX, RETRY_PREFIX, TABLE_GROUP_PREFIX
from gantry_broker.protocol.fields import BodyError
from gantry_broker.protocol.pop_handle import retry_topic_v1, retry_topic_v2

MAX_NUMBER = 2**62


class BadTables(ValueError):
    """An answer that cannot be used. The text names the part."""


@dataclass(frozen=True, slots=True)
class Queue:
    """First and next offset of a queue."""

    first: int
    end: int

    @property
    def messages(self) -> int:
        return self.end - self.first


@dataclass(frozen=True, slots=True)
class SeenTopic:
    """A topic on one broker group. `queues`: as many as are read."""

    config: TopicConfig
    queues: tuple[Queue, ...]


@dataclass(frozen=True, slots=True)
class Members:
    """The clients that are connected as one consumer group."""

    clients: frozenset[str]
    broadcasting: bool
    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class Unread:
    """Why queues are not empty for everyone; `messages` counts those that the slowest reader has not read."""

    messages: int
    why: str


class BrokerTables:
    """What the master of one broker group says."""

    def __init__(self, group: str, data: Any) -> None:
        """Read the tables. Raises BadTables when the answer has another form."""
        self.group = group
        self._undelivered: Mapping[str, Any] = data.get("undelivered") or {} if isinstance(data, Mapping) else {}
        topics, groups, rows, consumers = (
            _part(data, name, kind)
            for name, kind in (("topics", dict), ("groups", dict), ("lags", list), ("consumers", dict))
        )
        self._topics: Mapping[str, Any] = topics
        self._groups: Mapping[str, Any] = groups
        self._consumers: Mapping[str, Any] = consumers
        self._topics_read: dict[str, SeenTopic | None] = {}
        self._committed: dict[str, dict[str, dict[int, int]]] = {}
        self._topics_of: dict[str, set[str]] = {}
        for row in rows:
            try:
                topic, reader = str(row["topic"]), str(row["group"])
                offsets = {_number(queue): _number(committed) for queue, _, committed in row["queues"]}
            except (KeyError, TypeError, ValueError) as error:
                raise BadTables(f"lags: {error!r}") from None
            self._committed.setdefault(topic, {})[reader] = offsets
            self._topics_of.setdefault(reader, set()).add(topic)

    def topic(self, name: str) -> SeenTopic | None:
        """None: the broker group has no such topic. Raises BadTables."""
        if name not in self._topics_read:
            self._topics_read[name] = self._read_topic(name)
        return self._topics_read[name]

    def _read_topic(self, name: str) -> SeenTopic | None:
        entry = self._topics.get(name)
        if entry is None:
            return None
        try:
            config = TopicConfig.from_json(entry["config"], name, stored=True)
            queues = tuple(Queue(_number(first), _number(end)) for first, end in entry["queues"])
        except (BodyError, KeyError, TypeError, ValueError) as error:
            raise BadTables(f"topic {name}: {error!r}") from None
        return SeenTopic(config, queues)

    def consumer_group(self, name: str) -> SubscriptionGroup | None:
        """None: it has no configuration here. Raises BadTables."""
        entry = self._groups.get(name)
        if not isinstance(entry, Mapping) or "config" not in entry:
            return None
        try:
            return SubscriptionGroup.from_json(entry["config"], name, stored=True)
        except BodyError as error:
            raise BadTables(f"group {name}: {error}") from None

    def members(self, group: str) -> Members:
        """Of a consumer group; without clients: no one is connected."""
        entry = self._consumers.get(group)
        if not isinstance(entry, Mapping):
            return Members(frozenset(), False, frozenset())
        clients = entry.get("clients") or ()
        return Members(
            frozenset(str(c.get("id", "")) for c in clients if isinstance(c, Mapping)),
            entry.get("model") == "BROADCASTING",
            frozenset(map(str, entry.get("subscriptions") or ())),
        )

    def topics_of(self, group: str) -> Iterable[str]:
        """Topics in which a consumer group has offsets."""
        return self._topics_of.get(group, ())

    def committed(self, topic: str, group: str) -> Mapping[int, int]:
        return self._committed.get(topic, {}).get(group, {})

    def lag(self, group: str) -> int:
        """Messages that a consumer group has not read, in all topics where it has offsets: by the brokers' rule."""
        total = 0
        for name in self.topics_of(group):
            topic = self.topic(name)
            if topic is None:
                continue
            offsets = self.committed(name, group)
            for number, queue in enumerate(topic.queues):
                total += queue.end - position(offsets, number, queue.first, queue.end)
        return total

    def unread(self, name: str, below: int = 0, elsewhere: Iterable[str] = ()) -> Unread | None:
        """Why the queues of a topic from number `below` on hold messages that somebody may still read; None: they do
        not.

        Readers are the consumer groups with offsets in the topic, those whose members subscribe to it now, and those
        that read it in other broker groups (`elsewhere`): they may have been away since it is here. Messages without
        any reader stay until they expire. The position of a group that consumes by broadcast is not known.
        """
        return self._unread(name, below, [*self.readers(name), *elsewhere])

    def never_read(self, others: Collection[BrokerTables]) -> Iterator[tuple[str, str, int]]:
        """Messages for consumer groups that read their topic in other broker groups, and never came here: they may have
        been away since this broker group is there. Yields (topic, consumer group, messages). Raises BadTables.
        """
        for name in self._topics:
            if name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
                continue
            readers_here = {*self.readers(name), *self._table_groups(name)}
            away = (g for tables in others for g in (*tables.readers(name), *tables._table_groups(name)))
            for group in dict.fromkeys(away):
                unread = None if group in readers_here else self._unread(name, 0, [group])
                if unread is not None:
                    yield name, group, unread.messages

    def _table_groups(self, topic: str) -> Iterator[str]:
        """Yield the groups of tables with offsets in a topic. They have no settings."""
        for group in sorted(self._committed.get(topic, ())):
            if group.startswith(TABLE_GROUP_PREFIX):
                yield group

    def compacted(self) -> Iterator[str]:
        """Yield each compacted topic that has messages. Raises BadTables."""
        for name in self._topics:
            topic = self.topic(name)
            if topic is not None and is_compacted(topic.config.attributes) and any(q.messages for q in topic.queues):
                yield name

    def unread_retries(self, name: str, groups: Iterable[str]) -> Unread | None:
        """Return the same for messages that these consumer groups popped from a topic without success: they are in
        topics of their own, and can be popped as long as the topic is there.
        """
        for group in groups:
            old = retry_topic_v1(group, name)  # It may also be that of a group `group_name`.
            is_old = self.consumer_group(f"{group}_{name}") is None
            for retry in (retry_topic_v2(group, name), old) if is_old else (retry_topic_v2(group, name),):
                unread = self._unread(retry, 0, [group])
                if unread is not None:
                    return unread
        return None

    def undelivered(self, name: str) -> str | None:
        """Return what is not delivered to the topic yet: none, delayed, half, or unknown. None: no one has asked."""
        kind = self._undelivered.get(name)
        return kind if kind is None else str(kind)

    def _unread(self, name: str, below: int, groups: Iterable[str]) -> Unread | None:
        topic = self.topic(name)
        if topic is None:
            return None
        full = [(number, queue) for number, queue in enumerate(topic.queues) if number >= below and queue.messages]
        if not full:
            return None
        readers = list(dict.fromkeys(groups))
        if not readers:
            return Unread(sum(q.messages for _, q in full), "no consumer group has read them")
        slowest: tuple[int, str] = (0, "")
        for group in readers:
            if self.members(group).broadcasting:
                return Unread(
                    sum(q.messages for _, q in full), f"{group} consumes by broadcast, so no one knows how far"
                )
            offsets = self.committed(name, group)
            left = sum(q.end - position(offsets, number, q.first, q.end) for number, q in full)
            slowest = max(slowest, (left, group))
        return Unread(slowest[0], f"{slowest[1]} has not read them") if slowest[0] else None

    def readers(self, topic: str) -> Iterator[str]:
        """Consumer groups with offsets in a topic, and those whose members subscribe to it now."""
        for group in sorted(self._committed.get(topic, ())):
            if self.consumer_group(group) is not None:
                yield group
        for group in sorted(self._consumers):
            members = self.members(group)
            if members.clients and topic in members.topics:
                yield group


def _part(data: Any, name: str, kind: type) -> Any:
    value = data.get(name) if isinstance(data, Mapping) else None
    if not isinstance(value, kind):
        raise BadTables(f"{name} is {type(value).__name__}")
    return value


def _number(value: Any) -> int:
    if type(value) is not int or not -1 <= value <= MAX_NUMBER:
        raise ValueError(f"{value!r} is no offset")
    return value
