"""Measures what an archive costs senders at full speed: two brokers of one member, one with an archive, in turn.

    python -m benchmarks.archive_senders                 # 128 B and 1 KiB, 6 rounds of 8 s
    python -m benchmarks.archive_senders --size 1024 --rounds 10 -o json
    python -m benchmarks.archive_senders --store folder  # without a server that takes the same cores

The archive goes to a real S3 server (versitygw on loopback), each second and without a limit of bytes, so that the
upload runs all the time. The member that uploads is the one that takes the messages; in a group of more a follower
does it. A sender's frames are encoded before, so that the brokers have the cores; `--senders` of them are in flight.
The other broker begins when the upload has reached the end. `ratio` is the median of the rounds, each with the archive
to without it; CPU is the broker's for a message, `upload` that of the log a second, `memory` the broker's largest
resident set.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.rig.gantry import single, status
from benchmarks.rig.processes import exit_on_sigterm, until, usage
from benchmarks.rig.target import Target
from tests.archive.s3 import S3Server, s3_server

CATCH_UP_S = 120.0


def archive_in(folder: Path) -> dict[str, Any]:
    """An ArchiveConfig of a new folder, to which all is uploaded within a second."""
    (folder / "archive").mkdir()
    return {"url": (folder / "archive").as_uri(), "uid": "u", "interval_s": 1}


def archive_on(server: S3Server, folder: Path) -> dict[str, Any]:
    """An ArchiveConfig of a new bucket, to which all is uploaded within a second."""
    return {
        "url": server.bucket("archive"), "endpoint": server.endpoint, "uid": "u", "interval_s": 1,
        "credentials": str(server.credentials(folder / "keys")),
    }  # fmt: skip


def is_archived(target: Target) -> bool:
    said = status(target)
    return bool(said["archive"]["known"]) and said["archive"]["end"] >= said["confirmed"]


def send(target: Target, size: int, senders: int, seconds: int) -> dict[str, float]:
    """Send at full speed, and return messages a second, CPU us of the broker for each, and MiB/s of the upload."""
    pid = target.broker_pids[0]
    words = [
        sys.executable, str(Path(__file__).parent / "rig" / "load.py"), "--namesrv", target.namesrv, "--size",
        str(size), "--senders", str(senders), "--seconds", str(seconds), "--every", str(seconds), "--bare",
        target.broker_address,
    ]  # fmt: skip
    end = (status(target).get("archive") or {}).get("end", 0)
    before = usage(pid)
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=seconds + 60)
    after = usage(pid)
    said = json.loads(done.stdout.splitlines()[-1])
    if said["failed"]:
        raise RuntimeError(f"{said['failed']} sends failed")
    uploaded = (status(target).get("archive") or {}).get("end", 0) - end
    return {
        "rate": said["sent"] / said["seconds"], "cpu_us": 1e6 * (after.cpu_s - before.cpu_s) / said["sent"],
        "upload": uploaded / said["seconds"] / 2**20, "memory": after.rss / 2**20,
    }  # fmt: skip


@contextlib.contextmanager
def brokers(folder: Path, store: str) -> Iterator[tuple[Target, Target]]:
    """One broker without an archive, and one with. `store`: s3 or folder."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(s3_server(folder)) if store == "s3" else None
        archive = archive_in(folder) if server is None else archive_on(server, folder)
        without = stack.enter_context(single(folder / "without"))
        yield without, stack.enter_context(single(folder / "with", archive=archive))


def measure(size: int, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    rounds: list[tuple[dict[str, float], dict[str, float]]] = []
    with brokers(folder, options.store) as (without, kept):
        for number in range(options.rounds + 1):
            turn = {}
            for target in (without, kept) if number % 2 else (kept, without):
                turn[target.log] = send(target, size, options.senders, options.seconds)
                if target is kept:
                    until("the archive has all", lambda: is_archived(kept), CATCH_UP_S, [])
            if number:  # The first one warms up.
                rounds.append((turn[without.log], turn[kept.log]))

    def median(place: int, name: str) -> float:
        return statistics.median(one[place][name] for one in rounds)

    return {
        "size": size, "senders": options.senders, "store": options.store, "rate without": round(median(0, "rate")),
        "rate with": round(median(1, "rate")),
        "ratio": round(statistics.median(b["rate"] / a["rate"] for a, b in rounds), 3),
        "ratios": [round(b["rate"] / a["rate"], 3) for a, b in rounds],
        "CPU us without": round(median(0, "cpu_us"), 2), "CPU us with": round(median(1, "cpu_us"), 2),
        "upload MiB/s": round(median(1, "upload"), 1),
        "memory MiB without": round(max(a["memory"] for a, _ in rounds)),
        "memory MiB with": round(max(b["memory"] for _, b in rounds)),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, action="append", help="bytes of a body (default 128 and 1024)")
    parser.add_argument("--senders", type=int, default=64, help="sends in flight (default 64)")
    parser.add_argument("--rounds", type=int, default=6, help="turns of each broker that count (default 6)")
    parser.add_argument("--seconds", type=int, default=8, help="of a turn (default 8)")
    parser.add_argument("--store", choices=["s3", "folder"], default="s3", help="where the archive lies (default s3)")
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text")
    options = parser.parse_args()
    exit_on_sigterm()
    rows = []
    for size in options.size or (128, 1024):
        with tempfile.TemporaryDirectory(prefix="archive-senders-") as folder:
            rows.append(measure(size, options, Path(folder)))
    if options.output == "json":
        print(json.dumps(rows, indent=1))
        return 0
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
