"""The data source in Spark: columns, pruning, pushed filters, damage, streams, and errors."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from gantry_spark.daemon import disable_tcp_delays
from gantry_spark.decode import RecordFilter
from gantry_spark.errors import Expired, SourceError
from gantry_spark.partitioning import LogRange
from gantry_spark.pushdown import push
from gantry_spark.scan import scan
from gantry_spark.schema import COLUMNS, DAMAGE_COLUMNS, DEFAULT_COLUMNS, NULLABLE_COLUMNS, spark_schema
from gantry_spark.session import ARROW_OPTIONS
from gantry_spark.source import CommitLogReader, CommitLogSource, CommitLogStream, LogPartition, Options
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes
from pyspark.sql.types import StringType, StructField, StructType

from tests.spark.reference_log import LogWriter, Message, read_plain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(600)
START = 1_700_000_000_000


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "store"
    writer = LogWriter(path)
    for i in range(900):
        topic = "Orders" if i % 3 else "Prices"
        writer.append(Message(topic, i % 4, b"b" * (i % 200), f"k{i}", {"TAGS": "A"}, START + i * 60_000))
    return path


def when(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def test_a_read_gives_everything_but_the_body(spark: SparkSession, root: Path) -> None:
    frame = spark.read.format("commitlog").load(str(root))
    assert frame.columns == list(DEFAULT_COLUMNS)
    assert "body" not in frame.columns
    rows = frame.orderBy("physical_offset").collect()
    records, _ = read_plain(root)
    assert [(r.topic, r.queue_id, r.queue_offset, r["keys"], r.properties) for r in rows] == [
        (r.topic, r.queue_id, r.queue_offset, r.props["KEYS"], r.props) for r in records
    ]


def test_required_columns_are_not_null(spark: SparkSession, root: Path) -> None:
    read = spark.read.format("commitlog")
    assert {f.name for f in read.load(str(root)).schema if f.nullable} == NULLABLE_COLUMNS - {"damage"}
    with_damage = read.option("damaged", "rows").option("body", "true").load(str(root))
    assert {f.name for f in with_damage.schema if not f.nullable} == DAMAGE_COLUMNS - {"damage"}
    assert with_damage.where("body is null").count() == 0
    # Spark makes a schema from text nullable. A schema of types may claim more.
    with pytest.raises(SourceError, match="column keys may be null: leave out NOT NULL"):
        CommitLogReader(StructType([StructField("keys", StringType(), False)]), Options({"path": str(root)}))


def test_workers_are_forked_by_the_preloaded_daemon(spark: SparkSession) -> None:
    context = spark.sparkContext
    assert ARROW_OPTIONS in context.getConf().get("spark.driver.extraJavaOptions", "")
    (started,) = context.parallelize([0], 1).map(lambda _: sys.modules["__main__"].__spec__.name).collect()
    assert started == "gantry_spark.daemon"


def test_the_daemon_has_no_thread_that_a_fork_would_miss() -> None:
    code = (
        "import os; from gantry_spark.daemon import preload; preload(None); "
        "print(*(open(f'/proc/self/task/{t}/comm').read().strip() for t in os.listdir('/proc/self/task')))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True).stdout
    assert len([name for name in said.split() if name != "jemalloc_bg_thd"]) == 1, said


def test_no_task_waits_for_an_acknowledgement() -> None:
    seen: list[tuple[int, ...]] = []

    def run_task(sock: socket.socket, authenticated: bool) -> int:
        options = (socket.TCP_NODELAY, socket.TCP_QUICKACK) if sock.family == socket.AF_INET else ()
        seen.append((authenticated, *(sock.getsockopt(socket.IPPROTO_TCP, one) for one in options)))
        return 7

    daemon = ModuleType("daemon")
    daemon.worker = run_task  # type: ignore[attr-defined]
    disable_tcp_delays(daemon)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
        assert daemon.worker(client, True) == 7
    one, other = socket.socketpair()
    with one, other:
        assert daemon.worker(one, False) == 7
    assert seen == [(True, 1, 1), (False,)]


def test_columns_body_and_filters(spark: SparkSession, root: Path) -> None:
    frame = spark.read.format("commitlog").option("columns", "topic,store_time,body").load(str(root))
    wanted = frame.where(
        (frame.topic == "Orders") & (frame.store_time >= when(START + 300 * 60_000)) & (frame.body.isNotNull())
    )
    records = [r for r in read_plain(root)[0] if r.topic == "Orders" and r.store_ms >= START + 300 * 60_000]
    assert sorted(bytes(r.body) for r in wanted.collect()) == sorted(r.body for r in records)
    by_schema = spark.read.format("commitlog").schema("size int, topic string").load(str(root))
    assert by_schema.columns == ["size", "topic"]
    assert by_schema.groupBy().sum("size").collect()[0][0] == sum(r.size for r in read_plain(root)[0])


def reader(root: Path, **options: str) -> CommitLogReader:
    chosen = Options({"path": str(root), **options})
    return CommitLogReader(spark_schema(("topic", "size"), chosen.damage_rows), chosen)


def test_segments_expired_during_the_read_are_reported(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    writer.extend(Message(body=b"x" * 500, key=str(i)) for i in range(400))
    kept = [r.props["KEYS"] for r in read_plain(tmp_path)[0] if r.phys_offset >= writer.segment]
    columns, options = spark_schema(("keys", "damage"), True), Options({"path": str(tmp_path), "damaged": "rows"})
    once, stream = CommitLogReader(columns, options), CommitLogStream(columns, options)
    begin = stream.initialOffset()
    end = stream.latestOffset(begin, ReadAllAvailable())
    planned = [(once, once.partitions()), (stream, stream.partitions(begin, end))]
    writer.path(0).unlink()
    for read, parts in planned:
        rows = [row for part in parts for batch in read.read(part) for row in batch.to_pylist()]
        assert [r["keys"] for r in rows if r["damage"] is None] == kept
        (gone,) = (r["damage"] for r in rows if r["damage"] is not None)
        assert gone.startswith("expired during the read: ")
    # A stream that resumes there reads the rest.
    again = [row for p in stream.partitions(begin, end) for b in stream.read(p) for row in b.to_pylist()]
    assert [r["keys"] for r in again if r["damage"] is None] == kept
    assert [r["damage"] for r in again if r["damage"] is not None] == ["expired before the read"]


class ExpiresLater(Options):
    """Lists a log whose first segment disappears before it is opened."""

    def __init__(self, given: dict[str, str], gone: Path) -> None:
        super().__init__(given)
        self.gone = gone

    def logs(self) -> list[Any]:
        found = super().logs()
        self.gone.unlink(missing_ok=True)
        return found


def test_a_segment_expired_before_planning_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    columns = spark_schema(("keys", "physical_offset", "size", "damage"), True)
    for kind in ("once", "stream"):
        writer = LogWriter(tmp_path / kind)
        writer.extend(Message(body=b"x" * 500, key=str(i)) for i in range(400))
        kept = [r.props["KEYS"] for r in read_plain(tmp_path / kind)[0] if r.phys_offset >= writer.segment]
        options = ExpiresLater({"path": str(tmp_path / kind), "damaged": "rows"}, writer.path(0))
        once, stream = CommitLogReader(columns, options), CommitLogStream(columns, options)
        parts = once.partitions() if kind == "once" else stream.partitions({kind: 0}, {kind: writer.end})
        rows = [row for part in parts for batch in once.read(part) for row in batch.to_pylist()]
        assert [r["keys"] for r in rows if r["damage"] is None] == kept
        (gone,) = (r for r in rows if r["damage"] is not None)
        assert (gone["physical_offset"], gone["size"]) == (0, writer.segment)
        assert gone["damage"].startswith("expired during the read: ")
        assert f"{kind}: bytes 0 to {writer.segment} expired during the read" in caplog.text


def test_a_stream_skips_a_segment_expired_during_the_search_for_the_end(tmp_path: Path) -> None:
    ends = []
    for name in ("whole", "part"):
        writer = LogWriter(tmp_path / name)
        writer.extend(Message(body=b"x" * 500, key=str(i)) for i in range(400))
        options = ExpiresLater({"path": str(tmp_path / name)}, writer.path(0))
        stream = CommitLogStream(spark_schema(("keys",)), options)
        limit = ReadAllAvailable() if name == "whole" else ReadMaxBytes(5_000)
        ends.append(stream.latestOffset({name: 0}, limit)[name])
    assert ends[0] == writer.end
    assert writer.segment + 5_000 <= ends[1] < writer.segment + 6_000


def test_only_unread_bytes_are_reported_as_expired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = LogWriter(tmp_path).extend(Message(body=b"x" * 500, key=str(i)) for i in range(50))
    columns, options = spark_schema(("physical_offset", "damage"), True), Options({"path": str(tmp_path)})
    options.damage_rows = True

    def expires(*args: Any, **names: Any) -> Any:
        yield from scan(*args, **names)
        raise Expired("gone")

    monkeypatch.setattr("gantry_spark.source.scan", expires)
    reader = CommitLogReader(columns, options)
    (part,) = reader.partitions()
    rows = [row for batch in reader.read(part) for row in batch.to_pylist()]
    assert [r["physical_offset"] for r in rows if r["damage"] is None] == places
    (gone,) = (r for r in rows if r["damage"] is not None)
    assert gone["physical_offset"] > places[-1]


def test_filters_are_pushed_exactly(root: Path) -> None:
    time_at = ("store_time",)
    filters = [
        EqualTo(("topic",), "Orders"), In(("queue_id",), (1, 2)), IsNotNull(("topic",)), EqualTo(("size",), 5),
        GreaterThanOrEqual(time_at, when(START)), GreaterThan(time_at, when(START + 5)),
        LessThan(time_at, when(START + 100)), LessThanOrEqual(("physical_offset",), 77),
    ]  # fmt: skip
    where, rest = push(filters)
    assert where == RecordFilter(frozenset({"Orders"}), START + 6, START + 99, frozenset({1, 2}), None, 77)
    assert rest == [filters[2], filters[3]]
    micro = datetime(2023, 11, 14, 22, 13, 20, 500, tzinfo=UTC)
    assert push([GreaterThan(time_at, micro)])[0].min_ms == START + 1
    assert (
        push([EqualTo(time_at, micro)])[0].max_ms == START
    )  # No whole millisecond equals this time, so nothing matches.
    assert push([EqualTo(time_at, micro)])[0].min_ms == START + 1


def pieces(partitions: list[InputPartition]) -> list[LogRange]:
    return [part for one in partitions if isinstance(one, LogPartition) for part in one.parts]


def test_segments_outside_the_times_are_no_partitions(root: Path) -> None:
    whole = reader(root).partitions()
    late = reader(root)
    list(late.pushFilters([GreaterThan(("store_time",), when(START + 850 * 60_000))]))
    parts = late.partitions()
    assert 0 < len(pieces(parts)) < len(pieces(whole))
    rows = sum(b.num_rows for p in parts for b in late.read(p))
    assert rows == sum(1 for r in read_plain(root)[0] if r.store_ms > START + 850 * 60_000)
    everything = reader(root, partitionBytes="20000").partitions()
    assert len(everything) > len(pieces(whole))
    # One task reads a log of this size.
    assert len(whole) == 1


def test_damage_is_skipped_or_shown(spark: SparkSession, tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    places = writer.extend(Message(body=b"x" * 100, key=str(i)) for i in range(50))
    writer.write(places[10] + 95, b"!!")
    writer.write(places[20], b"\xff" * 8)
    assert spark.read.format("commitlog").load(str(tmp_path)).count() == 48
    frame = spark.read.format("commitlog").option("damaged", "rows").load(str(tmp_path))
    found = frame.where("damage is not null").orderBy("physical_offset").collect()
    assert [(r.physical_offset, r.size, r.damage) for r in found] == [
        (places[10], places[11] - places[10], "the body does not match its CRC"),
        (places[20], places[21] - places[20], "no records"),
    ]


def test_a_stream_goes_on_from_its_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "store"
    writer = LogWriter(root)
    writer.extend(Message(body=b"x" * 300, key=str(i)) for i in range(300))

    def drain() -> list[str]:
        frame = spark.readStream.format("commitlog").option("columns", "keys").option("maxBytesPerTrigger", "40000")
        query = (
            frame.load(str(root))
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        try:
            deadline = time.monotonic() + 120
            last = -1
            while time.monotonic() < deadline:
                query.processAllAvailable()
                count = len(list((tmp_path / "out").glob("*.parquet")))
                if count == last:
                    break
                last = count
        finally:
            query.stop()
        return sorted(r["keys"] for r in spark.read.parquet(str(tmp_path / "out")).collect())

    assert drain() == sorted(str(i) for i in range(300))
    writer.extend(Message(key=f"new-{i}") for i in range(50))
    assert drain() == sorted([*map(str, range(300)), *(f"new-{i}" for i in range(50))])


def test_available_now_reads_everything_in_batches(spark: SparkSession, tmp_path: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    for root, count in zip(roots, (500, 100), strict=True):
        LogWriter(root).extend(Message(body=b"x" * 300, key=f"{root.name}{i}") for i in range(count))
    total = sum(r.size for root in roots for r in read_plain(root)[0])
    sizes: list[int] = []
    seen: list[str] = []

    def take(batch: DataFrame, _: int) -> None:
        rows = batch.collect()
        sizes.append(sum(r["size"] for r in rows))
        seen.extend(r["keys"] for r in rows)

    frame = spark.readStream.format("commitlog").option("columns", "keys,size").option("maxBytesPerTrigger", "60000")
    query = (
        frame.option("paths", json.dumps([str(root) for root in roots])).load()
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )  # fmt: skip
    try:
        assert query.awaitTermination(200)
    finally:
        query.stop()
    assert sorted(seen) == sorted([*(f"a{i}" for i in range(500)), *(f"b{i}" for i in range(100))])
    assert len(sizes) >= total // 60_000
    assert max(sizes) < 60_000 + 2 * 500


def test_a_stream_respects_the_read_limit(tmp_path: Path) -> None:
    root = tmp_path / "store"
    writer = LogWriter(root)
    writer.extend(Message(body=b"x" * 300, key=str(i)) for i in range(300))
    stream = stream_of(root, maxBytesPerTrigger="40000")
    begin = stream.initialOffset()
    assert stream.getDefaultReadLimit() == ReadMaxBytes(40_000)
    assert stream_of(root).getDefaultReadLimit() == ReadAllAvailable()
    assert 40_000 <= stream.latestOffset(begin, ReadMaxBytes(40_000))["store"] < 41_000
    assert 5_000 <= stream.latestOffset(begin, ReadMaxBytes(5_000))["store"] < 6_000
    assert stream.latestOffset(begin, ReadAllAvailable()) == {"store": writer.end}
    end = {"store": writer.end}
    stream.prepareForTriggerAvailableNow()
    writer.extend(Message(key=f"new-{i}") for i in range(50))
    assert stream.latestOffset(begin, ReadAllAvailable()) == end
    at, steps = begin, 0
    while (following := stream.latestOffset(at, ReadMaxBytes(40_000))) != at:
        at, steps = following, steps + 1
    assert at == end
    assert steps > 3


def stream_of(root: Path, **options: str) -> CommitLogStream:
    source = CommitLogSource({"path": str(root), **options})
    return source.streamReader(source.schema())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"columns": "topic,nonsense"}, "'nonsense' is not a column"),
        ({"colums": "topic"}, "option colums: unknown"),
        ({"damaged": "maybe"}, "write skip or rows"),
        ({"body": "yes"}, "write true or false"),
        ({"partitionBytes": "many"}, "write a whole number"),
        ({"ranges": "0-5"}, "write JSON"),
        ({"brokers": "http://127.0.0.1:1"}, "give one of"),
        (
            {"brokers": "a=http://127.0.0.1:1, b=127.0.0.1:x"},
            "option brokers: 'b=127.0.0.1:x' is not an address; write",
        ),
        ({"brokers": "ftp://127.0.0.1:1"}, "is not an address"),
    ],
)
def test_wrong_options_are_named(root: Path, options: dict[str, str], says: str) -> None:
    with pytest.raises(SourceError, match=says):
        read_columns({"path": str(root), **options})


def read_columns(options: dict[str, str]) -> Any:
    from gantry_spark.source import CommitLogSource

    source = CommitLogSource(options)
    return source.reader(source.schema()).partitions()


def test_a_worker_for_files_imports_no_network_modules() -> None:
    """Every query starts new workers, and each pays for its imports."""
    says = "import sys, gantry_spark.aggregates; print(*sorted({'httpx', 'pydantic', 'plotly'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", says], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == ""


def test_an_error_names_a_directory_without_a_log(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="does not exist; give a store directory"):
        read_columns({"path": str(tmp_path / "nowhere")})
    with pytest.raises(SourceError, match=r"no commit log in .* is empty; expected files with names of 20 digits"):
        read_columns({"path": str(tmp_path)})
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(SourceError, match=r"no commit log in .* holds notes.txt"):
        read_columns({"path": str(tmp_path)})
    with pytest.raises(SourceError, match="is a file; give a store directory"):
        read_columns({"path": str(tmp_path / "notes.txt")})
    with pytest.raises(SourceError, match=r"broker http://127.0.0.1:1 does not answer"):
        read_columns({"brokers": "127.0.0.1:1"})
    with pytest.raises(SourceError, match=r"NameServer 127.0.0.1:1 does not answer"):
        read_columns({"cluster": "127.0.0.1:1"})


def test_a_file_without_records_is_damage_and_unrelated_files_are_ignored(tmp_path: Path) -> None:
    folder = tmp_path / "commitlog"
    folder.mkdir()
    (folder / f"{0:020d}").write_bytes(b"this is no commit log" * 100)
    (folder / "README").write_text("foreign")
    options = Options({"path": str(tmp_path), "damaged": "rows"})
    frames = CommitLogReader(spark_schema(("topic", "damage", "size"), True), options)
    (part,) = frames.partitions()
    (batch,) = frames.read(part)
    assert batch.to_pylist() == [{"topic": None, "damage": "a torn tail", "size": 2100}]
    assert "body" in COLUMNS


def test_a_stream_reports_bytes_expired_before_the_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = LogWriter(tmp_path / "store")
    places = writer.extend(Message(body=b"x" * 300, key=str(i)) for i in range(600))
    columns = ("log", "keys", "physical_offset", "size", "damage")

    def read(start: int, end: int, damaged: str) -> list[dict[str, Any]]:
        options = Options({"path": str(tmp_path / "store"), "damaged": damaged})
        stream = CommitLogStream(spark_schema(columns, damaged == "rows"), options)
        parts = stream.partitions({"store": start}, {"store": end})
        return [row for part in parts for batch in stream.read(part) for row in batch.to_pylist()]

    assert len(read(places[10], places[20], "rows")) == 10
    assert not caplog.text
    writer.path(0).unlink()
    first = writer.segment
    left = [str(i) for i, place in enumerate(places) if place >= first]
    found = read(places[10], writer.end, "rows")
    assert found[0] == {
        "log": "store", "keys": None, "physical_offset": places[10], "size": first - places[10],
        "damage": "expired before the read",
    }  # fmt: skip
    assert [r["keys"] for r in found[1:]] == left
    assert f"store: bytes {places[10]} to {first} expired before the stream read them" in caplog.text
    assert [r["keys"] for r in read(places[10], writer.end, "skip")] == left
    # This batch is empty, and the next one loses nothing.
    (only,) = read(places[10], places[20], "rows")
    assert (only["physical_offset"], only["size"]) == (places[10], places[20] - places[10])
    assert [r["damage"] for r in read(first, writer.end, "rows")] == [None] * len(left)
