"""A scale-down survives its supervisor: the folder holds the leaving members."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from gantry_broker.contracts.leadership import LeadershipRecord, MemberId
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.plan.plan import MemberPlan, plan
from gantry_operator.platforms.local.folder import ClusterFolder
from gantry_operator.platforms.local.leaving_members import leaving_members, surplus_processes
from gantry_operator.platforms.local.manifest import save_manifest
from gantry_operator.platforms.local.ports import Ports, replication
from gantry_operator.platforms.local.process import start_mark
from gantry_operator.platforms.local.process_plan import process_plans
from gantry_operator.platforms.local.status import local_status
from gantry_operator.platforms.local.supervisor import Supervisor
from gantry_operator.registry.file import FileRegistry

from tests.local.cluster import Cluster, kill, running

pytestmark = pytest.mark.timeout(300)


def made(members: int, name_servers: int = 1, mode: str = "MasterSlave") -> BrokerCluster:
    return BrokerCluster.make(
        "t", "x", mode=mode, nameServers={"replicas": name_servers}, brokerGroups=[{"name": "a", "members": members}]
    )


def folder_of(base: Path, cluster: BrokerCluster) -> ClusterFolder:
    """As after a start of all its processes, none of which runs any more."""
    folder = ClusterFolder(base)
    folder.make()
    ports = Ports.load(folder.ports)
    ports.choose(plan(cluster), frozenset())
    for process in process_plans(cluster, plan(cluster), ports, folder):
        folder.config(process.name).write_text(process.config)
    return folder


async def test_a_new_supervisor_knows_the_leaving_members(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, made(5, name_servers=2))
    now = made(3)
    assert leaving_members(folder, plan(now)) == {f"t-a-{n}": MemberPlan(f"t-a-{n}", "a", n) for n in (3, 4)}
    assert [s.name for s in surplus_processes(folder, plan(now))] == ["t-namesrv-1"]
    supervisor = Supervisor(folder, now, show=lambda line: None)
    supervisor.watch_only("a")
    ports = Ports.load(folder.ports)
    assert [(m.member, m.replication_address) for m in supervisor.platform.members("a")] == [
        (n, ports.address(replication(f"t-a-{n}"))) for n in range(5)
    ]
    assert [n for n in range(5) if supervisor.platform.process_state(f"t-a-{n}").deleting] == [3, 4]
    await supervisor.close()


async def test_a_leaving_group_is_named_where_the_command_ends(tmp_path: Path) -> None:
    """Its drain may take days, so `gantry up` does not wait for it."""
    groups = [{"name": name, "members": 1} for name in "ab"]
    both = BrokerCluster.make("t", "x", nameServers={"replicas": 1}, brokerGroups=groups)
    folder = folder_of(tmp_path, both)
    now = BrokerCluster.make("t", "x", nameServers={"replicas": 1}, brokerGroups=groups[:1])
    save_manifest(folder, now)
    supervisor = Supervisor(folder, now, show=lambda line: None)
    for name in "ab":
        supervisor.watch_only(name)
    said = [line for line in supervisor.describe_ready().splitlines() if line.startswith("  group ")]
    assert ["it leaves: gantry status" in line for line in said] == [False, True]
    await supervisor.close()


async def test_a_leaving_master_is_named_and_shown(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, made(3))
    now = made(2)
    save_manifest(folder, now)
    master = MemberId(2, "x")
    FileRegistry(folder.registry).swap_now("a", None, LeadershipRecord(3, 3, master, frozenset({master})))
    supervisor = Supervisor(folder, now, show=lambda line: None)
    loop = supervisor.watch_only("a")
    task = asyncio.create_task(loop.run())
    while loop.leadership is None:
        await loop.next_look()
    assert "master t-a-2, 1 of 3 in sync" in supervisor.describe_ready()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await supervisor.close()
    assert [m.name for m in (await local_status(folder)).status.members] == ["t-a-0", "t-a-1", "t-a-2"]


async def test_a_name_that_is_wanted_again_while_its_process_ends_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(tmp_path, made(3))
    supervisor = Supervisor(folder, made(2), show=lambda line: None)
    brought: list[set[str]] = []
    monkeypatch.setattr(
        supervisor, "bring_up", lambda lock: brought.append({m.name for m in supervisor.platform.plan.members})
    )

    async def remove(name: str) -> None:
        await supervisor._apply(made(3).model_dump(mode="json", exclude={"status"}, exclude_none=True))
        brought.clear()

    monkeypatch.setattr(supervisor.platform.children, "remove", remove)
    await supervisor.platform.replacement.remove_member("a", "t-a-2")
    assert brought == [{"t-a-0", "t-a-1", "t-a-2"}]
    await supervisor.close()


async def test_only_members_new_in_an_existing_group_are_waited_for(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, made(3))
    assert Supervisor(folder, made(5), show=lambda line: None)._newcomers() == {"t-a-3", "t-a-4"}
    empty = folder_of(tmp_path / "other", made(3))
    for path in empty.configs.glob("*.json"):
        path.unlink()
    assert Supervisor(empty, made(3), show=lambda line: None)._newcomers() == set()


def brokers_and_servers(cluster: Cluster) -> list[str]:
    """The processes with a config, without proxies."""
    names = (path.stem for path in cluster.folder.configs.glob("*.json"))
    return sorted(name for name in names if "-proxy-" not in name)


def test_a_scale_down_goes_on_under_the_next_supervisor(tmp_path: Path) -> None:
    """Also when a master leaves, and the whole cluster was stopped in between."""
    cluster = Cluster(tmp_path)
    fewer = {"nameServers": {"replicas": 1}, "brokerGroups": [{"name": "a", "members": 2}]}
    with running(cluster):
        cluster.until("all members are in sync", cluster.whole)
        cluster.gantry("produce", "Kept", "--count", "20", "--size", "30")
        cluster.gantry("switchover", "a", "--to", "t-a-2")
        leaving = cluster.members()["t-a-2"]["pid"]
        kill(cluster.supervisor_pid(), signal.SIGKILL)
        cluster.write(**fewer)
        cluster.up()
        assert start_mark(leaving) is None
        assert cluster.master()["name"] in ("t-a-0", "t-a-1")
        left = ["t-a-0", "t-a-1", "t-namesrv-0"]
        cluster.until("a NameServer less", lambda: brokers_and_servers(cluster) == left)
        cluster.write(nameServers={"replicas": 1})
        cluster.up()
        assert cluster.whole(), "`gantry up` returns once the new member is in sync"
        cluster.gantry("switchover", "a", "--to", "t-a-2")
        cluster.gantry("down")
        cluster.write(**fewer)
        cluster.up()
        cluster.until("both are in sync", cluster.whole)
        assert brokers_and_servers(cluster) == left
        cluster.gantry("consume", "Kept", "--group", "g", "--count", "20", "--timeout", "20", "-q")
