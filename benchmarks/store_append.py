"""Measures the cost of an append: batches of small messages, stored, confirmed, queued and indexed.

    python benchmarks/store_append.py [--messages 500000] [--batch 64] [--body 128] [--keys 0] [--directory DIR]

Prints CPU and wall time per message for each part. Compare it with another run on the same machine.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

from gantry_broker.settings import BrokerSettings
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import Put, StoreConfig

QUEUES = 8
HOST = bytes((127, 0, 0, 1, 0, 0, 0x30, 0x39))


def make_batches(messages: int, batch: int, body: int, keys: int) -> list[list[Put]]:
    """Returns messages as the official client makes them: 32 characters of unique key, rising in the last 12."""
    payload = b"x" * body
    made = []
    for first in range(0, messages, batch):
        puts = []
        for number in range(first, min(first + batch, messages)):
            unique = f"7F00000121A75FFD2B27{0x68402439 + number // 40:08X}{number & 0xFFFF:04X}"
            words = [f"order-{number}-{n}" for n in range(keys)]
            properties = f"UNIQ_KEY\x01{unique}\x02WAIT\x01true\x02TAGS\x01TagA"
            if words:
                properties += "\x02KEYS\x01" + " ".join(words)
            puts.append(
                Put(
                    topic="BenchmarkTest",
                    queue_id=number % QUEUES,
                    flag=0,
                    sys_flag=0,
                    born_ms=1_700_000_000_000,
                    born_host=HOST,
                    body=payload,
                    properties=properties.encode(),
                    tags_hash=2_598_919,
                    keys=(unique, *words),
                )
            )
        made.append(puts)
    return made


def run(directory: Path, batches: list[list[Put]], messages: int) -> None:
    settings = BrokerSettings()
    store = MessageStore.open(StoreConfig(directory / "leader", settings))
    spent = {"put": 0.0, "confirm": 0.0, "upkeep": 0.0}
    wall = time.perf_counter()
    cpu = time.process_time()
    now_ms = 1_700_000_000_000
    last_upkeep = wall
    for batch in batches:
        started = time.perf_counter()
        store.appender.put(batch, now_ms)
        stored = time.perf_counter()
        store.indexer.confirm(store.log.end)
        done = time.perf_counter()
        spent["put"] += stored - started
        spent["confirm"] += done - stored
        if done - last_upkeep > 0.1:
            store.checkpointer.run_periodic_tasks(now_ms)
            last_upkeep = done
            spent["upkeep"] += time.perf_counter() - done
            now_ms += 100
    store.checkpointer.run_periodic_tasks(now_ms + 10_000)
    wall = time.perf_counter() - wall
    cpu = time.process_time() - cpu
    print(f"leader: {messages} messages, {store.log.end / messages:.0f} bytes each in the log")
    for name, seconds in spent.items():
        print(f"  {name:8} {seconds / messages * 1e6:6.2f} us per message")
    print(f"  all      {wall / messages * 1e6:6.2f} us per message, {cpu / messages * 1e6:.2f} us of CPU")

    follower = MessageStore.open(StoreConfig(directory / "follower", settings))
    wall = time.perf_counter()
    cpu = time.process_time()
    while follower.log.end < store.log.end:
        data = store.log.read_raw(follower.log.end, 64 * 1024)
        follower.appender.append_raw(follower.log.end, data)
        follower.indexer.confirm(follower.log.end)
    wall = time.perf_counter() - wall
    cpu = time.process_time() - cpu
    print(f"follower: {wall / messages * 1e6:.2f} us per message, {cpu / messages * 1e6:.2f} us of CPU (with the read)")

    wall = time.perf_counter()
    read = 0
    for queue_id in range(QUEUES):
        offset = 0
        while offset < store.reader.max_offset("BenchmarkTest", queue_id):
            got = store.reader.get("BenchmarkTest", queue_id, offset, 32, 262_144)
            read += got.count
            offset = got.next_offset
    print(f"get, 32 at once: {(time.perf_counter() - wall) / read * 1e6:.2f} us per message")

    follower.close(clean=False)
    started = time.perf_counter()
    follower = MessageStore.open(StoreConfig(directory / "follower", settings))
    print(f"open after a crash that lost no write: {time.perf_counter() - started:.2f} s")
    follower.close()
    store.close()
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB, the batches included")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--body", type=int, default=128)
    parser.add_argument("--keys", type=int, default=0, help="words of KEYS beside the unique key")
    parser.add_argument(
        "--directory", type=Path, default=None, help="where to make the stores; default: a temporary one"
    )
    chosen = parser.parse_args()
    batches = make_batches(chosen.messages, chosen.batch, chosen.body, chosen.keys)
    with tempfile.TemporaryDirectory(dir=chosen.directory) as directory:
        run(Path(directory), batches, chosen.messages)


if __name__ == "__main__":
    main()
