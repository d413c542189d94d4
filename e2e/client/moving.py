"""Sends and consumes one topic at once, while broker groups come and go. Runs in a pod or anywhere.

    python moving.py NAMESERVERS TOPIC SECONDS [--senders N]

SIGTERM ends the sends before SECONDS are over. Then it waits until its consumer has every acknowledged message. The
last line is one JSON object, with the keys of load.py: "lost" counts the acknowledged messages that were not consumed.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import json
import os
import signal
import sys
import time
import uuid

from gantry_broker.client import Consumer, Credentials, FromWhere, Producer, ReceivedMessage, SendStatus

CREDENTIALS = (
    Credentials(os.environ["GANTRY_ACCESS_KEY"], os.environ["GANTRY_SECRET_KEY"])
    if "GANTRY_SECRET_KEY" in os.environ
    else None
)
CONSUMED_S = 240.0


async def run(options: argparse.Namespace) -> dict[str, object]:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    end = time.monotonic() + options.seconds
    acknowledged: dict[str, str] = {}
    consumed: dict[str, str] = {}
    statuses: collections.Counter[str] = collections.Counter()
    errors: list[str] = []
    missing: set[str] = set()
    complete = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        id = message.body.decode()
        consumed[id] = message.broker
        if id in missing:
            missing.discard(id)
            if not missing:
                complete.set()

    async def send(producer: Producer) -> None:
        while not stopped.is_set() and time.monotonic() < end:
            id = uuid.uuid4().hex
            try:
                result = await producer.send(options.topic, id.encode(), keys=id)
                statuses[result.status.name] += 1
                if result.status is SendStatus.SEND_OK:
                    acknowledged[id] = result.queue.broker
            except Exception as error:
                errors.append(f"{type(error).__name__}: {error}"[:200])
            await asyncio.sleep(0.01)

    async with (
        Producer(options.name_servers, "e2e-moving", credentials=CREDENTIALS) as producer,
        Consumer(options.name_servers, "e2e-moving", from_where=FromWhere.FIRST, credentials=CREDENTIALS) as consumer,
    ):
        first = uuid.uuid4().hex
        await producer.send(options.topic, first.encode(), timeout=180)
        acknowledged[first] = ""
        await consumer.subscribe(options.topic, handle)
        print("sending", flush=True)
        await asyncio.gather(*(send(producer) for _ in range(options.senders)))
        missing |= acknowledged.keys() - consumed.keys()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CONSUMED_S if missing else 0):
                await complete.wait()
    return {
        "sendOk": len(acknowledged),
        "statuses": dict(statuses),
        "errors": len(errors),
        "errorSamples": errors[:5],
        "lost": len(acknowledged.keys() - consumed.keys()),
        "elsewhere": 0,
        "sentTo": dict(collections.Counter(acknowledged.values())),
        "consumedFrom": dict(collections.Counter(consumed.values())),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name_servers")
    parser.add_argument("topic")
    parser.add_argument("seconds", type=float)
    parser.add_argument("--senders", type=int, default=2)
    print(json.dumps(asyncio.run(run(parser.parse_args()))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
