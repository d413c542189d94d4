"""Measures messages from RocketMQ's benchmark producer to its consumers, Gantry and Apache RocketMQ in turn.

    python benchmarks/end_to_end.py                        # one broker; 1 and 3 groups; 16 threads, 1 KiB and 64, 128 B
    python benchmarks/end_to_end.py --threads 64 --size 128 --groups 1 --groups 3 --other-work no --rounds 2
    python benchmarks/end_to_end.py --kind Sync --kind Raft --threads 64 --size 1024
    python benchmarks/end_to_end.py --queues 8             # a topic as clients create it, instead of BenchmarkTest

RocketMQ's benchmark has the topic BenchmarkTest, which has 1,024 queues at both systems. With `--queues 8` the programs
use another topic, which is created by a send before and has 8 queues, RocketMQ's default.

Kinds: `single` is one broker beside RocketMQ 4.9.7, `Sync` a group of three beside three of 5.5.0 with a controller,
`Raft` a group of three beside three of 4.9.7 with DLedger. Each row starts its system, the consumers and the producer
(rocketmq-example 4.7.0 with the client 4.9.7), and ends them. With `--other-work yes` a process that only computes runs
beside it. The columns:

    work %           what the other work used of one core
    sent, consumed   a second; consumed counts all consumer groups
    CPU us           of all brokers, for each message with all its deliveries: the mean of sent and consumed ones, as
                     consumers with a backlog consume more than is sent
    Java us          the same of the Java producer and consumers
    limit/s          what would be consumed if the brokers took no CPU time: the CPU time that the Java programs and the
                     brokers used or left idle, by the programs' time for a message. The last lines compare the larger
                     limit of both systems with RocketMQ's rate
    S2C ms           from store to consumer, average, as the consumers print it (whole milliseconds of one clock)
    p50, p99 ms      from send to handler, of a single message each 20 ms, measured with our client
    others %         what processes outside of this benchmark used of one core: the rows of two systems compare only
                     while these are close

It needs Java 17, Maven, root, the `ip` command, and for groups of three iptables.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

from rig import gantry, groups, java, loaded, partition, rocketmq
from rig.processes import NamespaceUnavailable, Started, busy_s, exit_on_sigterm, until, usage

KINDS = ("single", "Sync", "Raft")
CASES = ((16, 1024), (64, 128))
TOPICS = {1024: "BenchmarkTest", 8: "EndToEnd"}
"""By number of queues."""
_SENT = re.compile(r"Send TPS: (\d+).*?Send Failed: (\d+).*?Response Failed: (\d+)")
_CONSUMED = re.compile(r"TPS: (\d+) FAIL: (\d+) AVG\(B2C\) RT:\s*(\S+) AVG\(S2C\) RT:\s*(\S+) MAX")
WINDOW_S = 10
SETTLE_S = 5.0
"""Time of the consumers for the first pull of each queue, before the producer starts."""


@dataclass(frozen=True)
class System:
    """A running system. `prefix` as in Target; `pids` are its brokers'."""

    name: str
    namesrv: str
    prefix: list[str]
    pids: list[int]


@dataclass(frozen=True)
class Row:
    """One measured system."""

    kind: str
    system: str
    threads: int
    size: int
    groups: int
    queues: int
    other_work: bool
    work: float
    sent: float
    consumed: float
    cpu_us: float
    java_us: float
    limit: float
    s2c_ms: float
    p50_ms: float
    p99_ms: float
    rss_mib: float
    others: float
    failed: int

    def text(self) -> str:
        work = f"{self.work:.0f}" if self.other_work else "no"
        return (
            f"{self.kind:<8}{self.system:<18}{self.threads:>4}{self.size:>6}{self.groups:>4}"
            f"{self.queues:>7}{work:>7}{self.sent:>9.0f}{self.consumed:>10.0f}"
            f"{self.cpu_us:>8.1f}{self.java_us:>9.1f}{self.limit:>9.0f}"
            f"{self.s2c_ms:>9.2f}{self.p50_ms:>8.2f}{self.p99_ms:>9.2f}"
            f"{self.rss_mib:>9.0f}{self.others:>9.0f}{self.failed:>7}"
        )


HEADER = (
    f"{'kind':<8}{'system':<18}{'thr':>4}{'B':>6}{'grp':>4}{'queues':>7}{'work %':>7}{'sent/s':>9}{'cons./s':>10}"
    f"{'CPU us':>8}{'Java us':>9}{'limit/s':>9}{'S2C ms':>9}{'p50 ms':>8}{'p99 ms':>9}"
    f"{'RSS MiB':>9}{'others %':>9}{'failed':>7}"
)


@contextlib.contextmanager
def ours(kind: str, folder: Path) -> Iterator[System]:
    if kind == "single":
        with gantry.single(folder) as target:
            yield System("Gantry", target.namesrv, [], target.broker_pids)
        return
    with loaded.group(loaded.Kind(kind, groups.MEMBERS), folder) as cluster:
        pids = [member["pid"] for member in cluster.members() or []]
        yield System("Gantry", ";".join(cluster.status()["nameServers"]), [], pids)


@contextlib.contextmanager
def theirs(kind: str, folder: Path) -> Iterator[System]:
    """Raises JavaMissing or NamespaceUnavailable."""
    if kind == "single":
        with rocketmq.rocketmq(folder) as target:
            yield System("RocketMQ 4.9.7", target.namesrv, target.prefix, target.broker_pids)
        return
    with groups.apache(groups.ControllerGroup if kind == "Sync" else groups.DLedgerGroup, folder) as group:
        yield System(group.name, group.namesrv, group.prefix, group.pids())


SYSTEMS: dict[str, Callable[[str, Path], contextlib.AbstractContextManager[System]]] = {
    "gantry": ours,
    "rocketmq": theirs,
}


def _java(system: System, folder: Path, topic: str, main: str, *words: str) -> list[str]:
    flags = [f"-Duser.home={folder}", f"-Drocketmq.client.logRoot={folder}"]
    command = java.command(
        "bench47", f"org.apache.rocketmq.example.benchmark.{main}", "-t", topic, "-n", system.namesrv, *words,
        heap="512m", flags=flags,
    )  # fmt: skip
    return [*system.prefix, *command]


def _windows(pattern: re.Pattern[str], process: Started) -> list[tuple[str, ...]]:
    return pattern.findall(process.log.read_text(errors="replace"))


def measure(
    kind: str, system: System, threads: int, size: int, count: int, queues: int, other_work: bool,
    options: argparse.Namespace, folder: Path,
) -> Row:  # fmt: skip
    topic = TOPICS[queues]
    with ExitStack() as stack:

        def start(words: list[str], name: str) -> Started:
            return stack.enter_context(Started(words, folder / f"{name}.log"))

        def ours(program: str, *words: str) -> list[str]:
            file = Path(__file__).with_name("rig") / program
            return [*system.prefix, sys.executable, str(file), "--namesrv", system.namesrv, *words]

        making = start(ours("load.py", "--topic", topic, "--senders", "1", "--seconds", "1", "--every", "1"), "topic")
        until("the topic", lambda: '"sent"' in making.tail(), 60)
        consumers = [
            start(_java(system, folder, topic, "Consumer", "-g", f"bench_{n}", "-p", "false"), f"consumer-{n}")
            for n in range(count)
        ]
        until("the consumers", lambda: all("Started" in c.tail() for c in consumers), 60, consumers)
        time.sleep(SETTLE_S)
        busy_one = [start([sys.executable, "-c", "while True: pass"], "other-work")] if other_work else []
        producer = start(_java(system, folder, topic, "Producer", "-w", str(threads), "-s", str(size)), "producer")
        watched = [producer, *consumers]

        def consume() -> bool:
            return all(found and float(found[-1][0]) > 0 for found in (_windows(_CONSUMED, c) for c in consumers))

        until("messages at each consumer", consume, 120, watched)
        warmup_s, seconds = WINDOW_S * options.warmup, WINDOW_S * options.windows
        probe = start(ours("probe.py", "--warmup", str(warmup_s), "--seconds", str(seconds)), "probe")

        def printed() -> list[int]:
            return [len(_windows(_SENT, producer)), *(len(_windows(_CONSUMED, c)) for c in consumers)]

        def wait_for(what: str, since: list[int], number: int) -> None:
            until(
                what,
                lambda: all(now >= n + number for now, n in zip(printed(), since, strict=True)),
                60 + WINDOW_S * number,
                watched,
            )

        wait_for("the warm-up", printed(), options.warmup)
        first = printed()
        parties = [system.pids, [p.pid for p in watched], [p.pid for p in busy_one], [probe.pid]]
        begun, busy, cpu = time.monotonic(), busy_s(), [_cpu(pids) for pids in parties]
        wait_for("the windows", first, options.windows)
        passed, busy = time.monotonic() - begun, busy_s() - busy
        used, java_used, work, probing = [_cpu(pids) - before for pids, before in zip(parties, cpu, strict=True)]
        others = max(busy - used - java_used - work - probing, 0.0)
        room = (os.cpu_count() or 1) * passed - others - work - probing
        rss = sum(usage(pid).rss for pid in system.pids)
        sent, *consumed = [
            _windows(pattern, process)[at : at + options.windows]
            for pattern, process, at in zip([_SENT, *[_CONSUMED] * count], watched, first, strict=True)
        ]
        until("the probe", lambda: "messages" in probe.tail(), 60 + warmup_s + seconds)
        latency = json.loads(probe.tail().splitlines()[-1])
    sent_s = statistics.mean(float(w[0]) for w in sent)
    consumed_s = sum(statistics.mean(float(w[0]) for w in rows) for rows in consumed)
    messages = (sent_s + consumed_s / count) / 2 * passed
    return Row(
        kind, system.name, threads, size, count, queues, other_work, 100 * work / passed, sent_s, consumed_s,
        1e6 * used / messages, 1e6 * java_used / messages, count * messages / passed * room / java_used,
        statistics.mean(float(w[3]) for rows in consumed for w in rows),
        latency.get("p50_ms", float("nan")), latency.get("p99_ms", float("nan")),
        rss / 2**20, 100 * others / passed,
        max(int(w[1]) + int(w[2]) for w in sent),
    )  # fmt: skip


def _cpu(pids: list[int]) -> float:
    """CPU seconds of processes that still run."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += usage(pid).cpu_s
    return total


def _medians(rows: list[Row]) -> list[float]:
    names = ("consumed", "cpu_us", "s2c_ms", "rss_mib")
    return [statistics.median(getattr(row, name) for row in rows) for name in names]


def ratios(rows: list[Row]) -> list[str]:
    """Compares the medians of each case."""
    cases: dict[tuple[object, ...], tuple[list[Row], list[Row]]] = {}
    for row in rows:
        pair = cases.setdefault((row.kind, row.threads, row.size, row.groups, row.queues, row.other_work), ([], []))
        pair[row.system != "Gantry"].append(row)
    shown = []
    for (kind, threads, size, count, queues, other_work), (mine, other) in cases.items():
        if mine and other:
            limit = max(row.limit for row in mine + other)
            pairs = zip([limit, *_medians(mine)], [_medians(other)[0], *_medians(other)], strict=True)
            limit, consumed, cpu, s2c, rss = (x / y if y else float("nan") for x, y in pairs)
            work = ", other work" if other_work else ""
            shown.append(
                f"{kind}, {threads} threads, {size} B, {count} consumer groups, {queues} queues{work}: "
                f"{consumed:.2f} times consumed (limit {limit:.2f}), "
                f"{cpu:.2f} of the CPU a message, {s2c:.3f} of S2C, {rss:.3f} of the memory"
            )
    return shown


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=KINDS, action="append", help="may be repeated (default: single)")
    parser.add_argument("--threads", type=int, action="append", help="senders; may be repeated (default: 16, 64)")
    parser.add_argument("--size", type=int, action="append", help="bytes of a body; may be repeated")
    parser.add_argument("--groups", type=int, action="append", help="consumer groups; may be repeated (default: 1, 3)")
    parser.add_argument(
        "--queues",
        type=int,
        choices=list(TOPICS),
        action="append",
        help="of the topic; may be repeated (default: 1024)",
    )
    parser.add_argument("--other-work", choices=["no", "yes", "both"], default="both")
    parser.add_argument("--only", choices=list(SYSTEMS), help="leave the other one out")
    parser.add_argument("--warmup", type=int, default=3, help=f"windows of {WINDOW_S} s that do not count (default 3)")
    parser.add_argument("--windows", type=int, default=2, help=f"windows of {WINDOW_S} s that count (default 2)")
    parser.add_argument("--rounds", type=int, default=1, help="turns of each system and case (default 1)")
    parser.add_argument("--dir", type=Path, help="where the stores go (default: the system's temporary folder)")
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text")
    options = parser.parse_args()
    exit_on_sigterm()
    cases = list(CASES)
    if options.threads or options.size:
        cases = list(product(options.threads or (16, 64), options.size or (128, 1024)))
    work = {"no": [False], "yes": [True], "both": [False, True]}[options.other_work]
    systems = [options.only] if options.only else list(SYSTEMS)
    kinds = options.kind or ["single"]
    try:
        if "rocketmq" in systems:
            partition.require_tools(["ip"] if kinds == ["single"] else [*partition.TOOLS])
        java.build()
    except (java.JavaMissing, NamespaceUnavailable) as e:
        print(f"nothing was started: {e}", file=sys.stderr)
        return 2
    rows: list[Row] = []
    begun = [f"{load:.1f}" for load in os.getloadavg()]
    if options.output == "text":
        print(HEADER, flush=True)
    for _ in range(options.rounds):
        for kind, (threads, size), count, queues, busy in product(
            kinds, cases, options.groups or [1, 3], options.queues or [1024], work
        ):
            for name in systems:
                with (
                    tempfile.TemporaryDirectory(prefix="end-to-end-", dir=options.dir) as folder,
                    SYSTEMS[name](kind, Path(folder) / "system") as system,
                ):
                    rows.append(measure(kind, system, threads, size, count, queues, busy, options, Path(folder)))
                if options.output == "text":
                    print(rows[-1].text(), flush=True)
    load = f"load average before: {', '.join(begun)}; after: {', '.join(f'{x:.1f}' for x in os.getloadavg())}"
    if options.output == "json":
        print(json.dumps({"rows": [asdict(row) for row in rows], "load": load}, indent=1))
    else:
        print("\n".join([*ratios(rows), load]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
