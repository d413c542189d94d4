"""Measures batch sends and drains of one broker, Gantry and Apache RocketMQ 4.9.7 side by side in one run.

    python benchmarks/batches.py                  # 4 threads; batches of 32 and 128; bodies of 128 B and 1 KiB
    python benchmarks/batches.py --batch 32 --size 128 --count 2000000 -o json
    python benchmarks/batches.py --core python    # Gantry with the Python body of its core

RocketMQ's own client 4.9.7 sends (`send(Collection)`) and pulls. Only one system is under load at a time. A case sends
`--count` messages to a topic of its own; then as many pulls as are needed get all of them, 32 and 256 messages each
(both brokers are set to give so many). CPU is the broker's process, in microseconds a message; the first quarter of the
messages of a case warms up and does not count. Apache RocketMQ needs Java 17, Maven, root and the `ip` command; without
them the benchmark measures Gantry alone and says so.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rig import gantry, java, rocketmq
from rig.processes import NamespaceUnavailable, Started, exit_on_sigterm, usage
from rig.target import Target

LIMITS = {
    "maxTransferCountOnMessageInMemory": 256,
    "maxTransferBytesOnMessageInMemory": 1 << 22,
}
"""So that both brokers answer a pull of 256 messages of 1 KiB with all of them."""
FROM_DISK = {"maxTransferCountOnMessageInDisk": 256, "maxTransferBytesOnMessageInDisk": 1 << 22}
"""The same of RocketMQ for messages that it takes for old."""


@dataclass
class Measured:
    """What one load was to the broker."""

    per_second: float
    cpu_us: float
    rss_mib: float

    def to_json(self) -> dict[str, float]:
        return {
            "per_second": round(self.per_second),
            "cpu_us_a_message": round(self.cpu_us, 2),
            "rss_mib": round(self.rss_mib, 1),
        }


def load(target: Target, what: str, topic: str, folder: Path, options: argparse.Namespace, **more: int) -> Measured:
    """Run one load to its end. The window begins with the first report behind the first quarter."""
    words = java.command(
        "driver49", "dev.gantry.interop.Load", what, "--namesrv", target.namesrv, "--topic", topic,
        "--threads", str(options.threads), *[w for name, value in more.items() for w in (f"--{name}", str(value))],
        heap="1g", flags=[f"-Duser.home={folder}", f"-Drocketmq.client.logRoot={folder}"],
    )  # fmt: skip
    log = folder / f"load-{target.name}-{time.monotonic_ns()}.log"
    pid = target.broker_pids[0]
    rows: list[tuple[float, float, int]] = []
    """When a report came, the CPU seconds of the broker then, the messages so far."""
    seen, ended = 0, False
    deadline = time.monotonic() + 230
    with Started([*target.prefix, *words], log) as process:
        while not ended:
            alive = process.popen.poll() is None
            lines = log.read_text(errors="replace").splitlines()
            reports = [line.split() for line in lines if line.startswith(("at ", "end "))]
            ended = bool(reports) and reports[-1][0] == "end"
            if len(reports) > seen:
                seen = len(reports)
                rows.append((time.monotonic(), usage(pid).cpu_s, int(reports[-1][1])))
            if not ended and (not alive or time.monotonic() > deadline):
                raise RuntimeError(f"the load {what} of {target.name} did not end: {process.tail()}")
            time.sleep(0.02)
    first = next(row for row in rows if row[2] >= options.count // 4)
    last = rows[-1]
    count = last[2] - first[2]
    return Measured(count / (last[0] - first[0]), 1e6 * (last[1] - first[1]) / count, usage(pid).rss / 2**20)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=4, help="senders, and pullers (default 4)")
    parser.add_argument("--batch", type=int, nargs="+", default=[32, 128], help="messages of a batch")
    parser.add_argument("--size", type=int, nargs="+", default=[128, 1024], help="bytes of a body")
    parser.add_argument("--pull", type=int, nargs="+", default=[32, 256], help="messages of a pull")
    parser.add_argument("--count", type=int, default=1_200_000, help="messages of 128 B; of larger ones fewer")
    parser.add_argument("--core", choices=["python", "rust"], help="force a body of Gantry's core")
    parser.add_argument("--only", choices=["gantry", "rocketmq"], help="leave the other one out")
    parser.add_argument("--dir", type=Path, help="where the stores go (default: the system's temporary folder)")
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text")
    options = parser.parse_args()
    if options.core:
        os.environ["GANTRY_CORE"] = options.core
    exit_on_sigterm()
    notes: list[str] = []
    try:
        java.build()
    except java.JavaMissing as error:
        sys.exit(f"error: {error}")
    results: dict[str, dict[str, Any]] = {}
    whole = options.count
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="batches-", dir=options.dir)))
        targets: list[Target] = []
        if options.only != "rocketmq":
            targets.append(stack.enter_context(gantry.single(folder / "gantry", settings=dict(LIMITS))))
        if options.only != "gantry":
            try:
                settings = {name: str(value) for name, value in (LIMITS | FROM_DISK).items()}
                targets.append(stack.enter_context(rocketmq.rocketmq(folder / "rocketmq", settings)))
            except (java.JavaMissing, NamespaceUnavailable) as error:
                notes.append(f"not compared with Apache RocketMQ: {error}")
        for size in options.size:
            options.count = min(whole, whole * 512 // size)
            for each in options.batch:
                topic = f"Batches{size}x{each}"
                for target in targets:
                    print(f"{target.name}: batches of {each}, {size} B", file=sys.stderr)
                    found = load(target, "send", topic, folder, options, batch=each, size=size, count=options.count)
                    case = f"send {options.threads} x {each} x {size} B"
                    results.setdefault(case, {})[target.name] = found.to_json()
            for each in options.pull:
                for target in targets:
                    print(f"{target.name}: pulls of {each}, {size} B", file=sys.stderr)
                    found = load(target, "drain", f"Batches{size}x{options.batch[0]}", folder, options, batch=each)
                    results.setdefault(f"drain {size} B, pulls of {each}", {})[target.name] = found.to_json()
    for row in results.values():
        if len(row) == 2:
            ours, theirs = row["gantry"], row["rocketmq"]
            row["ratio"] = {
                "messages": round(ours["per_second"] / theirs["per_second"], 2),
                "cpu": round(ours["cpu_us_a_message"] / theirs["cpu_us_a_message"], 2),
            }
    if options.output == "json":
        print(json.dumps({"cases": results, "notes": notes}, indent=2))
        return 0
    for note in notes:
        print(note)
    print(f"{'case':<28}{'broker':<10}{'messages/s':>12}{'CPU us':>9}{'RSS MiB':>9}")
    for case, row in results.items():
        for name in ("gantry", "rocketmq"):
            if name in row:
                one = row[name]
                print(
                    f"{case:<28}{name:<10}{one['per_second']:>12.0f}{one['cpu_us_a_message']:>9.2f}{one['rss_mib']:>9.0f}"
                )
        if "ratio" in row:
            print(f"{'':<28}{'ours/theirs':<12}{row['ratio']['messages']:>10.2f}{row['ratio']['cpu']:>9.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
