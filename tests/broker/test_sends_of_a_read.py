"""Sends that come in one read: each is answered by itself; limits of keys; what a batch cannot have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from gantry_broker.protocol.codes import RequestCode, ResponseCode
from gantry_broker.protocol.limits import MAX_KEYS, MAX_REQUEST_KEYS
from gantry_broker.protocol.message import BatchItem, encode_batch
from gantry_broker.store import batch as batches

from tests.support.failing_calls import raising

if TYPE_CHECKING:
    from gantry_broker.protocol.frame import Frame

    from tests.broker.conftest import Bench


def good(bench: Bench) -> Frame:
    return bench.frame(RequestCode.SEND_MESSAGE_V2, bench.send_ext(), b"x")


def batch(bench: Bench, *items: BatchItem, **fields: Any) -> Frame:
    return bench.frame(
        RequestCode.SEND_BATCH_MESSAGE, bench.send_ext(**{"properties": "", **fields}), encode_batch(items)
    )


async def codes(bench: Bench, *frames: Frame) -> list[int]:
    bench.give(*frames)
    return [(await bench.answer(frame.opaque)).code for frame in frames]


async def test_a_batch_with_long_properties_refuses_itself_alone(bench: Bench) -> None:
    bad = batch(bench, BatchItem(b"x", b"a\x01" + b"b" * 32_700))
    assert await codes(bench, good(bench), bad, good(bench)) == [0, ResponseCode.MESSAGE_ILLEGAL, 0]


@pytest.mark.parametrize("error", [ValueError("a number does not fit"), OverflowError("x"), RuntimeError("x")])
async def test_whatever_the_store_cannot_take_refuses_itself_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    assert await codes(bench, good(bench)) == [0]
    put = bench.store.appender.put_rows

    def failing(puts: Any, now_ms: int) -> Any:
        if any(one[6] == b"bad" for one in puts):
            raise error
        return put(puts, now_ms)

    monkeypatch.setattr(bench.store.appender, "put_rows", failing)
    monkeypatch.setattr(bench.store.appender, "put_sends", raising(error))
    bad = bench.frame(RequestCode.SEND_MESSAGE_V2, bench.send_ext(), b"bad")
    assert await codes(bench, good(bench), bad, good(bench), good(bench)) == [0, ResponseCode.SYSTEM_ERROR, 0, 0]
    assert bench.store.reader.max_offset("T", 0) == 4
    assert not bench.wire.closed


async def test_a_message_larger_than_a_segment_refuses_itself_alone(bench: Bench) -> None:
    bad = bench.frame(RequestCode.SEND_MESSAGE_V2, bench.send_ext(), b"x" * (1 << 20))
    assert await codes(bench, good(bench), bad, good(bench)) == [0, ResponseCode.MESSAGE_ILLEGAL, 0]


def keys(count: int) -> str:
    return "KEYS\x01" + " ".join(f"{number:x}" for number in range(count)) + "\x02"


async def test_a_message_with_too_many_keys_is_refused(bench: Bench) -> None:
    def send(count: int, more: str = "") -> Frame:
        return bench.frame(RequestCode.SEND_MESSAGE_V2, bench.send_ext(properties=keys(count) + more), b"x")

    illegal = ResponseCode.MESSAGE_ILLEGAL
    assert await codes(bench, send(MAX_KEYS)) == [0]
    for more in ("", "TRAN_MSG\x01true\x02PGROUP\x01PG\x02", "DELAY\x011\x02", "TIMER_DELAY_SEC\x015\x02"):
        assert await codes(bench, good(bench), send(MAX_KEYS + 1, more), good(bench)) == [0, illegal, 0]
    assert any(f"over {MAX_KEYS} keys" in (frame.remark or "") for frame in bench.wire.frames)


async def test_a_batch_has_a_limit_of_keys_for_each_message_and_for_all(bench: Bench) -> None:
    def items(count: int, each: int) -> list[BatchItem]:
        return [BatchItem(b"x", keys(each).encode()) for _ in range(count)]

    illegal = ResponseCode.MESSAGE_ILLEGAL
    full = batch(bench, *items(MAX_REQUEST_KEYS // 500, 500))
    over = batch(bench, *items(MAX_REQUEST_KEYS // 500 + 2, 500))
    one = batch(bench, *items(1, MAX_KEYS + 1))
    assert await codes(bench, full, over, one, good(bench)) == [0, illegal, illegal, 0]


@pytest.mark.parametrize(
    "properties",
    ["DELAY\x011", "DELAY\x01x", "TIMER_DELIVER_MS\x011", "TIMER_DELAY_SEC\x011", "TIMER_DELAY_MS\x011",
     "TRAN_MSG\x01true"],
)  # fmt: skip
async def test_a_batch_has_no_messages_that_are_not_visible_at_once(bench: Bench, properties: str) -> None:
    assert await codes(bench, good(bench)) == [0]
    of_item = batch(bench, BatchItem(b"a"), BatchItem(b"b", properties.encode()))
    of_all = batch(bench, BatchItem(b"a"), properties=properties)
    assert await codes(bench, of_item, of_all) == [ResponseCode.MESSAGE_ILLEGAL] * 2
    assert bench.store.reader.max_offset("T", 0) == 1


async def test_a_batch_is_no_part_of_a_transaction_and_may_say_that_it_is_not_delayed(bench: Bench) -> None:
    item = BatchItem(b"a", b"DELAY\x010\x02TRAN_MSG\x01false\x02")
    assert await codes(bench, batch(bench, item), batch(bench, item, sysFlag=4)) == [0, ResponseCode.MESSAGE_ILLEGAL]


async def test_records_with_very_many_keys_are_indexed_in_pieces(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "KEYS_AT_ONCE", 1_500)
    sends = [
        bench.frame(RequestCode.SEND_MESSAGE_V2, bench.send_ext(properties=keys(900) + f"UNIQ_KEY\x01U{n}\x02"), b"x")
        for n in range(8)
    ]
    assert await codes(bench, *sends) == [0] * 8
    index = bench.store.index
    assert index is not None
    index.clear(bench.store.log.start)
    index.behind = True
    indexer, rounds = bench.store.indexer, 0
    while indexer.catch_up():
        rounds += 1
        assert rounds < 100
    assert rounds >= 3, "a step reads as few records as have the keys of one step"
    found = await bench.ask(
        RequestCode.QUERY_MESSAGE,
        {
            "topic": "T",
            "key": "U7",
            "maxNum": 5,
            "beginTimestamp": 0,
            "endTimestamp": 1 << 60,
            "_UNIQUE_KEY_QUERY": "true",
        },
    )
    assert found.code == 0
    store = bench.store
    raw = store.log.whole_records(store.log.start, 1 << 19, store.log.end)
    read = batches.read_batch(0, raw, store.queues, store.log.segment_size, (), check=True, keys=True)
    assert read.keys is None, "a follower leaves them to the index"
    assert read.count >= 8
