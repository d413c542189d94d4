"""Pops, acknowledgements, renewals and expiry of one broker."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.broker.errors import RequestRejected
from gantry_broker.broker.pop import log as pop_log
from gantry_broker.broker.pop import service as pop_service
from gantry_broker.broker.pop.finding import Finder
from gantry_broker.broker.pop.requests import AckResult, Pop, PopStatus
from gantry_broker.broker.pop.waiting import WaitingPops
from gantry_broker.protocol.pop_handle import BadHandle, Handle

from tests.pop.popbench import PopBench
from tests.pop.world import World
from tests.support.running import until


async def test_a_message_is_popped_once_and_acknowledged(bench: PopBench) -> None:
    await bench.sends("a", "b", "c")
    first = await bench.pop(max_messages=2)
    assert [m.body for m in first] == [b"a", b"b"]
    assert await bench.bodies() == [b"c"]
    assert (await bench.popped()).status is PopStatus.POLLING_TIMEOUT
    assert bench.offset() == 0
    assert await bench.ack(first[0]) == [AckResult.OK]
    assert bench.offset() == 1
    assert await bench.ack(first[1], first[0]) == [AckResult.OK, AckResult.OK]
    assert bench.offset() == 2


async def test_what_is_not_acknowledged_goes_to_the_retry_topic_once(bench: PopBench) -> None:
    await bench.sends("a", "b")
    first = await bench.pop(invisible_ms=10_000)
    await bench.ack(first[0])
    await bench.pass_ms(9_000)
    assert await bench.bodies() == []
    await bench.pass_ms(1_100)
    assert bench.offset() == 2
    again = await bench.pop(invisible_ms=10_000)
    assert [(m.body, m.times, m.topic, m.handle.kind) for m in again] == [(b"b", 1, "T", 2)]
    assert bench.store.reader.max_offset("%RETRY%G+T", 0) == 1
    assert await bench.ack(first[1]) == [AckResult.INVALID]
    assert await bench.ack(again[0]) == [AckResult.OK]
    await bench.pass_ms(60_000)
    assert await bench.bodies() == []
    assert bench.offset(topic="%RETRY%G+T") == 1


async def test_a_renewed_message_stays_invisible(bench: PopBench) -> None:
    await bench.sends("a", "b")
    first = await bench.pop(invisible_ms=10_000)
    await bench.pass_ms(5_000)
    handle = await bench.change(first[0], 20_000)
    assert handle.visible_ms == bench.ms + 20_000
    await bench.pass_ms(6_000)
    assert await bench.bodies() == [b"b"]
    await bench.pass_ms(14_100)
    assert await bench.bodies() == [b"a"]
    assert await bench.ack(handle) == [AckResult.INVALID]
    with pytest.raises(BadHandle):
        await bench.change(first[0], 20_000)


async def test_dead_letters_after_the_last_retry(bench: PopBench) -> None:
    await bench.sends("a")
    limit = bench.broker.meta.working.groups["G"].retry_max_times
    for times in range(limit + 1):
        found = await bench.pop(invisible_ms=10_000)
        assert [m.times for m in found] == [times]
        await bench.pass_ms(10_100)
    assert await bench.bodies() == []
    assert bench.store.reader.max_offset("%DLQ%G", 0) == 1
    (dead,) = await bench.pop(topic="%DLQ%G")
    assert dead.props["DLQ_ORIGIN_TOPIC"] == "T"
    assert dead.times == limit + 1


async def test_state_after_a_failover(bench: PopBench) -> None:
    await bench.sends(*"abcdef")
    first = await bench.pop(max_messages=4, invisible_ms=30_000)
    await bench.ack(first[0], first[2])
    renewed = await bench.change(first[3], 50_000)
    before = bench.broker.pop.messages_in_flight
    await bench.fail_over()
    assert bench.broker.pop.messages_in_flight == before == 2
    assert await bench.bodies() == [b"e", b"f"]
    assert await bench.ack(first[0], first[1], renewed) == [AckResult.OK] * 3
    assert bench.offset() == 4
    await bench.pass_ms(100_000)
    assert sorted(await bench.bodies()) == [b"e", b"f"]


async def test_whole_state_in_the_log(bench: PopBench) -> None:
    for number in range(40):
        await bench.sends(str(number), queueId=number % 4)
    first = await bench.pop(max_messages=20, invisible_ms=30_000)
    await bench.ack(*first[::3])
    await bench.change(first[1], 40_000)
    await bench.settle()
    while bench.broker.pop.write_whole():
        pass
    assert bench.broker.meta.working.offset("rmq_sys_GANTRY_POP", "CID_RMQ_SYS_GANTRY_POP", 0) > 0
    queues = {k: (list(q.unfinished()), q.next, dict(q.moved)) for k, q in bench.broker.pop._log.state.queues.items()}
    bench.broker.changes.flush_offsets()
    await bench.fail_over()
    assert bench.broker.pop._log._since_whole < 10
    assert queues == {
        k: (list(q.unfinished()), q.next, dict(q.moved)) for k, q in bench.broker.pop._log.state.queues.items()
    }


async def test_a_waiting_pop_gets_the_next_message(bench: PopBench) -> None:
    await bench.sends("x")
    await bench.bodies()
    waiting = asyncio.create_task(bench.pop(poll_ms=5_000))
    await bench.settle()
    assert bench.broker.pop.waiting("G", "T") == 1
    await bench.sends("a", queueId=3)
    assert [m.body for m in await waiting] == [b"a"]
    assert bench.broker.pop.waiting("G", "T") == 0


async def test_order(bench: PopBench) -> None:
    await bench.sends("a", "b", "c")
    first = await bench.pop(order=True, max_messages=2, invisible_ms=10_000, attempt_id="one")
    assert [m.body for m in first] == [b"a", b"b"]
    assert first[0].handle.orderly
    assert await bench.bodies(order=True) == []
    again = await bench.pop(order=True, max_messages=2, attempt_id="one", invisible_ms=10_000)
    assert [(m.body, m.times) for m in again] == [(b"a", 0), (b"b", 0)]
    await bench.pass_ms(10_100)
    again = await bench.pop(order=True, max_messages=2, attempt_id="two", invisible_ms=10_000)
    assert [(m.body, m.times) for m in again] == [(b"a", 1), (b"b", 1)]
    assert await bench.ack(again[0], again[1]) == [AckResult.OK] * 2
    assert await bench.bodies(order=True) == [b"c"]
    assert bench.offset() == 2


def _asks(bench: PopBench, **fields: Any) -> asyncio.Task[tuple[bool, bool]]:
    request = Pop(**{"group": "G", "topic": "T", "poll_ms": 60_000, **fields})
    return asyncio.create_task(bench.pop_service.has_messages(request))


async def test_notifications_cost_nothing_until_a_message_comes(
    bench: PopBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.sends("x", "other", topic="Other")
    bench.broker.creation.ensure_topic("T", 1_024, 6)
    looks: list[tuple[str, int]] = []
    look = Finder.has_messages

    def counted(self: Finder, request: Pop, place: tuple[str, int], now_ms: int) -> bool:
        looks.append(place)
        return look(self, request, place, now_ms)

    monkeypatch.setattr(Finder, "has_messages", counted)
    asks = [_asks(bench, owners=(number,)) for number in range(100)]
    asks += [_asks(bench, queue_id=number, owners=(number,)) for number in range(20)]
    await until(lambda: len(looks) >= 100 * 1_024 + 20, timeout_s=30)
    await bench.settle()
    looks.clear()
    for number in range(50):
        await bench.sends(f"{number}", topic="Other")
    await bench.settle()
    assert looks == []
    await bench.sends("a", queueId=7)
    assert await asyncio.wait_for(asyncio.gather(*asks[:100], asks[107]), 10) == [(True, False)] * 101
    assert len(looks) <= 120
    assert sum(ask.done() for ask in asks) == 101
    assert bench.broker.pop.waiting("G", "T") == 0, "POLLING_INFO counts pops alone"
    for ask in asks:
        ask.cancel()
    await asyncio.gather(*asks, return_exceptions=True)
    assert len(bench.pop_service._notified) == 0


async def test_a_notification_of_an_orderly_group_waits_for_its_queue(bench: PopBench) -> None:
    await bench.sends("a", "b")
    await bench.pop(order=True, max_messages=1, invisible_ms=10_000)
    ask = _asks(bench, order=True)
    await bench.settle()
    await bench.sends("c")
    await bench.settle()
    assert not ask.done()
    assert await bench.pop_service.has_messages(Pop(group="G", topic="T", order=True)) == (False, False)
    await bench.pass_ms(10_100)
    assert await asyncio.wait_for(ask, 10) == (True, False)


async def test_a_reader_leaves_places_for_other_waiting_readers(bench: PopBench) -> None:
    bench.pop_service._notified = WaitingPops(8, 8)
    await bench.sends("x")
    await bench.ack(*await bench.pop())
    first = [_asks(bench, owners=(number, "user greedy")) for number in range(8)]
    await bench.settle()
    assert sum(ask.done() for ask in first) == 4
    assert all([ask.result() == (False, True) for ask in first if ask.done()])
    other = _asks(bench, owners=("c", "user other"))
    await bench.settle()
    assert not other.done()
    bench.pop_service.settle()
    await bench.settle()
    assert other.result() == (False, False)


@pytest.mark.parametrize("failover", ["none", "after_acks", "after_whole_state", "after_redelivery"])
async def test_acknowledged_messages_behind_an_unfinished_one_come_again_in_order(
    bench: PopBench, failover: str
) -> None:
    """As in 5.5.0: the client can restore the order of 0, 1 and 2 when 0 alone has failed."""
    await bench.sends(*"abcde")
    popped = await bench.pop(order=True, max_messages=3, invisible_ms=10_000)
    assert await bench.ack(popped[1], popped[2], popped[2]) == [AckResult.OK] * 3
    if failover == "after_whole_state":
        bench.pop_service._log._since_whole = 1 << 30
        while bench.pop_service.write_whole():
            await bench.settle()
    if failover in ("after_acks", "after_whole_state"):
        await bench.fail_over()
    assert bench.offset() == 0
    (state,) = bench.pop_service.in_flight("G", "T")[:1]
    assert (state.count, state.next_offset) == (1, 3)
    assert await bench.bodies(order=True) == []
    with pytest.raises(BadHandle):
        await bench.change(popped[1], 60_000)
    await bench.pass_ms(10_100)
    again = await bench.pop(order=True, max_messages=4, invisible_ms=10_000)
    assert [(m.body, m.times) for m in again] == [(b"a", 1), (b"b", 1), (b"c", 1), (b"d", 0)]
    assert await bench.ack(popped[0]) == [AckResult.INVALID]
    if failover == "after_redelivery":
        await bench.fail_over()
    assert await bench.ack(again[1], again[2], again[0]) == [AckResult.OK] * 3
    assert bench.pop_service._log.state.queues["G", "T", 0].lowest() == 3
    await bench.pass_ms(10_100)
    assert await bench.bodies(order=True) == [b"d", b"e"]


async def test_a_renewal_of_the_first_message_blocks_its_queue_until_it_ends(bench: PopBench) -> None:
    await bench.sends(*"ab")
    popped = await bench.pop(order=True, invisible_ms=10_000)
    assert await bench.ack(await bench.change(popped[1], 60_000)) == [AckResult.OK]
    await bench.pass_ms(10_100)
    assert await bench.bodies(order=True) == [b"a", b"b"], "the renewal of an acknowledged message blocks nothing"


async def test_a_pop_without_order_leaves_acknowledged_messages_out(bench: PopBench) -> None:
    await bench.sends(*"abcd")
    popped = await bench.pop(order=True, max_messages=3, invisible_ms=10_000)
    await bench.ack(popped[1], popped[2])
    await bench.pass_ms(10_100)
    (first,) = await bench.pop()
    assert first.body == b"a"
    assert await bench.bodies() == [b"d"]
    await bench.ack(first)
    assert bench.offset() == 3


@pytest.mark.parametrize("popped_before", [False, True])
async def test_an_offset_behind_the_end_hides_no_later_message(bench: PopBench, popped_before: bool) -> None:
    await bench.sends("a")
    if popped_before:
        await bench.bodies()
    bench.broker.meta.commit_offset("T", "G", 0, 1_000)
    await bench.settle()
    assert await bench.bodies() == []
    await bench.sends("b")
    assert await bench.bodies() == [b"b"]


async def test_a_new_leader_that_cannot_read_a_retry_topic_tries_again(
    bench: PopBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop_log, "AGAIN_S", 0.01)
    await bench.sends("a", "b")
    await bench.pop(max_messages=1, invisible_ms=10_000)
    complete, failures = bench.pop_service._log._finish_copied, iter([OSError("disk"), ValueError("record")])

    def fails_first() -> None:
        for error in failures:
            raise error
        complete()

    monkeypatch.setattr(bench.pop_service._log, "_finish_copied", fails_first)
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # Each one is in the log.
    await bench.fail_over()
    assert await bench.bodies() == [b"b"]


async def test_long_names_of_group_and_topic_hold_up_no_other_message(bench: PopBench) -> None:
    """The name of their retry topic is longer than any name may be."""
    group, topic = "G" * 200, "T" * 100
    bench.broker.creation.group_config(group)
    await bench.sends("long", topic=topic)
    await bench.sends("a")
    await bench.pop(group=group, topic=topic, invisible_ms=10_000)
    await bench.pop(invisible_ms=10_000)
    await bench.pass_ms(10_100)
    assert await bench.bodies() == [b"a"]
    assert bench.offset(topic=topic, group=group) == 1
    assert bench.store.reader.max_offset(f"%DLQ%{group}", 0) == 1, "it is not lost either"


async def test_a_message_that_could_not_be_copied_is_tried_again(
    bench: PopBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.sends("a")
    await bench.pop(invisible_ms=10_000)
    with monkeypatch.context() as broken:
        broken.setattr(bench.pop_service._expiry, "_copy", lambda *_: 1 // 0)
        await bench.pass_ms(10_100)
    await bench.pass_ms(2_000)
    assert await bench.bodies() == [b"a"]


async def test_handles_of_nothing(bench: PopBench) -> None:
    await bench.sends("a")
    (message,) = await bench.pop()
    h = message.handle
    wrong = Handle(h.start_offset, h.pop_ms, h.invisible_ms, 0, 0, "other", h.queue_id, h.offset)
    beyond = Handle(h.start_offset, h.pop_ms, h.invisible_ms, 0, 0, h.broker, h.queue_id, 7)
    assert await bench.ack(wrong, beyond) == [AckResult.INVALID, AckResult.NO_MESSAGE]


async def test_requests_that_wait_for_replication_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client can acknowledge the same message again and again while no member confirms. One failing answer costs the
    others nothing.
    """
    monkeypatch.setattr(pop_service, "MAX_UNSTORED", 3)
    with contextlib.closing(World(tmp_path)) as world:
        world.lead()
        await world.until_ready()
        given: list[bool] = []

        def broken(_: bool) -> None:
            raise OSError("the connection is gone")

        for done in (given.append, broken, given.append):
            world.pop.when_stored(done)
        with pytest.raises(RequestRejected, match="too many requests wait"):
            world.pop.ack_batches([])
        await world.passes()
        world.replicate()
        assert given == [True, True]
        assert world.pop.ack_batches([]) == []
