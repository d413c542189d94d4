"""Seeded histories of appends, truncations, crashes and power losses, each compared with a list in memory.

A failing seed reproduces: `STORE_SEED=17 pytest tests/store/test_histories.py`; more of them: `STORE_HISTORIES=2000`.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from gantry_broker.protocol.codes import CONTROL_TOPIC, GetStatus
from gantry_broker.protocol.message import decode_records
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import Put, StoreConfig

from tests.store.indexing import index_all

HOST = bytes((10, 0, 0, 7, 0, 0, 4, 210))
HOST_V6 = bytes(range(16)) + bytes((0, 0, 4, 210))
SETTINGS = BrokerSettings(
    mappedFileSizeCommitLog=65_536, mappedFileSizeConsumeQueue=2_000, maxHashSlotNum=100, maxIndexNum=400
)


def config(path: Path, settings: BrokerSettings = SETTINGS) -> StoreConfig:
    return StoreConfig(path, settings)


@dataclass
class Written:
    """One record as it was put."""

    phys: int
    size: int
    topic: str
    queue_id: int
    number: int
    body: bytes
    keys: tuple[str, ...]
    queued: bool


@dataclass
class Model:
    """The expected content of a store: records in order, and the epochs."""

    records: list[Written] = field(default_factory=list)
    epochs: list[tuple[int, int]] = field(default_factory=list)
    confirmed: int = 0
    end: int = 0

    def next_number(self, topic: str, queue_id: int) -> int:
        return sum(r.queued and r.topic == topic and r.queue_id == queue_id for r in self.records)

    def truncate(self, to: int) -> None:
        self.records = [r for r in self.records if r.phys < to]
        self.epochs = [h for h in self.epochs if h[1] < to]
        self.confirmed = min(self.confirmed, to)
        self.end = to


def random_puts(rng: random.Random, serial: int) -> list[Put]:
    puts = []
    for n in range(rng.choice((1, 1, 2, 5, 12))):
        unique = f"0A0000070001{serial:012X}{n:08X}"
        words = rng.sample(("red", "green", "a-rather-long-key-of-some-order-4711", "größe"), rng.randrange(3))
        properties = f"UNIQ_KEY\x01{unique}\x02"
        if words:
            properties += "KEYS\x01" + " ".join(words) + "\x02"
        if rng.random() < 0.2:
            properties += "filling\x01" + "v" * rng.choice((100, 3_000)) + "\x02"
        if rng.random() < 0.2:
            properties, unique, words = "", "", []
        size = rng.choice((0, 10, 100, 1_000)) if rng.random() < 0.9 else rng.choice((9_000, 30_000))
        puts.append(
            Put(
                topic=rng.choice(("Orders", "Orders", "%RETRY%someone", "Ünïcode", CONTROL_TOPIC)),
                queue_id=rng.randrange(2),
                flag=rng.randrange(5),
                sys_flag=rng.choice((0, 0, 0, 0, 1, 4, 8, 12)),
                born_ms=1_000 + serial,
                born_host=HOST_V6 if rng.random() < 0.1 else HOST,
                body=rng.randbytes(size),
                properties=properties.encode(),
                keys=(unique, *words) if unique else (),
            )
        )
    return puts


def put(store: MessageStore, model: Model, puts: list[Put], now_ms: int) -> None:
    for message, stored in zip(puts, store.appender.put(puts, now_ms), strict=True):
        queued = message.sys_flag & 12 in (0, 8)
        number = model.next_number(message.topic, message.queue_id) if queued else 0
        assert stored.queue_offset == number
        assert stored.phys_offset >= model.end
        model.records.append(
            Written(
                stored.phys_offset,
                stored.size,
                message.topic,
                message.queue_id,
                number,
                message.body,
                message.keys if message.sys_flag & 12 != 12 else (),
                queued,
            )
        )
        model.end = stored.phys_offset + stored.size
    assert store.log.end == model.end


def check(store: MessageStore, model: Model, rng: random.Random) -> None:
    """The store has the records of the model, and every kind of read shows the confirmed ones."""
    store.check_invariants()
    assert store.log.end == model.end
    assert store.state.confirmed == model.confirmed
    assert list(store.epoch_cache.epochs) == model.epochs
    shown: dict[tuple[str, int], list[Written]] = {}
    for written in model.records:
        queue = shown.setdefault((written.topic, written.queue_id), [])
        if written.queued and written.phys < model.confirmed:
            queue.append(written)
    for (topic, queue_id), records in shown.items():
        assert store.reader.max_offset(topic, queue_id) == len(records)
        assert store.queues.next_offset(topic, queue_id) == model.next_number(topic, queue_id)
        offset = 0
        read = []
        while offset < len(records):
            got = store.reader.get(topic, queue_id, offset, rng.choice((1, 7, 32)), rng.choice((1, 5_000, 10**6)))
            assert got.status == GetStatus.FOUND
            assert got.next_offset == offset + got.count
            offset = got.next_offset
            read += decode_records(got.data)
        assert [(r.phys_offset, r.size, r.queue_offset, r.body) for r in read] == [
            (w.phys, w.size, w.number, w.body) for w in records
        ]
        assert store.reader.get(topic, queue_id, offset, 32, 10**6).status in (
            GetStatus.OFFSET_OVERFLOW_ONE,
            GetStatus.NO_MESSAGE_IN_QUEUE,
            GetStatus.NO_MATCHED_LOGIC_QUEUE,
        )
    index_all(store)
    confirmed = [w for w in model.records if w.phys < model.confirmed]
    for written in rng.sample(confirmed, min(6, len(confirmed))):
        assert store.reader.record(written.phys).body == written.body
        for key in written.keys:
            found = [r.phys_offset for r in store.reader.query(written.topic, key, 10_000, 0, 10**15)]
            expected = [w.phys for w in confirmed if w.topic == written.topic and key in w.keys]
            assert sorted(found) == expected, key
    for written in [w for w in model.records if w.phys >= model.confirmed][:6]:
        for key in written.keys[:1]:
            assert store.reader.query(written.topic, key, 10, 0, 10**15, unique=True) == []


class Disk:
    """The image that a power loss leaves: all flushed bytes, and any part of the others."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.image = root.parent / (root.name + ".image")

    def remember(self) -> None:
        """Take everything on disk as durable, after a checkpoint."""
        shutil.rmtree(self.image, ignore_errors=True)
        shutil.copytree(self.root, self.image)
        self.fsync_recovery_point()

    def fsync_recovery_point(self) -> None:
        """Take the recovery point file as durable."""
        self.recovery_point = self._recovery_point_path().read_bytes()

    def _recovery_point_path(self) -> Path:
        return self.root / "config" / "recoveryPoint.json"

    def lose_power(self, rng: random.Random, flushed: int, segment_size: int) -> None:
        block = rng.choice((512, 4096))
        for path in sorted(p for p in self.root.rglob("*") if p.is_file()):
            part = path.relative_to(self.root)
            kind = part.parts[0]
            old = self.image / part
            if kind == "commitlog":
                self._lose(rng, path, None, max(0, flushed - int(path.name)), block, 0.3)
            elif kind in ("consumequeue", "index"):
                self._lose(rng, path, old.read_bytes() if old.exists() else None, 0, block, 0.5)
        recovery_point = self.recovery_point if rng.random() < 0.3 else self._recovery_point_path().read_bytes()
        self._recovery_point_path().write_text(json.dumps({**json.loads(recovery_point), "boot": "another boot"}))

    @staticmethod
    def _lose(rng: random.Random, path: Path, old: bytes | None, safe: int, block: int, chance: float) -> None:
        """Blocks that begin at or above `safe`, or contain it, may have their old bytes."""
        data = bytearray(path.read_bytes())
        before = (old or b"").ljust(len(data), b"\0")
        for start in range(0, len(data), block):
            stop = min(start + block, len(data))
            if stop <= safe or rng.random() >= chance:
                continue
            first = max(start, safe)
            data[first:stop] = before[first:stop]
        path.write_bytes(data)


HISTORIES = int(os.environ.get("STORE_HISTORIES", "24"))
SEEDS = [int(os.environ["STORE_SEED"])] if "STORE_SEED" in os.environ else range(HISTORIES)


class History:
    """A store and its model, through many restarts."""

    def __init__(self, root: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.root = root / f"leader-{seed}"
        self.store = MessageStore.open(config(self.root))
        self.disk = Disk(self.root)
        self.disk.remember()
        self.model = Model()
        self.serial = 0
        self.epoch = 0

    def step(self) -> str:
        names = (
            ["put"] * 8
            + ["confirm"] * 5
            + ["run_periodic_tasks", "flush", "checkpoint", "begin", "truncate", "truncate_deep", "kill"]
        )
        names += ["close", "power", "torn", "other_kill"]
        name = self.rng.choice(names)
        getattr(self, name)()
        return name

    def put(self) -> None:
        self.serial += 1
        put(self.store, self.model, random_puts(self.rng, self.serial), 10_000 + self.serial)

    def _boundary(self, low: int) -> int:
        return self.rng.choice([*[r.phys for r in self.model.records if r.phys >= low], self.model.end])

    def confirm(self) -> None:
        offset = self._boundary(self.model.confirmed)
        done = self.store.indexer.confirm(offset)
        expected = {
            (r.topic, r.queue_id) for r in self.model.records if r.queued and self.model.confirmed <= r.phys < offset
        }
        assert set(done.available) == expected
        assert [body for _, body in done.control] == [
            r.body
            for r in self.model.records
            if r.topic == "rmq_sys_GANTRY_CONTROL" and self.model.confirmed <= r.phys < offset
        ]
        self.model.confirmed = max(self.model.confirmed, offset)

    def run_periodic_tasks(self) -> None:
        self.serial += 1
        self.store.checkpointer.run_periodic_tasks(1_000_000 * self.serial)

    def flush(self) -> None:
        self.store.mark_flushed(self.store.flush())

    def checkpoint(self) -> None:
        self.flush()
        checkpoint = self.store.checkpointer.checkpoint()
        checkpoint.run()
        self.disk.remember()
        self.store.checkpointer.checkpointed(checkpoint)
        self.disk.fsync_recovery_point()

    def epoch_body(self) -> bytes:
        return f"epoch {self.epoch}".encode()

    def begin(self) -> None:
        self.epoch += 1
        stored = self.store.appender.begin_epoch(self.epoch, self.epoch_body(), 10_000 + self.serial)
        number = self.model.next_number("rmq_sys_GANTRY_CONTROL", 0)
        assert stored.queue_offset == number
        self.model.records.append(
            Written(stored.phys_offset, stored.size, "rmq_sys_GANTRY_CONTROL", 0, number, self.epoch_body(), (), True)
        )
        self.model.end = stored.phys_offset + stored.size
        self.model.epochs.append((self.epoch, stored.phys_offset))

    def truncate(self) -> None:
        to = self._boundary(self.model.confirmed)
        self.store.truncator.truncate(to)
        self.disk.fsync_recovery_point()
        self.model.truncate(to)

    def truncate_deep(self) -> None:
        if self.rng.random() < 0.5:
            to = self._boundary(0)
            self.store.truncator.truncate(to)
            self.disk.fsync_recovery_point()
            self.model.truncate(to)

    def close(self) -> None:
        self.store.close()
        self.store = MessageStore.open(config(self.root))
        assert self.store.state.was_clean
        assert self.store.state.damage is None
        self.disk.remember()

    def kill(self) -> None:
        """The process dies between two calls: the kernel has all written bytes."""
        self.store.close(clean=False)
        self._reopen()
        assert self.store.state.damage is None

    def other_kill(self) -> None:
        """Open a copy of the files, as another process would find them now."""
        copy = self.root.parent / (self.root.name + ".copy")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.root, copy)
        other = MessageStore.open(config(copy))
        assert other.log.end == self.store.log.end
        assert other.state.damage is None
        other.close(clean=False)
        shutil.rmtree(copy)

    def torn(self) -> None:
        """The process dies during an append: a part of the last record is there."""
        end = self.store.log.end
        self.serial += 1
        put(self.store, self.model, random_puts(self.rng, self.serial), 10_000 + self.serial)
        boundaries = [r.phys for r in self.model.records if r.phys >= end]
        self.store.close(clean=False)
        last = boundaries[-1]
        record = self.model.records[-1]
        keep = self.rng.randrange(record.size)
        path = self.root / "commitlog" / f"{last - last % 65_536:020d}"
        with path.open("r+b") as file:
            file.seek(last % 65_536 + keep)
            file.write(b"\0" * (record.size - keep))
        self._reopen()
        assert self.store.log.end <= record.phys + record.size

    def power(self) -> None:
        flushed = self.store.state.flushed
        self.store.close(clean=False)
        self.disk.lose_power(self.rng, flushed, 65_536)
        self._reopen()
        self.store.recovery.acknowledge_damage()  # Confirmed records that were not flushed may be lost.
        self.store.state.damage = None
        assert self.store.log.end >= flushed
        self.disk.remember()

    def _reopen(self) -> None:
        confirmed = self.model.confirmed
        self.store = MessageStore.open(config(self.root))
        assert not self.store.state.was_clean or self.store.log.end == 0
        assert self.store.state.confirmed <= confirmed
        boundaries = {0, *(r.phys for r in self.model.records), *(r.phys + r.size for r in self.model.records)}
        assert self.store.log.end in boundaries or self.store.log.end % 65_536 == 0
        assert self.store.log.end <= self.model.end
        self.model.truncate(self.store.log.end)
        self.model.confirmed = self.store.state.confirmed
        assert self.store.state.flushed == self.store.log.end
        self.disk.fsync_recovery_point()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_store_agrees_with_a_list_through_crashes_cuts_and_power_losses(seed: int, quick_dir: Path) -> None:
    history = History(quick_dir, seed)
    steps: list[str] = []
    try:
        for number in range(60):
            steps.append(history.step())
            if number % 4 == 0 or steps[-1] in ("kill", "power", "torn", "truncate", "truncate_deep"):
                check(history.store, history.model, random.Random(number))
        history.close()
        check(history.store, history.model, random.Random(number))
    except BaseException:
        print("seed", seed, "steps", steps)
        raise
    finally:
        history.store.close()


def test_a_contradiction_of_the_parts_is_found(tmp_path: Path) -> None:
    store = MessageStore.open(StoreConfig(tmp_path / "store", BrokerSettings()))
    store.appender.put([Put("T", 0, 0, 0, 1, HOST, b"a", b"")], 1)
    store.check_invariants()
    store.state.confirmed = store.log.end
    with pytest.raises(AssertionError, match="a batch is confirmed, and still waits"):
        store.check_invariants()
    store.state.confirmed += 1
    with pytest.raises(AssertionError, match=r"confirmed .* is not in"):
        store.check_invariants()
    store.state.confirmed = 0
    store.close(clean=False)
