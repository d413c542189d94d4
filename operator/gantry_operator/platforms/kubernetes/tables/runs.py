"""Runs of tables in Kubernetes: the port `TableRuns` by one Job or SparkApplication of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from gantry_broker.contracts.table_runs import RunOrder, RunReport, TableOrder, from_text

from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.table import Tables
from gantry_operator.cluster.platform import TableRun
from gantry_operator.cluster.store_unavailable import StoreUnavailable
from gantry_operator.plan.plan import Plan
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.analytics.applications import ActiveRun, Applications
from gantry_operator.platforms.kubernetes.analytics.jobs import ended
from gantry_operator.platforms.kubernetes.analytics.status import result_of
from gantry_operator.platforms.kubernetes.api.client import JOB, SECRET, ApiError, ApiUnavailable, KubeApi, Object
from gantry_operator.platforms.kubernetes.api.informer_cache import InformerCache
from gantry_operator.platforms.kubernetes.api.pod_state import why_not
from gantry_operator.platforms.kubernetes.manifests import spark_application
from gantry_operator.platforms.kubernetes.manifests.desired_objects import OperatorSettings
from gantry_operator.platforms.kubernetes.objects.object_reconciler import ObjectReconciler, ReconcileResult
from gantry_operator.platforms.kubernetes.tables import manifests
from gantry_operator.tables.schedule import started_ms

JOBS: Final = "Job of tables"
PODS: Final = "Pod of tables"
"""Names of the caches for runs. Their objects carry `names.TABLES_LABEL`."""
ACTIVE: Final = "a run is active already"
GOES: Final = "the former run is being removed"
TRIES: Final = 20
PAUSE_S: Final = 0.5
"""Seconds between two looks whether the object of the former run is gone."""


class KubernetesTableRuns:
    """The runs of one cluster."""

    def __init__(
        self,
        api: KubeApi,
        caches: Mapping[str, InformerCache],
        objects: ObjectReconciler,
        settings: OperatorSettings,
        key: tuple[str, str],
        spec: Callable[[], tuple[BrokerCluster, Plan] | None],
    ) -> None:
        """`key`: namespace and name of the cluster. `spec`: what is carried out; None: nothing yet."""
        self._api = api
        self._caches = caches
        self._objects = objects
        self._settings = settings
        self._namespace, self._name = key
        self._spec = spec
        self._applications = Applications(api, key[0], f"{names.TABLES_LABEL}={key[1]}", "spec.tables")
        self._started: Object | None = None
        """A Job that the watch has not brought yet."""

    def _job(self) -> Object | None:
        job = self._caches[JOBS].get(self._namespace, manifests.name_of(self._name))
        started = self._started
        if started is None:
            return job
        if job is not None and job["metadata"]["uid"] == started["metadata"]["uid"]:
            self._started = None
            return job
        return started

    async def newest(self) -> TableRun | None:
        if not self._settings.spark_image:
            return None  # The chart grants no right to Jobs.
        if not (self._caches[JOBS].listed and self._caches[PODS].listed):
            raise StoreUnavailable("the API server has not listed the Jobs yet")
        job = self._job()
        runs = [] if job is None else [self._run(job, manifests.order_of(job), self._pods(job))]
        planned = self._spec()
        if planned is not None and planned[0].spec.tables is not None and _by_application(planned[0].spec.tables):
            runs += await self._of_applications()
        return max(runs, key=lambda run: run.started_ms, default=None)

    async def _of_applications(self) -> list[TableRun]:
        try:
            there = await self._applications.look()
        except (ApiError, ApiUnavailable) as error:
            raise StoreUnavailable(f"the SparkApplications of the tables cannot be read: {error}") from error
        if not there:
            raise StoreUnavailable(str(self._applications.problem))
        runs = []
        cached = list(self._caches[PODS].of(self._namespace, names.TABLES_LABEL, self._name))
        for app in self._applications.apps:
            job, drivers = spark_application.as_job(app, cached)
            run = self._run(job, manifests.order_of(app), drivers)
            problem = self._applications.problem
            runs.append(replace(run, problem=problem) if run.running and problem is not None else run)
        return runs

    def _run(self, job: Object, ordered: RunOrder | None, pods: Sequence[Object]) -> TableRun:
        """Return a run. `job`: a Job, or a SparkApplication in the form of one; `pods`: its drivers."""
        name = "" if ordered is None else ordered.run
        pod = max(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp") or ""), default=None)
        report, why = _left_by(pod)
        if report is not None and report.run != name:
            report = None
        result, reason = result_of(job)
        running = not ended(job)
        if running:
            why = why_not(pod, "") if pod is not None else ""
        elif result == "Failed":
            why = why or reason or "the Job failed"
        return TableRun(
            name,
            running,
            started_ms(name),
            frozenset() if ordered is None else frozenset(t.topic for t in ordered.tables),
            report,
            why,
        )

    def _pods(self, job: Object) -> list[Object]:
        """Return the pods of a Job. Executors have the same labels, but another owner."""
        uid = job["metadata"].get("uid")
        return [
            pod
            for pod in self._caches[PODS].of(self._namespace, names.TABLES_LABEL, self._name)
            if any(o.get("uid") == uid for o in pod["metadata"].get("ownerReferences") or [])
        ]

    async def start(self, name: str, tables: Sequence[TableOrder], spec: Tables, lasts_s: float) -> None:
        planned = self._spec()
        if planned is None:
            raise StoreUnavailable("the spec of the cluster was not read yet")
        cluster, plan = planned
        try:
            pods = manifests.pods_of(cluster, spec, self._settings.spark_image)
        except manifests.NotPossible as error:
            raise StoreUnavailable(str(error)) from error
        ordered = manifests.order(cluster, plan, pods, spec, name, tables, lasts_s)
        try:
            await self._check_secret(spec)
            await self._apply(manifests.objects(pods, spec))
            if _by_application(spec):
                await self._start_application(manifests.application(pods, ordered))
            else:
                await self._no_application()
                await self._no_job(manifests.name_of(self._name))
                self._started = await self._api.create(manifests.job(pods, ordered))
        except (ApiError, ApiUnavailable) as error:
            raise StoreUnavailable(f"the run of the tables cannot be started: {error}") from error

    async def _check_secret(self, spec: Tables) -> None:
        """Refuse a Secret that nobody has meant for a catalog: a run sends its content to the address in the spec, and
        the author of the spec may not be allowed to read Secrets. Raises StoreUnavailable, ApiError, ApiUnavailable.
        """
        if spec.catalogSecret is None:
            return
        secret = await self._api.get(SECRET, self._namespace, spec.catalogSecret)
        if secret is None:
            raise StoreUnavailable(f"Secret {spec.catalogSecret} (spec.tables.catalogSecret) does not exist")
        if (secret["metadata"].get("labels") or {}).get(names.CATALOG_LABEL) != "true":
            raise StoreUnavailable(
                f"Secret {spec.catalogSecret} is not meant for a catalog: give it the label {names.CATALOG_LABEL}=true"
            )

    async def _apply(self, needed: Sequence[Object]) -> None:
        result = ReconcileResult()
        for obj in needed:
            if not await self._objects.apply(obj, result):
                reason = "; ".join(result.problems) or f"{obj['kind']} {obj['metadata']['name']} is being replaced"
                raise StoreUnavailable(reason)

    async def _no_job(self, name: str) -> None:
        """Delete the former Job. The API server knows best whether one is there: the watch may be late."""
        former = await self._api.get(JOB, self._namespace, name)
        if former is not None:
            if not ended(former):
                raise StoreUnavailable(ACTIVE)
            await self._api.delete(JOB, self._namespace, name, uid=former["metadata"]["uid"])

    async def _no_application(self) -> None:
        """Delete the SparkApplication of a former spec."""
        if await self._applications.look():
            if not all(spark_application.ended(app) for app in self._applications.apps):
                raise StoreUnavailable(ACTIVE)
            if self._applications.apps and not await self._applications.remove():
                raise StoreUnavailable(GOES)

    async def _start_application(self, app: Object) -> None:
        await self._no_job(app["metadata"]["name"])
        for _ in range(TRIES):
            try:
                if await self._applications.start(app) is not None:
                    return
            except ActiveRun as error:
                raise StoreUnavailable(ACTIVE) from error
            if self._applications.problem is not None:
                raise StoreUnavailable(self._applications.problem)
            await asyncio.sleep(PAUSE_S)
        raise StoreUnavailable(GOES)

    async def stop(self) -> None:
        job = self._job()
        planned = self._spec()
        try:
            if planned is not None and planned[0].spec.tables is not None and _by_application(planned[0].spec.tables):
                await self._applications.remove()
            if job is not None and not ended(job):
                await self._api.delete(JOB, self._namespace, job["metadata"]["name"], uid=job["metadata"]["uid"])
                self._started = None
        except (ApiError, ApiUnavailable) as error:
            raise StoreUnavailable(f"the run of the tables cannot be stopped: {error}") from error


def _by_application(spec: Tables) -> bool:
    return spec.engine == "SparkApplication"


def _left_by(pod: Object | None) -> tuple[RunReport | None, str]:
    """Return the report in the termination message of a pod, and why its container ended."""
    for container in ((pod or {}).get("status") or {}).get("containerStatuses", []):
        terminated = (container.get("state") or {}).get("terminated")
        if terminated is None:
            continue
        report = from_text(terminated.get("message"))
        if terminated.get("reason") == "OOMKilled":
            return report, "the driver ran out of memory: raise spec.tables.resources.driver.limits.memory"
        code = terminated.get("exitCode")
        return report, f"the driver ended with exit code {code}: read its log" if code else ""
    return None, ""
