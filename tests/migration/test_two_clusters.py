"""One cluster of Gantry moves to another by messages, with real processes that are killed while it copies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from gantry_broker.client import Admin, MessageQueue

from tests.local.cluster import Cluster, take_down
from tests.migration.test_copying import content, fill

ONE: dict[str, Any] = {"nameServers": {"replicas": 1}, "brokerGroups": [{"name": "a", "members": 1}]}


class Moving:
    """`gantry migrate start --by messages` of a target, as a process."""

    def __init__(self, source: Cluster, target: Cluster) -> None:
        words = ["migrate", "start", str(target.file), "--by", "messages", "--from", source.name_servers]
        self.target = target
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gantry_operator.cli", *words, "--dir", str(target.folder.root)],
            env=target.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def copied(self) -> int:
        """Messages that the record has."""
        assert self.process.poll() is None, self.process.communicate()[1]
        try:
            topics = json.loads((self.target.folder.root / "messages-copy.json").read_text())["topics"]
        except FileNotFoundError:
            return 0
        return sum(run[2] for rows in topics.values() for queue in rows for run in queue["runs"])

    def until(self, count: int) -> None:
        self.target.until(f"{count} messages are copied", lambda: self.copied() >= count, 60)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.communicate()


def test_a_cluster_moves_to_another_while_processes_are_killed(tmp_path: Path) -> None:
    for name in ("source", "target"):
        (tmp_path / name).mkdir()
    source, target = Cluster(tmp_path / "source", "old", **ONE), Cluster(tmp_path / "target", "new", **ONE)
    moving: list[Moving] = []
    try:
        source.up()
        asyncio.run(fill(source.name_servers, "T", 300))
        moving.append(Moving(source, target))
        moving[-1].until(300)
        moving[-1].kill()
        asyncio.run(fill(source.name_servers, "Later", 100))
        asyncio.run(commit(source))
        moving.append(Moving(source, target))
        moving[-1].until(300)
        # The target's broker dies while it gets messages; the supervisor starts it again.
        for member in target.members().values():
            os.kill(member["pid"], signal.SIGKILL)
        asyncio.run(fill(source.name_servers, "T", 200))
        moving[-1].until(600)
        moving[-1].kill()
        shown = json.loads(target.gantry("migrate", "status", "--dir", str(target.folder.root), "-o", "json").stdout)
        assert (shown["phase"], sum(q["copied"] for q in shown["topics"]["T"])) == ("copying", 500)
        said = target.gantry("migrate", "cutover", "--dir", str(target.folder.root)).stdout
        assert "all is copied" in said, said
        asyncio.run(compare(source, target))
    finally:
        for one in moving:
            one.kill()
        for cluster in (target, source):
            take_down(cluster)


async def commit(source: Cluster) -> None:
    async with Admin(source.name_servers) as here:
        await here.set_offset("billing", MessageQueue("T", "a", 1), 42)


async def compare(source: Cluster, target: Cluster) -> None:
    async with Admin(source.name_servers) as here, Admin(target.name_servers) as there:
        for topic, count in (("T", 500), ("Later", 100)):
            found = await content(there, topic)
            assert found == await content(here, topic), "each message once, in the order of its queue"
            assert sum(map(len, found.values())) == count
        assert await there.offset("billing", MessageQueue("T", "a", 1)) == 42
