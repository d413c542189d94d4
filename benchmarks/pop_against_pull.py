"""Measures POP beside pull, by remoting: messages a second and the broker's CPU a message.

    python benchmarks/pop_against_pull.py [--messages 100000] [--body 1024] [--rounds 3] [--members 4] [--batch 32]

One broker, as a process of its own, has the messages. Then members of a group consume them all, in turn by pull (our
`Consumer`, which commits its offsets) and by POP (our `SimpleConsumer`: receives of `--batch` messages, with one
request for their acknowledgements). Both ask for the next messages before they have finished with these: `Consumer`
pulls ahead, and `SimpleConsumer` receives while it acknowledges. A message counts when the handler has it, by POP when
its acknowledgement is answered. All members are in this process, whose CPU limits the rate; so the last line compares
both.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path

from gantry_broker.client import Consumer, FromWhere, Producer, SimpleConsumer
from gantry_broker.client.message import Message, ReceivedMessage
from gantry_broker.client.simple_consumer import PoppedMessage
from proxy import ROOT, System, cpu_s, gantry, make_topic

TOPIC = "Bench"


async def fill(system: System, messages: int, body: int) -> None:
    async with Producer(system.name_server) as producer:
        for first in range(0, messages, 64):
            await producer.send_batch([Message(TOPIC, b"x" * body) for _ in range(min(64, messages - first))])


class Counted:
    """Counts messages from the first to the last."""

    def __init__(self, messages: int) -> None:
        self.left = messages
        self.begun = self.ended = 0.0
        self.done = asyncio.Event()

    def add(self, messages: int) -> None:
        if not self.begun and messages:
            self.begun = time.monotonic()
        self.left -= messages
        if self.left <= 0 and not self.ended:
            self.ended = time.monotonic()
            self.done.set()


async def by_pull(system: System, group: str, counted: Counted, members: int, _: int) -> None:
    async def handle(_: ReceivedMessage) -> None:
        counted.add(1)

    consumers = [Consumer(system.name_server, group, from_where=FromWhere.FIRST) for _ in range(members)]
    for consumer in consumers:
        await consumer.subscribe(TOPIC, handle)
        await consumer.start()
    await asyncio.wait_for(counted.done.wait(), 300)
    for consumer in consumers:
        await consumer.close()


async def by_pop(system: System, group: str, counted: Counted, members: int, batch: int) -> None:
    async def member() -> None:
        async with SimpleConsumer(system.name_server, group, invisible_s=60) as consumer:
            await consumer.subscribe(TOPIC)

            async def ack(got: list[PoppedMessage]) -> None:
                late = await consumer.ack_all(got)
                counted.add(len(got) - len(late))

            acks = asyncio.ensure_future(ack([]))
            while counted.left > 0:
                got = await consumer.receive(batch, wait_s=1)
                await acks
                acks = asyncio.ensure_future(ack(got))
            await acks

    await asyncio.gather(*(member() for _ in range(members)))


async def run(system: System, options: argparse.Namespace) -> None:
    await make_topic(system, TOPIC, "filling")
    await fill(system, options.messages, options.body)
    rates: dict[str, list[tuple[float, float]]] = {"pull": [], "POP": []}
    print(f"{'':6}{'messages/s':>12}{'broker us':>12}{'client us':>12}")
    for number in range(options.rounds):
        for name, consume in (("pull", by_pull), ("POP", by_pop)):
            counted, before, mine = Counted(options.messages), cpu_s(system.broker_pid), time.process_time()
            await consume(system, f"{name}-{number}", counted, options.members, options.batch)
            seconds = counted.ended - counted.begun
            broker_us = (cpu_s(system.broker_pid) - before) / options.messages * 1e6
            client_us = (time.process_time() - mine) / options.messages * 1e6
            rates[name].append((options.messages / seconds, broker_us))
            print(f"{name:6}{options.messages / seconds:>12.0f}{broker_us:>12.1f}{client_us:>12.1f}", flush=True)
    pull, pop = (statistics.median(rate for rate, _ in found) for found in rates.values())
    print(f"POP has {pop / pull:.2f} of the rate of pull (medians)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--body", type=int, default=1_024, help="bytes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(str(ROOT / name) for name in ("operator", "broker_image", "spark_jobs"))
    with tempfile.TemporaryDirectory(prefix="pop-pull-") as folder, gantry(Path(folder)) as system:
        asyncio.run(run(system, options))


if __name__ == "__main__":
    main()
