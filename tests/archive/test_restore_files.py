"""The segments that a restore writes, whatever the archive's objects span and however long the disk takes."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest
from gantry_broker.archive.restore import _LogFiles

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
