"""Dead letters: groups that have some, those of a group, one letter, sending again, export."""

from urllib.parse import quote

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import Response
from gantry_broker.client.deadletters import origin_topic
from gantry_broker.protocol.codes import DLQ_PREFIX

from gantry_operator.console import operations as do
from gantry_operator.console.bodies import preview
from gantry_operator.console.pages.messages import message_values
from gantry_operator.console.requests import Change, Here, absent, after_change, one, page

router = APIRouter(prefix="/c/{space}/{name}")


@router.get("/dead")
async def dead(request: Request, place: Here) -> Response:
    rows = sorted(place.snapshot.tables.dead.values(), key=lambda d: (-d.waiting, d.group))
    return page(request, place, "dead.html", "dead", live=True, rows=rows[:1000])


@router.get("/dead/{group}")
async def dead_group(request: Request, place: Here, group: str) -> Response:
    row = place.snapshot.tables.dead.get(group)
    if row is None:
        raise absent(place, f"the consumer group {group} has no dead letters")
    letters = await do.letters_of(place.source, group)
    return page(
        request, place, "dead_group.html", "dead", group=row, letters=letters, preview=preview, limit=do.LETTERS,
        origin=origin_topic, command=do.gantry(place.source, "dlq", "resend", group), topic=DLQ_PREFIX + group,
    )  # fmt: skip


@router.post("/dead/{group}/resend")
async def dead_resend(request: Request, change: Change, group: str) -> Response:
    place, form = change
    ids = form.get("id", []) if one(form, "which") == "chosen" else []
    if one(form, "which") == "chosen" and not ids:
        raise HTTPException(400, "no letter was chosen")
    said = await do.resend(place.source, group, ids)
    words = [word for message_id in ids for word in ("--id", message_id)]
    command = do.gantry(place.source, "dlq", "resend", group, *words)
    return after_change(place, "dead", said, command, f"{place.snapshot.key.path}/dead/{quote(group)}")


@router.get("/dead/{group}/export")
async def dead_export(place: Here, group: str) -> Response:
    lines = await do.export(place.source, group)
    named = f"attachment; filename*=UTF-8''{quote(group, safe='')}-dead-letters.jsonl"
    return Response(lines, media_type="application/x-ndjson", headers={"Content-Disposition": named})


@router.get("/dead/{group}/letter")
async def dead_letter(request: Request, place: Here, group: str, id: str, kind: str = "auto") -> Response:
    found = await do.letter(place.source, group, id)
    if found is None:
        raise HTTPException(404, f"{group} has no dead letter {id}")
    return page(request, place, "message.html", "dead", **message_values(request, place.source, found, kind, group))
