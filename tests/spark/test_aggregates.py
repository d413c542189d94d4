"""The partial aggregates of tasks against plain Python: they add up for every log and every partitioning."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import Any

import pytest
from gantry_broker.protocol.message import Record
from gantry_spark.aggregates import BITMAP_BITS, SUMS, AggregatesReader
from gantry_spark.decode import MAX_TIME_MS, RecordFilter
from gantry_spark.source import Options
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.spark.random_logs import NO_SHRINKING, SLOW, damaged_log, damages, messages
from tests.spark.reference_log import Message, read_plain

HOUR = 3_600_000


def expected_sums(record: Record) -> dict[str, int]:
    keyed = bool(record.props.get("KEYS"))
    return {
        "n": 1,
        "bytes": record.size,
        "body_bytes": len(record.body),
        "keyed": keyed,
        "keyed_bytes": record.size * keyed,
        "tombstones": keyed and not record.body,
        "redelivered": record.reconsume_times > 0,
        "delayed": bool(re.fullmatch("[0-9]{1,9}", record.props.get("DELAY", ""))),
        "prepared": record.sys_flag & 12 == 4,
        "committed": record.sys_flag & 12 == 8,
        "rolled_back": record.sys_flag & 12 == 12,
    }


def assert_counts(rows: list[dict[str, Any]], records: list[Record]) -> None:
    found: dict[tuple[str, int, int], Counter[str]] = defaultdict(Counter)
    spans: dict[tuple[str, int, int], list[tuple[int, ...]]] = defaultdict(list)
    for row in rows:
        place = (row["topic"], row["queue_id"], row["hour"])
        found[place].update({name: row[name] for name in SUMS})
        spans[place].append((row["min_qo"], row["max_qo"], row["min_ms"], row["max_ms"], row["end"]))
    expected: dict[tuple[str, int, int], Counter[str]] = defaultdict(Counter)
    of: dict[tuple[str, int, int], list[Record]] = defaultdict(list)
    for record in records:
        place = (record.topic, record.queue_id, record.store_ms // HOUR)
        expected[place].update(expected_sums(record))
        of[place].append(record)
    assert found == expected
    for place, some in spans.items():
        low_qo, high_qo, low_ms, high_ms, end = zip(*some, strict=True)
        offsets = [r.queue_offset for r in of[place]]
        times = [r.store_ms for r in of[place]]
        assert (min(low_qo), max(high_qo)) == (min(offsets), max(offsets))
        assert (min(low_ms), max(high_ms)) == (min(times), max(times))
        assert max(end) == max(r.phys_offset + r.size for r in of[place])


def assert_keys(rows: list[dict[str, Any]], keyed: list[Record]) -> None:
    found: dict[tuple[str, int, str], Counter[str]] = defaultdict(Counter)
    newest: dict[tuple[str, int, str], tuple[Any, ...]] = {}
    for row in rows:
        place = (row["topic"], row["queue_id"], row["key"])
        found[place].update(n=row["n"], bytes=row["bytes"])
        last = (row["phys"], row["size"], row["ms"], row["qo"], row["tombstone"])
        newest[place] = max(newest.get(place, last), last)
    expected: dict[tuple[str, int, str], Counter[str]] = defaultdict(Counter)
    last_of: dict[tuple[str, int, str], tuple[Any, ...]] = {}
    for r in keyed:
        place = (r.topic, r.queue_id, r.props["KEYS"])
        expected[place].update(n=1, bytes=r.size)
        last_of[place] = (r.phys_offset, r.size, r.store_ms, r.queue_offset, not r.body)
    assert found == expected
    assert newest == last_of


def marked(rows: list[dict[str, Any]]) -> set[tuple[str, int, int]]:
    return {
        (row["topic"], row["queue_id"], row["bucket"] * BITMAP_BITS + bit)
        for row in rows
        for bit in range(BITMAP_BITS)
        if row["bits"] >> bit & 1
    }


@pytest.mark.timeout(300)
@settings(max_examples=40, deadline=None, phases=NO_SHRINKING, suppress_health_check=SLOW)
@given(
    written=st.lists(messages, min_size=1, max_size=60),
    target=st.sampled_from([0, 5_000, 20_000]),
    affected=damages,
    torn=st.integers(0, 200),
    since=st.none() | st.integers(1_700_000_000_000, 1_700_000_100_000),
)
def test_partial_aggregates_add_up(
    tmp_path_factory: pytest.TempPathFactory,
    written: list[Message],
    target: int,
    affected: list[tuple[int, bytes]],
    torn: int,
    since: int | None,
) -> None:
    root = tmp_path_factory.mktemp("log")
    damaged_log(root, written, affected, torn)
    reader = AggregatesReader(Options({"path": str(root), "partitionbytes": str(target)}), RecordFilter(min_ms=since))
    kinds: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for part in reader.partitions():
        for batch in reader.read(part):
            for row in batch.to_pylist():
                kinds[row["kind"]].append(row)
    records, lost = read_plain(root)
    if since is not None:
        records, lost = [r for r in records if r.store_ms >= since], []
    # The reader clips the store time of a damaged header to the supported years.
    for record in records:
        record.store_ms = min(max(record.store_ms, 0), MAX_TIME_MS)
    assert_counts(kinds["count"], records)
    keyed = [r for r in records if r.props.get("KEYS")]
    assert_keys(kinds["key"], keyed)
    assert marked(kinds["bitmap"]) == {(r.topic, r.queue_id, r.queue_offset) for r in keyed}
    sizes: Counter[tuple[str, int, str]] = Counter()
    for row in kinds["size"]:
        sizes.update({(row["topic"], row["bucket"], name): row[name] for name in ("n", "bytes")})
    wanted: Counter[tuple[str, int, str]] = Counter()
    for r in records:
        bucket = r.size.bit_length() - 1
        wanted.update({(r.topic, bucket, "n"): 1, (r.topic, bucket, "bytes"): r.size})
    assert sizes == wanted
    places = [(row["phys"], row["phys"] + row["bytes"]) for row in kinds["damage"]]
    assert sorted(places) == sorted((x.start, x.end) for x in lost)
