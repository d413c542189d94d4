"""Common parts of the pods of NameServers and brokers: security, probes, placement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gantry_operator.api import BrokerCluster
from gantry_operator.api.pods import Placement, Resources
from gantry_operator.platforms.kubernetes import names

USER = 10001
"""User and group id of the images. The volumes belong to the group."""

CONFIG_DIR = "/etc/gantry"
TOKEN_DIR = "/etc/gantry-admin"
TOKEN_KEY = "token"
TOKEN_FILE = Path(TOKEN_DIR) / TOKEN_KEY
DATA_DIR = "/var/lib/gantry"


def pod_security() -> dict[str, Any]:
    """Pod security for the `restricted` Pod Security Standard."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> dict[str, Any]:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def probes(port: str) -> dict[str, Any]:
    """Probes of a process with /livez and /readyz. Liveness allows a full minute: it detects a process that hangs,
    not load.
    """

    def get(path: str, **timing: int) -> dict[str, Any]:
        return {"httpGet": {"path": path, "port": port, "scheme": "HTTP"}, **timing}

    return {
        "startupProbe": get("/livez", periodSeconds=2, timeoutSeconds=5, failureThreshold=300),
        "livenessProbe": get("/livez", periodSeconds=10, timeoutSeconds=10, failureThreshold=6),
        "readinessProbe": get("/readyz", periodSeconds=2, timeoutSeconds=5, failureThreshold=3),
    }


def resources(r: Resources) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if r.requests:
        out["requests"] = dict(r.requests)
    if r.limits:
        out["limits"] = dict(r.limits)
    return out


def placement(p: Placement, selector: dict[str, str]) -> dict[str, Any]:
    """Scheduling fields of a pod whose peers have the labels of `selector`."""
    out: dict[str, Any] = {}
    if p.nodeSelector:
        out["nodeSelector"] = dict(p.nodeSelector)
    if p.tolerations:
        out["tolerations"] = [t.model_dump(exclude_none=True) for t in p.tolerations]
    if p.priorityClassName is not None:
        out["priorityClassName"] = p.priorityClassName
    if p.topologySpread:
        out["topologySpreadConstraints"] = [
            t.model_dump() | {"labelSelector": {"matchLabels": dict(selector)}} for t in p.topologySpread
        ]
    anti = _anti_affinity(p, selector)
    if anti:
        out["affinity"] = {"podAntiAffinity": anti}
    return out


def _anti_affinity(p: Placement, selector: dict[str, str]) -> dict[str, Any]:
    def apart(key: str) -> dict[str, Any]:
        return {"topologyKey": key, "labelSelector": {"matchLabels": dict(selector)}}

    if p.spread == "None":
        return {}
    preferred = [{"weight": 50, "podAffinityTerm": apart("topology.kubernetes.io/zone")}]
    if p.spread == "Required":
        return {
            "requiredDuringSchedulingIgnoredDuringExecution": [apart("kubernetes.io/hostname")],
            "preferredDuringSchedulingIgnoredDuringExecution": preferred,
        }
    preferred.insert(0, {"weight": 100, "podAffinityTerm": apart("kubernetes.io/hostname")})
    return {"preferredDuringSchedulingIgnoredDuringExecution": preferred}


def pod_spec(cluster: BrokerCluster, account: str) -> dict[str, Any]:
    """The common spec of the cluster's pods, without containers, volumes and placement."""
    out: dict[str, Any] = {
        "serviceAccountName": account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(),
    }
    if cluster.spec.imagePullSecrets:
        out["imagePullSecrets"] = [{"name": n} for n in cluster.spec.imagePullSecrets]
    return out


def container(cluster: BrokerCluster, name: str, image: str, command: list[str], http_port: str) -> dict[str, Any]:
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": cluster.spec.imagePullPolicy,
        "command": command,
        "env": [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "securityContext": container_security(),
        **probes(http_port),
    }


def token_volume(cluster: BrokerCluster) -> dict[str, Any]:
    """The volume with the cluster's token, which authenticates brokers and NameServers to each other."""
    return {"name": "admin", "secret": {"secretName": names.admin_secret(cluster.name)}}


def token_mount() -> dict[str, Any]:
    """The mount of `token_volume` in a container."""
    return {"name": "admin", "mountPath": TOKEN_DIR, "readOnly": True}
