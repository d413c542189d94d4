"""The segments that a restore writes, whatever the archive's objects span and however long the disk takes."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest
from gantry_broker.archive.chain import Archive
from gantry_broker.archive.errors import Missing
from gantry_broker.archive.inspection import prune
from gantry_broker.archive.objects import Location, ObjectStore
from gantry_broker.archive.restore import Target, _LogFiles, restore

from tests.archive.test_topic_restore import Log

SEGMENT = 64
NAMES = [f"{base:020d}" for base in range(0, 5 * SEGMENT, SEGMENT)]


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite

    def late(descriptor: int, data: bytes, place: int) -> int:
        time.sleep(0.02)
        return pwrite(descriptor, data, place)

    monkeypatch.setattr(os, "pwrite", late)


@pytest.mark.usefixtures("slow_disk")
def test_a_block_that_spans_segments_is_written_whole(tmp_path: Path) -> None:
    """Objects of ours lie in one segment each, but those in a bucket may be anybody's."""
    data = bytes(number % 251 for number in range(5 * SEGMENT))
    done: list[str] = []
    with _LogFiles(tmp_path, SEGMENT) as files:
        files.write(0, data)
        files.flush(lambda: done.append("".join(sorted(os.listdir(tmp_path)))))
        assert files.flushed()
    assert done == ["".join(NAMES)], "the mark comes behind all of it"
    assert b"".join((tmp_path / name).read_bytes() for name in NAMES) == data


@pytest.mark.usefixtures("slow_disk")
def test_a_part_is_written_while_the_one_before_is_flushed(tmp_path: Path) -> None:
    with _LogFiles(tmp_path, SEGMENT) as files:
        for at in range(0, 5 * SEGMENT, 16):
            files.write(at, bytes([at // 16]) * 16)
            files.flushed()
            files.flush(lambda: None)
        assert files.flushed()
    written = b"".join((tmp_path / name).read_bytes() for name in NAMES)
    assert written == b"".join(bytes([number]) * 16 for number in range(20))


def test_a_write_that_fails_leaves_no_mark_and_no_open_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: bytes, place: int) -> int:
        time.sleep(0.02)
        os.fstat(descriptor)  # OSError of its own, if it was closed before.
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd") else []
    monkeypatch.setattr(os, "pwrite", full)
    done: list[str] = []
    with pytest.raises(OSError, match="No space left"):
        write_and_flush(tmp_path, done)
    assert done == []
    if before:
        assert len(os.listdir("/proc/self/fd")) == len(before)


def write_and_flush(folder: Path, done: list[str]) -> None:
    with _LogFiles(folder, SEGMENT) as files:
        files.write(0, bytes(3 * SEGMENT))
        files.flush(lambda: done.append("mark"))
        files.flushed()


def test_a_restore_goes_on_after_retention_removed_what_it_needs(tmp_path: Path) -> None:
    """docs/archive.md says so."""
    log = Log(tmp_path / "log")
    log.archive = log.archiver._archive = Archive(ObjectStore(Location((tmp_path / "bucket").as_uri())))
    group = log.archiver._group = log.archive.group("a")
    for _ in range(6):
        log.put("T", 0, 100)
        log.upload()
    state, folder = group.load(), tmp_path / "restored"

    def retain(fetched: int) -> None:
        if fetched > state.parts[0].size:
            prune(log.archive, group, group.load(), 0, 1 << 50)

    with pytest.raises(Missing, match="there is no such object"):
        restore(group, state, Target(), folder, progress=retain)
    left = group.load()
    assert state.start < left.start
    assert restore(group, left, Target(), folder) == left.end == log.store.log.end
    [name] = os.listdir(folder / "commitlog")
    assert int(name) == left.start
    [(_, data)] = log.store.log.chunks(left.start, left.end)
    assert (folder / "commitlog" / name).read_bytes()[: len(data)] == data
