"""The process around `NameService`: its ports, its clock and its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from gantry_broker.namesrv.http import PageServer
from gantry_broker.namesrv.kv import KvConfig
from gantry_broker.namesrv.service import NameService, health, metrics
from gantry_broker.namesrv.settings import NameServerSettings
from gantry_broker.remoting.handshake import Identity
from gantry_broker.remoting.members import HandshakeGuard, Membership
from gantry_broker.remoting.server import RemotingServer

log = logging.getLogger(__name__)

SCAN_SECONDS = 5.0


class NameServer:
    """A running NameServer: `async with NameServer(settings) as server`. `server.port` is the port it got."""

    def __init__(self, settings: NameServerSettings) -> None:
        """Raises ValueError when the kept KV configuration is damaged."""
        kv_path = settings.data_dir / "kvConfig.json" if settings.data_dir is not None else None
        self.service = NameService(settings.name, KvConfig(kv_path))
        self._settings = settings
        self._remoting = [
            RemotingServer(self.service, settings.listen_host, settings.port),
            *(
                RemotingServer(self.service, settings.listen_host, listener.port, name=listener.name)
                for listener in settings.listeners
            ),
        ]
        self._registration: RemotingServer | None = None
        if settings.registration_port is not None:
            membership = Membership(Identity.of_name_server(settings.cluster), settings.token_file)
            guard = self.service.guard = HandshakeGuard(membership)
            self._registration = RemotingServer(
                self.service, settings.listen_host, settings.registration_port, guard=guard
            )
        self._http: asyncio.Server | None = None
        self._scanner: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        return self._remoting[0].port

    @property
    def registration_port(self) -> int | None:
        """Where brokers register; None: nowhere."""
        return None if self._registration is None else self._registration.port

    @property
    def listener_ports(self) -> dict[str, int]:
        return {
            listener.name: server.port
            for listener, server in zip(self._settings.listeners, self._remoting[1:], strict=True)
        }

    @property
    def http_port(self) -> int | None:
        return self._http.sockets[0].getsockname()[1] if self._http is not None else None

    async def start(self) -> None:
        """Raises OSError when a port is taken."""
        try:
            for server in self._servers():
                await server.start()
            if self._settings.http_port is not None:
                self._http = await asyncio.get_running_loop().create_server(
                    lambda: PageServer(self._pages()), self._settings.listen_host, self._settings.http_port
                )
        except OSError:
            await self.close()
            raise
        self._scanner = asyncio.create_task(self._scan())
        log.info("NameServer %s listens on port %d", self._settings.name, self.port)

    async def close(self) -> None:
        if self._scanner is not None:
            self._scanner.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._scanner
            self._scanner = None
        if self._http is not None:
            self._http.close()
            self._http = None
        for server in self._servers():
            await server.close()

    def _servers(self) -> list[RemotingServer]:
        return self._remoting if self._registration is None else [*self._remoting, self._registration]

    async def __aenter__(self) -> NameServer:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def _pages(self) -> dict[str, Callable[[], tuple[str, bytes]]]:
        def alive() -> tuple[str, bytes]:
            return "application/json", health(self.service)

        return {
            "/healthz": alive,
            "/livez": alive,
            "/readyz": alive,
            "/metrics": lambda: ("text/plain; version=0.0.4; charset=utf-8", metrics(self.service).encode()),
        }

    async def _scan(self) -> None:
        while True:
            await asyncio.sleep(SCAN_SECONDS)
            self.service.expire()
