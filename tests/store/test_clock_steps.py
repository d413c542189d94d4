"""Searches by time in a log whose store times go back: a clock was set back, or the next leader's was behind."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from gantry_broker.protocol.message import pack_host
from gantry_broker.settings import BrokerSettings
from gantry_broker.store import clock_steps
from gantry_broker.store.clock_steps import ClockSteps
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import Put, StoreConfig

from tests.store.opened import opened

HOST = pack_host("10.1.2.3", 50_000)


def put(store: MessageStore, ms: int, *queues: int) -> None:
    store.appender.put([Put("Orders", queue, 0, 0, ms, HOST, b"x" * 60, b"") for queue in queues], ms)
    store.indexer.confirm(store.log.end)


def check(store: MessageStore, queue: int, times: list[int]) -> None:
    """Compare every search with a look at all records."""
    assert [store.reader.store_time("Orders", queue, n) for n in range(len(times))] == times
    for ms in range(min(times) - 1, max(times) + 2):
        first = next((n for n, own in enumerate(times) if own >= ms), len(times))
        last = next((n for n in reversed(range(len(times))) if times[n] <= ms), 0)
        assert store.reader.offset_at_time("Orders", queue, ms) == first, (times, ms)
        assert store.reader.offset_at_time("Orders", queue, ms, upper=True) == last, (times, ms)


@pytest.mark.parametrize("seed", range(6))
def test_a_search_by_time_finds_the_first_and_the_last_although_clocks_went_back(
    quick_dir: Path, small: BrokerSettings, seed: int
) -> None:
    drawn = random.Random(seed)
    config = StoreConfig(quick_dir / "store", small)
    store = MessageStore.open(config)
    times: dict[int, list[int]] = {0: [], 1: []}
    now = 1_000
    try:
        for turn in range(80):
            now = max(now + (drawn.randrange(-40, 0) if drawn.random() < 0.15 else drawn.randrange(3)), 900)
            queues = [drawn.randrange(2) for _ in range(drawn.randrange(1, 4))]
            put(store, now, *queues)
            for queue in queues:
                times[queue].append(now)
            if turn % 20 == 19:
                if drawn.random() < 0.5:
                    made = store.checkpointer.checkpoint()
                    made.run()
                    store.checkpointer.checkpointed(made)
                store.close(clean=drawn.random() < 0.5)
                store = MessageStore.open(config)
                store.indexer.confirm(store.log.end)
        for queue, own in times.items():
            check(store, queue, own)
    finally:
        store.close(clean=False)


def test_a_follower_finds_the_steps_in_what_it_copies(quick_dir: Path, small: BrokerSettings) -> None:
    with (
        opened(StoreConfig(quick_dir / "leader", small)) as leader,
        opened(StoreConfig(quick_dir / "follower", small)) as follower,
    ):
        times = [50, 60, 70, 20, 30, 10, 40, 80, 75]
        for ms in times:
            put(leader, ms, 0)
        follower.appender.append_raw(0, leader.log.read_raw(0, 1 << 20))
        follower.indexer.confirm(follower.log.end)
        check(follower, 0, times)


def test_a_search_after_a_truncation_and_after_a_reset(quick_dir: Path, small: BrokerSettings) -> None:
    with opened(StoreConfig(quick_dir / "store", small)) as store:
        ends = []
        times = [50, 60, 20, 30, 10]
        for ms in times:
            put(store, ms, 0)
            ends.append(store.log.end)
        store.truncator.truncate(ends[3])
        for ms in (5, 90):
            put(store, ms, 0)
        check(store, 0, [50, 60, 20, 30, 5, 90])
        store.truncator.reset(0)
        for ms in (3, 2, 4):
            put(store, ms, 0)
        check(store, 0, [3, 2, 4])


def test_steps_are_bounded_and_the_smallest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock_steps, "MAX_STEPS", 3)
    steps = ClockSteps()
    for at, ms in ((0, 100), (10, 50), (20, 120), (30, 119), (40, 90), (50, 91), (60, 10)):
        steps.note(at, ms)
    assert steps.behind(0) == [10, 40, 60]
    assert steps.behind(10) == [40, 60]
    assert steps.saved(10) == [(40, 29), (60, 81)]
    steps.truncate(60)
    assert steps.behind(0) == [10, 40]
