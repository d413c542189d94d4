"""The topics and consumer groups that a broker group lacks. Only new queues are created; none moves. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gantry_broker.protocol.bodies import SubscriptionGroup, TopicConfig
from gantry_broker.protocol.codes import Perm
from gantry_broker.protocol.fields import BodyError


@dataclass(frozen=True, slots=True)
class GroupConfigs:
    """The topics and consumer groups of one broker group, without those that brokers make themselves."""

    topics: Mapping[str, TopicConfig] = field(default_factory=dict)
    groups: Mapping[str, SubscriptionGroup] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: Any) -> GroupConfigs:
        """From the answer of GET /v1/configs. Raises ValueError."""
        if not isinstance(value, dict):
            raise ValueError("the answer is no JSON object")
        try:
            topics = [TopicConfig.from_json(v, stored=True) for v in value.get("topics", [])]
            groups = [SubscriptionGroup.from_json(v, stored=True) for v in value.get("groups", [])]
        except (BodyError, TypeError) as error:
            raise ValueError(str(error)) from None
        return cls({t.name: t for t in topics}, {g.name: g for g in groups})


@dataclass(frozen=True, slots=True)
class Missing:
    """What is to be created."""

    topics: tuple[TopicConfig, ...] = ()
    groups: tuple[SubscriptionGroup, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.topics or self.groups)


def _like(configs: Sequence[TopicConfig]) -> TopicConfig:
    """Return a topic for another group: as on the group with the most queues."""
    largest = max(configs, key=lambda t: (t.write_queues, t.read_queues))
    return replace(largest, read_queues=largest.write_queues)


def missing_on(new: GroupConfigs, others: Sequence[GroupConfigs], managed: Collection[str] = ()) -> Missing:
    """Return what `new` lacks of `others`. `managed`: topics that something else spreads over the groups."""
    topics: dict[str, list[TopicConfig]] = {}
    groups: dict[str, SubscriptionGroup] = {}
    for other in others:
        for name, topic in other.topics.items():
            if name not in new.topics and name not in managed:
                topics.setdefault(name, []).append(topic)
        for name, group in other.groups.items():
            if name not in new.groups:
                groups.setdefault(name, group)
    return Missing(
        tuple(_like(configs) for _, configs in sorted(topics.items())), tuple(g for _, g in sorted(groups.items()))
    )


def homeless(leaving: GroupConfigs, staying: Sequence[GroupConfigs]) -> Missing:
    """Topics that producers could not send to any more once `leaving` takes no messages, and its consumer groups that
    no staying group knows.
    """
    writable = {name for s in staying for name, topic in s.topics.items() if topic.perm & Perm.WRITE}
    kept_groups = {name for s in staying for name in s.groups}
    return Missing(
        tuple(_like([t]) for name, t in sorted(leaving.topics.items()) if t.perm & Perm.WRITE and name not in writable),
        tuple(g for name, g in sorted(leaving.groups.items()) if name not in kept_groups),
    )
