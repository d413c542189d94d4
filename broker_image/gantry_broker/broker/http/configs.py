"""The configurations of topics and consumer groups for the control plane, and its marks on the broker group.

The control plane brings the topics of a cluster to a new broker group, and closes a group that leaves. Marks are in the
replicated tables: a new master has them.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import orjson
from fastapi import HTTPException

from gantry_broker.broker.errors import NotStored, NotWritable, RequestRejected
from gantry_broker.broker.handlers.groupadmin import checked_group
from gantry_broker.broker.handlers.topicadmin import Parts as TopicParts
from gantry_broker.broker.handlers.topicadmin import checked_topic
from gantry_broker.broker.http.rocketmq_metrics import is_system_group
from gantry_broker.broker.metadata.tables import DRAIN, JOINED, RELEASED, Change
from gantry_broker.broker.metadata.topics import is_system_topic
from gantry_broker.contracts.models import ConfigsAnswer, ConfigsRequest, GroupMarks, MarksRequest
from gantry_broker.protocol.bad_field import BadField
from gantry_broker.protocol.bodies import SubscriptionGroup, TopicConfig
from gantry_broker.protocol.codes import DLQ_PREFIX, PREDEFINED_GROUPS, REPLY_TOPIC_SUFFIX, RETRY_PREFIX
from gantry_broker.protocol.fields import BodyError
from gantry_broker.store.errors import StoreError

CHUNK: Final = 200
"""Topics, or groups, in one control record."""


class Parts(TopicParts, Protocol):
    """What these functions use of a member."""


def is_own_topic(broker: Parts, name: str) -> bool:
    """Return whether brokers make the topic themselves: system, retry and dead letter topics, and for replies."""
    return (
        is_system_topic(name)
        or name in (broker.config.cluster, broker.config.group)
        or name.startswith((RETRY_PREFIX, DLQ_PREFIX))
        or name.endswith(f"_{REPLY_TOPIC_SUFFIX}")
    )


def is_own_group(name: str) -> bool:
    """Return whether brokers make the consumer group themselves."""
    return is_system_group(name) or name in PREDEFINED_GROUPS


async def all_configs(broker: Parts) -> bytes:
    """Return the answer of GET /v1/configs. Works in slices."""
    tables = broker.meta.working
    topics: list[bytes] = []
    async for name, topic in broker.slices.sliced(list(tables.topics.items())):
        if not is_own_topic(broker, name):
            topics.append(orjson.dumps(topic.to_json()))
    groups: list[bytes] = []
    async for name, group in broker.slices.sliced(list(tables.groups.items())):
        if not is_own_group(name):
            groups.append(orjson.dumps(group.to_json()))
    return b'{"topics":[' + b",".join(topics) + b'],"groups":[' + b",".join(groups) + b"]}"


async def add_configs(broker: Parts, request: ConfigsRequest) -> ConfigsAnswer:
    """Create what is missing. Never change what exists. Raise HTTPException."""
    tables = broker.meta.working
    try:
        topics = [checked_topic(broker, TopicConfig.from_json(value)) for value in request.topics]
        groups = [checked_group(SubscriptionGroup.from_json(value)) for value in request.groups]
        topics = [topic for topic in topics if topic.name not in tables.topics]
        groups = [group for group in groups if group.name not in tables.groups]
        broker.creation.check_limits(
            topics=[topic.name for topic in topics], groups=[group.name for group in groups], on_demand=False
        )
    except (BodyError, BadField, RequestRejected) as error:
        raise HTTPException(422, str(error)) from None
    for start in range(0, max(len(topics), len(groups)), CHUNK):
        change: dict[str, Any] = {}
        # Another request may have made it during the wait for the previous part.
        new_topics = [t.to_json() for t in topics[start : start + CHUNK] if t.name not in tables.topics]
        new_groups = [g.to_json() for g in groups[start : start + CHUNK] if g.name not in tables.groups]
        if new_topics:
            change["topics"] = new_topics
        if new_groups:
            change["groups"] = new_groups
        if change:
            await _append(broker, change)
    return ConfigsAnswer(topics=len(topics), groups=len(groups))


async def mark(broker: Parts, request: MarksRequest) -> GroupMarks:
    """Set marks, and return when they are replicated and in the routes. Raise HTTPException."""
    marks = broker.meta.working.marks
    changes: dict[str, str] = {}
    if request.drain is not None and request.drain != marks.get(DRAIN, ""):
        changes[DRAIN] = request.drain
    if request.joined is not None and request.joined != (JOINED in marks):
        changes[JOINED] = "yes" if request.joined else ""
    if request.released is not None and request.released != (RELEASED in marks):
        changes[RELEASED] = "yes" if request.released else ""
    if changes:
        await _append(broker, {"marks": changes})
    marks = broker.meta.working.marks
    return GroupMarks(drain=marks.get(DRAIN, ""), joined=JOINED in marks, released=RELEASED in marks)


async def _append(broker: Parts, change: Change) -> None:
    try:
        await broker.changes.append_and_wait(change)
    except (NotWritable, NotStored, StoreError) as error:
        raise HTTPException(503, str(error) or "this member does not take changes now") from None
