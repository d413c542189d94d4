"""Names, labels, annotations and ports of the objects that belong to a cluster.

A group's name has no '-' and is none of the reserved words, so that no two clusters of a namespace ever make an object
of the same kind and name.
"""

from __future__ import annotations

from typing import Any

from gantry_operator.api import API_VERSION, GROUP, KIND, BrokerCluster

FIELD_MANAGER = "gantry-operator"

NAME_SERVER_PORT = 9876
NAME_SERVER_EXTERNAL_PORT = 9877
NAME_SERVER_REGISTRATION_PORT = 9878
"""For the cluster's brokers alone."""
NAME_SERVER_HTTP_PORT = 9880
BROKER_PORT = 10911
BROKER_REPLICATION_PORT = 10912
"""For the other members of the group alone."""
BROKER_HTTP_PORT = 10921

EXTERNAL = "external"
"""Name of the NameServers' listener for clients outside."""

CLUSTER_LABEL = f"{GROUP}/cluster"
GROUP_LABEL = f"{GROUP}/group"
ROLE_LABEL = f"{GROUP}/role"
COMPONENT_LABEL = "app.kubernetes.io/component"
CONFIG_HASH = f"{GROUP}/config-hash"
MONITORING_LABEL = f"{GROUP}/monitoring"
"""On a namespace or a pod: may read the brokers' HTTP ports (metrics)."""

ROLE_MASTER = "master"
ROLE_SLAVE = "slave"

BROKER = "broker"
NAME_SERVER = "namesrv"


def name_servers(cluster: str) -> str:
    return f"{cluster}-namesrv"


def group_set(cluster: str, group: str) -> str:
    """StatefulSet, headless Service, ConfigMap, PodDisruptionBudget and Lease of a group."""
    return f"{cluster}-{group}"


def master_service(cluster: str, group: str) -> str:
    return f"{cluster}-{group}-master"


def external_service(name: str) -> str:
    return f"{name}-external"


def admin_secret(cluster: str) -> str:
    return f"{cluster}-admin"


def service_account(cluster: str) -> str:
    return f"{cluster}-broker"


def claim(member: str) -> str:
    """The volume claim of a member."""
    return f"data-{member}"


def service_host(name: str, namespace: str) -> str:
    """Host name of a Service for pods of any namespace, without the cluster's domain, which nobody knows for sure."""
    return f"{name}.{namespace}.svc"


def host_forms(host: str) -> list[str]:
    """All that the name server of Kubernetes takes for `host` ("... .NAMESPACE.svc"): without the ends that pods may
    leave out, and with the usual domain of a cluster."""
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
    """What never changes of the labels."""
    out = {CLUSTER_LABEL: cluster, COMPONENT_LABEL: component}
    return out if group is None else out | {GROUP_LABEL: group}


def owner(cluster: BrokerCluster) -> dict[str, Any]:
    """Owner reference to the cluster: what has it goes with the cluster."""
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
