"""Seeded histories of a leader and a follower whose system calls fail, or at which its process dies.

Whatever fails, the follower's history, points and queues say what its log says, no start finds damage, and once its
calls succeed again it has what the leader has. `STORE_SEED` and `STORE_HISTORIES` as in test_histories.py.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from gantry_broker.broker import snapshots
from gantry_broker.broker.metadata import Metadata, Tables, decode_change, encode_change
from gantry_broker.broker.replay import Replay
from gantry_broker.protocol.codes import CONTROL_TOPIC
from gantry_broker.replication.epochs import cut as cut_history
from gantry_broker.replication.epochs import divergence
from gantry_broker.settings import BrokerSettings
from gantry_broker.store import recovery, retention
from gantry_broker.store.errors import StoreError
from gantry_broker.store.files import NO_DESCRIPTORS
from gantry_broker.store.history import FOREIGN, EpochFile, History
from gantry_broker.store.points import Points
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import Put, StoreConfig

from tests.store.test_replica import HOST, message
from tests.support.failing_calls import ERRORS, fail

HISTORIES = int(os.environ.get("STORE_HISTORIES", "100"))
SEEDS = [int(os.environ["STORE_SEED"])] if "STORE_SEED" in os.environ else range(HISTORIES)
STEPS: Final = 300
SEGMENT: Final = 16_384
FILE_SIZES: Final = {"mappedFileSizeCommitLog": SEGMENT, "mappedFileSizeConsumeQueue": 400}
"""Smaller than a broker may be told: files end often, and most faults lie where one does."""
EPOCH_BODY: Final = bytes(1_000)
"""Longer than most messages, as real ones are: an epoch may not fit where a message does."""
DEATH: Final = 0
"""Among errors: the process dies at the call, before or after the kernel has done it."""
TROUBLES: Final[tuple[tuple[int, ...], ...]] = (
    (),
    (errno.ENOSPC,),
    (errno.EIO,),
    (errno.EMFILE,),
    (errno.ENOSPC, errno.EIO),
    (errno.ENOSPC, errno.EMFILE, errno.EIO),
    (DEATH,),
    (DEATH, errno.ENOSPC),
    (DEATH, errno.ENOSPC, errno.EMFILE, errno.EIO),
)
"""What may be wrong with a disk at a time."""
CHANCES: Final = (0.002, 0.01, 0.05, 0.2, 0.9)


class Died(BaseException):
    """Raised where the process dies; nothing that handles an OSError takes it for one."""


class FailingCalls:
    """System calls that fail at random within `failing()`."""

    def __init__(self, seed: int, trace: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._rng = random.Random(f"calls of {seed}")
        self._trace = trace
        self._on = False
        self.names: tuple[str, ...] = ()
        self.errors: tuple[int, ...] = ()
        self.chance = 0.0
        for name in ERRORS:
            monkeypatch.setattr(os, name, self._failing(name, getattr(os, name)))

    def _failing(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*args: Any, **more: Any) -> Any:
            if self._on and name in self.names and self._rng.random() < self.chance:
                self._fail(name, call, args, more)
            return call(*args, **more)

        return instead

    def _fail(self, name: str, call: Callable[..., Any], args: tuple[Any, ...], more: dict[str, Any]) -> None:
        """Returns when the error that was drawn is none of this call's."""
        error = self._rng.choice(self.errors)
        if error == DEATH:
            self._trace.append(f"  death at {name}{args!r:.90}")
            if name != "open" and self._rng.random() < 0.5:
                call(*args, **more)
            self._on = False
            raise Died
        try:
            fail(name, error, call, args, partly=self._rng.random() < 0.5)
        except OSError:
            self._trace.append(f"  {errno.errorcode[error]} at {name}{args!r:.90}")
            raise

    @contextmanager
    def failing(self, on: bool = True) -> Iterator[None]:
        self._on = on and bool(self.errors)
        try:
            yield
        finally:
            self._on = False


def settled(history: History, end: int) -> History:
    """The epochs that have a record: one without is of no account."""
    ends = [*(epoch.start for epoch in history[1:]), end]
    return tuple(epoch for epoch, stop in zip(history, ends, strict=False) if epoch.start < stop)


def told_by_log(store: MessageStore) -> History:
    return tuple(epoch for epoch in recovery.scan(store.log, store.start).epochs if epoch.start < store.end)


class Keeper:
    """The tables that a broker keeps beside a store, with their snapshot on its disk."""

    def __init__(self, store: MessageStore) -> None:
        self.meta = Metadata(Tables())
        self.replay = Replay(self.meta, store)
        self.replay.load(store.config.path / "config")

    def confirm(self, store: MessageStore, offset: int) -> None:
        for phys, body in store.confirm(offset).control:
            self.meta.confirm(phys, body)

    def save(self, store: MessageStore) -> None:
        snapshots.write(store.config.path / "config", snapshots.render(self.meta, store.history))


def dropped(store: MessageStore, stop: int) -> dict[str, int]:
    """By topic, below which offset the deletions that the log has below `stop` hide records."""
    changes = (decode_change(r.body) for r in store.walk(store.start, stop) if r.topic == CONTROL_TOPIC)
    return {topic: change["dropData"] for change in changes if change for topic in change.get("dropTopics", ())}


class Pair:
    """A leader with a sound disk, and a follower whose calls fail."""

    def __init__(self, root: Path, seed: int, settings: BrokerSettings, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rng = random.Random(seed)
        self.trace: list[str] = []
        self.calls = FailingCalls(seed, self.trace, monkeypatch)
        self.leader_config = StoreConfig(root / "leader", settings)
        self.follower_config = StoreConfig(root / "follower", settings)
        self.serial = 0
        self.epoch = 0
        self.now_ms = 10**12
        self.expected: History = ()
        """The follower's history as of the last look: what its log no longer tells."""
        self.half_reset: History | None = None
        """The history for which a reset was begun that has not come to its end."""
        self.leader = MessageStore.open(self.leader_config)
        if self.rng.random() < 0.4:
            self._make_foreign()
        self.follower = MessageStore.open(self.follower_config)
        self.tables, self.leaders_tables = Keeper(self.follower), Keeper(self.leader)
        self._draw_trouble()

    def _make_foreign(self) -> None:
        """The leader goes on with a log that RocketMQ wrote."""
        self._put(self.leader, self.rng.randrange(1, 60))
        self.leader.close()
        for name in ("epochs.json", "storePoint.json"):
            (self.leader_config.path / "config" / name).unlink()
        self.leader = MessageStore.open(self.leader_config)
        assert self.leader.history == FOREIGN
        if self.leader.end > 2 * SEGMENT and self.rng.random() < 0.5:
            retention.remove_before(self.leader, SEGMENT)

    def _draw_trouble(self) -> None:
        calls = self.calls
        calls.names = tuple(ERRORS) if self.rng.random() < 0.7 else (self.rng.choice(list(ERRORS)),)
        calls.errors, calls.chance = self.rng.choice(TROUBLES), self.rng.choice(CHANCES)
        errors = [errno.errorcode.get(error, "death") for error in calls.errors]
        self.trace.append(f"trouble: {errors} with {calls.chance} at {calls.names}")

    def _put(self, store: MessageStore, count: int) -> None:
        for _ in range(count):
            if store.end % SEGMENT == 0:
                self._tell_ends(store)
            self.serial += 1
            size = self.rng.choice((8, 8, 900, 3_000))
            store.put([message(self.serial, self.rng.choice("AB"), size)], self.serial)

    def _begin(self, store: MessageStore) -> None:
        self.epoch += 1
        store.begin_epoch(self.epoch, EPOCH_BODY, 1)
        self._tell_ends(store)

    def _tell_ends(self, store: MessageStore) -> None:
        """As a master does in each segment and role, for members that have no record of a queue."""
        ends = {t: {str(q): n for q, n in queues.items()} for t, queues in store.next_offsets().items() if t in "AB"}
        self._change(store, {"ends": ends})

    def _change(self, store: MessageStore, change: dict[str, Any]) -> None:
        store.put([Put(CONTROL_TOPIC, 0, 0, 0, 1, HOST, encode_change(change), b"")], 1)

    def run(self) -> None:
        for _ in range(STEPS):
            self.step()
        self.catch_up()

    def step(self) -> None:
        if self.rng.random() < 0.02:
            self._draw_trouble()
        if not self.leader.history or (self.leader.history == FOREIGN and self.rng.random() < 0.1):
            self.leader_begins()
            return
        name = self.rng.choices(list(STEP_WEIGHTS), list(STEP_WEIGHTS.values()))[0]
        self.trace.append(f"{name}: leader {self.leader.start}-{self.leader.end}, follower {self.ends()}")
        getattr(self, name)()

    def ends(self) -> str:
        return f"{self.follower.start}-{self.follower.end}"

    # The leader

    def leader_begins(self) -> None:
        self._begin(self.leader)

    def leader_puts(self) -> None:
        self._put(self.leader, self.rng.randrange(1, 12))

    def leader_deletes(self) -> None:
        self._delete(self.leader)

    def _delete(self, store: MessageStore) -> None:
        self._change(store, {"dropTopics": [self.rng.choice("AB")], "dropData": store.end})

    def leader_confirms(self) -> None:
        store = self.leader
        borders = [record.phys_offset for record in store.walk(store.confirmed, store.end)]
        self.leaders_tables.confirm(store, self.rng.choice([*borders, store.end]))

    def another_leads(self) -> None:
        """One that lacks some of what the last leader had, be it confirmed: all that counts is what parts the logs."""
        store = self.leader
        borders = [record.phys_offset for record in store.walk(store.start, store.end)]
        if borders:
            store.cut(self.rng.choice(borders[-20:]))
            self.leaders_tables.replay.was_cut(store.end)
            self._begin(store)

    def leader_expires(self) -> None:
        self._expire(self.leader)

    def _filed(self, store: MessageStore) -> int:
        """What the queues' files have: once the records are gone, a kill takes the other numbers with it."""
        pending = store.queues.oldest_pending()
        return store.confirmed if pending is None else min(store.confirmed, pending)

    def _expire(self, store: MessageStore) -> None:
        first, last = store.start // SEGMENT, self._filed(store) // SEGMENT
        if first < last and last * SEGMENT < store.end:
            retention.remove_before(store, self.rng.randint(first, last) * SEGMENT)

    # The follower, with calls that fail

    def try_to(self, action: Callable[[MessageStore], None]) -> None:
        """Errors are taken as the broker takes them; after that the follower is sound or has to be started anew."""
        try:
            with self.calls.failing():
                action(self.follower)
        except (OSError, StoreError) as error:
            self.trace.append(f"  refused: {error!r}")
        except Died:
            self.restart(clean=False)
            return
        if self.follower.failed is not None or self.half_reset is not None:
            # A reset that failed is asked for again; here a start comes first, which must not miss anything.
            self.trace.append(f"  failed: {self.follower.failed!r}, half reset: {self.half_reset is not None}")
            self.restart(clean=self.follower.failed is None and self.rng.random() < 0.5)
        else:
            self.look()

    def follower_fetches(self) -> None:
        self.try_to(self._fetch)

    def _fetch(self, follower: MessageStore) -> None:
        """Cut, begin anew, or get some more, as a follower has to by its histories."""
        leader = self.leader
        history, end = settled(leader.history, leader.end), follower.end
        agreed = divergence(history, leader.end, settled(follower.history, end), end)
        if agreed < end and leader.start <= agreed < follower.start:
            self._reset(follower, 0, (), {})
        elif agreed < leader.start:
            self._reset(follower, leader.start, cut_history(history, leader.start), leader.queue_starts())
        elif agreed < end:
            follower.cut(agreed)
            self.tables.replay.was_cut(follower.end)
        else:
            follower.append_raw(end, leader.read_raw(end, self.rng.choice((100, 4_000, 20_000, 300_000))))
            self.tables.confirm(follower, max(follower.confirmed, min(leader.confirmed, follower.end)))

    def _reset(self, follower: MessageStore, to: int, history: History, queues: dict[tuple[str, int], int]) -> None:
        self.trace.append(f"  reset at {to}: {history}")
        self.half_reset = settled(history, to)
        follower.reset(to, history, queues)
        self.tables.replay.was_cut(follower.end)
        self.expected, self.half_reset = history, None

    def follower_keeps_up(self) -> None:
        self.now_ms += self.rng.choice((100, 2_000))
        self.try_to(lambda store: store.upkeep(self.now_ms))

    def follower_flushes(self) -> None:
        def flush(store: MessageStore) -> None:
            try:
                store.mark_flushed(store.flush())
            except OSError as error:
                store.mark_failed(error)

        self.try_to(flush)

    def follower_checkpoints(self) -> None:
        def checkpoint(store: MessageStore) -> None:
            checkpoint = store.checkpoint()
            try:
                checkpoint.run()
            except OSError as error:
                checkpoint.take_back(store)
                if error.errno not in NO_DESCRIPTORS:
                    store.mark_failed(error)
            else:
                store.checkpointed(checkpoint)

        self.try_to(checkpoint)

    def follower_expires(self) -> None:
        self.try_to(self._expire)

    def follower_saves_its_tables(self) -> None:
        self.try_to(self.tables.save)

    def follower_leads(self) -> None:
        """It writes on its own for a while: its log parts from the leader's."""
        if self.follower.end == 0:
            return

        def lead(store: MessageStore) -> None:
            self._begin(store)
            self._put(store, self.rng.randrange(16))
            if self.rng.random() < 0.2:
                self._delete(store)
                if self.rng.random() < 0.5:
                    self.tables.confirm(store, store.end)
                    self._put(store, self.rng.randrange(4))

        self.try_to(lead)

    # Its starts and stops

    def follower_is_killed(self) -> None:
        end = self.follower.end
        self.restart(clean=False)
        assert self.follower.end == end, f"a kill between two calls loses nothing of the log: {self.ends()}"

    def follower_stops(self) -> None:
        self.restart(clean=True)

    def restart(self, clean: bool) -> None:
        try:
            with self.calls.failing(clean and self.rng.random() < 0.3):
                self.follower.close(clean)
        except (OSError, Died) as error:
            self.trace.append(f"  not closed: {error!r}")
        self.follower.close(clean=False)
        if self.rng.random() < 0.1:
            self.trace.append("  somebody removes the queues, to have them built anew")
            shutil.rmtree(self.follower_config.path / "consumequeue", ignore_errors=True)
        for attempt in range(8):
            if self._started(failing=attempt < 5 and self.rng.random() < 0.5):
                break
        else:
            raise AssertionError("a follower opens once its calls succeed")
        damage = self.follower.damage
        # Without points (a full disk may have left none) nobody knows what was acknowledged, and the start says so.
        assert damage is None or not (damage.flushed or damage.confirmed), f"no start misses a record: {damage}"
        self.follower.damage_heeded()
        self.follower.damage = None
        self.tables = Keeper(self.follower)
        self.look()
        self.half_reset = None

    def _started(self, failing: bool) -> bool:
        points = Points.load(self.follower_config.path / "config" / "storePoint.json")
        self.trace.append(f"  start with {points}")
        try:
            with self.calls.failing(failing):
                self.follower = MessageStore.open(self.follower_config)
        except (OSError, StoreError, Died) as error:
            self.trace.append(f"  not opened: {error!r}")
            mark = self.follower_config.path / "config" / "damaged"
            if mark.exists():
                assert points is None, f"no start misses a record: {points}"
                mark.unlink()
            return False
        return True

    # What has to hold

    def look(self) -> None:
        self.look_at_history()
        self.look_at_files()
        self.look_at_queues()

    def look_at_history(self) -> None:
        follower = self.follower
        got = settled(follower.history, follower.end)
        truth = self._true_history()
        if self.half_reset is not None and got in ((), told_by_log(follower), self.half_reset):
            # A reset goes from one history to the other over none.
            truth = got
        elif truth[:1] == FOREIGN and got == settled(truth[1:], follower.end) and follower.confirmed == 0:
            # It died between the first records and their history. They look foreign to none, so they are cut.
            truth = got
        assert got == settled(truth, follower.end), f"the history is the log's: {got} instead of {truth}"
        self.expected = truth

    def _true_history(self) -> History:
        """By the records, and by what was known when retention took the older ones."""
        follower = self.follower
        older = tuple(epoch for epoch in self.expected if epoch.start < follower.start)
        found = told_by_log(follower)
        foreign = follower.start == 0 < follower.end and not (found and found[0].start == 0)
        return (FOREIGN if foreign else older) + found

    def look_at_files(self) -> None:
        """What the next start goes by claims nothing that is not there."""
        follower = self.follower
        if follower.history_kept:
            kept = EpochFile.load(follower.epochs_path)
            undone = [e for e in kept.history if e not in follower.history] if kept else []
            assert not [e for e in undone if e.start < follower.points.written], (
                f"the history's file names epochs that are undone: {undone}"
            )
        points = Points.load(follower.points_file.path)
        if points is not None:
            most = max(points.confirmed, points.flushed, points.written, points.durable)
            assert most <= follower.end, f"the points claim more than the log has: {points}"

    def look_at_queues(self) -> None:
        """Every confirmed record is in its queue, under its number, and not shown if its topic was deleted after it."""
        follower = self.follower
        gone, perhaps = (dropped(follower, stop) for stop in (follower.confirmed, follower.end))
        for record in follower.walk(follower.start, follower.confirmed):
            place = (record.topic, record.queue_id, record.queue_offset)
            if any(at <= record.phys_offset < stop for at, stop in follower.unfiled.items()):
                continue  # A start could not read it; it is filed once it can be read.
            queue = follower.queues.find(record.topic, record.queue_id)
            assert queue is not None, f"a confirmed record has no queue: {place}"
            assert queue.max > record.queue_offset, f"a confirmed record is not in its queue: {place}"
            entry = queue.entry(record.queue_offset)
            assert entry[:2] == (record.phys_offset, record.size), (
                f"{place} is at {record.phys_offset}, the queue says {entry}"
            )
            shown = bool(follower.get(*place, 1, 1).data)
            if record.phys_offset < gone.get(record.topic, 0):
                assert not shown, f"a deleted message is shown: {place}"
            elif record.phys_offset >= perhaps.get(record.topic, 0):
                assert shown, f"a message is not shown: {place}"

    def catch_up(self) -> None:
        """Its calls succeed: in the end the follower has what the leader has."""
        for _ in range(2_000):
            self._fetch(self.follower)
            if self.follower.end == self.leader.end and self.follower.confirmed >= self.leader.confirmed:
                break
        else:
            raise AssertionError(f"a follower catches up, but stays at {self.ends()}")
        self.leaders_tables.confirm(self.leader, self.follower.confirmed)
        for _ in range(1 + len(self.follower.unfiled)):
            self.now_ms += 2_000
            self.follower.upkeep(self.now_ms)
        assert not self.follower.unfiled
        self.look()
        self._compare_logs()
        self._compare_queues()
        self._compare_index()

    def _compare_logs(self) -> None:
        leader, follower = self.leader, self.follower
        assert settled(follower.history, follower.end) == settled(leader.history, leader.end), "the same history"
        first = max(leader.start, follower.start)
        same = follower.log.read(first, leader.end - first) == leader.log.read(first, leader.end - first)
        assert same, f"the same bytes in {first}-{leader.end}"

    def _compare_queues(self) -> None:
        leader, follower = self.leader, self.follower
        known, all_of_log = (dropped(follower, stop) for stop in (follower.confirmed, follower.end))
        filed, numbered = (
            {(r.topic, r.queue_id) for r in follower.walk(follower.start, stop)}
            for stop in (follower.confirmed, follower.end)
        )
        for topic, queue_ids in leader.topics_queues().items():
            for queue_id in queue_ids:
                # 0: no record of it is left, and what tells the number is not confirmed yet.
                place = (topic, queue_id)
                stop, mine = leader.max_offset(*place), follower.max_offset(*place)
                assert mine == stop or (mine == 0 and place not in filed), f"the same end of queue {place}"
                stop, mine = leader.next_offset(*place), follower.next_offset(*place)
                assert mine == stop or (mine == 0 and place not in numbered), f"the next number of {place}"
        for record in leader.walk(max(leader.start, follower.start), leader.confirmed):
            place = (record.topic, record.queue_id, record.queue_offset)
            if known.get(record.topic) != all_of_log.get(record.topic):
                continue  # Its tables may know of a deletion that it does not know as confirmed since it was killed.
            mine, other = (store.get(*place, 1, 1).data for store in (follower, leader))
            assert mine == other, f"the same message at {place}"

    def _compare_index(self) -> None:
        leader, follower = self.leader, self.follower
        for store in (leader, follower):
            assert store.index is not None
            for _ in range(1_000):
                if not store.index.behind:
                    break
                self.now_ms += 2_000
                store.upkeep(self.now_ms)
            assert not store.index.behind, "the index comes to the end of what is confirmed"
        first = max(leader.start, follower.start)
        gone = dropped(leader, leader.end)  # The tables of who was killed may know more than is confirmed now.
        records = [
            r for r in leader.walk(first, leader.confirmed) if r.topic in "AB" and r.phys_offset > gone.get(r.topic, 0)
        ]
        for record in self.rng.sample(records, min(5, len(records))):
            key = f"k{record.born_ms}"
            found = [other.phys_offset for other in follower.query(record.topic, key, 32, 0, 1 << 60)]
            assert record.phys_offset in found, f"{key} is in the index"

    def close(self) -> None:
        for store in (self.leader, self.follower):
            store.close(clean=False)


STEP_WEIGHTS: Final = {
    "leader_begins": 20,
    "leader_puts": 40,
    "leader_deletes": 3,
    "leader_confirms": 20,
    "another_leads": 10,
    "leader_expires": 6,
    "follower_fetches": 54,
    "follower_keeps_up": 16,
    "follower_flushes": 6,
    "follower_checkpoints": 6,
    "follower_expires": 6,
    "follower_saves_its_tables": 6,
    "follower_leads": 14,
    "follower_is_killed": 6,
    "follower_stops": 2,
    "catch_up": 1,
}


def play(pair: Pair, seed: int) -> None:
    try:
        pair.run()
    except BaseException:
        print("seed", seed, *pair.trace[-80:], sep="\n")
        raise
    finally:
        pair.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_follower_agrees_with_its_log_whatever_calls_fail(
    seed: int, quick_dir: Path, small: BrokerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(Pair(quick_dir, seed, small.model_copy(update=FILE_SIZES), monkeypatch), seed)
