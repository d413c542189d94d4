"""Topics and consumer groups that a resource manages: which one, its deletion, the wait until brokers have it."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Mapping
from typing import Any, Final

from gantry_operator.actions.errors import ActionError, Cause
from gantry_operator.actions.target import Remarks, Target
from gantry_operator.api import BrokerTopic, ConsumerGroup
from gantry_operator.api.names import MAX_RESOURCE_NAME

IN_FORCE_S = 20.0

POLL_S = 0.2

NAME_FIELDS: Final = {"BrokerTopic": "topicName", "ConsumerGroup": "groupName"}
"""By kind: the field of the spec with the name at the brokers."""


def resource_name(name: str) -> str:
    """Return a name for the resource about a topic or group with this name."""
    found = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")
    if not found:
        raise ActionError(
            f"no name of a resource can be made of {name!r}: write a manifest, with metadata.name", Cause.BAD_INPUT
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


async def delete_managed(target: Target, kind: str, name: str, force: bool) -> str | None:
    """Delete the resource that manages this topic or group. Returns what happens then; None: no resource manages it.

    Raises ActionError.
    """
    async with target.resources() as found:
        listed = await found.list(kind)
        owner = names_of(listed, NAME_FIELDS[kind]).get(name)
        if owner is None:
            return None
        spec = next(o for o in listed if o["metadata"]["name"] == owner)["spec"]
        if force and not spec.get("force"):
            raise ActionError(f"{name} is managed by {kind} {owner}: write spec.force: true there, then delete it")
        await found.delete(kind, owner)
        if spec.get("deletionPolicy") == "Delete":
            return f"{kind} {owner} is being deleted, and {name} with it once nothing in it is unread"
        return f"{kind} {owner} is deleted; {name} stays, since its deletionPolicy is Retain"


def condition(obj: Mapping[str, Any], kind: str) -> dict[str, Any]:
    found = (obj.get("status") or {}).get("conditions") or []
    return next((dict(c) for c in found if c.get("type") == kind), {})


async def in_force(found: Any, resource: BrokerTopic | ConsumerGroup, remarks: Remarks) -> None:
    """Wait until the brokers have it, and say why if they do not. Raises ActionError."""
    if not found.waits_for:
        remarks.note(f"no `gantry up` runs: {resource.name} is made once one does")
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
            raise ActionError(f"{resource.name} is refused: {ready.get('message')}")
        said = ready.get("message") or said
        await asyncio.sleep(POLL_S)
    raise ActionError(f"{resource.name} is not ready after {IN_FORCE_S:.0f} s: {said}", Cause.NOT_IN_TIME)
