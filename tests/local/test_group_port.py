"""A member that holds the group's port while another one leads is killed, and no other member is."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.cluster.member_watch import MemberWatch
from gantry_operator.plan.plan import plan
from gantry_operator.platforms.local.children import Child
from gantry_operator.platforms.local.folder import ClusterFolder
from gantry_operator.platforms.local.ports import Ports
from gantry_operator.platforms.local.process import ProcessRecord, listens, start_mark
from gantry_operator.platforms.local.process_plan import process_plans
from gantry_operator.platforms.local.supervisor import Supervisor

from tests.support.present import present

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/net/tcp").exists(), reason="who listens at a port is found by /proc: run it on Linux"
)


@pytest.fixture
def listener() -> Iterator[tuple[int, int]]:
    """A process that listens, and its port."""
    program = """
import socket, time
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as child:
        yield child.pid, int(present(child.stdout).readline())
        child.kill()


def test_the_listener_on_a_port(listener: tuple[int, int]) -> None:
    pid, port = listener
    assert listens(pid, port)
    assert listens(os.getpid(), port) is False
    assert listens(pid, port + 1) is False
    with socket.create_connection(("127.0.0.1", port)):
        assert listens(os.getpid(), port) is False, "a connection is no listener"


@pytest.mark.parametrize("holds", [True, False])
async def test_a_member_that_was_not_heard_yet_goes_only_if_it_holds_the_port(
    tmp_path: Path, listener: tuple[int, int], holds: bool
) -> None:
    """A supervisor after a restart has heard no member. A slow slave holds no port."""
    pid, port = listener
    cluster = BrokerCluster.make("t", "x", brokerGroups=[{"name": "a", "members": 2}])
    folder = ClusterFolder(tmp_path)
    folder.make()
    ports = Ports.load(folder.ports)
    ports.choose(plan(cluster), frozenset())
    ports.taken["group/a"] = port if holds else port + 1
    folder.ports.write_text(json.dumps(ports.taken))
    supervisor = Supervisor(folder, cluster, show=lambda line: None)
    loop = supervisor.control.groups.make("a", cluster.spec.mode)
    [process] = [p for p in process_plans(cluster, plan(cluster), ports, folder) if p.name == "t-a-1"]
    child = supervisor.platform.children.table["t-a-1"] = Child(process)
    child.record = ProcessRecord("t-a-1", pid, start_mark(pid) or "", "")
    loop.watches = {
        n: MemberWatch(f"t-a-{n}", "http://127.0.0.1:1", supervisor.platform.http, loop.wake, loop._clock.now)
        for n in (0, 1)
    }
    loop.watches[1].line_at -= 60
    announced = asyncio.create_task(supervisor.platform.announce("a", supervisor.platform.members("a")[0], 1))
    if holds:
        killed = await asyncio.to_thread(os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert present(killed).si_status == signal.SIGKILL
        child.record = None
    await asyncio.wait_for(announced, 60)
    assert (start_mark(pid) is None) == holds
    await supervisor.close()
