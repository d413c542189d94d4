"""A cluster on Kubernetes for the `gantry` command: read the resource, switch over, reach clients' ports.

Clients outside use the addresses of `spec.external`. Without it, ports are forwarded through the API server (see
`port_forward`) while the target is open.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import time
from collections.abc import AsyncIterator, Callable, Sequence, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gantry_broker.client import Credentials

from gantry_operator.access.wanted import ADMIN
from gantry_operator.api.annotations import FENCED, RESTART
from gantry_operator.api.base import parse_quantity
from gantry_operator.api.cluster import BrokerCluster, fenced_in
from gantry_operator.api.manifest import ManifestError, parse_manifest
from gantry_operator.cluster.live import LiveCluster, MemberPlace
from gantry_operator.cluster.live_watch import Source
from gantry_operator.cluster.maintenance import wait_for
from gantry_operator.cluster.member_http import make_client, tls_context
from gantry_operator.cluster.volume import Volume
from gantry_operator.migration import rollback_steps
from gantry_operator.migration.cutover_steps import Record, Refused
from gantry_operator.plan.plan import plan
from gantry_operator.plan.tls_files import AUTHORITIES, CERTIFICATE, KEY
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.api.client import (
    BROKER_CLUSTER,
    EVENT,
    POD,
    SECRET,
    STATEFUL_SET,
    VOLUME_CLAIM,
    ApiError,
    ApiUnavailable,
    KubeApi,
    Object,
    load_config,
)
from gantry_operator.platforms.kubernetes.manifests import access
from gantry_operator.platforms.kubernetes.manifests.pod_parts import http_scheme
from gantry_operator.platforms.kubernetes.objects.certificates import decoded
from gantry_operator.platforms.kubernetes.requests import migration_request, site_request
from gantry_operator.platforms.kubernetes.requests.switchover_request import (
    SWITCHOVER,
    SWITCHOVER_RESULT,
    new_switchover_request,
)
from gantry_operator.platforms.kubernetes.targets import preview
from gantry_operator.platforms.kubernetes.targets.port_forward import ForwardedCluster, cluster_that_runs
from gantry_operator.platforms.kubernetes.targets.topics import TargetTopics
from gantry_operator.platforms.kubernetes.targets.users import TargetUsers, UserError

log = logging.getLogger(__name__)

SWITCHOVER_S = 45.0
"""Seconds. An operator may need 35 s: to learn the leader, for the request, and for a handover under way."""


FENCE_TRIES = 5
"""Writes of the annotation while others change the resource."""
EVENTS_SHOWN = 20
FACTS_S = 2.0
"""Seconds between two requests to the API server for a live view."""


@dataclass(frozen=True, slots=True)
class ClaimedVolume:
    """A volume claim. `uid`: of this incarnation."""

    volume: Volume
    uid: str


def claimed_volume(claim: Object, planned: Set[str], running: Set[str], in_sets: Set[str]) -> ClaimedVolume:
    """Return a claim with what uses it: a member of the plan, a pod, or a StatefulSet that wants one."""
    meta = claim["metadata"]
    member = str(meta["name"]).removeprefix(names.claim(""))
    used_by = ""
    if member in planned:
        used_by = f"member {member} uses it"
    elif member in running:
        used_by = f"pod {member} runs"
    elif member in in_sets:
        used_by = f"{member} is leaving the cluster"
    size = (claim.get("status") or {}).get("capacity", {}).get("storage")
    volume = Volume(str(meta["name"]), member, None if size is None else int(parse_quantity(size)), used_by)
    return ClaimedVolume(volume, str(meta["uid"]))


class TargetError(Exception):
    """A command that failed. The text names the reason and the remedy."""


class NoCluster(TargetError):
    """There is no such cluster, namespace or context."""


class KubeTarget:
    """One BrokerCluster through the Kubernetes API. Use it as an async context manager.

    `context`: of the kubeconfig, None: the current one. `namespace` None: that of the context. `name` None: the only
    cluster in that namespace.
    """

    def __init__(self, context: str | None = None, namespace: str | None = None, name: str | None = None) -> None:
        self._context = context
        self._wanted_namespace = namespace
        self._wanted_name = name
        self.namespace = ""
        self.name = ""
        self.group_names: dict[str, str] = {}
        """The broker groups by RocketMQ's name of each, as `name_servers` has read them."""
        self._api: KubeApi | None = None
        self._forwarded: ForwardedCluster | None = None

    async def __aenter__(self) -> KubeTarget:
        """Begin. Raises TargetError if there is no such cluster, or no single one."""
        missing = no_kubeconfig()
        if missing:
            raise TargetError(missing)
        try:
            namespace = self._wanted_namespace
            if self._context is not None or not namespace:  # A pod has a namespace to name, and no context.
                of_context = current_namespace(self._context)
                namespace = namespace or of_context
            configuration = await load_config(self._context)
            self._api = KubeApi(configuration)
            self.namespace = namespace
            self.name = self._wanted_name or await self._only_one()
            await self.resource()
        except (ApiError, ApiUnavailable) as error:
            await self.close()
            raise TargetError(f"the Kubernetes API server refuses or does not answer: {error}") from error
        except TargetError:
            await self.close()
            raise
        except Exception as error:
            await self.close()
            raise TargetError(f"no usable kubeconfig: {error}") from error
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._forwarded is not None:
            await self._forwarded.close()
            self._forwarded = None
        if self._api is not None:
            await self._api.close()
            self._api = None

    @property
    def api(self) -> KubeApi:
        if self._api is None:
            raise TargetError("not open: use it as `async with KubeTarget(...) as target`")
        return self._api

    async def _only_one(self) -> str:
        clusters, _ = await self.api.list(BROKER_CLUSTER, self.namespace)
        if not clusters:
            raise NoCluster(f"namespace {self.namespace} does not exist or has no BrokerCluster: name another with -n")
        if len(clusters) != 1:
            listed = ", ".join(o["metadata"]["name"] for o in clusters)
            raise NoCluster(f"namespace {self.namespace} has the clusters {listed}: name one with --cluster")
        return str(clusters[0]["metadata"]["name"])

    async def resource(self) -> Object:
        """Return the BrokerCluster in the API, status included. Raises TargetError if it does not exist."""
        resource = await self.api.get(BROKER_CLUSTER, self.namespace, self.name)
        if resource is None:
            raise NoCluster(f"there is no BrokerCluster {self.name} in namespace {self.namespace}")
        return resource

    async def events(self) -> list[dict[str, Any]]:
        """Events, newest last: time, type, reason, object, message."""
        items, _ = await self.api.list(EVENT, self.namespace)
        ours = [e for e in items if e["involvedObject"].get("name") == self.name]
        ours = [e for e in ours if e["involvedObject"].get("kind") == BROKER_CLUSTER.kind]
        ours.sort(key=lambda e: e.get("lastTimestamp") or "")
        return [
            {
                "time": e.get("lastTimestamp"),
                "type": e.get("type"),
                "reason": e.get("reason"),
                "object": f"bc/{self.name}",
                "message": e.get("message"),
            }
            for e in ours
        ]

    async def preview(self, spec: BrokerCluster | None, image: str) -> dict[str, Any]:
        """Return what a spec (None: the present one) would change; `image`: another default image of the operator's
        chart.

        Raises TargetError with the API server's reason if it refuses the spec.
        """
        present = await self.resource()
        warnings = []
        if spec is not None:
            body = spec.model_dump(mode="json", by_alias=True, include={"apiVersion", "kind"})
            body |= {"metadata": {"name": self.name, "namespace": self.namespace}}
            body |= {"spec": spec.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)}
            try:
                await self.api.apply(body, "gantry-plan", dry_run=True)
            except ApiError as error:
                raise TargetError(f"the API server refuses it: {error}") from None
        cluster = parse_manifest(present) if spec is None else spec
        cluster.metadata.namespace, cluster.metadata.uid = self.namespace, present["metadata"]["uid"]
        status = present.get("status") or {}
        masters = [m["name"] for m in status.get("members") or [] if m.get("role") == "Master"]
        not_ready = [m["name"] for m in status.get("members") or [] if not m.get("ready")]
        live = await preview.live_objects(self.api, self.namespace, self.name)
        changes = preview.preview(cluster, live, image, masters)
        if changes["replaced"] and not_ready:
            warnings.append(f"the first one is replaced once {', '.join(not_ready)} is in sync")
        if changes["replaced"] and cluster.spec.maintenanceWindow is not None:
            warnings.append(
                wait_for(cluster.spec.maintenanceWindow, datetime.now(UTC)) or "the maintenance window is open"
            )
        return changes | {"warnings": [*changes.get("warnings", ()), *warnings]}

    async def switchover(self, group: str, to: str | None = None, timeout_s: float = SWITCHOVER_S) -> str:
        """Ask the operator for a switchover of the group. Returns the result. Raises TargetError with the reason of
        a failure.
        """
        try:
            resource = await self.resource()
            self._refuse_asleep(resource)
            plan(parse_manifest(resource)).switchover_target(group, to)
        except ManifestError:
            pass  # The spec is refused: the operator knows the running members, and answers.
        except ValueError as error:
            raise TargetError(str(error)) from None
        request = new_switchover_request(group, to)
        await self._annotate(SWITCHOVER, request)
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            answer = answer_to(request, await self.resource())
            if answer is not None:
                return answer
            await asyncio.sleep(0.2)
        answer = await self._withdrawn(request)
        if answer is not None:
            return answer
        raise TargetError(
            f"the operator did not answer within {timeout_s:.0f} s: is it running? The request is withdrawn; an "
            "operator that has started it may still complete it"
        )

    async def restart(self, names: Sequence[str]) -> list[str]:
        """Mark the pods of members, and of groups; none named: all. Returns their names. Raises TargetError."""
        resource = await self.resource()
        self._refuse_asleep(resource)
        try:
            members = [m.name for m in plan(parse_manifest(resource)).members_named(names)]
        except ManifestError as error:
            raise TargetError(f"the spec is refused, so no member is replaced: {error}") from None
        except KeyError as error:
            raise TargetError(str(error.args[0])) from None
        patch = {"metadata": {"annotations": {RESTART: datetime.now(UTC).isoformat(timespec="seconds")}}}
        for name in members:
            try:
                await self.api.merge(POD, self.namespace, name, patch)
            except ApiError as error:
                if error.status != 404:
                    raise
                raise TargetError(f"pod {name} does not exist: it is being started") from None
        return members

    async def fence(self, member: str, on: bool) -> None:
        """Name a member in the annotation of fenced ones, or take it out. Raises TargetError."""
        for _ in range(FENCE_TRIES):
            resource = await self.resource()
            try:
                member = plan(cluster_that_runs(resource)).member(member).name
            except KeyError as error:
                raise TargetError(str(error.args[0])) from None
            meta = resource["metadata"]
            names = fenced_in(meta.get("annotations") or {})
            fenced = names | {member} if on else names - {member}
            patch = {
                "annotations": {FENCED: ",".join(sorted(fenced)) or None},
                "resourceVersion": meta["resourceVersion"],
            }
            try:
                await self.api.merge(BROKER_CLUSTER, self.namespace, self.name, {"metadata": patch})
                return
            except ApiError as error:
                if error.reason != "Conflict":
                    raise
        raise TargetError(f"{self.name} is changed by others all the time: try again")

    async def volumes(self) -> list[ClaimedVolume]:
        """Return the volume claims of all brokers, also of members that are gone."""
        resource = await self.resource()
        chosen = f"{names.CLUSTER_LABEL}={self.name},{names.COMPONENT_LABEL}={names.BROKER}"
        claims, _ = await self.api.list(VOLUME_CLAIM, self.namespace, chosen)
        pods, _ = await self.api.list(POD, self.namespace, chosen)
        sets, _ = await self.api.list(STATEFUL_SET, self.namespace, chosen)
        planned = {m.name for m in plan(cluster_that_runs(resource)).members}
        running = {str(p["metadata"]["name"]) for p in pods}
        in_sets = {
            f"{s['metadata']['name']}-{number}" for s in sets for number in range(int(s["spec"].get("replicas") or 0))
        }
        return [claimed_volume(claim, planned, running, in_sets) for claim in claims]

    async def delete_volume(self, name: str) -> None:
        """Delete the claim of a member that is gone, by its present incarnation. Raises TargetError."""
        claim = next((c for c in await self.volumes() if c.volume.name == name), None)
        if claim is None or claim.volume.used_by:
            why = "it does not exist any more" if claim is None else claim.volume.used_by
            raise TargetError(f"{name} is not deleted: {why}")
        await self.api.delete(VOLUME_CLAIM, self.namespace, name, uid=claim.uid)

    async def ask_site(self, op: str, token: str, *, accept_loss: bool, timeout_s: float) -> str:
        """Ask the operator to demote or promote the cluster. Returns its answer. Raises TargetError with the reason."""
        request = site_request.new_request(op, token, accept_loss=accept_loss, timeout_s=timeout_s)
        await self._annotate(site_request.SITE, request)
        deadline = time.monotonic() + timeout_s + SWITCHOVER_S
        while time.monotonic() < deadline:
            answer = answer_to(request, await self.resource(), site_request.SITE_RESULT)
            if answer is not None:
                return answer
            await asyncio.sleep(0.2)
        await self._annotate(site_request.SITE, None)
        raise TargetError(
            "the operator did not answer: is it running? The request is withdrawn; what has begun goes on, see "
            "status.site"
        )

    async def ask_migration(
        self, request: str, timeout_s: float, say: Callable[[str], None] = lambda phase: None
    ) -> str:
        """Ask the operator for a step of a migration, as `migration_request.new_request` writes it. Returns its answer.
        `say` gets each phase. `timeout_s`: without progress. Raises TargetError with the reason.
        """
        await self._annotate(migration_request.MIGRATE, request)
        deadline, shown, heard = time.monotonic() + timeout_s + SWITCHOVER_S, "", ""
        while time.monotonic() < deadline:
            resource = await self.resource()
            back = rollback_of(resource).phase
            phase = migration_of(resource).phase.value if back is rollback_steps.Phase.NONE else back.value
            if phase != shown:
                say(phase)
                shown = phase
            message = f"{phase} {((resource.get('status') or {}).get('migration') or {}).get('message')}"
            if message != heard:
                heard, deadline = message, time.monotonic() + timeout_s + SWITCHOVER_S
            answer = answer_to(request, resource, migration_request.MIGRATE_RESULT)
            if answer is not None:
                return answer
            await asyncio.sleep(0.2)
        await self._annotate(migration_request.MIGRATE, None)
        raise TargetError(
            "the operator did not answer: is it running? The request is withdrawn; what has begun goes on with the "
            "same command"
        )

    async def _annotate(self, name: str, value: str | None) -> None:
        """Set an annotation of the cluster's object; None: take it away."""
        patch = {"metadata": {"annotations": {name: value}}}
        await self.api.merge(BROKER_CLUSTER, self.namespace, self.name, patch)

    async def _withdrawn(self, request: str) -> str | None:
        """Withdraw a request without an answer. Returns an answer that arrived meanwhile. Raises like `answer_to`."""
        while True:
            resource = await self.resource()
            answer = answer_to(request, resource)
            meta = resource["metadata"]
            if answer is not None or (meta.get("annotations") or {}).get(SWITCHOVER) != request:
                return answer
            # By resource version, so that a newer request stays.
            patch = {"metadata": {"annotations": {SWITCHOVER: None}, "resourceVersion": meta["resourceVersion"]}}
            try:
                await self.api.merge(BROKER_CLUSTER, self.namespace, self.name, patch)
            except ApiError as error:
                if error.reason != "Conflict":
                    raise

    async def name_servers(self) -> str:
        """NameServer addresses, joined by ';', that work from here and return brokers that are reachable from here.

        Raises TargetError when the cluster hibernates.
        """
        resource = await self.resource()
        self.group_names = self.names_of_groups(resource)
        outside = str((resource.get("status") or {}).get("addresses", {}).get("external") or "")
        if outside:
            return outside
        return (await self._forward(resource)).name_servers

    def names_of_groups(self, resource: Object) -> dict[str, str]:
        """Return the broker groups by RocketMQ's name of each. Raises TargetError when the cluster hibernates."""
        self._refuse_asleep(resource)
        try:
            return cluster_that_runs(resource).group_names
        except ManifestError as error:
            raise _no_groups(error) from None

    def _refuse_asleep(self, resource: Object) -> None:
        """Raise TargetError when the cluster hibernates."""
        if (resource.get("spec") or {}).get("hibernate"):
            raise TargetError(f"{self.name} hibernates: write spec.hibernate: false in its BrokerCluster to wake it")

    async def members_http(self) -> list[str]:
        """HTTP base URLs of the members, through forwarded ports."""
        return list((await self._forward(await self.resource())).members_http)

    @asynccontextmanager
    async def live_source(self) -> AsyncIterator[Source]:
        """Where a live view of this cluster has its figures from."""
        token = await self.token()
        async with make_client(lambda: token) as client:
            yield Source(client, self.live_facts, FACTS_S, (ApiError, ApiUnavailable, TargetError))

    async def live_facts(self) -> LiveCluster:
        """Return what the API server knows of the cluster, with each member's forwarded port. Raises TargetError."""
        resource = await self.resource()
        try:
            cluster = cluster_that_runs(resource)
        except ManifestError as error:
            raise _no_groups(error) from None
        members = plan(cluster).members
        if self._forwarded is not None and self._forwarded.members != tuple(m.name for m in members):
            await self._forwarded.close()
            self._forwarded = None
        urls = (await self._forward(resource)).members_http
        status = resource.get("status") or {}
        return LiveCluster(
            name=cluster.name,
            mode=cluster.spec.mode,
            namespace=self.namespace,
            automatic=cluster.spec.failover.automatic,
            members=tuple(MemberPlace(m.name, m.group, m.number, url) for m, url in zip(members, urls, strict=True)),
            phase=str(status.get("phase", "Pending")),
            conditions=status.get("conditions") or (),
            last_failover=status.get("lastFailover"),
            events=(await self.events())[-EVENTS_SHOWN:],
        )

    async def _forward(self, resource: Object) -> ForwardedCluster:
        if self._forwarded is None:
            try:
                cluster = cluster_that_runs(resource)
                tls = cluster.spec.security.tls
                own = None
                if http_scheme(cluster) == "https":
                    own = tls_context(await self._authorities(cluster, own=True))
                clients = await self._client_context(cluster) if tls.mode == "Required" else None
                self._forwarded = await ForwardedCluster.open(self.api, cluster, clients=clients, http=own)
            except ManifestError as error:
                raise _no_groups(error) from None
        return self._forwarded

    async def client_tls(self) -> ssl.SSLContext | None:
        """How to call the addresses of `name_servers`; None: in clear text. Forwarded ports add TLS themselves."""
        resource = await self.resource()
        if self._forwarded is not None:
            return None
        cluster = cluster_that_runs(resource)
        if cluster.spec.security.tls.mode == "Disabled":
            return None
        context = await self._client_context(cluster)
        context.check_hostname = True
        return context

    async def _client_context(self, cluster: BrokerCluster) -> ssl.SSLContext:
        own = None
        if cluster.spec.security.tls.clientCertificates != "None":
            data = await self._secret(
                cluster.spec.security.tls.secretName or names.tls_secret(cluster.name, names.NAME_SERVER)
            )
            own = (data.get(CERTIFICATE, b""), data.get(KEY, b""))
        context = tls_context(await self._authorities(cluster), own)
        if context is None:
            raise TargetError("the cluster's certificates cannot be read from its Secrets")
        return context

    async def _authorities(self, cluster: BrokerCluster, *, own: bool = False) -> bytes:
        """Return the authorities of the ports for clients; `own`: of the members' HTTP interface."""
        tls = cluster.spec.security.tls
        name = names.ca_cert_secret(cluster.name)
        if not own and tls.issuer == "Secret":
            name = str(tls.secretName)
        data = await self._secret(name)
        return data.get(AUTHORITIES) or data.get(CERTIFICATE, b"")

    async def _secret(self, name: str) -> dict[str, bytes]:
        try:
            return decoded(await self.api.get(SECRET, self.namespace, name))
        except ApiError as error:
            raise TargetError(f"Secret {name} with certificates cannot be read: {error}") from error

    @property
    def users(self) -> TargetUsers:
        """The users of the cluster."""
        return TargetUsers(self.api, self.namespace, self.name)

    @property
    def topics(self) -> TargetTopics:
        """The topics and consumer groups of the cluster, as resources."""
        return TargetTopics(self.api, self.namespace, self.name)

    async def super_user(self) -> Credentials | None:
        """Return the keys of the cluster's super user; None: they are not made yet, or may not be read from here."""
        try:
            access, key = await self.users.key(ADMIN)
        except (ApiError, UserError) as error:
            log.debug("the super user's Secret: %s", error)
            return None
        return Credentials(access, key)

    async def token(self) -> str:
        """Return the admin token of the members' HTTP interface. Raises TargetError if it cannot be read."""
        try:
            secret = await self.api.get(SECRET, self.namespace, names.admin_secret(self.name))
        except ApiError as error:
            raise TargetError(f"the cluster's Secret cannot be read: {error}") from error
        return (None if secret is None else access.token_of(secret)) or ""


def _no_groups(error: ManifestError) -> TargetError:
    return TargetError(f"the spec is refused, and the status names no running groups: {error}")


def migration_of(resource: Object) -> Record:
    """Return the record of a cutover. Raises TargetError for an invalid one."""
    try:
        return migration_request.read_record(
            (resource["metadata"].get("annotations") or {}).get(migration_request.MIGRATION)
        )
    except Refused as error:
        raise TargetError(str(error)) from None


def rollback_of(resource: Object) -> rollback_steps.Record:
    """Return the record of a rollback. Raises TargetError for an invalid one."""
    try:
        return migration_request.read_rollback(
            (resource["metadata"].get("annotations") or {}).get(migration_request.ROLLBACK)
        )
    except Refused as error:
        raise TargetError(str(error)) from None


def answer_to(request: str, resource: Object, annotation: str = SWITCHOVER_RESULT) -> str | None:
    """Return the result; None: no answer yet. Raises TargetError with the reason of a failure."""
    result = str((resource["metadata"].get("annotations") or {}).get(annotation, ""))
    if not result.startswith(f"{request} "):
        return None
    outcome, _, text = result.removeprefix(request).strip().partition(": ")
    if outcome == "done":
        return text
    raise TargetError(text)


def no_kubeconfig() -> str:
    """Why nothing says where the API server is, and what to do; empty: a file or this pod's account does."""
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return ""
    named = [p for p in os.environ.get("KUBECONFIG", "").split(os.pathsep) if p]
    paths = named or ["~/.kube/config"]
    if any(Path(p).expanduser().exists() for p in paths):
        return ""
    return (
        f"there is no kubeconfig at {', '.join(paths)}: set KUBECONFIG to yours, or leave out --context and "
        "--namespace for a cluster of this machine"
    )


def current_namespace(context: str | None) -> str:
    """Return the namespace of the kubeconfig's context; "default" if it has none."""
    from kubernetes.aio.config import kube_config

    contexts, active = kube_config.list_kube_config_contexts()  # type: ignore[no-untyped-call]
    chosen = active if context is None else next((c for c in contexts if c["name"] == context), None)
    if chosen is None:
        raise NoCluster(f"the kubeconfig has no context {context}, but {', '.join(c['name'] for c in contexts)}")
    return str(chosen["context"].get("namespace") or "default")
