"""A driver of a table whose executors are processes of their own: Spark's `local-cluster`, as a program.

Each line of its input lets it run the table's job until nothing is left, and repeat it when Spark gives up, as the
operator repeats a run. It answers with a line.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CLUSTER = "local-cluster[2,1,1024]"
READY, DONE = "ready", "done"
MOST_REPEATED = 30
MOST_KILLED = 3
"""In one run: one that loses each executor before it has started does not end."""
KINDS = {"executor": "CoarseGrainedExecutorBackend", "worker": "-m gantry_spark.daemon"}
"""What is killed, by a part of its command line: a JVM with its workers, or a worker in Python."""


class Driver:
    """The running program."""

    def __init__(self, folder: Path, **spec: Any) -> None:
        """Start it. `spec`: fields of a TableSpec."""
        with (folder / "driver.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, json.dumps(spec), str(folder)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
            )  # fmt: skip
        self._wait(READY)

    def _wait(self, word: str) -> int:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(word):
                return int(line.split()[1])
        raise AssertionError(f"the driver ended: {self._process.wait()}")

    def run(self, chance: random.Random) -> tuple[dict[str, int], int]:
        """Let it run once, and kill executors and workers meanwhile. Returns how many of each, and the repetitions."""
        assert self._process.stdin is not None
        killed = dict.fromkeys(KINDS, 0)
        over = threading.Event()

        def kill() -> None:
            while sum(killed.values()) < MOST_KILLED and not over.wait(chance.uniform(0.1, 3.0)):
                kind = chance.choice(list(KINDS))
                found = [pid for pid, line in descendants(self._process.pid) if KINDS[kind] in line]
                if found:
                    try:
                        os.kill(chance.choice(found), signal.SIGKILL)
                    except ProcessLookupError:
                        continue
                    killed[kind] += 1

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            self._process.stdin.write("run\n")
            self._process.stdin.flush()
            return killed, self._wait(DONE)
        finally:
            over.set()
            killer.join()

    def close(self) -> None:
        """End the program with all that it has started."""
        mine = [pid for pid, _ in descendants(self._process.pid)]
        self._process.kill()
        self._process.wait()
        for pid in mine:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def descendants(root: int) -> Iterator[tuple[int, str]]:
    """Yield the processes below one, and their command lines."""
    parents: dict[int, int] = {}
    lines: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            lines[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (OSError, IndexError):
            continue
    mine = {root}
    while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= more
    for pid in sorted(mine - {root}):
        yield pid, lines[pid]


def main(spec: str, folder: str) -> None:
    """Answer lines of standard input."""
    import pyspark
    from gantry_spark.session import SHORT_RUN_OPTIONS, session
    from gantry_spark.tables.job import TableJob
    from gantry_spark.tables.spec import TableSpec

    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    options = f"{SHORT_RUN_OPTIONS} -XX:+UseSerialGC"
    spark = session(
        "executors", CLUSTER,
        {
            "spark.local.dir": folder, "spark.driver.extraJavaOptions": options, "spark.executor.memory": "600m",
            "spark.executor.extraJavaOptions": options, "spark.executorEnv.PYTHONPATH": os.pathsep.join(sys.path),
            "spark.task.maxFailures": "8", "spark.deploy.maxExecutorRetries": "-1",
        },
    )  # fmt: skip
    print(READY, 0, flush=True)
    for _ in sys.stdin:
        repeated = 0
        while True:
            try:
                if not TableJob(TableSpec(**json.loads(spec)), spark).run():
                    break
            except Exception as error:
                repeated += 1
                if repeated > MOST_REPEATED:
                    raise
                print(f"the run is repeated: {error}", file=sys.stderr, flush=True)
        print(DONE, repeated, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
