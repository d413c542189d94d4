"""Topics and consumer groups that a resource manages: which one, and its deletion. Changes: `managed_changes.py`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from gantry_operator.actions.errors import ActionError, Cause
from gantry_operator.actions.target import Target

NAME_FIELDS: Final = {"BrokerTopic": "topicName", "ConsumerGroup": "groupName"}
"""By kind: the field of the spec with the name at the brokers."""


class Managed:
    """The resources of one kind, by the name at the brokers that each manages. The oldest one counts."""

    def __init__(self, kind: str, resources: Iterable[Mapping[str, Any]]) -> None:
        field = NAME_FIELDS[kind]
        self.by_name: dict[str, Mapping[str, Any]] = {}
        for obj in sorted(resources, key=lambda o: str(o["metadata"].get("creationTimestamp", ""))):
            self.by_name.setdefault(str(obj["spec"].get(field) or obj["metadata"]["name"]), obj)

    def owner(self, name: str) -> str:
        """Return the name of the resource; empty: none manages it."""
        obj = self.by_name.get(name)
        return "" if obj is None else str(obj["metadata"]["name"])

    def columns(self, name: str) -> dict[str, str]:
        """Return the columns of a list: the resource, and whether it is ready."""
        obj = self.by_name.get(name)
        ready = "-" if obj is None else condition(obj, "Ready").get("status", "Unknown")
        return {"resource": self.owner(name), "ready": ready}


async def managed_by(target: Target, kind: str) -> Managed:
    """Read the resources of one kind."""
    async with target.resources() as resources:
        return Managed(kind, await resources.list(kind))


async def refuse_managed(target: Target, kind: str, name: str, do: str) -> None:
    """Raise ActionError if a resource manages this name; `do` says what to change there."""
    owner = (await managed_by(target, kind)).owner(name)
    if owner:
        raise ActionError(f"{name} is managed by {kind} {owner}: {do}")


def merged(spec: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a spec after a JSON merge patch (RFC 7386): None removes a field, and maps are merged."""
    result = dict(spec)
    for name, value in changes.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, Mapping):
            result[name] = merged(result[name] if isinstance(result.get(name), Mapping) else {}, value)
        else:
            result[name] = value
    return result


def digest_of(shown: Any) -> str:
    """Return a digest of what a person saw, by which a change of others is noticed."""
    return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()[:16]


def refuse_changed(digest: str, now: str, name: str) -> None:
    """Raise ActionError if others have changed what a person saw. Empty `digest`: it does not matter."""
    if digest and digest != now:
        raise ActionError(f"{name} was changed by others meanwhile: look at it again, then change it", Cause.BAD_INPUT)


async def delete_managed(target: Target, kind: str, name: str, force: bool) -> str | None:
    """Delete the resource that manages this topic or group. Returns what happens then; None: no resource manages it.

    Raises ActionError.
    """
    async with target.resources() as resources:
        managed = Managed(kind, await resources.list(kind))
        owner = managed.owner(name)
        if not owner:
            return None
        spec = managed.by_name[name]["spec"]
        if force and not spec.get("force"):
            raise ActionError(f"{name} is managed by {kind} {owner}: write spec.force: true there, then delete it")
        await resources.delete(kind, owner)
        if spec.get("deletionPolicy") == "Delete":
            return f"{kind} {owner} is being deleted, and {name} with it once nothing in it is unread"
        return f"{kind} {owner} is deleted; {name} stays, since its deletionPolicy is Retain"


def condition(obj: Mapping[str, Any], kind: str) -> dict[str, Any]:
    conditions = (obj.get("status") or {}).get("conditions") or []
    return next((dict(c) for c in conditions if c.get("type") == kind), {})
