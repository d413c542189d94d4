"""Measures the time from send to handler of single messages, with our client, beside another load.

It prints one JSON line at the end: the number of messages, p50 and p99 in milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import time

import uvloop
from gantry_broker.client import ClientError, Consumer, Producer, ReceivedMessage

TOPIC = "LatencyProbe"
EVERY_S = 0.02


async def run(namesrv: str, warmup: float, seconds: float) -> None:
    delays: list[float] = []
    counts_from = time.monotonic_ns() + int(warmup * 1e9)

    async def handle(message: ReceivedMessage) -> None:
        sent = int(message.body)
        if sent >= counts_from:
            delays.append((time.monotonic_ns() - sent) / 1e6)

    async with Producer(namesrv) as producer, Consumer(namesrv, "latency_probe") as consumer:
        await producer.send(TOPIC, b"0")
        await consumer.subscribe(TOPIC, handle)
        ends = time.monotonic() + warmup + seconds
        while time.monotonic() < ends:
            with contextlib.suppress(ClientError):
                await producer.send(TOPIC, b"%d" % time.monotonic_ns())
            await asyncio.sleep(EVERY_S)
    delays.sort()
    shown: dict[str, float] = {"messages": len(delays)}
    if delays:
        shown |= {"p50_ms": round(delays[len(delays) // 2], 2), "p99_ms": round(delays[len(delays) * 99 // 100], 2)}
    print(json.dumps(shown), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namesrv", required=True)
    parser.add_argument("--warmup", type=float, default=5.0, help="seconds that do not count")
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    uvloop.run(run(options.namesrv, options.warmup, options.seconds))


if __name__ == "__main__":
    main()
