"""The manifest changes while a RocketMQ is followed and a producer writes to it. With real RocketMQ; INTEROP=full."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from gantry_operator.platforms.local.folder import ClusterFolder
from gantry_operator.platforms.local.ports import Ports

from benchmarks.rig.driver import Running
from tests.migration.scene import Scene, put, scene
from tests.migration.test_state import create, cut_at

pytestmark = pytest.mark.timeout(400)
READS = """
import asyncio, sys
from gantry_broker.client import Admin
async def read():
    async with Admin(sys.argv[1]) as admin:
        print(await admin.kv_table("OURS"))
asyncio.run(read())
"""
WRONG = {"fromRocketMQ": {"nameServers": ["127.0.0.1:1"]}}


def pids(made: Scene) -> dict[str, int]:
    """Of the members that run."""
    members = made.resource()["status"]["members"]
    return {member["name"]: int(member["pid"]) for member in members if member.get("pid") is not None}


def replaced(made: Scene, before: dict[str, int]) -> dict[str, int]:
    """Wait until each member runs as another process."""
    deadline = time.monotonic() + 120
    while set((found := pids(made)).values()) & set(before.values()) or len(found) < len(before):
        assert time.monotonic() < deadline, f"{found}, and before {before}: {made.status()}{made.story()}"
        time.sleep(0.5)
    return found


def began(pid: int) -> int:
    """Return when a process began, in ticks since the start of the machine."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def entries(made: Scene) -> str:
    """Of the namespace OURS at the new cluster's NameServer."""
    server = Ports.load(ClusterFolder(made.folder).ports).address("moved-namesrv-0")
    done = subprocess.run(
        [*made.source.prefix, sys.executable, "-c", READS, server], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def until_entries(made: Scene, wanted: str) -> None:
    deadline = time.monotonic() + 90
    while (now := entries(made)) != wanted:
        assert time.monotonic() < deadline, f"{now}, not {wanted}{made.story()}"
        time.sleep(1)


def go_on(writer: Running, count: int = 30) -> None:
    for _ in range(count):
        writer.wait_for("ok")


@pytest.mark.parametrize("role", ["ASYNC_MASTER", "SYNC_MASTER"])
def test_a_manifest_is_corrected_and_changed_while_a_producer_writes(
    java_side: Path, tmp_path: Path, role: str
) -> None:
    with scene(tmp_path, "server49", {"brokerRole": role}) as made:
        groups = [{"name": "a", "brokerName": made.source.broker_name, "members": 2}]
        clients = made.driver("49")
        create(made, clients, "Orders")
        first = put(clients, topic="Orders", count=200, size=1000, run="run")
        clients.mqadmin("updateKvConfig", "-s", "OURS", "-k", "limit", "-v", "7")
        right = {"fromRocketMQ": {"nameServers": [made.source.namesrv], "kvNamespaces": ["OURS"]}}
        made.write(brokerGroups=groups, bootstrap=WRONG)
        words = ("up", str(made.file), "--dir", str(made.folder), "--detach", "--timeout", "3")
        made.gantry(*words, check=False)
        made.until("the address is wrong", lambda s: "127.0.0.1:1" in str(s["groups"]["a"]["copy"]))
        before = pids(made)
        made.start(brokerGroups=groups, bootstrap=right)
        made.until_following()
        assert pids(made) == before, "the corrected address needs no restart"

        until_entries(made, "{'limit': '7'}")
        clients.mqadmin("deleteKvConfig", "-s", "OURS", "-k", "limit")
        writer = clients.start("failover", topic="Orders", run="run", first=200, size=1000, threads=2, pause_ms=10)
        go_on(writer)
        made.write(brokerGroups=groups, bootstrap=right, broker={"transactionTimeOut": 3000})
        made.gantry(*words, check=False)
        now = replaced(made, before)
        assert began(now["moved-a-1"]) < began(now["moved-a-0"]), "the follower of the source is the last one"
        go_on(writer)
        made.until_following()
        made.until("the change is done", lambda s: not s["changing"])

        # A cutover that was killed has the change wait, and says so, until it is done.
        until_entries(made, "{}")
        cut_ms = time.time() * 1000
        cut_at(made, "routed")
        before = pids(made)
        made.write(brokerGroups=groups, bootstrap=right, broker={"transactionTimeOut": 4000})
        made.gantry(*words, check=False)
        said = "the change waits for the end of the cutover from RocketMQ, which is in phase rout"
        made.until("the change waits", lambda s: said in str(s["changing"]))
        assert said in made.migrate("status").stderr
        time.sleep(3)
        assert pids(made) == before
        go_on(writer)
        assert "Gantry leads" in made.migrate("cutover", "--routes", "32").stdout
        go_on(writer)
        replaced(made, before)
        go_on(writer)
        clients.run("stop")
        sent = writer.finish()
        early = [line for line in sent.of("failed") if line["ms"] < cut_ms]
        assert not early, "no send fails while members that follow are replaced"
        acknowledged = {line["n"] for line in sent.of("ok")} | first
        got = clients.run(
            "consume", topic="Orders", group="g", run="run", count=len(acknowledged), settle_ms=2_000, timeout_s=90
        )
        assert got.summary["unique"] >= len(acknowledged)
        print(f"{len(acknowledged)} acknowledged, {len(sent.of('failed'))} failed, {got.summary}")
