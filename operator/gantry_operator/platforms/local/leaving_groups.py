"""Broker groups that left the spec and still belong to the cluster, by the folder. A drain survives its supervisor.

A group belongs to the cluster as long as one of its members has a config. A file in `removing/` marks a group whose
removal has begun: its name in the spec then means a new group, which starts once the former one is gone.
"""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gantry_broker.protocol.digits import whole_number

from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.spec import BrokerGroup
from gantry_operator.plan.plan import member_name
from gantry_operator.platforms.local.folder import ClusterFolder, make_private, read_json
from gantry_operator.registry.file import sync_folder, write_durably

if TYPE_CHECKING:
    from gantry_operator.platforms.local.process_plan import ProcessPlan

MOST_MEMBERS = 9


def _markers(folder: ClusterFolder) -> Path:
    return folder.root / "removing"


def removing_groups(folder: ClusterFolder) -> tuple[str, ...]:
    """Return the groups whose removal has begun."""
    return tuple(sorted(path.stem for path in _markers(folder).glob("*.json")))


def begin_removal(folder: ClusterFolder, group: str) -> None:
    """Record that the removal of a group begins. Raises OSError."""
    make_private(_markers(folder))
    write_durably(_markers(folder) / f"{group}.json", "{}")


def group_in_name(cluster: str, process: str) -> str | None:
    """Return the broker group of a member, by the name of its process: CLUSTER-GROUP-NUMBER. None: it is no member."""
    rest = process.removeprefix(f"{cluster}-")
    group, _, number = rest.rpartition("-")
    return group if rest != process and whole_number(number) is not None and group.isalnum() else None


def leaving_groups(folder: ClusterFolder, cluster: BrokerCluster) -> tuple[BrokerGroup, ...]:
    """Return the groups that are not in the spec, and whose members have configs."""
    staying = {g.name for g in cluster.spec.brokerGroups} | set(removing_groups(folder))
    fields_of: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.configs.glob("*.json")):
        config, group = read_json(path), group_in_name(cluster.name, path.stem)
        if not isinstance(config, dict) or group is None or group in staying or "group" not in config:
            continue
        number = config.get("member")
        if type(number) is not int or not 0 <= number < MOST_MEMBERS:
            continue
        fields = fields_of.setdefault(group, {"name": group, "members": 0})
        fields["members"] = max(fields["members"], number + 1)
        if config["group"] != group:
            fields["brokerName"] = config["group"]
    return tuple(BrokerGroup.model_validate(fields) for _, fields in sorted(fields_of.items()))


def running_cluster(folder: ClusterFolder, cluster: BrokerCluster) -> BrokerCluster:
    """Return the cluster with leaving groups, and without those of the spec whose former group is not gone yet."""
    removing = removing_groups(folder)
    groups = [g for g in cluster.spec.brokerGroups if g.name not in removing]
    spec = cluster.spec.model_copy(update={"brokerGroups": [*groups, *leaving_groups(folder, cluster)]})
    return cluster.model_copy(update={"spec": spec})


def removed_processes(folder: ClusterFolder, cluster: str, group: str) -> list[ProcessPlan]:
    """Return the members of a removed group that have configs."""
    from gantry_operator.platforms.local.process_plan import BROKER, ProcessPlan

    processes = []
    for number in range(MOST_MEMBERS):
        name = member_name(cluster, group, number)
        if folder.config(name).exists():
            processes.append(ProcessPlan(name, BROKER, folder.config(name).read_text(errors="replace"), group, number))
    return processes


def remove_remains(folder: ClusterFolder, cluster: str, group: str, *, keep_data: bool) -> None:
    """Remove the data (or move them to `drained/`), the leadership record and the marker of a group whose members have
    stopped. Raises OSError; may be repeated.
    """
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    for number in range(MOST_MEMBERS):
        name = member_name(cluster, group, number)
        data = folder.data(name)
        if not data.exists():
            continue
        if keep_data:
            kept = folder.root / "drained"
            make_private(kept)
            data.rename(kept / f"{name}-{now}")
        else:
            shutil.rmtree(data)
    for path in (folder.registry / f"{group}.json", folder.registry / f"{group}.lock"):
        path.unlink(missing_ok=True)
    if folder.registry.is_dir():
        sync_folder(folder.registry)
    (_markers(folder) / f"{group}.json").unlink(missing_ok=True)
    sync_folder(_markers(folder))
