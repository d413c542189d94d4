"""Old messages are read from the archive: histories by seed. Local retention, the archive's own and the deletion of
topics move; the object store fails. Each pull from the first to the last message returns every record once, in order.
"""

from __future__ import annotations

import contextlib
import os
import random
from itertools import pairwise
from pathlib import Path

import pytest
from gantry_broker.archive.archiver import Archiver
from gantry_broker.archive.chain import Archive
from gantry_broker.archive.errors import ArchiveError, Damaged, Missing, Unavailable
from gantry_broker.archive.manifest import State
from gantry_broker.archive.sealing import Encrypted, Plain
from gantry_broker.archive.tiered import Below, NotCached, TieredLog
from gantry_broker.archive.upload import Settings, View
from gantry_broker.protocol.codes import GetStatus
from gantry_broker.protocol.message import Record, decode_record
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.log.record_reader import decode_records
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import Put, StoreConfig

from tests.archive.memory_objects import MemoryObjects

SEGMENT = 65_536
HISTORIES = int(os.environ.get("ARCHIVE_HISTORIES", "25"))
SETTINGS = BrokerSettings(
    mappedFileSizeCommitLog=SEGMENT, mappedFileSizeConsumeQueue=2_000, maxHashSlotNum=100, maxIndexNum=400
)
QUEUES = [("A", 0), ("A", 1), ("B", 0), ("B", 1)]
HOST = b"\x7f\0\0\1\0\0\0\1"


class Tiers:
    """One log, its archive, and the reader of both."""

    def __init__(self, seed: int, folder: Path, *, fail: float = 0.1) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.objects = MemoryObjects(seed, fail=fail)
        self.now = 1_700_000_000_000
        self.store = MessageStore.open(StoreConfig(folder / "m", SETTINGS))
        self.archive = Archive(self.objects, Encrypted(bytes(32)) if seed % 3 == 0 else Plain())
        self.settings = Settings(5_000, self.random.choice([None, 200_000]), self.random.choice([4_000, 20_000]))
        self.archiver = Archiver(
            self.archive, group="a", uid="u", cluster="c", log_dir=folder / "m" / "commitlog", view=lambda: None,
            turn=lambda: True, settings=lambda: self.settings, delays=(1_000,), clock_ms=lambda: self.now,
        )  # fmt: skip
        self.model: list[Record] = []
        self.marks: dict[str, int] = {}
        self.sent = 0
        self.restart()
        self.store.appender.begin_epoch(1, b'{"kind":"epoch"}', self.now)
        self.store.indexer.confirm(self.store.log.end)

    def restart(self) -> None:
        limit = self.random.choice([0, 3_000, 1 << 20])
        self.tiered = TieredLog(self.archive.group("a"), self.folder / "cache", limit)
        self.tiered.open()

    @property
    def state(self) -> State:
        return self.archiver._state or State()

    def put(self) -> None:
        begun = self.store.log.end
        puts = []
        for _ in range(self.random.randint(1, 12)):
            self.sent += 1
            body = b"%d " % self.sent + self.random.randbytes(self.random.choice([10, 100, 3_000]))
            topic, queue = self.random.choice(QUEUES)
            properties = f"KEYS\x01k{self.sent // 2}\x02TAGS\x01t{self.sent % 3}\x02UNIQ_KEY\x01u{self.sent}".encode()
            puts.append(Put(topic, queue, 0, 0, self.now, HOST, body, properties))
        self.store.appender.put(puts, self.now)
        self.store.indexer.confirm(self.store.log.end)
        self.model += decode_records(b"".join(data for _, data in self.store.log.chunks(begun, self.store.log.end)))

    def upload(self) -> None:
        view = View(self.store.log.start, self.store.state.confirmed, SEGMENT, self.store.epoch_cache.epochs)
        self.objects.now_ms = self.now
        for _ in range(self.random.randint(1, 30)):
            try:
                if not self.archiver._step(view, self.settings, True):
                    return
            except ArchiveError:
                self.archiver._state = None

    def refresh(self) -> None:
        with contextlib.suppress(Unavailable):
            self.tiered.refresh(self.state, self.store.log.start, self.marks)

    def retain(self) -> None:
        """Local retention removes what is archived, and sometimes what is not."""
        last = self.store.state.confirmed - self.store.state.confirmed % SEGMENT
        archived = self.state.end - self.state.end % SEGMENT
        upto = last if self.random.random() < 0.1 else min(last, archived)
        if upto > self.store.log.start:
            self.store.retention.remove_before(upto)

    def drop(self) -> None:
        topic = self.random.choice("AB")
        self.marks[topic] = self.store.state.confirmed
        self.store.queues.drop_topic(topic, self.store.state.confirmed)

    def below(self, topic: str, queue: int) -> Below:
        return Below(self.store.reader.min_offset(topic, queue), self.marks.get(topic, 0), self.store.log.start)

    def pull_all(self, topic: str, queue: int) -> list[Record]:
        """As a consumer that begins at the first offset: what comes, up to the end."""
        low, high = self.store.reader.bounds(topic, queue)
        at = min(self.tiered.view.floors.get((topic, queue), low), low)
        if self.marks.get(topic, 0) >= self.store.log.start:
            at = low
        found: list[Record] = []
        failures = 0
        while at < high:
            count = self.random.choice([1, 3, 32])
            if at < low:
                try:
                    read = self.tiered.get(
                        topic, queue, at, self.below(topic, queue), count, self.random.choice([1, 5_000, 1 << 18]),
                        offline=self.random.random() < 0.2,
                    )  # fmt: skip
                except (Unavailable, NotCached):
                    failures += 1
                    assert failures < 10_000
                    continue
                assert read.next_offset > at
                data, at = read.data, read.next_offset
            else:
                got = self.store.reader.get(topic, queue, at, count, 1 << 18)
                assert got.status is GetStatus.FOUND
                data, at = got.data, got.next_offset
            found += decode_records(data)
        return found

    def visible(self, topic: str, queue: int) -> list[Record]:
        first = max(min(self.state.start, self.store.log.start), self.marks.get(topic, 0))
        gaps = self.state.gaps
        return [
            r
            for r in self.model
            if (r.topic, r.queue_id) == (topic, queue)
            and r.phys_offset >= first
            and (r.phys_offset >= self.store.log.start or not any(g.start <= r.phys_offset < g.end for g in gaps))
        ]

    def settle(self) -> None:
        """Let the archive and its index catch up."""
        self.objects.fail = 0.0
        self.now += 10_000
        view = View(self.store.log.start, self.store.state.confirmed, SEGMENT, self.store.epoch_cache.epochs)
        while self.archiver._step(view, self.settings, True):
            pass
        self.tiered.refresh(self.state, self.store.log.start, self.marks)
        self.objects.fail = 0.1

    def check(self) -> None:
        for topic, queue in QUEUES:
            expected = self.visible(topic, queue)
            found = self.pull_all(topic, queue)
            assert [r.encode() for r in found] == [r.encode() for r in expected], (topic, queue)


def step(tiers: Tiers) -> None:
    tiers.now += tiers.random.choice([1, 1_000, 20_000])
    action = tiers.random.choices(
        [tiers.put, tiers.upload, tiers.refresh, tiers.retain, tiers.drop, tiers.restart], [12, 4, 3, 1, 0.1, 0.3]
    )[0]
    action()


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_every_message_comes_once_and_in_order(seed: int, tmp_path: Path) -> None:
    tiers = Tiers(seed, tmp_path)
    for _ in range(4):
        for _ in range(40):
            step(tiers)
        tiers.settle()
        tiers.retain()
        tiers.settle()
        tiers.check()
    tiers.store.close()


@pytest.fixture
def tiers(tmp_path: Path) -> Tiers:
    return filled(tmp_path)


def filled(tmp_path: Path) -> Tiers:
    """A log whose first segments are in the archive only."""
    tiers = Tiers(1, tmp_path, fail=0.0)
    tiers.settings = Settings(5_000, None, 20_000)
    while tiers.store.log.end < 5 * SEGMENT:
        tiers.now += 1_000
        tiers.put()
    tiers.settle()
    tiers.objects.fail = 0.0
    tiers.store.retention.remove_before(3 * SEGMENT)
    tiers.settle()
    tiers.objects.fail = 0.0
    return tiers


def test_times_keys_and_places_are_found(tiers: Tiers) -> None:
    old = [r for r in tiers.model if r.phys_offset < tiers.store.log.start]
    assert old
    start = tiers.store.log.start
    for record in tiers.random.sample(old, 20):
        topic, queue, below = record.topic, record.queue_id, tiers.below(record.topic, record.queue_id)
        mine = [r for r in old if (r.topic, r.queue_id) == (topic, queue)]
        first = next(r.queue_offset for r in mine if r.store_ms >= record.store_ms)
        last = next(r.queue_offset for r in reversed(mine) if r.store_ms <= record.store_ms)
        tiered = tiers.tiered
        assert tiered.offset_at_time(topic, queue, record.store_ms, below) == first
        assert tiered.offset_at_time(topic, queue, record.store_ms, below, upper=True) == last
        assert tiered.store_time(topic, queue, record.queue_offset, below) == record.store_ms
        assert tiered.record(record.phys_offset, start, {}).encode() == record.encode()
        key = record.props["KEYS"]
        found = tiered.query(topic, key, 10, 0, tiers.now, False, 1 << 20, start, 0)
        wanted = [r for r in reversed(old) if r.topic == topic and r.props["KEYS"] == key]
        assert [r.encode() for r in found] == [r.encode() for r in wanted]
        unique = tiered.query(topic, record.props["UNIQ_KEY"], 10, 0, tiers.now, True, 1 << 20, start, 0)
        assert [r.phys_offset for r in unique] == [record.phys_offset]
        with pytest.raises(Missing, match="no record begins"):
            tiered.record(record.phys_offset + 1, start, {})
    assert tiers.tiered.offset_at_time("A", 0, tiers.now + 1, tiers.below("A", 0)) is None
    assert tiers.tiered.offset_at_time("A", 0, 1, tiers.below("A", 0), upper=True) is None


def test_filters_apply_to_tags_and_to_records(tiers: Tiers) -> None:
    from gantry_broker.protocol.message import tags_hash

    below = tiers.below("A", 0)
    at = 0
    found: list[Record] = []
    while at < below.number:
        read = tiers.tiered.get("A", 0, at, below, 32, 1 << 20, frozenset({tags_hash("t1")}))
        found += decode_records(read.data)
        at = read.next_offset
    old = [r for r in tiers.model if r.phys_offset < tiers.store.log.start and (r.topic, r.queue_id) == ("A", 0)]
    assert [r.queue_offset for r in found] == [r.queue_offset for r in old if r.props["TAGS"] == "t1"]
    read = tiers.tiered.get("A", 0, 0, below, 32, 1 << 20, None, lambda record: record.props["TAGS"] == "t2")
    assert {r.props["TAGS"] for r in decode_records(read.data)} == {"t2"}


def test_a_damaged_object_is_said_and_what_is_behind_it_comes(tiers: Tiers) -> None:
    parts = tiers.state.parts
    broken = f"groups/a/parts/{parts[1].name}"
    data = bytearray(tiers.objects.objects[broken])
    data[20] ^= 1
    tiers.objects.objects[broken] = bytes(data)
    below = tiers.below("A", 0)
    inside = [r for r in tiers.model if (r.topic, r.queue_id) == ("A", 0) and parts[1].start <= r.phys_offset]
    before = [r for r in tiers.model if (r.topic, r.queue_id) == ("A", 0) and r.phys_offset < parts[1].start]
    read = tiers.tiered.get("A", 0, before[0].queue_offset, below, 1_000, 1 << 20)
    assert read.next_offset == inside[0].queue_offset  # what comes before the damage is given
    with pytest.raises(Damaged, match="does not match its checksum"):
        tiers.tiered.get("A", 0, inside[0].queue_offset, below, 32, 1 << 20)
    behind = next(r for r in inside if r.phys_offset >= parts[1].end)
    read = tiers.tiered.get("A", 0, behind.queue_offset, below, 1, 1 << 20)
    assert decode_record(read.data).body == behind.body


def test_an_object_whose_directory_is_damaged_is_not_taken_for_an_empty_one(tiers: Tiers, tmp_path: Path) -> None:
    part = tiers.state.parts[1]
    name = f"groups/a/parts/{part.name}"
    whole = tiers.objects.objects[name]
    tiers.objects.objects[name] = whole[:-60] + bytes(16) + whole[-44:]
    fresh = TieredLog(tiers.archive.group("a"), tmp_path / "other", 1 << 20)
    fresh.open()
    fresh.refresh(tiers.state, tiers.store.log.start, {})
    inside = [r for r in tiers.model if part.start <= r.phys_offset < part.end and (r.topic, r.queue_id) == ("A", 0)]
    with pytest.raises(Damaged, match="may have messages of A 0"):
        fresh.get("A", 0, inside[0].queue_offset, tiers.below("A", 0), 32, 1 << 20)
    tiers.objects.objects[name] = whole
    fresh.refresh(tiers.state, tiers.store.log.start, {})
    read = fresh.get("A", 0, inside[0].queue_offset, tiers.below("A", 0), 1, 1 << 20)
    assert decode_record(read.data).body == inside[0].body


def test_a_store_that_is_away_leaves_what_the_disk_has(tiers: Tiers, tmp_path: Path) -> None:
    below = tiers.below("A", 0)
    tiered = TieredLog(tiers.archive.group("a"), tmp_path / "cache2", 1 << 20)
    tiered.open()
    tiered.refresh(tiers.state, tiers.store.log.start, {})
    read = tiered.get("A", 0, 0, below, 2, 1 << 20)
    tiers.objects.away = True
    again = TieredLog(tiers.archive.group("a"), tmp_path / "cache2", 1 << 20)  # as after a restart
    again.open()
    assert again.view.floors == tiered.view.floors
    assert again.view.complete_to >= tiers.store.log.start
    assert again.get("A", 0, 0, below, 2, 1 << 20, offline=True).data == read.data
    last = below.number - 1
    with pytest.raises(NotCached):
        again.get("A", 0, last, below, 1, 1 << 20, offline=True)
    with pytest.raises(Unavailable):
        again.get("A", 0, last, below, 1, 1 << 20)
    tiers.objects.away = False
    assert again.get("A", 0, last, below, 1, 1 << 20).count == 1


def test_what_is_not_known_yet_is_not_said_to_be_gone(tiers: Tiers, tmp_path: Path) -> None:
    fresh = TieredLog(tiers.archive.group("a"), tmp_path / "other", 1 << 20)
    fresh.open()
    with pytest.raises(Unavailable, match="the archive is known up to 0 of the log"):
        fresh.get("A", 0, 0, tiers.below("A", 0), 32, 1 << 20)


def test_the_view_never_promises_more_than_its_floors_say(
    tiers: Tiers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pull at that moment would be answered as one below everything that there is."""
    seen: list[int] = []
    fresh = TieredLog(tiers.archive.group("a"), tmp_path / "fresh", 1 << 20)
    fresh.open()
    floors = TieredLog._floors

    def noted(self: TieredLog, *marks: dict[str, int]) -> dict[tuple[str, int], int]:
        seen.append(self.view.complete_to)
        return floors(self, *marks)

    monkeypatch.setattr(TieredLog, "_floors", noted)
    fresh.refresh(tiers.state, tiers.store.log.start, {})
    assert seen == [0]
    assert fresh.view.complete_to > 0


def test_the_disk_cache_stays_below_its_limit_and_survives_damage(tiers: Tiers, tmp_path: Path) -> None:
    limit = 90_000
    tiered = TieredLog(tiers.archive.group("a"), tmp_path / "small", limit)
    tiered.open()
    tiered.refresh(tiers.state, tiers.store.log.start, {})
    below, at = tiers.below("A", 0), 0
    pieces = tmp_path / "small" / "pieces"
    while at < below.number:
        at = tiered.get("A", 0, at, below, 5, 1 << 20).next_offset
        assert sum(path.stat().st_size for path in pieces.iterdir()) <= limit
    kept = TieredLog(tiers.archive.group("a"), tmp_path / "small", limit)
    kept.open()
    kept.get("A", 0, below.number - 1, below, 1, 1 << 20, offline=True)
    assert kept.counters.hits
    for path in pieces.iterdir():
        path.write_bytes(bytes(path.stat().st_size))
    other = TieredLog(tiers.archive.group("a"), tmp_path / "small", limit)
    other.open()
    other.refresh(tiers.state, tiers.store.log.start, {})
    assert other.get("A", 0, 0, below, 5, 1 << 20).data == tiers.tiered.get("A", 0, 0, below, 5, 1 << 20).data


def damaged(whole: bytes, seed: int) -> bytes:
    """Return the content of a file with zeros, flipped bits or a lost end."""
    rand, data = random.Random(seed), bytearray(whole)
    kind = seed % 4
    if kind == 0:
        at = rand.randrange(100, len(data) - 500)
        data[at : at + 500] = bytes(500)
    elif kind == 1:
        at = 4_096 * rand.randrange(1, len(data) // 4_096)
        data[at : at + 4_096] = bytes(4_096)
    elif kind == 2:
        for _ in range(5):
            data[rand.randrange(100, len(data))] ^= 1 << rand.randrange(8)
    else:
        del data[rand.randrange(200, len(data)) :]
    return bytes(data)


def test_an_index_with_any_damage_hides_no_message(tiers: Tiers, tmp_path: Path) -> None:
    start, below = tiers.store.log.start, tiers.below("A", 0)
    expected = [r.queue_offset for r in tiers.model if (r.topic, r.queue_id) == ("A", 0) and r.phys_offset < start]
    tiers.tiered.close()
    whole = (tmp_path / "cache" / "index.db").read_bytes()
    for seed in range(40):
        folder = tmp_path / f"{seed}"
        folder.mkdir()
        (folder / "index.db").write_bytes(damaged(whole, seed))
        tiered = TieredLog(tiers.archive.group("a"), folder, 1 << 20)
        tiered.open()
        tiered.refresh(tiers.state, start, {})
        assert tiered.view.floors["A", 0] == expected[0], seed
        found, at = [], expected[0]
        while at < below.number:
            read = tiered.get("A", 0, at, below, 1_000, 1 << 20)
            found += [record.queue_offset for record in decode_records(read.data)]
            at = read.next_offset
        assert found == expected, seed
        tiered.close()


def test_an_index_that_is_found_damaged_while_it_is_open_is_made_again(tiers: Tiers, tmp_path: Path) -> None:
    tiers.tiered.close()
    path = tmp_path / "cache" / "index.db"
    path.write_bytes(damaged(path.read_bytes(), 0)[:4_096] + bytes(path.stat().st_size - 4_096))
    tiered = TieredLog(tiers.archive.group("a"), tmp_path / "cache", 1 << 20)
    tiered._index._db = tiered._index._connect()  # Damaged since it was opened.
    with pytest.raises(OSError, match="malformed"):
        tiered.refresh(tiers.state, tiers.store.log.start, {})
    assert tiered.index_is_damaged
    tiered.open()
    assert not tiered.index_is_damaged
    assert tiered.view.complete_to == 0, "not known yet, which is not gone"
    tiered.refresh(tiers.state, tiers.store.log.start, {})
    assert tiered.get("A", 0, 0, tiers.below("A", 0), 1, 1 << 20).count == 1
    tiered.close()


def test_an_index_that_is_damaged_is_made_again(tiers: Tiers, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "index.db").write_bytes(b"this is no database" * 100)
    tiered = TieredLog(tiers.archive.group("a"), folder, 1 << 20)
    tiered.open()
    tiered.refresh(tiers.state, tiers.store.log.start, {})
    assert tiered.view.floors == tiers.tiered.view.floors


def test_the_rate_spreads_what_is_fetched(tiers: Tiers, tmp_path: Path) -> None:
    now = [100.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    tiered = TieredLog(
        tiers.archive.group("a"), tmp_path / "slow", 1 << 20, rate=10_000, sleep=sleep, clock=lambda: now[0]
    )
    tiered.open()
    tiered.refresh(tiers.state, tiers.store.log.start, {})
    begun, at, below = now[0], 0, tiers.below("A", 0)
    while at < below.number:
        at = tiered.get("A", 0, at, below, 32, 1 << 20).next_offset
    # The last fetch is not waited for, nor those of the first second.
    assert now[0] - begun >= (tiered.counters.fetched_bytes - 100_000) / 10_000 - 1
    assert tiered.counters.fetches > 3


def test_expired_places_rise_with_time(tiers: Tiers) -> None:
    times = sorted({r.store_ms for r in tiers.model})
    places = [tiers.tiered.expired_place("A", ms, tiers.state) for ms in times]
    assert all(a <= b for a, b in pairwise(places))
    start = tiers.store.log.start
    for ms, place in zip(times, places, strict=True):
        old = [r for r in tiers.model if r.topic == "A" and r.phys_offset < min(place, start)]
        young = [r for r in tiers.model if r.topic == "A" and r.phys_offset >= place and r.phys_offset < start]
        assert all(r.store_ms < ms for r in old)
        assert all(r.store_ms >= ms for r in young)
