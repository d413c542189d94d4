"""The supervisor's side of the files with topics and consumer groups (`topics.py`), as a port of `ClusterControl`."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from gantry_operator.api import consumer_group as api_group
from gantry_operator.api import topic as api_topic
from gantry_operator.api.consumer_group import RESET_OFFSETS
from gantry_operator.cluster.platform import Resources
from gantry_operator.cluster.store_unavailable import StoreUnavailable
from gantry_operator.cluster.timestamps import utc
from gantry_operator.platforms.local.folder import ClusterFolder
from gantry_operator.platforms.local.topics import (
    UID,
    Kind,
    changed_resources,
    load_resources,
    load_status,
)
from gantry_operator.registry.file import write_durably, write_whole
from gantry_operator.topics.model import Note, Result
from gantry_operator.topics.status import group_status, topic_status
from gantry_operator.topics.wanted import wanted_group, wanted_topic

log = logging.getLogger(__name__)


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
            resources = load_resources(self._folder)
        except (OSError, ValidationError) as error:
            raise StoreUnavailable(f"{self._folder.resources} cannot be read: {error}") from error
        topics, groups = self._status[api_topic.KIND], self._status[api_group.KIND]
        for kind, table in self._status.items():
            for name in table.keys() - resources.of(kind).keys():  # type: ignore[arg-type]
                del table[name]
            for name, resource in resources.of(kind).items():  # type: ignore[arg-type]
                if table.get(name, {}).get(UID, "") != resource.metadata.uid:
                    table[name] = {UID: resource.metadata.uid}  # It was deleted and created again.
        return Resources(
            [wanted_topic(t, topics.get(t.name, {})) for t in resources.topics.values()],
            [wanted_group(g, groups.get(g.name, {})) for g in resources.groups.values()],
            {
                g.name: (g.metadata.annotations.get(RESET_OFFSETS, ""), groups.get(g.name, {}).get("reset"))
                for g in resources.groups.values()
            },
        )

    async def report(
        self, resources: Resources, topics: Mapping[str, Result], groups: Mapping[str, Result]
    ) -> bool:  # fmt: skip
        before = json.dumps(self._status)
        for topic in resources.topics:
            if topic.resource in topics:
                self._show("BrokerTopic", topic.resource, topic_status(topic, topics[topic.resource]))
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
            with changed_resources(self._folder) as resources:
                for name in list(done):
                    resource = resources.of(kind).get(name)
                    if resource is not None and resource.metadata.deletionTimestamp is not None:
                        del resources.of(kind)[name]
                    elif resource is not None:
                        done.remove(name)  # It was written again meanwhile.
        except (OSError, ValidationError) as error:
            raise StoreUnavailable(f"the resources of the folder are not kept: {error}") from error
        for name in done:
            self._status[kind].pop(name, None)

    async def keep_reset(self, group: str, reset: Mapping[str, Any] | None) -> None:
        table = self._status[api_group.KIND]
        kept = {k: v for k, v in table.get(group, {}).items() if k != "reset"}
        table[group] = kept if reset is None else kept | {"reset": dict(reset)}
        self._write(durably=True)

    async def reset_answered(self, group: str, text: str) -> None:
        try:
            with changed_resources(self._folder) as resources:
                resource = resources.groups.get(group)
                if resource is not None and resource.metadata.annotations.get(RESET_OFFSETS) == text:
                    del resource.metadata.annotations[RESET_OFFSETS]
        except (OSError, ValidationError) as error:
            raise StoreUnavailable(f"the resources of the folder are not kept: {error}") from error

    def _write(self, durably: bool = False) -> None:
        try:
            (write_durably if durably else write_whole)(self._folder.resources_status, json.dumps(self._status))
        except OSError as error:
            raise StoreUnavailable(f"the status of the resources is not kept: {error}") from error

    def note(self, kind: str, note: Note) -> None:
        self._event(note.kind, note.reason, note.message, f"{kind} {note.resource}")
