"""POP, timers and recalls over real processes: what a new master knows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import pytest
from gantry_broker.client import Admin, BrokerError, Message, PoppedMessage, Producer, SendStatus, SimpleConsumer
from gantry_broker.protocol.bodies import RequestMode
from gantry_broker.protocol.codes import Prop, RequestCode, ResponseCode
from gantry_broker.protocol.frame import Frame

from tests.integration.conftest import until

if TYPE_CHECKING:
    from tests.integration.conftest import Group

INVISIBLE_S = 6.0


async def _drain(consumer: SimpleConsumer, count: int, seconds: float) -> list[PoppedMessage]:
    found: list[PoppedMessage] = []
    ends = time.monotonic() + seconds
    while len(found) < count and time.monotonic() < ends:
        found += await consumer.receive(32, wait_s=1)
    return found


async def test_a_failover_keeps_acknowledgements_and_invisible_times(
    make_group: Callable[..., Awaitable[Group]],
) -> None:
    group = await make_group(3, led=True)
    bodies = [b"%d" % number for number in range(40)]
    async with (
        Producer(group.name_server) as producer,
        SimpleConsumer(group.name_server, "G", invisible_s=INVISIBLE_S) as consumer,
    ):
        for body in bodies:
            assert (await producer.send("T", body)).status is SendStatus.SEND_OK
        await consumer.subscribe("T")
        popped = await _drain(consumer, 40, 20)
        began = time.monotonic()
        assert sorted(message.body for message in popped) == sorted(bodies)
        for message in popped[:15]:
            await consumer.ack(message)
        await consumer.change_invisible_duration(popped[39], 60)
        await group.members[0].kill()
        await group.lead(1, [1, 2])
        for message in popped[15:30]:
            await consumer.ack(message)  # The handles are still valid.
        await consumer.ack(popped[0])  # A second time changes nothing.
        again = await _drain(consumer, 9, 30)
        assert sorted(message.body for message in again) == sorted(message.body for message in popped[30:39])
        assert time.monotonic() - began > INVISIBLE_S - 1, "they stayed invisible for their time"
        assert {message.delivery_attempt for message in again} == {2}
        for message in again:
            await consumer.ack(message)
        await consumer.ack(popped[39])
        assert await consumer.receive(wait_s=1) == []
    async with Admin(group.name_server) as admin:
        progress = await admin.consume_stats("G")
        assert all(one.broker_offset == one.consumer_offset for one in progress.values())


async def test_receiving_goes_on_through_a_handover(make_group: Callable[..., Awaitable[Group]]) -> None:
    """Pops and acknowledgements are forwarded or tried again: no error, nothing lost, nothing twice."""
    group = await make_group(2, led=True)
    done: list[bytes] = []
    stop = asyncio.Event()

    async def consume(consumer: SimpleConsumer) -> None:
        while not stop.is_set():
            for message in await consumer.receive(8, wait_s=1, invisible_s=30):
                await consumer.ack(message)
                done.append(message.body)

    async with (
        Producer(group.name_server) as producer,
        SimpleConsumer(group.name_server, "G") as first,
        SimpleConsumer(group.name_server, "G") as second,
    ):
        await producer.send("T", b"first")
        for consumer in (first, second):
            await consumer.subscribe("T")
        working = [asyncio.create_task(consume(consumer)) for consumer in (first, second)]
        sent = [b"first"]
        for number in range(300):
            body = b"%d" % number
            assert (await producer.send("T", body)).status is SendStatus.SEND_OK
            sent.append(body)
            if number == 100:
                target = (await group.ids())[1]
                answer = await group.members[0].handover(target, group.leadership)
                assert answer.ready, answer.reason
                group.leadership = group.leadership.promoted(target, group.leadership.in_sync)
                await group.send_assignments()

        async def all_done() -> bool:
            return len(set(done)) == len(sent)

        await until(all_done, "every message was acknowledged")
        stop.set()
        await asyncio.gather(*working)
    assert sorted(done) == sorted(sent)


async def test_modes_recalls_and_timers_survive_a_failover(make_group: Callable[..., Awaitable[Group]]) -> None:
    group = await make_group(3, settings={"recallMessageEnable": True}, led=True)
    async with Producer(group.name_server) as producer, SimpleConsumer(group.name_server, "G") as consumer:
        session = producer.session
        await producer.send("T", b"now")
        await consumer.subscribe("T")
        [now] = await consumer.receive()
        await consumer.ack(now)
        due = int(time.time() * 1000) + 5_000
        handles = []
        for body in (b"kept", b"recalled"):
            result = await producer.send(Message("T", body, deliver_at_ms=due))
            handles.append(result.recall_handle)
        await producer.recall("T", handles[1])
        with pytest.raises(BrokerError) as refused:
            await producer.recall("T", "x")
        assert refused.value.code == ResponseCode.ILLEGAL_OPERATION
        mode = RequestMode("T", "G", "POP", 2)
        async with Admin(group.name_server) as admin:
            await admin.set_request_mode(mode)
        await group.members[0].kill()
        await group.lead(1, [1, 2])
        [message] = await _drain(consumer, 1, 30)
        assert message.body == b"kept"
        assert message.properties[Prop.TIMER_DELIVER_MS] == str(due)
        assert time.time() * 1000 >= due
        await consumer.ack(message)
        assert await consumer.receive(wait_s=2) == []
        body = b'{"topic":"T","consumerGroup":"G","clientId":"x","strategyName":"AVG","messageModel":"CLUSTERING"}'
        asked = Frame(RequestCode.QUERY_ASSIGNMENT, body=body)
        assert b'"mode":"POP"' in (await session.call_checked(group.group_address, asked, "assignment")).body
