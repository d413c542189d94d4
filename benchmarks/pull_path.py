"""Measures the CPU time of a pulled message on the broker's event loop, without sockets.

    python benchmarks/pull_path.py [--messages 1024] [--rounds 40] [--queues 1024] [--groups 1 3] [--body 128]
        [--profile]

A real broker (group of one member) holds a pull of each consumer group for each queue, as RocketMQ's push consumer
has them. A producer's connection sends messages to the queues in turn, a number of frames in one read. Each message
wakes the pulls of its queue. The consumers' connections send the next pull for each answer, as many frames in one read.
The measurement covers everything between the reads and the written answers, except the kernel's calls for the
sockets and this program's own work as the peer. "sent" is a message that nobody consumes, "pulled" what each group
adds to it. Rounds of both kinds alternate. The figures are medians of `--rounds`, of the second kind those of the
differences to the round before. `--profile` prints the profile of the last row.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import logging
import pstats
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import orjson
import uvloop
from gantry_broker.broker.process import BrokerProcess
from gantry_broker.protocol.codes import PullFlag, RequestCode
from gantry_broker.remoting.connection import Connection
from rig.alone import broker_alone
from send_path import CountingTransport, reads

TOPIC = "BenchmarkTest"
UNREAD = "BenchmarkIdle"
"""A topic that no one consumes, with a name of the same length."""
POSTPONED = 140
"""Pulls that fit into one read of 64 KiB."""
_PULL = (
    '{"code":11,"extFields":{"queueId":"%d","maxMsgNums":"32","sysFlag":"%d","suspendTimeoutMillis":"15000",'
    '"commitOffset":"%d","topic":"BenchmarkTest","queueOffset":"%d","expressionType":"TAG",'
    '"subVersion":"1795240234041","consumerGroup":"%s"},"flag":0,"language":"JAVA","opaque":%d,'
    '"serializeTypeCurrentRPC":"JSON","version":399}'
)
_CREATE = (
    '{"code":%d,"extFields":{"topic":"%s","defaultTopic":"TBW102","readQueueNums":"%d","writeQueueNums":"%d","perm":"6",'
    '"topicFilterType":"SINGLE_TAG"},"flag":0,"language":"JAVA","opaque":1000000000,"serializeTypeCurrentRPC":"JSON",'
    '"version":399}'
)
_HEAD = (
    '{"code":%d,"extFields":{},"flag":0,"language":"JAVA","opaque":1000000000,"serializeTypeCurrentRPC":"JSON",'
    '"version":399}'
)


def _frame(header: str, body: bytes = b"") -> bytes:
    head = header.encode()
    return (4 + len(head) + len(body)).to_bytes(4, "big") + len(head).to_bytes(4, "big") + head + body


class ConsumerTransport(CountingTransport):
    """The peer of a consumer's connection: keeps what the broker writes."""

    def __init__(self) -> None:
        super().__init__()
        self.data: list[bytes] = []
        self.reads = True

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self.writes += 1
        self.data.append(data)

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True


@dataclass
class Consumer:
    """One consumer group on one connection, with one pull for each queue."""

    group: str
    queues: int
    transport: ConsumerTransport = field(default_factory=ConsumerTransport)
    got: int = 0
    answers: int = 0
    unread: list[bytes] = field(default_factory=list)
    postponed: bool = False

    def heartbeat(self) -> bytes:
        data = {"topic": TOPIC, "subString": "*", "tagsSet": [], "codeSet": [], "subVersion": 1795240234041}
        consumer = {
            "groupName": self.group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": [data], "unitMode": False,
        }  # fmt: skip
        body = {"clientID": f"127.0.0.1@{self.group}", "consumerDataSet": [consumer], "producerDataSet": []}
        return _frame(_HEAD % RequestCode.HEART_BEAT, orjson.dumps(body))

    def pull(self, queue: int, offset: int) -> bytes:
        """Returns the next pull of a queue; its opaque is the queue's number."""
        flag = PullFlag.SUSPEND | (PullFlag.COMMIT_OFFSET if offset else 0)
        return _frame(_PULL % (queue, flag, offset, offset, self.group, queue))

    def reads(self, together: int) -> list[bytes]:
        """Returns the pulls that the broker reads now: as many in one read, and all in one that it postponed."""
        self.unread += self._next_pulls()
        if not self.transport.reads:
            self.postponed = True
            return []
        pulls, self.unread = self.unread, []
        step = POSTPONED if self.postponed else together
        self.postponed = False
        return [b"".join(pulls[at : at + step]) for at in range(0, len(pulls), step)]

    def _next_pulls(self) -> list[bytes]:
        """Reads the answers, and returns the pulls that follow them."""
        data, self.transport.data = b"".join(self.transport.data), []
        at = 0
        pulls: list[bytes] = []
        while at < len(data):
            length, size = int.from_bytes(data[at : at + 4], "big"), int.from_bytes(data[at + 4 : at + 8], "big")
            header = orjson.loads(data[at + 8 : at + 8 + size])
            if header["code"] == 0 and header["opaque"] < self.queues:
                self.answers += 1
                offset = int(header["extFields"]["nextBeginOffset"])
                body = at + 8 + size
                while body < at + 4 + length:
                    body += int.from_bytes(data[body : body + 4], "big")
                    self.got += 1
                pulls.append(self.pull(header["opaque"], offset))
            at += 4 + length
        return pulls


class Bench:
    """A broker with a producer and consumers."""

    def __init__(self, process: BrokerProcess, options: argparse.Namespace) -> None:
        self.process, self.options = process, options
        self.producer = self._connect(CountingTransport())

    def _connect(self, transport: CountingTransport) -> Connection:
        conn = Connection(self.process.parts.dispatcher, accepted=True, shared=self.process.broker.shared)
        conn.connection_made(transport)
        return conn

    async def create_topic(self) -> None:
        """Creates the topic that no one consumes."""
        queues = self.options.queues
        self.producer.data_received(_frame(_CREATE % (RequestCode.UPDATE_AND_CREATE_TOPIC, UNREAD, queues, queues)))
        await asyncio.sleep(0.2)
        if UNREAD not in self.process.broker.meta.working.topics:
            raise RuntimeError(f"there is no topic {UNREAD}")

    async def sent_only(self, messages: int, together: int) -> float:
        """Returns the CPU seconds of sends."""
        made = [
            data.replace(TOPIC.encode(), UNREAD.encode())
            for data in reads(messages, together, self.options.queues, self.options.body, None)
        ]
        cpu = time.process_time()
        for data in made:
            self.producer.data_received(data)
            await asyncio.sleep(0)
        return time.process_time() - cpu

    async def consumed(
        self, messages: int, together: int, groups: int, profiler: cProfile.Profile | None
    ) -> tuple[float, float, float]:
        """Returns the CPU seconds of the broker in a round without consumers, what they add, and the messages in one
        answer.
        """
        ends = [self.process.store.reader.max_offset(TOPIC, queue) for queue in range(self.options.queues)]
        consumers = [Consumer(f"g{together}x{groups}x{n}", self.options.queues) for n in range(groups)]
        links = [self._connect(consumer.transport) for consumer in consumers]
        for consumer, conn in zip(consumers, links, strict=True):
            conn.data_received(consumer.heartbeat())
            await asyncio.sleep(0.1)
            for queue, end in enumerate(ends):
                conn.data_received(consumer.pull(queue, end))
            await asyncio.sleep(0.2)
            consumer.transport.data.clear()
        if len(self.process.broker.held) != self.options.queues * groups:
            raise RuntimeError(f"{len(self.process.broker.held)} pulls are held")
        if profiler is not None:
            profiler.enable()
        alone, added = [], []
        for number in range(self.options.rounds):
            alone.append(await self.sent_only(messages, together))
            added.append(await self._round(consumers, links, messages * (number + 1), together) - alone[-1])
        if profiler is not None:
            profiler.disable()
        for conn in links:
            conn.connection_lost(None)
        self.process.parts.context.pulls.expire(self.process.parts.context.clock.now_ms() + 60_000)
        return median(alone), median(added), sum(c.got for c in consumers) / sum(c.answers for c in consumers)

    async def _round(self, consumers: list[Consumer], links: list[Connection], end: int, together: int) -> float:
        """Sends messages until each consumer has `end` of them; returns the CPU seconds of the broker."""
        made = reads(end - consumers[0].got, together, self.options.queues, self.options.body, None)
        own = 0.0
        cpu = time.process_time()
        while made or any(consumer.got < end for consumer in consumers):
            if made:
                self.producer.data_received(made.pop(0))
                await asyncio.sleep(0)
            else:
                await asyncio.sleep(0.001)
            begun = time.process_time()
            parts = [consumer.reads(together) for consumer in consumers]
            own += time.process_time() - begun
            for conn, datas in zip(links, parts, strict=True):
                for data in datas:
                    conn.data_received(data)
        return time.process_time() - cpu - own


async def run(options: argparse.Namespace, folder: Path) -> None:
    profiler = cProfile.Profile() if options.profile else None
    async with broker_alone(folder) as process:
        bench = Bench(process, options)
        await bench.create_topic()
        await bench.sent_only(2_000, 16)
        print(f"{'groups':>7}{'frames a read':>15}{'sent us':>9}{'pulled us':>11}{'messages an answer':>20}")
        rows = [(groups, together) for groups in options.groups for together in options.together]
        for groups, together in rows:
            messages = options.messages
            used = profiler if (groups, together) == rows[-1] else None
            alone, added, each = await bench.consumed(messages, together, groups, used)
            unit = 1e6 / messages
            print(
                f"{groups:>7}{together:>15}{alone * unit:>9.2f}{added * unit / groups:>11.2f}{each:>20.2f}", flush=True
            )
    if profiler is not None:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_024, help="of each round")
    parser.add_argument("--queues", type=int, default=1024, help="one held pull of each group for each queue")
    parser.add_argument("--groups", type=int, nargs="+", default=[1, 3], help="consumer groups")
    parser.add_argument("--body", type=int, default=128, help="bytes")
    parser.add_argument("--together", type=int, nargs="+", default=[1, 4, 16, 64], help="frames in one read")
    parser.add_argument("--rounds", type=int, default=40, help="of each row")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--dir", type=Path, help="where the store goes (default: the system's temporary folder)")
    options = parser.parse_args()
    logging.disable()
    with tempfile.TemporaryDirectory(prefix="pull-path-", dir=options.dir) as folder:
        uvloop.run(run(options, Path(folder)))


if __name__ == "__main__":
    main()
