"""A few pages over HTTP/1.1, without a framework: health and metrics of a NameServer and of the operator.

FastAPI would be most of a NameServer's memory, and the path is the only input.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, cast

from gantry_broker import descriptors
from gantry_broker.contracts.token_file import TokenFile
from gantry_broker.http.guard import shows
from gantry_broker.http.hosts import AllowedHosts
from gantry_broker.http.limits import MAX_HEAD, Connections, Phase, State, end_with, handshakes
from gantry_broker.inbox import Inbox
from gantry_broker.remoting.refused import host_of
from gantry_broker.remoting.tls_ports import PortsTls
from gantry_broker.timeslice import TimeSlices

log = logging.getLogger(__name__)

SHARE: Final = 0.05
"""The share of a core that making one page may take: until then its readers get the last one."""
TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Page:
    """One answer."""

    kind: str
    """The content type."""
    body: bytes
    status: str = "200 OK"


Pages = Mapping[str, Callable[[], Awaitable[Page] | Page]]
"""The function that makes the page, by path."""


class PageServer:
    """Serves `pages` on a port that may be 0, to at most `most` connections at once."""

    def __init__(
        self,
        pages: Pages,
        host: str,
        port: int,
        *,
        hosts: AllowedHosts,
        most: int,
        tls: PortsTls | None = None,
        token: TokenFile | None = None,
        closed: Pages | None = None,
        slices: TimeSlices | None = None,
    ) -> None:
        """`tls`: the server speaks HTTPS if this has a certificate for it. `closed`: pages that need the `token`;
        without a token file they are not served. `slices`: the time of the event loop that all connections share with
        the other ports of the process.
        """
        self.token = token
        self.closed = {} if token is None or closed is None else closed
        self.pages = {**pages, **self.closed}
        self.hosts = hosts
        self._gate = None if tls is None else tls.http_gate(handshakes(most))
        self.connections = Connections(most if self._gate is None else most - handshakes(most), slices)
        self._kept: dict[str, tuple[Page, float]] = {}
        """The last page by path, and until when by the event loop's clock it is given again."""
        self._where = (host, port)
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        return self._where[1] if self._server is None else int(self._server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        """Serve. Raises OSError when the port is taken."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, *self._where, backlog=descriptors.BACKLOG)

    def _accept(self) -> asyncio.Protocol:
        return _Connection(self) if self._gate is None else self._gate.accept(lambda: _Connection(self))

    async def page(self, path: str) -> Page:
        """Make the page of a known path in its turn. Raises what making it raises."""
        slices, loop = self.connections.slices, asyncio.get_running_loop()
        await slices.grant()
        kept = self._kept.get(path)
        if kept is not None and loop.time() < kept[1]:
            return kept[0]
        begun, used_s = slices.clock(), slices.used_s
        page = self.pages[path]()
        slices.spent(begun, used_s)
        if not isinstance(page, Page):
            return await page
        self._kept[path] = page, loop.time() + (slices.clock() - begun) / SHARE
        return page

    def close(self) -> None:
        self.connections.close()
        if self._gate is not None:
            self._gate.close()
        if self._server is not None:
            self._server.close()
            self._server = None


class _Connection(asyncio.Protocol):
    """Answer one GET and close. What it brings, and the page, wait for their turn: see `gantry_broker.inbox`."""

    def __init__(self, server: PageServer) -> None:
        self._server = server
        self._head = b""
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self.state = State(Phase.HEAD, self._loop.time())
        self.address = ""
        self._inbox = Inbox(server.connections.slices, self)

    # ---- for Connections

    def look(self, now: float) -> None:
        if self._transport is not None:
            self.state.wrote(self._transport.get_write_buffer_size(), now)

    def end(self, status: str) -> None:
        if self._transport is not None:
            end_with(self._transport, status, answer=self.state.phase is Phase.HEAD)

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.address = host_of(transport)
        self._server.connections.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._inbox.leave()
        self._server.connections.closed(self)
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        """Drop what comes after the head: a body, or another request."""
        if self.state.phase is Phase.HEAD and self._transport is not None and not self._transport.is_closing():
            self._inbox.received(data)

    # ---- its input in turns: `inbox.Owner`

    def handle(self, data: bytes) -> bool:
        if self.state.phase is not Phase.HEAD or self._transport is None or self._transport.is_closing():
            return False
        self._head += data[: MAX_HEAD + 1]
        if b"\r\n\r\n" not in self._head and len(self._head) <= MAX_HEAD:
            return False
        self.state.enter(Phase.ANSWER, self._loop.time())
        lines = self._head.split(b"\r\n\r\n", 1)[0].decode("latin-1").split("\r\n")
        if len(self._head) > MAX_HEAD:
            self._answer(Page(TEXT, b"the request is too long\n", "431 Request Header Fields Too Large"))
        else:
            self._task = self._loop.create_task(self._respond(lines))
        return False

    def pause_input(self, wait: bool) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading() if wait else self._transport.resume_reading()

    def input_ended(self) -> None:
        """Do nothing: what was read is handled."""

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # ---- the answer

    async def _respond(self, lines: list[str]) -> None:
        words = lines[0].split(" ")
        fields = [line.partition(":") for line in lines[1:]]
        for host in (value.strip() for name, _, value in fields if name.strip().lower() == "host"):
            if not self._server.hosts.allows(host):
                self._server.connections.refuse("host")
                why = self._server.hosts.refusal(host).encode()
                self._answer(Page(TEXT, why + b"\n", "421 Misdirected Request"))
                return
        path = words[1].split("?")[0] if len(words) == 3 else ""
        if words[0] not in ("GET", "HEAD"):
            self._answer(Page(TEXT, b"only GET is answered\n", "405 Method Not Allowed"))
        elif path not in self._server.pages:
            paths = " ".join(sorted(self._server.pages))
            self._answer(Page(TEXT, f"nothing here; try {paths}\n".encode(), "404 Not Found"))
        elif path in self._server.closed and (refusal := await self._without_token(fields)) is not None:
            self._server.connections.refuse("token")
            self._answer(refusal)
        else:
            try:
                page = await self._server.page(path)
            except Exception:
                log.exception("the page %s", path)
                page = Page(TEXT, b"this page cannot be made, see the log\n", "500 Internal Server Error")
            self._answer(page, head_only=words[0] == "HEAD")

    async def _without_token(self, fields: list[tuple[str, str, str]]) -> Page | None:
        """Return the refusal of a request without the token; None: it has it."""
        token = self._server.token
        expected = None if token is None else await token.current()
        if token is None or expected is None:
            problem = "" if token is None else token.problem
            return Page(TEXT, f"{problem}\n".encode(), "503 Service Unavailable")
        given = [value.strip().encode() for name, _, value in fields if name.strip().lower() == "authorization"]
        if shows(given, expected):
            return None
        return Page(TEXT, b"Authorization: Bearer TOKEN is expected\n", "401 Unauthorized")

    def _answer(self, page: Page, *, head_only: bool = False) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        challenge = "WWW-Authenticate: Bearer\r\n" if page.status.startswith("401") else ""
        head = (
            f"HTTP/1.1 {page.status}\r\n{challenge}Content-Type: {page.kind}\r\nContent-Length: {len(page.body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        self._transport.write(head.encode() + (b"" if head_only else page.body))
        self._transport.close()
        self.state.enter(Phase.CLOSING, self._loop.time())
