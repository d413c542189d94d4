"""Topics, and one topic."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from gantry_broker.http.query import WholeNumber

from gantry_operator.console.requests import (
    Here,
    absent,
    links,
    page,
)
from gantry_operator.console.rows import TOPIC_ORDERS, choose_topics, page_of, queues_of, table_of

router = APIRouter(prefix="/c/{space}/{name}")


@router.get("/topics")
async def topics(
    request: Request,
    place: Here,
    q: str = "",
    sort: str = "name",
    system: bool = False,
    page_number: Annotated[WholeNumber, Query(alias="page", ge=1, le=1_000_000)] = 1,
) -> Response:
    chosen = choose_topics(place.snapshot.tables.topics.values(), q, sort, system)
    return page(
        request, place, "topics.html", "topics", live=True, rows=page_of(chosen, page_number), q=q,
        sort=sort if sort.removeprefix("-") in TOPIC_ORDERS else "name", system=system, link=links(request),
    )  # fmt: skip


@router.get("/topics/{topic}")
async def topic(request: Request, place: Here, topic: str) -> Response:
    row = place.snapshot.tables.topics.get(topic)
    if row is None:
        raise absent(place, f"no broker has a topic {topic}")
    queues = queues_of(place.snapshot.tables, topic)
    return page(
        request, place, "topic.html", "topics", live=True, topic=row, queues=queues[:512], all_queues=len(queues),
        groups=[place.snapshot.tables.groups[g] for g in row.consumers if g in place.snapshot.tables.groups],
        table=table_of(place.snapshot.status, topic),
    )  # fmt: skip
