"""Measures the CPU time and the memory of POP consumption in the broker, without sockets.

    python benchmarks/pop_path.py [--messages 40000] [--queues 8] [--body 128] [--in-flight 1000000] [--profile]

A real broker (group of one member) gets messages. Then members of a group pop and acknowledge them, by the service
itself: the columns "pop" and "ack" are microseconds of CPU a message, for pops of so many messages, with so many
requests in one pass of the event loop. "pull" is what a pull of as many messages costs. The last rows keep messages in
flight and show the memory of each, as measured and as the broker counts it, and how long a new leader needs to read
that state.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import logging
import pstats
import tempfile
import time
import tracemalloc
from pathlib import Path

import uvloop
from gantry_broker.broker.pop.records import apply_record, whole_state
from gantry_broker.broker.pop.requests import Pop
from gantry_broker.broker.pop.state import PopState
from gantry_broker.broker.process import BrokerProcess
from gantry_broker.protocol.bodies import TopicConfig
from gantry_broker.protocol.pop_batches import batch_of
from gantry_broker.protocol.pop_handle import Handle
from gantry_broker.remoting.connection import Connection
from rig.alone import broker_alone
from send_path import CountingTransport, reads

TOPIC = "BenchmarkTest"


def handles(data: str, pop_ms: int, invisible_ms: int, broker: str) -> list[Handle]:
    """Returns the handles of the field msgOffsetInfo."""
    out = []
    for part in data.split(";"):
        kind, queue, offsets = part.split(" ")
        places = [int(at) for at in offsets.split(",")]
        out += [Handle(places[0], pop_ms, invisible_ms, 0, int(kind), broker, int(queue), at) for at in places]
    return out


async def fill(process: BrokerProcess, messages: int, queues: int, body: int) -> None:
    conn = Connection(process.parts.dispatcher, accepted=True, shared=process.broker.shared)
    conn.connection_made(CountingTransport())
    for data in reads(messages, 64, queues, body, None):
        conn.data_received(data)
        await asyncio.sleep(0)
    await asyncio.sleep(0.1)


async def popped(process: BrokerProcess, group: str, most: int, together: int) -> tuple[float, float, int]:
    """Pops and acknowledges everything; returns the CPU seconds of both, and the messages."""
    pop, broker = process.broker.pop, process.parts.context.config.group
    process.broker.creation.group_config(group)
    pop_s = ack_s = 0.0
    count = 0
    while True:
        requests = [Pop(group=group, topic=TOPIC, max_messages=most, invisible_ms=600_000) for _ in range(together)]
        begun = time.process_time()
        answers = await asyncio.gather(*(pop.pop(request) for request in requests))
        pop_s += time.process_time() - begun
        found = [handles(a.message_offset_info, a.pop_ms, a.invisible_ms, broker) for a in answers if a.count]
        if not found:
            return pop_s, ack_s, count
        count += sum(map(len, found))
        batches = [batch_of(group, TOPIC, some) for some in found]
        begun = time.process_time()
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        for batch in batches:
            assert batch is not None
            pop.ack_batches([(entry, entry.bits) for entry in batch.acks])
        pop.when_stored(done.set_result)
        await done
        ack_s += time.process_time() - begun


def pulled(process: BrokerProcess, queues: int, most: int) -> tuple[float, int]:
    """Reads everything as pulls do; returns the CPU seconds and the messages."""
    store, count = process.store, 0
    begun = time.process_time()
    for queue in range(queues):
        at, end = 0, store.reader.max_offset(TOPIC, queue)
        while at < end:
            got = store.reader.together().try_get(TOPIC, queue, at, most, 1 << 18)
            got = got or store.reader.get(TOPIC, queue, at, most, 1 << 18)
            process.broker.meta.commit_offset(TOPIC, "pulling", queue, got.next_offset)
            at, count = got.next_offset, count + got.count
    return time.process_time() - begun, count


def memory(in_flight: int, each: int) -> None:
    """Keeps messages in flight, by pops of so many, and prints what that takes."""
    tracemalloc.start()
    state = PopState()
    queues = [state.add(("G", "T", number), 0) for number in range(8)]
    begun = time.process_time()
    for number in range(in_flight // each):
        queue = queues[number % 8]
        start = queue.next
        state.pop(queue, range(start, start + each), 1_800_000_000_000 + number // 50, 60_000, start + each)
    made_s = time.process_time() - begun
    measured, _ = tracemalloc.get_traced_memory()
    counted = state.bytes
    tracemalloc.stop()
    begun = time.process_time()
    records = list(whole_state(state))
    wrote_s = time.process_time() - begun
    begun = time.process_time()
    again = PopState()
    for record in records:
        for _ in apply_record(again, record):
            pass
    read_s = time.process_time() - begun
    assert len(again) == len(state)
    size = sum(map(len, records)) / in_flight
    print(
        f"{in_flight:>11,}{each:>6}{measured / in_flight:>10.1f}{counted / in_flight:>9.1f}{size:>12.1f}"
        f"{wrote_s:>9.2f}{read_s:>8.2f}{made_s * 1e6 / in_flight:>12.2f}",
        flush=True,
    )


async def run(options: argparse.Namespace, folder: Path) -> None:
    profiler = cProfile.Profile() if options.profile else None
    async with broker_alone(folder) as process:
        process.broker.changes.append({"topics": [TopicConfig(TOPIC, options.queues, options.queues).to_json()]})
        await fill(process, options.messages, options.queues, options.body)
        print(f"{'messages a pop':>15}{'requests a pass':>17}{'pop us':>8}{'ack us':>8}{'pull us':>9}")
        for most in options.most:
            pull_s, pulled_count = pulled(process, options.queues, most)
            for together in options.together:
                if profiler is not None:
                    profiler.enable()
                pop_s, ack_s, count = await popped(process, f"g{most}x{together}", most, together)
                if profiler is not None:
                    profiler.disable()
                print(
                    f"{most:>15}{together:>17}{pop_s * 1e6 / count:>8.2f}{ack_s * 1e6 / count:>8.2f}"
                    f"{pull_s * 1e6 / pulled_count:>9.2f}",
                    flush=True,
                )
    if profiler is not None:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(30)
    print(
        f"\n{'in flight':>11}{'each':>6}{'measured':>10}{'counted':>9}{'in the log':>12}{'write s':>9}{'read s':>8}"
        f"{'pop us':>12}   (bytes a message)"
    )
    for each in (32, 4, 1):
        memory(options.in_flight, each)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=40_000)
    parser.add_argument("--queues", type=int, default=8)
    parser.add_argument("--body", type=int, default=128, help="bytes")
    parser.add_argument("--most", type=int, nargs="+", default=[1, 32], help="messages of a pop")
    parser.add_argument("--together", type=int, nargs="+", default=[1, 16], help="requests in one pass")
    parser.add_argument("--in-flight", type=int, default=1_000_000, help="messages of the rows about memory")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--dir", type=Path, help="where the store goes (default: the system's temporary folder)")
    options = parser.parse_args()
    logging.disable()
    with tempfile.TemporaryDirectory(prefix="pop-path-", dir=options.dir) as folder:
        uvloop.run(run(options, Path(folder)))


if __name__ == "__main__":
    main()
