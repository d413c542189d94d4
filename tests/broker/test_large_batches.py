"""Batches that are stored in parts: official clients limit a batch by its bytes alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from gantry_broker.broker.role import RoleState
from gantry_broker.broker.send.sender import Sender
from gantry_broker.protocol.bodies import TopicConfig
from gantry_broker.protocol.codes import RequestCode, ResponseCode
from gantry_broker.protocol.message import BATCH_PART, BatchItem, batch_parts, count_batch, decode_record, encode_batch

from tests.broker.conftest import Bench, Wire
from tests.support.running import until

COUNT = 4_000
ODD = "\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x015"
"""A property of messages that the broker looks at one by one."""


def batch(count: int = COUNT, properties: str = "") -> list[BatchItem]:
    return [BatchItem(b"%d" % number, f"UNIQ_KEY\x01{number:032X}{properties}".encode()) for number in range(count)]


def bodies(bench: Bench, queue: int) -> list[bytes]:
    reader = bench.store.reader
    found: list[bytes] = []
    while len(found) < reader.max_offset("T", queue):
        data = reader.get("T", queue, len(found), 1_000, 1 << 22, None).data
        at = 0
        while at < len(data):
            record = decode_record(data, at)
            found.append(record.body)
            at += record.size
    return found


@pytest.mark.parametrize("properties", ["", ODD])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("queue", [2, -1])
async def test_the_messages_are_in_one_queue_in_their_order(
    bench: Bench, properties: str, known: bool, queue: int
) -> None:
    if known:
        assert (await bench.send(b"before", queueId=3)).code == 0
    items = batch(properties=properties)
    answer = await bench.ask(
        RequestCode.SEND_BATCH_MESSAGE, bench.send_ext(queueId=queue, batch=True), encode_batch(items)
    )
    assert answer.code == 0, answer.remark
    number = int(answer.ext["queueId"])
    assert queue in (number, -1)
    before = 1 if number == 3 and known else 0
    assert int(answer.ext["queueOffset"]) == before
    assert bodies(bench, number)[before:] == [item.body for item in items]
    ids = answer.ext["msgId"].split(",")
    assert len(set(ids)) == COUNT
    viewed = await bench.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": int(ids[2_500][16:], 16)})
    assert decode_record(viewed.body, 0).body == b"2500"


@pytest.mark.parametrize(
    "make",
    [
        lambda items: encode_batch([*items, BatchItem(b"x", b"DELAY\x013")]),
        lambda items: encode_batch(items)[:-1],
        lambda items: encode_batch(items) + b"\0\0\0\x05x",
        lambda items: encode_batch([*items, BatchItem(b"x", b"KEYS\x01" + b"k " * 2_000)]),
        lambda items: encode_batch([*items, BatchItem(b"x", b"a\x01" + bytes(5_000))]),
    ],
)
async def test_one_message_that_is_illegal_refuses_all(bench: Bench, make: Callable[[list[BatchItem]], bytes]) -> None:
    refused = await bench.ask(RequestCode.SEND_BATCH_MESSAGE, bench.send_ext(batch=True), make(batch()))
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL, refused.remark
    assert "T" not in bench.broker.meta.working.topics, "nothing was made for it"


async def test_a_compacted_topic_takes_all_of_a_batch_or_nothing(bench: Bench) -> None:
    attributes = {"cleanup.policy": "COMPACTION"}
    bench.broker.meta.working.topics["T"] = TopicConfig("T", 1, 1, attributes=attributes)
    items = [*batch(properties="\x02KEYS\x01k"), BatchItem(b"x", b"UNIQ_KEY\x01u")]
    refused = await bench.ask(RequestCode.SEND_BATCH_MESSAGE, bench.send_ext(batch=True), encode_batch(items))
    assert (refused.code, refused.remark) == (ResponseCode.MESSAGE_ILLEGAL, "Required message key is missing")
    assert bench.store.reader.max_offset("T", 0) == 0


async def test_a_batch_is_refused_once_this_member_leads_no_more(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await bench.send(b"x")).code == 0
    parts, whole = 0, Sender.store_part

    def store_part(*args: Any) -> tuple[int, int, str, bool]:
        nonlocal parts
        parts += 1
        found = whole(*args)
        if parts == 2:
            monkeypatch.setattr(RoleState, "may_append", False)
        return found

    monkeypatch.setattr(Sender, "store_part", store_part)
    refused = await bench.ask(RequestCode.SEND_BATCH_MESSAGE, bench.send_ext(batch=True), encode_batch(batch()))
    monkeypatch.undo()
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert len(bodies(bench, 0)) == 1 + 2 * BATCH_PART, "its producer sends it again"


async def test_no_address_takes_the_room_of_all_large_batches(bench: Bench) -> None:
    """Each waits for its turn in memory."""
    assert (await bench.send(b"x")).code == 0
    data, processor = encode_batch(batch()), bench.parts.processor
    processor._bytes_in_tasks.most = 5 * len(data)
    ext = bench.send_ext(batch=True)
    greedy = [bench.frame(RequestCode.SEND_BATCH_MESSAGE, ext, data) for _ in range(8)]
    first, other = bench.wire, Wire()
    other.peer = ("10.0.0.1", 40_000)
    bench.give(*greedy)
    frame = bench.frame(RequestCode.SEND_BATCH_MESSAGE, ext, data)
    bench.give(frame, wire=other)
    codes = [(await bench.answer(each.opaque)).code for each in greedy]
    assert codes.count(ResponseCode.SYSTEM_BUSY) == 6
    bench.wire = other
    assert (await bench.answer(frame.opaque)).code == 0
    bench.wire = first
    await until(lambda: processor._bytes_in_tasks.taken == 0)


async def test_one_way_and_without_a_wait(bench: Bench) -> None:
    data = encode_batch(batch())
    ext = bench.send_ext(batch=True, properties="WAIT\x01false")
    assert (await bench.ask(RequestCode.SEND_BATCH_MESSAGE, ext, data)).code == 0
    frame = bench.frame(RequestCode.SEND_BATCH_MESSAGE, ext, data)
    frame.flag |= 2
    bench.give(frame)
    await until(lambda: bench.store.reader.max_offset("T", 0) == 2 * COUNT)
    assert (await bench.send(b"x")).code == 0
    assert not [found for found in bench.wire.frames if found.opaque == frame.opaque]


@pytest.mark.parametrize("count", [1, BATCH_PART - 1, BATCH_PART, BATCH_PART + 1, 3 * BATCH_PART])
def test_parts_are_the_whole(count: int) -> None:
    data = encode_batch(batch(count))
    parts = list(batch_parts(data))
    assert b"".join(parts) == data
    assert [count_batch(part) for part in parts[:-1]] == [BATCH_PART] * (len(parts) - 1)
    assert 0 < count_batch(parts[-1]) <= BATCH_PART
