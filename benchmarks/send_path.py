"""Measures the CPU time of a send on the broker's event loop, by messages per read, without sockets.

    python benchmarks/send_path.py [--messages 200000] [--queues 1024] [--body 128] [--signed] [--profile]

A real broker (group of one member) gets frames as RocketMQ's Java client writes them, from a connection whose other end
is this program. The measurement covers everything from the read to the written answers, log and queues included, except
the kernel's calls for the socket itself. `--profile` prints the profile of the last read size.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import logging
import pstats
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop
from gantry_broker.client.credentials import Credentials
from gantry_broker.protocol.frame import FrameDecoder, encode_frame
from gantry_broker.remoting.connection import Connection
from rig.alone import broker_alone

_HEADER = (
    '{"code":310,"extFields":{"a":"please_rename_unique_group_name","b":"BenchmarkTest","c":"TBW102","d":"4","e":"%d",'
    '"f":"0","g":"%d","h":"0","i":"UNIQ_KEY\\u0001%s\\u0002WAIT\\u0001true\\u0002TAGS\\u0001TagA","j":"0","k":"false",'
    '"m":"false"},"flag":0,"language":"JAVA","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":399}'
)

TABLE: dict[str, Any] = {
    "version": 1,
    "mode": "Enabled",
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

    def close(self) -> None:
        pass

    def is_closing(self) -> bool:
        return False


def reads(messages: int, together: int, queues: int, body: int, credentials: Credentials | None) -> list[bytes]:
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


async def run(options: argparse.Namespace, folder: Path) -> None:
    async with broker_alone(folder) as process:
        signer = None
        if options.signed:
            signer = Credentials("orders", "orders-secret")
            await process.broker.access.put(json.dumps(TABLE).encode())
        other = CountingTransport()
        conn = Connection(process.parts.dispatcher)
        conn.connection_made(other)
        profiler = cProfile.Profile() if options.profile else None
        print(f"{'frames a read':>14}{'us a message':>14}{'of it in reads':>16}")
        for together in options.together:
            made = reads(options.messages, together, options.queues, options.body, signer)
            other.answers = 0
            cpu, inside = time.process_time(), 0.0
            if profiler is not None and together == options.together[-1]:
                profiler.enable()
            for data in made:
                started = time.perf_counter()
                conn.data_received(data)
                inside += time.perf_counter() - started
                await asyncio.sleep(0)
            if profiler is not None:
                profiler.disable()
            cpu = time.process_time() - cpu
            if other.answers != options.messages:
                raise RuntimeError(f"{options.messages} sends, {other.answers} answers")
            each = 1e6 / options.messages
            print(f"{together:>14}{cpu * each:>14.2f}{inside * each:>16.2f}", flush=True)
        conn.connection_lost(None)
    if profiler is not None:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--queues", type=int, default=1024)
    parser.add_argument("--body", type=int, default=128, help="bytes")
    parser.add_argument("--together", type=int, nargs="+", default=[1, 4, 16, 64], help="frames in one read")
    parser.add_argument("--signed", action="store_true", help="authentication is on, and each request is signed")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--dir", type=Path, help="where the store goes (default: the system's temporary folder)")
    options = parser.parse_args()
    logging.disable()
    with tempfile.TemporaryDirectory(prefix="send-path-", dir=options.dir) as folder:
        uvloop.run(run(options, Path(folder)))


if __name__ == "__main__":
    main()
