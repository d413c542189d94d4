"""Measures the cost of replication for senders.

    python benchmarks/replication.py                         # about five minutes
    python benchmarks/replication.py --members 2 --members 3 --rounds 3

A group of N members under `gantry up`, one process of our client with `--senders` concurrent sends, 1 KiB bodies. Kinds
of groups alternate. The ratio to Async compares with the group of as many members in the same round, because both share
the machine with the same number of processes and the same other load (the median of the rounds). CPU time is that of
one message, in microseconds: of the master, of the other members together, and of the client; "by CPU" is Async's sum
over this one's: the ratio on a machine that is short of CPU time only.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rig.loaded import Kind, Load, group
from rig.processes import usage


@dataclass
class Measurement:
    """The measurements of one group. CPU time in microseconds a message."""

    per_second: float
    master_us: float
    slaves_us: float
    client_us: float
    failed: int

    @property
    def cpu_us(self) -> float:
        return self.master_us + self.slaves_us + self.client_us


def throughput(kinds: list[Kind], options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Measures each kind of group `--rounds` times, one after the other."""
    found: dict[Kind, list[Measurement]] = {kind: [] for kind in kinds}
    for number in range(options.rounds):
        for kind in kinds:
            place = folder / f"{kind.name}-{kind.members}-{number}"
            load = f"load {os.getloadavg()[0]:.1f}"
            print(f"round {number + 1}: {kind.name}, {kind.members} members, {load}", file=sys.stderr, flush=True)
            found[kind].append(_measure(kind, options, place))
            print(f"  {found[kind][-1]}", file=sys.stderr, flush=True)
    return [
        _row(kind, measurements, found.get(Kind("Async", kind.members), [])) for kind, measurements in found.items()
    ]


def _measure(kind: Kind, options: argparse.Namespace, place: Path) -> Measurement:
    total = options.warmup + options.seconds
    with group(kind, place) as cluster, Load(cluster, place, options.senders, 1024, total + 1) as load:
        members = cluster.members() or []
        load.wait_for(options.warmup + 1)
        sent, used = load.sent, _cpu_s(members, load)
        load.wait_for(total)
        sent, used = load.sent - sent, [b - a for a, b in zip(used, _cpu_s(members, load), strict=True)]
        load.wait_for(total + 1)
        rate = statistics.mean(load.rates(options.warmup, total))
        return Measurement(round(rate), *(round(1e6 * cpu_s / sent, 1) for cpu_s in used), load.failed)


def _cpu_s(members: list[dict[str, Any]], load: Load) -> list[float]:
    """Returns the CPU time of the master, of the others, of the client."""
    of = [usage(m["pid"]).cpu_s for m in sorted(members, key=lambda m: str(m["role"]) != "Master")]
    return [of[0], sum(of[1:]), usage(load.pid).cpu_s]


def _row(kind: Kind, measurements: list[Measurement], base: list[Measurement]) -> dict[str, Any]:
    costs = [statistics.median(one.cpu_us for one in some) for some in (base, measurements) if some]
    ratios = [one.per_second / other.per_second for one, other in zip(measurements, base, strict=True)] if base else []
    middle = {
        name: round(statistics.median(getattr(one, name) for one in measurements), 1)
        for name in ("master_us", "slaves_us", "client_us")
    }
    return {
        "kind": kind.name, "members": kind.members,
        "per_second": round(statistics.median(one.per_second for one in measurements)), **middle,
        "rounds": [one.per_second for one in measurements], "failed": sum(one.failed for one in measurements),
        "of_async": round(statistics.median(ratios), 2) if ratios else None,
        "by_cpu": round(costs[0] / costs[1], 2) if base else None,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, action="append", help="sizes of groups (default: 1 to 5)")
    parser.add_argument("--rounds", type=int, default=1, help="turns of each kind of group (default 1)")
    parser.add_argument("--warmup", type=int, default=4, help="seconds that do not count (default 4)")
    parser.add_argument("--seconds", type=int, default=10, help="seconds that count (default 10)")
    parser.add_argument("--senders", type=int, default=64, help="sends that wait at the same time (default 64)")
    parser.add_argument("--dir", type=Path, help="where the stores go (default: the system's temporary folder)")
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # The run ends with its clusters.
    with tempfile.TemporaryDirectory(prefix="replication-", dir=options.dir) as name:
        sizes = options.members or [1, 2, 3, 4, 5]
        kinds = [Kind(k, n) for n in sizes for k in ("Async", "Sync", "Raft") if k != "Raft" or n >= 3]
        rows = throughput(kinds, options, Path(name))
    print(json.dumps({"throughput": rows}, indent=2) if options.output == "json" else _text(rows))
    return 0


def _text(rows: list[dict[str, Any]]) -> str:
    lines = [
        f"{'members':>7}  {'group':<6}{'SEND_OK/s':>10}{'of Async':>9}{'by CPU':>7}{'failed':>7}"
        f"{'master us':>11}{'slaves us':>10}{'client us':>10}   rounds"
    ]
    for row in rows:
        ratio, by_cpu = ("" if row[k] is None else f"{row[k]:.2f}" for k in ("of_async", "by_cpu"))
        rounds = " ".join(map(str, row["rounds"]))
        lines.append(
            f"{row['members']:>7}  {row['kind']:<6}{row['per_second']:>10}{ratio:>9}{by_cpu:>7}{row['failed']:>7}"
            f"{row['master_us']:>11}{row['slaves_us']:>10}{row['client_us']:>10}   {rounds}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
