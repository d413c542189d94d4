"""Seeded histories of a leader and a follower. Calls of the follower fail, or its process dies at a call.

After every failure, the follower's epochs, recovery point and queues agree with its log, and no start finds damage.
Once its calls succeed again, it has the leader's records. `STORE_SEED` and `STORE_HISTORIES` as in test_histories.py.
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
from gantry_broker.broker.metadata import snapshots
from gantry_broker.broker.metadata.replay import Replay
from gantry_broker.broker.metadata.tables import Metadata, Tables, decode_change, encode_change
from gantry_broker.protocol.codes import CONTROL_TOPIC
from gantry_broker.replication.epochs import divergence
from gantry_broker.replication.epochs import truncate as truncate_epochs
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.errors import StoreError
from gantry_broker.store.files import NO_DESCRIPTORS
from gantry_broker.store.log.epochs import FOREIGN, EpochFile, LeaderEpochs
from gantry_broker.store.log.scan import scan
from gantry_broker.store.recovery_point import RecoveryPoint
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import Put, StoreConfig

from tests.store.test_replica import HOST, message
from tests.support.failing_calls import ERRORS, fail

HISTORIES = int(os.environ.get("STORE_HISTORIES", "100"))
SEEDS = [int(os.environ["STORE_SEED"])] if "STORE_SEED" in os.environ else range(HISTORIES)
STEPS: Final = 300
SEGMENT: Final = 16_384
FILE_SIZES: Final = {"mappedFileSizeCommitLog": SEGMENT, "mappedFileSizeConsumeQueue": 400}
"""Smaller than the settings allow: files end often, and most faults lie at the end of one."""
EPOCH_BODY: Final = bytes(1_000)
"""Longer than most messages, as real ones are: an epoch may not fit into the room of a message."""
DEATH: Final = 0
"""As an error: the process dies at the call, before or after the kernel has done it."""
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
"""The errors that a disk may have at the same time."""
CHANCES: Final = (0.002, 0.01, 0.05, 0.2, 0.9)


class Died(BaseException):
    """The process dies. No handler of OSError catches it."""


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
        """Raise the drawn error, or return if this call cannot have it."""
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


def settled(epochs: LeaderEpochs, end: int) -> LeaderEpochs:
    """The epochs that have a record; others do not count."""
    ends = [*(epoch.start for epoch in epochs[1:]), end]
    return tuple(epoch for epoch, stop in zip(epochs, ends, strict=False) if epoch.start < stop)


def epochs_in_log(store: MessageStore) -> LeaderEpochs:
    return tuple(epoch for epoch in scan(store.log, store.log.start).epochs if epoch.start < store.log.end)


class TableStore:
    """The tables of a broker, with their snapshot on disk."""

    def __init__(self, store: MessageStore) -> None:
        self.meta = Metadata(Tables())
        self.replay = Replay(self.meta, store)
        self.replay.load(store.config.path / "config")

    def confirm(self, store: MessageStore, offset: int) -> None:
        for phys, body in store.indexer.confirm(offset).control:
            self.meta.confirm(phys, body)

    def save(self, store: MessageStore) -> None:
        snapshots.write(store.config.path / "config", snapshots.render(self.meta, store.epoch_cache.epochs))


def dropped(store: MessageStore, stop: int) -> dict[str, int]:
    """Deletion watermarks by topic, from the control records below `stop`."""
    changes = (decode_change(r.body) for r in store.reader.walk(store.log.start, stop) if r.topic == CONTROL_TOPIC)
    return {topic: change["dropData"] for change in changes if change for topic in change.get("dropTopics", ())}


class Pair:
    """A leader with a good disk, and a follower with failing calls."""

    def __init__(self, root: Path, seed: int, settings: BrokerSettings, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rng = random.Random(seed)
        self.trace: list[str] = []
        self.calls = FailingCalls(seed, self.trace, monkeypatch)
        self.leader_config = StoreConfig(root / "leader", settings)
        self.follower_config = StoreConfig(root / "follower", settings)
        self.serial = 0
        self.epoch = 0
        self.now_ms = 10**12
        self.expected: LeaderEpochs = ()
        """The follower's epochs at the last check, for those that its log no longer has."""
        self.reset_in_progress: LeaderEpochs | None = None
        """The epochs of a reset that has begun and not finished."""
        self.leader = MessageStore.open(self.leader_config)
        if self.rng.random() < 0.4:
            self._make_foreign()
        self.follower = MessageStore.open(self.follower_config)
        self.tables, self.leaders_tables = TableStore(self.follower), TableStore(self.leader)
        self._draw_trouble()

    def _make_foreign(self) -> None:
        """The leader continues a log that RocketMQ wrote."""
        self._put(self.leader, self.rng.randrange(1, 60))
        self.leader.close()
        for name in ("epochs.json", "recoveryPoint.json", "queueEnds.json"):
            (self.leader_config.path / "config" / name).unlink()
        self.leader = MessageStore.open(self.leader_config)
        assert self.leader.epoch_cache.epochs == FOREIGN
        if self.leader.log.end > 2 * SEGMENT and self.rng.random() < 0.5:
            self.leader.retention.remove_before(SEGMENT)

    def _draw_trouble(self) -> None:
        calls = self.calls
        calls.names = tuple(ERRORS) if self.rng.random() < 0.7 else (self.rng.choice(list(ERRORS)),)
        calls.errors, calls.chance = self.rng.choice(TROUBLES), self.rng.choice(CHANCES)
        errors = [errno.errorcode.get(error, "death") for error in calls.errors]
        self.trace.append(f"trouble: {errors} with {calls.chance} at {calls.names}")

    def _put(self, store: MessageStore, count: int) -> None:
        for _ in range(count):
            if store.log.end % SEGMENT == 0:
                self._set_ends(store)
            self.serial += 1
            size = self.rng.choice((8, 8, 900, 3_000))
            store.appender.put([message(self.serial, self.rng.choice("AB"), size)], self.serial)

    def _begin(self, store: MessageStore) -> None:
        self.epoch += 1
        store.appender.begin_epoch(self.epoch, EPOCH_BODY, 1)
        self._set_ends(store)

    def _set_ends(self, store: MessageStore) -> None:
        """Write the queue offsets, as a master does in each segment, for members without records of a queue."""
        found = store.queues.next_offsets(queue.key for queue in store.queues)
        ends = {t: {str(q): n for q, n in queues.items()} for t, queues in found.items() if t in "AB"}
        self._change(store, {"ends": ends})

    def _change(self, store: MessageStore, change: dict[str, Any]) -> None:
        store.appender.put([Put(CONTROL_TOPIC, 0, 0, 0, 1, HOST, encode_change(change), b"")], 1)

    def run(self) -> None:
        for _ in range(STEPS):
            self.step()
        self.catch_up()

    def step(self) -> None:
        if self.rng.random() < 0.02:
            self._draw_trouble()
        if not self.leader.epoch_cache.epochs or (
            self.leader.epoch_cache.epochs == FOREIGN and self.rng.random() < 0.1
        ):
            self.leader_begins()
            return
        name = self.rng.choices(list(STEP_WEIGHTS), list(STEP_WEIGHTS.values()))[0]
        self.trace.append(f"{name}: leader {self.leader.log.start}-{self.leader.log.end}, follower {self.ends()}")
        getattr(self, name)()

    def ends(self) -> str:
        return f"{self.follower.log.start}-{self.follower.log.end}"

    # The leader

    def leader_begins(self) -> None:
        self._begin(self.leader)

    def leader_puts(self) -> None:
        self._put(self.leader, self.rng.randrange(1, 12))

    def leader_deletes(self) -> None:
        self._delete(self.leader)

    def _delete(self, store: MessageStore) -> None:
        self._change(store, {"dropTopics": [self.rng.choice("AB")], "dropData": store.log.end})

    def leader_confirms(self) -> None:
        store = self.leader
        boundaries = [record.phys_offset for record in store.reader.walk(store.state.confirmed, store.log.end)]
        self.leaders_tables.confirm(store, self.rng.choice([*boundaries, store.log.end]))

    def another_leads(self) -> None:
        """Another leader lacks records of the last one, also confirmed ones: only the divergence matters here."""
        store = self.leader
        boundaries = [record.phys_offset for record in store.reader.walk(store.log.start, store.log.end)]
        if boundaries:
            store.truncator.truncate(self.rng.choice(boundaries[-20:]))
            self.leaders_tables.replay.was_truncated(store.log.end)
            self._begin(store)

    def leader_expires(self) -> None:
        self._expire(self.leader)

    def _indexed(self, store: MessageStore) -> int:
        """The end of the entries in files: without their records, a kill loses the numbers of later ones."""
        pending = store.queues.oldest_pending()
        return store.state.confirmed if pending is None else min(store.state.confirmed, pending)

    def _expire(self, store: MessageStore) -> None:
        first, last = store.log.start // SEGMENT, self._indexed(store) // SEGMENT
        if first < last and last * SEGMENT < store.log.end:
            store.retention.remove_before(self.rng.randint(first, last) * SEGMENT)

    # The follower, with failing calls

    def try_to(self, action: Callable[[MessageStore], None]) -> None:
        """Handle errors as the broker does. Afterwards the follower is consistent, or it restarts."""
        try:
            with self.calls.failing():
                action(self.follower)
        except (OSError, StoreError) as error:
            self.trace.append(f"  refused: {error!r}")
        except Died:
            self.restart(clean=False)
            return
        if self.follower.state.failed is not None or self.reset_in_progress is not None:
            # The leader repeats a failed reset; here a start comes first, which must not report missing records.
            self.trace.append(
                f"  failed: {self.follower.state.failed!r}, reset in progress: {self.reset_in_progress is not None}"
            )
            self.restart(clean=self.follower.state.failed is None and self.rng.random() < 0.5)
        else:
            self.look()

    def follower_fetches(self) -> None:
        self.try_to(self._fetch)

    def _fetch(self, follower: MessageStore) -> None:
        """Truncate, reset or append, as the epochs of both logs require."""
        leader = self.leader
        epochs, end = settled(leader.epoch_cache.epochs, leader.log.end), follower.log.end
        agreed = divergence(epochs, leader.log.end, settled(follower.epoch_cache.epochs, end), end)
        if agreed < end and leader.log.start <= agreed < follower.log.start:
            self._reset(follower, 0, (), {})
        elif agreed < leader.log.start:
            self._reset(follower, leader.log.start, truncate_epochs(epochs, leader.log.start), leader.queue_starts())
        elif agreed < end:
            follower.truncator.truncate(agreed)
            self.tables.replay.was_truncated(follower.log.end)
        else:
            follower.appender.append_raw(end, leader.log.read_raw(end, self.rng.choice((100, 4_000, 20_000, 300_000))))
            self.tables.confirm(follower, max(follower.state.confirmed, min(leader.state.confirmed, follower.log.end)))

    def _reset(self, follower: MessageStore, to: int, epochs: LeaderEpochs, queues: dict[tuple[str, int], int]) -> None:
        self.trace.append(f"  reset at {to}: {epochs}")
        self.reset_in_progress = settled(epochs, to)
        follower.truncator.reset(to, epochs, queues)
        self.tables.replay.was_truncated(follower.log.end)
        self.expected, self.reset_in_progress = epochs, None

    def follower_keeps_up(self) -> None:
        self.now_ms += self.rng.choice((100, 2_000))
        self.try_to(lambda store: store.checkpointer.run_periodic_tasks(self.now_ms))

    def follower_flushes(self) -> None:
        def flush(store: MessageStore) -> None:
            try:
                store.mark_flushed(store.flush())
            except OSError as error:
                store.checkpointer.mark_failed(error)

        self.try_to(flush)

    def follower_checkpoints(self) -> None:
        def checkpoint(store: MessageStore) -> None:
            checkpoint = store.checkpointer.checkpoint()
            try:
                checkpoint.run()
            except OSError as error:
                checkpoint.requeue()
                if error.errno not in NO_DESCRIPTORS:
                    store.checkpointer.mark_failed(error)
            else:
                store.checkpointer.checkpointed(checkpoint)

        self.try_to(checkpoint)

    def follower_expires(self) -> None:
        self.try_to(self._expire)

    def follower_saves_its_tables(self) -> None:
        self.try_to(self.tables.save)

    def follower_leads(self) -> None:
        """It writes alone for a while: its log diverges from the leader's."""
        if self.follower.log.end == 0:
            return

        def lead(store: MessageStore) -> None:
            self._begin(store)
            self._put(store, self.rng.randrange(16))
            if self.rng.random() < 0.2:
                self._delete(store)
                if self.rng.random() < 0.5:
                    self.tables.confirm(store, store.log.end)
                    self._put(store, self.rng.randrange(4))

        self.try_to(lead)

    # Its starts and stops

    def follower_is_killed(self) -> None:
        end = self.follower.log.end
        self.restart(clean=False)
        assert self.follower.log.end == end, f"a kill between two calls loses nothing of the log: {self.ends()}"

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
            self.trace.append("  an operator removes the queues to have them rebuilt")
            shutil.rmtree(self.follower_config.path / "consumequeue", ignore_errors=True)
        for attempt in range(8):
            if self._started(failing=attempt < 5 and self.rng.random() < 0.5):
                break
        else:
            raise AssertionError("a follower opens once its calls succeed")
        damage = self.follower.state.damage
        # A full disk may have removed the recovery point; the start then reports possible damage.
        assert damage is None or not (damage.flushed or damage.confirmed), f"no start misses a record: {damage}"
        self.follower.recovery.acknowledge_damage()
        self.follower.state.damage = None
        self.tables = TableStore(self.follower)
        self.look()
        self.reset_in_progress = None

    def _started(self, failing: bool) -> bool:
        recovery_point = RecoveryPoint.load(self.follower_config.path / "config" / "recoveryPoint.json")
        self.trace.append(f"  start with {recovery_point}")
        try:
            with self.calls.failing(failing):
                self.follower = MessageStore.open(self.follower_config)
        except (OSError, StoreError, Died) as error:
            self.trace.append(f"  not opened: {error!r}")
            mark = self.follower_config.path / "config" / "damaged"
            if mark.exists():
                assert recovery_point is None, f"no start misses a record: {recovery_point}"
                mark.unlink()
            return False
        return True

    # Invariants

    def look(self) -> None:
        self.look_at_epochs()
        self.look_at_files()
        self.look_at_queues()

    def look_at_epochs(self) -> None:
        follower = self.follower
        got = settled(follower.epoch_cache.epochs, follower.log.end)
        truth = self._true_epochs()
        if self.reset_in_progress is not None and got in ((), epochs_in_log(follower), self.reset_in_progress):
            # A reset replaces the old epochs with none, then with the new ones.
            truth = got
        elif truth[:1] == FOREIGN and got == settled(truth[1:], follower.log.end) and follower.state.confirmed == 0:
            # It died between the first records and their epoch file, so the start truncates the records.
            truth = got
        assert got == settled(truth, follower.log.end), f"the epochs are those of the log: {got} instead of {truth}"
        self.expected = truth

    def _true_epochs(self) -> LeaderEpochs:
        """The epochs of the records, and the earlier ones that were known before retention."""
        follower = self.follower
        older = tuple(epoch for epoch in self.expected if epoch.start < follower.log.start)
        found = epochs_in_log(follower)
        foreign = follower.log.start == 0 < follower.log.end and not (found and found[0].start == 0)
        return (FOREIGN if foreign else older) + found

    def look_at_files(self) -> None:
        """The files that the next start reads claim nothing that is missing."""
        follower = self.follower
        if follower.epoch_cache.persisted:
            kept = EpochFile.load(follower.epoch_cache.path)
            undone = [e for e in kept.epochs if e not in follower.epoch_cache.epochs] if kept else []
            assert not [e for e in undone if e.start < follower.state.recovery_point.written], (
                f"the epoch file has undone epochs: {undone}"
            )
        recovery_point = RecoveryPoint.load(follower.recovery_point_file.path)
        if recovery_point is not None:
            most = max(recovery_point.confirmed, recovery_point.flushed, recovery_point.written, recovery_point.durable)
            assert most <= follower.log.end, f"the recovery point claims more than the log has: {recovery_point}"

    def look_at_queues(self) -> None:
        """Every confirmed record is in its queue at its queue offset, and hidden if its topic was deleted after it."""
        follower = self.follower
        gone, perhaps = (dropped(follower, stop) for stop in (follower.state.confirmed, follower.log.end))
        for record in follower.reader.walk(follower.log.start, follower.state.confirmed):
            place = (record.topic, record.queue_id, record.queue_offset)
            if any(at <= record.phys_offset < stop for at, stop in follower.state.unindexed.items()):
                continue  # A start could not read it; a later retry indexes it.
            queue = follower.queues.find(record.topic, record.queue_id)
            assert queue is not None, f"a confirmed record has no queue: {place}"
            assert queue.max > record.queue_offset, f"a confirmed record is not in its queue: {place}"
            entry = queue.entry(record.queue_offset)
            assert entry[:2] == (record.phys_offset, record.size), (
                f"{place} is at {record.phys_offset}, the queue says {entry}"
            )
            shown = bool(follower.reader.get(*place, 1, 1).data)
            if record.phys_offset < gone.get(record.topic, 0):
                assert not shown, f"a deleted message is shown: {place}"
            elif record.phys_offset >= perhaps.get(record.topic, 0):
                assert shown, f"a message is not shown: {place}"

    def catch_up(self) -> None:
        """Its calls succeed again: in the end the follower has all records of the leader."""
        for _ in range(2_000):
            self._fetch(self.follower)
            if (
                self.follower.log.end == self.leader.log.end
                and self.follower.state.confirmed >= self.leader.state.confirmed
            ):
                break
        else:
            raise AssertionError(f"a follower catches up, but stays at {self.ends()}")
        self.leaders_tables.confirm(self.leader, self.follower.state.confirmed)
        for _ in range(1 + len(self.follower.state.unindexed)):
            self.now_ms += 2_000
            self.follower.checkpointer.run_periodic_tasks(self.now_ms)
        assert not self.follower.state.unindexed
        self.look()
        self._compare_logs()
        self._compare_queues()
        self._compare_index()

    def _compare_logs(self) -> None:
        leader, follower = self.leader, self.follower
        assert settled(follower.epoch_cache.epochs, follower.log.end) == settled(
            leader.epoch_cache.epochs, leader.log.end
        ), "the same epochs"
        first = max(leader.log.start, follower.log.start)
        same = follower.log.read(first, leader.log.end - first) == leader.log.read(first, leader.log.end - first)
        assert same, f"the same bytes in {first}-{leader.log.end}"

    def _compare_queues(self) -> None:
        leader, follower = self.leader, self.follower
        known, all_of_log = (dropped(follower, stop) for stop in (follower.state.confirmed, follower.log.end))
        indexed, numbered = (
            {(r.topic, r.queue_id) for r in follower.reader.walk(follower.log.start, stop)}
            for stop in (follower.state.confirmed, follower.log.end)
        )
        for topic, queue_ids in leader.queues.topics_queues().items():
            for queue_id in queue_ids:
                # 0: no record of it is left, and the override is unconfirmed.
                place = (topic, queue_id)
                stop, mine = leader.reader.max_offset(*place), follower.reader.max_offset(*place)
                assert mine == stop or (mine == 0 and place not in indexed), f"the same end of queue {place}"
                stop, mine = leader.queues.next_offset(*place), follower.queues.next_offset(*place)
                assert mine == stop or (mine == 0 and place not in numbered), f"the next number of {place}"
        for record in leader.reader.walk(max(leader.log.start, follower.log.start), leader.state.confirmed):
            place = (record.topic, record.queue_id, record.queue_offset)
            if known.get(record.topic) != all_of_log.get(record.topic):
                continue  # After a kill, its tables may know a deletion that is unconfirmed for it.
            mine, other = (store.reader.get(*place, 1, 1).data for store in (follower, leader))
            assert mine == other, f"the same message at {place}"

    def _compare_index(self) -> None:
        leader, follower = self.leader, self.follower
        for store in (leader, follower):
            assert store.index is not None
            for _ in range(1_000):
                if not store.index.behind:
                    break
                self.now_ms += 2_000
                store.checkpointer.run_periodic_tasks(self.now_ms)
            assert not store.index.behind, "the index comes to the end of what is confirmed"
        first = max(leader.log.start, follower.log.start)
        gone = dropped(leader, leader.log.end)  # After a kill, tables may be ahead of the confirmed offset.
        records = [
            r
            for r in leader.reader.walk(first, leader.state.confirmed)
            if r.topic in "AB" and r.phys_offset > gone.get(r.topic, 0)
        ]
        for record in self.rng.sample(records, min(5, len(records))):
            key = f"k{record.born_ms}"
            found = [other.phys_offset for other in follower.reader.query(record.topic, key, 32, 0, 1 << 60)]
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
def test_a_follower_agrees_with_its_log_after_failing_calls(
    seed: int, quick_dir: Path, small: BrokerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(Pair(quick_dir, seed, small.model_copy(update=FILE_SIZES), monkeypatch), seed)
