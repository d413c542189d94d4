"""Access rights of the brokers: their ServiceAccount, the admin token and the NetworkPolicies."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.plan.plan import Plan
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.manifests import pod_parts


def service_account(cluster: BrokerCluster) -> dict[str, Any]:
    """Return an account without rights: brokers and NameServers never use the Kubernetes API."""
    metadata = names.metadata(cluster, names.service_account(cluster.name), names.BROKER)
    if cluster.spec.serviceAccountAnnotations:
        metadata |= {"annotations": (metadata.get("annotations") or {}) | cluster.spec.serviceAccountAnnotations}
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata,
        "automountServiceAccountToken": False,
    }


def admin_secret(cluster: BrokerCluster, token: str) -> dict[str, Any]:
    """Return the Secret with the token of HTTP interfaces. Brokers and NameServers also prove themselves with it."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": names.metadata(cluster, names.admin_secret(cluster.name), names.BROKER),
        "type": "Opaque",
        "data": {pod_parts.TOKEN_KEY: base64.b64encode(token.encode()).decode()},
    }


def token_of(secret: dict[str, Any]) -> str | None:
    """Return the token in a Secret as the API returns it; None if it is missing or not text."""
    value = (secret.get("data") or {}).get(pod_parts.TOKEN_KEY)
    try:
        return base64.b64decode(value, validate=True).decode() if value else None
    except ValueError:
        return None


def network_policies(cluster: BrokerCluster, plan: Plan, operator_namespace: str) -> list[dict[str, Any]]:
    """Who may connect to which port.

    `<cluster>-broker`: clients to the ports for clients; operator, console, reports and monitoring to HTTP.
    `<cluster>-namesrv`: the cluster's brokers to the registration port. `<cluster>-<group>`: the group's members to the
    replication port. Kubernetes adds the policies of a pod up, and everything else is closed.
    """
    brokers = _pods(names.selector(cluster.name, names.BROKER))
    out = [
        _policy(
            cluster,
            names.open_policy(cluster.name),
            {names.CLUSTER_LABEL: cluster.name},
            [_clients(cluster, operator_namespace), _http(cluster, operator_namespace)],
        ),
        _policy(
            cluster,
            names.name_servers(cluster.name),
            names.selector(cluster.name, names.NAME_SERVER),
            [_ingress([names.NAME_SERVER_REGISTRATION_PORT], [brokers])],
        ),
    ]
    for group in plan.groups:
        members = names.selector(cluster.name, names.BROKER, group.name)
        ingress = _ingress([names.BROKER_REPLICATION_PORT], [_pods(members)])
        out.append(_policy(cluster, names.group_set(cluster.name, group.name), members, [ingress]))
    return out


def proxy_policy(cluster: BrokerCluster, operator_namespace: str) -> dict[str, Any]:
    """`<cluster>-proxy`: clients to the port for gRPC; operator and monitoring to HTTP."""
    allowed = [p.model_dump(exclude_unset=True, by_alias=True) for p in cluster.spec.security.allowedClients]
    policy = _policy(
        cluster,
        names.proxies(cluster.name),
        names.selector(cluster.name, names.PROXY),
        [
            _ingress([names.PROXY_PORT], allowed),
            _ingress([names.PROXY_HTTP_PORT], [_operator(operator_namespace), *_monitoring()]),
        ],
    )
    policy["metadata"] = names.metadata(cluster, names.proxies(cluster.name), names.PROXY)
    return policy


def _policy(
    cluster: BrokerCluster, name: str, selector: Mapping[str, str], ingress: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": names.metadata(cluster, name, names.BROKER),
        "spec": {
            "podSelector": {"matchLabels": dict(selector)},
            "policyTypes": ["Ingress"],
            "ingress": ingress,
        },
    }


def _ingress(ports: Sequence[int], peers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """No peers: everybody."""
    rule: dict[str, Any] = {"ports": [{"protocol": "TCP", "port": p} for p in ports]}
    return rule | ({"from": list(peers)} if peers else {})


def _pods(labels: Mapping[str, str]) -> dict[str, Any]:
    return {"podSelector": {"matchLabels": dict(labels)}}


def _console(namespace: str) -> dict[str, Any]:
    """Return the console's pods, which ask members as clients do, and by HTTP."""
    return {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "podSelector": {"matchLabels": {names.NAME_LABEL: names.CONSOLE_NAME}},
    }


def _operator(namespace: str) -> dict[str, Any]:
    """Return the operator's pods. It checks that clients can send and read, and speaks HTTP to every member."""
    return {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "podSelector": {"matchLabels": {names.NAME_LABEL: names.OPERATOR_NAME}},
    }


def _clients(cluster: BrokerCluster, operator_namespace: str) -> dict[str, Any]:
    ports = [names.NAME_SERVER_PORT, names.NAME_SERVER_EXTERNAL_PORT, names.BROKER_PORT]
    allowed = [p.model_dump(exclude_unset=True, by_alias=True) for p in cluster.spec.security.allowedClients]
    if not allowed:
        return _ingress(ports, [])
    # Members forward requests of clients to the master.
    members = _pods({names.CLUSTER_LABEL: cluster.name})
    tables = _pods({names.TABLES_LABEL: cluster.name})
    return _ingress(ports, [*allowed, members, _operator(operator_namespace), _console(operator_namespace), tables])


def _http(cluster: BrokerCluster, operator_namespace: str) -> dict[str, Any]:
    return _ingress(
        [names.BROKER_HTTP_PORT, names.NAME_SERVER_HTTP_PORT],
        [
            _pods({names.CLUSTER_LABEL: cluster.name}),
            _operator(operator_namespace),
            _console(operator_namespace),
            _pods({names.REPORT_LABEL: cluster.name}),
            *_monitoring(),
        ],
    )


def _monitoring() -> list[dict[str, Any]]:
    marked = {"matchLabels": {names.MONITORING_LABEL: "true"}}
    return [{"namespaceSelector": marked}, {"podSelector": marked}]


def reports_policy(cluster: BrokerCluster, name: str, component: str, label: str) -> dict[str, Any]:
    """Only driver and executors of one kind of Spark job of this cluster connect to each other."""
    own = {label: cluster.name}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": names.metadata(cluster, name, component),
        "spec": {
            "podSelector": {"matchLabels": own},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [_pods(own)]}],
        },
    }
