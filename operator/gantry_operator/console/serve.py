"""Serves the console of this machine's clusters, on the loopback address, with links that work once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import uvicorn
from fastapi import Request
from gantry_broker import descriptors
from gantry_broker.http.hosts import LOOPBACK_NAMES, host_of
from gantry_broker.http.limits import Connections
from gantry_broker.http.server import accept
from gantry_broker.tasks import end_tasks

from gantry_operator.console.access import OneTimeLinks, Session, Sessions
from gantry_operator.console.app import make_app
from gantry_operator.console.collector import Collector
from gantry_operator.console.snapshot import ClusterKey
from gantry_operator.console.sources import LocalSource, Source

HOST = "127.0.0.1"
MAX_HEAD = 32 * 1024
"""Bytes of a request's head: browsers send the cookies of all pages of a host."""
PEOPLE = "You, on this machine"


class LocalAccess:
    """The person who started the console, and who may do everything."""

    login_page = "login_local.html"
    secure = False

    def __init__(self, sessions: Sessions, links: OneTimeLinks, port: int) -> None:
        self._sessions = sessions
        self._links = links
        self.cookie = f"gantry-console-{port}"
        """With the port: browsers send a cookie to every port of a host."""

    async def session(self, request: Request) -> Session | None:
        return self._sessions.find(request.cookies.get(self.cookie), time.monotonic())

    async def login(self, request: Request, form: Mapping[str, str]) -> Session | None:
        if not self._links.use(form.get("token", "")):
            return None
        return self._sessions.open(PEOPLE, time.monotonic())

    async def may_read(self, session: Session, key: ClusterKey) -> bool:
        return True

    async def may_write(self, session: Session, key: ClusterKey) -> bool:
        return True

    def allows_host(self, header: str) -> bool:
        """Only loopback: a page of another site that resolves to 127.0.0.1 sends its own name."""
        return host_of(header) in (*LOOPBACK_NAMES, HOST, "::1")


def _no_end_of_request(record: logging.LogRecord) -> bool:
    """Return False for the end of a request that runs while the server ends: it is no error."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


class Server(uvicorn.Server):
    """uvicorn on a socket that is bound already, with the limits for connections that all HTTP servers here have."""

    def __init__(self, app: object, collectors: Callable[[], Mapping[ClusterKey, Collector]]) -> None:
        """`collectors`: those of the pages, whose streams end with the server."""
        self._collectors = collectors
        self.connections = Connections(descriptors.budget().http)
        logging.getLogger("uvicorn.error").addFilter(_no_end_of_request)
        super().__init__(
            uvicorn.Config(
                app,  # type: ignore[arg-type]
                lifespan="off",
                access_log=False,
                log_config=None,
                ws="none",
                server_header=False,
                timeout_graceful_shutdown=1,
                http=partial(accept, None, self.connections),  # type: ignore[arg-type]
                h11_max_incomplete_event_size=MAX_HEAD,
            )
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for collector in self._collectors().values():
            await collector.end_streams()
        await super().shutdown(sockets)
        self.connections.close()


@contextlib.asynccontextmanager
async def collecting(collectors: Mapping[ClusterKey, Collector]):  # type: ignore[no-untyped-def]
    """Collect while the context is open."""
    tasks = [asyncio.create_task(collector.run()) for collector in collectors.values()]
    try:
        yield
    finally:
        await end_tasks(*tasks)
        for collector in collectors.values():
            await collector.source.close()


LOOK_S = 2.0
"""Seconds between two looks for clusters that started, or that are gone."""


async def follow(
    collectors: dict[ClusterKey, Collector], present: Callable[[], Mapping[ClusterKey, Callable[[], Source]]]
) -> None:
    """Add a collector for each cluster that starts later. `present`: what makes the source of each that is there."""
    tasks: set[asyncio.Task[None]] = set()
    try:
        while True:
            await asyncio.sleep(LOOK_S)
            for key, make in (await asyncio.to_thread(present)).items():
                if key in collectors:
                    continue
                collectors[key] = Collector(make())
                task = asyncio.create_task(collectors[key].run())
                tasks.add(task)
                task.add_done_callback(tasks.discard)
    finally:
        await end_tasks(*tasks)


async def serve(
    sources: Sequence[LocalSource],
    bound: socket.socket,
    started: Callable[[str], None],
    present: Callable[[], Mapping[ClusterKey, Callable[[], Source]]] | None = None,
) -> None:
    """Serve until a signal. `started` gets the link for the browser, and another one after each line on a terminal.

    `present`: as for `follow`; None: only `sources` are shown.
    """
    port = bound.getsockname()[1]
    sessions, links = Sessions(), OneTimeLinks()
    collectors = {source.key: Collector(source) for source in sources}
    access = LocalAccess(sessions, links, port)
    server = Server(make_app(lambda: collectors, access, sessions), lambda: collectors)

    def link() -> str:
        return f"http://{HOST}:{port}/?token={links.make()}"

    async with collecting(collectors):
        # The first page has figures; a cluster that does not answer delays it for no longer than this.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(3):
                await asyncio.gather(*(collector.first() for collector in collectors.values()))
        bound.listen()  # A browser that is faster than the server waits.
        started(link())
        loop = asyncio.get_running_loop()

        def another() -> None:
            if sys.stdin.readline():
                started(link())
            else:
                loop.remove_reader(sys.stdin)

        if sys.stdin.isatty():
            loop.add_reader(sys.stdin, another)
        following = None if present is None else asyncio.create_task(follow(collectors, present))
        try:
            await server.serve(sockets=[bound])
        finally:
            await end_tasks(following)
