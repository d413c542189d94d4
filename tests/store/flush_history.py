"""Seeded histories of group commit on a slow disk that fails and loses power.

What it reports as flushed is there after each power loss, and after a failed fdatasync nothing is written or flushed
any more. Both ways run fdatasync: the kernel in the background, and a thread. Times are real, so the same seed may give
another order.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.errors import FlushFailed
from gantry_broker.store.group_commit import GroupCommit
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import StoreConfig

from tests.store.test_failing_calls import FILE_SIZES, SEGMENT
from tests.store.test_power_loss import Disk
from tests.store.test_replica import message
from tests.support.planted_syncs import plant_fdatasync

STEPS: Final = 100
LONGEST_S: Final = 60.0
"""A history that takes longer waits for an end that no one reports."""
STEP_WEIGHTS: Final = {
    "put": 40, "begin": 20, "wait": 8, "turn": 20, "truncate": 10, "reset": 1, "replace_segment": 1, "lose_power": 5,
    "fail": 1,
}  # fmt: skip


class History:
    """One store, its disk, and what runs on it."""

    def __init__(self, seed: int, root: Path, settings: BrokerSettings, monkeypatch: pytest.MonkeyPatch) -> None:
        self._rng = random.Random(seed)
        self._disk = Disk(root, monkeypatch)
        self._failing = False
        self._begun = 0
        """Begun fdatasyncs of the log."""
        self._number = 0
        self._waits: list[asyncio.Task[int]] = []
        plant_fdatasync(monkeypatch.setattr, self._in_both_ways, lambda: self._rng.choice((0, 0, 0.002)))
        self._config = StoreConfig(root, settings.model_copy(update=FILE_SIZES), sync_flush=True)
        self._store: MessageStore
        self._commit: GroupCommit

    def _in_both_ways(self, fd: int) -> Callable[[int], int]:
        of_log = "commitlog" in os.readlink(f"/proc/self/fd/{fd}")
        self._begun += of_log
        fails = of_log and self._failing
        self._failing = self._failing and not fails  # The kernel reports an error once.
        return lambda result: -errno.EIO if fails else result

    async def run(self) -> None:
        async with asyncio.timeout(LONGEST_S):
            self._open()
            for _ in range(STEPS):
                [name] = self._rng.choices(list(STEP_WEIGHTS), list(STEP_WEIGHTS.values()))
                await getattr(self, f"_{name}")()
            await self._lose_power()
            await self._close()

    def _open(self) -> None:
        self._store = MessageStore.open(self._config)
        self._store.recovery.acknowledge_damage()
        self._store.state.damage = None
        self._commit = GroupCommit(self._store)

    async def _close(self) -> None:
        await self._commit.close()
        await asyncio.gather(*self._waits, return_exceptions=True)
        self._waits.clear()
        self._store.close(clean=False)

    async def _put(self) -> None:
        for _ in range(self._rng.randrange(1, 6)):
            self._number += 1
            self._store.appender.put([message(self._number, "A", self._rng.choice((8, 900, 3_000)))], self._number)

    async def _begin(self) -> None:
        self._commit.begin()

    async def _wait(self) -> None:
        self._waits.append(asyncio.create_task(self._commit.wait(self._store.log.end)))

    async def _turn(self) -> None:
        await asyncio.sleep(self._rng.choice((0, 0.001, 0.004)))

    async def _truncate(self) -> None:
        store = self._store
        if ends := [record.phys_offset for record in store.reader.walk(store.log.start, store.log.end)]:
            store.truncator.truncate(self._rng.choice(ends[-self._rng.choice((3, 20, 40)) :]))

    async def _reset(self) -> None:
        self._store.truncator.reset(self._store.log.end // SEGMENT * SEGMENT + SEGMENT, ((1, 0),), {})

    async def _replace_segment(self) -> None:
        """The last segment is removed, and another one gets its name."""
        store, commit = self._store, self._commit
        base = store.log.end // SEGMENT * SEGMENT
        earlier = [record.phys_offset for record in store.reader.walk(store.log.start, base)]
        if not earlier:
            return
        await self._put()
        await commit.flush()
        store.truncator.truncate(earlier[-1])
        while store.log.end <= base:
            await self._put()
        await commit.flush()
        await self._put()
        await commit.flush()
        await self._lose_power()

    async def _lose_power(self) -> None:
        store = self._store
        start, flushed = store.log.start, store.state.flushed
        expected = store.log.read(start, flushed - start)
        self._disk.off = True
        await self._close()
        self._disk.lose(self._rng if self._rng.random() < 0.3 else None)
        self._disk.off = False
        self._open()
        store = self._store
        assert store.log.end >= flushed, f"{flushed} was flushed, the log ends at {store.log.end}"
        assert store.log.read(start, flushed - start) == expected, "other bytes than those that were flushed"

    async def _fail(self) -> None:
        store, commit = self._store, self._commit
        await self._put()
        self._failing = True
        with pytest.raises(FlushFailed):
            await commit.wait(store.log.end)
        assert store.state.failed is not None
        begun, flushed = self._begun, store.state.flushed
        commit.begin()
        with pytest.raises(FlushFailed):
            await commit.wait(store.log.end)
        with pytest.raises(FlushFailed):
            await self._put()
        await asyncio.sleep(0.005)
        assert (self._begun, store.state.flushed) == (begun, flushed), "nothing may be tried again"
        await self._lose_power()


def run_history(seed: int, root: Path, settings: BrokerSettings) -> None:
    with pytest.MonkeyPatch.context() as patch:
        asyncio.run(History(seed, root, settings, patch).run())
