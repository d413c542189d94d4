"""The pod of a broker: the template that the StatefulSet of its group has."""

from __future__ import annotations

from typing import Any

from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.manifests import pod_parts, pod_template_merge

GRACE_SECONDS = 60
"""Seconds from a pod's deletion to SIGKILL: handover, then a clean stop."""
HANDOVER_SECONDS = 30
"""Seconds of that time for the handover."""


def template(cluster: BrokerCluster, group: str, image: str, config_hash: str) -> dict[str, Any]:
    """Return the pod template of this group's members. A new `config_hash` makes new pods."""
    selector = names.selector(cluster.name, names.BROKER, group)
    config_file = f"{pod_parts.CONFIG_DIR}/$(POD_NAME).json"
    container = pod_parts.container(
        cluster,
        "broker",
        image,
        ["python", "-m", "gantry_broker.broker", "--config", config_file],
        "http",
        pod_parts.http_scheme(cluster),
    ) | {
        "ports": [
            {"name": "remoting", "containerPort": names.BROKER_PORT, "protocol": "TCP"},
            {"name": "replication", "containerPort": names.BROKER_REPLICATION_PORT, "protocol": "TCP"},
            {"name": "http", "containerPort": names.BROKER_HTTP_PORT, "protocol": "TCP"},
        ],
        "resources": pod_parts.resources(cluster.spec.resources_of(group)),
        "lifecycle": {"preStop": {"exec": {"command": _pre_stop(config_file.replace("$(POD_NAME)", "$POD_NAME"))}}},
        "volumeMounts": [
            {"name": "data", "mountPath": pod_parts.DATA_DIR},
            {"name": "config", "mountPath": pod_parts.CONFIG_DIR, "readOnly": True},
            pod_parts.token_mount(),
            *pod_parts.tls_mounts(cluster),
            *pod_parts.archive_mounts(cluster),
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
    return pod_template_merge.merge(
        {
            "metadata": {
                "labels": names.labels(cluster.name, names.BROKER, group),
                "annotations": pod_parts.pod_annotations(cluster, config_hash),
            },
            "spec": pod_parts.pod_spec(cluster, names.service_account(cluster.name))
            | pod_parts.placement(cluster.spec.placement_of(group), selector)
            | {
                "terminationGracePeriodSeconds": GRACE_SECONDS,
                "containers": [container],
                "volumes": [
                    {"name": "config", "configMap": {"name": names.group_set(cluster.name, group)}},
                    pod_parts.token_volume(cluster),
                    *pod_parts.tls_volumes(cluster, group),
                    *pod_parts.archive_volumes(cluster),
                    {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
                ],
            },
        },
        cluster.spec.podTemplate,
        selector,
    )


def _pre_stop(config_file: str) -> list[str]:
    """Return the stop hook. A shell runs it, because Kubernetes replaces variables in `command` only."""
    command = f"exec python -m gantry_broker.http.prestop --config {config_file} --timeout {HANDOVER_SECONDS}"
    return ["sh", "-c", command]
