"""Measures a migration from Apache RocketMQ: MB/s of following, the cost for the source's senders, the pause of writes.

    python -m benchmarks.migration                        # 4.9.7, about three minutes
    python -m benchmarks.migration --server server55 --client 55 --mib 1024
    python -m benchmarks.migration --random-only --server server55 --client 55    # bodies that do not compress
    python -m benchmarks.migration --pauses 20 --within 230 --keep pauses.json    # again, until it has 20

Everything shares the machine, the official clients too: the cost for the senders is mostly that of the follower's use
of the cores. The pause is that of an official producer in its default configuration: the time between its last message
that the source acknowledged and its first one that Gantry acknowledged. It needs root, Java and Maven, as
tests/interop do.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import tempfile
import time
from pathlib import Path
from typing import Any

from gantry_broker.protocol.codes import RequestCode
from gantry_operator.platforms.local.folder import ClusterFolder

from benchmarks.rig.driver import Driver
from benchmarks.rig.processes import usage
from benchmarks.rig.wire import Wire
from tests.migration.scene import Scene, scene

WINDOW_S = 8
SIZE = 64 << 10
"""Bytes of a body that does not compress."""


def sends(clients: Driver, run: str, threads: int, pause_ms: int) -> dict[str, float]:
    """Acknowledged messages of 1 KiB a second, and how long a sender waits for one, without the first second."""
    words = {"topic": "Load", "size": 1024, "seconds": WINDOW_S, "threads": threads, "pause_ms": pause_ms}
    done = clients.run("failover", run=run, **words)
    begin = min(line["ms"] for line in done.of("ok")) + 1000
    counted = [line for line in done.of("ok") if line["ms"] >= begin]
    waits = sorted(line["us"] / 1000 for line in counted)
    return {
        "sends_s": len(counted) / ((max(line["ms"] for line in counted) - begin) / 1000),
        "p50_ms": waits[len(waits) // 2], "p99_ms": waits[len(waits) * 99 // 100],
        "not_ok": len(done.of("status")) + len(done.of("failed")),
    }  # fmt: skip


def follow(made: Scene) -> dict[str, float]:
    """Follow the source to its end, and return how fast, with the start of the cluster."""
    began = time.monotonic()
    made.start()
    found = made.until("the copy follows", lambda s: s["groups"]["a"]["lag"] == 0, 600)
    took, end = time.monotonic() - began, found["groups"]["a"]["copyEnd"]
    return {"end": end, "seconds": took, "mb_s": end / 1e6 / took}


def following(made: Scene, clients: Driver, mib: int, rounds: int) -> dict[str, Any]:
    """Follow a log of so many MiB from its begin to its end; then send with the follower and without it, in turn."""
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
    rows: list[dict[str, Any]] = []

    def windows(follower: bool) -> None:
        for name, threads, pause_ms in (("full speed", 8, 0), ("moderate", 2, 5)):
            found = sends(clients, f"w{len(rows)}", threads, pause_ms)
            rows.append({"load": name, "follower": follower, **found})
            print(json.dumps(rows[-1]), flush=True)

    sends(clients, "warm", 8, 0)
    windows(False)
    copied = follow(made)
    print(json.dumps(copied), flush=True)
    for number in range(rounds):
        windows(True)
        if number + 1 < rounds:
            made.gantry("down", "--dir", str(made.folder))
            windows(False)
            follow(made)
    return {**copied, "sends": rows}


def pause(made: Scene, clients: Driver, **load: Any) -> dict[str, Any]:
    """Cut over below a producer that sends all the time. `load`: how, instead of 1 KiB every 2 ms."""
    usual: dict[str, Any] = {"topic": "Load", "size": 1024, "threads": 1, "pause_ms": 2}
    writer = clients.start("failover", run="pause", **(load or usual))
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


def cutovers(made: Scene, clients: Driver, kept: list[dict[str, Any]], wanted: int, within_s: float) -> None:
    """Add cutovers to `kept`, each of a new cluster from the same source, until there are so many or the time is over.

    Clients look for routes every two seconds, so that a cutover waits for three. They have Gantry's address before the
    pause begins.
    """
    ends, last = time.monotonic() + within_s, 0.0
    while len(kept) < wanted and time.monotonic() + last < ends:
        began = time.monotonic()
        made.folder = made.base / f"cluster-{len(kept)}"
        writer = clients.start(
            "failover", topic="Load", run=f"pause{len(kept)}", size=1024, threads=1, pause_ms=2, poll_ms=2_000
        )
        writer.wait_for("ok")
        made.start()
        made.until_following()
        said = made.migrate("cutover", "--routes", "3", "--settle", "1").stdout
        after = time.time() * 1000
        while (line := writer.next(60)) is not None:
            if line["event"] == "ok" and line["ms"] > after:
                break
        clients.run("stop")
        done = writer.finish()
        times = sorted(line["ms"] for line in done.of("ok"))
        longest = max(b - a for a, b in itertools.pairwise(times)) / 1000
        kept.append({"pause_s": longest, "failed": len(done.of("failed")), "cutover": said.splitlines()})
        made.gantry("down", "--dir", str(made.folder), check=False)
        lead_again(made)
        last = time.monotonic() - began
        print(f"{len(kept)}: {longest:.2f} s, {last:.0f} s for all", flush=True)


def memory(pid: int) -> tuple[int, int]:
    """Return the resident bytes of a process, and those that no file has."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(lines["VmRSS"].split()[0]) << 10, int(lines["RssAnon"].split()[0]) << 10


def member_of(made: Scene) -> int:
    """Return the process id of the member that follows."""
    (path,) = (ClusterFolder(made.folder).root / "run").glob("moved-a-0.json")
    return int(json.loads(path.read_text())["pid"])


def incompressible(made: Scene, clients: Driver) -> dict[str, Any]:
    """Send bodies that do not compress at full speed, without the follower, with it, and through a cutover."""
    load: dict[str, Any] = {"topic": "Load", "size": SIZE, "threads": 8, "random": True, "compress_over": 1 << 30}
    found: dict[str, Any] = {}
    clients.run("failover", run="warm", seconds=4, **load)
    for name, seconds in (("alone", WINDOW_S), ("followed", 2 * WINDOW_S)):
        if name == "followed":
            found["from_begin"] = follow(made)
            pid = member_of(made)
            cpu_s, most = usage(pid).cpu_s, (0, 0)
        writer = clients.start("failover", run=name, seconds=seconds, **load)
        ends = time.monotonic() + seconds
        while name == "followed" and time.monotonic() < ends:
            most = max(most, memory(pid))
            time.sleep(0.2)
        done = writer.finish()
        waits, times = sorted(line["us"] / 1000 for line in done.of("ok")), [line["ms"] for line in done.of("ok")]
        found[name] = {
            "mb_s": len(times) * SIZE / 1e3 / (max(times) - min(times)), "p50_ms": waits[len(waits) // 2],
            "p99_ms": waits[len(waits) * 99 // 100], "not_ok": len(done.of("status")) + len(done.of("failed")),
        }  # fmt: skip
    began = time.monotonic()
    missing = made.status()["groups"]["a"]["lag"]
    made.until("the copy has all", lambda s: s["groups"]["a"]["lag"] == 0, 300)
    found["copy"] = {
        "missing_at_the_end_mb": missing / 1e6, "caught_up_s": time.monotonic() - began,
        "cpu_s": usage(pid).cpu_s - cpu_s, "rss_mib": most[0] >> 20, "own_mib": most[1] >> 20,
    }  # fmt: skip
    return found | {"cutover": pause(made, clients, **load)}


def lead_again(made: Scene) -> None:
    """Give the source its place and its permission back: what was written since is left behind."""
    changes = {"brokerId": "0", "brokerPermission": "6", "startAcceptSendRequestTimeStamp": "0"}
    body = "".join(f"{name}={value}\n" for name, value in changes.items()).encode()
    with Wire(made.source.broker_address, 30, made.source.prefix) as wire:
        wire.ask(RequestCode.UPDATE_BROKER_CONFIG, {}, body)


def summary(kept: list[dict[str, Any]]) -> dict[str, Any]:
    """Return p50 and p99 of the pauses, by the nearest rank."""
    pauses = sorted(one["pause_s"] for one in kept)
    if not pauses:
        return {"cutovers": 0}

    def rank(share: float) -> float:
        return float(pauses[max(math.ceil(share * len(pauses)), 1) - 1])

    return {
        "cutovers": len(pauses), "p50_s": rank(0.5), "p99_s": rank(0.99), "longest_s": pauses[-1],
        "failed_sends": sum(one["failed"] for one in kept),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--server", default="server49", choices=("server49", "server55"))
    parser.add_argument("--client", default="49", choices=("49", "55"))
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=2, help="of sending with the follower, and without it")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a line of the source's broker.conf"
    )
    parser.add_argument("--pauses", type=int, default=0, help="only so many cutovers, for the pause of writes")
    parser.add_argument("--random-only", action="store_true", help="only bodies that do not compress, at full speed")
    parser.add_argument("--within", type=float, default=3600, help="seconds for them")
    parser.add_argument("--keep", type=Path, help="a file with cutovers, to which new ones are added")
    options = parser.parse_args()
    if options.pauses:
        kept = json.loads(options.keep.read_text()) if options.keep and options.keep.exists() else []
        with tempfile.TemporaryDirectory() as folder, scene(Path(folder), options.server) as made:
            clients = made.driver(options.client)
            clients.mqadmin("updateTopic", "-c", made.source.cluster, "-t", "Load", "-r", "4", "-w", "4")
            try:
                cutovers(made, clients, kept, options.pauses, options.within)
            finally:
                if options.keep:
                    options.keep.write_text(json.dumps(kept))
        print(json.dumps(summary(kept), indent=1))
        return
    segment = 64 << 20
    settings = {"mappedFileSizeCommitLog": str(segment), **dict(one.split("=", 1) for one in options.set)}
    with tempfile.TemporaryDirectory() as folder, scene(Path(folder), options.server, settings) as made:
        made.segment = segment
        clients = made.driver(options.client)
        for topic in ("Fill", "Load"):
            clients.mqadmin("updateTopic", "-c", made.source.cluster, "-t", topic, "-r", "4", "-w", "4")
        if options.random_only:
            print(json.dumps(incompressible(made, clients), indent=1))
            return
        print(json.dumps({**following(made, clients, options.mib, options.rounds), **pause(made, clients)}, indent=1))


if __name__ == "__main__":
    main()
