"""Requests about POP beside the messages themselves: progress and offsets while messages are in flight, limits."""

from __future__ import annotations

import base64
import json
import random
from typing import TYPE_CHECKING, Any

import pytest
from gantry_broker.broker.forward import ForwardedConnection
from gantry_broker.protocol import fastjson
from gantry_broker.protocol.bodies import MAX_ACKS, MAX_BITS, BatchAcks
from gantry_broker.protocol.codes import RequestCode, ResponseCode
from gantry_broker.protocol.fields import BodyError
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.message import decode_records
from gantry_broker.protocol.offset_tables import consume_stats_from_json

from tests.support.running import until

if TYPE_CHECKING:
    from tests.broker.conftest import Bench


def _pop_ext(**more: Any) -> dict[str, Any]:
    return {
        "consumerGroup": "G", "topic": "T", "queueId": 0, "maxMsgNums": 8, "invisibleTime": 60_000, "pollTime": 0,
        "bornTime": 0, "initMode": 0, **more,
    }  # fmt: skip


async def _pop(bench: Bench, **more: Any) -> tuple[Frame, list[bytes]]:
    answer = await bench.ask(RequestCode.POP_MESSAGE, _pop_ext(**more))
    return answer, [record.body for record in decode_records(answer.body)] if answer.body else []


def _handle(answer: Frame, offset: int) -> str:
    ext = answer.ext
    return f"{offset} {ext['popTime']} {ext['invisibleTime']} {ext['reviveQid']} 0 demo-a 0 {offset}"


async def _ack(bench: Bench, answer: Frame, offset: int) -> int:
    ext = {"consumerGroup": "G", "topic": "T", "queueId": 0, "offset": offset, "extraInfo": _handle(answer, offset)}
    return (await bench.ask(RequestCode.ACK_MESSAGE, ext)).code


async def _stats(bench: Bench, group: str = "G") -> tuple[int, int, int]:
    """(end of queue 0, the group's offset, the offset of its next pop)."""
    answer = await bench.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": group, "topic": "T"})
    table, _ = consume_stats_from_json(answer.body)
    [one] = [offset for queue, offset in table.items() if queue.queue_id == 0]
    return one.broker_offset, one.consumer_offset, one.pull_offset


async def test_progress_while_messages_are_in_flight(bench: Bench) -> None:
    """mqadmin shows brokerOffset - consumerOffset as Diff, and pullOffset - consumerOffset as Inflight."""
    for number in range(10):
        await bench.send(b"%d" % number)
    popped, _ = await _pop(bench)
    assert await _stats(bench) == (10, 0, 8)
    for offset in (1, 2, 5):
        assert await _ack(bench, popped, offset) == 0
    assert await _stats(bench) == (10, 0, 8)
    assert await _ack(bench, popped, 0) == 0
    assert await _stats(bench) == (10, 3, 8)
    for offset in (3, 4, 6, 7):
        assert await _ack(bench, popped, offset) == 0
    assert await _stats(bench) == (10, 8, 8)


@pytest.mark.parametrize("forced", ["true", "false"])
async def test_a_reset_while_messages_are_in_flight(bench: Bench, forced: str) -> None:
    """What was in flight belongs to nobody any more, and the next pop begins at the offset of the reset."""
    for number in range(6):
        await bench.send(b"%d" % number)
    popped, _ = await _pop(bench, maxMsgNums=4)
    reset = {"topic": "T", "group": "G", "timestamp": 0, "isForce": forced, "queueId": 0, "offset": 1}
    assert (await bench.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)).code == 0
    assert await _stats(bench) == (6, 1, 1)
    await _ack(bench, popped, 3)
    assert await _stats(bench) == (6, 1, 1)
    for outside in (-2, 7):
        answer = await bench.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {**reset, "offset": outside})
        assert answer.code == ResponseCode.SYSTEM_ERROR
    _, bodies = await _pop(bench)
    assert bodies == [b"1", b"2", b"3", b"4", b"5"]


async def test_skipping_what_waits(bench: Bench) -> None:
    for number in range(6):
        await bench.send(b"%d" % number)
    await _pop(bench, maxMsgNums=2)
    reset = {"topic": "T", "group": "G", "timestamp": -1, "isForce": "true", "queueId": 0}
    assert (await bench.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)).code == 0
    assert await _stats(bench) == (6, 6, 6)
    _, bodies = await _pop(bench)
    assert bodies == []
    await bench.send(b"new")
    _, bodies = await _pop(bench)
    assert bodies == [b"new"]


async def test_a_waiting_pop_of_a_forwarded_bundle_answers_at_once(bench: Bench) -> None:
    """The answers of a bundle leave together: none may wait for messages."""
    await bench.send(b"x")
    await _pop(bench)
    got: list[bytes] = []
    conn = ForwardedConnection(("127.0.0.1", 1), bytes(8), got.append)
    frame = bench.frame(RequestCode.POP_MESSAGE, _pop_ext(pollTime=20_000))
    bench.parts.processor.process(conn, [frame])  # type: ignore[arg-type]
    await until(lambda: bool(got), timeout_s=2)


@pytest.mark.parametrize("seed", range(5))
async def test_broken_fields_change_nothing(bench: Bench, seed: int) -> None:
    rng = random.Random(seed)
    await bench.send(b"x")
    await bench.send(b"y")
    popped, _ = await _pop(bench, maxMsgNums=1)
    good = {"consumerGroup": "G", "topic": "T", "queueId": 0, "offset": 0, "extraInfo": _handle(popped, 0)}
    evil = ["", " ", "-1", "9" * 30, "x", "\x00", "0 0 0 0 0 demo-a 0 0", "1 " * 8, "0 1 1 999 9 demo-a 0 0", "é" * 600]
    for _ in range(60):
        ext = dict(good)
        for name in rng.sample(sorted(ext), rng.randint(1, 3)):
            ext[name] = rng.choice(evil)
        code = rng.choice((RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME))
        answer = await bench.ask(code, {**ext, "invisibleTime": rng.choice(["1000", *evil])})
        assert answer.code != 0 or ext == good, ext
        assert len(answer.remark or "") < 2_000
    assert await _stats(bench) == (2, 0, 1)
    assert await _ack(bench, popped, 0) == 0


def _entry(**more: Any) -> dict[str, Any]:
    bits = base64.b64encode(b"\x01").decode()
    return {"c": "G", "t": "T", "r": "0", "so": 0, "q": 0, "rq": 0, "pt": 1, "it": 1, "b": bits, **more}


@pytest.mark.parametrize(
    "acks",
    [
        [_entry(b="*")],
        [_entry(b=base64.b64encode(b"\xff" * (MAX_BITS + 1)).decode())],
        [_entry(b=base64.b64encode(b"\xff" * MAX_BITS).decode())],
        [_entry()] * (MAX_ACKS + 1),
        [_entry(so="x")],
        [_entry(c=None)],
        ["x"],
        5,
    ],
)
def test_batches_have_limits(acks: Any) -> None:
    with pytest.raises(BodyError):
        BatchAcks.from_json({"brokerName": "demo-a", "acks": acks})


async def test_a_batch_acknowledges_some_of_a_pop(bench: Bench) -> None:
    for number in range(5):
        await bench.send(b"%d" % number)
    popped, _ = await _pop(bench)
    entry = _entry(
        b=base64.b64encode(bytes([0b00010011])).decode(), rq=int(popped.ext["reviveQid"]),
        pt=int(popped.ext["popTime"]), it=int(popped.ext["invisibleTime"]),
    )  # fmt: skip
    body = json.dumps({"brokerName": "demo-a", "acks": [entry]}).encode()
    assert (await bench.ask(RequestCode.BATCH_ACK_MESSAGE, body=body)).code == 0
    assert await _stats(bench) == (5, 2, 5)
    late = {**entry, "pt": entry["pt"] - 5, "it": 1, "b": base64.b64encode(bytes([0b00001101])).decode()}
    body = fastjson.dumps({"brokerName": "demo-a", "acks": [entry, late, {**entry, "q": 9}]})
    answer = await bench.ask(RequestCode.BATCH_ACK_MESSAGE, {"results": "true"}, body)
    assert answer.code == 0
    assert sorted(answer.ext["noEffect"].split(";")) == ["1:0", "1:2", "1:3", "2:0", "2:1", "2:4"]
    assert not (await bench.ask(RequestCode.BATCH_ACK_MESSAGE, body=body)).ext
    for name in ("so", "pt", "it", "rq"):
        body = fastjson.dumps({"brokerName": "demo-a", "acks": [{**entry, name: -1}, entry]})
        answer = await bench.ask(RequestCode.BATCH_ACK_MESSAGE, {"results": "true"}, body)
        assert answer.code == 0, "one entry that is wrong refuses no other"
        assert {one.partition(":")[0] for one in answer.ext["noEffect"].split(";")} == {"0"}
    far = {**entry, "b": base64.b64encode(b"\xff").decode(), "q": 9}
    body = fastjson.dumps({"brokerName": "demo-a", "acks": [far]})
    assert (await bench.ask(RequestCode.BATCH_ACK_MESSAGE, body=body)).code == 0
    assert await _stats(bench) == (5, 2, 5)


async def test_a_group_whose_retry_topic_can_have_no_name_is_refused(bench: Bench) -> None:
    topic = "T" * 100
    await bench.send(b"x", topic=topic)
    for size, code in ((147, ResponseCode.SUCCESS), (148, ResponseCode.INVALID_PARAMETER)):
        answer, _ = await _pop(bench, topic=topic, consumerGroup="G" * size)
        assert answer.code == code
    assert answer.remark is not None
    assert "would have 256 characters, at most 255" in answer.remark
