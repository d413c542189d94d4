"""The first page of a cluster: rates, lags, what is wrong."""

from collections.abc import Callable

from fastapi import APIRouter, Request
from fastapi.responses import Response

from gantry_operator.console.health import members_of, seconds_since
from gantry_operator.console.render import line
from gantry_operator.console.requests import (
    Here,
    page,
)
from gantry_operator.console.rows import choose_groups, choose_topics
from gantry_operator.console.snapshot import WINDOW_S, Point, runs_of

router = APIRouter(prefix="/c/{space}/{name}")


@router.get("")
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
