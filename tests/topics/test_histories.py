"""Seeded histories: drift, brokers that are away, steps that are lost or answered too late, operators that end, readers
that are behind. No message that a reader lacks is removed, and afterwards everything is as the resources say.

TOPICS_SEED=17 python -m pytest tests/topics/test_histories.py repeats one.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field, replace

import pytest
from gantry_broker.protocol.bodies import TopicConfig
from gantry_broker.protocol.codes import Perm
from gantry_operator.topics.model import RecordedState, WantedTopic
from gantry_operator.topics.plan import decide_topics

from tests.topics.model import Broker, observed

SEEDS = [int(os.environ["TOPICS_SEED"])] if "TOPICS_SEED" in os.environ else list(range(120))
STEPS = 120
SETTLE_S = 75.0
ROUTE_S = 30.0
READERS = ("g1", "g2")


@dataclass
class History:
    """One run."""

    random: random.Random
    brokers: dict[str, Broker] = field(default_factory=dict)
    wanted: dict[str, WantedTopic] = field(default_factory=dict)
    kept: dict[str, RecordedState] = field(default_factory=dict)
    """As in the status: it outlives an operator."""
    settling: dict = field(default_factory=dict)  # type: ignore[type-arg]
    ask: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)
    routes: dict[tuple[str, str], tuple[float, int]] = field(default_factory=dict)
    """By broker group and topic: write queues as producers know them, and since when."""
    now: float = 0.0
    foreign: set[str] = field(default_factory=set)
    """Topics that others changed although their policy is Report."""

    def pick(self) -> WantedTopic:
        return self.wanted[self.random.choice(sorted(self.wanted))]

    # ---- what happens

    def send(self) -> None:
        """A producer uses a route that may be 30 s old."""
        w, broker = self.pick(), self.random.choice(list(self.brokers.values()))
        config = broker.topics.get(w.topic)
        key = (broker.group, w.topic)
        known = self.routes.get(key)
        if config is not None and (known is None or self.now - known[0] >= ROUTE_S):
            known = self.routes[key] = (self.now, config.write_queues)
        if known is not None:
            broker.send(w.topic, self.random.randrange(known[1]))

    def read(self) -> None:
        w, broker = self.pick(), self.random.choice(list(self.brokers.values()))
        if w.topic in broker.topics:
            broker.read(w.topic, self.random.choice(READERS))

    def delay(self) -> None:
        self.random.choice(list(self.brokers.values())).delay(self.pick().topic)

    def deliver(self) -> None:
        for broker in self.brokers.values():
            broker.deliver(self.pick().topic)

    def change_spec(self) -> None:
        w = self.pick()
        if w.deleting:
            return
        number = self.random.randint(1, 8)
        in_total = self.random.random() < 0.4
        self.wanted[w.resource] = replace(
            w,
            queues=number if in_total else None,
            per_group=None if in_total else number,
            attributes={"k": str(self.random.randint(0, 2))} if self.random.random() < 0.7 else {},
            generation=w.generation + 1,
        )

    def drift(self) -> None:
        w, broker = self.pick(), self.random.choice(list(self.brokers.values()))
        config = broker.topics.get(w.topic)
        if config is None or w.deleting:
            return
        if w.report:
            self.foreign.add(w.topic)
        more = config.read_queues + self.random.randint(0, 4)
        broker.topics[w.topic] = replace(config, write_queues=more, read_queues=more, perm=Perm.READ | Perm.WRITE)

    def silence(self) -> None:
        group = self.random.choice(list(self.brokers))
        self.silent ^= {group}

    def add_group(self) -> None:
        if len(self.brokers) < 4:
            group = "abcd"[len(self.brokers)]
            self.brokers[group] = Broker(group)

    def delete(self) -> None:
        w = self.pick()
        if w.delete and self.random.random() < 0.2:
            self.wanted[w.resource] = replace(w, deleting=True)

    def restart(self) -> None:
        self.settling, self.ask = {}, set()

    def operate(self, reliable: bool = False) -> int:
        """One pass. Returns the number of steps."""
        self.now += self.random.choice((0.3, 3.0, 30.0))
        asked = [replace(w, recorded=self.kept.get(w.resource, RecordedState())) for w in self.wanted.values()]
        seen = observed(self.brokers, self.silent, self.ask)
        found = decide_topics(asked, seen, self.settling, self.now, SETTLE_S)
        self.settling, self.ask = found.settling, found.ask
        keep_results = reliable or self.random.random() < 0.9
        for name, result in found.results.items():
            before = self.kept.get(name, RecordedState())
            if before.origin:
                assert result.recorded.origin == before.origin
            if keep_results:
                self.kept[name] = result.recorded
        for step in found.steps:
            chance = 1.0 if reliable else self.random.random()
            if step.group in self.silent or chance < 0.15:
                continue  # It did not arrive.
            if not reliable:
                self.send()  # While the step is on its way.
            self.brokers[step.group].do(step)
            if chance < 0.25:
                break  # The operator ends after it.
        for name in [n for n, r in found.results.items() if self.wanted[n].deleting and not r.finalizer]:
            for broker in self.brokers.values():
                assert self.wanted[name].topic not in broker.topics
            self.wanted[name] = replace(self.wanted[name], deleting=False, generation=1)
            self.kept.pop(name, None)
        return len(found.steps)


def run(seed: int) -> History:
    rng = random.Random(seed)
    h = History(rng, {"a": Broker("a"), "b": Broker("b")})
    for number in range(3):
        name = f"t{number}"
        h.wanted[name] = WantedTopic(name, name, per_group=4, report=number == 2, delete=number == 1)
    if rng.random() < 0.5:
        h.brokers["a"].topics["t0"] = TopicConfig("t0", 16, 16)
    actions = [
        (h.send, 30), (h.read, 12), (h.change_spec, 4), (h.drift, 3), (h.silence, 4), (h.add_group, 1), (h.delete, 2),
        (h.restart, 2), (h.operate, 40), (h.delay, 4), (h.deliver, 6),
    ]  # fmt: skip
    for _ in range(STEPS):
        (action,) = rng.choices([a for a, _ in actions], [n for _, n in actions])
        action()
    return h


def come_to_rest(h: History) -> None:
    """Everybody answers, readers catch up, nobody sends."""
    h.silent = set()
    for w in h.wanted.values():
        h.wanted[w.resource] = replace(w, deleting=False, generation=w.generation + 1)
    for _ in range(60):
        for w in h.wanted.values():
            for broker in h.brokers.values():
                if w.topic in broker.topics:
                    broker.deliver(w.topic)
                    for reader in READERS:
                        broker.read(w.topic, reader)
        h.operate(reliable=True)
        h.now += 10


@pytest.mark.parametrize("part", range(6))
def test_histories(part: int) -> None:
    for seed in SEEDS[part::6]:
        h = run(seed)
        come_to_rest(h)
        asked = [replace(w, recorded=h.kept[w.resource]) for w in h.wanted.values()]
        found = decide_topics(asked, observed(h.brokers), h.settling, h.now, SETTLE_S)
        assert found.steps == [], f"TOPICS_SEED={seed}"
        for w in h.wanted.values():
            state = found.results[w.resource]
            assert (state.ready.status, state.synced.status) == ("True", "True"), f"TOPICS_SEED={seed} {state}"
            counts = {g: b.topics[w.topic].write_queues for g, b in h.brokers.items() if w.topic in b.topics}
            reads = {g: b.topics[w.topic].read_queues for g, b in h.brokers.items() if w.topic in b.topics}
            assert counts == reads, f"TOPICS_SEED={seed}"
            if w.queues is not None:
                assert sum(counts.values()) == w.queues, f"TOPICS_SEED={seed} {counts}"
                assert max(counts.values()) - min(counts.values()) <= 1
            else:
                assert counts == dict.fromkeys(h.brokers, w.per_group), f"TOPICS_SEED={seed}"


def test_reported_drift_is_never_changed() -> None:
    """Without a change of the spec and of the groups, the topic that others changed stays as they left it."""
    for seed in SEEDS[:60]:
        rng = random.Random(seed)
        h = History(rng, {g: Broker(g) for g in "abc"})
        h.wanted["t"] = WantedTopic("t", "t", per_group=4, report=True)
        while h.operate(reliable=True):
            pass
        h.operate(reliable=True)
        broker = h.brokers[rng.choice("abc")]
        changed = broker.topics["t"] = TopicConfig("t", rng.randint(1, 3), rng.randint(5, 9), Perm.READ)
        for _ in range(20):
            rng.choice((h.send, h.read, h.operate, h.restart))()
        assert broker.topics["t"] == changed, f"TOPICS_SEED={seed}"
