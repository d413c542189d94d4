"""`gantry group`: the consumer groups of a cluster, those of resources and all others."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gantry_broker.broker.http.rocketmq_metrics import version_name
from gantry_broker.client import Admin, BrokerError, InvalidMessage
from gantry_broker.client.errors import NoRoute
from gantry_broker.protocol.bodies import ClientConnection, SubscriptionGroup
from gantry_broker.protocol.codes import RETRY_PREFIX
from pydantic import ValidationError

from gantry_operator.api import ConsumerGroup
from gantry_operator.api.manifest import problems_of
from gantry_operator.api.names import reserved_group
from gantry_operator.cli.errors import CliError, Exit
from gantry_operator.cli.output import print_json, print_table, say
from gantry_operator.cli.resources import (
    NAME_FIELDS,
    condition,
    delete_managed,
    in_force,
    names_of,
    place,
    preview_offsets,
    reset_offsets,
    resource_name,
)
from gantry_operator.cli.target import Target, admin_of, run_async
from gantry_operator.topics.wanted import GROUP_FIELDS

AT_ONCE = 16


def create(target: Target, group: str, settings: Mapping[str, Any], managed: bool, as_json: bool) -> None:
    """Create or change a group. `settings`: fields of a ConsumerGroup's spec. Raises CliError."""
    groups = run_async(_create(target, group, settings, managed))
    print_json({"group": group, "groups": groups}) if as_json else say(f"{group}: on {', '.join(groups)}")


async def _create(target: Target, group: str, settings: Mapping[str, Any], managed: bool) -> list[str]:
    if reserved_group(group):
        raise CliError(f"{group} is a group of the system: write another name", Exit.USAGE)
    async with target.resources() as found:
        owner = names_of(await found.list("ConsumerGroup"), NAME_FIELDS["ConsumerGroup"]).get(group)
        if owner is not None:
            raise CliError(f"{group} is managed by ConsumerGroup {owner}: change its spec")
        if managed:
            made = _resource(group, settings, found.cluster, found.namespace)
            await found.create(made)
            await in_force(found, made)
    async with admin_of(target) as admin:
        masters = await admin.masters()
        if not masters:
            raise CliError("no group has a master now: see `gantry status`")
        if not managed:
            changed = {ours: settings[field] for field, ours in GROUP_FIELDS.items() if field in settings}
            for name, address in masters.items():
                known = (await admin.groups(address)).get(group) or SubscriptionGroup(group)
                try:
                    await admin.create_group(replace(known, **changed), groups=[name])
                except InvalidMessage as error:
                    raise CliError(str(error), Exit.USAGE) from None
        return sorted(masters)


def _resource(group: str, settings: Mapping[str, Any], cluster: str, namespace: str) -> ConsumerGroup:
    name = resource_name(group)
    spec = dict(settings) | ({} if name == group else {"groupName": group})
    try:
        return ConsumerGroup.make(name, cluster, namespace, **spec)
    except ValidationError as error:
        raise CliError("; ".join(map(str, problems_of(error.errors(), ConsumerGroup))), Exit.USAGE) from None


def show(target: Target, every: bool, as_json: bool) -> None:
    """List groups. Raises CliError."""
    rows = run_async(_list(target, every))
    if as_json:
        print_json(rows)
        return
    print_table(
        ("GROUP", "MEMBERS", "LAG", "RESOURCE", "READY"),
        [(row["group"], row["members"], row["lag"], row["resource"] or "-", row["ready"]) for row in rows],
    )


async def _list(target: Target, every: bool) -> list[dict[str, Any]]:
    async with target.resources() as found:
        resources = await found.list("ConsumerGroup")
    owners = names_of(resources, NAME_FIELDS["ConsumerGroup"])
    by_name = {str(o["metadata"]["name"]): o for o in resources}
    turn = asyncio.Semaphore(AT_ONCE)
    async with admin_of(target) as admin:
        names = set(owners)
        for address in (await admin.masters()).values():
            names |= (await admin.groups(address)).keys()

        async def row(name: str) -> dict[str, Any]:
            async with turn:
                progress = await admin.consume_stats(name)
                connections = await admin.consumer_connections(name)
            owner = owners.get(name, "")
            return {
                "group": name,
                "members": 0 if connections is None else len(connections.connections),
                "lag": sum(max(o.broker_offset - o.consumer_offset, 0) for o in progress.values()),
                "resource": owner,
                "ready": condition(by_name.get(owner, {}), "Ready").get("status", "Unknown") if owner else "-",
            }

        return list(await asyncio.gather(*(row(n) for n in sorted(names) if every or not reserved_group(n))))


def describe(target: Target, group: str, as_json: bool) -> None:
    """Everything about one group. Raises CliError."""
    found = run_async(_described(target, group))
    if as_json:
        print_json(found)
        return
    say(f"group    {group}")
    for row in found["groups"]:
        say(f"on {row['name']:<6} {', '.join(f'{k} {v}' for k, v in row.items() if k != 'name')}")
    say(f"members  {', '.join(map(_said, found['clients'])) or '-'}")
    resource = found["resource"]
    if resource:
        say(f"resource ConsumerGroup {resource['metadata']['name']}")
        for kind in ("Ready", "Synced"):
            state = condition(resource, kind)
            say(f"  {kind:<8} {state.get('status', 'Unknown')}: {state.get('message') or state.get('reason', '')}")
        reset = (resource.get("status") or {}).get("reset")
        if reset:
            say(f"  reset    {reset['request']}: {reset['state']}: {reset.get('message', '')}")
    columns = ("topic", "group", "queue", "committed", "end", "lag")
    print_table([name.upper() for name in columns], [[row[name] for name in columns] for row in found["queues"]])


async def _described(target: Target, group: str) -> dict[str, Any]:
    async with target.resources() as resources:
        listed = await resources.list("ConsumerGroup")
    owner = names_of(listed, NAME_FIELDS["ConsumerGroup"]).get(group)
    rows = []
    async with admin_of(target) as admin:
        for name, address in (await admin.masters()).items():
            config = (await admin.groups(address)).get(group)
            if config is not None:
                rows.append({"name": name} | {f: getattr(config, ours) for f, ours in GROUP_FIELDS.items()})
        if not rows and owner is None and admin.left_out:
            raise CliError(f"no broker group that answers has the consumer group {group}: cannot tell")
        if not rows and owner is None:
            raise CliError(f"there is no consumer group {group}: `gantry group list` shows those that exist")
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
        "resource": next((o for o in listed if o["metadata"]["name"] == owner), None),
    }  # fmt: skip


def _client(connection: ClientConnection) -> dict[str, str]:
    language, version = connection.grpc or (connection.language, version_name(connection.version))
    return {
        "id": connection.client_id,
        "address": connection.address,
        "language": language,
        "version": version,
        "protocol": "remoting" if connection.grpc is None else "grpc",
    }


def _said(client: Mapping[str, str]) -> str:
    return f"{client['id']} ({client['language']} {client['version']}, {client['protocol']}, {client['address']})"


def delete(target: Target, group: str, force: bool, as_json: bool) -> None:
    """Delete a group with its offsets. Raises CliError."""
    said = run_async(delete_group(target, group, force))
    print_json({"group": group, "done": said}) if as_json else say(said)


async def delete_group(target: Target, group: str, force: bool) -> str:
    """Delete it with its offsets, or the resource that manages it. Returns a sentence. Raises CliError; without `force`
    also for members and unread messages.
    """
    managed = await delete_managed(target, "ConsumerGroup", group, force)
    if managed is not None:
        return managed
    if reserved_group(group):
        raise CliError(f"{group} is a group of the system: it cannot be deleted", Exit.USAGE)
    async with admin_of(target, whole=True) as admin:
        if not any([group in await admin.groups(a) for a in (await admin.masters()).values()]):
            raise CliError(f"there is no consumer group {group}: `gantry group list` shows those that exist")
        if not force:
            connections = await admin.consumer_connections(group)
            if connections is not None:
                raise CliError(f"{len(connections.connections)} clients consume as {group}: stop them, or use --force")
            left = sum(max(o.broker_offset - o.consumer_offset, 0) for o in (await admin.consume_stats(group)).values())
            if left:
                raise CliError(f"{group} has {left} unread messages; --force deletes it all the same")
        await admin.delete_group(group, offsets=True)
    return f"{group} is deleted with its offsets"


def reset(target: Target, group: str, topic: str | None, to: str, confirm: bool, as_json: bool) -> None:
    """Show what a reset skips and repeats, and carry it out with `confirm`. Raises CliError."""
    found = run_async(_reset(target, group, topic, place(to), confirm))
    if as_json:
        print_json(found)
        return
    columns = ("topic", "group", "queue", "at", "to", "skipped", "repeated")
    print_table([name.upper() for name in columns], [[row[name] for name in columns] for row in found["queues"]])
    did = "were" if confirm else "would be"
    say(f"{found['skipped']} messages {did} skipped, {found['repeated']} repeated")
    if not confirm:
        say("nothing was changed: --confirm carries it out")


async def _reset(target: Target, group: str, topic: str | None, to_ms: int, confirm: bool) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    skipped = repeated = 0
    async with admin_of(target, whole=True) as admin:
        if not any([group in await admin.groups(a) for a in (await admin.masters()).values()]):
            raise CliError(f"there is no consumer group {group}: `gantry group list` shows those that exist")
        topics = [topic] if topic else await _topics_of(admin, group)
        if not topics:
            raise CliError(f"{group} has no offsets in any topic: name one with --topic")
        for name in topics:
            try:
                preview = await preview_offsets(admin, group, name, to_ms)
                if confirm:
                    await reset_offsets(admin, group, name, to_ms)
            except (NoRoute, BrokerError) as error:
                raise CliError(f"{name}: {error}") from None
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
    found = {queue.topic for queue in await admin.consume_stats(group)}
    return sorted(name for name in found if not name.startswith(RETRY_PREFIX))
