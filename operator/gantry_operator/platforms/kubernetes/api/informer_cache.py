"""An informer cache: a local copy of the objects that the operator made, kept current by watches without polling.

Why not kopf's indices: they are filled by handlers, and they stop silently when a watch stalls (kopf 955). Failover
needs the pods at once and must notice a stalled watch (docs/adr/0003-own-watches.md).

The cache lists each kind once and then watches it. The server ends a watch after `WATCH_S`, and the next watch
continues at the same resource version. A watch that brings nothing for `SILENCE_S` is dead, and the cache lists again.
Bookmarks alone are no sign of life: a server sends none for a kind that never changed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from gantry_operator.platforms.kubernetes.api.client import ApiError, ApiUnavailable, Kind, KubeApi, Object, retried

log = logging.getLogger(__name__)

WATCH_S = 80
"""Seconds after which the server ends a watch."""
SILENCE_S = 90.0
"""Seconds without any data, not even its end, after which a watch is dead."""

Listener = Callable[[str, Object], None]
"""Called with ADDED, MODIFIED or DELETED and the object."""


class InformerCache:
    """Holds the objects of one kind. `namespaces`: where to watch; empty: everywhere."""

    def __init__(self, api: KubeApi, kind: Kind, namespaces: Iterable[str], labels: str, listener: Listener) -> None:
        self.kind = kind
        self.heard_at = time.monotonic()
        """Time of the last data from a watch. A bookmark or its end counts."""
        self._api = api
        self._namespaces: list[str | None] = list(namespaces) or [None]
        self._labels = labels
        self._listener = listener
        self._objects: dict[tuple[str, str], Object] = {}
        self._listed = {n: asyncio.Event() for n in self._namespaces}

    def get(self, namespace: str, name: str) -> Object | None:
        return self._objects.get((namespace, name))

    def of(self, namespace: str, label: str, value: str) -> list[Object]:
        """Objects of a namespace that have a label. The cache may change while the caller works on them."""
        objects = self.in_namespace(namespace)
        return [obj for obj in objects if (obj["metadata"].get("labels") or {}).get(label) == value]

    def everywhere(self) -> list[Object]:
        """All objects."""
        return list(self._objects.values())

    def in_namespace(self, namespace: str) -> list[Object]:
        """All objects of a namespace."""
        return [obj for (where, _), obj in self._objects.items() if where == namespace]

    @property
    def listed(self) -> bool:
        """Whether the cache holds everything that existed at the start."""
        return all(e.is_set() for e in self._listed.values())

    async def ready(self) -> None:
        """Return once `listed` is true."""
        await asyncio.gather(*(e.wait() for e in self._listed.values()))

    async def run(self) -> None:
        """Follows the objects until cancelled."""
        async with asyncio.TaskGroup() as group:
            for namespace in self._namespaces:
                group.create_task(self._follow(namespace))

    async def _follow(self, namespace: str | None) -> None:
        failures = 0
        while True:
            try:
                since = await self._relist(namespace)
                failures = 0
                while True:
                    since = await self._watch(namespace, since)
            except ApiError as error:
                if error.status != 410:
                    log.warning("watching %s: %s", self.kind.plural, error)
                    failures += 1
            except ApiUnavailable as error:
                log.warning("%s; listing again", error)
                failures += 1
            if failures:
                await retried(failures)

    async def _relist(self, namespace: str | None) -> str:
        items, since = await self._api.list(self.kind, namespace, self._labels)
        self.heard_at = time.monotonic()
        listed = {_key(o): o for o in items}
        for key, old in list(self._objects.items()):
            if key not in listed and namespace in (None, key[0]):
                del self._objects[key]
                self._notify("DELETED", old)
        for key, obj in listed.items():
            before = self._objects.get(key)
            self._objects[key] = obj
            if before is None or _version(before) != _version(obj):
                self._notify("ADDED" if before is None else "MODIFIED", obj)
        self._listed[namespace].set()
        return since

    async def _watch(self, namespace: str | None, since: str) -> str:
        stream = self._api.watch(self.kind, namespace, self._labels, since, WATCH_S, SILENCE_S)
        async for kind, obj in stream:
            self.heard_at = time.monotonic()
            since = _version(obj)
            if kind == "BOOKMARK":
                continue
            if kind == "DELETED":
                self._objects.pop(_key(obj), None)
            else:
                self._objects[_key(obj)] = obj
            self._notify(kind, obj)
        self.heard_at = time.monotonic()
        return since

    def note(self, obj: Object) -> None:
        """Store the result of the operator's own write before the watch brings it."""
        cached = self._objects.get(_key(obj))
        if cached is None or int(_version(obj)) > int(_version(cached)):
            self._objects[_key(obj)] = obj

    def _notify(self, kind: str, obj: Object) -> None:
        try:
            self._listener(kind, obj)
        except Exception:
            log.exception("a listener failed on %s of %s", kind, self.kind.plural)


def _key(obj: Object) -> tuple[str, str]:
    meta: dict[str, Any] = obj["metadata"]
    return meta.get("namespace", ""), meta["name"]


def _version(obj: Object) -> str:
    return str(obj["metadata"]["resourceVersion"])
