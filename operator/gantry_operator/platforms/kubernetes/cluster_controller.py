"""The controller of one BrokerCluster: reconciles objects, runs failover, rolling changes, switchovers and the status.

It only connects the parts. `desired_objects` says which objects should exist, and `object_reconciler` applies them.
The group controllers choose masters. `cluster.rolling_change` replaces members. `cluster.status` computes the status,
and `status_writer` writes it. A pass runs after each change, and again after a pass that failed.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from gantry_broker.remoting.client import RemotingClient

from gantry_operator.api import BrokerCluster, ManifestError, parse_manifest
from gantry_operator.api.status import Addresses, BrokerClusterStatus, DrainRow, ProxyStatus, VersionStatus
from gantry_operator.api.versions import PROTOCOL_VERSION, package_version
from gantry_operator.certificates import KeyPair
from gantry_operator.cluster import maintenance, wall_clock
from gantry_operator.cluster.access_control import AccessControl
from gantry_operator.cluster.availability import Availability
from gantry_operator.cluster.group_changes import GroupChanges, WantedGroups
from gantry_operator.cluster.maintenance import UpgradeQueue
from gantry_operator.cluster.member_http import tls_context
from gantry_operator.cluster.rolling_change import RollingChange, Upgrade
from gantry_operator.cluster.site_control import SiteControl
from gantry_operator.cluster.stall_compensated_clock import StallCompensatedClock
from gantry_operator.cluster.status import ObservedMember, ObservedState, proxy_events
from gantry_operator.cluster.topic_control import Cluster, TopicControl
from gantry_operator.cluster.upgrade_check import Running, release_of
from gantry_operator.plan import Plan, plan
from gantry_operator.platforms.kubernetes import allowed, names
from gantry_operator.platforms.kubernetes.analytics.reconciler import JOBS, PODS, AnalyticsReconciler
from gantry_operator.platforms.kubernetes.api.client import ApiError, ApiUnavailable, KubeApi, Object
from gantry_operator.platforms.kubernetes.api.events import EventRecorder
from gantry_operator.platforms.kubernetes.api.informer_cache import InformerCache
from gantry_operator.platforms.kubernetes.api.pod_state import former_images, image_of, notable, own_image
from gantry_operator.platforms.kubernetes.api.reasons import LOOK_S, Reasons
from gantry_operator.platforms.kubernetes.api.status_writer import StatusWriter
from gantry_operator.platforms.kubernetes.cluster_resource import ClusterResource
from gantry_operator.platforms.kubernetes.manifests import external, name_servers, proxies
from gantry_operator.platforms.kubernetes.manifests.desired_objects import OperatorSettings
from gantry_operator.platforms.kubernetes.members import leaving_groups
from gantry_operator.platforms.kubernetes.members.group_controllers import KubernetesGroupControllers
from gantry_operator.platforms.kubernetes.members.hibernate import Hibernation
from gantry_operator.platforms.kubernetes.members.leaving_groups import GroupRemoval
from gantry_operator.platforms.kubernetes.members.member_state import (
    awaited_change,
    missing_objects,
    observed_members,
    observed_name_servers,
)
from gantry_operator.platforms.kubernetes.members.pod_replacement import PodReplacement
from gantry_operator.platforms.kubernetes.monitoring import metrics
from gantry_operator.platforms.kubernetes.objects import mounted_files, volumes
from gantry_operator.platforms.kubernetes.objects.certificates import CertificateReconciler
from gantry_operator.platforms.kubernetes.objects.object_reconciler import ObjectReconciler, ReconcileResult
from gantry_operator.platforms.kubernetes.recovered_spec import recovered
from gantry_operator.platforms.kubernetes.resources.topics import KINDS as TOPIC_KINDS
from gantry_operator.platforms.kubernetes.resources.topics import KubernetesTopicStore
from gantry_operator.platforms.kubernetes.resources.users import KubernetesAccessStore
from gantry_operator.platforms.kubernetes.site_requests import SiteRequests
from gantry_operator.platforms.kubernetes.site_store import KubernetesSiteStore
from gantry_operator.platforms.kubernetes.switchover_requests import SwitchoverRequests

log = logging.getLogger(__name__)

SETTLE_S = 0.05
"""Seconds between a change and the start of a pass, because changes come in bursts."""
WARM_UP_S = 20.0
"""Seconds after an operator's start in which it reports nothing about members and objects that it has not seen yet."""
AGAIN_S = 2.0
"""Seconds until the next pass after a failed one, or after one that waits for something without a watch."""
LONGEST_PAUSE_S = 30.0
"""The pause after an answer of the API server that stays the same."""
SHOWN = ("Deployment", "Service", JOBS, PODS)
"""Caches for the status, besides those that the failover needs."""


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


class Refusals:
    """Answers of the API server to one pass after the other: the same one is logged once, and asked for ever less."""

    def __init__(self) -> None:
        self._last = ""
        self._count = 0

    def is_new(self, answer: str) -> bool:
        """Note an answer. False: the last one was the same."""
        new = answer != self._last
        self._last, self._count = answer, 1 if new else self._count + 1
        return new

    def clear(self) -> None:
        self._last, self._count = "", 0

    def pause_s(self, first_s: float) -> float:
        """Seconds until the next pass. A change of the spec or of an object begins one at once."""
        return float(min(first_s * 2 ** max(self._count - 1, 0), max(first_s, LONGEST_PAUSE_S)))


def not_listed(kinds: Sequence[str]) -> str:
    return f"no object is created or deleted until the API server has listed: {', '.join(kinds)}"


class ClusterController:
    """Controls one cluster from `start` to `stop`. `update` passes a newer version of the resource."""

    def __init__(self, shared: Shared, obj: Object) -> None:
        meta = obj["metadata"]
        self.namespace, self.name, self.uid = meta["namespace"], meta["name"], meta["uid"]
        self._shared = shared
        self._resource = ClusterResource(shared.api, obj)
        self._cluster: BrokerCluster | None = None
        """With the groups that leave."""
        self._staying: tuple[str, ...] = ()
        """The groups of the spec that run."""
        self._plan: Plan | None = None
        self._dirty = asyncio.Event()
        self._result = ReconcileResult()
        self._generation = int((obj.get("status") or {}).get("observedGeneration") or 0)
        """Of the spec that the last pass was about."""
        self._left_out: dict[str, str] = {}
        """Under a refused spec: existing groups without a failover, with the reason."""
        self._accepted: tuple[BrokerCluster, Plan] | None = None
        """The last spec with certificates, which are renewed under a refused spec, too."""
        self._checks_with: tuple[bytes, KeyPair | None] | None = None
        """Authorities and certificate of the availability checks; None: they need none."""
        self._begun = time.monotonic()
        former = BrokerClusterStatus.model_validate(obj.get("status") or {})
        self._inherited = bool(former.conditions)
        """Another operator has written a status, which holds until there are data."""
        self._addresses_shown = former.addresses
        self._known_groups: set[str] = set()
        """Groups of which this operator has had data."""
        self._proxies = former.proxy
        """The proxies as last shown."""
        self._tasks: list[asyncio.Task[None]] = []
        api, caches, key = shared.api, shared.caches, (self.namespace, self.name)
        self._events = EventRecorder(api, self.namespace, self.name, self.uid, shared.identity)
        self._report = StatusWriter(
            api, self.namespace, self.name, obj.get("status") or {}, self._events, self._look, self._saw
        )
        self._reasons = Reasons(api, self.namespace)
        self._reported: dict[str, str] = {}
        """By member: why it does not run, as the last event about it says."""
        self._objects = ObjectReconciler(api, caches, shared.settings, self.namespace, self.name, self.uid)
        self._reports = AnalyticsReconciler(api, caches, self._objects, shared.settings, self._events)
        self._certificates = CertificateReconciler(api, self._objects, self._events, self.uid)
        self._groups = KubernetesGroupControllers(
            api, caches, key, self._events, shared.clock, self._report.wake, self._certificates.trusted
        )
        self._pods = self._groups.pods
        self._users = KubernetesAccessStore(api, caches, (*key, self.uid), self._events, shared.identity)
        self._access = AccessControl(self._users, self._groups.watches, self._groups.http)
        self._requests = SwitchoverRequests(
            self._resource, self._groups.controllers, self._events, self._why_not_led, self._dirty.set
        )
        replacement = PodReplacement(api, caches["StatefulSet"], self._pods, key, self._may_change)
        self._hibernation = Hibernation(self._groups, self._objects, self._dirty.set, self._fell_asleep)
        self._upgrading = ""
        """What the last event about an upgrade said."""
        self._rolling = RollingChange(
            replacement, self._groups.controllers, self._groups.record, self._report.wake, self._hold, self._upgrade
        )
        removal = GroupRemoval(api, caches, key, self._groups.end, self._reclaim)
        self._changes = GroupChanges(
            removal, self._groups.controllers, self._groups.http, self._wanted_groups, self._groups.record,
            self._groups_changed,
        )  # fmt: skip
        self.sites = SiteControl(
            KubernetesSiteStore(api, key, obj), self._groups.controllers, self._groups.http,
            groups=lambda: [] if self._plan is None else [g.name for g in self._plan.groups],
            follows=self._follows, archives=self._archives, on_event=self._groups.record, changed=self._report.wake,
        )  # fmt: skip
        self._site_requests = SiteRequests(self._resource, self.sites, self._dirty.set)
        self._remoting = RemotingClient(sign=self._access.sign)
        self._availability = Availability(self._remoting, self._report.wake)
        self._topic_store = KubernetesTopicStore(api, caches, key, shared.identity)
        self.topics = TopicControl(
            self._topic_store, self._topic_cluster, self._groups.controllers, self._groups.http, lambda: self._remoting,
            self._reached,
        )  # fmt: skip

    # ---- life cycle

    def start(self) -> None:
        metrics.SHOWN.show(self._groups.figures)
        work: list[tuple[str, Callable[[], Coroutine[Any, Any, None]]]] = [
            ("reconcile", self._reconcile_forever),
            ("status", self._report.run),
            ("roll", self._rolling.run),
            ("access", self._access.run),
            ("site", self.sites.run),
            ("topics", self.topics.run),
            ("reasons", self._read_reasons),
            ("hibernation", self._hibernation.run),
            ("groups", self._changes.run),
        ]
        self._tasks = [asyncio.create_task(self._kept_alive(name, make)) for name, make in work]
        self._dirty.set()
        asyncio.get_running_loop().call_later(WARM_UP_S, self._report.wake)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._requests.close()
        await self._site_requests.close()
        await self._groups.close()
        await self._availability.close()
        await self._remoting.close()
        await self._users.close()
        await self._topic_store.close()
        await self._events.close()
        metrics.SHOWN.hide(self._groups.figures)
        self._shared.upgrades.done(self._key)
        self._certificates.close()

    @property
    def ending(self) -> bool:
        """The cluster is being deleted: what its topics hold goes with it, so nothing waits for their readers."""
        return self._resource.ending

    def update(self, obj: Object) -> None:
        """The resource changed. A change of the status alone is ignored."""
        if self._resource.update(obj):
            self._dirty.set()

    def heard(self, event: str, kind: str, obj: Object) -> None:
        """A watch event about an object of this cluster."""
        if kind in ("BrokerUser", "Secret"):
            self._access.wake()
        if kind in TOPIC_KINDS:
            self._topic_changed(event, obj)
        elif kind == "BrokerUser":
            if event == "DELETED":
                self._users.forget(obj["metadata"]["uid"])
        elif kind == "Lease":
            self._groups.registry.heard(event, obj)
        else:
            self._dirty.set()
        if kind in ("Pod", "Lease"):
            self._groups.wake()
            self._report.wake()

    def _topic_changed(self, event: str, obj: Object) -> None:
        if event == "DELETED":
            self._topic_store.forget(obj["metadata"]["uid"])
        if event == "DELETED" or self._topic_store.is_news(obj):
            self.topics.wake()

    def _topic_cluster(self) -> Cluster | None:
        """For the decisions about topics and groups; None: no spec was accepted yet."""
        if self._cluster is None or self._plan is None:
            return None
        paused = self._cluster.paused or self._cluster.spec.hibernate
        groups = [g.name for g in self._plan.groups]
        draining = frozenset(groups) - frozenset(self._staying)
        return Cluster(self.name, groups, draining, paused=paused)

    def _reached(self, group: str) -> str | None:
        """Where this process reaches the master of a group as clients do; None: it has no Service yet."""
        live = self._objects.live("Service", names.master_service(self.name, group))
        address = None if live is None else live["spec"].get("clusterIP")
        return f"{address}:{names.BROKER_PORT}" if address else None

    async def _kept_alive(self, name: str, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a part of the controller. A part that fails is reported and restarted."""
        while True:
            try:
                await make()
            except Exception as error:
                log.exception("%s of %s/%s", name, self.namespace, self.name)
                self._events.record("Warning", "ReconcileError", f"{name} failed and is restarted: {error!r}")
                await asyncio.sleep(AGAIN_S)

    # ---- reconcile

    async def _reconcile_forever(self) -> None:
        again = True  # A restart counts as a failed pass.
        refusals = Refusals()
        while True:
            if again:
                woken = await wall_clock.wait(refusals.pause_s(AGAIN_S), lambda: False, self._dirty)
            else:
                woken = await wall_clock.wait(self._certificates.due_s(), self._certificates.is_due, self._dirty)
            if woken:
                await asyncio.sleep(SETTLE_S)
            self._dirty.clear()
            begun, obj = time.monotonic(), self._resource.obj
            try:
                again = not await self._reconcile(obj)
                metrics.RECONCILES.labels("waiting" if again else "done").inc()
                refusals.clear()
            except (ApiError, ApiUnavailable) as error:
                again = True
                self._result.problems = [str(error)]
                if refusals.is_new(str(error)):
                    log.warning("%s", error, extra={"cluster": f"{self.namespace}/{self.name}"})
                metrics.RECONCILES.labels("error").inc()
            self._generation = int(obj["metadata"]["generation"])
            metrics.RECONCILE_SECONDS.observe(time.monotonic() - begun)
            self._report.wake()

    async def _reconcile(self, obj: Object) -> bool:
        """One pass. False: something without a watch is missing, so look again soon."""
        found = ReconcileResult()
        if obj["metadata"].get("deletionTimestamp") is not None:
            return True
        try:
            cluster = parse_manifest(obj)
            allowed.check(cluster, self._shared.settings)
        except ManifestError as error:
            found.refused = str(error).replace("\n", "; ")
            if found.refused != self._result.refused:
                self._events.record("Warning", "InvalidSpec", found.refused)
            self._result = found
            righted = await self._sync_labels(found)
            begun = bool(self._groups.controllers) and not self._left_out
            begun = begun or await self._go_on_without_spec(found)
            self._look_for_requests()
            if self._accepted is not None and not self._shared.unlisted():
                await self._keep_certificates(*self._accepted, found)
            return begun and righted
        self._left_out = {}
        if cluster.spec.hibernate and cluster.spec.analytics is not None:
            cluster.spec.analytics.suspend = True  # No log answers.
        found.problems += self._take(cluster)
        assert self._cluster is not None
        cluster = self._cluster
        self._result.refused = ""  # An error of the API server below does not mean that the spec is refused.
        former = [] if self._groups.controllers else volumes.of_a_former(self._shared.caches, cluster)
        if former:
            # Otherwise the leadership record would be recovered from former pods, and the new disks lack its records.
            found.problems.append(f"a former cluster of this name is not deleted yet: {', '.join(former)}")
            self._result = found
            self._look_for_requests()
            return False
        self._users.cluster = cluster
        self._access.wake()
        complete = await self._objects.keep_secret(cluster, found)
        self._pods.admin_token = self._objects.token
        # Before any request that the API server may refuse.
        self._hibernation.take(cluster)
        self._groups.update(cluster, self._hibernation.sleeps)
        self._look_for_requests()
        righted = await self._sync_labels(found)
        unlisted = self._shared.unlisted()
        if unlisted:
            found.problems.append(not_listed(unlisted))
            self._result = found
            return False
        assert self._plan is not None
        # Also while changes are paused: certificates expire all the same.
        complete = complete and await self._keep_certificates(cluster, self._plan, found)
        if complete and not cluster.paused:
            kept = await volumes.keep(self._shared.api, self._shared.caches, cluster, self._running())
            shaped = volumes.with_sizes_of_volumes(cluster, self._shared.caches, self._running())
            complete = await self._objects.keep(
                shaped, self._plan, self._pods.sizes, found, running=self._hibernation.running, hold=bool(self._hold())
            )
            if complete:
                again = await volumes.make_again(
                    self._shared.api, self._shared.caches, shaped, self._running(), self._reasons.missing_classes()
                )
                found.progress += again
                complete = not again
            found.problems += kept
            complete = complete and not kept
            complete = await self._reports.keep(cluster, self._plan, found) and complete
        self._result = found
        await mounted_files.refresh(self._shared.api, self._shared.caches, self.namespace, self.name)
        self._resource.note(await self._reports.run_if_asked(cluster, self._resource.obj) or self._resource.obj)
        return complete and righted

    async def _keep_certificates(self, cluster: BrokerCluster, wanted: Plan, found: ReconcileResult) -> bool:
        """One pass over the certificates. False: not complete, so no pod may start."""
        self._accepted = (cluster, wanted)
        services = {o["metadata"]["name"]: o for o in self._objects.owned("Service")}
        outside = {} if cluster.spec.external is None else external.addresses(cluster, wanted, services)[0]
        of_proxies = external.proxy_address(cluster, services)
        if of_proxies is not None:
            outside = outside | {external.proxy_endpoint(cluster).name: of_proxies}
        complete = await self._certificates.keep(cluster, wanted, outside, self._resource.obj, found)
        if self._certificates.for_clients != self._checks_with:
            self._checks_with = self._certificates.for_clients
            context = None
            if self._checks_with is not None:
                authorities, pair = self._checks_with
                context = tls_context(authorities, None if pair is None else (pair.certificate, pair.key))
            former, self._remoting = self._remoting, RemotingClient(sign=self._access.sign, tls=context)
            self._availability.use(self._remoting)
            await former.close()
        return complete

    async def _sync_labels(self, found: ReconcileResult) -> bool:
        """False: look again soon. A refused step does not prevent the other steps."""
        in_grace_period = (
            self._pods.in_grace_period()
        )  # Read this first, so that a change meanwhile causes another look.
        problems = await self._groups.sync_labels()
        found.problems += problems
        return not problems and not in_grace_period

    async def _go_on_without_spec(self, found: ReconcileResult) -> bool:
        """Start the failover under a refused spec after a start of the operator.

        Existing groups continue with their brokers' configuration. False: some groups could not start yet.
        """
        sets, leases = self._objects.owned("StatefulSet"), self._objects.owned("Lease")
        what = recovered(self._resource.obj, sets, self._objects.live, owned_leases=bool(leases))
        self._left_out = dict(what.left_out)
        found.problems += [f"group {group} has no failover: {why}" for group, why in self._left_out.items()]
        kept = True
        if what.cluster is not None:
            self._take(what.cluster, whole=False)
            if what.knows_users:
                self._users.cluster = what.cluster
                self._access.wake()
            kept = await self._objects.keep_secret(what.cluster, found)
            if kept or self._objects.token is not None:
                self._pods.admin_token = self._objects.token
                self._groups.update(what.cluster)
        return kept and not self._left_out

    def _take(self, cluster: BrokerCluster, *, whole: bool = True) -> list[str]:
        """Use this spec, with the groups that leave. Returns why groups of the spec do not start.

        `whole`: the spec names all groups that stay. Otherwise no group leaves.
        """
        wanted = {g.name for g in cluster.spec.brokerGroups}
        claims = volumes.of_brokers(self._shared.caches, self.namespace, self.name)
        cluster, problems = leaving_groups.running_cluster(
            cluster, self._objects.owned("StatefulSet") if whole else (), claims
        )
        self._staying = tuple(g.name for g in cluster.spec.brokerGroups if g.name in wanted)
        self._cluster, self._plan = cluster, plan(cluster)
        self.topics.wake()
        self._groups.registry.owner = volumes.owner(cluster) if cluster.spec.reclaim == "Delete" else None
        self._pods.planned = {g.name: len(g.members) for g in self._plan.groups}
        for g in self._plan.groups:
            live = self._objects.live("StatefulSet", names.group_set(self.name, g.name))
            running = 0 if live is None else int(live["spec"].get("replicas", 0))
            self._pods.sizes[g.name] = max(len(g.members), running)
        for group in set(self._pods.sizes) - set(self._pods.planned):
            del self._pods.sizes[group]
            self._availability.forget(group)
        self._changes.wake()
        return problems

    def _reclaim(self) -> str:
        return "Retain" if self._cluster is None else self._cluster.spec.reclaim

    def _wanted_groups(self) -> WantedGroups | None:
        if self._cluster is None or not self._may_change() or self._shared.unlisted():
            return None
        spec, running = self._cluster.spec, [g.name for g in self._cluster.spec.brokerGroups]
        removing = leaving_groups.removing(self._objects.owned("StatefulSet"))
        return WantedGroups(
            staying=self._staying,
            leaving=tuple(g for g in running if g not in self._staying and g not in removing),
            removing=removing,
            extend=spec.topicDefaults.extendToNewGroups,
            policy=spec.drain,
            managed=self.topics.managed_topics(),
        )

    def _groups_changed(self) -> None:
        self._dirty.set()
        self._report.wake()

    def _drains(self) -> dict[str, DrainRow]:
        """The groups that leave, for the status."""
        running = [] if self._cluster is None else [g.name for g in self._cluster.spec.brokerGroups]
        leaving = {g: DrainRow(phase="Waiting") for g in running if g not in self._staying}
        return leaving | self._changes.drains

    def _may_change(self) -> bool:
        if self._cluster is None or self._cluster.spec.hibernate:
            return False
        return not self._cluster.paused and not self._result.refused

    def _hold(self) -> str:
        """Why a change that is not urgent has to wait; empty: it need not."""
        if self._cluster is None:
            return ""
        held = maintenance.wait_for(self._cluster.spec.maintenanceWindow, datetime.now(UTC))
        return held or self._wait_for_upgrade(self._cluster)

    def _wait_for_upgrade(self, cluster: BrokerCluster) -> str:
        """Why the pods keep a former default image for now; empty: they have the present one, or it is their turn."""
        new = self._shared.settings.broker_image
        idle = cluster.spec.hibernate or cluster.paused or bool(self._result.refused)
        former = [] if idle or cluster.spec.image is not None else former_images(*self._sets_and_pods(), new)
        if not former:
            self._shared.upgrades.done(self._key)
            if self._upgrading:
                self._upgrading = ""
                self._dirty.set()
            return ""
        wait = self._shared.upgrades.wait(self._key)
        said = f"the image {new} takes the place of {', '.join(former)}: " + (wait or "one pod after the other")
        if said != self._upgrading:
            self._upgrading = said
            self._events.record("Normal", "UpgradeWaits" if wait else "UpgradeStarted", said)
            self._dirty.set()
        return wait

    def _upgrade(self, group: str, members: Sequence[Running]) -> Upgrade | None:
        """None: the outdated members of the group keep their image."""
        image = image_of(self._objects.live("StatefulSet", names.group_set(self.name, group)))
        pods = [self._pods.pod(m.name) for m in members if m.outdated]
        if not image or all(pod is None or own_image(pod.get("spec") or {}) == image for pod in pods):
            return None
        # The default image is of the operator's own release, whatever its tag is.
        own = package_version() if image == self._shared.settings.broker_image else ""
        return Upgrade(release_of(image) or own, package_version())

    def _sets_and_pods(self) -> tuple[list[Object], list[Object]]:
        sets = self._objects.owned("StatefulSet")
        servers = [] if self._plan is None else [s.name for s in self._plan.name_servers]
        pods = (self._pods.pod(name) for name in [*servers, *(name for _, _, name in self._running())])
        return sets, [pod for pod in pods if pod is not None]

    def _fell_asleep(self, group: str) -> None:
        self._availability.forget(group)
        self._events.record("Normal", "Hibernating", f"group {group} stops; its volumes and leadership record stay")

    @property
    def _key(self) -> str:
        return f"{self.namespace}/{self.name}"

    def _running(self) -> list[tuple[str, int, str]]:
        """Group, number and name of every member that is planned or runs."""
        return [(m.group, m.number, m.name) for g in self._pods.planned for m in self._pods.running(g)]

    def _look_for_requests(self) -> None:
        self._requests.look(self._plan, refused=bool(self._result.refused))
        if self._plan is not None:
            self._site_requests.look()

    def _why_not_led(self) -> str:
        return "; ".join(filter(None, [self._result.refused, *self._result.problems]))

    def _follows(self) -> bool:
        bootstrap = None if self._cluster is None else self._cluster.spec.bootstrap
        return bootstrap is not None and bootstrap.follow is not None

    def _archives(self) -> bool:
        return self._cluster is not None and self._cluster.spec.archive is not None

    # ---- input of the status

    async def _read_reasons(self) -> None:
        """Read why pods are missing or do not start. A pod that starts as usual is there before the first reading."""
        while True:
            await asyncio.sleep(LOOK_S / 2)
            if self._cluster is not None and self._cluster.spec.hibernate:
                continue
            wanted = missing_objects(self._running(), self._plan, self._shared.caches["Pod"], self.namespace, self.name)
            if await self._reasons.look(wanted):
                self._report.wake()
                if self._reasons.missing_classes():
                    self._dirty.set()

    def _saw(self, status: BrokerClusterStatus, members: Sequence[ObservedMember]) -> None:
        before, self._proxies = self._proxies, status.proxy
        for kind, reason, message in proxy_events(before, status.proxy):
            self._events.record(kind, reason, message)
        self._groups.figures.saw(status, members)
        now = datetime.now(UTC)
        for m in members:
            # Without digits: ages, restarts and amounts change all the time.
            said = re.sub(r"\d+", "", m.problem) if m.status is None else ""
            if said != self._reported.get(m.name, "") and notable(self._pods.pod(m.name), m.problem, now):
                self._events.record("Warning", "MemberNotRunning", f"{m.name}: {m.problem}")
                self._reported[m.name] = said
            elif m.status is not None:
                self._reported.pop(m.name, None)

    def _look(self) -> tuple[BrokerCluster | None, int, ObservedState] | None:
        if self._resource.ending:
            return None
        self._ask_for_checks()
        unlisted = self._shared.unlisted()
        hidden = not set(SHOWN).isdisjoint(unlisted) and self._just_begun()
        if self._warming_up() or hidden:
            return None
        problems = [*self._result.problems, *([not_listed(unlisted)] if unlisted else []), *self._groups.problems()]
        problems += [f"users: {self._access.problem}"] if self._access.problem else []
        problems += [f"group {g} keeps its version: {why}" for g, why in sorted(self._rolling.refused.items())]
        scaler = self._objects.live("HorizontalPodAutoscaler", names.proxies(self.name))
        unscaled = "" if self._cluster is None else proxies.not_scaled(self._cluster, scaler, datetime.now(UTC))
        problems += [unscaled] if unscaled else []
        sets, pods = self._sets_and_pods()
        claims = volumes.of_brokers(self._shared.caches, self.namespace, self.name)
        seen = ObservedState(
            members=observed_members(self._running(), self._groups.controllers, self._pods, self._reasons.of),
            name_servers=observed_name_servers(self._plan, self._shared.caches["Pod"], said=self._reasons.of),
            available=self._availability.answers() | self._left_out,
            blind=self._blind(),
            problems=list(dict.fromkeys(problems)),
            progress=self._progress(sets, pods),
            hibernated=self._hibernation.done and not self._running_pods(),
            drains=self._drains(),
            proxy=self._proxies if {"Deployment", "Service"} & {*unlisted} else self._proxy_status(),
            refused=self._result.refused,
            addresses=self._addresses_shown if "Service" in unlisted else self._addresses(),
            last_failover=self._groups.last,
            version=self._version(sets, pods),
            bound_volumes=sum(map(volumes.bound, claims)),
            volume_size=volumes.largest(claims, self._shared_storage()),
            certificates=self._certificates.rows,
            site=self.sites.state,
            site_waits=self.sites.waits,
            analytics=None if {JOBS, PODS} & {*unlisted} else self._reports.status(self._cluster),
            authentication="Enabled" if self._cluster is None else self._cluster.spec.security.mode(),
        )
        return self._cluster, self._generation, seen

    def _shared_storage(self) -> set[str]:
        """The groups whose volumes are those of spec.storage."""
        return (
            set() if self._cluster is None else {g.name for g in self._cluster.spec.brokerGroups if g.storage is None}
        )

    def _version(self, sets: Iterable[Object], pods: Iterable[Object]) -> VersionStatus | None:
        if self._cluster is None:
            return None
        image = self._cluster.spec.image or self._shared.settings.broker_image
        return VersionStatus(
            operator=package_version(),
            image=image,
            former=former_images(sets, pods, image),
            brokers=self._releases(),
            protocol=PROTOCOL_VERSION,
        )

    def _releases(self) -> list[str]:
        watches = (w for c in self._groups.controllers.values() for w in c.watches.values())
        found = {str(w.status.get("release", "")) for w in watches if w.reach == "ok" and w.status is not None}
        return sorted(found - {""})

    def _progress(self, sets: Iterable[Object], pods: Sequence[Object]) -> list[str]:
        if self._cluster is not None and self._cluster.spec.hibernate:
            return [*self._result.progress, *filter(None, [self._hibernation.progress])]
        return [
            *self._result.progress,
            *self._rolling.progress.values(),
            *self._awaited_changes(sets, pods),
            *self._changes.progress.values(),
            *self._proxy_progress(),
        ]

    def _awaited_changes(self, sets: Iterable[Object], pods: Sequence[Object]) -> Iterator[str]:
        """What `RollingChange` has not looked at yet, and the changes that Kubernetes carries out by itself."""
        looked_at = {names.group_set(self.name, g) for g in (*self._rolling.progress, *self._rolling.refused)}
        for stateful_set in sets:
            name = stateful_set["metadata"]["name"]
            mine = (p for p in pods if p["metadata"]["name"].rpartition("-")[0] == name)
            if name not in looked_at and (awaited := awaited_change(stateful_set, mine)):
                yield awaited

    def _running_pods(self) -> bool:
        return any(self._pods.pod(name) is not None for _, _, name in self._running())

    def _proxy_status(self) -> ProxyStatus | None:
        if self._cluster is None:
            return None
        pods = self._shared.caches["Pod"].of(self.namespace, names.CLUSTER_LABEL, self.name)
        ours = [p for p in pods if p["metadata"]["labels"].get(names.COMPONENT_LABEL) == names.PROXY]
        services = {o["metadata"]["name"]: o for o in self._objects.owned("Service")}
        return proxies.status(self._cluster, self._live_proxies(), ours, services)

    def _proxy_progress(self) -> list[str]:
        said = "" if self._cluster is None else proxies.progress(self._cluster, self._live_proxies())
        return [said] if said else []

    def _live_proxies(self) -> Object | None:
        return self._objects.live("Deployment", names.proxies(self.name))

    def _warming_up(self) -> bool:
        """Write nothing while this operator has no data yet and another one's status is there."""
        if not self._just_begun() or not self._inherited:
            return False
        members = observed_members(self._running(), self._groups.controllers, self._pods)
        heard = bool(members) and all(m.status is not None for m in members)
        return not heard or bool(self._blind())

    def _blind(self) -> frozenset[str]:
        """The groups of which nothing is known yet: no check has ended, and what its controller waits for may only be
        the first reports of the members.
        """
        if not self._inherited:
            return frozenset()
        known = self._availability.checked() | set(self._left_out)
        if not self._just_begun():
            # By now each member has answered or has a reason why not, so a wait says something.
            known |= {
                group
                for group, controller in self._groups.controllers.items()
                if controller.blocking_wait
                and all(w.status is not None or w.problem for w in controller.watches.values())
            }
        self._known_groups |= known
        groups = {group for group, _, _ in self._running()} - set(self._drains())
        return frozenset(groups - self._known_groups)

    def _just_begun(self) -> bool:
        return time.monotonic() <= self._begun + WARM_UP_S

    def _ask_for_checks(self) -> None:
        """Check availability after a change of leader, epoch, member or NameServer, and at intervals."""
        if self._plan is None:
            return
        rows = observed_name_servers(self._plan, self._shared.caches["Pod"], by_pod=True)
        servers = [s.address for s in rows]
        for group, controller in self._groups.controllers.items():
            if group not in self._staying:
                self._availability.forget(group)  # It takes no messages any more.
                continue
            service = names.master_service(self.name, group)
            reached = self._reached(group)
            if reached is None:
                continue
            registered = f"{names.service_host(service, self.namespace)}:{names.BROKER_PORT}"
            epoch = 0 if controller.leadership is None else controller.leadership.epoch
            heard = (w for w in controller.watches.values() if w.reach == "ok" and w.status is not None)
            answering = frozenset((w.name, bool((w.status or {}).get("writable"))) for w in heard)
            name = group if self._cluster is None else self._cluster.broker_name(group)
            self._availability.watch(
                group, epoch, controller.blocking_wait, answering, servers, registered, reached, name
            )

    def _addresses(self) -> Addresses:
        if self._cluster is None or self._plan is None:
            return Addresses()
        inner = ";".join(name_servers.addresses(self._cluster, self._plan))
        if self._cluster.spec.external is None:
            return Addresses(nameServers=inner)
        services = {o["metadata"]["name"]: o for o in self._objects.owned("Service")}
        known, _ = external.addresses(self._cluster, self._plan, services)
        outer = ";".join(known[s.name] for s in self._plan.name_servers if s.name in known)
        return Addresses(nameServers=inner, external=outer)
