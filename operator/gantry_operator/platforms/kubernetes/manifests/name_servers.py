"""The NameServers: a StatefulSet, one Service for each, one for all, their configs and their disruption budget."""

from __future__ import annotations

import json
from typing import Any

from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.plan.plan import Plan
from gantry_operator.plan.process_config import LIVE_FIELDS, name_server_config, text_of
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.manifests import pod_parts, pod_template_merge
from gantry_operator.platforms.kubernetes.manifests.digest import digest


def addresses(cluster: BrokerCluster, plan: Plan) -> list[str]:
    """host:port of each NameServer for clients inside. Each has a Service, so its address outlives its pod."""
    return _at_port(cluster, plan, names.NAME_SERVER_PORT)


def registration_addresses(cluster: BrokerCluster, plan: Plan) -> list[str]:
    """host:port of each for the cluster's brokers."""
    return _at_port(cluster, plan, names.NAME_SERVER_REGISTRATION_PORT)


def _at_port(cluster: BrokerCluster, plan: Plan, port: int) -> list[str]:
    return [f"{names.service_host(s.name, cluster.namespace)}:{port}" for s in plan.name_servers]


def _configs(cluster: BrokerCluster, plan: Plan) -> dict[str, str]:
    listeners = {names.EXTERNAL: names.NAME_SERVER_EXTERNAL_PORT} if cluster.spec.external is not None else {}
    return {
        f"{s.name}.json": text_of(
            name_server_config(
                cluster,
                s,
                listen_host="0.0.0.0",
                port=names.NAME_SERVER_PORT,
                http_port=names.NAME_SERVER_HTTP_PORT,
                registration_port=names.NAME_SERVER_REGISTRATION_PORT,
                token_file=pod_parts.TOKEN_FILE,
                tls=pod_parts.tls_folders(cluster),
                listeners=listeners,
                http_hosts=[
                    form
                    for service in (s.name, names.name_servers(cluster.name))
                    for form in names.host_forms(names.service_host(service, cluster.namespace))
                ],
            )
        )
        for s in plan.name_servers
    }


def objects(
    cluster: BrokerCluster, plan: Plan, image: str, *, stopped: bool = False, hold: bool = False
) -> list[dict[str, Any]]:
    """Return the objects, in the order in which they are applied. `stopped`: no process runs. `hold`: running pods
    stay as they are, whatever changes.
    """
    name = names.name_servers(cluster.name)
    meta = names.metadata(cluster, name, names.NAME_SERVER)
    selector = names.selector(cluster.name, names.NAME_SERVER)
    configs = _configs(cluster, plan)
    for_clients = {"remoting": names.NAME_SERVER_PORT}
    both = for_clients | {"registration": names.NAME_SERVER_REGISTRATION_PORT}
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": configs},
        _service(cluster, name, selector, for_clients),
        *(
            _service(cluster, s.name, selector | {"statefulset.kubernetes.io/pod-name": s.name}, both)
            for s in plan.name_servers
        ),
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": meta,
            "spec": {"maxUnavailable": 1, "selector": {"matchLabels": selector}},
        },
        # The hash of the first config covers all, so an added NameServer restarts none.
        _held(
            _stateful_set(cluster, plan, image, meta, selector, _common(configs[f"{plan.name_servers[0].name}.json"])),
            0 if stopped else len(plan.name_servers),
            hold=hold,
        ),
    ]


def _held(stateful_set: dict[str, Any], replicas: int, *, hold: bool) -> dict[str, Any]:
    stateful_set["spec"]["replicas"] = replicas
    if hold:
        # Kubernetes replaces pods from this number on.
        stateful_set["spec"]["updateStrategy"] = {"type": "RollingUpdate", "rollingUpdate": {"partition": replicas}}
    return stateful_set


def _common(first: str) -> str:
    """Return the hash of a config without the fields whose change needs no restart."""
    return digest({k: v for k, v in json.loads(first).items() if k not in LIVE_FIELDS})


def _service(cluster: BrokerCluster, name: str, selector: dict[str, str], ports: dict[str, int]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": names.metadata(cluster, name, names.NAME_SERVER),
        "spec": {
            "type": "ClusterIP",
            "selector": selector,
            "ports": [
                {"name": port, "port": number, "targetPort": port, "protocol": "TCP"} for port, number in ports.items()
            ],
        },
    }


def _stateful_set(
    cluster: BrokerCluster, plan: Plan, image: str, meta: dict[str, Any], selector: dict[str, str], config_hash: str
) -> dict[str, Any]:
    ports = [
        {"name": "remoting", "containerPort": names.NAME_SERVER_PORT, "protocol": "TCP"},
        {"name": "registration", "containerPort": names.NAME_SERVER_REGISTRATION_PORT, "protocol": "TCP"},
        {"name": "http", "containerPort": names.NAME_SERVER_HTTP_PORT, "protocol": "TCP"},
    ]
    if cluster.spec.external is not None:
        ports.append({"name": "external", "containerPort": names.NAME_SERVER_EXTERNAL_PORT, "protocol": "TCP"})
    command = ["python", "-m", "gantry_broker.namesrv", "--config", f"{pod_parts.CONFIG_DIR}/$(POD_NAME).json"]
    container = pod_parts.container(cluster, "namesrv", image, command, "http", pod_parts.http_scheme(cluster)) | {
        "ports": ports,
        "resources": pod_parts.resources(cluster.spec.nameServers.resources),
        "volumeMounts": [
            {"name": "config", "mountPath": pod_parts.CONFIG_DIR, "readOnly": True},
            pod_parts.token_mount(),
            *pod_parts.tls_mounts(cluster),
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": meta,
        "spec": {
            "replicas": len(plan.name_servers),
            "serviceName": names.name_servers(cluster.name),
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "RollingUpdate"},
            "selector": {"matchLabels": selector},
            "template": pod_template_merge.merge(
                {
                    "metadata": {
                        "labels": names.labels(cluster.name, names.NAME_SERVER),
                        "annotations": pod_parts.pod_annotations(cluster, config_hash),
                    },
                    "spec": pod_parts.pod_spec(cluster, names.service_account(cluster.name))
                    | pod_parts.placement(cluster.spec.nameServers.placement or cluster.spec.placement, selector)
                    | {
                        "terminationGracePeriodSeconds": 15,
                        "containers": [container],
                        "volumes": [
                            {"name": "config", "configMap": {"name": names.name_servers(cluster.name)}},
                            pod_parts.token_volume(cluster),
                            *pod_parts.tls_volumes(cluster, names.NAME_SERVER),
                            {"name": "tmp", "emptyDir": {"sizeLimit": "16Mi"}},
                        ],
                    },
                },
                cluster.spec.nameServers.podTemplate,
                selector,
            ),
        },
    }
