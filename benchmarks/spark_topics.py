"""Measures Spark reading topics: Gantry by pull and by its log, Kafka by Spark's own connector, and Parquet.

For each body size it makes messages once, writes the same ones to a broker of Gantry, to one of Kafka and to Parquet,
and then reads all of them in turn, in one session with one core. Printed are medians after a warm-up. `rows/s/core`
divides by the CPU time of Spark's own processes (JVM and Python workers), `server` is the CPU time of the broker.
Kafka and the connector come from Maven Central, once. Each step has a limit, after which the program ends.

    python benchmarks/spark_topics.py
    python benchmarks/spark_topics.py --rows 1000000 --bodies 1024 --turns 5
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import faulthandler
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from gantry_broker.client import Admin
from gantry_spark.session import session
from rig.gantry import single
from rig.kafka import connector, kafka
from rig.processes import exit_on_sigterm, usage
from spark_scan import cpu

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STEP_S = 150.0
"""The limit of one step, in seconds."""
RUN_S = 1200.0
"""The limit of one body size."""
QUEUES = 4
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp")
"""What Kafka's connector gives (beside `timestampType`), and ours under the same names."""


@dataclass(frozen=True)
class Way:
    """One way to the messages, and the processes that serve it."""

    name: str
    frame: DataFrame
    servers: Sequence[int] = ()


@contextlib.contextmanager
def step(what: str) -> Iterator[None]:
    """Say what is done and how long it took. After `STEP_S` the program ends with the place where it stands."""
    print(f"   {what} ...", end="", flush=True)
    faulthandler.dump_traceback_later(STEP_S, exit=True)
    began = time.monotonic()
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
    print(f" {time.monotonic() - began:.1f} s", flush=True)


def read(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def measure(ways: Sequence[Way], servers: Sequence[int], rows: int, turns: int) -> None:
    """Read in turn, and print the medians. `servers`: all processes that are not Spark's."""
    taken: dict[str, list[tuple[float, float, float]]] = {way.name: [] for way in ways}
    for turn in range(turns + 1):
        for way in ways:
            with step(f"turn {turn}, {way.name}" + ("" if turn else " (to warm up)")):
                before, served = cpu() - used(servers), used(way.servers)
                began = time.perf_counter()
                read(way.frame)
                wall = time.perf_counter() - began
                found = wall, cpu() - used(servers) - before, used(way.servers) - served
            if turn:
                taken[way.name].append(found)
    print(
        f"{'way':28s} {'seconds':>8s} {'rows/s':>12s} {'Spark CPU s':>12s} {'rows/s/core':>12s} {'server CPU s':>13s}"
    )
    for way in ways:
        wall, spark, server = (median(column) for column in zip(*taken[way.name], strict=True))
        print(f"{way.name:28s} {wall:8.2f} {rows / wall:12,.0f} {spark:12.2f} {rows / spark:12,.0f} {server:13.2f}")


def used(pids: Sequence[int]) -> float:
    return sum(usage(pid).cpu_s for pid in pids)


def compare(spark: SparkSession, work: Path, body: int, rows: int, turns: int) -> None:
    print(f"-- {rows:,} messages with bodies of {body} B in {QUEUES} queues, one core", flush=True)
    with contextlib.ExitStack() as stack:
        with step("starting Gantry"):
            # One broker holds all, whatever the disk's fill level is.
            gantry = stack.enter_context(single(work / "gantry", {"diskMaxUsedSpaceRatio": 95}))
            asyncio.run(_create(gantry.namesrv))
        with step("starting Kafka"):
            address, process = stack.enter_context(kafka(work / "kafka"))
        source = str(work / "messages")
        with step("making the messages"):
            value = f"CAST(substring(repeat(sha2(CAST(id AS STRING), 512), {body // 128 + 1}), 1, {body}) AS BINARY)"
            made = spark.range(0, rows, 1, QUEUES).selectExpr("CONCAT('k', id % 10000) AS key", f"{value} AS value")
            made.write.mode("overwrite").parquet(source)
        messages = spark.read.parquet(source)
        ours, theirs = {"nameServers": gantry.namesrv}, {"kafka.bootstrap.servers": address}
        with step("writing to Gantry"):
            messages.write.format("rocketmq").mode("append").options(**ours).save("T")
        with step("writing to Kafka"):
            messages.write.format("kafka").options(**theirs).option("topic", "T").save()
        load = {"columns": ",".join(COLUMNS), "minPartitions": str(QUEUES), **ours}
        topics = {
            way: spark.read.format("rocketmq").options(**load).option("via", via).load("T").select(*COLUMNS)
            for way, via in (("Gantry by pull", "pull"), ("Gantry by its log", "log"))
        }
        topics["Kafka by Spark's connector"] = (
            spark.read.format("kafka").options(**theirs).option("subscribe", "T").load().select(*COLUMNS)
        )
        with step("writing Parquet"):
            topics["Gantry by pull"].write.mode("overwrite").parquet(str(work / "parquet"))
        topics["Parquet"] = spark.read.parquet(str(work / "parquet"))
        for name, frame in topics.items():
            with step(f"counting the rows of {name}"):
                count = frame.count()
            if count != rows:
                raise SystemExit(f"{name} has {count} rows, not {rows}")
        own = [gantry.namesrv_pid, *gantry.broker_pids]
        servers = {"Gantry": own, "Kafka": [process.pid]}
        ways = [Way(name, frame, servers.get(name.split()[0], ())) for name, frame in topics.items()]
        measure(ways, [*own, process.pid], rows, turns)


async def _create(servers: str) -> None:
    async with Admin(servers) as admin:
        await admin.create_topic("T", queues=QUEUES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=300_000, help="messages of each size (300000)")
    parser.add_argument("--bodies", default="200,1024", help="body sizes in bytes (200,1024)")
    parser.add_argument("--turns", type=int, default=3, help="measured reads of each way, after one (3)")
    args = parser.parse_args()
    exit_on_sigterm()
    bodies = [int(body) for body in args.bodies.split(",")]
    if len(bodies) > 1:  # A JVM for each: none is warm, or has connections to a former broker.
        for body in bodies:
            words = ["--rows", str(args.rows), "--turns", str(args.turns), "--bodies", str(body)]
            done = subprocess.run([sys.executable, __file__, *words], timeout=RUN_S, check=False)
            if done.returncode:
                raise SystemExit(done.returncode)
        return
    with tempfile.TemporaryDirectory(prefix="gantry-bench-") as folder:
        with step("fetching Spark's connector for Kafka"):
            jars = ",".join(map(str, connector()))
        with step("starting Spark"):
            spark = session("benchmark", "local[1]", {"spark.local.dir": folder, "spark.jars": jars})
        try:
            compare(spark, Path(folder) / "work", bodies[0], args.rows, args.turns)
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
