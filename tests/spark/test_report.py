"""The report against plain Python, incremental runs against full runs, and savings against compaction."""

from __future__ import annotations

import json
import random
import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest
from gantry_broker.contracts.models import LogInfo, MemberRef
from gantry_operator.platforms.kubernetes.analytics.status import summary_text
from gantry_spark.compacted import Compacted
from gantry_spark.directory import DirectoryLog, Segment, find
from gantry_spark.environment import read_environment
from gantry_spark.errors import OutputError, SourceError
from gantry_spark.main import run_summary
from gantry_spark.remote import RemoteLog, Tables
from gantry_spark.report import Job, run
from gantry_spark.report import _current_checksums as current_checksums
from gantry_spark.report import _end_checksums as end_checksums
from gantry_spark.report import _repaired_segments as repaired_segments
from gantry_spark.scan_state import CountedSegment, pending_scan
from gantry_spark.summary import RECHECKED_DAMAGE, counted_segments
from pyspark.sql import functions as f

from tests.spark.reference_log import LogWriter, Message, read_plain
from tests.spark.reference_report import comparable, expected_topics, growth

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)
START = 1_700_000_000_000
HOUR = 3_600_000
NOW = START + 40 * HOUR
TOPICS = ("Prices", "Customers", "Clicks", "Mixed", "täglich", "%RETRY%billing", "%DLQ%billing", "SCHEDULE_TOPIC_XXXX")


def messages(rng: random.Random, count: int, begin_h: float, hours: float) -> Iterator[Message]:
    """Yield all kinds: keyed, keyless, mixed, tombstones, batches of equal times, transactions, delays, retries."""
    for i in range(count):
        topic = rng.choice(TOPICS)
        key = None
        if topic == "Prices":
            key = f"p{int(rng.paretovariate(0.8)) % 40}"
        elif topic == "Customers":
            key = f"c {rng.randrange(60)}"
        elif topic == "Mixed":
            key = rng.choice([None, "", "m1", "m2", f"m{i}"])
        elif topic == "täglich":
            key = f"schlüssel-{rng.randrange(9)}"
        elif topic.startswith("%"):
            key = "r"
        body = b"" if key and rng.random() < 0.15 else rng.randbytes(rng.randrange(1, 300))
        props = {"TAGS": "T"} if rng.random() < 0.5 else {}
        if topic == "SCHEDULE_TOPIC_XXXX":
            props["DELAY"] = str(rng.randrange(1, 19))
        yield Message(
            topic, rng.randrange(3), body, key, props, START + int((begin_h + hours * (i // 4 * 4) / count) * HOUR),
            sys_flag=rng.choice([0, 0, 0, 4, 8, 12]), reconsume=rng.randrange(3) if topic.startswith("%RETRY") else 0,
            v6=(rng.random() < 0.1, rng.random() < 0.1),
        )  # fmt: skip


def make_log(root: Path, seed: int, count: int = 1500) -> LogWriter:
    rng = random.Random(seed)
    writer = LogWriter(root)
    writer.extend(messages(rng, count, 0, 30))
    return writer


def write_offsets(root: Path, table: dict[tuple[str, str, int], int]) -> None:
    offsets: dict[str, dict[str, int]] = {}
    for (group, topic, queue), offset in table.items():
        offsets.setdefault(f"{topic}@{group}", {})[str(queue)] = offset
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": offsets}))


def assert_matches(report: dict[str, Any], roots: list[Path], offsets: Any, since_ms: int | None = None) -> None:
    logs = {root.name: read_plain(root)[0] for root in roots}
    expected = expected_topics(logs, NOW, 24 * HOUR, offsets, since_ms)
    found = {t["topic"]: comparable(t) for t in report["topics"]}
    assert found.keys() == expected.keys()
    for topic, values in expected.items():
        values["hotKeys"] = values["hotKeys"][:20]
        for name, value in values.items():
            assert found[topic][name] == value, f"{topic}: {name}"
    assert_growth(report, logs)
    lost = [d for root in roots for d in read_plain(root)[1]] if since_ms is None else []
    assert report["damage"]["ranges"] == len(lost)
    assert report["damage"]["bytes"] == sum(d.end - d.start for d in lost)


def assert_growth(report: dict[str, Any], logs: dict[str, Any]) -> None:
    """All logs of a test share one disk. Its free bytes change from one reading to the next."""
    found = report["growth"]
    free = min(d["freeBytes"] for d in found["disks"])
    expected = growth(logs, NOW, [(free, len(logs))], found["reservedHours"])
    assert {name: found[name] for name in expected} == expected


def without_run(report: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a report that must be equal in a full and an incremental run."""
    return {k: v for k, v in report.items() if k not in ("run", "durationSeconds", "scan", "growth")} | {
        "growth": {k: v for k, v in report["growth"].items() if k not in ("disks", "hoursToFull", "fullAt")}
    }


def report_without_state(spark: SparkSession, root: Path) -> dict[str, Any]:
    """Return the report of a run without the state of earlier runs."""
    return without_run(run(spark, Job(paths=(str(root),), now_ms=NOW)).report)


def test_all_numbers_of_two_logs_with_damage(spark: SparkSession, tmp_path: Path) -> None:
    roots = [tmp_path / "group-a", tmp_path / "group-b"]
    offsets = {}
    for seed, root in enumerate(roots):
        writer = make_log(root, seed)
        # The first segment has expired, a record is damaged, the tail is torn.
        writer.path(0).unlink()
        writer.write(2 * writer.segment + 5000, b"\xff" * 40)
        writer.write(writer.end - 30, bytes(30))
        table = {
            ("late", "Prices", 0): 20,
            ("late", "Prices", 1): 64,
            ("late", "Mixed", 2): 10,
            ("ok", "Customers", 0): 9999,
            ("lost", "Clicks", 1): 1,
            ("late", "%RETRY%billing", 0): 5,
        }
        write_offsets(root, table)
        offsets |= {(group, root.name, topic, queue): at for (group, topic, queue), at in table.items()}
    done = run(spark, Job(paths=tuple(map(str, roots)), now_ms=NOW, read_options={"partitionBytes": "50000"}))
    assert_matches(done.report, roots, offsets)
    assert "<html" in done.page
    assert {t["topic"]: t["recommendation"] for t in done.report["topics"]}["Prices"] == "compact"
    clicks = next(t for t in done.report["topics"] if t["topic"] == "Clicks")
    assert clicks["recommendation"] == "lengthen retention"
    assert not clicks["compactable"]


def test_lag_covers_the_whole_log_in_every_window(spark: SparkSession, tmp_path: Path) -> None:
    """Queues without an offset count from their first record. A window does not change the lag."""
    root, out = tmp_path / "store", tmp_path / "out"
    make_log(root, 3)
    table = {("slow", "Prices", 0): 0, ("done", "Prices", 1): 10**6}
    write_offsets(root, table)
    offsets = {(group, root.name, topic, queue): at for (group, topic, queue), at in table.items()}
    since_ms = NOW - 5 * HOUR
    report = run(spark, Job(paths=(str(root),), out=str(out), since_ms=since_ms, now_ms=NOW)).report
    assert_matches(report, [root], offsets, since_ms)
    prices = [r for r in read_plain(root)[0] if r.topic == "Prices"]
    assert len({r.queue_id for r in prices}) > 1
    groups = {g["group"]: g for g in report["groups"]}
    assert groups["slow"]["lagRecords"] == len(prices)
    assert groups["done"]["lagRecords"] == sum(1 for r in prices if r.queue_id != 1)
    assert groups["slow"]["expiredUnreadRecords"] == groups["done"]["expiredUnreadRecords"] == 0
    assert groups["slow"]["lagHours"] >= (NOW - min(r.store_ms for r in prices)) / HOUR - 0.01
    again = run(spark, Job(paths=(str(root),), out=str(out), now_ms=NOW)).report
    assert_matches(again, [root], offsets)


def test_an_incremental_run_reads_only_new_bytes_and_equals_a_full_run(spark: SparkSession, tmp_path: Path) -> None:
    root, out = tmp_path / "store", tmp_path / "out"
    writer = make_log(root, 7, 800)
    torn = writer.end
    half = b"\x00\x00\x01\x00\xda\xa3\x20\xa7torn"
    writer.write(torn, half)
    job = Job(paths=(str(root),), out=str(out), now_ms=NOW)
    first = run(spark, job).report
    assert_matches(first, [root], {})
    assert not first["scan"]["incremental"]
    writer.write(torn, bytes(len(half)))
    writer.extend(messages(random.Random(8), 500, 30, 6))
    writer.path(0).unlink()
    second = run(spark, job).report
    assert_matches(second, [root], {})
    assert second["scan"]["scannedBytes"] < 0.6 * second["scan"]["logBytes"]
    full = run(spark, Job(paths=(str(root),), now_ms=NOW)).report
    assert without_run(second) == without_run(full)
    # The window splits one segment, which is read again. The others come from the state.
    since = START + 20 * HOUR
    windowed = run(spark, Job(paths=(str(root),), out=str(out), now_ms=NOW, since_ms=since)).report
    assert_matches(windowed, [root], {}, since)
    assert windowed["scan"]["scannedBytes"] < 2 * writer.segment
    assert (out / "report.html").exists()
    assert len(list((out / "reports").iterdir())) == 3


def test_state_of_many_runs_is_merged(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gantry_spark.scan_state.MERGE_AT", 1)
    root, out = tmp_path / "store", tmp_path / "out"
    writer = make_log(root, 3, 200)
    job = Job(paths=(str(root),), out=str(out), now_ms=NOW, history=1)
    run(spark, job)
    writer.extend(messages(random.Random(4), 100, 30, 1))
    merged = run(spark, job).report
    assert_matches(merged, [root], {})
    assert len(list((out / "state" / "rows").iterdir())) == 1
    assert len(list((out / "reports").iterdir())) == 1
    again = run(spark, job).report
    assert again["scan"]["scannedBytes"] < 64 * 1024
    assert_matches(again, [root], {})


def test_topics_are_selected_by_pattern(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "store"
    make_log(root, 5, 100)
    report = run(spark, Job(paths=(str(root),), now_ms=NOW, topics=("Pri*", "Cu?tomers"))).report
    assert {t["topic"] for t in report["topics"]} == {"Prices", "Customers"}
    with pytest.raises(SourceError, match=r"no topic matches Nothing; there are .*Prices"):
        run(spark, Job(paths=(str(root),), now_ms=NOW, topics=("Nothing",)))
    # The topic exists but has no record in the window.
    quiet = Job(paths=(str(root),), now_ms=NOW, topics=("Prices",), since_ms=NOW)
    assert "The report covers no record" in run(spark, quiet).report["notes"][-1]


def test_the_disk_fills_with_the_whole_log(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The forecast is the same for all topics and windows."""
    root = tmp_path / "store"
    writer = LogWriter(root)
    for hour in range(40):
        for topic, size in (("Big", 3000), ("Small", 20)):
            writer.append(Message(topic, 0, b"x" * size, f"k{hour}", store_ms=START + hour * HOUR))
    logs = {root.name: read_plain(root)[0]}
    rate = growth(logs, NOW, [], 72)["bytesPerHour"]
    # Retention starts after another 32 hours of this growth. A log of only the last 12 hours would need 60.
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(total=10**9, free=50 * rate))
    out = str(tmp_path / "out")
    for chosen in (
        Job(paths=(str(root),), out=out, now_ms=NOW, topics=("Small",)),
        Job(paths=(str(root),), out=out, now_ms=NOW, since_ms=START + 28 * HOUR),
        Job(paths=(str(root),), now_ms=NOW, topics=("Small",), since_ms=START + 28 * HOUR),
    ):
        report = run(spark, chosen).report
        assert report["growth"]["hoursToFull"] == pytest.approx(50, abs=0.2)
        assert not report["growth"]["diskFullBeforeRetention"]
        assert_growth(report, logs)


def test_brokers_of_one_machine_share_its_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The free bytes may differ between the responses of two brokers."""
    free = iter((5_000_000, 4_999_000, 4_998_000))
    monkeypatch.setattr(
        "gantry_spark.environment.fetch_status",
        lambda *_: SimpleNamespace(address="", disk=SimpleNamespace(total_bytes=10**9, free_bytes=next(free))),
    )
    said = Tables({}, {"prices": Compacted(10, 1_000, 4, 400)})
    monkeypatch.setattr("gantry_spark.environment.fetch_tables", lambda *_: said)
    logs = []
    for name, url in (("a", "http://127.0.0.1:1"), ("b", "http://127.0.0.1:2"), ("c", "http://10.0.0.1:1")):
        info = LogInfo(
            cluster="demo", group=name, member=MemberRef(member=0, incarnation="x"), role="Master", start=0,
            confirmed=0, segment_bytes=1, segments=[],
        )  # fmt: skip
        logs.append(RemoteLog([(url, info)], None, 0))
    found = read_environment(logs, None)
    assert found.compacted == {"prices": Compacted(30, 3_000, 12, 1_200)}
    a, b, c = found.disks
    assert a.is_same_disk(b)
    assert not a.is_same_disk(c)


def test_queues_beyond_32_bits(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "store"
    writer = LogWriter(root)
    writer.offsets["Prices", 0] = 5_000_000_000
    writer.extend(Message("Prices", 0, b"x" * 100, f"k{i % 7}", store_ms=START + i * HOUR // 4) for i in range(100))
    table = {("old", "Prices", 0): 10, ("half", "Prices", 0): 5_000_000_050, ("ahead", "Prices", 0): 2**50,
             ("none", "Prices", 0): -1}  # fmt: skip
    write_offsets(root, table)
    offsets = {(group, root.name, topic, queue): at for (group, topic, queue), at in table.items()}
    assert_matches(run(spark, Job(paths=(str(root),), now_ms=NOW)).report, [root], offsets)


def test_impossible_store_times(spark: SparkSession, tmp_path: Path) -> None:
    """A header has no checksum. Records from the future do not make the hours before them idle."""
    root = tmp_path / "store"
    writer = LogWriter(root)
    writer.extend(Message("Prices", 0, b"x" * 100, f"k{i}", store_ms=START + i * HOUR // 4) for i in range(150))
    before = run(spark, Job(paths=(str(root),), now_ms=NOW)).report["growth"]
    for ms in (NOW + 9000 * HOUR, 2**62):
        writer.append(Message("Prices", 0, b"x", "late", store_ms=ms))
    writer.append(Message("Prices", 0, b"x", "early", store_ms=START - HOUR))
    late = run(spark, Job(paths=(str(root),), now_ms=NOW)).report
    assert late["growth"]["bytesPerHour"] == pytest.approx(before["bytesPerHour"], rel=0.05)
    writer.append(Message("Prices", 0, b"x", "early", store_ms=-(2**62)))
    (topic,) = run(spark, Job(paths=(str(root),), now_ms=NOW)).report["topics"]
    assert topic["records"] == 154
    assert (topic["firstStoreTime"][:10], topic["lastStoreTime"][:10]) == ("1970-01-01", "9999-12-31")


def test_an_impossible_store_time_does_not_affect_other_numbers(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "store"
    writer = LogWriter(root)
    writer.extend(Message("Prices", 0, b"x" * 100, f"k{i % 7}", store_ms=START + i * HOUR // 4) for i in range(150))
    write_offsets(root, {("slow", "Prices", 0): 140})
    job = Job(paths=(str(root),), now_ms=NOW)
    before = run(spark, job).report
    writer.extend(Message("Prices", 0, b"x" * 100, "k0", store_ms=ms) for ms in (-1, 2**62))
    after = run(spark, job).report
    for name in ("bytesPerHour", "steadyStateBytes", "hours"):
        assert after["growth"][name] == before["growth"][name]
    assert after["groups"][0]["lagHours"] == before["groups"][0]["lagHours"]
    (one,), (other,) = before["topics"], after["topics"]
    assert (one["recommendation"], other["recommendation"]) == ("compact", "compact")
    assert (
        [w["hours"] for w in other["savingsByWindow"]]
        == [w["hours"] for w in one["savingsByWindow"]]
        == [1, 6, 24, None]
    )
    for old, new in zip(one["savingsByWindow"], other["savingsByWindow"], strict=True):
        assert abs(new["bytes"] - old["bytes"]) < 1000


def test_impossible_queue_offsets(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "store"
    writer = LogWriter(root)
    writer.extend(Message("Prices", 0, b"x", f"k{i}", store_ms=START) for i in range(10))
    for number in (2**63 - 1, -(2**63)):
        writer.offsets["Prices", 0] = number
        writer.append(Message("Prices", 0, b"x", "k1", store_ms=START))
    table = {("slow", "Prices", 0): 3}
    write_offsets(root, table)
    offsets = {(group, root.name, topic, queue): at for (group, topic, queue), at in table.items()}
    assert_matches(run(spark, Job(paths=(str(root),), now_ms=NOW)).report, [root], offsets)


def test_paths_with_glob_characters(spark: SparkSession, tmp_path: Path) -> None:
    """The second run reads the rows of the first."""
    root, out = tmp_path / "st{o}re[1]*", tmp_path / "o?ut [1] {a,b}\\*"
    make_log(root, 5, 60)
    job = Job(paths=(str(root),), out=str(out), now_ms=NOW)
    run(spark, job)
    assert_matches(run(spark, job).report, [root], {})
    assert spark.read.format("commitlog").load(str(root)).count() == 60


def test_queues_beyond_the_first_64(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "store"
    writer = LogWriter(root)
    writer.extend(Message("It's", queue * 40, key=str(i)) for i in range(5) for queue in range(3))
    assert_matches(run(spark, Job(paths=(str(root),), now_ms=NOW)).report, [root], {})
    # Only a damaged header has a negative queue id.
    below = LogWriter(tmp_path / "below")
    below.extend(Message("Prices", queue, key=str(i)) for i in range(5) for queue in (-7, 0))
    assert_matches(run(spark, Job(paths=(str(below.root),), now_ms=NOW)).report, [below.root], {})


def test_deleted_rows_are_counted_again(spark: SparkSession, tmp_path: Path) -> None:
    root, out = tmp_path / "store", tmp_path / "out"
    writer = make_log(root, 5, 60)
    job = Job(paths=(str(root),), out=str(out), now_ms=NOW)
    run(spark, job)
    writer.extend(messages(random.Random(6), 20, 30, 1))
    run(spark, job)
    shutil.rmtree(min((out / "state" / "rows").iterdir()))
    assert_matches(run(spark, job).report, [root], {})


def test_a_failed_run_keeps_the_last_report(spark: SparkSession, tmp_path: Path) -> None:
    root, out = tmp_path / "store", tmp_path / "out"
    make_log(root, 5, 60)
    run(spark, Job(paths=(str(root),), out=str(out), now_ms=NOW))
    good = (out / "report.json").read_bytes()
    shutil.rmtree(root)
    with pytest.raises(SourceError, match="does not exist"):
        run(spark, Job(paths=(str(root),), out=str(out), now_ms=NOW))
    assert (out / "report.json").read_bytes() == good
    junk = tmp_path / "junk" / "commitlog"
    junk.mkdir(parents=True)
    (junk / f"{0:020d}").write_bytes(b"no commit log" * 1000)
    with pytest.raises(SourceError, match=r"holds no commit log: none of its 13,000 bytes, from offset 0 of junk"):
        run(spark, Job(paths=(str(junk.parent),), now_ms=NOW))
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        run(spark, Job(paths=(str(root),), out=str(tmp_path / "file" / "out"), now_ms=NOW))


def truncate_and_append(writer: LogWriter, end: int, offsets: dict[tuple[str, int], int], new: list[Message]) -> None:
    """Truncate the log at `end` and append other messages there."""
    for path in (writer.root / "commitlog").iterdir():
        if int(path.name) > end:
            path.unlink()
    writer.write(end, bytes(min(writer.end, end - end % writer.segment + writer.segment) - end))
    writer.end, writer.offsets = end, dict(offsets)
    writer.extend(new)


def log_with_an_end(root: Path, kept: int, end: list[Message]) -> tuple[LogWriter, Callable[[list[Message]], None]]:
    """Return a log of `kept` records with `end` behind them, and what writes others in place of the end."""
    writer = LogWriter(root)
    writer.extend(Message("Table", 0, b"kept", f"k{i}") for i in range(kept))
    confirmed, offsets = writer.end, dict(writer.offsets)
    writer.extend(end)
    return writer, partial(truncate_and_append, writer, confirmed, offsets)


def rows(count: int, name: str, body: bytes = b"undone") -> list[Message]:
    return [Message("Table", 0, body, f"{name}-{i}") for i in range(count)]


def assert_counted_again(spark: SparkSession, job: Job, records: int) -> None:
    report = run(spark, job).report
    assert (report["totals"]["records"], report["damage"]["ranges"]) == (records, 0)
    assert without_run(report) == report_without_state(spark, Path(job.paths[0]))


def run_with_truncation(spark: SparkSession, job: Job, place: str, step: Any, truncate: Callable[[], None]) -> int:
    """Return the records that a run counts, behind whose step the log is truncated. `place`: where it takes `step`."""

    def followed(*args: Any) -> Any:
        found = step(*args)
        truncate()
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, followed)
        records: int = run(spark, job).report["totals"]["records"]
        return records


def test_a_truncated_end_of_the_log_is_counted_again(spark: SparkSession, tmp_path: Path) -> None:
    """A failover truncates unconfirmed records, and others take their place."""
    root, out = tmp_path / "store", tmp_path / "out"
    writer, replace_end = log_with_an_end(root, 150, rows(5, "old"))
    job = Job(paths=(str(root),), out=str(out), now_ms=NOW)
    assert run(spark, job).report["totals"]["records"] == 155
    replace_end(rows(20, "new", b"confirmed later"))
    assert_counted_again(spark, job, 170)

    # A log that has only grown is not read again.
    writer.extend(Message("Table", 0, b"more", f"more-{i}") for i in range(10))
    grown = run(spark, job).report
    assert grown["totals"]["records"] == 180
    assert grown["scan"]["scannedBytes"] < 8 * 1024
    # The state of an earlier version has no checksums.
    at = out / "state" / "state.json"
    state = json.loads(at.read_bytes())
    for segment in state["segments"]:
        del segment["recordsEnd"], segment["checksum"]
    at.write_text(json.dumps(state | {"version": 1}))
    again = run(spark, job).report
    assert again["totals"]["records"] == 180
    assert again["scan"]["scannedBytes"] == again["scan"]["logBytes"]


def test_a_truncated_filler_is_counted_again(spark: SparkSession, tmp_path: Path) -> None:
    # The record does not fit, so a filler precedes it.
    _, replace_end = log_with_an_end(tmp_path / "store", 100, rows(1, "old", b"undone" * 10_000))
    job = Job(paths=(str(tmp_path / "store"),), out=str(tmp_path / "out"), now_ms=NOW)
    assert run(spark, job).report["totals"]["records"] == 101
    replace_end(rows(100, "new", b"y" * 1000))
    assert_counted_again(spark, job, 200)


def test_a_truncation_during_the_count_is_counted_again(spark: SparkSession, tmp_path: Path) -> None:
    """The next run must detect that the bytes differ from the counted ones."""
    # In the middle of the last segment, and before a filler with another segment after it.
    cases = ((rows(5, "old"), rows(5, "new")), (rows(1, "old", b"undone" * 10_000), rows(100, "new", b"y" * 1000)))
    for number, (old, new) in enumerate(cases):
        root = tmp_path / f"store-{number}"
        _, replace_end = log_with_an_end(root, 150, old)
        job = Job(paths=(str(root),), out=str(tmp_path / "out"), now_ms=NOW)
        place = "gantry_spark.report.counted_segments"
        assert run_with_truncation(spark, job, place, counted_segments, partial(replace_end, new)) == 150 + len(old)
        assert_counted_again(spark, job, 150 + len(new))


def test_a_truncation_before_the_next_read_is_counted_again(spark: SparkSession, tmp_path: Path) -> None:
    """The bytes match the state at the comparison, and are rewritten before a task reads them."""
    writer, replace_end = log_with_an_end(tmp_path / "store", 150, rows(5, "old"))
    job = Job(paths=(str(tmp_path / "store"),), out=str(tmp_path / "out"), now_ms=NOW)
    assert run(spark, job).report["totals"]["records"] == 155
    writer.extend(rows(5, "older"))
    truncate = partial(replace_end, rows(20, "new", b"confirmed later"))
    run_with_truncation(spark, job, "gantry_spark.scan_state.pending_scan", pending_scan, truncate)
    assert_counted_again(spark, job, 170)


def test_a_truncation_between_two_tasks_is_counted_again(spark: SparkSession, tmp_path: Path) -> None:
    """The bytes of the last task are unchanged, but earlier bytes are rewritten."""
    after = rows(100, "a", b"after")
    _, replace_end = log_with_an_end(tmp_path / "store", 100, rows(100, "old") + after)
    job = Job(
        paths=(str(tmp_path / "store"),), out=str(tmp_path / "out"), now_ms=NOW, read_options={"partitionBytes": "5000"}
    )
    truncate = partial(replace_end, rows(100, "new") + after)
    run_with_truncation(spark, job, "gantry_spark.report.counted_segments", counted_segments, truncate)
    assert_counted_again(spark, job, 300)


class Blank:
    """A log of zeros."""

    name = "blank"

    def __init__(self, count: int, size: int) -> None:
        self.segments = [Segment(i * size, (i + 1) * size, (i + 1) * size, "") for i in range(count)]

    @contextmanager
    def open(self, index: int) -> Iterator[Blank]:
        yield self

    def read_into(self, offset: int, into: memoryview) -> int:
        into[:] = bytes(len(into))
        return len(into)


def test_the_checksums_of_many_segments_need_little_memory() -> None:
    size = 1 << 16
    log = Blank(300, size)
    mark = crc32(bytes(size - 8))
    segments = [CountedSegment("blank", s.start, s.end, 1, 1, 1, (), s.end - 8, s.start, mark) for s in log.segments]
    for compared in (current_checksums, partial(end_checksums, verify=True)):
        tracemalloc.start()
        try:
            found = compared([log], segments)
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert found == dict.fromkeys((("blank", s.start) for s in log.segments), crc32(bytes(size)))
        assert most < 10 * size


def test_a_damaged_record_at_the_end_of_a_segment_is_read_once(spark: SparkSession, tmp_path: Path) -> None:
    """The damaged record is not a new record."""
    root, out = tmp_path / "store", tmp_path / "out"
    writer = LogWriter(root)
    places = writer.extend(Message("Table", 0, b"x" * 1000, f"k{i}") for i in range(100))
    writer.write(max(place for place in places if place < writer.segment) + 500, b"damage")
    job = Job(paths=(str(root),), out=str(out), now_ms=NOW)
    first = run(spark, job).report
    assert first["damage"]["ranges"] == 1
    second = run(spark, job).report
    assert second["scan"]["scannedBytes"] < 4096
    assert without_run(second) == without_run(first)


def test_repaired_damage_is_counted_again(spark: SparkSession, tmp_path: Path) -> None:
    """A broker repairs a damaged record with the bytes of another member."""
    root, out = tmp_path / "store", tmp_path / "out"
    writer = LogWriter(root)
    places = writer.extend(Message("Table", 0, b"x" * 1000, f"k{i}") for i in range(200))
    end, whole = writer.end, {path: path.read_bytes() for path in (root / "commitlog").iterdir()}
    last = max(place for place in places if place < writer.segment)
    # A body, a header, the last record of a segment, and one in the last segment.
    for at in (places[3] + 500, places[10] + 4, last + 500, writer.segment + 500, places[-2] + 500):
        writer.write(at, b"damage")
    job = Job(paths=(str(root),), out=str(out), now_ms=NOW)
    assert run(spark, job).report["damage"]["ranges"] == 5
    damaged = run(spark, job).report
    assert (damaged["totals"]["records"], damaged["scan"]["scannedBytes"] < 4096) == (195, True)
    writer.extend(Message("Table", 0, b"more", f"more-{i}") for i in range(10))
    for path, data in whole.items():
        writer.write(int(path.name), data[: end - int(path.name)])
    repaired = run(spark, job).report
    assert (repaired["totals"]["records"], repaired["damage"]["ranges"]) == (210, 0)
    assert without_run(repaired) == report_without_state(spark, root)
    assert run(spark, job).report["scan"]["scannedBytes"] < 4096


class SegmentCount(DirectoryLog):
    """Counts the calls of `open` and the bytes read."""

    opened = 0
    taken = 0

    @contextmanager
    def open(self, index: int) -> Iterator[Any]:  # type: ignore[override]
        self.opened += 1
        with super().open(index) as source:

            def read_into(offset: int, into: memoryview) -> int:
                self.taken += len(into)
                return source.read_into(offset, into)

            def map_range(offset: int, size: int) -> memoryview:
                into = memoryview(bytearray(size))
                return into[: read_into(offset, into)]

            yield SimpleNamespace(read_into=read_into, map_range=map_range)


def test_only_the_first_damaged_ranges_are_checked_again(spark: SparkSession) -> None:
    """The state holds a bounded number of damaged ranges."""
    rng = random.Random(1)
    places = {segment: rng.sample(range(10_000), count) for segment, count in ((1, 2 * RECHECKED_DAMAGE), (2, 3))}
    rows = [("damage", "a", segment, at, 5) for segment, found in places.items() for at in found]
    schema = "kind string, log string, segment long, phys long, bytes long"
    others = ("end long", "min_ms long", "max_ms long", "bits long")
    none = [f.lit(None).cast(kind).alias(name) for name, kind in (one.split() for one in others)]
    frame = spark.createDataFrame([*rows, ("count", "a", 3, None, 7)], schema).repartition(7).select("*", *none)
    found = {r["segment"]: (r["damaged_at"], r["damaged"]) for r in counted_segments(frame)}
    assert found == {
        1: (sorted(places[1])[:RECHECKED_DAMAGE], max(places[1]) + 5),
        2: (sorted(places[2]), max(places[2]) + 5),
        3: ([], None),
    }


def test_a_check_of_damage_reads_only_the_damaged_records(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, segment=4 << 20)
    places = writer.extend(Message("Table", 0, b"x" * 1000, f"k{i}") for i in range(3000))
    size = places[1] - places[0]
    for at in places[1:41]:
        writer.write(at + 500, b"damage")
    writer.write(places[50] + 4, b"damage")
    writer.write(places[60] + size - 20, b"\xff")
    damaged = (*places[1:41], places[50], places[60])
    known = CountedSegment("store", 0, places[-1], 1, 1, 1, (), 0, 0, None, damaged)

    def found(verify: bool = True) -> tuple[dict[tuple[str, int], None], int]:
        log = SegmentCount(find(str(tmp_path)))
        log.name = "store"
        result = repaired_segments([log], [known], verify)
        assert log.opened == 1
        return result, log.taken

    result, taken = found()
    assert not result
    assert taken < 2 * len(damaged) * size
    # Without a check of bodies, the first damaged record is accepted.
    result, taken = found(False)
    assert list(result) == [("store", 0)]
    assert taken < 2 * size
    writer.write(places[40] + 500, b"xxxxxx")
    assert list(found()[0]) == [("store", 0)]


def test_unwritten_space_is_not_counted(spark: SparkSession, tmp_path: Path) -> None:
    """On a file system that reports no holes, the last segment has bytes to its end."""
    root, out = tmp_path / "store", tmp_path / "out"
    writer = LogWriter(root, segment=1 << 20)
    writer.extend(Message("Table", 0, b"x" * 100, f"k{i}") for i in range(100))
    path = writer.path(0)
    path.write_bytes(path.read_bytes())
    job = Job(paths=(str(root),), out=str(out), now_ms=NOW)
    first = run(spark, job).report["scan"]
    assert (first["scannedBytes"], first["logBytes"], first["incremental"]) == (writer.end, writer.end, False)
    before = writer.end
    writer.extend(Message("Table", 0, b"x" * 100, f"k{i}") for i in range(10))
    torn = b"\x00\x00\x01\x00\xda\xa3\x20\xa7torn"
    writer.write(writer.end, torn)
    for new in (writer.end - before + len(torn), len(torn)):
        scan = run(spark, job).report["scan"]
        assert (scan["scannedBytes"], scan["logBytes"]) == (new, writer.end + len(torn))
        assert scan["incremental"]


def test_unrelated_and_missing_files_are_reported(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "store"
    writer = make_log(root, 5)
    unrelated = root / "commitlog" / "99999999999999999999"
    unrelated.write_bytes(b"foreign")
    size = writer.segment
    writer.path(2 * size).unlink()
    report = run(spark, Job(paths=(str(root),), now_ms=NOW)).report
    unrelated.unlink()
    assert_matches(report, [root], {})
    missing = f"store: no segment holds bytes {2 * size:,} to {3 * size:,}"
    assert report["notes"][0] == missing
    assert "store: ignored files, not part of the log: 99999999999999999999" in report["notes"]
    assert f"Note: {missing}." in summary_text(run_summary(report, None))
