"""Sends messages, then reads everything back and accounts for every SEND_OK. Runs in a pod or anywhere.

    python load.py NAMESERVERS TOPIC SECONDS [--senders N] [--pause SECONDS] [--size BYTES]

Each sender waits for the answer, then --pause, and sends the next message: without a pause one load takes a whole core.
SIGTERM ends it before SECONDS are over. The last line is one JSON object: the acknowledged sends by status, the failed
ones, and the largest gap between two successes. It also counts the acknowledged messages that the log lacks, has twice,
or has at another place than the acknowledging master said ("elsewhere": two masters that both acknowledge would
disagree about the place).
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import math
import os
import signal
import sys
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from gantry_broker.client import (
    ClientError,
    Credentials,
    FromWhere,
    MessageQueue,
    Producer,
    PullConsumer,
    SendResult,
    SendStatus,
)
from gantry_broker.remoting.errors import RemotingError
from gantry_broker.remoting.tls import TlsOptions

LONG_GAP_S = 0.2
PAUSE_S = 0.02
STOP_PATIENCE_S = 30.0
READ_PATIENCE_S = 240.0
FIRST_S = 180.0
"""Seconds for the first message. NameServers and members may begin at the same time."""

CREDENTIALS = (
    Credentials(os.environ["GANTRY_ACCESS_KEY"], os.environ["GANTRY_SECRET_KEY"])
    if "GANTRY_SECRET_KEY" in os.environ
    else None
)

TLS = TlsOptions(os.environ["GANTRY_CA_FILE"]) if "GANTRY_CA_FILE" in os.environ else None

Found = dict[str, list[str]]
"""By id, every message of the topic: its places in the log."""


@dataclass
class Record:
    """The answers to the sender."""

    acknowledged: dict[str, str] = field(default_factory=dict)
    """By message: its place in the log, from its master's answer."""
    statuses: collections.Counter[str] = field(default_factory=collections.Counter)
    errors: list[str] = field(default_factory=list)
    gaps: list[tuple[float, float]] = field(default_factory=list)
    """Wall-clock time and length in seconds of the longer gaps between successes."""
    max_gap: float = 0.0
    slowest: float = 0.0
    last_ok: float = field(default_factory=time.monotonic)
    stopped_at: float = math.inf

    def stop(self) -> None:
        self.stopped_at = time.monotonic()

    def goes_on(self, end: float) -> bool:
        """Until `end`, or until one more success after `stop`, so that a gap at the end counts as well."""
        return self.last_ok <= self.stopped_at and time.monotonic() < min(end, self.stopped_at + STOP_PATIENCE_S)

    def answered(self, id: str, result: SendResult, took: float) -> None:
        self.statuses[result.status.name] += 1
        if result.status is not SendStatus.SEND_OK:
            return
        now = time.monotonic()
        gap, self.last_ok = now - self.last_ok, now
        self.max_gap, self.slowest = max(self.max_gap, gap), max(self.slowest, took)
        if gap > LONG_GAP_S:
            self.gaps.append((time.time(), round(gap, 3)))
        self.acknowledged[id] = result.offset_id


async def send_until(producer: Producer, topic: str, end: float, options: argparse.Namespace, record: Record) -> None:
    while record.goes_on(end):
        id = uuid.uuid4().hex
        begun = time.monotonic()
        try:
            result = await producer.send(topic, id.encode().ljust(options.size, b"."), keys=id)
            record.answered(id, result, time.monotonic() - begun)
        except Exception as error:
            record.errors.append(f"{type(error).__name__}: {error}"[:200])
            await asyncio.sleep(0.01)
        await asyncio.sleep(options.pause)


async def send_first(producer: Producer, topic: str) -> None:
    deadline = time.monotonic() + FIRST_S
    while True:
        try:
            await producer.send(topic, uuid.uuid4().hex.encode(), timeout=30)
            return
        except (RemotingError, ClientError) as error:
            print(f"the first message: {error}", flush=True)
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.5)


async def read_patiently(name_servers: str, topic: str) -> Found:
    """As `read_all`, started again while no master answers; the gaps of the load show such failures."""
    deadline = time.monotonic() + READ_PATIENCE_S
    while True:
        try:
            return await read_all(name_servers, topic)
        except (RemotingError, ClientError) as error:
            print(f"reading back: {error}", flush=True)
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(1)


async def read_all(name_servers: str, topic: str) -> Found:
    """Every message of the topic, read from each queue's first to its last offset."""
    found: Found = collections.defaultdict(list)
    async with PullConsumer(
        name_servers, "e2e-check", from_where=FromWhere.FIRST, auto_commit=False, credentials=CREDENTIALS, tls=TLS
    ) as consumer:
        queues = await consumer.queues(topic)
        await consumer.assign(queues)
        left: dict[MessageQueue, int] = {}
        for queue in queues:
            last = await consumer.puller.max_offset(queue)
            if last > await consumer.puller.min_offset(queue):
                left[queue] = last - 1
        deadline = time.monotonic() + READ_PATIENCE_S
        while left and time.monotonic() < deadline:
            for message in await consumer.poll(1.0, 256):
                found[message.body[:32].decode()].append(message.offset_id)
                queue = MessageQueue(topic, message.broker, message.queue_id)
                if message.queue_offset >= left.get(queue, sys.maxsize):
                    del left[queue]
        if left:
            raise TimeoutError(f"queues could not be read to their ends: {left}")
    return found


async def run(options: argparse.Namespace) -> dict[str, Any]:
    record = Record()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, record.stop)
    async with Producer(options.name_servers, "e2e-load", credentials=CREDENTIALS, tls=TLS) as producer:
        await send_first(producer, options.topic)
        print("sending", flush=True)
        record.last_ok = time.monotonic()
        end = time.monotonic() + options.seconds
        senders = (send_until(producer, options.topic, end, options, record) for _ in range(options.senders))
        await asyncio.gather(*senders)
    found = await read_patiently(options.name_servers, options.topic)
    return {
        "sendOk": len(record.acknowledged),
        "statuses": dict(record.statuses),
        "errors": len(record.errors),
        "errorSamples": record.errors[:5],
        "maxGapMs": round(record.max_gap * 1000),
        "slowestMs": round(record.slowest * 1000),
        "gaps": record.gaps,
        "shortestGapS": LONG_GAP_S,
        "lost": len(record.acknowledged.keys() - found.keys()),
        "twice": sum(1 for id in record.acknowledged if len(found.get(id, ())) > 1),
        "elsewhere": sum(1 for id, at in record.acknowledged.items() if id in found and at not in found[id]),
        "inLog": sum(map(len, found.values())),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name_servers")
    parser.add_argument("topic")
    parser.add_argument("seconds", type=float)
    parser.add_argument("--senders", type=int, default=4)
    parser.add_argument("--pause", type=float, default=PAUSE_S)
    parser.add_argument("--size", type=int, default=128)
    print(json.dumps(asyncio.run(run(parser.parse_args()))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
