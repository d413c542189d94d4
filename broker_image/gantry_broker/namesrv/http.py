"""Health and metrics of a NameServer: three paths over HTTP/1.1, without a framework.

FastAPI would be most of this process's memory, and there is no input but the path.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

MAX_REQUEST = 8192
"""Bytes of the longest request head."""
PATIENCE_S = 10.0
"""Seconds that a connection may take to send its request."""

Page = Callable[[], tuple[str, bytes]]
"""Gives the content type and the body."""


class PageServer(asyncio.Protocol):
    """Answers one GET per connection and closes it."""

    def __init__(self, pages: dict[str, Page]) -> None:
        self._pages = pages
        self._head = b""
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._timer = asyncio.get_running_loop().call_later(PATIENCE_S, self._transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._head += data
        if len(self._head) > MAX_REQUEST:
            self._answer("431 Request Header Fields Too Large", "text/plain", b"the request is too long\n")
        elif b"\r\n\r\n" in self._head:
            words = self._head.split(b"\r\n", 1)[0].split(b" ")
            path = words[1].split(b"?")[0].decode("ascii", "replace") if len(words) == 3 else ""
            page = self._pages.get(path)
            if words[0] not in (b"GET", b"HEAD"):
                self._answer("405 Method Not Allowed", "text/plain", b"only GET is answered\n")
            elif page is None:
                known = " ".join(sorted(self._pages))
                self._answer("404 Not Found", "text/plain", f"nothing here; try {known}\n".encode())
            else:
                kind, body = page()
                self._answer("200 OK", kind, body, head_only=words[0] == b"HEAD")

    def _answer(self, status: str, kind: str, body: bytes, *, head_only: bool = False) -> None:
        if self._transport is not None:
            head = (
                f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            self._transport.write(head.encode() + (b"" if head_only else body))
            self._transport.close()
