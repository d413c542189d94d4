"""The part of an operator for one cluster's report, with an API server in memory."""

from __future__ import annotations

from typing import Any

from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.plan.plan import plan
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.analytics import reconciler as reports
from gantry_operator.platforms.kubernetes.analytics.manifests import ANALYZE_ANNOTATION, JOB_LABEL
from gantry_operator.platforms.kubernetes.api.client import KINDS
from gantry_operator.platforms.kubernetes.api.events import EventRecorder
from gantry_operator.platforms.kubernetes.api.informer_cache import InformerCache
from gantry_operator.platforms.kubernetes.manifests.desired_objects import OperatorSettings
from gantry_operator.platforms.kubernetes.objects.object_reconciler import ObjectReconciler, ReconcileResult
from gantry_operator.platforms.kubernetes.operator import CACHED

from tests.kubernetes.fake_api import FakeApi

SETTINGS = OperatorSettings("broker:1", "spark:1")
NAME = "demo-analytics"


class ReportRig:
    def __init__(self, fake: FakeApi, cluster: BrokerCluster, uid: str) -> None:
        self.fake = fake
        self.caches = {k: InformerCache(fake.api, KINDS[k], [], names.CLUSTER_LABEL, self._heard) for k in CACHED}
        for name, kind in ((reports.JOBS, "Job"), (reports.PODS, "Pod")):
            self.caches[name] = InformerCache(fake.api, KINDS[kind], [], JOB_LABEL, self._heard)
        self.cluster = cluster
        self.cluster.metadata.uid = uid
        self.events = EventRecorder(fake.api, "mq", "demo", uid, "test")
        objects = ObjectReconciler(fake.api, self.caches, SETTINGS, "mq", "demo", uid)
        self.report = reports.AnalyticsReconciler(fake.api, self.caches, objects, SETTINGS, self.events)

    def _heard(self, _: str, obj: dict[str, Any]) -> None:
        if obj["kind"] == "Pod":
            self.report.applications.saw(obj)

    async def keep(self) -> bool:
        return await self.report.keep(self.cluster, plan(self.cluster), ReconcileResult())

    async def ask(self) -> bool:
        """Whether the request was answered."""
        resource = dict(self.fake.get("BrokerCluster", "demo") or {})
        resource["metadata"] |= {"annotations": {ANALYZE_ANNOTATION: "now"}}
        left = await self.report.run_if_asked(self.cluster, self.fake.put(resource))
        assert left is None or not left["metadata"].get("annotations")
        return left is not None

    async def reasons(self) -> list[str]:
        await self.events.close()
        return [o["reason"] for (kind, _, _), o in self.fake.objects.items() if kind == "Event"]
