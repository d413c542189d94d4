"""Topics and consumer groups as resources: their creation, their change, and the wait until brokers have it."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from gantry_operator.actions.errors import ActionError, Cause
from gantry_operator.actions.managed import NAME_FIELDS, condition
from gantry_operator.actions.target import Remarks, Target
from gantry_operator.api.consumer_group import ConsumerGroup
from gantry_operator.api.manifest import problems_of
from gantry_operator.api.names import MAX_RESOURCE_NAME
from gantry_operator.api.topic import BrokerTopic
from gantry_operator.api.user import BrokerUser

IN_FORCE_S: Final = 20.0
"""Seconds to wait until the brokers have a change."""
POLL_S: Final = 0.2

REFUSALS: Final = ("NameTaken", "SystemTopic", "SystemGroup", "InvalidSpec", "RefusedByBroker")
"""Reasons of `Ready` that end only by another spec."""
R = TypeVar("R", BrokerTopic, ConsumerGroup, BrokerUser)


def resource_name(name: str) -> str:
    """Return a name for the resource about a topic or group with this name."""
    slug = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")
    if not slug:
        raise ActionError(
            f"no name of a resource can be made of {name!r}: write a manifest, with metadata.name", Cause.BAD_INPUT
        )
    if len(slug) > MAX_RESOURCE_NAME:
        digest = hashlib.sha256(name.encode()).hexdigest()[:12]
        slug = f"{slug[: MAX_RESOURCE_NAME - len(digest) - 1].rstrip('-')}-{digest}"
    return slug


async def create_resource(
    target: Target, model: type[BrokerTopic] | type[ConsumerGroup], name: str, spec: Mapping[str, Any]
) -> None:
    """Make a resource that manages this name, and wait until the brokers have it. Raises ActionError."""
    own = resource_name(name)
    fields = {**spec} if own == name else {**spec, NAME_FIELDS[model.__name__]: name}
    async with target.resources() as resources:
        try:
            resource = model.make(own, resources.cluster, resources.namespace, **fields)
        except ValidationError as error:
            raise ActionError("; ".join(map(str, problems_of(error.errors(), model))), Cause.BAD_INPUT) from None
        await resources.create(resource)
        await in_force(resources, resource, target.remarks)


def validated(model: type[R], changes: Mapping[str, Any]) -> R:
    """Return a resource with only these fields, to check their values. Raises ActionError that names a bad one."""
    config = {k: v for k, v in (changes.get("config") or {}).items() if v is not None}
    given = {k: v for k, v in changes.items() if v is not None and k != "config"}
    given |= {"config": config} if config else {}
    try:
        return model.make("name", "cluster", **given)
    except ValidationError as error:
        raise ActionError("; ".join(map(str, problems_of(error.errors(), model))), Cause.BAD_INPUT) from None


async def change_managed(
    target: Target, model: type[BrokerTopic] | type[ConsumerGroup], name: str, changes: Mapping[str, Any]
) -> str:
    """Change fields of a resource's spec, and wait until its state is known. Returns a sentence. Raises ActionError."""
    kind = model.__name__
    async with target.resources() as resources:
        generation = await resources.change(kind, name, changes)
        if not resources.waits_for:
            return f"{kind} {name} is changed; no `gantry up` runs, which would carry it out"
        deadline = time.monotonic() + IN_FORCE_S
        while time.monotonic() < deadline:
            named = [o for o in await resources.list(kind) if o["metadata"]["name"] == name]
            if named and (named[0].get("status") or {}).get("observedGeneration", 0) >= generation:
                ready, synced = condition(named[0], "Ready"), condition(named[0], "Synced")
                if ready.get("reason") in REFUSALS:
                    raise ActionError(f"{name} is refused: {ready.get('message')}")
                message = synced.get("message") if synced.get("status") != "True" else ready.get("message")
                return f"{kind} {name} is changed: {message or 'the brokers have it'}"
            await asyncio.sleep(POLL_S)
        message = f"{kind} {name} is changed, and {resources.waits_for} has not seen it after {IN_FORCE_S:.0f} s"
        raise ActionError(message, Cause.NOT_IN_TIME)


async def in_force(resources: Any, resource: BrokerTopic | ConsumerGroup, remarks: Remarks) -> None:
    """Wait until the brokers have it, and say why if they do not. Raises ActionError."""
    if not resources.waits_for:
        remarks.note(f"no `gantry up` runs: {resource.name} is made once one does")
        return
    deadline = time.monotonic() + IN_FORCE_S
    problem = f"is {resources.waits_for} running?"
    while time.monotonic() < deadline:
        obj: dict[str, Any] = next(
            (o for o in await resources.list(resource.kind) if o["metadata"]["name"] == resource.name), {}
        )
        ready = condition(obj, "Ready")
        if ready.get("status") == "True":
            return
        if ready.get("reason") in REFUSALS:
            raise ActionError(f"{resource.name} is refused: {ready.get('message')}")
        problem = ready.get("message") or problem
        await asyncio.sleep(POLL_S)
    raise ActionError(f"{resource.name} is not ready after {IN_FORCE_S:.0f} s: {problem}", Cause.NOT_IN_TIME)
