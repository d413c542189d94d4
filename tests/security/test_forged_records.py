"""What a client puts into a message never counts as a record of its own, and never reaches the broker's own topics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest
from gantry_broker.protocol.codes import (
    CONTROL_TOPIC,
    SCHEDULE_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    RequestCode,
    ResponseCode,
    SysFlag,
)
from gantry_broker.protocol.limits import MAX_KEYS
from gantry_broker.protocol.message import BatchItem, encode_batch, encode_record, format_properties, pack_host

from tests.broker.conftest import Bench

HOST = pack_host("127.0.0.1", 1)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path, settings={"messageDelayLevel": "1s 5s"})
    await made.lead()
    yield made
    await made.close()


def forged(at: int, topic: str, props: dict[str, str], body: bytes = b"x", queue_offset: int = 0) -> bytes:
    return encode_record(
        topic=topic.encode(),
        body=body,
        properties=format_properties(props),
        queue_id=0,
        queue_offset=queue_offset,
        phys_offset=at,
        born_ms=1,
        born_host=HOST,
        store_ms=1,
        store_host=HOST,
    )


async def plant(bench: Bench, topic: str, props: dict[str, str], body: bytes = b"x", queue_offset: int = 0) -> int:
    """Send a message whose body is a record that names its own place; returns the place."""
    await bench.send(b"warm up")
    at = bench.store.log.end + 88
    assert (await bench.send(forged(at, topic, props, body, queue_offset))).code == ResponseCode.SUCCESS
    return at


async def test_a_record_within_a_message_is_none(bench: Bench) -> None:
    at = await plant(bench, "T", {})
    assert (await bench.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": at})).code != ResponseCode.SUCCESS


async def test_a_half_message_within_a_message_decides_nothing(bench: Bench) -> None:
    props = {"TRAN_MSG": "true", "PGROUP": "victim", "UNIQ_KEY": "U"}
    half = await bench.send(b"victim's", properties="\x02".join(f"{k}\x01{v}" for k, v in props.items()), sysFlag=4)
    assert half.code == ResponseCode.SUCCESS
    await asyncio.sleep(0.2)
    assert bench.broker.transactions.undecided == 1
    at = await plant(bench, TRANS_HALF_TOPIC, {"PGROUP": "mine", "REAL_TOPIC": "T", "REAL_QID": "0"}, queue_offset=0)
    ext = {
        "producerGroup": "mine",
        "tranStateTableOffset": 0,
        "commitLogOffset": at,
        "commitOrRollback": int(SysFlag.TRANSACTION_ROLLBACK),
    }
    assert (await bench.ask(RequestCode.END_TRANSACTION, ext)).code != ResponseCode.SUCCESS
    assert bench.broker.transactions.undecided == 1


async def test_no_client_writes_control_records(bench: Bench) -> None:
    change = orjson.dumps({"kind": "meta", "dropTopics": ["T"]})
    at = await plant(
        bench, TRANS_HALF_TOPIC, {"PGROUP": "mine", "REAL_TOPIC": CONTROL_TOPIC, "REAL_QID": "0"}, body=change
    )
    before = bench.store.reader.max_offset(CONTROL_TOPIC, 0)
    ext = {
        "producerGroup": "mine",
        "tranStateTableOffset": 0,
        "commitLogOffset": at,
        "commitOrRollback": int(SysFlag.TRANSACTION_COMMIT),
    }
    assert (await bench.ask(RequestCode.END_TRANSACTION, ext)).code != ResponseCode.SUCCESS
    assert bench.store.reader.max_offset(CONTROL_TOPIC, 0) == before
    assert "T" in bench.broker.meta.confirmed.topics


@pytest.mark.parametrize("code", [RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2])
@pytest.mark.parametrize("topic", [SCHEDULE_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC, CONTROL_TOPIC])
async def test_a_reply_goes_to_no_topic_of_the_broker(bench: Bench, code: int, topic: str) -> None:
    await bench.send(b"")
    before = bench.store.reader.max_offset(topic, 0)
    props = f"REAL_TOPIC\x01{CONTROL_TOPIC}\x02REAL_QID\x010"
    ext = bench.send_ext(topic, properties=props)
    if code == RequestCode.SEND_REPLY_MESSAGE:
        from gantry_broker.protocol.headers import SHORT_SEND_NAMES

        ext = {SHORT_SEND_NAMES[name]: value for name, value in ext.items()}
    answer = await bench.ask(code, ext, orjson.dumps({"kind": "meta", "dropTopics": ["T"]}))
    assert bench.store.reader.max_offset(topic, 0) == before
    assert answer.code in (ResponseCode.NO_PERMISSION, ResponseCode.TOPIC_NOT_EXIST)


@pytest.mark.parametrize(
    "code", [RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2]
)
async def test_a_send_with_short_names_has_one_topic(bench: Bench, code: int) -> None:
    """Access and quotas are checked for the field b, so no other field may name the topic."""
    for topic in ("mine", "secret"):
        assert (await bench.send(b"", topic)).code == ResponseCode.SUCCESS
    before = bench.store.reader.max_offset("secret", 0)
    ext = bench.send_ext("mine", properties="WAIT\x01false") | {"topic": "secret"}
    body = encode_batch([BatchItem(b"x")]) if code == RequestCode.SEND_BATCH_MESSAGE else b"x"
    await bench.ask(code, ext, body)
    assert bench.store.reader.max_offset("secret", 0) == before
    assert bench.store.reader.max_offset("mine", 0) == 2


@pytest.mark.parametrize(
    ("props", "sys_flag"),
    [
        ("KEYS\x01" + " ".join(map(str, range(MAX_KEYS + 1))), 0),
        ("TRANSACTION_CHECK_TIMES\x01\u00b2", 0),
        ("A\x01" + "x" * 32_000, 0),
        ("A\x01x", int(SysFlag.TRANSACTION_PREPARED)),
    ],
)
async def test_a_reply_has_the_limits_of_a_send(bench: Bench, props: str, sys_flag: int) -> None:
    await bench.send(b"", "mine")
    ext = bench.send_ext("mine", properties=props) | {"f": str(sys_flag)}
    assert (await bench.ask(RequestCode.SEND_REPLY_MESSAGE_V2, ext, b"x")).code == ResponseCode.MESSAGE_ILLEGAL
    assert bench.store.reader.max_offset("mine", 0) == 1
