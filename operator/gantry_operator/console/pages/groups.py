"""Consumer groups, one group, its subscriptions, its change, and the reset of its offsets."""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import Response

from gantry_operator.actions.groups import change_group, group_settings
from gantry_operator.api.consumer_group import MAX_RETRIES, MAX_RETRY_QUEUES
from gantry_operator.cluster.message_walk import time_of
from gantry_operator.console import operations as do
from gantry_operator.console.pages.editing import Editing, Settings
from gantry_operator.console.pages.listing import Listed, list_page
from gantry_operator.console.requests import (
    Change,
    ClusterRequest,
    Form,
    Here,
    absent,
    after_change,
    number,
    one,
    page,
)
from gantry_operator.console.rows import GROUP_ORDERS, ConsumerGroupRow

router = APIRouter(prefix="/c/{space}/{name}")

ASKED_CLIENTS: Final = 20
"""Clients of a group with inconsistent subscriptions that are asked for theirs."""


@router.get("/groups")
async def groups(request: Request, place: Here, listed: Listed) -> Response:
    return list_page(request, place, listed, "groups", place.snapshot.tables.groups.values(), GROUP_ORDERS)


def row_of(place: ClusterRequest, group: str) -> ConsumerGroupRow:
    """Return a consumer group. Raises HTTPException where no broker knows it."""
    row = place.snapshot.tables.groups.get(group)
    if row is None:
        raise absent(place, f"no broker knows a consumer group {group}")
    return row


@router.get("/groups/{group}")
async def group(request: Request, place: Here, group: str) -> Response:
    row = row_of(place, group)
    queues = sorted(row.queues, key=lambda x: (x.topic, x.broker, x.queue))
    names = place.snapshot.groups_by_broker
    holders = place.collector.holders.of(group, list(row.clients))
    held = {(q.topic, names.get(q.broker, q.broker), q.queue_id): who for q, who in holders.by_queue.items()}
    return page(
        request, place, "group.html", "groups", live=True, group=row, queues=queues[:1024], all_queues=len(queues),
        held=held, holders=holders,
    )  # fmt: skip


NUMBERS: Final = {"retryMax": ("--retry-max", MAX_RETRIES), "retryQueues": ("--retry-queues", MAX_RETRY_QUEUES)}
"""Fields of a spec that are numbers: the option of `gantry group change`, and the largest value."""
WORDS: Final = {
    "consumeOrderly": ("orderly", "concurrent"),
    "consumeEnable": ("consume", "no-consume"),
    "broadcast": ("broadcast", "no-broadcast"),
}
"""Fields of a spec that are true or false: the word for each in the form, which is the option of the command."""


def texts_of(current: Settings) -> dict[str, str]:
    """Return what the form shows; empty: broker groups differ, or the resource says nothing."""
    settings = current["settings"]
    texts = {name: str(settings.get(name, "")) for name in NUMBERS}
    for name, (yes, no) in WORDS.items():
        texts[name] = "" if name not in settings else yes if settings[name] else no
    return texts


def changes_in(form: Form, current: Settings) -> dict[str, Any]:
    """Return the fields of a spec that the form changes; an empty one stays. Raises ValueError that names a bad one."""
    now = current["settings"]
    values: dict[str, Any] = {}
    for name, (_, most) in NUMBERS.items():
        if one(form, name):
            values[name] = number(form, name, 0, most)
    for name, words in WORDS.items():
        word = one(form, name)
        if word and word not in words:
            raise ValueError(f"{name}: {word[:40]!r} is not known; write {words[0]} or {words[1]}")
        if word:
            values[name] = word == words[0]
    return {name: value for name, value in values.items() if value != now.get(name)}


def options_of(changes: Mapping[str, Any]) -> list[str]:
    """Return the options of `gantry group change` for changes of a spec."""
    words = [word for name, (option, _) in NUMBERS.items() if name in changes for word in (option, str(changes[name]))]
    return words + [f"--{yes if changes[name] else no}" for name, (yes, no) in WORDS.items() if name in changes]


Editing(
    kind="group", section="groups", settings=group_settings, texts=texts_of, changes=changes_in, change=change_group,
    options=options_of, extra=lambda found: {"words": WORDS, "numbers": NUMBERS},
).add_to(router)  # fmt: skip


@router.get("/groups/{group}/subscriptions")
async def subscriptions(request: Request, place: Here, group: str) -> Response:
    row = row_of(place, group)
    clients = sorted(row.clients)[:ASKED_CLIENTS]
    answers = await do.subscriptions_of(place.source, group, clients) if clients else []
    return page(request, place, "subscriptions.html", "groups", group=row, said=answers, asked=len(clients))


@router.get("/groups/{group}/reset")
async def reset_preview(
    request: Request, place: Here, group: str, topic: str = "", to: str = "", end: bool = False
) -> Response:
    return await reset_page(request, place, group, topic, to, end)


async def reset_page(
    request: Request, place: ClusterRequest, group: str, topic: str, to: str = "", end: bool = False, said: str = ""
) -> Response:
    row = row_of(place, group)
    preview, to_ms, code = None, -1, 502 if said else 200
    if topic and (to or end):
        try:
            to_ms = -1 if end else time_of(to)
            preview = await do.preview_reset(place.source, group, topic, to_ms)
        except (ValueError, do.OperationError) as error:
            said = str(error)
    return page(
        request, place, "reset.html", "groups", group=row, topic=topic, to=to, end=end, preview=preview, said=said,
        to_ms=to_ms, command=do.reset_command(place.source, group, topic, to_ms), code=code,
    )  # fmt: skip


@router.post("/groups/{group}/reset")
async def reset(request: Request, change: Change, group: str) -> Response:
    place, form = change
    topic = one(form, "topic")
    try:
        to_ms = number(form, "to_ms", -1, 253_402_300_799_999)
        done = await do.reset(place.source, group, topic, to_ms)
    except (ValueError, do.OperationError) as error:
        return await reset_page(request, place, group, topic, said=str(error))
    command = do.reset_command(place.source, group, topic, to_ms)
    return after_change(place, "groups", done, command, f"{place.snapshot.key.path}/groups/{quote(group)}")
