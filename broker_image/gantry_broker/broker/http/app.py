"""The HTTP interface of one broker: health, status, assignment, handover, log bytes, metrics.

It runs in the broker's own event loop. Everything but health and metrics needs `Authorization: Bearer TOKEN` when the
configuration names a token file; `guard` checks it before it reads a body. `limits` has the limits of a connection.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client.core import Metric
from pydantic.warnings import UnsupportedFieldAttributeWarning

from gantry_broker import descriptors
from gantry_broker.broker.http.control_routes import Parts as ControlParts
from gantry_broker.broker.http.control_routes import add_control_routes
from gantry_broker.broker.http.health_routes import HEALTH, METRICS, add_health_routes
from gantry_broker.broker.http.metrics import KnownLabels, busiest, gantry_families
from gantry_broker.broker.http.metrics import Parts as MetricParts
from gantry_broker.broker.http.metrics_page import METRICS_SHARE, MetricsPage
from gantry_broker.broker.http.rocketmq_metrics import StoreTimes, rocketmq_families
from gantry_broker.broker.http.state_routes import Parts as StateParts
from gantry_broker.broker.http.state_routes import add_state_routes
from gantry_broker.broker.http.status_streams import StatusStreams
from gantry_broker.broker.status import Parts as StatusParts
from gantry_broker.broker.status import member_status
from gantry_broker.contracts.token_file import TokenFile
from gantry_broker.exposition import Family, Remembered
from gantry_broker.http.guard import Guard
from gantry_broker.http.hosts import AllowedHosts
from gantry_broker.http.limits import IDLE_S, MAX_HEAD, Connections, handshakes
from gantry_broker.http.openmetrics import metric
from gantry_broker.http.otlp import OtlpPush
from gantry_broker.http.server import Server, accept
from gantry_broker.protocol import plausible
from gantry_broker.protocol.limits import MAX_ACCESS

if TYPE_CHECKING:
    from gantry_broker.broker.events import Event
    from gantry_broker.broker.ports import Ports

BODIES: Final = {
    "/v1/access": MAX_ACCESS,
    "/v1/assignment": 65_536,
    "/v1/configs": 4_194_304,
    "/v1/handover": 4_096,
    "/v1/marks": 1_024,
    "/v1/members/remove": 1_024,
    "/v1/site": 2_048,
    "/v1/site/close": 1_024,
    "/v1/site/take": 1_024,
}
"""Most bytes of a request's body; other paths take none. An assignment names the members of one group."""


class Parts(StatusParts, MetricParts, ControlParts, StateParts, Protocol):
    """What the routes use of a member: what each of their modules names."""


class HttpServer:
    """uvicorn without its own signals and logs, on a port that may be 0."""

    def __init__(self, broker: Parts, ports: Ports, status_changed: Event[[]]) -> None:
        self._broker = broker
        self._streams = StatusStreams(lambda: member_status(broker, ports.connections), status_changed)
        most = descriptors.budget().http
        gate = self._gate = broker.tls.http_gate(handshakes(most))
        self._ports = ports
        self._times = StoreTimes()
        self._labels: KnownLabels = Remembered()
        self._families_lock = asyncio.Lock()
        self._otlp: OtlpPush | None = None
        if broker.config.otlp is not None:
            self._otlp = OtlpPush(broker.config.otlp, self._metrics, "gantry-broker", broker.config.name)
        self._connections = Connections(most if gate is None else most - handshakes(most), broker.slices)
        config = uvicorn.Config(
            self._guarded(make_app(broker, self._streams, self._families)),
            host=broker.config.listen_host,
            port=broker.config.http_port,
            lifespan="off",
            access_log=False,
            log_config=None,
            ws="none",
            http=partial(accept, gate, self._connections),  # type: ignore[arg-type]
            h11_max_incomplete_event_size=MAX_HEAD,
            timeout_keep_alive=int(IDLE_S),
            backlog=descriptors.BACKLOG,
            timeout_graceful_shutdown=1,
            server_header=False,
        )
        self._server = Server(config)

    async def _families(self) -> list[Family]:
        async with self._families_lock:  # `StoreTimes` follows one page at a time
            broker, refused, labels = self._broker, self._connections.refused, self._labels
            counts = await busiest(broker)
            families = [
                *await gantry_families(broker, self._ports, refused, counts, labels),
                *await rocketmq_families(broker, self._times, counts, labels),
            ]
            labels.turn()
        return families if self._otlp is None else [*families, self._otlp.family()]

    async def _metrics(self) -> list[Metric]:
        families = await self._families()
        return await asyncio.to_thread(lambda: [metric(family) for family in families])

    def _guarded(self, app: FastAPI) -> Guard:
        config = self._broker.config
        member = config.member_address
        return Guard(
            app,
            hosts=AllowedHosts([member, *config.http_hosts]),
            token=None if config.token_file is None else TokenFile(config.token_file),
            open_paths=HEALTH if config.metrics_need_token else HEALTH | {METRICS},
            bodies=BODIES,
            refuse=self._connections.refuse,
            trust=_trust,
        )

    @property
    def port(self) -> int:
        for server in getattr(self._server, "servers", []):
            for sock in server.sockets:
                return int(sock.getsockname()[1])
        return self._broker.config.http_port

    async def start(self) -> None:
        """Raise OSError when the port is taken."""
        await self._server.begin()
        if self._otlp is not None:
            self._otlp.start()

    async def close(self) -> None:
        if self._otlp is not None:
            await self._otlp.close()
        self._streams.close()
        await self._server.end()
        self._connections.close()
        if self._gate is not None:
            self._gate.close()


def _trust(scope: MutableMapping[str, Any]) -> None:
    scope["state"]["connection"].state.trusted = True


def make_app(broker: Parts, streams: StatusStreams, families: Callable[[], Awaitable[list[Family]]]) -> FastAPI:
    """Return all routes of one broker. `families` makes its metrics."""
    # FastAPI ignores this warning where it makes a field. Models with `defer_build` are built later, at a request.
    warnings.filterwarnings("ignore", category=UnsupportedFieldAttributeWarning)
    app = FastAPI(title="Gantry broker", docs_url=None, redoc_url=None, openapi_url="/openapi.json")

    @app.exception_handler(RequestValidationError)
    async def bad_request(request: Request, error: RequestValidationError) -> JSONResponse:
        """Return a text that names each field with its value; a number of any size must not fail the answer."""
        detail = "; ".join(
            f"{'.'.join(str(part) for part in e['loc'])} = {plausible.shown(e.get('input'))}: {e['msg']}"
            for e in error.errors()[:5]
        )
        if request.method != "GET":
            broker.replication.refusals.add("assignment", "range", f"{request.url.path}: {detail}")
        return JSONResponse({"detail": detail[: plausible.MAX_TEXT]}, 422)

    add_health_routes(app, streams, MetricsPage(families, broker.slices, METRICS_SHARE))
    add_control_routes(app, broker)
    add_state_routes(app, broker)
    return app
