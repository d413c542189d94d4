"""Consumer groups, one group, its subscriptions, its change, and the reset of its offsets."""

from collections.abc import Mapping
from typing import Annotated, Any, Final
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from gantry_broker.http.query import WholeNumber

from gantry_operator.actions.groups import change_group, group_settings
from gantry_operator.api.consumer_group import MAX_RETRIES, MAX_RETRY_QUEUES
from gantry_operator.cluster.message_walk import time_of
from gantry_operator.console import operations as do
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


NUMBERS: Final = {"retryMax": ("--retry-max", MAX_RETRIES), "retryQueues": ("--retry-queues", MAX_RETRY_QUEUES)}
"""Fields of a spec that are numbers: the option of `gantry group change`, and the largest value."""
WORDS: Final = {
    "consumeOrderly": ("orderly", "concurrent"),
    "consumeEnable": ("consume", "no-consume"),
    "broadcast": ("broadcast", "no-broadcast"),
}
"""Fields of a spec that are true or false: the word for each in the form, which is the option of the command."""


def typed_of(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return what the form shows for settings; empty: broker groups differ, or the resource says nothing."""
    texts = {name: str(settings.get(name, "")) for name in NUMBERS}
    for name, (yes, no) in WORDS.items():
        texts[name] = "" if name not in settings else yes if settings[name] else no
    return texts


def changes_in(form: Form, now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a spec that the form changes; an empty one stays. Raises ValueError that names a bad one."""
    wanted: dict[str, Any] = {}
    for name, (_, most) in NUMBERS.items():
        if one(form, name):
            wanted[name] = number(form, name, 0, most)
    for name, words in WORDS.items():
        word = one(form, name)
        if word and word not in words:
            raise ValueError(f"{name}: {word[:40]!r} is not known; write {words[0]} or {words[1]}")
        if word:
            wanted[name] = word == words[0]
    return {name: value for name, value in wanted.items() if value != now.get(name)}


async def edit_page(
    request: Request, place: ClusterRequest, group: str, form: Form, refused: str = "", code: int = 200
) -> Response:
    """Show the form: as it was typed, else as the group is now."""
    async with do.one_line_errors():
        found = await group_settings(place.source.target, group)
    typed = {name: one(form, name) if name in form else text for name, text in typed_of(found["settings"]).items()}
    return page(
        request, place, "group_edit.html", "groups", group=group, typed=typed, resource=found["resource"],
        digest=one(form, "digest") or found["digest"], refused=refused, code=code, words=WORDS, numbers=NUMBERS,
        chooser=" ".join(place.source.command),
    )  # fmt: skip


@router.get("/groups/{group}/edit")
async def edit(request: Request, place: Here, group: str) -> Response:
    return await edit_page(request, place, group, {})


@router.post("/groups/{group}/edit")
async def write(request: Request, change: Change, group: str) -> Response:
    place, form = change
    try:
        async with do.one_line_errors():
            now = (await group_settings(place.source.target, group))["settings"]
            changes = changes_in(form, now)
            if changes:
                said = await change_group(place.source.target, group, changes, one(form, "digest"))
            else:
                said = f"{group} is as it was: nothing was changed"
    except (ValueError, do.OperationError) as error:
        code = 400 if isinstance(error, ValueError) else 502
        # What others have changed is shown beside what was typed, and may be overwritten then.
        again = {name: value for name, value in form.items() if name != "digest"}
        return await edit_page(request, place, group, again, str(error), code)
    words = [word for name, (option, _) in NUMBERS.items() if name in changes for word in (option, str(changes[name]))]
    words += [f"--{yes if changes[name] else no}" for name, (yes, no) in WORDS.items() if name in changes]
    command = do.gantry(place.source, "group", "change", group, *words)
    return after_change(place, "groups", said, command, f"{place.snapshot.key.path}/groups/{quote(group, safe='')}")


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
