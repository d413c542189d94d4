"""A new member takes old records from the archive, and only the rest from its leader."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.broker.process import BrokerProcess
from gantry_broker.config import ArchiveConfig
from gantry_broker.contracts.leadership import Assignment, LeadershipRecord
from gantry_broker.store.types import Put

from tests.archive.test_broker import config, lead, until
from tests.support.free_ports import free_port
from tests.support.present import present

MESSAGES = 4_000
SEGMENT = 1 << 20


def member(folder: Path, number: int, **more: Any) -> BrokerProcess:
    port = free_port()
    archive = ArchiveConfig(url=f"file://{folder}/store", uid="u-1", interval_s=1)
    return BrokerProcess(
        config(
            folder, "shop", member=number, data_dir=folder / f"m{number}", archive=archive, replication_port=port,
            replication_address=f"127.0.0.1:{port}", **more,
        )
    )  # fmt: skip


async def filled(first: BrokerProcess, *, archives: bool = True) -> None:
    """Let the first member lead a log that is archived."""
    await lead(first)
    host = b"\x7f\0\0\1\0\0\0\1"
    for number in range(0, MESSAGES, 100):
        some = [Put("Orders", 0, 0, 0, 1, host, b"%d " % n + bytes(2_000), b"") for n in range(number, number + 100)]
        first.broker.writer.append(some)
        first.broker.writer.appended(None)
    state = first.store.state
    await until(lambda: state.confirmed == first.store.log.end)

    def archived() -> bool:
        found = first.broker.archiving.state
        return found is not None and found.end >= state.confirmed

    if archives:
        await until(archived)


async def follow(first: BrokerProcess, second: BrokerProcess) -> None:
    """Let the second member follow the first one until it has all."""
    replication = first.broker.replication
    record = LeadershipRecord(replication.epoch, 2, replication.me, frozenset({replication.me}))
    for process in (first, second):
        await process.broker.replication.assign(Assignment(record, first.config.replication_address))
    await until(lambda: second.store.state.confirmed == first.store.log.end)


def equal(first: BrokerProcess, second: BrokerProcess) -> None:
    assert second.store.log.end == first.store.log.end
    assert second.store.epoch_cache.epochs == first.store.epoch_cache.epochs
    for at in range(0, first.store.log.end, SEGMENT):
        size = min(SEGMENT, first.store.log.end - at)
        assert second.store.log.read(at, size) == first.store.log.read(at, size)
    assert second.store.reader.max_offset("Orders", 0) == MESSAGES


@pytest.mark.timeout(120)
async def test_a_new_member_takes_old_records_from_the_archive(tmp_path: Path) -> None:
    first, second = member(tmp_path, 0), member(tmp_path, 1)
    async with first, second:
        await filled(first)
        await follow(first, second)
        equal(first, second)
        # The first answers of the leader come while the manifest is read; later ones are small and keep the link.
        assert second.broker.archive_fill.bytes > 2 * SEGMENT
        assert second.broker.archive_fill.error == ""


@pytest.mark.timeout(120)
async def test_the_archive_of_another_log_leaves_it_to_the_leader(tmp_path: Path) -> None:
    """All disks of the group were lost, and it began once more: with the same epoch, and longer than its archive."""
    lost = member(tmp_path / "lost", 0)
    async with lost:
        await filled(lost)
    shutil.move(tmp_path / "lost" / "store", tmp_path / "store")
    first, second = member(tmp_path, 0), member(tmp_path, 1)
    async with first, second:
        await filled(first, archives=False)
        assert first.store.epoch_cache.epochs == lost.store.epoch_cache.epochs
        await follow(first, second)
        equal(first, second)
        assert second.broker.archive_fill.bytes == 0
        assert second.broker.archive_fill.error == "it has another log than the leader"
        assert "another log than the disks" in present(first.broker.archiving.report).error


@pytest.mark.timeout(120)
async def test_a_damaged_archive_leaves_it_to_the_leader(tmp_path: Path) -> None:
    first, second = member(tmp_path, 0), member(tmp_path, 1)
    async with first, second:
        await filled(first)
        for path in (tmp_path / "store" / "groups" / "a" / "parts").iterdir():
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
        await follow(first, second)
        equal(first, second)
        assert second.broker.archive_fill.bytes == 0
        assert "does not match the SHA-256" in second.broker.archive_fill.error
