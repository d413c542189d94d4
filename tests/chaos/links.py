"""The network between the processes. Every connection goes through it, and it can cut, delay and reset connections.

Each port of the cluster has a second one, and all processes know only the second. /proc shows which process connects,
so a link is known by the names of its two ends, and one direction can be cut alone. A cut holds the sent bytes until it
heals, as TCP would send them again. While no process listens behind a port, connections to it are refused, as without
these links.

This needs neither root nor a kernel with netem. Single packets cannot be lost here: TCP turns such a loss into delay,
and so does `Weather`. `packets.py` loses packets where the kernel can.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from tests.chaos import whois

HOST = "127.0.0.1"
LOOK_S = 0.03
"""Seconds after which the links notice that a process began or ceased to listen."""
CHUNK = 1 << 16
RETRANSMIT_S = 0.2
"""The least delay of one lost packet (Linux' smallest retransmission time-out)."""
ANYBODY = "*"


@dataclass(frozen=True)
class Weather:
    """The conditions of a link."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    """Probability that a chunk is lost once, and again with the same probability."""


CLEAR = Weather()


class Links:
    """Use as an async context manager. `processes` returns the names of the processes that may connect, by pid."""

    def __init__(self, ports: Mapping[int, int], processes: Callable[[], Mapping[int, str]], seed: int) -> None:
        """`ports`: the port that the processes know, by the port of the real listener."""
        self.weather = CLEAR
        self.slow: dict[tuple[str, str], Weather] = {}
        """Links with a weather of their own, by source and target."""
        self.connections = 0
        self._ports = dict(ports)
        self._processes = processes
        self._rng = random.Random(seed)
        self._cuts: set[tuple[str, str]] = set()
        self._healed = asyncio.Event()
        self._listening: dict[int, str] = {}
        """Inode by port, of the listeners at the last look."""
        self._servers: dict[int, asyncio.Server] = {}
        self._open: dict[asyncio.StreamWriter, tuple[str, str]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Links:
        self._watch = asyncio.create_task(self._follow_listeners())
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._watch is not None
        self._watch.cancel()
        for server in self._servers.values():
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(self._watch, *self._tasks, return_exceptions=True)

    # ---- faults

    def cut(self, source: str, target: str) -> None:
        """Hold all bytes from `source` to `target`; ANYBODY stands for all."""
        self._cuts.add((source, target))

    def part(self, one: str, other: str) -> None:
        self.cut(one, other)
        self.cut(other, one)

    def heal(self) -> None:
        """End all cuts, and deliver the held bytes."""
        self._cuts.clear()
        self.slow.clear()
        self.weather = CLEAR
        self._healed.set()
        self._healed = asyncio.Event()

    def reset(self, share: float = 1.0) -> int:
        """Break open connections, each with this probability; returns their number."""
        broken = [w for w in list(self._open) if self._rng.random() < share]
        for writer in broken:
            _abort(writer)
        return len(broken)

    def is_cut(self, source: str, target: str) -> bool:
        pairs = ((source, target), (source, ANYBODY), (ANYBODY, target))
        return any(pair in self._cuts for pair in pairs) and source != target

    # ---- listeners

    async def _follow_listeners(self) -> None:
        """Listen on a port while a process listens behind it."""
        while True:
            self._listening = there = whois.listening(self._ports)
            for real, announced in self._ports.items():
                if real in there and announced not in self._servers:
                    with contextlib.suppress(OSError):
                        accepted = partial(self._accepted, real)
                        self._servers[announced] = await asyncio.start_server(accepted, HOST, announced, backlog=256)
                elif real not in there and announced in self._servers:
                    self._servers.pop(announced).close()
            await asyncio.sleep(LOOK_S)

    def _accepted(self, real: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._connect(real, reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, real: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _no_delay(writer)
        peer = writer.get_extra_info("peername")
        here = writer.get_extra_info("sockname")
        far: asyncio.StreamWriter | None = None
        try:
            if peer is None or whois.peer_is_gone(writer.get_extra_info("socket")):
                return  # It gave up while this process was busy.
            processes = self._processes()
            source = whois.owner(whois.inode_of(peer[1], here[1]), processes)
            target = whois.owner(self._listening.get(real), processes)
            # A handshake needs both directions.
            while self.is_cut(source, target) or self.is_cut(target, source):
                await self._healed.wait()
            far_reader, far = await asyncio.open_connection(HOST, real, limit=CHUNK)
            _no_delay(far)
            self.connections += 1
            self._open[writer] = (source, target)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._carry(reader, far, source, target))
                both.create_task(self._carry(far_reader, writer, target, source))
        except* OSError:
            pass
        finally:
            self._open.pop(writer, None)
            _abort(writer)
            if far is not None:
                _abort(far)

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, source: str, target: str
    ) -> None:
        """One direction. Raises OSError when either side has ended, after it has delivered everything before."""
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(64)
        clock = asyncio.get_running_loop().time

        async def deliver() -> None:
            while True:
                due, data = await queue.get()
                if due > clock():
                    await asyncio.sleep(due - clock())
                while self.is_cut(source, target):
                    await self._healed.wait()
                if not data:
                    raise ConnectionResetError
                writer.write(data)
                await writer.drain()

        delivering = asyncio.create_task(deliver())
        due = 0.0
        try:
            while not delivering.done():
                try:
                    data = await reader.read(CHUNK)
                except OSError:
                    data = b""
                due = max(due, clock() + self._delay(source, target))
                await queue.put((due, data))
                if not data:
                    break
            await delivering
        finally:
            delivering.cancel()
            await asyncio.gather(delivering, return_exceptions=True)

    def _delay(self, source: str, target: str) -> float:
        weather = self.slow.get((source, target), self.weather)
        delay = weather.delay_s + weather.jitter_s * self._rng.random()
        again = RETRANSMIT_S
        while weather.loss and self._rng.random() < weather.loss:
            delay += again
            again *= 2
        return delay


def _no_delay(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _abort(writer: asyncio.StreamWriter) -> None:
    """End the connection with a reset, as the end of a process does."""
    sock = writer.get_extra_info("socket")
    with contextlib.suppress(OSError, AttributeError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
