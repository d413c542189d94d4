"""A message that was received by POP and sent on carries the handle of that delivery: it is not its own."""

from __future__ import annotations

import random

import pytest
from gantry_broker.broker.pop.finding import without_handles
from gantry_broker.broker.pop.requests import AckResult, Pop
from gantry_broker.protocol.codes import Prop
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.message import decode_records, encode_record, pack_host
from gantry_broker.protocol.pop_handle import Handle, of_delivery
from gantry_broker.proxy.receiving import read_pop
from gantry_broker.store.types import Put

from tests.pop.popbench import PopBench

STALE = "5 1799999990000 10000 0 0 demo-a 0 5"


async def _stored_before(bench: PopBench, *bodies: bytes) -> None:
    """Messages that a former release has stored with a handle."""
    bench.broker.creation.ensure_topic("T", 4, 6)
    text = f"a\x01b\x02{Prop.POP_CK}\x01{STALE}\x02c\x01d".encode()
    bench.append(*[Put("T", 0, 0, 0, bench.ms, bench.wire.peer_bytes, body, text) for body in bodies])
    await bench.settle()


async def test_a_message_that_is_sent_on_is_acknowledged_by_its_own_handle(bench: PopBench) -> None:
    await bench.sends("a")
    await bench.pop(invisible_ms=10_000)
    await bench.pass_ms(10_100)
    (received,) = await bench.pop(invisible_ms=10_000)
    assert Prop.POP_CK in received.props, "it is of the retry topic"
    text = "\x02".join(f"{name}\x01{value}" for name, value in received.props.items())
    await bench.sends("on", topic="T", properties=text)
    (again,) = await bench.pop()
    assert (again.body, again.handle.offset) == (b"on", 1)
    assert not {Prop.POP_CK, Prop.FIRST_POP_TIME, Prop.POP_ORIGIN} & again.props.keys()
    assert await bench.ack(again) == [AckResult.OK]
    assert bench.offset() == 2
    assert await bench.ack(received) == [AckResult.OK]


@pytest.mark.parametrize("order", [False, True])
async def test_a_stored_handle_is_not_delivered(bench: PopBench, order: bool) -> None:
    await _stored_before(bench, b"a", b"b")
    peeked = decode_records((bench.pop_service.peek(_request())).data)
    assert [m.props.get(Prop.POP_CK) for m in peeked] == [None, None]
    found = await bench.pop(order=order, invisible_ms=10_000)
    assert [m.props for m in found] == [{"a": "b", "c": "d"}] * 2
    assert [m.handle.offset for m in found] == [0, 1]
    assert await bench.ack(found[0]) == [AckResult.OK]
    await bench.pass_ms(10_100)
    (again,) = await bench.pop(order=order)
    assert (again.body, again.handle.pop_ms) == (b"b", bench.ms)
    assert await bench.ack(again) == [AckResult.OK]


def _request() -> Pop:
    return Pop(group="G", topic="T")


def _record(props: bytes, offset: int = 7, body: bytes = b"body", topic: bytes = b"T") -> bytes:
    return encode_record(
        topic=topic, body=body, properties=props, queue_id=0, queue_offset=offset, phys_offset=99, born_ms=1,
        born_host=pack_host("127.0.0.1", 1), store_ms=1, store_host=pack_host("127.0.0.1", 1),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_records_lose_the_handle_alone(seed: int) -> None:
    dice = random.Random(seed)
    records, bare = [], []
    for offset in range(dice.randrange(1, 8)):
        body = dice.choice([b"x", b"POP_CK\x01", b"\x02POP_CK\x01y\x02"])
        other = dice.choice([b"a\x01b", b"xPOP_CK\x01v", b""])
        handle = dice.choice([b"", b"POP_CK\x01" + STALE.encode(), b"POP_CK\x01"])
        records.append(_record(b"\x02".join(filter(None, (other, handle))), offset, body))
        bare.append(_record(other, offset, body))
    assert without_handles(b"".join(records)) == b"".join(bare)


@pytest.mark.parametrize("seed", range(20))
def test_a_handle_counts_for_its_own_delivery(seed: int) -> None:
    dice = random.Random(seed)
    handle = Handle(*(dice.randrange(9) for _ in range(4)), dice.randrange(3), "demo-a", dice.randrange(9), 7)
    shown = str(handle)
    mine = handle.pop_ms, handle.invisible_ms, "demo-a", 7
    assert of_delivery(shown, *mine) == shown
    assert of_delivery(shown.rpartition(" ")[0], *mine) == shown, "RocketMQ leaves the offset to the record"
    for at, other in enumerate((handle.pop_ms + 1, handle.invisible_ms + 1, "demo-b", 8)):
        assert of_delivery(shown, *(other if at == n else value for n, value in enumerate(mine))) is None  # type: ignore[arg-type]
    for text in (None, "", "x", shown + " 1 2", shown.replace("demo-a", "\u00b2"), shown.replace(" ", "\uff11 ", 1)):
        assert of_delivery(text, *mine) is None


def test_the_proxy_makes_the_handle_of_a_message_that_was_sent_on() -> None:
    ext = {
        "popTime": "1800000000000", "invisibleTime": "10000", "reviveQid": "0", "startOffsetInfo": "0 0 7",
        "restNum": "0", "msgOffsetInfo": "0 0 7",
    }  # fmt: skip
    mine = "7 1800000000000 10000 0 2 demo-a 0 7"
    for stored, wanted in ((STALE, "7 1800000000000 10000 0 0 demo-a 0 7"), (mine, mine)):
        answer = Frame(0, 1, ext=ext, body=_record(f"POP_CK\x01{stored}".encode()))
        (item,) = read_pop(answer, "demo-a").items
        assert item.handle == f"{wanted} 99"
