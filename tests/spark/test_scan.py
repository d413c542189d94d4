"""The vectorised decoder against plain Python, without Spark: every field, every kind of record and of damage."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gantry_broker.protocol.message import Record, parse_properties
from gantry_spark import directory
from gantry_spark import scan as scan_module
from gantry_spark.decode import MAX_TIME_MS, RecordFilter, batch_of, property_names
from gantry_spark.directory import DirectoryLog, find
from gantry_spark.environment import read_environment
from gantry_spark.errors import SourceError
from gantry_spark.partitioning import gaps, pack_tasks, plan_ranges
from gantry_spark.records import body_crcs
from gantry_spark.scan import Damage, Range, Records, scan
from gantry_spark.schema import COLUMNS, arrow_schema, spark_schema
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.spark.random_logs import NO_SHRINKING, SLOW, damaged_log, damages, messages
from tests.spark.reference_log import LogWriter, Message, read_plain
from tests.support.unpacking import unpack

DATA = Path(__file__).parent.parent / "data" / "stores"
ALL = tuple(COLUMNS)
SCHEMA = arrow_schema(spark_schema(ALL))


def read_all(
    root: Path,
    target: int = 1 << 40,
    block: int = 8 << 20,
    names: Sequence[str] = (),
    where: RecordFilter | None = None,
) -> tuple[list[dict[str, Any]], list[Damage]]:
    log = DirectoryLog(find(str(root)))
    rows: list[dict[str, Any]] = []
    damage: list[Damage] = []
    for part in plan_ranges(log, target, RecordFilter()):
        with log.open(part.segment) as source:
            for found in scan(source, part.range, block=block, names=names):
                if isinstance(found, Records):
                    segment = log.segments[part.segment].start
                    batch = batch_of("log", segment, found, ALL, SCHEMA, where or RecordFilter())
                    rows += [] if batch is None else batch.to_pylist()
                else:
                    damage.append(found)
    return rows, damage


def assert_same(row: dict[str, Any], record: Record) -> None:
    props = parse_properties(record.properties)
    host = "{}:{}" if ":" not in record.born_host[0] else "[{}]:{}"
    store_host = "{}:{}" if ":" not in record.store_host[0] else "[{}]:{}"
    level = props.get("DELAY")
    assert row == {
        "log": "log",
        "segment": row["segment"],
        "topic": record.topic,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "physical_offset": record.phys_offset,
        "size": record.size,
        "store_time": row["store_time"],
        "born_time": row["born_time"],
        "born_host": host.format(*record.born_host),
        "store_host": store_host.format(*record.store_host),
        "keys": props.get("KEYS"),
        "unique_id": props.get("UNIQ_KEY"),
        "tags": props.get("TAGS"),
        "properties": row["properties"],
        "body_size": len(record.body),
        "flag": record.flag,
        "system_flag": record.sys_flag,
        "delay_level": int(level) if level and re.fullmatch("[0-9]{1,9}", level) else None,
        "reconsume_times": record.reconsume_times,
        "transaction": {4: "prepared", 8: "committed", 12: "rolled back"}.get(record.sys_flag & 12),
        "prepared_offset": record.prepared_offset,
        "damage": None,
        "body": record.body,
    }
    assert len(row["properties"]) == len(props)
    assert dict(row["properties"]) == props
    assert round(row["store_time"].timestamp() * 1000) == min(max(record.store_ms, 0), MAX_TIME_MS)
    assert round(row["born_time"].timestamp() * 1000) == min(max(record.born_ms, 0), MAX_TIME_MS)


def assert_reads_like_plain(root: Path, target: int = 1 << 40, block: int = 8 << 20) -> None:
    rows, damage = read_all(root, target, block)
    records, lost = read_plain(root)
    assert [r["physical_offset"] for r in rows] == [r.phys_offset for r in records]
    for row, record in zip(rows, records, strict=True):
        assert_same(row, record)
    assert sorted((d.start, d.end) for d in damage) == sorted((x.start, x.end) for x in lost)


@pytest.mark.parametrize("version", ["49", "5x"])
@pytest.mark.parametrize("state", ["clean", "running"])
def test_stores_of_apache_rocketmq(tmp_path: Path, version: str, state: str) -> None:
    unpack(DATA / f"{version}-{state}.tar.gz", tmp_path)
    manifest = json.loads((DATA / f"{version}-manifest.json").read_text())
    rows, damage = read_all(tmp_path / state)
    expected = manifest["stores"][state]["records"]
    # Apache RocketMQ made the first file of the running store longer than the copied part, without records there.
    assert [d.reason for d in damage if "before the end" not in d.reason] == []
    assert len(rows) == len(expected) == manifest["stores"][state]["recordCount"]
    for row, record in zip(rows, expected, strict=True):
        assert (row["physical_offset"], row["size"]) == (record["physicOffset"], record["size"])
        assert (row["topic"], row["queue_id"], row["queue_offset"]) == (
            record["topic"], record["queueId"], record["queueOffset"],
        )  # fmt: skip
        assert dict(row["properties"]) == record["properties"]
        assert (row["keys"], row["tags"], row["unique_id"]) == (record["keys"], record["tags"], record["uniqKey"])
        assert (row["born_host"], row["store_host"]) == (record["bornHost"], record["storeHost"])
        assert round(row["store_time"].timestamp() * 1000) == record["storeTimestamp"]
        assert round(row["born_time"].timestamp() * 1000) == record["bornTimestamp"]
        assert (row["system_flag"], row["flag"]) == (record["sysFlag"], record["flag"])
        assert row["reconsume_times"] == record["reconsumeTimes"]
        assert row["prepared_offset"] == record["preparedTransactionOffset"]
        if not record["sysFlag"] & 1:
            assert hashlib.sha256(row["body"]).hexdigest() == record["bodySha256"]
    assert_reads_like_plain(tmp_path / state)


@settings(max_examples=60, deadline=None, phases=NO_SHRINKING, suppress_health_check=SLOW)
@given(
    written=st.lists(messages, min_size=1, max_size=40),
    target=st.sampled_from([1 << 40, 5_000, 20_000]),
    block=st.sampled_from([8 << 20, 4_096, 1_000]),
    affected=damages,
    torn=st.integers(0, 200),
)
def test_the_scan_equals_plain_python(
    tmp_path_factory: pytest.TempPathFactory,
    written: list[Message],
    target: int,
    block: int,
    affected: list[tuple[int, bytes]],
    torn: int,
) -> None:
    root = tmp_path_factory.mktemp("log")
    damaged_log(root, written, affected, torn)
    assert_reads_like_plain(root, target, block)


@settings(max_examples=40, deadline=None, phases=NO_SHRINKING, suppress_health_check=SLOW)
@given(
    st.lists(messages, min_size=1, max_size=25),
    damages,
    st.sampled_from([600, 5_000, 8 << 20]),
    st.sampled_from([(), property_names(ALL)]),
    st.sampled_from([None, RecordFilter(topics=frozenset({"a", "täglich"})), RecordFilter(queues=frozenset({1, 2}))]),
)
def test_the_core_and_numpy_read_the_same(
    written: list[Message],
    affected: list[tuple[int, bytes]],
    block: int,
    names: Sequence[str],
    where: RecordFilter | None,
) -> None:
    """Each of the two ways gives all records and the damage, also with a filter and with properties named before."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        damaged_log(Path(folder) / "s", written, affected, 0)
        for compiled in (False, True):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(scan_module, "COMPILED", compiled)
                rows, damage = read_all(Path(folder) / "s", block=block, names=names, where=where)
                found.append((rows, sorted((one.start, one.end, one.reason) for one in damage)))
    assert found[0] == found[1]


def test_one_task_reads_several_small_ranges(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    writer.extend(Message(body=b"x" * 500, key=str(i)) for i in range(400))
    parts = plan_ranges(DirectoryLog(find(str(tmp_path))), 30_000, RecordFilter())
    sizes = [p.range.stop - p.range.start for p in parts]
    for target in (1, 30_000, 100_000, 1 << 30):
        packs = pack_tasks(parts, target)
        assert [part for one in packs for part in one] == parts
        filled = [sum(p.range.stop - p.range.start for p in one) for one in packs]
        assert all(size <= target + target // 8 for one, size in zip(packs, filled, strict=True) if len(one) > 1)
        assert all(a + b > target for a, b in pairwise(filled))
    assert (
        len(pack_tasks(parts, 1)) == len(parts) > len(pack_tasks(parts, 100_000)) > len(pack_tasks(parts, 1 << 30)) == 1
    )
    # The start of a new segment joins the range before it, although that range has the full size.
    assert len(pack_tasks([*parts[:1], *parts[-1:]], sizes[0] + sizes[-1] - 100)) == 1
    assert pack_tasks([], 1) == []


class VisitCounter(list[tuple[int, int]]):
    """Ranges that count the accesses to them."""

    visits = 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for one in super().__iter__():
            self.visits += 1
            yield one


def test_planning_visits_each_range_once(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, segment=1024)
    places = writer.extend(Message(body=b"x" * 100, key=str(i)) for i in range(1000))
    log = DirectoryLog(find(str(tmp_path)))
    assert len(log.segments) > 150
    everything = [(p.range.start, p.range.stop) for p in plan_ranges(log, 1 << 30, RecordFilter())]
    within = VisitCounter(reversed(everything))
    assert [(p.range.start, p.range.stop) for p in plan_ranges(log, 1 << 30, RecordFilter(), within)] == everything
    assert within.visits == len(everything)
    # Over several segments, within one, empty, and outside of the log.
    first, size = log.segments[-1].limit, writer.segment
    some = [(places[500], places[510]), (places[1], places[3]), (places[5], places[5]), (first, first + size)]
    expected = [(places[1], places[3])]
    for segment in log.segments:
        low, high = max(segment.start, places[500]), min(segment.limit, places[510])
        expected += [(low, high)] * (low < high)
    assert len(expected) > 2
    assert [(p.range.start, p.range.stop) for p in plan_ranges(log, 1 << 30, RecordFilter(), some)] == expected


def test_partitions_meet_at_record_boundaries(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, segment=1 << 20)
    places = writer.extend(Message(body=b"x" * (i % 700), key=str(i)) for i in range(4000))
    log = DirectoryLog(find(str(tmp_path)))
    parts = plan_ranges(log, 100_000, RecordFilter())
    assert len(parts) > 10
    assert {p.range.start for p in parts} <= set(places)
    spans = [(p.range.start, p.range.stop) for p in parts]
    for (_, end), (start, _) in pairwise(spans):
        assert start == end


def test_a_segment_outside_the_times_is_not_read(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    hour = 3_600_000
    writer.extend(Message(body=b"x" * 1000, store_ms=1_700_000_000_000 + i * hour // 10) for i in range(400))
    log = DirectoryLog(find(str(tmp_path)))
    everything = plan_ranges(log, 1 << 30, RecordFilter())
    assert len(everything) == len(log.segments) > 5
    late = RecordFilter(min_ms=1_700_000_000_000 + 38 * hour)
    assert [p.segment for p in plan_ranges(log, 1 << 30, late)] == [len(log.segments) - 1]
    early = RecordFilter(max_ms=1_700_000_000_000 + hour)
    assert [p.segment for p in plan_ranges(log, 1 << 30, early)] == [0]


@pytest.mark.parametrize("wrong", [-(2**62), 0, 1_600_000_000_000, 1_710_000_000_000, 4_000_000_000_000, 2**62])
@pytest.mark.parametrize("segment", [0, 3, -1])
@pytest.mark.parametrize("target", [20_000, 1 << 30])
def test_a_damaged_store_time_hides_no_record(tmp_path: Path, segment: int, wrong: int, target: int) -> None:
    """A header has no checksum, and the first store time of a segment bounds the times of the one before."""
    writer = LogWriter(tmp_path)
    hour, start = 3_600_000, 1_700_000_000_000
    writer.extend(Message(body=b"x" * 1000, store_ms=start + i * hour // 10) for i in range(400))
    writer.write(DirectoryLog(find(str(tmp_path))).segments[segment].start + 56, wrong.to_bytes(8, "big", signed=True))
    log = DirectoryLog(find(str(tmp_path)))
    records = read_plain(tmp_path)[0]
    assert wrong in {r.store_ms for r in records}
    for bound in (start + n * hour for n in (5, 20, 36)):
        for where in (RecordFilter(min_ms=bound), RecordFilter(max_ms=bound)):
            low, high = where.min_ms or -(2**63), where.max_ms or 2**63
            assert places_of(log, where, target) == [r.phys_offset for r in records if low <= r.store_ms <= high]


def places_of(log: DirectoryLog, where: RecordFilter, target: int) -> list[int]:
    """Return the offsets of the records of a log that pass a filter."""
    found: list[int] = []
    for part in plan_ranges(log, target, where):
        with log.open(part.segment) as source:
            for some in scan(source, part.range):
                assert isinstance(some, Records)
                found += (some.base + some.at)[where.matching_rows(some)].tolist()
    return found


def test_records_from_the_future_hide_none_after_them(tmp_path: Path) -> None:
    """No range follows the last one, so nothing contradicts its first time."""
    start, future = 1_700_000_000_000, 4_000_000_000_000
    times = (future, future, *range(start, start + 50))
    places = LogWriter(tmp_path).extend(Message(body=b"x" * 100, store_ms=ms) for ms in times)
    log = DirectoryLog(find(str(tmp_path)))
    assert places_of(log, RecordFilter(max_ms=start + 9), 1 << 30) == places[2:12]
    assert places_of(log, RecordFilter(min_ms=future), 1 << 30) == places[:2]


def test_a_record_larger_than_a_block(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, segment=4 << 20)
    writer.extend([Message(body=b"1"), Message(body=b"y" * 3_000_000), Message(body=b"2")])
    assert_reads_like_plain(tmp_path, block=1 << 16)


def test_an_impossible_size_is_damage_and_costs_no_memory(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, segment=1 << 20)
    places = writer.extend(Message(body=b"x" * 500) for _ in range(20))
    writer.write(places[5], (900_000).to_bytes(4, "big"))
    rows, damage = read_all(tmp_path)
    assert len(rows) == 19
    assert [(d.start, d.end, d.reason) for d in damage] == [(places[5], places[6], "no records")]


def test_scan_stops_at_the_limit(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    places = writer.extend(Message(body=b"x" * 100) for _ in range(20))
    log = DirectoryLog(find(str(tmp_path)))
    with log.open(0) as source:
        limit = places[10]
        found = list(scan(source, Range(0, limit, limit, 64 * 1024, True)))
    assert [len(f) for f in found if isinstance(f, Records)] == [10]
    assert not [f for f in found if isinstance(f, Damage)]


def test_a_filler_of_any_length_ends_a_segment(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, segment=4096)
    writer.extend(Message(body=b"x" * (37 * i % 900)) for i in range(300))
    rows, damage = read_all(tmp_path)
    assert len(rows) == 300
    assert not damage


@pytest.mark.parametrize("longest", [0, 3, 700, 5_000])
def test_the_crcs_of_bodies_of_any_length(longest: int) -> None:
    rng = np.random.default_rng(longest)
    length = rng.integers(0, longest + 1, 1_500)
    gaps = rng.integers(0, 3, 1_500)
    at = np.cumsum(length + gaps) - length
    buf = rng.integers(0, 256, int((length + gaps).sum()) + 1, dtype=np.uint8)
    expected = [zlib.crc32(buf[a : a + n]) for a, n in zip(at.tolist(), length.tolist(), strict=True)]
    for count in (0, 1, 2, 511, 512, 513, 1_500):
        assert body_crcs(buf, at[:count], length[:count]).tolist() == expected[:count]


@pytest.fixture
def two_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DirectoryLog:
    """A log whose bytes are immutable except for the last 50,000."""
    monkeypatch.setattr(directory, "MUTABLE_TAIL_BYTES", 50_000)
    writer = LogWriter(tmp_path, segment=1 << 20)
    writer.extend(Message(topic=f"t{i % 3}", body=bytes([i % 251]) * (i % 1500)) for i in range(2_000))
    return DirectoryLog(find(str(tmp_path)))


def scanned(source: Any, segment: Any, block: int) -> tuple[list[int], list[Damage]]:
    """Return the record offsets and the damage of a segment that is not the last one."""
    offsets: list[int] = []
    damage: list[Damage] = []
    for found in scan(source, Range(segment.start, segment.limit, segment.limit, segment.end, False), block=block):
        if isinstance(found, Records):
            offsets += (found.base + found.at).tolist()
        else:
            damage.append(found)
    return offsets, damage


@pytest.mark.parametrize("block", [5_000, 100_000, 1 << 24])
def test_the_mutable_tail_is_read_and_the_rest_mapped(two_segments: DirectoryLog, block: int) -> None:
    log = two_segments
    with log.open(0) as first, log.open(1) as last:
        assert first.map_range(log.segments[0].start, 100) is not None
        settled = log.segments[1].limit - 50_000
        assert last.map_range(settled - 100, 100) is not None
        assert last.map_range(settled - 100, 101) is None
        by_both = scanned(last, log.segments[1], block)
        last.map_range = lambda offset, size: None  # type: ignore[method-assign]
        assert scanned(last, log.segments[1], block) == by_both
        by_map = scanned(first, log.segments[0], block)
        first.map_range = lambda offset, size: None  # type: ignore[method-assign]
        assert scanned(first, log.segments[0], block) == by_map
    assert len(by_map[0]) > 1_000
    assert not by_map[1]


def test_the_mutable_tail_reaches_into_the_segment_before(
    two_segments: DirectoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = two_segments
    first, last = log.segments
    monkeypatch.setattr(directory, "MUTABLE_TAIL_BYTES", last.limit - last.start + 1_000)
    with log.open(0) as before, log.open(1) as newest:
        assert before.map_range(first.end - 1_100, 100) is not None
        assert before.map_range(first.end - 1_100, 101) is None
        assert newest.map_range(last.start, 100) is None


def test_a_mapped_segment_may_be_deleted_while_it_is_read(two_segments: DirectoryLog) -> None:
    log = two_segments
    with log.open(0) as source:
        expected = scanned(source, log.segments[0], 100_000)
        Path(log.segments[0].path).unlink()
        assert scanned(source, log.segments[0], 100_000) == expected


def test_a_truncated_segment_is_read_to_its_end(two_segments: DirectoryLog) -> None:
    log = two_segments
    with log.open(0) as source:
        all_of_it, _ = scanned(source, log.segments[0], 100_000)
        with open(log.segments[0].path, "r+b") as file:
            file.truncate(all_of_it[500] + 10)
        offsets, damage = scanned(source, log.segments[0], 100_000)
    assert offsets == all_of_it[:500]
    assert [d.start for d in damage] == [all_of_it[500]]


def test_a_name_beyond_all_offsets_is_no_segment(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "store")
    writer.append(Message())
    for name in ("99999999999999999999", str(2**63).zfill(20), str(2**63 - 1).zfill(20), "\u0661" * 20):
        (tmp_path / "store" / "commitlog" / name).write_bytes(b"foreign")
    log = find(str(tmp_path / "store"))
    assert [s.start for s in log.segments] == [0]
    assert len(log.unrelated) == 4


def test_unrelated_files_with_names_of_segments(tmp_path: Path) -> None:
    """Unrelated files are left out at every position. Damaged segments are kept."""
    root = tmp_path / "store"
    writer = LogWriter(root, start=3 * 64 * 1024)
    writer.extend(Message(body=b"x" * 5000, key=str(i)) for i in range(60))
    size, folder = writer.segment, root / "commitlog"
    real = sorted(int(p.name) for p in folder.iterdir())
    # Damaged segments: one without any record, and a truncated last one without its first record.
    writer.path(4 * size).write_bytes(b"\xff" * size)
    writer.write(real[-1], b"\xff" * 50)
    last = writer.path(real[-1])
    last.write_bytes(last.read_bytes()[:20_000])
    unrelated = [f"{offset:020d}" for offset in (0, 3 * size - 5, 3 * size + 100, 5 * size + 7, 2**62)]
    for name in unrelated:
        (folder / name).write_bytes(b"foreign" * 100)
    (folder / unrelated[-1]).write_bytes(bytes(700))
    found = find(str(root))
    assert [s.start for s in found.segments] == real
    assert found.unrelated == unrelated
    for name in unrelated:
        (folder / name).unlink()
    assert_reads_like_plain(root)
    # A file with a record is a segment. Of two overlapping segments the right one is unknown.
    other = LogWriter(tmp_path / "other", start=3 * size + 200)
    other.append(Message())
    (folder / unrelated[2]).write_bytes(b"?" * 100 + other.path(3 * size).read_bytes()[200:1000])
    with pytest.raises(
        SourceError, match=rf"{3 * size + 100:020d} begins within {3 * size:020d}, which has 65536 bytes"
    ):
        find(str(root))


def test_files_deleted_during_the_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failover deletes the newest files. The rest is the log."""
    LogWriter(tmp_path).extend(Message(body=b"x" * 5000) for _ in range(100))
    files = sorted((tmp_path / "commitlog").iterdir())

    def sized(folder: Path, sizes: dict[str, int]) -> dict[str, int]:
        files.pop().unlink()
        return sizes

    monkeypatch.setattr(directory, "_without_unrelated", sized)
    while len(files) > 1:
        log = DirectoryLog(find(str(tmp_path)))
        assert [s.start for s in log.segments] == [int(path.name) for path in files]


def test_files_deleted_during_the_search_for_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file disappears after its check. The file before it is then the last."""
    LogWriter(tmp_path).extend(Message(body=b"x" * 5000) for _ in range(30))
    files = sorted((tmp_path / "commitlog").iterdir())
    written = directory._data_end
    gone: list[str] = []

    def measured(path: str, size: int) -> int | None:
        if not gone:
            gone.append(path)
            Path(path).unlink()
        return written(path, size)

    monkeypatch.setattr(directory, "_data_end", measured)
    while files:
        gone.clear()
        log = find(str(tmp_path))
        assert gone == [str(files.pop())]
        assert [s.path for s in log.segments] == [str(path) for path in files]
        assert all(s.limit > s.start for s in log.segments)


@contextmanager
def without_root() -> Iterator[None]:
    """Drop root's right to read everything."""
    if os.geteuid() == 0:
        os.seteuid(65534)
        try:
            yield
        finally:
            os.seteuid(0)
    else:
        yield


def test_an_error_names_an_unreadable_file() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        root = Path(folder) / "store"
        LogWriter(root).append(Message())
        (root / "config").mkdir()
        (root / "config" / "consumerOffset.json").write_text('{"offsetTable": {"Orders@g": {"0": 1}}}')
        for path, mode in ((root / "commitlog" / f"{0:020d}", 0), (root / "commitlog", 0o444), (root, 0)):
            before = path.stat().st_mode
            path.chmod(mode)
            with (
                without_root(),
                pytest.raises(SourceError, match=rf"{path}.* cannot be (read|listed): Permission denied"),
            ):
                find(str(root))
            path.chmod(before)
        # Without consumer offsets the report has a note.
        (root / "config").chmod(0)
        with without_root():
            found = read_environment([DirectoryLog(find(str(root)))], None)
        (root / "config").chmod(0o755)
        assert not found.offsets
        assert "Permission denied" in found.notes[0]


def test_missing_segments_in_the_middle(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "store")
    writer.extend(Message(body=b"x" * 5000) for _ in range(100))
    size = writer.segment

    def found() -> list[tuple[int, int]]:
        return gaps(DirectoryLog(find(str(tmp_path / "store"))))

    assert not found()
    writer.path(0).unlink()
    assert not found(), "the first ones expire"
    for gone in (2, 3, 5):
        writer.path(gone * size).unlink()
    assert found() == [(2 * size, 4 * size), (5 * size, 6 * size)]
