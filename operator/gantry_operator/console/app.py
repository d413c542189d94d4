"""The console as a FastAPI application: its pages, and what holds for all of them. `pages/` has the routes."""

import time
from collections.abc import Callable, Mapping
from typing import Final

from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, Response
from fastapi.staticfiles import StaticFiles
from gantry_broker.theme import THEME
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware.base import RequestResponseEndpoint

from gantry_operator.console import operations as do
from gantry_operator.console.access import Sessions
from gantry_operator.console.collector import Collector
from gantry_operator.console.pages import (
    actions,
    activity,
    clients,
    dead_letters,
    deletion,
    done,
    groups,
    live,
    members,
    messages,
    overview,
    palette,
    sign_in,
    topics,
    users,
)
from gantry_operator.console.render import STATIC
from gantry_operator.console.requests import Access, Console, show
from gantry_operator.console.snapshot import ClusterKey

MAX_QUERY: Final = 512
"""Characters of one value in an address."""
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    # With no-referrer a browser sends "Origin: null" with forms.
    "Referrer-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
}
PAGES: Final = (
    sign_in,
    live,
    overview,
    members,
    topics,
    groups,
    dead_letters,
    clients,
    activity,
    messages,
    actions,
    users,
    deletion,
    palette,
    done,
)


def make_app(
    clusters: Callable[[], Mapping[ClusterKey, Collector]],
    access: Access,
    sessions: Sessions,
    now: Callable[[], float] = time.time,
) -> FastAPI:
    """All routes. `clusters` returns the present ones."""
    app = FastAPI(title="Gantry console", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.console = Console(clusters, access, sessions, now)

    @app.get("/static/theme.css")
    async def theme() -> Response:
        return Response(THEME, media_type="text/css")

    app.mount("/static", StaticFiles(directory=STATIC), name="static")

    @app.get("/livez")
    async def alive() -> PlainTextResponse:
        """For probes."""
        return PlainTextResponse("live")

    @app.middleware("http")
    async def guard(request: Request, call: RequestResponseEndpoint) -> Response:
        if not access.allows_host(request.headers.get("host", "")):
            return PlainTextResponse("this Host is none of the console", 421)
        too_long = any(len(v) > MAX_QUERY for v in request.query_params.values())
        response = PlainTextResponse("a value of the address is too long", 414) if too_long else await call(request)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        if not request.url.path.startswith("/static/"):
            response.headers.setdefault("Cache-Control", "no-store")
        return response

    @app.exception_handler(StarletteHTTPException)
    async def failed(request: Request, error: StarletteHTTPException) -> Response:
        if error.status_code == 401:
            return show(request, access.login_page, 401, error=error.detail if request.method == "POST" else "")
        page = show(request, "error.html", error.status_code, code=error.status_code, said=error.detail)
        page.headers.update(error.headers or {})
        return page

    @app.exception_handler(do.OperationError)
    async def not_done(request: Request, error: do.OperationError) -> Response:
        return show(request, "error.html", 502, code=502, said=str(error))

    for page in PAGES:
        app.include_router(page.router)
    return app
