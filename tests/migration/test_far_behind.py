"""A master that is 5 GiB ahead and written to at full speed is followed, and left; INTEROP=full.

MIGRATION_GIB: how far it is ahead.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.migration.scene import Scene, put, scene

GIB = float(os.environ.get("MIGRATION_GIB", "5"))
SIZE = 64 << 10
SEGMENT = 64 << 20


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize(("server", "client"), [("server49", "49"), ("server55", "55")])
def test_a_master_far_ahead_is_followed_while_it_is_written_to_at_full_speed(
    java_side: Path, tmp_path: Path, server: str, client: str
) -> None:
    with scene(tmp_path, server, {"mappedFileSizeCommitLog": str(SEGMENT)}) as made:
        made.segment = SEGMENT
        catches_up(made, client)


def catches_up(made: Scene, client: str) -> None:
    clients = made.driver(client)
    clients.mqadmin("updateTopic", "-c", made.source.cluster, "-t", "Orders", "-r", "4", "-w", "4")
    ahead = int(GIB * (1 << 30)) // SIZE
    filled = clients.run(
        "produce", topic="Orders", count=ahead, size=SIZE, run="fill", threads=4, compress_over=1 << 30, within_s=1_200
    )
    sent = sum(filled.summary["statuses"].values())
    writer = clients.start("failover", topic="Orders", run="run", size=1024, threads=8, pause_ms=0)
    writer.wait_for("ok")
    began = time.monotonic()
    made.start()
    found = made.until(
        "the copy catches up",
        lambda s: s["groups"]["a"]["lag"] is not None and s["groups"]["a"]["lag"] < 1 << 20,
        1_800,
    )
    copied = found["groups"]["a"]["copyEnd"]
    print(f"{copied / 1e6 / (time.monotonic() - began):.0f} MB/s from the start of the cluster, {copied} bytes")
    assert copied > sent * SIZE
    assert "Gantry leads" in made.migrate("cutover", "--routes", "5").stdout
    end = time.time() * 1000
    while (line := writer.next(60)) is not None:
        if line["event"] == "ok" and line["ms"] > end:
            break
    clients.run("stop")
    missing = {line["n"] for line in writer.finish().of("ok")}
    ours = made.driver(client)
    put(ours, topic="Orders", first=ahead, count=10, size=100, run="fill")
    got = ours.run(
        "consume", topic="Orders", group="all", run="fill", count=sent + 10, settle_ms=1_000, timeout_s=900,
        within_s=1_000,
    )  # fmt: skip
    assert got.summary["unique"] >= sent + 10, got.summary
    rest = ours.run(
        "consume", topic="Orders", group="last", run="run", count=len(missing), settle_ms=1_000, each=True,
        timeout_s=900,
    )  # fmt: skip
    missing -= {line["n"] for line in rest.of("message")}
    assert not missing, f"{len(missing)} acknowledged messages are lost: {sorted(missing)[:20]}"
