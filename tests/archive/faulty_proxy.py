"""A proxy in front of an object store that fails by plan: one fault for each of the next requests."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

MAX_HEAD: Final = 65_536
CHANGES: Final = 64
"""Changes of the store that are known, at most."""
_CONTENTS: Final = re.compile(rb"<Contents>.*?</Contents>", re.DOTALL)
_KEY: Final = re.compile(rb"<Key>(.*?)</Key>", re.DOTALL)
_FOUND: Final = (
    "<Contents><ETag>&#34;0&#34;</ETag><Key>{}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
    "<Size>{}</Size><StorageClass>STANDARD</StorageClass></Contents>"
)
_OLD: Final = 'HTTP/1.1 {}\r\nETag: "0"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\nConnection: close\r\n'


class _Changed(NamedTuple):
    """A path that was written or removed, and what it had before; None: nothing."""

    path: str
    before: bytes | None


class FaultyProxy:
    """Serves one request for each connection. `faults` are used up in order; then requests pass.

    A number: the answer has this status. `cut`: no answer. `torn`: half of the request arrives. `lie`: a PUT is
    answered by 200 and swallowed. `lost`: the request arrives, its answer does not. `hang`: no answer while it runs.
    `slow`: the request waits for `delay_s`. `read-only`: a request that would change something gets the status 403.
    `old list`: a list is that of before the last `lag` changes, and `old`: so is an object that is read.

    `always`: the fault of each request that has no other one. `draw` draws it instead, if it is given.
    """

    def __init__(self, target: int) -> None:
        self.port = 0
        self.faults: list[str | int] = []
        self.always: str | int = "pass"
        self.draw: Callable[[], str | int] | None = None
        self.delay_s = 0.0
        self.lag = 3
        self.done: Counter[str | int] = Counter()
        self.puts_in_flight = self.most_puts = 0
        self._target = target
        self._bodies: dict[str, bytes] = {}
        """By path: what was written through the proxy."""
        self._changes: list[_Changed] = []

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

    @contextmanager
    def in_thread(self) -> Iterator[FaultyProxy]:
        """Run beside a test that blocks."""
        loop, ready = asyncio.new_event_loop(), threading.Event()
        stop = asyncio.Event()

        async def serve() -> None:
            async with self.running():
                ready.set()
                await stop.wait()

        thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
        thread.start()
        try:
            assert ready.wait(30)
            yield self
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join()
            loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.closing(writer), contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await self._one(reader, writer)

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        lines = [line for line in lines if line and not line.lower().startswith(b"connection:")]
        head = b"\r\n".join([*lines, b"Connection: close", b"", b""])
        sizes = [line.split(b":")[1] for line in lines if line.lower().startswith(b"content-length:")]
        body = await reader.readexactly(int(sizes[0])) if sizes else b""
        is_put = head.startswith(b"PUT")
        if self.faults and _hits(self.faults[0], head):
            fault = self.faults.pop(0)
        else:
            fault = self.always if self.draw is None else self.draw()
            fault = fault if _hits(fault, head) else "pass"
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
        method, target = (word.decode() for word in head.split(b" ", 2)[:2])
        path = unquote(urlsplit(target).path)
        if fault == "old" and (changed := self._before().get(path)):
            writer.write(_old(changed.before, method, _range_of(head)))
            await writer.drain()
            return
        store, out = await asyncio.open_connection("127.0.0.1", self._target)
        with contextlib.closing(out):
            if fault == "torn":
                out.write(head + body[: len(body) // 2])
                await out.drain()
                return
            out.write(head + body)
            await out.drain()
            if fault == "old list":
                writer.write(self._old_list(await store.read(), path, target))
                await writer.drain()
                return
            begin = b""
            # A writer gets all of its answer at once: its next request is then no second one in flight.
            while data := await store.read(-1 if method == "PUT" else 65_536):
                begin = begin or data[:16]
                if fault != "lost":
                    writer.write(data)
            self._note(method, path, body, begin)
            await writer.drain()

    def _note(self, method: str, path: str, body: bytes, answer: bytes) -> None:
        """Note a change, for the faults that answer as the store was."""
        if method not in ("PUT", "DELETE") or not re.match(rb"HTTP/1.1 2", answer):
            return
        self._changes.append(_Changed(path, self._bodies.get(path)))
        del self._changes[:-CHANGES]
        if method == "PUT":
            self._bodies[path] = body
        else:
            self._bodies.pop(path, None)

    def _before(self) -> dict[str, _Changed]:
        """Return what the paths of the last `lag` changes had before them."""
        return {changed.path: changed for changed in reversed(self._changes[-self.lag :])}

    def _old_list(self, answer: bytes, path: str, target: str) -> bytes:
        """Return the answer to a list without what is new, and with what was removed."""
        head, _, xml = answer.partition(b"\r\n\r\n")
        if b" 200 " not in head.partition(b"\r\n")[0]:
            return answer
        asked = {name: values[0] for name, values in parse_qs(urlsplit(target).query).items()}
        bucket = path.rstrip("/") + "/"
        before = {c.path.removeprefix(bucket): c.before for c in self._before().values() if c.path.startswith(bucket)}
        for found in _CONTENTS.findall(xml):
            key = _KEY.search(found)
            if key is not None and unquote(key[1].decode()) in before:
                xml = xml.replace(found, b"")
        if b"<IsTruncated>true" not in xml:
            more = "".join(
                _FOUND.format(escape(key), len(data))
                for key, data in before.items()
                if data is not None and key.startswith(asked.get("prefix", "")) and key > asked.get("start-after", "")
            )
            xml = xml.replace(b"</ListBucketResult>", more.encode() + b"</ListBucketResult>")
        return b"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n\r\n%b" % (len(xml), xml)


def _hits(fault: str | int, head: bytes) -> bool:
    """Return whether a request can have a fault; it waits for the next one otherwise."""
    is_list = head.startswith(b"GET") and b"list-type=2" in head.partition(b"\r\n")[0]
    if fault in ("lie", "torn"):
        return head.startswith(b"PUT")
    if fault == "old list":
        return is_list
    return fault != "old" or (head.startswith((b"GET", b"HEAD")) and not is_list)


def _range_of(head: bytes) -> slice | None:
    found = re.search(rb"\r\nrange: bytes=(\d+)-(\d+)", head.lower())
    return None if found is None else slice(int(found[1]), int(found[2]) + 1)


def _old(data: bytes | None, method: str, part: slice | None) -> bytes:
    """Return the answer for an object as it was."""
    if data is None:
        return (_OLD.format("404 Not Found") + "Content-Length: 0\r\n\r\n").encode()
    more, whole = "", len(data)
    if part is not None:
        data = data[part]
        more = f"Content-Range: bytes {part.start}-{part.start + len(data) - 1}/{whole}\r\n"
    begin = _OLD.format("200 OK" if part is None else "206 Partial Content") + more
    return f"{begin}Content-Length: {len(data)}\r\n\r\n".encode() + (b"" if method == "HEAD" else data)
