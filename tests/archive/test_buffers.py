"""Blocks of the log are read into the same few buffers, and what is archived is none the worse for it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from gantry_broker.archive import archiver as archiving
from gantry_broker.archive.buffers import Buffers
from gantry_broker.archive.inspection import verify
from gantry_broker.archive.segment import BLOCK, BLOCKS_AHEAD
from gantry_broker.archive.upload import Settings
from gantry_broker.store.types import Put

from tests.archive.test_topic_restore import HOST, Log


def test_a_buffer_is_used_again_and_no_other_while_it_is_taken() -> None:
    buffers = Buffers(8)
    first, second = buffers.take(), buffers.take()
    first[:], second[:] = b"1" * 8, b"2" * 8
    assert bytes(first) == b"1" * 8
    buffers.give(first)
    assert buffers.take() is first


def test_an_upload_takes_few_buffers_and_archives_what_the_log_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Buffers] = []

    class Counted(Buffers):
        count = 0

        def __init__(self, size: int) -> None:
            super().__init__(size)
            made.append(self)

        def take(self) -> memoryview:
            self.count += not self._free
            return super().take()

    monkeypatch.setattr(archiving, "Buffers", Counted)
    log, rng = Log(tmp_path, segment=64 << 20), random.Random(1)
    log.settings = Settings(0)
    for _ in range(12):  # Bodies that do not compress, so that blocks wait for the threads; one is larger than a block.
        log.append([Put("T", n % 3, 0, 0, log.now, HOST, rng.randbytes(4_000), b"") for n in range(500)])
    log.append([Put("T", 0, 0, 0, log.now, HOST, rng.randbytes(3 << 20), b"")])
    log.upload()
    assert log.store.log.end > 20 * BLOCK
    group = log.archive.group("a")
    state = group.load()
    assert state.end == log.store.log.end
    assert verify(group, state).faults == ()
    archived = b"".join(
        data
        for part in state.parts
        for reader in [group.whole(part)]
        for _, data in archiving.read_range(reader, reader.directory(), part.start, part.end)
    )
    assert archived == b"".join(data for _, data in log.store.log.chunks(0, state.end))
    assert 0 < max(buffers.count for buffers in made) <= BLOCKS_AHEAD + 2  # type: ignore[attr-defined]
