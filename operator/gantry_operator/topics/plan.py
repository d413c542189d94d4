"""The next safe steps for the topics of a cluster. Pure: time is an argument.

A topic grows in one step. It shrinks in two: the removed queues first take no new messages, and once they are quiet and
every reader has read them, they are read no more. The same holds for a broker group that loses all queues of a topic,
and for a topic that is deleted. Every step may be repeated, and each decision starts from what the brokers have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gantry_broker.protocol.bodies import TopicConfig
from gantry_broker.protocol.codes import Perm

from gantry_operator.api.reserved_names import cluster_topics, reserved_topic
from gantry_operator.api.topic import DEFAULT_QUEUES, MAX_QUEUES, permission_name
from gantry_operator.topics.common import (
    DELETED,
    TO_KEEP,
    applying,
    blind,
    drifted,
    first_of_each,
    in_words,
    on_hold,
    origin_of,
    ready,
    synced,
)
from gantry_operator.topics.model import (
    SETTLE_S,
    Decision,
    DropTopic,
    Note,
    Observed,
    PutTopic,
    RecordedState,
    Result,
    Row,
    Settling,
    State,
    Step,
    WantedTopic,
    refusal_of_name,
)
from gantry_operator.topics.seen import BrokerTables, SeenTopic
from gantry_operator.topics.spread import queues_by_group

READ_WRITE = Perm.READ | Perm.WRITE


def decide_topics(
    wanted: Sequence[WantedTopic],
    seen: Observed,
    settling: Mapping[tuple[str, str], Settling],
    now: float,
    settle_s: float = SETTLE_S,
) -> Decision:
    """Return the steps for all topics. `settling`: of the last decision; none after a start. Raises BadTables."""
    decision = Decision([], {}, [])
    first = first_of_each(wanted, lambda w: w.topic)
    for w in wanted:
        why = _refusal(w, first[w.topic], seen)
        if why is not None:
            decision.results[w.resource] = Result(why, replace(why, message="see Ready"), w.recorded)
            continue
        one = _Topic(w, seen, settling, now, settle_s)
        decision.results[w.resource] = one.decide()
        decision.steps.extend(one.steps)
        decision.notes.extend(one.notes)
        decision.settling.update(one.settling)
        decision.ask.update({w.topic} if one.asks and not (w.deleting and one.unread) else ())
    return decision


def _refusal(w: WantedTopic, first: WantedTopic, seen: Observed) -> State | None:
    system = reserved_topic(w.topic) or w.topic in cluster_topics({seen.cluster}, seen.groups)
    return refusal_of_name(w.topic, "BrokerTopic", "topicName", w.resource, first.resource, of_system=system)


def row_of(topic: SeenTopic) -> Row:
    config = topic.config
    return config.write_queues, config.read_queues, permission_name(config.perm)


@dataclass
class _Topic:
    """The decision about one topic."""

    w: WantedTopic
    seen: Observed
    before: Mapping[tuple[str, str], Settling]
    at: float
    settle_s: float
    steps: list[Step] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    settling: dict[tuple[str, str], Settling] = field(default_factory=dict)
    waits: list[str] = field(default_factory=list)
    """Why a shrinking or a deletion does not go on yet."""
    drift: list[str] = field(default_factory=list)
    """What others have changed."""
    drifted: set[str] = field(default_factory=set)
    """Broker groups where they did."""
    asks: bool = False
    """Whether the decision depends on messages that are not delivered yet."""
    unread: bool = False
    """Whether a broker group has messages that were not read: a deletion waits for all of them first."""

    def decide(self) -> Result:
        w, seen = self.w, self.seen
        answering = {g: t for g, t in seen.tables.items() if t is not None}
        silent = [g for g, t in seen.tables.items() if t is None]
        by_group = {g: topic for g, t in answering.items() if (topic := t.topic(w.topic)) is not None}
        rows = {g: row_of(topic) for g, topic in by_group.items()}
        if w.deleting:
            return self._deletion(answering, silent, rows)
        silent = [g for g in silent if g not in seen.draining]
        targets = self.targets()
        origin = origin_of(w.recorded, bool(by_group), bool(answering))
        if origin == "Adopted" and not w.recorded.origin:
            self.notes.append(Note("Normal", "TopicAdopted", f"the brokers have {w.topic} already", w.resource))
        for group in seen.groups:
            tables = answering.get(group)
            if tables is None or group in seen.draining:
                continue
            if group in by_group:
                self._existing(tables, by_group[group], targets.get(group, 0))
            elif targets.get(group, 0):
                self._missing(group, targets[group])
        usable = self._usable(targets, by_group)
        record = replace(w.recorded, origin=origin, rows=self._rows_of_others(rows))
        if seen.held:
            self.steps, self.waits = [], []
            return Result(usable, on_hold(seen.held), record, rows, finalizer=w.delete)
        if self.drift and not w.report:
            text = f"{w.topic} was changed by others and is put back: {in_words(self.drift)}"
            self.notes.append(Note("Warning", "DriftCorrected", text, w.resource))
        complete = not self.steps and not self.waits and not silent and not (self.drift and w.report)
        if complete:
            record = RecordedState(origin, w.generation, rows, dict(w.attributes))
        return Result(
            usable if not silent else blind(silent, usable),
            self._synced(silent),
            record,
            rows,
            finalizer=w.delete,
            busy=bool(self.steps or self.waits or silent),
            blind=bool(silent) and not self.steps,
        )

    # ---- what it should be

    def targets(self) -> dict[str, int]:
        """Queues that take messages, by broker group; without those that drain."""
        w = self.w
        if w.queues is not None or w.per_group is not None:
            return queues_by_group(w.queues, w.per_group, self.seen.groups, self.seen.draining)
        have = {}
        for group in self.seen.groups:
            tables = self.seen.tables.get(group)
            topic = None if tables is None else tables.topic(w.topic)
            have[group] = 0 if topic is None else topic.config.write_queues
        usual = max(have.values(), default=0) or DEFAULT_QUEUES
        return {g: have[g] or usual for g in self.seen.groups if g not in self.seen.draining}

    def new(self, group: str, number: int) -> PutTopic:
        """Return the topic on a broker group that lacks it, like those of the other groups."""
        others = [t.topic(self.w.topic) for t in self.seen.tables.values() if t is not None]
        like = next((o.config for o in others if o is not None), TopicConfig(self.w.topic))
        number = min(number, MAX_QUEUES)
        perm = like.perm if self.w.perm is None else self.w.perm
        config = replace(like, read_queues=number, write_queues=number, perm=perm, attributes={})
        attributes = dict(like.attributes) | dict(self.w.attributes)
        return PutTopic(group, config, tuple(f"+{k}={v}" for k, v in sorted(attributes.items())), self.w.resource)

    def _missing(self, group: str, number: int) -> None:
        if self._drift_at(group, None, number) and self._keeps_drift(group, [f"{group}: it is missing"]):
            return
        self.steps.append(self.new(group, number))

    def _existing(self, tables: BrokerTables, topic: SeenTopic, number: int) -> None:
        group, config = tables.group, topic.config
        target = self._next(tables, topic, number)
        changes = _attribute_changes(config.attributes, self.w.attributes, self.w.recorded.attributes)
        differences = [f"{group}: {d}" for d in [*_differences(config, target), *changes]]
        if not differences:
            return
        others = self._drift_at(group, row_of(topic), number) or (
            self._has_generation() and any(not c.startswith("-") for c in changes) and not self._new_attributes()
        )
        if others and self._keeps_drift(group, differences):
            return
        if target is None:
            self.steps.append(DropTopic(group, self.w.topic, self.w.resource))
        else:
            self.steps.append(PutTopic(group, replace(target, attributes={}), changes, self.w.resource))

    def _next(self, tables: BrokerTables, topic: SeenTopic, number: int) -> TopicConfig | None:
        """Return the next configuration on a group that has the topic; None: it can be deleted there."""
        config, group = topic.config, tables.group
        number = min(number, MAX_QUEUES)
        if number == 0:
            return self._leaving(tables, topic)
        perm = config.perm if self.w.perm is None else (config.perm & ~READ_WRITE) | self.w.perm
        if not config.perm & Perm.WRITE and self.w.perm is None and self._left(group):
            perm = config.perm | Perm.WRITE  # It was leaving this group, and stays now.
        read = max(config.read_queues, number)
        if config.write_queues == number and read > number and self._may_forget(tables, topic, number):
            read = number
        elif config.write_queues != number and read > number and self.w.force:
            self.waits.append(f"{group}: {read - number} queues take no more messages")
        elif config.write_queues != number and read > number:
            self.waits.append(
                f"{group}: {read - number} queues take no more messages, and are read until they are empty"
            )
        return replace(config, write_queues=number, read_queues=read, perm=perm)

    def _left(self, group: str) -> bool:
        """Whether the operator took its write permission: it was changing the group when the spec changed again."""
        record = self.w.recorded
        row = record.rows.get(group)
        if record.generation is None:
            return record.origin == "Created"  # This program made it with the permission, and took it away since.
        return row is None or (not self._has_generation() and "Write" in str(row[2]))

    def _leaving(self, tables: BrokerTables, topic: SeenTopic) -> TopicConfig | None:
        config, group = topic.config, tables.group
        if config.perm & Perm.WRITE and not self.w.force:
            self.waits.append(f"{group}: it takes no more messages, and is deleted there once they are read")
            return replace(config, perm=config.perm & ~Perm.WRITE)
        readers = self._readers()
        if self.w.force:
            return None
        unread = tables.unread(self.w.topic, 0, readers) or tables.unread_retries(self.w.topic, readers)
        if unread is not None:
            self.unread = True
            self.waits.append(_unread(group, unread.messages, unread.why, "this broker group"))
            return config
        return config if self._undelivered(tables) else None

    def _undelivered(self, tables: BrokerTables) -> bool:
        """Whether messages may still come that were sent before: they wait for their time, or for a decision."""
        self.asks = True
        kind = tables.undelivered(self.w.topic)
        if kind == "none":
            return False
        self.waits.append(f"{tables.group}: {_UNDELIVERED.get(kind or '', _LOOKS)}")
        return True

    def _readers(self) -> list[str]:
        """Consumer groups that read the topic in any broker group."""
        tables = [t for t in self.seen.tables.values() if t is not None]
        return list(dict.fromkeys(group for t in tables for group in t.readers(self.w.topic)))

    def _may_forget(self, tables: BrokerTables, topic: SeenTopic, number: int) -> bool:
        """Whether the queues from `number` on can be read no more."""
        group = tables.group
        key, ends = (group, self.w.topic), tuple(q.end for q in topic.queues[number:])
        settling = self.before.get(key)
        if settling is None or settling.ends != ends:
            settling = Settling(self.at, ends)
        self.settling[key] = settling
        unread = tables.unread(self.w.topic, number, self._readers())
        if self.w.force:
            return True
        if unread is not None:
            self.waits.append(_unread(group, unread.messages, unread.why, f"queues {number} and above"))
            return False
        if self.at - settling.since < self.settle_s:
            self.waits.append(
                f"{group}: queues {number} and above are empty, and are watched for {self.settle_s:.0f} s"
            )
            return False
        return True

    # ---- what others have changed

    def _has_generation(self) -> bool:
        return self.w.recorded.generation == self.w.generation

    def _new_attributes(self) -> bool:
        return dict(self.w.recorded.attributes) != dict(self.w.attributes)

    def _drift_at(self, group: str, row: Row | None, number: int) -> bool:
        """Whether others have changed the topic on a group since all brokers had this spec.

        A change of the broker groups changes the wanted number without a change of the spec: a group that has that
        number already was changed by this program.
        """
        recorded_row = self.w.recorded.rows.get(group)
        if not self._has_generation() or recorded_row is None or recorded_row == row or number == 0:
            return False
        return row is None or row[0] != number or recorded_row[0] == number

    def _rows_of_others(self, now: Mapping[str, Row]) -> dict[str, Row]:
        """Return the rows to compare with. One that this program is changing is none of them until all brokers are in
        step.
        """
        return {g: r for g, r in self.w.recorded.rows.items() if g in self.drifted or now.get(g, r) == r}

    def _keeps_drift(self, group: str, differences: list[str]) -> bool:
        """Return True if the differences stay."""
        self.drift += differences
        self.drifted.add(group)
        self.waits = [] if self.w.report else self.waits
        return self.w.report

    # ---- conditions

    def _usable(self, targets: Mapping[str, int], topics: Mapping[str, SeenTopic]) -> State:
        without_topic = [g for g, n in targets.items() if n and g not in topics and self.seen.tables.get(g) is not None]
        if without_topic:
            return State("False", "Missing", f"{', '.join(without_topic)} has no topic {self.w.topic} yet")
        few = [g for g, n in targets.items() if g in topics and topics[g].config.write_queues < min(n, MAX_QUEUES)]
        if few:
            return State("False", "TooFewQueues", f"{', '.join(few)} has fewer queues than the spec says")
        perm = self.w.perm
        other = [g for g in targets if g in topics and perm is not None and topics[g].config.perm & READ_WRITE != perm]
        if other:
            return State("False", "OtherPermission", f"{', '.join(other)} has another permission than the spec says")
        total = sum(topics[g].config.write_queues for g in targets if g in topics)
        return ready(self.w.recorded.origin, f"{total} queues on {', '.join(g for g in targets if g in topics)}")

    def _synced(self, silent: list[str]) -> State:
        if self.drift and self.w.report:
            return drifted(self.drift)
        if self.steps:
            return applying(self.steps, self.waits)
        if self.waits:
            return State("False", "Shrinking", in_words(self.waits))
        return blind(silent, synced())

    # ---- deletion

    def _deletion(self, answering: Mapping[str, BrokerTables], silent: list[str], rows: Mapping[str, Row]) -> Result:
        w = self.w
        if not w.delete and w.held:
            return self._kept(answering, silent, rows)
        if not w.delete or (not rows and not silent):
            return Result(DELETED, DELETED, w.recorded)
        if not self.seen.held:
            drops: list[Step] = []
            for tables in answering.values():
                topic = tables.topic(w.topic)
                if topic is None:
                    continue
                after = self._leaving(tables, topic)
                if after is None:
                    drops.append(DropTopic(tables.group, w.topic, w.resource))
                elif after != topic.config:
                    self.steps.append(PutTopic(tables.group, replace(after, attributes={}), (), w.resource))
            if not self.waits:
                # All at once: the readers of one broker group count for the others as long as it has the topic.
                self.steps += drops
        if self.seen.held:
            state = on_hold(self.seen.held)
        elif self.waits and not self.steps:
            reasons = [wait for wait in self.waits if not wait.endswith(_LOOKS)] or self.waits
            state = State("False", "Unread", f"{w.topic} is not deleted yet: {in_words(reasons)}; {TO_KEEP}")
        elif silent and not self.steps:
            state = blind(silent, State("False", "Deleting", f"{w.topic} is being deleted"))
        else:
            state = State("False", "Deleting", f"{w.topic} is being deleted")
        return Result(state, state, w.recorded, rows, finalizer=True, busy=True)

    def _kept(self, answering: Mapping[str, BrokerTables], silent: list[str], rows: Mapping[str, Row]) -> Result:
        """Return the result after a deletion that was taken back: the resource goes once the topic takes messages as
        before.
        """
        w = self.w
        for tables in answering.values() if not self.seen.held else ():
            topic = tables.topic(w.topic)
            if topic is not None and not topic.config.perm & Perm.WRITE and self._left(tables.group):
                rights = READ_WRITE if w.perm is None else w.perm
                config = replace(topic.config, perm=topic.config.perm | rights, attributes={})
                if config.perm != topic.config.perm:
                    self.steps.append(PutTopic(tables.group, config, (), w.resource))
        if not (self.steps or silent or self.seen.held):
            return Result(DELETED, DELETED, w.recorded)
        state = State("False", "Keeping", f"{w.topic} stays, since spec.deletionPolicy is Retain now")
        state = on_hold(self.seen.held) if self.seen.held else state if self.steps else blind(silent, state)
        return Result(state, state, w.recorded, rows, finalizer=True, busy=True)


_UNDELIVERED = {
    "delayed": "delayed messages for it are not delivered yet; it waits for their time, or for spec.force: true, which "
    "deletes them",
    "half": "messages of transactions for it have no decision yet; it waits until their producers decide, or for "
    "spec.force: true, which deletes them",
}
"""By what is not delivered to a topic yet."""
_LOOKS = "it looks for messages that are not delivered yet"


def _unread(group: str, messages: int, why: str, what: str) -> str:
    return (
        f"{group}: {messages} messages are unread in {what} ({why}); they go when they are read, when they expire, or "
        "with spec.force: true"
    )


def _differences(now: TopicConfig, target: TopicConfig | None) -> list[str]:
    if target is None:
        return ["it has a topic that it should not have"]
    out = []
    fields: tuple[tuple[str, Any, Any], ...] = (
        ("write queues", now.write_queues, target.write_queues),
        ("read queues", now.read_queues, target.read_queues),
        ("permission", permission_name(now.perm), permission_name(target.perm)),
    )
    for name, before, after in fields:
        if before != after:
            out.append(f"{name} {before}, wanted {after}")
    return out


def _attribute_changes(
    now: Mapping[str, str], target: Mapping[str, str], ours: Mapping[str, str]
) -> tuple[str, ...]:  # fmt: skip
    """In RocketMQ's form. Only attributes that the resource names, or has set before, are changed."""
    changes = [f"+{k}={v}" for k, v in sorted(target.items()) if now.get(k) != v]
    return (*changes, *(f"-{k}" for k in sorted(ours) if k not in target and k in now))
