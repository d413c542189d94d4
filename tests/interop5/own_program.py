"""The project's client as a program: `own_program.py ENDPOINTS WHAT TOPIC... GROUP...` prints what it saw as JSON.

`simple NORMAL DELAY FIFO GROUP`; `called NORMAL DELAY FIFO TRANSACTION GROUP ORDERLY [CA]` (with CA: by TLS);
`user NAMESRV NAME SECRET` makes its topic itself.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gantry_broker.client import (
    Admin,
    BrokerError,
    Consumer,
    Credentials,
    Message,
    OrderedConsumer,
    Producer,
    ReceivedMessage,
    SimpleConsumer,
    TlsOptions,
    TransactionProducer,
    TransactionState,
)

DELAY_MS = 2_000


async def drained(consumer: SimpleConsumer, count: int) -> list[Any]:
    found: list[Any] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            some = await consumer.receive(wait_s=5)
            assert await consumer.ack_all(some) == []
            found += some
    return found


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while True:
            if condition():
                return
            await asyncio.sleep(0.05)


async def called(
    endpoints: str, normal: str, delay: str, fifo: str, half: str, group: str, orderly: str, ca: str = ""
) -> dict[str, Any]:
    """Consumers that call the application, transactions and a recall."""
    place, tls = f"grpc://{endpoints}", TlsOptions(ca_file=Path(ca)) if ca else None
    seen: list[tuple[str, int]] = []
    order: list[str] = []
    asked: list[str] = []

    async def handle(message: ReceivedMessage) -> bool:
        seen.append((message.body.decode(), message.reconsume_times))
        return message.body != b"again" or message.reconsume_times > 0

    async def in_order(message: ReceivedMessage) -> bool:
        order.append(message.body.decode())
        return message.body != b"1" or order.count("1") > 1

    async def check(message: ReceivedMessage) -> TransactionState:
        asked.append(message.body.decode())
        return TransactionState.COMMIT

    async def work(message: Message, transaction: str) -> TransactionState:
        return {b"yes": TransactionState.COMMIT, b"no": TransactionState.ROLLBACK}.get(
            message.body, TransactionState.UNKNOWN
        )

    async with (
        TransactionProducer(place, "own", check, timeout=10, tls=tls) as producer,
        Consumer(place, group, tls=tls) as consumer,
        OrderedConsumer(place, orderly, tls=tls) as ordered,
    ):
        for topic in (normal, delay, half):
            await consumer.subscribe(topic, handle)
        await ordered.subscribe(fifo, in_order)
        await until(lambda: {queue.topic for queue in consumer.assigned} == {normal, delay, half})
        await until(lambda: bool(ordered.assigned))
        await asyncio.sleep(2)  # The first receives begin: a new group begins at the end.
        for body in (b"plain", b"again"):
            await producer.send(normal, body)
        for number in range(4):
            await producer.send(fifo, str(number).encode(), key="one")
        due = int(time.time() * 1000) + 10_000
        sent = [await producer.send(Message(delay, body, deliver_at_ms=due)) for body in (b"recalled", b"late")]
        await producer.recall(delay, sent[0].recall_handle)
        for body in (b"yes", b"no", b"perhaps"):
            await producer.send_in_transaction(Message(half, body), work)
        await until(lambda: len(seen) >= 6 and len(order) >= 5)
        await asyncio.sleep(1)
    return {"seen": sorted(seen), "order": order, "asked": sorted(set(asked))}


async def user(endpoints: str, namesrv: str, name: str, secret: str) -> dict[str, Any]:
    """A user with the right secret, and with a wrong one."""
    place, right, wrong = f"grpc://{endpoints}", Credentials(name, secret), Credentials(name, secret[::-1])
    async with Admin(namesrv, credentials=right) as admin:
        await admin.create_topic("Owned", queues=1)
    bodies: list[str] = []
    codes: list[int] = []

    async def handle(message: ReceivedMessage) -> None:
        bodies.append(message.body.decode())

    async with (
        Producer(place, timeout=10, credentials=right) as producer,
        Consumer(place, "owners", credentials=right) as consumer,
    ):
        await consumer.subscribe("Owned", handle)
        await until(lambda: bool(consumer.assigned))
        await asyncio.sleep(2)  # The first receive begins: a new group begins at the end.
        await producer.send("Owned", b"mine")
        await until(lambda: bool(bodies))
    async with (
        Producer(place, credentials=wrong) as producer,
        SimpleConsumer(place, "owners", credentials=wrong) as simple_consumer,
    ):
        await simple_consumer.subscribe("Owned")
        for work in (producer.send("Owned", b"x"), simple_consumer.receive(wait_s=1)):
            try:
                await work
            except BrokerError as error:
                codes.append(int(error.code))
    return {"bodies": bodies, "refused": codes}


async def simple(endpoints: str, normal: str, delay: str, fifo: str, group: str) -> dict[str, Any]:
    async with (
        Producer(f"grpc://{endpoints}", timeout=10) as producer,
        SimpleConsumer(f"grpc://{endpoints}", group, invisible_s=30) as consumer,
    ):
        for topic in (normal, delay, fifo):  # From now on: a new group begins at the end.
            await consumer.subscribe(topic)
            assert await consumer.receive(wait_s=1) == []
            await consumer.unsubscribe(topic)
        sent = {}
        for n in range(8):
            message = Message(normal, str(n).encode(), "ab"[n % 2], f"k{n}", {"n": str(n)})
            sent[(await producer.send(message)).message_id] = n
        await consumer.subscribe(normal, "a")
        tagged = await drained(consumer, 4)
        await consumer.unsubscribe(normal)
        for n in range(6):
            await producer.send(fifo, str(n).encode(), key="one")
        await consumer.subscribe(fifo)
        ordered = await drained(consumer, 6)
        await consumer.unsubscribe(fifo)
        due = int(time.time() * 1000) + DELAY_MS
        await producer.send(Message(delay, b"later", deliver_at_ms=due))
        await consumer.subscribe(delay)
        (late,) = await drained(consumer, 1)
        await producer.send(Message(delay, b"again", deliver_at_ms=int(time.time() * 1000)))
        async with asyncio.timeout(30):
            while not (some := await consumer.receive(wait_s=5)):
                pass
            first = some[0]
            await consumer.change_invisible_duration(first, 1)
            while not (some := await consumer.receive(wait_s=5)):
                pass
        await consumer.ack(some[0])
        return {
            "tagged": sorted([sent[m.id], m.body.decode(), m.tags, list(m.keys), m.properties["n"]] for m in tagged),
            "order": [m.body.decode() for m in sorted(ordered, key=lambda m: m.queue_offset)],
            "queues": len({(m.broker, m.queue_id) for m in ordered}),
            "early_ms": max(due - int(time.time() * 1000), 0) if late.body == b"later" else None,
            "again": [some[0].id == first.id, some[0].delivery_attempt],
        }


if __name__ == "__main__":
    endpoints, what, *names = sys.argv[1:]
    print(json.dumps(asyncio.run({"simple": simple, "called": called, "user": user}[what](endpoints, *names))))
