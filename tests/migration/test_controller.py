"""A group whose controller chooses the master moves, through a failover too, and gets its clients back."""

from __future__ import annotations

import itertools
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from gantry_broker.protocol.codes import RequestCode

from benchmarks.rig.driver import Driver, Running
from benchmarks.rig.groups import ApacheGroup
from benchmarks.rig.processes import until
from benchmarks.rig.wire import Wire
from tests.migration.scene import Scene, put, replicated
from tests.migration.test_cutover import carried

FIRST = 500


@pytest.mark.timeout(400)
def test_a_group_under_a_controller_moves_through_a_failover(java_side: Path, tmp_path: Path) -> None:
    with replicated(tmp_path) as (made, group):
        moves(made, group)


def moves(made: Scene, group: ApacheGroup) -> None:
    clients = made.driver("55")
    clients.mqadmin("updateTopic", "-c", made.source.cluster, "-t", "Orders", "-r", "4", "-w", "4")
    put(clients, topic="Orders", count=FIRST, size=1000, run="run")
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
    nothing_is_lost(made, clients, writer)


@pytest.mark.timeout(400)
def test_the_controller_chooses_another_master_in_the_middle_of_a_cutover(java_side: Path, tmp_path: Path) -> None:
    with replicated(tmp_path) as (made, group):
        fails_over(made, group)


def fails_over(made: Scene, group: ApacheGroup) -> None:
    clients = made.driver("55")
    clients.mqadmin("updateTopic", "-c", made.source.cluster, "-t", "Orders", "-r", "4", "-w", "4")
    put(clients, topic="Orders", count=FIRST, size=1000, run="run")
    made.start()
    writer = clients.start(
        "failover", topic="Orders", run="run", first=FIRST, size=1000, threads=2, pause_ms=40, poll_ms=3_000
    )
    writer.wait_for("ok")
    made.until_following()
    before = group.master()
    until("the slave is in the SyncStateSet", lambda: in_sync(made, before), 60)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(made.migrate, "cutover", "--routes", "20", "--settle", "1", check=False)
        carried(made)
        group.kill(before)
        done = running.result()
    print(done.stdout, done.stderr)
    if done.returncode:  # It was late, and went back.
        made.until_following()
        done = made.migrate("cutover", "--routes", "5")
    assert "Gantry leads" in done.stdout, done.stdout
    nothing_is_lost(made, clients, writer)


def in_sync(made: Scene, master: str) -> bool:
    """Whether the controller may choose the slave."""
    with Wire(master, prefix=made.source.prefix) as wire:
        info = json.loads(wire.call(RequestCode.GET_BROKER_HA_STATUS, {}).body)
    return any(one["inSync"] for one in info["haConnectionInfo"])


def nothing_is_lost(made: Scene, clients: Driver, writer: Running) -> None:
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


@pytest.mark.timeout(400)
@pytest.mark.parametrize("failover", [False, True])
def test_a_group_under_a_controller_gets_its_clients_back(java_side: Path, tmp_path: Path, failover: bool) -> None:
    with replicated(tmp_path) as (made, group):
        returns(made, group, failover)


def returns(made: Scene, group: ApacheGroup, failover: bool) -> None:
    clients = made.driver("55")
    clients.mqadmin("updateTopic", "-c", made.source.cluster, "-t", "Orders", "-r", "4", "-w", "4")
    put(clients, topic="Orders", count=FIRST, size=1000, run="run")
    made.start()
    made.until_following()
    before = group.master()
    made.migrate("cutover", "--settle", "0", "--routes", "0")
    # This client is new: it has the routes to Gantry.
    ours = made.driver("55")
    put(ours, topic="Orders", first=FIRST, count=200, size=1000, run="run")
    if failover:  # The controller chooses the other broker, which has what the cutover set.
        group.kill(before)
    said = made.migrate("rollback", "--settle", "0").stdout
    assert "the source leads again" in said, said
    made.gantry("down", "--dir", str(made.folder))
    theirs = made.driver("55")
    put(theirs, topic="Orders", first=FIRST + 200, count=100, size=1000, run="run")
    total = FIRST + 300
    got = theirs.run("consume", topic="Orders", group="all", run="run", count=total, settle_ms=1_000)
    assert (got.summary["unique"], got.summary["repeated"]) == (total, 0)
