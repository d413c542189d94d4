"""Create, list, describe and delete consumer groups, and move their offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from gantry_broker.client import Admin, BrokerError, InvalidMessage
from gantry_broker.client.errors import NoRoute
from gantry_broker.protocol.bodies import ClientConnection, SubscriptionGroup
from gantry_broker.protocol.codes import RETRY_PREFIX, TABLE_GROUP_PREFIX

from gantry_operator.actions.errors import ActionError, Cause
from gantry_operator.actions.managed import delete_managed, digest_of, managed_by, refuse_changed, refuse_managed
from gantry_operator.actions.offsets import preview_offsets, reset_offsets, time_of_place
from gantry_operator.actions.target import Target, admin_of
from gantry_operator.api.reserved_names import reserved_group
from gantry_operator.topics.group_fields import GROUP_FIELDS

AT_ONCE: Final = 16


async def create_group(target: Target, group: str, settings: Mapping[str, Any], managed: bool) -> list[str]:
    """Create or change a group. `settings`: fields of a ConsumerGroup's spec. Returns the broker groups that have it.

    `managed`: by a resource, which is made. Raises ActionError.
    """
    if reserved_group(group):
        raise ActionError(f"{group} is a group of the system: write another name", Cause.BAD_INPUT)
    await refuse_managed(target, "ConsumerGroup", group, "change its spec")
    if managed:
        # The models take longer to load than a list of groups.
        from gantry_operator.actions.managed_changes import create_resource
        from gantry_operator.api.consumer_group import ConsumerGroup

        await create_resource(target, ConsumerGroup, group, settings)
    async with admin_of(target) as admin:
        masters = await admin.masters()
        if not masters:
            raise ActionError("no group has a master now: see `gantry status`")
        if not managed:
            changed = {ours: settings[field] for field, ours in GROUP_FIELDS.items() if field in settings}
            for name, address in masters.items():
                present = (await admin.groups(address)).get(group) or SubscriptionGroup(group)
                try:
                    await admin.create_group(replace(present, **changed), groups=[name])
                except InvalidMessage as error:
                    raise ActionError(str(error), Cause.BAD_INPUT) from None
        return sorted(masters)


async def group_settings(target: Target, group: str) -> dict[str, Any]:
    """Return what `change_group` changes, as it is now. Raises ActionError.

    `settings`: fields of a ConsumerGroup's spec, without those in which broker groups differ; `resource`: the name of
    the one that manages it, or empty; `digest`: for `change_group`.
    """
    described = await describe_group(target, group)
    resource = described["resource"]
    if resource is not None:
        settings = {f: resource["spec"][f] for f in GROUP_FIELDS if resource["spec"].get(f) is not None}
    else:
        values = {f: {row[f] for row in described["groups"]} for f in GROUP_FIELDS}
        settings = {f: some.pop() for f, some in values.items() if len(some) == 1}
    owner = "" if resource is None else str(resource["metadata"]["name"])
    return {"settings": settings, "resource": owner, "digest": digest_of([settings, owner])}


async def change_group(target: Target, group: str, changes: Mapping[str, Any], digest: str = "") -> str:
    """Change a group that exists, or the resource that manages it. Returns a sentence.

    `changes`: fields of a ConsumerGroup's spec. `digest`: of the `group_settings` that the person saw; empty: it does
    not matter. Raises ActionError, also when others have changed it meanwhile.
    """
    from gantry_operator.actions.managed_changes import change_managed, validated
    from gantry_operator.api.consumer_group import ConsumerGroup

    before = await group_settings(target, group)
    refuse_changed(digest, before["digest"], group)
    validated(ConsumerGroup, changes)
    if before["resource"]:
        return await change_managed(target, ConsumerGroup, before["resource"], changes)
    if reserved_group(group):
        raise ActionError(f"{group} is a group of the system: it cannot be changed", Cause.BAD_INPUT)
    changed = {ours: changes[field] for field, ours in GROUP_FIELDS.items() if field in changes}
    async with admin_of(target, whole=True) as admin:
        for name, address in sorted((await admin.masters()).items()):
            present = (await admin.groups(address)).get(group)
            if present is not None and replace(present, **changed) != present:
                await admin.create_group(replace(present, **changed), groups=[name])
    return f"{group} is changed"


async def list_groups(target: Target, every: bool) -> list[dict[str, Any]]:
    """List groups with their members and lag; `every`: those of the system too. Raises ActionError."""
    managed = await managed_by(target, "ConsumerGroup")
    turn = asyncio.Semaphore(AT_ONCE)
    async with admin_of(target) as admin:
        names = set(managed.by_name)
        for address in (await admin.masters()).values():
            names |= (await admin.groups(address)).keys()

        async def row(name: str) -> dict[str, Any]:
            async with turn:
                progress = await admin.consume_stats(name)
                connections = await admin.consumer_connections(name)
            return {
                "group": name,
                "members": 0 if connections is None else len(connections.connections),
                "lag": sum(max(o.broker_offset - o.consumer_offset, 0) for o in progress.values()),
                **managed.columns(name),
            }

        return list(await asyncio.gather(*(row(n) for n in sorted(names) if every or not reserved_group(n))))


async def describe_group(target: Target, group: str) -> dict[str, Any]:
    """Return what brokers and its resource say about a group. Raises ActionError."""
    resource = (await managed_by(target, "ConsumerGroup")).by_name.get(group)
    rows = []
    async with admin_of(target) as admin:
        for name, address in (await admin.masters()).items():
            config = (await admin.groups(address)).get(group)
            if config is not None:
                rows.append({"name": name} | {f: getattr(config, ours) for f, ours in GROUP_FIELDS.items()})
        if not rows and resource is None and admin.left_out:
            raise ActionError(f"no broker group that answers has the consumer group {group}: cannot tell")
        if not rows and resource is None:
            raise ActionError(f"there is no consumer group {group}: `gantry group list` shows those that exist")
        progress = await admin.consume_stats(group)
        connections = await admin.consumer_connections(group)
    return {
        "group": group,
        "groups": rows,
        "members": [] if connections is None else [c.client_id for c in connections.connections],
        "clients": [] if connections is None else [_client(c) for c in connections.connections],
        "queues": [
            {
                "topic": q.topic, "group": q.broker, "queue": q.queue_id, "committed": o.consumer_offset,
                "end": o.broker_offset, "lag": max(o.broker_offset - o.consumer_offset, 0),
            }
            for q, o in progress.items()
        ],
        "resource": resource,
    }  # fmt: skip


def _client(connection: ClientConnection) -> dict[str, str]:
    from gantry_broker.broker.http.rocketmq_metrics import version_name

    language, version = connection.grpc or (connection.language, version_name(connection.version))
    return {
        "id": connection.client_id,
        "address": connection.address,
        "language": language,
        "version": version,
        "protocol": "remoting" if connection.grpc is None else "grpc",
    }


async def delete_group(target: Target, group: str, force: bool) -> str:
    """Delete it with its offsets, or the resource that manages it. Returns a sentence.

    Raises ActionError; without `force` also for members and unread messages.
    """
    managed = await delete_managed(target, "ConsumerGroup", group, force)
    if managed is not None:
        return managed
    of_table = group.startswith(TABLE_GROUP_PREFIX)  # It has offsets, and no settings.
    if reserved_group(group) and not of_table:
        raise ActionError(f"{group} is a group of the system: it cannot be deleted", Cause.BAD_INPUT)
    async with admin_of(target, whole=True) as admin:
        exists = [group in await admin.groups(a) for a in (await admin.masters()).values()]
        if not any(exists) and not (of_table and await admin.consume_stats(group)):
            raise ActionError(f"there is no consumer group {group}: `gantry group list` shows those that exist")
        if not force:
            connections = await admin.consumer_connections(group)
            if connections is not None:
                raise ActionError(
                    f"{len(connections.connections)} clients consume as {group}: stop them, or use --force"
                )
            left = sum(max(o.broker_offset - o.consumer_offset, 0) for o in (await admin.consume_stats(group)).values())
            if left:
                raise ActionError(f"{group} has {left} unread messages; --force deletes it all the same")
        await admin.delete_group(group, offsets=True)
    return f"{group} is deleted with its offsets"


async def reset_group(target: Target, group: str, topic: str | None, to: str, confirm: bool) -> dict[str, Any]:
    """Show what a reset skips and repeats; `confirm`: carry it out. `to`: as `time_of_place`. Raises ActionError."""
    to_ms = time_of_place(to)
    rows: list[dict[str, Any]] = []
    skipped = repeated = 0
    async with admin_of(target, whole=True) as admin:
        if not any([group in await admin.groups(a) for a in (await admin.masters()).values()]):
            raise ActionError(f"there is no consumer group {group}: `gantry group list` shows those that exist")
        topics = [topic] if topic else await _topics_of(admin, group)
        if not topics:
            raise ActionError(f"{group} has no offsets in any topic: name one with --topic")
        for name in topics:
            try:
                preview = await preview_offsets(admin, group, name, to_ms)
                if confirm:
                    await reset_offsets(admin, group, name, to_ms)
            except (NoRoute, BrokerError) as error:
                raise ActionError(f"{name}: {error}") from None
            skipped, repeated = skipped + preview.skipped, repeated + preview.repeated
            rows += [
                {
                    "topic": name, "group": r.broker, "queue": r.queue,
                    "at": r.first if r.committed is None else r.committed, "to": r.target, "skipped": r.skipped,
                    "repeated": r.repeated,
                }
                for r in preview.rows
            ]  # fmt: skip
    return {"group": group, "done": confirm, "skipped": skipped, "repeated": repeated, "queues": rows}


async def _topics_of(admin: Admin, group: str) -> list[str]:
    topics = {queue.topic for queue in await admin.consume_stats(group)}
    return sorted(name for name in topics if not name.startswith(RETRY_PREFIX))
