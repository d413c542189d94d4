"""What is wanted, from the resources and from what their status remembers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from gantry_operator.api.consumer_group import ConsumerGroup
from gantry_operator.api.table import TableStatus
from gantry_operator.api.topic import PERMISSIONS, BrokerTopic
from gantry_operator.topics.group_fields import GROUP_FIELDS
from gantry_operator.topics.model import RecordedState, Row, WantedGroup, WantedTopic

TOPIC_ROW = ("writeQueues", "readQueues", "permission")
GROUP_ROW = ("retryMax", "retryQueues", "consumeOrderly", "consumeEnable", "broadcast")


def row_to_json(group: str, row: Row, fields: tuple[str, ...]) -> dict[str, Any]:
    return {"name": group, **dict(zip(fields, row, strict=True))}


def _rows(listed: Any, fields: tuple[str, ...]) -> dict[str, Row]:
    """Rows of a status. One that cannot be read is left out: it was written by another version."""
    rows = {}
    for row in listed or ():
        if isinstance(row, Mapping) and all(f in row for f in ("name", *fields)):
            rows[str(row["name"])] = tuple(row[f] for f in fields)
    return rows


def recorded_of(status: Mapping[str, Any], fields: tuple[str, ...]) -> RecordedState:
    """From the status as JSON: of its own making, but it may be of another version."""
    generation, origin = status.get("syncedGeneration"), status.get("origin")
    attributes = status.get("syncedAttributes") or {}
    return RecordedState(
        origin if origin in ("Created", "Adopted") else "",
        generation if isinstance(generation, int) else None,
        _rows(status.get("syncedGroups"), fields),
        {str(k): str(v) for k, v in attributes.items()} if isinstance(attributes, Mapping) else {},
    )


def _table_status(status: Mapping[str, Any]) -> TableStatus | None:
    """Return what a status says of the table; None: nothing, or what another version wrote."""
    written = status.get("table")
    try:
        return None if written is None else TableStatus.model_validate(written)
    except ValidationError:
        return None


def wanted_topic(topic: BrokerTopic, status: Mapping[str, Any], held: bool = False) -> WantedTopic:
    """`held`: see `WantedTopic.held`."""
    spec = topic.spec
    return WantedTopic(
        resource=topic.name,
        topic=topic.topic,
        generation=topic.metadata.generation,
        created=topic.metadata.creationTimestamp,
        queues=spec.queues,
        per_group=spec.queuesPerGroup,
        perm=None if spec.permission is None else PERMISSIONS[spec.permission],
        attributes=topic.attributes,
        report=spec.driftPolicy == "Report",
        delete=spec.deletionPolicy == "Delete",
        force=bool(spec.force),
        deleting=topic.metadata.deletionTimestamp is not None,
        held=held,
        recorded=recorded_of(status, TOPIC_ROW),
        table=spec.table,
        table_status=_table_status(status),
    )


def wanted_group(group: ConsumerGroup, status: Mapping[str, Any]) -> WantedGroup:
    spec = group.spec
    settings = {ours: getattr(spec, field) for field, ours in GROUP_FIELDS.items() if getattr(spec, field) is not None}
    return WantedGroup(
        resource=group.name,
        group=group.group,
        generation=group.metadata.generation,
        created=group.metadata.creationTimestamp,
        settings=settings,
        report=spec.driftPolicy == "Report",
        delete=spec.deletionPolicy == "Delete",
        force=bool(spec.force),
        deleting=group.metadata.deletionTimestamp is not None,
        recorded=recorded_of(status, GROUP_ROW),
    )
