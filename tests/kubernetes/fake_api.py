"""A small Kubernetes API server in memory, over real HTTP: versions, conflicts, watches, merge and apply patches.

It implements the operator's calls only; e2e checks against the real one. An object has the version of the API that it
was written in, and is shown in that of the request.
"""

from __future__ import annotations

import asyncio
import copy
import json
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web
from gantry_operator.api.annotations import GROUP
from gantry_operator.api.cluster import SERVED
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.api.client import KINDS, ApiUnavailable, Kind, KubeApi
from gantry_operator.platforms.kubernetes.api.informer_cache import InformerCache
from kubernetes.aio.client.configuration import Configuration

from tests.support import running as background

NO = (403, "an admission webhook says no")
BY_PLURAL = {(k.group, k.plural): k for k in KINDS.values()}


def shown(obj: dict[str, Any], kind: Kind) -> dict[str, Any]:
    """The object in the version of the request: all versions of our kinds have the same fields."""
    return obj | {"apiVersion": kind.api_version} if kind.group == GROUP else obj


class FakeApi:
    """`async with FakeApi() as fake`: `api` is a client of it. `log` has (method, kind, name) of each write."""

    api: KubeApi

    def __init__(self, **options: Any) -> None:
        """`options` are those of the client."""
        self._options = options
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.log: list[tuple[str, str, str]] = []
        self.lists = 0
        self.deaf = False
        """True: watches stay open and send nothing, as after a silent loss of a connection."""
        self.down = False
        """True: every request is answered with 503."""
        self.unanswered: list[tuple[str, str]] = []
        """(method, kind) of requests to come that are not answered; each entry counts once, watches not at all."""
        self.refuse: dict[str, tuple[int, str]] = {}
        """By kind, or `kind/name`: the answer to every change of such an object."""
        self.missing: set[str] = set()
        """Kinds without a definition."""
        self.version = 100
        self._watchers: list[tuple[str, asyncio.Queue[tuple[str, dict[str, Any]]]]] = []
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def __aenter__(self) -> FakeApi:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", self._serve)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        self.api = KubeApi(Configuration(host=self.url), **self._options)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self.api.close()
        await self._runner.cleanup()

    def put(self, obj: dict[str, Any]) -> dict[str, Any]:
        """Write as another client."""
        key = (obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
        known = self.objects.get(key)
        obj = copy.deepcopy(obj)
        self.version += 1
        obj["metadata"]["uid"] = known["metadata"]["uid"] if known else uuid.uuid4().hex
        obj["metadata"]["resourceVersion"] = str(self.version)
        obj["metadata"].setdefault("creationTimestamp", datetime.now(UTC).isoformat(timespec="seconds"))
        self.objects[key] = obj
        self._notify("MODIFIED" if known else "ADDED", obj)
        return obj

    def remove(self, kind: str, namespace: str, name: str) -> None:
        obj = self.objects.pop((kind, namespace, name))
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        self._notify("DELETED", obj)

    def get(self, kind: str, name: str, namespace: str = "mq") -> dict[str, Any] | None:
        return self.objects.get((kind, namespace, name))

    def _notify(self, event: str, obj: dict[str, Any]) -> None:
        for kind, queue in self._watchers:
            if kind == obj["kind"] and not self.deaf:
                queue.put_nowait((event, copy.deepcopy(obj)))

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        if self.down:
            return _refuse(503, "ServiceUnavailable", "it is down")
        parts = [p for p in request.path.split("/") if p]
        group, version, parts = ("", parts[1], parts[2:]) if parts[0] == "api" else (parts[1], parts[2], parts[3:])
        namespace = ""
        if parts[0] == "namespaces":
            namespace, parts = parts[1], parts[2:]
        kind = BY_PLURAL[group, parts[0]]
        if kind.kind in self.missing or version not in (SERVED if group == GROUP else (kind.version,)):
            return _refuse(404, "NotFound", "the server could not find the requested resource")
        kind = replace(kind, version=version)
        name = parts[1] if len(parts) > 1 else ""
        if request.method == "GET" and not name and request.query.get("watch"):
            return await self._watch(request, kind)
        if (request.method, kind.kind) in self.unanswered:
            self.unanswered.remove((request.method, kind.kind))
            await asyncio.Event().wait()
        if request.method == "GET" and not name:
            self.lists += 1
            items = [shown(o, kind) for (k, _, _), o in self.objects.items() if k == kind.kind]
            return web.json_response({"metadata": {"resourceVersion": str(self.version)}, "items": items})
        return await self._one(request, kind, namespace, name)

    async def _one(self, request: web.Request, kind: Kind, namespace: str, name: str) -> web.Response:
        known = self.objects.get((kind.kind, namespace, name))
        body = json.loads(await request.read() or b"{}")
        method = request.method
        apply = request.headers.get("Content-Type") == "application/apply-patch+yaml"
        written = method in ("POST", "PUT") or apply
        if written and body.get("apiVersion") != kind.api_version:
            text = f"the API version in the data ({body.get('apiVersion')}) does not match the expected API version"
            return _refuse(400, "BadRequest", f"{text} ({kind.api_version})")
        if method != "GET":
            self.log.append((method, kind.kind, name or body["metadata"]["name"]))
        if method == "POST":
            name = body["metadata"]["name"]
            if (kind.kind, namespace, name) in self.objects:
                return _refuse(409, "AlreadyExists", f"{name} exists")
            return web.json_response(self.put(body))
        if known is None and not (method == "PATCH" and apply):
            return _refuse(404, "NotFound", f"{name} not found")
        if method == "DELETE":
            uid = (body.get("preconditions") or {}).get("uid")
            if uid is not None and known is not None and uid != known["metadata"]["uid"]:
                return _refuse(409, "Conflict", "another uid")
            self.remove(kind.kind, namespace, name)
            return web.json_response({"kind": "Status", "status": "Success"})
        if method == "PUT":
            assert known is not None
            if body["metadata"].get("resourceVersion") != known["metadata"]["resourceVersion"]:
                return _refuse(409, "Conflict", "the object has been modified")
            return web.json_response(self.put(body))
        if method == "PATCH":
            if refusal := self.refuse.get(kind.kind) or self.refuse.get(f"{kind.kind}/{name}"):
                return _refuse(refusal[0], "Invalid", refusal[1])
            version = body["metadata"].get("resourceVersion") if known is not None and "metadata" in body else None
            if known is not None and version not in (None, known["metadata"]["resourceVersion"]):
                return _refuse(409, "Conflict", "the object has been modified")
            return web.json_response(shown(self.put(merged(known or {}, body)), kind))
        assert known is not None
        return web.json_response(shown(known, kind))

    async def _watch(self, request: web.Request, kind: Kind) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        queue: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()
        since = int(request.query["resourceVersion"])
        for obj in self.objects.values():
            if obj["kind"] == kind.kind and int(obj["metadata"]["resourceVersion"]) > since and not self.deaf:
                queue.put_nowait(("MODIFIED", obj))
        watcher = (kind.kind, queue)
        self._watchers.append(watcher)
        try:
            while True:
                event, obj = await queue.get()
                found = obj if event == "ERROR" else shown(obj, kind)
                await response.write(json.dumps({"type": event, "object": found}).encode() + b"\n")
        finally:
            self._watchers.remove(watcher)

    def break_watches(self, code: int = 410) -> None:
        """Each open watch ends with an error."""
        for kind, queue in self._watchers:
            status = {"kind": kind, "code": code, "reason": "Expired", "message": "too old", "metadata": {}}
            queue.put_nowait(("ERROR", status))


def merged(old: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    out = dict(old) if isinstance(old, dict) else {}
    for k, v in patch.items():
        if v is None:
            out.pop(k, None)
        else:
            out[k] = merged(out.get(k), v)
    return out


def _refuse(code: int, reason: str, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "reason": reason, "message": message}, status=code)


class WritesLeft:
    """An operator that ends: `left` writes of its client reach the API server, and none after them."""

    def __init__(self, api: KubeApi, monkeypatch: pytest.MonkeyPatch, left: int = 1_000_000) -> None:
        self.left = left
        self._answer = api._answer
        monkeypatch.setattr(api, "_answer", self._limited)

    async def _limited(self, *args: Any, **kwargs: Any) -> Any:
        if args[0] != "GET":
            if self.left <= 0:
                raise ApiUnavailable("the operator has ended")
            self.left -= 1
        return await self._answer(*args, **kwargs)


def unheard(event: str, obj: Any) -> None:
    """Ignore a watch event."""


def put_group_set(fake: FakeApi) -> None:
    """The StatefulSet of group a of demo, whose newest revision is "new"."""
    meta = {"name": names.group_set("demo", "a"), "namespace": "mq", "generation": 1}
    status = {"observedGeneration": 1, "updateRevision": "new"}
    fake.put({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": meta, "spec": {}, "status": status})


@asynccontextmanager
async def running(caches: Iterable[InformerCache]) -> AsyncIterator[None]:
    """The caches follow the API server meanwhile."""
    some = list(caches)
    async with background.running(*some):
        await asyncio.wait_for(asyncio.gather(*(cache.ready() for cache in some)), 20)
        yield


@asynccontextmanager
async def following(api: KubeApi, kinds: Mapping[str, str] | Sequence[str]) -> AsyncIterator[dict[str, InformerCache]]:
    """Caches of these kinds, by name, that follow the API server."""
    by_name = kinds if isinstance(kinds, Mapping) else dict(zip(kinds, kinds, strict=True))
    caches = {name: InformerCache(api, KINDS[kind], (), "", unheard) for name, kind in by_name.items()}
    async with running(caches.values()):
        yield caches
