"""The project's client as a program: `own_program.py ENDPOINTS NORMAL DELAY FIFO GROUP` prints what it saw as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from gantry_broker.client import Message, Producer, SimpleConsumer

DELAY_MS = 2_000


async def drained(consumer: SimpleConsumer, count: int) -> list[Any]:
    found: list[Any] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            some = await consumer.receive(wait_s=5)
            assert await consumer.ack_all(some) == []
            found += some
    return found


async def main(endpoints: str, normal: str, delay: str, fifo: str, group: str) -> dict[str, Any]:
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
    print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
