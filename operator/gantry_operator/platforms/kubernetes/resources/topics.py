"""The topics and consumer groups of one cluster on Kubernetes: BrokerTopics and ConsumerGroups with their status."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gantry_operator.api import consumer_group
from gantry_operator.api import topic as api_topic
from gantry_operator.api.consumer_group import RESET_OFFSETS, ConsumerGroup
from gantry_operator.api.manifest import ManifestError, parse_group, parse_topic
from gantry_operator.api.topic import FINALIZER, BrokerTopic
from gantry_operator.cluster.platform import Resources
from gantry_operator.cluster.store_unavailable import StoreUnavailable
from gantry_operator.cluster.timestamps import utc
from gantry_operator.platforms.kubernetes.api.client import (
    BROKER_TOPIC,
    CONSUMER_GROUP,
    ApiError,
    ApiUnavailable,
    Kind,
    KubeApi,
    Object,
)
from gantry_operator.platforms.kubernetes.api.events import EventRecorder
from gantry_operator.platforms.kubernetes.api.informer_cache import InformerCache
from gantry_operator.platforms.kubernetes.api.status_writer import merge_patch
from gantry_operator.topics.model import Note, Result, WantedGroup, WantedTopic
from gantry_operator.topics.status import group_status, topic_status
from gantry_operator.topics.wanted import wanted_group, wanted_topic

log = logging.getLogger(__name__)

KINDS = {api_topic.KIND: BROKER_TOPIC, consumer_group.KIND: CONSUMER_GROUP}
FIGURES_AT_ONCE = 100
"""Resources of a pass whose status is written although only figures have changed, such as the lag."""
FIGURES_EVERY_S = 20.0
IN_VAIN = (
    "the spec was written while the deletion waits, and Kubernetes takes back no deletion: create the object again "
    "once it is gone; to keep what the brokers have until then, write spec.deletionPolicy: Retain"
)
DELETING = ("Unread", "InUse", "Deleting")
"""Reasons of Ready while a deletion waits."""


class _Parsed(NamedTuple):
    of: tuple[Any, ...]
    """What the model was made of: the same values need no second reading."""
    model: BrokerTopic | ConsumerGroup


class KubernetesTopicStore:
    """The resources of one cluster object."""

    def __init__(
        self, api: KubeApi, caches: Mapping[str, InformerCache], cluster: tuple[str, str], reporter: str
    ) -> None:  # fmt: skip
        """`cluster`: namespace and name."""
        self._api = api
        self._caches = caches
        self._namespace, self._name = cluster
        self._reporter = reporter
        self._parsed: dict[str, _Parsed] = {}
        self._invalid: dict[str, tuple[Kind, Object, str]] = {}
        """By uid: resources that cannot be read, with the reason."""
        self._shown: dict[str, dict[str, Any]] = {}
        """By uid: the status as written last. The watch may not have brought it yet."""
        self._figures_at: dict[str, float] = {}
        self._recorders: dict[str, EventRecorder] = {}

    # ---- what is wanted

    def _objects(self, kind: str) -> Iterator[Object]:
        for obj in self._caches[kind].in_namespace(self._namespace):
            if (obj.get("spec") or {}).get("cluster") == self._name:
                yield obj

    def observe(self) -> Resources | None:
        if not all(self._caches[kind].listed for kind in KINDS):
            return None
        self._invalid = {}
        topics: list[WantedTopic] = []
        groups: list[WantedGroup] = []
        resets: dict[str, tuple[str, Mapping[str, Any] | None]] = {}
        for obj in self._objects(api_topic.KIND):
            model = self._model(BROKER_TOPIC, obj)
            if isinstance(model, BrokerTopic):
                held = FINALIZER in (obj["metadata"].get("finalizers") or [])
                topics.append(wanted_topic(model, self._status(obj), held))
        for obj in self._objects(consumer_group.KIND):
            model = self._model(CONSUMER_GROUP, obj)
            if isinstance(model, ConsumerGroup):
                groups.append(wanted_group(model, self._status(obj)))
                text = model.metadata.annotations.get(RESET_OFFSETS, "")
                resets[model.name] = (text, self._status(obj).get("reset"))
        return Resources(topics, groups, resets)

    def _model(self, kind: Kind, obj: Object) -> BrokerTopic | ConsumerGroup | None:
        meta = obj["metadata"]
        annotations = meta.get("annotations") or {}
        of = (meta.get("generation"), meta.get("deletionTimestamp"), annotations.get(RESET_OFFSETS))
        parsed = self._parsed.get(meta["uid"])
        if parsed is not None and parsed.of == of:
            return parsed.model
        # The status is ours and is read apart: an old one must not make the resource unreadable.
        document = {key: value for key, value in obj.items() if key != "status"}
        try:
            model = parse_topic(document) if kind is BROKER_TOPIC else parse_group(document)
        except ManifestError as error:
            self._invalid[meta["uid"]] = (kind, obj, str(error).replace("\n", "; "))
            return None
        self._parsed[meta["uid"]] = _Parsed(of, model)
        return model

    def _status(self, obj: Object) -> dict[str, Any]:
        return self._shown.get(obj["metadata"]["uid"], obj.get("status") or {})

    def is_news(self, obj: Object) -> bool:
        """Whether an object says more than this operator has written into it."""
        meta = obj["metadata"]
        annotations = meta.get("annotations") or {}
        of = (meta.get("generation"), meta.get("deletionTimestamp"), annotations.get(RESET_OFFSETS))
        parsed = self._parsed.get(meta["uid"])
        return parsed is None or parsed.of != of

    # ---- the outcome

    async def report(
        self, resources: Resources, topics: Mapping[str, Result], groups: Mapping[str, Result]
    ) -> bool:  # fmt: skip
        figures = FIGURES_AT_ONCE
        complete = True
        for kind, obj, why in list(self._invalid.values()):
            await self._write(kind, obj, _invalid_status(obj, why))
        for topic in resources.topics:
            result = topics.get(topic.resource)
            if result is not None:
                figures, done = await self._show(
                    BROKER_TOPIC, topic.resource, result, topic_status(topic, result), figures
                )
                complete = complete and done
        for group in resources.groups:
            result = groups.get(group.resource)
            if result is not None:
                reset = self._reset_of(group.resource)
                figures, done = await self._show(
                    CONSUMER_GROUP, group.resource, result, group_status(group, result, reset), figures
                )
                complete = complete and done
        return complete

    def _reset_of(self, name: str) -> Mapping[str, Any] | None:
        obj = self._caches[consumer_group.KIND].get(self._namespace, name)
        reset = None if obj is None else self._status(obj).get("reset")
        return reset if isinstance(reset, Mapping) else None

    async def _show(
        self, kind: Kind, name: str, result: Result, new: dict[str, Any], figures: int
    ) -> tuple[int, bool]:  # fmt: skip
        """Return how many more figures may be written, and whether everything is."""
        obj = self._caches[kind.kind].get(self._namespace, name)
        if obj is None:
            return figures, True
        deleting = obj["metadata"].get("deletionTimestamp") is not None
        if not (deleting and not result.finalizer):
            shown = self._status(obj)
            new = _with_times(shown, new)
            if deleting and result.finalizer and _written_while_deleting(shown, new):
                self._recorder(kind, obj).record("Warning", "WrittenWhileDeleting", IN_VAIN)
            uid, now = obj["metadata"]["uid"], time.monotonic()
            if _significant(shown) == _significant(new) and shown != new:
                if figures <= 0 or now - self._figures_at.get(uid, 0.0) < FIGURES_EVERY_S:
                    return figures, figures > 0
                figures -= 1
            if shown != new:
                self._figures_at[uid] = now
                await self._write(kind, obj, new)
        await self._keep_finalizer(kind, obj, result.finalizer)
        return figures, True

    async def _write(self, kind: Kind, obj: Object, new: dict[str, Any]) -> None:
        meta = obj["metadata"]
        shown = self._status(obj)
        if shown == new:
            return
        patch = {"status": merge_patch(shown, new)}
        try:
            written = await self._api.merge(kind, self._namespace, meta["name"], patch, "status")
        except (ApiError, ApiUnavailable) as error:
            if isinstance(error, ApiError) and error.status == 404:
                return
            raise StoreUnavailable(f"status of {kind.kind} {meta['name']}: {error}") from error
        if written["metadata"]["uid"] == meta["uid"]:
            self._shown[meta["uid"]] = new
            self._caches[kind.kind].note(written)
        self._say(kind, obj, shown, new)

    def _say(self, kind: Kind, obj: Object, shown: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        before = {c.get("type"): c for c in shown.get("conditions") or []}
        for condition in new["conditions"]:
            former = before.get(condition["type"], {})
            turned = (former.get("status"), former.get("reason")) != (condition["status"], condition["reason"])
            if turned and condition["type"] == "Ready" and condition["reason"] not in ("BrokersNotReached", "Missing"):
                level = "Normal" if condition["status"] == "True" else "Warning"
                self._recorder(kind, obj).record(level, condition["reason"], condition["message"])

    async def _keep_finalizer(self, kind: Kind, obj: Object, keep: bool) -> None:
        meta = obj["metadata"]
        have = list(meta.get("finalizers") or [])
        if (FINALIZER in have) == keep or (keep and meta.get("deletionTimestamp") is not None):
            return
        finalizers = [*have, FINALIZER] if keep else [f for f in have if f != FINALIZER]
        # By resource version: a finalizer that somebody else adds meanwhile stays.
        patch = {"metadata": {"finalizers": finalizers, "resourceVersion": meta["resourceVersion"]}}
        try:
            written = await self._api.merge(kind, self._namespace, meta["name"], patch)
            self._caches[kind.kind].note(written)
        except (ApiError, ApiUnavailable) as error:
            if not (isinstance(error, ApiError) and error.status == 404):
                raise StoreUnavailable(f"finalizer of {kind.kind} {meta['name']}: {error}") from error

    # ---- offset resets

    async def keep_reset(self, group: str, reset: Mapping[str, Any] | None) -> None:
        obj = self._caches[consumer_group.KIND].get(self._namespace, group)
        if obj is None:
            return
        new = {k: v for k, v in self._status(obj).items() if k != "reset"}
        await self._write(CONSUMER_GROUP, obj, new if reset is None else new | {"reset": dict(reset)})

    async def reset_answered(self, group: str, text: str) -> None:
        obj = self._caches[consumer_group.KIND].get(self._namespace, group)
        if obj is None or (obj["metadata"].get("annotations") or {}).get(RESET_OFFSETS) != text:
            return
        version = obj["metadata"]["resourceVersion"]
        patch = {"metadata": {"annotations": {RESET_OFFSETS: None}, "resourceVersion": version}}
        try:
            written = await self._api.merge(CONSUMER_GROUP, self._namespace, group, patch)
            self._caches[consumer_group.KIND].note(written)
        except (ApiError, ApiUnavailable) as error:
            if not (isinstance(error, ApiError) and error.status == 404):
                raise StoreUnavailable(f"annotation of ConsumerGroup {group}: {error}") from error

    # ---- events

    def note(self, kind: str, note: Note) -> None:
        obj = self._caches[kind].get(self._namespace, note.resource)
        if obj is not None:
            self._recorder(KINDS[kind], obj).record(note.kind, note.reason, note.message)

    def _recorder(self, kind: Kind, obj: Object) -> EventRecorder:
        meta = obj["metadata"]
        if meta["uid"] not in self._recorders:
            self._recorders[meta["uid"]] = EventRecorder(
                self._api, self._namespace, meta["name"], meta["uid"], self._reporter, kind.kind
            )
        return self._recorders[meta["uid"]]

    async def close(self) -> None:
        for recorder in self._recorders.values():
            await recorder.close()

    def forget(self, uid: str) -> None:
        """Note that a resource is gone."""
        for table in (self._recorders, self._shown, self._parsed, self._figures_at):
            table.pop(uid, None)


async def release(api: KubeApi, kind: Kind, obj: Object) -> None:
    """Let a resource go whose cluster does not exist any more. Raises ApiError, ApiUnavailable."""
    meta = obj["metadata"]
    left = [f for f in meta.get("finalizers") or [] if f != FINALIZER]
    if len(left) < len(meta.get("finalizers") or []):
        patch = {"metadata": {"finalizers": left, "resourceVersion": meta["resourceVersion"]}}
        await api.merge(kind, meta["namespace"], meta["name"], patch)


def stray_status(obj: Object) -> dict[str, Any] | None:
    """Return the status patch of a resource whose cluster does not exist; None: it has that status."""
    spec = obj.get("spec") or {}
    before: dict[str, Any] = obj.get("status") or {}
    cluster, namespace = spec.get("cluster", ""), obj["metadata"].get("namespace")
    message = f"there is no BrokerCluster {cluster} in namespace {namespace}: create it, or write another"
    new = _with_times(before, before | _both(obj, "ClusterNotFound", message))
    return None if before == new else merge_patch(before, new)


def _written_while_deleting(shown: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether the spec has changed since a status said that the deletion waits."""
    waited = any(c.get("reason") in DELETING for c in shown.get("conditions") or [])
    return waited and shown.get("observedGeneration") != new.get("observedGeneration")


def _invalid_status(obj: Object, why: str) -> dict[str, Any]:
    before = obj.get("status") or {}
    return _with_times(before, before | _both(obj, "InvalidSpec", why[:1500]))


def _both(obj: Object, reason: str, message: str) -> dict[str, Any]:
    generation = obj["metadata"].get("generation")
    common = {"status": "False", "reason": reason, "message": message, "observedGeneration": generation}
    return {
        "observedGeneration": generation,
        "conditions": [{"type": kind, **common} for kind in ("Ready", "Synced")],
    }


def _with_times(shown: Mapping[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return the new status with the times at which its conditions turned."""
    before = {c.get("type"): c for c in shown.get("conditions") or []}
    dated = []
    for condition in new["conditions"]:
        former = before.get(condition["type"], {})
        since = former.get("lastTransitionTime") if former.get("status") == condition["status"] else None
        dated.append(condition | {"lastTransitionTime": since or utc()})
    return new | {"conditions": dated}


def _significant(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return the status without figures that may change all the time."""
    kept = {k: v for k, v in status.items() if k not in ("members", "lag", "topics", "conditions")}
    kept["conditions"] = [{k: v for k, v in c.items() if k != "message"} for c in status.get("conditions") or []]
    return kept
