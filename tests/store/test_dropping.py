"""Deleted topics: what is hidden, what comes back when the deletion is undone, and which numbers are given then."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.broker import snapshots
from gantry_broker.broker.metadata import Metadata, Tables, encode_change
from gantry_broker.protocol.codes import CONTROL_TOPIC, GetStatus
from gantry_broker.protocol.message import decode_records
from gantry_broker.store import dropping
from gantry_broker.store.commitlog import CommitLog
from gantry_broker.store.consumequeue import BLANK_SIZE, ENTRY, ConsumeQueue
from gantry_broker.store.points import Points, PointsFile
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import Put, StoreConfig

sys.path.insert(0, str(Path(__file__).parent))

from test_power_loss import Disk
from test_retention import HOST, SEGMENT, filed, put, settings


def opened(path: Path) -> MessageStore:
    return MessageStore.open(StoreConfig(path, settings()))


@pytest.fixture
def store(quick_dir: Path) -> Iterator[MessageStore]:
    made = opened(quick_dir / "store")
    yield made
    made.close(clean=False)


@pytest.fixture
def leader(quick_dir: Path) -> Iterator[MessageStore]:
    """Of another log, from where the other one is cut."""
    made = opened(quick_dir / "leader")
    yield made
    made.close(clean=False)


def again(store: MessageStore) -> MessageStore:
    """The same after a kill."""
    store.close(clean=False)
    return opened(store.config.path)


def shown(store: MessageStore) -> list[tuple[int, bytes]]:
    """Number and record of what a reader is given of the topic."""
    at, found = store.min_offset("Orders", 0), b""
    while (got := store.get("Orders", 0, at, 999, 10**6)).data:
        found, at = found + got.data, got.next_offset
    return [(r.queue_offset, r.body) for r in decode_records(found)] if found else []


def delete(store: MessageStore, topic: str = "Orders") -> int:
    """Answers where the deletion lies."""
    at = store.end
    control(store, {"at": 1, "dropTopics": [topic], "dropData": at})
    store.confirm(store.end)
    store.drop_topic(topic, at)
    return at


def deleted(store: MessageStore) -> int:
    """Thirty messages, of which the deletion is undone with the second half; answers where that begins."""
    put(store, 0, 15, 1)
    parted = store.end
    put(store, 15, 15, 1)
    delete(store)
    return parted


def follow(store: MessageStore, leader: MessageStore) -> None:
    for one, other in ((leader, store), (store, leader)):
        while one.end < other.end:
            one.append_raw(one.end, other.read_raw(one.end, 10**6))
        one.confirm(one.end)


def test_a_dropped_topic_shows_nothing_of_before_and_goes_on_counting(store: MessageStore, quick_dir: Path) -> None:
    put(store, 0, 250, 1)
    below = store.end
    put(store, 250, 10, 1)
    store.drop_topic("Orders", below)
    for again in (False, True):
        if again:
            store.upkeep(10**12)
            store.close(clean=False)
            store = MessageStore.open(StoreConfig(quick_dir / "store", settings()))
        assert store.min_offset("Orders", 0) == 247
        assert store.max_offset("Orders", 0) == 257
        assert store.get("Orders", 0, 0, 1, 1).status == GetStatus.OFFSET_TOO_SMALL
        assert store.get("Orders", 0, 247, 99, 10**6).count == 10
    assert store.min_offset("Seldom", 0) == 0
    store.close(clean=False)


def test_a_topic_that_is_dropped_on_a_full_disk_is_gone_once_there_is_room(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As is the end of another queue. Whoever says so is told nothing of it: what else was confirmed then counts."""
    put(store, 0, 250, 1)
    opens = os.open

    def full(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & os.O_CREAT and "consumequeue" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        return opens(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", full)
    delete(store)
    store.ensure_next("Other", 0, 57)
    store.upkeep(10**12)
    monkeypatch.setattr(os, "open", opens)
    store.upkeep(10**12 + 2_000)
    assert store.min_offset("Orders", 0) == store.max_offset("Orders", 0) == 247
    assert store.get("Orders", 0, 0, 1, 1).status == GetStatus.OFFSET_TOO_SMALL
    assert store.next_offset("Other", 0) == 57
    assert not store.dropping
    assert not store.ends


def test_what_comes_in_the_place_of_what_was_dropped_is_shown(store: MessageStore, quick_dir: Path) -> None:
    """The deletion of a topic is undone by an unclean failover, and its numbers are given to others."""
    put(store, 0, 15, 1)
    parted = store.end
    put(store, 15, 15, 1)
    delete(store)
    store.cut(parted)
    leader = MessageStore.open(StoreConfig(quick_dir / "leader", settings()))
    leader.append_raw(0, store.read_raw(0, 10**6))
    put(leader, 100, 15, 2)
    store.append_raw(parted, leader.read_raw(parted, 10**6))
    for again in (False, True):
        if again:
            store.upkeep(10**12)
            store.close(clean=False)
            store = MessageStore.open(StoreConfig(quick_dir / "store", settings()))
        store.confirm(store.end)
        assert store.max_offset("Orders", 0) == leader.max_offset("Orders", 0) == 28
        assert store.get("Orders", 0, 14, 99, 10**6).data == leader.get("Orders", 0, 14, 99, 10**6).data
    store.close(clean=False)
    leader.close(clean=False)


def test_a_start_shows_nothing_that_was_dropped(store: MessageStore, quick_dir: Path) -> None:
    """It files again what was confirmed in the last second before a kill."""
    put(store, 0, 50, 1)
    store.upkeep(10**12)
    put(store, 50, 50, 1)
    delete(store)
    for _ in range(2):
        store.close(clean=False)
        store = MessageStore.open(StoreConfig(quick_dir / "store", settings()))
        store.confirm(store.end)
        assert store.min_offset("Orders", 0) == store.max_offset("Orders", 0) == 99
    store.close(clean=False)


def test_an_undone_deletion_hides_nothing(store: MessageStore, leader: MessageStore) -> None:
    """Nor does it where the former master leads again, to which the others would give other numbers."""
    store.cut(deleted(store))
    assert store.shown_again
    follow(store, leader)
    assert shown(store) == shown(leader)
    assert [n for n, _ in shown(store)] == list(range(14))
    store = again(store)
    store.confirm(store.end)
    assert shown(store) == shown(leader)
    assert store.min_offset("Orders", 0) == 0
    store.close(clean=False)


def test_the_next_number_is_that_after_what_came_in_the_place(store: MessageStore, leader: MessageStore) -> None:
    """It is promoted later, and its followers file what it numbers where it does."""
    store.cut(deleted(store))
    follow(store, leader)
    put(leader, 100, 5, 2)
    follow(store, leader)
    for n in range(3):
        number = store.put([Put("Orders", 0, 0, 0, 1, HOST, b"new", b"")], 3)[0].queue_offset
        assert number == 19 + n
        follow(store, leader)
        assert store.max_offset("Orders", 0) == leader.max_offset("Orders", 0) == number + 1
    assert shown(store) == shown(leader)


def test_a_queue_whose_records_are_all_gone_counts_on_from_where_the_leader_does(
    store: MessageStore, leader: MessageStore
) -> None:
    """Nothing in the log says its numbers then, and some that are not confirmed yet wait behind the first of them."""
    put(store, 0, 1, 1)
    parted = store.end
    follow(store, leader)
    for n in range(10):
        store.put([Put("Other", 0, 0, 0, 1, HOST, b"%d" % n, b"")], 1)
    store.confirm(store.end)
    delete(store, "Other")
    store.cut(parted)
    for n in range(3):
        leader.put([Put("Other", 0, 0, 0, 1, HOST, b"new %d" % n, b"")], 1)
    store.append_raw(parted, leader.read_raw(parted, 10**6))
    border = parted + int.from_bytes(leader.read_raw(parted, 4)[:4], "big")
    store.confirm(border)
    assert (store.max_offset("Other", 0), store.next_offset("Other", 0)) == (1, 3)
    assert store.put([Put("Other", 0, 0, 0, 1, HOST, b"", b"")], 1)[0].queue_offset == 3


def test_a_deletion_that_a_start_does_not_know_as_confirmed_is_undone_as_well(
    store: MessageStore, leader: MessageStore
) -> None:
    put(store, 0, 10, 1)
    store.upkeep(10**12)
    put(store, 10, 10, 1)
    parted = store.end
    put(store, 20, 10, 1)
    delete(store)
    store = again(store)
    assert store.confirmed < parted
    store.cut(parted)
    leader.append_raw(0, store.read_raw(0, 10**6))
    put(leader, 100, 15, 2)
    follow(store, leader)
    assert shown(store) == shown(leader)
    assert len(shown(store)) == 33
    store.close(clean=False)


def test_a_deletion_that_is_lost_with_the_end_of_the_log_is_undone_by_the_start(
    store: MessageStore, quick_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(quick_dir / "store", monkeypatch)
    put(store, 0, 15, 1)
    filed(store, 10**12)
    put(store, 15, 15, 1)
    delete(store)
    checkpoint = store.checkpoint()
    checkpoint.run()
    store.close(clean=False)
    disk.lose()
    store = opened(quick_dir / "store")
    assert store.shown_again
    assert [n for n, _ in shown(store)] == list(range(14))
    store.close(clean=False)


def test_an_interrupted_return_is_gone_on_with_by_the_next_start(
    quick_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it ended: of many files, of which each was written or not."""
    for calls in range(1, 60):
        store = opened(quick_dir / str(calls))
        put(store, 0, 250, 1)
        parted = store.end
        put(store, 250, 150, 1)
        before = shown(store)[:247]
        store.upkeep(10**12)
        delete(store)
        real, left = ConsumeQueue._write, calls

        def write(queue: ConsumeQueue, offset: int, data: bytes) -> str:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError(errno.EIO, "Input/output error")
            return real(queue, offset, data)  # noqa: B023

        with monkeypatch.context() as interrupted:
            interrupted.setattr(ConsumeQueue, "_write", write)
            with suppress(OSError):
                store.cut(parted)
        store = again(store)
        store.confirm(store.end)
        assert store.end == parted
        assert shown(store) == before
        assert store.shown_again
        store.close(clean=False)
        if left >= 0:
            break
    assert 5 < calls < 59


def test_what_a_start_had_to_look_for_is_not_forgotten_by_a_clean_stop(
    store: MessageStore, leader: MessageStore
) -> None:
    """The deletion is not known as confirmed then, and is undone later."""
    put(store, 0, 20, 1)
    store.upkeep(10**12)
    confirmed = store.end
    put(store, 20, 10, 1)
    parted = store.end
    delete(store)
    store = again(store)
    assert store.confirmed == confirmed
    store.close()
    store = opened(store.config.path)
    store.cut(parted)
    follow(store, leader)
    store.confirm(store.end)
    assert shown(store) == shown(leader)
    assert len(shown(store)) == 29
    store.close(clean=False)


def test_numbers_go_on_over_blanks_that_an_earlier_version_has_lowered(
    store: MessageStore, leader: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lower(store: MessageStore, end: int) -> None:
        for queue in store.queues.loaded():
            if queue.hides_to() >= end:
                queue.hide(end)

    monkeypatch.setattr("gantry_broker.store.cutting.undo_drops", lower)
    store.cut(deleted(store))
    follow(store, leader)
    put(leader, 100, 5, 2)
    follow(store, leader)
    assert store.put([Put("Orders", 0, 0, 0, 1, HOST, b"new", b"")], 3)[0].queue_offset == 19
    follow(store, leader)
    assert store.max_offset("Orders", 0) == leader.max_offset("Orders", 0) == 20


def test_every_file_that_a_killed_process_had_blanked_is_synced_by_the_next(store: MessageStore) -> None:
    put(store, 0, 400, 1)
    filed(store, 10**12)
    delete(store)
    store.upkeep(10**12 + 2_000)
    files = set(store.queues.find("Orders", 0).files())  # type: ignore[union-attr]
    store = again(store)
    assert len(files) == 4
    assert files <= store.queues.unsynced
    store.close(clean=False)


def damage(store: MessageStore, number: int) -> bytes:
    """The head of that record is zeros on the disk; answers what it was."""
    at, size, _ = store.queues.find("Orders", 0).entry(number)  # type: ignore[union-attr]
    with open(store.log.path(at), "r+b") as segment:
        segment.seek(at % SEGMENT)
        was = segment.read(size)
        segment.seek(at % SEGMENT)
        segment.write(bytes(20))
    return was


@pytest.mark.parametrize("killed", [False, True])
def test_damage_keeps_no_deletion_from_being_undone(store: MessageStore, killed: bool) -> None:
    """Only that record stays hidden; the log is not cut there, and others still have it."""
    put(store, 0, 250, 1)
    parted = store.end
    filed(store, 10**12)
    damaged: list[int] = []
    store.on_damage = damaged.append
    put(store, 250, 15, 1)
    damage(store, 3)
    delete(store)
    store.cut(parted)
    assert damaged
    if killed:
        store = again(store)
    assert (store.start, store.end, store.failed) == (0, parted, None)
    assert [n for n, _ in shown(store)] == [0, 1, 2, *range(4, 247)]
    number = store.put([Put("Orders", 0, 0, 0, 1, HOST, b"new", b"")], 3)[0].queue_offset
    store.confirm(store.end)
    assert store.max_offset("Orders", 0) - 1 == number >= 247
    store.close(clean=False)


@pytest.mark.parametrize("number", [3, 246])
def test_a_start_that_files_all_again_opens_a_log_with_damage(store: MessageStore, number: int) -> None:
    """No number of a record that cannot be read here is given again."""
    put(store, 0, 250, 1)
    filed(store, 10**12)
    at = store.queues.find("Orders", 0).entry(number)[0]  # type: ignore[union-attr]
    lost = damage(store, number)
    delete(store, "Seldom")
    store.mark_flushed(store.flush())
    store.close(clean=False)
    path = store.points_file.path
    path.write_text(json.dumps({**json.loads(path.read_text()), "boot": "another"}))
    store = opened(store.config.path)
    assert store.damage is None
    assert store.shown_again
    assert [n for n, _ in shown(store)] == [n for n in range(247) if n != number]
    assert store.put([Put("Orders", 0, 0, 0, 1, HOST, b"new", b"")], 3)[0].queue_offset == 247
    store.confirm(store.end)
    assert store.max_offset("Orders", 0) == 248
    for written in (False, True):
        if written:
            filed(store, 10**12 + 2_000)
        store.mend(at, lost)
        assert [n for n, _ in shown(store)] == list(range(248))
    store = again(store)
    store.confirm(store.end)
    assert [n for n, _ in shown(store)] == list(range(248))
    store.close(clean=False)


def test_a_mended_record_is_filed_also_where_its_blank_is_written(store: MessageStore) -> None:
    put(store, 0, 250, 1)
    filed(store, 10**12)
    lost = damage(store, 3)
    store.close()
    shutil.rmtree(store.config.path / "consumequeue")
    store = opened(store.config.path)
    filed(store, 10**12)
    assert [n for n, _ in shown(store)] == [n for n in range(247) if n != 3]
    at = store.get("Orders", 0, 2, 1, 10**6)
    store.mend(decode_records(at.data)[0].phys_offset + len(at.data), lost)
    store = again(store)
    assert [n for n, _ in shown(store)] == list(range(247))
    store.close(clean=False)


@pytest.mark.parametrize("written", [7, 8, 10, 12, 20])
@pytest.mark.parametrize("number", [0, 7])
def test_a_deletion_that_was_interrupted_within_an_entry_shows_no_other_record_there(
    store: MessageStore, written: int, number: int
) -> None:
    """It is not known as confirmed by the next start, which has to show what it hid, or not to show it."""
    for n in range(30):
        store.put([Put("Orders", 0, 0, 0, 1, HOST, b"%04d" % n, b"")], n)
    store.confirm(store.end)
    filed(store, 10**12)
    before = shown(store)
    assert dropping._noted(store)
    store.close(clean=False)
    at = store.config.path / "consumequeue" / "Orders" / "0" / f"{0:020d}"
    blank = ENTRY.pack(0, BLANK_SIZE, store.end)
    with open(at, "r+b") as file:
        file.write(blank * number + blank[:written])
    store = opened(store.config.path)
    found = shown(store)
    assert found == [(n, body) for n, body in before if n >= number + (written >= 12)] or found == before
    store.close(clean=False)


@pytest.mark.parametrize("damaged", ["zeros", "unreadable"])
def test_damage_in_a_queue_without_deletions_is_no_interrupted_one(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch, damaged: str
) -> None:
    """Its start is no other one than without a deletion elsewhere."""
    store.put([Put("First", 0, 0, 0, 1, HOST, b"", b"")], 1)
    put(store, 0, 15, 1)
    filed(store, 10**12)
    assert dropping._noted(store)
    at = store.queues.find("Orders", 0).entry(0)[0]  # type: ignore[union-attr]
    if damaged == "zeros":
        damage(store, 0)
    real = CommitLog.read

    def read(log: CommitLog, offset: int, size: int) -> bytes:
        if damaged == "unreadable" and offset == at:
            raise OSError(errno.EIO, "Input/output error")
        return real(log, offset, size)

    store.close(clean=False)
    monkeypatch.setattr(CommitLog, "read", read)
    store = opened(store.config.path)
    assert not store.shown_again
    assert store.max_offset("Orders", 0) == 14
    store.close(clean=False)


def test_a_mended_record_of_a_deleted_topic_stays_deleted(store: MessageStore) -> None:
    """Its blank had the place of a record after the deletion, which had come under the same name."""
    put(store, 0, 15, 1)
    number = len(shown(store)) - 1
    lost = damage(store, number)
    at = store.queues.find("Orders", 0).entry(number)[0]  # type: ignore[union-attr]
    deletion = delete(store)
    put(store, 15, 15, 1)
    filed(store, 10**12)
    before = shown(store)
    store.close()
    shutil.rmtree(store.config.path / "consumequeue")
    store = opened(store.config.path)
    assert store.shown_again
    store.drop_topic("Orders", deletion)
    assert shown(store) == before
    store.mend(at, lost)
    for killed in (False, True):
        if killed:
            store.upkeep(10**12 + 2_000)
            store = again(store)
        assert shown(store) == before
        assert store.min_offset("Orders", 0) == number + 1
    store.close(clean=False)


def test_a_start_that_was_killed_before_deletions_were_heard_of_leaves_that_to_the_next(store: MessageStore) -> None:
    put(store, 0, 15, 1)
    filed(store, 10**12)
    delete(store)
    store.close(clean=False)
    path = store.points_file.path
    path.write_text(json.dumps({**json.loads(path.read_text()), "boot": "another", "of a later version": 1}))
    for _ in range(3):
        store = opened(store.config.path)
        assert store.shown_again
        store.close(clean=False)
    store = opened(store.config.path)
    store.shown_again = False
    store.drop_topic("Orders", store.end - 1)
    filed(store, 10**12)
    store.upkeep(10**12 + 2_000)
    store = again(store)
    assert not store.shown_again
    store.close(clean=False)


def test_what_the_disk_refuses_while_a_deletion_is_undone_is_done_by_the_next_start(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it refuses another queue, and has room again a moment later."""
    parted = deleted(store)
    real, refused = dropping.write_out, 0

    def write_out(store: MessageStore, limit: int | None) -> bool:
        nonlocal refused
        refused += 1
        return real(store, limit) and refused > 1

    with monkeypatch.context() as full:
        full.setattr(dropping, "write_out", write_out)
        store.cut(parted)
    assert store.points.undoing
    store = again(store)
    store.confirm(store.end)
    assert [n for n, _ in shown(store)] == list(range(14))
    store.close(clean=False)


def test_a_store_of_rocketmq_is_opened_with_the_queues_that_it_has(store: MessageStore) -> None:
    """Some are not by topic: its own brokers file a message in others, too."""
    put(store, 0, 250, 1)
    path = store.config.path
    store.close()
    for name in ("epochs.json", "storePoint.json"):
        (path / "config" / name).unlink()
    os.rename(path / "consumequeue" / "Seldom", path / "consumequeue" / "%LMQ%x")
    store = opened(path)
    assert store.max_offset("%LMQ%x", 0) == 3
    assert not store.shown_again
    assert len(shown(store)) == 247
    store.close(clean=False)


def test_a_deletion_that_cannot_be_noted_waits(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, 0, 15, 1)

    def short(file: PointsFile, points: Points) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as refused:
        refused.setattr(PointsFile, "lower", short)
        delete(store)
        assert store.failed is None
        assert not store.tables_done
        assert len(shown(store)) == 14
    store.upkeep(10**12)
    assert shown(store) == []


def test_what_an_earlier_deletion_hid_is_to_be_hidden_again(store: MessageStore) -> None:
    put(store, 0, 10, 1)
    first = delete(store)
    store.cut(deleted(store))
    assert store.shown_again
    store.drop_topic("Orders", first)
    assert [n for n, _ in shown(store)] == list(range(9, 23))


def control(store: MessageStore, change: dict[str, Any]) -> None:
    store.put([Put(CONTROL_TOPIC, 0, 0, 0, 1, HOST, encode_change(change), b"")], 5)


def tables_of(store: MessageStore) -> Metadata:
    """As a broker's start loads and replays them."""
    meta = Metadata(Tables())
    meta.on_drop, meta.on_ends = store.drop_topic, store.ensure_next
    found = snapshots.load(store.config.path / "config")
    if found is not None:
        meta.load(found.tables, found.applied)
    if store.max_offset(CONTROL_TOPIC, 0):
        for record in decode_records(store.get(CONTROL_TOPIC, 0, 0, 1_000, 1 << 20).data):
            meta.confirm(record.phys_offset, record.body)
    return meta


def with_tables(store: MessageStore) -> None:
    """An old deletion, messages after it, a queue that ended long ago, and tables that hold all of that."""
    meta = tables_of(store)
    put(store, 0, 15, 1)
    control(store, {"at": 1, "dropTopics": ["Orders"], "dropData": store.end})
    control(store, {"at": 1, "ends": {"Old": {"0": 57}}})
    for phys, body in store.confirm(store.end).control:
        meta.confirm(phys, body)
    put(store, 15, 15, 1)
    filed(store, 10**12)
    snapshots.write(store.config.path / "config", snapshots.render(meta, store.history))


@pytest.mark.parametrize("lost", ["points", "points of a killed one", "queues", "queues of a killed one"])
def test_a_start_that_files_all_queues_anew_shows_nothing_that_was_deleted(store: MessageStore, lost: str) -> None:
    """The points are given up on a full disk; the folders are removed by somebody who has them built anew."""
    with_tables(store)
    before = shown(store)
    assert [n for n, _ in before] == list(range(14, 29))
    store.close(clean="killed" not in lost)
    if "points" in lost:
        store.points_file.path.unlink()
    else:
        shutil.rmtree(store.config.path / "consumequeue")
    store = opened(store.config.path)
    meta = tables_of(store)
    if store.shown_again:  # As a broker does.
        for record in decode_records(store.get(CONTROL_TOPIC, 0, 0, 1_000, 1 << 20).data or b""):
            meta.hear_again(record.phys_offset, record.body)
    for phys, body in store.confirm(store.end).control:
        meta.confirm(phys, body)
    assert shown(store) == before
    assert store.next_offset("Old", 0) == 57
    store.close(clean=False)


def test_the_start_after_an_interrupted_return_calls_nothing_durable_that_it_has_filed_anew(
    store: MessageStore,
) -> None:
    put(store, 0, 250, 1)
    filed(store, 10**12)
    assert store.points.durable > 0
    store.close(clean=False)
    path = store.points_file.path
    path.write_text(json.dumps({**json.loads(path.read_text()), "undoing": True}))
    store = opened(store.config.path)
    assert (store.points.durable, store.points.undoing) == (0, False)
    store.close(clean=False)


def test_deletions_that_stand_are_heard_of_again_also_by_the_start_after_an_undone_one(store: MessageStore) -> None:
    parted = deleted(store)
    filed(store, 10**12)
    assert not store.points.hiding
    store.cut(parted)
    store.shown_again = False  # The broker has begun to hear of them, and is killed.
    store.drop_topic("Orders", 1)
    assert store.points.hiding
    store = again(store)
    assert store.shown_again
    store.close(clean=False)


def test_a_queue_that_was_emptied_in_a_later_file_goes_on_where_it_is_told(store: MessageStore) -> None:
    queue = store.queues.queue(store.queues.topic("Old"), 0)
    queue.rebase(101)
    store.upkeep(10**12)
    store.queues.cut(0, hidden=False)
    assert (queue.is_empty, queue.max) == (True, 100)
    store.ensure_next("Old", 0, 350)
    assert store.next_offset("Old", 0) == 350


def test_queues_tell_their_next_number_also_before_anything_is_confirmed(store: MessageStore) -> None:
    assert store.next_offsets() == {}
    store.put([Put("Orders", 1, 0, 0, 1, HOST, b"1", b"")], 1)
    assert store.topics_queues() == {}
    assert store.next_offsets() == {"Orders": {1: 1}}


@pytest.mark.parametrize("what", ["deletion", "end"])
def test_tables_are_not_ahead_of_the_queues_that_they_tell_of(
    store: MessageStore, quick_dir: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A power loss would bring deleted messages back, and numbers that were given once."""
    disk = Disk(quick_dir / "store", monkeypatch)
    meta = tables_of(store)
    put(store, 0, 15, 1)
    filed(store, 10**12)
    told = {"dropTopics": ["Orders"], "dropData": store.end} if what == "deletion" else {"ends": {"Old": {"0": 57}}}
    control(store, {"at": 1, **told})
    store.mark_flushed(store.flush())
    for saved in (False, True):
        for phys, body in store.confirm(store.end).control:
            meta.confirm(phys, body)
        store.upkeep(10**12 + 2_000)
        assert store.tables_done == saved
        if saved:
            snapshots.write(quick_dir / "store" / "config", snapshots.render(meta, store.history))
        before = store.min_offset("Orders", 0), shown(store), store.next_offset("Old", 0)
        assert before[2] == 57 or not before[1]
        store.close(clean=False)
        disk.lose()
        store = opened(quick_dir / "store")
        meta = tables_of(store)
        for phys, body in store.confirm(store.end).control:
            meta.confirm(phys, body)
        assert (store.min_offset("Orders", 0), shown(store), store.next_offset("Old", 0)) == before
        filed(store, 10**12 + 4_000)
    store.close(clean=False)
