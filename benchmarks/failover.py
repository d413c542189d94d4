"""What a producer sees while its master is killed, frozen, or hands over; and whether any SEND_OK was a lie.

    python benchmarks/failover.py                    # 20 of each kind, with our client and with RocketMQ's
    python benchmarks/failover.py -n 50 --kind kill9 --client java49 -o json

Starts the cluster of examples/quickstart.yaml with `gantry up` in a folder of its own. One sender sends without pause,
in its client's default configuration. The gap is the longest time between two SEND_OK around the event: last success
before, first success after. Afterwards everything is read back from the master: `missing` counts SEND_OK messages that
are not there, `twice` those that are there more often than the client sent them.

    kill9      SIGKILL to the master's process
    sigstop    SIGSTOP to it: it is silent, its connections stay open
    handover   `gantry switchover GROUP`
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from rig import java
from rig.driver import Driver
from rig.gantry import QUICKSTART, Cluster
from rig.processes import until
from rig.target import Target
from rig.wire import read_topic

KINDS = ("kill9", "sigstop", "handover")
CLIENTS = ("gantry", "java49", "java55")
GOALS_S = {"kill9": 0.5, "sigstop": 3.0, "handover": 0.1}


@dataclass
class Sends:
    """What a sender reports, as it comes."""

    ok_ms: list[float] = field(default_factory=list)
    tries: dict[int, int] = field(default_factory=dict)
    acked: set[int] = field(default_factory=set)
    other: Counter[str] = field(default_factory=Counter)
    ended: bool = False

    def take(self, line: dict[str, Any]) -> None:
        if line["event"] == "ok":
            self.acked.add(line["n"])
            self.ok_ms.append(line["ms"])
        elif line["event"] in ("status", "failed"):
            self.other[line.get("status") or line["type"]] += 1
        if "tries" in line:
            self.tries[line["n"]] = line["tries"]


class Sender(Protocol):
    """A running producer."""

    sends: Sends

    def stop(self) -> None: ...


class _Reader(ABC):
    """Follows the JSON lines of a sender in a thread."""

    def __init__(self) -> None:
        self.sends = Sends()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @abstractmethod
    def _lines(self) -> Iterator[dict[str, Any]]:
        """What the sender says, until it ends."""

    def _run(self) -> None:
        try:
            for line in self._lines():
                self.sends.take(line)
        finally:
            self.sends.ended = True


class JavaSender(_Reader):
    """RocketMQ's own client in the driver program."""

    def __init__(self, namesrv: str, version: str, topic: str, run: str, folder: Path) -> None:
        super().__init__()
        target = Target("gantry", namesrv, "", "", "", [], 0, [], folder)
        self._driver = Driver(target, version, "JSON", folder / f"driver-{run}.log")
        self._running = self._driver.start("failover", topic=topic, run=run)
        self._thread.start()

    def _lines(self) -> Iterator[dict[str, Any]]:
        while (line := self._running.next(120)) is not None:
            yield line

    def stop(self) -> None:
        self._driver.start("stop")
        self._thread.join(60)
        self._driver.close()


class OwnSender(_Reader):
    """Our client in a process of its own."""

    def __init__(self, namesrv: str, topic: str, run: str, folder: Path) -> None:
        super().__init__()
        words = [
            sys.executable, str(Path(__file__).with_name("rig") / "load.py"), "--each", "--namesrv", namesrv,
            "--topic", topic, "--run", run, "--senders", "1",
        ]  # fmt: skip
        with (folder / f"load-{run}.log").open("wb") as err:
            self._popen = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, text=True, start_new_session=True
            )
        self._thread.start()

    def _lines(self) -> Iterator[dict[str, Any]]:
        assert self._popen.stdout is not None
        for text in self._popen.stdout:
            yield json.loads(text)

    def stop(self) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.close()
        self._thread.join(60)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(10)
        if self._popen.poll() is None:
            self._popen.kill()
            self._popen.wait()


def _whole(cluster: Cluster) -> dict[str, Any] | None:
    """The status when every member is in sync and one is master; None otherwise."""
    status = cluster.status()
    members = status.get("members", [])
    masters = [m for m in members if m["role"] == "Master"]
    whole = len(masters) == 1 and len(members) > 1 and all(m["inSync"] and m.get("pid") for m in members)
    return status if whole else None


def _event(cluster: Cluster, kind: str, master: dict[str, Any]) -> None:
    if kind == "kill9":
        os.kill(master["pid"], signal.SIGKILL)
    elif kind == "sigstop":
        os.kill(master["pid"], signal.SIGSTOP)
    else:
        cluster.gantry("switchover", master["group"])


def _gap_ms(ok_ms: list[float], since_ms: float) -> float | None:
    """The longest time between two successes that ends after since_ms; None: no success came after it."""
    start = next((i for i in range(len(ok_ms) - 1, -1, -1) if ok_ms[i] < since_ms), 0)
    around = ok_ms[start:]
    if len(around) < 2 or around[-1] <= since_ms:
        return None
    return max(b - a for a, b in pairwise(around))


def percentile(values: list[float], per_cent: float) -> float:
    """The smallest value that this share of the values is not above."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(per_cent / 100 * len(ordered)) - 1)]


@dataclass
class Outcome:
    """All events of one kind under one client."""

    gaps_ms: list[float]
    failed_sends: dict[str, int]
    acked: int
    missing: int
    twice: int
    resent: int

    def to_json(self, kind: str) -> dict[str, Any]:
        return {
            "events": len(self.gaps_ms),
            "gap_ms": {
                "p50": round(percentile(self.gaps_ms, 50), 1),
                "p99": round(percentile(self.gaps_ms, 99), 1),
                "max": round(max(self.gaps_ms), 1),
                "goal_p99": GOALS_S[kind] * 1000,
                "all": [round(gap, 1) for gap in self.gaps_ms],
            },
            "acknowledged": self.acked,
            "missing": self.missing,
            "twice": self.twice,
            "twice_because_sent_twice": self.resent,
            "other_answers": self.failed_sends,
        }


def measure(cluster: Cluster, kind: str, client: str, count: int, folder: Path) -> Outcome:
    """Raises TimeoutError when the cluster does not become whole again or the sender does not recover."""
    topic = f"failover-{kind}-{client}"
    namesrv = ";".join(cluster.status()["nameServers"])
    run = f"{kind}-{client}"
    sender: JavaSender | OwnSender
    if client == "gantry":
        sender = OwnSender(namesrv, topic, run, folder)
    else:
        sender = JavaSender(namesrv, client.removeprefix("java"), topic, run, folder)
    sends = sender.sends
    gaps: list[float] = []
    try:
        until("the first sends", lambda: len(sends.ok_ms) > 200, 60)
        for number in range(count):
            found: list[dict[str, Any]] = []
            until(
                "all members in sync",
                lambda into=found: bool(into or [into.append(s) for s in [_whole(cluster)] if s]),  # type: ignore[misc]
                60,
            )
            calm = len(sends.ok_ms)
            until("steady sends", lambda calm=calm: len(sends.ok_ms) > calm + 100, 30)  # type: ignore[misc]
            master = next(m for m in found[0]["members"] if m["role"] == "Master")
            since = time.time() * 1000
            _event(cluster, kind, master)
            over = time.time() * 1000
            # Success again, and a second more: a second interruption belongs to the same event.
            until("a send after the event", lambda t=over: bool(sends.ok_ms) and sends.ok_ms[-1] > t + 1000, 60)  # type: ignore[misc]
            gap = _gap_ms(list(sends.ok_ms), since)
            assert gap is not None
            gaps.append(gap)
            print(f"{client} {kind} {number + 1}/{count}: {gap:.0f} ms", file=sys.stderr)
        until("all members in sync", lambda: _whole(cluster) is not None, 60)
    finally:
        sender.stop()
    stored: Counter[int] = Counter()
    for record in read_topic(namesrv.split(";")[0], topic):
        name, number_text, _ = record.body.split(b"#", 2)
        if name.decode() == run:
            stored[int(number_text)] += 1
    repeated = {n: times for n, times in stored.items() if times > 1}
    resent = sum(1 for n, times in repeated.items() if times <= sends.tries.get(n, 1))
    return Outcome(
        gaps, dict(sends.other), len(sends.acked), len(sends.acked - stored.keys()), len(repeated) - resent, resent
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--count", type=int, default=20, help="events of each kind (default 20)")
    parser.add_argument("--kind", choices=KINDS, action="append", help="only this kind; may be repeated")
    parser.add_argument("--client", choices=CLIENTS, action="append", help="only this client; may be repeated")
    parser.add_argument("--manifest", type=Path, default=QUICKSTART, help="the cluster (default: the quickstart)")
    parser.add_argument("--dir", type=Path, help="where the cluster lives (default: the system's temporary folder)")
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text")
    options = parser.parse_args()
    kinds, clients = options.kind or list(KINDS), options.client or ["gantry", "java49"]
    notes: list[str] = []
    if any(name.startswith("java") for name in clients):
        try:
            java.build()
        except java.JavaMissing as e:
            notes.append(f"without RocketMQ's client: {e}")
            clients = [name for name in clients if not name.startswith("java")]
    rows: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory(prefix="failover-", dir=options.dir) as folder,
        Cluster(Path(folder) / "cluster", options.manifest) as cluster,
    ):
        for client in clients:
            for kind in kinds:
                outcome = measure(cluster, kind, client, options.count, Path(folder))
                rows.append({"client": client, "kind": kind, **outcome.to_json(kind)})
    if options.output == "json":
        print(json.dumps({"events": rows, "notes": notes}, indent=2))
    else:
        for note in notes:
            print(note)
        print(f"{'client':<8}{'event':<10}{'n':>4}{'p50 ms':>9}{'p99 ms':>9}{'max ms':>9}{'goal':>7}"
              f"{'SEND_OK':>10}{'missing':>9}{'twice':>7}   other answers")  # fmt: skip
        for row in rows:
            gap = row["gap_ms"]
            others = ", ".join(f"{name} {times}" for name, times in row["other_answers"].items()) or "none"
            print(f"{row['client']:<8}{row['kind']:<10}{row['events']:>4}{gap['p50']:>9.0f}{gap['p99']:>9.0f}"
                  f"{gap['max']:>9.0f}{gap['goal_p99']:>7.0f}{row['acknowledged']:>10}{row['missing']:>9}"
                  f"{row['twice']:>7}   {others}")  # fmt: skip
    return 1 if any(row["missing"] or row["twice"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
