"""Volume claims and Leases over the life of a cluster: they stay or are deleted together, and volumes grow.

Neither has an owner while `reclaim` is Retain, so they outlive the cluster object. With Delete the cluster owns them,
and Kubernetes deletes them with it. No finalizer is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gantry_operator.api import BrokerCluster
from gantry_operator.api.base import parse_quantity
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.client import KINDS, POD, VOLUME_CLAIM, ApiError, KubeApi, Object
from gantry_operator.platforms.kubernetes.informer_cache import InformerCache


def owner(cluster: BrokerCluster) -> dict[str, Any]:
    """The owner reference that ties a volume claim or a Lease to its cluster."""
    return names.owner(cluster) | {"controller": False, "blockOwnerDeletion": False}


def owners_wanted(cluster: BrokerCluster, present: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The owner references of a kept object: ours or not, and all references of others."""
    ours = owner(cluster)
    others = [dict(o) for o in present if o.get("kind") != ours["kind"] or o.get("name") != ours["name"]]
    return [*others, ours] if cluster.spec.reclaim == "Delete" else others


def of_a_former(caches: Mapping[str, InformerCache], cluster: BrokerCluster) -> list[str]:
    """Objects of a former cluster of this name that are not deleted yet (`reclaim: Delete`)."""
    ours = owner(cluster)
    return [
        f"{kind} {obj['metadata']['name']}"
        for kind in ("Lease", "PersistentVolumeClaim")
        for obj in caches[kind].of(cluster.namespace, names.CLUSTER_LABEL, cluster.name)
        for o in obj["metadata"].get("ownerReferences") or []
        if (o["kind"], o["name"]) == (ours["kind"], ours["name"]) and o["uid"] != ours["uid"]
    ]


def growth(claim: Object, size: str) -> str | None:
    """The new size of a claim; None: it need not grow."""
    asked = claim["spec"]["resources"]["requests"]["storage"]
    return size if parse_quantity(size) > parse_quantity(asked) else None


def bound(claim: Mapping[str, Any]) -> bool:
    """The claim has a volume. One that never had any holds no record."""
    return bool((claim.get("spec") or {}).get("volumeName"))


def of_brokers(caches: Mapping[str, InformerCache], namespace: str, cluster: str) -> list[Object]:
    """The claims of the cluster's brokers."""
    found = caches["PersistentVolumeClaim"].of(namespace, names.CLUSTER_LABEL, cluster)
    return [c for c in found if (c["metadata"].get("labels") or {}).get(names.COMPONENT_LABEL) == names.BROKER]


def of_another_class(claim: Object, wanted: str | None, missing: Iterable[str]) -> bool:
    """The claim asks for another storage class than the spec. A spec without a class wants the default one, so only a
    class that is `missing` is another one.
    """
    asked = claim["spec"].get("storageClassName")
    return asked in missing if wanted is None else asked != wanted


async def keep(
    api: KubeApi, caches: Mapping[str, InformerCache], cluster: BrokerCluster, running: Iterable[tuple[str, int, str]]
) -> list[str]:
    """Bring claims and Leases in line with the spec. Returns the failures as text.

    Raises ApiError and ApiUnavailable for errors that do not concern the spec.
    """
    problems: list[str] = []
    names_of_claims = {names.claim(name) for _, _, name in running}
    for kind in ("PersistentVolumeClaim", "Lease"):
        for obj in list(caches[kind].of(cluster.namespace, names.CLUSTER_LABEL, cluster.name)):
            if obj["metadata"]["labels"].get(names.COMPONENT_LABEL) != names.BROKER:
                continue
            present = obj["metadata"].get("ownerReferences") or []
            wanted = owners_wanted(cluster, present)
            if wanted != present:
                patch: dict[str, Any] = {"metadata": {"ownerReferences": wanted}}
                name = obj["metadata"]["name"]
                caches[kind].note(await api.merge(KINDS[kind], cluster.namespace, name, patch))
    for name in sorted(names_of_claims):
        claim = caches["PersistentVolumeClaim"].get(cluster.namespace, name)
        if claim is None or claim["metadata"].get("deletionTimestamp") is not None:
            continue
        if not bound(claim):
            continue
        wrong = cluster.spec.storage.className
        if wrong is not None and of_another_class(claim, wrong, ()):
            problems.append(
                f"spec.storage.className is {wrong}, but volume {name} has class "
                f"{claim['spec'].get('storageClassName')}: write that one"
            )
        size = growth(claim, cluster.spec.storage.size)
        if size is None:
            continue
        patch = {"spec": {"resources": {"requests": {"storage": size}}}}
        try:
            caches["PersistentVolumeClaim"].note(await api.merge(VOLUME_CLAIM, cluster.namespace, name, patch))
        except ApiError as error:
            if error.status not in (403, 422):
                raise
            problems.append(
                f"spec.storage.size: volume {name} cannot grow to {size} ({error}); use a storage class with "
                "allowVolumeExpansion, or write the former size"
            )
    return problems


async def make_again(
    api: KubeApi, caches: Mapping[str, InformerCache], cluster: BrokerCluster, running: Iterable[tuple[str, int, str]],
    missing_classes: Iterable[str],
) -> list[str]:  # fmt: skip
    """Delete claims that never had a volume and ask for another class or size than the spec, with their pods. The
    StatefulSets must have the spec's template by now: they make both again. Returns what was done.

    `missing_classes`: storage classes of claims that do not exist. Raises ApiError and ApiUnavailable.
    """
    done = []
    for _, _, name in running:
        claim = caches["PersistentVolumeClaim"].get(cluster.namespace, names.claim(name))
        if claim is None or bound(claim) or claim["metadata"].get("deletionTimestamp") is not None:
            continue
        if not _made_wrong(claim, cluster, missing_classes):
            continue
        pod = caches["Pod"].get(cluster.namespace, name)
        if pod is not None and (pod.get("spec") or {}).get("nodeName"):
            continue  # A scheduled pod has a volume, so the claim is about to be bound.
        await api.delete(VOLUME_CLAIM, cluster.namespace, claim["metadata"]["name"], uid=claim["metadata"]["uid"])
        if pod is not None:
            # Kubernetes keeps a claim while a pod names it.
            await api.delete(POD, cluster.namespace, name, uid=pod["metadata"]["uid"])
        done.append(f"the volume claim of {name}, which never had a volume, is made again as the spec says")
    return done


def _made_wrong(claim: Object, cluster: BrokerCluster, missing_classes: Iterable[str]) -> bool:
    """A claim without a volume asks for something that the spec no longer says."""
    asked = parse_quantity(claim["spec"]["resources"]["requests"]["storage"])
    storage = cluster.spec.storage
    return of_another_class(claim, storage.className, missing_classes) or asked != parse_quantity(storage.size)
