"""Processes that left the plan and still belong to the cluster, by the folder. A scale-down survives its supervisor.

The config of a process is written before its start, and deleted when it has left for good.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from gantry_operator.plan.plan import GroupPlan, MemberPlan, Plan
from gantry_operator.platforms.local.folder import ClusterFolder, read_json

if TYPE_CHECKING:
    from gantry_operator.platforms.local.process_plan import ProcessPlan


def leaving_members(folder: ClusterFolder, plan: Plan) -> dict[str, MemberPlan]:
    """Leaving members of the plan's groups by name, running or not: a group may be incomplete without them."""
    groups = {g.name for g in plan.groups}
    planned = {m.name for m in plan.members}
    members = {}
    for path in sorted(folder.configs.glob("*.json")):
        config = read_json(path)
        if path.stem in planned or not isinstance(config, dict):
            continue
        group, number = config.get("group"), config.get("member")
        if group in groups and isinstance(number, int):
            members[path.stem] = MemberPlan(path.stem, group, number)
    return members


def surplus_processes(folder: ClusterFolder, plan: Plan) -> list[ProcessPlan]:
    """NameServers and proxies that are no longer in the plan."""
    from gantry_operator.platforms.local.process_plan import NAME_SERVER, PROXY, ProcessPlan

    planned = {s.name for s in plan.name_servers} | {p.name for p in plan.proxies}
    processes = []
    for path in sorted(folder.configs.glob("*.json")):
        config = read_json(path)
        if path.stem not in planned and isinstance(config, dict) and "group" not in config:
            # Proxies call NameServers; a NameServer calls none.
            module = PROXY if "name_servers" in config else NAME_SERVER
            processes.append(ProcessPlan(path.stem, module, path.read_text(errors="replace")))
    return processes


def with_leaving(plan: Plan, leaving: Iterable[MemberPlan]) -> Plan:
    """Return the plan including leaving members."""
    more = list(leaving)
    if not more:
        return plan

    def grown(group: GroupPlan) -> GroupPlan:
        members = [*group.members, *(m for m in more if m.group == group.name)]
        return replace(group, members=tuple(sorted(members, key=lambda m: m.number)))

    return replace(plan, groups=tuple(grown(g) for g in plan.groups))
