"""All Kubernetes objects of one cluster, as plain objects in the order in which they are applied.

Three things are not included: the admin Secret (created once, never rendered again), the Leases with leadership records
(the failover writes them; they outlive the cluster while its volumes are kept), and the labels for the master's role.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gantry_broker.config import OtlpConfig

from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.spec import Otlp
from gantry_operator.plan.plan import Plan
from gantry_operator.platforms.kubernetes.manifests import (
    access,
    broker_group,
    external,
    name_servers,
    proxies,
    verification,
)

NAME_SERVERS = ""
"""The NameServers among the groups of `running`."""
Key = tuple[str, str]
"""Kind and name."""


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """The settings from the chart."""

    broker_image: str
    spark_image: str = ""
    namespace: str = "default"
    """The operator's namespace."""
    service: str = ""
    """Name of the operator's Service, which requests to its own HTTP pages may use as Host; empty: none."""
    watch_namespaces: tuple[str, ...] = ()
    """Namespaces to watch; empty: all."""
    allowed_images: tuple[str, ...] = ()
    """Further images that clusters may use; * stands for any text."""
    allowed_spark_conf: tuple[str, ...] = ()
    """Further keys that `sparkConf` may have (see `allowed`); * stands for any text."""
    allowed_pod_template: tuple[str, ...] = ()
    """Parts of `podTemplate` that need a permission (see `pod_template.NEED_PERMISSION`) and have it."""
    allowed_labels: tuple[str, ...] = ()
    """Further labels of pods, as `key` or `key=value`; * stands for any text."""
    allowed_annotations: tuple[str, ...] = ()
    """The same for annotations of pods."""
    allowed_external_annotations: tuple[str, ...] = ()
    """The same for annotations of Services for clients outside."""
    allowed_hosts: tuple[str, ...] = ()
    """Names that external-dns may take for Services; * stands for any text."""
    upgrades_paused: bool = False
    """Clusters keep their default image although it has changed."""
    otlp: OtlpConfig | None = None
    """Where the operator pushes its own metrics; None: nowhere."""
    brokers_otlp: Otlp | None = None
    """Where brokers of clusters without `spec.otlp` push theirs; None: nowhere."""


def image(cluster: BrokerCluster, settings: OperatorSettings) -> str:
    return cluster.spec.image or settings.broker_image


def render(
    cluster: BrokerCluster,
    plan: Plan,
    settings: OperatorSettings,
    *,
    external_addresses: Mapping[str, str] | None = None,
    pinned_ports: Mapping[str, int] | None = None,
    replicas: Mapping[str, int] | None = None,
    running: Mapping[str, int] | None = None,
    hold: bool = False,
    running_proxies: int | None = None,
) -> list[dict[str, Any]]:
    """Return the objects of a cluster.

    With `spec.external` set, `external_addresses` must have every endpoint (see `external.addresses`); None: only the
    objects that must exist before the addresses are known. `replicas`: by group, the replicas of its StatefulSet while
    members leave. `running`: by group, the processes of a cluster that hibernates; without any the NameServers stop,
    too. `hold`: running NameServers are not replaced now.
    `running_proxies`: the present number of proxies; None: there is no Deployment.
    """
    if cluster.spec.otlp is None and settings.brokers_otlp is not None:
        spec = cluster.spec.model_copy(update={"otlp": settings.brokers_otlp})
        cluster = cluster.model_copy(update={"spec": spec})
    out = [service_account_and_policies(cluster, plan, settings), external.services(cluster, plan, pinned_ports)]
    if cluster.spec.external is None or external_addresses is not None:
        stopped = running is not None and running.get(NAME_SERVERS, 1) == 0
        out.append(name_servers.objects(cluster, plan, image(cluster, settings), stopped=stopped, hold=hold))
        for g in plan.groups:
            count = max(len(g.members), (replicas or {}).get(g.name, 0))
            addresses = external_addresses or {}
            fewer = None if running is None else running.get(g.name)
            out.append(broker_group.objects(cluster, plan, g, image(cluster, settings), addresses, count, fewer))
        ports = pinned_ports or {}
        outside = ports.get(external.proxy_endpoint(cluster).service)
        of_proxies = proxies.objects(
            cluster, plan, image(cluster, settings), settings.namespace, running=running_proxies, node_port=outside
        )
        for deployment in of_proxies:
            if running is not None and deployment["kind"] == "Deployment":
                deployment["spec"]["replicas"] = 0  # Their clients cannot send any more.
        out.append(of_proxies)
        if settings.spark_image:  # Otherwise the chart grants no right to CronJobs.
            out.append(verification.objects(cluster, image(cluster, settings)))
    return [o for part in out for o in part]


def service_account_and_policies(
    cluster: BrokerCluster, plan: Plan, settings: OperatorSettings
) -> list[dict[str, Any]]:
    return [access.service_account(cluster), *access.network_policies(cluster, plan, settings.namespace)]


def key(obj: Mapping[str, Any]) -> Key:
    return obj["kind"], obj["metadata"]["name"]
