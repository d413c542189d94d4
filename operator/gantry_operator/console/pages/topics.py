"""Topics, one topic, and its change."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, get_args
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from gantry_broker.http.query import WholeNumber

from gantry_operator.actions.topics import change_topic, topic_settings
from gantry_operator.api.topic import MAX_ALL_QUEUES, MAX_QUEUES, MessageType, Permission
from gantry_operator.console import operations as do
from gantry_operator.console.recent_senders import with_clients
from gantry_operator.console.requests import (
    Change,
    ClusterRequest,
    Form,
    Here,
    absent,
    after_change,
    links,
    number,
    one,
    page,
)
from gantry_operator.console.rows import TOPIC_ORDERS, choose_topics, page_of, queues_of, readers_of, table_of

router = APIRouter(prefix="/c/{space}/{name}")

COLUMNS: Final = 4
"""Consumer groups whose unread messages are shown by queue, at most; the page of a group has its own."""


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
async def topic(request: Request, place: Here, topic: str, group: str = "") -> Response:
    """Show a topic. `group`: the consumer group whose unread messages and holders are shown by queue."""
    tables = place.snapshot.tables
    row = tables.topics.get(topic)
    if row is None:
        raise absent(place, f"no broker has a topic {topic}")
    queues, readers = queues_of(tables, topic), readers_of(tables, row)
    shown = [r for r in readers if r.group.name == group] or readers[:COLUMNS]
    senders = place.collector.senders.of(topic)
    held: dict[tuple[str, int], list[str]] = {}
    only = shown[0] if len(shown) == 1 else None
    if only is not None:
        names = place.snapshot.groups_by_broker
        found = place.collector.holders.of(only.group.name, list(only.group.clients))
        for queue, clients in found.by_queue.items():
            if queue.topic == topic:
                held.setdefault((names.get(queue.broker, queue.broker), queue.queue_id), []).extend(clients)
    return page(
        request, place, "topic.html", "topics", live=True, topic=row, queues=queues[:512], all_queues=len(queues),
        readers=readers[:512], shown=shown, only=only, held=held, masters=place.snapshot.masters,
        table=table_of(place.snapshot.status, topic), senders=senders, sent=with_clients(senders.rows, tables.clients),
    )  # fmt: skip


def attributes_in(lines: str, before: Mapping[str, str]) -> dict[str, str | None]:
    """Return the attributes of lines of name=value; those of `before` that are missing: None. Raises ValueError."""
    found: dict[str, str | None] = dict.fromkeys(before)
    for line in lines.splitlines():
        if not line.strip():
            continue
        name, given, value = (part.strip() for part in line.partition("="))
        if not given or not name or not value:
            raise ValueError(f"Other attributes: {line[:40]!r} is no attribute: write one name=value a line")
        found[name] = value
    return found


def changes_in(form: Form, now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a spec that the form changes. Raises ValueError that names a bad field."""
    total = "queues" in now
    wanted: dict[str, Any] = {name: one(form, name) or None for name in ("permission", "messageType", "retention")}
    if one(form, "queues"):
        most = MAX_ALL_QUEUES if total else MAX_QUEUES
        wanted["queues" if total else "queuesPerGroup"] = number(form, "queues", 1, most)
    changes = {name: value for name, value in wanted.items() if value != now.get(name)}
    before = now.get("config") or {}
    attributes = {k: v for k, v in attributes_in(one(form, "attributes"), before).items() if v != before.get(k)}
    return changes | ({"config": attributes} if attributes else {})


async def edit_page(
    request: Request, place: ClusterRequest, topic: str, form: Form, refused: str = "", code: int = 200
) -> Response:
    """Show the form: as it was typed, else as the topic is now."""
    async with do.one_line_errors():
        found = await topic_settings(place.source.target, topic)
    now = found["settings"]
    values = {
        "queues": now.get("queues") or now.get("queuesPerGroup") or "", "permission": now.get("permission", ""),
        "messageType": now.get("messageType", ""), "retention": now.get("retention", ""),
        "attributes": "\n".join(f"{k}={v}" for k, v in sorted((now.get("config") or {}).items())),
    }  # fmt: skip
    typed = {name: one(form, name) if name in form else value for name, value in values.items()}
    return page(
        request, place, "topic_edit.html", "topics", topic=topic, typed=typed, resource=found["resource"],
        total="queues" in now, digest=one(form, "digest") or found["digest"], refused=refused, code=code,
        permissions=get_args(Permission), types=get_args(MessageType), chooser=" ".join(place.source.command),
    )  # fmt: skip


@router.get("/topics/{topic}/edit")
async def edit(request: Request, place: Here, topic: str) -> Response:
    return await edit_page(request, place, topic, {})


@router.post("/topics/{topic}/edit")
async def write(request: Request, change: Change, topic: str) -> Response:
    place, form = change
    digest = one(form, "digest")
    try:
        async with do.one_line_errors():
            now = (await topic_settings(place.source.target, topic))["settings"]
            changes = changes_in(form, now)
            if changes:
                said = await change_topic(place.source.target, topic, changes, digest)
            else:
                said = f"{topic} is as it was: nothing was changed"
    except (ValueError, do.OperationError) as error:
        code = 400 if isinstance(error, ValueError) else 502
        # What others have changed is shown beside what was typed, and may be overwritten then.
        again = {name: value for name, value in form.items() if name != "digest"}
        return await edit_page(request, place, topic, again, str(error), code)
    command = do.gantry(place.source, "topic", "change", topic, *_options(changes))
    return after_change(place, "topics", said, command, f"{place.snapshot.key.path}/topics/{quote(topic, safe='')}")


def _options(changes: Mapping[str, Any]) -> list[str]:
    """Return the options of `gantry topic change` for changes of a spec."""
    names = {
        "queuesPerGroup": "--queues", "queues": "--queues-in-total", "permission": "--permission",
        "messageType": "--type", "retention": "--retention",
    }  # fmt: skip
    words = []
    for field, option in names.items():
        if field in changes:
            words += [option, "none" if changes[field] is None else str(changes[field])]
    for name, value in (changes.get("config") or {}).items():
        words += ["--attribute", f"{name}={value or ''}"]
    return words
