"""A stand-in for a Kubernetes Service over a broker group: one address that leads to labelled members.

Like kube-proxy, it applies a changed label to new connections some hundred milliseconds later, and keeps existing
connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections import Counter
from collections.abc import Iterable

_RESET = struct.pack("ii", 1, 0)


class Service:
    """Use as an async context manager. `lag_s`: from a change of the labels until new connections follow it."""

    def __init__(self, lag_s: float, seed: int) -> None:
        self.address = ""
        self.lag_s = lag_s
        self.carries: Counter[int] = Counter()
        """Number of connections to each member's port now."""
        self._labelled: frozenset[int] = frozenset()
        self._leads_to: list[int] = []
        self._random = random.Random(seed)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Service:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def label(self, ports: Iterable[int]) -> None:
        """Set the members, by their ports, that have the label from now on."""
        self._labelled = frozenset(ports)
        asyncio.get_running_loop().call_later(self.lag_s, self._follow, sorted(self._labelled))

    @property
    def labelled(self) -> frozenset[int]:
        return self._labelled

    def _follow(self, ports: list[int]) -> None:
        self._leads_to = ports

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._connect(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far: asyncio.StreamWriter | None = None
        try:
            if not self._leads_to:
                return
            port = self._random.choice(self._leads_to)
            far_reader, far = await asyncio.open_connection("127.0.0.1", port)
            self.carries[port] += 1
            ways = [asyncio.create_task(_carry(reader, far)), asyncio.create_task(_carry(far_reader, writer))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self.carries[port] -= 1
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except OSError:
            pass
        finally:
            _reset(writer)
            if far is not None:
                _reset(far)


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, AttributeError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
