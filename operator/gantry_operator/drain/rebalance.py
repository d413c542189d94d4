"""Queues of topics by broker group, spread evenly, and the safe order of the changes. Pure.

1. Add queues, so that there is always enough room.
2. Take the write permission of surplus queues: fewer write queues, the same read queues.
3. Take away surplus read queues, once every consumer group has acknowledged all of their messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gantry_broker.protocol.bodies import TopicConfig


@dataclass(frozen=True, slots=True)
class Queues:
    """Queues of one topic on one broker group."""

    topic: str
    group: str
    write: int
    read: int
    wanted: int
    """Queues that it should have."""

    @property
    def settled(self) -> bool:
        return self.write == self.read == self.wanted


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a topic on one broker group."""

    group: str
    config: TopicConfig


def spread(total: int, groups: Iterable[str], present: Mapping[str, int]) -> dict[str, int]:
    """`total` queues, evenly: each group at least one. Groups with more at present get those that cannot be divided."""
    order = sorted(groups, key=lambda g: (-present.get(g, 0), g))
    each, rest = divmod(max(total, len(order)), len(order))
    return {group: each + (index < rest) for index, group in enumerate(order)}


def proposal(
    topics: Mapping[str, Mapping[str, TopicConfig]], groups: Iterable[str], per_group: int | None = None
) -> list[Queues]:
    """Return what each topic has and should have, by group. `topics`: by topic and group; `groups`: those that take
    messages.

    Without `per_group` the number of queues of a topic stays, if it is not below the number of groups.
    """
    names, out = sorted(groups), []
    for topic, configs in sorted(topics.items()):
        present = {g: configs[g].write_queues for g in names if g in configs}
        if not present:
            continue
        shares = spread(sum(present.values()), names, present) if per_group is None else dict.fromkeys(names, per_group)
        for group in names:
            config = configs.get(group)
            write, read = (0, 0) if config is None else (config.write_queues, config.read_queues)
            out.append(Queues(topic, group, write, read, shares[group]))
    return out


def changes(topics: Mapping[str, Mapping[str, TopicConfig]], rows: Iterable[Queues]) -> list[list[Change]]:
    """Return the changes in three steps: more queues, fewer for producers, fewer for consumers.

    A change of the last step must wait until the queues that it takes away are empty. Each change is computed from the
    present state, so a repeated run goes on.
    """
    add: list[Change] = []
    close: list[Change] = []
    take: list[Change] = []
    for row in rows:
        configs = topics[row.topic]
        own = configs.get(row.group)
        config = own or max(configs.values(), key=lambda c: c.write_queues)
        if row.write < row.wanted:
            # Queues that wait to be taken away are used again.
            read = max(row.read, row.wanted)
            add.append(Change(row.group, replace(config, write_queues=row.wanted, read_queues=read)))
        elif row.write > row.wanted:
            close.append(Change(row.group, replace(config, write_queues=row.wanted, read_queues=row.read)))
        if row.read > row.wanted:
            take.append(Change(row.group, replace(config, write_queues=row.wanted, read_queues=row.wanted)))
    return [add, close, take]


def surplus_is_empty(
    config: TopicConfig, ends: Mapping[int, tuple[int, int]], offsets: Iterable[Mapping[int, int]]
) -> bool:
    """Whether no one needs the queues from `config.read_queues` on. `ends`: first and next offset by queue; `offsets`:
    the committed offset by queue, of each consumer group of the topic.
    """
    readers = list(offsets)
    for queue, (first, end) in ends.items():
        if queue < config.read_queues or end == first:
            continue
        if not readers or any(committed.get(queue, -1) < end for committed in readers):
            return False
    return True
