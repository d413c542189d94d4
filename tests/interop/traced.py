"""Sends one message with a key and consumes it, both with RocketMQ's message trace, and prints the message's id.

python traced.py NAMESERVER TOPIC GROUP
"""

from __future__ import annotations

import asyncio
import sys

from gantry_broker.client import Consumer, FromWhere, Producer, ReceivedMessage


async def main(name_server: str, topic: str, group: str) -> None:
    got = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        got.set()

    async with (
        Producer(name_server, f"{group}_sender", trace=True) as producer,
        Consumer(name_server, group, from_where=FromWhere.FIRST, trace=True) as consumer,
    ):
        result = await producer.send(topic, b"apples", keys="order-4711")
        await consumer.subscribe(topic, handle)
        async with asyncio.timeout(60):
            await got.wait()
    print(result.message_id)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
