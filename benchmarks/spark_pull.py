"""Measures the CPU time of the `rocketmq` source alone, by pull: from the brokers' answers to an Arrow stream.

    python benchmarks/spark_pull.py [--messages 60000] [--body 1024 200] [--turns 5]

One process without Spark reads a topic of four queues and writes the stream to a socket, as a worker of Spark does.
Reads with large answers and with answers of 32 messages, as RocketMQ's brokers give them, take turns. The figures are
medians, in microseconds a message: CPU time of the reading thread, wall time, CPU time of the broker.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import socket
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pyarrow as pa
from gantry_broker.client import Admin
from gantry_broker.protocol.codes import Prop
from gantry_spark.schema import arrow_schema
from gantry_spark.topics import pull
from gantry_spark.topics.columns import batches, property_names, spark_schema
from gantry_spark.topics.options import WriteOptions
from gantry_spark.topics.queues import QueueRange
from gantry_spark.topics.sink import Row, Sender
from gantry_spark.topics.source import cluster_of
from gantry_spark.topics.wire import Cluster
from rig.gantry import single
from rig.processes import usage
from rig.target import Target

TOPIC = "Pulled"
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp")


class Turn(NamedTuple):
    """Microseconds a message."""

    cpu: float
    wall: float
    broker: float


def swallow(sock: socket.socket) -> None:
    buffer = bytearray(1 << 20)
    while sock.recv_into(buffer):
        pass


def filled(group: Target, body: int, messages: int) -> Cluster:
    """A topic with messages, each with a key. Bodies do not compress well."""

    async def create() -> None:
        async with Admin(group.namesrv) as admin:
            await admin.create_topic(TOPIC, queues=4)

    asyncio.run(create())
    options = WriteOptions({"nameServers": group.namesrv})
    cluster = cluster_of(options.access)
    sender = Sender(cluster, options)
    for number in range(messages):
        key = f"k{number % 10_000}"
        text = (hashlib.sha256(b"%d" % number).hexdigest() * (body // 64 + 1))[:body]
        unique = hashlib.md5(b"%d" % number).hexdigest().upper()
        properties = {Prop.KEYS: key, Prop.UNIQ_CLIENT_MESSAGE_ID_KEYIDX: unique}
        sender.add(TOPIC, Row(text.encode(), properties, key, False))
    sender.finish()
    return cluster


def read(group: Target, cluster: Cluster, messages: int) -> Turn:
    schema = arrow_schema(spark_schema(COLUMNS))
    settings = pull.PullSettings("TOOLS_CONSUMER", (), True, True, property_names(COLUMNS))
    bounds = cluster.bounds(cluster.queues(TOPIC))
    near, far = socket.socketpair()
    threading.Thread(target=swallow, args=(far,), daemon=True).start()
    with near, near.makefile("wb", 65536) as file, pa.ipc.new_stream(file, schema) as stream:
        cpu, wall = time.thread_time(), time.perf_counter()
        broker = sum(usage(pid).cpu_s for pid in group.broker_pids)
        rows = 0
        for queue, bound in bounds.items():
            for records in pull.read_range(cluster, QueueRange(queue, bound.first, bound.after), settings):
                for batch in batches(records, TOPIC, queue.broker, COLUMNS, schema):
                    rows += batch.num_rows
                    stream.write_batch(batch)
        used = time.thread_time() - cpu, time.perf_counter() - wall
        broker = sum(usage(pid).cpu_s for pid in group.broker_pids) - broker
    assert rows == messages, f"{rows} of {messages} messages were read"
    return Turn(*(seconds / messages * 1e6 for seconds in (*used, broker)))


def measure(body: int, messages: int, turns: int, work: Path) -> None:
    found: dict[str, list[Turn]] = {"large": [], "32 messages": []}
    with contextlib.ExitStack() as stack:
        group = stack.enter_context(single(work / "gantry", {"diskMaxUsedSpaceRatio": 95}))
        cluster = filled(group, body, messages)
        for number in range(turns + 1):
            for answers, all_turns in found.items():
                pull.LARGE = answers == "large"  # type: ignore[misc]
                turn = read(group, cluster, messages)
                if number:  # The first one warms up.
                    all_turns.append(turn)
    for answers, all_turns in found.items():
        cpu, wall, broker = (median(column) for column in zip(*all_turns, strict=True))
        print(f"| {body} B | {answers} | {cpu:.2f} | {wall:.2f} | {broker:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=60_000)
    parser.add_argument("--body", type=int, nargs="+", default=[1024, 200], help="bytes of a message")
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    print("| body | answers | CPU | wall | broker's CPU |\n|---|---|---|---|---|")
    for body in options.body:
        with tempfile.TemporaryDirectory(prefix="spark-pull-") as name:
            measure(body, options.messages, options.turns, Path(name))


if __name__ == "__main__":
    main()
