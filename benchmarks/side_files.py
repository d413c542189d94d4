"""Measures the most that a separate volume for consume queues and index could gain: here that volume is memory.

    python benchmarks/side_files.py [--messages 300000] [--body 1024] [--keys 1] [--rounds 3] [--directory DIR]

Stores with synchronous flushes of the log, and checkpoints of queues and index in another thread (a broker makes one
each minute). In turn: all files on the disk of DIR, and queues and index in /dev/shm. Prints the bytes that each folder
takes on its disk, and the time of a flush of the log, with and without a checkpoint beside it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from pathlib import Path

from gantry_broker.settings import BrokerSettings
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import StoreConfig
from store_append import make_batches

SIDE = ("consumequeue", "index")


def allocated(folder: Path) -> int:
    """Bytes of its files on the disk."""
    return sum(p.stat().st_blocks * 512 for p in folder.rglob("*") if p.is_file())


class Run:
    """One store. `alone`, `beside`: seconds of each flush of the log without and with a checkpoint."""

    def __init__(self, directory: Path, side: Path | None) -> None:
        self.directory = directory
        directory.mkdir()
        for name in SIDE if side is not None else ():
            assert side is not None
            (side / name).mkdir(parents=True)
            (directory / name).symlink_to(side / name)
        self.alone: list[float] = []
        self.beside: list[float] = []
        self.checkpoints: list[float] = []
        self.seconds = 0.0
        self.bytes: dict[str, int] = {}

    def measure(self, batches: int, messages: int, make: argparse.Namespace) -> None:
        store = MessageStore.open(StoreConfig(self.directory, BrokerSettings()))
        now_ms, begun, last = 1_700_000_000_000, time.perf_counter(), time.perf_counter()
        working: threading.Thread | None = None
        checkpoint = None
        for batch in make_batches(messages, batches, make.body, make.keys):
            store.appender.put(batch, now_ms)
            store.indexer.confirm(store.log.end)
            before = time.perf_counter()
            store.mark_flushed(store.flush())
            now = time.perf_counter()
            (self.beside if working is not None and working.is_alive() else self.alone).append(now - before)
            store.checkpointer.run_periodic_tasks(now_ms)
            now_ms += 10
            if working is not None and not working.is_alive():
                assert checkpoint is not None
                store.checkpointer.checkpointed(checkpoint)
                working = None
            if working is None and now - last > make.checkpoint:
                last, checkpoint = now, store.checkpointer.checkpoint()
                working = threading.Thread(target=self._checkpoint, args=(checkpoint,))
                working.start()
        self.seconds = time.perf_counter() - begun
        if working is not None:
            working.join()
        store.close()
        self.bytes = {name: allocated(self.directory / name) for name in ("commitlog", *SIDE)}

    def _checkpoint(self, checkpoint: object) -> None:
        begun = time.perf_counter()
        checkpoint.run()  # type: ignore[attr-defined]
        self.checkpoints.append(time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--body", type=int, default=1024)
    parser.add_argument("--keys", type=int, default=1, help="words of KEYS beside the unique key")
    parser.add_argument("--checkpoint", type=float, default=2.0, help="seconds between two checkpoints")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, default=None, help="on the disk to measure; default: a temporary one")
    chosen = parser.parse_args()
    runs: dict[str, list[Run]] = {"one disk": [], "queues and index in memory": []}
    for _ in range(chosen.rounds):
        for name, found in runs.items():
            with (
                tempfile.TemporaryDirectory(dir=chosen.directory) as directory,
                tempfile.TemporaryDirectory(dir="/dev/shm") as memory,
            ):
                made = Run(Path(directory) / "store", None if name == "one disk" else Path(memory))
                made.measure(chosen.batch, chosen.messages, chosen)
                found.append(made)
    print(f"{chosen.messages} messages of {chosen.body} B, {chosen.keys + 1} keys each, in batches of {chosen.batch}")
    taken = runs["one disk"][0].bytes
    for folder, count in taken.items():
        print(f"  {folder:13} {count / chosen.messages:7.1f} B a message, {count / sum(taken.values()):5.1%}")
    for name, found in runs.items():
        best = min(found, key=lambda r: r.seconds)
        print(f"{name}: {chosen.messages / best.seconds:,.0f} messages a second (best of {chosen.rounds})")
        for what, times in (("alone", best.alone), ("beside a checkpoint", best.beside)):
            if len(times) > 20:
                cuts = statistics.quantiles(times, n=100)
                middle, late = cuts[49] * 1e3, cuts[98] * 1e3
                print(f"  flush of the log {what}: {middle:.2f} ms, 99 %: {late:.2f} ms ({len(times)})")
        if best.checkpoints:
            print(f"  checkpoint: {statistics.mean(best.checkpoints) * 1e3:.0f} ms on average, {len(best.checkpoints)}")


if __name__ == "__main__":
    main()
