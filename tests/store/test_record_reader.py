"""The reader of records: its fast path for plain records agrees with the slow path, also on damaged bytes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from gantry_broker.protocol.codes import CONTROL_TOPIC
from gantry_broker.protocol.message import encode_record
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.log.record_reader import (
    NEVER,
    Damage,
    Meta,
    decode_records,
    is_valid_record,
    read_record,
    read_records,
    size_of_first,
)
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import Put, StoreConfig
from gantry_core import size_of_whole

HOST = bytes((10, 0, 0, 7, 0, 0, 4, 210))
HOST_V6 = bytes(range(16)) + bytes((0, 0, 4, 210))
Found = list[tuple[object, ...]]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, int]:
    """The bytes of a log from offset 0, with records of every kind and a filler, and its segment size."""
    settings = BrokerSettings(mappedFileSizeCommitLog=65_536)
    path: Path = tmp_path_factory.mktemp("log")
    store = MessageStore.open(StoreConfig(path / "store", settings))
    store.appender.begin_epoch(1, b"epoch", 1)
    kinds = [("Orders", 0, HOST, b"k\x01v\x02"), ("Orders", 4, HOST, b""), ("a" * 130, 0, HOST, b"k\x01v\x02")]
    kinds += [("Orders", 8, HOST_V6, b"k\x01v\x02"), (CONTROL_TOPIC, 0, HOST, b"k\x01v\x02"), ("B", 12, HOST, b"")]
    for number in range(30):
        for topic, sys_flag, host, properties in kinds:
            store.appender.put([Put(topic, 1, 0, sys_flag, 1, host, b"body" * 80, properties)], 10 + number)
    data = store.log.read_raw(0, store.log.end)
    store.close()
    assert len(data) > 65_536
    return data, 65_536


def fast(data: bytes, segment_size: int, torn: bool, lost_from: int) -> Found:
    """(offset, size, topic, ..., properties) of each record, up to the first damaged one."""
    found: Found = []
    try:
        for record in read_records(data, 0, segment_size, check=True, torn=torn, lost_from=lost_from):
            if isinstance(record, Meta):
                found.append(record[:8])
            elif isinstance(record, int):
                found.append((record,))
            elif record[3] < 0 or record[4] < 0:
                break
            else:
                phys, size, topic, queue_id, number, flags, stored, properties = record
                found.append((phys, size, topic, queue_id, number, flags, stored, properties))
    except Damage:
        pass
    return found


def slow(data: bytes, segment_size: int, torn: bool, lost_from: int) -> Found:
    """The same with `read_record` alone."""
    found: Found = []
    at = 0
    try:
        while at < len(data):
            room = segment_size - at % segment_size
            lost = at >= lost_from
            record = read_record(data, at, len(data), at, check=True, torn=torn, lost=lost)
            if isinstance(record, int):
                if record != room:
                    break
                found.append((record,))
                at += record
            elif record.size + 8 > room:
                break
            else:
                found.append(record[:8])
                at += record.size
    except Damage:
        pass
    return found


def test_the_reader_reads_all_records_of_a_log(log: tuple[bytes, int]) -> None:
    data, segment_size = log
    found = fast(data, segment_size, True, 0)
    assert len(found) == 1 + 180 + len(data) // segment_size
    assert sum(record[0] if len(record) == 1 else record[1] for record in found) == len(data)  # type: ignore[misc]
    assert len(list(decode_records(data))) == 181
    assert size_of_whole(data, 0) == len(data)
    assert size_of_first(data) == found[0][1]
    places = [record for record in found if len(record) > 1]
    assert all(is_valid_record(data, at, at, size) for at, size, *_ in places)  # type: ignore[arg-type]


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("lost_from", [NEVER, 0])
def test_fast_and_slow_path_agree_on_damaged_bytes(log: tuple[bytes, int], torn: bool, lost_from: int) -> None:
    data, segment_size = log
    rng = random.Random(f"{torn} {lost_from}")
    damaged = 0
    whole = slow(data, segment_size, torn, lost_from)
    for _ in range(1_000):
        at = rng.randrange(5_000)
        count = rng.choice((1, 1, 4, 40))
        bad = data[:at] + rng.choice((bytes(count), rng.randbytes(count))) + data[at + count :]
        expected = slow(bad, segment_size, torn, lost_from)
        assert fast(bad, segment_size, torn, lost_from) == expected, f"{count} bytes at {at}"
        damaged += len(expected) < len(whole)
    assert damaged > 300


def test_fast_and_slow_path_agree_on_bytes_that_end_early(log: tuple[bytes, int]) -> None:
    data, segment_size = log
    for stop in range(0, 3_000, 7):
        assert fast(data[:stop], segment_size, True, NEVER) == slow(data[:stop], segment_size, True, NEVER)


@pytest.mark.parametrize(
    ("topic", "records"), [(b"Orders", 1), (CONTROL_TOPIC.encode(), 1), (b"", 0), (b"Ord\0ers", 0)]
)
def test_fast_and_slow_path_agree_on_topics(topic: bytes, records: int) -> None:
    data = encode_record(
        topic=topic or b"X",
        body=b"body",
        properties=b"k\x01v\x02",
        queue_id=0,
        queue_offset=0,
        phys_offset=0,
        born_ms=1,
        born_host=HOST,
        store_ms=2,
        store_host=HOST,
    )
    if not topic:
        at = data.index(b"body") + 4
        data = (len(data) - 1).to_bytes(4, "big") + data[4:at] + b"\0" + data[at + 2 :]
    assert len(fast(data, 65_536, True, NEVER)) == len(slow(data, 65_536, True, NEVER)) == records
