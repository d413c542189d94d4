"""What `.ci/run` has no time for, one after the other. `make nightly`; names of steps as arguments: only these.

NIGHT_HOURS (default 8) is the time of the faults on real processes; the simulation runs beside them, at the lowest
priority. Each step writes to build/nightly/STEP.log; the exit code is 0 when all that ran is right.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from checks import REAL_PROCESSES

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "build" / "nightly"
HOURS = float(os.environ.get("NIGHT_HOURS", "8"))
PYTEST = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--timeout", "36000"]
SIMULATION = ["nice", "-n", "19", sys.executable, "-m", "tests.simulation.run", "--forever", "--jobs", "1"]

STEPS: dict[str, tuple[list[str], dict[str, str]]] = {
    "chaos": (
        [sys.executable, "-m", "tests.chaos.run", "--minutes", str(HOURS * 60), "--fresh", "--keep", str(LOGS)],
        {},
    ),
    "histories": (
        [*PYTEST, "-n", "2", "--dist", "load", *(f"tests/store/test_{name}.py" for name in (
            "histories", "pair_histories", "power_loss", "failing_calls"))],
        {"STORE_HISTORIES": "2000"},
    ),
    "compaction": (
        [*PYTEST, "-n", "2", "tests/compaction", "tests/local/test_compaction.py"],
        {"COMPACTION_HISTORIES": "4000", "LOCAL": "full"},
    ),
    "POP histories": ([*PYTEST, "-n", "2", "tests/pop/test_histories.py"], {"POP_HISTORIES": "20000"}),
    "groups": (
        [*PYTEST, "tests/drain", "tests/local/test_rebalance.py"], {"DRAIN_HISTORIES": "20000", "LOCAL": "full"},
    ),
    "archive": (
        [*PYTEST, "tests/archive", "tests/local/test_two_sites.py", "tests/local/test_restore.py"],
        {"ARCHIVE_HISTORIES": "2000", "LOCAL": "full"},
    ),
    "properties": ([*PYTEST, "tests", "-m", "hypothesis"], {"HYPOTHESIS_PROFILE": "explore"}),
    "fuzz": ([*PYTEST, "tests/fuzz"], {"GANTRY_FUZZ_INPUTS": "200000"}),
    "core": ([sys.executable, "-m", "tests.core.twins", "--count", "1000000"], {}),
    "core mutants": ([sys.executable, "-m", "tests.core.mutants"], {}),
    "Python core": (
        [*PYTEST, "-n", "2", "tests", *(f"--ignore=tests/{name}" for name in REAL_PROCESSES)],
        {"GANTRY_CORE": "python"},
    ),
    "Python core chaos": (
        [sys.executable, "-m", "tests.chaos.run", "--minutes", "60", "--fresh", "--keep", str(LOGS)],
        {"GANTRY_CORE": "python"},
    ),
    "http2": ([*PYTEST, "tests/proxy/test_http2.py", "tests/proxy/test_hpack.py"], {"HTTP2_HISTORIES": "40000"}),
    "h2spec": ([sys.executable, "-m", "tests.proxy.h2spec"], {}),
    "interop": ([*PYTEST, "tests/interop"], {"INTEROP": "full"}),
    "migration": ([*PYTEST, "tests/migration"], {"INTEROP": "full"}),
    "interop5": ([*PYTEST, "tests/interop5"], {"INTEROP": "full"}),
    "Spark": ([*PYTEST, "tests/spark"], {"SPARK_TESTS": "full"}),
    "delivery": ([sys.executable, "-m", "tests.delivery.scenario", "--through", "both", "--patience", "7200"], {}),
    "packages": ([sys.executable, "-m", "tests.distributions.published"], {}),
    "OLM bundle": ([sys.executable, "-m", "tests.distributions.olm_validator"], {}),
    "supply chain": ([sys.executable, ".ci/supply_chain.py"], {}),
    "e2e rounds": (["e2e/run", "-k", "rounds"], {"E2E_ROUNDS": "12", "E2E_NODES": "3"}),
    "e2e migration": (["e2e/run", "-k", "t_migration"], {"E2E_MIGRATION": "full"}),
    "e2e operator": (["e2e/run", "-k", "e_operator"], {"E2E_OPERATOR_ROUNDS": "30"}),
}  # fmt: skip


@contextlib.contextmanager
def simulating(results: dict[str, str]) -> Iterator[None]:
    """Schedules of the replication core from a random seed on, until the step that runs meanwhile has ended."""
    with (LOGS / "simulation.log").open("wb") as log:
        process = subprocess.Popen(SIMULATION, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield
        finally:
            early = process.poll() is not None
            process.send_signal(signal.SIGINT)
            code = process.wait()
            results["simulation"] = "FAILED" if early or code != 0 else "ok"


def run(name: str) -> bool:
    command, variables = STEPS[name]
    log = LOGS / f"{name.replace(' ', '-')}.log"
    shown = [Path(word).name if word == sys.executable else word for word in command]
    print(f"$ {' '.join([*(f'{k}={v}' for k, v in variables.items()), *shown])} > {log.relative_to(ROOT)}", flush=True)
    with log.open("wb") as out:
        done = subprocess.run(
            command, cwd=ROOT, env=variables | os.environ, stdout=out, stderr=subprocess.STDOUT, check=False
        )
    return done.returncode == 0


def main() -> int:
    names = sys.argv[1:] or list(STEPS)
    unknown = [name for name in names if name not in STEPS]
    if unknown:
        sys.exit(f"error: {unknown[0]!r} is no step: choose from {', '.join(repr(name) for name in STEPS)}")
    LOGS.mkdir(parents=True, exist_ok=True)
    results: dict[str, str] = {}
    for name in names:
        began = time.monotonic()
        with simulating(results) if name == "chaos" else contextlib.nullcontext():
            results[name] = "ok" if run(name) else "FAILED"
        print(f"  {name}: {results[name]}, {(time.monotonic() - began) / 60:.0f} minutes", flush=True)
    print()
    for name, result in results.items():
        print(f"  {name:<12} {result}   {LOGS.relative_to(ROOT)}/{name.replace(' ', '-')}.log")
    return 1 if "FAILED" in results.values() else 0


if __name__ == "__main__":
    sys.exit(main())
