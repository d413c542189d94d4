"""Checks of a request before anything of it is parsed: a known Host, the token, a body of a fair size.

A pure ASGI application around another one. A refusal costs no body, no routing and no model.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final

from gantry_broker.contracts.token_file import TokenFile
from gantry_broker.http.hosts import AllowedHosts
from gantry_broker.protocol.digits import whole_number

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

DISCARDED: Final = 65_536
"""Most bytes of a refused request's body that are read and dropped, so that the client sees the answer. Beyond that
the connection is closed.
"""


class Guard:
    """`open_paths` need no token. `bodies`: the most bytes for each path; a path that is missing takes none.
    `refuse` is called with the reason in one word for each refused request, `trust` with the scope of each request
    that has the token.
    """

    def __init__(
        self,
        app: App,
        *,
        hosts: AllowedHosts,
        token: TokenFile | None,
        open_paths: frozenset[str],
        bodies: Mapping[str, int],
        refuse: Callable[[str], None],
        trust: Callable[[Message], None],
    ) -> None:
        self._app = app
        self._hosts = hosts
        self._token = token
        self._open_paths = open_paths
        self._bodies = bodies
        self._refuse = refuse
        self._trust = trust

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name, []).append(value)
        for host in headers.get(b"host", []):
            if not self._hosts.allows(host.decode("latin-1")):
                await self._answer(scope, send, 421, "host", self._hosts.refusal(host.decode("latin-1")))
                return
        if scope["path"] not in self._open_paths and self._token is not None:
            expected = await self._token.current()
            if expected is None:
                await self._answer(scope, send, 503, "token", self._token.problem)
                return
            if not shows(headers.get(b"authorization", []), expected):
                await self._answer(scope, send, 401, "token", "Authorization: Bearer TOKEN is expected")
                return
            self._trust(scope)
        limit = self._bodies.get(scope["path"], 0)
        if announced(headers) > limit:
            await self._answer(scope, send, 413, "body", f"a body of at most {limit} bytes is expected")
            return
        if limit:
            body = await read_body(receive, limit)
            if body is None:
                await self._answer(scope, send, 413, "body", f"a body of at most {limit} bytes is expected")
                return
            receive = _after(body, receive)
        await self._app(scope, receive, send)

    async def _answer(self, scope: Message, send: Send, status: int, reason: str, detail: str) -> None:
        self._refuse(reason)
        body = json.dumps({"detail": detail}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        if status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        lengths = [value for name, value in scope["headers"] if name == b"content-length"]
        chunked = any(name == b"transfer-encoding" for name, _ in scope["headers"])
        if chunked or any(_length(value) > DISCARDED for value in lengths):
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def shows(given: list[bytes], expected: str) -> bool:
    """Whether the values of `Authorization` are one, and carry this token. Takes as long for any other token."""
    if len(given) != 1:
        return False
    scheme, _, token = given[0].partition(b" ")
    return scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), expected.encode())


def announced(headers: Mapping[bytes, list[bytes]]) -> int:
    """Return the length of the body by the head; a body in chunks is counted on arrival."""
    if b"transfer-encoding" in headers:
        return 0
    return max((_length(value) for value in headers.get(b"content-length", [])), default=0)


def _length(value: bytes) -> int:
    """Return 0 for an invalid number: h11 has refused the request already."""
    number = whole_number(value)
    return 1 << 62 if number is None else number


async def read_body(receive: Receive, limit: int) -> bytes | None:
    """Return the whole body; None: it is longer than `limit`. Empty also when the client has gone."""
    body = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b""
        part: bytes = message.get("body", b"")
        body += part
        if len(body) > limit:
            return None
        if not message.get("more_body", False):
            return body


def _after(body: bytes, receive: Receive) -> Receive:
    """Return the number; 2**62 for an invalid one, which h11 has refused already."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
