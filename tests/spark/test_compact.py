"""The compacted log: its savings equal the report's, a broker's store opens it, and offsets stay."""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import StoreConfig
from gantry_spark.compact import check_compaction, compact
from gantry_spark.environment import Environment
from gantry_spark.errors import OutputError, SourceError
from gantry_spark.report import Job, run

from tests.spark.reference_log import LogWriter, Message, read_plain
from tests.spark.reference_report import _newest_versions as newest_versions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)
START = 1_700_000_000_000
HOUR = 3_600_000
NOW = START + 40 * HOUR


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = random.Random(11)
    path = tmp_path_factory.mktemp("compact") / "store"
    writer = LogWriter(path)
    for i in range(1200):
        key = rng.choice([f"k{rng.randrange(120)}", f"k{rng.randrange(30)}", None, ""])
        body = b"" if key and rng.random() < 0.2 else rng.randbytes(rng.randrange(1, 400))
        writer.append(Message("Table", rng.randrange(3), body, key, store_ms=START + i * 30 * HOUR // 1200))
        if i % 3 == 0:
            writer.append(Message("Other", 0, b"x" * 50, "k1", store_ms=START))
    return path


def test_compaction_saves_the_reported_bytes_and_a_store_opens_the_result(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    job = Job(paths=(str(root),), now_ms=NOW, topics=("Table",))
    promised = next(t for t in run(spark, job).report["topics"] if t["topic"] == "Table")
    dry = compact(spark, job, "Table", None)
    out = tmp_path / "compacted"
    done = compact(spark, job, "Table", out)
    before = [r for r in read_plain(root)[0] if r.topic == "Table"]
    after, lost = read_plain(out)
    assert not lost
    saved = sum(r.size for r in before) - sum(r.size for r in after)
    assert saved == promised["savedBytes"] == dry["savedBytes"] == done["savedBytes"] > 0
    assert len(before) - len(after) == promised["savedRecords"] == done["savedRecords"]
    assert promised["expiredTombstones"] > 0

    newest = {id(r) for _, r in newest_versions([("", r) for r in before]).values()}
    dead = NOW - 24 * HOUR
    wanted = [
        r for r in before
        if not r.props.get("KEYS") or (id(r) in newest and (r.body or r.store_ms >= dead))
    ]  # fmt: skip
    same = [(r.queue_id, r.queue_offset, r.body, r.properties, r.store_ms, r.born_host) for r in after]
    assert same == [(r.queue_id, r.queue_offset, r.body, r.properties, r.store_ms, r.born_host) for r in wanted]

    settings = BrokerSettings(mappedFileSizeCommitLog=64 * 1024)
    store = MessageStore.open(StoreConfig(out, settings))
    try:
        for queue in range(3):
            mine = [r for r in wanted if r.queue_id == queue]
            found = []
            at = store.reader.min_offset("Table", queue)
            while at < store.reader.max_offset("Table", queue):
                got = store.reader.get("Table", queue, at, 32, 1 << 20, None)
                found += _records(got.data)
                assert got.next_offset > at
                at = got.next_offset
            assert [r.queue_offset for r in found] == [r.queue_offset for r in mine]
            assert store.reader.max_offset("Table", queue) == mine[-1].queue_offset + 1
    finally:
        store.close(clean=True)


def _records(data: bytes) -> list[object]:
    from gantry_broker.protocol.message import decode_records

    return list(decode_records(data))


def test_ambiguous_keys_are_not_compacted(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "store"
    keys = ("@1", "@2", *["plain"] * 91)
    LogWriter(root).extend(Message("Table", 0, b"x", key, store_ms=START) for key in keys)
    path = root / "commitlog" / f"{0:020d}"
    path.write_bytes(path.read_bytes().replace(b"@1", b"\xff1").replace(b"@2", b"\xfe1"))
    job = Job(paths=(str(root),), now_ms=NOW)
    says = "it has keys that are not UTF-8"
    with pytest.raises(SourceError, match=f"Table cannot be compacted: {says}"):
        compact(spark, job, "Table", None)
    # The report does not recommend a compaction that the command refuses.
    (topic,) = run(spark, job).report["topics"]
    assert (topic["compactable"], topic["savedBytes"], topic["recommendation"]) == (False, 0, "no change")
    assert topic["supersededRecords"] == 91
    assert topic["reason"].startswith(f"Not compactable: {says}")


def test_an_incomplete_log_is_not_compacted(spark: SparkSession, tmp_path: Path) -> None:
    """The missing part may hold the newest version of a key or its tombstone."""
    writer = LogWriter(tmp_path / "store")
    writer.extend(Message("Table", 0, b"x" * 1000, f"k{i % 10}", store_ms=START) for i in range(300))
    job = Job(paths=(str(tmp_path / "store"),), now_ms=NOW)
    writer.path(0).unlink()
    assert check_compaction(job, "Table", None)
    writer.path(2 * writer.segment).unlink()
    says = r"store: no segment holds bytes 131,072 to 196,608\. The missing parts may hold newer versions, so nothing"
    for work in (check_compaction, lambda *args: compact(spark, *args)):
        with pytest.raises(SourceError, match=says):
            work(job, "Table", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (topic,) = run(spark, job).report["topics"]
    assert (topic["compactable"], topic["recommendation"]) == (True, "no change")
    assert re.match(r"Compaction would save .* but a part of the log is missing", topic["reason"])


def test_compact_reports_damage_and_expired_segments(
    spark: SparkSession, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    shutil.copytree(root, store)
    with (store / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(1000)
        file.write(b"\xff" * 40)
    job = Job(paths=(str(store),), now_ms=NOW)
    damage = compact(spark, job, "Table", None)["damage"]
    assert damage["ranges"] == 1
    assert damage["bytes"] >= 40
    promised = next(t for t in run(spark, job).report["topics"] if t["topic"] == "Table")
    done = compact(spark, job, "Table", tmp_path / "damaged")
    left = sum(r.size for r in read_plain(tmp_path / "damaged")[0])
    assert (done["savedBytes"], left) == (promised["savedBytes"], promised["bytes"] - promised["savedBytes"])

    def expires(*_: object) -> Environment:
        (store / "commitlog" / f"{0:020d}").unlink()
        return Environment()

    monkeypatch.setattr("gantry_spark.compact.read_environment", expires)
    says = rf"output {tmp_path}/out is incomplete: .*{0:020d} is gone; delete the directory and run this again"
    with pytest.raises(OutputError, match=says):
        compact(spark, job, "Table", tmp_path / "out")


def test_records_appended_during_a_run_are_not_compacted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records appended during the run begin and end on both sides of the counted end."""
    root, out = tmp_path / "store", tmp_path / "out"
    writer = LogWriter(root)
    writer.extend(Message("Table", 0, b"x" * 500, f"k{i % 10}", store_ms=START) for i in range(30))

    def listed(*_: object) -> None:
        writer.extend(Message("Table", 0, b"y" * 500, f"k{i % 10}", store_ms=START) for i in range(20))

    def counted(*_: object) -> Environment:
        writer.extend(Message("Table", 0, b"z" * 500, None, store_ms=START) for _ in range(20))
        return Environment()

    monkeypatch.setattr("gantry_spark.compact.require_complete_logs", listed)
    monkeypatch.setattr("gantry_spark.compact.read_environment", counted)
    done = compact(spark, Job(paths=(str(root),), now_ms=NOW), "Table", out)
    after, lost = read_plain(out)
    assert not lost
    assert done["records"] > 30
    assert (done["keptRecords"], len(after), len({r.props["KEYS"] for r in after})) == (10, 10, 10)


def test_compact_refuses_unsuitable_topics_and_outputs(spark: SparkSession, root: Path, tmp_path: Path) -> None:
    job = Job(paths=(str(root),), now_ms=NOW)
    with pytest.raises(SourceError, match="holds no record of topic Nothing"):
        compact(spark, job, "Nothing", None)
    with pytest.raises(SourceError, match="is a system topic"):
        compact(spark, job, "%RETRY%group", None)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    with pytest.raises(OutputError, match="already exists"):
        compact(spark, job, "Table", tmp_path / "full")
    with pytest.raises(OutputError, match="file is not a directory"):
        check_compaction(job, "Table", tmp_path / "full" / "file" / "out")
    with pytest.raises(SourceError, match="holds no record of topic Nothing"):
        compact(spark, job, "Nothing", tmp_path / "new" / "out")
    assert not (tmp_path / "new").exists()
    keyless = LogWriter(tmp_path / "keyless")
    keyless.append(Message("Plain"))
    with pytest.raises(SourceError, match="none of its 1 records has a key"):
        compact(spark, Job(paths=(str(tmp_path / "keyless"),)), "Plain", None)
