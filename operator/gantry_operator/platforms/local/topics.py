"""The topics and consumer groups of a local cluster: two files in its folder.

`resources.json` holds the resources. Commands change it under a lock, and the supervisor follows it.
`resources-status.json` holds their status, which the supervisor alone writes.
"""

from __future__ import annotations

import fcntl
import json
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gantry_operator.api import BrokerTopic, ConsumerGroup
from gantry_operator.api import consumer_group as api_group
from gantry_operator.api import topic as api_topic
from gantry_operator.api.consumer_group import RESET_OFFSETS
from gantry_operator.api.status import TableRow
from gantry_operator.cluster.platform import Resources, StoreUnavailable
from gantry_operator.cluster.timestamps import utc
from gantry_operator.platforms.local.folder import ClusterFolder, read_json
from gantry_operator.registry.file import write_durably, write_whole
from gantry_operator.topics import Note, Result, wanted_group, wanted_topic
from gantry_operator.topics.status import group_status, topic_status

log = logging.getLogger(__name__)

Kind = Literal["BrokerTopic", "ConsumerGroup"]
TABLE_FIGURES = ("rows", "behindRecords", "rejected", "lastSuccess", "lastCommit")
UID = "uid"
"""Key of a status in the file: the resource that it belongs to."""


class LocalResources(BaseModel):
    """The file with the resources, by name."""

    model_config = ConfigDict(extra="ignore")

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
    known = read_json(folder.resources_status)
    out: dict[str, dict[str, dict[str, Any]]] = {}
    for kind in (api_topic.KIND, api_group.KIND):
        part = known.get(kind) if isinstance(known, dict) else None
        out[kind] = {k: v for k, v in part.items() if isinstance(v, dict)} if isinstance(part, dict) else {}
    return out


def described(folder: ClusterFolder, kind: Kind) -> list[dict[str, Any]]:
    """Return the resources of one kind with their status. Raises like `load_resources`."""
    status = load_status(folder)[kind]
    return [
        found.model_dump(mode="json", exclude={"status"}, exclude_none=True)
        | {"status": _status_of(status, name, found.metadata.uid)}
        for name, found in sorted(load_resources(folder).of(kind).items())
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
        found = [c for c in status.get("conditions") or [] if c.get("type") == "TableCurrent"]
        if not isinstance(table, Mapping) or not name or not found:
            continue
        try:
            row = {"topic": name, "current": found[0].get("status"), "reason": found[0].get("reason", "")}
            row["message"] = found[0].get("message", "")
            rows.append(TableRow.model_validate({**{k: table.get(k) for k in TABLE_FIGURES}, **row}))
        except ValidationError:
            continue  # Another version wrote it.
    return sorted(rows, key=lambda row: (row.current != "False", row.topic))


class LocalTopicStore:
    """The supervisor's side of the two files."""

    def __init__(self, folder: ClusterFolder, event: Callable[[str, str, str, str], None]) -> None:
        """`event`: kind, reason, message and the thing that it is about."""
        self._folder = folder
        self._event = event
        self._mark: object = None
        self._status = load_status(folder)

    def changed(self) -> bool:
        """Whether the file has changed since the last call."""
        try:
            stat = self._folder.resources.stat()
            mark: object = (stat.st_mtime_ns, stat.st_ino)
        except OSError:
            mark = None
        changed, self._mark = mark != self._mark, mark
        return changed

    def observe(self) -> Resources | None:
        try:
            found = load_resources(self._folder)
        except (OSError, ValidationError) as error:
            raise StoreUnavailable(f"{self._folder.resources} cannot be read: {error}") from error
        topics, groups = self._status[api_topic.KIND], self._status[api_group.KIND]
        for kind, table in self._status.items():
            for name in table.keys() - found.of(kind).keys():  # type: ignore[arg-type]
                del table[name]
            for name, resource in found.of(kind).items():  # type: ignore[arg-type]
                if table.get(name, {}).get(UID, "") != resource.metadata.uid:
                    table[name] = {UID: resource.metadata.uid}  # It was deleted and created again.
        return Resources(
            [wanted_topic(t, topics.get(t.name, {})) for t in found.topics.values()],
            [wanted_group(g, groups.get(g.name, {})) for g in found.groups.values()],
            {
                g.name: (g.metadata.annotations.get(RESET_OFFSETS, ""), groups.get(g.name, {}).get("reset"))
                for g in found.groups.values()
            },
        )

    async def report(
        self, resources: Resources, topics: Mapping[str, Result], groups: Mapping[str, Result]
    ) -> bool:  # fmt: skip
        before = json.dumps(self._status)
        for wanted in resources.topics:
            if wanted.resource in topics:
                self._show("BrokerTopic", wanted.resource, topic_status(wanted, topics[wanted.resource]))
        for group in resources.groups:
            if group.resource in groups:
                reset = self._status[api_group.KIND].get(group.resource, {}).get("reset")
                self._show("ConsumerGroup", group.resource, group_status(group, groups[group.resource], reset))
        self._remove_done("BrokerTopic", resources.topics, topics)
        self._remove_done("ConsumerGroup", resources.groups, groups)
        if json.dumps(self._status) != before:
            self._write()
        return True

    def _show(self, kind: Kind, name: str, new: dict[str, Any]) -> None:
        shown = self._status[kind].get(name, {})
        before = {c.get("type"): c for c in shown.get("conditions") or []}
        for condition in new["conditions"]:
            former = before.get(condition["type"], {})
            same = former.get("status") == condition["status"]
            condition["lastTransitionTime"] = former["lastTransitionTime"] if same else utc()
            turned = not same or former.get("reason") != condition["reason"]
            if turned and condition["type"] == "Ready" and condition["reason"] not in ("BrokersNotReached", "Missing"):
                level = "Normal" if condition["status"] == "True" else "Warning"
                self._event(level, condition["reason"], condition["message"], f"{kind} {name}")
        self._status[kind][name] = new | ({UID: shown[UID]} if UID in shown else {})

    def _remove_done(self, kind: Kind, wanted: Any, results: Mapping[str, Result]) -> None:
        """Resources that were deleted and whose brokers have nothing left."""
        done = [w.resource for w in wanted if w.deleting and w.resource in results]
        done = [name for name in done if not results[name].finalizer]
        if not done:
            return
        try:
            with changed_resources(self._folder) as known:
                for name in list(done):
                    found = known.of(kind).get(name)
                    if found is not None and found.metadata.deletionTimestamp is not None:
                        del known.of(kind)[name]
                    elif found is not None:
                        done.remove(name)  # It was written again meanwhile.
        except (OSError, ValidationError) as error:
            raise StoreUnavailable(f"{self._folder.resources} cannot be written: {error}") from error
        for name in done:
            self._status[kind].pop(name, None)

    async def keep_reset(self, group: str, reset: Mapping[str, Any] | None) -> None:
        table = self._status[api_group.KIND]
        kept = {k: v for k, v in table.get(group, {}).items() if k != "reset"}
        table[group] = kept if reset is None else kept | {"reset": dict(reset)}
        self._write(durably=True)

    async def reset_answered(self, group: str, text: str) -> None:
        try:
            with changed_resources(self._folder) as known:
                found = known.groups.get(group)
                if found is not None and found.metadata.annotations.get(RESET_OFFSETS) == text:
                    del found.metadata.annotations[RESET_OFFSETS]
        except (OSError, ValidationError) as error:
            raise StoreUnavailable(f"{self._folder.resources} cannot be written: {error}") from error

    def _write(self, durably: bool = False) -> None:
        try:
            (write_durably if durably else write_whole)(self._folder.resources_status, json.dumps(self._status))
        except OSError as error:
            raise StoreUnavailable(f"{self._folder.resources_status} cannot be written: {error}") from error

    def note(self, kind: str, note: Note) -> None:
        self._event(note.kind, note.reason, note.message, f"{kind} {note.resource}")
