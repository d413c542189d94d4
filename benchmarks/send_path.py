"""Measures the CPU time of a send on the broker's event loop, by messages per read, without sockets.

    python benchmarks/send_path.py [--messages 200000] [--queues 1024] [--body 128] [--signed] [--rounds 5] [--profile]
    python benchmarks/send_path.py --batch 128 --together 1 --body 1024

A real broker (group of one member) gets frames as RocketMQ's Java client writes them, from a connection whose other end
is this program. The measurement covers everything from the read to the written answers, log and queues included, except
the kernel's calls for the socket itself. `--signed` measures signed sends beside unsigned ones: `--rounds` rounds with
and without authentication alternate. The figures are the minima: other work of the machine only adds. The column "a
read" is of single reads, of which a tenth cost less: it is nearly the same on a busy machine. With `--batch` each frame
is a batch of so many messages. `--profile` prints the profile of the last read size.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import logging
import pstats
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop
from gantry_broker.access.decide import Policy
from gantry_broker.access.table import AccessTable
from gantry_broker.client.credentials import Credentials
from gantry_broker.protocol.frame import FrameDecoder, encode_frame
from gantry_broker.protocol.message import BatchItem, encode_batch
from gantry_broker.remoting.connection import Connection
from rig.alone import broker_alone

_HEADER = (
    '{"code":310,"extFields":{"a":"please_rename_unique_group_name","b":"BenchmarkTest","c":"TBW102","d":"4","e":"%d",'
    '"f":"0","g":"%d","h":"0","i":"UNIQ_KEY\\u0001%s\\u0002WAIT\\u0001true\\u0002TAGS\\u0001TagA","j":"0","k":"false",'
    '"m":"false"},"flag":0,"language":"JAVA","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":399}'
)

_BATCH_HEADER = (
    '{"code":320,"extFields":{"a":"please_rename_unique_group_name","b":"BenchmarkTest","c":"TBW102","d":"4","e":"%d",'
    '"f":"0","g":"%d","h":"0","i":"","j":"0","k":"false","m":"true"},"flag":0,"language":"JAVA","opaque":%d,'
    '"serializeTypeCurrentRPC":"JSON","version":399}'
)

TABLE: dict[str, Any] = {
    "version": 1,
    "users": [
        {
            "name": "orders",
            "keys": ["orders-secret"],
            "rules": [{"type": "Topic", "name": "BenchmarkTest", "actions": ["Pub"]}],
        }
    ],
}
"""The access table of a measurement with signatures."""


class CountingTransport(asyncio.Transport):
    """The peer of the connection: counts the broker's writes to it."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = self.writes = 0

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self.writes += 1
        self.answers += data.count(b'{"code":0,')

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 40_000) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        pass

    def is_closing(self) -> bool:
        return False


def reads(messages: int, together: int, queues: int, body: int, credentials: Credentials | None = None) -> list[bytes]:
    """Returns the data of the socket's reads, `together` frames at a time; `credentials` sign them."""
    made = []
    payload = b"x" * body
    for first in range(0, messages, together):
        parts = []
        for number in range(first, min(first + together, messages)):
            unique = f"7F00000121A75FFD2B27{0x68402439 + number // 40:08X}{number & 0xFFFF:04X}"
            header = (_HEADER % (number * 7 % queues, 1_795_240_234_041 + number // 40, unique, number)).encode()
            if credentials is not None:
                lengths = (4 + len(header) + body).to_bytes(4, "big") + len(header).to_bytes(4, "big")
                frame = FrameDecoder().feed(lengths + header + payload)[0]
                credentials.sign(frame)
                parts.append(encode_frame(frame))
                continue
            parts.append((4 + len(header) + body).to_bytes(4, "big") + len(header).to_bytes(4, "big"))
            parts += (header, payload)
        made.append(b"".join(parts))
    return made


def batch_reads(messages: int, together: int, queues: int, body: int, batch: int) -> list[bytes]:
    """Return the data of the socket's reads, `together` batches of `batch` messages at a time."""
    made = []
    for first in range(0, messages // batch, together):
        parts = []
        for number in range(first, min(first + together, messages // batch)):
            header = (_BATCH_HEADER % (number * 7 % queues, 1_795_240_234_041 + number, number)).encode()
            items = [
                BatchItem(
                    b"x" * body, f"UNIQ_KEY\x017F00000121A75FFD2B27{number:08X}{item:04X}\x02TAGS\x01TagA".encode()
                )
                for item in range(batch)
            ]
            content = encode_batch(items)
            parts.append((4 + len(header) + len(content)).to_bytes(4, "big") + len(header).to_bytes(4, "big"))
            parts += (header, content)
        made.append(b"".join(parts))
    return made


def policy(mode: str) -> Policy:
    return Policy.of(AccessTable.model_validate({**TABLE, "mode": mode}).model_dump())


async def measure(
    conn: Connection, made: list[bytes], profiler: cProfile.Profile | None
) -> tuple[float, float, list[float]]:
    """Returns the CPU seconds of all reads, the seconds within them, and the CPU seconds of each."""
    cpu, inside = time.process_time(), 0.0
    each = []
    if profiler is not None:
        profiler.enable()
    for data in made:
        started, began = time.perf_counter(), time.thread_time()
        conn.data_received(data)
        inside += time.perf_counter() - started
        await asyncio.sleep(0)
        each.append(time.thread_time() - began)
    if profiler is not None:
        profiler.disable()
    return time.process_time() - cpu, inside, each


async def run(options: argparse.Namespace, folder: Path) -> None:
    async with broker_alone(folder) as process:
        other = CountingTransport()
        conn = Connection(process.parts.dispatcher, accepted=True, shared=process.broker.shared)
        conn.connection_made(other)
        set_policy = process.broker.access.gate.set_policy
        profiler = cProfile.Profile() if options.profile else None
        print(f"{'frames a read':>14}{'us a message':>14}{'of it in reads':>16}", end="")
        print(f"{'signed':>10}{'ratio':>8}{'a read':>10}{'ratio':>8}" if options.signed else f"{'a read':>10}")
        for together in options.together:
            found: dict[str, list[tuple[float, ...]]] = {}
            single: dict[str, list[float]] = {}
            for mode in ["Disabled", "Enabled"] * options.rounds if options.signed else ["Disabled"]:
                set_policy(policy(mode))
                signer = Credentials("orders", "orders-secret") if mode == "Enabled" else None
                frames = options.messages // options.batch
                if options.batch > 1:
                    made = batch_reads(options.messages, together, options.queues, options.body, options.batch)
                else:
                    made = reads(options.messages, together, options.queues, options.body, signer)
                other.answers = 0
                profiled = profiler if together == options.together[-1] and (signer or not options.signed) else None
                *spent, each = await measure(conn, made, profiled)
                if other.answers != frames:
                    raise RuntimeError(f"{frames} sends, {other.answers} answers")
                found.setdefault(mode, []).append(tuple(1e6 * seconds / (frames * options.batch) for seconds in spent))
                single.setdefault(mode, []).extend(each)
            (cpu, inside), *more = ([min(column) for column in zip(*rounds, strict=True)] for rounds in found.values())
            rest = (
                f"{1e6 * sorted(single['Disabled'])[len(single['Disabled']) // 10] / together / options.batch:>10.2f}"
            )
            if more:
                plain, signed = (sorted(reads_of)[len(reads_of) // 10] for reads_of in single.values())
                rest = (
                    f"{more[0][0]:>10.2f}{more[0][0] / cpu:>8.2f}{1e6 * signed / together:>10.2f}{signed / plain:>8.2f}"
                )
            print(f"{together:>14}{cpu:>14.2f}{inside:>16.2f}{rest}", flush=True)
        conn.connection_lost(None)
    if profiler is not None:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--queues", type=int, default=1024)
    parser.add_argument("--body", type=int, default=128, help="bytes")
    parser.add_argument("--together", type=int, nargs="+", default=[1, 4, 16, 64], help="frames in one read")
    parser.add_argument("--batch", type=int, default=1, help="messages of a frame (default 1, a single send)")
    parser.add_argument("--signed", action="store_true", help="measure signed requests beside unsigned ones")
    parser.add_argument("--rounds", type=int, default=5, help="of each kind with --signed (default 5)")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--dir", type=Path, help="where the store goes (default: the system's temporary folder)")
    options = parser.parse_args()
    logging.disable()
    with tempfile.TemporaryDirectory(prefix="send-path-", dir=options.dir) as folder:
        uvloop.run(run(options, Path(folder)))


if __name__ == "__main__":
    main()
