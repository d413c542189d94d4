"""Merges `podTemplate` into the operator's own pod template, as Kubernetes' strategic merge does. Pure."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gantry_operator.api.pod_template import CONTAINERS, PodTemplate

KEYS: Final[Mapping[str, str]] = {
    "containers": "name", "initContainers": "name", "volumes": "name", "env": "name", "imagePullSecrets": "name",
    "volumeMounts": "mountPath", "volumeDevices": "devicePath", "hostAliases": "ip", "ports": "containerPort",
}  # fmt: skip
"""Lists whose entries are the same if this field is. Entries of other lists are added to the end."""
NEED_PERMISSION: Final = ("containers", "initContainers", "volumes", "env", "securityContext")
"""Parts that bring code, identity or data into a pod: an administrator allows them in the operator's chart."""
_SECURITY: Final = re.compile(
    r"container\.apparmor\.security\.beta\.kubernetes\.io/.*|(container\.)?seccomp\.security\.alpha\.kubernetes\.io/.*"
)
"""Annotations that Kubernetes reads as fields of the securityContext."""


def merge(template: Mapping[str, Any], additions: PodTemplate | None, selector: Mapping[str, str]) -> dict[str, Any]:
    """Return the template (`metadata`, `spec`) with the additions. `selector`: labels of the pods of the same set."""
    out: dict[str, Any] = copy.deepcopy(dict(template))
    if additions is None:
        return out
    metadata = {k: v for k, v in additions.metadata.model_dump().items() if v}
    out["metadata"] = _merged(out["metadata"], metadata)
    spec = copy.deepcopy(additions.spec)
    for spread in spec.get("topologySpreadConstraints") or []:
        spread.setdefault("labelSelector", {"matchLabels": dict(selector)})
    out["spec"] = _merged(out["spec"], spec)
    return out


def _merged(own: Any, more: Any, field: str = "") -> Any:
    """`own` with `more`. None in `more` leaves a field as it is."""
    if more is None:
        return own
    if isinstance(own, Mapping) and isinstance(more, Mapping):
        out = dict(own)
        for key, value in more.items():
            out[key] = _merged(out.get(key), value, key)
        return out
    if isinstance(own, list) and isinstance(more, list):
        return _merged_lists(own, more, KEYS.get(field, ""))
    return more


def _merged_lists(own: list[Any], more: list[Any], key: str) -> list[Any]:
    out = list(own)
    for item in more:
        same = [i for i, o in enumerate(out) if key and isinstance(item, Mapping) and o.get(key) == item.get(key)]
        if same:
            out[same[0]] = _merged(out[same[0]], item)
        elif item not in out:
            out.append(item)
    return out


def needs_permission(additions: PodTemplate | None) -> list[str]:
    """Return the parts of NEED_PERMISSION that are written."""
    if additions is None:
        return []
    parts = [part for part in ("initContainers", "volumes", "securityContext") if additions.spec.get(part)]
    for container in additions.spec.get("containers") or []:
        if container.get("name") not in CONTAINERS:
            parts.append("containers")
        else:
            parts += [part for part in ("securityContext",) if container.get(part)]
            parts += ["env"] if container.get("env") or container.get("envFrom") else []
            parts += ["volumes"] if container.get("volumeMounts") or container.get("volumeDevices") else []
    return [part for part in NEED_PERMISSION if part in parts]


def security_annotations(additions: PodTemplate | None) -> list[str]:
    """Return the annotations that set AppArmor or seccomp of a container, as securityContext does."""
    return [] if additions is None else [key for key in additions.metadata.annotations if _SECURITY.fullmatch(key)]


def images(additions: PodTemplate | None) -> Sequence[str]:
    """Images of sidecars and initContainers."""
    if additions is None:
        return ()
    return tuple(
        str(c["image"])
        for kind in ("containers", "initContainers")
        for c in additions.spec.get(kind) or []
        if c.get("image")
    )
