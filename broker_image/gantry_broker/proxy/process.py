"""One proxy process: its configuration, its ports, its end."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import signal
import sys
import time
from pathlib import Path

import orjson
import uvloop
from pydantic import ValidationError

from gantry_broker import descriptors, logs
from gantry_broker.client.producer import Producer
from gantry_broker.client.session import Session
from gantry_broker.contracts.token_file import TokenFile
from gantry_broker.exposition import Family, text_page
from gantry_broker.http.hosts import AllowedHosts
from gantry_broker.http.pages import TEXT, Page, PageServer
from gantry_broker.loopwatch import LoopWatch, loop_families
from gantry_broker.protocol.codes import RequestCode
from gantry_broker.protocol.frame import Frame
from gantry_broker.proxy.authentication import Authentication, TableFile
from gantry_broker.proxy.brokers import Brokers
from gantry_broker.proxy.config import ProxyConfig
from gantry_broker.proxy.credentials import FileCredentials
from gantry_broker.proxy.http2.endpoint import Endpoint
from gantry_broker.proxy.metrics import families
from gantry_broker.proxy.service import Service
from gantry_broker.remoting.budget import memory_limit, remoting_budget
from gantry_broker.remoting.connection import Shared
from gantry_broker.remoting.errors import RemotingError
from gantry_broker.remoting.tls import Certificates, TlsOptions
from gantry_broker.remoting.tls_gate import TlsGate
from gantry_broker.remoting.tls_ports import PortsTls
from gantry_broker.tasks import Started

log = logging.getLogger(__name__)

READY_S = 1.0
"""Seconds for which an answer of a NameServer counts."""


class Proxy(Started):
    """A running proxy. Use `async with Proxy(config)`, or `start` and `close`."""

    def __init__(self, config: ProxyConfig) -> None:
        """Blocks for a read of the files. Raises OSError, and ValueError (TlsError is one) for unusable files."""
        self.config = config
        self._credentials = _credentials(config)
        self._session = Session(config.name_servers, tls=_tls_options(config), credentials=self._credentials)
        self._producer = Producer(self._session, f"gantry-proxy-{config.name}"[:200].replace(".", "-"))
        access = config.access
        self.authentication = Authentication("Disabled" if access is None else access.authentication)
        self._table = None if access is None else TableFile(access.file, self.authentication)
        self.service = Service(Brokers(self._session), self._producer, self.authentication, advertise=config.advertise)
        self._certificates: Certificates | None = None
        self._http_tls = PortsTls(None, config.internal_tls)
        self.endpoint: Endpoint | None = None
        self._pages: PageServer | None = None
        self._watch = LoopWatch()
        self._ready: tuple[bool, float] = (False, 0.0)
        self._stopping = False

    @property
    def port(self) -> int:
        return self.config.port if self.endpoint is None else self.endpoint.port

    @property
    def http_port(self) -> int | None:
        return None if self._pages is None else self._pages.port

    async def start(self) -> None:
        """Raise OSError when a port is taken."""
        config = self.config
        budget = descriptors.budget()
        most = min(config.max_connections, budget.remoting)
        shared = Shared(
            remoting_budget(memory_limit(config.memory_limit_bytes), most), lambda: config.max_connections_per_address
        )
        shared.now = asyncio.get_running_loop().time()
        shared.slices.on_ran = self._watch.holds.ran
        gate = None
        if config.tls is not None:
            tls = config.tls
            self._certificates = Certificates(
                "client", tls.cert_file, tls.key_file, tls.client_ca_file, tls.client_certificates, protocols=("h2",)
            )
            gate = TlsGate(
                "grpc",
                self._certificates,
                required=tls.mode == "Required",
                most=shared.budget.handshakes,
                shared=shared,
            )
            self._certificates.start()
        if self._credentials is not None:
            self._credentials.start()
        if self._table is not None:
            self._table.read()
            self._table.start()
        await self._producer.start()
        self.endpoint = Endpoint(
            self.service.methods,
            config.listen_host,
            config.port,
            shared=shared,
            gate=gate,
            max_connections=most,
            backlog=budget.remoting_backlog,
        )
        try:
            await self.endpoint.start()
            if config.http_port is not None:
                self._pages = PageServer(
                    {"/livez": self._live, "/readyz": self._readiness, "/metrics": self._metrics},
                    config.http_host or config.listen_host,
                    config.http_port,
                    hosts=AllowedHosts(config.http_hosts),
                    most=budget.http,
                    tls=self._http_tls,
                    token=None if config.token_file is None else TokenFile(config.token_file),
                    closed={"/v1/clients": self._clients},
                    slices=self.endpoint.shared.slices,
                )
                self._http_tls.start()
                await self._pages.start()
        except OSError:
            await self.close()
            raise
        self.service.start()
        self._watch.start()
        log.info("proxy %s serves gRPC on port %d", config.name, self.port)

    async def close(self) -> None:
        """Stop in order: calls in work get their answers, and a GOAWAY sends clients to another proxy."""
        self._stopping = True
        if self.endpoint is not None:
            await self.endpoint.close(self.config.drain_s)
        await self.service.close()
        if self._pages is not None:
            self._pages.close()
        if self._credentials is not None:
            await self._credentials.close()
        if self._table is not None:
            await self._table.close()
        if self._certificates is not None:
            await self._certificates.close()
        await self._http_tls.close()
        with contextlib.suppress(RemotingError):
            await self._producer.close()

    # ---- pages

    def _live(self) -> Page:
        return Page(TEXT, b"live\n")

    async def _readiness(self) -> Page:
        if self._stopping:
            return Page(TEXT, b"the proxy stops\n", "503 Service Unavailable")
        good, until = self._ready
        if not good or time.monotonic() > until:
            try:
                await self._session.call_name_server(Frame(RequestCode.GET_BROKER_CLUSTER_INFO), 2.0)
                good = True
            except RemotingError as error:
                good = False
                log.warning("no NameServer answers: %s", error)
            self._ready = good, time.monotonic() + READY_S
        if good:
            return Page(TEXT, b"ready\n")
        return Page(TEXT, b"no NameServer answers\n", "503 Service Unavailable")

    def _metrics(self) -> Page:
        assert self.endpoint is not None
        loop = [
            Family(name, kind, text, [({}, value)])
            for name, kind, text, value in loop_families(self._watch.holds, "gantry_proxy")
        ]
        rows = [*families(self.service, self.endpoint), *self._http_tls.families({}), *loop]
        return Page("text/plain; version=0.0.4; charset=utf-8", text_page(rows).encode())

    async def _clients(self) -> Page:
        described = [client.describe() for client in self.service.clients][:10_000]
        return Page("application/json", await asyncio.to_thread(orjson.dumps, described))


def _tls_options(config: ProxyConfig) -> TlsOptions | None:
    tls = config.broker_tls
    return None if tls is None else TlsOptions(tls.ca_file, tls.cert_file, tls.key_file, tls.verify, tls.server_name)


def _credentials(config: ProxyConfig) -> FileCredentials | None:
    given = config.credentials
    return None if given is None else FileCredentials(given.access_key, given.secret_key_file)


async def _serve(config: ProxyConfig) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with Proxy(config):
        tune_memory()
        await stop.wait()


def tune_memory() -> None:
    """Let the collector of reference cycles look seldom: calls leave none, and with many clients each look is long."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def main(arguments: list[str] | None = None) -> int:
    """Run the process and return its exit code: 0 after a signal, 2 for a bad config, 1 when a port or file cannot
    be used.
    """
    parser = argparse.ArgumentParser(prog="python -m gantry_broker.proxy", description="The gRPC endpoint.")
    parser.add_argument("--config", type=Path, required=True, help="its JSON configuration")
    parser.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    options = parser.parse_args(arguments)
    logs.configure(options.log_level)
    descriptors.allow_all()
    try:
        config = ProxyConfig.load(options.config)
    except (OSError, ValidationError) as error:
        print(f"{options.config}: {error}", file=sys.stderr)
        return 2
    try:
        uvloop.run(_serve(config))
    except (OSError, ValueError) as error:
        print(f"proxy {config.name}: {error}", file=sys.stderr)
        return 1
    return 0
