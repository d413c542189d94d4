"""Answers to pulls leave at once while they are few, and together while they are many."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest
from gantry_broker.broker.pull.answers import found_head
from gantry_broker.broker.pull.checks import Pull
from gantry_broker.broker.pull.pace import CALM, MOST_MS, WakePace
from gantry_broker.protocol.codes import FLAG_RESPONSE, RequestCode, ResponseCode, SerializeType
from gantry_broker.protocol.frame import Frame, FrameDecoder, RepeatedPull, encode_frame
from gantry_broker.protocol.message import decode_records
from gantry_broker.store.read import LogPieces
from gantry_broker.timeslice import SLICE_S
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.broker.conftest import Bench, Wire

_OFFSETS = st.integers(0, 2**63 - 1)


def waits(seed: int, rate: float, seconds: float, pace: WakePace, start_s: float = 0.0) -> list[int]:
    """The waits of answers that come at random, so many a second."""
    drawn = random.Random(seed)
    now_s, found = start_s, []
    while now_s < start_s + seconds:
        now_s += drawn.expovariate(rate)
        pace.note(1)
        found.append(pace.wait_ms(now_s))
    return found


@settings(deadline=None)
@given(st.integers(0, 2**32), st.floats(1, CALM * 0.5))
def test_a_calm_broker_answers_at_once(seed: int, rate: float) -> None:
    assert set(waits(seed, rate, 1.0, WakePace())) == {0}


@settings(deadline=None)
@given(st.integers(0, 2**32), st.floats(CALM * 6, CALM * 30))
def test_a_busy_broker_gathers_and_forgets_within_a_tenth_of_a_second(seed: int, rate: float) -> None:
    pace = WakePace()
    busy = waits(seed, rate, 0.3, pace)
    assert set(busy[len(busy) // 2 :]) == {MOST_MS}
    assert pace.wait_ms(0.5) == 0, "nothing came for 0.2 s"


@settings(deadline=None)
@given(st.integers(0, 2**32), st.floats(CALM, CALM * 30), st.floats(1, CALM * 30))
def test_the_average_wait_stays_below_five_milliseconds(seed: int, first: float, second: float) -> None:
    pace = WakePace()
    found = waits(seed, first, 0.2, pace) + waits(seed + 1, second, 0.2, pace, 0.2)
    assert 0 <= min(found) <= max(found) <= MOST_MS < 5


def test_the_wait_grows_with_the_rate() -> None:
    averages = []
    for rate in (CALM // 2, 3 * CALM // 2, 5 * CALM // 2, 7 * CALM // 2, 6 * CALM):
        found = waits(7, rate, 1.0, WakePace())[-200:]
        averages.append(round(sum(found) / len(found)))
    assert averages == [0, 1, 2, 3, 4]


@settings(deadline=None)
@given(st.integers(0, 2**31 - 1), _OFFSETS, _OFFSETS, _OFFSETS, st.sampled_from([0, 1, 2, 7]), st.binary(max_size=40))
def test_the_short_way_writes_the_same_frame(
    opaque: int, following: int, first: int, last: int, suggest: int, records: bytes
) -> None:
    for serialize in SerializeType:
        fields = {
            "suggestWhichBrokerId": str(suggest), "nextBeginOffset": str(following), "minOffset": str(first),
            "maxOffset": str(last),
        }  # fmt: skip
        frame = Frame(ResponseCode.SUCCESS, opaque, FLAG_RESPONSE, fields, records, "FOUND", int(serialize))
        head = found_head(opaque, int(serialize), suggest, following, first, last, len(records))
        assert head + records == encode_frame(frame)


def be_busy(bench: Bench) -> None:
    """Lets the broker believe that it answers many pulls."""
    pace = bench.broker.pulls._pace
    pace.wait_ms(asyncio.get_running_loop().time() - 0.03)
    pace.note(100_000)


async def test_a_busy_broker_answers_many_messages_at_the_next_turn(bench: Bench) -> None:
    await bench.send(b"first")
    wire = Wire(40_001)
    held = bench.frame(11, bench.pull_ext(offset=1, sysFlag=6, suspendTimeoutMillis=10_000))
    bench.give(held, wire=wire)
    be_busy(bench)
    for n in range(3):
        await bench.send(b"m%d" % n)
    for _ in range(10):
        await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await wire.arrived.wait()
    [answer] = wire.frames
    assert [r.body for r in decode_records(answer.body)] == [b"m0", b"m1", b"m2"]
    assert answer.ext["nextBeginOffset"] == "4"


async def test_a_pull_that_finds_few_messages_waits_for_the_turn_and_more_of_them(bench: Bench) -> None:
    await bench.send(b"first")
    be_busy(bench)
    wire = Wire(40_001)
    frame = bench.frame(11, bench.pull_ext(offset=0, sysFlag=6, suspendTimeoutMillis=10_000))
    bench.give(frame, wire=wire)
    assert wire.frames == []
    assert wire.later, "more pulls of this peer are read together"
    await bench.send(b"second")
    async with asyncio.timeout(5):
        await wire.arrived.wait()
    [answer] = wire.frames
    assert [r.body for r in decode_records(answer.body)] == [b"first", b"second"]
    assert not wire.later


async def test_a_peer_that_pulls_within_a_turn_is_read_again_after_the_next_one(bench: Bench) -> None:
    await bench.send(b"first")
    be_busy(bench)
    wire = Wire(40_001)
    bench.give(bench.frame(11, bench.pull_ext(sysFlag=6, suspendTimeoutMillis=10_000)), wire=wire)
    bench.broker.pulls._begin_turn()
    assert not wire.later
    bench.give(bench.frame(11, bench.pull_ext(sysFlag=6, suspendTimeoutMillis=10_000)), wire=wire)
    assert wire.later
    for number in range(500):
        if not wire.later:
            break
        assert number < 499, "nobody reads this peer again"
        await asyncio.sleep(0.01)
    assert len(wire.frames) == 2


async def test_a_connection_with_sends_is_read_at_once(bench: Bench) -> None:
    await bench.send(b"first")
    be_busy(bench)
    frame = bench.frame(11, bench.pull_ext(offset=0, sysFlag=6, suspendTimeoutMillis=10_000))
    bench.give(frame)
    assert not bench.wire.later
    assert [r.body for r in decode_records((await bench.answer(frame.opaque)).body)] == [b"first"]


async def test_a_pull_that_finds_all_it_may_have_or_does_not_wait_is_answered_at_once(bench: Bench) -> None:
    for n in range(4):
        await bench.send(b"m%d" % n)
    be_busy(bench)
    wire = Wire(40_001)
    for number, fields in enumerate([
        {"sysFlag": 6, "suspendTimeoutMillis": 10_000, "maxMsgNums": 4},
        {"sysFlag": 4},
        {"sysFlag": 6, "suspendTimeoutMillis": 0},
        {"sysFlag": 6, "suspendTimeoutMillis": 10_000, "subscription": "A"},
    ]):  # fmt: skip
        bench.give(bench.frame(11, bench.pull_ext(**fields)), wire=wire)
        assert len(wire.frames) == number + 1, fields


async def test_a_change_of_role_answers_what_waits_for_the_turn(bench: Bench) -> None:
    await bench.send(b"first")
    be_busy(bench)
    wire = Wire(40_001)
    bench.give(bench.frame(11, bench.pull_ext(offset=0, sysFlag=6, suspendTimeoutMillis=10_000)), wire=wire)
    assert wire.frames == []
    await bench.broker.pulls.settle_all()
    [answer] = wire.frames
    assert [r.body for r in decode_records(answer.body)] == [b"first"]
    await asyncio.sleep(0.02)
    assert len(wire.frames) == 1


class Repeating:
    """A client whose pulls the broker recognises by their layout."""

    def __init__(self, bench: Bench, **fields: Any) -> None:
        self.bench = bench
        self.decoder = FrameDecoder()
        for _ in range(40):
            self.frame(bench.pull_ext(**fields))

    def frame(self, fields: dict[str, Any]) -> Frame:
        [frame] = self.decoder.feed(encode_frame(self.bench.frame(11, fields)))
        return frame

    async def ask(self, fields: dict[str, Any]) -> Frame:
        frame = self.frame(fields)
        self.bench.give(frame)
        return await self.bench.answer(frame.opaque)


@pytest.mark.parametrize("repeating", [False, True])
async def test_cached_checks_of_pulls_end_with_a_change(bench: Bench, repeating: bool) -> None:
    client = Repeating(bench)
    assert type(client.frame(bench.pull_ext())) is RepeatedPull

    async def ask(fields: dict[str, Any]) -> Frame:
        return await (client.ask(fields) if repeating else bench.ask(11, fields))

    await bench.send(b"first")
    for _ in range(3):
        assert (await ask(bench.pull_ext())).code == ResponseCode.SUCCESS
    topic = {"topic": "T", "defaultTopic": "", "readQueueNums": 4, "writeQueueNums": 4, "perm": 2,
             "topicFilterType": "SINGLE_TAG"}  # fmt: skip
    assert (await bench.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic)).code == ResponseCode.SUCCESS
    assert (await ask(bench.pull_ext())).code == ResponseCode.NO_PERMISSION
    assert (await bench.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, {**topic, "perm": 6})).code == ResponseCode.SUCCESS
    for _ in range(3):
        assert (await ask(bench.pull_ext())).code == ResponseCode.SUCCESS
    for fields in ({"queueId": 4}, {"queueId": "1_0"}, {"queueOffset": "\u0661"}, {"commitOffset": "x"}):
        assert (await ask({**bench.pull_ext(), **fields})).code == ResponseCode.SYSTEM_ERROR, fields


async def test_repeated_pulls_are_answered_as_others(bench: Bench) -> None:
    """Also those with a field that the check reads alone, with a filter, and with a field that is wrong."""
    for queue in range(3):
        await bench.send(b"m%d" % queue, queueId=queue)
    for more in (
        {}, {"maxMsgBytes": 1_000}, {"subscription": "A"}, {"subscription": "B"}, {"maxMsgBytes": "x"}, {"sysFlag": 5},
        {"expressionType": "SQL92", "subscription": "a > 5"}, {"topic": "unknown"},
    ):  # fmt: skip
        client = Repeating(bench, **more)
        recognised = type(client.frame(bench.pull_ext(**more))) is RepeatedPull
        assert recognised == (more.get("expressionType") != "SQL92"), more
        for _ in range(3):
            for fields in ({"queueId": 1}, {"queueId": 2, "queueOffset": 1}, {"queueId": 99}, {"commitOffset": 7}):
                wanted = await bench.ask(11, bench.pull_ext(**more, **fields))
                answer = await client.ask(bench.pull_ext(**more, **fields))
                wanted.opaque = answer.opaque
                assert answer == wanted, (more, fields)


async def test_a_disk_that_fails_between_two_slices_leaves_no_pull_unanswered(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More pulls of a queue than one slice answers; the rest meets an error."""
    await bench.send(b"first")
    wire = Wire(40_001)
    for _ in range(40):
        bench.give(bench.frame(11, bench.pull_ext(offset=1, sysFlag=6, suspendTimeoutMillis=10_000)), wire=wire)
    pulls = bench.broker.pulls
    assert wire.frames == []
    attempt, tried = pulls._attempt, 0

    def attempt_on_a_bad_disk(made: Pull, pieces: LogPieces, grew: float) -> bool:
        nonlocal tried
        tried += 1
        if tried > 1:
            raise OSError(5, "a planned error")
        time.sleep(SLICE_S * 1.1)
        return attempt(made, pieces, grew)

    monkeypatch.setattr(pulls, "_attempt", attempt_on_a_bad_disk)
    await bench.send(b"second")
    for _ in range(10):
        await asyncio.sleep(0)
    assert (len(wire.frames), tried) == (1, 2)
    monkeypatch.undo()
    pulls.expire(bench.broker.clock.now_ms())
    async with asyncio.timeout(5):
        while len(wire.frames) < 40:
            wire.arrived.clear()
            await wire.arrived.wait()


async def test_pulls_of_one_read_and_changes_of_offsets_keep_their_order(bench: Bench) -> None:
    for n in range(3):
        await bench.send(b"m%d" % n)
    await bench.ask(11, bench.pull_ext(sysFlag=5))  # From now on the check of such a pull is known.
    group = {"consumerGroup": "G", "topic": "T", "queueId": 0}
    for first, second in ((1, 2), (2, 1)):
        pulls = [bench.frame(11, bench.pull_ext(offset=n, sysFlag=5, commitOffset=first)) for n in range(2)]
        setting = bench.frame(RequestCode.UPDATE_CONSUMER_OFFSET, {**group, "commitOffset": second})
        for frames, last in (([*pulls, setting], second), ([setting, *pulls], first)):
            bench.give(*frames)
            assert (await bench.ask(RequestCode.QUERY_CONSUMER_OFFSET, group)).ext["offset"] == str(last)
        bodies = [[r.body for r in decode_records((await bench.answer(pull.opaque)).body)] for pull in pulls]
        assert bodies == [[b"m0", b"m1", b"m2"], [b"m1", b"m2"]]


async def test_a_pull_that_fails_costs_the_others_of_its_read_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.send(b"first")
    await bench.ask(11, bench.pull_ext())
    store = bench.broker.store
    max_offset, found = store.reader.max_offset, LogPieces.try_get

    def bad_index(topic: str, queue_id: int) -> int:
        if queue_id == 1:
            raise OSError(5, "a planned error")
        return max_offset(topic, queue_id)

    def bad_log(pieces: LogPieces, topic: str, queue_id: int, *rest: Any) -> Any:
        if queue_id == 2:
            raise OSError(5, "a planned error")
        return found(pieces, topic, queue_id, *rest)

    monkeypatch.setattr(store.reader, "max_offset", bad_index)
    monkeypatch.setattr(LogPieces, "try_get", bad_log)
    held = {"sysFlag": 6, "suspendTimeoutMillis": 10_000, "offset": 0}
    await bench.ask(11, bench.pull_ext(**held))
    pulls = [bench.frame(11, bench.pull_ext(queueId=queue, **held)) for queue in (0, 1, 2, 0)]
    bench.give(*pulls)
    codes = [(await bench.answer(pull.opaque)).code for pull in pulls]
    bad = ResponseCode.SYSTEM_ERROR
    assert codes == [ResponseCode.SUCCESS, bad, bad, ResponseCode.SUCCESS]


async def test_the_rest_of_a_turn_is_tried_together_in_the_next_pass(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for queue in range(4):
        await bench.send(b"first", queueId=queue)
    wires = [Wire(40_001 + queue) for queue in range(4)]
    for queue, wire in enumerate(wires):
        fields = bench.pull_ext(offset=1, queueId=queue, sysFlag=6, suspendTimeoutMillis=10_000)
        bench.give(bench.frame(11, fields), wire=wire)
    pulls = bench.broker.pulls
    pulls._turn_is_set = True  # It begins when this test begins it.
    for queue in range(4):
        await bench.send(b"second", queueId=queue)
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(pulls._gathered) == 4
    attempt, together, reads = pulls._attempt, bench.broker.store.reader.together, 0

    def slow_attempt(*args: Any) -> bool:
        monkeypatch.setattr(pulls, "_attempt", attempt)
        time.sleep(SLICE_S * 1.1)
        return attempt(*args)

    def counted() -> LogPieces:
        nonlocal reads
        reads += 1
        return together()

    monkeypatch.setattr(pulls, "_attempt", slow_attempt)
    pulls._end_turn()
    assert [len(wire.frames) for wire in wires] == [1, 0, 0, 0], "the time of this pass is over"
    monkeypatch.setattr(bench.broker.store.reader, "together", counted)
    for wire in wires:
        async with asyncio.timeout(5):
            await wire.arrived.wait()
    assert reads == 1, "the rest shares a read of the log"
    assert len(bench.broker.held) == 0
