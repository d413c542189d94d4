"""Access rights of the brokers: their ServiceAccount, the admin token and the NetworkPolicy."""

from __future__ import annotations

import base64
from typing import Any

from gantry_operator.api import BrokerCluster
from gantry_operator.platforms.kubernetes import names, pods


def service_account(cluster: BrokerCluster) -> dict[str, Any]:
    """The account has no rights: brokers and NameServers never use the Kubernetes API."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": names.metadata(cluster, names.service_account(cluster.name), names.BROKER),
        "automountServiceAccountToken": False,
    }


def admin_secret(cluster: BrokerCluster, token: str) -> dict[str, Any]:
    """The token of the brokers' HTTP interface. Brokers and NameServers also authenticate to each other with it."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": names.metadata(cluster, names.admin_secret(cluster.name), names.BROKER),
        "type": "Opaque",
        "data": {pods.TOKEN_KEY: base64.b64encode(token.encode()).decode()},
    }


def token_of(secret: dict[str, Any]) -> str | None:
    """The token in a Secret as the API returns it; None if it is missing or not text."""
    value = (secret.get("data") or {}).get(pods.TOKEN_KEY)
    try:
        return base64.b64decode(value, validate=True).decode() if value else None
    except ValueError:
        return None


def network_policy(cluster: BrokerCluster, operator_namespace: str) -> dict[str, Any]:
    """Allow clients to reach the remoting ports, and members to reach each other's ports. HTTP is open to the
    cluster itself, the operator, and labelled pods and namespaces.
    """
    anywhere = [
        {"protocol": "TCP", "port": p}
        for p in (names.NAME_SERVER_PORT, names.NAME_SERVER_EXTERNAL_PORT, names.BROKER_PORT)
    ]
    between = [
        {"protocol": "TCP", "port": p} for p in (names.NAME_SERVER_REGISTRATION_PORT, names.BROKER_REPLICATION_PORT)
    ]
    brokers = {"podSelector": {"matchLabels": names.selector(cluster.name, names.BROKER)}}
    http = [{"protocol": "TCP", "port": p} for p in (names.BROKER_HTTP_PORT, names.NAME_SERVER_HTTP_PORT)]
    marked = {"matchLabels": {names.MONITORING_LABEL: "true"}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": names.metadata(cluster, cluster.name, names.BROKER),
        "spec": {
            "podSelector": {"matchLabels": {names.CLUSTER_LABEL: cluster.name}},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"ports": anywhere},
                {"ports": between, "from": [brokers]},
                {
                    "ports": http,
                    "from": [
                        {"podSelector": {"matchLabels": {names.CLUSTER_LABEL: cluster.name}}},
                        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": operator_namespace}}},
                        {"namespaceSelector": marked},
                        {"podSelector": marked},
                    ],
                },
            ],
        },
    }
