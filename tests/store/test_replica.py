"""Two stores: appends, refusals, truncations and resets of a follower, and the store's rules of replication."""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.protocol.message import pack_host
from gantry_broker.replication.epochs import divergence
from gantry_broker.settings import BrokerSettings
from gantry_broker.store import append
from gantry_broker.store.errors import BadRecords, OffsetGone
from gantry_broker.store.index.consume_queue import ConsumeQueue
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import Put, StoreConfig

from tests.support.failing_calls import raising

HOST = pack_host("10.1.2.3", 50_000)


def message(n: int, topic: str = "Orders", size: int = 50) -> Put:
    return Put(
        topic=topic,
        queue_id=n % 3,
        flag=0,
        sys_flag=0,
        born_ms=n,
        born_host=HOST,
        body=n.to_bytes(4, "big") * (size // 4),
        properties=f"TAGS\x01tag{n % 5}\x02KEYS\x01k{n}\x02".encode(),
        keys=(f"k{n}",),
    )


def fill(store: MessageStore, first: int, count: int, size: int = 50) -> None:
    for n in range(first, first + count, 4):
        store.appender.put([message(m, size=size) for m in range(n, min(n + 4, first + count))], 1_000 + n)


def fill_and_index(store: MessageStore, count: int, size: int = 50) -> None:
    """Confirmed, in the files of their queues, and below the recovery point."""
    fill(store, 0, count, size=size)
    store.indexer.confirm(store.log.end)
    store.checkpointer.run_periodic_tasks(10**12)


def copy(leader: MessageStore, follower: MessageStore, stop: int | None = None, chunk: int = 5_000) -> None:
    stop = leader.log.end if stop is None else stop
    while follower.log.end < stop:
        data = leader.log.read_raw(follower.log.end, chunk, stop)
        assert follower.appender.append_raw(follower.log.end, data) == follower.log.end
    assert follower.log.end == stop


def content(store: MessageStore) -> dict[tuple[str, int], list[bytes]]:
    """All that a reader can see."""
    seen = {}
    for topic, queues in store.queues.topics_queues().items():
        for queue_id in queues:
            low, high = store.reader.min_offset(topic, queue_id), store.reader.max_offset(topic, queue_id)
            seen[topic, queue_id] = [store.reader.get(topic, queue_id, n, 1, 1).data for n in range(low, high)]
    return seen


@pytest.fixture
def leader(quick_dir: Path, small: BrokerSettings) -> Iterator[MessageStore]:
    store = MessageStore.open(StoreConfig(quick_dir / "leader", small))
    yield store
    store.close(clean=False)


@pytest.fixture
def follower(quick_dir: Path, small: BrokerSettings) -> Iterator[MessageStore]:
    store = MessageStore.open(StoreConfig(quick_dir / "follower", small))
    yield store
    store.close(clean=False)


def test_a_follower_gets_the_same_bytes_queues_keys_and_epochs(leader: MessageStore, follower: MessageStore) -> None:
    leader.appender.begin_epoch(1, b"one", 1)
    fill(leader, 0, 400, size=1_000)
    leader.appender.begin_epoch(2, b"two", 2)
    fill(leader, 400, 40)
    copy(leader, follower)
    leader.indexer.confirm(leader.log.end)
    done = follower.indexer.confirm(leader.log.end)
    assert [body for _, body in done.control] == [b"one", b"two"]
    assert follower.epoch_cache.epochs == leader.epoch_cache.epochs
    assert content(follower) == content(leader)
    for n in (0, 399, 439):
        (mine,) = follower.reader.query("Orders", f"k{n}", 9, 0, 10**9)
        assert mine.phys_offset == leader.reader.query("Orders", f"k{n}", 9, 0, 10**9)[0].phys_offset
    for segment in sorted(os.listdir(leader.config.path / "commitlog")):
        ours = (follower.config.path / "commitlog" / segment).read_bytes()
        assert ours == (leader.config.path / "commitlog" / segment).read_bytes()
    queue = leader.queues.find("Orders", 1)
    other = follower.queues.find("Orders", 1)
    assert queue is not None
    assert other is not None
    # The tag codes too: the leader gets them with the message, the follower reads them from the record.
    assert [other.entry(n)[:2] for n in range(other.max)] == [queue.entry(n)[:2] for n in range(queue.max)]


def test_rule_6_answers_end_on_record_boundaries(leader: MessageStore, follower: MessageStore) -> None:
    fill(leader, 0, 300, size=900)
    rng = random.Random(7)
    while follower.log.end < leader.log.end:
        most = rng.choice((1, 100, 3_000, 200_000))
        data = leader.log.read_raw(follower.log.end, most)
        assert data
        assert leader.log.read_view(follower.log.end, most) == data
        follower.appender.append_raw(follower.log.end, data)
    assert leader.log.read_raw(leader.log.end, 1_000) == b""
    assert leader.log.read_view(leader.log.end, 1_000) == b""
    for read in (leader.log.read_raw, leader.log.read_view):
        with pytest.raises(OffsetGone):
            read(leader.log.end + 1, 1_000)
        with pytest.raises(OffsetGone):
            read(leader.log.start - 1, 1_000)
        with pytest.raises(ValueError, match="boundary"):
            read(1, 1_000)


@pytest.mark.parametrize("damage", ["body", "size", "place", "truncate", "magic", "topic", "order"])
def test_damaged_bytes_are_refused_and_nothing_is_appended(
    leader: MessageStore, follower: MessageStore, damage: str
) -> None:
    fill(leader, 0, 8)
    copy(leader, follower)
    end = follower.log.end
    fill(leader, 8, 8)
    data = bytearray(leader.log.read_raw(end, 10**6))
    second = int.from_bytes(data[:4], "big")
    if damage == "body":
        data[second + 90] ^= 1
    elif damage == "size":
        data[second + 3] ^= 1
    elif damage == "place":
        data[second + 35] ^= 1
    elif damage == "truncate":
        del data[-1]
    elif damage == "magic":
        data[second + 4] ^= 1
    elif damage == "topic":
        data[second + 88 + 48] = 0
    else:
        data = data[second:]
    with pytest.raises(BadRecords):
        follower.appender.append_raw(end, bytes(data))
    assert follower.log.end == end
    assert follower.queues.next_offset("Orders", 0) == 3
    with pytest.raises(ValueError, match="log ends at"):
        follower.appender.append_raw(end + 1, bytes(data))
    copy(leader, follower)
    follower.indexer.confirm(leader.log.end)
    leader.indexer.confirm(leader.log.end)
    assert content(follower) == content(leader)


def test_rule_5_a_cut_is_durable_and_moves_everything_that_derives_from_the_log(
    leader: MessageStore, follower: MessageStore
) -> None:
    leader.appender.begin_epoch(1, b"one", 1)
    fill(leader, 0, 100, size=900)
    copy(leader, follower)
    middle = leader.log.end
    follower.indexer.confirm(middle)
    before = content(follower)
    # The follower was once a master alone: its epoch 2 is not the leader's.
    follower.appender.begin_epoch(2, b"mine", 2)
    fill(follower, 1_000, 100, size=900)
    follower.mark_flushed(follower.flush())
    end = follower.log.end
    follower.truncator.truncate(middle)
    assert (follower.log.end, follower.state.flushed, follower.state.confirmed) == (middle, middle, middle)
    assert follower.epoch_cache.epochs == ((1, 0),)
    assert follower.queues.next_offset("Orders", 0) == follower.reader.max_offset("Orders", 0)
    # All bytes beyond are zeros, so no crash makes stale records valid again.
    files = sorted((follower.config.path / "commitlog").iterdir())
    assert [int(f.name) for f in files if int(f.name) > middle] == []
    assert not any(files[-1].read_bytes()[middle % 65_536 :])
    follower.close(clean=False)
    again = MessageStore.open(follower.config)
    assert again.log.end == middle < end
    assert again.state.damage is None
    leader.appender.begin_epoch(3, b"three", 3)
    fill(leader, 100, 100, size=900)
    copy(leader, again)
    leader.indexer.confirm(leader.log.end)
    again.indexer.confirm(leader.log.end)
    seen = content(again)
    assert seen == content(leader)
    assert all(seen[key][: len(records)] == records for key, records in before.items())
    assert again.reader.query("Orders", "k1000", 9, 0, 10**9) == []
    again.close(clean=False)


def test_an_unclean_cut_below_confirmed_takes_queues_and_index_with_it(leader: MessageStore) -> None:
    fill(leader, 0, 60)
    boundary = leader.log.end
    fill(leader, 60, 60)
    leader.indexer.confirm(leader.log.end)
    leader.checkpointer.run_periodic_tasks(10**12)
    leader.truncator.truncate(boundary)
    assert leader.state.confirmed == boundary
    assert sum(leader.reader.max_offset("Orders", q) for q in range(3)) == 60
    assert leader.reader.query("Orders", "k60", 9, 0, 10**9) == []
    assert len(leader.reader.query("Orders", "k59", 9, 0, 10**9)) == 1
    assert leader.appender.put([message(0)], 9)[0].queue_offset == 20


def test_a_truncation_that_fails_between_two_queues_marks_the_store_as_failed(
    leader: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One queue has no entries left in memory, the others have undone ones: the process has to end."""
    fill(leader, 0, 60)
    leader.indexer.confirm(leader.log.end)
    while leader.queues.dirty:
        leader.checkpointer.run_periodic_tasks(10**12)
    boundary = leader.log.end
    fill(leader, 60, 60)
    leader.indexer.confirm(leader.log.end)
    reported: list[str] = []
    leader.state.on_failed = lambda: reported.append("failed")
    real, truncations = ConsumeQueue.truncate, 0

    def truncate(queue: ConsumeQueue, limit: int) -> bool:
        nonlocal truncations
        truncations += 1
        if truncations == 2:
            raise OSError(errno.EIO, "Input/output error")
        return real(queue, limit)

    monkeypatch.setattr(ConsumeQueue, "truncate", truncate)
    with pytest.raises(OSError, match="Input/output error"):
        leader.truncator.truncate(boundary)
    assert reported == ["failed"]
    assert leader.state.failed is not None
    assert (leader.state.recovery_point.boot, leader.state.recovery_point.written) == ("", boundary)


def test_a_start_restores_the_size_of_a_segment_after_a_kill_within_a_truncation(
    leader: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filler is only its head: its other bytes must exist already, or no reader gets past it."""
    fill(leader, 0, 60)
    boundary = leader.log.end
    fill(leader, 60, 60)
    real = os.ftruncate

    def ftruncate(fd: int, size: int) -> None:
        real(fd, size)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "ftruncate", ftruncate)
    with pytest.raises(KeyboardInterrupt):
        leader.truncator.truncate(boundary)
    monkeypatch.undo()
    leader.close(clean=False)
    store = MessageStore.open(leader.config)
    store.appender.put([message(60, size=60_000)], 1)
    assert len(store.log.read_raw(boundary, 1 << 20)) == store.log.end - boundary
    store.close(clean=False)
    store = MessageStore.open(leader.config)
    assert store.log.end > store.log.segment_size
    store.close()


@pytest.mark.parametrize("where", [-1, 5, 10**9])
def test_truncate_refuses_an_offset_within_a_record_or_outside_of_the_log(leader: MessageStore, where: int) -> None:
    fill(leader, 0, 8)
    end = leader.log.end
    with pytest.raises((ValueError, OffsetGone)):
        leader.truncator.truncate(where)
    assert leader.log.end == end


def test_a_follower_that_is_too_far_behind_starts_where_the_leaders_log_starts(
    leader: MessageStore, follower: MessageStore
) -> None:
    leader.appender.begin_epoch(1, b"one", 1)
    leader.appender.put([message(5, topic="Seldom")], 1)
    fill(leader, 0, 300, size=900)
    leader.indexer.confirm(leader.log.end)
    fill(follower, 0, 8)

    leader.retention.remove_before(131_072)
    assert leader.log.start == 131_072
    follower.truncator.reset(leader.log.start, leader.epoch_cache.epochs, leader.queue_starts())
    assert (follower.log.start, follower.log.end, follower.state.confirmed, follower.state.flushed) == (131_072,) * 4
    for again in (False, True):
        if again:
            follower.close(clean=False)
            follower = MessageStore.open(follower.config)
        assert follower.epoch_cache.epochs == leader.epoch_cache.epochs
        # No record of this topic is left, but its queue offsets continue.
        assert follower.queues.next_offset("Seldom", 2) == follower.reader.min_offset("Seldom", 2) == 1
    copy(leader, follower)
    follower.indexer.confirm(leader.log.end)
    assert content(follower) == content(leader)
    for queue_id in range(3):
        assert follower.reader.min_offset("Orders", queue_id) == leader.reader.min_offset("Orders", queue_id) > 0
        assert follower.reader.max_offset("Orders", queue_id) == 100
    assert follower.appender.put([message(5, topic="Seldom")], 1)[0].queue_offset == 1
    follower.close()


def test_a_failed_reset_claims_no_removed_records(follower: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The follower copies everything again: no start in between may report damage."""
    fill_and_index(follower, 300, size=900)
    with monkeypatch.context() as failing:
        failing.setattr(follower.log, "sync", raising(OSError(errno.EIO, "Input/output error")))
        with pytest.raises(OSError, match="Input/output error"):
            follower.truncator.reset(1 << 20, ((1, 0),), {})
    (follower.config.path / "commitlog" / f"{1 << 20:020d}").unlink()
    follower.checkpointer.run_periodic_tasks(10**12 + 10_000)
    follower.close()
    for _ in range(2):
        follower = MessageStore.open(follower.config)
        assert follower.state.damage is None
        follower.close(clean=False)


def test_an_entry_that_a_truncation_left_in_part_is_replaced(leader: MessageStore) -> None:
    """A start truncated a queue after a kill, and its machine lost power in the middle of an entry."""
    fill_and_index(leader, 30)
    fill(leader, 30, 30)
    leader.indexer.confirm(leader.log.end)
    leader.queues.write_out()
    wanted = content(leader)
    leader.close(clean=False)
    for path in (leader.config.path / "consumequeue" / "Orders").glob("*/*"):
        data = path.read_bytes()
        path.write_bytes(data[:200].ljust(210, b"\0") + data[210:220].ljust(len(data) - 210, b"\0"))
    leader = MessageStore.open(leader.config)
    leader.indexer.confirm(leader.log.end)
    assert content(leader) == wanted
    leader.close()
    leader = MessageStore.open(leader.config)
    assert content(leader) == wanted
    leader.close()


def test_an_entry_that_a_truncation_left_in_part_takes_no_queue_offset(leader: MessageStore) -> None:
    """The log was truncated as well: no later record replaces the entry."""
    fill_and_index(leader, 30)
    leader.close(clean=False)
    for path in (leader.config.path / "consumequeue" / "Orders").glob("*/*"):
        data = path.read_bytes()
        path.write_bytes(data[:210] + b"\1" * 10 + data[220:])
    leader = MessageStore.open(leader.config)
    assert [leader.queues.next_offset("Orders", queue_id) for queue_id in range(3)] == [10] * 3
    leader.close()


def test_acknowledged_damage_is_not_reported_again(follower: MessageStore) -> None:
    fill_and_index(follower, 30)
    follower.close(clean=False)
    for segment in (follower.config.path / "commitlog").iterdir():
        segment.unlink()
    for start in range(2):
        follower = MessageStore.open(follower.config)
        assert (follower.state.damage is None) is (start == 1)
        follower.recovery.acknowledge_damage()
        follower.close(clean=False)


def test_queue_ends_may_come_from_a_control_record_instead(leader: MessageStore) -> None:
    leader.truncator.reset(131_072)
    leader.queues.override_next("Orders", 0, 70)
    leader.queues.override_next("Orders", 0, 60)
    assert leader.appender.put([message(0)], 1)[0].queue_offset == 70
    leader.queues.override_next("Orders", 0, 500)
    leader.indexer.confirm(leader.log.end)
    assert (leader.reader.min_offset("Orders", 0), leader.reader.max_offset("Orders", 0)) == (70, 71)


def test_rocketmq_7689_numbers_after_a_crash_continue_behind_the_unconfirmed_tail(leader: MessageStore) -> None:
    fill(leader, 0, 30)
    leader.indexer.confirm(leader.log.end)
    fill(leader, 30, 30)
    leader.checkpointer.run_periodic_tasks(10**12)
    leader.close(clean=False)
    store = MessageStore.open(leader.config)
    assert [store.reader.max_offset("Orders", q) for q in range(3)] == [10, 10, 10]
    assert [s.queue_offset for s in store.appender.put([message(0), message(1), message(2)], 1)] == [20, 20, 20]
    store.indexer.confirm(store.log.end)
    assert [store.reader.max_offset("Orders", q) for q in range(3)] == [21, 21, 21]
    store.close(clean=False)


def test_rocketmq_3747_taking_the_role_costs_the_same_however_much_is_not_in_the_queues_yet(
    leader: MessageStore, follower: MessageStore
) -> None:
    fill(leader, 0, 12_000)
    copy(leader, follower)
    assert follower.state.confirmed == 0, "no queue has an entry yet"
    began = time.thread_time()
    follower.appender.begin_epoch(1, b"{}", 1)
    stored = follower.appender.put([message(0), message(1), message(2)], 1)
    took_s = time.thread_time() - began
    assert [s.queue_offset for s in stored] == [4_000] * 3
    assert took_s < 0.05, f"{took_s:.3f} s of CPU time until the first send of the new master is stored"


def test_rocketmq_467_what_was_not_indexed_when_the_process_died_is_indexed_later(leader: MessageStore) -> None:
    fill(leader, 0, 100)
    leader.indexer.confirm(leader.log.end)
    leader.checkpointer.run_periodic_tasks(10**12)
    fill(leader, 100, 100)
    leader.indexer.confirm(leader.log.end)
    assert leader.index is not None
    assert leader.index.pending
    leader.close(clean=False)
    store = MessageStore.open(leader.config)
    store.indexer.confirm(store.log.end)
    for n in range(0, 200, 13):
        assert len(store.reader.query("Orders", f"k{n}", 9, 0, 10**9)) == 1
    store.close(clean=False)


def test_a_process_that_dies_while_many_queues_wait_in_memory_loses_no_entry(leader: MessageStore) -> None:
    for n in range(600):
        leader.appender.put([Put("Wide", n, 0, 0, 1, HOST, b"%d" % n, b"")], n)
    leader.indexer.confirm(leader.log.end)
    leader.checkpointer.run_periodic_tasks(10**12)
    assert leader.queues.dirty
    leader.close(clean=False)
    store = MessageStore.open(leader.config)
    store.indexer.confirm(store.log.end)
    assert [store.reader.max_offset("Wide", n) for n in range(600)] == [1] * 600
    store.close(clean=False)


@pytest.mark.parametrize("more", [1, 8])
def test_an_epoch_begins_where_a_record_has_less_room_than_usual(
    quick_dir: Path, small: BrokerSettings, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    """The former master's unconfirmed record in the last bytes of a segment must not look like a new one."""
    old = MessageStore.open(StoreConfig(quick_dir / "old", small))
    new = MessageStore.open(StoreConfig(quick_dir / "new", small))
    with monkeypatch.context() as earlier:
        earlier.setattr(append.Appender.put_rows, "__kwdefaults__", {"room_min": 0})
        old.appender.begin_epoch(1, bytes(250), 1)
        while old.log.room(old.log.end) > 1_500:
            old.appender.put([message(1, size=200)], 1)
        copy(old, new)
        divergence_offset = old.log.end
        for number in range(more):
            old.appender.put([message(number, size=200)], 2)
    new.appender.begin_epoch(2, bytes(250), 3)
    new.appender.put([message(7)], 3)
    assert new.epoch_cache.epochs[-1].start == divergence_offset
    assert divergence(new.epoch_cache.epochs, new.log.end, old.epoch_cache.epochs, old.log.end) == divergence_offset
    old.truncator.truncate(divergence_offset)
    copy(new, old)
    assert old.log.read(0, old.log.end) == new.log.read(0, new.log.end)
    for store in (old, new):
        store.close()


def test_a_reset_that_failed_at_its_end_is_over_once_the_log_begins(
    leader: MessageStore, follower: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is empty, as the reset wants it, and no caller repeats it: a start must report later damage."""
    fill(leader, 0, 100)
    leader.indexer.confirm(leader.log.end)
    follower.truncator.reset(65_536, [(0, 0)], {})
    opens = os.open

    def full(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & os.O_CREAT and "commitlog" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        return opens(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(OSError, match="No space left"):
        follower.truncator.reset(0, (), {})
    monkeypatch.setattr(os, "open", opens)
    copy(leader, follower)
    follower.indexer.confirm(follower.log.end)
    follower.mark_flushed(follower.flush())
    follower.checkpointer.run_periodic_tasks(10**12)
    follower.close(clean=False)
    (follower.config.path / "commitlog" / f"{0:020d}").unlink()
    follower = MessageStore.open(follower.config)
    assert follower.state.damage is not None
    follower.close()


def test_a_partial_confirm_lowers_no_queue_offset(leader: MessageStore, follower: MessageStore) -> None:
    """The first record of the queue in this log is not its first one."""
    fill(leader, 0, 30)
    while leader.log.end < 65_536:
        leader.appender.put([message(1, "Other", 3_000)], 2_000)
    stored = [leader.appender.put([message(30)], 1)[0] for _ in range(3)]
    follower.truncator.reset(65_536, [(1, 0)], {})
    follower.appender.append_raw(65_536, leader.log.read_raw(65_536, 10**6))
    assert follower.queues.next_offset("Orders", 0) == 13
    follower.indexer.confirm(stored[1].phys_offset)
    assert follower.queues.next_offset("Orders", 0) == 13
    assert follower.reader.max_offset("Orders", 0) == 11


def test_a_truncated_entry_in_memory_does_not_come_back_in_part(
    leader: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk took two of three entries before a truncation undid two of the three records."""
    fill_and_index(leader, 30)
    stored = [leader.appender.put([message(0)], 1)[0] for _ in range(3)]
    leader.indexer.confirm(leader.log.end)
    pwrite = os.pwrite

    def full(fd: int, data: bytes, at: int) -> int:
        if len(data) == 60:
            pwrite(fd, bytes(data)[:40], at)
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(fd, data, at)

    with monkeypatch.context() as broken:
        broken.setattr(os, "pwrite", full)
        leader.checkpointer.run_periodic_tasks(10**12 + 5_000)
    leader.truncator.truncate(stored[1].phys_offset)
    leader.appender.begin_epoch(2, b"x" * 100, 1)
    leader.appender.put([message(1)], 1)
    leader.indexer.confirm(leader.log.end)
    leader.close()
    leader = MessageStore.open(leader.config)
    assert leader.queues.next_offset("Orders", 0) == 11
    leader.close()


def test_a_queue_that_begins_unconfirmed_continues_at_its_override(
    leader: MessageStore, follower: MessageStore
) -> None:
    """The truncation undoes the record that gave the queue offset."""
    leader.appender.begin_epoch(1, b"", 1)
    boundary = leader.log.end
    leader.queues.override_next("Orders", 0, 57)
    leader.appender.put([message(0)], 5)
    follower.appender.append_raw(0, leader.log.read_raw(0, 10**6))
    follower.indexer.confirm(boundary)
    follower.queues.override_next("Orders", 0, 57)
    assert follower.queues.next_offset("Orders", 0) == 58
    follower.truncator.truncate(boundary)
    assert follower.queues.next_offset("Orders", 0) == 57


def test_a_queue_without_its_first_records_begins_as_the_leaders(leader: MessageStore, follower: MessageStore) -> None:
    leader.appender.begin_epoch(1, b"", 1)
    leader.queues.override_next("Orders", 0, 57)
    first = leader.appender.put([message(0)], 5)[0]
    leader.appender.put([message(0)], 6)
    leader.indexer.confirm(leader.log.end)
    copy(leader, follower)
    follower.indexer.confirm(follower.log.end)
    for indexed in (False, True):
        if indexed:
            follower.checkpointer.run_periodic_tasks(10**12)
        assert follower.reader.min_offset("Orders", 0) == leader.reader.min_offset("Orders", 0) == 57
        assert follower.queue_starts() == leader.queue_starts()
        assert follower.reader.get("Orders", 0, 57, 9, 10**6).count == 2
    follower.truncator.truncate(first.phys_offset)
    assert follower.queues.next_offset("Orders", 0) == 57
