"""A real broker with an archive in a folder, and another one that begins with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from gantry_broker.archive import upload
from gantry_broker.archive.chain import Archive
from gantry_broker.archive.objects import Location, ObjectStore
from gantry_broker.broker.process import BrokerProcess
from gantry_broker.broker.restoring import is_wanted, restore_first
from gantry_broker.config import ArchiveConfig, BrokerConfig, RestoreConfig
from gantry_broker.contracts.leadership import Assignment, LeadershipRecord
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.types import Put

from tests.support.free_ports import free_port
from tests.support.present import present

SETTINGS = BrokerSettings(mappedFileSizeCommitLog=1 << 20, mappedFileSizeConsumeQueue=20_000, maxHashSlotNum=100)


def config(folder: Path, name: str, **more: object) -> BrokerConfig:
    return BrokerConfig.model_validate(
        {
            "cluster": name,
            "group": "a",
            "member": 0,
            "name": f"{name}-a-0",
            "data_dir": folder / name,
            "listen_host": "127.0.0.1",
            "port": free_port(),
            "http_port": free_port(),
            "member_address": "127.0.0.1:1",
            "group_address": "127.0.0.1:1",
            "settings": SETTINGS,
            **more,
        }
    )


async def lead(process: BrokerProcess, *, may_append: bool = True, epoch: int = 0) -> None:
    replication = process.broker.replication
    me = replication.me
    epoch = epoch or (process.store.epoch_cache.epochs[-1].epoch + 1 if process.store.epoch_cache.epochs else 1)
    await replication.assign(Assignment(LeadershipRecord(epoch, 1, me, frozenset({me}))))
    assert replication.may_append
    assert process.broker.role.may_append is may_append


async def until(condition: Callable[[], bool], seconds: float = 90.0) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends
        await asyncio.sleep(0.02)


def put(process: BrokerProcess, number: int) -> None:
    host = b"\x7f\0\0\1\0\0\0\1"
    message = Put("Orders", 0, 0, 0, process.broker.clock.unix_ms(), host, b"body %d" % number, b"")
    process.broker.writer.append([message])
    process.broker.writer.appended(None)


async def test_a_broker_archives_and_another_begins_with_it(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    archive = ArchiveConfig(url=url, uid="u-1", interval_s=1)
    first = BrokerProcess(config(tmp_path, "shop", archive=archive))
    async with first:
        await lead(first)
        for number in range(50):
            put(first, number)
        await until(lambda: first.store.state.confirmed == first.store.log.end)
        end = first.store.log.end
        report = lambda: first.broker.archiving.report  # noqa: E731
        await until(lambda: (found := report()) is not None and found.known and found.end >= end)
        found = present(report())
        assert (found.error, found.gaps, found.uploads) == ("", 0, True)
    restored = config(tmp_path, "copy", restore=RestoreConfig(url=url, group="a", cluster="shop", offset=end))
    assert is_wanted(restored)
    await restore_first(restored)
    assert not is_wanted(restored)
    second = BrokerProcess(restored)
    async with second:
        assert second.store.log.end == end
        await lead(second)
        await until(lambda: second.store.state.confirmed == second.store.log.end)
        assert second.store.reader.max_offset("Orders", 0) == 50
        put(second, 50)
        await until(lambda: second.store.reader.max_offset("Orders", 0) == 51)


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ({"cluster": "other"}, "is the archive of cluster shop, not of other"),
        ({"group": "b"}, "has no group b; its groups: a"),
        ({"url": "file:///nonexistent-folder-of-gantry/x"}, "has no archive"),
    ],
)
async def test_a_restore_that_cannot_be_says_why(tmp_path: Path, wanted: dict[str, str], why: str) -> None:
    from gantry_broker.archive.errors import ArchiveError
    from gantry_broker.broker.restoring import Progress, fill

    store = ObjectStore(Location(f"file://{tmp_path}/store"))
    Archive(store).claim("u-1", "shop", 1)
    store.create("groups/a/manifest/000000000001.json", b"{}")
    source = RestoreConfig.model_validate({"url": f"file://{tmp_path}/store", "group": "a", **wanted})
    if wanted.get("url"):
        source = source.model_copy(update={"url": f"file://{tmp_path}/empty"})
    with pytest.raises(ArchiveError, match=why):
        fill(source, tmp_path / "new", Progress())
    assert not (tmp_path / "new" / "commitlog").exists()


async def test_another_cluster_cannot_archive_to_the_same_place(tmp_path: Path) -> None:
    archive = ArchiveConfig(url=f"file://{tmp_path}/store", uid="u-1", interval_s=1)
    Archive(ObjectStore(Location(archive.url))).claim("u-2", "staging", 1)
    process = BrokerProcess(config(tmp_path, "shop", archive=archive))
    async with process:
        await lead(process)
        report = lambda: process.broker.archiving.report  # noqa: E731
        await until(lambda: (found := report()) is not None and found.fenced != "")
        found = present(report())
        assert "belongs to cluster staging" in found.fenced
        put(process, 1)
        await until(lambda: process.store.state.confirmed == process.store.log.end)


async def test_retention_waits_for_the_archive_up_to_a_limit(tmp_path: Path) -> None:
    archive = ArchiveConfig(url=f"file://{tmp_path}/store", uid="u-1", interval_s=1, max_local_lag_bytes=100_000)
    process = BrokerProcess(config(tmp_path, "shop", archive=archive))
    archiving = process.broker.archiving
    await lead_without_start(process)
    assert archiving.needed_from() == 0
    while process.store.state.confirmed <= 100_000:
        process.store.appender.put([Put("Orders", 0, 0, 0, 1, b"\x7f\0\0\1\0\0\0\1", bytes(4_000), b"")], 1)
        process.store.indexer.confirm(process.store.log.end)
    assert archiving.needed_from() is None
    process.store.close()


async def lead_without_start(process: BrokerProcess) -> None:
    process.store.appender.begin_epoch(1, b"{}", 1)
    process.store.indexer.confirm(process.store.log.end)


async def test_retention_does_not_take_another_clusters_archive_for_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that does not upload reads the manifest only. Records in no archive would go from its disk."""
    url = f"file://{tmp_path}/store"
    other = BrokerProcess(config(tmp_path, "staging", archive=ArchiveConfig(url=url, uid="u-2", interval_s=1)))
    async with other:
        await lead(other)
        for number in range(100):
            put(other, number)
        await until(lambda: (found := other.broker.archiving.report) is not None and found.end > 10_000)
    monkeypatch.setattr(upload, "has_turn", lambda *_: False)
    process = BrokerProcess(config(tmp_path, "shop", archive=ArchiveConfig(url=url, uid="u-1", interval_s=1)))
    async with process:
        await lead(process)
        for number in range(10):
            put(process, number)
        await until(lambda: (found := process.broker.archiving.report) is not None and found.end > 10_000)
        assert process.broker.archiving.needed_from() == process.store.log.start == 0
