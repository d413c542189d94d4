"""What control records tell of queues: deleted topics, and where queues go on of which nothing else is left to say it.

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
from gantry_broker.broker import snapshots
from gantry_broker.broker.metadata import Metadata, Tables, encode_change
from gantry_broker.broker.replay import Replay
from gantry_broker.protocol.codes import CONTROL_TOPIC, GetStatus
from gantry_broker.protocol.message import decode_records
from gantry_broker.store.commitlog import CommitLog
from gantry_broker.store.consumequeue import ConsumeQueue
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import Put, StoreConfig

from tests.store.test_failing_calls import Died
from tests.store.test_power_loss import Disk
from tests.store.test_retention import HOST, SEGMENT, filed, put, settings

NOW = 10**12


class Member:
    """A store with its tables, as a broker keeps them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.start()

    def start(self) -> None:
        self.store = MessageStore.open(StoreConfig(self.path, settings()))
        self.meta = Metadata(Tables())
        self.replay = Replay(self.meta, self.store)
        self.replay.load(self.path / "config")

    def again(self, clean: bool = False) -> None:
        """Killed, or stopped, and started."""
        self.store.close(clean=clean)
        self.start()

    def save(self) -> None:
        snapshots.write(self.path / "config", snapshots.render(self.meta, self.store.history))

    def put(self, first: int, count: int) -> None:
        put(self.store, first, count, 1)

    def one(self, topic: str, queue_id: int = 0) -> int:
        """Answers its number. Nothing is confirmed."""
        return self.store.put([Put(topic, queue_id, 0, 0, 1, HOST, b"one", b"")], 3)[0].queue_offset

    def change(self, **change: Any) -> int:
        """Answers where the control record lies."""
        record = Put(CONTROL_TOPIC, 0, 0, 0, 1, HOST, encode_change({"at": 1, **change}), b"")
        return self.store.put([record], 5)[0].phys_offset

    def confirm(self, to: int | None = None) -> None:
        for phys, body in self.store.confirm(self.store.end if to is None else to).control:
            self.meta.confirm(phys, body)

    def delete(self, topic: str = "Orders") -> int:
        at = self.change(dropTopics=[topic], dropData=self.store.end)
        self.confirm()
        return at

    def cut(self, to: int) -> None:
        self.store.cut(to)
        self.replay.was_cut(to)

    def shown(self, topic: str = "Orders") -> list[int]:
        """The numbers that a reader is given."""
        at, found = self.store.min_offset(topic, 0), b""
        while (got := self.store.get(topic, 0, at, 999, 10**6)).data:
            found, at = found + got.data, got.next_offset
        return [r.queue_offset for r in decode_records(found)] if found else []

    def follow(self, leader: Member) -> None:
        """Each gets what only the other one has."""
        for one, other in ((leader, self), (self, leader)):
            while one.store.end < other.store.end:
                one.store.append_raw(one.store.end, other.store.read_raw(one.store.end, 10**6))
            one.confirm()


@pytest.fixture
def member(quick_dir: Path) -> Iterator[Member]:
    made = Member(quick_dir / "store")
    yield made
    made.store.close(clean=False)


@pytest.fixture
def leader(quick_dir: Path) -> Iterator[Member]:
    """Of another log, from where the other one is cut."""
    made = Member(quick_dir / "leader")
    yield made
    made.store.close(clean=False)


def deleted(member: Member) -> int:
    """Thirty messages, of which the deletion is undone with the second half; answers where that begins."""
    member.put(0, 15)
    parted = member.store.end
    member.put(15, 15)
    member.delete()
    assert member.shown() == []
    return parted


def test_a_dropped_topic_shows_nothing_of_before_and_goes_on_counting(member: Member) -> None:
    member.put(0, 250)
    member.delete()
    member.put(250, 10)
    for _ in range(2):
        store = member.store
        assert store.min_offset("Orders", 0) == 247
        assert store.max_offset("Orders", 0) == 257
        assert store.get("Orders", 0, 0, 1, 1).status == GetStatus.OFFSET_TOO_SMALL
        assert store.get("Orders", 0, 0, 1, 1).next_offset == 247
        assert store.offset_at_time("Orders", 0, 0) == 247
        assert store.store_time("Orders", 0, 246) == -1
        assert store.query("Orders", "k1", 9, 0, 1 << 60) == []
        assert len(store.query("Orders", "k255", 9, 0, 1 << 60)) == 1
        assert member.shown() == list(range(247, 257))
        assert store.min_offset("Seldom", 0) == 0
        store.upkeep(NOW)
        member.again()
        member.confirm()


def test_a_deletion_changes_no_file(member: Member) -> None:
    member.put(0, 250)
    filed(member.store, NOW)
    folder = member.path / "consumequeue" / "Orders" / "0"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    member.delete()
    filed(member.store, NOW + 2_000)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("lost", ["", "points", "queues", "points of a killed one", "queues of a killed one"])
def test_no_start_shows_what_was_deleted_or_forgets_where_a_queue_goes_on(
    member: Member, saved: bool, lost: str
) -> None:
    """The points are given up on a full disk; the folders are removed by somebody who has them built anew."""
    member.put(0, 15)
    member.delete()
    member.change(ends={"Old": {"0": 57}})
    member.put(15, 15)
    filed(member.store, NOW)
    if saved:
        member.save()
    before = member.shown()
    assert before == list(range(14, 29))
    member.store.close(clean="killed" not in lost)
    if "points" in lost:
        member.store.points_file.path.unlink()
    elif "queues" in lost:
        shutil.rmtree(member.path / "consumequeue")
    for _ in range(2):
        member.start()
        member.confirm()
        assert member.shown() == before
        assert member.store.next_offset("Old", 0) == 57
        member.store.close(clean=False)


def test_tables_of_a_version_that_hid_deletions_in_the_queues_are_built_anew(member: Member) -> None:
    """Or what it deleted would be shown once the queues are filed anew."""
    member.put(0, 15)
    member.delete()
    member.change(ends={"Old": {"0": 57}})
    member.put(15, 15)
    filed(member.store, NOW)
    member.save()
    own = member.path / "config" / snapshots.OWN
    own.write_text(json.dumps({k: v for k, v in json.loads(own.read_text()).items() if k not in ("hidden", "ends")}))
    member.store.close(clean=True)
    shutil.rmtree(member.path / "consumequeue")
    member.start()
    member.confirm()
    assert member.shown() == list(range(14, 29))
    assert member.store.next_offset("Old", 0) == 57


def test_tables_may_be_ahead_of_what_a_start_knows_as_confirmed(member: Member) -> None:
    """What came before an end that they tell is filed first; a deletion counts at once."""
    numbers = [member.one("Filed") for _ in range(3)]
    member.put(0, 5)
    member.change(ends={"Filed": {"0": 3}, "Old": {"0": 57}})
    member.delete()
    member.save()
    assert member.store.points.confirmed == 0
    member.again()
    assert member.store.confirmed == 0
    assert member.store.next_offset("Filed", 0) == 3
    member.confirm()
    assert member.shown("Filed") == numbers
    assert member.shown() == []
    assert member.store.next_offset("Old", 0) == 57


def test_an_undone_deletion_hides_nothing(member: Member, leader: Member) -> None:
    """Nor does it where the former master leads again, to which the others would give other numbers."""
    member.cut(deleted(member))
    member.follow(leader)
    for _ in range(2):
        assert member.shown() == leader.shown() == list(range(14))
        assert member.store.min_offset("Orders", 0) == 0
        member.again()
        member.confirm()


def test_what_comes_in_the_place_of_what_was_deleted_is_shown(member: Member, leader: Member) -> None:
    """It is promoted later, and its followers file what it numbers where it does."""
    member.cut(deleted(member))
    member.follow(leader)
    leader.put(100, 5)
    member.follow(leader)
    for n in range(3):
        number = member.one("Orders")
        assert number == 19 + n
        member.follow(leader)
        assert member.store.max_offset("Orders", 0) == leader.store.max_offset("Orders", 0) == number + 1
    assert member.shown() == leader.shown() == list(range(22))


def test_a_deletion_that_a_start_does_not_know_as_confirmed_is_undone_as_well(member: Member, leader: Member) -> None:
    member.put(0, 10)
    member.store.upkeep(NOW)
    member.put(10, 10)
    parted = member.store.end
    member.put(20, 10)
    member.delete()
    member.save()
    member.again()
    assert member.store.confirmed < parted
    assert member.shown() == []
    member.cut(parted)
    leader.store.append_raw(0, member.store.read_raw(0, 10**6))
    leader.put(100, 15)
    member.follow(leader)
    assert member.shown() == leader.shown()
    assert len(member.shown()) == 33


def test_a_deletion_that_is_lost_with_the_end_of_the_log_is_undone_by_the_start(
    quick_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(quick_dir / "store", monkeypatch)
    member = Member(quick_dir / "store")
    member.put(0, 15)
    filed(member.store, NOW)
    member.put(15, 15)
    member.delete()
    member.store.checkpoint().run()
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
    member.cut(deleted(member))
    assert member.shown() == list(range(9, 23))


@pytest.mark.parametrize("why", ["a cut", "a mended control record"])
def test_tables_that_cannot_be_built_anew_are_left_to_the_next_start(
    member: Member, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Half of them would be taken for all."""
    member.put(0, 10)
    member.delete()
    parted = deleted(member)
    member.store.cut(parted)

    def unreadable(queue: ConsumeQueue, offset: int, count: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(ConsumeQueue, "read", unreadable)
        with pytest.raises(OSError, match="Input/output error"):
            member.replay.was_cut(parted) if why == "a cut" else member.replay.rebuild()
    assert member.store.failed is not None
    member.again()
    assert member.shown() == list(range(9, 23))


def test_a_queue_whose_records_are_all_gone_counts_on_from_where_the_leader_does(
    member: Member, leader: Member
) -> None:
    """What told its number is undone with them, and others have its first ones that are not confirmed yet."""
    member.put(0, 1)
    parted = member.store.end
    member.follow(leader)
    for _ in range(10):
        member.one("Other")
    member.change(ends={"Other": {"0": 10}, "Old": {"0": 57}})
    member.confirm()
    member.delete("Other")
    assert member.store.next_offset("Old", 0) == 57
    member.cut(parted)
    assert (member.store.next_offset("Other", 0), member.store.next_offset("Old", 0)) == (0, 0)
    for _ in range(3):
        leader.one("Other")
    member.store.append_raw(parted, leader.store.read_raw(parted, 10**6))
    member.confirm(parted + int.from_bytes(leader.store.read_raw(parted, 4)[:4], "big"))
    assert (member.store.max_offset("Other", 0), member.store.next_offset("Other", 0)) == (1, 3)
    assert member.one("Other") == 3


@pytest.mark.parametrize("end", [1, 2, 57])
def test_ends_are_not_told_over_records_with_other_numbers(member: Member, end: int) -> None:
    """A master had numbered them before it knew, or they are not confirmed yet."""
    assert [member.one("Old") for _ in range(2)] == [0, 1]
    member.store.ensure_next("Old", 0, end)
    assert member.one("Old") == 2
    member.confirm()
    assert member.shown("Old") == [0, 1, 2]
    assert member.store.max_offset("Old", 0) == 3


@pytest.mark.parametrize("saved", [False, True])
def test_a_master_gives_no_number_twice_before_it_knows_what_is_confirmed(member: Member, saved: bool) -> None:
    """It was killed, and nothing but the tables, or the log's end, tells where a queue goes on."""
    member.put(0, 5)
    member.change(ends={"Old": {"0": 57}})
    if saved:
        member.confirm()
        member.save()
    assert member.store.points.confirmed == 0
    member.again()
    member.meta.lead(member.store.unconfirmed_control())
    assert member.one("Old") == 57
    for _ in range(2):
        member.confirm()
        assert member.shown("Old") == [57]
        member.again()


def test_a_queue_that_was_emptied_in_a_later_file_goes_on_where_it_is_told(member: Member) -> None:
    store = member.store
    queue = store.queues.queue(store.queues.topic("Old"), 0)
    for number in (150, 151):
        queue.add(number, (number * 100).to_bytes(8) + (10).to_bytes(4) + bytes(8))
    while queue.pending:
        queue.write_piece()
    store.queues.cut(15_000)
    assert (queue.is_empty, queue.max) == (False, 150)
    store.queues.cut(0)
    store.ensure_next("Old", 0, 350)
    assert store.next_offset("Old", 0) == 350
    member.one("Other")
    member.one("Old")
    member.confirm()
    store.upkeep(NOW)
    member.again()
    member.confirm()
    assert member.shown("Old") == [350]
    assert member.store.min_offset("Old", 0) == 350


def test_queues_tell_their_next_number_also_before_anything_is_confirmed(member: Member) -> None:
    store = member.store
    assert store.next_offsets() == {}
    member.one("Orders", 1)
    assert store.topics_queues() == {}
    assert store.next_offsets() == {"Orders": {1: 1}}
    store.ensure_next("Old", 2, 7)
    assert store.next_offsets() == {"Orders": {1: 1}, "Old": {2: 7}}


def test_a_deletion_is_forgotten_once_retention_has_taken_what_it_hides(member: Member) -> None:
    member.put(0, 15)
    below = member.delete()
    member.meta.forget_hidden(below - 1)
    assert member.meta.confirmed.hidden == {"Orders": below}
    member.meta.forget_hidden(below)
    assert member.meta.confirmed.hidden == {}


def damage(store: MessageStore, number: int) -> bytes:
    """The head of that record is zeros on the disk; answers what it was."""
    at, size, _ = store.queues.find("Orders", 0).entry(number)  # type: ignore[union-attr]
    with open(store.log.path(at), "r+b") as segment:
        segment.seek(at % SEGMENT)
        was = segment.read(size)
        segment.seek(at % SEGMENT)
        segment.write(bytes(20))
    return was


@pytest.mark.parametrize("number", [0, 3])
def test_a_start_that_files_all_again_opens_a_log_with_damage(member: Member, number: int) -> None:
    member.put(0, 250)
    filed(member.store, NOW)
    at = member.store.queues.find("Orders", 0).entry(number)[0]  # type: ignore[union-attr]
    lost = damage(member.store, number)
    member.store.close(clean=False)
    path = member.store.points_file.path
    path.write_text(json.dumps({**json.loads(path.read_text()), "of a later version": 1}))
    shutil.rmtree(member.path / "consumequeue")
    member.start()
    assert member.store.damage is None
    assert member.shown() == [n for n in range(247) if n != number]
    assert member.one("Orders") == 247
    member.confirm()
    assert member.store.max_offset("Orders", 0) == 248
    for written in (False, True):
        if written:
            filed(member.store, NOW + 2_000)
        member.store.mend(at, lost)
        assert member.shown() == list(range(248))
    member.again()
    member.confirm()
    assert member.shown() == list(range(248))


def test_an_interrupted_start_that_files_all_anew_leaves_all_of_it_to_the_next(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which does not walk over all of the log for that, and so cuts it at no damage that was not there for a reader."""
    member.put(0, 250)
    filed(member.store, NOW)
    lost = damage(member.store, 3)
    end = member.store.end
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
        assert (member.store.end, member.store.damage) == (end, None)
        assert member.shown() == [n for n in range(247) if n != 3]
        assert not member.store.points.refiling
        member.store.close()
    member.start()
    at = member.store.get("Orders", 0, 2, 1, 10**6)
    member.store.mend(decode_records(at.data)[0].phys_offset + len(at.data), lost)
    assert member.shown() == list(range(247))


@pytest.mark.parametrize("number", [3, 246])
def test_what_a_start_could_not_read_for_a_moment_is_filed_soon(
    member: Member, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Nobody would mend it, since it is sound."""
    member.put(0, 250)
    filed(member.store, NOW)
    at, size, _ = member.store.queues.find("Orders", 0).entry(number)  # type: ignore[union-attr]
    member.store.close()
    shutil.rmtree(member.path / "consumequeue")
    real = CommitLog.read

    def read(log: CommitLog, offset: int, count: int) -> bytes:
        if offset < at + size and at < offset + count:
            raise OSError(errno.EIO, "Input/output error")
        return real(log, offset, count)

    told: list[int] = []
    with monkeypatch.context() as broken:
        broken.setattr(CommitLog, "read", read)
        member.start()
        member.store.on_damage = told.append
        member.store.upkeep(NOW + 2_000)
    assert number not in member.shown()
    assert set(told) == {at}
    for n in range(len(member.store.unfiled) + 1):
        member.store.upkeep(NOW + 4_000 + 2_000 * n)
    assert member.shown() == list(range(247))
    assert member.one("Orders") == 247
    member.store.upkeep(NOW + 10_000)
    member.again()
    member.confirm()
    assert member.shown() == list(range(248))


def test_a_mended_record_is_filed_also_where_its_blank_is_written(member: Member) -> None:
    member.put(0, 250)
    filed(member.store, NOW)
    lost = damage(member.store, 3)
    member.store.close()
    shutil.rmtree(member.path / "consumequeue")
    member.start()
    filed(member.store, NOW)
    assert member.shown() == [n for n in range(247) if n != 3]
    at = member.store.get("Orders", 0, 2, 1, 10**6)
    member.store.mend(decode_records(at.data)[0].phys_offset + len(at.data), lost)
    member.again()
    assert member.shown() == list(range(247))


def test_a_mended_record_of_a_deleted_topic_stays_deleted(member: Member) -> None:
    """Its blank had the place of a record after the deletion, which had come under the same name."""
    member.put(0, 15)
    number = len(member.shown()) - 1
    lost = damage(member.store, number)
    at = member.store.queues.find("Orders", 0).entry(number)[0]  # type: ignore[union-attr]
    member.delete()
    member.put(15, 15)
    filed(member.store, NOW)
    before = member.shown()
    member.store.close()
    shutil.rmtree(member.path / "consumequeue")
    member.start()
    assert member.shown() == before
    member.store.mend(at, lost)
    for killed in (False, True):
        if killed:
            member.store.upkeep(NOW + 2_000)
            member.again()
        assert member.shown() == before
        assert member.store.min_offset("Orders", 0) == number + 1


def test_a_store_of_rocketmq_is_opened_with_the_queues_that_it_has(member: Member) -> None:
    """Some are not by topic: its own brokers file a message in others, too."""
    member.put(0, 250)
    member.store.close()
    for name in ("epochs.json", "storePoint.json"):
        (member.path / "config" / name).unlink()
    os.rename(member.path / "consumequeue" / "Seldom", member.path / "consumequeue" / "%LMQ%x")
    member.start()
    assert member.store.max_offset("%LMQ%x", 0) == 3
    assert len(member.shown()) == 247


@pytest.mark.parametrize("what", ["deletion", "end"])
def test_a_power_loss_brings_neither_deleted_messages_nor_numbers_back(
    quick_dir: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Whether the tables were saved or not."""
    disk = Disk(quick_dir / "store", monkeypatch)
    member = Member(quick_dir / "store")
    member.put(0, 15)
    filed(member.store, NOW)
    if what == "deletion":
        member.delete()
    else:
        member.change(ends={"Old": {"0": 57}})
        member.confirm()
    member.store.mark_flushed(member.store.flush())
    state: Callable[[], Any] = lambda: (member.shown(), member.store.next_offset("Old", 0))  # noqa: E731
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


def test_a_search_by_time_is_not_led_astray_by_a_record_that_could_not_be_filed(member: Member) -> None:
    for n in range(11):
        member.store.put([Put("Orders", 0, 0, 0, 1, HOST, b"%d" % n, b"")], 1_000 + n)
    member.confirm()
    filed(member.store, NOW)
    damage(member.store, 5)
    member.store.close()
    shutil.rmtree(member.path / "consumequeue")
    member.start()
    found = [member.store.offset_at_time("Orders", 0, 1_000 + n) for n in range(11)]
    assert found == [0, 1, 2, 3, 4, 5, 5, 7, 8, 9, 10]


def test_a_search_by_time_that_meets_a_bad_sector_has_it_mended(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    member.put(0, 15)
    told: list[int] = []
    member.store.on_damage = told.append

    def read(log: CommitLog, offset: int, size: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(CommitLog, "read", read)
        with pytest.raises(OSError, match="Input/output error"):
            member.store.offset_at_time("Orders", 0, 1)
    assert len(told) == 1
