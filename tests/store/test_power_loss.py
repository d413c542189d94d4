"""Files after a power loss: all synced bytes, and any or no block of the others.

The histories are those of test_failing_calls.py, with power losses of the follower's machine. `STORE_SEED` and
`STORE_HISTORIES` as there.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from gantry_broker.settings import BrokerSettings
from gantry_broker.store import append
from gantry_broker.store.errors import StoreError
from gantry_broker.store.recovery_point import RecoveryPoint
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import DiskUsage, Put, StoreConfig

from tests.store import test_failing_calls
from tests.store.opened import make_checkpoint
from tests.store.test_failing_calls import FILE_SIZES, STEP_WEIGHTS, Died, Pair, TableStore, play
from tests.store.test_replica import HOST, copy, fill, fill_and_index, message
from tests.support.planted_syncs import Report, plant_async_sync

HISTORIES: Final = int(os.environ.get("STORE_HISTORIES", "40"))
SEEDS: Final = [int(os.environ["STORE_SEED"])] if "STORE_SEED" in os.environ else range(HISTORIES)
ANOTHER_BOOT: Final = "another"
WITHOUT_RECORDS: Final = ("abort", "checkpoint", "lock")
"""Small files that are written as a whole, as in config/."""

FULL = DiskUsage(10**6, 0, 0.99)


class Disk:
    """A disk with the order of ext4: a sync of a new file, or of a directory, makes all names durable."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root = root
        self._data: dict[int, bytes] = {}
        """By inode: what a power loss leaves."""
        self._syncs: dict[int, int] = {}
        """By inode: how many syncs have ended."""
        self._names: dict[str, int] = {}
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self._syncing(name, getattr(os, name)))
        plant_async_sync(monkeypatch.setattr, self._begun)
        self.off = False
        """The power is off: no sync counts."""

    def _syncing(self, name: str, call: Callable[[int], None]) -> Callable[[int], None]:
        def instead(fd: int) -> None:
            call(fd)
            path = os.readlink(f"/proc/self/fd/{fd}")
            if path.startswith(str(self._root)) and not self.off:
                self._synced(name, fd, path)

        return instead

    def _synced(self, name: str, fd: int, path: str) -> None:
        if os.path.isdir(path):
            self._names = self._files()
            return
        inode = os.fstat(fd).st_ino
        new = inode not in self._data
        self._data[inode] = Path(f"/proc/self/fd/{fd}").read_bytes()
        self._syncs[inode] = self._syncs.get(inode, 0) + 1
        if new or name == "fsync":
            self._names = self._files()

    def _begun(self, fd: int) -> Callable[[int, Report], None]:
        """A request to the kernel makes durable what the file has at its begin, and not before its end."""
        ours = os.readlink(f"/proc/self/fd/{fd}").startswith(str(self._root))
        inode, data = os.fstat(fd).st_ino, Path(f"/proc/self/fd/{fd}").read_bytes() if ours else b""
        names = self._files() if ours and inode not in self._data else None
        syncs = self._syncs.get(inode, 0)

        def ended(result: int, report: Report) -> None:
            if ours and result == 0 and not self.off and self._syncs.get(inode, 0) == syncs:
                self._data[inode] = data
                self._names = names or self._names
            report(result)

        return ended

    def _files(self) -> dict[str, int]:
        """Return the inode of each file. Threads of the store rename and remove files meanwhile."""
        found = {}
        for folder, _, names in os.walk(self._root):
            for name in names:
                with suppress(FileNotFoundError):
                    path = os.path.join(folder, name)
                    found[path] = os.stat(path).st_ino
        return found

    def lose(self, rng: random.Random | None = None) -> None:
        """The machine loses power and boots. Without `rng`, all unsynced bytes are lost."""
        block = 4_096 if rng is None else rng.choice((512, 4_096))
        chance = 1.0 if rng is None else rng.choice((0, 0.3, 1.0))
        now = self._files()
        names = now if rng is not None and rng.random() < 0.5 else self._names
        left = {path: self._left(path, inode, now, rng, block, chance) for path, inode in names.items()}
        for path in now:
            os.unlink(path)
        for path, data in left.items():
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_bytes(data)
        recovery_point = self._root / "config" / "recoveryPoint.json"
        with suppress(FileNotFoundError, ValueError):
            recovery_point.write_text(json.dumps({**json.loads(recovery_point.read_text()), "boot": ANOTHER_BOOT}))
        self._names = self._files()
        self._data = {inode: Path(path).read_bytes() for path, inode in self._names.items()}

    def _left(
        self, path: str, inode: int, now: dict[str, int], rng: random.Random | None, block: int, chance: float
    ) -> bytes:
        synced = self._data.get(inode, b"")
        written = Path(path).read_bytes() if now.get(path) == inode else synced
        if f"{os.sep}config{os.sep}" in path or path.endswith(WITHOUT_RECORDS):
            return synced if rng is not None and synced and rng.random() < 0.5 else written
        found = bytearray(written)
        synced = synced[: len(found)].ljust(len(found), b"\0")
        for at in range(0, len(found), block):
            if rng is None or rng.random() < chance:
                found[at : at + block] = synced[at : at + block]
        return bytes(found)


class PowerPair(Pair):
    def __init__(self, root: Path, seed: int, settings: BrokerSettings, monkeypatch: pytest.MonkeyPatch) -> None:
        self.disk = Disk(root / "follower", monkeypatch)
        super().__init__(root, seed, settings, monkeypatch)

    def _indexed(self, store: MessageStore) -> int:
        return (
            min(super()._indexed(store), store.state.recovery_point.durable)
            if store is self.follower
            else super()._indexed(store)
        )

    def look_at_files(self) -> None:
        recovery_point = RecoveryPoint.load(self.follower.recovery_point_file.path)
        if (
            recovery_point is None or recovery_point.boot != ANOTHER_BOOT
        ):  # Otherwise the disk had no room for the file.
            super().look_at_files()

    def follower_loses_power(self) -> None:
        flushed = self.follower.state.flushed
        self.follower.close(clean=False)
        self.disk.lose(self.rng)
        for attempt in range(8):
            try:
                with self.calls.failing(attempt < 4 and self.rng.random() < 0.3):
                    self.follower = MessageStore.open(self.follower_config)
            except (OSError, StoreError, Died) as error:
                self.trace.append(f"  not opened: {error!r}")
            else:
                break
        self.trace.append(f"  flushed {flushed}, now {self.ends()}, {self.follower.state.damage}")
        assert self.follower.log.end >= flushed, "what was flushed is there"
        self.follower.recovery.acknowledge_damage()
        self.follower.state.damage = None
        self.tables = TableStore(self.follower)
        self.look()
        self.reset_in_progress = None


@pytest.mark.parametrize("seed", SEEDS)
def test_a_follower_agrees_with_its_log_after_power_losses(
    seed: int, quick_dir: Path, small: BrokerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(test_failing_calls, "STEP_WEIGHTS", {**STEP_WEIGHTS, "follower_loses_power": 6})
    play(PowerPair(quick_dir, seed, small.model_copy(update=FILE_SIZES), monkeypatch), seed)


@pytest.fixture
def config(quick_dir: Path, small: BrokerSettings) -> StoreConfig:
    return StoreConfig(quick_dir / "store", small)


@pytest.fixture
def disk(config: StoreConfig, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(config.path, monkeypatch)


def after_a_loss(store: MessageStore, disk: Disk) -> MessageStore:
    """Kill the process, take the power away, and open the store again."""
    store.close(clean=False)
    disk.lose()
    return MessageStore.open(store.config)


def next_numbers(store: MessageStore) -> list[int]:
    return [store.queues.next_offset("Orders", queue_id) for queue_id in range(3)]


def test_the_next_process_syncs_the_writes_of_a_killed_one(config: StoreConfig, disk: Disk) -> None:
    """Its checkpoint covers the bytes that the killed process wrote."""
    store = MessageStore.open(config)
    store.appender.begin_epoch(1, b"", 1)
    fill_and_index(store, 30)
    store.close(clean=False)
    store = MessageStore.open(config)
    store.appender.put([message(1, "Other")], 1)
    store.indexer.confirm(store.log.end)
    make_checkpoint(store)
    store = after_a_loss(store, disk)
    assert next_numbers(store) == [10] * 3
    assert store.reader.query("Orders", "k1", 9, 0, 1 << 60)
    store.close()


def test_a_reset_is_durable_with_the_queue_offsets_of_empty_queues(config: StoreConfig, disk: Disk) -> None:
    store = MessageStore.open(config)
    store.appender.begin_epoch(1, b"", 1)
    fill(store, 0, 20)
    store.indexer.confirm(store.log.end)
    store.truncator.reset(65_536, [(1, 0)], {("Orders", 0): 57, ("Orders", 2): 100})
    store = after_a_loss(store, disk)
    assert next_numbers(store) == [57, 0, 100]
    store.close()


def test_retention_removes_only_records_whose_queue_offsets_are_durable(
    config: StoreConfig, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MessageStore.open(config)
    store.appender.begin_epoch(1, b"", 1)
    make_checkpoint(store)
    fill(store, 0, 30)
    while store.log.end < 2 * 65_536 + 10_000:
        store.appender.put([message(1, "Other", 3_000)], 2_000)
    store.indexer.confirm(store.log.end)
    store.mark_flushed(store.flush())
    store.checkpointer.run_periodic_tasks(10**12)
    assert store.retention.expire(10**13, disk=FULL) == 0
    store = after_a_loss(store, disk)
    assert next_numbers(store) == [10] * 3
    store.indexer.confirm(store.log.end)
    make_checkpoint(store)
    assert store.retention.expire(10**13, disk=FULL) > 0
    store = after_a_loss(store, disk)
    assert next_numbers(store) == [10] * 3
    store.close()


@pytest.mark.parametrize("zeros", [31, 40, 200, 600])
@pytest.mark.parametrize("earlier", [False, True])
def test_zeros_in_properties_are_no_lost_page(
    quick_dir: Path, small: BrokerSettings, monkeypatch: pytest.MonkeyPatch, zeros: int, earlier: bool
) -> None:
    """Neither with `put` as it is, nor in flushed records that have more zeros."""
    if earlier:
        monkeypatch.setattr(append, "_with_zeros", lambda properties: properties)
    for before in range(0, 512, 64):
        config = StoreConfig(quick_dir / f"store-{before}", small)
        disk = Disk(config.path, monkeypatch)
        store = MessageStore.open(config)
        store.appender.begin_epoch(1, b"x" * (10 + before), 1)
        fill(store, 0, 1)
        store.checkpointer.run_periodic_tasks(10**12)
        store.appender.put([Put("T", 0, 0, 0, 1, HOST, b"body", b"k\x01" + bytes(zeros) + b"x\x02")], 2)
        fill(store, 1, 2)
        store.mark_flushed(store.flush())
        store.indexer.confirm(store.log.end)
        end = store.log.end
        if earlier:
            make_checkpoint(store)  # It moves the flushed offset of the recovery point.
        store = after_a_loss(store, disk)
        assert store.log.end == end
        store.close()


def test_epochs_without_room_for_their_file_survive_retention(
    quick_dir: Path, small: BrokerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A truncated epoch must not come back after retention has removed its offset."""
    leader = MessageStore.open(StoreConfig(quick_dir / "leader", small))
    follower = MessageStore.open(StoreConfig(quick_dir / "follower", small))
    leader.appender.begin_epoch(1, b"", 1)
    fill(leader, 0, 30)
    leader.indexer.confirm(leader.log.end)
    copy(leader, follower)
    follower.indexer.confirm(follower.log.end)
    follower.appender.begin_epoch(2, b"", 1)
    divergence_offset = leader.log.end
    follower.checkpointer.run_periodic_tasks(10**12)
    follower.mark_flushed(follower.flush())
    while leader.log.end < 2 * 65_536 + 10_000:
        leader.appender.put([message(1, "Other", 3_000)], 2_000)
    leader.indexer.confirm(leader.log.end)
    opens = os.open

    def full(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if "epochs.json" in str(path):
            raise OSError(28, "No space left on device")
        return opens(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", full)
    follower.truncator.truncate(divergence_offset)
    copy(leader, follower)
    follower.indexer.confirm(follower.log.end)
    follower.checkpointer.run_periodic_tasks(10**12 + 5_000)
    make_checkpoint(follower)
    follower.retention.expire(10**13, disk=FULL)
    follower.close(clean=False)
    monkeypatch.setattr(os, "open", opens)
    follower = MessageStore.open(StoreConfig(quick_dir / "follower", small))
    assert follower.epoch_cache.epochs == leader.epoch_cache.epochs
    for store in (leader, follower):
        store.close(clean=False)
