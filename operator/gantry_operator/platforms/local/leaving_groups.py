"""Broker groups that left the spec and still belong to the cluster, by the folder. A drain survives its supervisor.

A group belongs to the cluster as long as one of its members has a config. A file in `removing/` marks a group whose
removal has begun: its name in the spec then means a new group, which starts once the former one is gone.
"""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gantry_operator.api import BrokerCluster
from gantry_operator.api.spec import BrokerGroup
from gantry_operator.plan import member_name
from gantry_operator.platforms.local.folder import ClusterFolder, make_private, read_json
from gantry_operator.platforms.local.process_plan import BROKER, ProcessPlan
from gantry_operator.registry.file import sync_folder, write_durably

MOST_MEMBERS = 9


def _markers(folder: ClusterFolder) -> Path:
    return folder.root / "removing"


def removing_groups(folder: ClusterFolder) -> tuple[str, ...]:
    """The groups whose removal has begun."""
    return tuple(sorted(path.stem for path in _markers(folder).glob("*.json")))


def begin_removal(folder: ClusterFolder, group: str) -> None:
    """Raises OSError."""
    make_private(_markers(folder))
    write_durably(_markers(folder) / f"{group}.json", "{}")


def leaving_groups(folder: ClusterFolder, cluster: BrokerCluster) -> tuple[BrokerGroup, ...]:
    """The groups that are not in the spec, and whose members have configs."""
    wanted = {g.name for g in cluster.spec.brokerGroups} | set(removing_groups(folder))
    members: dict[str, int] = {}
    broker_names: dict[str, str | None] = {}
    for path in sorted(folder.configs.glob("*.json")):
        known = read_json(path)
        group, number = (_group_in(known), known.get("member")) if isinstance(known, dict) else (None, None)
        if isinstance(group, str) and type(number) is int and 0 <= number < MOST_MEMBERS and group not in wanted:
            members[group] = max(members.get(group, 0), number + 1)
            broker_names[group] = known["group"] if known["group"] != group else None
    return tuple(
        BrokerGroup(name=name, members=count, brokerName=broker_names[name]) for name, count in sorted(members.items())
    )


def _group_in(config: dict[str, Any]) -> str | None:
    """The group of a broker's config: its own name, not RocketMQ's. None: it is a NameServer's or damaged."""
    group = config.get("resource_group") or config.get("group")
    return group if isinstance(group, str) and isinstance(config.get("group"), str) else None


def running_cluster(folder: ClusterFolder, cluster: BrokerCluster) -> BrokerCluster:
    """The cluster with leaving groups, and without those of the spec whose former group is not gone yet."""
    removing = removing_groups(folder)
    groups = [g for g in cluster.spec.brokerGroups if g.name not in removing]
    spec = cluster.spec.model_copy(update={"brokerGroups": [*groups, *leaving_groups(folder, cluster)]})
    return cluster.model_copy(update={"spec": spec})


def removed_processes(folder: ClusterFolder, cluster: str, group: str) -> list[ProcessPlan]:
    """The members of a removed group that have configs."""
    found = []
    for number in range(MOST_MEMBERS):
        name = member_name(cluster, group, number)
        if folder.config(name).exists():
            found.append(ProcessPlan(name, BROKER, folder.config(name).read_text(), group, number))
    return found


def remove_remains(folder: ClusterFolder, cluster: str, group: str, *, keep_data: bool) -> None:
    """Remove the data (or move them to `drained/`), the leadership record and the marker of a group whose members have
    stopped. Raises OSError; may be repeated."""
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
