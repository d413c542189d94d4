"""The links between processes: they pass all bytes on, can be cut in one direction, delayed and reset, and refuse
connections without a listener.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from tests.chaos.links import Links, Weather
from tests.support.free_ports import free_ports

ECHO = """
import asyncio, sys
async def echo(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()
async def main():
    server = await asyncio.start_server(echo, "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()
asyncio.run(main())
"""


def started(words: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(words)


@asynccontextmanager
async def echo() -> AsyncIterator[tuple[Links, int, subprocess.Popen[bytes]]]:
    """Another process that echoes, behind links. The ends are "me" and "echo"."""
    real, announced = free_ports(2)
    process = started([sys.executable, "-c", ECHO, str(real)])
    try:
        async with Links({real: announced}, lambda: {os.getpid(): "me", process.pid: "echo"}, 1) as links:
            await connected(announced)
            yield links, announced, process
    finally:
        process.kill()
        process.wait()


async def connected(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    async with asyncio.timeout(10):
        while True:
            with suppress(ConnectionRefusedError):
                return await asyncio.open_connection("127.0.0.1", port)
            await asyncio.sleep(0.02)


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> bytes:
    writer.write(data)
    return await reader.readexactly(len(data))


async def silent(reader: asyncio.StreamReader) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(0.3):
            await reader.read(1)
            return False
    return True


async def test_everything_is_passed_on_in_order() -> None:
    async with echo() as (_, port, _), asyncio.timeout(20):
        data = os.urandom(3 << 20)
        reader, writer = await connected(port)
        writer.write(data)
        assert await reader.readexactly(len(data)) == data
        writer.close()


@pytest.mark.parametrize("direction", [("me", "echo"), ("echo", "me"), ("*", "me"), ("echo", "*")])
async def test_a_cut_holds_sent_bytes_until_it_heals(direction: tuple[str, str]) -> None:
    async with echo() as (links, port, _), asyncio.timeout(20):
        reader, writer = await connected(port)
        assert await ask(reader, writer, b"before") == b"before"
        links.cut(*direction)
        writer.write(b"held")
        assert await silent(reader)
        # A new connection fails as well, whichever direction is cut.
        later_reader, later_writer = await connected(port)
        later_writer.write(b"later")
        assert await silent(later_reader)
        links.heal()
        assert await reader.readexactly(4) == b"held"
        assert await later_reader.readexactly(5) == b"later"


async def test_a_cut_between_others_changes_nothing() -> None:
    async with echo() as (links, port, _), asyncio.timeout(20):
        links.part("somebody", "echo")
        assert await ask(*await connected(port), b"x") == b"x"


async def test_delay_goes_both_ways_and_keeps_the_order() -> None:
    async with echo() as (links, port, _), asyncio.timeout(20):
        reader, writer = await connected(port)
        await ask(reader, writer, b"x")
        links.weather = Weather(delay_s=0.1, jitter_s=0.05, loss=0.2)
        clock = asyncio.get_running_loop().time
        began = clock()
        for number in range(20):
            writer.write(b"%02d" % number)
            await asyncio.sleep(0)
        assert await reader.readexactly(40) == b"".join(b"%02d" % n for n in range(20))
        assert clock() - began >= 0.2


async def test_one_link_is_slow_and_the_others_are_not() -> None:
    async with echo() as (links, port, _), asyncio.timeout(20):
        reader, writer = await connected(port)
        await ask(reader, writer, b"x")
        clock = asyncio.get_running_loop().time
        for source, target, slow in (("me", "echo", True), ("echo", "me", True), ("echo", "somebody", False)):
            links.slow = {(source, target): Weather(delay_s=0.3)}
            began = clock()
            await ask(reader, writer, b"y")
            assert (clock() - began >= 0.3) is slow
        links.heal()
        assert links.slow == {}


async def test_a_reset_is_seen_at_both_ends() -> None:
    async with echo() as (links, port, _), asyncio.timeout(20):
        reader, writer = await connected(port)
        await ask(reader, writer, b"x")
        assert links.reset() >= 1
        with suppress(ConnectionResetError):
            assert await reader.read(1) == b""
        assert await ask(*await connected(port), b"again") == b"again"


async def test_connections_without_a_listener_are_refused() -> None:
    async with echo() as (_, port, process), asyncio.timeout(20):
        reader, writer = await connected(port)
        await ask(reader, writer, b"x")
        process.kill()
        with suppress(ConnectionResetError):
            assert await reader.read(1) == b""
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
            except ConnectionRefusedError:
                return
            except ConnectionResetError:
                pass  # It stopped listening at this moment.
            await asyncio.sleep(0.02)
