"""`gantry messages`: look at a topic's messages without being a consumer of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from gantry_broker.client import Admin, ReceivedMessage

from gantry_operator.actions.message_fields import message_fields
from gantry_operator.actions.target import Target
from gantry_operator.cli.errors import CliError, Exit
from gantry_operator.cli.output import json_text, note, print_table, say_incomplete
from gantry_operator.cli.target import run_async
from gantry_operator.cluster.message_walk import (
    AdminReader,
    Filters,
    Page,
    Place,
    Walk,
    body_of,
    by_id,
    by_key,
    time_of,
)
from gantry_operator.cluster.reach import leave_out_silent
from gantry_operator.cluster.timestamps import utc

SHOWN = 100
"""Characters of a body in a table."""


@dataclass(frozen=True, slots=True)
class Look:
    """Which messages. `begin`: a place or a time; towards newer messages if not `older`."""

    topic: str
    filters: Filters
    key: str
    id: str
    begin: Place | None
    older: bool
    count: int


def look_of(
    topic: str, tags: str, key: str, prop: str, text: str, message_id: str, at: str, before: str, after: str, count: int
) -> Look:
    """Read the options of a look at messages. Raises CliError for options that do not fit each other."""
    if sum(map(bool, (at, before, after))) > 1:
        raise CliError("--from, --before and --after exclude each other", Exit.USAGE)
    if key and (at or after):
        raise CliError("--key finds the newest messages: it goes with --before only", Exit.USAGE)
    try:
        begin = Place(time_of(at)) if at else Place.parse(before or after) if before or after else None
    except ValueError as error:
        raise CliError(str(error), Exit.USAGE) from None
    return Look(topic, Filters(tags.strip(), prop.strip(), text), key, message_id, begin, not (at or after), count)


def show(target: Target, look: Look, as_json: bool) -> None:
    """Print the messages, newest first: a table, or a line of JSON for each."""
    page = run_async(_find(target, look))
    if as_json:
        for message in page.messages:
            print(json_text(fields(message)))
    else:
        rows = [
            (utc(m.store_ms), f"{m.broker}:{m.queue_id}", m.queue_offset, " ".join(m.keys), m.tags, _shown(m))
            for m in page.messages
        ]
        print_table(("STORED", "QUEUE", "OFFSET", "KEYS", "TAGS", "BODY"), rows, right=("OFFSET",))
    looked = f" of {page.looked_at} looked at" if page.stopped_at else ""
    older = f"; older ones: --before '{page.older}'" if page.older else ""
    note(f"{len(page.messages)} messages{looked}{older}")


def fields(message: ReceivedMessage) -> dict[str, object]:
    """Return a message for JSON; a body that cannot be read says why."""
    _, problem = body_of(message)
    if problem:
        return {"topic": message.topic, "broker": message.broker, "queue": message.queue_id,
                "offset": message.queue_offset, "storeTime": message.store_ms, "problem": problem}  # fmt: skip
    return message_fields(message)


def _shown(message: ReceivedMessage) -> str:
    body, problem = body_of(message)
    text = problem or " ".join(body[: 4 * SHOWN].decode("utf-8", "replace").split())
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


async def _find(target: Target, look: Look) -> Page:
    async with (
        target.clients() as c,
        Admin(c.name_servers, credentials=c.credentials, tls=c.tls) as admin,
        asyncio.timeout(60),
    ):
        for sentence in await leave_out_silent(admin, c.groups):
            say_incomplete(sentence)
        if look.id:
            try:
                return Page(await by_id(admin, look.topic, look.id))
            except ValueError as error:
                raise CliError(str(error), Exit.USAGE) from None
        if look.key:
            return await by_key(admin, look.topic, look.key, look.filters, look.begin)
        reader = AdminReader(admin, look.topic)
        return await Walk(reader, look.filters, look.begin, older=look.older, count=look.count).page()
