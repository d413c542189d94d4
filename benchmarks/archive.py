"""Measures what an archive costs, and how fast it is, against the object store's library alone.

    python -m benchmarks.archive                    # 512 MiB of log
    python -m benchmarks.archive --mib 2048 -o json
    python -m benchmarks.archive --topic 1024       # restore a topic of 1 GiB and a small one into a running cluster

A store is filled with messages of 1 KiB whose bodies compress to about a fifth, and a real S3 server (versitygw on
loopback) gets it: `upload` by the code of a broker (read, check each record's CRC, index, compress, send, write the
manifest), `restore` into an empty folder by the code of a start. `obstore` puts and gets objects of the same size
without any of this. CPU is that of this process, without the server's. `memory` is the growth of the process's largest
resident set during the upload; the restore has a process of its own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from gantry_broker.archive import restore
from gantry_broker.archive.archiver import Archiver
from gantry_broker.archive.chain import Archive
from gantry_broker.archive.objects import Location, ObjectStore
from gantry_broker.archive.upload import Settings, View
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import Put, StoreConfig

from benchmarks.rig.gantry import Cluster
from benchmarks.rig.processes import peak
from tests.archive.s3 import s3_server
from tests.archive.test_topic_restore import Log

SEGMENT = 64 << 20
HOST = b"\x7f\0\0\1\0\0\0\1"


def fill(folder: Path, mib: int, words_each: int = 79) -> MessageStore:
    """Append messages until the log has so many MiB. `words_each`: of 13 bytes, in each body."""
    store = MessageStore.open(StoreConfig(folder, BrokerSettings(mappedFileSizeCommitLog=SEGMENT)))
    store.appender.begin_epoch(1, b'{"kind":"epoch"}', 1)
    rng = random.Random(1)
    words = [rng.randbytes(6).hex().encode() for _ in range(2_000)]
    number = 0
    while store.log.end < mib << 20:
        puts = []
        for _ in range(200):
            number += 1
            body = b" ".join(rng.choices(words, k=words_each))
            puts.append(Put(f"T{number % 8}", number % 4, 0, 0, number, HOST, body, b"KEYS\x01k%d\x02" % number))
        store.appender.put(puts, 1_700_000_000_000 + number)
        store.indexer.confirm(store.log.end)
    return store


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Wall and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def largest_mib() -> float:
    """The largest resident set of this program; getrusage has that of the process before it began this program."""
    return peak(os.getpid()) / 2**20


def measure(mib: int, folder: Path) -> dict[str, Any]:
    store = fill(folder / "log", mib)
    size = store.log.end / 2**20
    with s3_server(folder) as server:
        place = Location(server.bucket("archive"), server.endpoint, server.credentials(folder / "keys"))
        objects = ObjectStore(place)
        archive = Archive(objects)
        settings = Settings(interval_ms=0)
        archiver = Archiver(
            archive, group="a", uid="u", cluster="c", log_dir=folder / "log" / "commitlog", view=lambda: None,
            turn=lambda: True, settings=lambda: settings, delays=(1_000,),
        )  # fmt: skip
        view = View(store.log.start, store.state.confirmed, store.log.segment_size, store.epoch_cache.epochs)

        def upload() -> None:
            while archiver._step(view, settings, True):
                pass

        before = largest_mib()
        up = timed(upload)
        memory = largest_mib() - before
        state = archive.group("a").load()
        stored = state.size / 2**20
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as beside:
            down = beside.submit(restored, place, folder / "restored").result()
        data = os.urandom(state.parts[0].size)
        count = len(state.parts)
        put_s = timed(lambda: [objects.create(f"alone/{n}", data) for n in range(count)])
        get_s = timed(lambda: [objects.get(f"alone/{n}", len(data)) for n in range(count)])
        alone = count * len(data) / 2**20
    store.close()
    return {
        "log MiB": round(size), "stored MiB": round(stored), "objects": count,
        "upload MiB/s of log": round(size / up[0], 1), "upload CPU ms/MiB": round(1_000 * up[1] / size, 2),
        "restore MiB/s of log": round(size / down[0], 1), "restore CPU ms/MiB": round(1_000 * down[1] / size, 2),
        "memory MiB": round(memory), "restore memory MiB": round(down[2]),
        "obstore put MiB/s": round(alone / put_s[0], 1),
        "obstore get MiB/s": round(alone / get_s[0], 1), "upload MiB/s of objects": round(stored / up[0], 1),
        "restore MiB/s of objects": round(stored / down[0], 1),
    }  # fmt: skip


def restored(place: Location, folder: Path) -> tuple[float, float, float]:
    """Restore, and return wall and CPU seconds, and by how many MiB the process's largest resident set grew."""
    group = Archive(ObjectStore(place)).group("a")
    state = group.load()
    before = largest_mib()
    wall, cpu = timed(lambda: restore.restore(group, state, restore.Target(), folder))
    return wall, cpu, largest_mib() - before


def restored_topics(mib: int, folder: Path) -> dict[str, Any]:
    """Restore a topic of 8 MiB, and one of so many MiB, by the command into a running cluster: seconds, and the largest
    resident set of the command.
    """
    log = Log(folder / "log", SEGMENT)
    objects = Archive(ObjectStore(Location(f"file://{folder}/archive")))
    objects.claim("u", "shop", log.now)
    log.archiver._archive, log.archiver._group = objects, objects.group("a")
    sizes = {"Small": 8, "Large": mib}
    rng = random.Random(1)
    for topic, each in sizes.items():
        log.topic(topic, 4)
        for number in range(each * 128 // 64):
            puts = [Put(topic, n % 4, 0, 0, log.now, HOST, rng.randbytes(8_000), b"") for n in range(64)]
            log.append(puts)
            if number % 64 == 0:
                log.upload()
    log.upload()
    log.store.close()
    manifest = folder / "cluster.json"
    manifest.write_text(json.dumps({
        "apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerCluster", "metadata": {"name": "back"},
        "spec": {"brokerGroups": [{"name": "a", "members": 1}], "nameServers": {"replicas": 1}},
    }))  # fmt: skip
    found: dict[str, Any] = {}
    with Cluster(folder / "cluster", manifest) as cluster:
        for topic in sizes:
            words = ["restore", f"file://{folder}/archive", "--topic", topic, "--as", f"{topic}Back", "-o", "json"]
            words += ["--state", str(folder / f"state-{topic}"), "--dir", str(cluster.folder)]
            began = time.perf_counter()
            with (folder / "said").open("w+") as error:
                command = [sys.executable, "-m", "gantry_operator.cli", *words]
                running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=error)
                assert running.stdout is not None
                said = running.stdout.read()
                _, status, used = os.wait4(running.pid, 0)
                running.returncode = os.waitstatus_to_exitcode(status)
                error.seek(0)
                if running.returncode != 0:
                    raise RuntimeError(error.read())
            found |= {
                f"{topic} messages": json.loads(said)["messages"],
                f"{topic} seconds": round(time.perf_counter() - began, 1),
                f"{topic} memory MiB": used.ru_maxrss // 1024,
            }
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=512, help="length of the log")
    parser.add_argument("--topic", type=int, metavar="MIB", help="only the restore of a topic of so many MiB")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="gantry-archive-"))
    try:
        found = measure(options.mib, folder) if options.topic is None else restored_topics(options.topic, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.output == "json":
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:28} {value:>10}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
