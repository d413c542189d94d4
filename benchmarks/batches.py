"""Measures batch sends and drains of one broker: Gantry, Apache RocketMQ 4.9.7 and Apache Kafka 3.9.1 in one run.

    python benchmarks/batches.py                  # 4 threads; batches of 32 and 128; bodies of 128 B and 1 KiB
    python benchmarks/batches.py --batch 32 --size 128 --count 2000000 -o json
    python benchmarks/batches.py --only gantry kafka
    python benchmarks/batches.py --core python    # Gantry with the Python body of its core

RocketMQ's own client 4.9.7 sends (`send(Collection)`) and pulls. Only one system is under load at a time. A case sends
`--count` messages to a topic of its own; then as many pulls as are needed get all of them, 32 and 256 messages each
(both brokers are set to give so many). CPU is the broker's process, in microseconds a message; the first quarter of the
messages of a case warms up and does not count. Apache RocketMQ needs Java 17, Maven, root and the `ip` command; without
them the benchmark says so and leaves it out.

Kafka (KRaft, one node, topics of 4 partitions, acks=1) has its own `ProducerPerformance` and `ConsumerPerformance`, of
one client each: `batch.size` and the limits of a fetch hold about as many messages. A quarter of the messages warms it
up, in a run of its own. Each step ends within `--within` seconds, or the benchmark ends with an error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rig import gantry, java, kafka_load, rocketmq
from rig.kafka import kafka
from rig.processes import NamespaceUnavailable, Started, exit_on_sigterm, usage
from rig.target import Target

SYSTEMS = ("gantry", "rocketmq", "kafka")
LIMITS = {"maxTransferCountOnMessageInMemory": 256, "maxTransferBytesOnMessageInMemory": 1 << 22}
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
    deadline = time.monotonic() + options.within
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


@dataclass
class Kafka:
    """A running broker of Kafka."""

    tools: kafka_load.Tools
    pid: int
    folder: Path

    def measured(self, count: int, run: Callable[[int], float]) -> Measured:
        """Measure `run` of `count` messages after one of a third of them."""
        run(count // 3)
        before = usage(self.pid).cpu_s
        per_second = run(count)
        return Measured(per_second, 1e6 * (usage(self.pid).cpu_s - before) / count, usage(self.pid).rss / 2**20)

    def send(self, topic: str, batch: int, size: int, count: int) -> Measured:
        self.tools.create(topic)
        return self.measured(count * 3 // 4, lambda some: self.tools.send(topic, batch, size, some))

    def drain(self, topic: str, batch: int, size: int, count: int) -> Measured:
        """Each run reads from the first message on."""
        return self.measured(count * 3 // 4, lambda some: self.tools.drain(topic, batch, size, some, self.folder))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=4, help="senders, and pullers (default 4)")
    parser.add_argument("--batch", type=int, nargs="+", default=[32, 128], help="messages of a batch")
    parser.add_argument("--size", type=int, nargs="+", default=[128, 1024], help="bytes of a body")
    parser.add_argument("--pull", type=int, nargs="+", default=[32, 256], help="messages of a pull")
    parser.add_argument("--count", type=int, default=1_200_000, help="messages of 128 B; of larger ones fewer")
    parser.add_argument("--core", choices=["python", "rust"], help="force a body of Gantry's core")
    parser.add_argument("--only", choices=SYSTEMS, nargs="+", default=list(SYSTEMS), help="leave the others out")
    parser.add_argument("--within", type=float, default=120, help="seconds that a step may take (default 120)")
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
        if "gantry" in options.only:
            targets.append(stack.enter_context(gantry.single(folder / "gantry", settings=dict(LIMITS))))
        if "rocketmq" in options.only:
            try:
                settings = {name: str(value) for name, value in (LIMITS | FROM_DISK).items()}
                targets.append(stack.enter_context(rocketmq.rocketmq(folder / "rocketmq", settings)))
            except (java.JavaMissing, NamespaceUnavailable) as error:
                notes.append(f"not compared with Apache RocketMQ: {error}")
        third: Kafka | None = None
        if "kafka" in options.only:
            try:
                address, process = stack.enter_context(kafka(folder / "kafka", kafka_load.classes(), "1g"))
                third = Kafka(kafka_load.Tools(address, options.within), process.pid, folder)
            except java.JavaMissing as error:
                notes.append(f"not compared with Apache Kafka: {error}")
        for size in options.size:
            options.count = min(whole, whole * 512 // size)
            for each in options.batch:
                topic = f"Batches{size}x{each}"
                for target in targets:
                    print(f"{target.name}: batches of {each}, {size} B", file=sys.stderr)
                    found = load(target, "send", topic, folder, options, batch=each, size=size, count=options.count)
                    case = f"send {options.threads} x {each} x {size} B"
                    results.setdefault(case, {})[target.name] = found.to_json()
                if third is not None:
                    print(f"kafka: batches of {each}, {size} B", file=sys.stderr)
                    case = f"send {options.threads} x {each} x {size} B"
                    results.setdefault(case, {})["kafka"] = third.send(topic, each, size, options.count).to_json()
            for each in options.pull:
                for target in targets:
                    print(f"{target.name}: pulls of {each}, {size} B", file=sys.stderr)
                    found = load(target, "drain", f"Batches{size}x{options.batch[0]}", folder, options, batch=each)
                    results.setdefault(f"drain {size} B, pulls of {each}", {})[target.name] = found.to_json()
                if third is not None:
                    print(f"kafka: fetches of about {each}, {size} B", file=sys.stderr)
                    found = third.drain(f"Batches{size}x{options.batch[0]}", each, size, options.count)
                    results.setdefault(f"drain {size} B, pulls of {each}", {})["kafka"] = found.to_json()
    for row in results.values():
        for name in [name for name in row if name != "gantry" and "gantry" in row]:
            row[f"ours/{name}"] = {
                "messages": round(row["gantry"]["per_second"] / row[name]["per_second"], 2),
                "cpu": round(row["gantry"]["cpu_us_a_message"] / row[name]["cpu_us_a_message"], 2),
            }
    if options.output == "json":
        print(json.dumps({"cases": results, "notes": notes}, indent=2))
        return 0
    for note in notes:
        print(note)
    print(f"{'case':<28}{'broker':<14}{'messages/s':>12}{'CPU us':>9}{'RSS MiB':>9}")
    for case, row in results.items():
        for name, one in row.items():
            if name in SYSTEMS:
                numbers = f"{one['per_second']:>12.0f}{one['cpu_us_a_message']:>9.2f}{one['rss_mib']:>9.0f}"
                print(f"{case:<28}{name:<14}{numbers}")
            else:
                print(f"{'':<28}{name:<14}{one['messages']:>12.2f}{one['cpu']:>9.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
