"""Damage to every kind of file of a stopped store: the start says what it cannot repair, and no queue offset is given
twice.
"""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from gantry_broker.protocol.message import decode_records, pack_host, tags_hash
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.errors import StoreError
from gantry_broker.store.index.consume_queue import ENTRY, ENTRY_SIZE
from gantry_broker.store.sealed import seal, unseal
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import Put, StoreConfig

from tests.support.present import present

HOST = pack_host("10.1.2.3", 50_000)
TOPICS = ("Orders", "Few", "T" * 130)
Bodies = dict[tuple[str, int], list[bytes]]


def put(store: MessageStore, written: Bodies, rng: random.Random, count: int, now: int) -> None:
    batch = []
    for n in range(count):
        topic, queue_id = rng.choices(TOPICS, (20, 1, 3))[0], rng.randrange(2)
        body = b"%d/%d/" % (now, n) + rng.randbytes(rng.randrange(1, 120))
        tag = f"tag{n % 3}"
        key = f"k{now}-{n}"
        properties = f"KEYS\x01{key}\x02TAGS\x01{tag}\x02".encode()
        batch.append(Put(topic, queue_id, 0, 0, 1, HOST, body, properties, tags_hash=tags_hash(tag), keys=(key,)))
        written.setdefault((topic, queue_id), []).append(body)
    assert store.appender.put(batch, now)
    store.indexer.confirm(store.log.end)


def fill(root: Path, small: BrokerSettings, seed: int, *, checkpoints: bool = True) -> Bodies:
    """A store with several files of each kind, stopped cleanly."""
    rng = random.Random(seed)
    written: Bodies = {}
    for life in range(2):
        store = MessageStore.open(StoreConfig(root, small))
        store.appender.begin_epoch(life + 1, b"", 1)
        for step in range(rng.choice((8, 25))):
            put(store, written, rng, rng.randrange(1, 40), life * 1_000_000 + step * 1_000 + 1_000)
            if checkpoints and rng.random() < 0.2:
                done = store.checkpointer.checkpoint()
                store.mark_flushed(store.flush())
                done.run()
                store.checkpointer.checkpointed(done)
            if rng.random() < 0.5:
                store.checkpointer.run_periodic_tasks(step * 10_000)
        store.close()
    return written


def read_all(store: MessageStore, topic: str, queue_id: int, tags: frozenset[int] | None = None) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    at = store.reader.min_offset(topic, queue_id)
    while at < store.reader.max_offset(topic, queue_id):
        got = store.reader.get(topic, queue_id, at, 32, 10**6, tags)
        assert got.damaged < 0, (topic, queue_id, at, got)
        for record in decode_records(got.data) if got.data else ():
            assert (record.topic, record.queue_id) == (topic, queue_id)
            found[record.queue_offset] = record.body
        assert got.next_offset > at
        at = got.next_offset
    return found


def check(store: MessageStore, written: Bodies) -> None:
    """Every message is at its queue offset, and the next one gets an offset that none has."""
    store.indexer.confirm(store.log.end)
    for (topic, queue_id), bodies in written.items():
        assert read_all(store, topic, queue_id) == dict(enumerate(bodies)), (topic, queue_id)
        (stored,) = store.appender.put([Put(topic, queue_id, 0, 0, 1, HOST, b"next", b"")], 5_000_000)
        assert stored.queue_offset >= len(bodies), (topic, queue_id)
    store.indexer.confirm(store.log.end)


def damage_a_file(path: Path, rng: random.Random, kind: str) -> None:
    size = path.stat().st_size
    if kind == "delete":
        path.unlink()
    elif kind == "empty":
        os.truncate(path, 0)
    elif kind == "cut":
        os.truncate(path, rng.randrange(size) if size else 0)
    elif kind == "zero":
        at = rng.randrange(max(size, 1))
        with open(path, "r+b") as file:
            file.seek(at)
            file.write(bytes(min(rng.choice((1, 20, 300, size)), size - at)))
    elif size:
        data = bytearray(path.read_bytes())
        # Most of a store's file is empty: aim at what is written.
        end = max(len(data.rstrip(b"\0")), 1)
        data[rng.randrange(end)] ^= 1 << rng.randrange(8)
        path.write_bytes(data)


KINDS = ("cut", "zero", "flip", "empty", "delete")


def walk(store: MessageStore) -> None:
    """As the daily walk of a member does."""
    at = store.log.start
    while at < store.state.confirmed:
        end = store.scrubber.verify(at, 64 << 10)
        store.indexer.check_entries(at, end)
        at = end


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("many", [False, True])
def test_damaged_queue_files_are_built_again(
    quick_dir: Path, small: BrokerSettings, seed: int, kind: str, many: bool
) -> None:
    root = quick_dir / "store"
    written = fill(root, small, seed)
    rng = random.Random(seed)
    files = sorted(path for path in (root / "consumequeue").rglob("*") if path.is_file())
    for path in rng.sample(files, min(len(files), 5 if many else 1)):
        damage_a_file(path, rng, kind)
    store = MessageStore.open(StoreConfig(root, small))
    assert store.state.damage is None
    check(store, written)
    walk(store)
    for (topic, queue_id), bodies in written.items():
        for tag in range(3):  # A changed tag code hides a message from a filter until the walk finds it.
            found = read_all(store, topic, queue_id, frozenset({tags_hash(f"tag{tag}")}))
            plain = read_all(store, topic, queue_id)
            wanted = [n for n in plain if plain[n] != b"next" and int(bodies[n].split(b"/", 2)[1]) % 3 == tag]
            assert sorted(found) == wanted
    store.close()
    again = MessageStore.open(StoreConfig(root, small))
    assert again.state.queues_rebuilt == 0, "a repair holds"
    again.close()


@pytest.mark.parametrize("seed", range(40))
def test_damage_after_a_kill_gives_no_offset_twice(quick_dir: Path, small: BrokerSettings, seed: int) -> None:
    """The list of ends is then of an older checkpoint."""
    root = quick_dir / "store"
    written = fill(root, small, seed)
    rng = random.Random(seed)
    store = MessageStore.open(StoreConfig(root, small))
    for step in range(10):
        put(store, written, rng, rng.randrange(1, 30), 3_000_000 + step)
        store.checkpointer.run_periodic_tasks(step * 10_000)
        if rng.random() < 0.2:
            done = store.checkpointer.checkpoint()
            store.mark_flushed(store.flush())
            done.run()
            store.checkpointer.checkpointed(done)
    store.close(clean=False)
    files = sorted(path for path in (root / "consumequeue").rglob("*") if path.is_file())
    for path in rng.sample(files, min(len(files), 3)):
        damage_a_file(path, rng, rng.choice(KINDS))
    store = MessageStore.open(StoreConfig(root, small))
    check(store, written)
    store.close()


@pytest.mark.parametrize("what", ["consumequeue", "consumequeue/Orders", "consumequeue/Few/1", "index"])
@pytest.mark.parametrize("clean", [True, False])
def test_folders_may_be_removed(quick_dir: Path, small: BrokerSettings, what: str, clean: bool) -> None:
    """The documented rebuild."""
    root = quick_dir / "store"
    written = fill(root, small, 3)
    if not clean:
        MessageStore.open(StoreConfig(root, small)).close(clean=False)
    shutil.rmtree(root / what)
    store = MessageStore.open(StoreConfig(root, small))
    check(store, written)
    for step in range(20):
        store.checkpointer.run_periodic_tasks(step * 10_000)
    for bodies in written.values():
        for body in bodies[:3]:
            ms, n, _ = body.split(b"/", 2)
            assert [r.body for r in store.reader.query("Orders", f"k{int(ms)}-{int(n)}", 9, 0, 10**9)] in (
                [body],
                [],
            ), body
    first = written["Orders", 0][0].split(b"/", 2)
    assert store.reader.query("Orders", f"k{int(first[0])}-{int(first[1])}", 9, 0, 10**9)
    store.close()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", ["checkpoint", "config/recoveryPoint.json", "config/epochs.json", "config/queueEnds.json", "index", "lock"]
)
def test_other_files(quick_dir: Path, small: BrokerSettings, name: str, kind: str, seed: int) -> None:
    root = quick_dir / "store"
    written = fill(root, small, seed)
    path = root / name
    if path.is_dir():
        path = sorted(path.iterdir())[0]
    rng = random.Random(seed)
    damage_a_file(path, rng, kind)
    if name == "config/epochs.json" and kind != "delete":
        with pytest.raises(StoreError) as refused:
            MessageStore.open(StoreConfig(root, small))
        assert str(path) in str(refused.value)
        assert "restore the file, or empty the member's disk" in str(refused.value)
        assert "Error" not in str(refused.value), "no Python exception as a text"
        path.unlink()  # The remedy without another member.
    epochs = ((1, 0),)
    store = MessageStore.open(StoreConfig(root, small))
    assert store.epoch_cache.epochs[0] == epochs[0]
    assert len(store.epoch_cache.epochs) == 2
    check(store, written)
    store.close()


@pytest.mark.parametrize("mark", ["abort", "config/damaged"])
@pytest.mark.parametrize("there", [True, False])
def test_marks(quick_dir: Path, small: BrokerSettings, mark: str, there: bool) -> None:
    root = quick_dir / "store"
    written = fill(root, small, 1)
    if there:
        (root / mark).write_bytes(b"")
    else:
        MessageStore.open(StoreConfig(root, small)).close(clean=False)
        (root / mark).unlink(missing_ok=True)
    store = MessageStore.open(StoreConfig(root, small))
    check(store, written)
    store.close()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", KINDS)
def test_damage_of_the_log_is_said(quick_dir: Path, small: BrokerSettings, kind: str, seed: int) -> None:
    """Alone, a member cannot repair its log. It must not stop with an exception of another kind, or hide it."""
    root = quick_dir / "store"
    fill(root, small, seed)
    rng = random.Random(seed)
    files = sorted((root / "commitlog").iterdir())
    damaged = rng.choice(files)
    before = damaged.read_bytes()
    damage_a_file(damaged, rng, kind)
    seen: list[int] = []
    lost = damaged.stat().st_size if damaged.exists() else 0
    store = MessageStore.open(StoreConfig(root, small))
    store.state.on_damage = seen.append
    said = store.state.damage is not None or store.log.start > 0
    at = store.log.start
    while at < store.state.confirmed and not said:
        try:
            at = store.scrubber.verify(at, 64 << 10)
        except StoreError:
            said = True
    data_ends = len(before.rstrip(b"\0"))
    if kind in ("delete", "empty") or (kind == "cut" and lost < data_ends):
        assert said
    store.close()


def test_an_entry_that_leads_to_another_record_is_repaired_by_the_read(
    quick_dir: Path, small: BrokerSettings, caplog: pytest.LogCaptureFixture
) -> None:
    """While the store is open: another queue's record, another offset, nothing, an offset beyond the log."""
    root = quick_dir / "store"
    written = fill(root, small, 5)
    store = MessageStore.open(StoreConfig(root, small))
    other = store.queues.find("Few", 0)
    queue = present(store.queues.find("Orders", 1))
    assert other is not None
    entries = [queue.read(n, 1) for n in range(12)]
    for number, bad in (
        (3, other.read(0, 1)),
        (5, entries[4]),
        (6, bytes(ENTRY_SIZE)),
        (8, ENTRY.pack(1 << 60, 200, 0)),
        (10, ENTRY.pack(ENTRY.unpack(entries[10])[0] + 1, 200, 0)),
    ):
        queue._write(number, bad)
    with caplog.at_level(logging.WARNING):
        assert read_all(store, "Orders", 1) == dict(enumerate(written["Orders", 1]))
    assert [queue.read(n, 1) for n in range(12)] == entries
    assert store.state.queue_entries_repaired == 5
    assert "consume queue Orders:1 is repaired from the log" in caplog.text
    store.close()


def test_an_entry_whose_record_is_unreadable_is_said(quick_dir: Path, small: BrokerSettings) -> None:
    root = quick_dir / "store"
    fill(root, small, 5)
    store = MessageStore.open(StoreConfig(root, small))
    seen: list[tuple[str, int, int]] = []
    damaged: list[int] = []
    store.state.on_queue_damage = lambda *at: seen.append(at)
    store.state.on_damage = damaged.append
    queue = present(store.queues.find("Orders", 1))
    phys, size, _ = queue.entry(4)
    store.log.overwrite(phys, bytes(size))
    queue._write(4, bytes(ENTRY_SIZE))
    got = store.reader.get("Orders", 1, 0, 32, 10**6)
    assert (got.count, got.next_offset) == (4, 4)
    got = store.reader.get("Orders", 1, 4, 32, 10**6)
    assert (got.count, got.next_offset) == (0, 4)
    assert got.damaged >= 0
    assert seen or damaged
    store.close(clean=False)


def test_a_clean_start_reads_no_more_of_a_larger_store(
    quick_dir: Path, small: BrokerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that are read, not time."""
    read: list[int] = []
    real: Callable[[int, int, int], bytes] = os.pread

    def counted(fd: int, count: int, at: int) -> bytes:
        data = real(fd, count, at)
        read.append(len(data))
        return data

    costs = []
    settings = small.model_copy(update={"mappedFileSizeConsumeQueue": 200_000})
    for size in (200, 4_000):
        root = quick_dir / f"store{size}"
        store = MessageStore.open(StoreConfig(root, settings))
        written: Bodies = {}
        for step in range(size // 40):
            put(store, written, random.Random(step), 40, 1_000 + step)
        store.close()
        with monkeypatch.context() as patch:
            patch.setattr(os, "pread", counted)
            read.clear()
            store = MessageStore.open(StoreConfig(root, settings))
        costs.append(sum(read))
        assert store.state.queues_rebuilt == 0
        store.close()
    assert costs[1] < costs[0] * 1.5 + 20_000, costs


@pytest.mark.parametrize("text", [b'{"a":1,"b":[1,2]}', b'[{"a":1}]', b'{\n  "a": 1\n}', b"{}", b"[]"])
def test_a_seal_is_found_and_checked(text: bytes) -> None:
    sealed = seal(text)
    assert json.loads(unseal(sealed)) == json.loads(text)
    assert unseal(text) == text
    assert json.loads(sealed) is not None
    for at in range(len(sealed) if len(text) > 2 else 0):
        for bit in range(8):
            changed = bytearray(sealed)
            changed[at] ^= 1 << bit
            try:
                read = json.loads(unseal(bytes(changed)))
            except ValueError:
                continue
            if isinstance(read, dict):
                read = {name: value for name, value in read.items() if name in json.loads(text)}
            assert read == json.loads(text) or isinstance(read, list), "no value has changed"
