"""Failures of POP consumption that users of RocketMQ reported, by their numbers in apache/rocketmq."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from gantry_broker.broker.handlers.topicadmin import delete_topics
from gantry_broker.broker.metadata.topics import group_fault, topic_fault
from gantry_broker.broker.pop.finding import Finder
from gantry_broker.broker.pop.requests import AckResult, Pop
from gantry_broker.protocol.codes import CONTROL_TOPIC, RequestCode, ResponseCode
from gantry_broker.store.errors import StoreFull

from tests.pop.popbench import PopBench
from tests.support.failing_calls import raising
from tests.support.running import until


async def _reset(bench: PopBench, offset: int, queue_id: int = 0) -> None:
    ext = {"topic": "T", "group": "G", "timestamp": 0, "isForce": "true", "queueId": queue_id, "offset": offset}
    assert (await bench.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext)).code == 0


async def test_7724_what_expires_is_what_was_popped(bench: PopBench) -> None:
    for number in range(24):
        await bench.sends(
            f"q{number % 4}-{number // 4}", queueId=number % 4, properties=f"TAGS\x01{'ab'[number % 3 % 2]}"
        )
    popped = await bench.pop(max_messages=32, expression="b", invisible_ms=10_000)
    await bench.ack(*popped[::2])
    await bench.pass_ms(10_100)
    again = await bench.pop(max_messages=32, expression="b")
    assert sorted(m.body for m in again) == sorted(m.body for m in popped[1::2])
    assert {m.props["GANTRY_POP_ORIGIN"] for m in again} == {f"T {m.queue_id} {m.offset}" for m in popped[1::2]}


@pytest.mark.parametrize("fails_over", [False, True])
async def test_7914_many_messages_that_expire_together_are_all_retried(bench: PopBench, fails_over: bool) -> None:
    bodies = {b"%d" % number for number in range(300)}
    await bench.sends(*bodies)
    while await bench.pop(max_messages=32, invisible_ms=10_000):
        pass
    if fails_over:
        await bench.fail_over()
    await bench.pass_ms(10_100)
    found: list[bytes] = []
    while some := await bench.pop(max_messages=32):
        found += [m.body for m in some]
        await bench.ack(*some)
    assert len(found) == 300
    assert set(found) == bodies
    assert bench.offset() == 300


async def test_8479_a_topic_that_is_made_again_begins_anew(bench: PopBench) -> None:
    await bench.sends("a", "b")
    old = await bench.pop(invisible_ms=10_000)
    await bench.pass_ms(10_100)
    (retried, _) = await bench.pop(invisible_ms=10_000)
    assert (await bench.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
    assert bench.broker.pop.messages_in_flight == 0
    await bench.sends("c")
    await bench.pass_ms(60_000)
    assert bench.broker.pop._log.state.next_due() is None
    assert await bench.bodies() == [b"c"]
    assert await bench.ack(old[0], retried) == [AckResult.INVALID, AckResult.INVALID]
    await bench.fail_over()
    assert bench.broker.pop.messages_in_flight == 1


async def test_8479_changes_of_a_deleted_topic_are_not_read_again(bench: PopBench) -> None:
    """The record of the deletion alone is enough: a leader may have died before POP's own record."""
    await bench.sends("a", "b")
    await bench.pop(invisible_ms=10_000)
    bench.broker.changes.on_append = lambda change: None
    await bench.broker.changes.append_and_wait(
        {"dropTopics": ["T"], "dropOffsets": ["T@G"], "dropData": bench.store.log.end}
    )
    await bench.sends("c")
    await bench.fail_over()
    assert bench.broker.pop.messages_in_flight == 0
    assert await bench.bodies() == [b"c"]


@pytest.mark.parametrize("number", [5408, 3443, 9956])
async def test_a_message_that_cannot_be_retried_holds_up_no_other(
    bench: PopBench, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.sends("a", "b", "c")
    await bench.pop(max_messages=1, invisible_ms=10_000)
    await bench.pop(max_messages=2, invisible_ms=10_000)
    append = bench.broker.writer.append
    if number == 5408:  # The record is gone from the log.
        monkeypatch.setattr(bench.store.reader, "get", _without(bench.store.reader.get, 0, damaged=False))
    elif number == 3443:  # The record is damaged on the disk, and repaired later.
        monkeypatch.setattr(bench.store.reader, "get", _without(bench.store.reader.get, 0, damaged=True))
    else:  # The disk is full for a while.
        bench.broker.creation.ensure_topic("%RETRY%G+T", 1, 6)
        monkeypatch.setattr(bench.broker.writer, "append", raising(StoreFull("no room")))
    await bench.pass_ms(10_100)
    monkeypatch.undo()
    if number == 9956:
        assert bench.broker.pop._log.refused
        assert bench.broker.writer.append == append
        bench.broker.pop._log._write_again()
    expected = [b"b", b"c"] if number == 5408 else [b"a", b"b", b"c"]
    await bench.pass_ms(2_000)
    found = await bench.pop(max_messages=32)
    assert sorted(m.body for m in found) == expected
    await bench.ack(*found)
    assert bench.offset() == 3


def _without(get: Any, offset: int, damaged: bool) -> Any:
    def without(topic: str, queue_id: int, at: int, *rest: Any) -> Any:
        got = get(topic, queue_id, at, *rest)
        if topic == "T" and at == offset:
            got.data, got.count = b"", 0
            got.damaged = 5 if damaged else -1
        return got

    return without


async def test_3503_a_restart_goes_on_where_it_was(bench: PopBench) -> None:
    await bench.sends("a", "b", "c")
    first = await bench.pop(max_messages=2)
    await bench.ack(*first)
    for _ in range(3):
        await bench.fail_over()
    assert bench.offset() == 2
    assert await bench.bodies() == [b"c"]


@pytest.mark.parametrize("passes", range(8))
async def test_8472_7358_a_message_that_arrives_while_a_pop_begins_to_wait_is_not_missed(
    bench: PopBench, passes: int
) -> None:
    await bench.sends("x")
    await bench.bodies()
    waiting = asyncio.create_task(bench.pop(poll_ms=60_000))
    for _ in range(passes):
        await asyncio.sleep(0)
    await bench.sends("a")
    assert [m.body for m in await asyncio.wait_for(waiting, 5)] == [b"a"]


async def test_6681_9632_a_retry_wakes_a_waiting_pop(bench: PopBench) -> None:
    await bench.sends("a")
    await bench.pop(invisible_ms=10_000)
    waiting = asyncio.create_task(bench.pop(poll_ms=60_000, queue_id=2))
    await bench.settle()
    await bench.pass_ms(10_100)
    assert [(m.body, m.times) for m in await asyncio.wait_for(waiting, 5)] == [(b"a", 1)]


async def test_8592_pops_that_wait_for_an_orderly_queue_do_not_spin(
    bench: PopBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.sends("a")
    (first,) = await bench.pop(order=True, queue_id=0)
    waiting = [asyncio.create_task(bench.pop(order=True, queue_id=0, poll_ms=60_000)) for _ in range(50)]
    await bench.settle()
    looks = 0
    take = Finder.take

    def counted(self: Finder, *args: Any) -> Any:
        nonlocal looks
        looks += 1
        return take(self, *args)

    monkeypatch.setattr(Finder, "take", counted)
    await asyncio.sleep(0.1)
    assert looks == 0
    await bench.sends(*"bcdefghijk")
    assert looks <= 10
    await bench.ack(first)
    done, rest = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert [m.body for task in done for m in task.result()] == [b"%c" % letter for letter in b"bcdefghijk"]
    assert looks <= 15
    bench.broker.pop._settle()
    await asyncio.gather(*rest)


async def test_10827_the_same_attempt_gets_the_same_messages_again(bench: PopBench) -> None:
    """The first answer was lost; with another attempt the queue is blocked (clients 708)."""
    await bench.sends("a", "b", "c")
    first = await bench.pop(order=True, max_messages=2, attempt_id="one")
    assert await bench.bodies(order=True, attempt_id="two") == []
    bench.ms += 10
    again = await bench.pop(order=True, max_messages=2, attempt_id="one")
    assert [(m.body, m.times) for m in again] == [(m.body, 0) for m in first] == [(b"a", 0), (b"b", 0)]
    assert await bench.ack(*again) == [AckResult.OK, AckResult.OK]
    assert await bench.bodies(order=True, attempt_id="two") == [b"c"]


@pytest.mark.parametrize("order", [False, True])
async def test_5813_3491_a_pop_that_is_cancelled_leaves_nothing_locked(bench: PopBench, order: bool) -> None:
    await bench.sends("a")
    popping = asyncio.create_task(bench.pop(order=order, invisible_ms=10_000))
    await asyncio.sleep(0)
    popping.cancel()
    await asyncio.gather(popping, return_exceptions=True)
    await bench.pass_ms(10_100)
    (message,) = await bench.pop(order=order)
    assert await bench.ack(message) == [AckResult.OK]
    waiting = asyncio.create_task(bench.pop(order=order, poll_ms=60_000))
    await bench.settle()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert bench.broker.pop.waiting("G", "T") == 0
    await bench.sends("b")
    assert await bench.bodies(order=order) == [b"b"]


@pytest.mark.parametrize("order", [False, True])
async def test_9583_an_acknowledgement_after_a_renewal_counts(bench: PopBench, order: bool) -> None:
    await bench.sends(*"abcdefghij")
    popped = await bench.pop(max_messages=10, order=order, invisible_ms=10_000)
    bench.ms += 1_000
    renewed = await bench.change(popped[4], 20_000)
    before = popped[:4] if order else []  # An orderly one comes again while one before it is not acknowledged.
    assert await bench.ack(*before, renewed) == [AckResult.OK] * (len(before) + 1)
    await bench.pass_ms(30_000)
    found = [m.body for m in await bench.pop(max_messages=32, order=order)]
    assert sorted(found) == [b"f", b"g", b"h", b"i", b"j"] if order else len(found) == 9 and b"e" not in found


async def test_10278_the_handle_from_before_a_renewal_counts_too(bench: PopBench) -> None:
    """A proxy renewed it and died: the client has the first handle."""
    await bench.sends("a")
    (message,) = await bench.pop(invisible_ms=30_000)
    bench.ms += 1_000
    renewed = await bench.change(message, 60_000)
    bench.ms += 1_000
    assert (await bench.change(message, 60_000)).visible_ms == renewed.visible_ms + 1_000
    assert await bench.ack(message) == [AckResult.OK]
    await bench.pass_ms(100_000)
    assert await bench.bodies() == []


@pytest.mark.parametrize("order", [False, True])
async def test_10229_9369_a_reset_applies_at_once(bench: PopBench, order: bool) -> None:
    await bench.sends(*"abcd")
    popped = await bench.pop(max_messages=3, order=order, invisible_ms=10_000)
    await bench.ack(popped[0])
    await _reset(bench, 0)
    assert bench.offset() == 0
    assert await bench.bodies(order=order) == [b"a", b"b", b"c", b"d"]
    await _reset(bench, 3)
    assert bench.offset() == 3
    assert await bench.bodies(order=order) == [b"d"]
    await bench.fail_over()
    assert bench.broker.pop.messages_in_flight == 1
    await bench.pass_ms(10_100)
    assert await bench.ack(*popped) != [AckResult.OK] * 3
    assert bench.offset() >= 3


async def test_10229_a_reset_while_the_state_is_read_is_not_lost(bench: PopBench) -> None:
    await bench.sends(*"abcd")
    await bench.ack(*await bench.pop())
    await bench.lead()
    await _reset(bench, 1)
    await asyncio.wait_for(bench.broker.pop._log.ready.wait(), 10)
    await bench.settle()
    assert await bench.bodies() == [b"b", b"c", b"d"]


async def test_3787_4153_an_acknowledgement_just_in_time_counts(bench: PopBench) -> None:
    await bench.sends(*"abc")
    popped = await bench.pop(max_messages=3, invisible_ms=10_000)
    for step, message in enumerate(popped):
        bench.ms += 9_999 if step == 0 else 0
        assert await bench.ack(message) == [AckResult.OK]
    await bench.pass_ms(100_000)
    assert await bench.bodies() == []
    assert bench.store.reader.max_offset("%RETRY%G+T", 0) == 0


async def test_retries_have_a_fifth_of_the_first_looks(bench: PopBench) -> None:
    await bench.sends(*"abcde")
    await bench.pop(max_messages=5, invisible_ms=10_000)
    await bench.pass_ms(10_100)
    await bench.sends(*[f"n{number}" for number in range(40)])
    assert [(await bench.pop(max_messages=1))[0].handle.kind for _ in range(20)].count(2) == 4


async def _old_retries(bench: PopBench, *bodies: str) -> None:
    """A store of 5.x has `%RETRY%G_T`, and an offset of the group in it from the topic's creation on."""
    bench.broker.creation.ensure_topic("%RETRY%G_T", 1, 6)
    bench.broker.meta.commit_offset("%RETRY%G_T", "G", 0, 0)
    bench.broker.changes.flush_offsets()
    await bench.sends(*bodies, topic="%RETRY%G_T")


async def test_messages_of_the_first_form_of_retry_topics_are_read(bench: PopBench) -> None:
    await bench.sends("x")
    await bench.bodies()
    await _old_retries(bench, "old", "older")
    message, failed = await bench.pop(invisible_ms=10_000)
    assert (message.body, message.topic, message.handle.kind) == (b"old", "T", 1)
    assert await bench.ack(message) == [AckResult.OK]
    await bench.pass_ms(10_100)
    (again,) = [m for m in await bench.pop() if m.body == failed.body]
    assert again.handle.kind == 2, "it is retried under a name that no other group can have"


@pytest.mark.parametrize("known", ["before", "later", "another split", "no offset"])
async def test_retries_of_another_group_are_not_read(bench: PopBench, known: str) -> None:
    """`%RETRY%G_T` is the name of the retries of a group `G_T`, too."""
    waiting = asyncio.create_task(bench.pop(poll_ms=60_000))
    await bench.settle()
    assert not waiting.done()
    if known == "no offset":  # Its group was deleted.
        bench.broker.creation.ensure_topic("%RETRY%G_T", 1, 6)
        await bench.sends("secret", topic="%RETRY%G_T")
    else:
        if known == "before":
            bench.broker.creation.group_config("G_T")
        await _old_retries(bench)
        if known == "later":
            bench.broker.creation.group_config("G_T")
        elif known == "another split":
            bench.broker.meta.commit_offset("%RETRY%G_T", "G_T", 0, 0)
        await bench.sends("secret", topic="%RETRY%G_T")
    await bench.settle()
    assert not waiting.done()
    waiting.cancel()
    assert await bench.bodies() == []
    service = bench.pop_service
    assert service.peek(Pop(group="G", topic="T")).count == 0
    assert await service.has_messages(Pop(group="G", topic="T")) == (False, False)


@pytest.mark.parametrize("topic", ["T", "%RETRY%G_T"])
async def test_a_handle_for_another_groups_retries_reveals_nothing(bench: PopBench, topic: str) -> None:
    bench.broker.creation.group_config("G_T")
    bench.broker.creation.ensure_topic("%RETRY%G_T", 1, 6)
    await bench.sends("x")
    await bench.sends("secret", topic="%RETRY%G_T")
    handle = f"0 {bench.ms} 60000 0 1 {bench.config.group} 0 0"
    ext = {"consumerGroup": "G", "topic": topic, "queueId": 0, "offset": 0, "extraInfo": handle}
    for code, more in (
        (RequestCode.ACK_MESSAGE, {}), (RequestCode.CHANGE_MESSAGE_INVISIBLETIME, {"invisibleTime": 1}),
    ):  # fmt: skip
        answer = await bench.ask(code, {**ext, **more})
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert "readQueueNums:[0]" in (answer.remark or "")
    one = {
        "c": "G", "t": topic, "r": "1", "so": 0, "q": 0, "rq": 0, "pt": bench.ms, "it": 60_000, "b": "AQ==",
    }  # fmt: skip
    body = orjson.dumps({"brokerName": bench.config.group, "acks": [one]})
    answer = await bench.ask(RequestCode.BATCH_ACK_MESSAGE, {"results": "true"}, body)
    assert (answer.code, answer.ext["noEffect"]) == (0, "0:0")


async def test_the_retries_of_a_group_survive_the_deletion_of_a_topic_with_the_end_of_its_name(bench: PopBench) -> None:
    await bench.sends("x")
    await bench.ack(*await bench.pop())
    bench.broker.creation.group_config("G_T")
    bench.broker.creation.ensure_topic("%RETRY%G_T", 1, 6)
    await delete_topics(bench.broker, ["T"])
    assert "%RETRY%G_T" in bench.broker.meta.working.topics


def test_no_name_of_a_group_has_the_separator_of_retry_topics() -> None:
    assert topic_fault("%RETRY%a+b") is None
    for name in ("a+b", "%RETRY%a+b"):
        assert group_fault(name) is not None


async def test_a_suspended_delivery_is_no_attempt(bench: PopBench) -> None:
    await bench.sends("a")
    (message,) = await bench.pop()
    await bench.change(message, 1_000, suspend=True)
    await bench.pass_ms(1_100)
    (message,) = await bench.pop(invisible_ms=10_000)
    assert message.times == 0
    await bench.pass_ms(10_100)
    assert [m.times for m in await bench.pop()] == [1]


async def test_a_member_that_pulls_moves_the_group(bench: PopBench) -> None:
    await bench.sends(*"abcde")
    await bench.pop(max_messages=1, invisible_ms=10_000)
    bench.broker.meta.commit_offset("T", "G", 0, 4)
    assert await bench.bodies() == [b"e"]
    await bench.pass_ms(10_100)
    assert await bench.bodies() == [b"a"]


async def test_filters_by_properties(bench: PopBench) -> None:
    for number in range(30):
        await bench.sends(str(number), properties=f"n\x01{number}")
    bench.store.config.settings.enablePropertyFilter = True
    assert await bench.bodies(expression="n > 26", expression_type="SQL92") == [b"27", b"28", b"29"]
    assert bench.offset() == 27


async def test_memory_has_a_limit_and_nothing_is_lost(bench: PopBench) -> None:
    await bench.sends("a", "b")
    bench.broker.pop._finder._memory_bytes = 1
    bench.broker.pop._log.changes.add(("G", "T", 0), 0)
    assert await bench.bodies(poll_ms=60_000) == []
    bench.broker.pop._finder._memory_bytes = 1 << 20
    assert await bench.bodies() == [b"a", b"b"]


async def test_the_state_is_written_once_in_each_segment(bench: PopBench) -> None:
    await bench.sends("a", "b")
    (first, _) = await bench.pop(invisible_ms=40_000_000)
    for _ in range(12):
        await bench.sends(*[b"x" * 50_000] * 10, topic="U")
        while bench.broker.pop.write_whole():
            pass
        bench.broker.changes.write_tables()
    bench.broker.changes.flush_offsets()
    bench.store.retention.remove_before(bench.store.log.end // (1 << 20) * (1 << 20) - (1 << 20))
    assert bench.store.log.start > 3 << 20
    assert bench.store.reader.min_offset(CONTROL_TOPIC, 0) > 0
    await bench.fail_over()
    assert bench.broker.pop.messages_in_flight == 2
    assert await bench.ack(first) == [AckResult.OK]


async def test_pops_wait_until_a_new_master_has_read_the_state(bench: PopBench) -> None:
    await bench.sends("a")
    await bench.lead()
    assert not bench.broker.pop.ready
    assert (await bench.pop_service.pop(Pop(group="G", topic="T"))).count == 1
    await until(lambda: bench.broker.pop.ready)
