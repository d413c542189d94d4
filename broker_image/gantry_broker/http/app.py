"""The HTTP interface of one broker: health, status, assignment, hand-over, log bytes, metrics.

It runs in the broker's own event loop. Everything but health and metrics wants `Authorization: Bearer TOKEN` when the
configuration names a token file.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated

import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse

from gantry_broker.http.logbytes import log_bytes, log_info
from gantry_broker.http.metrics import render_metrics
from gantry_broker.http.models import (
    AssignmentAnswer,
    AssignmentModel,
    HandoverAnswer,
    HandoverRequest,
    MemberStatus,
    RemovalAnswer,
    RemovalRequest,
)
from gantry_broker.protocol import limits

if TYPE_CHECKING:
    from gantry_broker.broker.core import Broker

log = logging.getLogger(__name__)

STATUS_S = 1.0
"""A line of the status stream comes at least so often."""


class HttpServer:
    """uvicorn without its own signals and logs, on a port that may be 0."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._streams = StatusStreams(broker)
        config = uvicorn.Config(
            make_app(broker, self._streams),
            host=broker.config.listen_host,
            port=broker.config.http_port,
            lifespan="off",
            access_log=False,
            log_config=None,
            ws="none",
            http="h11",
            timeout_keep_alive=60,
            timeout_graceful_shutdown=1,
            server_header=False,
        )
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        for server in getattr(self._server, "servers", []):
            for sock in server.sockets:
                return int(sock.getsockname()[1])
        return self._broker.config.http_port

    async def start(self) -> None:
        """Raises OSError when the port is taken."""
        self._task = asyncio.get_running_loop().create_task(self._serve())
        while not self._server.started:
            if self._task.done():
                self._task.result()
                raise OSError(f"HTTP port {self._broker.config.http_port} cannot be served")
            await asyncio.sleep(0.005)

    async def _serve(self) -> None:
        try:
            await self._server.serve()
        except SystemExit:
            raise OSError(f"HTTP port {self._broker.config.http_port} cannot be bound") from None

    async def close(self) -> None:
        self._streams.close()
        self._server.should_exit = True
        if self._task is not None:
            with contextlib.suppress(OSError):
                await self._task


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        """The process handles its signals itself."""
        yield


class StatusStreams:
    """Wakes every open status stream when something changed."""

    def __init__(self, broker: Broker) -> None:
        self._events: set[asyncio.Event] = set()
        self.closed = False
        broker.on_status.append(self.changed)

    def changed(self) -> None:
        for event in self._events:
            event.set()

    def close(self) -> None:
        self.closed = True
        self.changed()

    async def lines(self, broker: Broker) -> AsyncIterator[bytes]:
        event = asyncio.Event()
        self._events.add(event)
        try:
            while not self.closed:
                event.clear()
                yield status_of(broker).model_dump_json().encode() + b"\n"
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(STATUS_S):
                        await event.wait()
        finally:
            self._events.discard(event)


def status_of(broker: Broker) -> MemberStatus:
    from gantry_broker.broker.status import member_status

    return member_status(broker)


def make_app(broker: Broker, streams: StatusStreams) -> FastAPI:
    """All routes of one broker."""
    app = FastAPI(title="Gantry broker", docs_url=None, redoc_url=None, openapi_url="/openapi.json")
    token_file = broker.config.token_file

    async def authorized(request: Request) -> None:
        if token_file is None:
            return
        try:
            wanted = token_file.read_text().strip()
        except OSError as error:
            raise HTTPException(503, f"the token file cannot be read: {error}") from None
        given = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
        if not wanted or not hmac.compare_digest(given.encode(), wanted.encode()):
            raise HTTPException(401, "Authorization: Bearer TOKEN is expected", {"WWW-Authenticate": "Bearer"})

    guarded = [Depends(authorized)]

    @app.exception_handler(RequestValidationError)
    async def refused(request: Request, error: RequestValidationError) -> JSONResponse:
        """Names each field with its value; a number of any size must not fail the answer."""
        detail = "; ".join(
            f"{'.'.join(str(part) for part in e['loc'])} = {limits.shown(e.get('input'))}: {e['msg']}"
            for e in error.errors()[:5]
        )
        if request.method != "GET":
            broker.replication.refusals.add("assignment", "range", f"{request.url.path}: {detail}")
        return JSONResponse({"detail": detail[: limits.MAX_TEXT]}, 422)

    @app.get("/livez")
    @app.get("/health/live", include_in_schema=False)
    async def live() -> dict[str, str]:
        """The event loop answers: a restart would help nothing. Never fails from load."""
        return {"status": "live"}

    @app.get("/readyz")
    @app.get("/health/ready", include_in_schema=False)
    async def ready(response: Response) -> dict[str, str]:
        """Whether it serves its role: a master that takes writes, or a slave that follows one."""
        status = status_of(broker)
        good = status.role == "Master" or (status.role == "Slave" and status.master_link.state == "connected")
        if not good:
            response.status_code = 503
        return {"status": "ready" if good else "not ready", "role": status.role, "reason": status.reason}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(render_metrics(broker), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/v1/status", dependencies=guarded)
    async def status() -> MemberStatus:
        return status_of(broker)

    @app.get("/v1/status/stream", dependencies=guarded)
    async def status_stream() -> StreamingResponse:
        return StreamingResponse(streams.lines(broker), media_type="application/x-ndjson")

    @app.put("/v1/assignment", dependencies=guarded)
    async def assignment(told: AssignmentModel) -> AssignmentAnswer:
        try:
            return await broker.replication.assign(told.value())
        except OSError as error:
            raise HTTPException(500, f"it cannot be written down: {error}") from None

    @app.post("/v1/handover", dependencies=guarded)
    async def handover(asked: HandoverRequest) -> HandoverAnswer:
        broker.flush_offsets()  # The new master continues where consumers are.
        return await broker.replication.handover(asked.target.value(), asked.epoch, asked.version, asked.timeout_ms)

    @app.post("/v1/members/remove", dependencies=guarded)
    async def remove_member(asked: RemovalRequest) -> RemovalAnswer:
        reason = await broker.replication.remove_member(asked.member)
        return RemovalAnswer(removed=not reason, reason=reason)

    @app.get("/v1/log", dependencies=guarded)
    async def log_segments() -> Response:
        return Response(log_info(broker).model_dump_json(), media_type="application/json")

    @app.get("/v1/log/bytes", dependencies=guarded)
    async def log_part(
        start: Annotated[int, Query(alias="from", ge=0, le=limits.MAX_OFFSET, description="Offset of the first byte.")],
        to: Annotated[int, Query(ge=0, le=limits.MAX_OFFSET, description="Offset after the last byte.")],
        rate: Annotated[int, Query(ge=0, description="Bytes per second at most; 0: no limit.")] = 0,
    ) -> StreamingResponse:
        return log_bytes(broker, start, to, rate)

    return app
