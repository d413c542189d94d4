"""What a spec would change on Kubernetes: objects, and the pods that would be replaced. Reads, and changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.plan.order import MemberState, replacement_order, why_replaced
from gantry_operator.plan.plan import member_name, plan
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.api.client import KINDS, KubeApi, Object
from gantry_operator.platforms.kubernetes.api.pod_state import image_of
from gantry_operator.platforms.kubernetes.manifests import external
from gantry_operator.platforms.kubernetes.manifests.desired_objects import NAME_SERVERS, OperatorSettings, render
from gantry_operator.platforms.kubernetes.objects import drift, managed_fields

COMPARED = ("ConfigMap", "PodDisruptionBudget", "Service", "ServiceAccount", "StatefulSet")
"""NetworkPolicies name the operator's namespace, which a user need not know."""


async def live_objects(api: KubeApi, namespace: str, cluster: str) -> dict[tuple[str, str], Object]:
    """Return the cluster's objects by kind and name. Raises ApiError and ApiUnavailable."""
    objects: dict[tuple[str, str], Object] = {}
    for kind in COMPARED:
        items, _ = await api.list(KINDS[kind], namespace, f"{names.CLUSTER_LABEL}={cluster}")
        objects |= {(kind, o["metadata"]["name"]): o for o in items}
    return objects


def preview(
    cluster: BrokerCluster, live: Mapping[tuple[str, str], Object], image: str, masters: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the effect of a spec. `image`: the default image; empty: the one that the pods have now. `masters`: names
    of members that lead, which are replaced last.
    """
    planned = plan(cluster)
    now = image or next((i for i in (image_of(o) for o in live.values() if o["kind"] == "StatefulSet") if i), "")
    addresses, pinned = None, dict[str, int]()
    asleep = dict.fromkeys([NAME_SERVERS, *(g.name for g in cluster.spec.brokerGroups)], 0)
    if cluster.spec.external is not None:
        services = {name: o for (kind, name), o in live.items() if kind == "Service"}
        addresses, missing = external.addresses(cluster, planned, services)
        addresses = None if missing else addresses
        for e in external.endpoints(cluster, planned):
            port = services[e.service]["spec"]["ports"][0].get("nodePort") if e.service in services else None
            if port is not None:
                pinned[e.service] = port
    objects = render(
        cluster, planned, OperatorSettings(now), external_addresses=addresses, pinned_ports=pinned,
        running=asleep if cluster.spec.hibernate else None,
    )  # fmt: skip
    changes, replaced = [], []
    for obj in objects:
        if obj["kind"] not in COMPARED:
            continue
        about = (obj["kind"], obj["metadata"]["name"])
        present = live.get(about)
        fields = [] if present is None else _fields(obj, present)
        if present is None or fields:
            action = "create" if present is None else "change"
            changes.append({"kind": about[0], "name": about[1], "action": action, "fields": fields})
        if present is not None and any(f.startswith(".spec.template") for f in fields):
            replaced += _pods(cluster.name, obj, present, set(masters))
    kept = {(o["kind"], o["metadata"]["name"]) for o in objects}
    gone = [key for key in live if key[0] == "StatefulSet" and key not in kept]
    changes += [{"kind": kind, "name": name, "action": "delete", "fields": []} for kind, name in gone]
    started, stopped = _scaled(objects, live, 1), _scaled(objects, live, -1)
    warnings = why_replaced(cluster.name, started, stopped, replaced)
    return {
        "changes": changes, "replaced": replaced, "image": cluster.spec.image or now,
        "started": started, "stopped": stopped,
    } | ({"warnings": warnings} if warnings else {})  # fmt: skip


def _fields(new: Object, old: Object) -> list[str]:
    """Return the paths that would change."""
    removed = drift.classes_removed(new, old)
    return list(dict.fromkeys([*drift.outdated(new, old), *managed_fields.surplus(new, old)[0], *removed]))


def _pods(cluster: str, new: Object, old: Object, masters: set[str]) -> list[str]:
    """Return the pods of a set that run now and stay, in the order of their replacement."""
    count = min(int(new["spec"]["replicas"]), int(old["spec"].get("replicas", 0)))
    group = (new["metadata"]["labels"] or {}).get(names.GROUP_LABEL)
    if group is None:
        return [f"{new['metadata']['name']}-{i}" for i in reversed(range(count))]
    members = [member_name(cluster, group, i) for i in range(count)]
    return replacement_order(
        [MemberState(n, i, outdated=True, ready=True, in_sync=True, master=n in masters) for i, n in enumerate(members)]
    )


def _scaled(objects: Iterable[Object], live: Mapping[tuple[str, str], Object], direction: int) -> list[str]:
    """Return the pods that a change of replicas starts (1) or stops (-1)."""
    out = []
    for obj in objects:
        if obj["kind"] != "StatefulSet":
            continue
        name = obj["metadata"]["name"]
        present = live.get(("StatefulSet", name))
        before = 0 if present is None else int(present["spec"].get("replicas", 0))
        after = int(obj["spec"]["replicas"])
        low, high = (before, after) if direction > 0 else (after, before)
        out += [f"{name}-{i}" for i in range(low, high)]
    return out
