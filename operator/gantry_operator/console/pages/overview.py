"""The first page of a cluster: rates, lags, what is wrong."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from gantry_operator.console.health import members_of, seconds_since
from gantry_operator.console.requests import (
    Here,
    page,
)
from gantry_operator.console.rows import GROUP_ORDERS, TOPIC_ORDERS, choose
from gantry_operator.console.snapshot import WINDOWS, chart_of

router = APIRouter(prefix="/c/{space}/{name}")


@router.get("")
async def overview(request: Request, place: Here, window: Annotated[str, Query(alias="range")] = "5m") -> Response:
    tables = place.snapshot.tables
    shown = window if window in WINDOWS else "5m"
    rates = place.snapshot.rates(place.now)
    groups = choose((g for g in tables.groups.values() if g.lag or g.online), GROUP_ORDERS, "", "lag", False)
    return page(
        request, place, "overview.html", "overview", live=True, members=members_of(place.snapshot, place.now),
        chart=chart_of(place.snapshot.points, place.now, WINDOWS[shown]), shown=shown, ranges=list(WINDOWS),
        rates=rates,
        groups=groups[:6],
        busy=[t for t in choose(tables.topics.values(), TOPIC_ORDERS, "", "rate", False) if t.rate][:6],
        inconsistent=[g.name for g in tables.groups.values() if g.inconsistent],
        dead=sum(d.waiting for d in tables.dead.values()), since=seconds_since,
        events=list(reversed(place.snapshot.status.get("events") or []))[:6],
        lag=sum(g.lag for g in tables.groups.values() if not g.system),
    )  # fmt: skip
