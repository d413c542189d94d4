"""A proxy in front of an object store that fails by plan: one fault for each of the next requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Final

MAX_HEAD: Final = 65_536


class FaultyProxy:
    """Serves one request for each connection. `faults` are used up in order; then requests pass.

    A number: the answer has this status. `cut`: no answer. `torn`: half of the request arrives. `lie`: a PUT is
    answered by 200 and swallowed. `lost`: the request arrives, its answer does not. `hang`: no answer while it runs.
    `slow`: the request waits for `delay_s`. `read-only`: a request that would change something gets the status 403.

    `always`: the fault of each request that has no other one.
    """

    def __init__(self, target: int) -> None:
        self.port = 0
        self.faults: list[str | int] = []
        self.always: str | int = "pass"
        self.delay_s = 0.0
        self.done: Counter[str | int] = Counter()
        self.puts_in_flight = self.most_puts = 0
        self._target = target

    def plan(self, faults: Iterable[str | int]) -> None:
        self.faults = list(faults)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[FaultyProxy]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=MAX_HEAD)
        self.port = server.sockets[0].getsockname()[1]
        tasks = self._tasks = set[asyncio.Task[None]]()
        try:
            yield self
        finally:
            server.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await self._one(reader, writer)
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        lines = [line for line in lines if line and not line.lower().startswith(b"connection:")]
        head = b"\r\n".join([*lines, b"Connection: close", b"", b""])
        sizes = [line.split(b":")[1] for line in lines if line.lower().startswith(b"content-length:")]
        body = await reader.readexactly(int(sizes[0])) if sizes else b""
        is_put = head.startswith(b"PUT")
        fault = self.faults.pop(0) if self.faults and (self.faults[0] not in ("lie", "torn") or is_put) else self.always
        self.done[fault] += 1
        self.puts_in_flight += is_put
        self.most_puts = max(self.most_puts, self.puts_in_flight)
        try:
            await self._answer(fault, head, body, writer)
        finally:
            self.puts_in_flight -= is_put

    async def _answer(self, fault: str | int, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        if fault == "cut":
            return
        if fault == "slow":
            await asyncio.sleep(self.delay_s)
        if fault == "read-only":
            fault = 403 if head.startswith((b"PUT", b"POST", b"DELETE")) else "pass"
        if fault == "hang":
            await asyncio.Event().wait()
        if fault == "lie" or isinstance(fault, int):
            status = fault if isinstance(fault, int) else 200
            writer.write(b'HTTP/1.1 %d -\r\nETag: "1"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n' % status)
            await writer.drain()
            return
        store, out = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            if fault == "torn":
                out.write(head + body[: len(body) // 2])
                await out.drain()
                return
            out.write(head + body)
            await out.drain()
            while data := await store.read(65_536):
                if fault != "lost":
                    writer.write(data)
            await writer.drain()
        finally:
            out.close()
