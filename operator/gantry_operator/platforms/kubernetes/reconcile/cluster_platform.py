"""The platform of a cluster on Kubernetes: its members are pods, and the group's address is a Service.

It implements the ports of `cluster.platform` by parts with one concern each, and holds what a pass over the objects
needs of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from gantry_broker.client import Admin, Credentials

from gantry_operator.access.wanted import ADMIN, ADMIN_NAME, SECRET_KEY, secret_name
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.status import Addresses, BrokerClusterStatus, LastFailover, ProxyStatus, VersionStatus
from gantry_operator.api.versions import PROTOCOL_VERSION, package_version
from gantry_operator.cluster.copies import ask_copy
from gantry_operator.cluster.maintenance import UpgradeQueue
from gantry_operator.cluster.member_http import make_client, tls_context
from gantry_operator.cluster.observed import ObservedState
from gantry_operator.cluster.platform import Change, Event, LedGroup, MemberProcess
from gantry_operator.cluster.stall_compensated_clock import StallCompensatedClock
from gantry_operator.cluster.status import last_failover
from gantry_operator.cluster.upgrade_check import Running, Upgrade, release_of
from gantry_operator.migration import cutover_steps
from gantry_operator.migration.cutover_edge import Edge, GroupPlace, SourcePlace
from gantry_operator.migration.cutover_steps import Refused, under_way
from gantry_operator.migration.rollback_edge import RollbackEdge
from gantry_operator.plan.plan import FILLED, Plan
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.analytics.reconciler import JOBS, PODS, AnalyticsReconciler
from gantry_operator.platforms.kubernetes.api.client import SECRET, ApiError, ApiUnavailable, KubeApi, Object
from gantry_operator.platforms.kubernetes.api.cluster_resource import ClusterResource
from gantry_operator.platforms.kubernetes.api.events import EventRecorder
from gantry_operator.platforms.kubernetes.api.informer_cache import InformerCache
from gantry_operator.platforms.kubernetes.api.lease_registry import LeaseRegistry
from gantry_operator.platforms.kubernetes.api.pod_state import former_images, image_of, own_image, pod_ready, why_not
from gantry_operator.platforms.kubernetes.api.reasons import Reasons
from gantry_operator.platforms.kubernetes.manifests import external, name_servers, proxies
from gantry_operator.platforms.kubernetes.manifests.desired_objects import OperatorSettings
from gantry_operator.platforms.kubernetes.members import leaving_groups
from gantry_operator.platforms.kubernetes.members.hibernate import PodHibernation
from gantry_operator.platforms.kubernetes.members.leaving_groups import GroupRemoval
from gantry_operator.platforms.kubernetes.members.member_state import awaited_change, observed_name_servers
from gantry_operator.platforms.kubernetes.members.platform import KubernetesPlatform
from gantry_operator.platforms.kubernetes.members.pod_replacement import PodReplacement
from gantry_operator.platforms.kubernetes.members.role_labels import RoleLabels
from gantry_operator.platforms.kubernetes.monitoring.cluster_figures import ClusterFigures
from gantry_operator.platforms.kubernetes.objects import volumes
from gantry_operator.platforms.kubernetes.objects.certificates import CertificateReconciler, decoded
from gantry_operator.platforms.kubernetes.objects.object_reconciler import ObjectReconciler
from gantry_operator.platforms.kubernetes.reconcile.site_store import KubernetesSiteStore
from gantry_operator.platforms.kubernetes.requests.migration_request import MIGRATION, read_record
from gantry_operator.platforms.kubernetes.requests.rollback_state import ConfigMapState
from gantry_operator.platforms.kubernetes.requests.rollbacks import Sides
from gantry_operator.platforms.kubernetes.resources.topics import KubernetesTopicStore
from gantry_operator.platforms.kubernetes.resources.users import KubernetesAccessStore
from gantry_operator.platforms.kubernetes.tables.runs import KubernetesTableRuns

log = logging.getLogger(__name__)


@dataclass
class Shared:
    """Objects that all clusters of one operator share."""

    api: KubeApi
    settings: OperatorSettings
    caches: dict[str, InformerCache]
    clock: StallCompensatedClock
    identity: str
    upgrades: UpgradeQueue = field(default_factory=UpgradeQueue)
    unlisted: Callable[[], Sequence[str]] = tuple
    """Caches that are not filled yet, without those that the failover needs."""


def not_listed(kinds: Sequence[str]) -> str:
    return f"no object is created or deleted until the API server has listed: {', '.join(kinds)}"


class ClusterPlatform:
    """The platform of one cluster. `changed` begins a pass over the objects; `news`: the status may have changed."""

    can_pause = True

    def __init__(
        self, shared: Shared, resource: ClusterResource, changed: Callable[[], None], news: Callable[[], None]
    ) -> None:
        api, caches, meta = shared.api, shared.caches, resource.obj["metadata"]
        self.namespace, self.name, self.uid = meta["namespace"], meta["name"], meta["uid"]
        key = (self.namespace, self.name)
        former = BrokerClusterStatus.model_validate(resource.obj.get("status") or {})
        self.cluster: BrokerCluster | None = None
        self.plan: Plan | None = None
        self.last: LastFailover | None = None
        self.shared = shared
        self._news = news
        self.figures = ClusterFigures(*key)
        self.events = EventRecorder(api, *key, self.uid, shared.identity)
        self.objects = ObjectReconciler(api, caches, shared.settings, *key, self.uid)
        self.reports = AnalyticsReconciler(api, caches, self.objects, shared.settings, self.events)
        self.certificates = CertificateReconciler(api, self.objects, self.events, self.uid)
        self.reasons = Reasons(api, self.namespace)
        self.registry = LeaseRegistry(api, self.name, self.namespace)
        self.pods = self.failover = KubernetesPlatform(
            api, caches["Pod"], caches["PersistentVolumeClaim"], self.name, self.namespace, self.event, self._new_leader
        )
        self.labels = RoleLabels(self.pods)
        self.http = make_client(self.pods.token, self.certificates.trusted)
        self.users = KubernetesAccessStore(api, caches, (*key, self.uid), self.events, shared.identity)
        self.topics = KubernetesTopicStore(api, caches, key, shared.identity)
        self.tables = KubernetesTableRuns(api, caches, self.objects, shared.settings, key, self._carried_out)
        self.site = KubernetesSiteStore(api, key, resource.obj)
        self.replacement = PodReplacement(api, caches["StatefulSet"], self.pods, key)
        self.removal = GroupRemoval(api, caches, key, self._reclaim)
        self.hibernation = PodHibernation(self.objects, self.pods, self.name, changed)
        self._changed = changed
        self._resource = resource
        self._upgrading = ""
        """What the last event about an upgrade said."""
        self.proxies_shown: ProxyStatus | None = former.proxy
        """The proxies as last shown."""
        self._addresses_shown = former.addresses

    @asynccontextmanager
    async def migration(self) -> AsyncIterator[Edge]:
        """Yield what a cutover from RocketMQ asks and changes. Raises Refused, ApiError, ApiUnavailable."""
        cluster = self.cluster
        if cluster is None or self.plan is None:
            raise Refused("the groups are not known yet")
        source = None if cluster.spec.bootstrap is None else cluster.spec.bootstrap.fromRocketMQ
        if source is None:
            raise Refused("the cluster has no spec.bootstrap.fromRocketMQ")
        keys, tls = None, None
        if source.accessKeySecret is not None:
            data = decoded(await self.shared.api.get(SECRET, self.namespace, source.accessKeySecret))
            try:
                keys = Credentials(data["accessKey"].decode().strip(), data["secretKey"].decode().strip())
            except (KeyError, ValueError) as error:
                raise Refused(f"Secret {source.accessKeySecret} has no accessKey and secretKey: {error}") from None
        if source.tls is not None:
            authorities = decoded(await self.shared.api.get(SECRET, self.namespace, source.tls.caSecret))
            tls = tls_context(authorities.get("ca.crt", b""))
            if tls is None:
                raise Refused(f"Secret {source.tls.caSecret} has no ca.crt with certificates")
        groups = [
            GroupPlace(
                group.name,
                source.broker_of(group.name, cluster.broker_name(group.name)),
                f"{names.service_host(names.master_service(cluster.name, group.name), cluster.namespace)}"
                f":{names.BROKER_PORT}",
                partial(self._urls, group.name),
                partial(self._lead_to_copy, group.name),
            )
            for group in self.plan.groups
        ]
        place = SourcePlace(tuple(source.nameServers), keys, tls, tuple(source.kvNamespaces))
        async with Edge(place, groups, self.http) as edge:
            yield edge

    async def check_cutover(self, edge: Edge) -> None:
        """Raise Refused for a spec that would lock the source's clients out, and errors of clients."""
        if self.cluster is not None and self.cluster.spec.security.authentication is None:
            await edge.refuse_without_keys()

    async def copy_kv(self, edge: Edge) -> None:
        """Give the cluster's NameServers the source's key-value configuration. Raises ApiError, ApiUnavailable, errors
        of clients.
        """
        async with self._own_admin() as own:
            await edge.copy_kv(own)

    async def keep_config(self) -> None:
        """Copy that configuration while the source is followed. Raises as `copy_kv`, and Refused."""
        async with self.migration() as edge:
            await self.copy_kv(edge)

    @asynccontextmanager
    async def _own_admin(self) -> AsyncIterator[Admin]:
        """Yield a client of the cluster with all rights. Raises ApiError, ApiUnavailable."""
        assert self.cluster is not None
        assert self.plan is not None
        addresses, keys = name_servers.addresses(self.cluster, self.plan), await self._super_user()
        async with Admin(addresses, credentials=keys, tls=self.certificates.for_calls()) as own:
            yield own

    async def _lead_to_copy(self, group: str) -> None:
        """Let the group's Service lead to the member that has the copy. Raises Refused."""
        try:
            await self.pods.label(group, FILLED)
        except (ApiError, ApiUnavailable) as error:
            raise Refused(f"group {group}: the Service does not lead to the copy: {error}") from error

    @asynccontextmanager
    async def rollback_steps(self, before: Mapping[str, cutover_steps.Group]) -> AsyncIterator[Sides]:
        """Yield what a rollback asks and changes. `before`: what the cutover recorded. Raises Refused, ApiError,
        ApiUnavailable.
        """
        async with self.migration() as edge:
            assert self.cluster is not None
            async with self._own_admin() as own:
                state = ConfigMapState(
                    self.shared.api, self.namespace, names.rollback_map(self.name), names.owner(self.cluster)
                )
                yield Sides(RollbackEdge(edge, own, before), state)

    async def _super_user(self) -> Credentials | None:
        """Return the keys of the cluster's super user; None: they are not made yet. Raises ApiError, ApiUnavailable."""
        data = decoded(await self.shared.api.get(SECRET, self.namespace, secret_name(self.name, ADMIN_NAME)))
        if SECRET_KEY not in data:
            return None
        return Credentials(ADMIN, data[SECRET_KEY].decode().strip())

    async def copies(self, ask: bool) -> dict[str, dict[str, Any] | None] | None:
        """Return by group what its member says of the copy of a source; None: the spec has none, or is not known."""
        bootstrap = None if self.cluster is None else self.cluster.spec.bootstrap
        if bootstrap is None or bootstrap.fromRocketMQ is None or self.plan is None:
            return None
        groups = [group.name for group in self.plan.groups]
        if not ask:
            return dict.fromkeys(groups)
        answers = await asyncio.gather(*(ask_copy(self.http, self._urls(group)) for group in groups))
        return dict(zip(groups, answers, strict=True))

    def _urls(self, group: str) -> list[str]:
        """Return the members' URLs. A pod that is made again has another address."""
        return [member.http_url for member in self.pods.members(group)]

    def cutover(self) -> str:
        try:
            return under_way(read_record(self._resource.annotation(MIGRATION)))
        except Refused:
            return "unknown"  # A person has to repair the annotation, and the status says so.

    async def close(self) -> None:
        await self.pods.close()
        await self.http.aclose()
        await self.users.close()
        await self.topics.close()
        await self.events.close()
        self.shared.upgrades.done(f"{self.namespace}/{self.name}")
        self.certificates.close()

    def use(self, controllers: Mapping[str, LedGroup]) -> None:
        self.labels.controllers = controllers

    # ---- the spec

    def with_leaving(self, spec: BrokerCluster, *, whole: bool) -> tuple[BrokerCluster, list[str]]:
        claims = volumes.of_brokers(self.shared.caches, self.namespace, self.name)
        return leaving_groups.running_cluster(spec, self.objects.owned("StatefulSet") if whole else (), claims)

    def take(self, spec: BrokerCluster, cluster: BrokerCluster, plan: Plan) -> None:
        self.cluster, self.plan = cluster, plan
        self.registry.owner = volumes.owner(cluster) if cluster.spec.reclaim == "Delete" else None
        self.pods.planned = {g.name: len(g.members) for g in plan.groups}
        self.pods.fenced = cluster.fenced
        for g in plan.groups:
            live = self.objects.live("StatefulSet", names.group_set(self.name, g.name))
            running = 0 if live is None else int(live["spec"].get("replicas", 0))
            self.pods.sizes[g.name] = max(len(g.members), running)
        for group in set(self.pods.sizes) - set(self.pods.planned):
            del self.pods.sizes[group]

    def _carried_out(self) -> tuple[BrokerCluster, Plan] | None:
        return None if self.cluster is None or self.plan is None else (self.cluster, self.plan)

    def removing(self) -> tuple[str, ...]:
        return leaving_groups.removing(self.objects.owned("StatefulSet"))

    def is_known(self) -> bool:
        return not self.shared.unlisted()

    def _reclaim(self) -> str:
        return "Retain" if self.cluster is None else self.cluster.spec.reclaim

    # ---- upgrades

    def hold(self, *, idle: bool) -> str:
        """Why the pods keep a former default image for now; empty: they have the present one, or it is their turn."""
        if self.cluster is None:
            return ""
        new, key = self.shared.settings.broker_image, f"{self.namespace}/{self.name}"
        former = [] if idle or self.cluster.spec.image is not None else former_images(*self._sets_and_pods(), new)
        if not former:
            self.shared.upgrades.done(key)
            if self._upgrading:
                self._upgrading = ""
                self._changed()
            return ""
        wait = self.shared.upgrades.wait(key)
        text = f"the image {new} takes the place of {', '.join(former)}: " + (wait or "one pod after the other")
        if text != self._upgrading:
            self._upgrading = text
            self.events.record("Normal", "UpgradeWaits" if wait else "UpgradeStarted", text)
            self._changed()
        return wait

    def upgrade(self, group: str, members: Sequence[Running]) -> Upgrade | None:
        """None: the outdated members of the group keep their image."""
        image = image_of(self.objects.live("StatefulSet", names.group_set(self.name, group)))
        pods = [self.pods.pod(m.name) for m in members if m.outdated]
        if not image or all(pod is None or own_image(pod.get("spec") or {}) == image for pod in pods):
            return None
        # The default image is of the operator's own release, whatever its tag is.
        own = package_version() if image == self.shared.settings.broker_image else ""
        return Upgrade(release_of(image) or own, package_version())

    # ---- addresses

    def reached(self, group: str) -> str | None:
        """Return the address of the master's Service; None: there is none yet."""
        live = self.objects.live("Service", names.master_service(self.name, group))
        address = None if live is None else live["spec"].get("clusterIP")
        return f"{address}:{names.BROKER_PORT}" if address else None

    def registered(self, group: str) -> str:
        return f"{names.service_host(names.master_service(self.name, group), self.namespace)}:{names.BROKER_PORT}"

    def name_servers(self) -> Sequence[str]:
        return [s.address for s in observed_name_servers(self.plan, self.shared.caches["Pod"], by_pod=True)]

    # ---- what is seen

    def all_members(self) -> list[tuple[str, int, str]]:
        return [(m.group, m.number, m.name) for g in self.pods.planned for m in self.pods.running(g)]

    def process(self, name: str, problem: str) -> MemberProcess:
        pod = self.pods.pod(name)
        about = ("StatefulSet", name.rsplit("-", 1)[0]) if pod is None else ("Pod", name)
        claim = self.reasons.of("PersistentVolumeClaim", names.claim(name))
        return MemberProcess(
            ready=pod_ready(pod),
            stopping=pod is not None and pod["metadata"].get("deletionTimestamp") is not None,
            node=None if pod is None else pod["spec"].get("nodeName"),
            problem=why_not(pod, problem, self.reasons.of(*about), claim),
        )

    def observe(self, changing: Sequence[str], releases: Sequence[str]) -> ObservedState:
        unlisted = self.shared.unlisted()
        scaler = self.objects.live("HorizontalPodAutoscaler", names.proxies(self.name))
        unscaled = "" if self.cluster is None else proxies.not_scaled(self.cluster, scaler, datetime.now(UTC))
        sets, pods = self._sets_and_pods()
        claims = volumes.of_brokers(self.shared.caches, self.namespace, self.name)
        return ObservedState(
            members=(),
            available={},
            name_servers=observed_name_servers(self.plan, self.shared.caches["Pod"], said=self.reasons.of),
            problems=[*([not_listed(unlisted)] if unlisted else []), *([unscaled] if unscaled else [])],
            progress=self._progress(sets, pods, changing),
            hibernated=all(self.pods.pod(name) is None for _, _, name in self.all_members()),
            proxy=self.proxies_shown if {"Deployment", "Service"} & {*unlisted} else self._proxy_status(),
            addresses=self._addresses_shown if "Service" in unlisted else self._addresses(),
            last_failover=self.last,
            version=self._version(sets, pods, releases),
            bound_volumes=sum(map(volumes.bound, claims)),
            volume_size=volumes.largest(claims, self._shared_storage()),
            certificates=self.certificates.rows,
            analytics=None if {JOBS, PODS} & {*unlisted} else self.reports.status(self.cluster),
        )

    def _sets_and_pods(self) -> tuple[list[Object], list[Object]]:
        sets = self.objects.owned("StatefulSet")
        servers = [] if self.plan is None else [s.name for s in self.plan.name_servers]
        pods = (self.pods.pod(name) for name in [*servers, *(name for _, _, name in self.all_members())])
        return sets, [pod for pod in pods if pod is not None]

    def _progress(self, sets: Sequence[Object], pods: Sequence[Object], changing: Sequence[str]) -> list[str]:
        """Return what no rolling change has looked at yet, and the changes that Kubernetes carries out by itself."""
        if self.cluster is None or self.cluster.spec.hibernate:
            return []
        looked_at = {names.group_set(self.name, g) for g in changing}
        texts = []
        for stateful_set in sets:
            name = stateful_set["metadata"]["name"]
            mine = (p for p in pods if p["metadata"]["name"].rpartition("-")[0] == name)
            texts.append("" if name in looked_at else awaited_change(stateful_set, mine))
        texts.append(proxies.progress(self.cluster, self._live_proxies()))
        return [text for text in texts if text]

    def _version(
        self, sets: Sequence[Object], pods: Sequence[Object], releases: Sequence[str]
    ) -> VersionStatus | None:  # fmt: skip
        if self.cluster is None:
            return None
        image = self.cluster.spec.image or self.shared.settings.broker_image
        return VersionStatus(
            operator=package_version(),
            image=image,
            former=former_images(sets, pods, image),
            brokers=list(releases),
            protocol=PROTOCOL_VERSION,
        )

    def _shared_storage(self) -> set[str]:
        """Return the groups whose volumes are those of spec.storage."""
        return set() if self.cluster is None else {g.name for g in self.cluster.spec.brokerGroups if g.storage is None}

    def _proxy_status(self) -> ProxyStatus | None:
        if self.cluster is None:
            return None
        pods = self.shared.caches["Pod"].of(self.namespace, names.CLUSTER_LABEL, self.name)
        ours = [p for p in pods if p["metadata"]["labels"].get(names.COMPONENT_LABEL) == names.PROXY]
        services = {o["metadata"]["name"]: o for o in self.objects.owned("Service")}
        return proxies.status(self.cluster, self._live_proxies(), ours, services)

    def _live_proxies(self) -> Object | None:
        return self.objects.live("Deployment", names.proxies(self.name))

    def _addresses(self) -> Addresses:
        if self.cluster is None or self.plan is None:
            return Addresses()
        inner = ";".join(name_servers.addresses(self.cluster, self.plan))
        if self.cluster.spec.external is None:
            return Addresses(nameServers=inner)
        services = {o["metadata"]["name"]: o for o in self.objects.owned("Service")}
        by_service, _ = external.addresses(self.cluster, self.plan, services)
        outer = ";".join(by_service[s.name] for s in self.plan.name_servers if s.name in by_service)
        return Addresses(nameServers=inner, external=outer)

    # ---- events

    def event(self, event: Event) -> None:
        self.figures.heard(event)
        about = f"group {event.group}: " if event.group else ""
        self.events.record(event.kind, event.reason, about + event.message)
        self.news()

    def _new_leader(self, change: Change) -> None:
        self.last = last_failover(change)
        self.figures.changed(change)
        self.events.record(
            "Normal" if change.planned or change.old == change.new else "Warning",
            "SwitchoverCompleted" if change.planned else "FailoverCompleted",
            f"group {change.group}: from {change.old or 'none'} to {change.new} in {change.duration_ms} ms: "
            f"{change.reason}",
        )
        self.news()

    def part_changed(self) -> None:
        self._news()

    def groups_changed(self) -> None:
        self._changed()
        self._news()

    def news(self) -> None:
        self._news()
