"""A cluster of broker groups that come and go, by the real decisions of `gantry_operator.drain`: seeded histories.

A group has a log of messages with a confirmed offset, marks and topics, and fails over: the next master has the
confirmed part, an old master still answers now and then. Producers have routes that are up to 30 seconds old, consumers
read and acknowledge, some messages are delayed or in transactions. The control plane forgets its memory at any step.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

from gantry_broker.contracts.models import DrainReport, Unread
from gantry_broker.protocol.bodies import SubscriptionGroup, TopicConfig
from gantry_operator.drain.extension import GroupConfigs, homeless, missing_on
from gantry_operator.drain.machine import LeavingGroup, Progress, decide

ROUTE_S = 30.0
"""Age of a route at which clients ask for a new one."""
APPENDED_AFTER_S = 2.0
"""A send that was checked before a write pause is appended so much later."""
RETENTION_MS = 400_000


class Broken(AssertionError):
    """An invariant does not hold; the text names it."""


@dataclass(slots=True)
class Message:
    number: int
    topic: str
    due: float = 0.0
    """Consumers see it from then on; infinity: its transaction is open."""
    half: bool = False
    stored: float = 0.0


@dataclass
class Group:
    """One broker group as its master has it."""

    name: str
    epoch: int = 1
    topics: dict[str, TopicConfig] = field(default_factory=dict)
    groups: dict[str, SubscriptionGroup] = field(default_factory=dict)
    log: list[Message] = field(default_factory=list)
    confirmed: int = 0
    drain: str = ""
    joined: bool = False
    acked: dict[str, set[int]] = field(default_factory=dict)
    """By consumer group: numbers of messages that it has acknowledged."""
    durable: dict[str, set[int]] = field(default_factory=dict)
    """Of them, those in the log."""
    delayed_sends: list[tuple[float, Message]] = field(default_factory=list)
    sends: int = 0
    old: DrainReport | None = None
    """What a former master, which does not know of its successor, still answers."""

    def configs(self) -> GroupConfigs:
        return GroupConfigs(dict(self.topics), dict(self.groups))


class World:
    """One history. `step` raises Broken."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.trace: list[str] = []
        self.names = ["a", "b", "c", "d"]
        self.consumer_groups = ["g1", "g2"]
        self.connected = {"g1": True, "g2": True}
        self.spec = self.names[:2]
        self.groups: dict[str, Group] = {}
        self.memory: dict[str, Progress] = {}
        self.routes: dict[str, tuple[float, list[str]]] = {}
        """By topic: when the producers asked, and the groups with permission to write."""
        self.unread: dict[int, str] = {}
        """Acknowledged messages that a consumer group has not acknowledged yet: number to group of brokers."""
        self.next = 0
        self.removed = 0
        self.faults = True
        for name in self.spec:
            self._make(name)
            self.groups[name].joined = True
        for number in range(self.random.randint(1, 3)):
            self._create(f"T{number}", self.random.sample(self.spec, self.random.randint(1, 2)))

    def say(self, text: str) -> None:
        self.trace.append(f"{self.now:7.1f}  {text}")

    def _make(self, name: str) -> None:
        groups = {g: SubscriptionGroup(g) for g in self.consumer_groups}
        self.groups[name] = Group(name, groups=groups if not self.groups else {})
        self.say(f"group {name} starts empty")

    def _create(self, topic: str, names: list[str]) -> None:
        for name in names:
            self.groups[name].topics[topic] = TopicConfig(topic, 4, 4)
        self.say(f"topic {topic} is made on {', '.join(names)}")

    # ---- steps

    def step(self) -> None:
        self.now += self.random.choice((0.2, 0.5, 1.0, 1.0, 2.0))
        for group in self.groups.values():
            self._append_delayed(group)
        kinds: list[Any] = (
            [self.send] * 4 + [self.consume] * 4 + [self.commit] * 2 + [self.control] * 6 + [self.confirm] * 2
        )
        if self.faults:
            kinds += [self.failover, self.forget, self.change_spec, self.stop_consumer, self.make_topic]
        self.random.choice(kinds)()

    def calm(self) -> None:
        """No more faults: every drain must end."""
        self.faults = False
        self.connected = dict.fromkeys(self.connected, True)
        for _ in range(6_000):
            self.step()
            if set(self.groups) == set(self.spec) and all(g.joined and not g.drain for g in self.groups.values()):
                break
        else:
            raise Broken(f"a drain does not end: {sorted(self.groups)} for {self.spec}")

    def send(self) -> None:
        topics = sorted({t for g in self.groups.values() for t in g.topics})
        topic = self.random.choice(topics)
        asked, names = self.routes.get(topic, (-1e9, []))
        # Requests for routes of 30 seconds, and the time that they take.
        if self.now - asked >= ROUTE_S or not names:
            names = [g.name for g in self.groups.values() if topic in g.topics and not g.drain]
            self.routes[topic] = (self.now, names)
            if not names:
                raise Broken(f"no failed send: no group takes topic {topic}")
        name = self.random.choice(names)
        group = self.groups.get(name)
        if group is None or group.drain == "closed":
            # The age does not matter: a client never has an older route than that.
            raise Broken(f"no failed send: group {name} refuses topic {topic}, which the route of {asked:.1f} names")
        if topic not in group.topics:
            group.topics[topic] = TopicConfig(topic, 4, 4)
        self.next += 1
        message = Message(self.next, topic, stored=self.now)
        kind = self.random.random()
        if kind < 0.15:
            message.due = self.now + self.random.choice((1.0, 10.0, 60.0))
        elif kind < 0.25:
            message.due, message.half = float("inf"), True
        group.sends += 1
        if self.random.random() < 0.1:
            group.delayed_sends.append((self.now + APPENDED_AFTER_S, message))
        else:
            self._append(group, message)

    def _append_delayed(self, group: Group) -> None:
        due = [m for at, m in group.delayed_sends if at <= self.now]
        group.delayed_sends = [(at, m) for at, m in group.delayed_sends if at > self.now]
        for message in due:
            self._append(group, message)

    def _append(self, group: Group, message: Message) -> None:
        group.log.append(message)
        # Sync: the answer comes when it is confirmed.
        if self.random.random() < 0.8:
            self._confirm(group)

    def _confirm(self, group: Group) -> None:
        for message in group.log[group.confirmed :]:
            self.unread[message.number] = group.name
        group.confirmed = len(group.log)

    def confirm(self) -> None:
        self._confirm(self.random.choice(list(self.groups.values())))

    def visible(self, group: Group) -> list[Message]:
        return [m for m in group.log[: group.confirmed] if m.due <= self.now]

    def consume(self) -> None:
        consumer = self.random.choice(self.consumer_groups)
        if not self.connected[consumer]:
            return
        for group in self.groups.values():
            mine = group.acked.setdefault(consumer, set())
            mine |= {m.number for m in self.visible(group)}
            group.groups.setdefault(consumer, SubscriptionGroup(consumer))
            for message in group.log[: group.confirmed]:
                if message.half and message.due == float("inf"):  # Its producer decides.
                    message.due = self.now

    def commit(self) -> None:
        """Acknowledgements become durable."""
        for group in self.groups.values():
            for consumer, numbers in group.acked.items():
                group.durable.setdefault(consumer, set()).update(numbers)

    def stop_consumer(self) -> None:
        consumer = self.random.choice(self.consumer_groups)
        self.connected[consumer] = not self.connected[consumer]
        self.say(f"consumer group {consumer} is {'connected' if self.connected[consumer] else 'away'}")

    def make_topic(self) -> None:
        """A producer sends to a new topic by an older route of the topic for new ones, so on one group alone."""
        self.next += 1
        open_groups = [g.name for g in self.groups.values() if g.drain != "closed"]
        name = self.random.choice(open_groups)
        topic = f"T{self.next}"
        self.groups[name].topics[topic] = TopicConfig(topic, 4, 4)
        self.routes[topic] = (self.now, [name])
        self.say(f"topic {topic} is made on {name} by a send")

    def failover(self) -> None:
        group = self.random.choice(list(self.groups.values()))
        group.old = self.report(group)
        group.epoch += 1
        # What was not confirmed was not acknowledged to anybody.
        del group.log[group.confirmed :]
        group.delayed_sends.clear()
        group.acked = {c: set(n) for c, n in group.durable.items()}
        group.sends = 0
        self.say(f"group {group.name} fails over to epoch {group.epoch}")

    def forget(self) -> None:
        self.memory.clear()
        self.say("another control plane")

    def change_spec(self) -> None:
        wanted = self.random.sample(self.names, self.random.randint(1, 3))
        self.spec = sorted(wanted)
        self.say(f"the spec has {', '.join(self.spec)}")
        if self.random.random() < 0.5:
            return
        for name in self.spec:
            if name not in self.groups:
                self._make(name)

    # ---- the control plane

    def report(self, group: Group) -> DrainReport:
        log = group.log[: group.confirmed]
        shown, now_ms = self.visible(group), int(self.now * 1000)
        unread: list[Unread] = []
        for consumer in group.groups:
            count = sum(m.number not in group.acked.get(consumer, ()) for m in shown)
            if count:
                unread.append(
                    Unread(topic="T", consumer_group=consumer, messages=count, connected=self.connected[consumer])
                )
        if shown and not group.groups:
            unread.append(Unread(topic="T", messages=len(shown)))
        flushed = all(numbers <= group.durable.get(c, set()) for c, numbers in group.acked.items())
        return DrainReport(
            epoch=group.epoch,
            leading=True,
            drain=group.drain,
            settled=group.confirmed == len(group.log) and flushed,
            end=len(group.log),
            now_ms=now_ms,
            sends=group.sends,
            newest_ms=max((int(m.stored * 1000) for m in shown), default=0),
            retention_ms=RETENTION_MS,
            unread=unread,
            unread_topics=len(unread),
            unread_consumer_groups=len(unread),
            unread_messages=sum(u.messages for u in unread),
            delayed=sum(self.now < m.due < float("inf") for m in log),
            timers=0,
            timers_until_ms=0,
            half=sum(m.due == float("inf") for m in log),
            in_flight=0,
            dead_letters=0,
        )

    def control(self) -> None:
        """One pass; the process may end before and after each group."""
        for name in self.spec:
            if name not in self.groups:
                self._make(name)
        for name in self.random.sample(list(self.groups), len(self.groups)):
            self._control(name)
            if self.faults and self.random.random() < 0.1:
                self.memory.clear()
                return

    def _control(self, name: str) -> None:
        group = self.groups[name]
        staying = [self.groups[n] for n in self.spec]
        if name in self.spec:
            self.memory.pop(name, None)
            if group.drain:
                group.drain = ""
                self.say(f"group {name} takes messages again")
            elif not group.joined:
                self._extend(group)
            return
        self._drain(group, staying)

    def _extend(self, group: Group) -> None:
        others = [g for g in self.groups.values() if g.joined]
        missing = missing_on(group.configs(), [g.configs() for g in others])
        for topic in missing.topics[: self.random.randint(0, 9)]:  # The process may end between two requests.
            group.topics[topic.name] = topic
        for one in missing.groups:
            group.groups.setdefault(one.name, one)
        if not missing_on(group.configs(), [g.configs() for g in others]):
            group.joined = True
            self.say(f"group {group.name} has all topics")

    def _drain(self, group: Group, staying: list[Group]) -> None:
        report = self.report(group)
        if group.old is not None and self.random.random() < 0.2:
            report = group.old.model_copy(update={"now_ms": report.now_ms})
        others = "" if all(g.joined and not g.drain for g in staying) else "not all can take over"
        lacks = homeless(group.configs(), [g.configs() for g in staying])
        seen = LeavingGroup(self.now, report, group.epoch, "WhenConsumed", others, homeless=bool(lacks))
        self.memory[group.name], step = decide(self.memory.get(group.name, Progress()), seen)
        if step.action == "spread":
            for g in staying:
                for topic in lacks.topics:
                    g.topics.setdefault(topic.name, replace(topic))
                for one in lacks.groups:
                    g.groups.setdefault(one.name, one)
            self.say(f"topics of {group.name} are made on {', '.join(g.name for g in staying)}")
        elif step.action in ("closing", "closed"):
            group.drain = step.action
            self._confirm(group)
            self.say(f"group {group.name} is {step.action}")
        elif step.action == "remove":
            self._remove(group)

    def _remove(self, group: Group) -> None:
        self.say(f"group {group.name} is removed")
        self.removed += 1
        messages = [*group.log, *(m for _, m in group.delayed_sends)]
        expired = {m.number for m in messages if m.stored * 1000 + RETENTION_MS <= self.now * 1000}
        for message in messages:
            waits = message.due > self.now
            seen = all(message.number in group.durable.get(c, ()) for c in group.groups)
            if waits or (message.number not in expired and not (seen and group.groups)):
                raise Broken(f"nothing is lost: message {message.number} of {group.name} was not read by everybody")
        del self.groups[group.name]
        self.memory.pop(group.name, None)


def play(seed: int, steps: int = 400) -> World:
    """One history, with calm at its end. Raises Broken with the trace."""
    world = World(seed)
    try:
        for _ in range(steps):
            world.step()
        world.calm()
    except Broken as error:
        raise Broken("\n".join([*world.trace[-40:], f"seed {seed}: {error}"])) from None
    return world
