"""The spec of a cluster whose own spec is refused, from its live objects: failover goes on with the groups that run.

Pure. Each group continues with the configuration of its brokers. A group whose mode is not known is left out: a guess
may choose the wrong mode, and the controller of one mode stays when the configuration is repaired.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.manifest import problems_of
from gantry_operator.api.security import Security
from gantry_operator.api.spec import Failover
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.api.client import Object
from gantry_operator.platforms.kubernetes.api.lease_registry import LEADERSHIP
from gantry_operator.platforms.kubernetes.members import leaving_groups

MODES = ("MasterSlave", "Raft")

Live = Callable[[str, str], Object | None]
"""A live object by its kind and name."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What can be led under a refused spec."""

    cluster: BrokerCluster | None
    """The groups that run; None: none of them can be led."""
    left_out: Mapping[str, str]
    """Existing groups without a failover, with the reason."""
    knows_users: bool
    """`spec.security` could be read. Otherwise the members keep their access table."""


def recovered(obj: Object, sets: Iterable[Object], live: Live, *, owned_leases: bool) -> Recovered:
    """`obj`: the BrokerCluster with the refused spec. `owned_leases`: its Leases go together with it."""
    meta, refused = obj["metadata"], obj.get("spec") or {}
    groups: dict[str, int] = {}
    common: dict[str, Any] = {"failover": readable_failover(refused.get("failover")), "nameServers": {}}
    for stateful_set in sets:
        labels, replicas = stateful_set["metadata"]["labels"], int(stateful_set["spec"]["replicas"])
        group = labels.get(names.GROUP_LABEL)
        if group is not None and group in leaving_groups.removing([stateful_set]):
            continue
        if group is not None:
            groups[group] = replicas
        elif labels.get(names.COMPONENT_LABEL) == names.NAME_SERVER:
            common["nameServers"] = {"replicas": max(1, replicas)}
    if owned_leases:
        common["reclaim"] = "Delete"
    spec, left_out = groups_that_run(meta["name"], meta["namespace"], groups, common, live)
    security = readable_security(refused.get("security"))
    if not spec:
        return Recovered(None, left_out, security is not None)
    cluster = BrokerCluster.make(meta["name"], meta["namespace"], **spec)
    cluster.metadata.uid = meta["uid"]
    if security is not None:
        cluster.spec.security = security
    return Recovered(cluster, left_out, security is not None)


def readable_failover(written: object) -> dict[str, Any]:
    """Return the readable part of `spec.failover` in a refused spec.

    Without a readable `automatic` there is no automatic promotion. Unclean promotions are off.
    """
    if not isinstance(written, dict):
        return {}
    failover: dict[str, Any] = {"automatic": written.get("automatic", True) is True}
    with suppress(ValidationError):
        timeout = {"detectionTimeout": written.get("detectionTimeout", "")}
        Failover.model_validate(timeout)
        failover |= timeout
    return failover


def readable_security(written: object) -> Security | None:
    """`spec.security` in a refused spec; None: it cannot be read."""
    try:
        return Security.model_validate(written or {})
    except ValidationError:
        return None


def groups_that_run(
    cluster: str, namespace: str, groups: Mapping[str, int], common: Mapping[str, Any], live: Live
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a spec of the groups with readable configs (empty: none), and for each other group the reason.

    `groups`: the replicas of each.
    """
    settings_of = {g: _running_with(cluster, g, live) for g in groups}
    usual = next((k for k in settings_of.values() if k is not None), None)
    spec: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    for group, replicas in sorted(groups.items()):
        if replicas == 0:
            left_out[group] = "its StatefulSet has 0 replicas"
            continue
        runs_with = settings_of[group] or usual or _by_its_leadership(cluster, group, live)
        if runs_with is None:
            left_out[group] = "none of its configs can be read"
            continue
        fields = {**common, **runs_with}
        # A member may have been deleted. In a Raft group it still counts.
        members = max(replicas, 3) if fields.get("mode") == "Raft" else replicas
        least = fields.get("minInSyncReplicas", 1)
        if isinstance(least, int):
            fields["minInSyncReplicas"] = min(least, members, spec.get("minInSyncReplicas", members))
        known_as = _broker_name(cluster, group, live)
        fields["brokerGroups"] = [{"name": group, "members": members, "brokerName": known_as}]
        try:
            BrokerCluster.make(cluster, namespace, **fields)
        except ValidationError as error:
            why = "; ".join(str(p) for p in problems_of(error.errors()))
            left_out[group] = f"its configuration is not understood: {why}"
            continue
        fields["brokerGroups"] = [*spec.get("brokerGroups", []), *fields["brokerGroups"]]
        spec |= fields
    return spec, left_out


def _configs(cluster: str, group: str, live: Live) -> Iterator[dict[str, Any]]:
    """Return the readable configs of a group's members."""
    config_map = live("ConfigMap", names.group_set(cluster, group))
    for text in [] if config_map is None else list((config_map.get("data") or {}).values()):
        with suppress(ValueError):
            config = json.loads(text)
            if isinstance(config, dict):
                yield config


def _running_with(cluster: str, group: str, live: Live) -> dict[str, Any] | None:
    """Return the failover settings from the last configs of the group's members. None: all are missing or damaged.

    Only the needed fields are read: an operator of another version may have written more, and a damaged field may not
    be needed.
    """
    fields = {"mode": "mode", "flush": "flush", "minInSyncReplicas": "min_in_sync"}
    for config in _configs(cluster, group, live):
        if config.get("mode") in MODES:
            return {field: config[name] for field, name in fields.items() if name in config}
    return None


def _broker_name(cluster: str, group: str, live: Live) -> str | None:
    """RocketMQ's name of a group in its members' configs; None: it is not there, or the group's own name."""
    for config in _configs(cluster, group, live):
        name = config.get("group")
        return name if isinstance(name, str) and name != group else None
    return None


def _by_its_leadership(cluster: str, group: str, live: Live) -> dict[str, Any] | None:
    """Return the settings of a group that has a leadership record. Groups in mode Raft never have one.

    The flush mode is not known, so no member is promoted that may lack records on another disk.
    """
    lease = live("Lease", names.group_set(cluster, group))
    annotations = None if lease is None else lease["metadata"].get("annotations")
    return {"mode": "MasterSlave", "flush": "Sync"} if LEADERSHIP in (annotations or {}) else None
