"""The topics and consumer groups of a local cluster: two files in its folder.

`resources.json` holds the resources. Commands change it under a lock, and the supervisor follows it.
`resources-status.json` holds their status, which the supervisor alone writes (`topic_store.py`).
"""

from __future__ import annotations

import fcntl
import logging
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gantry_operator.api import consumer_group as api_group
from gantry_operator.api import topic as api_topic
from gantry_operator.api.consumer_group import ConsumerGroup
from gantry_operator.api.status import TableRow
from gantry_operator.api.topic import BrokerTopic
from gantry_operator.cluster.timestamps import utc
from gantry_operator.platforms.local.folder import ClusterFolder, read_json
from gantry_operator.registry.file import write_durably

log = logging.getLogger(__name__)

Kind = Literal["BrokerTopic", "ConsumerGroup"]
TABLE_FIGURES = ("rows", "behindRecords", "rejected", "lastSuccess", "lastCommit")
UID = "uid"
"""Key of a status in the file: the resource that it belongs to."""


class LocalResources(BaseModel):
    """The file with the resources, by name."""

    model_config = ConfigDict(extra="ignore", defer_build=True)

    topics: dict[str, BrokerTopic] = Field(default_factory=dict)
    groups: dict[str, ConsumerGroup] = Field(default_factory=dict)

    def of(self, kind: Kind) -> dict[str, Any]:
        return self.topics if kind == api_topic.KIND else self.groups

    def keep(self, resource: BrokerTopic | ConsumerGroup) -> bool:
        """Add it, or change the one of its name: as `kubectl apply`. True: this takes back a deletion that waited."""
        table = self.of(resource.kind)
        former = table.get(resource.name)
        meta = resource.metadata
        meta.deletionTimestamp = None
        back = False
        if former is None:
            meta.generation, meta.creationTimestamp, meta.uid = 1, utc(), uuid.uuid4().hex
        else:
            # What is written later holds. A new generation, since the deletion may have changed the brokers' part.
            back = former.metadata.deletionTimestamp is not None
            meta.generation = former.metadata.generation + (back or former.spec != resource.spec)
            meta.creationTimestamp, meta.uid = former.metadata.creationTimestamp, former.metadata.uid
            meta.annotations = former.metadata.annotations | meta.annotations
        table[resource.name] = resource
        return back

    def delete(self, kind: Kind, name: str) -> bool:
        """Delete a resource. False: it goes once what it names is deleted, or its table dropped. Raises KeyError."""
        table = self.of(kind)
        spec = table[name].spec
        drops = (
            isinstance(spec, api_topic.BrokerTopicSpec)
            and spec.table is not None
            and spec.table.deletionPolicy == "Delete"
        )
        if spec.deletionPolicy != "Delete" and not drops:
            del table[name]
            return True
        table[name].metadata.deletionTimestamp = table[name].metadata.deletionTimestamp or utc()
        return False


def load_resources(folder: ClusterFolder) -> LocalResources:
    """Read the resources of the folder. Raises OSError, and ValidationError for a file that was damaged or is of
    another version.
    """
    try:
        return LocalResources.model_validate_json(folder.resources.read_bytes())
    except FileNotFoundError:
        return LocalResources()


@contextmanager
def changed_resources(folder: ClusterFolder) -> Iterator[LocalResources]:
    """Change the resources: they are written at the end of the block. One program at a time. Raises like
    `load_resources`.
    """
    with open(folder.resources.with_suffix(".lock"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        resources = load_resources(folder)
        yield resources
        no_status = {"topics": {"__all__": {"status"}}, "groups": {"__all__": {"status"}}}
        write_durably(folder.resources, resources.model_dump_json(exclude=no_status, exclude_none=True, indent=1))


def load_status(folder: ClusterFolder) -> dict[str, dict[str, dict[str, Any]]]:
    """By kind and name. A file that cannot be read counts as empty: the brokers have everything but the origin."""
    statuses = read_json(folder.resources_status)
    out: dict[str, dict[str, dict[str, Any]]] = {}
    for kind in (api_topic.KIND, api_group.KIND):
        part = statuses.get(kind) if isinstance(statuses, dict) else None
        out[kind] = {k: v for k, v in part.items() if isinstance(v, dict)} if isinstance(part, dict) else {}
    return out


def described(folder: ClusterFolder, kind: Kind) -> list[dict[str, Any]]:
    """Return the resources of one kind with their status. Raises like `load_resources`."""
    status = load_status(folder)[kind]
    return [
        resource.model_dump(mode="json", exclude={"status"}, exclude_none=True)
        | {"status": _status_of(status, name, resource.metadata.uid)}
        for name, resource in sorted(load_resources(folder).of(kind).items())
    ]


def _status_of(table: Mapping[str, dict[str, Any]], name: str, uid: str) -> dict[str, Any]:
    """Return the status of a resource; empty: there is none, or it is that of a former resource of this name."""
    status = table.get(name, {})
    return {k: v for k, v in status.items() if k != UID} if status.get(UID, "") == uid else {}


def table_rows(folder: ClusterFolder) -> list[TableRow]:
    """Return the tables of topics, as the supervisor wrote their state last."""
    rows = []
    for status in load_status(folder)[api_topic.KIND].values():
        table, name = status.get("table"), status.get("topicName")
        conditions = [c for c in status.get("conditions") or [] if c.get("type") == "TableCurrent"]
        if not isinstance(table, Mapping) or not name or not conditions:
            continue
        try:
            row = {"topic": name, "current": conditions[0].get("status"), "reason": conditions[0].get("reason", "")}
            row["message"] = conditions[0].get("message", "")
            rows.append(TableRow.model_validate({**{k: table.get(k) for k in TABLE_FIGURES}, **row}))
        except ValidationError:
            continue  # Another version wrote it.
    return sorted(rows, key=lambda row: (row.current != "False", row.topic))
