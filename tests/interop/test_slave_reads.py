"""The official client reads from a slave while its group has no master."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import pytest
from gantry_broker.client import Producer, SendStatus

from benchmarks.rig.driver import Driver
from benchmarks.rig.gantry import QUICKSTART, Cluster
from benchmarks.rig.processes import until
from benchmarks.rig.target import Target
from benchmarks.rig.wire import Refused, Wire

COUNT = 300
DROPPED_S = 45.0
"""A NameServer keeps the address of a dead master for 30 s, while others of its group live."""


async def _send(servers: str) -> None:
    async with Producer(servers) as producer:
        for number in range(COUNT):
            # The form of a message by which the driver recognizes its own.
            result = await producer.send("Backlog", b"r#%d#" % number)
            assert result.status is SendStatus.SEND_OK


def _addresses(server: str) -> set[int]:
    try:
        with Wire(server) as names:
            return {int(n) for row in names.route("Backlog")["brokerDatas"] for n in row["brokerAddrs"]}
    except (OSError, Refused):
        return set()


@pytest.mark.timeout(180)
def test_a_backlog_is_read_by_both_versions(java_side: Path, tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster", QUICKSTART) as cluster:
        servers = list(cluster.status()["nameServers"])
        asyncio.run(_send(";".join(servers)))
        processes = cluster.processes()
        master = next(m for m in cluster.members() or [] if m["role"] == "Master")
        # A slave shows confirmed messages, and learns the confirmed offset a moment after the message.
        promised = master["confirmed"]
        until("the slaves know", lambda: all(m["confirmed"] >= promised for m in cluster.answering()), 10)
        # No control plane is left to promote a slave, or to restart the master.
        os.kill(processes["supervisor"], signal.SIGKILL)
        os.kill(master["pid"], signal.SIGKILL)
        until("routes without a master", lambda: all(0 not in _addresses(s) for s in servers), DROPPED_S)
        target = Target("gantry", ";".join(servers), "", "demo", "a", [], 0, [], tmp_path)
        for version in ("49", "55"):
            with contextlib.closing(Driver(target, version, "JSON", tmp_path / f"driver{version}.log")) as driver:
                got = driver.run(
                    "consume", topic="Backlog", group=f"g{version}", run="r", count=COUNT, mode="push"
                ).summary
            assert (got["unique"], got["repeated"], got["strangers"]) == (COUNT, 0, 0)
