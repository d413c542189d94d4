"""What a manifest would change on this machine: the processes that would be replaced. Changes nothing."""

from __future__ import annotations

from typing import Any

from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.plan.order import why_replaced
from gantry_operator.plan.plan import plan
from gantry_operator.platforms.local.folder import ClusterFolder
from gantry_operator.platforms.local.manifest import load_saved, refuse_change, refuse_elsewhere
from gantry_operator.platforms.local.ports import Ports, registration, replication
from gantry_operator.platforms.local.process import load_record
from gantry_operator.platforms.local.process_plan import process_plans


def preview(folder: ClusterFolder, wanted: BrokerCluster) -> dict[str, Any]:
    """Return the effect of a manifest. Raises ControlError if it is refused, and OSError."""
    refuse_elsewhere(wanted)
    refuse_change(load_saved(folder), wanted)
    planned = plan(wanted)
    ports = Ports.load(folder.ports)
    uses = [f"group/{g.name}" for g in planned.groups]
    for server in planned.name_servers:
        uses += [server.name, registration(server.name)]
    for member in planned.members:
        uses += [member.name, f"{member.name}/http", replication(member.name)]
    for use in uses:
        ports.taken.setdefault(use, 0)  # Not chosen yet: its process does not run.
    plans = {p.name: p for p in process_plans(wanted, planned, ports, folder)}
    running = {path.stem for path in (folder.root / "run").glob("*.json") if load_record(folder.process(path.stem))}
    stopped = sorted(running if wanted.spec.hibernate else running - set(plans))
    replaced = []
    for name, process in plans.items():
        record = load_record(folder.process(name))
        if record is not None and record.config != process.digest and name not in stopped:
            replaced.append(name)
    started = [] if wanted.spec.hibernate else sorted(set(plans) - running)
    warnings = why_replaced(wanted.name, started, stopped, replaced)
    found: dict[str, Any] = {"changes": [], "replaced": replaced, "started": started, "stopped": stopped}
    return found | ({"warnings": warnings} if warnings else {})
