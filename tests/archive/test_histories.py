"""Histories by seed: members of a group append, lead in turn, lose records by unclean promotions, and archive; the
object store fails and lies. What is restored must equal what was confirmed, record by record.
"""

from __future__ import annotations

import itertools
import os
import random
from functools import partial
from pathlib import Path

import pytest
from gantry_broker.archive import chain, inspection, manifest, restore, segment, upload
from gantry_broker.archive.archiver import GRACE_MS, LAG_MS, WAITS_S, Archiver
from gantry_broker.archive.chain import Archive, GroupArchive, Identity
from gantry_broker.archive.errors import ArchiveError, Fenced, Missing, Overtaken
from gantry_broker.archive.manifest import Change, Owner, State
from gantry_broker.archive.sealing import Encrypted, Plain, Sealer
from gantry_broker.archive.upload import Settings, View, Wait
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.log.record_reader import decode_records
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import Put, StoreConfig

from tests.archive.memory_objects import MemoryObjects
from tests.support.failing_calls import raising
from tests.support.present import present

SEGMENT = 65_536
HISTORIES = int(os.environ.get("ARCHIVE_HISTORIES", "40"))
SETTINGS = BrokerSettings(
    mappedFileSizeCommitLog=SEGMENT, mappedFileSizeConsumeQueue=2_000, maxHashSlotNum=100, maxIndexNum=400
)


class World:
    """A group of two members, whose logs are real stores, and its archive."""

    def __init__(
        self,
        seed: int,
        folder: Path,
        sealer: Sealer | None = None,
        objects: MemoryObjects | None = None,
        now: int = 1_700_000_000_000,
    ) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        lag = self.random.choice([0, 0, 1, 3])
        self.objects = objects or MemoryObjects(seed, fail=0.05, lie=0.02, lost=0.02, lag=lag)
        self.now = now
        self.epoch = 0
        part = self.random.choice([4_000, 20_000, 100_000])
        self.settings = Settings(5_000, self.random.choice([None, 60_000, 600_000]), part)
        self.stored: dict[int, bytes] = {}
        """By offset: the records that local retention has removed."""
        self.archive = Archive(self.objects, sealer or Plain())
        self.members = [self._member(n) for n in range(2)]
        self.archivers = [self._archiver(n) for n in range(2)]
        self.leader = 0
        self.sent = 0
        self.floor = 0
        """The archive's end after the last step."""
        self.undone = 1 << 60
        """An unclean promotion undid what the archive has from here on."""
        self.lead(0)

    def _member(self, n: int) -> MessageStore:
        return MessageStore.open(StoreConfig(self.folder / f"m{n}", SETTINGS))

    def _archiver(self, n: int, uid: str = "uid") -> Archiver:
        return Archiver(
            self.archive,
            group="a",
            uid=uid,
            cluster="demo",
            log_dir=self.folder / f"m{n}" / "commitlog",
            view=lambda: None,
            turn=lambda: True,
            settings=lambda: self.settings,
            delays=(1_000,),
            clock_ms=lambda: self.now,
        )

    def lead(self, member: int) -> None:
        """The other member learns of the new epoch with the next `sync`; the leader may confirm alone before."""
        self.epoch += 1
        self.leader = member
        store = self.members[member]
        store.appender.begin_epoch(self.epoch, b'{"kind":"epoch"}', self.now)
        store.indexer.confirm(store.log.end)

    def put(self) -> None:
        puts = []
        for _ in range(self.random.randint(1, 12)):
            self.sent += 1
            body = self.random.randbytes(self.random.choice([10, 100, 3_000]))
            topic = self.random.choice(["A", "B"])
            properties = f"KEYS\x01k{self.sent}\x02TAGS\x01t{self.sent % 3}\x02".encode()
            puts.append(Put(topic, self.sent % 2, 0, 0, self.now, b"\x7f\0\0\1\0\0\0\1", body, properties))
        self.members[self.leader].appender.put(puts, self.now)

    def sync(self) -> None:
        """The follower fetches all, and both confirm it."""
        leader, follower = self.members[self.leader], self.members[1 - self.leader]
        while follower.log.end < leader.log.end:
            follower.appender.append_raw(follower.log.end, leader.log.read_raw(follower.log.end, 8_192))
        for store in (leader, follower):
            store.indexer.confirm(store.log.end)

    def unclean(self) -> None:
        """The follower becomes leader without the last confirmed records, and the old leader follows it."""
        former, follower = self.members[self.leader], self.members[1 - self.leader]
        places = [r.phys_offset for r in decode_records(log_of(follower))][-8:]
        if not places or (cut := self.random.choice(places)) <= follower.epoch_cache.epochs[-1].start:
            return
        if cut < former.log.start:
            return  # It would need another member's whole log.
        follower.truncator.truncate(cut)
        self.undone = min(self.undone, cut)
        self.leader = 1 - self.leader
        self.epoch += 1
        follower.appender.begin_epoch(self.epoch, b'{"kind":"epoch"}', self.now)
        self.members[1 - self.leader].truncator.truncate(cut)
        self.sync()

    def retain(self, member: int) -> None:
        """Local retention removes segments, sometimes before their upload."""
        store = self.members[member]
        last = store.state.confirmed - store.state.confirmed % SEGMENT
        upto = min(last, self.floor - self.floor % SEGMENT) if self.random.random() < 0.7 else last
        if upto > store.log.start:
            self.stored |= {r.phys_offset: r.body for r in decode_records(log_of(store))}
            store.retention.remove_before(upto)

    def step(self, member: int) -> None:
        store, archiver = self.members[member], self.archivers[member]
        view = View(store.log.start, store.state.confirmed, SEGMENT, store.epoch_cache.epochs)
        before = self.written()
        try:
            archiver._step(view, self.settings, True)
        except Fenced:
            archiver._state = None
        except ArchiveError:
            pass
        after = self.written()
        end = after.end
        assert end >= min(self.floor, self.undone), f"the archive lost [{end}, {self.floor}) of the log"
        assert end <= max(before.end, view.confirmed), "what is not confirmed was uploaded"
        if after.start > before.start and after.parts[-1:] == before.parts[-1:] != ():
            self._check_pruned(before, after)
        self.undone = 1 << 60 if end < self.floor or self.undone >= end else self.undone
        self.floor = end

    def _check_pruned(self, before: State, after: State) -> None:
        """Whole segments went that are older than the window, whose first moment can still be restored."""
        assert self.settings.retention_ms is not None
        horizon = self.now - self.settings.retention_ms
        gone = [part for part in before.parts if part.start < after.start]
        assert after.start % SEGMENT == 0
        assert all(part.last_ms <= horizon for part in gone)
        assert after.parts[0].first_ms <= horizon

    def written(self) -> State:
        """The manifest as it is, also while the store is away."""
        names = sorted(n for n in self.objects.objects if "/manifest/" in n)
        first = next((i for i, n in enumerate(names) if n == _whole_entry(names[-1])), 0)
        state: State | None = None
        for name in names[first:]:
            state = manifest.follow(state, self.objects.objects[name])
        return state or State()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.now += self.random.choice([0, 10, 3_000, 9_000])
            if self.random.random() < 0.02:
                self.now += self.random.choice([-40_000, 40_000])  # The clock jumps.
            self.objects.now_ms = self.now
            match self.random.randrange(12):
                case 0 | 1 | 2 | 3:
                    self.put()
                case 4 | 5:
                    self.sync()
                case 6:
                    self.sync()
                    self.lead(self.random.randrange(2))
                case 7 if self.random.random() < 0.3:
                    self.unclean()
                case 8 if self.random.random() < 0.2:
                    n = self.random.randrange(2)
                    self.archivers[n] = self._archiver(n)  # The member restarts.
                case 8:
                    self.retain(self.random.randrange(2))
                case 9:
                    self.objects.away = self.random.random() < 0.3
                case _:
                    self.step(self.random.randrange(2))

    def hand_over(self) -> tuple[Identity, Identity]:
        """Another site is promoted. Return the former and the new identity."""
        former = present(self.archive.identity())
        return former, self.archive.hand_over(former, "second", "site-b", self.now, "promoted", "")

    def settle(self) -> State:
        """The store works again, and the archive gets all that is confirmed."""
        self.objects.away = False
        self.objects.fail = self.objects.lie = self.objects.lost = 0.0
        self.sync()
        for _ in range(400):
            self.now += 6_000
            self.objects.now_ms = self.now
            self.step(self.leader)
            state = self.group.load()
            if state.end == self.members[self.leader].state.confirmed and self._idle(state):
                return state
        raise AssertionError(f"the archive does not come to an end: {self.group.load()}")

    def _idle(self, state: State) -> bool:
        store = self.members[self.leader]
        view = View(store.log.start, store.state.confirmed, SEGMENT, store.epoch_cache.epochs)
        return upload.next_step(state, view, self.settings, self.now, 0) == Wait()

    @property
    def group(self) -> GroupArchive:
        return self.archive.group("a")


def _whole_entry(newest: str) -> str:
    folder, _, name = newest.rpartition("/")
    n = int(name.removesuffix(".json"))
    return f"{folder}/{n - n % manifest.WHOLE_EVERY:012d}.json"


def log_of(store: MessageStore) -> bytes:
    data = b""
    while store.log.start + len(data) < store.state.confirmed:
        data += store.log.read_raw(store.log.start + len(data), 1 << 20, store.state.confirmed)
    return data


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_what_is_restored_equals_what_was_confirmed(seed: int, quick_dir: Path) -> None:
    check_history(seed, quick_dir)


def check_history(seed: int, folder: Path) -> None:
    world = World(seed, folder, Encrypted(bytes(32)) if seed % 3 == 0 else None)
    world.run(120)
    check_restored(world, world.settle(), folder)


def check_restored(world: World, state: State, folder: Path) -> None:
    store = world.members[world.leader]
    begin = state.readable_from
    assert_merged(state, world.settings.part)
    assert state.end == store.state.confirmed
    assert state.epochs == tuple(e for e in store.epoch_cache.epochs if e.start < state.end)
    if begin == state.end:
        return  # Local retention was faster than every upload, and no record came since.
    restored = b"".join(data for _, data in restore.log_bytes(world.group, state, restore.Target()))
    assert len(restored) == state.end - begin
    shared = max(begin, store.log.start)
    assert restored[shared - begin :] == log_of(store)[shared - store.log.start :]
    for record in decode_records(restored):
        assert world.stored.get(record.phys_offset, record.body) == record.body or record.phys_offset >= store.log.start
    # To a moment: all that was stored until then, and nothing else.
    times = [r.store_ms for r in decode_records(restored)]
    moment = max(world.random.choice(times), times[0])
    upto = restore.log_bytes(world.group, state, restore.Target(time_ms=moment))
    ended = [i for i, ms in enumerate(times) if ms > moment]
    count = ended[0] if ended else len(times)
    assert len(list(decode_records(b"".join(data for _, data in upto)))) == count
    # A store made of it has the same messages at the same places, by the code of any start.
    end = restore.restore(world.group, state, restore.Target(), folder / "new")
    opened = MessageStore.open(StoreConfig(folder / "new", SETTINGS))
    assert (end, opened.log.end, opened.log.start) == (state.end, state.end, begin - begin % SEGMENT)
    opened.indexer.confirm(opened.log.end)
    there = {(record.topic, record.queue_id) for record in decode_records(restored)}
    for topic in ("A", "B"):
        for queue in (0, 1):
            if (topic, queue) not in there:
                continue  # All its records have expired: the broker's control records say where it goes on.
            assert opened.reader.max_offset(topic, queue) == store.reader.max_offset(topic, queue)
            first = max(opened.reader.min_offset(topic, queue), store.reader.min_offset(topic, queue))
            if first < store.reader.max_offset(topic, queue):
                got, wanted = (s.reader.get(topic, queue, first, 32, 1 << 20).data for s in (opened, store))
                assert got == wanted
                if not state.gaps:
                    assert_entries(world.group, state, store, topic, queue)
    opened.close()


def assert_merged(state: State, most: int) -> None:
    """No two parts that follow each other in a segment which is archived whole would fit into one."""
    whole = state.end - state.end % SEGMENT
    for one, following in itertools.pairwise(state.parts):
        adjacent = one.end == following.start and one.start // SEGMENT == following.start // SEGMENT
        assert not (adjacent and following.end <= whole and following.end - one.start <= most), (one, following)


def assert_entries(group: GroupArchive, state: State, store: MessageStore, topic: str, queue: int) -> None:
    """The pieces say of each message of a queue where it lies."""
    found = {}
    for part in state.parts:
        reader = group.reader(part)
        for entry in reader.entries(reader.directory(), topic, queue):
            found[entry.number] = entry
    assert sorted(found) == list(range(min(found), store.reader.max_offset(topic, queue)))
    for number, entry in found.items():
        if number >= store.reader.min_offset(topic, queue):
            assert store.reader.place(topic, queue, number) == entry.phys


def test_another_cluster_is_refused(quick_dir: Path) -> None:
    world = World(1, quick_dir)
    world.settle()
    with pytest.raises(Fenced, match="belongs to cluster demo"):
        world.archive.claim("other", "copy", world.now)


def test_a_former_owner_is_fenced(quick_dir: Path) -> None:
    world = World(2, quick_dir)
    world.settle()
    world.hand_over()
    world.put()
    world.sync()
    world.now += 60_000
    archiver, store = world.archivers[world.leader], world.members[world.leader]
    view = View(store.log.start, store.state.confirmed, SEGMENT, store.epoch_cache.epochs)
    with pytest.raises(Fenced, match="site-b"):
        archiver._step(view, world.settings, True)
    with pytest.raises(Fenced, match="site-b"):
        archiver._step(view, world.settings, True)


def test_a_former_owner_that_reads_its_successors_entry_says_what_to_do(quick_dir: Path) -> None:
    world = World(2, quick_dir)
    world.settle()
    _, second = world.hand_over()
    chain.write(
        world.group, world.group.load(), Change(), owner=Owner(second.number, "second"), segment_size=SEGMENT,
        epochs=(), now_ms=world.now,
    )  # fmt: skip
    archiver, store = world._archiver(world.leader), world.members[world.leader]
    view = View(store.log.start, store.state.confirmed, SEGMENT, store.epoch_cache.epochs)
    for _ in range(2):
        with pytest.raises(Fenced, match=r"site-b .* was promoted .*: send to that cluster.* demote --accept-loss"):
            archiver._step(view, world.settings, True)


def test_of_two_members_that_write_at_once_one_is_overtaken(quick_dir: Path) -> None:
    world = World(2, quick_dir)
    state = world.settle()
    assert state.owner is not None
    write = partial(chain.write, world.group, state, owner=state.owner, segment_size=SEGMENT, epochs=())
    first = write(Change(), now_ms=world.now)
    with pytest.raises(Overtaken, match="another member wrote entry"):
        write(Change(), now_ms=world.now + 1)
    assert world.group.load() == first


def test_a_store_that_is_away_lifts_no_refusal(quick_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(5, quick_dir)
    world.settle()
    _, second = world.hand_over()
    archiver = world.archivers[world.leader]
    archiver._look_for_successor(Owner(second.number, second.uid))
    assert "site-b" in archiver._superseded
    monkeypatch.setattr(world.archive, "identity", raising(ArchiveError("the store is away")))
    with pytest.raises(ArchiveError, match="is away"):
        archiver._look_for_successor(Owner(second.number + 1, "third"))
    assert "site-b" in archiver._superseded


def test_a_member_that_cannot_continue_the_archive_says_why(quick_dir: Path) -> None:
    """At once it may be behind for a moment."""
    world = World(2, quick_dir)
    state = world.settle()
    archiver, store = world.archivers[world.leader], world.members[world.leader]
    views = {
        "segments of": View(store.log.start, store.state.confirmed, 2 * SEGMENT, store.epoch_cache.epochs),
        "is behind the archive": View(store.log.start, state.end - 1, SEGMENT, store.epoch_cache.epochs),
    }
    for words, view in views.items():
        assert not archiver._step(view, world.settings, True)
        assert not archiver._step(view, world.settings, True)
        archiver._waits = (archiver._waits[0], archiver._waits[1] - WAITS_S)
        with pytest.raises(ArchiveError, match=f"nothing is uploaded: .*{words}"):
            archiver._step(view, world.settings, True)
    assert world.settle().end == state.end
    assert archiver._waits[0] == ""


def test_a_wrong_key_is_named(quick_dir: Path) -> None:
    world = World(3, quick_dir, Encrypted(bytes(32)))
    state = world.settle()
    other = Archive(world.objects, Plain()).group("a")
    with pytest.raises(ArchiveError, match="is encrypted: name the key"):
        list(restore.log_bytes(other, state, restore.Target()))
    other = Archive(world.objects, Encrypted(bytes([1]) * 32)).group("a")
    with pytest.raises(ArchiveError, match="another key"):
        list(restore.log_bytes(other, state, restore.Target()))


def test_a_restore_that_is_broken_off_goes_on(quick_dir: Path) -> None:
    world = World(4, quick_dir)
    world.run(200)
    state = world.settle()
    new = quick_dir / "new"
    seen: list[int] = []

    def stop(fetched: int) -> None:
        seen.append(fetched)
        if len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        restore.restore(world.group, state, restore.Target(), new, progress=stop)
    with pytest.raises(ArchiveError, match="another restore"):
        restore.restore(world.group, state, restore.Target(time_ms=world.now), new)
    with pytest.raises(ArchiveError, match="another restore"):
        restore.restore(world.group, state, restore.Target(), new, source="s3://another/archive")
    begun = len(seen)
    assert restore.restore(world.group, state, restore.Target(), new, progress=seen.append) == state.end
    assert len(seen) - begun < len(state.parts)
    with pytest.raises(ArchiveError, match="has a log already"):
        restore.restore(world.group, state, restore.Target(), new)


def test_a_restore_that_goes_on_has_nothing_that_was_undone_meanwhile(quick_dir: Path) -> None:
    """An unclean promotion puts other records at the places that were restored already."""
    world = World(4, quick_dir)
    world.run(200)
    state = world.settle()
    size, new = restore.outline(state, restore.Target()).download, quick_dir / "new"

    def stop(fetched: int) -> None:
        if fetched == size:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        restore.restore(world.group, state, restore.Target(), new, progress=stop)
    world.undone = state.end
    while world.undone >= state.end:
        world.unclean()
    assert world.settle().end < state.end, "a part ends below what was restored"
    for _ in range(20):
        world.put()
    world.sync()
    after = world.settle()
    assert after.end > state.end
    end = restore.restore(world.group, after, restore.Target(), new)
    wanted = b"".join(data for _, data in restore.log_bytes(world.group, after, restore.Target()))
    opened = MessageStore.open(StoreConfig(new, SETTINGS))
    assert (end, opened.log.end) == (after.end, after.end)
    opened.indexer.confirm(end)
    begin = end - len(wanted)
    assert log_of(opened)[begin - opened.log.start :] == wanted
    opened.close()


def test_a_clock_that_is_ahead_removes_nothing(quick_dir: Path) -> None:
    """The object store's clock decides about age: neither retention nor the search for remains follows a member's."""
    world = World(8, quick_dir)
    world.settings = Settings(5_000, 600_000, 20_000)
    world.run(150)
    before = world.settle()
    assert len(before.parts) > 1
    remains = f"groups/a/parts/{0:020}-{9:020}-{1:016}-0123456789ab.gar"
    world.objects.create(remains, b"an upload that was broken off a moment ago")
    world.now += 10 * 365 * 24 * 3_600_000
    archiver = world.archivers[world.leader]
    archiver._cleaned = archiver._compared = 0.0
    for _ in range(3):
        world.step(world.leader)
    assert world.group.load().start == before.start
    assert remains in world.objects.objects
    inspection.prune(world.archive, world.group, before, 600_000, world.now)
    assert world.group.load().start == before.start
    world.objects.now_ms = world.now
    archiver._cleaned = archiver._compared = 0.0
    for _ in range(3):
        world.step(world.leader)
    assert world.group.load().start > before.start, "now it is old by both clocks"
    assert remains not in world.objects.objects
    assert not [name for name in world.objects.objects if "/clock/" in name]


def test_a_time_before_the_archive_is_refused(quick_dir: Path) -> None:
    world = World(5, quick_dir)
    state = world.settle()
    with pytest.raises(Missing, match="before the first record"):
        restore.outline(state, restore.Target(time_ms=1))
    with pytest.raises(Missing, match="is not in the archive"):
        restore.outline(state, restore.Target(offset=1 << 40))


def test_each_flipped_bit_of_an_object_is_found(quick_dir: Path) -> None:
    world = World(6, quick_dir)
    world.put()
    state = world.settle()
    part = state.parts[0]
    path = next(name for name in world.objects.objects if name.endswith(part.name))
    good = world.objects.objects[path]
    rng = random.Random(6)
    for _ in range(300):
        data = bytearray(good)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        world.objects.objects[path] = bytes(data)
        reader = world.group.reader(part)
        try:
            directory = reader.directory()
            got = b"".join(d for _, d in segment.read_range(reader, directory, part.start, part.end))
        except ArchiveError:
            pass
        else:
            world.objects.objects[path] = good
            clean = world.group.reader(part)
            assert got == b"".join(d for _, d in segment.read_range(clean, clean.directory(), part.start, part.end))
        world.objects.objects[path] = bytes(data)
        with pytest.raises(ArchiveError):
            world.group.whole(part)


def test_histories_reach_every_kind_of_step(quick_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[str] = set()
    decide = upload.next_step

    def noted(*args: object) -> upload.Step:
        step = decide(*args)  # type: ignore[arg-type]
        seen.add(type(step).__name__)
        return step

    monkeypatch.setattr(upload, "next_step", noted)
    for seed in range(12):
        World(seed, quick_dir / str(seed)).run(150)
    assert {"Begin", "Upload", "Merge", "Cut", "Wait", "MarkGap", "Prune"} <= seen


def sleeper(folder: Path) -> tuple[World, State]:
    """A world whose member 0 slept since the state, while member 1 uploaded and removed the next entries."""
    world = World(7, folder)
    world.objects = MemoryObjects()
    world.archive = Archive(world.objects)
    world.settings = Settings(5_000, None, 20_000)
    world.archivers = [world._archiver(n) for n in range(2)]
    upload_one(world, 0)
    upload_one(world, 0)
    old = present(world.archivers[0]._state)
    while world.written().n < 100:
        upload_one(world, 1)
    world.group.forget_entries(world.now)
    assert world.group._entry(old.n + 1) not in world.objects.objects
    return world, old


@pytest.mark.parametrize("entries", [70, 150], ids=["shows no entry", "shows some"])
def test_a_list_that_lags_for_less_than_an_hour_has_all_that_is_needed(quick_dir: Path, entries: int) -> None:
    """A list without any entry would let a member begin the archive once more, at a number that was used."""
    world = World(7, quick_dir, objects=MemoryObjects())
    world.settings = Settings(5_000, None, 20_000)
    world.objects.lag_ms = LAG_MS - 60_000
    while world.written().n < entries:
        world.archivers[1] = world._archiver(1)  # It knows nothing, looks at the list, and cleans.
        world.now += 40_000
        upload_one(world, 1)
        for _ in range(3):
            world.step(1)
    newest = world.written()
    assert world.group.load() == newest
    assert world.members[0].state.confirmed - newest.end < SEGMENT
    world.objects.lag_ms = 0
    assert world.group.load() == newest
    forgotten = world.group._entry(1) not in world.objects.objects
    assert forgotten == (entries == 150)


def test_a_store_that_answers_an_old_identity_lifts_no_refusal(
    quick_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a former site would take records for ever that are in no archive."""
    world = World(5, quick_dir)
    world.settle()
    former, second = world.hand_over()
    archiver = world.archivers[world.leader]
    for old in (None, former):
        with monkeypatch.context() as patched:
            patched.setattr(world.archive, "identity", lambda old=old: old)
            with pytest.raises(ArchiveError, match="does not answer the archive's identity 2, or an old one"):
                archiver._look_for_successor(Owner(second.number, second.uid))
    archiver._look_for_successor(Owner(second.number, second.uid))
    assert "site-b" in archiver._superseded


def test_a_store_that_answers_an_older_manifest_is_not_believed(
    quick_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby would truncate its log to it."""
    world, _ = sleeper(quick_dir)
    newest = world.group.load()
    hidden = world.objects.objects.pop(world.group._entry(newest.n))
    monkeypatch.setattr(world.group.__class__, "_is_forgotten", lambda group, n: True)
    with pytest.raises(ArchiveError, match=f"answers entry {newest.n - 1} .* and has answered {newest.n} before"):
        world.group.load(newest)
    world.objects.objects[world.group._entry(newest.n)] = hidden
    assert world.group.load(newest) == newest


def test_a_store_without_conditional_writes_is_refused(quick_dir: Path) -> None:
    """Two members would overwrite each other's entries, and each would read back its own."""
    world = World(2, quick_dir, objects=Unconditional())
    world.put()
    for _ in range(3):
        world.step(world.leader)
    assert not [name for name in world.objects.objects if "/manifest/" in name]
    with pytest.raises(ArchiveError, match="Use one that takes If-None-Match"):
        world.archive.claim("uid", "demo", world.now)


class Unconditional(MemoryObjects):
    def create(self, name: str, data: bytes) -> bool:
        self.objects.pop(name, None)
        return super().create(name, data)


@pytest.mark.parametrize("more", [0, 3], ids=["same epochs", "later epochs"])
@pytest.mark.parametrize("puts", [2, 40], ids=["shorter", "longer"])
def test_a_group_that_begins_once_more_changes_nothing_in_its_archive(quick_dir: Path, more: int, puts: int) -> None:
    """All its disks were lost. What the archive has may be the only copy, and another log does not continue it."""
    world = World(7, quick_dir, objects=MemoryObjects())
    world.settings = Settings(5_000, None, 20_000)
    world.now += 1_000
    for _ in range(4):
        upload_one(world, 0)
    before = world.group.load()
    again = World(7, quick_dir / "again", objects=world.objects, now=world.now + 60_000)
    again.settings = world.settings
    for number in range(more):
        again.sync()
        again.lead(number % 2)
    for _ in range(puts):
        again.put()
    again.sync()
    archiver, store = again.archivers[0], again.members[0]
    for _ in range(3):
        view = View(store.log.start, store.state.confirmed, SEGMENT, store.epoch_cache.epochs)
        with pytest.raises(ArchiveError, match="another log than the disks"):
            archiver._step(view, again.settings, True)
    assert world.group.load() == before
    assert (store.state.confirmed > before.end) == (puts == 40)


def test_a_new_log_does_not_undo_what_an_archive_has_left(quick_dir: Path) -> None:
    """Retention removed the first records: there is nothing to compare, but the log's records are all younger."""
    world = World(7, quick_dir, objects=MemoryObjects())
    world.settings = Settings(5_000, 60_000, 20_000)
    while world.group.load().start == 0:
        upload_one(world, 0)
        world.step(0)
    before = world.group.load()
    again = World(7, quick_dir / "again", objects=world.objects, now=world.now + 60_000)
    again.settings = world.settings
    again.lead(1)
    again.sync()
    store = again.members[1]
    view = View(store.log.start, store.state.confirmed, SEGMENT, store.epoch_cache.epochs)
    with pytest.raises(ArchiveError, match="another log than the disks"):
        again.archivers[1]._step(view, again.settings, True)
    assert world.group.load() == before


def test_a_block_that_is_damaged_on_the_disk_is_no_other_log(quick_dir: Path) -> None:
    world = World(7, quick_dir, objects=MemoryObjects())
    world.settings = Settings(5_000, None, 20_000)
    for _ in range(8):
        upload_one(world, 0)
    state = world.group.load()
    assert len(state.parts) > 1
    world.archivers[0] = world._archiver(0)
    with (quick_dir / "m0" / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(state.end - 10)
        file.write(b"\xff" * 5)
    upload_one(world, 0)
    assert world.group.load().end > state.end


def upload_one(world: World, member: int) -> None:
    world.put()
    world.sync()
    world.now += 6_000
    world.objects.now_ms = world.now
    world.step(member)


def test_a_member_that_slept_does_not_write_at_a_used_number(quick_dir: Path) -> None:
    """Others went on, and removed old entries: the number that the member would write next is free again."""
    world, old = sleeper(quick_dir)
    asleep = world.archivers[0]
    assert world.group.load(old).n == world.group.load().n, "who only reads sees the newest state"
    state, asleep._state = world.group.load(), old
    upload_one(world, 0)
    assert world.group.load().n == state.n, "what it wrote belongs to no chain"
    assert asleep._state is None, "it reads all once more"
    world.step(0)
    assert world.group.load().n > state.n


@pytest.mark.parametrize("promoted", [False, True], ids=["another member", "another site"])
def test_a_member_that_slept_for_days_removes_nothing_of_the_others(quick_dir: Path, *, promoted: bool) -> None:
    world, old = sleeper(quick_dir)
    if promoted:
        world.hand_over()
        second = world.archivers[1] = world._archiver(1, "second")
        while second._state is None or second._state.owner is None or second._state.owner.uid != "second":
            upload_one(world, 1)
    world.now += 3 * GRACE_MS
    world.objects.now_ms = world.now
    state, asleep = world.group.load(), world.archivers[0]
    asleep._state = old
    view = View(0, old.end, SEGMENT, world.members[0].epoch_cache.epochs)
    for _ in range(3):
        try:
            asleep._step(view, world.settings, True)
        except Fenced:
            asleep._state = old
    there = {name.rpartition("/")[2] for name in world.objects.objects}
    assert {part.name for part in state.parts} <= there
    assert inspection.verify(world.group, world.group.load()).faults == ()
