"""Measures a backlog that is read from the archive, beside the same one read from the local disk.

    python -m benchmarks.archive_reads                        # 10,000,000 messages of 100 bytes in 8 queues
    python -m benchmarks.archive_reads --messages 1000000

A store is filled with messages of some hours ago, and copied. One broker of one member serves it as it is. The other
one archives it to a real S3 server (versitygw on loopback), and retention removes it from the local disk. Then one
connection per queue pulls the backlog from its beginning, 32 messages at a time, as clients do: first the local one.
A line for each tenth: messages a second, the broker's CPU time for each, its resident memory. What is read from the
archive is fetched at 64 MiB/s at most, which is the default. The line of each place has the broker's memory before its
backlog is read, the largest of the tenths, and the largest since its start, `rss_peak_mib`: for the archive, also while
it uploads.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from gantry_broker.protocol.codes import RequestCode
from gantry_broker.protocol.message import tags_hash
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import Put, StoreConfig

from benchmarks.archive_senders import archive_on
from benchmarks.backlog import QUEUES, TOPIC, Tenth, drain, make_topic
from benchmarks.rig.gantry import single, status
from benchmarks.rig.processes import exit_on_sigterm, peak, until, usage
from benchmarks.rig.target import Target
from benchmarks.rig.wire import Wire
from tests.archive.s3 import s3_server

SEGMENT = 64 << 20
AGO_MS = 36_000_000
HOST = b"\x7f\0\0\1\0\0\0\1"
SETTINGS = {
    "mappedFileSizeCommitLog": SEGMENT,
    "deleteWhen": ";".join(f"{hour:02}" for hour in range(24)),
    "fileReservedTime": 1,
}
REMOVED_S = 1_200.0


def fill(folder: Path, messages: int, size: int) -> None:
    """Write the messages, and some more that stay in the segment that is open."""
    store = MessageStore.open(StoreConfig(folder, BrokerSettings.model_validate(SETTINGS)))
    begun = int(time.time() * 1000) - AGO_MS
    store.appender.begin_epoch(1, b'{"kind":"epoch","epoch":1}', begun)
    hashed = tags_hash("a")

    def append(topic: str, count: int, body: bytes) -> None:
        for first in range(0, count, 400):
            puts = []
            for number in range(first, min(first + 400, count)):
                put = Put(topic, number % QUEUES, 0, 0, begun + number // 1_000, HOST, body, b"TAGS\x01a")
                put.tags_hash = hashed
                puts.append(put)
            store.appender.put(puts, begun + first // 1_000)
            store.indexer.confirm(store.log.end)

    append(TOPIC, messages, b"x" * size)
    append("After", SEGMENT // 1_000, b"y" * 1_000)
    store.close()


def remove_locally(target: Target, end: int) -> None:
    """Wait until all before this offset is in the archive only."""
    with Wire(target.broker_address, 60) as wire:

        def is_removed() -> bool:
            wire.call(RequestCode.DELETE_EXPIRED_COMMITLOG, {})
            said = status(target)
            return said["start"] >= end and said["archive"]["reads_to"] >= said["start"]

        until("the backlog is in the archive only", is_removed, REMOVED_S, [])


def measure(messages: int, size: int, folder: Path) -> Iterator[tuple[str, list[Tenth], float, float]]:
    """Yield for each place: its name, the rows of its backlog, the memory before, and the most since the broker's
    start, in MiB.
    """
    local, kept = folder / "local", folder / "kept"
    fill(local / "demo-a-0", messages, size)
    shutil.copytree(local / "demo-a-0", kept / "demo-a-0")
    end = sum(path.stat().st_size for path in (local / "demo-a-0" / "commitlog").iterdir()) - 2 * SEGMENT
    with single(local, {**SETTINGS, "fileReservedTime": 72}) as target:
        make_topic(target.broker_address, TOPIC)
        before = usage(target.broker_pids[0]).rss / 2**20
        yield "local disk", drain(target, messages), before, peak(target.broker_pids[0]) / 2**20
    shutil.rmtree(local)
    with s3_server(folder) as server, single(kept, SETTINGS, archive=archive_on(server, folder)) as target:
        make_topic(target.broker_address, TOPIC)
        remove_locally(target, end)
        before = usage(target.broker_pids[0]).rss / 2**20
        yield "archive", drain(target, messages), before, peak(target.broker_pids[0]) / 2**20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of a body")
    options = parser.parse_args()
    exit_on_sigterm()
    messages = options.messages // QUEUES * QUEUES
    with tempfile.TemporaryDirectory(prefix="archive-reads-") as folder:
        for name, rows, before, most in measure(messages, options.size, Path(folder)):
            rates, costs = [row.per_second for row in rows], [row.cpu_us for row in rows]
            print(json.dumps({
                "from": name, "messages": messages, "per_second": round(10 / sum(1 / rate for rate in rates)),
                "cpu_us": round(sum(costs) / 10, 2), "rss_before_mib": round(before, 1),
                "rss_mib": max(row.rss_mib for row in rows), "rss_peak_mib": round(most, 1),
            }), flush=True)  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
