"""The page after a change: a reload of it changes nothing."""

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from gantry_operator.console.requests import Here, page

router = APIRouter(prefix="/c/{space}/{name}")


@router.get("/done/{change}")
async def done_page(request: Request, place: Here, change: str) -> Response:
    outcome = place.session.done.get(change)
    if outcome is None or outcome.cluster != place.snapshot.key.path:
        return RedirectResponse(place.snapshot.key.path, 303)
    return page(
        request, place, "done.html", outcome.section, said=outcome.said, command=outcome.command, back=outcome.back
    )
