"""Sends messages with keys, in batches, and ends. Runs in a pod or anywhere.

    python keyed.py NAMESERVERS TOPIC COUNT KEYS

COUNT messages of 1,000 bytes, key after key of KEYS different ones, so that all records are of one size.
"""

from __future__ import annotations

import asyncio
import os
import sys

from gantry_broker.client import Credentials, Message, Producer

BATCH = 200
CREDENTIALS = Credentials(os.environ["GANTRY_ACCESS_KEY"], os.environ["GANTRY_SECRET_KEY"])


async def main(name_servers: str, topic: str, count: int, keys: int) -> None:
    body = bytes(1000)
    async with Producer(name_servers, credentials=CREDENTIALS) as producer:
        for first in range(0, count, BATCH):
            numbers = range(first, min(first + BATCH, count))
            batch = [Message(topic, body, keys=f"k{n % keys:07d}") for n in numbers]
            result = await producer.send_batch(batch, timeout=30)
            assert result.status.name == "SEND_OK", result


asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
