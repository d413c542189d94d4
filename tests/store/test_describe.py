"""Stores in words: of RocketMQ, of ours, damaged, cut short, and in use."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from gantry_broker.protocol.message import pack_host
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.describe import (
    LogRecord,
    StoreFiles,
    Stretch,
    describe_checkpoint,
    describe_epochs,
    describe_record,
    epochs_to_json,
    is_about,
    kind_of,
    lock_holder,
    plan_start,
    walk,
)
from gantry_broker.store.errors import StoreError
from gantry_broker.store.sealed import unseal
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import Put, StoreConfig

from tests.store.test_recorded_stores import NAMES, manifest, unpack
from tests.support.present import present

HOST = pack_host("127.0.0.1", 1)


def entries(root: Path, start: int = 0) -> list[LogRecord | Stretch]:
    with StoreFiles.load(root).open_log() as log:
        return list(walk(log, start))


def records(root: Path) -> list[LogRecord]:
    return [entry for entry in entries(root) if isinstance(entry, LogRecord)]


def put(topic: str, body: bytes, properties: bytes = b"") -> Put:
    return Put(topic, 0, 0, 0, 1, HOST, body, properties)


def content(root: Path) -> dict[Path, tuple[bytes, int]]:
    return {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in root.rglob("*") if p.is_file()}


def fill(root: Path, settings: BrokerSettings, *, count: int = 30, clean: bool = False) -> MessageStore:
    """Two epochs and messages over several segments of 64 KiB; the second epoch is confirmed in part."""
    store = MessageStore.open(StoreConfig(root, settings))
    store.appender.begin_epoch(1, b'{"kind":"epoch","epoch":1,"group":"a","member":0}', 1_000)
    store.appender.put([put("T", bytes(8_000), b"KEYS\x01k1 k2\x02") for _ in range(count)], 1_000)
    store.appender.begin_epoch(3, b'{"kind":"epoch","epoch":3,"group":"a","member":1}', 2_000)
    store.appender.put([put("U", b"x" * 100)], 2_000)
    store.indexer.confirm(store.log.end)
    store.close(clean=clean)
    return store


def overwrite(root: Path, base: int, at: int, data: bytes) -> None:
    with (root / "commitlog" / f"{base:020d}").open("r+b") as file:
        file.seek(at)
        file.write(data)


@pytest.mark.parametrize("name", NAMES)
def test_every_record_of_a_recorded_store_is_listed_and_nothing_is_written(name: str, quick_dir: Path) -> None:
    root = unpack(name, quick_dir)
    before = content(root)
    expected = manifest(name)["stores"][name.partition("-")[2]]["records"]
    found = entries(root)
    assert [
        (r.offset, r.size, r.topic, r.queue, r.queue_offset, r.store_ms) for r in found if isinstance(r, LogRecord)
    ] == [
        (e["physicOffset"], e["size"], e["topic"], e["queueId"], e["queueOffset"], e["storeTimestamp"])
        for e in expected
    ]
    for record, e in zip(records(root), expected, strict=True):
        assert record.keys == tuple(filter(None, [e["uniqKey"], *(e["keys"] or "").split()]))
        assert record.body_size + len(record.topic.encode()) + len(record.properties) + 91 == record.size
    end = expected[-1]["physicOffset"] + expected[-1]["size"]
    blank = [entry for entry in found if isinstance(entry, Stretch)]
    assert blank[0] == Stretch(end, 1 << 20, "blank", "zeros")
    assert blank[1:] in ([], [Stretch(1 << 20, 2 << 20, "blank", "zeros")]), "RocketMQ makes the next file ahead"
    assert {"message", "half", "op", "commit", "delayed"} <= {r.kind for r in records(root)}
    files = StoreFiles.load(root)
    start = plan_start(files)
    assert start.plan.foreign
    assert start.plan.clean == name.endswith("clean")
    assert (start.scanned.end, start.confirmed, start.damage) == (end, end, None)
    assert describe_epochs(files, start) == [f"epoch 0: 0 to {end}, {end} bytes, written by RocketMQ"]
    assert content(root) == before


def test_a_log_of_several_segments_with_epochs_and_keys(quick_dir: Path, small: BrokerSettings) -> None:
    end = fill(quick_dir, small).log.end
    found = entries(quick_dir)
    places = [(e.start, e.stop) if isinstance(e, Stretch) else (e.offset, e.offset + e.size) for e in found]
    assert places[0][0] == 0
    assert all(before[1] == after[0] for before, after in pairwise(places)), "no byte is left out"
    assert {e.kind for e in found} == {"control", "message", "filler", "blank"}
    assert b'"epoch":3' in [e.body for e in found if isinstance(e, LogRecord) and e.kind == "control"][1]
    assert "k1,k2  8000 B" in describe_record(records(quick_dir)[1])
    files = StoreFiles.load(quick_dir)
    listed = epochs_to_json(files, plan_start(files))
    assert [(e["epoch"], e["start"], e["end"]) for e in listed] == [
        (1, 0, listed[1]["start"]),
        (3, listed[1]["start"], end),
    ]


def test_a_record_larger_than_a_chunk_is_one_record(quick_dir: Path) -> None:
    settings = BrokerSettings(mappedFileSizeCommitLog=1 << 23)
    store = MessageStore.open(StoreConfig(quick_dir, settings))
    store.appender.put([put("T", b"a" * 10), put("T", b"b" * 3_000_000), put("T", b"c")], 1)
    store.close()
    assert [r.body_size for r in records(quick_dir)] == [10, 3_000_000, 1]


def test_damage_is_named_and_the_walk_goes_on_behind_it(quick_dir: Path, small: BrokerSettings) -> None:
    fill(quick_dir, small)
    victim = records(quick_dir)[3]
    overwrite(quick_dir, 0, victim.offset + 100, b"!")
    after = entries(quick_dir)
    damaged = [e for e in after if isinstance(e, Stretch) and e.kind == "damaged"]
    assert damaged == [Stretch(victim.offset, victim.offset + victim.size, "damaged", "body does not match its CRC")]
    overwrite(quick_dir, 0, victim.offset, bytes(victim.size))
    zeroed = [e for e in entries(quick_dir) if isinstance(e, Stretch) and e.start == victim.offset]
    assert zeroed == [Stretch(victim.offset, victim.offset + victim.size, "blank", "zeros")]
    overwrite(quick_dir, 0, victim.offset, os.urandom(victim.size))
    torn = [e for e in entries(quick_dir) if isinstance(e, Stretch) and e.start == victim.offset]
    assert [(e.kind, e.stop) for e in torn] == [("damaged", victim.offset + victim.size)]
    assert [e for e in entries(quick_dir) if e not in torn] == [e for e in after if e not in damaged]


def test_missing_and_short_files_are_named(quick_dir: Path, small: BrokerSettings) -> None:
    fill(quick_dir, small)
    names = sorted((quick_dir / "commitlog").iterdir())
    assert len(names) >= 4
    names[1].unlink()
    assert Stretch(65_536, 131_072, "missing", "no file has these bytes") in entries(quick_dir)
    os.truncate(names[-1], 10)
    assert [e.kind for e in entries(quick_dir, int(names[-1].name)) if isinstance(e, Stretch)] == ["damaged"]
    os.truncate(names[-1], 0)
    last = entries(quick_dir)[-1]
    assert isinstance(last, Stretch)
    assert (last.start, last.kind) == (int(names[-1].name), "missing")


@pytest.mark.parametrize("clean", [True, False])
def test_a_start_does_what_its_description_says(quick_dir: Path, small: BrokerSettings, clean: bool) -> None:
    fill(quick_dir, small, clean=clean)
    before = content(quick_dir)
    files = StoreFiles.load(quick_dir)
    start = plan_start(files)
    facts = dict(describe_checkpoint(files, start))
    assert content(quick_dir) == before
    assert facts["a start would be"] == ("one after a clean close" if clean else "one after a crash")
    assert ("no file abort" in facts["in use"]) == clean
    store = MessageStore.open(StoreConfig(quick_dir, small))
    assert (store.state.was_clean, store.log.end, store.state.confirmed) == (
        start.plan.clean,
        start.scanned.end,
        start.confirmed,
    )
    assert (store.epoch_cache.epochs, store.state.damage) == (start.epochs, start.damage)
    store.close()


def test_lost_records_are_predicted(quick_dir: Path, small: BrokerSettings) -> None:
    fill(quick_dir, small, clean=True)
    (quick_dir / "config" / "recoveryPoint.json").write_bytes(
        unseal((quick_dir / "config" / "recoveryPoint.json").read_bytes()).replace(b'"boot": "', b'"boot": "other')
    )
    last = records(quick_dir)[-1]
    base = last.offset - last.offset % 65_536
    point = (quick_dir / "config" / "recoveryPoint.json").read_text()
    assert f'"durable": {last.offset + last.size}' in point
    (quick_dir / "config" / "recoveryPoint.json").write_text(
        point.replace(f'"durable": {last.offset + last.size}', '"durable": 0')
    )
    overwrite(quick_dir, base, last.offset - base, bytes(last.size))
    files = StoreFiles.load(quick_dir)
    start = plan_start(files)
    assert start.damage is not None
    facts = dict(describe_checkpoint(files, start))
    assert f"acknowledged records are missing from {last.offset} on" in facts["  DAMAGE"]
    assert "another boot" in facts["  boot"]
    store = MessageStore.open(StoreConfig(quick_dir, small))
    assert store.state.damage == start.damage
    store.close()
    assert "damage" in dict(describe_checkpoint(StoreFiles.load(quick_dir), start))


def test_a_process_that_has_the_store_open_is_named(quick_dir: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from gantry_broker.store.store import MessageStore;"
        "from gantry_broker.store.types import StoreConfig; store = MessageStore.open(StoreConfig(Path(sys.argv[1])));"
        "print('open', flush=True); sys.stdin.read()"
    )
    assert lock_holder(quick_dir / "lock") == 0
    with subprocess.Popen(
        [sys.executable, "-c", code, str(quick_dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert present(child.stdout).readline() == b"open\n"
        files = StoreFiles.load(quick_dir)
        assert files.holder == child.pid
        facts = dict(describe_checkpoint(files, plan_start(files)))
        assert facts["in use"] == f"process {child.pid} has the store open"
        assert facts["a start would be"].startswith(f"refused while process {child.pid} has the store open")
        present(child.stdin).close()
        child.wait(30)
    assert lock_holder(quick_dir / "lock") == 0


def test_a_folder_without_a_store_is_refused(quick_dir: Path) -> None:
    with pytest.raises(StoreError, match="no folder commitlog"):
        StoreFiles.load(quick_dir)
    (quick_dir / "commitlog").mkdir()
    files = StoreFiles.load(quick_dir)
    assert describe_epochs(files, plan_start(files)) == ["no epoch: the log is empty"]
    for base in (0, 100, 7_050):
        (quick_dir / "commitlog" / f"{base:020d}").write_bytes(b"x")
    with pytest.raises(StoreError, match="segment size"):
        StoreFiles.load(quick_dir)


def test_kinds_and_topics_of_records() -> None:
    def kind(topic: str, flags: int = 0, waits: bool = False) -> str:
        return kind_of(topic, flags, is_waiting=waits)

    assert [kind("T"), kind("%RETRY%g"), kind("%DLQ%g"), kind("rmq_sys_GANTRY_CONTROL")] == [
        "message",
        "retry",
        "dead-letter",
        "control",
    ]
    assert [kind("T", 4), kind("T", 8), kind("T", 12)] == ["half", "commit", "rollback"]
    assert kind("rmq_sys_wheel_timer", waits=True) == "delayed"
    late = LogRecord(0, 1, "delayed", "SCHEDULE_TOPIC_XXXX", "T\x1b[2J", 0, 0, 10**17, (), 0, b"")
    assert is_about(late, "SCHEDULE_TOPIC_XXXX")
    assert is_about(late, "T\x1b[2J")
    assert not is_about(late, "T")
    assert "for T\\x1b[2J" in describe_record(late), "a terminal must not act on a name"
