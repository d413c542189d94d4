"""The clients that are connected."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from gantry_broker.http.query import WholeNumber

from gantry_operator.console.requests import (
    Here,
    links,
    page,
)
from gantry_operator.console.rows import choose_clients, page_of

router = APIRouter(prefix="/c/{space}/{name}")


@router.get("/clients")
async def clients(
    request: Request,
    place: Here,
    q: str = "",
    page_number: Annotated[WholeNumber, Query(alias="page", ge=1, le=1_000_000)] = 1,
) -> Response:
    tables = place.snapshot.tables
    return page(
        request, place, "clients.html", "clients", live=True, q=q, link=links(request),
        rows=page_of(choose_clients(tables.clients.values(), q), page_number),
        inconsistent=sorted(g.name for g in tables.groups.values() if g.inconsistent),
    )  # fmt: skip
