"""The members of a cluster, its NameServers, its proxies, its archives and its migration."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from gantry_operator.console.health import members_of
from gantry_operator.console.requests import Here, page

router = APIRouter(prefix="/c/{space}/{name}")


@router.get("/members")
async def members(request: Request, place: Here) -> Response:
    return page(
        request, place, "members.html", "members", live=True, members=members_of(place.snapshot, place.now),
        servers=place.snapshot.status.get("nameServerMembers") or [],
        proxies=(place.snapshot.status.get("proxy") or {}).get("members") or [],
        archives=[g for g in place.snapshot.status.get("groups") or [] if g.get("archive")],
        migration=place.snapshot.status.get("migration"),
    )  # fmt: skip
