"""A source with a slave of its own: its senders notice neither the follower nor that the slave dies and comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.rig import rocketmq
from tests.migration.scene import SMALL, scene


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("server", "settings"), [("server49", {}), ("server55", {"inSyncReplicas": "2"})])
def test_senders_of_a_sync_master_do_not_wait_for_a_follower(
    java_side: Path, tmp_path: Path, server: str, settings: dict[str, str]
) -> None:
    with scene(tmp_path, server, {"brokerRole": "SYNC_MASTER", **settings}) as made:

        def reports(wanted: str) -> None:
            made.until(f"it reports as {wanted}", lambda s: s["groups"]["a"]["copy"]["reports"] == wanted)

        clients = made.driver(server[-2:])
        clients.mqadmin("updateTopic", "-c", made.source.cluster, "-t", "Load", "-r", "4", "-w", "4")
        with rocketmq.slave(tmp_path / "slave", made.source, settings=SMALL, server=server) as slave:
            made.start()
            made.until_following()
            reports("neutral")
            writer = clients.start("failover", topic="Load", run="beside", size=1024, threads=2, pause_ms=20)
            for _ in range(50):
                writer.wait_for("ok")
            slave.popen.kill()
            reports("durable")
        # It registers about five seconds before it follows.
        with rocketmq.slave(tmp_path / "slave", made.source, settings=SMALL, server=server):
            reports("neutral")
            for _ in range(50):
                writer.wait_for("ok")
            clients.run("stop")
            done = writer.finish()
        assert not done.of("failed")
        # While no slave of its own is there, the copy on disk is the second one.
        assert {line["status"] for line in done.of("status")} <= {"SLAVE_NOT_AVAILABLE"}
        made.until("the copy has all", lambda s: s["groups"]["a"]["lag"] == 0)
