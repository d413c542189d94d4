"""A disk that changed written bytes: no reader gets them, and another copy repairs them."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import orjson
import pytest
from gantry_broker.protocol.codes import GetStatus
from gantry_broker.protocol.message import decode_records, pack_host, tags_hash
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.errors import BadRecords, OffsetGone
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import Put, StoreConfig, Stored

from tests.store.opened import opened

HOST = pack_host("10.1.2.3", 50_000)
HOST_V6 = pack_host("fd00::1", 50_000)
COUNT = 10
BAD = 4


def put(number: int, host: bytes = HOST) -> Put:
    tags = f"tag{number % 2}"
    properties = f"TAGS\x01{tags}\x02n\x01{number}\x02".encode()
    return Put("Orders", 0, 0, 0, 1, host, b"%03d" % number * 40, properties, tags_hash=tags_hash(tags))


def write(path: Path, settings: BrokerSettings, host: bytes = HOST) -> list[Stored]:
    """A cleanly closed store: recovery scans nothing of it."""
    store = MessageStore.open(StoreConfig(path, settings))
    stored = store.appender.put([put(n, host) for n in range(COUNT)], 1_000)
    store.indexer.confirm(store.log.end)
    store.close()
    return stored


def spoil(path: Path, at: int) -> None:
    with open(path / "commitlog" / f"{0:020d}", "r+b") as file:
        file.seek(at)
        held = file.read(1)
        file.seek(at)
        file.write(bytes([held[0] ^ 0x10]))


def bodies(data: bytes) -> list[int]:
    return [int(record.body[:3]) for record in decode_records(data)]


def read_all(store: MessageStore, tags: frozenset[int] | None = None) -> tuple[list[int], int]:
    """The messages that a consumer reads from the beginning, and the offset of the damage that it meets (-1: none)."""
    shown: list[int] = []
    offset = 0
    while True:
        got = store.reader.get("Orders", 0, offset, 3, 10**6, tags)
        if got.status is not GetStatus.FOUND:
            return shown, got.damaged
        shown += bodies(got.data)
        offset = got.next_offset


@pytest.mark.parametrize("host", [HOST, HOST_V6], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("where", [0, 4, 8, 31, -1, -20, 100], ids=str)
def test_no_reader_gets_a_damaged_record_and_a_repair_restores_it(
    quick_dir: Path, small: BrokerSettings, where: int, host: bytes
) -> None:
    """The places are in size, magic, CRC, own offset, end and length of the properties, and body."""
    valid, spoilt = quick_dir / "valid", quick_dir / "spoilt"
    stored = write(valid, small, host)
    write(spoilt, small, host)
    bad = stored[BAD]
    length_at = bad.size - len(put(BAD).properties) - 1
    spoil(spoilt, bad.phys_offset + {-1: length_at, -20: length_at - 1}.get(where, where))

    reported: list[int] = []
    with opened(StoreConfig(spoilt, small)) as store, opened(StoreConfig(valid, small)) as other:
        store.state.on_damage = reported.append
        assert store.state.damage is None  # Recovery scans only the end of the log.
        assert read_all(store) == (list(range(BAD)), bad.phys_offset)
        assert reported == [bad.phys_offset]
        assert read_all(store, frozenset({tags_hash("tag0")})) == ([0, 2], bad.phys_offset)
        assert read_all(store, frozenset({tags_hash("tag1")})) == ([1, 3, 5, 7, 9], -1)
        with pytest.raises(BadRecords) as found:
            store.scrubber.verify(store.scrubber.verify(0, 1), 1 << 20)
        assert found.value.at == bad.phys_offset
        with pytest.raises(BadRecords):
            store.scrubber.verified_bytes(0, 1 << 20)

        store.repair(bad.phys_offset, other.scrubber.verified_bytes(bad.phys_offset, 1))
        assert read_all(store) == (list(range(COUNT)), -1)
        assert store.scrubber.verify(0, 1 << 20) == store.state.confirmed
        assert store.log.read_raw(0, 1 << 20) == other.log.read_raw(0, 1 << 20)


def test_a_filter_does_not_pass_over_a_damaged_record(quick_dir: Path, small: BrokerSettings) -> None:
    bad = write(quick_dir, small)[BAD]
    spoil(quick_dir, bad.phys_offset + 100)
    with opened(StoreConfig(quick_dir, small)) as store:
        got = store.reader.get("Orders", 0, 0, 32, 10**6, None, lambda record: True)
        assert bodies(got.data) == list(range(BAD))
        got = store.reader.get("Orders", 0, got.next_offset, 32, 10**6, None, lambda record: True)
        assert (got.data, got.damaged, got.next_offset) == (b"", bad.phys_offset, BAD)


def test_a_repair_needs_whole_valid_records_of_that_place(quick_dir: Path, small: BrokerSettings) -> None:
    stored = write(quick_dir, small)
    with opened(StoreConfig(quick_dir, small)) as store:
        first, second = stored[0], stored[1]
        with pytest.raises(BadRecords):
            store.repair(first.phys_offset, store.scrubber.verified_bytes(second.phys_offset, 1))
        with pytest.raises(BadRecords):
            store.repair(first.phys_offset, store.scrubber.verified_bytes(first.phys_offset, 1)[:-1])
        with pytest.raises(ValueError, match="is confirmed"):
            store.repair(store.state.confirmed, store.scrubber.verified_bytes(first.phys_offset, 1))
        with pytest.raises(OffsetGone):
            store.scrubber.verify(store.state.confirmed, 1)
        assert read_all(store) == (list(range(COUNT)), -1)


def test_verify_covers_segments_and_large_records(quick_dir: Path, small: BrokerSettings) -> None:
    with opened(StoreConfig(quick_dir, small)) as store:
        for number in range(12):
            message = put(number)
            message.body = bytes([number]) * 20_000
            store.appender.put([message], 1_000)
        store.indexer.confirm(store.log.end)
        assert store.log.end > 3 * small.mappedFileSizeCommitLog
        at, steps = 0, 0
        while at < store.state.confirmed:
            following = store.scrubber.verify(at, 1_000)
            assert store.scrubber.verified_bytes(at, 1_000) == store.log.read_raw(at, following - at)
            at, steps = following, steps + 1
        assert (at, steps >= 12) == (store.state.confirmed, True)


@pytest.mark.parametrize("recovery_point", ["kept", "lost"])
def test_every_start_reports_damage_until_it_is_acknowledged(
    quick_dir: Path, small: BrokerSettings, recovery_point: str
) -> None:
    """The process may end before it has recorded that its disk proves nothing, and the truncation hides the damage."""
    written = write(quick_dir, small)
    seen = quick_dir / "config" / "recoveryPoint.json"
    if recovery_point == "lost":
        seen.write_bytes(b"")
    else:
        seen.write_bytes(
            orjson.dumps({**orjson.loads(seen.read_bytes()), "boot": "another", "clean": False, "durable": 0})
        )
    spoil(quick_dir, written[5].phys_offset)
    for start in range(3):
        store = MessageStore.open(StoreConfig(quick_dir, small))
        assert store.log.end == written[5].phys_offset
        assert (store.state.damage is not None) is (start < 2)
        if start == 1:
            store.recovery.acknowledge_damage()
        store.close(clean=False)


@pytest.mark.parametrize("name", ["abort", "config/damaged"])
def test_a_mark_that_cannot_be_looked_at_ends_the_start(tmp_path: Path, small: BrokerSettings, name: str) -> None:
    """Taken for absent, it would let a store be trusted that no one has closed, or that lacks records."""
    write(tmp_path, small)
    mark = tmp_path / name
    mark.symlink_to(mark)
    with pytest.raises(OSError, match="symbolic links"):
        MessageStore.open(StoreConfig(tmp_path, small))
    mark.unlink()
    MessageStore.open(StoreConfig(tmp_path, small)).close()


@pytest.mark.parametrize("seed", range(20))
def test_damage_at_many_places_is_repaired_from_another_copy(quick_dir: Path, small: BrokerSettings, seed: int) -> None:
    """Several places at once: control records, both ends of segments, what fills a segment, and neighbours."""
    rng = random.Random(seed)
    valid, spoilt = quick_dir / "valid", quick_dir / "spoilt"
    starts: list[int] = []
    store = MessageStore.open(StoreConfig(valid, small))
    for epoch in range(1, 4):
        starts.append(store.log.end)
        store.appender.begin_epoch(epoch, b'{"e":1}', epoch)
        for _ in range(rng.randrange(60, 120)):
            starts.append(store.log.end)
            store.appender.put([put(n) for n in range(rng.randrange(1, 6))], epoch * 1_000)
    store.indexer.confirm(store.log.end)
    end = store.log.end
    store.close()
    shutil.copytree(valid, spoilt)
    files = sorted((spoilt / "commitlog").iterdir())
    size = files[0].stat().st_size
    assert len(files) > 2
    for _ in range(rng.randrange(2, 8)):
        # A record's checksum is of its body. So damage is wide, or in a field that is compared, or in the body.
        border = rng.randrange(1, len(files)) * size
        wide = rng.random() < 0.5
        begin = rng.choice((rng.choice(starts), border, border - rng.randrange(1, 400)))
        place = min(begin if wide else rng.choice(starts) + rng.choice((0, 4, 8, 28)), end - 300)
        with open(files[place // size], "r+b") as file:
            file.seek(place % size)
            length = min(300 if wide else 4, size - place % size)
            file.write(bytes(length) if rng.random() < 0.3 else rng.randbytes(length))
    for path in (spoilt / "consumequeue", spoilt / "index"):
        if rng.random() < 0.3:
            shutil.rmtree(path)
    with opened(StoreConfig(spoilt, small)) as broken, opened(StoreConfig(valid, small)) as other:
        assert broken.log.end <= end
        at = broken.log.start
        for _ in range(2_000):
            if at >= broken.state.confirmed:
                break
            try:
                at = broken.scrubber.verify(at, rng.choice((1, 4_096, 1 << 20)))
            except BadRecords as found:
                data = other.scrubber.verified_bytes(found.at, rng.choice((1, 4_096)))
                broken.repair(found.at, data)
                at = found.at
        else:
            raise AssertionError(f"no progress at {at}")
        assert broken.log.end == end
        assert read_all(broken) == read_all(other)
        assert len(read_all(broken)[0]) > 300
