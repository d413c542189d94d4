"""Measures a migration from Apache RocketMQ: MB/s of following, the cost for the source's senders, the pause of writes.

    python -m benchmarks.migration                        # 4.9.7, about three minutes
    python -m benchmarks.migration --server server55 --client 55 --mib 1024

Everything shares the machine, the official clients too: the cost for the senders is mostly that of the follower's use
of the cores. The pause is that of an official producer in its default configuration: the time between its last message
that the source acknowledged and its first one that Gantry acknowledged. It needs root, Java and Maven, as
tests/interop do.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.rig.driver import Driver
from tests.migration.scene import Scene, scene

WINDOW_S = 8


def sends(clients: Driver, run: str, seconds: int) -> float:
    """Acknowledged messages of 1 KiB a second, from eight threads, without the first second."""
    done = clients.run("failover", topic="Load", run=run, size=1024, threads=8, seconds=seconds)
    times = [line["ms"] for line in done.of("ok")]
    begin = min(times) + 1000
    return float(sum(ms >= begin for ms in times) / ((max(times) - begin) / 1000))


def following(made: Scene, clients: Driver, mib: int) -> dict[str, Any]:
    """Follow a log of so many MiB from its begin to its end."""
    clients.run(
        "produce",
        topic="Fill",
        count=mib * 16,
        size=64 << 10,
        run="fill",
        threads=4,
        compress_over=1 << 30,
        within_s=600,
    )
    before = sends(clients, "before", WINDOW_S)
    began = time.monotonic()
    made.start()
    found = made.until("the copy follows", lambda s: s["groups"]["a"]["lag"] == 0, 600)
    took = time.monotonic() - began
    beside = sends(clients, "beside", WINDOW_S)
    size = found["groups"]["a"]["copyEnd"]
    return {
        "log_mb": size / 1e6,
        "seconds": took,
        "mb_s": size / 1e6 / took,
        "sends_s": before,
        "sends_beside_s": beside,
    }


def pause(made: Scene, clients: Driver) -> dict[str, Any]:
    """Cut over below a producer that sends all the time."""
    writer = clients.start("failover", topic="Load", run="pause", size=1024, threads=1, pause_ms=2)
    writer.wait_for("ok")
    said = made.migrate("cutover").stdout
    began = time.time() * 1000
    while (line := writer.next(60)) is not None:
        if line["event"] == "ok" and line["ms"] > began:
            break
    clients.run("stop")
    done = writer.finish()
    times = sorted(line["ms"] for line in done.of("ok"))
    return {
        "pause_s": max(b - a for a, b in itertools.pairwise(times)) / 1000,
        "refused": len(done.of("failed")),
        "cutover": said.splitlines(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--server", default="server49", choices=("server49", "server55"))
    parser.add_argument("--client", default="49", choices=("49", "55"))
    parser.add_argument("--mib", type=int, default=512)
    options = parser.parse_args()
    segment = 64 << 20
    with (
        tempfile.TemporaryDirectory() as folder,
        scene(Path(folder), options.server, {"mappedFileSizeCommitLog": str(segment)}) as made,
    ):
        made.segment = segment
        clients = made.driver(options.client)
        for topic in ("Fill", "Load"):
            clients.mqadmin("updateTopic", "-c", made.source.cluster, "-t", topic, "-r", "4", "-w", "4")
        print(json.dumps({**following(made, clients, options.mib), **pause(made, clients)}, indent=1))


if __name__ == "__main__":
    main()
