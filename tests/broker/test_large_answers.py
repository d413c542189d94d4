"""A pull that asks for a large answer gets one, and no other pull does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from gantry_broker.broker.pull.service import LARGE_BYTES, LARGE_COUNT
from gantry_broker.protocol.codes import RequestCode
from gantry_broker.protocol.message import BatchItem, decode_records, encode_batch

from tests.broker.conftest import Bench

LARGE = {"gantryLarge": "true"}


async def pulled(bench: Bench, at: int, fields: Mapping[str, Any]) -> tuple[int, int]:
    """Pull twice, since the second pull repeats the first one, and return the messages and bytes of the answer."""
    answers = [
        await bench.ask(RequestCode.PULL_MESSAGE, bench.pull_ext(offset=at, **{"maxMsgNums": 4_096, **fields}))
        for _ in range(2)
    ]
    [first, second] = [(answer.code, answer.body, answer.ext["nextBeginOffset"]) for answer in answers]
    assert first == second
    code, body, following = first
    assert code == 0
    offsets = [record.queue_offset for record in decode_records(body)]
    assert offsets == list(range(at, int(following)))
    return len(offsets), len(body)


async def fill(bench: Bench, count: int, size: int) -> None:
    body = encode_batch([BatchItem(b"b" * size, b"UNIQ_KEY\x01%032X" % number) for number in range(count)])
    assert (await bench.ask(RequestCode.SEND_BATCH_MESSAGE, bench.send_ext(batch=True), body)).code == 0


async def test_by_count(bench: Bench) -> None:
    for _ in range(3):
        await fill(bench, 700, 10)
    for at in (0, 1, 700):
        assert (await pulled(bench, at, LARGE))[0] == LARGE_COUNT
        assert (await pulled(bench, at, {}))[0] == 32
        assert (await pulled(bench, at, {"gantryLarge": "false"}))[0] == 32
    assert (await pulled(bench, 2_000, LARGE))[0] == 100
    assert (await pulled(bench, 2_000, LARGE | {"maxMsgNums": 50}))[0] == 50


async def test_by_bytes(bench: Bench) -> None:
    for _ in range(10):
        await fill(bench, 4, 50_000)
    count, size = await pulled(bench, 0, LARGE)
    assert LARGE_BYTES - 51_000 < size <= LARGE_BYTES
    assert count == (await pulled(bench, 3, LARGE))[0]
    assert (await pulled(bench, 0, {}))[1] <= 262_144


async def test_below_a_filter(bench: Bench) -> None:
    await fill(bench, 2_000, 10)
    answer = await bench.ask(
        RequestCode.PULL_MESSAGE, bench.pull_ext(maxMsgNums=4_096, sysFlag=4, subscription="A", **LARGE)
    )
    assert not answer.body  # None has a tag.


@pytest.mark.parametrize("value", ["1", "", "yes"])
async def test_another_value_is_refused(bench: Bench, value: str) -> None:
    await fill(bench, 1, 10)
    answer = await bench.ask(RequestCode.PULL_MESSAGE, bench.pull_ext(gantryLarge=value))
    assert answer.code != 0
    assert "gantryLarge" in (answer.remark or "")


async def test_larger_settings_hold(make_bench: Any) -> None:
    other = make_bench(settings={"maxTransferCountOnMessageInMemory": 1_500})
    await other.lead()
    await fill(other, 2_000, 10)
    assert [(await pulled(other, 0, fields))[0] for fields in (LARGE, {})] == [1_500, 1_500]
