"""Addresses for clients outside the cluster (`spec.external`): Services, and the resulting addresses.

Each NameServer, each group's master and each member has one Service. A broker's external address (a node port, a load
balancer's host) is known only after its Service exists, so the Services are created first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.external import External
from gantry_operator.plan.plan import Plan
from gantry_operator.platforms.kubernetes import names


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One desired Service: its name, its pods and the name of their port."""

    name: str
    group: str
    component: str
    selector: Mapping[str, str]
    port: int
    target: str
    even_if_unready: bool = False

    @property
    def service(self) -> str:
        return names.external_service(self.name)


def endpoints(cluster: BrokerCluster, plan: Plan) -> list[Endpoint]:
    pod = "statefulset.kubernetes.io/pod-name"
    all_endpoints = [
        Endpoint(
            s.name,
            "",
            names.NAME_SERVER,
            names.selector(cluster.name, names.NAME_SERVER) | {pod: s.name},
            names.NAME_SERVER_PORT,
            "external",
        )
        for s in plan.name_servers
    ]
    for group in plan.groups:
        base = names.selector(cluster.name, names.BROKER, group.name)
        master = names.group_set(cluster.name, group.name)
        all_endpoints.append(
            Endpoint(
                master,
                group.name,
                names.BROKER,
                base | {names.ROLE_LABEL: names.ROLE_MASTER},
                names.BROKER_PORT,
                "remoting",
                True,
            )
        )
        all_endpoints += [
            Endpoint(m.name, group.name, names.BROKER, base | {pod: m.name}, names.BROKER_PORT, "remoting")
            for m in group.members
        ]
    return all_endpoints


def services(cluster: BrokerCluster, plan: Plan, pinned: Mapping[str, int] | None = None) -> list[dict[str, Any]]:
    """Return the Services. `pinned`: node port by Service name, so that a deleted Service gets the same port again."""
    external = cluster.spec.external
    if external is None:
        return []
    return [_service(cluster, external, e, (pinned or {}).get(e.service)) for e in endpoints(cluster, plan)]


def proxy_endpoint(cluster: BrokerCluster) -> Endpoint:
    """Return the proxies' own address outside (`spec.proxy.external`)."""
    selector = names.selector(cluster.name, names.PROXY)
    return Endpoint(names.proxies(cluster.name), names.PROXY, names.PROXY, selector, names.PROXY_PORT, "grpc")


def proxy_service(cluster: BrokerCluster, external: External, node_port: int | None) -> dict[str, Any]:
    return _service(cluster, external, proxy_endpoint(cluster), node_port)


def proxy_address(cluster: BrokerCluster, existing: Mapping[str, Mapping[str, Any]]) -> str | None:
    """host:port of the proxies for clients outside; None: there is none, or it is not known yet."""
    outside = None if cluster.spec.proxy is None else cluster.spec.proxy.external
    e = proxy_endpoint(cluster)
    service = existing.get(e.service)
    return None if outside is None or service is None else address(cluster, outside, e, service)


def _service(cluster: BrokerCluster, external: External, e: Endpoint, node_port: int | None) -> dict[str, Any]:
    port: dict[str, Any] = {
        "name": "grpc" if e.component == names.PROXY else "remoting",
        "port": e.port,
        "targetPort": e.target,
        "protocol": "TCP",
    }
    if node_port is not None:
        port["nodePort"] = node_port
    group = e.group if e.component == names.BROKER else None
    meta = names.metadata(cluster, e.service, e.component, group or None)
    meta["labels"] |= {"gantry.dev/external": "true"}
    if external.annotations:
        meta["annotations"] = dict(external.annotations)
    spec: dict[str, Any] = {
        "type": external.type,
        "selector": dict(e.selector),
        "ports": [port],
        "publishNotReadyAddresses": e.even_if_unready,
    }
    if external.type == "LoadBalancer" and external.sourceRanges:
        spec["loadBalancerSourceRanges"] = list(external.sourceRanges)
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}


def address(cluster: BrokerCluster, external: External, e: Endpoint, service: Mapping[str, Any]) -> str | None:
    """host:port of a Service in the API; None while it is not known yet."""
    host = None
    if external.host is not None:
        host = external.host.format(
            cluster=cluster.name, namespace=cluster.namespace, group=e.group or names.NAME_SERVER, name=e.name
        )
    if external.type == "NodePort":
        port = service["spec"]["ports"][0].get("nodePort")
        return None if port is None or host is None else f"{host}:{port}"
    for ingress in service.get("status", {}).get("loadBalancer", {}).get("ingress") or []:
        return f"{host or ingress.get('hostname') or ingress.get('ip')}:{e.port}"
    return None


def addresses(
    cluster: BrokerCluster, plan: Plan, existing: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, str], list[str]]:
    """Address by endpoint name (member, `<cluster>-<group>` for a master, NameServer), and the Services without one.

    `existing`: the Services in the API by name.
    """
    by_endpoint: dict[str, str] = {}
    missing: list[str] = []
    outside = cluster.spec.external
    for e in endpoints(cluster, plan):
        service = existing.get(e.service)
        outer = None if service is None or outside is None else address(cluster, outside, e, service)
        if outer is None:
            missing.append(e.service)
        else:
            by_endpoint[e.name] = outer
    return by_endpoint, missing


def all_addresses(cluster: BrokerCluster, plan: Plan, existing: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the known addresses outside by endpoint name, with that of the proxies: their certificates name them."""
    outside = {} if cluster.spec.external is None else addresses(cluster, plan, existing)[0]
    of_proxies = proxy_address(cluster, existing)
    return outside if of_proxies is None else outside | {proxy_endpoint(cluster).name: of_proxies}
