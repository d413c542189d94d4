"""The report on a cluster's logs (`spec.analytics`) in Kubernetes: applies its objects, starts runs, reads its status.

`manifests`, `jobs` and `status` define the objects and their meaning.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from gantry_operator.api.analytics import Analytics
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.cron import ScheduleError
from gantry_operator.api.status import AnalyticsStatus
from gantry_operator.plan.plan import Plan
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.analytics import applications, jobs, manifests
from gantry_operator.platforms.kubernetes.analytics.applications import ActiveRun, Applications
from gantry_operator.platforms.kubernetes.analytics.status import analytics_status, run_events
from gantry_operator.platforms.kubernetes.api.client import (
    BROKER_CLUSTER,
    CRON_JOB,
    JOB,
    KINDS,
    ApiError,
    KubeApi,
    Object,
)
from gantry_operator.platforms.kubernetes.api.events import EventRecorder
from gantry_operator.platforms.kubernetes.api.informer_cache import InformerCache
from gantry_operator.platforms.kubernetes.manifests import pod_parts
from gantry_operator.platforms.kubernetes.manifests.broker_group import member_host
from gantry_operator.platforms.kubernetes.manifests.desired_objects import OperatorSettings
from gantry_operator.platforms.kubernetes.objects.object_reconciler import ObjectReconciler, ReconcileResult

JOBS = "Job of a report"
PODS = "Pod of a report"
"""Names of the caches for runs. Their objects carry `manifests.JOB_LABEL`."""

OF_JOBS = ("CronJob", "ConfigMap")
"""Kinds that runs as SparkApplications do without."""
DROPPED = ("CronJob", "ConfigMap", "NetworkPolicy", "Role", "RoleBinding")
"""Kinds that are deleted together with `spec.analytics`. The volume with the reports stays as long as the cluster."""


class AnalyticsReconciler:
    """The report of one cluster."""

    def __init__(
        self,
        api: KubeApi,
        caches: Mapping[str, InformerCache],
        objects: ObjectReconciler,
        settings: OperatorSettings,
        events: EventRecorder,
    ) -> None:
        self._api = api
        self._caches = caches
        self._objects = objects
        self._settings = settings
        self._events = events
        self._started: Object | None = None
        self._problem: str | None = None
        self._previous: AnalyticsStatus | None = None
        self._application: Object | None = None
        """What a run is, once all that it needs is applied; None: no SparkApplication is to run."""
        self._spec: Analytics | None = None
        self.applications = Applications(
            api, objects.namespace, f"{manifests.JOB_LABEL}={objects.name}", "spec.analytics"
        )
        self.waits = False
        """A requested run waits for the end of the former object."""

    async def keep(self, cluster: BrokerCluster, plan: Plan, result: ReconcileResult) -> bool:
        """One pass. False: it is not complete yet. A failing report never delays the brokers."""
        self._problem = None
        self._application, self._spec = None, cluster.spec.analytics
        if cluster.spec.analytics is None:
            if self._role() is not None and not await self._without_applications():
                return False
            await self._drop(DROPPED)
            return True
        scheme = pod_parts.http_scheme(cluster)
        urls = [f"{m.group}={scheme}://{member_host(cluster, m)}:{names.BROKER_HTTP_PORT}" for m in plan.members]
        try:
            hold = self._by_hand_at_work(cluster)
            objects = manifests.render(cluster, urls, self._settings.spark_image, token=True, hold=hold)
        except (ScheduleError, ValueError) as error:
            self._problem = str(error)
            return True
        application = manifests.application(cluster, urls, self._settings.spark_image, token=True)
        if application is not None:
            await self._drop(OF_JOBS)
        elif not await self._without_applications():
            return False
        complete = True
        for obj in objects:
            try:
                complete = await self._objects.apply(obj, result) and complete
            except ApiError as error:
                if error.status not in (403, 422):
                    raise
                self._problem = f"{obj['kind']} {obj['metadata']['name']}: {error}"
        if complete and self._problem is None:
            self._application = application
        return complete

    def _role(self) -> Object | None:
        """Return the driver's Role, which is as old as `spec.analytics`."""
        return self._objects.live("Role", manifests.name_of(self._objects.name))

    async def _without_applications(self) -> bool:
        """Remove the SparkApplications of a former spec. False: one is there, so two runs could be at work.

        A CronJob is never beside them.
        """
        if self._role() is None or self._objects.live("CronJob", manifests.name_of(self._objects.name)) is not None:
            return True
        return await self.applications.remove()

    async def follow(self, now: datetime) -> bool:
        """Look at the SparkApplications, and start a run that is due. True: the status may have changed.

        Raises ApiError, ApiUnavailable.
        """
        application, spec, role = self._application, self._spec, self._role()
        if application is None or spec is None:
            return False
        since = applications.time_of((role or {"metadata": {}})["metadata"].get("creationTimestamp"))
        if not await self.applications.look() or since is None or self._job_at_work():
            return True
        scheduled = applications.due(spec, since, self._last_run(), now)
        if scheduled is not None:
            with contextlib.suppress(ActiveRun):  # It starts afterwards, within the starting deadline.
                await self.applications.start(application, scheduled)
        return True

    def _last_run(self) -> datetime | None:
        noted = None if self._previous is None else applications.time_of(self._previous.lastRun)
        return max((t for t in (noted, self.applications.last()) if t is not None), default=None)

    def _job_at_work(self) -> bool:
        """Whether something is left of a former engine: a Job, or the pod of one."""
        namespace, name = self._objects.namespace, self._objects.name
        job_objects = self._caches[JOBS].of(namespace, manifests.JOB_LABEL, name)
        pods = self._caches[PODS].of(namespace, manifests.JOB_LABEL, name)
        owners = [o for p in pods if not _over(p) for o in p["metadata"].get("ownerReferences") or []]
        return any(not jobs.ended(j) for j in job_objects) or any(o.get("kind") == "Job" for o in owners)

    async def run_if_asked(self, cluster: BrokerCluster, resource: Object) -> Object | None:
        """Start a run if an annotation asks for it. Returns the resource without the annotation, or None without a
        request.
        """
        text = (resource["metadata"].get("annotations") or {}).get(manifests.ANALYZE_ANNOTATION)
        if text is None:
            return None
        if cluster.spec.analytics is not None and cluster.spec.analytics.engine == "SparkApplication":
            if not await self._start_application():
                self.waits = True
                return None
            self.waits = False
            return await self._answered(cluster)
        cron_job = self._objects.live("CronJob", manifests.name_of(cluster.name))
        if cron_job is None:
            self._problem = self._problem or "a run was requested, but there is no spec.analytics: write it first"
        else:
            await self._start(cluster, cron_job)
        return await self._answered(cluster)

    async def _answered(self, cluster: BrokerCluster) -> Object:
        patch = {"metadata": {"annotations": {manifests.ANALYZE_ANNOTATION: None}}}
        return await self._api.merge(BROKER_CLUSTER, cluster.namespace, cluster.name, patch)

    async def _start_application(self) -> bool:
        """Start a run that was asked for. False: ask again soon."""
        if self._application is None:
            return self._problem is not None
        if self._job_at_work():
            return False
        try:
            application = await self.applications.start(self._application)
        except ActiveRun as active:
            message = f"a report was requested, but {active} is running already"
            self._events.record("Normal", "AnalysisAlreadyRunning", message)
            return True
        if application is not None:
            self._events.record("Normal", "AnalysisStarted", f"{application['metadata']['name']}: requested")
        return application is not None or self.applications.problem is not None

    async def _start(self, cluster: BrokerCluster, cron_job: Object) -> None:
        """Start a run unless one is active: suspend the schedule first, then list the Jobs in the API."""
        meta = cron_job["metadata"]
        await self._api.merge(CRON_JOB, meta["namespace"], meta["name"], {"spec": {"suspend": True}})
        label = f"{manifests.JOB_LABEL}={cluster.name}"
        there, _ = await self._api.list(JOB, cluster.namespace, label)
        running = jobs.at_work(there)
        if running is not None:
            message = f"a report was requested, but {running} is running already"
            self._events.record("Normal", "AnalysisAlreadyRunning", message)
            return
        stamp = datetime.now(UTC).strftime("%y%m%d%H%M%S")
        self._started = await self._api.create(jobs.job_now(cron_job, stamp))
        self._events.record("Normal", "AnalysisStarted", f"{self._started['metadata']['name']}: requested")

    def _by_hand_at_work(self, cluster: BrokerCluster) -> bool:
        """Whether a run outside the schedule is active. Its Job may not be in the cache yet."""
        runs = self._runs(JOBS, cluster)
        started = self._started
        if started is not None and any(j["metadata"]["uid"] == started["metadata"]["uid"] for j in runs):
            self._started = started = None
        return started is not None or any(jobs.by_hand(j) and not jobs.ended(j) for j in runs)

    def status(self, cluster: BrokerCluster | None) -> AnalyticsStatus | None:
        if cluster is None or cluster.spec.analytics is None:
            return None
        previous = self._previous or cluster.status.analytics
        runs, run_pods = self._runs(JOBS, cluster), self._runs(PODS, cluster)
        problem, reason = self._problem, ""
        if cluster.spec.analytics.engine == "SparkApplication":
            runs, run_pods = self.applications.runs()
            problem, reason = problem or self.applications.problem, self.applications.reason
        now = datetime.now(UTC)
        self._previous = analytics_status(cluster.spec.analytics, previous, runs, run_pods, now, problem, reason)
        for kind, reason, message in run_events(previous, self._previous):
            self._events.record(kind, reason, message)
        return self._previous

    def _runs(self, cache: str, cluster: BrokerCluster) -> list[Object]:
        return list(self._caches[cache].of(cluster.namespace, manifests.JOB_LABEL, cluster.name))

    async def _drop(self, kinds: Sequence[str]) -> None:
        for kind in kinds:
            for obj in self._objects.owned(kind):
                meta = obj["metadata"]
                if meta["labels"].get(names.COMPONENT_LABEL) == manifests.COMPONENT and not meta.get(
                    "deletionTimestamp"
                ):
                    await self._api.delete(KINDS[kind], meta["namespace"], meta["name"], uid=meta["uid"])


def _over(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
