"""What replication costs the senders, and how fast a slave catches up.

    python benchmarks/replication.py                         # both parts, about six minutes
    python benchmarks/replication.py --only throughput --members 2 --members 3 --rounds 3
    python benchmarks/replication.py --only catch-up --mib 1024 -o json

Throughput: a group of N members under `gantry up`, one process of our client with `--senders` sends that wait at the
same time, 1 KiB bodies. Kinds of groups take turns; the ratio to Async is that to the group of as many members in the
same round, so both share the machine with as many processes and with whatever else it does (the median of the rounds).
CPU time is that of one message, in microseconds: of the master, of the other members together, and of the client;
"by CPU" is Async's sum over this one's, the ratio on a machine on which nothing but CPU time is short.

Catch-up: a slave of two stands still until it lacks `--mib`, with senders at full speed and once more without any. What
senders lose is against the seconds after it has caught up, in which it follows as slaves do. Other programs on the
machine are in that, too; the master's CPU time for a message, meanwhile and afterwards, knows little of them. With
`--apart` the master has a core of its own and nothing else is short: what is sent was encoded before, and the slave has
what the client leaves of the other core (nice 19). Senders lose then what the master spends on the slave, and not what
the slave itself takes from senders that share its machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rig.gantry import Cluster
from rig.processes import Started, until, usage

EVERY_S = 1
WHOLE_S = 60.0
AROUND_S = 15
"""Seconds after a catch-up with which it is compared."""
TOPIC = "Replication"
"""Of eight queues, as every topic that is made by a first send; RocketMQ's BenchmarkTest has 1,024."""
_OTHERS = set(range(1, os.cpu_count() or 1)) or {0}
FILL_BYTES = 4_000
"""Bodies that only make the log long; larger ones would be compressed."""


@dataclass(frozen=True)
class Kind:
    """One kind of group."""

    name: str
    members: int

    @property
    def spec(self) -> dict[str, Any]:
        if self.name == "Raft":
            return {"mode": "Raft"}
        return {"replication": self.name, "minInSyncReplicas": min(2, self.members) if self.name == "Sync" else 1}


def manifest(kind: Kind, folder: Path) -> Path:
    """JSON is YAML."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "cluster.yaml"
    groups = [{"name": "a", "members": kind.members}]
    spec = {"nameServers": {"replicas": 1}, "brokerGroups": groups, **kind.spec}
    names = {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerCluster", "metadata": {"name": "bench"}}
    file.write_text(json.dumps({**names, "spec": spec}))
    return file


def whole(cluster: Cluster, count: int) -> bool:
    """Everybody is in sync under one master."""
    members = cluster.members() or []
    masters = [m for m in members if m["role"] == "Master"]
    return len(members) == count and len(masters) == 1 and len(masters[0]["in_sync"]) == count


@contextlib.contextmanager
def group(kind: Kind, folder: Path) -> Iterator[Cluster]:
    with Cluster(folder / "cluster", manifest(kind, folder)) as cluster:
        until("a whole group", lambda: whole(cluster, kind.members), WHOLE_S)
        yield cluster


class Load:
    """One process of our client that sends without pause; use it as a context manager."""

    def __init__(
        self, cluster: Cluster, folder: Path, senders: int, size: int, seconds: int, bare: str | None = None
    ) -> None:
        self.log = folder / f"load-{time.monotonic_ns()}.log"
        servers = ";".join(cluster.status()["nameServers"])
        self._words = [
            sys.executable, str(Path(__file__).with_name("rig") / "load.py"), "--namesrv", servers, "--senders",
            str(senders), "--size", str(size), "--seconds", str(seconds), "--every", str(EVERY_S), "--topic", TOPIC,
            *(["--bare", bare] if bare else []),
        ]  # fmt: skip

    def __enter__(self) -> Load:
        self._process = Started(self._words, self.log)
        self._process.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.__exit__(None, None, None)

    def lines(self) -> list[dict[str, Any]]:
        """What was sent so far, a line each second."""
        return [json.loads(line) for line in self.log.read_text(errors="replace").splitlines() if line.startswith("{")]

    def wait_for(self, count: int) -> None:
        until(f"{count} lines of the senders", lambda: len(self.lines()) >= count, count * EVERY_S + 60)

    def rates(self, first: int, last: int) -> list[float]:
        """SEND_OK a second in each second from one line to another."""
        lines = self.lines()
        pairs = zip(lines[first:last], lines[first + 1 : last + 1], strict=True)
        return [(b["sent"] - a["sent"]) / (b["seconds"] - a["seconds"]) for a, b in pairs]

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def sent(self) -> int:
        return int(self.lines()[-1]["sent"])

    @property
    def failed(self) -> int:
        return int(self.lines()[-1]["failed"])


@dataclass
class Turn:
    """What one group did while it counted. CPU time in microseconds a message."""

    per_second: float
    master_us: float
    slaves_us: float
    client_us: float
    failed: int

    @property
    def cpu_us(self) -> float:
        return self.master_us + self.slaves_us + self.client_us


def throughput(kinds: list[Kind], options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Each kind of group `--rounds` times, one after the other."""
    found: dict[Kind, list[Turn]] = {kind: [] for kind in kinds}
    for number in range(options.rounds):
        for kind in kinds:
            place = folder / f"{kind.name}-{kind.members}-{number}"
            load = f"load {os.getloadavg()[0]:.1f}"
            print(f"round {number + 1}: {kind.name}, {kind.members} members, {load}", file=sys.stderr, flush=True)
            found[kind].append(_turn(kind, options, place))
            print(f"  {found[kind][-1]}", file=sys.stderr, flush=True)
    return [_row(kind, turns, found.get(Kind("Async", kind.members), [])) for kind, turns in found.items()]


def _turn(kind: Kind, options: argparse.Namespace, place: Path) -> Turn:
    total = options.warmup + options.seconds
    with group(kind, place) as cluster, Load(cluster, place, options.senders, 1024, total + 1) as load:
        members = cluster.members() or []
        load.wait_for(options.warmup + 1)
        sent, used = load.sent, _cpu_s(members, load)
        load.wait_for(total)
        sent, used = load.sent - sent, [b - a for a, b in zip(used, _cpu_s(members, load), strict=True)]
        load.wait_for(total + 1)
        rate = statistics.mean(load.rates(options.warmup, total))
        return Turn(round(rate), *(round(1e6 * cpu_s / sent, 1) for cpu_s in used), load.failed)


def _cpu_s(members: list[dict[str, Any]], load: Load) -> list[float]:
    """Of the master, of the others, of the client."""
    of = [usage(m["pid"]).cpu_s for m in sorted(members, key=lambda m: str(m["role"]) != "Master")]
    return [of[0], sum(of[1:]), usage(load.pid).cpu_s]


def _row(kind: Kind, turns: list[Turn], base: list[Turn]) -> dict[str, Any]:
    costs = [statistics.median(turn.cpu_us for turn in some) for some in (base, turns) if some]
    ratios = [turn.per_second / other.per_second for turn, other in zip(turns, base, strict=True)] if base else []
    middle = {
        name: round(statistics.median(getattr(turn, name) for turn in turns), 1)
        for name in ("master_us", "slaves_us", "client_us")
    }
    return {
        "kind": kind.name, "members": kind.members,
        "per_second": round(statistics.median(turn.per_second for turn in turns)), **middle,
        "rounds": [turn.per_second for turn in turns], "failed": sum(turn.failed for turn in turns),
        "of_async": round(statistics.median(ratios), 2) if ratios else None,
        "by_cpu": round(costs[0] / costs[1], 2) if base else None,
    }  # fmt: skip


def catch_up(options: argparse.Namespace, folder: Path, *, senders: int) -> dict[str, Any]:
    """One slave that stood still goes on. `senders`: 0: nobody sends meanwhile."""
    kind = Kind("Async", 2)
    with group(kind, folder) as cluster:
        members = cluster.members() or []
        slave = next(m for m in members if m["role"] == "Slave")
        os.kill(slave["pid"], signal.SIGSTOP)
        try:
            _fill(cluster, folder, slave["end"] + (options.mib << 20))
            if senders == 0:
                return _go_on(cluster, slave, None)
            bare = _own_core(cluster) if options.apart else None
            if bare:
                _last(slave["pid"])
            with Load(cluster, folder, senders, 1024, 600, bare) as load:
                if bare:
                    _pin(load.pid, _OTHERS)
                load.wait_for(4)
                return _go_on(cluster, slave, load)
        finally:
            os.kill(slave["pid"], signal.SIGCONT)


def _own_core(cluster: Cluster) -> str:
    """The master's address, once it has the first core for itself."""
    master = next(m for m in cluster.answering() if m["role"] == "Master")
    for pid in cluster.processes().values():
        _pin(pid, {0} if pid == master["pid"] else _OTHERS)
    ports: dict[str, int] = json.loads((cluster.folder / "ports.json").read_text())
    return f"127.0.0.1:{ports[master['name']]}"


def _last(pid: int) -> None:
    """A process that gets what others leave."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, int(thread.name), 19)


def _pin(pid: int, cores: set[int]) -> None:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), cores)


def _fill(cluster: Cluster, folder: Path, end: int) -> None:
    with Load(cluster, folder, 64, FILL_BYTES, 600):
        until("the log is long", lambda: _end(cluster, "Master") >= end, 300)


def _end(cluster: Cluster, role: str) -> int:
    """Of the log of whoever has that role. A busy broker may need more than one question."""
    found: list[int] = []

    def told() -> bool:
        found.extend(int(m["end"]) for m in cluster.answering() if m["role"] == role)
        return bool(found)

    until(f"the {role} answers", told, WHOLE_S)
    return found[0]


def _go_on(cluster: Cluster, slave: dict[str, Any], load: Load | None) -> dict[str, Any]:
    lacked = _end(cluster, "Master") - slave["end"]
    first = 0 if load is None else len(load.lines())
    master = next(m["pid"] for m in cluster.answering() if m["role"] == "Master")
    os.kill(slave["pid"], signal.SIGCONT)
    began, since = time.monotonic(), usage(master).cpu_s
    sent = 0 if load is None else load.sent
    until("the slave is in sync again", lambda: whole(cluster, 2), 500)
    took, spent = time.monotonic() - began, usage(master).cpu_s - since
    copied = _end(cluster, "Slave") - slave["end"]
    row = {"lacked_mib": lacked >> 20, "seconds": round(took, 1), "mib_per_second": round((copied >> 20) / took, 1)}
    if load is not None:
        sent = load.sent - sent
        last = len(load.lines())
        load.wait_for(last + 2)
        sent_after, spent_after = _spent(load, master, AROUND_S)
        during = load.rates(first, last - 1) or load.rates(first - 1, last)
        calm, busy = statistics.mean(load.rates(last + 1, last + AROUND_S)), statistics.mean(during)
        row |= {
            "sent_per_second": round(calm),
            "meanwhile": round(busy),
            "lost_per_cent": round(100 * (1 - busy / calm), 1),
            "master_us": round(1e6 * spent_after / sent_after, 1),
            "master_us_meanwhile": round(1e6 * spent / sent, 1),
        }
    return row


def _spent(load: Load, pid: int, seconds: int) -> tuple[int, float]:
    """What was sent in that time, and the CPU time that the process took."""
    sent, used = load.sent, usage(pid).cpu_s
    load.wait_for(len(load.lines()) + seconds)
    return load.sent - sent, usage(pid).cpu_s - used


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["throughput", "catch-up"], help="this part alone")
    parser.add_argument("--members", type=int, action="append", help="sizes of groups (default: 1 to 5)")
    parser.add_argument("--rounds", type=int, default=1, help="turns of each kind of group (default 1)")
    parser.add_argument("--warmup", type=int, default=4, help="seconds that do not count (default 4)")
    parser.add_argument("--seconds", type=int, default=10, help="seconds that count (default 10)")
    parser.add_argument("--senders", type=int, default=64, help="sends that wait at the same time (default 64)")
    parser.add_argument("--mib", type=int, default=1024, help="what the slave lacks (default 1024)")
    parser.add_argument("--while-sending", action="store_true", help="no catch-up without senders")
    parser.add_argument("--apart", action="store_true", help="the master has a core of its own, senders cost nothing")
    parser.add_argument("--dir", type=Path, help="where the stores go (default: the system's temporary folder)")
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # The clusters go with the run.
    answer: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="replication-", dir=options.dir) as name:
        folder = Path(name)
        if options.only != "catch-up":
            sizes = options.members or [1, 2, 3, 4, 5]
            kinds = [Kind(k, n) for n in sizes for k in ("Async", "Sync", "Raft") if k != "Raft" or n >= 3]
            answer["throughput"] = throughput(kinds, options, folder)
        if options.only != "throughput":
            loads = (options.senders,) if options.while_sending else (0, options.senders)
            answer["catch_up"] = [catch_up(options, folder / f"catch-up-{n}", senders=n) for n in loads]
    print(json.dumps(answer, indent=2) if options.output == "json" else _text(answer))
    return 0


def _text(answer: dict[str, Any]) -> str:
    lines = []
    if "throughput" in answer:
        lines.append(
            f"{'members':>7}  {'group':<6}{'SEND_OK/s':>10}{'of Async':>9}{'by CPU':>7}{'failed':>7}"
            f"{'master us':>11}{'slaves us':>10}{'client us':>10}   rounds"
        )
        for row in answer["throughput"]:
            ratio, by_cpu = ("" if row[k] is None else f"{row[k]:.2f}" for k in ("of_async", "by_cpu"))
            rounds = " ".join(map(str, row["rounds"]))
            lines.append(
                f"{row['members']:>7}  {row['kind']:<6}{row['per_second']:>10}{ratio:>9}{by_cpu:>7}{row['failed']:>7}"
                f"{row['master_us']:>11}{row['slaves_us']:>10}{row['client_us']:>10}   {rounds}"
            )
    for row in answer.get("catch_up", ()):
        text = (
            f"a slave lacked {row['lacked_mib']} MiB: in sync after {row['seconds']} s, {row['mib_per_second']} MiB/s"
        )
        if "sent_per_second" in row:
            text += f"; senders {row['meanwhile']}/s meanwhile, {row['sent_per_second']}/s afterwards"
            text += f" ({row['lost_per_cent']} % less); master's CPU time for a message"
            text += f" {row['master_us_meanwhile']} us meanwhile, {row['master_us']} us afterwards"
        lines.append(text)
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
