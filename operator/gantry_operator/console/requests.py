"""What every page shares: who asks, for which cluster, the template, the form, the page after a change.

A route names `Here` or `Change` as a parameter: FastAPI then checks the session and the rights before it runs.
"""

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Protocol
from urllib.parse import parse_qs, urlencode

from fastapi import Depends, HTTPException, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from gantry_broker.protocol.digits import whole_number
from jinja2 import Environment

from gantry_operator.cluster.reach import no_master
from gantry_operator.console.access import Done, Session, Sessions, may_change
from gantry_operator.console.collector import Collector
from gantry_operator.console.health import health_of
from gantry_operator.console.render import environment, static_version
from gantry_operator.console.snapshot import OLD_S, ClusterKey, Snapshot

MAX_FORM: Final = 65_536
"""Bytes of a form."""
MAX_FIELDS: Final = 1_000

Form = Mapping[str, list[str]]


class Access(Protocol):
    """Who a request is from, and what they may do."""

    cookie: str
    """The name of the session's cookie."""

    async def session(self, request: Request) -> Session | None: ...

    async def login(self, request: Request, form: Mapping[str, str]) -> Session | None:
        """Return a session for what a person gave: a link, or the form of the login page."""
        ...

    async def may_read(self, session: Session, key: ClusterKey) -> bool: ...

    async def may_write(self, session: Session, key: ClusterKey) -> bool: ...

    def allows_host(self, header: str) -> bool: ...

    login_page: str
    """The template for a person without a session."""
    secure: bool
    """Browsers reach the console over HTTPS."""


@dataclass(frozen=True, slots=True)
class Console:
    """What pages have of the process: it is `app.state.console`."""

    clusters: Callable[[], Mapping[ClusterKey, Collector]]
    """The present ones."""
    access: Access
    sessions: Sessions
    now: Callable[[], float]
    templates: Environment = field(default_factory=environment)
    version: str = field(default_factory=static_version)


def console_of(request: Request) -> Console:
    console: Console = request.app.state.console
    return console


class ClusterRequest:
    """One cluster in one request: what all pages of a cluster need."""

    def __init__(self, collector: Collector, session: Session, writes: bool, now: float) -> None:
        self.collector = collector
        self.source = collector.source
        self.session = session
        self.writes = writes
        self.now = now
        self.snapshot: Snapshot = collector.reader()


def show(request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """Draw a template."""
    console = console_of(request)
    for_all: dict[str, Any] = {
        "request_path": _path_of(request),
        "static": f"/static/{{}}?v={console.version}",
        "place": None,
        "health": None,
        "section": "",
        "session": None,
        "clusters": {},
        "old_s": OLD_S,
        "live": False,
        "error": "",
    }
    return HTMLResponse(console.templates.get_template(template).render(**(for_all | values)), status)


def page(request: Request, place: ClusterRequest, template: str, section: str, **values: Any) -> HTMLResponse:
    """Draw a template of a cluster's page. `section`: the part of the menu that it belongs to."""
    return show(
        request, template, values.pop("code", 200), place=place, section=section, session=place.session,
        key=place.snapshot.key, snapshot=place.snapshot, health=health_of(place.snapshot, place.now),
        clusters=console_of(request).clusters(), now=place.now, **values,
    )  # fmt: skip


async def person(request: Request) -> Session:
    """Find the session of a request. Raises HTTPException for a request without a session."""
    session = await console_of(request).access.session(request)
    if session is None:
        raise HTTPException(401, "a session is needed")
    return session


async def reading(request: Request, space: str, name: str) -> ClusterRequest:
    """Find the cluster of a request. Raises HTTPException if there is none, or the person may not read it."""
    console = console_of(request)
    session = await person(request)
    key = ClusterKey(space, name)
    collector = console.clusters().get(key)
    if collector is None or not await console.access.may_read(session, key):
        raise HTTPException(404, f"there is no cluster {name} here, or you may not read it")
    return ClusterRequest(collector, session, await console.access.may_write(session, key), console.now())


async def writing(
    request: Request, place: Annotated[ClusterRequest, Depends(reading)]
) -> tuple[ClusterRequest, dict[str, list[str]]]:
    """Find the cluster and the form of a change. Raises HTTPException if the person may not change it."""
    if not place.writes:
        raise HTTPException(403, f"you may read {place.snapshot.key.name}, but not change it")
    form = await read_form(request)
    refused = may_change(place.session, one(form, "csrf"), request.headers)
    if refused:
        raise HTTPException(403, refused)
    return place, form


Here = Annotated[ClusterRequest, Depends(reading)]
"""A cluster that the person may read."""
Change = Annotated[tuple[ClusterRequest, dict[str, list[str]]], Depends(writing)]
"""A cluster that the person may change, and the form."""


async def read_form(request: Request) -> dict[str, list[str]]:
    """Return the fields of a form. Raises HTTPException for a large one."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_FORM:
            raise HTTPException(413, f"the form is larger than {MAX_FORM} bytes")
    try:
        return parse_qs(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError:
        raise HTTPException(400, "this is no form") from None


def one(form: Form, name: str) -> str:
    """Return the first value of a field, without the spaces around it."""
    return (form.get(name) or [""])[0].strip()


def number(form: Form, name: str, least: int, most: int) -> int:
    """Read a number of a form. Raises ValueError that names the field and its range."""
    text = one(form, name)
    value = whole_number(text, least, most)
    if value is None:
        raise ValueError(f"{name} is {text[:40]!r}: write a number from {least} to {most}")
    return value


def absent(place: ClusterRequest, text: str) -> HTTPException:
    """404 with `text`, unless a broker group does not answer, which may hold it."""
    silent = place.snapshot.silent(place.now)
    return HTTPException(503, "; ".join(map(no_master, silent))) if silent else HTTPException(404, text)


def after_change(place: ClusterRequest, section: str, outcome: str, command: str, back: str) -> Response:
    """Send the browser to a page that shows what was done: a reload of it changes nothing."""
    path = place.snapshot.key.path
    return RedirectResponse(f"{path}/done/{place.session.keep(Done(path, section, outcome, command, back))}", 303)


def _path_of(request: Request) -> str:
    query = f"?{request.url.query}" if request.url.query else ""
    return f"{request.url.path}{query}"


def links(request: Request) -> Callable[..., str]:
    """Links to the same page with other values."""

    def link(**changes: Any) -> str:
        values: MutableMapping[str, Any] = dict(request.query_params)
        values.update({k: str(v) for k, v in changes.items() if v is not None})
        for name in [k for k, v in changes.items() if v is None]:
            values.pop(name, None)
        return f"{request.url.path}?{urlencode(values)}"

    return link
