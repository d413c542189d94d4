"""Measures the broker's memory and rate while pulls consume a long backlog.

    python -m benchmarks.backlog                        # 10,000,000 messages of 100 bytes in 8 queues
    python -m benchmarks.backlog --messages 1000000

One broker of one member as a process, asynchronous flush. The benchmark sends the backlog as batches. Then one
connection per queue pulls it from its beginning, 32 messages at a time, as clients do. Each line is a tenth of the
backlog: messages per second of wall-clock time, the broker's CPU time per message, its resident memory. The exit code
is 1 when memory grows by more than 32 MiB after the first tenth, or the last tenth costs over 1.25 times the CPU time
of the first.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from gantry_broker.protocol.codes import RequestCode, ResponseCode
from gantry_broker.protocol.frame import Frame, FrameDecoder, encode_frame
from gantry_broker.protocol.headers import CreateTopicHeader, Long, PullHeader, SendHeader
from gantry_broker.protocol.message import BatchItem, encode_batch

from benchmarks.rig import gantry
from benchmarks.rig.processes import usage
from benchmarks.rig.target import Target
from benchmarks.rig.wire import Wire, connect

TOPIC, QUEUES, BATCH, WINDOW = "Backlog", 8, 250, 4
MAX_GROWTH_MIB, MAX_SLOWDOWN = 32 << 20, 1.25


@dataclass
class Tenth:
    """One tenth of the backlog: rates per second, microseconds of the broker's CPU per message, MiB."""

    done: int
    per_second: int
    cpu_us: float
    rss_mib: float


def make_topic(address: str, topic: str) -> None:
    with Wire(address) as wire:
        config = CreateTopicHeader(topic, "TBW102", QUEUES, QUEUES, 6, "SINGLE_TAG")
        wire.call(RequestCode.UPDATE_AND_CREATE_TOPIC, config.ext())


def send(address: str, topic: str, batches: Iterable[tuple[int, bytes]]) -> None:
    """Sends batches, each with its queue, and has several in flight on one connection."""
    with connect(address) as sock:
        sock.settimeout(60)
        decoder = FrameDecoder()
        open_ = 0

        def settle(most: int) -> None:
            nonlocal open_
            while open_ > most:
                for answer in decoder.feed(sock.recv(1 << 20)):
                    if answer.code != 0:
                        raise RuntimeError(f"a batch was refused: {answer.code} {answer.remark}")
                    open_ -= 1

        for opaque, (queue, body) in enumerate(batches, 1):
            now = Long(int(time.time() * 1000))
            header = SendHeader("backlog", topic, "TBW102", QUEUES, queue, 0, now, 0, "", batch=True)
            sock.sendall(encode_frame(Frame(RequestCode.SEND_BATCH_MESSAGE, opaque, ext=header.short_ext(), body=body)))
            open_ += 1
            settle(WINDOW)
        settle(0)


def equal_parts(messages: int, size: int) -> Iterator[tuple[int, bytes]]:
    """Yields batches of the backlog, as many to each queue."""
    per_queue = messages // QUEUES
    items = [BatchItem(b"x" * size, b"TAGS\x01a")] * BATCH
    whole = encode_batch(items)
    for start in range(0, per_queue, BATCH):
        count = min(BATCH, per_queue - start)
        body = whole if count == BATCH else encode_batch(items[:count])
        for queue in range(QUEUES):
            yield queue, body


class Reader(threading.Thread):
    """Pulls one queue from its beginning to its end, one request after the other."""

    def __init__(self, target: Target, queue: int, expected: int) -> None:
        super().__init__(daemon=True)
        self._target, self._queue, self._expected = target, queue, expected
        self.offset = 0
        self.problem = ""

    def run(self) -> None:
        with Wire(self._target.broker_address, 60) as wire:
            while self.offset < self._expected:
                header = PullHeader("readers", TOPIC, self._queue, Long(self.offset), 32, 4, Long(0), subscription="*")
                answer = wire.ask(RequestCode.PULL_MESSAGE, header.ext())
                if answer.code == ResponseCode.SYSTEM_BUSY:  # Clients ask again, too.
                    time.sleep(0.1)
                    continue
                if answer.code != 0:
                    self.problem = f"queue {self._queue} at {self.offset}: {answer.code} {answer.remark}"
                    return
                self.offset = int(answer.ext["nextBeginOffset"])


def drain(target: Target, messages: int) -> list[Tenth]:
    """Consumes the backlog, and returns a row per tenth."""
    readers = [Reader(target, queue, messages // QUEUES) for queue in range(QUEUES)]
    pid = target.broker_pids[0]
    began, used = time.monotonic(), usage(pid).cpu_s
    for reader in readers:
        reader.start()
    rows: list[Tenth] = []
    before = 0
    while len(rows) < 10:
        time.sleep(0.05)
        done = sum(reader.offset for reader in readers)
        problems = [reader.problem for reader in readers if reader.problem]
        if problems:
            raise RuntimeError("; ".join(problems))
        reached = min(10 * done // messages, 10) - len(rows)
        if reached <= 0:
            continue
        now, spent = time.monotonic(), usage(pid)
        count = done - before
        cpu_us = round((spent.cpu_s - used) / count * 1e6, 2)
        row = Tenth(done, round(count / (now - began)), cpu_us, round(spent.rss / 2**20, 1))
        rows += [row] * reached  # Tenths of a short backlog pass between two looks: they share their figures.
        print(json.dumps(asdict(row)), flush=True)
        before, began, used = done, now, spent.cpu_s
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of a body")
    options = parser.parse_args()
    messages = options.messages // QUEUES * QUEUES
    with tempfile.TemporaryDirectory() as name, gantry.single(Path(name)) as target:
        make_topic(target.broker_address, TOPIC)
        started = time.monotonic()
        send(target.broker_address, TOPIC, equal_parts(messages, options.size))
        print(json.dumps({
            "sent": messages, "seconds": round(time.monotonic() - started, 1),
            "rss_mib": round(usage(target.broker_pids[0]).rss / 2**20, 1),
        }), flush=True)  # fmt: skip
        rows = drain(target, messages)
    grew = (max(row.rss_mib for row in rows) - rows[0].rss_mib) * 2**20
    slower = rows[-1].cpu_us / rows[0].cpu_us
    print(json.dumps({"grew_mib": round(grew / 2**20, 1), "cpu_last_to_first": round(slower, 2)}))
    return 1 if grew > MAX_GROWTH_MIB or slower > MAX_SLOWDOWN else 0


if __name__ == "__main__":
    sys.exit(main())
