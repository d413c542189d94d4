"""The supervisor of `gantry up`, whose processes know each other by the ports of `links` and can fail on command.

`python -m tests.chaos.supervisor DIR` runs gantry_operator.platforms.local.supervisor with these two changes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.platforms.local.children import Children
from gantry_operator.platforms.local.folder import ClusterFolder
from gantry_operator.platforms.local.manifest import load_saved
from gantry_operator.platforms.local.ports import HOST, Ports
from gantry_operator.platforms.local.process_plan import ProcessPlan
from gantry_operator.platforms.local.supervisor import Supervisor
from gantry_operator.platforms.local.supervisor_lock import take_lock


def links_file(folder: ClusterFolder) -> Path:
    """The file with the ports that the processes know, by use."""
    return folder.root / "links.json"


class LinkedPorts(Ports):
    """Processes listen on the ports of the cluster, and know those of the links."""

    links: dict[str, int]

    def address(self, use: str) -> str:
        return f"{HOST}:{self.links[use]}"


class FaultyChildren(Children):
    """Runs brokers with planted faults."""

    def plan(self, plans: Iterable[ProcessPlan], *, keep_alive: bool = True) -> None:
        modules = {"gantry_broker.broker": "tests.chaos.broker"}
        super().plan([replace(p, module=modules.get(p.module, p.module)) for p in plans], keep_alive=keep_alive)


class LinkedSupervisor(Supervisor):
    def __init__(self, folder: ClusterFolder, cluster: BrokerCluster) -> None:
        super().__init__(folder, cluster)
        ports = LinkedPorts(folder.ports, self.platform.ports.taken)
        ports.links = json.loads(links_file(folder).read_text())
        self.platform.ports = ports
        self.platform.children = FaultyChildren(folder, self.events.add, self.platform.processes_changed)


async def _run(folder: ClusterFolder) -> None:
    await LinkedSupervisor(folder, load_saved(folder)).run()


def main() -> int:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    folder = ClusterFolder(Path(sys.argv[1]))
    with take_lock(folder):
        asyncio.run(_run(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
