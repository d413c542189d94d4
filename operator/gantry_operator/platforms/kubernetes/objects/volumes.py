"""Volume claims and Leases over the life of a cluster: they stay or are deleted together, and volumes grow.

Neither has an owner while `reclaim` is Retain, so they outlive the cluster object. With Delete the cluster owns them,
and Kubernetes deletes them with it. No finalizer is needed.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from gantry_operator.api.base import parse_quantity
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.spec import Storage
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.api.client import KINDS, POD, VOLUME_CLAIM, ApiError, KubeApi, Object
from gantry_operator.platforms.kubernetes.api.informer_cache import InformerCache

MANAGER = f"{names.FIELD_MANAGER}-volumes"
"""Owner of the labels and annotations of claims from the spec."""


def owner(cluster: BrokerCluster) -> dict[str, Any]:
    """Return the owner reference that ties a volume claim or a Lease to its cluster."""
    return names.owner(cluster) | {"controller": False, "blockOwnerDeletion": False}


def owners_wanted(cluster: BrokerCluster, present: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the owner references of a kept object: ours or not, and all references of others."""
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
    """Return the new size of a claim; None: it need not grow."""
    requested = claim["spec"]["resources"]["requests"]["storage"]
    return size if parse_quantity(size) > parse_quantity(requested) else None


def largest(claims: Iterable[Object], groups: Container[str]) -> str | None:
    """Return the largest size that a bound claim of these groups asks for, which is also the least that it can have.

    None: no claim is bound.
    """
    sizes = [
        str(c["spec"]["resources"]["requests"]["storage"])
        for c in claims
        if bound(c) and (c["metadata"].get("labels") or {}).get(names.GROUP_LABEL) in groups
    ]
    return max(sizes, key=parse_quantity, default=None)


def bound(claim: Mapping[str, Any]) -> bool:
    """Return whether the claim has a volume. One that never had any holds no record."""
    return bool((claim.get("spec") or {}).get("volumeName"))


def of_brokers(caches: Mapping[str, InformerCache], namespace: str, cluster: str) -> list[Object]:
    """Return the claims of the cluster's brokers."""
    claims = caches["PersistentVolumeClaim"].of(namespace, names.CLUSTER_LABEL, cluster)
    return [c for c in claims if (c["metadata"].get("labels") or {}).get(names.COMPONENT_LABEL) == names.BROKER]


def of_another_class(claim: Object, class_name: str | None, missing: Iterable[str]) -> bool:
    """Return whether the claim asks for another storage class than the spec. A spec without a class wants the default
    one, so only a class that is `missing` is another one.
    """
    present = claim["spec"].get("storageClassName")
    return present in missing if class_name is None else present != class_name


async def _keep_metadata(api: KubeApi, claims: InformerCache, claim: Object, storage: Storage) -> str:
    """Give a claim the labels and annotations of the spec, and take back former ones. Returns why it failed.

    A server-side apply by a manager of its own: it owns nothing else of the claim.
    """
    from_spec = {"labels": dict(storage.labels), "annotations": dict(storage.annotations)}
    former = _applied(claim)
    if from_spec == former:
        return ""
    meta = {"name": claim["metadata"]["name"], "namespace": claim["metadata"]["namespace"], **from_spec}
    try:
        written = await api.apply({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta}, MANAGER)
        # The StatefulSet controller wrote those of the template, too, so giving them up does not remove them.
        left = {
            part: dict.fromkeys((keys.keys() - from_spec[part].keys()) & (written["metadata"].get(part) or {}).keys())
            for part, keys in former.items()
        }
        if any(left.values()):
            written = await api.merge(VOLUME_CLAIM, meta["namespace"], meta["name"], {"metadata": left})
        claims.note(written)
    except ApiError as error:
        if error.status not in (400, 403, 422):
            raise
        return f"storage.labels and storage.annotations of volume {meta['name']}: {error}"
    return ""


def _applied(claim: Object) -> dict[str, dict[str, str]]:
    """Return the labels and annotations that `_keep_metadata` has written, with their present values."""
    meta = claim["metadata"]
    out: dict[str, dict[str, str]] = {"labels": {}, "annotations": {}}
    for entry in meta.get("managedFields") or []:
        if entry.get("manager") == MANAGER and entry.get("operation") == "Apply":
            owned = (entry.get("fieldsV1") or {}).get("f:metadata") or {}
            for part, values in out.items():
                keys = [key[2:] for key in owned.get(f"f:{part}") or {} if key.startswith("f:")]
                values.update({key: (meta.get(part) or {}).get(key, "") for key in keys})
    return out


def with_sizes_of_volumes(
    cluster: BrokerCluster, caches: Mapping[str, InformerCache], running: Iterable[tuple[str, int, str]]
) -> BrokerCluster:
    """Return the cluster as its StatefulSets should have it: a template grows after the claims.

    A group in which a volume could not grow keeps the size of its smallest volume for further members.
    """
    smallest: dict[str, str] = {}
    for group, _, name in running:
        claim = caches["PersistentVolumeClaim"].get(cluster.namespace, names.claim(name))
        if claim is not None and bound(claim) and growth(claim, cluster.spec.storage_of(group).size):
            requested = str(claim["spec"]["resources"]["requests"]["storage"])
            smallest[group] = min(requested, smallest.get(group, requested), key=parse_quantity)
    if not smallest:
        return cluster
    groups = [
        g
        if g.name not in smallest
        else g.model_copy(
            update={"storage": cluster.spec.storage_of(g.name).model_copy(update={"size": smallest[g.name]})}
        )
        for g in cluster.spec.brokerGroups
    ]
    return cluster.model_copy(update={"spec": cluster.spec.model_copy(update={"brokerGroups": groups})})


def _growth_problems(field: str, refused: Sequence[tuple[str, str, str]], grown: Sequence[str], size: str) -> list[str]:
    """Return what to do about claims that cannot grow. `refused`: name, size and reason of each; `grown`: those that
    did.
    """
    if not refused:
        return []
    former = max((now for _, now, _ in refused), key=parse_quantity)
    back = (
        f"{', '.join(grown)} has {size} already, which cannot be taken back, and the members work as they are"
        if grown
        else f"or write {former} again: no volume has grown"
    )
    first = [f"{field}: volume {name} cannot grow from {now} to {size} ({why})" for name, now, why in refused]
    first[-1] += f"; use a storage class with allowVolumeExpansion; {back}"
    return first


async def keep(
    api: KubeApi, caches: Mapping[str, InformerCache], cluster: BrokerCluster, running: Iterable[tuple[str, int, str]]
) -> list[str]:
    """Bring claims and Leases in line with the spec. Returns the failures as text.

    Call it before the StatefulSets are applied: see `with_sizes_of_volumes`.

    Raises ApiError and ApiUnavailable for errors that do not concern the spec.
    """
    await _keep_owners(api, caches, cluster)
    problems: list[str] = []
    groups_of_claims = {names.claim(name): group for group, _, name in running}
    refused: dict[str, list[tuple[str, str, str]]] = {}
    grown: dict[str, list[str]] = {}
    sizes: dict[str, str] = {}
    own = {g.name for g in cluster.spec.brokerGroups if g.storage is not None}
    for name, group in sorted(groups_of_claims.items()):
        storage = cluster.spec.storage_of(group)
        claim = caches["PersistentVolumeClaim"].get(cluster.namespace, name)
        if claim is None or claim["metadata"].get("deletionTimestamp") is not None:
            continue
        problems += filter(None, [await _keep_metadata(api, caches["PersistentVolumeClaim"], claim, storage)])
        if not bound(claim):
            continue
        wrong = storage.className
        if wrong is not None and of_another_class(claim, wrong, ()):
            problems.append(
                f"spec.storage.className is {wrong}, but volume {name} has class "
                f"{claim['spec'].get('storageClassName')}: write that one"
            )
        field = f"spec.brokerGroups[{group}].storage.size" if group in own else "spec.storage.size"
        sizes[field], size = storage.size, growth(claim, storage.size)
        now = str(claim["spec"]["resources"]["requests"]["storage"])
        if parse_quantity(storage.size) < parse_quantity(now):
            problems.append(
                f"{field} is {storage.size}, but volume {name} has {now}, and a volume cannot shrink: write {now}"
            )
        if size is None:
            grown.setdefault(field, []).append(name)
            continue
        patch = {"spec": {"resources": {"requests": {"storage": size}}}}
        try:
            caches["PersistentVolumeClaim"].note(await api.merge(VOLUME_CLAIM, cluster.namespace, name, patch))
        except ApiError as error:
            if error.status not in (403, 422):
                raise
            refused.setdefault(field, []).append((name, now, str(error)))
        else:
            grown.setdefault(field, []).append(name)
    for field, rows in refused.items():
        problems += _growth_problems(field, rows, grown.get(field, []), sizes[field])
    return problems


async def _keep_owners(api: KubeApi, caches: Mapping[str, InformerCache], cluster: BrokerCluster) -> None:
    """Let claims and Leases go with the cluster's object, or stay, as the spec says. Raises as `keep`."""
    for kind in ("PersistentVolumeClaim", "Lease"):
        for obj in list(caches[kind].of(cluster.namespace, names.CLUSTER_LABEL, cluster.name)):
            if obj["metadata"]["labels"].get(names.COMPONENT_LABEL) != names.BROKER:
                continue
            present = obj["metadata"].get("ownerReferences") or []
            owners = owners_wanted(cluster, present)
            if owners != present:
                patch = {"metadata": {"ownerReferences": owners}}
                name = obj["metadata"]["name"]
                caches[kind].note(await api.merge(KINDS[kind], cluster.namespace, name, patch))


async def make_again(
    api: KubeApi, caches: Mapping[str, InformerCache], cluster: BrokerCluster, running: Iterable[tuple[str, int, str]],
    missing_classes: Iterable[str],
) -> list[str]:  # fmt: skip
    """Delete claims that never had a volume and ask for another class or size than the spec, with their pods. The
    StatefulSets must have the spec's template by now: they make both again. Returns what was done.

    `missing_classes`: storage classes of claims that do not exist. Raises ApiError and ApiUnavailable.
    """
    done = []
    for group, _, name in running:
        claim = caches["PersistentVolumeClaim"].get(cluster.namespace, names.claim(name))
        if claim is None or bound(claim) or claim["metadata"].get("deletionTimestamp") is not None:
            continue
        if not _made_wrong(claim, cluster.spec.storage_of(group), missing_classes):
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


def _made_wrong(claim: Object, storage: Storage, missing_classes: Iterable[str]) -> bool:
    """Return whether a claim without a volume asks for something that the spec no longer says."""
    requested = parse_quantity(claim["spec"]["resources"]["requests"]["storage"])
    return of_another_class(claim, storage.className, missing_classes) or requested != parse_quantity(storage.size)
