"""The Kubernetes API over the official asyncio client, with plain objects.

Objects are dictionaries as the API returns them. Only the operator's calls are here: read, list, watch, server-side
apply, create, replace (a compare-and-swap by resource version), patch, delete.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import config as kube_config
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration

from gantry_operator.api.annotations import GROUP
from gantry_operator.api.cluster import VERSION
from gantry_operator.cluster.failures import in_words
from gantry_operator.platforms.kubernetes.names import FIELD_MANAGER

REQUEST_S = 10.0
"""Seconds after which a single request is given up."""
URGENT_S = 2.5
"""The same for requests that a failover waits for. A lost request costs no more, and its outcome is read again."""
PROBES = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 3, "TCP_KEEPCNT": 3}
"""Seconds of TCP keepalive. A lost connection, for example to a dead node, is noticed after about 14 s."""
AT_ONCE = 16
"""Requests at a time; more would only queue in the API server. Requests of a failover are not limited."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A resource type of the API. `group` is empty for the core group."""

    group: str
    version: str
    kind: str
    plural: str

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None, name: str | None = None, sub: str | None = None) -> str:
        parts = [f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"]
        if namespace is not None:
            parts.append(f"namespaces/{namespace}")
        parts.append(self.plural)
        parts += [p for p in (name, sub) if p is not None]
        return "/".join(parts)


BROKER_CLUSTER = Kind(GROUP, VERSION, "BrokerCluster", "brokerclusters")
BROKER_TOPIC = Kind(GROUP, VERSION, "BrokerTopic", "brokertopics")
BROKER_USER = Kind(GROUP, VERSION, "BrokerUser", "brokerusers")
CONFIG_MAP = Kind("", "v1", "ConfigMap", "configmaps")
CONSUMER_GROUP = Kind(GROUP, VERSION, "ConsumerGroup", "consumergroups")
CRON_JOB = Kind("batch", "v1", "CronJob", "cronjobs")
DEPLOYMENT = Kind("apps", "v1", "Deployment", "deployments")
EVENT = Kind("", "v1", "Event", "events")
HORIZONTAL_POD_AUTOSCALER = Kind("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
JOB = Kind("batch", "v1", "Job", "jobs")
LEASE = Kind("coordination.k8s.io", "v1", "Lease", "leases")
NETWORK_POLICY = Kind("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies")
POD = Kind("", "v1", "Pod", "pods")
POD_DISRUPTION_BUDGET = Kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
ROLE = Kind("rbac.authorization.k8s.io", "v1", "Role", "roles")
ROLE_BINDING = Kind("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings")
SECRET = Kind("", "v1", "Secret", "secrets")
SERVICE = Kind("", "v1", "Service", "services")
SERVICE_ACCOUNT = Kind("", "v1", "ServiceAccount", "serviceaccounts")
SPARK_APPLICATION = Kind("spark.apache.org", "v1", "SparkApplication", "sparkapplications")
STATEFUL_SET = Kind("apps", "v1", "StatefulSet", "statefulsets")
SUBJECT_ACCESS_REVIEW = Kind("authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews")
TOKEN_REVIEW = Kind("authentication.k8s.io", "v1", "TokenReview", "tokenreviews")
VOLUME_CLAIM = Kind("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")

KINDS = {
    k.kind: k
    for k in (
        BROKER_CLUSTER, BROKER_TOPIC, BROKER_USER, CONFIG_MAP, CONSUMER_GROUP, CRON_JOB, DEPLOYMENT, EVENT,
        HORIZONTAL_POD_AUTOSCALER, JOB, LEASE,
        NETWORK_POLICY, POD, POD_DISRUPTION_BUDGET, ROLE, ROLE_BINDING, SECRET, SERVICE, SERVICE_ACCOUNT,
        SPARK_APPLICATION, STATEFUL_SET,
        SUBJECT_ACCESS_REVIEW, TOKEN_REVIEW, VOLUME_CLAIM,
    )
}  # fmt: skip

URGENT = (LEASE, POD)
"""Kinds that a failover writes: the leadership records and the pods' role labels."""

Object = dict[str, Any]


class ApiError(Exception):
    """The API server refused. `reason` is its own word: NotFound, Conflict, AlreadyExists, Invalid, Forbidden."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message or reason or f"status {status}")
        self.status = status
        self.reason = reason


class ApiUnavailable(Exception):
    """No answer: the outcome of a write is not known."""


def _as(kind: Kind, obj: Object) -> Object:
    """Return the object in the version that this client speaks: a document may name another one that is served."""
    return {**obj, "apiVersion": kind.api_version}


async def load_config(context: str | None = None) -> Configuration:
    """Return the pod's own account inside a cluster, else the user's kubeconfig. Raises kubernetes' ConfigException."""
    configuration = Configuration()
    if context is None:
        try:
            kube_config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
            return configuration
        except kube_config.ConfigException:
            pass
    await kube_config.load_kube_config(  # type: ignore[no-untyped-call]
        context=context, client_configuration=configuration
    )
    return configuration


class KubeApi:
    """A client with one connection pool. Use it as an async context manager, or call `close`.

    `on_answer` gets (verb, resource, status) of each request; the status is None if there was no answer.
    """

    def __init__(
        self,
        configuration: Configuration,
        on_answer: Callable[[str, str, int | None], None] = lambda verb, resource, status: None,
    ) -> None:
        # 0 means no limit in aiohttp: each watch holds a connection.
        configuration.connection_pool_maxsize = 0
        self._client = ApiClient(configuration)
        self._on_answer = on_answer
        self._gate = asyncio.Semaphore(AT_ONCE)
        self.calls = 0
        """Number of requests so far."""

    async def __aenter__(self) -> KubeApi:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._client.close()  # type: ignore[no-untyped-call]

    # ---- reading

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Object | None:
        """Return an object, or None if it does not exist."""
        try:
            return await self._call(kind, "GET", kind.path(namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def pod_log(self, namespace: str, pod: str) -> bytes:
        """Return the log of a pod's only container."""
        limits = aiohttp.ClientTimeout(total=60, sock_connect=5)
        path = POD.path(namespace, pod, "log")
        response = await self._raw("GET", path, None, None, None, limits, ("GET", "pods/log"))
        try:
            return await response.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise ApiUnavailable(f"GET {path}: {in_words(error)}") from error
        finally:
            response.release()

    async def list(
        self, kind: Kind, namespace: str | None, labels: str = "", *, fields: str = ""
    ) -> tuple[list[Object], str]:
        """Return all objects (namespace None: of all namespaces) and the resource version to watch from."""
        query = {k: v for k, v in (("labelSelector", labels), ("fieldSelector", fields)) if v}
        answer = await self._call(kind, "GET", kind.path(namespace), query, timeout=60, verb="LIST")
        items = answer.get("items") or []
        for item in items:
            # List responses leave these two fields out of their items.
            item.setdefault("kind", kind.kind)
            item.setdefault("apiVersion", kind.api_version)
        return items, answer["metadata"]["resourceVersion"]

    async def watch(
        self, kind: Kind, namespace: str | None, labels: str, since: str, seconds: int, silence_s: float
    ) -> AsyncIterator[tuple[str, Object]]:
        """Yield events after `since`, for at most `seconds` (the server ends the watch).

        Raises ApiError (410: list again), and ApiUnavailable when the connection breaks or nothing, not even a
        bookmark, arrives for `silence_s`.
        """
        query = {
            "watch": "true",
            "resourceVersion": since,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
        }
        if labels:
            query["labelSelector"] = labels
        timeout = aiohttp.ClientTimeout(total=seconds + 15, sock_connect=5, sock_read=silence_s)
        response = await self._raw("GET", kind.path(namespace), query, None, None, timeout, ("WATCH", kind.plural))
        try:
            _probe(response)
            async for line in response.content:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise _error(event["object"].get("code", 500), event["object"])
                yield event["type"], event["object"]
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise ApiUnavailable(f"watching {kind.plural}: {in_words(error)}") from error
        finally:
            response.release()

    # ---- writing

    async def apply(self, obj: Object, manager: str = FIELD_MANAGER, *, dry_run: bool = False) -> Object:
        """Server-side apply. Takes back fields of this operator that another client has taken over. `dry_run`: the
        API server checks everything, and writes nothing.
        """
        kind = KINDS[obj["kind"]]
        path = kind.path(obj["metadata"].get("namespace"), obj["metadata"]["name"])
        query = {"fieldManager": manager, "force": "true"} | ({"dryRun": "All"} if dry_run else {})
        return await self._call(kind, "PATCH", path, query, _as(kind, obj), "application/apply-patch+yaml")

    async def create(self, obj: Object) -> Object:
        kind = KINDS[obj["kind"]]
        query = {"fieldManager": FIELD_MANAGER}
        return await self._call(kind, "POST", kind.path(obj["metadata"].get("namespace")), query, _as(kind, obj))

    async def replace(self, obj: Object) -> Object:
        """Replace an object. Raises ApiError with Conflict unless `metadata.resourceVersion` is current."""
        kind = KINDS[obj["kind"]]
        path = kind.path(obj["metadata"].get("namespace"), obj["metadata"]["name"])
        return await self._call(kind, "PUT", path, {"fieldManager": FIELD_MANAGER}, _as(kind, obj))

    async def merge(
        self, kind: Kind, namespace: str | None, name: str, patch: Mapping[str, Any], sub: str | None = None
    ) -> Object:
        """Return a JSON merge patch."""
        path, query = kind.path(namespace, name, sub), {"fieldManager": FIELD_MANAGER}
        return await self._call(kind, "PATCH", path, query, dict(patch), "application/merge-patch+json")

    async def replace_parts(self, kind: Kind, live: Object, parts: Mapping[str, Any]) -> Object:
        """Replace top-level parts of an object. Raises ApiError with Conflict if it has changed since `live`."""
        meta = live["metadata"]
        patch = [{"op": "replace", "path": "/metadata/resourceVersion", "value": meta["resourceVersion"]}]
        patch += [{"op": "replace", "path": f"/{name}", "value": value} for name, value in parts.items()]
        path, query = kind.path(meta.get("namespace"), meta["name"]), {"fieldManager": FIELD_MANAGER}
        return await self._call(kind, "PATCH", path, query, patch, "application/json-patch+json")

    async def delete(
        self, kind: Kind, namespace: str | None, name: str, *, uid: str | None = None, orphan: bool = False
    ) -> bool:
        """Delete an object. False: it does not exist. `uid`: only this incarnation. `orphan`: keep the objects that
        it owns.
        """
        options: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1"}
        options["propagationPolicy"] = "Orphan" if orphan else "Background"
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        try:
            await self._call(kind, "DELETE", kind.path(namespace, name), {}, options)
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    async def websocket(self, path: str, query: Mapping[str, str], protocol: str) -> aiohttp.ClientWebSocketResponse:
        """Open a connection that the API server upgrades. Raises ApiUnavailable; the caller closes it."""
        headers: dict[str, str] = {}
        await self._client.update_params_for_auth(headers, [], ["BearerToken"], path, "GET", None)
        rest = self._client.rest_client
        if rest.pool_manager is None:
            rest.pool_manager = rest._create_pool_manager()
        url = f"{self._client.configuration.host}{path}?{urlencode(query)}"
        try:
            return await rest.pool_manager.ws_connect(url, headers=headers, protocols=(protocol,), max_msg_size=0)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise ApiUnavailable(f"{path}: {error}") from error

    # ---- transport

    async def _call(
        self,
        kind: Kind,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | Sequence[Any] | None = None,
        content_type: str = "application/json",
        timeout: float | None = None,
        verb: str = "",
    ) -> Object:
        if timeout is None:
            timeout = URGENT_S if kind in URGENT else REQUEST_S
        limits = aiohttp.ClientTimeout(total=timeout, sock_connect=5)
        async with contextlib.nullcontext() if kind in URGENT else self._gate:
            return await self._answer(method, path, query, body, content_type, limits, (verb or method, kind.plural))

    async def _answer(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Mapping[str, Any] | Sequence[Any] | None,
        content_type: str,
        limits: aiohttp.ClientTimeout,
        what: tuple[str, str],
    ) -> Object:
        response = await self._raw(method, path, query, body, content_type, limits, what)
        try:
            answer: Object = json.loads(await response.read())
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            raise ApiUnavailable(f"{method} {path}: {in_words(error)}") from error
        finally:
            response.release()
        return answer

    async def _raw(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Mapping[str, Any] | Sequence[Any] | None,
        content_type: str | None,
        timeout: aiohttp.ClientTimeout,
        what: tuple[str, str],
    ) -> aiohttp.ClientResponse:
        """Send one request. `what`: verb and resource, for `on_answer`."""
        self.calls += 1
        headers: dict[str, str] = {"Accept": "application/json, */*"}
        if content_type is not None:
            headers["Content-Type"] = content_type
        await self._client.update_params_for_auth(headers, [], ["BearerToken"], path, method, None)
        url = self._client.configuration.host + path + (f"?{urlencode(query)}" if query else "")
        status: int | None = None
        try:
            answer = await self._client.rest_client.request(  # type: ignore[no-untyped-call]
                method, url, headers=headers, body=body, _request_timeout=timeout
            )
            response: aiohttp.ClientResponse = answer.response
            status = response.status
            if response.status >= 400:
                text = await response.read()
                response.release()
                raise _refused(response.status, text)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise ApiUnavailable(f"{method} {path}: {in_words(error)}") from error
        finally:
            self._on_answer(*what, status)
        return response


def _probe(response: aiohttp.ClientResponse) -> None:
    """Enable TCP keepalive on the response's connection."""
    transport = None if response.connection is None else response.connection.transport
    sock = None if transport is None else transport.get_extra_info("socket")
    if sock is None:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in PROBES.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _refused(status: int, text: bytes) -> ApiError:
    try:
        status_object = json.loads(text)
    except ValueError:
        status_object = {"message": text[:200].decode(errors="replace")}
    return _error(status, status_object if isinstance(status_object, dict) else {})


def _error(status: int, status_object: Mapping[str, Any]) -> ApiError:
    return ApiError(status, str(status_object.get("reason") or ""), str(status_object.get("message") or ""))


async def retried(attempt: int) -> None:
    """Seconds to pause after the n-th failure in a row: 0.2 s, doubling up to 10 s."""
    await asyncio.sleep(min(10.0, 0.2 * 2 ** min(attempt, 6)))
