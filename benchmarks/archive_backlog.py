"""Measures how fast a backlog reaches the archive, beside the object store's library alone, in pairs.

    python -m benchmarks.archive_backlog                       # 512 MiB of log, 3 pairs
    python -m benchmarks.archive_backlog --mib 1024 --pairs 5 --words 8

A store is filled with messages whose bodies compress to about a fifth (`--words`: 13 bytes each). Each pair uploads it
to a real S3 server (versitygw on loopback) by the code of a broker, without a rate limit, and puts the very objects
that came of it by `obstore` alone, as many at once. The order changes from pair to pair. `log, of obstore alone`
compares the bytes of the log with those that the library puts. The event loop runs meanwhile, as in a broker: `loop
late` is by how much a timer of 1 ms is late, in the worst case and at the 99th percentile. CPU is that of this process,
without the server's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gantry_broker.allocation import keep_freed_memory, share_one_heap
from gantry_broker.archive.archiver import SENDING, Archiver
from gantry_broker.archive.chain import Archive
from gantry_broker.archive.objects import Location, ObjectStore
from gantry_broker.archive.threads import in_daemon_thread
from gantry_broker.archive.upload import Settings, View
from gantry_broker.broker.archiving import LEVELS, PARTS
from gantry_broker.store.store import MessageStore

from benchmarks.archive import fill
from tests.archive.s3 import S3Server, s3_server

MIB = 2**20


def upload(store: MessageStore, folder: Path, archive: Archive, name: str) -> None:
    settings = Settings(interval_ms=0, part=PARTS[name])
    archiver = Archiver(
        archive, group="a", uid="u", cluster="c", log_dir=folder / "commitlog", view=lambda: None, turn=lambda: True,
        settings=lambda: settings, delays=(1_000,), level=LEVELS[name],
    )  # fmt: skip
    view = View(store.log.start, store.state.confirmed, store.log.segment_size, store.epoch_cache.epochs)
    while archiver._step(view, settings, True):
        pass


def alone(objects: ObjectStore, prefix: str, pieces: list[bytes]) -> None:
    with ThreadPoolExecutor(SENDING) as threads:
        made = list(threads.map(lambda piece: objects.create(f"{prefix}/{piece[0]}", piece[1]), enumerate(pieces)))
    assert all(made)


async def beside(work: Any) -> tuple[float, float, list[float]]:
    """Run the work in a thread. Return wall and CPU seconds, and the delays of a timer of the loop in ms."""
    late: list[float] = []
    wall, cpu = time.perf_counter(), time.process_time()
    task = asyncio.ensure_future(in_daemon_thread(work))
    while not task.done():
        begun = time.perf_counter()
        await asyncio.sleep(0.001)
        late.append((time.perf_counter() - begun - 0.001) * 1000)
    await task
    return time.perf_counter() - wall, time.process_time() - cpu, late


def pair(number: int, store: MessageStore, folder: Path, server: S3Server, name: str) -> dict[str, float]:
    """One pair. The objects of `obstore` alone are those of an upload before it."""
    place = Location(server.bucket(f"b{number}-{name.lower()}"), server.endpoint, server.credentials(folder / "keys"))
    objects = ObjectStore(place)

    def send(prefix: str) -> tuple[float, float, list[float]]:
        target = ObjectStore(place._replace(url=f"{place.url}/{prefix}"))
        return asyncio.run(beside(lambda: upload(store, folder / "log", Archive(target), name)))

    first = send("one")
    group = Archive(ObjectStore(place._replace(url=f"{place.url}/one"))).group("a")
    pieces = [objects.get(f"one/groups/a/parts/{part.name}", part.size) for part in group.load().parts]
    put = asyncio.run(beside(lambda: alone(objects, "alone", pieces)))
    up = first if number % 2 == 0 else send("two")
    stored, size = sum(map(len, pieces)) / MIB, store.log.end / MIB
    late = sorted(up[2])
    return {
        "log MiB/s": size / up[0], "objects MiB/s": stored / up[0], "obstore alone MiB/s": stored / put[0],
        "objects, of obstore alone": put[0] / up[0], "log, of obstore alone": size / up[0] / (stored / put[0]),
        "CPU ms/MiB of log": 1_000 * up[1] / size,
        "obstore CPU ms/MiB of log": 1_000 * put[1] / size, "loop late p99 ms": late[int(len(late) * 0.99)],
        "loop late most ms": late[-1],
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=512, help="length of the log")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--words", type=int, default=79, help="of 13 bytes, in each message")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    options = parser.parse_args()
    keep_freed_memory()  # As a broker begins: it decides what fresh memory costs.
    share_one_heap()
    folder = Path(tempfile.mkdtemp(prefix="gantry-backlog-"))
    found: dict[str, dict[str, float]] = {}
    try:
        store = fill(folder / "log", options.mib, options.words)
        with s3_server(folder) as server:
            for name in LEVELS:
                pairs = [pair(n, store, folder, server, name) for n in range(options.pairs)]
                found[name] = {what: statistics.median(p[what] for p in pairs) for what in pairs[0]}
        store.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.output == "json":
        print(json.dumps(found))
        return 0
    for name, figures in found.items():
        print(f"compression {name}")
        for what, value in figures.items():
            print(f"  {what:28} {value:>10.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
