"""What happened: events, the audit, and the compaction report."""

from typing import Final

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import HTMLResponse, Response

from gantry_operator.console import operations as do
from gantry_operator.console.requests import Here, page
from gantry_operator.console.snapshot import Snapshot

router = APIRouter(prefix="/c/{space}/{name}")

REPORT_POLICY: Final = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; font-src data:; sandbox "
    "allow-scripts; frame-ancestors 'none'"
)
"""The report brings its own scripts. It gets no origin, so it cannot reach the console."""


@router.get("/activity")
async def activity(request: Request, place: Here) -> Response:
    return page(
        request, place, "activity.html", "activity", live=True, audit=await place.source.audit(),
        events=list(reversed(place.snapshot.status.get("events") or [])),
        report=await place.source.has_report(), analytics=place.snapshot.status.get("analytics"),
        analyze=do.gantry(place.source, "analyze"), read_report=do.gantry(place.source, "report"),
        audited=_audited(place.snapshot),
    )  # fmt: skip


@router.get("/report")
async def report(place: Here) -> Response:
    html = await place.source.report()
    if html is None:
        raise HTTPException(404, "there is no compaction report yet")
    return HTMLResponse(html, headers={"Content-Security-Policy": REPORT_POLICY})


def _audited(snapshot: Snapshot) -> bool:
    """Without authentication members write no audit."""
    conditions = snapshot.status.get("conditions") or []
    return all(c.get("reason") != "AuthenticationDisabled" for c in conditions)
