"""Faults of reads from the archive and of members that are filled from it, found by reading."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from gantry_broker.archive import tiered
from gantry_broker.archive.errors import Unavailable
from gantry_broker.broker import archive_reads
from gantry_broker.broker.process import BrokerProcess
from gantry_broker.config import ArchiveConfig
from gantry_broker.contracts.leadership import Assignment, LeadershipRecord
from gantry_broker.protocol.codes import RequestCode, ResponseCode
from gantry_broker.store.log.record_reader import decode_records
from gantry_broker.store.types import Put

from tests.archive.test_broker import config, lead, until
from tests.archive.test_reads import MakeOld, Old, close
from tests.archive.test_reads import make_bench as make_bench
from tests.archive.test_reads import make_old as make_old
from tests.archive.test_reads import old as old
from tests.support.failing_calls import raising
from tests.support.free_ports import free_port

pytestmark = pytest.mark.timeout(120)
POP = {
    "consumerGroup": "P", "topic": "T", "queueId": 0, "maxMsgNums": 32, "invisibleTime": 1_000, "pollTime": 0,
    "initMode": 0, "expType": "TAG", "exp": "*",
}  # fmt: skip
COUNT = 2_000


def member(store: Path, folder: Path, uid: str, number: int) -> BrokerProcess:
    port = free_port()
    archive = ArchiveConfig(url=f"file://{store}", uid=uid, interval_s=1)
    return BrokerProcess(
        config(
            folder, "shop", member=number, data_dir=folder / f"m{number}", archive=archive, replication_port=port,
            replication_address=f"127.0.0.1:{port}",
        )
    )  # fmt: skip


async def write(first: BrokerProcess, mark: bytes) -> None:
    await lead(first)
    host = b"\x7f\0\0\1\0\0\0\1"
    for begin in range(0, COUNT, 100):
        bodies = [mark + b"%06d " % number + bytes(2_000) for number in range(begin, begin + 100)]
        first.broker.writer.append([Put("Orders", 0, 0, 0, 1, host, body, b"") for body in bodies])
        first.broker.writer.appended(None)
    await until(lambda: first.store.state.confirmed == first.store.log.end)


async def test_the_archive_of_another_cluster_fills_no_member(tmp_path: Path) -> None:
    """Both logs have the same epochs: a manifest that was copied, or a cluster that was deleted and made again."""
    store = tmp_path / "store"
    other = member(store, tmp_path / "A", "u-1", 0)
    async with other:
        await write(other, b"A")
        confirmed = other.store.state.confirmed
        await until(lambda: (state := other.broker.archiving.state) is not None and state.end >= confirmed)
    leader, follower = member(store, tmp_path / "B", "u-2", 0), member(store, tmp_path / "B", "u-2", 1)
    async with leader, follower:
        await write(leader, b"B")
        replication = leader.broker.replication
        record = LeadershipRecord(replication.epoch, 2, replication.me, frozenset({replication.me}))
        for one in (leader, follower):
            await one.broker.replication.assign(Assignment(record, leader.config.replication_address))
        await until(lambda: follower.store.state.confirmed == leader.store.log.end)
        assert follower.broker.archive_fill.bytes == 0
        assert follower.broker.archiving.state is None, "nothing of the other cluster is read, either"
        for number in range(0, COUNT, 97):
            mine, its = (p.store.reader.get("Orders", 0, number, 1, 1 << 20).data for p in (follower, leader))
            assert mine == its


async def grouped(old: Old, *, orderly: bool) -> None:
    body = b'{"groupName":"P","consumeEnable":true,"consumeMessageOrderly":%s}' % (b"true" if orderly else b"false")
    await old.bench.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)


async def test_an_orderly_pop_is_given_again_by_as_many_reads_as_messages(
    old: Old, monkeypatch: pytest.MonkeyPatch
) -> None:
    await grouped(old, orderly=True)
    pop = POP | {"bornTime": old.now, "order": True}
    first = await old.bench.ask(RequestCode.POP_MESSAGE, pop)
    old.now += 5_000
    prepared = 0
    real = old.reads.prepare

    async def counted(wanted: archive_reads.ArchiveQuery, patience_s: float = 8.0) -> None:
        nonlocal prepared
        prepared += 1
        await real(wanted, patience_s)

    monkeypatch.setattr(old.reads, "prepare", counted)
    again = await old.bench.ask(RequestCode.POP_MESSAGE, pop | {"bornTime": old.now})
    offsets = [[record.queue_offset for record in decode_records(answer.body)] for answer in (first, again)]
    assert offsets[0] == offsets[1] == list(range(32))
    assert prepared <= 2 * 32


async def test_a_query_that_is_too_wide_turns_nothing_off(old: Old, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiered, "MAX_PARTS", 1)
    query = {"topic": "T", "key": "nokey", "maxNum": 32, "beginTimestamp": 0, "endTimestamp": old.now}
    assert "write a shorter time range" in (await old.bench.ask(RequestCode.QUERY_MESSAGE, query)).remark
    assert (await old.pull(0)).code == ResponseCode.SUCCESS, "others read on"


async def test_a_new_message_is_acknowledged_while_the_archive_is_not_known(
    old: Old, monkeypatch: pytest.MonkeyPatch
) -> None:
    await grouped(old, orderly=False)
    pop = POP | {"bornTime": old.now, "order": False, "initMode": 1, "invisibleTime": 60_000}
    answer = await old.bench.ask(RequestCode.POP_MESSAGE, pop)
    [record] = list(decode_records(answer.body))
    assert answer.ext is not None
    assert old.reads.tiered is not None
    old.reads.tiered.view = tiered.View(0, 0, {})  # a new disk, for example
    monkeypatch.setattr(archive_reads.ArchiveReads, "_refresh", raising(Unavailable("away")))
    at = record.queue_offset
    handle = f"{at} {answer.ext['popTime']} {answer.ext['invisibleTime']} 0 0 {old.bench.config.group} 0 {at}"
    ack = {"consumerGroup": "P", "topic": "T", "queueId": 0, "extraInfo": handle, "offset": at}
    assert (await old.bench.ask(RequestCode.ACK_MESSAGE, ack)).code == ResponseCode.SUCCESS


async def test_a_damaged_first_object_is_not_passed_over(old: Old, make_old: MakeOld, tmp_path: Path) -> None:
    await close(old)
    shutil.rmtree(old.bench.config.data_dir / archive_reads.FOLDER)
    first = min((tmp_path / "archive").glob("groups/*/parts/*"))
    data = bytearray(first.read_bytes())
    data[-60] ^= 1
    first.write_bytes(bytes(data))
    again = await make_old()
    await again.topic()
    await again.known()
    async with asyncio.timeout(20):
        while (answer := await again.pull(0)).code == ResponseCode.SYSTEM_BUSY:
            pass
    assert answer.code == ResponseCode.SYSTEM_ERROR
