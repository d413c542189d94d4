"""`gantry topic`: the topics of a cluster, those of resources and all others."""

from __future__ import annotations

import asyncio
from typing import Any

from gantry_broker.client import Admin, BrokerError, InvalidMessage, NoRoute
from gantry_broker.protocol.bodies import BodyError
from gantry_broker.protocol.codes import SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS, ResponseCode
from pydantic import ValidationError

from gantry_operator.api import BrokerTopic
from gantry_operator.api.manifest import problems_of
from gantry_operator.api.names import reserved_topic
from gantry_operator.api.topic import permission_name
from gantry_operator.cli.errors import CliError, Exit
from gantry_operator.cli.output import note, print_json, print_table, say
from gantry_operator.cli.resources import (
    NAME_FIELDS,
    condition,
    delete_managed,
    in_force,
    names_of,
    resource_name,
)
from gantry_operator.cli.target import Target, admin_of, run_async

AT_ONCE = 16


def create(target: Target, topic: str, queues: int, managed: bool, as_json: bool) -> None:
    """Create or change a topic. Raises CliError."""
    groups = run_async(create_topic(target, topic, queues, managed))
    if as_json:
        print_json({"topic": topic, "queues": queues, "groups": groups})
    else:
        say(f"{topic}: {queues} queues in {', '.join(groups)}")


async def create_topic(target: Target, topic: str, queues: int, managed: bool = False) -> list[str]:
    """`managed`: by a resource, which is made. Raises CliError."""
    async with target.resources() as found:
        owner = names_of(await found.list("BrokerTopic"), NAME_FIELDS["BrokerTopic"]).get(topic)
        if owner is not None:
            raise CliError(
                f"{topic} is managed by BrokerTopic {owner}: change spec.queuesPerGroup or spec.queues there"
            )
        if managed:
            made = _resource(topic, queues, found.cluster, found.namespace)
            await found.create(made)
            await in_force(found, made)
    async with admin_of(target) as admin:
        groups = sorted(await admin.masters())
        if not groups:
            raise CliError("no group has a master now: see `gantry status`")
        if managed:
            return groups
        try:
            await admin.create_topic(topic, queues=queues)
        except InvalidMessage as error:
            raise CliError(str(error), Exit.USAGE) from None
        return groups


def _resource(topic: str, queues: int, cluster: str, namespace: str) -> BrokerTopic:
    name = resource_name(topic)
    spec: dict[str, Any] = {"queuesPerGroup": queues}
    if name != topic:
        spec["topicName"] = topic
    try:
        return BrokerTopic.make(name, cluster, namespace, **spec)
    except ValidationError as error:
        raise CliError("; ".join(map(str, problems_of(error.errors(), BrokerTopic))), Exit.USAGE) from None


def show(target: Target, all_topics: bool, as_json: bool) -> None:
    """List topics. Raises CliError."""
    rows = run_async(_list(target, all_topics))
    if as_json:
        print_json(rows)
        return
    print_table(
        ("TOPIC", "QUEUES", "MESSAGES", "RESOURCE", "READY"),
        [(row["topic"], row["queues"], row["messages"], row["resource"] or "-", row["ready"]) for row in rows],
    )


async def _list(target: Target, all_topics: bool) -> list[dict[str, Any]]:
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


def describe(target: Target, topic: str, as_json: bool) -> None:
    """Everything about one topic. Raises CliError."""
    found = run_async(_described(target, topic))
    if as_json:
        print_json(found)
        return
    say(f"topic      {topic}")
    say(f"attributes {', '.join(f'{k}={v}' for k, v in found['attributes'].items()) or '-'}")
    say(f"consumers  {', '.join(found['consumers']) or '-'}")
    resource = found["resource"]
    if resource:
        say(f"resource   BrokerTopic {resource['metadata']['name']}")
        for kind in ("Ready", "Synced"):
            state = condition(resource, kind)
            say(f"  {kind:<8} {state.get('status', 'Unknown')}: {state.get('message') or state.get('reason', '')}")
    print_table(
        ("GROUP", "WRITE QUEUES", "READ QUEUES", "PERMISSION", "MESSAGES"),
        [[row[k] for k in ("group", "writeQueues", "readQueues", "permission", "messages")] for row in found["groups"]],
    )


async def _described(target: Target, topic: str) -> dict[str, Any]:
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
            raise CliError(f"no broker group that answers has the topic {topic}: cannot tell")
        if not groups and owner is None:
            raise CliError(f"there is no topic {topic}: `gantry topic list` shows those that exist")
        stats = await admin.topic_stats(topic) if groups else {}
        for row in groups:
            row["messages"] = sum(o.max_offset - o.min_offset for q, o in stats.items() if q.broker == row["group"])
        consumers = await admin.topic_consumers(topic) if groups else []
    resource = next((o for o in listed if o["metadata"]["name"] == owner), None)
    return {
        "topic": topic, "groups": groups, "attributes": attributes, "consumers": consumers, "resource": resource,
    }  # fmt: skip


def delete(target: Target, topic: str, force: bool, as_json: bool) -> None:
    """Delete a topic. Raises CliError."""
    said = run_async(delete_topic(target, topic, force))
    print_json({"topic": topic, "done": said}) if as_json else say(said)


async def delete_topic(target: Target, topic: str, force: bool) -> str:
    """Delete it, or the resource that manages it. Returns a sentence. Raises CliError; without `force` also for unread
    messages.
    """
    managed = await delete_managed(target, "BrokerTopic", topic, force)
    if managed is not None:
        return managed
    if reserved_topic(topic):
        raise CliError(f"{topic} is a topic of the system: it cannot be deleted", Exit.USAGE)
    async with admin_of(target, whole=True) as admin:
        if topic not in await admin.topics():
            raise CliError(f"there is no topic {topic}: `gantry topic list` shows those that exist")
        if not force:
            await _refuse_unread(admin, topic)
        await admin.delete_topic(topic)
    return f"{topic} is deleted"


async def _refuse_unread(admin: Admin, topic: str) -> None:
    """Raises CliError."""
    try:
        stats = await admin.topic_stats(topic)
        messages = sum(o.max_offset - o.min_offset for o in stats.values())
        groups = await admin.topic_consumers(topic) if messages else []
        if messages and not groups:
            raise CliError(f"{topic} has {messages} messages that no consumer group has read; --force deletes them")
        for group in groups:
            progress = await admin.consume_stats(group, topic)
            left = sum(max(o.broker_offset - o.consumer_offset, 0) for o in progress.values())
            if left:
                raise CliError(f"{group} has {left} unread messages in {topic}; --force deletes them")
    except (BrokerError, BodyError) as error:
        note(f"what is unread in {topic} is not known: {error}")
        raise CliError(f"{topic} is not deleted: see above, or use --force") from None
