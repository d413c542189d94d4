"""Create, list, describe and delete topics."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from gantry_broker.client import Admin, BrokerError, InvalidMessage, NoRoute
from gantry_broker.protocol.bodies import BodyError
from gantry_broker.protocol.codes import SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS, ResponseCode
from pydantic import ValidationError

from gantry_operator.actions.errors import ActionError, Cause
from gantry_operator.actions.managed import NAME_FIELDS, condition, delete_managed, in_force, names_of, resource_name
from gantry_operator.actions.target import Target, admin_of
from gantry_operator.api import BrokerTopic
from gantry_operator.api.manifest import problems_of
from gantry_operator.api.names import reserved_topic
from gantry_operator.api.topic import permission_name

AT_ONCE: Final = 16


async def create_topic(target: Target, topic: str, queues: int, managed: bool = False) -> list[str]:
    """Create or change a topic. Returns the broker groups that have it. `managed`: by a resource, which is made. Raises
    ActionError.
    """
    async with target.resources() as found:
        owner = names_of(await found.list("BrokerTopic"), NAME_FIELDS["BrokerTopic"]).get(topic)
        if owner is not None:
            raise ActionError(
                f"{topic} is managed by BrokerTopic {owner}: change spec.queuesPerGroup or spec.queues there"
            )
        if managed:
            made = _resource(topic, queues, found.cluster, found.namespace)
            await found.create(made)
            await in_force(found, made, target.remarks)
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


def _resource(topic: str, queues: int, cluster: str, namespace: str) -> BrokerTopic:
    name = resource_name(topic)
    spec: dict[str, Any] = {"queuesPerGroup": queues}
    if name != topic:
        spec["topicName"] = topic
    try:
        return BrokerTopic.make(name, cluster, namespace, **spec)
    except ValidationError as error:
        raise ActionError("; ".join(map(str, problems_of(error.errors(), BrokerTopic))), Cause.BAD_INPUT) from None


async def list_topics(target: Target, all_topics: bool) -> list[dict[str, Any]]:
    """List topics with their queues, messages and resource. Raises ActionError."""
    async with target.resources() as found:
        resources = await found.list("BrokerTopic")
    owners = names_of(resources, NAME_FIELDS["BrokerTopic"])
    by_name = {str(o["metadata"]["name"]): o for o in resources}
    async with admin_of(target) as admin:
        names = sorted({*await admin.topics(), *owners})
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
                out = await _row(admin, name)
            owner = owners.get(name, "")
            ready = condition(by_name.get(owner, {}), "Ready").get("status", "Unknown") if owner else "-"
            return out | {"resource": owner, "ready": ready}

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
    async with target.resources() as resources:
        listed = await resources.list("BrokerTopic")
    owner = names_of(listed, NAME_FIELDS["BrokerTopic"]).get(topic)
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
        if not groups and owner is None and admin.left_out:
            raise ActionError(f"no broker group that answers has the topic {topic}: cannot tell")
        if not groups and owner is None:
            raise ActionError(f"there is no topic {topic}: `gantry topic list` shows those that exist")
        stats = await admin.topic_stats(topic) if groups else {}
        for row in groups:
            row["messages"] = sum(o.max_offset - o.min_offset for q, o in stats.items() if q.broker == row["group"])
        consumers = await admin.topic_consumers(topic) if groups else []
    resource = next((o for o in listed if o["metadata"]["name"] == owner), None)
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
