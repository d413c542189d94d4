"""Brokers in memory, as the decisions about topics and groups see them: tables, messages, offsets, members."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from gantry_broker.protocol.bodies import SubscriptionGroup, TopicConfig
from gantry_broker.protocol.codes import Perm
from gantry_operator.topics.model import DropGroup, DropTopic, Observed, PutGroup, PutTopic, Step
from gantry_operator.topics.seen import BrokerTables


class LostMessages(AssertionError):
    """A step removed messages that a reader had not read."""


@dataclass
class Broker:
    """One broker group."""

    group: str
    topics: dict[str, TopicConfig] = field(default_factory=dict)
    queues: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    """First and next offset."""
    groups: dict[str, SubscriptionGroup] = field(default_factory=dict)
    offsets: dict[tuple[str, str], dict[int, int]] = field(default_factory=dict)
    members: dict[str, set[str]] = field(default_factory=dict)
    """By consumer group: the topics that its one client subscribes to."""
    broadcasting: set[str] = field(default_factory=set)
    waiting: dict[str, int] = field(default_factory=dict)
    """By topic: messages that wait for their delivery time."""

    def queue(self, topic: str, number: int) -> list[int]:
        return self.queues.setdefault((topic, number), [0, 0])

    def send(self, topic: str, number: int) -> bool:
        """As the broker: to any queue that exists, if the topic takes messages."""
        config = self.topics.get(topic)
        if config is None or not config.perm & Perm.WRITE:
            return False
        if number >= max(config.read_queues, config.write_queues):
            return False
        self.queue(topic, number)[1] += 1
        return True

    def delay(self, topic: str) -> None:
        """A message with a delivery time, if the topic takes messages."""
        config = self.topics.get(topic)
        if config is not None and config.perm & Perm.WRITE:
            self.waiting[topic] = self.waiting.get(topic, 0) + 1

    def deliver(self, topic: str) -> None:
        """The time of one message has come: also when the topic takes no others."""
        if self.waiting.get(topic) and topic in self.topics:
            self.waiting[topic] -= 1
            self.queue(topic, 0)[1] += 1

    def undelivered(self, topic: str) -> str:
        config = self.topics.get(topic)
        if config is not None and config.perm & Perm.WRITE:
            return "unknown"
        return "delayed" if self.waiting.get(topic) else "none"

    def read(self, topic: str, group: str) -> None:
        """A group reads everything in the queues that are read."""
        self.groups.setdefault(group, SubscriptionGroup(group))
        for number in range(self.topics[topic].read_queues):
            self.offsets.setdefault((topic, group), {})[number] = self.queue(topic, number)[1]

    def unread(self, topic: str, numbers: range) -> int:
        """Messages that some reader has not read; without readers all of them."""
        readers = [g for (t, g) in self.offsets if t == topic and g in self.groups]
        total = 0
        for number in numbers:
            first, end = self.queue(topic, number)
            at = [max(self.offsets[topic, g].get(number, first), first) for g in readers] or [first]
            total += end - min(at)
        return total

    def json(self, ask: Iterable[str] = ()) -> dict[str, Any]:
        lags = []
        for (topic, group), offsets in self.offsets.items():
            config = self.topics.get(topic)
            if config is None:
                continue
            rows = [[n, self.queue(topic, n)[1], at] for n, at in offsets.items() if n < config.read_queues]
            if rows:
                lags.append({"topic": topic, "group": group, "queues": rows})
        return {
            "undelivered": {name: self.undelivered(name) for name in ask},
            "topics": {
                name: {"config": c.to_json(), "queues": [list(self.queue(name, n)) for n in range(c.read_queues)]}
                for name, c in self.topics.items()
            },
            "groups": {name: {"system": False, "config": g.to_json()} for name, g in self.groups.items()},
            "lags": lags,
            "consumers": {
                group: {
                    "model": "BROADCASTING" if group in self.broadcasting else "CLUSTERING",
                    "subscriptions": dict.fromkeys(topics, "*"),
                    "clients": [{"id": f"{group}@1"}],
                }
                for group, topics in self.members.items()
            },
        }

    def tables(self, ask: Iterable[str] = ()) -> BrokerTables:
        return BrokerTables(self.group, self.json(ask))

    def do(self, step: Step, *, force: bool = False) -> None:
        """Carry out a step. Raises LostMessages when it must not be carried out."""
        if isinstance(step, PutTopic):
            self._put_topic(step, force)
        elif isinstance(step, DropTopic):
            config = self.topics.pop(step.topic, None)
            if self.waiting.pop(step.topic, 0) and not force:
                raise LostMessages(f"{self.group}: messages of {step.topic} waited for their delivery")
            if config is not None:
                self._check(step.topic, range(config.read_queues), force)
            for key in [k for k in self.queues if k[0] == step.topic]:
                del self.queues[key]
            for pair in [k for k in self.offsets if k[0] == step.topic]:
                del self.offsets[pair]
        elif isinstance(step, PutGroup):
            self.groups[step.config.name] = step.config
        elif isinstance(step, DropGroup):
            self.groups.pop(step.name, None)
            for pair in [k for k in self.offsets if k[1] == step.name]:
                del self.offsets[pair]

    def _put_topic(self, step: PutTopic, force: bool) -> None:
        old = self.topics.get(step.config.name)
        attributes = {} if old is None else dict(old.attributes)
        for change in step.attributes:
            name, _, value = change[1:].partition("=")
            if change[0] == "+":
                attributes[name] = value
            else:
                attributes.pop(name, None)
        assert 0 < step.config.read_queues <= 4_096
        assert 0 < step.config.write_queues <= 4_096
        if old is not None and step.config.read_queues < old.read_queues:
            assert old.write_queues <= step.config.read_queues, "queues that take messages are read no more"
            self._check(step.config.name, range(step.config.read_queues, old.read_queues), force)
        self.topics[step.config.name] = replace(step.config, attributes=attributes)

    def _check(self, topic: str, numbers: range, force: bool) -> None:
        left = self.unread(topic, numbers)
        if left and not force:
            raise LostMessages(f"{self.group}: {left} messages of {topic} were unread")


def observed(
    brokers: dict[str, Broker],
    silent: set[str] = frozenset(),
    ask: Iterable[str] = (),
    **more: Any,  # type: ignore[assignment]
) -> Observed:
    """What an operator sees that asks about messages to these topics that are not delivered."""
    tables = {g: None if g in silent else b.tables(ask) for g, b in brokers.items()}
    return Observed("demo", list(brokers), tables, **more)
