"""The file registry: compare-and-swap of whole leadership records by several processes."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
from pathlib import Path

import pytest
from gantry_broker.contracts.leadership import LeadershipRecord, MemberId
from gantry_operator.registry.base import Entry, RegistryUnavailable
from gantry_operator.registry.file import FileRegistry

from tests.support.failing_calls import raising
from tests.support.present import present

A = MemberId(0, "x")
LEADERSHIP = LeadershipRecord(1, 1, A, frozenset({A, MemberId(1, "y")}))


async def test_a_leadership_record_is_written_once_and_read_back(tmp_path: Path) -> None:
    registry = FileRegistry(tmp_path / "registry")
    assert await registry.read("a") is None
    assert await registry.swap("a", None, LEADERSHIP)
    assert not await registry.swap("a", None, LEADERSHIP.touched())
    assert present(await registry.read("a")).leadership == LEADERSHIP
    assert await registry.read("b") is None


async def test_rule_13_the_whole_leadership_record_is_compared(tmp_path: Path) -> None:
    registry = FileRegistry(tmp_path)
    assert await registry.swap("a", None, LEADERSHIP)
    read = present(await registry.read("a"))
    shrunk = LEADERSHIP.with_set({A})
    assert await registry.swap("a", read, shrunk)
    assert not await registry.swap("a", read, LEADERSHIP.promoted(A, {A})), (
        "same epoch, other set: a member was removed"
    )
    assert present(await registry.read("a")).leadership == shrunk


async def test_a_damaged_file_is_no_missing_leadership_record(tmp_path: Path) -> None:
    """Rule 22: an unreadable leadership record is never replaced by a guess."""
    (tmp_path / "a.json").write_text('{"epoch": 3')
    with pytest.raises(RegistryUnavailable, match="move it away"):
        await FileRegistry(tmp_path).read("a")


async def test_a_record_that_is_not_on_disk_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a new leader could acknowledge under a record that a power loss reverts, and the old leader would
    follow it.
    """
    registry = FileRegistry(tmp_path)
    assert await registry.swap("a", None, LEADERSHIP)
    read = await registry.read("a")
    with monkeypatch.context() as broken:
        broken.setattr("gantry_operator.registry.file.sync_folder", raising(OSError(errno.EIO, os.strerror(errno.EIO))))
        for attempt in (registry.swap("a", read, LEADERSHIP.touched()), registry.read("a")):
            with pytest.raises(RegistryUnavailable, match="Input/output error"):
                await attempt
    assert present(await registry.read("a")).leadership == LEADERSHIP.touched()


async def test_a_folder_that_cannot_be_made_is_a_registry_that_does_not_answer(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RegistryUnavailable, match="Not a directory"):
        await FileRegistry(tmp_path / "file" / "registry").swap("a", None, LEADERSHIP)


def _count_up(folder: Path, times: int) -> None:
    registry = FileRegistry(folder)
    done = 0
    while done < times:
        entry = present(registry.read_now("a"))
        done += registry.swap_now("a", entry, entry.leadership.touched())


def test_swaps_of_several_processes_are_never_lost(tmp_path: Path) -> None:
    registry = FileRegistry(tmp_path)
    assert registry.swap_now("a", None, LEADERSHIP)
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_count_up, args=(tmp_path, 25)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
        assert worker.exitcode == 0
    entry = registry.read_now("a")
    assert isinstance(entry, Entry)
    assert entry.leadership.version == LEADERSHIP.version + 75
    assert json.loads(entry.token)["epoch"] == 1
