"""Measures the idle quickstart cluster: memory, CPU, and the time until it is ready.

    python benchmarks/footprint.py -o json

RSS counts shared pages once per process (as `ps` does), PSS divides them; CPU is per cent of one core.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rig.gantry import QUICKSTART, Cluster
from rig.processes import usage

GOALS = {"rss_mib": 350.0, "cpu_percent": 3.0, "ready_s": 5.0}


def _pss(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/{pid}/smaps_rollup has no Pss line")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20, help="how long the cluster idles (default 20)")
    parser.add_argument("--settle", type=float, default=3, help="seconds before that which do not count (default 3)")
    parser.add_argument("--manifest", type=Path, default=QUICKSTART, help="the cluster (default: the quickstart)")
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="footprint-") as folder:
        started = time.monotonic()
        with Cluster(Path(folder) / "cluster", options.manifest) as cluster:
            ready_s = time.monotonic() - started
            names = cluster.processes()
            time.sleep(options.settle)
            before = {name: usage(pid).cpu_s for name, pid in names.items()}
            since = time.monotonic()
            time.sleep(options.seconds)
            after = {name: usage(pid) for name, pid in names.items()}
            length = time.monotonic() - since
            rows: list[dict[str, Any]] = [
                {
                    "process": name, "pid": pid, "rss_mib": round(after[name].rss / 2**20, 1),
                    "pss_mib": round(_pss(pid) / 2**20, 1),
                    "cpu_percent": round(100 * (after[name].cpu_s - before[name]) / length, 2),
                }
                for name, pid in names.items()
            ]  # fmt: skip
    answer: dict[str, Any] = {
        "ready_s": round(ready_s, 2), "rss_mib": round(sum(row["rss_mib"] for row in rows), 1),
        "pss_mib": round(sum(row["pss_mib"] for row in rows), 1),
        "cpu_percent": round(sum(row["cpu_percent"] for row in rows), 2), "idle_s": round(length, 1), "goals": GOALS,
        "processes": rows,
    }  # fmt: skip
    if options.output == "json":
        print(json.dumps(answer, indent=2))
    else:
        print(f"{'process':<14}{'RSS MiB':>9}{'PSS MiB':>9}{'CPU %':>8}")
        for row in [*rows, {"process": "all", **answer}, {"process": "goal", "pss_mib": "", **GOALS}]:
            print(f"{row['process']:<14}{row['rss_mib']:>9}{row['pss_mib']:>9}{row['cpu_percent']:>8}")
        print(f"ready after {answer['ready_s']} s (goal: {GOALS['ready_s']})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
