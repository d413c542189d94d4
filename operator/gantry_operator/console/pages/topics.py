"""Topics, one topic, and its change."""

from collections.abc import Mapping
from typing import Any, Final, get_args

from fastapi import APIRouter, Request
from fastapi.responses import Response

from gantry_operator.actions.topics import change_topic, topic_settings
from gantry_operator.api.topic import MAX_ALL_QUEUES, MAX_QUEUES, MessageType, Permission
from gantry_operator.console.health import seconds_since
from gantry_operator.console.pages.editing import Editing, Settings
from gantry_operator.console.pages.listing import Listed, list_page
from gantry_operator.console.recent_senders import with_clients
from gantry_operator.console.requests import (
    Form,
    Here,
    absent,
    number,
    one,
    page,
)
from gantry_operator.console.rows import TOPIC_ORDERS, queues_of, readers_of, table_of

router = APIRouter(prefix="/c/{space}/{name}")

COLUMNS: Final = 4
"""Consumer groups whose unread messages are shown by queue, at most; the page of a group has its own."""


@router.get("/topics")
async def topics(request: Request, place: Here, listed: Listed) -> Response:
    return list_page(request, place, listed, "topics", place.snapshot.tables.topics.values(), TOPIC_ORDERS)


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
        holders = place.collector.holders.of(only.group.name, list(only.group.clients))
        for queue, clients in holders.by_queue.items():
            if queue.topic == topic:
                held.setdefault((names.get(queue.broker, queue.broker), queue.queue_id), []).extend(clients)
    return page(
        request, place, "topic.html", "topics", live=True, topic=row, queues=queues[:512], all_queues=len(queues),
        readers=readers[:512], shown=shown, only=only, held=held, masters=place.snapshot.masters,
        table=table_of(place.snapshot.status, topic), senders=senders, sent=with_clients(senders.rows, tables.clients),
        since=seconds_since,
    )  # fmt: skip


def attributes_in(lines: str, before: Mapping[str, str]) -> dict[str, str | None]:
    """Return the attributes of lines of name=value; those of `before` that are missing: None. Raises ValueError."""
    attributes: dict[str, str | None] = dict.fromkeys(before)
    for line in lines.splitlines():
        if not line.strip():
            continue
        name, given, value = (part.strip() for part in line.partition("="))
        if not given or not name or not value:
            raise ValueError(f"Other attributes: {line[:40]!r} is no attribute: write one name=value a line")
        attributes[name] = value
    return attributes


def changes_in(form: Form, settings: Settings) -> dict[str, Any]:
    """Return the fields of a spec that the form changes. Raises ValueError that names a bad field."""
    now = settings["settings"]
    total = "queues" in now
    fields: dict[str, Any] = {name: one(form, name) or None for name in ("permission", "messageType", "retention")}
    if one(form, "queues"):
        most = MAX_ALL_QUEUES if total else MAX_QUEUES
        fields["queues" if total else "queuesPerGroup"] = number(form, "queues", 1, most)
    changes = {name: value for name, value in fields.items() if value != now.get(name)}
    before = now.get("config") or {}
    attributes = {k: v for k, v in attributes_in(one(form, "attributes"), before).items() if v != before.get(k)}
    return changes | ({"config": attributes} if attributes else {})


def texts_of(settings: Settings) -> dict[str, str]:
    """Return what the form shows; empty: broker groups differ, or the resource says nothing."""
    now = settings["settings"]
    texts = {name: str(now.get(name, "")) for name in ("permission", "messageType", "retention")}
    return texts | {
        "queues": str(now.get("queues") or now.get("queuesPerGroup") or ""),
        "attributes": "\n".join(f"{k}={v}" for k, v in sorted((now.get("config") or {}).items())),
    }


def options_of(changes: Mapping[str, Any]) -> list[str]:
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


Editing(
    kind="topic", section="topics", settings=topic_settings, texts=texts_of, changes=changes_in, change=change_topic,
    options=options_of, extra=lambda found: {
        "total": "queues" in found["settings"], "permissions": get_args(Permission), "types": get_args(MessageType)
    },
).add_to(router)  # fmt: skip
