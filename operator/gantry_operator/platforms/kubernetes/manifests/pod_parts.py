"""Common parts of the pods of NameServers and brokers: security, probes, placement."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.pod_template import CONTAINERS
from gantry_operator.api.pods import Placement, Resources
from gantry_operator.plan.process_config import TlsFolders
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.manifests.digest import digest

USER = 10001
"""User and group id of the images. The volumes belong to the group."""

CONFIG_DIR = "/etc/gantry"
TOKEN_DIR = "/etc/gantry-admin"
TOKEN_KEY = "token"
TOKEN_FILE = Path(TOKEN_DIR) / TOKEN_KEY
DATA_DIR = "/var/lib/gantry"
TLS_DIR = "/etc/gantry-tls"
"""The certificate by the cluster's own authority. Each kind of Secret has a folder beside the one of the configs."""
CLIENT_TLS_DIR = "/etc/gantry-client-tls"
"""The certificate for clients of the Secret that `security.tls.secretName` names."""
ARCHIVE_DIR = "/etc/gantry-archive"
"""One folder below it for each Secret of an archive."""
CA_DIR = "/etc/gantry-ca"
"""The cluster's authorities alone, for pods without a certificate."""


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


def probes(port: str, scheme: str) -> dict[str, Any]:
    """Probes of a process with /livez and /readyz. Liveness allows a full minute: it detects a process that hangs,
    not load. With HTTPS the kubelet verifies no certificate, and it sends no token.
    """

    def get(path: str, **timing: int) -> dict[str, Any]:
        return {"httpGet": {"path": path, "port": port, "scheme": scheme}, **timing}

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
    """Return the common spec of the cluster's pods, without containers, volumes and placement."""
    out: dict[str, Any] = {
        "serviceAccountName": account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(),
    }
    if cluster.spec.imagePullSecrets:
        out["imagePullSecrets"] = [{"name": n} for n in cluster.spec.imagePullSecrets]
    return out


def container(
    cluster: BrokerCluster, name: str, image: str, command: list[str], http_port: str, scheme: str
) -> dict[str, Any]:
    """`scheme`: of its HTTP interface."""
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": cluster.spec.imagePullPolicy,
        "command": command,
        "env": [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "securityContext": container_security(),
        **probes(http_port, scheme.upper()),
    }


def http_scheme(cluster: BrokerCluster) -> str:
    """How the cluster's own HTTP interfaces are called: http or https."""
    return "https" if cluster.spec.security.tls.between_members(kubernetes=True) else "http"


def scheme_of(pod: Mapping[str, Any] | None) -> str:
    """How the HTTP interface of this pod is called, by its probes; without a pod: http."""
    containers = ((pod or {}).get("spec") or {}).get("containers") or []
    # Sidecars may stand before it: some are put in by a webhook.
    own: Mapping[str, Any] = next((c for c in containers if c.get("name") in CONTAINERS), {})
    probe = (own.get("livenessProbe") or {}).get("httpGet") or {}
    return "https" if probe.get("scheme") == "HTTPS" else "http"


def own_authority(cluster: BrokerCluster) -> bool:
    """Whether the cluster needs certificates of its own authority."""
    tls = cluster.spec.security.tls
    return tls.between_members(kubernetes=True) or (tls.mode != "Disabled" and tls.issuer == "Operator")


def tls_folders(cluster: BrokerCluster) -> TlsFolders:
    tls = cluster.spec.security.tls
    return TlsFolders(
        clients=None if tls.mode == "Disabled" else Path(TLS_DIR if tls.issuer == "Operator" else CLIENT_TLS_DIR),
        members=Path(TLS_DIR) if tls.between_members(kubernetes=True) else None,
    )


def tls_volumes(cluster: BrokerCluster, holder: str) -> list[dict[str, Any]]:
    """Return the Secrets with the certificates of a pod. The kubelet brings each change into the files."""
    tls = cluster.spec.security.tls
    out = []
    if own_authority(cluster):
        out.append({"name": "tls", "secret": {"secretName": names.tls_secret(cluster.name, holder)}})
    if tls.mode != "Disabled" and tls.issuer == "Secret":
        out.append({"name": "client-tls", "secret": {"secretName": tls.secretName}})
    return out


def tls_mounts(cluster: BrokerCluster) -> list[dict[str, Any]]:
    """Return the mounts of `tls_volumes`."""
    folders = {"tls": TLS_DIR, "client-tls": CLIENT_TLS_DIR}
    return [{"name": v["name"], "mountPath": folders[v["name"]], "readOnly": True} for v in tls_volumes(cluster, "")]


def archive_secret(use: str, secret: str) -> Path:
    """Return the folder with the keys of a Secret that an archive or a migration needs. `use`: archive, restore or
    migrate.
    """
    return Path(ARCHIVE_DIR) / use / secret


def archive_volumes(cluster: BrokerCluster) -> list[dict[str, Any]]:
    """Return the Secrets of `spec.archive` and `spec.bootstrap`. The kubelet brings each change into the files. A
    Secret that is missing holds no pod back: the archive says so, and the brokers serve.
    """
    return [
        {"name": _volume(use, secret), "secret": {"secretName": secret, "optional": True}}
        for use, secret in _archive_secrets(cluster)
    ]


def archive_mounts(cluster: BrokerCluster) -> list[dict[str, Any]]:
    """Return the mounts of `archive_volumes`."""
    return [
        {"name": _volume(use, secret), "mountPath": str(archive_secret(use, secret)), "readOnly": True}
        for use, secret in _archive_secrets(cluster)
    ]


def _archive_secrets(cluster: BrokerCluster) -> list[tuple[str, str]]:
    bootstrap = cluster.spec.bootstrap
    places = {
        "archive": cluster.spec.archive,
        "restore": None if bootstrap is None else bootstrap.fromArchive,
        "follow": None if bootstrap is None else bootstrap.follow,
    }
    secrets: dict[tuple[str, str], None] = {}
    for use, place in places.items():
        if place is not None and place.credentialsSecret is not None:
            secrets[use, place.credentialsSecret] = None
        if place is not None and place.encryption is not None:
            secrets[use, place.encryption.secretName] = None
    source = None if bootstrap is None else bootstrap.fromRocketMQ
    if source is not None and source.accessKeySecret is not None:
        secrets["migrate", source.accessKeySecret] = None
    if source is not None and source.tls is not None:
        secrets["migrate", source.tls.caSecret] = None
    return list(secrets)


def _volume(use: str, secret: str) -> str:
    """Return a name for the volume of a Secret: those of volumes are shorter, and have no dots."""
    return f"{use}-{digest(secret)[:12]}"


def pod_annotations(cluster: BrokerCluster, config_hash: str) -> dict[str, str]:
    """Annotations of the cluster's pods. Monitoring reads the scheme (the chart's PodMonitor does)."""
    return {names.CONFIG_HASH: config_hash, names.HTTP_SCHEME: http_scheme(cluster)}


def token_volume(cluster: BrokerCluster) -> dict[str, Any]:
    """Return the volume with the cluster's token, which authenticates brokers and NameServers to each other."""
    return {"name": "admin", "secret": {"secretName": names.admin_secret(cluster.name)}}


def token_mount() -> dict[str, Any]:
    """Return the mount of `token_volume` in a container."""
    return {"name": "admin", "mountPath": TOKEN_DIR, "readOnly": True}
