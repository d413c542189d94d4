"""Measures the commit-log source and the report side by side with their limits and alternatives in one run.

For each body size this writes a log and reads it: the bytes alone (the limit), with the source's decoder, with a plain
Python loop, with Spark through the source, and with Spark from Parquet with the same columns. The Spark reads take
turns in one session: the median of five after five warm-up reads, and of three after two for all columns and the body.
The report comes last. MB are 10^6 bytes of log, also for Parquet. `MB/s/core` divides by the CPU time of all processes
(this one, the JVM, Spark's Python workers), so that it is comparable on a busy machine. `MB/s` divides by the
wall-clock time.

    python benchmarks/spark_scan.py --gib 2 --bodies 200,1024
    python benchmarks/spark_scan.py --scaling 0.5,1,2,4       # cost and memory by log size
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from gantry_broker.protocol.message import decode_record
from gantry_spark.decode import RecordFilter, batch_of, property_names
from gantry_spark.directory import DirectoryLog, find
from gantry_spark.partitioning import plan_ranges
from gantry_spark.report import Job, run
from gantry_spark.scan import Records, scan
from gantry_spark.schema import DEFAULT_COLUMNS, arrow_schema, spark_schema
from gantry_spark.session import session
from spark_loggen import write_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EIGHT_COLUMNS = ("topic", "queue_id", "queue_offset", "physical_offset", "size", "store_time", "keys", "body_size")
START_MS = 1_700_000_000_000
WARM_UP = 5
MEASURED = 5
PLAIN_BYTES = 64 * 1024 * 1024
_TICK = os.sysconf("SC_CLK_TCK")


def family() -> dict[int, tuple[str, float, int]]:
    """Return name, CPU seconds (with ended children) and resident bytes of this process and its descendants."""
    parents: dict[int, int] = {}
    found: dict[int, tuple[str, float, int]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            stat = Path(f"/proc/{entry}/stat").read_text()
        except OSError:
            continue
        name = stat[stat.index("(") + 1 : stat.rindex(")")]
        fields = stat[stat.rindex(")") + 2 :].split()
        parents[int(entry)] = int(fields[1])
        found[int(entry)] = (name, sum(map(int, fields[11:15])) / _TICK, int(fields[21]) * os.sysconf("SC_PAGESIZE"))
    mine = {os.getpid()}
    while True:
        more = {pid for pid, parent in parents.items() if parent in mine} - mine
        if not more:
            return {pid: found[pid] for pid in mine if pid in found}
        mine |= more


_spent: dict[int, float] = {}


def cpu() -> float:
    """Return the CPU seconds of this process and its descendants.

    This includes ended processes without a waiting parent: Spark's Python workers end after a minute without work.
    """
    for pid, (_, seconds, _) in family().items():
        _spent[pid] = max(seconds, _spent.get(pid, 0.0))
    return sum(_spent.values())


def show(what: str, wall: float, used: float, size: int, records: int) -> None:
    rates = f"{size / wall / 1e6:8.0f} {size / used / 1e6:10.0f} {records / used:15,.0f}"
    print(f"{what:50s} {wall:8.1f} {used:8.1f} {rates}", flush=True)


class Table:
    """Prints the lines of a table as they come."""

    def __init__(self) -> None:
        print(f"{'what':50s} {'seconds':>8s} {'CPU s':>8s} {'MB/s':>8s} {'MB/s/core':>10s} {'records/s/core':>15s}")

    @contextmanager
    def line(self, what: str, size: int, records: int) -> Iterator[None]:
        began, spent = time.perf_counter(), cpu()
        yield
        wall, used = time.perf_counter() - began, max(cpu() - spent, 0.01)
        show(what, wall, used, size, records)


def read_bytes(root: Path) -> None:
    buffer = memoryview(bytearray(8 * 1024 * 1024))
    for path in sorted((root / "commitlog").iterdir()):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def decode(root: Path, columns: tuple[str, ...], verify: bool) -> int:
    """Read a log as a task of the source does, without Spark, and return the number of records."""
    log = DirectoryLog(find(str(root)))
    schema = arrow_schema(spark_schema(columns))
    count = 0
    for part in plan_ranges(log, 256 * 1024 * 1024, RecordFilter()):
        with log.open(part.segment) as source:
            for found in scan(source, part.range, verify, names=property_names(columns)):
                if isinstance(found, Records):
                    count += batch_of(log.name, 0, found, columns, schema, RecordFilter()).num_rows
    return count


def plain_python(root: Path) -> tuple[int, int]:
    """Return the records and bytes that a loop over `decode_record` reads from the first 64 MiB."""
    data = sorted((root / "commitlog").iterdir())[0].open("rb").read(PLAIN_BYTES)
    at = count = 0
    while at + 4 <= len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        if at + size > len(data) or size == 0:
            break
        record = decode_record(data, at)
        assert record.props["KEYS"]
        at += size
        count += 1
    return count, at


def noop(frame: object) -> tuple[float, float]:
    """Read all of a DataFrame, and return wall-clock seconds and CPU seconds."""
    began, spent = time.perf_counter(), cpu()
    frame.write.format("noop").mode("overwrite").save()  # type: ignore[attr-defined]
    return time.perf_counter() - began, max(cpu() - spent, 0.01)


def side_by_side(
    frames: dict[str, object], size: int, records: int, warm_up: int = WARM_UP, measured: int = MEASURED
) -> None:
    """Read the DataFrames in turn, and print the medians after the warm-up."""
    taken: dict[str, list[tuple[float, float]]] = {what: [] for what in frames}
    for turn in range(warm_up + measured):
        for what, frame in frames.items():
            both = noop(frame)
            if turn >= warm_up:
                taken[what].append(both)
    wall = {what: median(clock for clock, _ in both) for what, both in taken.items()}
    used = {what: median(busy for _, busy in both) for what, both in taken.items()}
    for what in frames:
        show(what, wall[what], used[what], size, records)
    last = list(frames)[-1]
    for what in list(frames)[:-1]:
        print(
            f"   {what}: {wall[what] / wall[last]:.2f} times the time, {used[what] / used[last]:.2f} times the CPU time"
        )


def compare(spark: SparkSession, work: Path, gib: float, body: int, table: Table, report: bool) -> None:
    root = work / f"log-{body}"
    records = write_log(root, int(gib * 2**30), body, start_ms=START_MS, span_ms=48 * 3_600_000)
    size = sum(s.limit - s.start for s in find(str(root)).segments)
    print(f"-- {records:,} records with bodies of {body} B, {size / 2**30:.2f} GiB")
    read_bytes(root)
    with table.line("the bytes alone", size, records):
        read_bytes(root)
    for what, columns in (("8 columns", EIGHT_COLUMNS), (f"all {len(DEFAULT_COLUMNS)} columns", DEFAULT_COLUMNS)):
        with table.line(f"source alone, {what}", size, records):
            assert decode(root, columns, True) == records
    with table.line("source alone, 8 columns, CRC not checked", size, records):
        decode(root, EIGHT_COLUMNS, False)
    began, spent = time.perf_counter(), cpu()
    count, read = plain_python(root)
    wall, used = time.perf_counter() - began, cpu() - spent
    show("plain Python loop (first 64 MiB)", wall, used, read, count)
    frame = spark.read.format("commitlog").option("columns", ",".join(EIGHT_COLUMNS)).load(str(root))
    parquet = str(work / f"parquet-{body}")
    frame.write.mode("overwrite").parquet(parquet)
    unchecked = spark.read.format("commitlog").option("columns", ",".join(EIGHT_COLUMNS)).option("verify", "false")
    frames = {
        "Spark from the log, 8 columns": frame,
        "the same, CRC not checked": unchecked.load(str(root)),
        "Spark from Parquet, 8 columns": spark.read.parquet(parquet),
    }
    side_by_side(frames, size, records)
    shutil.rmtree(parquet)
    whole = spark.read.format("commitlog").option("body", "true").load(str(root))
    whole.write.mode("overwrite").parquet(parquet)
    with_body = f"all {len(whole.columns)} columns with the body"
    frames = {f"Spark from the log, {with_body}": whole, "Spark from Parquet, the same": spark.read.parquet(parquet)}
    side_by_side(frames, size, records, 2, 3)
    if report:
        with table.line("the report", size, records):
            made = run(spark, Job(paths=(str(root),), now_ms=START_MS + 50 * 3_600_000)).report
        assert made["totals"]["records"] == records
    shutil.rmtree(root)
    shutil.rmtree(parquet)


def live_heap(spark: SparkSession) -> int:
    """Return the bytes of the JVM's heap in use after a full collection."""
    runtime = spark._jvm.java.lang.Runtime.getRuntime()  # type: ignore[union-attr]
    runtime.gc()
    return int(runtime.totalMemory() - runtime.freeMemory())


def scaling(spark: SparkSession, work: Path, sizes: list[float], table: Table) -> None:
    """Make reports of growing logs with the same topics, keys and hours, and print cost and the driver's memory."""
    for gib in sizes:
        root = work / f"scale-{gib}"
        records = write_log(root, int(gib * 2**30), 1024, start_ms=START_MS, span_ms=48 * 3_600_000)
        size = sum(s.limit - s.start for s in find(str(root)).segments)
        with table.line(f"the report, {gib:g} GiB", size, records):
            run(spark, Job(paths=(str(root),), now_ms=START_MS + 50 * 3_600_000))
        with table.line(f"source alone, 8 columns, {gib:g} GiB", size, records):
            decode(root, EIGHT_COLUMNS, True)
        resident = family()
        own = resident[os.getpid()][2]
        jvm = sum(rss for name, _, rss in resident.values() if name == "java")
        live = live_heap(spark)
        print(
            f"   driver: Python {own / 2**20:.0f} MiB, JVM {jvm / 2**20:.0f} MiB resident, "
            f"{live / 2**20:.0f} MiB of it live heap",
            flush=True,
        )
        shutil.rmtree(root)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=2.0, help="size of each log in GiB (2)")
    parser.add_argument("--bodies", default="200,1024", help="body sizes in bytes (200,1024)")
    parser.add_argument("--no-report", dest="report", action="store_false", help="skip the report")
    parser.add_argument("--scaling", help="sizes in GiB; measure the report's cost and memory by size instead")
    parser.add_argument("--cores", type=int, default=1, help="cores that Spark uses (1)")
    parser.add_argument("--dir", help="directory for the logs (default: a temporary one)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gantry-bench-", dir=args.dir) as folder:
        spark = session("benchmark", f"local[{args.cores}]", {"spark.local.dir": folder})
        table = Table()
        try:
            if args.scaling:
                scaling(spark, Path(folder), [float(s) for s in args.scaling.split(",")], table)
            else:
                for body in args.bodies.split(","):
                    compare(spark, Path(folder), args.gib, int(body), table, args.report)
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
