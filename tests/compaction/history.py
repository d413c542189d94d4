"""Random histories of compacted topics on real stores, against a plain model: kills, failovers, new members."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from gantry_broker.protocol.codes import COMPACTION_TOPIC, GetStatus
from gantry_broker.protocol.message import decode_records, format_properties, pack_host
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.compaction.passes import Segments, clean_bodies, copy_bodies
from gantry_broker.store.log.record_reader import plain_tags_code
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import Put, StoreConfig

HOST = pack_host("10.1.2.3", 50_000)
TOPIC = "State"
SEGMENT = 65_536
TOMBSTONE_MS = 5_000


class Sent(NamedTuple):
    key: str
    body: bytes
    stored: int
    tag: str


def settings() -> BrokerSettings:
    return BrokerSettings(
        mappedFileSizeCommitLog=SEGMENT, mappedFileSizeConsumeQueue=2_000, maxHashSlotNum=100, maxIndexNum=400
    )


def message(key: str, body: bytes, queue_id: int = 0, tag: str = "", topic: str = TOPIC) -> Put:
    named = {"KEYS": key} if key else {}
    if tag:
        named["TAGS"] = tag
    properties = format_properties(named) if named else b""
    code = plain_tags_code(properties)
    return Put(topic, queue_id, 0, 0, 1, HOST, body, properties, tags_hash=code, keys=(key,) if key else ())


class History:
    """A leader with a follower. The model has what was confirmed, by queue."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.now = 1_000_000
        self.names = iter(range(1_000))
        self.store = self.open(self.path())
        self.other = self.open(self.path())
        self.model: dict[int, list[Sent]] = {0: [], 1: []}
        self.places: dict[int, list[int]] = {0: [], 1: []}
        """Where each record of the model was stored."""
        self.ends: list[int] = []
        """Where the log ended after each append."""
        self.safe_from = 0
        """Where the log ended when segments were removed: their copies are below."""
        self.gone: dict[int, set[int]] = {0: set(), 1: set()}
        self.steps: list[str] = []
        self.copied = self.removed = self.failovers = self.cut = 0

    def path(self) -> Path:
        return self.folder / str(next(self.names))

    def open(self, path: Path) -> MessageStore:
        return MessageStore.open(StoreConfig(path, settings()))

    def close(self) -> None:
        for store in (self.store, self.other):
            store.close(clean=False)

    # What happens

    def run(self, count: int) -> None:
        names = ["send"] * 6 + ["clean"] * 4 + ["copy"] * 3 + ["expire"] * 2
        names += ["again", "follow", "failover", "new_member", "undo"]
        names += ["truncate"] if self.random.random() < 0.3 else []
        for _ in range(count):
            name = self.random.choice(names)
            self.steps.append(name)
            getattr(self, name)()
            self.now += self.random.choice([1, 100, 3_000])
            self.check(self.store)

    def confirm(self, store: MessageStore) -> None:
        store.indexer.confirm(store.log.end)
        store.compaction.apply()

    def send(self) -> None:
        puts, sent = [], []
        for _ in range(self.random.randint(1, 40)):
            queue_id = self.random.randrange(2)
            key = "" if self.random.random() < 0.01 else f"k{self.random.randrange(self.random.choice([3, 40]))}"
            body = b"" if self.random.random() < 0.2 else self.random.randbytes(self.random.choice([3, 50, 6_000]))
            tag = self.random.choice(["", "a", "b"])
            puts.append(message(key, body, queue_id, tag))
            sent.append((queue_id, Sent(key, body, self.now, tag)))
        stored = self.store.appender.put(puts, self.now)
        for (queue_id, one), place in zip(sent, stored, strict=True):
            self.model[queue_id].append(one)
            self.places[queue_id].append(place.phys_offset)
        self.confirm(self.store)
        self.ends.append(self.store.log.end)

    def undo(self) -> None:
        """Records that were never confirmed are cut, among them a compaction record."""
        end = self.store.log.end
        self.store.appender.put([message("k1", b"never")], self.now)
        work = self.store.compaction.work(TOPIC, 0, 1_000)
        if work is not None:
            with Segments(self.store.log.path_of, SEGMENT) as segments:
                for body in clean_bodies(work, segments, self.now, TOMBSTONE_MS):
                    self.store.appender.put([Put(COMPACTION_TOPIC, 0, 0, 0, 1, HOST, body, b"")], self.now)
        self.store.truncator.truncate(end)
        self.store.compaction.apply()

    def truncate(self) -> None:
        """An unclean promotion: confirmed records are lost, and what was compacted since is as before."""
        lowest = max(self.store.log.start, self.other.log.start, self.safe_from)
        found = [end for end in self.ends[-6:] if lowest < end < self.store.log.end]
        if not found:
            return
        end = self.random.choice(found)
        prepared = self.random.choice([self.store, self.other, None])
        cut = [store for store in (self.store, self.other) if store.log.end > end]
        for store in cut:
            if store is prepared:
                self.prepare(store, end)
            store.truncator.truncate(end)
            store.compaction.apply()
        assert len({self.rows(store) for store in cut}) == 1
        for queue_id, places in self.places.items():
            left = sum(place < end for place in places)
            del places[left:], self.model[queue_id][left:]
            self.gone[queue_id] = set()
        self.ends = [known for known in self.ends if known <= end]
        self.cut += 1

    def prepare(self, store: MessageStore, end: int) -> None:
        """Prepare a truncation step by step, or not to its end, or after another one."""
        if self.random.random() < 0.3:
            store.compaction.prepare(self.random.choice(self.ends), 0)
        for _ in range(self.random.choice([1, 2, 1_000])):
            if store.compaction.prepare(end, 0):
                break

    def rows(self, store: MessageStore) -> tuple[object, ...]:
        found = [store.compaction.rows(TOPIC, queue_id) for queue_id in self.model]
        return tuple((each.boundary, each.seen, each.seen_bytes, *each) if each else None for each in found)

    def append(self, bodies: Iterator[bytes], stop_after: int) -> None:
        """Append compaction records; the leader dies after some of them."""
        for number, body in enumerate(bodies):
            if number >= stop_after:
                break
            self.store.appender.put([Put(COMPACTION_TOPIC, 0, 0, 0, 1, HOST, body, b"")], self.now)
            self.confirm(self.store)

    def clean(self) -> None:
        work = self.store.compaction.work(TOPIC, self.random.randrange(2), self.random.choice([5, 100, 1_000]))
        if work is not None:
            with Segments(self.store.log.path_of, SEGMENT) as segments:
                bodies = clean_bodies(work, segments, self.now, TOMBSTONE_MS)
                self.append(bodies, self.random.choice([1, 2, 99]))

    def copy(self) -> None:
        work = self.store.compaction.work(TOPIC, self.random.randrange(2), 0)
        if work is not None:
            below = self.store.log.start + SEGMENT * self.random.choice([1, 1, 2, 9])
            with Segments(self.store.log.path_of, SEGMENT) as segments:
                bodies = copy_bodies(work, segments, below, self.random.choice([5_000, 20_000]))
                self.append(bodies, self.random.choice([1, 99, 99]))
                self.copied += 1

    def expire(self) -> None:
        for store in (self.store, self.other):
            store.indexer.write_out(None)
            needed = store.compaction.needed_from([TOPIC])
            limit = min(needed, store.state.confirmed)
            if store is self.store:
                limit = min(limit, max(self.other.log.end, 0))
            before = store.log.start
            store.retention.remove_before(limit - limit % SEGMENT)
            if store.log.start > before:
                self.removed += 1
                self.safe_from = self.store.log.end

    def again(self) -> None:
        self.store.close(clean=self.random.random() < 0.5)
        self.store = self.open(self.store.config.path)
        self.confirm(self.store)

    def follow(self) -> None:
        """The follower takes some of the leader's log."""
        if self.other.log.end < self.store.log.start:
            return
        for _ in range(self.random.choice([1, 5, 100])):
            at = self.other.log.end
            data = self.store.log.read_raw(at, self.random.choice([100, 20_000]))
            if not data:
                break
            self.other.appender.append_raw(at, data)
            self.confirm(self.other)

    def failover(self) -> None:
        """The leader dies once the follower has what is confirmed."""
        while self.other.log.end < self.store.log.end:
            self.follow()
        self.store, self.other = self.other, self.store
        self.failovers += 1

    def new_member(self) -> None:
        """An empty disk joins: it begins where the leader's log does."""
        path = self.other.config.path
        self.other.close(clean=False)
        shutil.rmtree(path)
        self.other = self.open(self.path())
        start = self.store.log.start
        if start:
            self.other.truncator.reset(start, (), self.store.queue_starts())
            self.other.compaction.apply()

    # What must hold

    def read(self, store: MessageStore, queue_id: int, start: int = 0) -> dict[int, Sent]:
        found: dict[int, Sent] = {}
        at = start
        while True:
            got = store.reader.get(TOPIC, queue_id, at, self.random.choice([1, 7, 32]), 20_000)
            if got.status not in (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE, GetStatus.OFFSET_TOO_SMALL):
                assert got.status in (
                    GetStatus.OFFSET_OVERFLOW_ONE, GetStatus.NO_MESSAGE_IN_QUEUE, GetStatus.NO_MATCHED_LOGIC_QUEUE
                ), got  # fmt: skip
                return found
            if got.count:
                assert got.min_offset == store.reader.min_offset(TOPIC, queue_id)
                assert got.max_offset == store.reader.max_offset(TOPIC, queue_id)
            for record in decode_records(got.data):
                assert record.queue_offset >= at
                at = record.queue_offset + 1
                keys = record.keys
                found[record.queue_offset] = Sent(
                    keys[0] if keys else "", record.body, record.store_ms, record.tags or ""
                )
            assert got.next_offset >= at
            assert got.count or got.next_offset > at, got
            at = got.next_offset

    def check(self, store: MessageStore) -> None:
        for queue_id, sent in self.model.items():
            found = self.read(store, queue_id)
            queue = store.queues.find(TOPIC, queue_id)
            if queue is None:
                assert not sent
                continue
            rows = queue.compacted
            boundary = 0 if rows is None else rows.boundary
            if rows is not None:
                rows.check_invariants()
            assert all(sent[number] == one for number, one in found.items()), "another record than was sent"
            assert list(range(boundary, len(sent))) == [number for number in found if number >= boundary]
            newest = {one.key: number for number, one in enumerate(sent) if one.key}
            for key, number in newest.items():
                of_key = [at for at in found if found[at].key == key]
                if number in found:
                    continue
                assert not sent[number].body, f"the newest record of {key} is lost"
                assert sent[number].stored + TOMBSTONE_MS <= self.now, f"the tombstone of {key} went too early"
                assert not of_key, f"an older record of {key} is back"
            assert {n for n, one in enumerate(sent) if not one.key} <= set(found), "a record without a key is lost"
            below = [found[at].key for at in found if at < boundary and found[at].key]
            assert len(below) == len(set(below)), "two records of a key"
            assert not self.gone[queue_id] & set(found), "a removed record is shown again"
            self.gone[queue_id] |= set(range(len(sent))) - set(found)
            assert store.reader.max_offset(TOPIC, queue_id) == len(sent)
            assert store.reader.min_offset(TOPIC, queue_id) == min(found, default=len(sent))
            self.check_times(store, queue_id, found, len(sent))
            self.check_lookups(store, queue_id, found)

    def check_times(self, store: MessageStore, queue_id: int, found: dict[int, Sent], high: int) -> None:
        ms = self.random.randint(999_000, self.now + 10)
        reader = store.reader
        first = next((number for number in sorted(found) if found[number].stored >= ms), high)
        assert reader.offset_at_time(TOPIC, queue_id, ms) == first
        last = next((number for number in sorted(found, reverse=True) if found[number].stored <= ms), 0)
        assert reader.offset_at_time(TOPIC, queue_id, ms, upper=True) == last
        number = self.random.randrange(high + 1)
        assert reader.store_time(TOPIC, queue_id, number) == (found[number].stored if number in found else -1)

    def check_lookups(self, store: MessageStore, queue_id: int, found: dict[int, Sent]) -> None:
        tag = self.random.choice("ab")
        codes = frozenset({plain_tags_code(f"TAGS\x01{tag}".encode())})
        got = store.reader.get(TOPIC, queue_id, 0, 1_000, 1 << 30, codes)
        filtered = [record.queue_offset for record in decode_records(got.data)]
        assert filtered == [number for number in found if found[number].tag == tag][: len(filtered)]
        key = f"k{self.random.randrange(40)}"
        queried = store.reader.query(TOPIC, key, 1_000, 0, 1 << 60)
        queried += [r for r in store.reader.copies(TOPIC, key, 0, 1 << 60) if r is not None]
        assert len({(record.queue_id, record.queue_offset) for record in queried}) == len(queried)
        there = {r.queue_offset for r in queried if r.queue_id == queue_id}
        assert there == {number for number in found if found[number].key == key}
        for record in queried[:3]:
            assert store.reader.named_record(record.phys_offset).queue_offset == record.queue_offset
