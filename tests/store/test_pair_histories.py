"""Seeded histories of two stores that take turns as master, with divergence, truncations and crashes.

`STORE_SEED` and `STORE_HISTORIES` as in test_histories.py.
"""

from __future__ import annotations

import contextlib
import os
import random
from pathlib import Path

import pytest
from gantry_broker.protocol.message import decode_records, pack_host
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.log.epochs import LeaderEpochs
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import Put, StoreConfig

from tests.store.indexing import index_all

HISTORIES = int(os.environ.get("STORE_HISTORIES", "16"))
SEEDS = [int(os.environ["STORE_SEED"])] if "STORE_SEED" in os.environ else range(HISTORIES)
HOST = pack_host("10.1.2.3", 50_000)
SETTINGS = BrokerSettings(
    mappedFileSizeCommitLog=65_536, mappedFileSizeConsumeQueue=2_000, maxHashSlotNum=100, maxIndexNum=400
)


def divergence(mine: LeaderEpochs, my_end: int, other: LeaderEpochs, other_end: int) -> int:
    """The offset where two logs diverge: the end of the last common epoch, in the log where it is shorter."""
    common = 0
    for index, epoch in enumerate(mine):
        if epoch not in other:
            break
        place = other.index(epoch)
        my_stop = mine[index + 1].start if index + 1 < len(mine) else my_end
        other_stop = other[place + 1].start if place + 1 < len(other) else other_end
        common = min(my_stop, other_stop)
    return common


class Pair:
    """Two members; `master` is the number of the one that writes."""

    def __init__(self, root: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.paths = [root / f"{seed}-0", root / f"{seed}-1"]
        self.stores = [MessageStore.open(StoreConfig(path, SETTINGS)) for path in self.paths]
        self.master = 0
        self.epoch = 0
        self.serial = 0
        self.shown: dict[tuple[str, int, int], int] = {}
        self.promote()

    def promote(self) -> None:
        # The member with the better log, by the rules.
        self.master = max((0, 1), key=lambda n: (self.stores[n].epoch_cache.last_epoch, self.stores[n].log.end))
        self.epoch += 1
        self.stores[self.master].appender.begin_epoch(self.epoch, b"%d" % self.epoch, self.serial)
        self.align()

    def align(self) -> None:
        """The follower truncates records that the master does not have."""
        leader, follower = self.stores[self.master], self.stores[1 - self.master]
        to = divergence(follower.epoch_cache.epochs, follower.log.end, leader.epoch_cache.epochs, leader.log.end)
        if to < follower.log.end:
            # Never below its confirmed offset.
            assert to >= follower.state.confirmed
            follower.truncator.truncate(to)

    def put(self) -> None:
        batch = []
        for _ in range(self.rng.choice((1, 3, 10))):
            self.serial += 1
            body = self.serial.to_bytes(8, "big") * self.rng.choice((1, 10, 300))
            key = f"k{self.serial}"
            batch.append(
                Put("T", self.rng.randrange(3), 0, 0, 1, HOST, body, f"KEYS\x01{key}\x02".encode(), keys=(key,))
            )
        self.stores[self.master].appender.put(batch, self.serial)

    def fetch(self) -> None:
        leader, follower = self.stores[self.master], self.stores[1 - self.master]
        for _ in range(self.rng.randrange(1, 4)):
            data = leader.log.read_raw(follower.log.end, self.rng.choice((1, 2_000, 30_000)))
            follower.appender.append_raw(follower.log.end, data)

    def fetch_all(self) -> None:
        leader, follower = self.stores[self.master], self.stores[1 - self.master]
        while follower.log.end < leader.log.end:
            follower.appender.append_raw(follower.log.end, leader.log.read_raw(follower.log.end, 100_000))

    def confirm(self) -> None:
        """Confirm the records that both have; the follower learns it one answer later."""
        leader, follower = self.stores[self.master], self.stores[1 - self.master]
        if follower.epoch_cache.last_epoch != leader.epoch_cache.last_epoch:
            return
        leader.indexer.confirm(min(leader.log.end, follower.log.end))
        if self.rng.random() < 0.7:
            follower.indexer.confirm(min(leader.state.confirmed, follower.log.end))
        self.look()

    def look(self) -> None:
        """A record that was read once never changes or disappears, in any store that shows its offset."""
        for store in self.stores:
            index_all(store)
            for queue_id in range(3):
                high = store.reader.max_offset("T", queue_id)
                for number in range(high):
                    got = store.reader.get("T", queue_id, number, 1, 1)
                    (record,) = decode_records(got.data)
                    serial = int.from_bytes(record.body[:8], "big")
                    assert record.queue_offset == number
                    assert self.shown.setdefault(("T", queue_id, number), serial) == serial
                    assert record.phys_offset in [
                        r.phys_offset for r in store.reader.query("T", f"k{serial}", 9, 0, 10**9)
                    ]

    def crash(self) -> None:
        victim = self.rng.randrange(2)
        if self.rng.random() < 0.5:
            self.stores[victim].checkpointer.run_periodic_tasks(self.serial * 10_000)
        ends = self.stores[victim].log.end
        self.stores[victim].close(clean=self.rng.random() < 0.3)
        self.stores[victim] = MessageStore.open(StoreConfig(self.paths[victim], SETTINGS))
        assert self.stores[victim].log.end == ends
        # A restarted master never continues its epoch (rule 21).
        self.promote()

    def switch(self) -> None:
        self.promote()

    def run(self, steps: int) -> None:
        actions = ["put"] * 5 + ["fetch"] * 4 + ["confirm"] * 4 + ["crash", "switch", "run_periodic_tasks"]
        for _ in range(steps):
            getattr(self, self.rng.choice(actions))()
        self.fetch_all()
        self.confirm()
        self.stores[1 - self.master].indexer.confirm(self.stores[self.master].log.end)
        self.look()
        one, other = self.stores
        assert one.epoch_cache.epochs == other.epoch_cache.epochs
        assert one.log.read_raw(0, 10**9) == other.log.read_raw(0, 10**9)
        assert [one.reader.max_offset("T", q) for q in range(3)] == [other.reader.max_offset("T", q) for q in range(3)]
        assert [one.queues.next_offset("T", q) for q in range(3)] == [
            other.queues.next_offset("T", q) for q in range(3)
        ]

    def run_periodic_tasks(self) -> None:
        for store in self.stores:
            store.checkpointer.run_periodic_tasks(self.serial * 10_000)

    def close(self) -> None:
        for store in self.stores:
            store.close(clean=False)


@pytest.mark.parametrize("seed", SEEDS)
def test_two_stores_agree_through_switches_cuts_and_crashes(seed: int, quick_dir: Path) -> None:
    with contextlib.closing(Pair(quick_dir, seed)) as pair:
        pair.run(50)
