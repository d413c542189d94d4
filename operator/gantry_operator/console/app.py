"""The pages of the console. Each shows the snapshot of a cluster, or does one thing that a person asks for."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, MutableMapping
from typing import Annotated, Any, Final, Protocol
from urllib.parse import parse_qs, quote, urlencode

from fastapi import Depends, FastAPI, HTTPException, Query, Request
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from fastapi.staticfiles import StaticFiles
from gantry_broker.client.deadletters import origin_topic
from gantry_broker.http.query import WholeNumber
from gantry_broker.protocol.codes import DLQ_PREFIX
from gantry_broker.theme import THEME
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware.base import RequestResponseEndpoint

from gantry_operator.cluster.message_walk import time_of
from gantry_operator.cluster.reach import no_master
from gantry_operator.console import operations as do
from gantry_operator.console.access import Done, Session, Sessions, may_change
from gantry_operator.console.bodies import preview
from gantry_operator.console.changes import add_pages as add_changes
from gantry_operator.console.changes import number as _number
from gantry_operator.console.changes import one as _one
from gantry_operator.console.collector import Collector
from gantry_operator.console.health import health_of, members_of, seconds_since
from gantry_operator.console.messages import add_pages as add_message_pages
from gantry_operator.console.messages import message_values
from gantry_operator.console.render import STATIC, environment, line
from gantry_operator.console.rows import (
    GROUP_ORDERS,
    TOPIC_ORDERS,
    choose_clients,
    choose_groups,
    choose_topics,
    page_of,
    queues_of,
)
from gantry_operator.console.snapshot import OLD_S, WINDOW_S, ClusterKey, Point, Snapshot, runs_of

MAX_FORM: Final = 65_536
"""Bytes of a form."""
MAX_FIELDS: Final = 1_000
MAX_QUERY: Final = 512
"""Characters of one value in an address."""
LIVE_S: Final = 15.0
"""Seconds after which a silent stream of a page says that it lives."""
ASKED_CLIENTS: Final = 20
"""Clients of a group with inconsistent subscriptions that are asked for theirs."""
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    # With no-referrer a browser sends "Origin: null" with forms.
    "Referrer-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
}
REPORT_POLICY: Final = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; font-src data:; sandbox "
    "allow-scripts; frame-ancestors 'none'"
)
"""The report brings its own scripts. It gets no origin, so it cannot reach the console."""


class Access(Protocol):
    """Who a request is from, and what they may do."""

    cookie: str
    """The name of the session's cookie."""

    async def session(self, request: Request) -> Session | None: ...

    async def login(self, request: Request, form: Mapping[str, str]) -> Session | None:
        """A session for what a person gave: a link, or the form of the login page."""
        ...

    async def may_read(self, session: Session, key: ClusterKey) -> bool: ...

    async def may_write(self, session: Session, key: ClusterKey) -> bool: ...

    def allows_host(self, header: str) -> bool: ...

    login_page: str
    """The template for a person without a session."""
    secure: bool
    """Browsers reach the console over HTTPS."""


class ClusterRequest:
    """One cluster in one request: what all pages of a cluster need."""

    def __init__(self, collector: Collector, session: Session, writes: bool, now: float) -> None:
        self.collector = collector
        self.source = collector.source
        self.session = session
        self.writes = writes
        self.now = now
        self.snapshot: Snapshot = collector.reader()


def make_app(
    clusters: Callable[[], Mapping[ClusterKey, Collector]],
    access: Access,
    sessions: Sessions,
    now: Callable[[], float] = time.time,
) -> FastAPI:
    """All routes. `clusters` returns the present ones."""
    app = FastAPI(title="Gantry console", docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/static/theme.css")
    async def theme() -> Response:
        return Response(THEME, media_type="text/css")

    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    env = environment()
    version = _version()

    def show(request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
        known: dict[str, Any] = {
            "request_path": _path_of(request),
            "static": f"/static/{{}}?v={version}",
            "place": None,
            "health": None,
            "section": "",
            "session": None,
            "clusters": {},
            "old_s": OLD_S,
            "live": False,
            "error": "",
        }
        return HTMLResponse(env.get_template(template).render(**(known | values)), status)

    def page(request: Request, place: ClusterRequest, template: str, section: str, **values: Any) -> HTMLResponse:
        return show(
            request, template, values.pop("code", 200), place=place, section=section, session=place.session,
            key=place.snapshot.key, snapshot=place.snapshot, health=health_of(place.snapshot, place.now),
            clusters=clusters(), now=place.now, **values,
        )  # fmt: skip

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

    async def person(request: Request) -> Session:
        session = await access.session(request)
        if session is None:
            raise HTTPException(401, "a session is needed")
        return session

    async def reading(request: Request, space: str, name: str) -> ClusterRequest:
        session = await person(request)
        key = ClusterKey(space, name)
        collector = clusters().get(key)
        if collector is None or not await access.may_read(session, key):
            raise HTTPException(404, f"there is no cluster {name} here, or you may not read it")
        return ClusterRequest(collector, session, await access.may_write(session, key), now())

    async def writing(
        request: Request, place: Annotated[ClusterRequest, Depends(reading)]
    ) -> tuple[ClusterRequest, dict[str, list[str]]]:
        if not place.writes:
            raise HTTPException(403, f"you may read {place.snapshot.key.name}, but not change it")
        form = await _form(request)
        refused = may_change(place.session, _one(form, "csrf"), request.headers)
        if refused:
            raise HTTPException(403, refused)
        return place, form

    Here = Annotated[ClusterRequest, Depends(reading)]
    Change = Annotated[tuple[ClusterRequest, dict[str, list[str]]], Depends(writing)]

    def opened(session: Session) -> Response:
        answer = RedirectResponse("/", 303)
        answer.set_cookie(access.cookie, session.id, httponly=True, samesite="strict", secure=access.secure, path="/")
        return answer

    @app.get("/livez")
    async def alive() -> PlainTextResponse:
        """For probes."""
        return PlainTextResponse("live")

    @app.get("/")
    async def home(request: Request) -> Response:
        if "token" in request.query_params:
            made = await access.login(request, {"token": request.query_params["token"]})
            if made is not None:
                return opened(made)
        session = await person(request)
        known = clusters()
        mine = [key for key in known if await access.may_read(session, key)]
        if len(mine) == 1:
            return RedirectResponse(mine[0].path, 303)
        at = now()
        rows = [(key, health_of(known[key].reader(), at), known[key].snapshot) for key in mine]
        return show(request, "clusters.html", session=session, rows=rows, clusters=known, live=True, now=at)

    @app.post("/login")
    async def login(request: Request) -> Response:
        form = await _form(request)
        origin = request.headers.get("origin")
        if origin is not None and not origin.endswith(f"//{request.headers.get('host', '')}"):
            raise HTTPException(403, "the request comes from another site")
        made = await access.login(request, {name: _one(form, name) for name in form})
        if made is None:
            raise HTTPException(401, "this is not accepted")
        return opened(made)

    @app.post("/logout")
    async def logout(request: Request, session: Annotated[Session, Depends(person)]) -> Response:
        refused = may_change(session, _one(await _form(request), "csrf"), request.headers)
        if refused:
            raise HTTPException(403, refused)
        sessions.close(session)
        answer = RedirectResponse("/", 303)
        answer.delete_cookie(access.cookie, path="/", secure=access.secure, httponly=True, samesite="strict")
        return answer

    @app.get("/live")
    async def live_all(request: Request, session: Annotated[Session, Depends(person)]) -> StreamingResponse:
        readable = [c for key, c in clusters().items() if await access.may_read(session, key)]
        return _stream(request, readable[0] if readable else None)

    @app.get("/c/{space}/{name}/live")
    async def live(request: Request, place: Here) -> StreamingResponse:
        return _stream(request, place.collector)

    @app.get("/c/{space}/{name}")
    async def overview(request: Request, place: Here) -> Response:
        tables = place.snapshot.tables
        runs = runs_of(place.snapshot.points, place.now)
        top = max([1.0, *(max(p.received, p.sent) for run in runs for p in run)])

        def lines(value: Callable[[Point], float]) -> list[str]:
            return [line([(1 - (place.now - p.at) / WINDOW_S, value(p)) for p in run], top, 600, 120) for run in runs]

        rates = place.snapshot.rates(place.now)
        groups = choose_groups((g for g in tables.groups.values() if g.lag or g.online), "", "lag", False)
        return page(
            request, place, "overview.html", "overview", live=True, members=members_of(place.snapshot, place.now),
            top=top, received=lines(lambda p: p.received), sent=lines(lambda p: p.sent), rates=rates,
            groups=groups[:6],
            busy=[t for t in choose_topics(tables.topics.values(), "", "rate", False) if t.rate][:6],
            inconsistent=[g.name for g in tables.groups.values() if g.inconsistent],
            dead=sum(d.waiting for d in tables.dead.values()), since=seconds_since,
            events=list(reversed(place.snapshot.status.get("events") or []))[:6],
            lag=sum(g.lag for g in tables.groups.values() if not g.system),
        )  # fmt: skip

    @app.get("/c/{space}/{name}/members")
    async def members(request: Request, place: Here) -> Response:
        return page(
            request, place, "members.html", "members", live=True, members=members_of(place.snapshot, place.now),
            servers=place.snapshot.status.get("nameServerMembers") or [],
            archives=[g for g in place.snapshot.status.get("groups") or [] if g.get("archive")],
        )  # fmt: skip

    @app.get("/c/{space}/{name}/topics")
    async def topics(
        request: Request,
        place: Here,
        q: str = "",
        sort: str = "name",
        system: bool = False,
        page_number: Annotated[WholeNumber, Query(alias="page", ge=1, le=1_000_000)] = 1,
    ) -> Response:
        found = choose_topics(place.snapshot.tables.topics.values(), q, sort, system)
        return page(
            request, place, "topics.html", "topics", live=True, rows=page_of(found, page_number), q=q,
            sort=sort if sort.removeprefix("-") in TOPIC_ORDERS else "name", system=system, link=_links(request),
        )  # fmt: skip

    @app.get("/c/{space}/{name}/topics/{topic}")
    async def topic(request: Request, place: Here, topic: str) -> Response:
        row = place.snapshot.tables.topics.get(topic)
        if row is None:
            raise _absent(place, f"no broker has a topic {topic}")
        queues = queues_of(place.snapshot.tables, topic)
        return page(
            request, place, "topic.html", "topics", live=True, topic=row, queues=queues[:512], all_queues=len(queues),
            groups=[place.snapshot.tables.groups[g] for g in row.consumers if g in place.snapshot.tables.groups],
        )  # fmt: skip

    @app.get("/c/{space}/{name}/groups")
    async def groups(
        request: Request,
        place: Here,
        q: str = "",
        sort: str = "lag",
        system: bool = False,
        page_number: Annotated[WholeNumber, Query(alias="page", ge=1, le=1_000_000)] = 1,
    ) -> Response:
        found = choose_groups(place.snapshot.tables.groups.values(), q, sort, system)
        return page(
            request, place, "groups.html", "groups", live=True, rows=page_of(found, page_number), q=q,
            sort=sort if sort.removeprefix("-") in GROUP_ORDERS else "lag", system=system, link=_links(request),
        )  # fmt: skip

    @app.get("/c/{space}/{name}/groups/{group}")
    async def group(request: Request, place: Here, group: str) -> Response:
        row = place.snapshot.tables.groups.get(group)
        if row is None:
            raise _absent(place, f"no broker knows a consumer group {group}")
        queues = sorted(row.queues, key=lambda x: (x.topic, x.broker, x.queue))
        return page(
            request, place, "group.html", "groups", live=True, group=row, queues=queues[:1024], all_queues=len(queues),
        )  # fmt: skip

    @app.get("/c/{space}/{name}/groups/{group}/subscriptions")
    async def subscriptions(request: Request, place: Here, group: str) -> Response:
        row = place.snapshot.tables.groups.get(group)
        if row is None:
            raise _absent(place, f"no broker knows a consumer group {group}")
        asked = sorted(row.clients)[:ASKED_CLIENTS]
        said = await do.subscriptions_of(place.source, group, asked) if asked else []
        return page(request, place, "subscriptions.html", "groups", group=row, said=said, asked=len(asked))

    @app.get("/c/{space}/{name}/groups/{group}/reset")
    async def reset_preview(
        request: Request, place: Here, group: str, topic: str = "", to: str = "", end: bool = False
    ) -> Response:
        return await reset_page(request, place, group, topic, to, end)

    async def reset_page(
        request: Request, place: ClusterRequest, group: str, topic: str, to: str = "", end: bool = False, said: str = ""
    ) -> Response:
        row = place.snapshot.tables.groups.get(group)
        if row is None:
            raise _absent(place, f"no broker knows a consumer group {group}")
        found, to_ms, code = None, -1, 502 if said else 200
        if topic and (to or end):
            try:
                to_ms = -1 if end else time_of(to)
                found = await do.preview_reset(place.source, group, topic, to_ms)
            except (ValueError, do.OperationError) as error:
                said = str(error)
        return page(
            request, place, "reset.html", "groups", group=row, topic=topic, to=to, end=end, preview=found, said=said,
            to_ms=to_ms, command=do.reset_command(place.source, group, topic, to_ms), code=code,
        )  # fmt: skip

    @app.post("/c/{space}/{name}/groups/{group}/reset")
    async def reset(request: Request, change: Change, group: str) -> Response:
        place, form = change
        topic = _one(form, "topic")
        try:
            to_ms = _number(form, "to_ms", -1, 253_402_300_799_999)
            said = await do.reset(place.source, group, topic, to_ms)
        except (ValueError, do.OperationError) as error:
            return await reset_page(request, place, group, topic, said=str(error))
        command = do.reset_command(place.source, group, topic, to_ms)
        return _done(place, "groups", said, command, f"{place.snapshot.key.path}/groups/{quote(group)}")

    @app.get("/c/{space}/{name}/dead")
    async def dead(request: Request, place: Here) -> Response:
        rows = sorted(place.snapshot.tables.dead.values(), key=lambda d: (-d.waiting, d.group))
        return page(request, place, "dead.html", "dead", live=True, rows=rows[:1000])

    @app.get("/c/{space}/{name}/dead/{group}")
    async def dead_group(request: Request, place: Here, group: str) -> Response:
        row = place.snapshot.tables.dead.get(group)
        if row is None:
            raise _absent(place, f"the consumer group {group} has no dead letters")
        letters = await do.letters_of(place.source, group)
        return page(
            request, place, "dead_group.html", "dead", group=row, letters=letters, preview=preview, limit=do.LETTERS,
            origin=origin_topic, command=do.gantry(place.source, "dlq", "resend", group), topic=DLQ_PREFIX + group,
        )  # fmt: skip

    @app.post("/c/{space}/{name}/dead/{group}/resend")
    async def dead_resend(request: Request, change: Change, group: str) -> Response:
        place, form = change
        ids = form.get("id", []) if _one(form, "which") == "chosen" else []
        if _one(form, "which") == "chosen" and not ids:
            raise HTTPException(400, "no letter was chosen")
        said = await do.resend(place.source, group, ids)
        words = [word for message_id in ids for word in ("--id", message_id)]
        command = do.gantry(place.source, "dlq", "resend", group, *words)
        return _done(place, "dead", said, command, f"{place.snapshot.key.path}/dead/{quote(group)}")

    @app.get("/c/{space}/{name}/dead/{group}/export")
    async def dead_export(place: Here, group: str) -> Response:
        lines = await do.export(place.source, group)
        named = f"attachment; filename*=UTF-8''{quote(group, safe='')}-dead-letters.jsonl"
        return Response(lines, media_type="application/x-ndjson", headers={"Content-Disposition": named})

    @app.get("/c/{space}/{name}/dead/{group}/letter")
    async def dead_letter(request: Request, place: Here, group: str, id: str, kind: str = "auto") -> Response:
        found = await do.letter(place.source, group, id)
        if found is None:
            raise HTTPException(404, f"{group} has no dead letter {id}")
        return page(request, place, "message.html", "dead", **message_values(request, place.source, found, kind, group))

    @app.get("/c/{space}/{name}/clients")
    async def clients(
        request: Request,
        place: Here,
        q: str = "",
        page_number: Annotated[WholeNumber, Query(alias="page", ge=1, le=1_000_000)] = 1,
    ) -> Response:
        tables = place.snapshot.tables
        return page(
            request, place, "clients.html", "clients", live=True, q=q, link=_links(request),
            rows=page_of(choose_clients(tables.clients.values(), q), page_number),
            inconsistent=sorted(g.name for g in tables.groups.values() if g.inconsistent),
        )  # fmt: skip

    @app.get("/c/{space}/{name}/activity")
    async def activity(request: Request, place: Here) -> Response:
        return page(
            request, place, "activity.html", "activity", live=True, audit=await place.source.audit(),
            events=list(reversed(place.snapshot.status.get("events") or [])),
            report=await place.source.has_report(), analytics=place.snapshot.status.get("analytics"),
            analyze=do.gantry(place.source, "analyze"), read_report=do.gantry(place.source, "report"),
            audited=_audited(place.snapshot),
        )  # fmt: skip

    @app.get("/c/{space}/{name}/report")
    async def report(place: Here) -> Response:
        found = await place.source.report()
        if found is None:
            raise HTTPException(404, "there is no compaction report yet")
        return HTMLResponse(found, headers={"Content-Security-Policy": REPORT_POLICY})

    @app.get("/c/{space}/{name}/done/{change}")
    async def done(request: Request, place: Here, change: str) -> Response:
        found = place.session.done.get(change)
        if found is None or found.cluster != place.snapshot.key.path:
            return RedirectResponse(place.snapshot.key.path, 303)
        return page(request, place, "done.html", found.section, said=found.said, command=found.command, back=found.back)

    add_message_pages(app, reading, writing, page, _one)
    add_changes(app, reading, writing, page, _done)
    return app


def _absent(place: ClusterRequest, said: str) -> HTTPException:
    """404 with `said`, unless a broker group does not answer, which may hold it."""
    silent = place.snapshot.silent(place.now)
    return HTTPException(503, "; ".join(map(no_master, silent))) if silent else HTTPException(404, said)


def _done(place: ClusterRequest, section: str, said: str, command: str, back: str) -> Response:
    """Send the browser to a page that shows what was done: a reload of it changes nothing."""
    path = place.snapshot.key.path
    return RedirectResponse(f"{path}/done/{place.session.keep(Done(path, section, said, command, back))}", 303)


def _stream(request: Request, collector: Collector | None) -> StreamingResponse:
    async def events() -> AsyncIterator[bytes]:
        number = -1
        while collector is not None and not collector.ended and not await request.is_disconnected():
            newest = await collector.wait(number, LIVE_S)
            yield b": alive\n\n" if newest == number else f"event: tick\ndata: {newest}\n\n".encode()
            number = newest
            # A page moves at most once a second, however often members answer.
            await asyncio.sleep(0.0 if collector.ended else 1.0)

    return StreamingResponse(events(), media_type="text/event-stream")


async def _form(request: Request) -> dict[str, list[str]]:
    """The fields of a form. Raises HTTPException for a large one."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_FORM:
            raise HTTPException(413, f"the form is larger than {MAX_FORM} bytes")
    try:
        return parse_qs(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError:
        raise HTTPException(400, "this is no form") from None


def _audited(snapshot: Snapshot) -> bool:
    """Without authentication members write no audit."""
    conditions = snapshot.status.get("conditions") or []
    return all(c.get("reason") != "AuthenticationDisabled" for c in conditions)


def _path_of(request: Request) -> str:
    query = f"?{request.url.query}" if request.url.query else ""
    return f"{request.url.path}{query}"


def _links(request: Request) -> Callable[..., str]:
    """Links to the same page with other values."""

    def link(**changes: Any) -> str:
        values: MutableMapping[str, Any] = dict(request.query_params)
        values.update({k: str(v) for k, v in changes.items() if v is not None})
        for name in [k for k, v in changes.items() if v is None]:
            values.pop(name, None)
        return f"{request.url.path}?{urlencode(values)}"

    return link


def _version() -> str:
    """A digest of the static files, so that browsers load changed ones again."""
    found = hashlib.sha256(THEME.encode())
    for path in sorted(STATIC.rglob("*")):
        if path.is_file():
            found.update(path.read_bytes())
    return found.hexdigest()[:12]
