"""`podTemplate`: additions to the pods of brokers, NameServers or proxies, in the form of a Kubernetes pod template.

The operator merges it into its own template (`platforms.kubernetes.manifests.pod_template_merge`). What follows from
the rest of the spec stays the operator's, and is refused here with its name.
"""

from __future__ import annotations

import difflib
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from gantry_operator.api.base import Strict

CONTAINERS: Final = ("broker", "namesrv", "proxy")
"""Names of the operator's own containers."""
OWN_VOLUMES: Final = ("admin", "client-tls", "config", "data", "tls", "tmp")
OWN_MOUNTS: Final = (
    "/etc/gantry", "/etc/gantry-admin", "/etc/gantry-ca", "/etc/gantry-client-tls", "/etc/gantry-tls", "/tmp",
    "/var/lib/gantry",
)  # fmt: skip
CODE: Final = (
    "/bin", "/boot", "/dev", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/proc", "/root", "/sbin", "/sys", "/usr",
    "/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.preload",
    "/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/var/run/secrets", "/run/secrets",
)  # fmt: skip
"""Folders and files of the images that hold code, or choose it: the interpreter, its modules, the loader's settings."""
PROXY_VOLUMES: Final = ("access", "grpc-tls", "user")
"""Further ones of proxies alone."""
PROXY_MOUNTS: Final = ("/etc/gantry-access", "/etc/gantry-grpc-tls", "/etc/gantry-user")
OWN_POD: Final[Mapping[str, str]] = {
    "activeDeadlineSeconds": "leave it out: the pods run for ever",
    "automountServiceAccountToken": "leave it out: the pods never use the Kubernetes API",
    "enableServiceLinks": "leave it out",
    "ephemeralContainers": "use kubectl debug",
    "hostIPC": "leave it out",
    "hostNetwork": "leave it out, and write spec.external for clients outside",
    "hostPID": "leave it out",
    "hostname": "leave it out: members find each other by the StatefulSet's names",
    "nodeName": "write nodeSelector or affinity",
    "readinessGates": "leave it out",
    "restartPolicy": "leave it out: the pods always restart",
    "serviceAccount": "write serviceAccountAnnotations for the cluster's own account",
    "serviceAccountName": "write serviceAccountAnnotations for the cluster's own account",
    "shareProcessNamespace": "leave it out",
    "subdomain": "leave it out: members find each other by the StatefulSet's names",
}
"""Fields of a pod's spec that are the operator's, and what to do instead."""
OWN_CONTAINER: Final[Mapping[str, str]] = {
    "args": "leave it out",
    "command": "leave it out",
    "image": "write spec.image",
    "imagePullPolicy": "write spec.imagePullPolicy",
    "lifecycle": "leave it out: the hook hands the group over before a stop",
    "livenessProbe": "leave it out",
    "ports": "leave it out, or give a sidecar its own ports",
    "readinessProbe": "leave it out",
    "resources": "write spec.resources, spec.nameServers.resources or spec.proxy.resources",
    "startupProbe": "leave it out",
    "stdin": "leave it out",
    "terminationMessagePath": "leave it out",
    "tty": "leave it out",
    "workingDir": "leave it out",
}
"""The same of the operator's own containers."""
POD: Final = (
    "affinity", "containers", "dnsConfig", "dnsPolicy", "hostAliases", "imagePullSecrets", "initContainers",
    "nodeSelector", "os", "overhead", "preemptionPolicy", "priorityClassName", "runtimeClassName", "schedulerName",
    "securityContext", "setHostnameAsFQDN", "terminationGracePeriodSeconds", "tolerations",
    "topologySpreadConstraints", "volumes",
)  # fmt: skip
"""Fields of a pod's spec that people may write."""
OWN_ENV: Final = ("POD_NAME",)
RESERVED: Final = re.compile(r"(.*\.)?gantry\.dev/.*|app\.kubernetes\.io/.*|apps\.kubernetes\.io/.*|"
                             r"statefulset\.kubernetes\.io/.*|controller-revision-hash|pod-template-hash")  # fmt: skip
MIN_GRACE_S: Final = 40
"""Seconds that a pod needs for a handover (30) and a clean stop."""


class TemplateMetadata(Strict):
    """Labels and annotations of the pods."""

    labels: dict[str, str] = Field(default_factory=dict, max_length=64, description="Further labels.")
    annotations: dict[str, str] = Field(default_factory=dict, max_length=64, description="Further annotations.")

    @field_validator("labels", "annotations")
    @classmethod
    def _not_ours(cls, entries: dict[str, str]) -> dict[str, str]:
        for key in entries:
            if RESERVED.fullmatch(key):
                _refuse(f"{key} is the operator's: write a name of your own")
        return entries


class PodTemplate(Strict):
    """Additions to the pods, merged into the operator's template: lists by name, maps by key."""

    metadata: TemplateMetadata = Field(
        default_factory=lambda: TemplateMetadata(), description="Labels and annotations of the pods."
    )
    spec: dict[str, Any] = Field(
        default_factory=dict,
        description="As the spec of any pod: affinity, tolerations, volumes, env and volumeMounts of the container "
        "broker (namesrv, proxy), sidecars, initContainers, ... Sidecars, initContainers, volumes, env and "
        "securityContext need podTemplate.allowed in the operator's chart.",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )

    @field_validator("spec")
    @classmethod
    def _mergeable(cls, spec: dict[str, Any]) -> dict[str, Any]:
        for problem in problems(spec):
            _refuse(problem)
        return spec


class ProxyPodTemplate(PodTemplate):
    """Additions to the proxies' pods, merged into the operator's template: lists by name, maps by key."""

    @field_validator("spec")
    @classmethod
    def _of_a_proxy(cls, spec: dict[str, Any]) -> dict[str, Any]:
        for problem in proxy_problems(spec):
            _refuse(problem)
        return spec


def _refuse(message: str) -> None:
    raise PydanticCustomError("rule", "{message}", {"message": message, "field": ""})


def problems(spec: Mapping[str, Any]) -> Iterator[str]:
    """Why a pod spec cannot be merged: fields that are the operator's or that no pod has."""
    for key, value in spec.items():
        if key in OWN_POD:
            yield f"{key} is the operator's: {OWN_POD[key]}"
        elif key not in POD:
            near = difflib.get_close_matches(key, POD, n=1, cutoff=0.6)
            yield f"{key} is no field of a pod: " + (
                f"did you mean {near[0]}?" if near else f"write one of {', '.join(POD)}"
            )
        elif key in ("containers", "initContainers", "volumes", "imagePullSecrets", "tolerations",
                     "topologySpreadConstraints", "hostAliases") and not _is_list_of_maps(value):  # fmt: skip
            yield f"{key} is no list of mappings: write a list"
    if any(True for key in spec if key not in POD):
        return
    for kind in ("containers", "initContainers"):
        for container in spec.get(kind) or []:
            yield from _container_problems(kind, container)
    for volume in spec.get("volumes") or []:
        if volume.get("name") in OWN_VOLUMES or not volume.get("name"):
            yield f"volumes: {volume.get('name')!r} is the operator's or no name: write another name"
    grace = spec.get("terminationGracePeriodSeconds")
    if grace is not None and (not isinstance(grace, int) or grace < MIN_GRACE_S):
        yield f"terminationGracePeriodSeconds is {grace!r}: write {MIN_GRACE_S} or more: a handover takes up to 30"


def proxy_problems(spec: Mapping[str, Any]) -> Iterator[str]:
    """Return the same of what proxies alone have, in a spec without other problems."""
    for volume in spec.get("volumes") or []:
        if volume["name"] in PROXY_VOLUMES:
            yield f"volumes: {volume['name']!r} is the operator's: write another name"
    for container in spec.get("containers") or []:
        if container["name"] in CONTAINERS and container["name"] != "proxy":
            yield f"containers: {container['name']} is no container of a proxy: write proxy, or the name of a sidecar"
        for mount in container.get("volumeMounts") or []:
            path = str(mount.get("mountPath", "") if isinstance(mount, Mapping) else "").rstrip("/")
            if container["name"] == "proxy" and path in PROXY_MOUNTS:
                yield f"containers[proxy].volumeMounts: {path} is the operator's: write another path"


def _container_problems(kind: str, container: Mapping[str, Any]) -> Iterator[str]:
    name = container.get("name")
    if not isinstance(name, str) or not name:
        yield f"{kind} has an entry without a name: write {', '.join(CONTAINERS)} or the name of a sidecar"
        return
    own = name in CONTAINERS
    if own and kind == "initContainers":
        yield f"initContainers: {name} is the operator's name: write another name"
    if own:
        for key in container:
            if key in OWN_CONTAINER:
                yield f"{kind}[{name}].{key} is the operator's: {OWN_CONTAINER[key]}"
        for env in container.get("env") or []:
            if not isinstance(env, Mapping) or env.get("name") in OWN_ENV:
                yield f"{kind}[{name}].env: {', '.join(OWN_ENV)} is the operator's: write another name"
        for part, field in (("volumeMounts", "mountPath"), ("volumeDevices", "devicePath")):
            for mount in container.get(part) or []:
                path = str(mount.get(field) or "" if isinstance(mount, Mapping) else "").rstrip("/")
                if not path or _covers(path, OWN_MOUNTS):
                    yield f"{kind}[{name}].{part}: {path or 'no path'} is the operator's: write another path"
                elif _covers(path, CODE):
                    yield (
                        f"{kind}[{name}].{part}: {path} would hide code of the image: write a path of your own, such "
                        "as /mnt/NAME"
                    )
    elif not container.get("image"):
        yield f"{kind}[{name}] has no image: write one, or the name of the operator's container"


def _covers(path: str, kept: Sequence[str]) -> bool:
    """Whether a mount covers one of these paths, or a part of one: the log of a broker is below its mount."""
    mount = posixpath.normpath("/" + path.lstrip("/")).rstrip("/") + "/"
    owns = [f"{own}/" for own in kept]
    return any(own.startswith(mount) or (mount.startswith(own) and own != "/tmp/") for own in owns)


def _is_list_of_maps(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, Mapping) for v in value)
