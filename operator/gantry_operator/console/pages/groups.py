"""Consumer groups, one group, its subscriptions, and the reset of its offsets."""

from typing import Annotated, Final
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from gantry_broker.http.query import WholeNumber

from gantry_operator.cluster.message_walk import time_of
from gantry_operator.console import operations as do
from gantry_operator.console.requests import (
    Change,
    ClusterRequest,
    Here,
    absent,
    after_change,
    links,
    number,
    one,
    page,
)
from gantry_operator.console.rows import GROUP_ORDERS, choose_groups, page_of

router = APIRouter(prefix="/c/{space}/{name}")

ASKED_CLIENTS: Final = 20
"""Clients of a group with inconsistent subscriptions that are asked for theirs."""


@router.get("/groups")
async def groups(
    request: Request,
    place: Here,
    q: str = "",
    sort: str = "lag",
    system: bool = False,
    page_number: Annotated[WholeNumber, Query(alias="page", ge=1, le=1_000_000)] = 1,
) -> Response:
    chosen = choose_groups(place.snapshot.tables.groups.values(), q, sort, system)
    return page(
        request, place, "groups.html", "groups", live=True, rows=page_of(chosen, page_number), q=q,
        sort=sort if sort.removeprefix("-") in GROUP_ORDERS else "lag", system=system, link=links(request),
    )  # fmt: skip


@router.get("/groups/{group}")
async def group(request: Request, place: Here, group: str) -> Response:
    row = place.snapshot.tables.groups.get(group)
    if row is None:
        raise absent(place, f"no broker knows a consumer group {group}")
    queues = sorted(row.queues, key=lambda x: (x.topic, x.broker, x.queue))
    names = place.snapshot.groups_by_broker
    found = place.collector.holders.of(group, list(row.clients))
    held = {(q.topic, names.get(q.broker, q.broker), q.queue_id): who for q, who in found.by_queue.items()}
    return page(
        request, place, "group.html", "groups", live=True, group=row, queues=queues[:1024], all_queues=len(queues),
        held=held, holders=found,
    )  # fmt: skip


@router.get("/groups/{group}/subscriptions")
async def subscriptions(request: Request, place: Here, group: str) -> Response:
    row = place.snapshot.tables.groups.get(group)
    if row is None:
        raise absent(place, f"no broker knows a consumer group {group}")
    asked = sorted(row.clients)[:ASKED_CLIENTS]
    said = await do.subscriptions_of(place.source, group, asked) if asked else []
    return page(request, place, "subscriptions.html", "groups", group=row, said=said, asked=len(asked))


@router.get("/groups/{group}/reset")
async def reset_preview(
    request: Request, place: Here, group: str, topic: str = "", to: str = "", end: bool = False
) -> Response:
    return await reset_page(request, place, group, topic, to, end)


async def reset_page(
    request: Request, place: ClusterRequest, group: str, topic: str, to: str = "", end: bool = False, said: str = ""
) -> Response:
    row = place.snapshot.tables.groups.get(group)
    if row is None:
        raise absent(place, f"no broker knows a consumer group {group}")
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


@router.post("/groups/{group}/reset")
async def reset(request: Request, change: Change, group: str) -> Response:
    place, form = change
    topic = one(form, "topic")
    try:
        to_ms = number(form, "to_ms", -1, 253_402_300_799_999)
        said = await do.reset(place.source, group, topic, to_ms)
    except (ValueError, do.OperationError) as error:
        return await reset_page(request, place, group, topic, said=str(error))
    command = do.reset_command(place.source, group, topic, to_ms)
    return after_change(place, "groups", said, command, f"{place.snapshot.key.path}/groups/{quote(group)}")
