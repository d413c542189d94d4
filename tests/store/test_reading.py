"""Reads by queue, by time and by key, and their cost in files and memory."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from gantry_broker.protocol.codes import GetStatus
from gantry_broker.protocol.message import decode_records, pack_host, tags_hash
from gantry_broker.settings import BrokerSettings
from gantry_broker.store import read
from gantry_broker.store.errors import BadRecords, OffsetGone
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import Put, StoreConfig

from tests.support.present import present

HOST = pack_host("10.1.2.3", 50_000)


@pytest.fixture
def store(quick_dir: Path, small: BrokerSettings) -> Iterator[MessageStore]:
    made = MessageStore.open(StoreConfig(quick_dir / "store", small))
    yield made
    made.close(clean=False)


def put(store: MessageStore, count: int, *, topic: str = "Orders", first: int = 0, size: int = 100) -> None:
    batch = []
    for n in range(first, first + count):
        tags = f"tag{n % 4}"
        batch.append(
            Put(
                topic,
                0,
                0,
                0,
                1,
                HOST,
                n.to_bytes(4, "big").ljust(size),
                f"TAGS\x01{tags}\x02n\x01{n}\x02".encode(),
                tags_hash=tags_hash(tags),
            )
        )
    store.appender.put(batch, 1_000 + first * 10)
    store.indexer.confirm(store.log.end)


def numbers(data: bytes) -> list[int]:
    return [int.from_bytes(record.body[:4], "big") for record in decode_records(data)]


def test_reads_of_many_queues_together_find_the_same_records(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unconfirmed records, entries in files and in memory, records larger than a piece, limits of count and bytes."""
    monkeypatch.setattr(read, "_PIECE", 4_096)
    drawn = random.Random(7)
    queues = [(f"T{n % 5}", n) for n in range(8)]
    for turn in range(40):
        batch = []
        for _ in range(drawn.randrange(1, 12)):
            topic, queue_id = drawn.choice(queues)
            size = drawn.choice([0, 10, 300, 1_000, 5_000])
            batch.append(Put(topic, queue_id, 0, 0, 1, HOST, drawn.randbytes(size), b""))
        store.appender.put(batch, 1_000 + turn)
        if turn % 3:
            store.indexer.confirm(store.log.end)
        if turn % 10 == 0:
            store.queues.write_out()
    found = 0
    for _ in range(20):
        pieces = store.reader.together()
        for topic, queue_id in drawn.sample(queues, len(queues)):
            for offset in drawn.sample(range(60), 20):
                most, most_bytes = drawn.choice([1, 3, 32]), drawn.choice([1, 20_000, 1 << 20])
                got = pieces.try_get(topic, queue_id, offset, most, most_bytes)
                if got is not None:
                    assert got == store.reader.get(topic, queue_id, offset, most, most_bytes)
                    found += 1
                else:
                    assert store.reader.get(topic, queue_id, offset, most, most_bytes).status != GetStatus.FOUND
    assert found > 500


@pytest.mark.parametrize(("most", "calls"), [(32, 3), (3, 1)])
def test_records_that_follow_one_another_are_one_read(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch, most: int, calls: int
) -> None:
    """Many of them alone; a few as a piece, which the further reads share; none record by record."""
    put(store, 64)
    log_read, reads = store.log.read, []

    def counted(at: int, count: int) -> bytes:
        reads.append(count)
        return log_read(at, count)

    monkeypatch.setattr(store.log, "read", counted)
    monkeypatch.setattr(read.LogPieces, "read", failing)
    pieces = store.reader.together()
    for offset in (5, 5, 6):
        got = present(pieces.try_get("Orders", 0, offset, most, 10**6))
        assert numbers(got.data) == list(range(offset, offset + most))
    assert len(reads) == calls


@pytest.mark.parametrize("recent", [False, True])
def test_what_lies_between_the_records_of_a_pull_is_not_read(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch, recent: bool
) -> None:
    """Batches of three queues in turn: a read for each batch, and one for records with little between them."""
    monkeypatch.setattr(read, "_PIECE", 4_096)
    monkeypatch.setattr(read, "_GAP", 1_000)
    monkeypatch.setattr(read, "_SHORT_SPAN", 4_096)
    for turn in range(4):
        for queue_id in range(3):
            batch = [Put("Orders", queue_id, 0, 0, 1, HOST, b"x" * 200, b"") for _ in range(8)]
            store.appender.put(batch, 1_000 + turn)
    for _ in range(8):
        for queue_id in range(2):
            store.appender.put([Put("Orders", queue_id, 0, 0, 1, HOST, b"x" * 200, b"")], 1_010)
    store.indexer.confirm(store.log.end)
    alone = b"".join(store.reader.get("Orders", 0, offset, 1, 10**6).data for offset in range(40))
    log_read, read_bytes = store.log.read, []

    def counted(at: int, count: int) -> bytes:
        read_bytes.append(count)
        return log_read(at, count)

    monkeypatch.setattr(store.log, "read", counted)
    monkeypatch.setattr(read.LogPieces, "read", failing)
    size = len(alone) // 40
    found = store.reader.together().try_get if recent else store.reader.get
    got = present(found("Orders", 0, 0, 40, 10**6))
    assert (got.count, got.data) == (40, alone)
    assert read_bytes == [8 * size] * 4 + [15 * size]


def test_reads_together_leave_damage_and_what_is_old_to_the_other_read(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, 10)
    monkeypatch.setattr(read, "CACHED_BYTES", 300)
    pieces = store.reader.together()
    assert pieces.try_get("Orders", 0, 0, 32, 10**6) is None, "an old record is verified"
    assert pieces.try_get("Orders", 0, 0, 1, 10**6) is None
    assert pieces.try_get("Orders", 0, 9, 32, 10**6) is not None
    monkeypatch.setattr(os, "pread", failing)
    assert store.reader.together().try_get("Orders", 0, 9, 32, 10**6) is None


def failing(*arguments: object) -> bytes:
    raise OSError(errno.EIO, "the disk cannot read")


@pytest.mark.parametrize("written_out", [False, True])
def test_statuses_are_those_of_rocketmq(store: MessageStore, written_out: bool) -> None:
    assert store.reader.get("Orders", 0, 0, 32, 10**6).status == GetStatus.NO_MATCHED_LOGIC_QUEUE
    put(store, 10)
    if written_out:
        store.checkpointer.run_periodic_tasks(10**12)
    got = store.reader.get("Orders", 0, 3, 4, 10**6)
    assert (got.status, got.count, got.next_offset, got.min_offset, got.max_offset) == (GetStatus.FOUND, 4, 7, 0, 10)
    assert numbers(got.data) == [3, 4, 5, 6]
    at_end = store.reader.get("Orders", 0, 10, 4, 10**6)
    assert (at_end.status, at_end.next_offset) == (GetStatus.OFFSET_OVERFLOW_ONE, 10)
    beyond = store.reader.get("Orders", 0, 11, 4, 10**6)
    # As 5.x: to the end. 4.9 sends such a reader back to the first message as long as its queue offset is 0.
    assert (beyond.status, beyond.next_offset) == (GetStatus.OFFSET_OVERFLOW_BADLY, 10)
    assert store.reader.get("Orders", 0, -1, 4, 10**6).status == GetStatus.OFFSET_TOO_SMALL
    assert store.reader.get("Orders", 7, 0, 4, 10**6).status == GetStatus.NO_MATCHED_LOGIC_QUEUE


def test_a_read_is_bounded_in_bytes_and_returns_at_least_one_message(store: MessageStore) -> None:
    put(store, 20, size=1_000)
    size = store.reader.record(0).size
    assert store.reader.get("Orders", 0, 0, 32, 1).count == 1
    assert store.reader.get("Orders", 0, 0, 32, size * 3).count == 3
    assert store.reader.get("Orders", 0, 0, 32, size * 3 + 1).count == 3
    assert store.reader.get("Orders", 0, 0, 5, 10**9).count == 5


def test_a_read_filters_by_tag_hash_and_continues_behind_rejected_entries(store: MessageStore) -> None:
    for first in range(0, 200, 50):
        put(store, 50, first=first)
        put(store, 7, topic="Other")
    wanted = frozenset({tags_hash("tag1"), tags_hash("tag3")})
    offset, seen = 0, []
    while offset < 200:
        got = store.reader.get("Orders", 0, offset, 9, 10**6, wanted)
        seen += numbers(got.data)
        assert got.next_offset > offset
        offset = got.next_offset
    assert seen == [n for n in range(200) if n % 4 in (1, 3)]
    nothing = store.reader.get("Orders", 0, 5, 9, 10**6, frozenset({1}))
    assert (nothing.status, nothing.data, nothing.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, b"", 200)


def test_a_filter_gets_the_whole_record(store: MessageStore) -> None:
    put(store, 40)
    got = store.reader.get("Orders", 0, 0, 9, 10**6, None, lambda record: int(record.props["n"]) % 10 == 7)
    assert numbers(got.data) == [7, 17, 27, 37]


def test_one_read_examines_a_bounded_number_of_entries(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gantry_broker.store.read.MAX_SCAN", 64)
    for first in range(0, 300, 50):
        put(store, 50, first=first)
    got = store.reader.get("Orders", 0, 0, 9, 10**6, frozenset({1}))
    assert (got.status, got.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 64)


def test_the_offset_at_a_time_is_the_first_message_of_that_time_or_later(store: MessageStore) -> None:
    for first in range(0, 300, 30):
        put(store, 30, first=first)
        put(store, 3, topic="Other", first=first)
    times = [store.reader.store_time("Orders", 0, n) for n in range(300)]
    assert times == sorted(times)
    rng = random.Random(3)
    for _ in range(200):
        ms = rng.choice(times) + rng.choice((-1, 0, 1))
        assert store.reader.offset_at_time("Orders", 0, ms) == sum(t < ms for t in times)
    assert store.reader.offset_at_time("Orders", 0, 0) == 0
    assert store.reader.offset_at_time("Orders", 0, 10**12) == 300
    assert store.reader.offset_at_time("Nothing", 0, 0) == 0
    assert store.reader.store_time("Orders", 0, 300) == -1


def test_the_upper_offset_at_a_time_is_the_last_message_of_that_time_or_earlier(store: MessageStore) -> None:
    assert store.reader.offset_at_time("Orders", 0, 5, upper=True) == 0
    for first in range(0, 90, 30):
        put(store, 30, first=first)
    times = [store.reader.store_time("Orders", 0, n) for n in range(90)]
    for ms in range(min(times) - 2, max(times) + 3):
        assert store.reader.offset_at_time("Orders", 0, ms, upper=True) == max(sum(t <= ms for t in times) - 1, 0)


@pytest.mark.parametrize("phys", [1, 50, 100, -1, 10**12])
def test_record_refuses_an_offset_without_a_record(store: MessageStore, phys: int) -> None:
    put(store, 3)
    with pytest.raises((BadRecords, OffsetGone)):
        store.reader.record(phys)


def test_read_bytes_returns_confirmed_bytes_from_any_offset(store: MessageStore) -> None:
    put(store, 3)
    end = store.log.end
    store.appender.put([Put("Orders", 0, 0, 0, 1, HOST, b"x", b"")], 1)
    whole = store.log.read_raw(0, 10**6, end)
    assert store.reader.read_bytes(7, 10**6) == whole[7:]
    assert store.reader.read_bytes(7, 5) == whole[7:12]
    assert store.reader.read_bytes(end, 10) == b""
    assert store.reader.read_bytes(end + 10**9, 10) == b""
    with pytest.raises(OffsetGone):
        store.reader.read_bytes(-1, 10)


def test_keys_are_found_across_index_files_newest_first_and_by_time(store: MessageStore) -> None:
    for n in range(900):
        store.appender.put(
            [Put("Orders", 0, 0, 0, 1, HOST, b"", b"KEYS\x01all k%d\x02" % n, keys=("all", f"k{n}"))], n * 1_000
        )
    store.indexer.confirm(store.log.end)
    assert len(os.listdir(present(store.index).directory)) > 3
    assert [r.store_ms for r in store.reader.query("Orders", "all", 5, 0, 10**9)] == [
        n * 1_000 for n in range(899, 894, -1)
    ]
    assert [r.store_ms for r in store.reader.query("Orders", "all", 99, 250_000, 252_500)] == [
        252_000,
        251_000,
        250_000,
    ]
    for n in (0, 133, 500, 899):
        assert [r.store_ms for r in store.reader.query("Orders", f"k{n}", 5, 0, 10**9)] == [n * 1_000]
    assert store.reader.query("Other", "all", 5, 0, 10**9) == []
    assert store.reader.query("Orders", "all", 5, 0, 10**9, unique=True) == []
    assert store.reader.query("Orders", "", 5, 0, 10**9) == []


MANY_QUEUES = """
import os, resource, sys
from pathlib import Path
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import Put, StoreConfig

def rss():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

store = MessageStore.open(StoreConfig(Path(sys.argv[1]), BrokerSettings(messageIndexEnable=False)))
before = rss()
host = bytes((1, 2, 3, 4, 0, 0, 0, 9))
for turn in range(2):
    for topic in range(1000):
        store.appender.put([Put(f"topic-{topic}", q, 0, 0, 1, host, b"x" * 100, b"") for q in range(8)], 1)
    store.indexer.confirm(store.log.end)
    while store.queues.dirty:
        store.checkpointer.run_periodic_tasks(1)
for topic in range(0, 1000, 7):
    assert store.reader.get(f"topic-{topic}", 3, 0, 32, 10**6).count == 2
print((rss() - before) // 1024, len(os.listdir("/proc/self/fd")))
store.close(clean=False)
"""


def test_a_thousand_topics_of_eight_queues_cost_little_memory_and_few_files(quick_dir: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MANY_QUEUES, str(quick_dir / "many")], capture_output=True, text=True, check=True
    )
    kib, fds = map(int, done.stdout.split())
    assert kib < 60 * 1024
    assert fds < 2_200


def test_a_deep_backlog_is_read_at_constant_memory(quick_dir: Path) -> None:
    script = (
        MANY_QUEUES.partition("before = rss()")[0]
        + """
host = bytes((1, 2, 3, 4, 0, 0, 0, 9))
for n in range(1000):
    store.appender.put([Put("Deep", 0, 0, 0, 1, host, b"x" * 1000, b"") for _ in range(60)], n)
    store.indexer.confirm(store.log.end)
store.checkpointer.run_periodic_tasks(1)
offset, before = 0, rss()
while offset < 60_000:
    offset = store.reader.get("Deep", 0, offset, 32, 262_144).next_offset
print((rss() - before) // 1024)
store.close(clean=False)
"""
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(quick_dir / "deep")], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 4 * 1024
