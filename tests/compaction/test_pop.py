"""POP of a compacted topic: what is given, and what becomes of a message that is removed while a consumer has it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from gantry_broker.broker.pop.requests import AckResult
from gantry_broker.protocol.codes import RequestCode

from tests.pop.popbench import PopBench

INVISIBLE_MS = 10_000


class CompactedBench(PopBench):
    """A broker with a compacted topic `T` of one queue."""

    async def start(self) -> None:
        await self.lead()
        fields = {"topic": "T", "defaultTopic": "", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
                  "topicFilterType": "SINGLE_TAG", "attributes": "+cleanup.policy=COMPACTION"}  # fmt: skip
        assert (await self.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)).code == 0

    async def write(self, *pairs: tuple[str, str]) -> None:
        for key, body in pairs:
            await self.sends(body, queueId=0, properties=f"KEYS\x01{key}\x02")

    async def compact(self) -> None:
        """Run passes until nothing is left to do."""
        compaction = self.broker.compaction
        for key in compaction._last:
            compaction._last[key] = self.broker.clock.now_ms() - 100
        compaction.look()
        if compaction._task is not None:
            await asyncio.wait([compaction._task])
        await self.settle()
        assert compaction.error == ""


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[CompactedBench]:
    made = CompactedBench(tmp_path, settings={"compactionScheduleInternal": 100})
    await made.start()
    yield made
    await made.close()


async def test_a_new_group_is_given_the_newest_of_each_key_once(bench: CompactedBench) -> None:
    await bench.write(*((f"k{number % 5}", f"{number}") for number in range(40)))
    await bench.compact()
    await bench.write(("k1", "new"), ("k2", "newer"))
    found = await bench.pop(max_messages=32)
    while more := await bench.pop(max_messages=32):
        found += more
    assert [m.body for m in found] == [b"35", b"36", b"37", b"38", b"39", b"new", b"newer"]
    assert [m.offset for m in found] == [35, 36, 37, 38, 39, 40, 41]
    await bench.ack(*found)
    assert bench.offset() == 42
    await bench.pass_ms(60_000)
    assert await bench.bodies() == []


async def test_a_held_message_that_is_removed_is_not_given_again(bench: CompactedBench) -> None:
    await bench.write(("a", "a1"), ("b", "b1"), ("c", "c1"))
    held = await bench.pop(max_messages=3, invisible_ms=INVISIBLE_MS)
    assert [m.body for m in held] == [b"a1", b"b1", b"c1"]
    await bench.write(("a", "a2"), ("c", "c2"))
    await bench.compact()
    assert await bench.ack(held[2]) == [AckResult.OK], "also after it was removed"
    await bench.fail_over()
    await bench.pass_ms(INVISIBLE_MS + 100)
    again = await bench.pop(max_messages=32, invisible_ms=INVISIBLE_MS)
    while more := await bench.pop(max_messages=32, invisible_ms=INVISIBLE_MS):
        again += more
    assert sorted((m.body, m.times) for m in again) == [(b"a2", 0), (b"b1", 1), (b"c2", 0)]
    await bench.ack(*again)
    assert bench.offset() == 5
    await bench.pass_ms(60_000)
    assert await bench.bodies() == []


async def test_a_retry_may_bring_an_older_message_after_a_newer_one(bench: CompactedBench) -> None:
    """It is a message of the retry topic, which is not compacted."""
    await bench.write(("a", "a1"))
    await bench.pop(invisible_ms=INVISIBLE_MS)
    await bench.pass_ms(INVISIBLE_MS + 100)
    await bench.write(("a", "a2"))
    await bench.compact()
    found = await bench.pop(max_messages=32, invisible_ms=INVISIBLE_MS)
    while more := await bench.pop(max_messages=32, invisible_ms=INVISIBLE_MS):
        found += more
    assert sorted((m.body, m.times) for m in found) == [(b"a1", 1), (b"a2", 0)]
