"""The proxies for gRPC clients: Deployment, Service, config, disruption budget, autoscaler and NetworkPolicy."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from gantry_operator.access.wanted import PROXY, PROXY_NAME, SECRET_KEY, secret_name
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.proxy import Autoscaling, Proxy
from gantry_operator.api.status import ProxyRow, ProxyStatus
from gantry_operator.plan.plan import Plan
from gantry_operator.plan.process_config import ProxyFiles, proxy_config, proxy_restarts, proxy_text
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.api.client import Object
from gantry_operator.platforms.kubernetes.api.pod_state import pod_ip, pod_ready, why_not
from gantry_operator.platforms.kubernetes.manifests import access, external, name_servers, pod_parts, pod_template_merge
from gantry_operator.platforms.kubernetes.manifests.digest import digest

TABLE_DIR = "/etc/gantry-access"
TABLE_KEY = "table.json"
USER_DIR = "/etc/gantry-user"
OWN_TLS_DIR = "/etc/gantry-grpc-tls"
"""The certificate of the Secret that `proxy.tls.secretName` names."""
CONFIG = "proxy.json"

DRAIN_S = 30
"""Seconds that a stopping proxy leaves for requests in work."""
LEAVE_S = 5
"""Seconds between a pod's deletion and SIGTERM, in which every node stops routing new connections to it."""
GRACE_S = LEAVE_S + DRAIN_S + 10

MAX_TABLE = 1_000_000
"""Bytes of the access table: a Secret holds 1 MiB."""
MAX_ROWS = 64


def spec(cluster: BrokerCluster) -> Proxy | None:
    """Return the wanted proxies; None: there should be none."""
    proxy = cluster.spec.proxy
    return proxy if proxy is not None and proxy.replicas > 0 else None


def wanted(cluster: BrokerCluster) -> bool:
    return spec(cluster) is not None


def user_secret(cluster: str) -> str:
    """Return the Secret with the keys of the proxies' user."""
    return secret_name(cluster, PROXY_NAME)


def secrets(cluster: BrokerCluster) -> list[str]:
    """Secrets that the operator makes for proxies alone, apart from the certificate."""
    return [] if not wanted(cluster) else [user_secret(cluster.name), names.proxy_table_secret(cluster.name)]


def kept_secrets(cluster: BrokerCluster) -> list[str]:
    """Return the names of `secrets` and of the certificate's Secret, as far as they are wanted."""
    certificate = [names.tls_secret(cluster.name, names.PROXY)] if own_certificate(cluster) else []
    return [*secrets(cluster), *certificate]


def table_secret(cluster: BrokerCluster, table: bytes) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": names.metadata(cluster, names.proxy_table_secret(cluster.name), names.PROXY),
        "type": "Opaque",
        "data": {TABLE_KEY: base64.b64encode(table).decode()},
    }


def own_certificate(cluster: BrokerCluster) -> bool:
    """Whether the proxies have a certificate of the cluster's own authority."""
    proxy = spec(cluster)
    if proxy is None:
        return False
    tls = cluster.spec.security.tls
    if tls.between_members(kubernetes=True):
        return True  # its HTTP interface has one
    if tls.issuer == "Secret":
        return False
    by_user = proxy.tls is not None and proxy.tls.secretName is not None
    for_clients = proxy.tls_mode(tls.mode) != "Disabled" and not by_user
    # With the certificate come the authorities by which it verifies brokers.
    return for_clients or tls.mode != "Disabled"


def _folders(cluster: BrokerCluster, proxy: Proxy) -> tuple[dict[str, str], ProxyFiles]:
    """Return the Secrets with certificates by folder, and the paths of all files."""
    tls = cluster.spec.security.tls
    mounts = {}
    if own_certificate(cluster):
        mounts[pod_parts.TLS_DIR] = names.tls_secret(cluster.name, names.PROXY)
    own = None if proxy.tls is None else proxy.tls.secretName
    by_user = tls.secretName if tls.issuer == "Secret" else None
    certificate = None
    if proxy.tls_mode(tls.mode) != "Disabled":
        certificate = OWN_TLS_DIR if own else pod_parts.CLIENT_TLS_DIR if by_user else pod_parts.TLS_DIR
        if own:
            mounts[OWN_TLS_DIR] = own
    brokers = None
    if tls.mode != "Disabled":
        brokers = pod_parts.CLIENT_TLS_DIR if by_user else pod_parts.TLS_DIR
    if by_user and pod_parts.CLIENT_TLS_DIR in (certificate, brokers):
        mounts[pod_parts.CLIENT_TLS_DIR] = by_user
    files = ProxyFiles(
        table=Path(TABLE_DIR) / TABLE_KEY,
        secret_key=Path(USER_DIR) / SECRET_KEY,
        token=pod_parts.TOKEN_FILE,
        certificate=None if certificate is None else Path(certificate),
        brokers=None if brokers is None else Path(brokers),
        members=Path(pod_parts.TLS_DIR) if tls.between_members(kubernetes=True) else None,
    )
    return mounts, files


def service_address(cluster: BrokerCluster) -> str:
    return f"{names.service_host(names.proxies(cluster.name), cluster.namespace)}:{names.PROXY_PORT}"


def objects(
    cluster: BrokerCluster,
    plan: Plan,
    image: str,
    operator_namespace: str,
    *,
    running: int | None = None,
    node_port: int | None = None,
) -> list[dict[str, Any]]:
    """Return the objects, in the order in which they are applied; none without `spec.proxy`.

    `running`: the Deployment's present number of pods, which the autoscaler sets. `node_port`: as in
    `external.services`.
    """
    proxy = spec(cluster)
    if proxy is None:
        return []
    name = names.proxies(cluster.name)
    meta = names.metadata(cluster, name, names.PROXY)
    selector = names.selector(cluster.name, names.PROXY)
    mounts, files = _folders(cluster, proxy)
    config = proxy_config(
        cluster, proxy, files, name=name, listen_host="0.0.0.0", port=names.PROXY_PORT,
        http_port=names.PROXY_HTTP_PORT, name_servers=name_servers.addresses(cluster, plan), drain_s=DRAIN_S,
        access_key=PROXY, http_hosts=names.host_forms(names.service_host(name, cluster.namespace)),
    )  # fmt: skip
    service: dict[str, Any] = {
        "type": "ClusterIP",
        "selector": selector,
        "ports": [{"name": "grpc", "port": names.PROXY_PORT, "targetPort": "grpc", "protocol": "TCP"}],
    }
    budget = {
        "maxUnavailable": 1,
        "selector": {"matchLabels": selector},
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    out: list[dict[str, Any]] = [
        access.proxy_policy(cluster, operator_namespace),
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {CONFIG: proxy_text(config)}},
        {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": service},
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": meta, "spec": budget},
    ]
    if proxy.external is not None:
        out.append(external.proxy_service(cluster, proxy.external, node_port))
    replicas = proxy.replicas
    scaling = proxy.autoscaling
    if scaling is not None:
        # The autoscaler's number is kept: a Deployment without one would fall back to a single pod.
        first = replicas if running is None else running
        replicas = min(max(first, scaling.minReplicas), scaling.maxReplicas)
        out.append(_autoscaler(meta, scaling))
    out.append(_deployment(cluster, proxy, image, mounts, replicas, digest(proxy_restarts(config))))
    return out


def _autoscaler(meta: dict[str, Any], scaling: Autoscaling) -> dict[str, Any]:
    target = {"type": "Utilization", "averageUtilization": scaling.targetCPUUtilization}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": meta,
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": meta["name"]},
            "minReplicas": scaling.minReplicas,
            "maxReplicas": scaling.maxReplicas,
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}],
        },
    }


def _deployment(
    cluster: BrokerCluster, proxy: Proxy, image: str, mounts: Mapping[str, str], replicas: int, config_hash: str
) -> dict[str, Any]:
    selector = names.selector(cluster.name, names.PROXY)
    folders = {
        TABLE_DIR: names.proxy_table_secret(cluster.name),
        USER_DIR: user_secret(cluster.name),
        **mounts,
    }
    volumes = {folder: folder.rsplit("gantry-", 1)[1] for folder in folders}
    command = ["python", "-m", "gantry_broker.proxy", "--config", f"{pod_parts.CONFIG_DIR}/{CONFIG}"]
    container = pod_parts.container(cluster, "proxy", image, command, "http", pod_parts.http_scheme(cluster)) | {
        "ports": [
            {"name": "grpc", "containerPort": names.PROXY_PORT, "protocol": "TCP"},
            {"name": "http", "containerPort": names.PROXY_HTTP_PORT, "protocol": "TCP"},
        ],
        "resources": pod_parts.resources(proxy.resources),
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(LEAVE_S)]}}},
        "volumeMounts": [
            {"name": "config", "mountPath": pod_parts.CONFIG_DIR, "readOnly": True},
            pod_parts.token_mount(),
            *({"name": name, "mountPath": folder, "readOnly": True} for folder, name in volumes.items()),
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
    # A changed proxy starts before the former one ends, so that nodes as many as proxies must not forbid it.
    near = cluster.spec.placement
    if near.spread == "Required":
        near = near.model_copy(update={"spread": "Preferred"})
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": names.metadata(cluster, names.proxies(cluster.name), names.PROXY),
        "spec": {
            "replicas": replicas,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "selector": {"matchLabels": selector},
            "template": pod_template_merge.merge(
                {
                    "metadata": {
                        "labels": names.labels(cluster.name, names.PROXY),
                        "annotations": pod_parts.pod_annotations(cluster, config_hash),
                    },
                    "spec": pod_parts.pod_spec(cluster, names.service_account(cluster.name))
                    | pod_parts.placement(near, selector)
                    | {
                        "terminationGracePeriodSeconds": GRACE_S,
                        "containers": [container],
                        "volumes": [
                            {"name": "config", "configMap": {"name": names.proxies(cluster.name)}},
                            pod_parts.token_volume(cluster),
                            *(
                                {"name": name, "secret": {"secretName": folders[folder]}}
                                for folder, name in volumes.items()
                            ),
                            {"name": "tmp", "emptyDir": {"sizeLimit": "16Mi"}},
                        ],
                    },
                },
                proxy.podTemplate,
                selector,
            ),
        },
    }


# ---- what is seen


def missing_secrets(cluster: BrokerCluster, live: Callable[[str, str], Object | None]) -> list[str]:
    """Secrets without which a pod would wait for minutes: the kubelet tries again ever more rarely."""
    return [name for name in secrets(cluster) if live("Secret", name) is None]


def running_replicas(deployment: Object | None) -> int | None:
    return None if deployment is None else int(deployment["spec"].get("replicas", 1))


def status(
    cluster: BrokerCluster, deployment: Object | None, pods: Iterable[Object], services: Mapping[str, Object]
) -> ProxyStatus | None:
    """`status.proxy`. `pods`: the proxies' pods. `services`: by name. None: there should be no proxy."""
    proxy = spec(cluster)
    if proxy is None:
        return None
    rows = [_row(pod) for pod in pods if pod["metadata"].get("deletionTimestamp") is None]
    rows.sort(key=lambda r: r.name)
    running = running_replicas(deployment)
    return ProxyStatus(
        replicas=proxy.replicas if running is None else running,
        readyReplicas=sum(r.ready for r in rows),
        selector=",".join(f"{k}={v}" for k, v in sorted(names.selector(cluster.name, names.PROXY).items())),
        address=service_address(cluster),
        external=external.proxy_address(cluster, services) or "",
        members=rows[:MAX_ROWS],
    )


def _row(pod: Object) -> ProxyRow:
    ready = pod_ready(pod)
    ip = pod_ip(pod)
    host = f"[{ip}]" if ip is not None and ":" in ip else ip
    return ProxyRow(
        name=pod["metadata"]["name"],
        ready=ready,
        address="" if host is None else f"{host}:{names.PROXY_PORT}",
        node=(pod.get("spec") or {}).get("nodeName"),
        reason="" if ready else why_not(pod, "it is not ready"),
    )


NOT_SCALED_S = 180
"""Seconds for which an autoscaler may have no figures: a pod's first ones take a minute or two."""


def not_scaled(cluster: BrokerCluster, autoscaler: Object | None, now: datetime) -> str:
    """Why the autoscaler of the proxies does nothing, in its own words; empty: it works, or it has just begun."""
    proxy = spec(cluster)
    if proxy is None or proxy.autoscaling is None or autoscaler is None:
        return ""
    for condition in (autoscaler.get("status") or {}).get("conditions") or []:
        if condition.get("type") not in ("ScalingActive", "AbleToScale") or condition.get("status") != "False":
            continue
        try:
            since = datetime.fromisoformat(str(condition.get("lastTransitionTime")))
        except ValueError:
            continue
        disabled = condition.get("reason") == "ScalingDisabled"
        if not disabled and (now - since).total_seconds() >= NOT_SCALED_S:
            return (
                f"the number of proxies does not follow their load: {condition.get('message') or 'no reason is given'}"
            )
    return ""


def progress(cluster: BrokerCluster, deployment: Object | None) -> str:
    """Return the change of the proxies that is under way; empty: there is none."""
    if spec(cluster) is None or deployment is None:
        return ""
    seen = deployment.get("status") or {}
    wanted_now = running_replicas(deployment) or 0
    updated = int(seen.get("updatedReplicas") or 0)
    current = seen.get("observedGeneration") == deployment["metadata"].get("generation")
    if current and updated >= wanted_now and int(seen.get("replicas") or 0) <= wanted_now:
        return ""
    return f"proxies: {updated if current else 0} of {wanted_now} are as the spec says"
