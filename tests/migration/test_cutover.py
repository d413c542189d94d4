"""A running Apache RocketMQ moves to Gantry while official clients with an unchanged configuration go on."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.rig.driver import Line, Running
from tests.migration.scene import Scene, as_documented, put, scene

FIRST = 1000
"""Messages before the copy begins."""
POLL_S, ROUTES_S = (30, 32) if os.environ.get("INTEROP") == "full" else (8, 10)
"""How often clients look for routes, and how long a cutover waits for that. The default takes half a minute."""


def carried(made: Scene) -> None:
    """Wait until a client has Gantry's address and is passed on to the source."""
    made.until("clients are carried", lambda s: (s["groups"]["a"]["copy"] or {}).get("carried", 0) > 0, 120)


@pytest.mark.timeout(290)
@pytest.mark.parametrize(("server", "client"), [("server49", "49"), ("server55", "55")])
def test_clients_go_on_through_a_cutover(java_side: Path, tmp_path: Path, server: str, client: str) -> None:
    with scene(tmp_path, server) as made:
        moves(made, client)


def next_or_say(reader: Running, missing: set[int]) -> Line | None:
    """Return the next line of a consumer. Raises AssertionError with what it lacks."""
    try:
        return reader.next(60)
    except TimeoutError:
        raise AssertionError(f"{len(missing)} are missing, such as {sorted(missing)[:10]}") from None


def moves(made: Scene, client: str) -> None:
    clients, poll_ms = made.driver(client), POLL_S * 1_000
    clients.mqadmin("updateTopic", "-c", made.source.cluster, "-t", "Orders", "-r", "4", "-w", "4")
    first = put(clients, topic="Orders", count=FIRST, size=1000, run="run", threads=2)
    reader = clients.start(
        "consume",
        topic="Orders",
        group="billing",
        run="run",
        count=1_000_000,
        timeout_s=300,
        each=True,
        poll_ms=poll_ms,
    )
    made.write()
    checked = made.gantry("migrate", "check", str(made.file))
    as_documented("migrate start migrate.yaml", made.start(), 0, "starting: ")
    writer = clients.start(
        "failover", topic="Orders", run="run", first=FIRST, size=1000, threads=2, pause_ms=20, poll_ms=poll_ms
    )
    writer.wait_for("ok")
    made.until_following()
    as_documented("migrate status", made.migrate("status"))
    before = made.migrate("cutover", "--dry-run")
    as_documented("migrate cutover --dry-run", before)
    assert "nothing was changed" in before.stderr
    assert made.status()["groups"]["a"]["sourcePermission"] == 6
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(made.migrate, "cutover", "--routes", str(ROUTES_S))
        # They have Gantry's address before the source ends writes.
        carried(made)
        cut = running.result()
    said = cut.stdout
    assert "Gantry leads" in said, said
    as_documented("migrate cutover", cut)
    as_documented("migrate status", made.migrate("status"), 1)
    if client == "49":
        as_documented("migrate check migrate.yaml", checked)
    began = time.time() * 1000
    while (line := writer.next(60)) is not None:
        if line["event"] == "ok" and line["ms"] > began + 3_000:
            break
    clients.run("stop")
    sent = writer.finish()
    acknowledged = {line["n"] for line in sent.of("ok")} | first
    missing = set(acknowledged)
    received = 0
    while missing and (line := next_or_say(reader, missing)) is not None:
        if line["event"] == "message":
            missing.discard(line["n"])
            received += 1
    assert not missing
    times = sorted(line["ms"] for line in sent.of("ok"))
    pause = max(b - a for a, b in itertools.pairwise(times))
    print(f"{len(acknowledged)} acknowledged, {received - len(acknowledged)} repeats, pause {pause} ms")
    # Without Gantry's address a client would look for it every 30 s by default.
    assert pause < 25_000, said
    group = made.status()["groups"]["a"]
    assert (group["state"], group["routed"]) == ("leads", True), group


@pytest.mark.timeout(290)
@pytest.mark.parametrize(("server", "client"), [("server49", "49"), ("server55", "55")])
def test_clients_return_when_a_cutover_is_killed_and_aborted(
    java_side: Path, tmp_path: Path, server: str, client: str
) -> None:
    with scene(tmp_path, server) as made:
        goes_back(made, client)


def go_on(writer: Running, until_ms: float) -> None:
    """Wait until the source has acknowledged a message behind that time."""
    while (line := writer.next(60)) is not None:
        if line["event"] == "ok" and line["ms"] > until_ms:
            return
    raise AssertionError("the writer ended")


def goes_back(made: Scene, client: str) -> None:
    clients = made.driver(client)
    clients.mqadmin("updateTopic", "-c", made.source.cluster, "-t", "Orders", "-r", "4", "-w", "4")
    first = put(clients, topic="Orders", count=100, size=1000, run="run")
    reader = clients.start(
        "consume", topic="Orders", group="billing", run="run", count=1_000_000, timeout_s=300, each=True
    )
    made.start()
    writer = clients.start("failover", topic="Orders", run="run", first=100, size=1000, threads=2, pause_ms=5)
    writer.wait_for("ok")
    made.until_following()
    words = [*made.source.prefix, sys.executable, "-m", "gantry_operator.cli", "migrate", "cutover"]
    words += ["--dir", str(made.folder)]
    with subprocess.Popen(words, env=made.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as popen:
        carried(made)
        popen.kill()
    assert made.status()["phase"] in ("routing", "routed")
    as_documented("migrate abort", made.migrate("abort"))
    began = time.time() * 1000
    seen = made.status()
    assert (seen["phase"], seen["groups"]["a"]["sourcePermission"], seen["groups"]["a"]["routed"]) == (
        "following",
        6,
        False,
    )
    # Clients look for the route every 30 s: until then they are carried on. After that they need no Gantry.
    go_on(writer, began + 35_000)
    made.gantry("down", "--dir", str(made.folder))
    go_on(writer, time.time() * 1000 + 2_000)
    clients.run("stop")
    sent = writer.finish()
    assert not sent.of("failed"), "no send fails on the way there and back"
    missing = {line["n"] for line in sent.of("ok")} | first
    while missing and (line := next_or_say(reader, missing)) is not None:
        if line["event"] == "message":
            missing.discard(line["n"])
    assert not missing
