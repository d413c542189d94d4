"""What `gantry topic` and `gantry group` have in common: resources that manage a name, and offset resets."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Mapping
from typing import Any, Final

from gantry_broker.client import Admin, BrokerError
from gantry_broker.client.selection import readable_queues
from gantry_broker.protocol.codes import ResponseCode
from gantry_broker.protocol.fastjson import MessageQueue

from gantry_operator.api import BrokerTopic, ConsumerGroup
from gantry_operator.api.names import MAX_RESOURCE_NAME
from gantry_operator.cli.errors import CliError, Exit
from gantry_operator.cli.output import note
from gantry_operator.cli.target import Target
from gantry_operator.topics.resets import BadReset, ResetPreview, parse_time, preview_of

QUEUES: Final = 512
"""Queues of a topic that one reset moves."""
AT_ONCE: Final = 16
IN_FORCE_S = 20.0
POLL_S = 0.2


def resource_name(name: str) -> str:
    """A name for the resource about a topic or group with this name."""
    found = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")
    if not found:
        raise CliError(
            f"no name of a resource can be made of {name!r}: write a manifest, with metadata.name", Exit.USAGE
        )
    if len(found) > MAX_RESOURCE_NAME:
        digest = hashlib.sha256(name.encode()).hexdigest()[:12]
        found = f"{found[: MAX_RESOURCE_NAME - len(digest) - 1].rstrip('-')}-{digest}"
    return found


def names_of(resources: list[dict[str, Any]], field: str) -> dict[str, str]:
    """By name at the brokers: the resource that manages it. `field`: of the spec."""
    found: dict[str, str] = {}
    for obj in sorted(resources, key=lambda o: str(o["metadata"].get("creationTimestamp", ""))):
        found.setdefault(str(obj["spec"].get(field) or obj["metadata"]["name"]), str(obj["metadata"]["name"]))
    return found


NAME_FIELDS: Final = {"BrokerTopic": "topicName", "ConsumerGroup": "groupName"}
"""By kind: the field of the spec with the name at the brokers."""


async def delete_managed(target: Target, kind: str, name: str, force: bool) -> str | None:
    """Delete the resource that manages this topic or group. Returns what happens then; None: no resource manages it.

    Raises CliError.
    """
    async with target.resources() as found:
        listed = await found.list(kind)
        owner = names_of(listed, NAME_FIELDS[kind]).get(name)
        if owner is None:
            return None
        spec = next(o for o in listed if o["metadata"]["name"] == owner)["spec"]
        if force and not spec.get("force"):
            raise CliError(f"{name} is managed by {kind} {owner}: write spec.force: true there, then delete it")
        await found.delete(kind, owner)
        if spec.get("deletionPolicy") == "Delete":
            return f"{kind} {owner} is being deleted, and {name} with it once nothing in it is unread"
        return f"{kind} {owner} is deleted; {name} stays, since its deletionPolicy is Retain"


def condition(obj: Mapping[str, Any], kind: str) -> dict[str, Any]:
    found = (obj.get("status") or {}).get("conditions") or []
    return next((dict(c) for c in found if c.get("type") == kind), {})


async def in_force(found: Any, resource: BrokerTopic | ConsumerGroup) -> None:
    """Wait until the brokers have it, and say why if they do not. Raises CliError."""
    if not found.waits_for:
        note(f"no `gantry up` runs: {resource.name} is made once one does")
        return
    deadline = time.monotonic() + IN_FORCE_S
    said = f"is {found.waits_for} running?"
    while time.monotonic() < deadline:
        obj: dict[str, Any] = next(
            (o for o in await found.list(resource.kind) if o["metadata"]["name"] == resource.name), {}
        )
        ready = condition(obj, "Ready")
        if ready.get("status") == "True":
            return
        if ready.get("reason") in ("NameTaken", "SystemTopic", "SystemGroup", "InvalidSpec", "RefusedByBroker"):
            raise CliError(f"{resource.name} is refused: {ready.get('message')}")
        said = ready.get("message") or said
        await asyncio.sleep(POLL_S)
    raise CliError(f"{resource.name} is not ready after {IN_FORCE_S:.0f} s: {said}", Exit.NOT_IN_TIME)


async def preview_offsets(admin: Admin, group: str, topic: str, to_ms: int) -> ResetPreview:
    """What a reset to this time (-1: the end) skips and repeats. Changes nothing. Raises CliError and client errors."""
    queues = readable_queues(topic, await admin.topic_route(topic))
    if len(queues) > QUEUES:
        raise CliError(f"{topic} has {len(queues)} queues; {QUEUES} is the most for a reset")
    puller = admin.puller()
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(queue: MessageQueue) -> tuple[str, int, int, int, int | None, int]:
        async with turn:
            first, end = await puller.min_offset(queue), await puller.max_offset(queue)
            target = end if to_ms < 0 else await puller.offset_at(queue, to_ms)
            return queue.broker, queue.queue_id, first, end, await admin.offset(group, queue), target

    return preview_of(await asyncio.gather(*map(one, queues)))


async def reset_offsets(admin: Admin, group: str, topic: str, to_ms: int) -> int:
    """Move a group to this time (-1: the end). Returns the number of queues. Raises CliError and client errors.

    The broker informs connected members. Without members the offsets alone are enough.
    """
    preview = await preview_offsets(admin, group, topic, to_ms)
    targets = {MessageQueue(topic, row.broker, row.queue): row for row in preview.rows}
    for queue, row in targets.items():
        if row.committed is None:
            await admin.set_offset(group, queue, row.target)
    try:
        return len(await admin.reset_offsets(group, topic, to_ms))
    except BrokerError as error:
        if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
            raise
    turn = asyncio.Semaphore(AT_ONCE)

    async def put(queue: MessageQueue, offset: int) -> None:
        async with turn:
            await admin.set_offset(group, queue, offset)

    await asyncio.gather(*(put(queue, row.target) for queue, row in targets.items()))
    return len(targets)


def place(text: str) -> int:
    """Milliseconds since 1970; -1: the end. Raises CliError."""
    try:
        found = parse_time(text)
    except BadReset as error:
        raise CliError(str(error), Exit.USAGE) from None
    return -1 if found is None else found
