"""Measures the messages a second of one broker, Gantry and Apache RocketMQ 4.9.7 side by side in one run.

    python benchmarks/throughput.py                  # 64 senders on one connection, 128 B bodies
    python benchmarks/throughput.py --threads 1 --size 1024 -o json
    python benchmarks/throughput.py --client gantry  # our own client instead of RocketMQ's; needs no Java

RocketMQ's own benchmark producer makes the load (rocketmq-example 4.7.0 with the 4.9.7 client). Only one system is
under load at a time; they alternate for `--rounds`, and the ratio is of the medians. Apache RocketMQ needs Java 17,
Maven, root and the `ip` command (its servers listen on all addresses, so they run in a network namespace). Without them
the benchmark measures Gantry alone and says so. CPU is the broker's, in per cent of one core during the window.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rig import gantry, java, rocketmq
from rig.processes import NamespaceUnavailable, Started, exit_on_sigterm, until, usage
from rig.target import Target

_WINDOW = re.compile(r"Send TPS: (\d+).*?Average RT:\s*(\S+).*?Send Failed: (\d+).*?Response Failed: (\d+)")


@dataclass
class Windows:
    """The measured windows of one system."""

    rates: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    rss: list[int] = field(default_factory=list)
    failed: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "per_second": self.rates,
            "median_per_second": statistics.median(self.rates),
            "cpu_percent": round(statistics.median(self.cpu), 1),
            "rss_mib": round(max(self.rss) / 2**20, 1),
            "failed": self.failed,
        }


def _java_load(target: Target, options: argparse.Namespace, folder: Path, into: Windows) -> None:
    words = java.command(
        "bench47", "org.apache.rocketmq.example.benchmark.Producer", "-t", "BenchmarkTest", "-w", str(options.threads),
        "-s", str(options.size), "-n", target.namesrv, heap="512m",
        flags=[f"-Duser.home={folder}", f"-Drocketmq.client.logRoot={folder}"],
    )  # fmt: skip
    log = folder / f"producer-{target.name}-{time.monotonic_ns()}.log"
    pid = target.broker_pids[0]
    with Started([*target.prefix, *words], log) as producer:
        before = usage(pid)
        started = time.monotonic()
        for number in range(options.warmup + options.windows):
            until(
                f"window {number + 1} of the producer",
                lambda wanted=number: len(_WINDOW.findall(log.read_text(errors="replace"))) > wanted,  # type: ignore[misc]
                60,
                [producer],
            )
            after, now = usage(pid), time.monotonic()
            tps, _, failed, lost = _WINDOW.findall(log.read_text(errors="replace"))[number]
            if number >= options.warmup:
                into.rates.append(float(tps))
                into.cpu.append(100 * (after.cpu_s - before.cpu_s) / (now - started))
                into.rss.append(after.rss)
                into.failed = max(into.failed, int(failed) + int(lost))
            before, started = after, now


def _own_load(target: Target, options: argparse.Namespace, folder: Path, into: Windows) -> None:
    words = [
        sys.executable, str(Path(__file__).with_name("rig") / "load.py"), "--namesrv", target.namesrv,
        "--senders", str(options.threads), "--size", str(options.size),
        "--seconds", str(10 * (options.warmup + options.windows)),
    ]  # fmt: skip
    log = folder / f"load-{target.name}-{time.monotonic_ns()}.log"
    pid = target.broker_pids[0]
    with Started([*target.prefix, *words], log) as load:
        before, started, sent = usage(pid), time.monotonic(), 0
        for number in range(options.warmup + options.windows):
            until(
                f"window {number + 1} of our client",
                lambda wanted=number: log.read_text().count("\n") > wanted,  # type: ignore[misc]
                60,
                [load],
            )
            after, now = usage(pid), time.monotonic()
            line = json.loads(log.read_text().splitlines()[number])
            if number >= options.warmup:
                into.rates.append((line["sent"] - sent) / (now - started))
                into.cpu.append(100 * (after.cpu_s - before.cpu_s) / (now - started))
                into.rss.append(after.rss)
                into.failed = max(into.failed, line["failed"])
            before, started, sent = after, now, line["sent"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=64, help="senders that wait for their answer (default 64)")
    parser.add_argument("--size", type=int, default=128, help="bytes of a body (default 128)")
    parser.add_argument("--warmup", type=int, default=2, help="windows of 10 s that do not count (default 2)")
    parser.add_argument("--windows", type=int, default=2, help="windows of 10 s that count, per round (default 2)")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each system (default 2)")
    parser.add_argument("--flush", choices=["Async", "Sync"], default="Async", help="flush of both brokers")
    parser.add_argument("--client", choices=["java", "gantry"], default="java", help="whose client makes the load")
    parser.add_argument("--only", choices=["gantry", "rocketmq"], help="leave the other one out")
    parser.add_argument("--dir", type=Path, help="where the stores go (default: the system's temporary folder)")
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text")
    options = parser.parse_args()

    exit_on_sigterm()
    notes: list[str] = []
    client = options.client
    if client == "java":
        try:
            java.build()
        except java.JavaMissing as e:
            notes.append(f"our own client makes the load: {e}")
            client = "gantry"
    load = _java_load if client == "java" else _own_load
    results: dict[str, Windows] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="throughput-", dir=options.dir)))
        targets: list[Target] = []
        if options.only != "rocketmq":
            targets.append(stack.enter_context(gantry.single(folder / "gantry", flush=options.flush)))
        if options.only != "gantry":
            settings = {"flushDiskType": f"{options.flush.upper()}_FLUSH"}
            try:
                targets.append(stack.enter_context(rocketmq.rocketmq(folder / "rocketmq", settings)))
            except (java.JavaMissing, NamespaceUnavailable) as e:
                notes.append(f"not compared with Apache RocketMQ: {e}")
        for number in range(options.rounds):
            for target in targets:
                print(f"round {number + 1} of {options.rounds}: {target.name}", file=sys.stderr)
                load(target, options, folder, results.setdefault(target.name, Windows()))
    answer: dict[str, Any] = {
        "threads": options.threads, "size": options.size, "flush": options.flush, "client": client,
        "systems": {name: windows.to_json() for name, windows in results.items()}, "notes": notes,
    }  # fmt: skip
    if len(results) == 2:
        ours, theirs = answer["systems"]["gantry"], answer["systems"]["rocketmq"]
        answer["ratio"] = round(ours["median_per_second"] / theirs["median_per_second"], 2)
        answer["memory_ratio"] = round(ours["rss_mib"] / theirs["rss_mib"], 3)
    if options.output == "json":
        print(json.dumps(answer, indent=2))
        return 0
    for note in notes:
        print(note)
    who = "RocketMQ's benchmark producer" if client == "java" else "our client"
    print(f"{options.threads} senders on one connection, {options.size} B bodies, {options.flush} flush, {who}")
    print(f"{'broker':<10}{'messages/s':>12}{'CPU %':>8}{'RSS MiB':>9}{'failed':>8}   windows")
    for name, row in answer["systems"].items():
        windows = " ".join(f"{rate:.0f}" for rate in row["per_second"])
        print(f"{name:<10}{row['median_per_second']:>12.0f}{row['cpu_percent']:>8.0f}{row['rss_mib']:>9.0f}"
              f"{row['failed']:>8}   {windows}")  # fmt: skip
    if "ratio" in answer:
        print(f"ours / RocketMQ's: {answer['ratio']} times the messages, {answer['memory_ratio']} of the memory")
    return 0


if __name__ == "__main__":
    sys.exit(main())
