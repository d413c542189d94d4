"""One process of the delivery scenario: a producer, or a member of a consumer group.

A member logs each message before its offset can be committed, so that the log of a killed member is complete.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import time
from pathlib import Path

import uvloop
from gantry_broker.client import (
    ClientError,
    Consumer,
    FromWhere,
    Message,
    OrderedConsumer,
    Producer,
    PullConsumer,
    ReceivedMessage,
    SendStatus,
)
from gantry_broker.remoting.errors import RemotingError

from tests.delivery.plan import ALL, FILTERED, LOG_ENTRY, ORDERED, QUEUES, TOPIC, Plan, body, parse

BATCH = 32


async def produce(name_servers: str, keys: list[int], plan: Plan) -> None:
    """Sends the messages of its keys in order, and repeats each batch until it is acknowledged. Prints its progress."""
    done = 0

    async def one(producer: Producer, key: int) -> None:
        nonlocal done
        queue = sorted(await producer.queues(TOPIC), key=lambda q: q.queue_id)[key]
        for start in range(0, plan.per_key, BATCH):
            numbers = range(start, min(start + BATCH, plan.per_key))
            batch = [Message(TOPIC, body(key, n), plan.tag(n), f"{key}:{n}") for n in numbers]
            while True:
                try:
                    if (await producer.send_batch(batch, queue=queue)).status is SendStatus.SEND_OK:
                        break
                except (ClientError, RemotingError):
                    await asyncio.sleep(0.05)
            done += len(batch)

    async def report() -> None:
        while True:
            print(done, flush=True)
            await asyncio.sleep(0.2)

    async with Producer(name_servers) as producer:
        reporter = asyncio.create_task(report())
        await asyncio.gather(*(one(producer, key) for key in keys))
        reporter.cancel()
    print(done, flush=True)


class Member:
    """Runs one consumer of a group after the other, each for a few seconds, until the process ends."""

    def __init__(self, name_servers: str, group: str, plan: Plan, log: Path) -> None:
        self._servers, self._group, self._plan = name_servers, group, plan
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.stop = asyncio.Event()

    async def handle(self, message: ReceivedMessage) -> bool:
        key, number = parse(message.body)
        os.write(self._log, LOG_ENTRY.pack(key, number, time.monotonic_ns(), message.reconsume_times))
        if self._group != ALL:
            return True
        return not self._plan.poisoned(number) and message.reconsume_times >= self._plan.transient_failures(number)

    async def run(self, rng: random.Random) -> None:
        while not self.stop.is_set():
            try:
                await self._consume_for(rng.uniform(3, 6))
            except (ClientError, RemotingError) as error:
                print(f"{self._group}: {error}", file=sys.stderr, flush=True)
            await asyncio.sleep(0.3)

    async def _consume_for(self, seconds: float) -> None:
        if self._group == FILTERED:
            async with PullConsumer(
                self._servers, self._group, from_where=FromWhere.FIRST, rebalance_s=1.0, commit_s=1.0
            ) as puller:
                await puller.subscribe_to(TOPIC, "fifth")
                end = time.monotonic() + seconds
                while time.monotonic() < end and not self.stop.is_set():
                    for message in await puller.poll(0.2, 256):
                        await self.handle(message)
                await puller.commit()
            return
        kind = OrderedConsumer if self._group == ORDERED else Consumer
        async with kind(
            self._servers, self._group, from_where=FromWhere.FIRST, rebalance_s=1.0, commit_s=1.0
        ) as consumer:
            await consumer.subscribe(TOPIC, self.handle)
            try:
                async with asyncio.timeout(seconds):
                    await self.stop.wait()
            except TimeoutError:
                return


async def consume(name_servers: str, group: str, plan: Plan, log: Path, seed: int) -> None:
    member = Member(name_servers, group, plan, log)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, member.stop.set)
    await member.run(random.Random(seed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=["produce", "consume"])
    parser.add_argument("--namesrv", required=True)
    parser.add_argument("--plan", type=int, nargs=3, required=True, help="messages, poison every, stumble every")
    parser.add_argument("--keys", type=int, nargs="*", default=list(range(QUEUES)))
    parser.add_argument("--group", default=ALL)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    plan = Plan(*options.plan)
    if options.work == "produce":
        uvloop.run(produce(options.namesrv, options.keys, plan))
    else:
        uvloop.run(consume(options.namesrv, options.group, plan, options.log, options.seed))


if __name__ == "__main__":
    main()
