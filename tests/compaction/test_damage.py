"""Damaged compaction records and copies: nothing is taken for removed, and retention waits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from gantry_broker.protocol.codes import COMPACTION_TOPIC, GetStatus
from gantry_broker.protocol.message import decode_records
from gantry_broker.store.compaction.decide import clean
from gantry_broker.store.compaction.passes import Segments, clean_bodies, copy_bodies
from gantry_broker.store.compaction.record import BadDirectory, decode, directory_size, encode
from gantry_broker.store.errors import BadRecords
from gantry_broker.store.index.compacted import Row, key_of

from tests.compaction.history import SEGMENT, TOPIC, History, message
from tests.support.present import present


@pytest.fixture
def world(quick_dir: Path) -> Iterator[History]:
    made = History(quick_dir, 1)
    made.store.appender.put([message(f"k{n % 5}", f"{n}".encode() * 300) for n in range(100)], made.now)
    made.confirm(made.store)
    yield made
    made.close()


def run(world: History, *, copies: bool = False) -> None:
    work = present(world.store.compaction.work(TOPIC, 0, 1_000))
    with Segments(world.store.log.path_of, SEGMENT) as segments:
        bodies = copy_bodies(work, segments, 1 << 60) if copies else clean_bodies(work, segments, world.now, 0)
        world.append(bodies, 99)


def flip(world: History, at: int) -> bytes:
    """Change a byte of the log. Returns what was there."""
    before = world.store.log.read(at, 1)
    world.store.log.overwrite(at, bytes([before[0] ^ 255]))
    return before


def test_nothing_is_removed_while_a_compaction_record_is_unreadable(world: History) -> None:
    store = world.store
    run(world)
    phys, _, _ = present(store.queues.find(COMPACTION_TOPIC, 0)).entry(0)
    damaged: list[int] = []
    store.state.on_damage = damaged.append
    before = flip(world, phys + 110)
    store.state.truncations += 1  # Everything is computed again.
    store.compaction.apply()
    assert damaged == [phys]
    assert store.compaction.unreadable_at == phys
    assert store.compaction.needed_from([]) == store.log.start
    store.compaction.apply()
    assert damaged == [phys], "it is reported once"
    store.log.overwrite(phys + 110, before)
    store.compaction.apply()
    assert store.compaction.unreadable_at is None
    assert len(world.read(store, 0)) == 5


def test_a_damaged_copy_is_reported_where_its_record_lies(world: History) -> None:
    store = world.store
    run(world)
    run(world, copies=True)
    rows = store.compaction.rows(TOPIC, 0)
    queue = store.queues.find(COMPACTION_TOPIC, 0)
    assert rows is not None
    assert queue is not None
    holder, size, _ = queue.entry(queue.max - 1)
    first = next(iter(rows))
    assert holder < first.place < holder + size
    damaged: list[int] = []
    store.state.on_damage = damaged.append
    before = flip(world, first.place + 100)
    got = store.reader.get(TOPIC, 0, 0, 32, 1 << 20)
    assert (got.status, got.damaged, damaged) == (GetStatus.OFFSET_FOUND_NULL, holder, [holder])
    work = present(store.compaction.work(TOPIC, 0, 0))
    with Segments(store.log.path_of, SEGMENT) as segments:
        with pytest.raises(BadRecords):
            list(copy_bodies(work, segments, 1 << 60))
        world.append(copy_bodies(work, segments, 1 << 60, skip_damaged=True), 99)
    assert len(world.read(store, 0)) == 4, "a copy that cannot be repaired is lost, and stops no other"
    store.log.overwrite(first.place + 100, before)


def test_a_damaged_record_ends_a_pass_until_it_is_given_up(world: History) -> None:
    store = world.store
    flip(world, present(store.queues.find(TOPIC, 0)).entry(99)[0] + 120)
    with pytest.raises(BadRecords):
        run(world)
    assert store.compaction.rows(TOPIC, 0) is None
    work = present(store.compaction.work(TOPIC, 0, 1_000))
    with Segments(store.log.path_of, SEGMENT) as segments:
        world.append(clean_bodies(work, segments, world.now, 0, skip_damaged=True), 99)
    got = store.reader.get(TOPIC, 0, 0, 32, 1 << 20)
    assert [record.queue_offset for record in decode_records(got.data)] == [94, 95, 96, 97, 98]


def test_bytes_that_are_no_compaction_record_are_refused() -> None:
    row = Row(5, 100, -1, 91, 1, 0, key_of(b"k"))
    body = encode("T", 3, 9, (10, 1_000), [1, 2], [row], [b"copy"])
    found = decode(body)
    assert (found.topic, found.queue_id, found.boundary) == ("T", 3, 9)
    assert (found.dropped, found.rows, body[found.size :]) == ((1, 2), [row], b"copy")
    assert directory_size(body) == found.size
    for at in range(found.size):
        for bad in (body[:at], body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]):
            with pytest.raises(BadDirectory):
                decode(bad)


def test_blank_keys_are_none() -> None:
    assert key_of(None) == key_of(b"") == key_of(b"  ") != key_of(b"k")
    rows = [Row(n, n, n, 91, 1, 0, key_of(b" ")) for n in range(3)]
    assert clean(rows, (), 10, 0).rows == rows


def count(world: History) -> int:
    return present(world.store.compaction.rows(TOPIC, 0)).count


@pytest.mark.parametrize("undone", [True, False], ids=["with its deletion", "after its deletion"])
def test_a_prepared_truncation_shows_what_a_deletion_has_hidden_only_if_it_is_undone(
    world: History, undone: bool
) -> None:
    store = world.store
    run(world)
    to = store.log.end
    store.appender.put([message("k0", b"later")], world.now)
    world.confirm(store)
    store.queues.drop_topic(TOPIC, to)
    assert count(world) == 0
    while not store.compaction.prepare(to, 0):
        pass
    store.truncator.truncate(to)
    store.queues.clear_overrides()
    if not undone:
        store.queues.drop_topic(TOPIC, to)
    store.compaction.apply()
    assert count(world) == (5 if undone else 0)
    assert store.compaction.needed_from([]) == to, "nothing is prepared any more"


def test_retention_waits_for_a_truncation_that_is_prepared(world: History) -> None:
    store = world.store
    run(world)
    world.send()
    to = world.ends[-1]
    world.send()
    assert store.compaction.needed_from([]) == store.state.confirmed
    store.compaction.prepare(to, 0)
    assert store.compaction.needed_from([]) == store.log.start
    world.send()  # It leads: nothing is truncated.
    assert store.compaction.needed_from([]) == store.state.confirmed
