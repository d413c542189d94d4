"""Create, change, list, describe and delete topics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, get_args

from gantry_broker.broker.metadata.attributes import CLEANUP, RETENTION, TOMBSTONES
from gantry_broker.client import Admin, BrokerError, InvalidMessage, NoRoute
from gantry_broker.protocol.bodies import TopicConfig
from gantry_broker.protocol.codes import Perm, ResponseCode
from gantry_broker.protocol.fields import BodyError

from gantry_operator.actions.errors import ActionError, Cause
from gantry_operator.actions.managed import delete_managed, digest_of, managed_by, refuse_changed, refuse_managed
from gantry_operator.actions.managed_changes import change_managed, create_resource, validated
from gantry_operator.actions.target import Target, admin_of
from gantry_operator.api.base import parse_duration
from gantry_operator.api.reserved_names import cluster_topics, reserved_topic
from gantry_operator.api.topic import (
    CLEANUP_VALUES,
    DEFAULT_QUEUES,
    MESSAGE_TYPE,
    PERMISSIONS,
    BrokerTopic,
    MessageType,
    permission_name,
)

if TYPE_CHECKING:
    import httpx

AT_ONCE: Final = 16
TABLES_S: Final = 20.0
SAVED: Final = ("seen_records", "seen_bytes", "kept_records", "kept_bytes")
"""What a broker says of its compaction, as in GET /v1/tables."""
QUIET_MS: Final = 60_000
"""A queue that takes no more messages may get some from producers with a former route for this time."""
READ_WRITE: Final = Perm.READ | Perm.WRITE


async def create_topic(
    target: Target, topic: str, settings: Mapping[str, Any], managed: bool = False
) -> list[str]:  # fmt: skip
    """Create or change a topic. `settings`: fields of a BrokerTopic's spec. Returns the broker groups that have it.

    `managed`: by a resource, which is made. Raises ActionError.
    """
    settings = {"queuesPerGroup": DEFAULT_QUEUES, **settings}
    await refuse_managed(target, "BrokerTopic", topic, "`gantry topic change` changes it there")
    if managed:
        await create_resource(target, BrokerTopic, topic, settings)
    async with admin_of(target) as admin:
        masters = await admin.masters()
        if not masters:
            raise ActionError("no group has a master now: see `gantry status`")
        if managed:
            return sorted(masters)
        attributes_of(settings)  # A wrong value changes nothing at all.
        for address in masters.values():
            present = (await admin.topic_config(address)).topics.get(topic)
            number = settings["queuesPerGroup"]
            config = replace(present or TopicConfig(topic), read_queues=number, write_queues=number)
            await _put(admin, address, config, present, settings)
        return sorted(masters)


def attributes_of(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the attributes that fields of a spec mean. Raises ActionError for a value that is none."""
    return validated(BrokerTopic, settings).attributes


def attribute_changes(now: Mapping[str, str], settings: Mapping[str, Any]) -> list[str]:
    """Return what changes the attributes `now`: `+name=value`, `-name`. A setting of None is removed."""
    changes = [f"+{k}={v}" for k, v in sorted(attributes_of(settings).items()) if now.get(k) != v]
    names = {"messageType": MESSAGE_TYPE, "retention": RETENTION}
    gone = [name for field, name in names.items() if field in settings and settings[field] is None]
    gone += [name for name, value in (settings.get("config") or {}).items() if value is None]
    return changes + [f"-{name}" for name in sorted(gone) if name in now]


async def _put(
    admin: Admin, address: str, config: TopicConfig, present: TopicConfig | None, settings: Mapping[str, Any]
) -> None:
    """Write a topic on one broker, with permission and attributes of the settings. Raises ActionError."""
    if settings.get("permission") is not None:
        config = replace(config, perm=(config.perm & ~READ_WRITE) | PERMISSIONS[settings["permission"]])
    changes = attribute_changes({} if present is None else present.attributes, settings)
    if present is not None and not changes and replace(config, attributes={}) == replace(present, attributes={}):
        return
    try:
        await admin.create_topic_at(address, config, changes)
    except InvalidMessage as error:
        raise ActionError(str(error), Cause.BAD_INPUT) from None


async def topic_settings(target: Target, topic: str) -> dict[str, Any]:
    """Return what `change_topic` changes, as it is now. Raises ActionError.

    `settings`: fields of a BrokerTopic's spec; `resource`: the name of the one that manages it, or empty; `digest`: for
    `change_topic`.
    """
    described = await describe_topic(target, topic)
    resource = described["resource"]
    if resource is not None:
        fields = ("queues", "queuesPerGroup", "permission", "messageType", "retention", "config")
        settings = {f: resource["spec"][f] for f in fields if resource["spec"].get(f) is not None}
    else:
        settings = {"config": dict(described["attributes"])}
        kind, retention = settings["config"].pop(MESSAGE_TYPE, ""), settings["config"].pop(RETENTION, "")
        queues = {row["writeQueues"] for row in described["groups"]}
        if len(queues) == 1:  # Otherwise a person decides whether they become equal.
            settings["queuesPerGroup"] = queues.pop()
        permissions = {row["permission"] for row in described["groups"]}
        if len(permissions) == 1:
            settings["permission"] = permissions.pop()
        types = {name.upper(): name for name in get_args(MessageType)}
        if kind in types:
            settings["messageType"] = types[kind]
        if retention:
            settings["retention"] = f"{int(retention) // 1000}s"
    owner = "" if resource is None else str(resource["metadata"]["name"])
    return {"settings": settings, "resource": owner, "digest": digest_of([settings, owner])}


async def change_topic(target: Target, topic: str, changes: Mapping[str, Any], digest: str = "") -> str:
    """Change a topic that exists, or the resource that manages it. Returns a sentence.

    `changes`: fields of a BrokerTopic's spec; None: as a new topic has it. `digest`: of the `topic_settings` that the
    person saw; empty: it does not matter. Raises ActionError, also when others have changed it meanwhile.
    """
    before = await topic_settings(target, topic)
    refuse_changed(digest, before["digest"], topic)
    for one, other in (("queuesPerGroup", "queues"), ("queues", "queuesPerGroup")):
        if changes.get(one) is not None and other in before["settings"] and before["resource"]:
            reason = f"BrokerTopic {before['resource']} says spec.{other}: change that, not {one}"
            raise ActionError(reason, Cause.BAD_INPUT)
    attributes_of(changes)
    if before["resource"]:
        return await change_managed(target, BrokerTopic, before["resource"], changes)
    if reserved_topic(topic):
        raise ActionError(f"{topic} is a topic of the system: it cannot be changed", Cause.BAD_INPUT)
    if changes.get("queues") is not None:
        reason = f"no resource manages {topic}, so its queues are counted in each broker group: write queuesPerGroup"
        raise ActionError(reason, Cause.BAD_INPUT)
    still_read = ""
    async with admin_of(target, whole=True) as admin:
        for group, address in sorted((await admin.masters()).items()):
            config = (await admin.topic_config(address)).topics.get(topic)
            if config is None:
                continue
            number = config.write_queues if changes.get("queuesPerGroup") is None else changes["queuesPerGroup"]
            read = max(config.read_queues, number)
            if read > number and config.write_queues == number and await _are_read(admin, topic, group, number):
                read = number
            elif read > number:
                still_read += f"; queues {number} to {read - 1} of {group} take no more messages and are still read"
            await _put(admin, address, replace(config, read_queues=read, write_queues=number), config, changes)
    if still_read:
        still_read += ". The same change removes them once every group has read them, and they are quiet for a minute"
    return f"{topic} is changed{still_read}"


async def _are_read(admin: Admin, topic: str, group: str, number: int) -> bool:
    """Whether every consumer group has read the queues from `number` on, which have been quiet for a while."""
    stats = await admin.topic_stats(topic)
    gone = {q: o for q, o in stats.items() if q.broker == group and q.queue_id >= number}
    left = {q: o for q, o in gone.items() if o.max_offset > o.min_offset}
    if not left:
        return True
    readers: Sequence[str] = await admin.topic_consumers(topic)
    if not readers or max(o.last_update for o in left.values()) > time.time() * 1000 - QUIET_MS:
        return False
    for reader in readers:
        read = await admin.consume_stats(reader, topic)
        if any(q not in read or read[q].consumer_offset < o.max_offset for q, o in left.items()):
            return False
    return True


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
        changed = {}
        for group, address in (await admin.masters()).items():
            config = (await admin.topic_config(address)).topics.get(topic)
            if config is not None:
                changed[group] = address, replace(config, attributes=change)
        if not changed:
            raise ActionError(f"there is no topic {topic}: `gantry topic list` shows those that exist")
        for address, config in changed.values():
            await admin.create_topic_at(address, config)
    return sorted(changed)


async def list_topics(target: Target, all_topics: bool) -> list[dict[str, Any]]:
    """List topics with their queues, messages and resource. Raises ActionError."""
    managed = await managed_by(target, "BrokerTopic")
    async with admin_of(target) as admin:
        names = sorted({*await admin.topics(), *managed.by_name})
        info = await admin.cluster_info()
        own = cluster_topics(info.clusters, info.brokers)
        if not all_topics:
            names = [n for n in names if not reserved_topic(n) and n not in own]
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


async def describe_topic(target: Target, topic: str, *, saved: bool = False) -> dict[str, Any]:
    """Return what brokers and its resource say about a topic. Raises ActionError.

    `saved`: with `compaction`, what brokers have saved of a compacted topic; None: it is none.
    """
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
    compacted = saved and attributes.get(CLEANUP) == CLEANUP_VALUES["Compact"]
    return {
        "topic": topic, "groups": groups, "attributes": attributes, "consumers": consumers, "resource": resource,
        "compaction": await _compaction(target, topic, len(groups)) if compacted else None,
    }  # fmt: skip


async def _compaction(target: Target, topic: str, groups: int) -> dict[str, int] | None:
    """Return what compaction has looked at and what it keeps, over all broker groups; None: no leader says it."""
    async with target.live() as source:
        urls = [member.url for member in (await source.facts()).members]
        answers = await asyncio.gather(*(_compaction_at(source.client, url, topic) for url in urls))
    answered = [numbers for numbers in answers if numbers is not None]
    if len(answered) < groups:
        target.remarks.incomplete(f"what compaction has saved is known of {len(answered)} of {groups} broker groups")
    return {name: sum(numbers[name] for numbers in answered) for name in SAVED} if answered else None


async def _compaction_at(http: httpx.AsyncClient, url: str, topic: str) -> dict[str, int] | None:
    """Return what a leader says; None: it does not answer, or is none."""
    import httpx  # Only `topic describe` needs it.

    try:
        answer = await http.get(f"{url}/v1/tables", params={"ages": "false"}, timeout=TABLES_S)
        answer.raise_for_status()
        data = answer.json()
        numbers = {name: data["topics"][topic]["compaction"][name] for name in SAVED}
        plausible = all(type(number) is int and number >= 0 for number in numbers.values())
        return numbers if plausible and data["settled"] is True else None
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return None


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
