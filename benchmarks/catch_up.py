"""Measures how fast a slave of two catches up, and how much its master's senders lose.

    python benchmarks/catch_up.py                            # all three parts, about five minutes
    python benchmarks/catch_up.py --only senders --rounds 12
    python benchmarks/catch_up.py --only alone --mib 1024 -o json

`alone`: a slave is frozen until it lacks `--mib`, and catches up without any sender.

`together`: the same with `--senders` concurrent sends of 1 KiB. Slave and senders share the machine, so the loss of the
senders, compared with the seconds afterwards, is mostly the slave's own use of the cores. The master's CPU time per
message excludes that.

`senders`: the loss that the master's part of a catch-up causes. The master has a core of its own, the messages are
encoded in advance, and a reader that fetches and stores nothing replaces the slave (`rig/reader.py`). Three states
alternate for `--seconds` each, `--rounds` times: away, in sync, behind. The first second of each is ignored; the result
is the median of the others, so that other load affects all three alike. The loss is relative to a slave in sync.
(Without any slave a master may answer each message by itself, which costs more CPU time.)
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rig.gantry import Cluster
from rig.loaded import HEALTHY_S, Kind, Load, group, is_healthy
from rig.processes import Started, until, usage

AFTERWARDS_S = 15
"""Seconds after a catch-up that are compared with it."""
FILL_BYTES = 4_000
"""Size of bodies that only lengthen the log; larger ones would be compressed."""
SENDERS_MIB = 128
"""Least length of the log for a reader that is behind."""
STATES = ("away", "in sync", "behind")
_GROUP = Kind("Async", 2)
_OTHERS = set(range(1, os.cpu_count() or 1)) or {0}


def catch_up(options: argparse.Namespace, folder: Path, *, senders: int) -> dict[str, Any]:
    """Resumes a frozen slave and measures its catch-up; `senders` 0: without load."""
    with _frozen_slave(folder) as (cluster, slave):
        _fill(cluster, folder, slave["end"] + (options.mib << 20))
        if senders == 0:
            return _measure_catch_up(cluster, slave, None)
        with Load(cluster, folder, senders, 1024, 600) as load:
            load.wait_for(4)
            return _measure_catch_up(cluster, slave, load)


def measure_senders(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Returns SEND_OK a second, and the master's CPU time for each in microseconds, by state."""
    rates: dict[str, list[float]] = {state: [] for state in STATES}
    used: dict[str, list[float]] = {state: [] for state in STATES}
    with _frozen_slave(folder) as (cluster, slave):
        _fill(cluster, folder, slave["end"] + (SENDERS_MIB << 20))
        master = next(m for m in cluster.answering() if m["role"] == "Master")
        config = folder / "reader.json"
        config.write_text(json.dumps(_reader_config(cluster, master, slave)))
        whole_s = 10 + 2 * len(STATES) * options.rounds * (options.seconds + 1)
        reader = Started(
            [sys.executable, "-m", "rig.reader", str(config)],
            folder / "reader.log", {"PYTHONPATH": _python_path()}, stdin=subprocess.PIPE,
        )  # fmt: skip
        with reader, Load(cluster, folder, options.senders, 1024, whole_s, _own_core(cluster, master)) as load:
            for pid in (reader.pid, load.pid):
                _pin(pid, _OTHERS)
            load.wait_for(4)
            for _ in range(options.rounds):
                for state in STATES:
                    assert reader.popen.stdin is not None
                    reader.popen.stdin.write(f"{state}\n".encode())
                    reader.popen.stdin.flush()
                    load.wait_for(len(load.lines()) + 1)
                    first, sent, cpu_s = len(load.lines()), load.sent, usage(master["pid"]).cpu_s
                    load.wait_for(first + options.seconds)
                    used[state].append(1e6 * (usage(master["pid"]).cpu_s - cpu_s) / (load.sent - sent))
                    rates[state] += load.rates(first - 1, first + options.seconds - 1)
            if reader.popen.poll() is not None:
                raise RuntimeError(f"the reader has ended: {reader.tail()}")
    middle = {state: statistics.median(rates[state]) for state in STATES}
    return {
        state: {
            "per_second": round(middle[state]),
            "lost_per_cent": round(100 * (1 - middle[state] / middle["in sync"]), 1),
            "master_us": round(statistics.median(used[state]), 1),
            "each": [round(rate) for rate in rates[state]],
        }
        for state in STATES
    }


@contextmanager
def _frozen_slave(folder: Path) -> Iterator[tuple[Cluster, dict[str, Any]]]:
    """Yields a healthy group of two with a frozen slave, and that slave's status."""
    with group(_GROUP, folder) as cluster:
        slave = next(m for m in cluster.members() or [] if m["role"] == "Slave")
        os.kill(slave["pid"], signal.SIGSTOP)
        try:
            yield cluster, slave
        finally:
            with suppress(ProcessLookupError):
                os.kill(slave["pid"], signal.SIGCONT)


def _python_path() -> str:
    """Returns the module path of a child process: the benchmarks' own folder, then this process's path."""
    return os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))


def _reader_config(cluster: Cluster, master: dict[str, Any], slave: dict[str, Any]) -> dict[str, Any]:
    """Returns the configuration with which `rig/reader.py` replaces the slave."""
    epochs = next(cluster.folder.rglob("epochs.json"))
    return {
        "address": _address(cluster, f"{master['name']}/replication"), "epoch": master["epoch"],
        "cluster": master["cluster"], "group": master["group"],
        "token_file": str(cluster.folder / "token"),
        "leaderEpochs": json.loads(epochs.read_text())["epochs"],
        "member": list(slave["member"].values()), "leader": list(master["member"].values()),
    }  # fmt: skip


def _address(cluster: Cluster, use: str) -> str:
    ports: dict[str, int] = json.loads((cluster.folder / "ports.json").read_text())
    return f"127.0.0.1:{ports[use]}"


def _own_core(cluster: Cluster, master: dict[str, Any]) -> str:
    """Gives the first core to the master alone, and returns its address."""
    for pid in cluster.processes().values():
        _pin(pid, {0} if pid == master["pid"] else _OTHERS)
    return _address(cluster, master["name"])


def _pin(pid: int, cores: set[int]) -> None:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), cores)


def _fill(cluster: Cluster, folder: Path, end: int) -> None:
    with Load(cluster, folder, 64, FILL_BYTES, 600):
        until("the log is long", lambda: _end(cluster, "Master") >= end, 300)


def _end(cluster: Cluster, role: str) -> int:
    """Returns the log's end of the member with this role. A busy broker may need more than one request."""
    found: list[int] = []

    def answered() -> bool:
        found.extend(int(m["end"]) for m in cluster.answering() if m["role"] == role)
        return bool(found)

    until(f"the {role} answers", answered, HEALTHY_S)
    return found[0]


def _measure_catch_up(cluster: Cluster, slave: dict[str, Any], load: Load | None) -> dict[str, Any]:
    lacked = _end(cluster, "Master") - slave["end"]
    first = 0 if load is None else len(load.lines())
    master = next(m["pid"] for m in cluster.answering() if m["role"] == "Master")
    os.kill(slave["pid"], signal.SIGCONT)
    began, since = time.monotonic(), usage(master).cpu_s
    sent = 0 if load is None else load.sent
    until("the slave is in sync again", lambda: is_healthy(cluster, 2), 500)
    took, spent = time.monotonic() - began, usage(master).cpu_s - since
    copied = _end(cluster, "Slave") - slave["end"]
    row = {"lacked_mib": lacked >> 20, "seconds": round(took, 1), "mib_per_second": round((copied >> 20) / took, 1)}
    if load is not None:
        sent = load.sent - sent
        last = len(load.lines())
        load.wait_for(last + 2)
        sent_after, spent_after = _spent(load, master, AFTERWARDS_S)
        during = load.rates(first, last - 1) or load.rates(first - 1, last)
        calm, busy = statistics.mean(load.rates(last + 1, last + AFTERWARDS_S)), statistics.mean(during)
        row |= {
            "sent_per_second": round(calm),
            "meanwhile": round(busy),
            "lost_per_cent": round(100 * (1 - busy / calm), 1),
            "master_us": round(1e6 * spent_after / sent_after, 1),
            "master_us_meanwhile": round(1e6 * spent / sent, 1),
        }
    return row


def _spent(load: Load, pid: int, seconds: int) -> tuple[int, float]:
    """Returns the sent messages and the process's CPU time of a period."""
    sent, used = load.sent, usage(pid).cpu_s
    load.wait_for(len(load.lines()) + seconds)
    return load.sent - sent, usage(pid).cpu_s - used


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["alone", "together", "senders"], help="this part alone")
    parser.add_argument("--mib", type=int, default=1024, help="what the slave lacks (default 1024)")
    parser.add_argument("--senders", type=int, default=64, help="sends that wait at the same time (default 64)")
    parser.add_argument("--rounds", type=int, default=8, help="turns of each state (default 8)")
    parser.add_argument("--seconds", type=int, default=3, help="of a state that count (default 3)")
    parser.add_argument("--dir", type=Path, help="where the stores go (default: the system's temporary folder)")
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # The run ends with its clusters.
    answer: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="catch-up-", dir=options.dir) as name:
        for part in (options.only,) if options.only else ("alone", "together", "senders"):
            folder = Path(name) / part
            if part == "senders":
                answer[part] = measure_senders(options, folder)
            else:
                answer[part] = catch_up(options, folder, senders=options.senders if part == "together" else 0)
    print(json.dumps(answer, indent=2) if options.output == "json" else _text(answer))
    return 0


def _text(answer: dict[str, Any]) -> str:
    lines = []
    for part in ("alone", "together"):
        if part not in answer:
            continue
        row = answer[part]
        text = (
            f"a slave lacked {row['lacked_mib']} MiB: in sync after {row['seconds']} s, {row['mib_per_second']} MiB/s"
        )
        if "sent_per_second" in row:
            text += f"; senders {row['meanwhile']}/s meanwhile, {row['sent_per_second']}/s afterwards"
            text += f" ({row['lost_per_cent']} % less); master's CPU time for a message"
            text += f" {row['master_us_meanwhile']} us meanwhile, {row['master_us']} us afterwards"
        lines.append(text)
    for state, row in answer.get("senders", {}).items():
        text = f"the slave is {state}: {row['per_second']} sends/s, {row['master_us']} us of the master for each"
        lines.append(text + ("" if state == "in sync" else f", {row['lost_per_cent']} % less"))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
