"""The process around `NameService`: its ports, its clock and its end."""

from __future__ import annotations

import asyncio
import logging

from gantry_broker import descriptors
from gantry_broker.http.hosts import AllowedHosts
from gantry_broker.http.pages import Page, Pages, PageServer
from gantry_broker.namesrv.access import NameServerAccess
from gantry_broker.namesrv.kv import KvConfig
from gantry_broker.namesrv.service import NameService, health, metrics
from gantry_broker.namesrv.settings import NameServerSettings
from gantry_broker.protocol.request_limits import RequestLimits
from gantry_broker.remoting.connection import Shared
from gantry_broker.remoting.handshake import Identity
from gantry_broker.remoting.members import HandshakeGuard, Membership
from gantry_broker.remoting.server import RemotingServer
from gantry_broker.remoting.tls_ports import PortsTls
from gantry_broker.tasks import Started, end_tasks

log = logging.getLogger(__name__)

SCAN_SECONDS = 5.0


class NameServer(Started):
    """A running NameServer: `async with NameServer(settings) as server`. `server.port` is its port."""

    def __init__(self, settings: NameServerSettings) -> None:
        """Read the KV configuration. Raises ValueError when it is damaged, or certificates cannot be used."""
        kv_path = settings.data_dir / "kvConfig.json" if settings.data_dir is not None else None
        access_path = settings.data_dir / "access.json" if settings.data_dir is not None else None
        access = NameServerAccess(settings.cluster, settings.authentication, access_path)
        self.service = NameService(settings.name, KvConfig(kv_path), access=access)
        self._settings = settings
        budget = descriptors.budget()
        self.tls = self.service.tls = PortsTls(settings.tls, settings.internal_tls)
        gate = self.tls.client_gate(self.service.shared)

        def listen(port: int, name: str = "") -> RemotingServer:
            return RemotingServer(
                self.service,
                settings.listen_host,
                port,
                name=name,
                limits=RequestLimits(),
                shared=self.service.shared,
                backlog=budget.remoting_backlog,
                gate=gate,
            )

        self._remoting = [listen(settings.port), *(listen(one.port, one.name) for one in settings.listeners)]
        self._registration: RemotingServer | None = None
        if settings.registration_port is not None:
            membership = Membership(Identity.of_name_server(settings.cluster), settings.token_file)
            members = Shared(self.service.shared.budget)
            unproven = budget.members if self.tls.internal is None else budget.members // 2
            guard = self.service.guard = HandshakeGuard(membership, unproven)
            self._registration = RemotingServer(
                self.service, settings.listen_host, settings.registration_port, guard=guard,
                max_connections=budget.members, backlog=budget.remoting_backlog, limits=RequestLimits(members=True),
                shared=members, gate=self.tls.member_gate("registration", unproven, members),
            )  # fmt: skip
        self._http: PageServer | None = None
        if settings.http_port is not None:
            hosts = AllowedHosts(settings.http_hosts)
            self._http = PageServer(
                self._pages(), settings.listen_host, settings.http_port, hosts=hosts, most=budget.http, tls=self.tls,
                slices=self.service.slices,
            )  # fmt: skip
        self._scanner: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        return self._remoting[0].port

    @property
    def registration_port(self) -> int | None:
        """The registration port; None: there is none."""
        return None if self._registration is None else self._registration.port

    @property
    def http_port(self) -> int | None:
        return None if self._http is None else self._http.port

    async def start(self) -> None:
        """Start all ports. Raises OSError when a port is taken."""
        self.service.access.load()
        try:
            for server in self._servers():
                await server.start()
            if self._http is not None:
                await self._http.start()
        except OSError:
            await self.close()
            raise
        self.tls.start()
        self.service.loop_watch.start()
        self._scanner = asyncio.create_task(self._scan())
        log.info("NameServer %s listens on port %d", self._settings.name, self.port)

    async def close(self) -> None:
        await end_tasks(self._scanner)
        self._scanner = None
        if self._http is not None:
            self._http.close()
        for server in self._servers():
            await server.close()
        await self.tls.close()
        await self.service.close()

    def _servers(self) -> list[RemotingServer]:
        return self._remoting if self._registration is None else [*self._remoting, self._registration]

    def _pages(self) -> Pages:
        def alive() -> Page:
            return Page("application/json", health(self.service))

        def figures() -> Page:
            return Page("text/plain; version=0.0.4; charset=utf-8", metrics(self.service).encode())

        return {
            "/healthz": alive,
            "/livez": alive,
            "/readyz": alive,
            "/metrics": figures,
        }

    async def _scan(self) -> None:
        while True:
            await asyncio.sleep(SCAN_SECONDS)
            self.service.expire()
