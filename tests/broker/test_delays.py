"""Messages that wait for their time, whatever else happens meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from gantry_broker.broker import delay
from gantry_broker.broker.metadata.topics import TIMER_TOPIC
from gantry_broker.protocol import fastjson
from gantry_broker.protocol.bodies import ConsumerData, Heartbeat
from gantry_broker.protocol.codes import RETRY_PREFIX, SCHEDULE_TOPIC, GetStatus, RequestCode, ResponseCode
from gantry_broker.protocol.message import decode_records
from gantry_broker.store.errors import StoreFull
from gantry_broker.store.types import Got

from tests.support.running import until

HOUR_MS = 3_600_000
MakeBench = Callable[..., Any]


async def _arrived(bench: Any) -> None:
    await until(lambda: bench.broker.store.reader.max_offset("T", 0) > 0)


async def test_messages_delayed_by_a_full_disk_are_delivered_once_there_is_room(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without another message of that level, which may not come for hours."""
    monkeypatch.setattr(delay, "RETRY_MS", 20)
    bench = make_bench(settings={"messageDelayLevel": "1s"})
    await bench.lead()
    await bench.send(b"later", properties="DELAY\x011")
    refused = asyncio.Event()

    def full(*_: Any) -> Any:
        refused.set()
        raise StoreFull("No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(bench.store.appender, "put", full)
        async with asyncio.timeout(10):
            await refused.wait()
    await _arrived(bench)


async def test_a_level_continues_after_a_damaged_record_is_repaired(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delay, "RETRY_MS", 20)
    bench = make_bench(settings={"messageDelayLevel": "1s"})
    await bench.lead()
    get = bench.store.reader.get
    looked = asyncio.Event()

    def damaged(topic: str, *args: Any) -> Got:
        got: Got = get(topic, *args)
        if topic != SCHEDULE_TOPIC or not got.data:
            return got
        looked.set()
        return Got(GetStatus.OFFSET_FOUND_NULL, b"", 0, 0, 0, 1, damaged=0)

    with monkeypatch.context() as disk:
        disk.setattr(bench.store.reader, "get", damaged)
        await bench.send(b"later", properties="DELAY\x011")
        async with asyncio.timeout(10):
            await looked.wait()
    await _arrived(bench)


@pytest.mark.parametrize("hours", [1, 3, 24, 200])
async def test_a_timed_message_due_during_a_time_without_leader_comes_at_once(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    bench = make_bench()
    await bench.lead()
    now = bench.broker.clock.unix_ms()
    await bench.send(b"timed", properties=f"TIMER_DELIVER_MS\x01{now + HOUR_MS // 2}")
    await bench.close()
    bench = make_bench()
    monkeypatch.setattr(bench.broker.clock, "unix_ms", lambda: now + hours * HOUR_MS)
    await bench.lead()
    await _arrived(bench)
    await bench.close()


async def test_levels_that_a_new_configuration_lacks_are_delivered(make_bench: MakeBench) -> None:
    bench = make_bench(settings={"messageDelayLevel": "1s 1s 1s"})
    await bench.lead()
    await bench.send(b"later", properties="DELAY\x013")
    await bench.close()
    bench = make_bench(settings={"messageDelayLevel": "1s"})
    await bench.lead()
    await _arrived(bench)
    await bench.close()


@pytest.mark.parametrize(
    ("asked", "waits_in"), [("DELAY\x011", SCHEDULE_TOPIC), ("TIMER_DELAY_MS\x01500", TIMER_TOPIC)]
)
async def test_a_transactional_message_is_delayed_from_its_commit_on(
    make_bench: MakeBench, asked: str, waits_in: str
) -> None:
    bench = make_bench(settings={"messageDelayLevel": "1s"})
    await bench.lead()
    await until(bench.broker.transactions.loaded.is_set)
    sent = await bench.send(b"half", properties=f"TRAN_MSG\x01true\x02PGROUP\x01PG\x02{asked}")
    offset = int(sent.ext["msgId"][-16:], 16)
    end = {"producerGroup": "PG", "tranStateTableOffset": 0, "commitLogOffset": offset, "commitOrRollback": 8}
    answer = await bench.ask(RequestCode.END_TRANSACTION, {**end, "fromTransactionCheck": "false", "msgId": "m"})
    assert answer.code == ResponseCode.SUCCESS
    queues = bench.store.queues.topics_queues()
    assert [queue for queue in queues[waits_in] if bench.store.reader.max_offset(waits_in, queue)]
    assert bench.store.reader.max_offset("T", 0) == 0
    await _arrived(bench)


async def test_a_group_whose_retry_topic_cannot_be_is_refused(make_bench: MakeBench) -> None:
    """Its first failed message could not be delivered, and all others with the same delay waited behind it."""
    bench = make_bench(settings={"messageDelayLevel": "1s"})
    await bench.lead()
    await bench.send(b"x")
    await until(lambda: bench.store.state.confirmed > bench.store.log.start)
    got = bench.store.reader.get("T", 0, 0, 1, 1 << 20)
    (record,) = decode_records(got.data)
    for length, code in ((249, ResponseCode.SYSTEM_ERROR), (248, ResponseCode.SUCCESS)):
        beat = Heartbeat(
            "c", [], [ConsumerData("G" * length, "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET", [])]
        )
        answer = await bench.ask(RequestCode.HEART_BEAT, {}, fastjson.dumps(beat.to_json()))
        assert answer.code == code, answer.remark
        ext = {"offset": record.phys_offset, "group": "G" * length, "delayLevel": 1, "originMsgId": "m"}
        answer = await bench.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext)
        assert answer.code == code, answer.remark
    await until(lambda: bench.store.reader.max_offset(RETRY_PREFIX + "G" * 248, 0) == 1)
