"""Sign in and out, and the list of clusters that a person may read."""

from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Request
from fastapi.responses import RedirectResponse, Response

from gantry_operator.console.access import Session, may_change
from gantry_operator.console.health import health_of
from gantry_operator.console.requests import (
    console_of,
    one,
    person,
    read_form,
    show,
)

router = APIRouter()


def _with_session(request: Request, session: Session) -> Response:
    """Send the browser to its clusters, with the cookie of its session."""
    access = console_of(request).access
    answer = RedirectResponse("/", 303)
    answer.set_cookie(access.cookie, session.id, httponly=True, samesite="strict", secure=access.secure, path="/")
    return answer


@router.get("/")
async def home(request: Request) -> Response:
    """List the clusters; with a link's token, open a session first."""
    console = console_of(request)
    if "token" in request.query_params:
        opened = await console.access.login(request, {"token": request.query_params["token"]})
        if opened is not None:
            return _with_session(request, opened)
    session = await person(request)
    clusters = console.clusters()
    mine = [key for key in clusters if await console.access.may_read(session, key)]
    if len(mine) == 1:
        return RedirectResponse(mine[0].path, 303)
    at = console.now()
    rows = [(key, health_of(clusters[key].reader(), at), clusters[key].snapshot) for key in mine]
    return show(request, "clusters.html", session=session, rows=rows, clusters=clusters, live=True, now=at)


@router.post("/login")
async def login(request: Request) -> Response:
    form = await read_form(request)
    origin = request.headers.get("origin")
    if origin is not None and not origin.endswith(f"//{request.headers.get('host', '')}"):
        raise HTTPException(403, "the request comes from another site")
    opened = await console_of(request).access.login(request, {name: one(form, name) for name in form})
    if opened is None:
        raise HTTPException(401, "this is not accepted")
    return _with_session(request, opened)


@router.post("/logout")
async def logout(request: Request, session: Annotated[Session, Depends(person)]) -> Response:
    refused = may_change(session, one(await read_form(request), "csrf"), request.headers)
    if refused:
        raise HTTPException(403, refused)
    console = console_of(request)
    console.sessions.close(session)
    answer = RedirectResponse("/", 303)
    answer.delete_cookie(
        console.access.cookie, path="/", secure=console.access.secure, httponly=True, samesite="strict"
    )
    return answer
