"""After a cutover a running Apache RocketMQ gets its clients back, with what was written at Gantry."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.migration.scene import Scene, as_documented, put, scene

FIRST = 500


@pytest.mark.timeout(290)
@pytest.mark.parametrize(("server", "client"), [("server49", "49"), ("server55", "55")])
def test_clients_return_with_all_messages(java_side: Path, tmp_path: Path, server: str, client: str) -> None:
    with scene(tmp_path, server) as made:
        returns(made, client)


def killed(made: Scene, after_s: float) -> None:
    """A rollback that is killed."""
    popen = subprocess.Popen(
        [*made.source.prefix, sys.executable, "-m", "gantry_operator.cli", "migrate", "rollback", "--dir", made.folder],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=made.environment,
    )  # fmt: skip
    deadline = time.monotonic() + 30
    while not (made.folder / "rollback-copy.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(after_s)
    popen.send_signal(signal.SIGKILL)
    popen.wait()


def returns(made: Scene, client: str) -> None:
    clients = made.driver(client)
    clients.mqadmin("updateTopic", "-c", made.source.cluster, "-t", "Orders", "-r", "4", "-w", "4")
    put(clients, topic="Orders", count=FIRST, size=1000, run="run", threads=2)
    clients.run("consume", topic="Orders", group="billing", run="run", count=FIRST, settle_ms=100)
    made.start()
    made.until_following()
    made.migrate("cutover", "--settle", "0", "--routes", "0")
    # This client is new: it has the routes to Gantry.
    ours = made.driver(client)
    put(ours, topic="Orders", first=FIRST, count=300, size=1000, run="run", keys="k")
    ours.run("consume", topic="Orders", group="billing", run="run", count=300, settle_ms=100)
    ours.mqadmin("updateTopic", "-c", made.source.cluster, "-t", "New", "-r", "2", "-w", "2")
    put(ours, topic="New", count=40, size=100, run="run")
    put(ours, topic="Orders", first=FIRST + 300, count=100, size=1000, run="run")
    before = made.migrate("rollback", "--dry-run")
    as_documented("migrate rollback --dry-run", before)
    assert not (made.folder / "rollback.json").exists()
    killed(made, 0.3)
    writer = ours.start("failover", topic="Orders", run="run", first=FIRST + 400, size=500, threads=2, pause_ms=5)
    writer.wait_for("ok")
    done = made.migrate("rollback")
    assert "the source leads again" in done.stdout, done.stdout
    as_documented("migrate rollback", done)
    assert made.status()["rollback"] == "rolled-back"
    began = time.time() * 1000
    while (line := writer.next(60)) is not None:
        if line["event"] == "ok" and line["ms"] > began + 1_000:
            break
    ours.run("stop")
    written = {line["n"] for line in writer.finish().of("ok")}
    made.gantry("down", "--dir", str(made.folder))
    theirs = made.driver(client)
    total = FIRST + 400 + len(written)
    got = theirs.run("consume", topic="Orders", group="all", run="run", count=total, each=True, settle_ms=1_000)
    numbers = [line["n"] for line in got.of("message")]
    assert set(range(FIRST + 400)) | written <= set(numbers)
    assert len(numbers) - len(set(numbers)) == 0, "nothing came twice, also behind the kill"
    rest = theirs.run("consume", topic="Orders", group="billing", run="run", count=100 + len(written), settle_ms=1_000)
    assert rest.summary["repeated"] == 0
    assert rest.summary["received"] == got.summary["received"] - FIRST - 300, "billing goes on where it was at Gantry"
    new = theirs.run("consume", topic="New", group="all", run="run", count=40, settle_ms=500)
    assert (new.summary["unique"], new.summary["repeated"]) == (40, 0)
    assert json.loads((made.folder / "rollback.json").read_text())["phase"] == "rolled-back"
