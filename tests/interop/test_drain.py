"""Official Java clients while broker groups join and leave a cluster: no failed send, and everything is consumed."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from benchmarks.rig.driver import driver
from benchmarks.rig.target import Target
from tests.local.cluster import Cluster, take_down

pytestmark = pytest.mark.timeout(400)

LATER_S = 5.0


def spec(*names: str) -> dict[str, object]:
    return {"nameServers": {"replicas": 1}, "brokerGroups": [{"name": name, "members": 1} for name in names]}


def rows(cluster: Cluster) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in cluster.resource()["status"]["groups"]}


def leaving(cluster: Cluster) -> dict[str, object] | None:
    """The drain of group a; None: it is removed."""
    found = rows(cluster)
    return found["a"].get("drain") or {} if "a" in found else None


def test_groups_are_filled_and_drained_by_official_clients(java_side: Path, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, **spec("a", "b"))
    with ExitStack() as stack:
        stack.callback(take_down, cluster)
        cluster.up()
        cluster.gantry("topic", "create", "Orders", "--queues", "4")
        target = Target("local", cluster.name_servers, "", "t", "a", [], 0, [], tmp_path)
        old = stack.enter_context(driver(target, "49", "JSON", tmp_path))
        new = stack.enter_context(driver(target, "55", "JSON", tmp_path))
        consuming = [
            d.start("consume", topic="Orders", group=f"g{d.version}", run="x", count=10**9, timeout_s=220, settle_ms=10)
            for d in (old, new)
        ]
        sending = [
            d.start("failover", topic="Orders", run="x", first=first, seconds=120, group=f"p{d.version}")
            for d, first in ((old, 0), (new, 10**6))
        ]
        for running in sending:
            assert running.wait_for("ok")
        time.sleep(LATER_S)
        cluster.write(**spec("a", "b", "c", "d"))
        cluster.up()
        # The clients read routes every 30 s.
        cluster.until("c and d take messages", lambda: all(rows(cluster)[name]["messagesIn"] > 0 for name in "cd"), 60)
        cluster.write(**spec("b", "c", "d"))
        cluster.up()
        assert leaving(cluster) is not None
        sent = [running.finish(150) for running in sending]
        assert [result.of("failed") for result in sent] == [[], []]
        assert [result.of("status") for result in sent] == [[], []]
        cluster.until("a is removed", lambda: leaving(cluster) is None, 90)
        total = sum(len(result.of("ok")) for result in sent)
        assert total > 1_000
        for d in (old, new):
            # A second member of the group takes over what is left; nothing is.
            assert d.popen.poll() is None
        got = [running.finish(240).summary for running in consuming]
        assert [summary["unique"] for summary in got] == [total, total]
        assert all({queue[:2] for queue in summary["queues"]} == {"a:", "b:", "c:", "d:"} for summary in got)
