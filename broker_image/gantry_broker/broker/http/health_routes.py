"""Routes that probes and scrapers ask: health, metrics, and the status with its stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from gantry_broker.contracts.models import MemberStatus

if TYPE_CHECKING:
    from gantry_broker.broker.http.metrics_page import MetricsPage
    from gantry_broker.broker.http.status_streams import StatusStreams

HEALTH: Final = frozenset({"/livez", "/health/live", "/readyz", "/health/ready"})
METRICS: Final = "/metrics"


def add_health_routes(app: FastAPI, streams: StatusStreams, page: MetricsPage) -> None:
    """Add what needs no right to change anything. The guard lets all but the status pass without a token."""

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
