"""Runs the benchmarks one after the other; each prints what it measured and how. `make bench`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ("footprint.py", "throughput.py", "batches.py", "end_to_end.py", "failover.py", "replication.py")


def main() -> int:
    failed = []
    for name in BENCHMARKS:
        print(f"\n== benchmarks/{name}", flush=True)
        if subprocess.run([sys.executable, f"benchmarks/{name}"], cwd=ROOT, check=False).returncode != 0:
            failed.append(name)
    if failed:
        print(f"\nfailed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
