"""The role registry in Kubernetes: one Lease per group holds its leadership record (rules 13 and 22 of
docs/replication.md).

The Lease has no owner while volumes are kept, so it outlives the cluster object like the volumes. A read returns the
last write or watch event. A swap replaces the Lease at the resource version that was read, so a stale read only costs a
failed swap. kopf has no compare-and-swap, so the registry uses the API client directly.
"""

from __future__ import annotations

import json
from typing import Any

from gantry_broker.contracts.leadership import LeadershipRecord

from gantry_operator.api.annotations import GROUP
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.api.client import LEASE, ApiError, ApiUnavailable, KubeApi, Object
from gantry_operator.registry.base import Entry, RegistryUnavailable

LEADERSHIP = f"{GROUP}/leadership"
"""The annotation with the leadership record as JSON. The Lease's fields repeat it for users: holder and transitions."""


class LeaseRegistry:
    """The registry of one cluster. `owner`: owner reference for new Leases (`reclaim: Delete`), or None."""

    def __init__(self, api: KubeApi, cluster: str, namespace: str) -> None:
        self.owner: dict[str, Any] | None = None
        self._api = api
        self._cluster = cluster
        self._namespace = namespace
        self._leases: dict[str, Object | None] = {}
        self._read: dict[str, tuple[Object, Entry]] = {}
        """By group: a Lease and its parsed record. Every pass reads it, and writes are rare."""

    async def read(self, group: str) -> Entry | None:
        if group not in self._leases:
            try:
                self._leases[group] = await self._api.get(LEASE, self._namespace, self._name(group))
            except (ApiError, ApiUnavailable) as error:
                raise RegistryUnavailable(str(error)) from error
        lease = self._leases[group]
        if lease is None:
            return None
        read = self._read.get(group)
        if read is None or read[0] is not lease:
            read = self._read[group] = (lease, entry_of(lease))
        return read[1]

    async def swap(self, group: str, expected: Entry | None, new: LeadershipRecord) -> bool:
        cached = self._leases.get(group)
        try:
            if expected is None:
                written = await self._api.create(self._lease(group, new, None))
            else:
                # [13] The whole record is compared, not its epoch: else a member that was removed meanwhile would come
                # back.
                if cached is None or entry_of(cached) != expected:
                    return False
                written = await self._api.replace(self._lease(group, new, cached))
        except ApiError as error:
            # After a refusal the local copy is outdated or wrong: the next read asks the API server.
            self._leases.pop(group, None)
            if error.reason in ("Conflict", "AlreadyExists", "NotFound"):
                return False
            raise RegistryUnavailable(str(error)) from error
        except ApiUnavailable as error:
            self._leases.pop(group, None)
            raise RegistryUnavailable(str(error)) from error
        self._leases[group] = written
        return True

    def heard(self, kind: str, lease: Object) -> None:
        """Take a watch event about one of the cluster's Leases."""
        group = (lease["metadata"].get("labels") or {}).get(names.GROUP_LABEL)
        if group is None:
            return
        cached = self._leases.get(group)
        if kind == "DELETED":
            if cached is None or cached["metadata"]["uid"] == lease["metadata"]["uid"]:
                self._leases.pop(group, None)
        elif cached is None or int(lease["metadata"]["resourceVersion"]) > int(cached["metadata"]["resourceVersion"]):
            self._leases[group] = lease

    def _name(self, group: str) -> str:
        return names.group_set(self._cluster, group)

    def _lease(self, group: str, leadership: LeadershipRecord, replaced: Object | None) -> Object:
        meta: dict[str, Any] = {
            "name": self._name(group),
            "namespace": self._namespace,
            "labels": names.labels(self._cluster, names.BROKER, group),
            "annotations": {LEADERSHIP: json.dumps(leadership.to_json())},
        }
        if replaced is not None:
            meta["resourceVersion"] = replaced["metadata"]["resourceVersion"]
        if self.owner is not None:
            meta["ownerReferences"] = [self.owner]
        master = None if leadership.master is None else f"{self._cluster}-{group}-{leadership.master.member}"
        spec = {"holderIdentity": master, "leaseTransitions": leadership.epoch}
        return {
            "apiVersion": LEASE.api_version,
            "kind": "Lease",
            "metadata": meta,
            "spec": {k: v for k, v in spec.items() if v is not None},
        }


def entry_of(lease: Object) -> Entry:
    """Return the leadership record in a Lease. Raises RegistryUnavailable if it holds none; the members then provide
    it.
    """
    name, text = lease["metadata"]["name"], (lease["metadata"].get("annotations") or {}).get(LEADERSHIP)
    if text is None:
        raise RegistryUnavailable(
            f"Lease {name} has no {LEADERSHIP} annotation: delete it, and it is recovered from the members"
        )
    try:
        return Entry(LeadershipRecord.from_json(json.loads(text)), lease["metadata"]["resourceVersion"])
    except (ValueError, KeyError, TypeError) as error:
        raise RegistryUnavailable(
            f"the {LEADERSHIP} annotation of Lease {name} holds no leadership record ({error}): "
            "delete the Lease, and it is recovered from the members"
        ) from error
