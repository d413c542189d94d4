"""The controller of one BrokerCluster: passes over its objects.

`_pass` is the whole of a pass, step by step. `cluster.control` leads the groups and changes members, also between
passes and while the API server refuses something; `cluster_platform` is where it finds the pods, `cluster_observer`
sees what the status says, `cluster_requests` carries out what people ask for. A pass runs after each change, and again
after a pass that failed.
"""

from __future__ import annotations

import asyncio
import logging
import time

from gantry_broker.tasks import end_tasks

from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.manifest import ManifestError, parse_manifest
from gantry_operator.api.status import BrokerClusterStatus
from gantry_operator.cluster import wall_clock
from gantry_operator.cluster.control import ClusterControl
from gantry_operator.cluster.restart import kept_alive
from gantry_operator.plan.plan import Plan
from gantry_operator.platforms.kubernetes import allowed
from gantry_operator.platforms.kubernetes.api.client import ApiError, ApiUnavailable, Object
from gantry_operator.platforms.kubernetes.api.cluster_resource import ClusterResource
from gantry_operator.platforms.kubernetes.api.repeated_refusals import RepeatedRefusals
from gantry_operator.platforms.kubernetes.manifests import external
from gantry_operator.platforms.kubernetes.manifests.desired_objects import NAME_SERVERS
from gantry_operator.platforms.kubernetes.monitoring import metrics
from gantry_operator.platforms.kubernetes.objects import mounted_files, volumes
from gantry_operator.platforms.kubernetes.objects.object_reconciler import ReconcileResult
from gantry_operator.platforms.kubernetes.reconcile import watch_events
from gantry_operator.platforms.kubernetes.reconcile.cluster_observer import ClusterObserver
from gantry_operator.platforms.kubernetes.reconcile.cluster_platform import ClusterPlatform, Shared, not_listed
from gantry_operator.platforms.kubernetes.reconcile.cluster_requests import ClusterRequests
from gantry_operator.platforms.kubernetes.reconcile.recovered_spec import recovered

log = logging.getLogger(__name__)

SETTLE_S = 0.05
"""Seconds between a change and the start of a pass, because changes come in bursts."""
AGAIN_S = 2.0
"""Seconds until the next pass after a failed one, or after one that waits for something without a watch."""


class ClusterController:
    """Controls one cluster from `start` to `stop`. `update` passes a newer version of the resource."""

    def __init__(self, shared: Shared, obj: Object) -> None:
        self._shared = shared
        self.resource = resource = ClusterResource(shared.api, obj)
        self._dirty = asyncio.Event()
        self._accepted: tuple[BrokerCluster, Plan] | None = None
        """The last spec with certificates, which are renewed under a refused spec, too."""
        self.platform = platform = ClusterPlatform(shared, resource, self.look_again, lambda: self.observer.wake())
        self.namespace, self.name, self.uid = platform.namespace, platform.name, platform.uid
        inherited = bool(BrokerClusterStatus.model_validate(obj.get("status") or {}).conditions)
        self.control = ClusterControl(platform, shared.clock, inherited=inherited)
        self._requests = ClusterRequests(resource, self.control, platform, self.look_again)
        self.observer = ClusterObserver(
            resource, platform, self.control, self._requests.migration_waits, self.look_again
        )
        self._tasks: list[asyncio.Task[None]] = []

    # ---- life cycle

    def start(self) -> None:
        metrics.SHOWN.show(self.platform.figures)
        work = {"reconcile": self._pass_forever} | self.observer.parts()
        self._tasks = [asyncio.create_task(kept_alive(name, run, self.platform.event)) for name, run in work.items()]
        self.control.start()
        self.look_again()
        asyncio.get_running_loop().call_later(self.control.warm_up.left_s, self.observer.wake)

    async def stop(self) -> None:
        await end_tasks(*self._tasks)
        await self._requests.close()
        await self.control.close()
        await self.platform.close()
        metrics.SHOWN.hide(self.platform.figures)

    async def give_back(self) -> None:
        """End what the resource had begun at other systems. Call it before `stop`, when the resource is gone."""
        await self._requests.give_back()

    @property
    def ending(self) -> bool:
        """The cluster is being deleted: what its topics hold goes with it, so nothing waits for their readers."""
        return self.resource.ending

    def update(self, obj: Object) -> None:
        """Take a newer version of the resource. A change of the status alone is ignored."""
        if self.resource.update(obj):
            self.look_again()

    def look_again(self) -> None:
        """Begin a pass soon."""
        self._dirty.set()

    @property
    def pass_is_due(self) -> bool:
        """A change came, and no pass has begun since."""
        return self._dirty.is_set()

    def heard(self, event: str, kind: str, obj: Object) -> None:
        """Take a watch event about an object of this cluster."""
        if watch_events.take(event, kind, obj, self.platform, self.control):
            self.look_again()

    # ---- passes

    async def _pass_forever(self) -> None:
        again = True  # A restart counts as a failed pass.
        refusals, certificates = RepeatedRefusals(), self.platform.certificates
        while True:
            if again:
                woken = await wall_clock.wait(refusals.pause_s(AGAIN_S), lambda: False, self._dirty)
            else:
                woken = await wall_clock.wait(certificates.due_s(), certificates.is_due, self._dirty)
            if woken:
                await asyncio.sleep(SETTLE_S)
            self._dirty.clear()
            begun, obj = time.monotonic(), self.resource.obj
            try:
                again = not await self._pass(obj)
                metrics.RECONCILES.labels("waiting" if again else "done").inc()
                refusals.clear()
            except (ApiError, ApiUnavailable) as error:
                again = True
                self.control.problems = [str(error)]
                if refusals.is_new(str(error)):
                    log.warning("%s", error, extra={"cluster": f"{self.namespace}/{self.name}"})
                metrics.RECONCILES.labels("error").inc()
            self.observer.generation = int(obj["metadata"]["generation"])
            metrics.RECONCILE_SECONDS.observe(time.monotonic() - begun)
            self.observer.wake()

    async def _pass(self, obj: Object) -> bool:
        """One pass. False: something without a watch is missing, so look again soon."""
        if obj["metadata"].get("deletionTimestamp") is not None:
            return True
        result = ReconcileResult()
        spec = self._read_spec(obj, result)
        if spec is None:
            return await self._go_on_without_spec(result)
        cluster, plan = self._take(spec, result)
        if self._waits_for_a_former_cluster(cluster, result):
            return False
        self._use_users_of(cluster)
        complete = await self._keep_token(cluster, result)
        # Before any request that the API server may refuse.
        self.control.lead()
        self._requests.look()
        righted = await self._sync_labels(result)
        if self._waits_for_lists(result):
            return False
        # Also while changes are paused: certificates expire all the same.
        complete = complete and await self._keep_certificates(cluster, plan, result)
        if complete and not cluster.paused:
            complete = await self._keep_objects(cluster, plan, result)
        self._publish(result)
        await mounted_files.refresh(self._shared.api, self._shared.caches, self.namespace, self.name)
        await self._start_report(cluster)
        return complete and righted

    def _read_spec(self, obj: Object, result: ReconcileResult) -> BrokerCluster | None:
        """None: the spec is refused. Running groups keep what they have."""
        try:
            cluster = parse_manifest(obj)
            allowed.check(cluster, self._shared.settings)
        except ManifestError as error:
            result.refused = str(error).replace("\n", "; ")
            if result.refused != self.control.refused:
                self.platform.events.record("Warning", "InvalidSpec", result.refused)
            return None
        if cluster.spec.hibernate and cluster.spec.analytics is not None:
            cluster.spec.analytics.suspend = True  # No log answers.
        return cluster

    async def _go_on_without_spec(self, result: ReconcileResult) -> bool:
        """Under a refused spec the failover goes on, and after a start of the operator it begins for all groups whose
        brokers' configuration can be read. False: some groups could not start yet.
        """
        self._publish(result)
        righted = await self._sync_labels(result)
        led = bool(self.control.controllers) and not self.control.left_out
        led = led or await self._lead_recovered(result)
        self._requests.look()
        if self._accepted is not None and not self._shared.unlisted():
            await self._keep_certificates(*self._accepted, result)
        return led and righted

    async def _lead_recovered(self, result: ReconcileResult) -> bool:
        """Start the failover by the live objects. False: some groups could not start yet."""
        objects = self.platform.objects
        sets, leases = objects.owned("StatefulSet"), objects.owned("Lease")
        what = recovered(self.resource.obj, sets, objects.live, owned_leases=bool(leases))
        self.control.left_out = dict(what.left_out)
        result.problems += [f"group {group} has no failover: {why}" for group, why in what.left_out.items()]
        if what.cluster is None:
            return not what.left_out
        self.control.take(what.cluster, whole=False)
        if what.knows_users:
            self._use_users_of(what.cluster)
        kept = await self._keep_token(what.cluster, result)
        if kept or objects.token is not None:
            self.control.lead_recovered()
        return kept and not what.left_out

    def _take(self, spec: BrokerCluster, result: ReconcileResult) -> tuple[BrokerCluster, Plan]:
        """Use the spec from now on, with the groups that leave."""
        control = self.control
        control.left_out = {}
        result.problems += control.take(spec)
        control.refused = ""  # An error of the API server below does not mean that the spec is refused.
        assert control.cluster is not None
        assert control.plan is not None
        return control.cluster, control.plan

    def _waits_for_a_former_cluster(self, cluster: BrokerCluster, result: ReconcileResult) -> bool:
        """Otherwise the leadership record would be recovered from former pods, and the new disks lack its records."""
        former = [] if self.control.controllers else volumes.of_a_former(self._shared.caches, cluster)
        if former:
            result.problems.append(f"a former cluster of this name is not deleted yet: {', '.join(former)}")
            self._publish(result)
            self._requests.look()
        return bool(former)

    def _use_users_of(self, cluster: BrokerCluster) -> None:
        self.platform.users.cluster = cluster
        self.control.access.wake()

    async def _keep_token(self, cluster: BrokerCluster, result: ReconcileResult) -> bool:
        """Keep the token by which members and this operator know each other. False: its Secret is not as it should be.

        A token that was read before is used meanwhile.
        """
        kept = await self.platform.objects.keep_secret(cluster, result)
        self.platform.pods.admin_token = self.platform.objects.token
        return kept

    async def _sync_labels(self, result: ReconcileResult) -> bool:
        """Correct the labels. False: look again soon. A refused step does not prevent the other steps."""
        # Read this first, so that a change meanwhile causes another look.
        in_grace_period = self.platform.pods.in_grace_period()
        problems = await self.platform.labels.sync()
        result.problems += problems
        return not problems and not in_grace_period

    def _waits_for_lists(self, result: ReconcileResult) -> bool:
        """No object is created or deleted before all are known."""
        unlisted = self._shared.unlisted()
        if unlisted:
            result.problems.append(not_listed(unlisted))
            self._publish(result)
        return bool(unlisted)

    async def _keep_certificates(self, cluster: BrokerCluster, plan: Plan, result: ReconcileResult) -> bool:
        """One pass over the certificates. False: not complete, so no pod may start."""
        self._accepted = (cluster, plan)
        certificates = self.platform.certificates
        services = {o["metadata"]["name"]: o for o in self.platform.objects.owned("Service")}
        outside = external.all_addresses(cluster, plan, services)
        complete = await certificates.keep(cluster, plan, outside, self.resource.obj, result)
        self.control.call_with(certificates.for_clients, certificates.for_calls)
        return complete

    async def _keep_objects(self, cluster: BrokerCluster, plan: Plan, result: ReconcileResult) -> bool:
        """Apply the objects of the spec, and its volumes. False: not complete."""
        api, caches, platform = self._shared.api, self._shared.caches, self.platform
        kept = await volumes.keep(api, caches, cluster, platform.all_members())
        shaped = volumes.with_sizes_of_volumes(cluster, caches, platform.all_members())
        complete = await platform.objects.keep(
            shaped, plan, platform.pods.sizes, result, running=self._running(), hold=bool(self.control.hold())
        )
        if complete:
            missing = platform.reasons.missing_classes()
            again = await volumes.make_again(api, caches, shaped, platform.all_members(), missing)
            result.progress += again
            complete = not again
        result.problems += kept
        complete = complete and not kept
        return await platform.reports.keep(cluster, plan, result) and complete

    def _running(self) -> dict[str, int] | None:
        """Return the wanted processes of a cluster that hibernates, by group; None: all of the spec."""
        hibernation = self.control.hibernation
        if hibernation.running is None:
            return None
        return hibernation.running | {NAME_SERVERS: int(hibernation.others)}

    async def _start_report(self, cluster: BrokerCluster) -> None:
        obj = self.resource.obj
        self.resource.note(await self.platform.reports.run_if_asked(cluster, obj) or self.resource.obj)

    def _publish(self, result: ReconcileResult) -> None:
        """Publish the result of the pass, for the status and for answers to requests."""
        control = self.control
        control.refused, control.problems, control.progress = result.refused, result.problems, result.progress
