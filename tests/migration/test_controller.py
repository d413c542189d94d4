"""A group whose controller chooses the master moves, through a failover too; INTEROP=full."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path

import pytest

from benchmarks.rig.groups import ApacheGroup
from benchmarks.rig.processes import NamespaceUnavailable
from tests.migration.scene import Scene, controlled

FIRST = 500


@pytest.mark.timeout(400)
def test_a_group_under_a_controller_moves_through_a_failover(java_side: Path, tmp_path: Path) -> None:
    try:
        with controlled(tmp_path) as (made, group):
            moves(made, group)
    except NamespaceUnavailable as error:
        pytest.skip(f"the migration from Apache RocketMQ is not tested here: {error}")


def moves(made: Scene, group: ApacheGroup) -> None:
    clients = made.driver("55")
    clients.mqadmin("updateTopic", "-c", made.source.cluster, "-t", "Orders", "-r", "4", "-w", "4")
    clients.run("produce", topic="Orders", count=FIRST, size=1000, run="run")
    made.write()
    checked = json.loads(made.gantry("migrate", "check", str(made.file), "-o", "json").stdout)["a"]
    assert [item["kind"] for item in checked if item["item"] == "controller mode"] == ["comes"]
    made.start()
    writer = clients.start("failover", topic="Orders", run="run", first=FIRST, size=1000, threads=2, pause_ms=40)
    writer.wait_for("ok")
    made.until_following()
    before = group.master()
    group.inject("kill9")
    found = made.until(
        "the next master is followed",
        lambda s: (
            ((s["groups"]["a"]["copy"] or {}).get("source") or {}).get("address") not in (before, None)
            and s["groups"]["a"]["copy"]["connected"]
        ),
        120,
    )
    assert found["groups"]["a"]["copy"]["reports"] == "neutral"
    made.until_following()
    said = made.migrate("cutover", "--routes", "0").stdout
    assert "Gantry leads" in said, said
    began = time.time() * 1000
    while (line := writer.next(60)) is not None:
        if line["event"] == "ok" and line["ms"] > began + 1_000:
            break
    clients.run("stop")
    sent = writer.finish()
    acknowledged = {line["n"] for line in sent.of("ok")} | set(range(FIRST))
    got = clients.run(
        "consume", topic="Orders", group="all", run="run", count=len(acknowledged), settle_ms=1_000, each=True
    )
    missing = acknowledged - {line["n"] for line in got.of("message")}
    assert not missing, f"{len(missing)} acknowledged messages are lost: {sorted(missing)[:20]}"
    times = sorted(line["ms"] for line in sent.of("ok") if line["ms"] > began - 60_000)
    print(f"pause {max(b - a for a, b in itertools.pairwise(times))} ms")
    seen = made.status()["groups"]["a"]
    assert (seen["state"], seen["routed"]) == ("leads", True), seen
