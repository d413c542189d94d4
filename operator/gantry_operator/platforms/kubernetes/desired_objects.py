"""Everything that Kubernetes should hold for one cluster, as plain objects in the order of their application.

Not among them: the admin Secret (made once, never rendered anew), the role Leases (made by the failover; they outlive
the cluster while its volumes are kept), and the labels that say who is master.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gantry_operator.api import BrokerCluster
from gantry_operator.plan import Plan
from gantry_operator.platforms.kubernetes import access, external, group, nameserver

Key = tuple[str, str]
"""Kind and name."""


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """What the chart tells the operator."""

    broker_image: str
    spark_image: str = ""
    namespace: str = "default"
    """Where the operator runs."""
    service: str = ""
    """Name of the Service that leads to the operators: requests to their own HTTP may name it. Empty: there is none."""
    watch_namespaces: tuple[str, ...] = ()
    """Empty: all."""
    allowed_images: tuple[str, ...] = ()
    """Images that clusters may name besides those above; * stands for any text."""
    allowed_spark_conf: tuple[str, ...] = ()
    """Keys that `sparkConf` may have besides those that only tune (see `allowed`); * stands for any text."""


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
) -> list[dict[str, Any]]:
    """The objects of a cluster.

    With `spec.external` set, `external_addresses` must name every endpoint (see `external.addresses`); None: only what
    has to exist before they are known. `replicas`: of a group's StatefulSet, where members are still leaving.
    """
    out = [service_account_and_policy(cluster, settings), external.services(cluster, plan, pinned_ports)]
    if cluster.spec.external is None or external_addresses is not None:
        out.append(nameserver.objects(cluster, plan, image(cluster, settings)))
        for g in plan.groups:
            count = max(len(g.members), (replicas or {}).get(g.name, 0))
            out.append(group.objects(cluster, plan, g, image(cluster, settings), external_addresses or {}, count))
    return [o for part in out for o in part]


def service_account_and_policy(cluster: BrokerCluster, settings: OperatorSettings) -> list[dict[str, Any]]:
    return [access.service_account(cluster), access.network_policy(cluster, settings.namespace)]


def key(obj: Mapping[str, Any]) -> Key:
    return obj["kind"], obj["metadata"]["name"]
