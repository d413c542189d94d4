"""Create, list, describe and delete topics."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Final

from gantry_broker.broker.metadata.attributes import CLEANUP, TOMBSTONES
from gantry_broker.client import Admin, BrokerError, InvalidMessage, NoRoute
from gantry_broker.protocol.bodies import BodyError
from gantry_broker.protocol.codes import SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS, ResponseCode

from gantry_operator.actions.errors import ActionError, Cause
from gantry_operator.actions.managed import create_resource, delete_managed, managed_by, refuse_managed
from gantry_operator.actions.target import Target, admin_of
from gantry_operator.api import BrokerTopic
from gantry_operator.api.base import parse_duration
from gantry_operator.api.names import reserved_topic
from gantry_operator.api.topic import CLEANUP_VALUES, permission_name

AT_ONCE: Final = 16


async def create_topic(target: Target, topic: str, queues: int, managed: bool = False) -> list[str]:
    """Create or change a topic. Returns the broker groups that have it.

    `managed`: by a resource, which is made. Raises ActionError.
    """
    await refuse_managed(target, "BrokerTopic", topic, "change spec.queuesPerGroup or spec.queues there")
    if managed:
        await create_resource(target, BrokerTopic, topic, {"queuesPerGroup": queues})
    async with admin_of(target) as admin:
        groups = sorted(await admin.masters())
        if not groups:
            raise ActionError("no group has a master now: see `gantry status`")
        if managed:
            return groups
        try:
            await admin.create_topic(topic, queues=queues)
        except InvalidMessage as error:
            raise ActionError(str(error), Cause.BAD_INPUT) from None
        return groups


async def compact_topic(target: Target, topic: str, tombstones: str, off: bool = False) -> list[str]:
    """Let brokers keep the newest message of each key of a topic, or no longer with `off`.

    `tombstones`: how long a message without a body stays, such as `24h`; empty: as it is. Returns the broker groups
    that have the topic. Raises ActionError.
    """
    await refuse_managed(target, "BrokerTopic", topic, "change spec.cleanupPolicy there")
    if reserved_topic(topic):
        raise ActionError(f"{topic} is a topic of the system: it cannot be compacted", Cause.BAD_INPUT)
    change = {CLEANUP: CLEANUP_VALUES["Delete" if off else "Compact"]}
    if tombstones:
        try:
            change[TOMBSTONES] = str(int(parse_duration(tombstones) * 1000))
        except ValueError as error:
            raise ActionError(f"--tombstones {tombstones}: {error}", Cause.BAD_INPUT) from None
    async with admin_of(target, whole=True) as admin:
        found = {}
        for group, address in (await admin.masters()).items():
            config = (await admin.topic_config(address)).topics.get(topic)
            if config is not None:
                found[group] = address, replace(config, attributes=change)
        if not found:
            raise ActionError(f"there is no topic {topic}: `gantry topic list` shows those that exist")
        for address, config in found.values():
            await admin.create_topic_at(address, config)
    return sorted(found)


async def list_topics(target: Target, all_topics: bool) -> list[dict[str, Any]]:
    """List topics with their queues, messages and resource. Raises ActionError."""
    managed = await managed_by(target, "BrokerTopic")
    async with admin_of(target) as admin:
        names = sorted({*await admin.topics(), *managed.by_name})
        info = await admin.cluster_info()
        own = set(info.brokers) | set(info.clusters) | {f"{c}_REPLY_TOPIC" for c in info.clusters}
        if not all_topics:
            names = [
                n for n in names
                if n not in SYSTEM_TOPICS and n not in own and not n.startswith((SYSTEM_TOPIC_PREFIX, "%"))
            ]  # fmt: skip
        turn = asyncio.Semaphore(AT_ONCE)

        async def row(name: str) -> dict[str, Any]:
            async with turn:
                return await _row(admin, name) | managed.columns(name)

        return list(await asyncio.gather(*map(row, names)))


async def _row(admin: Admin, topic: str) -> dict[str, Any]:
    """Topics that no broker holds (any more, or yet) have no queues."""
    try:
        table = await admin.topic_stats(topic)
    except NoRoute:
        table = {}
    except BrokerError as error:
        if error.code != ResponseCode.TOPIC_NOT_EXIST:
            raise
        table = {}
    return {
        "topic": topic,
        "queues": len(table),
        "messages": sum(o.max_offset - o.min_offset for o in table.values()),
    }


async def describe_topic(target: Target, topic: str) -> dict[str, Any]:
    """Return what brokers and its resource say about a topic. Raises ActionError."""
    resource = (await managed_by(target, "BrokerTopic")).by_name.get(topic)
    attributes: dict[str, str] = {}
    groups = []
    async with admin_of(target) as admin:
        for group, address in (await admin.masters()).items():
            config = (await admin.topic_config(address)).topics.get(topic)
            if config is None:
                continue
            attributes |= config.attributes
            groups.append(
                {
                    "group": group, "writeQueues": config.write_queues, "readQueues": config.read_queues,
                    "permission": permission_name(config.perm),
                }
            )  # fmt: skip
        if not groups and resource is None and admin.left_out:
            raise ActionError(f"no broker group that answers has the topic {topic}: cannot tell")
        if not groups and resource is None:
            raise ActionError(f"there is no topic {topic}: `gantry topic list` shows those that exist")
        stats = await admin.topic_stats(topic) if groups else {}
        for row in groups:
            row["messages"] = sum(o.max_offset - o.min_offset for q, o in stats.items() if q.broker == row["group"])
        consumers = await admin.topic_consumers(topic) if groups else []
    return {
        "topic": topic, "groups": groups, "attributes": attributes, "consumers": consumers, "resource": resource,
    }  # fmt: skip


async def delete_topic(target: Target, topic: str, force: bool) -> str:
    """Delete it, or the resource that manages it. Returns a sentence.

    Raises ActionError; without `force` also for unread messages.
    """
    managed = await delete_managed(target, "BrokerTopic", topic, force)
    if managed is not None:
        return managed
    if reserved_topic(topic):
        raise ActionError(f"{topic} is a topic of the system: it cannot be deleted", Cause.BAD_INPUT)
    async with admin_of(target, whole=True) as admin:
        if topic not in await admin.topics():
            raise ActionError(f"there is no topic {topic}: `gantry topic list` shows those that exist")
        if not force:
            await _refuse_unread(admin, topic)
        await admin.delete_topic(topic)
    return f"{topic} is deleted"


async def _refuse_unread(admin: Admin, topic: str) -> None:
    """Check that nothing in a topic is unread. Raises ActionError."""
    try:
        stats = await admin.topic_stats(topic)
        messages = sum(o.max_offset - o.min_offset for o in stats.values())
        groups = await admin.topic_consumers(topic) if messages else []
        if messages and not groups:
            raise ActionError(f"{topic} has {messages} messages that no consumer group has read; --force deletes them")
        for group in groups:
            progress = await admin.consume_stats(group, topic)
            left = sum(max(o.broker_offset - o.consumer_offset, 0) for o in progress.values())
            if left:
                raise ActionError(f"{group} has {left} unread messages in {topic}; --force deletes them")
    except (BrokerError, BodyError) as error:
        raise ActionError(
            f"what is unread in {topic} is not known, so it is not deleted; --force deletes it: {error}"
        ) from None
