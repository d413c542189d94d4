"""The HTTP port of a member that fills its disk and is no broker yet.

`/livez` says that it lives. Every other path is answered with 503 and what the member does, which the operator shows,
unless `pages` has it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson
import uvicorn

from gantry_broker import descriptors
from gantry_broker.contracts.token_file import TokenFile
from gantry_broker.http.guard import Guard
from gantry_broker.http.hosts import AllowedHosts
from gantry_broker.http.limits import MAX_HEAD, Connections, handshakes
from gantry_broker.http.server import Server, accept
from gantry_broker.remoting.tls_ports import PortsTls

if TYPE_CHECKING:
    from gantry_broker.config import BrokerConfig

LIVE: Final = ("/livez", "/health/live")
MAX_BODY: Final = 4_096
Pages = Mapping[tuple[str, str], Callable[[bytes], Awaitable[tuple[int, dict[str, Any]]]]]
"""By method and path: gets the body of a request and returns status and answer. They need the token."""


class InterimServer:
    """The HTTP port until the broker starts."""

    def __init__(self, config: BrokerConfig, detail: Callable[[], str], pages: Pages | None = None) -> None:
        """`detail`: what the member does now, for people."""
        most = descriptors.budget().http
        self._tls = PortsTls(config.tls, config.internal_tls)
        self._gate = self._tls.http_gate(handshakes(most))
        self._connections = Connections(most)
        self._detail = detail
        self._pages = pages or {}
        guarded = Guard(
            self._app,
            hosts=AllowedHosts([config.member_address, *config.http_hosts]),
            token=None if config.token_file is None else TokenFile(config.token_file),
            open_paths=frozenset(LIVE),
            bodies={path: MAX_BODY for method, path in self._pages if method == "POST"},
            refuse=self._connections.refuse,
            trust=lambda scope: None,
        )
        self._server = Server(
            uvicorn.Config(
                guarded if self._pages else self._app,
                host=config.listen_host,
                port=config.http_port,
                lifespan="off",
                interface="asgi3",  # uvicorn takes a method for the former interface
                access_log=False,
                log_config=None,
                ws="none",
                http=partial(accept, self._gate, self._connections),  # type: ignore[arg-type]
                h11_max_incomplete_event_size=MAX_HEAD,
                server_header=False,
                timeout_graceful_shutdown=1,
            )
        )

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        page = self._pages.get((scope.get("method", ""), scope.get("path", "")))
        status: int
        answer: dict[str, Any]
        if page is not None:
            body, more = b"", scope["method"] == "POST"
            # A page of a browser cannot send this type to another host without asking that host.
            fair = not more or (b"content-type", b"application/json") in scope["headers"]
            while more:
                message = await receive()
                body += message.get("body", b"")
                more = bool(message.get("more_body", False))
            status, answer = await page(body) if fair else (415, {"detail": "write content-type: application/json"})
        elif scope.get("path") in LIVE:
            status, answer = 200, {"status": "live"}
        else:
            status, answer = 503, {"detail": self._detail()}
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": orjson.dumps(answer)})

    async def start(self) -> None:
        """Serve. Raises OSError when the port is taken."""
        await self._server.begin()

    async def close(self) -> None:
        await self._server.end()
        self._connections.close()
        if self._gate is not None:
            self._gate.close()
        await self._tls.close()
