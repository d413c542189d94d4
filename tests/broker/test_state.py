"""The broker's state without sockets: clients, locks, held pulls, tables, statistics, names."""

from __future__ import annotations

import asyncio
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import orjson
import pytest
from gantry_broker.broker.clients import EXPIRE_MS, Client, ClientTable, Subscription
from gantry_broker.broker.locks import LOCK_MS, QueueLocks
from gantry_broker.broker.metadata import snapshots
from gantry_broker.broker.metadata.tables import Metadata, Tables, encode_change
from gantry_broker.broker.metadata.topics import topic_fault
from gantry_broker.broker.pull.held import HeldPulls
from gantry_broker.broker.stats import Stats
from gantry_broker.contracts.leadership import Assignment, LeadershipRecord, MemberId
from gantry_broker.protocol.bodies import SubscriptionData, SubscriptionGroup, TopicConfig
from gantry_broker.protocol.fastjson import MessageQueue
from gantry_broker.protocol.frame import Frame
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.broker.conftest import Numbered
from tests.support.present import present

if TYPE_CHECKING:
    from tests.broker.conftest import Bench


class Link:
    """A connection as far as the table of clients is concerned."""

    def __init__(self) -> None:
        self.closed = False
        self.got: list[Frame] = []

    def send(self, frame: Frame) -> None:
        self.got.append(frame)

    def close(self) -> None:
        self.closed = True


def client(link: Link, name: str = "c", now: int = 0) -> Client:
    return Client(link, name, "JAVA", 407, "127.0.0.1:1", now)


def beat(table: ClientTable, link: Link, topics: dict[str, str], version: int = 1, now: int = 0) -> bool:
    subs = [Subscription(SubscriptionData(t, e, version=version)) for t, e in topics.items()]
    return table.heartbeat_consumer("G", client(link, now=now), subs, "CONSUME_PASSIVELY", "CLUSTERING", "X")


class TestClients:
    def test_a_group_changes_when_members_or_subscriptions_do(self) -> None:
        table, first, second = ClientTable(), Link(), Link()
        assert beat(table, first, {"A": "*"})
        assert not beat(table, first, {"A": "*"})
        assert not beat(table, first, {"A": "*"}, version=2)
        assert beat(table, first, {"A": "x"}, version=3)
        assert not beat(table, first, {"A": "y"}, version=2), "an older subscription changes nothing"
        assert beat(table, second, {"A": "x"}, version=3)
        assert beat(table, second, {"A": "x", "B": "*"}, version=4)
        assert table.groups_of_topic("B") == ["G"]

    def test_a_closed_connection_leaves_its_groups(self) -> None:
        table, link = ClientTable(), Link()
        beat(table, link, {"A": "*"})
        table.heartbeat_producer("P", client(link))
        assert table.closed(link) == ["G"]
        assert table.consumers == {}
        assert table.producers == {}
        assert table.closed(link) == []

    def test_a_client_with_two_connections_is_one_member(self) -> None:
        """A slave that becomes master has those to its own address and those to the group's: no share for a ghost."""
        table, own, groups = ClientTable(), Link(), Link()
        beat(table, own, {"A": "*"})
        beat(table, groups, {"A": "*"})
        assert table.consumers["G"].client_ids() == ["c"]
        assert table.closed(own) == ["G"]
        assert table.consumers["G"].client_ids() == ["c"]

    def test_a_client_that_departs_does_so_on_all_its_connections(self) -> None:
        table, own, groups, other, elsewhere = ClientTable(), Link(), Link(), Link(), Link()
        beat(table, own, {"A": "*"})
        beat(table, groups, {"A": "*"})
        for link, name, address in ((other, "d", "127.0.0.1:2"), (elsewhere, "c", "127.0.0.2:1")):
            member = Client(link, name, "JAVA", 407, address, 0)
            table.heartbeat_consumer("G", member, [], "CONSUME_PASSIVELY", "CLUSTERING", "X", partial=True)
        assert table.depart("G", "c", groups)
        assert list(table.consumers["G"].clients) == [other, elsewhere]
        assert not table.depart("G", "c", groups)
        assert table.depart("G", "d", other)

    def test_silent_members_expire(self) -> None:
        table, old, new = ClientTable(), Link(), Link()
        beat(table, old, {"A": "*"}, now=0)
        beat(table, new, {"A": "*"}, now=EXPIRE_MS)
        assert table.expire(EXPIRE_MS + 1) == (["G"], [old])
        assert list(table.consumers["G"].clients) == [new]

    def test_members_with_other_topics_or_expressions_are_inconsistent(self) -> None:
        table, one, two = ClientTable(), Link(), Link()
        beat(table, one, {"T": "a", "U": "*"})
        beat(table, two, {"U": "*", "T": "a"})
        group = table.consumers["G"]
        assert not group.inconsistent
        beat(table, two, {"T": "b", "U": "*"})
        assert group.inconsistent
        beat(table, one, {"T": "b", "U": "*"})
        assert not group.inconsistent
        beat(table, two, {"T": "b"})
        assert group.inconsistent
        table.closed(two)
        assert not group.inconsistent


class TestLocks:
    def test_one_holder_until_it_lets_go_or_is_silent(self) -> None:
        locks = QueueLocks()
        queue = MessageQueue("T", "b", 0)
        assert locks.lock("G", "a", [queue], 0) == [queue]
        assert locks.lock("G", "b", [queue], 10) == []
        assert locks.lock("G", "a", [queue], 20) == [queue]
        assert locks.lock("H", "b", [queue], 20) == [queue], "another group's locks are its own"
        locks.unlock("G", "b", [queue])
        assert locks.lock("G", "b", [queue], 30) == []
        assert locks.lock("G", "b", [queue], 21 + LOCK_MS) == [queue]
        locks.unlock("G", "b", [queue])
        assert locks.lock("G", "a", [queue], 22 + LOCK_MS) == [queue]


class TestHeldPulls:
    def test_woken_by_their_queue_or_by_time_and_once(self) -> None:
        held: HeldPulls[Numbered] = HeldPulls()
        held.hold("T", 0, Numbered(1), 100)
        held.hold("T", 1, Numbered(2), 50)
        held.hold("T", 0, Numbered(3), 200)
        tried: list[int] = []
        held.try_each(held.waiting("T", 0), lambda pull: tried.append(pull.number) or pull.number == 1)
        assert tried == [1, 3]
        assert (len(held), held.counts([("T", 0), ("T", 1), ("T", 2)])) == (2, {("T", 0): 1, ("T", 1): 1})
        assert [pull.number for pull in held.due(49)] == []
        assert [pull.number for pull in held.due(60)] == [2]
        assert [pull.number for pull in held.due(199)] == []
        assert [pull.number for pull in held.due(1_000)] == [3]
        assert len(held) == 0

    def test_their_number_is_bounded(self) -> None:
        held: HeldPulls[Numbered] = HeldPulls(limit=2)
        assert [held.hold("T", 0, Numbered(n), 10) for n in range(3)] == [True, True, False]

    def test_finished_work_leaves_only_its_time(self) -> None:
        held: HeldPulls[Numbered] = HeldPulls()
        for n in range(1_000):
            pull = Numbered(n)
            held.hold("T", 0, pull, 100 + n % 3)
            held.end(pull)
            held.end(pull)
        assert (len(held), held._by_queue, held._by_deadline) == (0, {}, {})
        assert sorted(held._deadlines) == [100, 101, 102]
        assert (held.due(200), held._deadlines, held._in_heap) == ([], [], set())

    @settings(deadline=None)
    @given(
        st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50), st.booleans()), max_size=60),
        st.lists(st.tuples(st.integers(0, 60), st.integers(1, 5)), max_size=10),
    )
    def test_none_is_lost_or_answered_twice(
        self, steps: list[tuple[int, int, bool]], ends: list[tuple[int, int]]
    ) -> None:
        held: HeldPulls[Numbered] = HeldPulls()
        done: list[int] = []
        for number, (queue, deadline, wake) in enumerate(steps):
            held.hold("T", queue, Numbered(number), deadline)
            if wake:
                held.try_each(
                    held.waiting("T", queue), lambda pull: pull.number % 2 == 0 and not done.append(pull.number)
                )
        for now_ms, most in ends:
            over = [pull.number for pull in held.due(now_ms, most)]
            assert all(steps[number][1] <= max(at for at, _ in ends) for number in over)
            assert len(over) <= most
            done += over
        done += [pull.number for pull in held.due(61)]
        assert sorted(done) == list(range(len(steps)))
        assert len(held) == 0


def topic(name: str) -> dict[str, Any]:
    return TopicConfig(name, 4, 4).to_json()


CHANGES = st.one_of(
    st.tuples(st.sampled_from("abc"), st.integers(1, 3)).map(
        lambda t: {"at": 1, "topics": [TopicConfig(t[0], t[1], t[1]).to_json()]}
    ),
    st.tuples(st.sampled_from("abc"), st.integers(0, 99)).map(
        lambda t: {"at": 1, "dropTopics": [t[0]], "dropData": t[1]}
    ),
    st.tuples(st.sampled_from("abc"), st.integers(0, 99)).map(lambda t: {"at": 1, "expired": {t[0]: t[1]}}),
    st.sampled_from("xyz").map(lambda n: {"at": 1, "groups": [SubscriptionGroup(n).to_json()]}),
    st.sampled_from("xyz").map(lambda n: {"at": 1, "dropGroups": [n]}),
    st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.integers(0, 99)).map(
        lambda t: {"at": 1, "offsets": {f"{t[0]}@x": {str(t[1]): t[2]}}}
    ),
    st.sampled_from("ab").map(lambda n: {"at": 1, "dropOffsets": [f"{n}@x"]}),
    st.tuples(st.integers(1, 3), st.integers(0, 9)).map(lambda t: {"at": 1, "delay": {str(t[0]): t[1]}}),
    st.tuples(st.integers(1, 2), st.integers(0, 9), st.sets(st.integers(0, 9))).map(
        lambda t: {"at": 1, "timer": {str(t[0]): t[1]}, "timerDone": {str(t[0]): sorted(o for o in t[2] if o >= t[1])}}
    ),
)
"""One control record each."""


class TestMetadata:
    def test_the_working_view_is_ahead_and_undone_by_a_demotion(self) -> None:
        meta = Metadata(Tables())
        meta.confirm(0, encode_change({"topics": [topic("A")]}))
        meta.lead([encode_change({"topics": [topic("B")]})])
        meta.working.apply({"topics": [topic("C")]})
        assert set(meta.working.topics) == {"A", "B", "C"}
        assert set(meta.confirmed.topics) == {"A"}
        meta.follow()
        assert set(meta.working.topics) == {"A"}

    def test_offsets_are_written_once_per_change(self) -> None:
        meta = Metadata(Tables())
        meta.lead([])
        meta.commit_offset("T", "G", 0, 5)
        meta.commit_offset("T", "G", 0, 7)
        (change,) = meta.take_dirty(1)
        assert change["offsets"] == {"T@G": {"0": 7}}
        assert meta.take_dirty(2) == []
        meta.commit_offset("T", "G", 0, 7)
        assert meta.take_dirty(3) == []
        meta.put_back([change])
        assert meta.take_dirty(4)[0]["offsets"] == {"T@G": {"0": 7}}

    def test_an_older_record_does_not_replace_a_newer_one(self) -> None:
        """A snapshot at 100 and a log that is confirmed again from 0: apache/rocketmq 4771."""
        meta = Metadata(Tables())
        tables = Tables()
        tables.offsets = {"T@G": {0: 9}}
        meta.load(tables, 100)
        meta.confirm(50, encode_change({"offsets": {"T@G": {"0": 3}}}))
        assert meta.confirmed.offset("T", "G", 0) == 9
        meta.confirm(100, encode_change({"offsets": {"T@G": {"0": 12}}}))
        assert meta.confirmed.offset("T", "G", 0) == 12

    def test_other_control_records_change_nothing(self) -> None:
        meta = Metadata(Tables())
        for body in (b"", b"[]", b"\xff", b'{"kind":"epoch","epoch":3}', b'{"kind":"meta","future":1}'):
            assert not meta.confirm(1, body)
        assert meta.confirmed == Tables()

    @given(st.lists(CHANGES, max_size=30), st.integers(0, 30))
    def test_applying_a_stretch_again_gives_the_same(self, changes: list[dict[str, Any]], again: int) -> None:
        once, twice = Tables(), Tables()
        for change in changes:
            once.apply(change)
        for change in changes + changes[min(again, len(changes)) :]:
            twice.apply(change)
        for name in ("topics", "groups", "offsets", "delay", "timer", "timer_done", "deletion_watermarks", "expired"):
            assert getattr(once, name) == getattr(twice, name)
        copied = Tables()
        for change in once.all_changes(2):
            copied.apply(change)
        for name in ("topics", "groups", "delay", "timer", "timer_done", "expired"):
            assert getattr(copied, name) == getattr(once, name)
        assert copied.offsets == {key: value for key, value in once.offsets.items() if value}

    @given(st.lists(CHANGES, max_size=30), st.integers(0, 30))
    def test_tables_that_change_while_they_are_written_are_written_whole(
        self, changes: list[dict[str, Any]], first: int
    ) -> None:
        """A follower whose log begins with the first part reads the parts and the changes between them."""
        leader, follower = Tables(), Tables()
        for change in changes[:first]:
            leader.apply(change)
        later = iter(changes[first:])
        with patch("gantry_broker.broker.metadata.tables.CHUNK", 1):
            for part in leader.all_changes(2):
                follower.apply(part)
                for change in islice(later, 2):
                    leader.apply(change)
                    follower.apply(change)
        for change in later:
            leader.apply(change)
            follower.apply(change)
        for name in ("topics", "groups", "delay", "timer", "timer_done", "expired"):
            assert getattr(follower, name) == getattr(leader, name)
        for tables in (leader, follower):
            tables.offsets = {key: value for key, value in tables.offsets.items() if value}
        assert follower.offsets == leader.offsets

    def test_offsets_of_all_queues_are_saved_as_plain_json(self, tmp_path: Path) -> None:
        """RocketMQ's own kind takes many times as long, while no request is answered."""
        tables = Tables(
            timer={3: 7},
            timer_done={3: {9, 8}},
            settings={"fileReservedTime": ("48", "72")},
            deletion_watermarks={"T": 99},
            expired={"T": 120},
            ends={"T": {0: 5, 10: 6}},
        )
        meta = Metadata(tables)
        files = snapshots.render(meta, ())
        assert orjson.loads(files[snapshots.OWN])["ends"] == {"T": {"0": 5, "10": 6}}
        snapshots.write(tmp_path, files)
        assert present(snapshots.load(tmp_path)).tables == tables


class TestStats:
    def test_the_last_minute_counts(self) -> None:
        stats = Stats(0)
        for now in range(0, 120_000, 10_000):
            stats.add("TOPIC_PUT_NUMS", "T", 60)
            stats.sample(now)
        assert stats.total("TOPIC_PUT_NUMS", "T") == 720
        assert 5 <= stats.tps("TOPIC_PUT_NUMS", "T", 110_000) <= 7
        assert stats.report("TOPIC_PUT_NUMS", "absent", 0) is None
        stats.forget("T")
        assert stats.report("TOPIC_PUT_NUMS", "T", 0) is None


@given(st.text(max_size=150))
def test_topic_names_are_rocketmqs(name: str) -> None:
    good = 0 < len(name) <= 127 and all(c.isascii() and (c.isalnum() or c in "%|_-") for c in name)
    assert (topic_fault(name) is None) is good


async def test_a_missed_role_change_is_notified_with_the_next_tick(bench: Bench) -> None:
    notified: list[bool] = []
    knows = asyncio.Event()

    def fails_once(master: bool) -> None:
        notified.append(master)
        if len(notified) == 1:
            raise OSError(24, "Too many open files")

    await bench.lead()
    bench.broker.events.role_changed.subscribe(fails_once)
    bench.broker.events.role_changed.subscribe(lambda master: knows.set())
    with pytest.raises(OSError, match="Too many open files"):
        bench.broker.replication.saw_epoch(bench.broker.replication.epoch + 1)
    assert not knows.is_set()
    async with asyncio.timeout(5):
        await knows.wait()
    assert notified == [False, False]
    assert not bench.broker.role.leading


async def test_a_new_master_knows_unconfirmed_changes(bench: Bench) -> None:
    """Whether it is still in memory or must be read from the log."""
    await bench.lead()
    broker, store = bench.broker, bench.store
    me, epoch = broker.replication.me, broker.replication.epoch
    away = MemberId(1, "away")
    both = Assignment(LeadershipRecord(epoch, epoch + 1, me, frozenset({me, away})), "127.0.0.1:10911")
    await broker.replication.assign(both)
    confirmed = store.state.confirmed
    for name in ("First", "Second", "Third"):
        broker.changes.append({"topics": [topic(name)]})
    assert store.state.confirmed == confirmed
    known = store.indexer.unconfirmed_control()
    assert len(known) == 3
    forgotten = store.unconfirmed.batches[1]
    store.unconfirmed.batches.remove(forgotten)
    assert store.unconfirmed.gaps(store.state.confirmed, store.log.end) == [(forgotten.start, forgotten.end)]
    assert store.indexer.unconfirmed_control() == known
    store.unconfirmed.clear()
    assert store.indexer.unconfirmed_control() == known
