"""The console's process in Kubernetes: `python -m gantry_operator.console.kubernetes`.

A person signs in with a bearer token, which a TokenReview checks, and may do what their own rights on the
BrokerCluster say (SubjectAccessReview): `get` shows a cluster, `update` changes it. The console acts with its own
account, so it asks before each page and each change. With GANTRY_CONSOLE_USER_HEADER it trusts the name in this header
instead: only behind a proxy that sets it for every request.

The chart sets GANTRY_WATCH_NAMESPACES (separated by commas; empty: all), GANTRY_CONSOLE_HOSTS (further names that
browsers use, separated by commas), GANTRY_CONSOLE_USER_HEADER, GANTRY_CONSOLE_GROUPS_HEADER, GANTRY_CONSOLE_HISTORY
(namespace/name of the ConfigMap with the points of the charts; empty: they end with the console), GANTRY_LOG_LEVEL.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import shlex
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import orjson
from fastapi import HTTPException, Request
from gantry_broker import logs, report_page
from gantry_broker.access.quota import Bucket
from gantry_broker.http.hosts import AllowedHosts
from gantry_broker.tasks import end_tasks

from gantry_operator.actions.errors import ActionError
from gantry_operator.actions.kubernetes_target import KubernetesTarget
from gantry_operator.actions.target import Clients
from gantry_operator.api.annotations import PAUSED
from gantry_operator.api.manifest import ManifestError
from gantry_operator.cluster.member_http import make_client
from gantry_operator.console.access import Session, Sessions
from gantry_operator.console.app import make_app
from gantry_operator.console.collector import Collector
from gantry_operator.console.history import History, NoHistory, points_of, rows_of
from gantry_operator.console.serve import Server
from gantry_operator.console.snapshot import ClusterKey, Point
from gantry_operator.console.sources import AuditView, MemberAudit, MemberUrl, Pausing, SourceError
from gantry_operator.plan.plan import plan
from gantry_operator.plan.tls_files import AUTHORITIES, CERTIFICATE
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.analytics.manifests import name_of
from gantry_operator.platforms.kubernetes.api.client import (
    BROKER_CLUSTER,
    CONFIG_MAP,
    SECRET,
    ApiError,
    ApiUnavailable,
    KubeApi,
    Object,
    load_config,
)
from gantry_operator.platforms.kubernetes.manifests import access as tokens
from gantry_operator.platforms.kubernetes.manifests.broker_group import member_host
from gantry_operator.platforms.kubernetes.manifests.pod_parts import http_scheme
from gantry_operator.platforms.kubernetes.objects.certificates import decoded
from gantry_operator.platforms.kubernetes.targets.port_forward import cluster_that_runs

log = logging.getLogger(__name__)

PORT: Final = 8080
LIST_EVERY_S: Final = 10.0
ENTRY_STEP_S: Final = 60.0
"""Seconds between two points that a ConfigMap keeps: those of six hours take 10 KB, and it has room for 1 MiB."""
REVIEW_S: Final = 30.0
"""Seconds for which the answer about a token or a right counts: a right that was taken away ends within this time."""
MAX_ANSWERS: Final = 10_000
MAX_TOKEN: Final = 16_384
"""Characters of a bearer token."""
SIGN_INS_PER_SECOND: Final = 10
"""Sign-ins by tokens that were not checked lately, of all people together: each costs the API server a TokenReview."""


@dataclass(frozen=True, slots=True)
class Person:
    """Who a request is from, as Kubernetes names them."""

    user: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


def token_review(token: str) -> Object:
    return {"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "metadata": {}, "spec": {"token": token}}


def person_of(review: Mapping[str, Any]) -> Person | None:
    """Return the person of an answered TokenReview; None: the token is not valid."""
    status = review.get("status") or {}
    user = status.get("user") or {}
    if status.get("authenticated") is not True or not user.get("username"):
        return None
    extra = tuple((str(k), tuple(map(str, v))) for k, v in sorted((user.get("extra") or {}).items()))
    return Person(str(user["username"]), tuple(map(str, user.get("groups") or ())), str(user.get("uid") or ""), extra)


def access_review(person: Person, verb: str, key: ClusterKey) -> Object:
    """May the person do this with the BrokerCluster?"""
    return {
        "kind": "SubjectAccessReview",
        "apiVersion": "authorization.k8s.io/v1",
        "metadata": {},
        "spec": {
            "user": person.user,
            "groups": list(person.groups),
            "uid": person.uid,
            "extra": {k: list(v) for k, v in person.extra},
            "resourceAttributes": {
                "group": BROKER_CLUSTER.group,
                "resource": BROKER_CLUSTER.plural,
                "verb": verb,
                "namespace": key.space,
                "name": key.name,
            },
        },
    }


def allowed_by(review: Mapping[str, Any]) -> bool:
    """Return the answer of a SubjectAccessReview."""
    status = review.get("status") or {}
    return status.get("allowed") is True and status.get("denied") is not True


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


class KubernetesAccess:
    """People by their tokens or by a proxy's header, and their rights."""

    login_page = "login_kubernetes.html"
    secure = True
    """Browsers also send such a cookie to loopback addresses without TLS, as with `kubectl port-forward`."""
    cookie = "__Host-gantry-console"

    def __init__(
        self,
        api: KubeApi,
        sessions: Sessions,
        hosts: Sequence[str],
        user_header: str = "",
        groups_header: str = "",
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._sessions = sessions
        self._hosts = AllowedHosts(hosts)
        self._user_header = user_header
        self._groups_header = groups_header
        self._now = now
        self._people: dict[str, tuple[float, Person | None]] = {}
        """By the digest of a token."""
        self._rights: dict[tuple[Person, str, ClusterKey], tuple[float, bool]] = {}
        self._by_proxy: dict[str, Session] = {}
        self._sign_ins = Bucket(SIGN_INS_PER_SECOND, now())

    def allows_host(self, header: str) -> bool:
        return self._hosts.allows(header)

    async def session(self, request: Request) -> Session | None:
        if self._user_header:
            return self._proxied(request)
        session = self._sessions.find(request.cookies.get(self.cookie), self._now())
        if session is None:
            return None
        if await self._person(session.token) is None:
            self._sessions.close(session)
            return None
        return session

    def _proxied(self, request: Request) -> Session | None:
        """Return the session of the person that the proxy names."""
        user = request.headers.get(self._user_header, "").strip()
        if not user:
            return None
        groups = request.headers.get(self._groups_header, "") if self._groups_header else ""
        person = Person(user, tuple(g.strip() for g in groups.split(",") if g.strip()))
        mark = hashlib.sha256(repr(person).encode()).hexdigest()
        session = self._by_proxy.get(mark)
        if session is None:
            if len(self._by_proxy) >= MAX_ANSWERS:
                self._by_proxy.clear()
            session = self._by_proxy[mark] = self._sessions.open(user, self._now(), mark)
        self._people[mark] = (self._now() + REVIEW_S, person)
        return session

    async def login(self, request: Request, form: Mapping[str, str]) -> Session | None:
        """As `Access.login`. Raises HTTPException 429 for more than SIGN_INS_PER_SECOND tokens to check."""
        token = form.get("bearer", "").removeprefix("Bearer ").strip()
        if self._user_header or not token or len(token) > MAX_TOKEN:
            return None
        if self._cached_person(_digest(token)) is None:
            if not self._sign_ins.has_some(self._now()):
                raise HTTPException(429, "too many people sign in: try again in a second", {"Retry-After": "1"})
            self._sign_ins.take(1)
        person = await self._person(token)
        return None if person is None else self._sessions.open(person.user, self._now(), token)

    async def may_read(self, session: Session, key: ClusterKey) -> bool:
        return await self._may(session, "get", key)

    async def may_write(self, session: Session, key: ClusterKey) -> bool:
        return await self._may(session, "update", key)

    def _cached_person(self, mark: str) -> tuple[float, Person | None] | None:
        """Return what an answer that still counts says of a token."""
        cached = self._people.get(mark)
        return cached if cached is not None and cached[0] > self._now() else None

    async def _person(self, token: str) -> Person | None:
        mark = token if self._user_header else _digest(token)
        cached = self._cached_person(mark)
        if cached is not None:
            return cached[1]
        if self._user_header:
            return None
        try:
            person = person_of(await self._api.create(token_review(token)))
        except (ApiError, ApiUnavailable) as error:
            log.warning("a TokenReview failed: %s", error)
            return None
        self._keep(self._people, mark, person)
        return person

    async def _may(self, session: Session, verb: str, key: ClusterKey) -> bool:
        person = await self._person(session.token)
        if person is None:
            return False
        cached = self._rights.get((person, verb, key))
        if cached is not None and cached[0] > self._now():
            return cached[1]
        try:
            allowed = allowed_by(await self._api.create(access_review(person, verb, key)))
        except (ApiError, ApiUnavailable) as error:
            log.warning("a SubjectAccessReview failed: %s", error)
            return False
        self._keep(self._rights, (person, verb, key), allowed)
        return allowed

    def _keep(self, table: dict[Any, Any], key: Any, answer: Any) -> None:
        if len(table) >= MAX_ANSWERS:
            table.clear()
        table[key] = (self._now() + REVIEW_S, answer)


class InClusterTarget(KubernetesTarget):
    """A cluster as a pod reaches it: by the addresses inside, without forwarded ports."""

    @asynccontextmanager
    async def clients(self) -> AsyncIterator[Clients]:
        async with self._open() as target:
            resource = await target.resource()
            servers = str(((resource.get("status") or {}).get("addresses") or {}).get("nameServers") or "")
            if not servers:
                raise ActionError("the cluster has no NameServer addresses yet")
            names = target.names_of_groups(resource)
            yield Clients(servers, await target.super_user(), await target.client_tls(), names)


class PauseAnnotation:
    """The annotation of a BrokerCluster that pauses its changes."""

    def __init__(self, api: KubeApi, key: ClusterKey) -> None:
        self._api = api
        self._key = key

    def command(self, paused: bool) -> str:
        change = PAUSED + ("=true" if paused else "-")
        return shlex.join(["kubectl", "annotate", "bc", self._key.name, "-n", self._key.space, "--overwrite", change])

    async def pause(self, paused: bool) -> None:
        patch = {"metadata": {"annotations": {PAUSED: "true" if paused else None}}}
        try:
            await self._api.merge(BROKER_CLUSTER, self._key.space, self._key.name, patch)
        except (ApiError, ApiUnavailable) as error:
            raise ActionError(str(error)) from None


class ConfigMapHistory:
    """An entry of the ConfigMap that the chart makes, one for each cluster."""

    every_s = 300.0

    def __init__(self, api: KubeApi, place: ClusterKey, entry: str) -> None:
        """`place`: namespace and name of the ConfigMap."""
        self._api = api
        self._place = place
        self._entry = entry
        self._reported = ""

    async def read(self, now: float) -> tuple[Point, ...] | None:
        try:
            config_map = await self._api.get(CONFIG_MAP, self._place.space, self._place.name)
        except (ApiError, ApiUnavailable) as error:
            self._report("read", error)
            return None
        try:
            return points_of(orjson.loads(((config_map or {}).get("data") or {}).get(self._entry) or "[]"), now)
        except orjson.JSONDecodeError:
            return ()

    async def keep(self, points: Sequence[Point]) -> None:
        await self._write(orjson.dumps(rows_of(points, ENTRY_STEP_S)).decode())

    async def forget(self) -> None:
        """Remove the entry: the cluster is gone."""
        await self._write(None)

    async def _write(self, text: str | None) -> None:
        try:
            await self._api.merge(CONFIG_MAP, self._place.space, self._place.name, {"data": {self._entry: text}})
            self._reported = ""
        except (ApiError, ApiUnavailable) as error:
            self._report("kept", error)

    def _report(self, what: str, error: Exception) -> None:
        if self._reported != str(error):
            self._reported = str(error)
            log.warning("the history of %s cannot be %s: %s", self._entry, what, error)


class KubernetesSource:
    """One BrokerCluster."""

    def __init__(self, api: KubeApi, key: ClusterKey, history: History | None = None) -> None:
        self.key = key
        self.history: History = history or NoHistory()
        self.target = InClusterTarget(None, key.space, key.name)
        self.command: Sequence[str] = ("--cluster", key.name, "--namespace", key.space)
        self.http = make_client(lambda: self._token, lambda: self._trusted)
        self._api = api
        self._token: str | None = None
        self._trusted = b""
        self._secrets_until = 0.0
        self._packed: bytes | None = None
        self._packed_until = 0.0
        self._resource: Object | None = None
        self.pausing: Pausing | None = PauseAnnotation(api, key)
        self._audit = MemberAudit(self.http)

    async def resource(self) -> dict[str, Any]:
        try:
            resource = await self.target.resource()
        except ActionError as error:
            raise SourceError(str(error)) from error
        self._resource = resource
        return resource

    async def members(self) -> list[MemberUrl]:
        if self._resource is None:
            await self.resource()
        try:
            cluster = cluster_that_runs(self._resource or {})
            if time.monotonic() > self._secrets_until:
                await self._read_secrets()
        except (ManifestError, ApiError, ApiUnavailable, KeyError) as error:
            raise SourceError(str(error)) from error
        return [
            MemberUrl(m.name, m.group, f"{http_scheme(cluster)}://{member_host(cluster, m)}:{names.BROKER_HTTP_PORT}")
            for m in plan(cluster).members
        ]

    async def _read_secrets(self) -> None:
        secret = await self._api.get(SECRET, self.key.space, names.admin_secret(self.key.name))
        self._token = None if secret is None else tokens.token_of(secret)
        authorities = decoded(await self._api.get(SECRET, self.key.space, names.ca_cert_secret(self.key.name)))
        self._trusted = authorities.get(AUTHORITIES) or authorities.get(CERTIFICATE, b"")
        self._secrets_until = time.monotonic() + LIST_EVERY_S

    async def audit(self) -> AuditView:
        chosen = f"{names.CLUSTER_LABEL}={self.key.name}"
        where = f"kubectl logs -n {self.key.space} -l {chosen} --prefix --tail=-1 | grep gantry.audit"
        return AuditView(await self._audit.lines(self.members), where)

    async def has_report(self) -> bool:
        return await self._packed_report() is not None

    async def report(self) -> bytes | None:
        packed = await self._packed_report()
        return None if packed is None else await asyncio.to_thread(report_page.unpack, packed)

    async def _packed_report(self) -> bytes | None:
        """Return the page as the driver of the last good run wrote it, at most LIST_EVERY_S old."""
        if time.monotonic() > self._packed_until:
            try:
                secret = await self._api.get(SECRET, self.key.space, name_of(self.key.name))
            except (ApiError, ApiUnavailable) as error:
                log.warning("the report of %s cannot be read: %s", self.key.path, error)
            else:
                self._packed = decoded(secret).get(report_page.KEY)
            self._packed_until = time.monotonic() + LIST_EVERY_S
        return self._packed

    async def close(self) -> None:
        await self._audit.close()
        await self.http.aclose()


class Clusters:
    """Collectors of the present BrokerClusters."""

    def __init__(self, api: KubeApi, namespaces: Sequence[str], history: ClusterKey | None = None) -> None:
        """`history`: namespace and name of the ConfigMap for the charts' points; None: they end with the console."""
        self._api = api
        self._history = history
        self._namespaces: Sequence[str | None] = namespaces or (None,)
        self.collectors: dict[ClusterKey, Collector] = {}
        self._tasks: dict[ClusterKey, asyncio.Task[None]] = {}
        self._histories: dict[ClusterKey, ConfigMapHistory] = {}

    async def run(self) -> None:
        try:
            while True:
                try:
                    await self.look()
                except (ApiError, ApiUnavailable) as error:
                    log.warning("BrokerClusters cannot be listed: %s", error)
                await asyncio.sleep(LIST_EVERY_S)
        finally:
            for key in list(self.collectors):
                await self._forget(key)

    async def look(self) -> None:
        """Begin with new clusters, end with deleted ones."""
        listed: list[Object] = []
        for namespace in self._namespaces:
            listed += (await self._api.list(BROKER_CLUSTER, namespace))[0]
        there = {ClusterKey(o["metadata"]["namespace"], o["metadata"]["name"]) for o in listed}
        for key in set(self.collectors) - there:
            await self._forget(key)
            if history := self._histories.pop(key, None):
                await history.forget()
        for key in sorted(there - set(self.collectors), key=lambda k: (k.space, k.name)):
            if self._history is not None:
                self._histories[key] = ConfigMapHistory(self._api, self._history, f"{key.space}.{key.name}")
            collector = Collector(KubernetesSource(self._api, key, self._histories.get(key)))
            self._tasks[key] = asyncio.create_task(collector.run())
            self.collectors[key] = collector

    async def _forget(self, key: ClusterKey) -> None:
        collector = self.collectors.pop(key)
        await end_tasks(self._tasks.pop(key))
        await collector.source.close()


def _words(name: str) -> list[str]:
    return [word.strip() for word in os.environ.get(name, "").split(",") if word.strip()]


def _history_place() -> ClusterKey | None:
    space, _, name = os.environ.get("GANTRY_CONSOLE_HISTORY", "").partition("/")
    return ClusterKey(space, name) if space and name else None


async def serve() -> None:
    """Serve until a signal."""
    bound = socket.create_server(("", PORT), reuse_port=False)
    async with KubeApi(await load_config()) as api:
        clusters = Clusters(api, _words("GANTRY_WATCH_NAMESPACES"), _history_place())
        sessions = Sessions()
        access = KubernetesAccess(
            api,
            sessions,
            _words("GANTRY_CONSOLE_HOSTS"),
            os.environ.get("GANTRY_CONSOLE_USER_HEADER", ""),
            os.environ.get("GANTRY_CONSOLE_GROUPS_HEADER", ""),
        )
        following = asyncio.create_task(clusters.run())
        try:
            app = make_app(lambda: clusters.collectors, access, sessions)
            await Server(app, lambda: clusters.collectors).serve(sockets=[bound])
        finally:
            await end_tasks(following)


def main() -> None:
    logs.configure(os.environ.get("GANTRY_LOG_LEVEL", "INFO"))
    asyncio.run(serve())


if __name__ == "__main__":
    main()
