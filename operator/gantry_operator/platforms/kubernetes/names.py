"""Names, labels, annotations and ports of the objects of a cluster.

A group's name has no '-' and is no reserved word, so objects of two clusters in a namespace never have the same kind
and name.
"""

from __future__ import annotations

from typing import Any

from gantry_operator.api.annotations import GROUP
from gantry_operator.api.cluster import API_VERSION, KIND, BrokerCluster

FIELD_MANAGER = "gantry-operator"

NAME_SERVER_PORT = 9876
NAME_SERVER_EXTERNAL_PORT = 9877
NAME_SERVER_REGISTRATION_PORT = 9878
"""Only for the cluster's brokers."""
NAME_SERVER_HTTP_PORT = 9880
BROKER_PORT = 10911
BROKER_REPLICATION_PORT = 10912
"""Only for the other members of the group."""
BROKER_HTTP_PORT = 10921

PROXY_PORT = 8081
"""For gRPC clients."""
PROXY_HTTP_PORT = 8082

EXTERNAL = "external"
"""Name of the NameServers' listener for clients outside."""

CLUSTER_LABEL = f"{GROUP}/cluster"
GROUP_LABEL = f"{GROUP}/group"
ROLE_LABEL = f"{GROUP}/role"
COMPONENT_LABEL = "app.kubernetes.io/component"
CERTIFICATES = "certificates"
"""Component of Secrets with certificates."""
NAME_LABEL = "app.kubernetes.io/name"
OPERATOR_NAME = "gantry-operator"
"""`NAME_LABEL` of the operator's pods; the chart sets it."""
CONSOLE_NAME = "gantry-console"
"""The same of the console's pods."""
CONFIG_HASH = f"{GROUP}/config-hash"
HTTP_SCHEME = f"{GROUP}/http-scheme"
"""Annotation of a pod: http or https, for its HTTP port."""
MONITORING_LABEL = f"{GROUP}/monitoring"
"""Label of a namespace or a pod with access to the brokers' HTTP ports (metrics)."""

REPORT_LABEL = f"{GROUP}/analytics"
"""Label on the pods and Jobs of a report. Its value is the cluster's name."""

CATALOG_LABEL = f"{GROUP}/catalog"
"""With the value true: a Secret may be given to a catalog of tables, which reads all of it."""
TABLES_LABEL = f"{GROUP}/tables"
"""Label on the pods and Jobs of tables. Its value is the cluster's name."""

ROLE_MASTER = "master"
ROLE_SLAVE = "slave"

BROKER = "broker"
NAME_SERVER = "namesrv"
PROXY = "proxy"
VERIFICATION = "verify"
BROKER_GROUP = f"{GROUP}/broker-group"
"""Annotation of a StatefulSet: the group's part of the spec, as JSON."""
MOUNTED_FILES = f"{GROUP}/mounted-files"
"""Annotation of a pod. A new value makes the kubelet bring the newest ConfigMaps and Secrets into the pod at once."""


def name_servers(cluster: str) -> str:
    return f"{cluster}-namesrv"


def group_set(cluster: str, group: str) -> str:
    """Name of a group's StatefulSet, headless Service, ConfigMap, PodDisruptionBudget and Lease."""
    return f"{cluster}-{group}"


def master_service(cluster: str, group: str) -> str:
    return f"{cluster}-{group}-master"


def external_service(name: str) -> str:
    return f"{name}-external"


def proxies(cluster: str) -> str:
    """Name of the proxies' Deployment, Service, ConfigMap, PodDisruptionBudget, autoscaler and NetworkPolicy."""
    return f"{cluster}-{PROXY}"


def proxy_table_secret(cluster: str) -> str:
    """Return the Secret with the access table for proxies."""
    return f"{cluster}-proxy-table"


def rollback_map(cluster: str) -> str:
    """Return the ConfigMap with what a rollback to RocketMQ has copied."""
    return f"{cluster}-rollback"


def admin_secret(cluster: str) -> str:
    return f"{cluster}-admin"


def access_secret(cluster: str) -> str:
    """Return the Secret with the persistent part of the access table."""
    return f"{cluster}-access"


def ca_secret(cluster: str) -> str:
    """Return the cluster's certificate authority with its key. Only the operator reads it."""
    return f"{cluster}-ca"


def ca_cert_secret(cluster: str) -> str:
    """Return the certificates of the authorities alone, for clients."""
    return f"{cluster}-ca-cert"


def tls_secret(cluster: str, holder: str) -> str:
    """Return the certificate of a group's members, or of the NameServers (`NAME_SERVER`)."""
    return f"{cluster}-{holder}-tls"


def service_account(cluster: str) -> str:
    return f"{cluster}-broker"


def open_policy(cluster: str) -> str:
    """Return the NetworkPolicy of all pods: ports for clients, and HTTP. No group can have the name `broker`."""
    return f"{cluster}-broker"


def claim(member: str) -> str:
    """Return the volume claim of a member."""
    return f"data-{member}"


def service_host(name: str, namespace: str) -> str:
    """Host name of a Service for pods of any namespace, without the cluster's domain, which is not known reliably."""
    return f"{name}.{namespace}.svc"


def host_forms(host: str) -> list[str]:
    """All host names that Kubernetes' DNS resolves to `host` ("... .NAMESPACE.svc"): short forms, and the form with
    the usual cluster domain.
    """
    short = host.removesuffix(".svc")
    return [short.rpartition(".")[0], short, host, f"{host}.cluster.local"]


def labels(cluster: str, component: str, group: str | None = None) -> dict[str, str]:
    out = {
        "app.kubernetes.io/name": "gantry",
        "app.kubernetes.io/instance": cluster,
        COMPONENT_LABEL: component,
        "app.kubernetes.io/managed-by": FIELD_MANAGER,
        CLUSTER_LABEL: cluster,
    }
    return out if group is None else out | {GROUP_LABEL: group}


def selector(cluster: str, component: str, group: str | None = None) -> dict[str, str]:
    """Return the labels that never change."""
    out = {CLUSTER_LABEL: cluster, COMPONENT_LABEL: component}
    return out if group is None else out | {GROUP_LABEL: group}


def owner(cluster: BrokerCluster) -> dict[str, Any]:
    """Owner reference to the cluster. Kubernetes deletes owned objects together with the cluster."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": cluster.name,
        "uid": cluster.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def metadata(cluster: BrokerCluster, name: str, component: str, group: str | None = None) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": cluster.namespace,
        "labels": labels(cluster.name, component, group),
        "ownerReferences": [owner(cluster)],
    }
