"""What control records say of queues: deleted topics, and where queues go on of which nothing else is left to say it.

A deletion hides what lies before it, and changes nothing else on the disk: when it is undone, all of it is shown.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.broker.metadata import snapshots
from gantry_broker.broker.metadata.replay import Replay
from gantry_broker.broker.metadata.tables import Metadata, Tables, encode_change
from gantry_broker.protocol.codes import CONTROL_TOPIC, GetStatus
from gantry_broker.protocol.message import decode_records
from gantry_broker.store.index.consume_queue import ConsumeQueue
from gantry_broker.store.log.commit_log import CommitLog
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import Put, StoreConfig

from tests.store.test_failing_calls import Died
from tests.store.test_power_loss import Disk
from tests.store.test_retention import HOST, SEGMENT, indexed, put, settings
from tests.support.failing_calls import raising

NOW = 10**12


class Member:
    """A store and its tables, as in a broker."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.start()

    def start(self) -> None:
        self.store = MessageStore.open(StoreConfig(self.path, settings()))
        self.meta = Metadata(Tables())
        self.replay = Replay(self.meta, self.store)
        self.replay.load(self.path / "config")

    def again(self) -> None:
        """Kill the store, and open it again. Nothing is confirmed yet."""
        self.store.close(clean=False)
        self.start()

    def restart(self) -> None:
        """Kill the store, open it again, and confirm all that it holds."""
        self.again()
        self.confirm()

    def rebuild(self) -> None:
        """Stop the store, lose its queues, and open it again: the start rebuilds them from the log."""
        self.store.close()
        shutil.rmtree(self.path / "consumequeue")
        self.start()

    def save(self) -> None:
        snapshots.write(self.path / "config", snapshots.render(self.meta, self.store.epoch_cache.epochs))

    def put(self, first: int, count: int) -> None:
        put(self.store, first, count, 1)

    def one(self, topic: str, queue_id: int = 0) -> int:
        """Returns its queue offset. Nothing is confirmed."""
        return self.store.appender.put([Put(topic, queue_id, 0, 0, 1, HOST, b"one", b"")], 3)[0].queue_offset

    def change(self, **change: Any) -> int:
        """Returns the offset of the control record."""
        record = Put(CONTROL_TOPIC, 0, 0, 0, 1, HOST, encode_change({"at": 1, **change}), b"")
        return self.store.appender.put([record], 5)[0].phys_offset

    def confirm(self, to: int | None = None) -> None:
        for phys, body in self.store.indexer.confirm(self.store.log.end if to is None else to).control:
            self.meta.confirm(phys, body)

    def delete(self, topic: str = "Orders") -> int:
        at = self.change(dropTopics=[topic], dropData=self.store.log.end)
        self.confirm()
        return at

    def truncate(self, to: int) -> None:
        self.store.truncator.truncate(to)
        self.replay.was_truncated(to)

    def shown(self, topic: str = "Orders") -> list[int]:
        """The queue offsets that a reader gets."""
        at, found = self.store.reader.min_offset(topic, 0), b""
        while (got := self.store.reader.get(topic, 0, at, 999, 10**6)).data:
            found, at = found + got.data, got.next_offset
        return [r.queue_offset for r in decode_records(found)] if found else []

    def follow(self, leader: Member) -> None:
        """Each member gets the records that only the other one has."""
        for one, other in ((leader, self), (self, leader)):
            while one.store.log.end < other.store.log.end:
                one.store.appender.append_raw(one.store.log.end, other.store.log.read_raw(one.store.log.end, 10**6))
            one.confirm()


@pytest.fixture
def member(quick_dir: Path) -> Iterator[Member]:
    made = Member(quick_dir / "store")
    yield made
    made.store.close(clean=False)


@pytest.fixture
def leader(quick_dir: Path) -> Iterator[Member]:
    """Records of another log, from the offset where the other one is truncated."""
    made = Member(quick_dir / "leader")
    yield made
    made.store.close(clean=False)


def deleted(member: Member) -> int:
    """Thirty messages; a truncation undoes the deletion with the second half. Returns the offset of that half."""
    member.put(0, 15)
    divergence_offset = member.store.log.end
    member.put(15, 15)
    member.delete()
    assert member.shown() == []
    return divergence_offset


def test_a_deleted_topic_hides_its_records_and_continues_its_queue_offsets(member: Member) -> None:
    member.put(0, 250)
    member.delete()
    member.put(250, 10)
    for _ in range(2):
        store = member.store
        assert store.reader.min_offset("Orders", 0) == 247
        assert store.reader.max_offset("Orders", 0) == 257
        assert store.reader.get("Orders", 0, 0, 1, 1).status == GetStatus.OFFSET_TOO_SMALL
        assert store.reader.get("Orders", 0, 0, 1, 1).next_offset == 247
        assert store.reader.offset_at_time("Orders", 0, 0) == 247
        assert store.reader.store_time("Orders", 0, 246) == -1
        assert store.reader.query("Orders", "k1", 9, 0, 1 << 60) == []
        assert len(store.reader.query("Orders", "k255", 9, 0, 1 << 60)) == 1
        assert member.shown() == list(range(247, 257))
        assert store.reader.min_offset("Seldom", 0) == 0
        store.checkpointer.run_periodic_tasks(NOW)
        member.restart()


def test_a_deletion_changes_no_file(member: Member) -> None:
    member.put(0, 250)
    indexed(member.store, NOW)
    folder = member.path / "consumequeue" / "Orders" / "0"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    member.delete()
    indexed(member.store, NOW + 2_000)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("lost", ["", "recovery point", "queues", "recovery point after a kill", "queues after a kill"])
def test_no_start_shows_deleted_records_or_forgets_a_queue_offset(member: Member, saved: bool, lost: str) -> None:
    """A full disk may remove the recovery point; an operator may remove the folders to have them rebuilt."""
    member.put(0, 15)
    member.delete()
    member.change(ends={"Old": {"0": 57}})
    member.put(15, 15)
    indexed(member.store, NOW)
    if saved:
        member.save()
    before = member.shown()
    assert before == list(range(14, 29))
    member.store.close(clean="kill" not in lost)
    if "recovery point" in lost:
        member.store.recovery_point_file.path.unlink()
    elif "queues" in lost:
        shutil.rmtree(member.path / "consumequeue")
    for _ in range(2):
        member.start()
        member.confirm()
        assert member.shown() == before
        assert member.store.queues.next_offset("Old", 0) == 57
        member.store.close(clean=False)


def test_tables_without_deletion_watermarks_are_rebuilt(member: Member) -> None:
    """Otherwise readers would see deleted messages after the queues are rebuilt."""
    member.put(0, 15)
    member.delete()
    member.change(ends={"Old": {"0": 57}})
    member.put(15, 15)
    indexed(member.store, NOW)
    member.save()
    own = member.path / "config" / snapshots.OWN
    tables = json.loads(own.read_text())
    assert tables.keys() >= {"deletionWatermarks", "ends"}
    own.write_text(json.dumps({k: v for k, v in tables.items() if k not in ("deletionWatermarks", "ends")}))
    member.rebuild()
    member.confirm()
    assert member.shown() == list(range(14, 29))
    assert member.store.queues.next_offset("Old", 0) == 57


def test_tables_may_be_ahead_of_the_confirmed_offset_of_a_start(member: Member) -> None:
    """Records before an overridden queue offset are indexed first; a deletion counts at once."""
    numbers = [member.one("Filed") for _ in range(3)]
    member.put(0, 5)
    member.change(ends={"Filed": {"0": 3}, "Old": {"0": 57}})
    member.delete()
    member.save()
    assert member.store.state.recovery_point.confirmed == 0
    member.again()
    assert member.store.state.confirmed == 0
    assert member.store.queues.next_offset("Filed", 0) == 3
    member.confirm()
    assert member.shown("Filed") == numbers
    assert member.shown() == []
    assert member.store.queues.next_offset("Old", 0) == 57


def test_an_undone_deletion_hides_no_record(member: Member, leader: Member) -> None:
    """The same holds when the former master leads again: other members would use other queue offsets."""
    member.truncate(deleted(member))
    member.follow(leader)
    for _ in range(2):
        assert member.shown() == leader.shown() == list(range(14))
        assert member.store.reader.min_offset("Orders", 0) == 0
        member.restart()


def test_readers_see_new_records_of_a_deleted_topic(member: Member, leader: Member) -> None:
    """Later the member is promoted, and its followers use the same queue offsets."""
    member.truncate(deleted(member))
    member.follow(leader)
    leader.put(100, 5)
    member.follow(leader)
    for n in range(3):
        number = member.one("Orders")
        assert number == 19 + n
        member.follow(leader)
        assert member.store.reader.max_offset("Orders", 0) == leader.store.reader.max_offset("Orders", 0) == number + 1
    assert member.shown() == leader.shown() == list(range(22))


def test_a_truncation_undoes_a_deletion_that_a_start_took_for_unconfirmed(member: Member, leader: Member) -> None:
    member.put(0, 10)
    member.store.checkpointer.run_periodic_tasks(NOW)
    member.put(10, 10)
    divergence_offset = member.store.log.end
    member.put(20, 10)
    member.delete()
    member.save()
    member.again()
    assert member.store.state.confirmed < divergence_offset
    assert member.shown() == []
    member.truncate(divergence_offset)
    leader.store.appender.append_raw(0, member.store.log.read_raw(0, 10**6))
    leader.put(100, 15)
    member.follow(leader)
    assert member.shown() == leader.shown()
    assert len(member.shown()) == 33


def test_a_start_undoes_a_deletion_that_was_lost_with_the_end_of_the_log(
    quick_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(quick_dir / "store", monkeypatch)
    member = Member(quick_dir / "store")
    member.put(0, 15)
    indexed(member.store, NOW)
    member.put(15, 15)
    member.delete()
    member.store.checkpointer.checkpoint().run()
    member.save()
    member.store.close(clean=False)
    disk.lose()
    member.start()
    member.confirm()
    assert member.shown() == list(range(14))
    member.store.close(clean=False)


def test_an_earlier_deletion_stands_when_a_later_one_is_undone(member: Member) -> None:
    member.put(0, 10)
    member.delete()
    member.truncate(deleted(member))
    assert member.shown() == list(range(9, 23))


@pytest.mark.parametrize("why", ["a truncation", "a repaired control record"])
def test_the_next_start_rebuilds_tables_after_a_failed_rebuild(
    member: Member, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Otherwise the next start would take half of them for all."""
    member.put(0, 10)
    member.delete()
    divergence_offset = deleted(member)
    member.store.truncator.truncate(divergence_offset)
    with monkeypatch.context() as broken:
        broken.setattr(ConsumeQueue, "read", raising(OSError(errno.EIO, "Input/output error")))
        with pytest.raises(OSError, match="Input/output error"):
            member.replay.was_truncated(divergence_offset) if why == "a truncation" else member.replay.rebuild()
    assert member.store.state.failed is not None
    member.again()
    assert member.shown() == list(range(9, 23))


def test_a_queue_without_records_continues_at_the_leaders_queue_offset(member: Member, leader: Member) -> None:
    """The truncation undoes the records that give its queue offset; other members have unconfirmed first records."""
    member.put(0, 1)
    divergence_offset = member.store.log.end
    member.follow(leader)
    for _ in range(10):
        member.one("Other")
    member.change(ends={"Other": {"0": 10}, "Old": {"0": 57}})
    member.confirm()
    member.delete("Other")
    assert member.store.queues.next_offset("Old", 0) == 57
    member.truncate(divergence_offset)
    assert (member.store.queues.next_offset("Other", 0), member.store.queues.next_offset("Old", 0)) == (0, 0)
    for _ in range(3):
        leader.one("Other")
    member.store.appender.append_raw(divergence_offset, leader.store.log.read_raw(divergence_offset, 10**6))
    member.confirm(divergence_offset + int.from_bytes(leader.store.log.read_raw(divergence_offset, 4)[:4], "big"))
    assert (member.store.reader.max_offset("Other", 0), member.store.queues.next_offset("Other", 0)) == (1, 3)
    assert member.one("Other") == 3


@pytest.mark.parametrize("end", [1, 2, 57])
def test_overrides_do_not_replace_queue_offsets_of_records(member: Member, end: int) -> None:
    """A master numbered them before it knew the override, or they are unconfirmed."""
    assert [member.one("Old") for _ in range(2)] == [0, 1]
    member.store.queues.override_next("Old", 0, end)
    assert member.one("Old") == 2
    member.confirm()
    assert member.shown("Old") == [0, 1, 2]
    assert member.store.reader.max_offset("Old", 0) == 3


@pytest.mark.parametrize("saved", [False, True])
def test_a_master_gives_no_queue_offset_twice_before_it_knows_the_confirmed_offset(member: Member, saved: bool) -> None:
    """After a kill, only the tables or the end of the log give the next queue offset."""
    member.put(0, 5)
    member.change(ends={"Old": {"0": 57}})
    if saved:
        member.confirm()
        member.save()
    assert member.store.state.recovery_point.confirmed == 0
    member.again()
    member.meta.lead(member.store.indexer.unconfirmed_control())
    assert member.one("Old") == 57
    for _ in range(2):
        member.confirm()
        assert member.shown("Old") == [57]
        member.again()


def test_a_queue_emptied_in_a_later_file_continues_at_its_override(member: Member) -> None:
    store = member.store
    queue = store.queues.queue(store.queues.topic("Old"), 0)
    for number in (150, 151):
        queue.add(number, (number * 100).to_bytes(8) + (10).to_bytes(4) + bytes(8))
    while queue.pending:
        queue.write_piece()
    store.queues.truncate(15_000)
    assert (queue.is_empty, queue.max) == (False, 150)
    store.queues.truncate(0)
    store.queues.override_next("Old", 0, 350)
    assert store.queues.next_offset("Old", 0) == 350
    member.one("Other")
    member.one("Old")
    member.confirm()
    store.checkpointer.run_periodic_tasks(NOW)
    member.restart()
    assert member.shown("Old") == [350]
    assert member.store.reader.min_offset("Old", 0) == 350


def test_queues_know_their_next_number_before_a_confirmation(member: Member) -> None:
    store = member.store

    def ends() -> dict[str, dict[int, int]]:
        return store.queues.next_offsets([("Orders", 1), ("Old", 2), ("Unknown", 0)])

    assert ends() == {}
    member.one("Orders", 1)
    assert store.queues.topics_queues() == {}
    assert ends() == {"Orders": {1: 1}}
    store.queues.override_next("Old", 2, 7)
    assert ends() == {"Orders": {1: 1}, "Old": {2: 7}}


def test_a_deletion_is_forgotten_once_retention_has_removed_its_records(member: Member) -> None:
    member.put(0, 15)
    below = member.delete()
    member.meta.forget_deletions(below - 1)
    assert member.meta.confirmed.deletion_watermarks == {"Orders": below}
    member.meta.forget_deletions(below)
    assert member.meta.confirmed.deletion_watermarks == {}


def damage(store: MessageStore, number: int) -> bytes:
    """Zero the head of the record on the disk; returns the old bytes."""
    at, size, _ = store.queues.find("Orders", 0).entry(number)  # type: ignore[union-attr]
    with open(store.log.path(at), "r+b") as segment:
        segment.seek(at % SEGMENT)
        was = segment.read(size)
        segment.seek(at % SEGMENT)
        segment.write(bytes(20))
    return was


@pytest.mark.parametrize("number", [0, 3])
def test_a_start_that_rebuilds_all_queues_opens_a_log_with_damage(member: Member, number: int) -> None:
    member.put(0, 250)
    indexed(member.store, NOW)
    at = member.store.queues.find("Orders", 0).entry(number)[0]  # type: ignore[union-attr]
    lost = damage(member.store, number)
    member.store.close(clean=False)
    path = member.store.recovery_point_file.path
    path.write_text(json.dumps({**json.loads(path.read_text()), "of a later version": 1}))
    shutil.rmtree(member.path / "consumequeue")
    member.start()
    assert member.store.state.damage is None
    assert member.shown() == [n for n in range(247) if n != number]
    assert member.one("Orders") == 247
    member.confirm()
    assert member.store.reader.max_offset("Orders", 0) == 248
    for written in (False, True):
        if written:
            indexed(member.store, NOW + 2_000)
        member.store.repair(at, lost)
        assert member.shown() == list(range(248))
    member.restart()
    assert member.shown() == list(range(248))


def test_an_interrupted_rebuild_of_all_queues_is_repeated_by_the_next_start(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start does not scan the whole log for that, so it truncates at no damage that only a scan finds."""
    member.put(0, 250)
    indexed(member.store, NOW)
    lost = damage(member.store, 3)
    end = member.store.log.end
    member.store.close()
    shutil.rmtree(member.path / "consumequeue")
    real, left = ConsumeQueue._write, 2

    def write(queue: ConsumeQueue, offset: int, data: bytes) -> str:
        nonlocal left
        left -= 1
        if left < 0:
            raise Died
        return real(queue, offset, data)

    with monkeypatch.context() as killed:
        killed.setattr(ConsumeQueue, "_write", write)
        with pytest.raises(Died):
            member.start()
    assert os.listdir(member.path / "consumequeue")
    for _ in range(2):
        member.start()
        assert (member.store.log.end, member.store.state.damage) == (end, None)
        assert member.shown() == [n for n in range(247) if n != 3]
        assert not member.store.state.recovery_point.reindexing
        member.store.close()
    member.start()
    at = member.store.reader.get("Orders", 0, 2, 1, 10**6)
    member.store.repair(decode_records(at.data)[0].phys_offset + len(at.data), lost)
    assert member.shown() == list(range(247))


@pytest.mark.parametrize("number", [3, 246])
def test_records_that_were_unreadable_at_a_start_are_indexed_soon(
    member: Member, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """No repair would index it, because it is valid."""
    member.put(0, 250)
    indexed(member.store, NOW)
    at, size, _ = member.store.queues.find("Orders", 0).entry(number)  # type: ignore[union-attr]
    member.store.close()
    shutil.rmtree(member.path / "consumequeue")
    real = CommitLog.read

    def read(log: CommitLog, offset: int, count: int) -> bytes:
        if offset < at + size and at < offset + count:
            raise OSError(errno.EIO, "Input/output error")
        return real(log, offset, count)

    reported: list[int] = []
    with monkeypatch.context() as broken:
        broken.setattr(CommitLog, "read", read)
        member.start()
        member.store.state.on_damage = reported.append
        member.store.checkpointer.run_periodic_tasks(NOW + 2_000)
    assert number not in member.shown()
    assert set(reported) == {at}
    for n in range(len(member.store.state.unindexed) + 1):
        member.store.checkpointer.run_periodic_tasks(NOW + 4_000 + 2_000 * n)
    assert member.shown() == list(range(247))
    assert member.one("Orders") == 247
    member.store.checkpointer.run_periodic_tasks(NOW + 10_000)
    member.restart()
    assert member.shown() == list(range(248))


def test_a_repaired_record_replaces_a_blank_on_disk(member: Member) -> None:
    member.put(0, 250)
    indexed(member.store, NOW)
    lost = damage(member.store, 3)
    member.rebuild()
    indexed(member.store, NOW)
    assert member.shown() == [n for n in range(247) if n != 3]
    at = member.store.reader.get("Orders", 0, 2, 1, 10**6)
    member.store.repair(decode_records(at.data)[0].phys_offset + len(at.data), lost)
    member.again()
    assert member.shown() == list(range(247))


def test_a_repaired_record_of_a_deleted_topic_stays_deleted(member: Member) -> None:
    """Its blank had the offset of a record of the same topic after the deletion."""
    member.put(0, 15)
    number = len(member.shown()) - 1
    lost = damage(member.store, number)
    at = member.store.queues.find("Orders", 0).entry(number)[0]  # type: ignore[union-attr]
    member.delete()
    member.put(15, 15)
    indexed(member.store, NOW)
    before = member.shown()
    member.rebuild()
    assert member.shown() == before
    member.store.repair(at, lost)
    for killed in (False, True):
        if killed:
            member.store.checkpointer.run_periodic_tasks(NOW + 2_000)
            member.again()
        assert member.shown() == before
        assert member.store.reader.min_offset("Orders", 0) == number + 1


def test_a_store_of_rocketmq_is_opened_with_the_queues_that_it_has(member: Member) -> None:
    """Some are not by topic: its own brokers add a message to others, too."""
    member.put(0, 250)
    member.store.close()
    for name in ("epochs.json", "recoveryPoint.json", "queueEnds.json"):
        (member.path / "config" / name).unlink()
    os.rename(member.path / "consumequeue" / "Seldom", member.path / "consumequeue" / "%LMQ%x")
    member.start()
    assert member.store.reader.max_offset("%LMQ%x", 0) == 3
    assert len(member.shown()) == 247


@pytest.mark.parametrize("what", ["deletion", "end"])
def test_a_power_loss_brings_neither_deleted_messages_nor_numbers_back(
    quick_dir: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """This holds with saved and with unsaved tables."""
    disk = Disk(quick_dir / "store", monkeypatch)
    member = Member(quick_dir / "store")
    member.put(0, 15)
    indexed(member.store, NOW)
    if what == "deletion":
        member.delete()
    else:
        member.change(ends={"Old": {"0": 57}})
        member.confirm()
    member.store.mark_flushed(member.store.flush())
    state: Callable[[], Any] = lambda: (member.shown(), member.store.queues.next_offset("Old", 0))  # noqa: E731
    before = state()
    for saved in (False, True):
        if saved:
            member.save()
        member.store.close(clean=False)
        disk.lose()
        member.start()
        member.confirm()
        assert state() == before
    member.store.close(clean=False)


def test_a_search_by_time_passes_over_an_unindexed_record(member: Member) -> None:
    for n in range(11):
        member.store.appender.put([Put("Orders", 0, 0, 0, 1, HOST, b"%d" % n, b"")], 1_000 + n)
    member.confirm()
    indexed(member.store, NOW)
    damage(member.store, 5)
    member.rebuild()
    found = [member.store.reader.offset_at_time("Orders", 0, 1_000 + n) for n in range(11)]
    assert found == [0, 1, 2, 3, 4, 5, 5, 7, 8, 9, 10]


def test_a_search_by_time_reports_a_bad_sector(member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    member.put(0, 15)
    reported: list[int] = []
    member.store.state.on_damage = reported.append
    with monkeypatch.context() as broken:
        broken.setattr(CommitLog, "read", raising(OSError(errno.EIO, "Input/output error")))
        with pytest.raises(OSError, match="Input/output error"):
            member.store.reader.offset_at_time("Orders", 0, 1)
    assert len(reported) == 1
