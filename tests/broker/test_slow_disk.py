"""A disk that holds system calls does not hold the event loop: a master whose loop stands still is replaced."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from gantry_broker import loglevel
from gantry_broker.broker.disk_watch import MAX_AGE_S, DiskWatch
from gantry_broker.broker.handlers.admin import runtime_info
from gantry_broker.broker.process import BrokerProcess
from gantry_broker.broker.status import member_status
from gantry_broker.config import BrokerConfig
from gantry_broker.contracts.leadership import Assignment, LeadershipRecord
from gantry_broker.protocol.frame import Frame
from gantry_broker.proxy.credentials import FileCredentials
from gantry_broker.remoting.handshake import Identity
from gantry_broker.remoting.members import Membership
from gantry_broker.store.errors import StoreFull
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import DiskUsage, Put, StoreConfig

from tests.support.free_ports import free_ports
from tests.support.slow_disk import SlowDisk

SEGMENT = 1 << 16
HOST = b"\x7f\0\0\x01\0\0\x2a\xaf"
LONG_AGO_MS = 1_600_000_000_000


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[BrokerProcess]:
    port, http_port, group_port = free_ports(3)
    config = BrokerConfig.model_validate(
        {"cluster": "test", "group": "a", "member": 0, "name": "a-0", "data_dir": tmp_path / "a",
         "listen_host": "127.0.0.1", "port": port, "http_port": http_port, "group_port": group_port,
         "member_address": f"127.0.0.1:{port}", "group_address": f"127.0.0.1:{group_port}",
         "settings": {"mappedFileSizeCommitLog": SEGMENT, "mappedFileSizeConsumeQueue": 2_000, "maxHashSlotNum": 100,
                      "maxIndexNum": 400, "deleteWhen": ";".join(f"{hour:02}" for hour in range(24))}}
    )  # fmt: skip
    async with BrokerProcess(config) as made:
        me = made.broker.replication.me
        await made.broker.replication.assign(Assignment(LeadershipRecord().promoted(me, [me]), config.member_address))
        yield made


async def _fill(process: BrokerProcess) -> None:
    """Several segments of expired messages, with all that retention waits for."""
    store = process.store
    for number in range(1_000):
        store.appender.put([Put("T", 0, 0, 0, 1, HOST, b"x" * 900, b"", keys=(f"k{number}",))], LONG_AGO_MS)
        if number % 50 == 49:
            await asyncio.sleep(0)
    process.broker.writer.appended(None)
    async with asyncio.timeout(20):
        while store.state.confirmed < store.log.end:  # noqa: ASYNC110 (the flush says it)
            await asyncio.sleep(0.01)
        store.checkpointer.run_periodic_tasks(time.time_ns() // 1_000_000)
        while store.state.ends_offset < store.log.end:
            await process.broker.replication._commit.checkpoint()
            store.checkpointer.run_periodic_tasks(time.time_ns() // 1_000_000)
            await asyncio.sleep(0.05)


def _files(process: BrokerProcess, folder: str) -> list[str]:
    return sorted(os.listdir(process.config.data_dir / folder))


async def test_a_broker_goes_on_while_the_disk_holds_its_calls(
    process: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = process.broker
    await _fill(process)
    before = _files(process, "commitlog"), _files(process, "consumequeue/T/0"), _files(process, "index")
    level = tmp_path / "a" / "config.json"
    level.write_text(json.dumps({"log_level": "INFO"}))
    following = asyncio.create_task(loglevel.follow(level, 0.01))
    disk = SlowDisk(monkeypatch.setattr, tmp_path)
    disk.hangs()
    try:
        broker.disk.refresh()
        async with asyncio.timeout(20):
            while broker.retention.expire():  # noqa: ASYNC110 (its steps are its own)
                await asyncio.sleep(0)
        assert broker.store.log.start > 0, "what has expired is no longer readable"
        assert await disk.passes_while_held("statvfs", "stat") == 50
        assert broker.health.disk_full is False
        broker.health.store_failed(StoreFull("full"))
        broker.health._check_room()
        assert (await asyncio.to_thread(lambda: member_status(broker, 0))).disk is not None
        runtime_info(broker, None, Frame(28))  # type: ignore[arg-type]
        async with httpx.AsyncClient() as client:
            address = f"http://127.0.0.1:{process.parts.http.port}"
            for page in ("/v1/status", "/metrics", "/livez"):
                assert (await client.get(address + page, timeout=20)).status_code == 200
        assert not disk.on_the_loop, disk.on_the_loop[0]
        held = set(disk.held)
    finally:
        following.cancel()
        disk.answers()
    async with asyncio.timeout(20):
        while broker.store.removals.ended == float("inf"):  # noqa: ASYNC110 (the thread says it)
            await asyncio.sleep(0.01)
    assert held >= {"statvfs", "stat"}
    after = _files(process, "commitlog"), _files(process, "consumequeue/T/0"), _files(process, "index")
    assert after[0][0] == f"{broker.store.log.start:020d}"
    assert all(set(new) < set(old) for new, old in zip(after, before, strict=True)), (before, after)


async def test_a_broker_goes_on_while_the_disk_holds_an_unlink(
    process: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = process.broker
    await _fill(process)
    disk = SlowDisk(monkeypatch.setattr, tmp_path, ("unlink",))
    forgotten: list[int] = []
    monkeypatch.setattr(broker.meta, "forget_deletions", forgotten.append)
    removed = broker.store.log.start  # The member's own retention may have begun.
    disk.hangs()
    try:
        while broker.retention.expire():  # noqa: ASYNC110 (its steps are its own)
            await asyncio.sleep(0)
        assert await disk.passes_while_held("unlink") == 50
        assert broker.store.log.start > removed
        assert broker.disk.since(broker.store.removals.ended) is None, "files that still wait count as used"
        assert max(forgotten) <= removed, (
            "a start after a crash finds the records again, and must know what was deleted"
        )
        assert not disk.on_the_loop, disk.on_the_loop[0]
    finally:
        disk.answers()
    async with asyncio.timeout(20):
        while broker.store.removals.ended == float("inf"):  # noqa: ASYNC110 (the thread says it)
            await asyncio.sleep(0.01)
    removed = broker.store.log.start
    broker.retention.expire()
    assert forgotten[-1] >= removed > 0


async def test_a_usage_that_is_old_or_refused_is_not_known(
    process: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker = process.broker
    now = [100.0]
    given: list[Any] = [DiskUsage(1_000, 100, 0.9), OSError(errno.EIO, "Input/output error")]

    def disk() -> DiskUsage:
        found = given.pop(0)
        if isinstance(found, OSError):
            raise found
        assert isinstance(found, DiskUsage)
        return found

    monkeypatch.setattr(broker.store.retention, "disk", disk)
    monkeypatch.setattr(broker.store, "in_background", lambda work: work())
    watch = DiskWatch(broker.store, lambda: now[0])
    assert watch.usage is None, "no look has ended yet"
    watch.refresh()
    assert watch.usage == DiskUsage(1_000, 100, 0.9)
    assert watch.since(100.1) is None
    now[0] += MAX_AGE_S + 0.1
    assert watch.usage is None
    with caplog.at_level(logging.WARNING):
        watch.refresh()
    assert watch.usage is None
    assert "usage counts as not known" in caplog.text
    monkeypatch.setattr(broker.disk, "_last", watch._last)
    status = member_status(broker, 0).disk
    assert status is not None
    assert (status.total_bytes, status.free_bytes, status.full) == (0, 0, False)
    info = json.loads(runtime_info(broker, None, Frame(28)).body)["table"]  # type: ignore[arg-type]
    assert (info["commitLogDiskRatio"], info["commitLogDirCapacity"]) == ("-1", "not known")
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"http://127.0.0.1:{process.parts.http.port}/metrics")).text
    assert "\ngantry_disk_free_bytes{" not in text
    assert "\ngantry_disk_full{" in text


def test_a_truncation_waits_for_files_that_are_being_removed(tmp_path: Path) -> None:
    """Otherwise it would take a file for the queue's first one, and the thread would remove that file."""
    store = MessageStore.open(StoreConfig(tmp_path / "s"))
    waiting: list[Any] = []
    store.set_background_writer(waiting.append)
    store.removals.add([str(tmp_path / "s" / "commitlog" / "old")])
    (tmp_path / "s" / "commitlog" / "old").touch()
    store.appender.begin_epoch(1, b"", 1)
    store.truncator.truncate(0)
    assert not (tmp_path / "s" / "commitlog" / "old").exists()
    (tmp_path / "s" / "commitlog" / "old").touch()
    for work in waiting:
        work()
    assert (tmp_path / "s" / "commitlog" / "old").exists(), "a new file of that name stays"
    store.close()


def test_a_file_that_cannot_be_removed_keeps_those_behind_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start must find a log without gaps. The next call tries again."""
    store = MessageStore.open(StoreConfig(tmp_path / "s"))
    names = [tmp_path / "s" / f"{number}" for number in range(3)]
    for name in names:
        name.touch()
    real = os.unlink

    def unlink(path: Any, **named: Any) -> None:
        if str(path) == str(names[1]):
            raise OSError(errno.EIO, "Input/output error")
        real(path, **named)

    monkeypatch.setattr(os, "unlink", unlink)
    store.removals.add([str(name) for name in names])
    assert [name.exists() for name in names] == [False, True, True]
    assert store.removals.ended == float("inf")
    monkeypatch.setattr(os, "unlink", real)
    store.retention.expire(1)
    assert not any(name.exists() for name in names)
    assert store.removals.ended <= time.monotonic()
    store.close()


async def test_a_handshake_and_a_signature_read_their_files_off_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For all processes: the token of members and the NameServer, and the proxy's own key."""
    token, key = tmp_path / "token", tmp_path / "key"
    token.write_text("secret")
    key.write_text("own-secret")
    credentials = FileCredentials("proxy", key)
    monkeypatch.setattr("gantry_broker.watching.CHECK_S", 0.01)
    credentials.start()
    opened: list[bool] = []
    loop_thread = asyncio.get_running_loop()
    real = open

    def slow(path: Any, *args: Any, **named: Any) -> Any:
        try:
            opened.append(asyncio.get_running_loop() is loop_thread)
        except RuntimeError:
            opened.append(False)
        return real(path, *args, **named)

    monkeypatch.setattr("gantry_broker.contracts.token_file.open", slow, raising=False)
    disk = SlowDisk(monkeypatch.setattr, tmp_path)
    disk.hangs()
    try:
        credentials.sign(Frame(10))
        assert await disk.passes_while_held("stat") == 50
        assert not disk.on_the_loop, disk.on_the_loop[0]
    finally:
        disk.answers()
        await credentials.close()
    membership = Membership(Identity("c", "g", 1), token)
    await membership.look()
    assert membership.token() == b"secret"
    assert opened == [False]
