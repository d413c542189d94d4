"""Measures how long the commands take that only read, as a person waits for them.

    python benchmarks/commands.py
    python benchmarks/commands.py --rounds 3 --only status --only "table list"

A quickstart cluster runs, with a topic, a consumer group, dead letters and a table. Each command starts in turn,
`--rounds` times. The result is the median and the longest time from exec to its end, and its CPU time. One start of
each comes first and does not count: it writes the byte code.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rig.gantry import Cluster

GOAL_S = 0.5
COMMANDS = (
    "--version", "--help", "examples quickstart", "status", "topic list", "topic describe Orders", "group list",
    "group describe billing", "user list", "dlq list", "messages Orders", "volume list", "archive status",
    "table list", "table describe Orders", "self-test --cluster demo",
)  # fmt: skip
NEEDS_NO_CLUSTER = ("--version", "--help", "examples", "self-test")


def words_of(command: str, folder: Path) -> list[str]:
    words = command.split()
    return [*words, *(() if words[0] in NEEDS_NO_CLUSTER else ("--dir", str(folder)))]


def timed(words: list[str], environ: dict[str, str]) -> tuple[float, float, int]:
    """Returns wall seconds, CPU seconds and the exit code."""
    program = str(Path(sys.executable).with_name("gantry"))
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run([program, *words], env=environ, capture_output=True, check=False)
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.returncode


def measure(commands: list[str], rounds: int, work: Path) -> dict[str, dict[str, float]]:
    environ = {**os.environ, "NO_COLOR": "1", "XDG_STATE_HOME": str(work / "state")}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    found: dict[str, list[tuple[float, float, int]]] = {command: [] for command in commands}
    with Cluster(work / "cluster", environ=environ) as cluster:
        cluster.gantry("produce", "Orders", "--count", "100", "--size", "20", "--keys", "k{n}")
        cluster.gantry("consume", "Orders", "--group", "billing", "--count", "50", "--quiet")
        if any(command.startswith("table") for command in commands):
            cluster.gantry("table", "run", "Orders", timeout_s=120)
        for number in range(rounds + 1):
            for command, times in found.items():
                one = timed(words_of(command, cluster.folder), environ)
                if number:
                    times.append(one)
    return {
        command: {
            "median_s": round(statistics.median(t[0] for t in times), 3),
            "longest_s": round(max(t[0] for t in times), 3),
            "cpu_s": round(statistics.median(t[1] for t in times), 3),
            "exit": max(t[2] for t in times),
        }
        for command, times in found.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="starts of each command (default 5)")
    parser.add_argument("--only", action="append", help="a command; may be repeated")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="commands-") as name:
        found = measure(options.only or list(COMMANDS), options.rounds, Path(name))
    print(json.dumps(found, indent=1))
    print(f"{'command':<26}{'median s':>9}{'longest':>9}{'CPU s':>9}")
    for command, row in found.items():
        mark = "" if row["median_s"] < GOAL_S else "  over the goal"
        failed = f"  exit {row['exit']}" if row["exit"] else ""
        print(f"{command:<26}{row['median_s']:>9}{row['longest_s']:>9}{row['cpu_s']:>9}{mark}{failed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
