"""Where clients of a local cluster find it, or why they do not: what most commands need, without its whole status."""

from __future__ import annotations

from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.plan.plan import plan
from gantry_operator.platforms.local.folder import ClusterFolder
from gantry_operator.platforms.local.manifest import load_saved
from gantry_operator.platforms.local.ports import Ports
from gantry_operator.platforms.local.process import load_record


def name_server_addresses(folder: ClusterFolder) -> str:
    """Return the NameServer addresses for clients. Raises OSError, pydantic.ValidationError, NoPort."""
    ports = Ports.load(folder.ports)
    return ";".join(ports.address(s.name) for s in plan(load_saved(folder)).name_servers)


def why_asleep(cluster: BrokerCluster) -> str:
    """Return what to do with a cluster that hibernates; empty: it does not."""
    if not cluster.spec.hibernate:
        return ""
    return f"{cluster.name} hibernates: write spec.hibernate: false in its manifest, then gantry up FILE"


def why_nothing_runs(folder: ClusterFolder, cluster: BrokerCluster) -> str:
    """Why no NameServer of a cluster runs, and what to do; empty: one does."""
    if any(load_record(folder.process(s.name)) is not None for s in plan(cluster).name_servers):
        return ""
    return why_asleep(cluster) or f"no NameServer of {cluster.name} runs: gantry up --dir {folder.root} starts it"
