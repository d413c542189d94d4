"""A producer process for the benchmarks.

With `--each`: one JSON line per send, as the Java driver's `failover` prints them, until standard input ends.
Otherwise: a JSON line every few seconds with the number of sends, for `--seconds`. With `--bare` it sends frames that
are encoded in advance, on one connection: the same number of sends is in flight, and a send costs this process very
little.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import time
from contextvars import ContextVar
from typing import Any, cast

import uvloop
from gantry_broker.client import ClientError, Producer, SendStatus
from gantry_broker.protocol.codes import RequestCode
from gantry_broker.protocol.frame import Frame, encode_frame

_TRIES: ContextVar[list[int]] = ContextVar("tries")


def _count_tries(producer: Producer) -> None:
    """Counts the requests of each send: a message that was sent twice may be stored twice."""
    inner = producer.session.remoting.request

    async def request(address: str, frame: Frame, timeout: float, *, silence: float | None = None) -> Frame:
        tries = _TRIES.get(None)
        if tries is not None:
            tries[0] += 1
        return await inner(address, frame, timeout, silence=silence)

    producer.session.remoting.request = request  # type: ignore[method-assign]


def _body(run: str, number: int, size: int) -> bytes:
    return f"{run}#{number}#".encode().ljust(size, b"x")


def _report(event: str, **fields: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, "ms": time.time() * 1000, **fields}) + "\n")
    sys.stdout.flush()


async def _each(producer: Producer, options: argparse.Namespace, stop: asyncio.Event) -> None:
    _count_tries(producer)
    numbers = itertools.count()

    async def sender() -> None:
        while not stop.is_set():
            n = next(numbers)
            tries = [0]
            _TRIES.set(tries)
            try:
                result = await producer.send(options.topic, _body(options.run, n, options.size))
                event = "ok" if result.status is SendStatus.SEND_OK else "status"
                _report(event, n=n, status=result.status.name, msgId=result.message_id, tries=tries[0])
            except ClientError as error:
                _report("failed", n=n, type=type(error).__name__, message=str(error), tries=tries[0])

    await asyncio.gather(*(sender() for _ in range(options.senders)))


class _Bare(asyncio.Protocol):
    """Sends a frame for each answer."""

    def __init__(self, frames: list[bytes], window: int) -> None:
        self.sent = self.failed = 0
        self._frames = itertools.cycle(frames)
        self._window = window
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._send(self._window)

    def data_received(self, data: bytes) -> None:
        data, at, answers = self._rest + data, 0, 0
        while len(data) - at >= 4 and (stop := at + 4 + int.from_bytes(data[at : at + 4], "big")) <= len(data):
            well = data.startswith(b'{"code":0,', at + 8)
            self.sent += well
            self.failed += not well
            answers += 1
            at = stop
        self._rest = data[at:]
        self._send(answers)

    def _send(self, count: int) -> None:
        self._transport.write(b"".join(itertools.islice(self._frames, count)))


async def _bare(producer: Producer, options: argparse.Namespace) -> None:
    await producer.send(options.topic, b"makes the topic")
    body = _body(options.run, 0, options.size)
    fields = {"a": "bare", "b": options.topic, "c": "TBW102", "d": "8", "f": "0", "g": "1", "h": "0", "j": "0"}
    frames = [
        encode_frame(
            Frame(RequestCode.SEND_MESSAGE_V2, 1, ext={**fields, "e": str(queue), "i": "TAGS\x01A"}, body=body)
        )
        for queue in range(8)
    ]
    host, _, port = options.bare.rpartition(":")
    loop = asyncio.get_running_loop()
    _, bare = await loop.create_connection(lambda: _Bare(frames, options.senders), host, int(port))
    began = time.monotonic()
    for _ in range(max(1, options.seconds // options.every)):
        await asyncio.sleep(options.every)
        said = {"sent": bare.sent, "failed": bare.failed, "seconds": round(time.monotonic() - began, 3)}
        print(json.dumps(said), flush=True)


async def _flood(producer: Producer, options: argparse.Namespace, stop: asyncio.Event) -> None:
    sent = failed = 0
    body = _body(options.run, 0, options.size)

    async def sender() -> None:
        nonlocal sent, failed
        while not stop.is_set():
            try:
                await producer.send(options.topic, body)
                sent += 1
            except ClientError:
                failed += 1

    async def reporter() -> None:
        began = time.monotonic()
        for _ in range(max(1, options.seconds // options.every)):
            await asyncio.sleep(options.every)
            said = {"sent": sent, "failed": failed, "seconds": round(time.monotonic() - began, 3)}
            print(json.dumps(said), flush=True)
        stop.set()

    await asyncio.gather(reporter(), *(sender() for _ in range(options.senders)))


async def _main(options: argparse.Namespace) -> None:
    stop = asyncio.Event()
    async with Producer(options.namesrv) as producer:
        if options.bare:
            await _bare(producer, options)
            return
        if not options.each:
            await _flood(producer, options, stop)
            return
        loop = asyncio.get_running_loop()
        watch = loop.run_in_executor(None, sys.stdin.read)
        watch.add_done_callback(lambda _: stop.set())
        await _each(producer, options, stop)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--namesrv", required=True, help="host:port, several separated by ';'")
    parser.add_argument("--topic", default="BenchmarkTest")
    parser.add_argument("--run", default="run", help="goes into the bodies")
    parser.add_argument("--senders", type=int, default=64, help="sends that wait at the same time")
    parser.add_argument("--size", type=int, default=128, help="bytes of a body")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--every", type=int, default=10, help="seconds between two lines (default 10)")
    parser.add_argument("--bare", metavar="HOST:PORT", help="frames that were encoded before, to this broker")
    parser.add_argument("--each", action="store_true", help="a line per send, until standard input ends")
    uvloop.run(_main(parser.parse_args()))


if __name__ == "__main__":
    main()
