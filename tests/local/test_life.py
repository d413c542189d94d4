"""The first start, a stop that keeps everything, the second start; and a group of one."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest
from gantry_operator.cluster.timestamps import utc
from gantry_operator.platforms.local.process import start_mark

from tests.local.cluster import Cluster, Load, check_account, kill, one_group, running, take_down

pytestmark = pytest.mark.timeout(300)


def test_down_leaves_nothing_running_and_up_brings_the_messages_back(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, **one_group(1))
    try:
        cluster.up()
        cluster.gantry("produce", "Kept", "--count", "20", "--size", "30")
        pids = [*cluster.pids(), cluster.supervisor_pid()]
        assert len(pids) == 3
        addresses = cluster.name_servers
        # Found without --dir: it is the only one of this user.
        assert "2 processes stopped" in cluster.gantry("down").stdout
        assert [pid for pid in pids if start_mark(pid) is not None] == []
        gone = cluster.gantry("status", check=False)
        assert gone.returncode == 3
        assert "no local cluster is running" in gone.stderr
        again = utc()
        cluster.up()
        times = {c["type"]: c["lastTransitionTime"] for c in cluster.resource()["status"]["conditions"]}
        assert min(times["Ready"], times["Available"]) >= again, "meanwhile it was not there"
        assert cluster.name_servers == addresses, "clients keep their configuration"
        cluster.gantry("consume", "Kept", "--group", "g", "--count", "20", "--timeout", "20", "-q")
        assert "is deleted" in cluster.gantry("down", "--delete-data").stdout
        assert not cluster.folder.root.exists()
    finally:
        if cluster.folder.root.exists():
            take_down(cluster)


def test_rule_21_a_group_of_one_leads_again_after_a_crash_in_a_new_epoch(tmp_path: Path) -> None:
    with running(Cluster(tmp_path, **one_group(1))) as cluster:
        cluster.gantry("produce", "One", "--count", "20", "--size", "30")
        before = cluster.master()
        kill(before["pid"], signal.SIGKILL)
        after = cluster.until(
            "it leads again", lambda: cluster.master()["epoch"] > before["epoch"] and cluster.master()
        )
        assert after["pid"] != before["pid"]
        cluster.gantry("produce", "One", "--count", "5", "--size", "30")
        cluster.gantry("consume", "One", "--group", "g", "--count", "25", "--timeout", "20", "-q")


def test_rule_22_a_lost_registry_is_recovered_from_the_disks(tmp_path: Path) -> None:
    with running(Cluster(tmp_path, **one_group(2))) as cluster:
        cluster.gantry("produce", "Kept", "--count", "20", "--size", "30")
        cluster.until("all members are in sync", cluster.whole)
        cluster.gantry("down")
        (cluster.folder.registry / "a.json").unlink()
        cluster.up()
        events = [json.loads(line)["reason"] for line in cluster.folder.events.read_text().splitlines()]
        assert "RegistryRecovered" in events
        cluster.gantry("consume", "Kept", "--group", "g", "--count", "20", "--timeout", "20", "-q")


def test_manual_mode_promotes_no_member_without_a_request(tmp_path: Path) -> None:
    with running(Cluster(tmp_path, **one_group(2), failover={"automatic": False})) as cluster:
        cluster.gantry("produce", "ManualFailoverRequired", "--count", "20", "--size", "30")
        cluster.until("all members are in sync", cluster.whole)
        before = cluster.master()
        other = next(m for m in cluster.members().values() if m["role"] == "Slave")
        kill(before["pid"], signal.SIGSTOP)
        cluster.until("the supervisor says what it waits for", lambda: cluster.events("ManualFailoverRequired"))
        assert cluster.members()[other["name"]]["role"] == "Slave"
        cluster.gantry("switchover", "a", "--to", other["name"])
        assert cluster.master()["name"] == other["name"]
        cluster.gantry("consume", "ManualFailoverRequired", "--group", "g", "--count", "20", "--timeout", "20", "-q")


def test_without_a_supervisor_a_frozen_master_gives_the_address_up_as_well(tmp_path: Path) -> None:
    """The command alone moves it: `gantry up` does not run."""
    with running(Cluster(tmp_path, **one_group(2))) as cluster:
        cluster.until("all members are in sync", cluster.whole)
        before = cluster.master()
        kill(cluster.supervisor_pid(), signal.SIGKILL)
        kill(before["pid"], signal.SIGSTOP)
        cluster.gantry("switchover", "a")
        assert cluster.master()["name"] != before["name"]
        cluster.gantry("produce", "Alone", "--count", "10", "--patience", "20")


def test_up_with_one_more_group_returns_once_it_can_be_sent_to(tmp_path: Path) -> None:
    one, two = ({"name": name, "members": 1} for name in "ab")
    with running(Cluster(tmp_path, nameServers={"replicas": 1}, brokerGroups=[one])) as cluster:
        cluster.write(nameServers={"replicas": 1}, brokerGroups=[one, two])
        cluster.up()
        assert cluster.master("b")["ready"]
        # Not by its events: if both runs take equally long, the second one adds no new event.
        assert cluster.folder.supervisor_log.read_text().count("t is ready (") == 2


async def test_members_restart_when_somebody_asks(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, **one_group(2))

    def restarted(*names: str) -> bool:
        changed = {name for name, member in cluster.members().items() if member.get("pid") != first[name]}
        return cluster.whole() and changed == set(names)

    try:
        await asyncio.to_thread(cluster.up)
        await asyncio.to_thread(cluster.until, "all members are in sync", cluster.whole)
        first = {name: member["pid"] for name, member in cluster.members().items()}
        refused = cluster.gantry("restart", "t-a-7", check=False)
        assert refused.returncode == 1
        assert "t-a-0, t-a-1" in refused.stderr
        async with Load.on(cluster, "Kept", "k") as load:
            slave = next(name for name in first if name != cluster.master()["name"])
            assert slave in (await asyncio.to_thread(cluster.gantry, "restart", slave)).stdout
            await asyncio.to_thread(cluster.until, "the slave is another process", lambda: restarted(slave))
            await asyncio.to_thread(cluster.gantry, "restart", "a")
            await asyncio.to_thread(cluster.until, "the master is another process", lambda: restarted(*first), 60)
        assert load.errors == []
        await check_account(cluster, load)
    finally:
        await asyncio.to_thread(take_down, cluster)
