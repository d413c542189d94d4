"""The operator's process: `python -m gantry_operator.platforms.kubernetes.operator`.

Several may run; one acts (`operator_lease`). kopf watches the BrokerClusters and calls the handlers below, which only
forward events to each cluster's `ClusterController`. `informer_cache` watches the operator's own objects.

The chart sets these environment variables: GANTRY_BROKER_IMAGE, GANTRY_SPARK_IMAGE, POD_NAMESPACE, POD_NAME, POD_IP,
GANTRY_SERVICE (name of the operator's Service), GANTRY_WATCH_NAMESPACES (separated by commas; empty: all),
GANTRY_ALLOWED_IMAGES and GANTRY_ALLOWED_SPARK_CONF (separated by commas, * for any text),
GANTRY_ALLOWED_POD_TEMPLATE (parts of podTemplate, separated by commas), GANTRY_ALLOWED_LABELS,
GANTRY_ALLOWED_ANNOTATIONS, GANTRY_ALLOWED_EXTERNAL_ANNOTATIONS (key or key=value, separated by commas, * for any text),
GANTRY_ALLOWED_HOSTS (names for external-dns, the same), GANTRY_UPGRADES (Paused: clusters keep their image),
GANTRY_HTTP_PORT, GANTRY_LOG_LEVEL,
GANTRY_OTLP_ENDPOINT (base URL of a collector for the operator's own metrics; empty: none), GANTRY_OTLP_INTERVAL (60s),
GANTRY_OTLP_BROKERS (true: brokers of clusters without spec.otlp push there, too).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterable
from typing import Any, NoReturn

import kopf
import uvloop
from gantry_broker import logs
from gantry_broker.config import OtlpConfig
from gantry_broker.http.otlp import OtlpPush
from gantry_broker.tasks import set_within
from prometheus_client.core import Metric

from gantry_operator.api.annotations import GROUP
from gantry_operator.api.base import parse_duration
from gantry_operator.api.cluster import PLURAL, VERSION
from gantry_operator.api.spec import Otlp
from gantry_operator.cluster.maintenance import UpgradeQueue
from gantry_operator.cluster.stall_compensated_clock import StallCompensatedClock
from gantry_operator.platforms.kubernetes import allowed, names
from gantry_operator.platforms.kubernetes.analytics import reconciler as reports
from gantry_operator.platforms.kubernetes.analytics.manifests import JOB_LABEL
from gantry_operator.platforms.kubernetes.api.client import (
    KINDS,
    ApiError,
    ApiUnavailable,
    KubeApi,
    Object,
    load_config,
)
from gantry_operator.platforms.kubernetes.api.informer_cache import SILENCE_S, WATCH_S, InformerCache
from gantry_operator.platforms.kubernetes.api.operator_lease import Election
from gantry_operator.platforms.kubernetes.manifests.desired_objects import OperatorSettings
from gantry_operator.platforms.kubernetes.manifests.pod_template_merge import NEED_PERMISSION
from gantry_operator.platforms.kubernetes.monitoring import metrics
from gantry_operator.platforms.kubernetes.monitoring.health_server import HealthServer
from gantry_operator.platforms.kubernetes.reconcile.cluster_controller import ClusterController
from gantry_operator.platforms.kubernetes.reconcile.cluster_platform import Shared
from gantry_operator.platforms.kubernetes.resources.topics import release
from gantry_operator.platforms.kubernetes.resources.topics import stray_status as stray_resource
from gantry_operator.platforms.kubernetes.resources.users import stray_status
from gantry_operator.platforms.kubernetes.tables import runs as table_runs

log = logging.getLogger(__name__)

LEASE_NAME = "gantry-operator"
CACHED = (
    "ConfigMap", "CronJob", "Deployment", "HorizontalPodAutoscaler", "Lease", "NetworkPolicy",
    "PersistentVolumeClaim", "Pod", "PodDisruptionBudget", "Role", "RoleBinding", "Secret", "Service", "ServiceAccount",
    "StatefulSet",
)  # fmt: skip
FOR_FAILOVER = ("ConfigMap", "Lease", "PersistentVolumeClaim", "Pod", "Secret", "StatefulSet")
OF_USERS = ("BrokerUser", "BrokerTopic", "ConsumerGroup")
"""Kinds that users make beside a cluster, which they name in spec.cluster: they need no label."""
STRAYS_EVERY_S = 10.0
LISTED_S = 2.0
"""Seconds for which the failover waits for the other kinds at a start."""
FOR_REPORTS = (
    "CronJob", "Role", "RoleBinding", reports.JOBS, reports.PODS, table_runs.JOBS, table_runs.PODS,
)  # fmt: skip


class Operator:
    """All active parts, which run while this process leads."""

    def __init__(self, api: KubeApi, settings: OperatorSettings, identity: str) -> None:
        self._api = api
        self._settings = settings
        self.clusters: dict[tuple[str, str], ClusterController] = {}
        self.caches = {
            k: InformerCache(api, KINDS[k], settings.watch_namespaces, names.CLUSTER_LABEL, self._listener(k))
            for k in CACHED
        }
        for name in OF_USERS:
            heard = self._listener_of_users(name)
            self.caches[name] = InformerCache(api, KINDS[name], settings.watch_namespaces, "", heard)
        for name, kind, label in (
            (reports.JOBS, "Job", JOB_LABEL), (reports.PODS, "Pod", JOB_LABEL),
            (table_runs.JOBS, "Job", names.TABLES_LABEL), (table_runs.PODS, "Pod", names.TABLES_LABEL),
        ):  # fmt: skip
            heard = self._listener(name, label)
            self.caches[name] = InformerCache(api, KINDS[kind], settings.watch_namespaces, label, heard)
        self.shared = Shared(api, settings, self.caches, StallCompensatedClock(), identity)
        self.shared.unlisted = self._unlisted
        self._stray = asyncio.Event()
        """A cluster goes, or a resource without one does."""
        self.shared.upgrades = UpgradeQueue(paused=settings.upgrades_paused)

    def _listener(self, kind: str, label: str = names.CLUSTER_LABEL) -> Any:
        def heard(event: str, obj: Object) -> None:
            meta = obj["metadata"]
            cluster = (meta.get("labels") or {}).get(label, "")
            controller = self.clusters.get((meta.get("namespace", ""), cluster))
            if controller is not None:
                controller.heard(event, kind, obj)

        return heard

    def _listener_of_users(self, kind: str) -> Any:
        def heard(event: str, obj: Object) -> None:
            cluster = str((obj.get("spec") or {}).get("cluster", ""))
            controller = self.clusters.get((obj["metadata"].get("namespace", ""), cluster))
            if controller is not None:
                controller.heard(event, kind, obj)
            if obj["metadata"].get("deletionTimestamp") is not None and (controller is None or controller.ending):
                self._stray.set()

        return heard

    async def _name_strays(self) -> None:
        """Show resources that their cluster does not exist. After a start kopf needs a moment to list the clusters.

        Later a resource that is being deleted goes as soon as its cluster does: both may be in a namespace that goes,
        with this operator's own pod.
        """
        await asyncio.sleep(STRAYS_EVERY_S)
        while True:
            self._stray.clear()
            for kind in OF_USERS:
                for obj in self.caches[kind].everywhere():
                    await self.name_stray(kind, obj)
            await set_within(self._stray, STRAYS_EVERY_S)

    async def name_stray(self, kind: str, obj: Object) -> None:
        meta = obj["metadata"]
        cluster = str((obj.get("spec") or {}).get("cluster", ""))
        controller = self.clusters.get((meta.get("namespace", ""), cluster))
        if controller is not None and not (controller.ending and meta.get("deletionTimestamp") is not None):
            return
        try:
            if meta.get("deletionTimestamp") is not None:
                await release(self._api, KINDS[kind], obj)
                return
            status = stray_status(obj) if kind == "BrokerUser" else stray_resource(obj)
            if status is not None:
                await self._api.merge(KINDS[kind], meta["namespace"], meta["name"], {"status": status}, "status")
        except (ApiError, ApiUnavailable) as error:
            log.warning("status of %s %s: %s", kind, meta["name"], error)

    def followed(self) -> dict[str, InformerCache]:
        """Without an image for reports the chart grants no rights for them, so their kinds are not watched."""
        for_reports = () if self._settings.spark_image else FOR_REPORTS
        return {k: m for k, m in self.caches.items() if k not in for_reports}

    def _unlisted(self) -> list[str]:
        return [k for k, m in self.followed().items() if not m.listed]

    async def run(self) -> None:
        """Run until cancelled, or until a signal ends kopf, which handles signals."""
        try:
            async with asyncio.TaskGroup() as group:
                followed = self.followed()
                following = [group.create_task(m.run()) for m in followed.values()]
                await asyncio.gather(*(followed[k].ready() for k in FOR_FAILOVER))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LISTED_S):
                        await asyncio.gather(*(m.ready() for m in followed.values()))
                following.append(group.create_task(self._name_strays()))
                await self._kopf()
                for task in following:
                    task.cancel()
        finally:
            await asyncio.gather(*(k.stop() for k in self.clusters.values()), return_exceptions=True)

    async def _kopf(self) -> None:
        registry = kopf.OperatorRegistry()
        kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)(self.on_cluster)
        kopf.on.startup(registry=registry)(_configure)
        kopf.on.login(registry=registry)(_login)
        namespaces = self._settings.watch_namespaces
        await kopf.operator(
            registry=registry,
            standalone=True,
            clusterwide=not namespaces,
            namespaces=list(namespaces),
            indexers=None,
        )

    async def on_cluster(self, event: Any, body: Any, **_: Any) -> None:
        """Handle a call of kopf: a BrokerCluster changed (None: it existed at the start)."""
        obj = _plain(body)
        meta = obj["metadata"]
        key = (meta["namespace"], meta["name"])
        controller = self.clusters.get(key)
        if controller is not None and controller.uid != meta["uid"] and event["type"] == "DELETED":
            return  # From a former object: kopf keeps the order of one object's events only.
        if controller is not None and (event["type"] == "DELETED" or controller.uid != meta["uid"]):
            del self.clusters[key]
            self._stray.set()
            await controller.give_back()
            await controller.stop()
            controller = None
        if event["type"] != "DELETED":
            if controller is None:
                controller = self.clusters[key] = ClusterController(self.shared, obj)
                controller.start()
            else:
                controller.update(obj)
            if controller.ending:
                self._stray.set()
        metrics.CLUSTERS.set(len(self.clusters))


def _plain(value: Any) -> Any:
    """Return kopf's views as ordinary dictionaries and lists."""
    if isinstance(value, dict) or hasattr(value, "items"):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


async def _login(**kwargs: Any) -> kopf.ConnectionInfo | None:
    """Log in like the rest of this process: the pod's own account, else the kubeconfig."""
    return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)


async def _configure(settings: kopf.OperatorSettings, **_: Any) -> None:
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.watching.server_timeout = WATCH_S
    settings.watching.client_timeout = SILENCE_S
    settings.watching.connect_timeout = 10
    settings.networking.request_timeout = 30


async def serve(settings: OperatorSettings, identity: str, http_port: int, host: str = "") -> int:
    """Run until a signal (0) or a failure (1). After a lost leadership the process starts again, as a standby."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sig in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sig, stop.set)
    configuration = await load_config()
    service = names.host_forms(names.service_host(settings.service, settings.namespace)) if settings.service else []
    server = HealthServer(http_port, names=service)
    pushing = _pushing(settings.otlp, identity)
    # Lease renewals use their own connections: they must not wait behind the requests for many clusters.
    count = metrics.api_request
    async with KubeApi(configuration, count) as api, KubeApi(configuration, count) as own, server as health, pushing:
        address = f"{host}:{http_port}" if host else ""
        election = Election(own, settings.namespace, LEASE_NAME, identity, address)
        stopping = asyncio.create_task(stop.wait())
        acquiring = asyncio.create_task(election.acquire())
        await asyncio.wait({stopping, acquiring}, return_when=asyncio.FIRST_COMPLETED)
        if not acquiring.done():
            acquiring.cancel()
            return 0
        metrics.LEADER.set(1)
        operator = Operator(api, settings, identity)
        health.follow(operator.followed())
        acting = asyncio.create_task(operator.run())
        holding = asyncio.create_task(election.hold())
        done, _ = await asyncio.wait({stopping, acting, holding}, return_when=asyncio.FIRST_COMPLETED)
        metrics.LEADER.set(0)
        if holding in done:
            _start_again()
        holding.cancel()
        acting.cancel()
        with contextlib.suppress(asyncio.CancelledError, TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.gather(acting, return_exceptions=True)
        await election.release()
        if acting in done and acting.exception() is not None:
            log.error("the operator failed", exc_info=acting.exception())
            return 1
    return 0


def _start_again() -> NoReturn:
    """Replace this program by a fresh one, without any clean-up: another operator may act from now on.

    The container does not end. Otherwise the kubelet would wait longer before each start (up to 5 minutes), and after
    a few minutes with a slow API server no operator would be there to fail over.
    """
    logging.shutdown()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


@contextlib.asynccontextmanager
async def _pushing(config: OtlpConfig | None, identity: str) -> AsyncIterator[None]:
    """Push the operator's metrics, if that is configured; a standby pushes, too."""
    if config is None:
        yield
        return

    async def collect() -> Iterable[Metric]:
        return list(metrics.REGISTRY.collect())

    push = OtlpPush(config, collect, "gantry-operator", identity)
    metrics.SHOWN.further.append(push.family)
    push.start()
    try:
        yield
    finally:
        metrics.SHOWN.further.remove(push.family)
        await push.close()


def settings_from(environ: dict[str, str]) -> OperatorSettings:
    """Read the environment. Raises SystemExit with the missing setting."""
    image = environ.get("GANTRY_BROKER_IMAGE", "")
    if not image:
        raise SystemExit("GANTRY_BROKER_IMAGE is not set: name the brokers' image")

    def listed(name: str) -> tuple[str, ...]:
        return tuple(word.strip() for word in environ.get(name, "").split(",") if word.strip())

    spark_conf = listed("GANTRY_ALLOWED_SPARK_CONF")
    for entry in spark_conf:
        why = allowed.bad_pattern(entry)
        if why:
            raise SystemExit(f"GANTRY_ALLOWED_SPARK_CONF (analytics.allowedSparkConf of the chart): {entry}: {why}")
    parts = listed("GANTRY_ALLOWED_POD_TEMPLATE")
    for part in parts:
        if part not in NEED_PERMISSION:
            raise SystemExit(
                f"GANTRY_ALLOWED_POD_TEMPLATE (podTemplate.allowed of the chart): {part}: write some of "
                f"{', '.join(NEED_PERMISSION)}"
            )
    otlp = None
    if environ.get("GANTRY_OTLP_ENDPOINT"):
        try:
            interval_s = parse_duration(environ.get("GANTRY_OTLP_INTERVAL") or "60s")
            otlp = OtlpConfig(endpoint=environ["GANTRY_OTLP_ENDPOINT"], interval_s=interval_s)
        except ValueError as error:
            raise SystemExit(
                f"GANTRY_OTLP_ENDPOINT or GANTRY_OTLP_INTERVAL (1s to 1h), otlp of the chart: {error}"
            ) from None
    brokers_otlp = None
    if environ.get("GANTRY_OTLP_BROKERS", "") == "true":
        if otlp is None:
            raise SystemExit(
                "GANTRY_OTLP_BROKERS (otlp.brokers of the chart) is true: otlp.endpoint must name a collector"
            )
        brokers_otlp = Otlp(endpoint=otlp.endpoint, interval=environ.get("GANTRY_OTLP_INTERVAL") or "60s")
    return OperatorSettings(
        broker_image=image,
        spark_image=environ.get("GANTRY_SPARK_IMAGE", ""),
        namespace=environ.get("POD_NAMESPACE", "default"),
        service=environ.get("GANTRY_SERVICE", ""),
        watch_namespaces=listed("GANTRY_WATCH_NAMESPACES"),
        allowed_images=listed("GANTRY_ALLOWED_IMAGES"),
        allowed_spark_conf=spark_conf,
        allowed_pod_template=parts,
        allowed_labels=listed("GANTRY_ALLOWED_LABELS"),
        allowed_annotations=listed("GANTRY_ALLOWED_ANNOTATIONS"),
        allowed_external_annotations=listed("GANTRY_ALLOWED_EXTERNAL_ANNOTATIONS"),
        allowed_hosts=listed("GANTRY_ALLOWED_HOSTS"),
        upgrades_paused=environ.get("GANTRY_UPGRADES", "") == "Paused",
        otlp=otlp,
        brokers_otlp=brokers_otlp,
    )


def main() -> int:
    logs.configure(os.environ.get("GANTRY_LOG_LEVEL", "INFO"))
    settings = settings_from(dict(os.environ))
    identity = os.environ.get("POD_NAME") or f"{socket.gethostname()}-{os.getpid()}"
    port = int(os.environ.get("GANTRY_HTTP_PORT", "8080"))
    return uvloop.run(serve(settings, identity, port, os.environ.get("POD_IP", "")))


if __name__ == "__main__":
    raise SystemExit(main())
