"""What a manifest would change on this machine: the processes that would be replaced. Changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.plan.order import MemberState, replacement_order, why_replaced
from gantry_operator.plan.plan import Plan, plan
from gantry_operator.platforms.local.folder import ClusterFolder, read_json
from gantry_operator.platforms.local.manifest import load_saved, refuse_change, refuse_elsewhere
from gantry_operator.platforms.local.ports import Ports, http, registration, replication
from gantry_operator.platforms.local.process import load_record
from gantry_operator.platforms.local.process_plan import process_plans
from gantry_operator.platforms.local.proxies import with_proxies

NOT_CHOSEN: Final = 1
"""In place of a port that nothing has yet, since its process does not run."""


def preview(folder: ClusterFolder, cluster: BrokerCluster) -> dict[str, Any]:
    """Return the effect of a manifest. Raises ControlError if it is refused, and OSError."""
    refuse_elsewhere(cluster)
    cluster = with_proxies(cluster)
    refuse_change(load_saved(folder), cluster)
    planned = plan(cluster)
    ports = Ports.load(folder.ports)
    uses = [f"group/{g.name}" for g in planned.groups]
    for server in planned.name_servers:
        uses += [server.name, registration(server.name)]
    for member in planned.members:
        uses += [member.name, http(member.name), replication(member.name)]
    for proxy in planned.proxies:
        uses += [proxy.name, http(proxy.name)]
    for use in uses:
        ports.taken.setdefault(use, NOT_CHOSEN)
    plans = {p.name: p for p in process_plans(cluster, planned, ports, folder)}
    running = {path.stem for path in (folder.root / "run").glob("*.json") if load_record(folder.process(path.stem))}
    stopped = sorted(running if cluster.spec.hibernate else running - set(plans))
    replaced = []
    for name, process in plans.items():
        record = load_record(folder.process(name))
        if record is not None and record.config != process.digest and name not in stopped:
            replaced.append(name)
    started = [] if cluster.spec.hibernate else sorted(set(plans) - running)
    replaced = in_order(planned, replaced, masters_of(read_json(folder.conditions)))
    warnings = why_replaced(cluster.name, started, stopped, replaced)
    effect: dict[str, Any] = {"changes": [], "replaced": replaced, "started": started, "stopped": stopped}
    return effect | ({"warnings": warnings} if warnings else {})


def in_order(planned: Plan, replaced: Sequence[str], masters: Collection[str]) -> list[str]:
    """Return processes in the order in which they are replaced: of each group the slaves first. Pure."""
    order = list(replaced)
    for group in planned.groups:
        members = [m for m in group.members if m.name in replaced]
        places = [order.index(m.name) for m in members]
        states = [MemberState(m.name, m.number, True, True, True, m.name in masters) for m in members]
        for place, name in zip(sorted(places), replacement_order(states), strict=True):
            order[place] = name
    return order


def masters_of(status: object) -> set[str]:
    """Return the members that led when the status was last looked at."""
    members = status.get("members") if isinstance(status, dict) else None
    rows = [row for row in members if isinstance(row, dict)] if isinstance(members, list) else []
    return {str(row.get("name")) for row in rows if row.get("role") == "Master"}
