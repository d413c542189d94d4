"""Measures the gap that a producer sees when its group's leader is killed, frozen, isolated or hands over.

It also checks that no acknowledged message is lost.

    python benchmarks/failover.py                    # 20 of each kind, with our client and with RocketMQ's
    python benchmarks/failover.py -n 50 --kind kill9 --client java49 -o json
    python benchmarks/failover.py -n 10 --results figures.json       # add to the table of earlier runs
    python benchmarks/failover.py --system raft --system dledger --kind kill9 --kind partition --client java49

One sender sends without pause, in its client's default configuration. The gap is the longest time between two SEND_OK
around the event: last success before, first success after. Afterwards the benchmark reads everything back from the
master: `missing` counts SEND_OK messages that are absent, `twice` those that are stored more often than they were sent.

    kill9      SIGKILL to the leader's process
    sigstop    SIGSTOP to it: it does not answer, and its connections stay open
    handover   `gantry switchover GROUP`
    partition  iptables drops all packets of the leader in a network namespace (root, iptables)

Systems: `gantry` is the manifest's cluster (default: the quickstart) through `gantry up`, `raft` the same with
examples/raft.yaml, `dledger` three brokers of Apache RocketMQ 4.9.7 and `controller` three of 5.5.0 with a controller,
with the same client program (they need Java, root and iptables).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
import tempfile
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

from rig import groups, java, partition
from rig.gantry import QUICKSTART, ROOT
from rig.groups import Group
from rig.processes import NamespaceUnavailable, exit_on_sigterm, until
from rig.senders import CLIENTS, start_sender
from rig.wire import read_topic

KINDS = ("kill9", "sigstop", "handover", "partition")
APACHE = {"dledger": groups.DLedgerGroup, "controller": groups.ControllerGroup}
SYSTEMS = ("gantry", "raft", *APACHE)
GOALS_MS = {"kill9": 500, "sigstop": 3000, "handover": 100, "partition": 3000}
RECOVERY_S = 90.0


def percentile(values: list[float], per_cent: float) -> float:
    """Returns the smallest value that is not below this share of the values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(per_cent / 100 * len(ordered)) - 1)]


@dataclass
class Row:
    """All events of one kind for one client of one system."""

    system: str
    client: str
    kind: str
    gaps_ms: list[float] = field(default_factory=list)
    acknowledged: int = 0
    missing: int = 0
    twice: int = 0
    twice_because_sent_twice: int = 0
    other_answers: dict[str, int] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.system, self.client, self.kind)

    def add(self, other: Row) -> None:
        """Adds the events of another run."""
        self.gaps_ms += other.gaps_ms
        self.acknowledged += other.acknowledged
        self.missing += other.missing
        self.twice += other.twice
        self.twice_because_sent_twice += other.twice_because_sent_twice
        self.other_answers = dict(Counter(self.other_answers) + Counter(other.other_answers))

    def text(self) -> str:
        gaps = [percentile(self.gaps_ms, 50), percentile(self.gaps_ms, 99), max(self.gaps_ms)]
        others = ", ".join(f"{name} {times}" for name, times in sorted(self.other_answers.items())) or "none"
        return (
            f"{self.system:<20}{self.client:<8}{self.kind:<10}{len(self.gaps_ms):>4}"
            + "".join(f"{gap:>9.0f}" for gap in gaps)
            + f"{GOALS_MS[self.kind]:>7}{self.acknowledged:>10}{self.missing:>9}{self.twice:>7}   {others}"
        )


HEADER = (
    f"{'system':<20}{'client':<8}{'event':<10}{'n':>4}{'p50 ms':>9}{'p99 ms':>9}{'max ms':>9}{'goal':>7}"
    f"{'SEND_OK':>10}{'missing':>9}{'twice':>7}   other answers"
)


class Results:
    """Rows of all runs in one file; without a file those of this run."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.rows: dict[tuple[str, str, str], Row] = {}
        if path is not None and path.exists():
            for found in json.loads(path.read_text()):
                row = Row(**found)
                self.rows[row.key] = row

    def add(self, row: Row) -> None:
        if row.key in self.rows:
            self.rows[row.key].add(row)
        else:
            self.rows[row.key] = row
        if self._path is not None:
            fresh = self._path.with_suffix(".new")
            fresh.write_text(self.to_json())
            fresh.replace(self._path)

    def to_json(self) -> str:
        return json.dumps([asdict(row) for row in self.rows.values()], indent=1)

    def text(self) -> str:
        return "\n".join([HEADER, *(row.text() for _, row in sorted(self.rows.items()))])


def gap_ms(ok_ms: list[float], since_ms: float) -> float | None:
    """Returns the longest time between two successes that ends after since_ms; None: there is no later success."""
    start = next((i for i in range(len(ok_ms) - 1, -1, -1) if ok_ms[i] < since_ms), 0)
    around = ok_ms[start:]
    if len(around) < 2 or around[-1] <= since_ms:
        return None
    return max(b - a for a, b in pairwise(around))


def measure(group: Group, kind: str, client: str, count: int, folder: Path, run: str, seconds: float) -> Row:
    """Measures up to `count` events of one kind, and starts none after `seconds`.

    Raises TimeoutError when the group or the sender does not recover.
    """
    topic = f"failover-{kind}-{client}"
    row = Row(group.name, client, kind)
    sender = start_sender(client, group.namesrv, group.prefix, topic, run, folder)
    ok_ms = sender.sends.ok_ms
    end = time.monotonic() + seconds

    def sent_since(number: int) -> bool:
        return len(ok_ms) > number

    def recovered(since: float) -> bool:
        # A second of success: a second interruption belongs to the same event. An isolated leader may have acknowledged
        # one more message, which its kernel delivers when the connection ends.
        first = bisect_right(ok_ms, since)
        return first < len(ok_ms) and ok_ms[-1] > ok_ms[first] + 1000

    try:
        try:
            until("the first sends", lambda: sent_since(200), 60)
        except TimeoutError as late:
            log = sender.sends
            raise TimeoutError(f"{late}{len(log.acked)} were sent, other answers: {log.errors}") from None
        for number in range(count):
            if time.monotonic() > end and row.gaps_ms:
                break
            until("a healthy group", group.is_healthy, RECOVERY_S)
            calm = len(ok_ms) + 100
            until("steady sends", lambda calm=calm: sent_since(calm), 30)  # type: ignore[misc]
            since = time.time() * 1000
            group.inject(kind)
            over = time.time() * 1000
            until("a send after the event", lambda over=over: recovered(over), 90)  # type: ignore[misc]
            group.restore()
            gap = gap_ms(list(ok_ms), since)
            assert gap is not None
            row.gaps_ms.append(round(gap, 1))
            print(f"{group.name} {client} {kind} {number + 1}/{count}: {gap:.0f} ms", file=sys.stderr, flush=True)
        until("a healthy group", group.is_healthy, RECOVERY_S)
    finally:
        sender.stop()
    _account(row, group, topic, run, sender.sends.acked, sender.sends.attempts)
    row.other_answers = dict(sender.sends.other)
    for name, text in sender.sends.errors.items():
        print(f"{client} {kind}: first {name}: {text[:300]}", file=sys.stderr)
    return row


def _account(row: Row, group: Group, topic: str, run: str, acked: set[int], attempts: dict[int, int]) -> None:
    """Reads everything back, and counts this run's missing and repeated messages."""
    stored: Counter[int] = Counter()
    for record in read_topic(group.namesrv.split(";")[0], topic, group.prefix):
        name, number_text, _ = record.body.split(b"#", 2)
        if name.decode() == run:
            stored[int(number_text)] += 1
    repeated = {n: times for n, times in stored.items() if times > 1}
    row.acknowledged = len(acked)
    row.missing = len(acked - stored.keys())
    row.twice_because_sent_twice = sum(1 for n, times in repeated.items() if times <= attempts.get(n, 1))
    row.twice = len(repeated) - row.twice_because_sent_twice


@contextlib.contextmanager
def started(system: str, manifest: Path, kinds: list[str], folder: Path) -> Iterator[Group]:
    """Starts a system. Raises JavaMissing or NamespaceUnavailable when this machine cannot run it."""
    if system in APACHE:
        with groups.apache(APACHE[system], folder) as theirs:
            yield theirs
        return
    file = ROOT / "examples" / "raft.yaml" if system == "raft" else manifest
    with groups.gantry(folder, file, isolated="partition" in kinds) as ours:
        yield ours


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--count", type=int, default=20, help="events of each kind (default 20)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no event of a kind after this time")
    parser.add_argument("--kind", choices=KINDS, action="append", help="only this kind; may be repeated")
    parser.add_argument("--client", choices=CLIENTS, action="append", help="only this client; may be repeated")
    parser.add_argument("--system", choices=SYSTEMS, action="append", help="may be repeated (default: gantry)")
    parser.add_argument("--manifest", type=Path, default=QUICKSTART, help="the cluster (default: the quickstart)")
    parser.add_argument("--dir", type=Path, help="where the clusters live (default: the system's temporary folder)")
    parser.add_argument("--results", type=Path, help="add to this JSON file, and print its whole table")
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text")
    options = parser.parse_args()
    kinds, clients = options.kind or list(KINDS[:3]), options.client or list(CLIENTS)
    notes: list[str] = []
    if any(name.startswith("java") for name in clients):
        try:
            java.build()
        except java.JavaMissing as e:
            notes.append(f"without RocketMQ's client: {e}")
            clients = [name for name in clients if not name.startswith("java")]
    if "partition" in kinds or APACHE.keys() & set(options.system or ()):
        try:
            partition.require_tools()
        except NamespaceUnavailable as e:
            print(f"nothing was started: {e}", file=sys.stderr)
            return 2
    exit_on_sigterm()
    results = Results(options.results)
    for system in options.system or ["gantry"]:
        with tempfile.TemporaryDirectory(prefix="failover-", dir=options.dir) as folder:
            try:
                with started(system, options.manifest, kinds, Path(folder) / "group") as group:
                    for client in clients:
                        for kind in (k for k in kinds if k in group.kinds):
                            # Several runs share a file, and each has its own message numbers.
                            run = f"{kind}-{client}-{time.time_ns() // 1_000_000}"
                            results.add(measure(group, kind, client, options.count, Path(folder), run, options.seconds))
            except (java.JavaMissing, NamespaceUnavailable) as e:
                notes.append(f"without {system}: {e}")
    if options.output == "json":
        print(json.dumps({"events": json.loads(results.to_json()), "notes": notes}, indent=1))
    else:
        print("\n".join([*notes, results.text()]))
    ours = [row for row in results.rows.values() if row.system.startswith("gantry")]
    return 1 if any(row.missing or row.twice for row in ours) else 0


if __name__ == "__main__":
    sys.exit(main())
