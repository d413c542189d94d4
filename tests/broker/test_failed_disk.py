"""A process ends after a failed write or flush, and the next one opens the store again."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from gantry_broker.broker import health
from gantry_broker.broker import process as main
from gantry_broker.broker.metadata import snapshots
from gantry_broker.config import BrokerConfig
from gantry_broker.contracts.leadership import Assignment, LeadershipRecord, MemberId
from gantry_broker.protocol.codes import RequestCode, ResponseCode
from gantry_broker.store.errors import FlushFailed, StoreFull
from gantry_broker.store.types import Put

from tests.support.failing_calls import raising
from tests.support.free_ports import free_ports
from tests.support.planted_syncs import plant_fdatasync
from tests.support.running import until

if TYPE_CHECKING:
    from tests.broker.conftest import Bench


class BadDisk:
    """Syncs of both ways of group commit, until the disk fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, part: str = "commitlog") -> None:
        self.failed = False
        self._part = part
        fsync = os.fsync

        def failing(fd: int) -> None:
            if self._fails(fd):
                raise OSError(errno.EIO, "Input/output error")
            fsync(fd)

        def begun(fd: int) -> Callable[[int], int]:
            fails = self._fails(fd)
            return lambda result: -errno.EIO if fails else result

        monkeypatch.setattr(os, "fsync", failing)
        plant_fdatasync(monkeypatch.setattr, begun)

    def _fails(self, fd: int) -> bool:
        return self.failed and self._part in os.readlink(f"/proc/self/fd/{fd}")


def _config(tmp_path: Path, **options: Any) -> BrokerConfig:
    port, http_port, group_port = free_ports(3)
    return BrokerConfig.model_validate(
        {"cluster": "test", "group": "a", "member": 0, "name": "a-0", "data_dir": tmp_path / "a",
         "listen_host": "127.0.0.1", "port": port, "http_port": http_port, "group_port": group_port,
         "member_address": f"127.0.0.1:{port}", "group_address": f"127.0.0.1:{group_port}", **options}
    )  # fmt: skip


def _put(body: bytes) -> Put:
    return Put("T", 0, 0, 0, time.time_ns() // 1_000_000, b"\x7f\0\0\x01\0\0\x2a\xaf", body, b"")


@pytest.mark.parametrize("part", ["commitlog", ""], ids=["of the log", "of any file"])
@pytest.mark.parametrize("flush", ["Sync", "Async"])
async def test_a_process_ends_and_the_next_one_knows_the_proof_of_the_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush: str, part: str, flushed_by: str
) -> None:
    """Also where no flush works any more: as long as the machine runs, what was written without one can be read."""
    disk = BadDisk(monkeypatch, part)
    made: list[main.BrokerProcess] = []

    class Watched(main.BrokerProcess):
        async def start(self) -> None:
            await super().start()
            made.append(self)
            started.set()

    monkeypatch.setattr(main, "BrokerProcess", Watched)
    config = _config(tmp_path, flush=flush)
    started = asyncio.Event()
    first = asyncio.create_task(main.run(config))
    async with asyncio.timeout(20):
        await started.wait()
        broker = made[0].broker
        me = broker.replication.me
        await broker.replication.assign(Assignment(LeadershipRecord().promoted(me, [me]), config.member_address))
        broker.writer.append([_put(b"flushed")])
        broker.writer.appended(None)
        while broker.store.state.flushed < broker.store.log.end:  # noqa: ASYNC110 (the flush says it)
            await asyncio.sleep(0.01)
        flushed = broker.store.state.flushed
        disk.failed = True
        broker.writer.append([_put(b"not flushed")])
        broker.writer.appended(None)
        with pytest.raises(FlushFailed, match="Input/output error"):
            await first
    assert made[0].store.state.flushed == flushed
    assert orjson.loads((tmp_path / "a" / "config" / "replica.json").read_bytes())["boot"] == ""
    disk.failed = False
    rewritten: list[tuple[int, int]] = []
    real = type(made[0].store.log).overwrite

    def overwrite(log: Any, offset: int, data: bytes) -> None:
        rewritten.append((offset, offset + len(data)))
        real(log, offset, data)

    monkeypatch.setattr(type(made[0].store.log), "overwrite", overwrite)
    started.clear()
    second = asyncio.create_task(main.run(config))
    async with asyncio.timeout(20):
        await started.wait()
        again = made[1].broker
        assert rewritten == [(flushed, again.store.log.end)], "the kernel may have let go of it and flush nothing"
        assert (again.replication.me == me) is (flush == "Sync"), "what Async acknowledged is proven by the boot alone"
        bodies = [r.body for r in again.store.reader.walk(0, again.store.log.end) if r.topic == "T"]
        assert bodies == [b"flushed", b"not flushed"]
        again.health.must_end.set()
        await second


async def test_a_stop_that_has_no_room_for_the_tables_is_clean_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start makes them of the last ones and the log."""
    process = main.BrokerProcess(_config(tmp_path))
    await process.start()
    monkeypatch.setattr(snapshots, "write", raising(OSError(errno.ENOSPC, "full")))
    await process.stop()
    assert orjson.loads((tmp_path / "a" / "config" / "replica.json").read_bytes())["clean"]
    assert orjson.loads((tmp_path / "a" / "config" / "recoveryPoint.json").read_bytes())["clean"]


async def test_a_flush_that_fails_while_the_process_stops_proves_nothing_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = BadDisk(monkeypatch)
    config = _config(tmp_path, flush="Async", settings={"flushIntervalCommitLog": 1 << 40})
    process = main.BrokerProcess(config)
    await process.start()
    broker = process.broker
    me = broker.replication.me
    await broker.replication.assign(Assignment(LeadershipRecord().promoted(me, [me]), config.member_address))
    broker.writer.append([_put(b"not flushed")])
    broker.writer.appended(None)
    disk.failed = True
    with pytest.raises(OSError, match="Input/output error"):
        await process.stop()
    held = orjson.loads((tmp_path / "a" / "config" / "replica.json").read_bytes())
    assert (held["boot"], held["clean"]) == ("", False)


@pytest.mark.parametrize("relieved", [True, False], ids=["another leads", "nobody takes over"])
async def test_a_master_first_hands_over_records_that_only_it_has(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, relieved: bool
) -> None:
    hand_over_s = 60.0 if relieved else 0.2
    monkeypatch.setattr(health, "HAND_OVER_S", hand_over_s)
    monkeypatch.setattr(health, "DRAIN_S", 0.0)
    await bench.lead()
    broker = bench.broker
    me, epoch, other = broker.replication.me, broker.replication.epoch, MemberId(1, "other")
    both = LeadershipRecord(epoch, epoch + 1, me, frozenset({me, other}))
    await broker.replication.assign(Assignment(both, "127.0.0.1:10911"))
    failed_at = asyncio.get_running_loop().time()
    bench.store.checkpointer.mark_failed(OSError(errno.EIO, "Input/output error"))
    assert broker.health.not_promotable == "its disk failed: [Errno 5] Input/output error"
    await asyncio.sleep(0.05)
    assert not broker.health.must_end.is_set() or asyncio.get_running_loop().time() >= failed_at + hand_over_s
    if relieved:
        await broker.replication.assign(Assignment(both.promoted(other, [me, other]), "127.0.0.1:10912"))
    await until(broker.health.must_end.is_set)


@pytest.mark.parametrize("options", [{"flush": "Sync"}, {}], ids=["nobody can be brought to its end", "it is alone"])
async def test_a_master_without_a_candidate_for_a_handover_ends_at_once(
    bench: Bench, tmp_path: Path, options: dict[str, str]
) -> None:
    made = type(bench)(tmp_path / "other", **options)
    await made.lead()
    made.store.checkpointer.mark_failed(OSError(errno.EIO, "Input/output error"))
    async with asyncio.timeout(5):
        await made.broker.health.must_end.wait()
    await made.close()


async def test_senders_are_answered_when_a_write_fails(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose connection ends instead waits out its timeout."""
    await bench.lead()
    assert (await bench.send(b"well")).code == 0
    real = os.pwrite

    def refused(number: int) -> Any:
        def pwrite(fd: int, data: bytes, at: int) -> int:
            if "commitlog" in os.readlink(f"/proc/self/fd/{fd}"):
                raise OSError(number, os.strerror(number))
            return real(fd, data, at)

        return pwrite

    for number, said in ((errno.EMFILE, "nothing can be written"), (errno.EROFS, "the disk failed")):
        monkeypatch.setattr(os, "pwrite", refused(number))
        answer = await bench.send(b"not stored")
        monkeypatch.setattr(os, "pwrite", real)
        assert answer.code == 1
        assert said in (answer.remark or "")
        assert (await bench.send(b"again")).code == (0 if number == errno.EMFILE else 1)


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, 0])
async def test_a_master_that_cannot_read_the_only_copy_of_the_end_steps_down(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """It would be the master for the others, and answer nobody. Where descriptors were short it is tried again."""
    await bench.lead()
    broker, store = bench.broker, bench.store
    me, epoch = broker.replication.me, broker.replication.epoch
    both = frozenset({me, MemberId(1, "away")})
    await broker.replication.assign(Assignment(LeadershipRecord(epoch, epoch + 1, me, both), "127.0.0.1:10911"))
    broker.writer.append([_put(b"nobody else has it")])
    store.unconfirmed.clear()
    broker.replication.saw_epoch(epoch + 1)

    def unreadable(*places: int) -> Any:
        if number == 0:
            raise ValueError("offset 42 is not the border of a record")
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(store.log, "chunks", unreadable)
    with contextlib.suppress(OSError, ValueError):
        await broker.replication.assign(Assignment(LeadershipRecord(epoch + 2, epoch + 2, me, both), "127.0.0.1:10911"))
    if number != errno.EMFILE:
        async with asyncio.timeout(5):
            await broker.health.must_end.wait()
        return
    leads = asyncio.Event()
    bench.broker.events.role_changed.subscribe(lambda master: leads.set())
    assert not broker.role.leading
    monkeypatch.undo()
    async with asyncio.timeout(5):
        await leads.wait()
    assert broker.role.leading
    assert not broker.health.must_end.is_set()


@pytest.mark.parametrize("numbers", [[errno.EIO], [errno.EMFILE], [errno.EMFILE, errno.EIO]])
async def test_missing_descriptors_do_not_mark_the_disk_as_failed(bench: Bench, numbers: list[int]) -> None:
    """The process ends, when it came at a bad moment, and the next one has lost nothing of its proof (rule 16)."""
    await bench.lead()
    files = [bench.config.data_dir / "config" / name for name in ("replica.json", "recoveryPoint.json")]
    assert all(orjson.loads(file.read_bytes())["boot"] for file in files)
    for number in numbers:
        bench.store.checkpointer.mark_failed(OSError(number, os.strerror(number)))
    async with asyncio.timeout(5):
        await bench.broker.health.must_end.wait()
        while bench.store.recovery_point_file.busy:  # noqa: ASYNC110 (another thread writes them)
            await asyncio.sleep(0.01)
    log_trusted = [bool(orjson.loads(file.read_bytes())["boot"]) for file in files]
    assert log_trusted == [errno.EIO not in numbers] * 2


async def test_a_commit_that_the_full_disk_refuses_is_written_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request gets an error; the offset stays noted, and commits of others go on."""
    assert (await bench.send(b"x")).code == 0
    appender = bench.store.appender
    fields = {"topic": "T", "queueId": 0, "commitOffset": 1}
    with monkeypatch.context() as full:
        full.setattr(appender, "put", lambda *_: (_ for _ in ()).throw(StoreFull("no room")))
        refused = await bench.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**fields, "consumerGroup": "early"})
    assert (refused.code, "no room" in (refused.remark or "")) == (ResponseCode.SERVICE_NOT_AVAILABLE, True)
    end = bench.store.log.end
    assert (await bench.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**fields, "consumerGroup": "late"})).code == 0
    assert bench.store.log.end > end
    assert bench.broker.meta.has_dirty, "the early one still waits"
    bench.broker.changes.flush_offsets()
    assert not bench.broker.meta.has_dirty
