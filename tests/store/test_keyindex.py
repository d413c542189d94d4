"""The files of the key index."""

from __future__ import annotations

import contextlib
import os
import random
import time
from pathlib import Path

import pytest
from gantry_broker.protocol.message import pack_host
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.index import key_index
from gantry_broker.store.index.index_file import KEY
from gantry_broker.store.index.key_index import KeyIndex
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import Put, StoreConfig


def test_names_rise_after_the_clock_went_back_by_years(quick_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for a higher name must not take time that grows with the clock's error."""
    made = KeyIndex(quick_dir, 10, 20, own_files=True)
    asked = 0
    real = time.strftime

    def strftime(form: str, at: time.struct_time) -> str:
        nonlocal asked
        asked += 1
        assert asked <= 5
        return real(form, at)

    monkeypatch.setattr(time, "strftime", strftime)
    for clock in (2_000_000_000.0, 1_600_000_000.0, 1_600_000_000.0, 1_999_999_999.0, 2_000_000_001.0):
        monkeypatch.setattr(time, "time", lambda clock=clock: clock)
        made.pending = bytearray().join([KEY.pack(n, n, 1_000) for n in range(19)])
        assert made.drain()
    made.close()
    names = sorted(os.listdir(quick_dir))
    assert len(names) == asked == 5
    assert names[-1].startswith(real("%Y%m%d%H%M%S", time.localtime(2_000_000_001)))
    again = KeyIndex(quick_dir, 10, 20, own_files=True)
    assert again.find(7, 0, 10_000, 10, lambda phys: -1) == [7] * 5
    again.close()


def put_at(store: MessageStore, times: list[int], keys: list[str]) -> None:
    for ms, key in zip(times, keys, strict=True):
        message = Put("T", 0, 0, 0, 1, pack_host("10.0.0.1", 9), b"b", f"KEYS\x01{key}\x02".encode(), keys=(key,))
        store.appender.put([message], ms)
    store.indexer.confirm(store.log.end)


@pytest.mark.parametrize("seed", range(25))
def test_keys_are_found_by_time_although_the_clock_was_set_back(
    quick_dir: Path, small: BrokerSettings, seed: int
) -> None:
    """Against a plain list, before and after a clean start and one after a kill."""
    rng = random.Random(seed)
    config = StoreConfig(quick_dir / "store", small)
    store = MessageStore.open(config)
    written: list[tuple[int, str]] = []
    now = 1_700_000_000_000
    for life in range(3):
        times = []
        for _ in range(rng.choice((5, 250, 700))):
            if rng.random() < 0.02:
                now += rng.choice((-86_400_000, -3_600_000, -5_000, -1, 3_600_000))
            now += rng.randrange(2_000)
            times.append(now)
        keys = [rng.choice(("a", "b", f"k{n}")) for n in range(len(times))]
        for at in range(0, len(times), 50):
            put_at(store, times[at : at + 50], keys[at : at + 50])
            store.checkpointer.run_periodic_tasks(at)
        written += zip(times, keys, strict=True)
        for _ in range(40):
            ms, key = rng.choice(written)
            begin, end = ms - rng.randrange(10_000), ms + rng.randrange(10_000)
            wanted = [t for t, k in reversed(written) if k == key and begin <= t <= end]
            found = [record.store_ms for record in store.reader.query("T", key, 2_000, begin, end)]
            assert found == wanted, (life, key, begin, end)
            few = [record.store_ms for record in store.reader.query("T", key, 1, begin, end)]
            assert few == wanted[:1]
        if rng.random() < 0.3:
            cut = store.queues.find("T", 0).entry(rng.randrange(len(written)))  # type: ignore[union-attr]
            store.truncator.truncate(cut[0])
            del written[store.reader.max_offset("T", 0) :]
        store.close(clean=life == 0)
        store = MessageStore.open(config)
    store.close()


def test_the_times_of_a_file_written_in_order_stay_as_rocketmq_has_them(quick_dir: Path, small: BrokerSettings) -> None:
    """Entry 0 is ours only where it is needed."""
    store = MessageStore.open(StoreConfig(quick_dir / "store", small))
    put_at(store, list(range(1_000, 90_000, 1_000)), ["a"] * 89)
    store.close()
    (path,) = (quick_dir / "store" / "index").iterdir()
    assert path.read_bytes()[40 + 4 * 100 :][:20] == bytes(20)


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("damage", ["empty", "cut", "text"])
def test_keys_of_a_damaged_file_are_read_from_the_log_again(
    monkeypatch: pytest.MonkeyPatch, quick_dir: Path, small: BrokerSettings, which: int, damage: str
) -> None:
    """The first, one within, the newest; also after a start in between, and while new keys come. All files are made
    within one millisecond.
    """
    monkeypatch.setattr(key_index, "_file_name", lambda _: "20261128134024066")
    config = StoreConfig(quick_dir / "store", small.model_copy(update={"maxHashSlotNum": 50, "maxIndexNum": 200}))
    store = MessageStore.open(config)
    times = [1_700_000_000_000 + n * 1_500 for n in range(750)]
    keys = [f"k{n % 60}" for n in range(750)]
    for at in range(0, 600, 50):
        put_at(store, times[at : at + 50], keys[at : at + 50])
        store.checkpointer.run_periodic_tasks(at)
    store.close()
    files = sorted((quick_dir / "store" / "index").iterdir())
    assert len(files) == 4
    content = {"empty": b"", "cut": files[which].read_bytes()[:100], "text": b"no index" * 1_000}[damage]
    files[which].write_bytes(content)
    store = MessageStore.open(config)
    store.close(clean=which % 2 == 0)
    store = MessageStore.open(config)
    store.indexer.confirm(store.log.end)
    with contextlib.closing(store):
        assert store.index is not None
        assert store.index.gaps == [files[which].name]
        put_at(store, times[600:650], keys[600:650])
        for now in range(0, 100_000, 100):
            store.checkpointer.run_periodic_tasks(now)
            if not store.index.gaps and not store.index.behind:
                break
        put_at(store, times[650:], keys[650:])
        for key in range(60):
            found = [r.store_ms for r in store.reader.query("T", f"k{key}", 100, 0, 1 << 60)]
            assert found == [t for t, own in zip(times[::-1], keys[::-1], strict=True) if own == f"k{key}"]
    assert all(path.name.isdecimal() for path in (quick_dir / "store" / "index").iterdir())
    with contextlib.closing(MessageStore.open(config)) as store:
        assert len(store.reader.query("T", "k7", 100, 0, 1 << 60)) == 13
