"""A backlog leaves in few entries, with bounded memory, and in order; what cannot be in one object is said."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.archive import archiver as archiving
from gantry_broker.archive.archiver import Archiver
from gantry_broker.archive.chain import Archive, GroupArchive
from gantry_broker.archive.errors import Damaged, Unavailable
from gantry_broker.archive.inspection import verify
from gantry_broker.archive.segment import MAX_HOLE, SegmentWriter
from gantry_broker.archive.upload import Settings, View
from gantry_broker.broker.archiving import PARTS
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import Put, StoreConfig

from tests.archive.memory_objects import MemoryObjects

SEGMENT = 65_536
HOST = b"\x7f\0\0\1\0\0\0\1"
SETTINGS = BrokerSettings(mappedFileSizeCommitLog=SEGMENT, maxHashSlotNum=100, maxIndexNum=400)


class Backlog:
    """A log of some segments, and the archiver of its group."""

    def __init__(self, folder: Path, segments: int, part: int = 20_000) -> None:
        self.store = MessageStore.open(StoreConfig(folder / "m", SETTINGS))
        self.store.appender.begin_epoch(1, b'{"kind":"epoch"}', 1)
        number = 0
        while self.store.log.end < segments * SEGMENT:
            number += 1
            self.store.appender.put([Put("T", number % 2, 0, 0, 1, HOST, bytes(1_000), b"KEYS\x01k%d\x02" % number)], 1)
            self.store.indexer.confirm(self.store.log.end)
        self.archive = Archive(MemoryObjects(1))
        self.settings = Settings(0, None, part)
        self.archiver = Archiver(
            self.archive, group="a", uid="u", cluster="c", log_dir=folder / "m" / "commitlog", view=lambda: None,
            turn=lambda: True, settings=lambda: self.settings, delays=(1_000,),
        )  # fmt: skip

    @property
    def view(self) -> View:
        store = self.store
        return View(store.log.start, store.state.confirmed, SEGMENT, store.epoch_cache.epochs)

    def step(self) -> bool:
        return self.archiver._step(self.view, self.settings, True)


def test_one_entry_takes_parts_of_several_segments(tmp_path: Path) -> None:
    backlog = Backlog(tmp_path, 20)
    assert backlog.step(), "it begins"
    assert backlog.step()
    state = backlog.archive.group("a").load()
    assert (state.n, len(state.parts)) == (2, archiving.PARTS_AT_ONCE)
    assert state.end == archiving.PARTS_AT_ONCE * SEGMENT, "a block has more than a segment here"
    while backlog.step():
        pass
    state = backlog.archive.group("a").load()
    assert state.end == backlog.store.state.confirmed
    assert verify(backlog.archive.group("a"), state).faults == ()
    assert all(p.start // SEGMENT == (p.end - 1) // SEGMENT for p in state.parts), "no part spans two segments"


def test_parts_behind_one_that_failed_are_not_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backlog = Backlog(tmp_path, 3)
    assert backlog.step()
    put = GroupArchive.put_part
    sent: list[int] = []

    def third_fails(self: GroupArchive, data: bytes, directory: Any, epoch: int) -> Any:
        sent.append(directory.start)
        if len([s for s in sent if s <= directory.start]) == 3 and len(sent) >= 3:
            raise Unavailable("the store is away")
        return put(self, data, directory, epoch)

    monkeypatch.setattr(GroupArchive, "put_part", third_fails)
    monkeypatch.setattr(archiving, "SENDING", 1)
    with pytest.raises(Unavailable):
        backlog.step()
    state = backlog.archive.group("a").load()
    assert len(state.parts) == 2
    assert len(sent) < archiving.PARTS_AT_ONCE
    monkeypatch.setattr(GroupArchive, "put_part", put)
    while backlog.step():
        pass
    state = backlog.archive.group("a").load()
    assert state.end == backlog.store.state.confirmed
    assert not state.gaps
    assert verify(backlog.archive.group("a"), state).faults == ()


def test_few_parts_are_sent_at_once_within_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backlog = Backlog(tmp_path, 5)
    put, lock = GroupArchive.put_part, threading.Lock()
    now = most = 0
    together = threading.Event()

    def counted(self: GroupArchive, data: bytes, directory: Any, epoch: int) -> Any:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
            if now == archiving.SENDING:
                together.set()
        together.wait(5)
        try:
            return put(self, data, directory, epoch)
        finally:
            with lock:
                now -= 1

    monkeypatch.setattr(GroupArchive, "put_part", counted)
    while backlog.step():
        pass
    assert most == archiving.SENDING


def records(numbers: list[int], folder: Path) -> bytes:
    """Records of one queue with these queue offsets, as the log has them from offset 0 on."""
    store = MessageStore.open(StoreConfig(folder, SETTINGS))
    store.appender.put([Put("T", 0, 0, 0, 1, HOST, b"body", b"") for _ in numbers], 1)
    data = bytearray(store.log.read_raw(0, store.log.end))
    size = len(data) // len(numbers)
    for at, number in enumerate(numbers):
        data[at * size + 20 : at * size + 28] = number.to_bytes(8)
    store.close()
    return bytes(data)


def test_a_read_that_ends_within_a_record_adds_the_whole_ones(tmp_path: Path) -> None:
    data = records([5, 6, 7], tmp_path)
    size = len(data) // 3
    writer = SegmentWriter(0, SEGMENT, ())
    assert [writer.add_whole(data[:cut]) for cut in (0, 4, size - 1)] == [0, 0, 0]
    assert writer.add_whole(data[: 2 * size + 5]) == 2 * size
    with pytest.raises(Damaged, match="end within a record"):
        writer.add(data[2 * size : -1])
    writer.add(data[2 * size :])
    _, directory = writer.finish()
    assert (directory.records, directory.end, directory.queues["T", 0].length) == (3, 3 * size, 3)


def test_a_queue_offset_far_behind_the_one_before_is_refused(tmp_path: Path) -> None:
    """The rows between would fill the memory."""
    writer = SegmentWriter(0, SEGMENT, ())
    with pytest.raises(Damaged, match=f"queue 0 of topic T goes from 6 to {7 + MAX_HOLE}"):
        writer.add(records([5, 7 + MAX_HOLE], tmp_path / "far"))
    writer.add(records([5, 1_000], tmp_path / "near"))
    assert writer.finish()[1].queues["T", 0].length == 996


def test_a_part_is_sent_while_the_next_one_is_made_without_compression() -> None:
    """A part takes its bytes twice while it is put together: of larger ones none would be sent meanwhile."""
    assert 4 * PARTS["None"] <= archiving.MEMORY
