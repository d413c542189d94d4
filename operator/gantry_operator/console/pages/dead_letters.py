"""Dead letters: groups that have some, those of a group newest first, one letter, sending again, export."""

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import RedirectResponse, Response
from gantry_broker.client.deadletters import origin_topic
from gantry_broker.http.query import WholeNumber
from gantry_broker.protocol.codes import DLQ_PREFIX

from gantry_operator.cluster.message_walk import Filters, Page, Place
from gantry_operator.console import operations as do
from gantry_operator.console.bodies import preview
from gantry_operator.console.pages.messages import message_values
from gantry_operator.console.requests import Change, ClusterRequest, Here, absent, after_change, links, one, page
from gantry_operator.console.rows import choose_dead, marks_of, page_of

router = APIRouter(prefix="/c/{space}/{name}")


@router.get("/dead")
async def dead(
    request: Request,
    place: Here,
    q: str = "",
    page_number: Annotated[WholeNumber, Query(alias="page", ge=1, le=1_000_000)] = 1,
) -> Response:
    rows = page_of(choose_dead(place.snapshot.tables.dead.values(), q), page_number)
    return page(request, place, "dead.html", "dead", live=True, rows=rows, q=q, link=links(request))


@router.get("/dead/{group}")
async def dead_group(request: Request, place: Here, group: str, before: str = "", after: str = "") -> Response:
    row = place.snapshot.tables.dead.get(group)
    if row is None:
        raise absent(place, f"the consumer group {group} has no dead letters")
    messages, problem = Page(), ""
    try:
        begin = Place.parse(before or after) if before or after else None
        messages = await do.walk(place.source, DLQ_PREFIX + group, Filters(), begin, older=not after or bool(before))
    except (ValueError, do.OperationError) as error:
        problem = str(error)
    marks, names = marks_of(place.snapshot.tables, group), place.snapshot.groups_by_broker
    waits = {
        m.offset_id: m.queue_offset >= marks.get((names.get(m.broker, m.broker), m.queue_id), 0)
        for m in messages.messages
    }
    return page(
        request, place, "dead_group.html", "dead", group=row, found=messages, said=problem, waits=waits,
        preview=preview, origin=origin_topic, command=do.gantry(place.source, "dlq", "resend", group),
        link=links(request), newest=not (before or after), exported=do.EXPORTED, run=place.collector.resends.of(group),
    )  # fmt: skip


def _run_path(place: ClusterRequest, group: str) -> str:
    return f"{place.snapshot.key.path}/dead/{quote(group, safe='')}/resend"


@router.get("/dead/{group}/resend")
async def dead_run(request: Request, place: Here, group: str) -> Response:
    """Show how far sending all letters of a group is."""
    run = place.collector.resends.of(group)
    if run is None:
        return RedirectResponse(f"{place.snapshot.key.path}/dead/{quote(group, safe='')}", 303)
    command = do.gantry(place.source, "dlq", "resend", group)
    return page(request, place, "dead_run.html", "dead", live=True, run=run, command=command)


@router.post("/dead/{group}/resend")
async def dead_resend(request: Request, change: Change, group: str) -> Response:
    place, form = change
    which, ids = one(form, "which"), form.get("id", [])
    if which == "stop":
        place.collector.resends.stop(group)
        return RedirectResponse(_run_path(place, group), 303)
    if which == "waiting":
        place.collector.resends.start(group)
        return RedirectResponse(_run_path(place, group), 303)
    if not ids:
        raise HTTPException(400, "no letter was chosen")
    if len(ids) > do.CHOSEN:
        raise HTTPException(400, f"{len(ids)} letters were chosen: choose at most {do.CHOSEN}, or send all that wait")
    done = await do.resend(place.source, group, ids)
    words = [word for message_id in ids for word in ("--id", message_id)]
    command = do.gantry(place.source, "dlq", "resend", group, *words)
    return after_change(place, "dead", done, command, f"{place.snapshot.key.path}/dead/{quote(group, safe='')}")


@router.get("/dead/{group}/export")
async def dead_export(place: Here, group: str) -> Response:
    lines = await do.export(place.source, group)
    named = f"attachment; filename*=UTF-8''{quote(group, safe='')}-dead-letters.jsonl"
    return Response(lines, media_type="application/x-ndjson", headers={"Content-Disposition": named})


@router.get("/dead/{group}/letter")
async def dead_letter(request: Request, place: Here, group: str, id: str, kind: str = "auto") -> Response:
    letter = await do.letter(place.source, group, id)
    if letter is None:
        raise HTTPException(404, f"{group} has no dead letter {id}")
    values = message_values(request, place.source, letter, kind, group)
    return page(request, place, "message.html", "dead", **values)
