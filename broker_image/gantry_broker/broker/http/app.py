"""The HTTP interface of one broker: health, status, assignment, handover, log bytes, metrics.

It runs in the broker's own event loop. Everything but health and metrics needs `Authorization: Bearer TOKEN` when the
configuration names a token file; `guard` checks it before it reads a body. `limits` has the limits of a connection.
"""

from __future__ import annotations

import asyncio
import logging
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol, TypeVar

import orjson
import uvicorn
from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from prometheus_client.core import Metric
from pydantic import ValidationError
from pydantic.warnings import UnsupportedFieldAttributeWarning

from gantry_broker import descriptors
from gantry_broker.access.table import AccessAnswer, Changes, faults
from gantry_broker.archive.errors import ArchiveError, Fenced
from gantry_broker.broker.http.configs import Parts as ConfigParts
from gantry_broker.broker.http.configs import add_configs, all_configs, mark
from gantry_broker.broker.http.drain import DrainReports
from gantry_broker.broker.http.drain import Parts as DrainParts
from gantry_broker.broker.http.logbytes import Parts as LogParts
from gantry_broker.broker.http.logbytes import log_bytes, log_info
from gantry_broker.broker.http.metrics import KnownLabels, busiest, gantry_families
from gantry_broker.broker.http.metrics import Parts as MetricParts
from gantry_broker.broker.http.rocketmq_metrics import StoreTimes, rocketmq_families
from gantry_broker.broker.http.tables import Parts as TableParts
from gantry_broker.broker.http.tables import broker_tables
from gantry_broker.broker.http.undelivered import Parts as UndeliveredParts
from gantry_broker.broker.http.undelivered import UndeliveredMessages
from gantry_broker.broker.sites import NotStandby
from gantry_broker.broker.status import Parts as StatusParts
from gantry_broker.broker.status import member_status
from gantry_broker.contracts.models import (
    AssignmentAnswer,
    AssignmentModel,
    CloseAnswer,
    CloseRequest,
    ConfigsAnswer,
    ConfigsRequest,
    DrainReport,
    GroupMarks,
    HandoverAnswer,
    HandoverRequest,
    MarksRequest,
    MemberStatus,
    RemovalAnswer,
    RemovalRequest,
    SiteLook,
    SiteRequest,
    SiteStatus,
    TakeAnswer,
    TakeRequest,
)
from gantry_broker.contracts.token_file import TokenFile
from gantry_broker.exposition import Family, Remembered
from gantry_broker.http.guard import Guard
from gantry_broker.http.hosts import AllowedHosts
from gantry_broker.http.limits import IDLE_S, MAX_HEAD, Connections, handshakes
from gantry_broker.http.openmetrics import content_type, metric, pieces
from gantry_broker.http.otlp import OtlpPush
from gantry_broker.http.query import WholeNumber
from gantry_broker.http.server import Server, accept
from gantry_broker.protocol import plausible
from gantry_broker.protocol.limits import MAX_ACCESS
from gantry_broker.tasks import set_within

if TYPE_CHECKING:
    from gantry_broker.broker.events import Event
    from gantry_broker.broker.ports import Ports
    from gantry_broker.timeslice import TimeSlices

log = logging.getLogger(__name__)

T = TypeVar("T")
STATUS_S = 1.0
"""Seconds between two lines of the status stream, at most."""
HEALTH: Final = frozenset({"/livez", "/health/live", "/readyz", "/health/ready"})
METRICS: Final = "/metrics"
METRICS_SHARE: Final = 0.1
"""The share of the event loop's time for pages of metrics, at most; more frequent requests get the last page."""
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


class Parts(StatusParts, MetricParts, TableParts, DrainParts, UndeliveredParts, ConfigParts, LogParts, Protocol):
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


async def _of_archive(call: Awaitable[T]) -> T:
    """Return the answer of the archive. Raises HTTPException with what it refuses."""
    try:
        return await call
    except (Fenced, NotStandby) as error:
        raise HTTPException(409, str(error)) from None
    except ArchiveError as error:
        raise HTTPException(502, str(error)) from None


class StatusStreams:
    """Wake every open status stream after a change."""

    def __init__(self, status: Callable[[], MemberStatus], status_changed: Event[[]]) -> None:
        self.status = status
        self._events: set[asyncio.Event] = set()
        self.closed = False
        status_changed.subscribe(self.changed)

    def changed(self) -> None:
        for event in self._events:
            event.set()

    def close(self) -> None:
        self.closed = True
        self.changed()

    async def lines(self) -> AsyncIterator[bytes]:
        event = asyncio.Event()
        self._events.add(event)
        try:
            while not self.closed:
                event.clear()
                yield self.status().model_dump_json().encode() + b"\n"
                await set_within(event, STATUS_S)
        finally:
            self._events.discard(event)


class MetricsPage:
    """Makes the page of metrics, or returns the last one where a new one would exceed its share of the time."""

    def __init__(self, make: Callable[[], Awaitable[list[Family]]], slices: TimeSlices, share: float) -> None:
        """`share`: of one CPU, 0 to 1."""
        self._make = make
        self._slices = slices
        self._share = share
        self._pages: dict[bool, tuple[bytes, str]] = {}
        self._next_at = 0.0
        self._lock = asyncio.Lock()

    async def __call__(self, accept: str) -> tuple[bytes, str]:
        """Return the page and its content type. `accept`: the request's header."""
        openmetrics = "application/openmetrics-text" in accept
        async with self._lock:
            last = self._pages.get(openmetrics)
            if last is not None and time.monotonic() < self._next_at:
                return last
            used = time.process_time()
            families = await self._make()
            # No thread: a thread that works for long delays each step of the loop by the interpreter's switch interval.
            format_ = accept if openmetrics else ""
            parts = [part async for part in self._slices.sliced(pieces(families, format_))]
            page = b"".join(parts), content_type(format_)
            self._pages = {openmetrics: page}
            self._next_at = time.monotonic() + (time.process_time() - used) * (1 / self._share - 1)
            return page


def make_app(broker: Parts, streams: StatusStreams, families: Callable[[], Awaitable[list[Family]]]) -> FastAPI:
    """Return all routes of one broker. `families` makes its metrics."""
    # FastAPI ignores this warning where it makes a field. Models with `defer_build` are built later, at a request.
    warnings.filterwarnings("ignore", category=UnsupportedFieldAttributeWarning)
    app = FastAPI(title="Gantry broker", docs_url=None, redoc_url=None, openapi_url="/openapi.json")
    page = MetricsPage(families, broker.slices, METRICS_SHARE)
    table_times = StoreTimes()
    drain_reports = DrainReports(broker)
    undelivered_messages = UndeliveredMessages(broker)

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

    @app.get("/livez")
    @app.get("/health/live", include_in_schema=False)
    async def live() -> dict[str, str]:
        """Answer: the event loop runs, so a restart would not help. Load alone never makes it fail."""
        return {"status": "live"}

    @app.get("/readyz")
    @app.get("/health/ready", include_in_schema=False)
    async def ready(response: Response) -> dict[str, str]:
        """Whether it serves its role: a leader that takes writes, or a follower that follows one."""
        status = streams.status()
        good = (
            status.site.follows
            or status.role == "Master"
            or (status.role == "Slave" and status.leader_link.state == "connected")
        )
        if not good:
            response.status_code = 503
        return {"status": "ready" if good else "not ready", "role": status.role, "reason": status.reason}

    @app.get(METRICS)
    async def metrics(request: Request) -> Response:
        body, content_type = await page(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    @app.get("/v1/status")
    async def status() -> MemberStatus:
        return streams.status()

    @app.get("/v1/status/stream")
    async def status_stream() -> StreamingResponse:
        return StreamingResponse(streams.lines(), media_type="application/x-ndjson")

    @app.put("/v1/assignment")
    async def assignment(assignment: AssignmentModel) -> AssignmentAnswer:
        try:
            return await broker.replication.assign(assignment.value())
        except OSError as error:
            raise HTTPException(500, f"the assignment cannot be written: {error}") from None

    @app.post("/v1/handover")
    async def handover(order: HandoverRequest) -> HandoverAnswer:
        broker.changes.flush_offsets()  # The new leader continues at the consumers' offsets.
        return await broker.replication.handover(order.target.value(), order.epoch, order.version, order.timeout_ms)

    @app.put("/v1/site")
    async def site(order: SiteRequest) -> SiteStatus:
        try:
            return broker.sites.put(order)
        except OSError as error:
            raise HTTPException(500, f"it cannot be written: {error}") from None

    @app.get("/v1/site/archive")
    async def site_archive() -> SiteLook:
        return await _of_archive(broker.sites.look())

    @app.post("/v1/site/close")
    async def close_archive(order: CloseRequest) -> CloseAnswer:
        return broker.sites.close_archive(order.token)

    @app.post("/v1/site/take")
    async def take_archive(order: TakeRequest) -> TakeAnswer:
        return await _of_archive(broker.sites.take(order))

    @app.post("/v1/members/remove")
    async def remove_member(order: RemovalRequest) -> RemovalAnswer:
        reason = await broker.replication.remove_member(order.member)
        return RemovalAnswer(removed=not reason, reason=reason)

    @app.put("/v1/access")
    async def access_table(request: Request) -> AccessAnswer:
        """Take the access table; a version that is not higher is ignored. A refusal names fields, never values."""
        try:
            return AccessAnswer(version=await broker.access.put(await request.body()))
        except ValidationError as error:
            raise HTTPException(422, faults(error)[: plausible.MAX_TEXT]) from None
        except ValueError as error:
            raise HTTPException(422, str(error)[: plausible.MAX_TEXT]) from None
        except OSError as error:
            raise HTTPException(500, f"the table is in force, but cannot be written: {error}") from None

    @app.get("/v1/access/changes")
    async def access_changes() -> Changes:
        """Return what mqadmin changed at this member, with secret keys, for the control plane; the oldest of much."""
        return broker.access.next_waiting()

    @app.get("/v1/audit")
    async def audit() -> Response:
        """Return the last lines of this member's audit log, oldest first. The whole of it is in the process's log."""
        lines = list(broker.access.gate.audit.recent)
        return Response(orjson.dumps({"lines": lines}), media_type="application/json")

    @app.get("/v1/tables")
    async def tables(ages: bool = True, undelivered: Annotated[list[str] | None, Query()] = None) -> Response:
        """Topics, groups, offsets and clients. Every member answers; only the master knows all clients and ages.

        `undelivered`: topics of which it also looks for messages that are not delivered yet.
        """
        waiting = await undelivered_messages.of(undelivered or ())  # Before the ends of the queues.
        tables = await broker_tables(broker, table_times, ages=ages) | {"undelivered": waiting}
        return Response(await asyncio.to_thread(orjson.dumps, tables), media_type="application/json")

    @app.get("/v1/drain")
    async def drain() -> DrainReport:
        """Return what the group still holds for its consumers. Only the master's report is a proof."""
        return await drain_reports.report()

    @app.get("/v1/configs")
    async def configs() -> Response:
        """Return the configurations of all topics and consumer groups, without the broker's own."""
        return Response(await all_configs(broker), media_type="application/json")

    @app.post("/v1/configs")
    async def new_configs(order: ConfigsRequest) -> ConfigsAnswer:
        return await add_configs(broker, order)

    @app.put("/v1/marks")
    async def marks(order: MarksRequest) -> GroupMarks:
        return await mark(broker, order)

    @app.get("/v1/log")
    async def log_segments() -> Response:
        return Response(log_info(broker).model_dump_json(), media_type="application/json")

    @app.get("/v1/log/bytes")
    async def log_part(
        start: Annotated[
            WholeNumber, Query(alias="from", ge=0, le=plausible.MAX_OFFSET, description="Offset of the first byte.")
        ],
        to: Annotated[WholeNumber, Query(ge=0, le=plausible.MAX_OFFSET, description="Offset after the last byte.")],
        rate: Annotated[WholeNumber, Query(ge=0, description="Bytes per second at most; 0: no limit.")] = 0,
    ) -> StreamingResponse:
        return log_bytes(broker, start, to, rate)

    return app
