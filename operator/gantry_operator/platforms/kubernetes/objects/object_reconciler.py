"""Applies the desired objects of one cluster. Equal objects are not written."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.plan.plan import Plan
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.api.client import (
    KINDS,
    STATEFUL_SET,
    ApiError,
    ApiUnavailable,
    KubeApi,
    Object,
)
from gantry_operator.platforms.kubernetes.api.informer_cache import InformerCache
from gantry_operator.platforms.kubernetes.manifests import access, external, proxies, verification
from gantry_operator.platforms.kubernetes.manifests.desired_objects import OperatorSettings, render
from gantry_operator.platforms.kubernetes.monitoring import metrics
from gantry_operator.platforms.kubernetes.objects import drift, managed_fields

log = logging.getLogger(__name__)

REMOVABLE = {
    "Service": (names.BROKER, names.NAME_SERVER, names.PROXY),
    "ConfigMap": (names.BROKER, names.NAME_SERVER, names.PROXY),
    "PodDisruptionBudget": (names.BROKER, names.NAME_SERVER, names.PROXY),
    "HorizontalPodAutoscaler": (names.PROXY,),
    "Deployment": (names.PROXY,),
    "NetworkPolicy": (names.PROXY,),
    "Secret": (names.PROXY,),
    "CronJob": (names.VERIFICATION,),
}
"""Kinds that a former spec may have left behind, and of which components. StatefulSets are not included, because groups
are never removed.
"""

ADDITIONS_REMOVED = ("StatefulSet", "Deployment", "Service", "ConfigMap", "PodDisruptionBudget")
"""Kinds without fields that others add on purpose. Kubernetes itself adds the volume to a claim, for example."""
REMOVAL_PAUSE_S = 60.0
"""Seconds between two removals of fields that others added to one object."""


@dataclass
class ReconcileResult:
    """The result of one pass: failures, changes in progress, and why the spec is refused."""

    problems: list[str] = field(default_factory=list)
    progress: list[str] = field(default_factory=list)
    refused: str = ""


class ObjectReconciler:
    """The reconciler of one cluster object, identified by its uid. Objects of other clusters are never changed."""

    def __init__(
        self, api: KubeApi, caches: Mapping[str, InformerCache], settings: OperatorSettings, namespace: str, name: str,
        uid: str,
    ) -> None:  # fmt: skip
        self.token: str | None = None
        self._api = api
        self._caches = caches
        self._settings = settings
        self.namespace = self._namespace = namespace
        self.name = self._name = name
        self._uid = uid
        self._pinned: dict[str, int] = {}
        self._next_removal: dict[tuple[str, str], float] = {}
        """By kind and name: the earliest time of the next removal of fields that others added (monotonic seconds)."""

    def owned(self, kind: str) -> list[Object]:
        objects = self._caches[kind].of(self._namespace, names.CLUSTER_LABEL, self._name)
        return [o for o in objects if drift.owned_by(o, self._uid)]

    def live(self, kind: str, name: str) -> Object | None:
        """Return the object as the watch reported it last."""
        return self._caches[kind].get(self._namespace, name)

    async def keep_secret(self, cluster: BrokerCluster, result: ReconcileResult) -> bool:
        """Keep the admin token, which is created once. A deleted Secret is created again with the brokers' token.

        While the API server refuses it, steps without need of the token go on. False: the Secret is not right yet, so
        look again.
        """
        name = names.admin_secret(cluster.name)
        live = self.live("Secret", name)
        token = None if live is None else access.token_of(live)
        if live is not None and token is not None and not drift.owned_by(live, self._uid):
            # The Secret belongs to a former cluster of this name and will be deleted: wait.
            result.problems.append(f"Secret {name} belongs to a former cluster object and will be deleted")
            return False
        if token is None:
            token = self.token or secrets.token_urlsafe(32)
            try:
                await self._write(access.admin_secret(cluster, token))
            except (ApiError, ApiUnavailable) as error:
                if self.token is None:
                    raise
                result.problems.append(str(error))
                return False
        self.token = token
        return True

    async def keep(
        self, cluster: BrokerCluster, plan: Plan, sizes: Mapping[str, int], result: ReconcileResult,
        *, running: Mapping[str, int] | None = None, hold: bool = False,
    ) -> bool:  # fmt: skip
        """One pass over all objects. False: it is not complete yet, so look again. `running`, `hold`: see `render`."""
        addresses: dict[str, str] | None = None
        complete = True
        self._pin_ports(cluster, plan)
        if cluster.spec.external is not None:
            services = {o["metadata"]["name"]: o for o in self.owned("Service")}
            by_service, missing = external.addresses(cluster, plan, services)
            addresses = None if missing else by_service
            if missing:
                complete = False
                result.progress.append(f"waiting for external addresses of {', '.join(missing)}")
        objects = render(
            cluster,
            plan,
            self._settings,
            external_addresses=addresses,
            pinned_ports=self._pinned,
            replicas=sizes,
            running=running,
            hold=hold,
            running_proxies=proxies.running_replicas(self.live("Deployment", names.proxies(cluster.name))),
        )
        if not_verified := verification.problem(cluster, rights=bool(self._settings.spark_image)):
            result.problems.append(not_verified)
        waiting = proxies.missing_secrets(cluster, self.live)
        if waiting:
            result.progress.append(f"proxies wait for Secret {', '.join(waiting)}")
        for obj in objects:
            if obj["kind"] == "Deployment" and waiting:
                complete = False
                continue
            complete = await self.apply(obj, result) and complete
        if complete:
            kept = {("Secret", name) for name in proxies.kept_secrets(cluster)}
            await self._remove_unwanted(kept | {(o["kind"], o["metadata"]["name"]) for o in objects})
        return complete

    def _pin_ports(self, cluster: BrokerCluster, plan: Plan) -> None:
        for e in (*external.endpoints(cluster, plan), external.proxy_endpoint(cluster)):
            live = self.live("Service", e.service)
            port = None if live is None else live["spec"]["ports"][0].get("nodePort")
            if port is not None:
                self._pinned[e.service] = port

    async def apply(self, obj: Object, result: ReconcileResult) -> bool:
        """Apply the object if it differs. False: it could not be applied now."""
        kind, name = obj["kind"], obj["metadata"]["name"]
        live = self.live(kind, name)
        if live is None:
            live = await self._api.get(KINDS[kind], self._namespace, name)
        if live is not None:
            if not drift.owned_by(live, self._uid):
                result.problems.append(
                    f"{kind} {name} exists and is not of this cluster: delete it, or give the cluster another name"
                )
                return False
            if live["metadata"].get("deletionTimestamp") is not None:
                return False
            former, added = managed_fields.surplus(obj, live)
            if added and kind in ADDITIONS_REMOVED and not await self._remove_added(obj, live, added):
                return False
            wrong = drift.outdated(obj, live) + former + drift.classes_removed(obj, live)
            if not wrong:
                return True
            where = ", ".join(wrong[:5])
            log.info("%s %s differs at %s", kind, name, where, extra={"cluster": f"{self._namespace}/{self._name}"})
            if kind == "StatefulSet" and any(w.startswith(".spec.volumeClaimTemplates") for w in wrong):
                # The template of volume claims is immutable. The pods stay, and the new set adopts them.
                await self._api.delete(STATEFUL_SET, self._namespace, name, uid=live["metadata"]["uid"], orphan=True)
                return False
        await self._write(obj)
        return True

    async def _remove_added(self, obj: Object, live: Object, added: Sequence[managed_fields.Path]) -> bool:
        """Remove fields that others added. False: the object changed meanwhile, so look again.

        At most once a minute for an object: something may add them each time.
        """
        kind, name = obj["kind"], obj["metadata"]["name"]
        now = time.monotonic()
        if now < self._next_removal.get((kind, name), 0.0):
            return True
        self._next_removal[kind, name] = now + REMOVAL_PAUSE_S
        log.info("%s %s: removing fields that the spec does not have: %s", kind, name, added[:5])
        try:
            parts = managed_fields.without(live, obj, added)
            written = await self._api.replace_parts(KINDS[kind], live, parts)
        except ApiError as error:
            if error.reason != "Conflict":
                raise
            self._next_removal.pop((kind, name))
            return False
        metrics.WRITES.labels(kind).inc()
        self._caches[kind].note(written)
        return True

    async def _write(self, obj: Object) -> None:
        written = await self._api.apply(obj)
        metrics.WRITES.labels(obj["kind"]).inc()
        self._caches[obj["kind"]].note(written)

    async def _remove_unwanted(self, desired: set[tuple[str, str]]) -> None:
        for kind, components in REMOVABLE.items():
            for obj in self.owned(kind):
                meta = obj["metadata"]
                ours = meta["labels"].get(names.COMPONENT_LABEL) in components
                if ours and (kind, meta["name"]) not in desired and meta.get("deletionTimestamp") is None:
                    await self._api.delete(KINDS[kind], self._namespace, meta["name"], uid=meta["uid"])
