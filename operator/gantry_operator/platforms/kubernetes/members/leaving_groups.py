"""Broker groups that left the spec and still belong to the cluster, by their StatefulSets.

A StatefulSet has the group's part of the spec in an annotation, so a leaving group goes on as it was. Another
annotation marks a group whose removal has begun: its name in the spec then means a new group, which starts once the
former one is gone. The StatefulSet goes last, so the removal goes on after any step.

A group that is written back takes messages again. Its StatefulSet decides which of the two came first: both write to
it, and the removal only to the version that was there before the proof that the group is empty. So it cannot begin late
either, by a request without an answer or by an operator that leads no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from gantry_operator.api.annotations import GROUP
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.spec import BrokerGroup
from gantry_operator.plan.plan import member_name
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.api.client import (
    BROKER_CLUSTER,
    LEASE,
    SECRET,
    STATEFUL_SET,
    VOLUME_CLAIM,
    ApiError,
    KubeApi,
    Object,
)
from gantry_operator.platforms.kubernetes.api.informer_cache import InformerCache

REMOVING = f"{GROUP}/removing"
"""Annotation of a StatefulSet: the time at which the removal of the group began."""
STAYED = f"{GROUP}/stayed"
"""Annotation of a StatefulSet: the time at which a leaving group was written back."""
DRAINED = f"{GROUP}/drained"
"""Annotation of a volume claim: the time at which its group was removed (`reclaim: Retain`)."""


def group_of(stateful_set: Mapping[str, Any]) -> str | None:
    """Return the broker group of a StatefulSet; None: it belongs to none."""
    labels = stateful_set["metadata"].get("labels") or {}
    return labels.get(names.GROUP_LABEL) if labels.get(names.COMPONENT_LABEL) == names.BROKER else None


def _annotation(obj: Mapping[str, Any], name: str) -> str | None:
    return (obj["metadata"].get("annotations") or {}).get(name)


def as_it_was(stateful_set: Mapping[str, Any], name: str) -> BrokerGroup:
    """Return the group's part of the spec when it was last in it. `members` counts those that run."""
    running = max(1, int((stateful_set.get("spec") or {}).get("replicas", 1)))
    try:
        last_spec = BrokerGroup.model_validate_json(_annotation(stateful_set, names.BROKER_GROUP) or "")
    except ValidationError:
        return BrokerGroup(name=name, members=min(running, 9))
    return last_spec.model_copy(update={"name": name, "members": max(last_spec.members, min(running, 9))})


def name_for_clients(group: BrokerGroup) -> str:
    """RocketMQ's brokerName of a group. Two groups with the same one would answer for each other."""
    return str(getattr(group, "brokerName", None) or group.name)


def removing(sets: Iterable[Object]) -> tuple[str, ...]:
    """Return the groups whose removal has begun."""
    groups = (group for s in sets if (group := group_of(s)) is not None and _annotation(s, REMOVING) is not None)
    return tuple(sorted(groups))


def running_cluster(
    cluster: BrokerCluster, sets: Iterable[Object], claims: Iterable[Object]
) -> tuple[BrokerCluster, list[str]]:
    """Return the cluster with leaving groups, and without those of the spec that cannot start yet. Also why they
    cannot.

    `sets`, `claims`: the cluster's StatefulSets and volume claims.
    """
    by_group = {group: s for s in sets if (group := group_of(s)) is not None}
    going = removing(by_group.values())
    kept: dict[str, list[str]] = {}
    for claim in claims:
        group = (claim["metadata"].get("labels") or {}).get(names.GROUP_LABEL)
        if group is not None and _annotation(claim, DRAINED) is not None:
            kept.setdefault(group, []).append(claim["metadata"]["name"])
    in_spec = {g.name for g in cluster.spec.brokerGroups}
    former = [as_it_was(s, name) for name, s in sorted(by_group.items()) if name not in in_spec or name in going]
    taken = {name_for_clients(g): g.name for g in former}
    groups, problems = [], []
    for g in cluster.spec.brokerGroups:
        if taken.get(name_for_clients(g), g.name) != g.name:
            problems.append(
                f"group {g.name} starts once group {taken[name_for_clients(g)]}, which has the same brokerName, is gone"
            )
        elif g.name in going:
            problems.append(f"group {g.name} starts once the former group of this name is removed")
        elif g.name in kept and g.name not in by_group:
            problems.append(
                f"group {g.name} does not start: the volumes of the former group of this name are kept (spec.reclaim "
                f"was Retain); delete the claims {', '.join(sorted(kept[g.name]))}, or give the group another name"
            )
        else:
            groups.append(g)
    groups += [g for g in former if g.name not in going]
    spec = cluster.spec.model_copy(update={"brokerGroups": groups})
    return cluster.model_copy(update={"spec": spec}), problems


class GroupRemoval:
    """The removal of empty groups of one cluster. Its steps raise ApiError and ApiUnavailable, and may be repeated."""

    def __init__(
        self,
        api: KubeApi,
        caches: Mapping[str, InformerCache],
        cluster: tuple[str, str],
        reclaim: Callable[[], str],
    ) -> None:
        """`cluster`: namespace and name."""
        self._api = api
        self._caches = caches
        self._namespace, self._name = cluster
        self._reclaim = reclaim

    def mark(self, group: str) -> str:
        """See `RemovalPlatform`."""
        live = self._caches["StatefulSet"].get(self._namespace, names.group_set(self._name, group))
        return "" if live is None else str(live["metadata"]["resourceVersion"])

    async def begin_removal(self, group: str, mark: str) -> bool:
        """See `RemovalPlatform`."""
        # From the API server, not from a cache: the group may have come back to the spec a moment ago.
        cluster = await self._api.get(BROKER_CLUSTER, self._namespace, self._name)
        if not mark or cluster is None or group in _groups_of(cluster):
            return False
        try:
            # At this version alone: a group that was written since, because it stays, must not lose its disks.
            await self._annotate_set(group, REMOVING, mark)
        except ApiError as error:
            if error.reason in ("Conflict", "NotFound"):
                return False
            raise
        return True

    async def stay(self, group: str) -> bool:
        """See `RemovalPlatform`."""
        try:
            written = await self._annotate_set(group, STAYED)
        except ApiError as error:
            if error.reason == "NotFound":
                return True
            raise
        return _annotation(written, REMOVING) is None

    async def continue_removal(self, group: str) -> bool:
        """See `RemovalPlatform`."""
        live = self._caches["StatefulSet"].get(self._namespace, names.group_set(self._name, group))
        if live is None:
            return True
        if int(live["spec"].get("replicas", 0)) > 0:
            await self._patch_set(group, {"spec": {"replicas": 0}})
            return False
        members = [member_name(self._name, group, number) for number in range(9)]
        # Until its pod is gone, a broker writes to the volume.
        if any(self._caches["Pod"].get(self._namespace, member) is not None for member in members):
            return False
        lease = self._caches["Lease"].get(self._namespace, names.group_set(self._name, group))
        if lease is not None:
            # Each by its uid: an object of this name may be that of a new group by now.
            await self._api.delete(LEASE, self._namespace, lease["metadata"]["name"], uid=lease["metadata"]["uid"])
        for member in members:
            claim = self._caches["PersistentVolumeClaim"].get(self._namespace, names.claim(member))
            if claim is not None:
                await self._reclaim_volume(claim)
        await self._remove_certificate(group)
        # Last: it has the mark of the removal, by which the next operator process goes on.
        await self._api.delete(STATEFUL_SET, self._namespace, live["metadata"]["name"], uid=live["metadata"]["uid"])
        return False

    async def _reclaim_volume(self, claim: Object) -> None:
        meta = claim["metadata"]
        if self._reclaim() == "Delete":
            await self._api.delete(VOLUME_CLAIM, self._namespace, meta["name"], uid=meta["uid"])
        elif _annotation(claim, DRAINED) is None:
            patch = {"metadata": {"annotations": {DRAINED: _now()}}}
            written = await self._api.merge(VOLUME_CLAIM, self._namespace, meta["name"], patch)
            self._caches["PersistentVolumeClaim"].note(written)

    async def _remove_certificate(self, group: str) -> None:
        """Kept volumes need none: a new group of this name gets another one."""
        secret = self._caches["Secret"].get(self._namespace, names.tls_secret(self._name, group))
        meta = {} if secret is None else secret["metadata"]
        labels = meta.get("labels") or {}
        if labels.get(names.CLUSTER_LABEL) == self._name and labels.get(names.COMPONENT_LABEL) == names.CERTIFICATES:
            await self._api.delete(SECRET, self._namespace, meta["name"], uid=meta["uid"])

    async def _annotate_set(self, group: str, annotation: str, version: str = "") -> Object:
        """`version`: the only one that is changed; empty: any."""
        precondition = {"resourceVersion": version} if version else {}
        return await self._patch_set(group, {"metadata": {"annotations": {annotation: _now()}, **precondition}})

    async def _patch_set(self, group: str, patch: Mapping[str, Any]) -> Object:
        written = await self._api.merge(STATEFUL_SET, self._namespace, names.group_set(self._name, group), patch)
        self._caches["StatefulSet"].note(written)
        return written


def _groups_of(cluster: Mapping[str, Any]) -> list[str]:
    """Return the names of the groups in a spec, which may be refused."""
    groups = (cluster.get("spec") or {}).get("brokerGroups")
    return [str(g.get("name")) for g in groups if isinstance(g, Mapping)] if isinstance(groups, list) else []


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
