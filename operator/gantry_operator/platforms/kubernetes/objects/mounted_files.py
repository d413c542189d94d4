"""Brings changed ConfigMaps and Secrets into running pods at once.

A kubelet looks at a pod's mounted objects about once a minute, and at once when the pod object changes. So the
operator writes the versions of the mounted objects into an annotation of the pod.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.api.client import POD, ApiError, KubeApi, Object
from gantry_operator.platforms.kubernetes.api.informer_cache import InformerCache
from gantry_operator.platforms.kubernetes.manifests.digest import digest


def versions(pod: Object, live: Callable[[str, str], Object | None]) -> str:
    """Return a short hash of the versions of the mounted objects. `live`: by kind and name, an object as it is now.

    Only versions count, not contents: an annotation is no place for anything that comes from a Secret. Objects that
    the operator does not watch, such as Secrets named by users, do not count. Empty: no object counts.
    """
    by_object = {}
    for volume in pod["spec"].get("volumes") or ():
        mounted = (
            ("ConfigMap", (volume.get("configMap") or {}).get("name")),
            ("Secret", (volume.get("secret") or {}).get("secretName")),
        )
        for kind, name in mounted:
            obj = live(kind, name) if name else None
            if obj is not None:
                by_object[f"{kind}/{name}"] = obj["metadata"]["resourceVersion"]
    return digest(by_object) if by_object else ""


async def refresh(api: KubeApi, caches: Mapping[str, InformerCache], namespace: str, cluster: str) -> None:
    """Mark each running pod of a cluster whose mounted objects have changed. Raises ApiError and ApiUnavailable."""
    for pod in caches["Pod"].of(namespace, names.CLUSTER_LABEL, cluster):
        meta = pod["metadata"]
        now = versions(pod, lambda kind, name: caches[kind].get(namespace, name))
        if (
            not now
            or meta.get("deletionTimestamp") is not None
            or (meta.get("annotations") or {}).get(names.MOUNTED_FILES) == now
        ):
            continue
        patch = {"metadata": {"annotations": {names.MOUNTED_FILES: now}}}
        try:
            caches["Pod"].note(await api.merge(POD, namespace, meta["name"], patch))
        except ApiError as error:
            if error.status != 404:
                raise
