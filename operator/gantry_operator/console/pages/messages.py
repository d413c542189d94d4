"""The pages of messages: a topic newest first, one message, and the form that sends one."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, HTTPException, Request
from fastapi.responses import RedirectResponse, Response
from gantry_broker.client import Message, ReceivedMessage
from gantry_broker.client.errors import ClientError

from gantry_operator.cluster.message_walk import PAGE, Filters, Page, Place, body_of, place_of, time_of
from gantry_operator.console import operations as do
from gantry_operator.console.bodies import KINDS, MAX_SHOWN, body_view, content_of, preview
from gantry_operator.console.requests import Change, ClusterRequest, Here, one, page
from gantry_operator.console.sources import Source

router = APIRouter(prefix="/c/{space}/{name}")

PREVIEW: Final = 120
"""Bytes of a body in a table."""
COPIED: Final = 4_096
"""Bytes of the longest body in a command."""
NAMES: Final = 1_000
"""Topics that the field of the topic offers."""
_NAME: Final = re.compile(r"[\x21-\x7e]{1,255}")


@dataclass(frozen=True, slots=True)
class Row:
    """A message in the table."""

    place: Place
    topic: str
    keys: str
    tags: str
    size: int
    preview: str
    problem: str
    """Why the body cannot be read; empty: it can."""


def row_of(message: ReceivedMessage) -> Row:
    body, problem = body_of(message)
    return Row(
        place_of(message), message.record.topic, " ".join(message.keys), message.tags, len(body),
        preview(body, PREVIEW), problem,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Search:
    """What the form of the page asks for."""

    topic: str = ""
    at: str = ""
    tags: str = ""
    key: str = ""
    prop: str = ""
    text: str = ""
    id: str = ""
    before: str = ""
    after: str = ""
    tail: bool = False

    @property
    def filters(self) -> Filters:
        return Filters(self.tags.strip(), self.prop.strip(), self.text)

    @property
    def newest(self) -> bool:
        """Whether the page begins at the newest message."""
        return not (self.at or self.key or self.id or self.before or self.after)

    def link(self, path: str, **changes: object) -> str:
        """Return the address of the page with other values; empty ones are left out."""
        values = {
            "topic": self.topic, "at": self.at, "tags": self.tags, "key": self.key, "prop": self.prop,
            "text": self.text, "id": self.id, "before": self.before, "after": self.after, "tail": self.tail,
        } | changes  # fmt: skip
        written = {name: "true" if value is True else str(value) for name, value in values.items() if value}
        return f"{path}?{urlencode(written)}"

    def command(self, source: Source) -> str:
        """Return the command that prints the same messages."""
        words = ["messages", self.topic or "TOPIC"]
        for option, value in (("--from", self.at), ("--tags", self.tags), ("--key", self.key),
                              ("--property", self.prop), ("--text", self.text), ("--id", self.id),
                              ("--before", self.before), ("--after", self.after)):  # fmt: skip
            words += [option, value] if value else []
        return do.gantry(source, *words)


async def find(source: Source, search: Search) -> Page:
    """Read the messages that a person asks for. Raises OperationError, ValueError."""
    before = Place.parse(search.before) if search.before else None
    if search.id:
        return Page(await do.find_by_id(source, search.topic, search.id))
    if search.key:
        return await do.find_by_key(source, search.topic, search.key, search.filters, before)
    if before is not None:
        return await do.walk(source, search.topic, search.filters, before, older=True)
    if search.after or search.at:
        begin = Place.parse(search.after) if search.after else Place(time_of(search.at))
        return await do.walk(source, search.topic, search.filters, begin, older=False)
    return await do.walk(source, search.topic, search.filters, None, older=True)


@dataclass(frozen=True, slots=True)
class Draft:
    """A message as a person typed it."""

    topic: str = ""
    tags: str = ""
    keys: str = ""
    properties: str = ""
    """Lines of name=value."""
    body: str = ""

    def message(self) -> Message:
        """Build the message. Raises ValueError that names the field."""
        properties = {}
        for line in self.properties.splitlines():
            if not line.strip():
                continue
            name, given, value = line.partition("=")
            if not given or not _NAME.fullmatch(name.strip()):
                raise ValueError(f"Properties: {line[:40]!r} is no property: write one name=value a line")
            properties[name.strip()] = value.strip()
        message = Message(self.topic, self.body.encode(), self.tags, self.keys.split(), properties)
        try:
            message.check()
            message.wire_properties("")
        except ClientError as error:
            raise ValueError(str(error)) from None
        return message


def resend_command(source: Source, message: ReceivedMessage, body: bytes) -> str:
    """Return the command that sends the same message again; empty: its body is no text for a command line."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return ""
    if not 0 < len(body) <= COPIED or "\0" in text:
        return ""
    words = ["produce", message.record.topic, "--body", text]
    words += ["--tags", message.tags] if message.tags else []
    words += ["--keys", " ".join(message.keys)] if message.keys else []
    return do.gantry(source, *words)


def message_values(
    request: Request, source: Source, shown: ReceivedMessage, kind: str, dead: str = ""
) -> dict[str, Any]:
    """Return what `message.html` needs. `dead`: the consumer group whose dead letter it is."""
    body, problem = body_of(shown)
    content = content_of(shown.properties)
    view = body_view(body, kind if kind in KINDS else None, content=content)  # type: ignore[arg-type]
    query = dict(request.query_params)

    def link(kind: str) -> str:
        return f"{request.url.path}?{urlencode(query | {'kind': kind})}"

    kinds = dict(KINDS) if view.kind in KINDS else {view.kind: view.kind.capitalize(), **KINDS}
    return {
        "message": shown, "view": view, "problem": problem, "link": link, "limit": MAX_SHOWN, "kind": kind,
        "kinds": kinds, "dead": dead, "content": content, "again": "" if dead else resend_command(source, shown, body),
        "read": do.gantry(source, "messages", shown.record.topic, "--id", shown.id, "-o", "json"),
    }  # fmt: skip


def _text(form: Mapping[str, list[str]], name: str) -> str:
    """Return a text of a form as it was typed: browsers send each line end as CR LF."""
    return (form.get(name) or [""])[0].replace("\r\n", "\n")


async def messages_page(
    request: Request, place: ClusterRequest, search: Search, draft: Draft | None = None, refused: str = ""
) -> Response:
    result, problem = None, ""
    if search.topic or search.id:
        try:
            result = await find(place.source, search)
        except (ValueError, do.OperationError) as error:
            problem = str(error)
    path = f"{place.snapshot.key.path}/messages"
    return page(
        request, place, "messages.html", "messages", code=400 if refused else 200, search=search, found=result,
        rows=[row_of(m) for m in result.messages] if result else [], said=problem, page_size=PAGE, path=path,
        live=search.tail and search.newest and not refused, command=search.command(place.source),
        names=[t.name for t in place.snapshot.tables.topics.values() if not t.system][:NAMES],
        chooser=" ".join(place.source.command), draft=draft or Draft(topic=search.topic), refused=refused,
    )  # fmt: skip


@router.get("/messages")
async def messages(request: Request, place: Here, search: Annotated[Search, Depends(Search)]) -> Response:
    return await messages_page(request, place, search)


@router.post("/messages")
async def send(request: Request, change: Change) -> Response:
    place, form = change
    topic, tags, keys, properties = (one(form, name) for name in ("topic", "tags", "keys", "properties"))
    draft = Draft(topic, tags, keys, properties, _text(form, "body"))
    try:
        queue, offset = await do.send(place.source, draft.message())
    except (ValueError, do.OperationError) as error:
        return await messages_page(request, place, Search(topic=draft.topic), draft, str(error))
    where = {"topic": draft.topic, "broker": queue.broker, "queue": queue.queue_id, "offset": offset}
    return RedirectResponse(f"{place.snapshot.key.path}/message?{urlencode(where)}", 303)


@router.get("/message")
async def message(
    request: Request,
    place: Here,
    topic: str,
    broker: str,
    queue: int,
    offset: int,
    kind: str = "auto",
) -> Response:
    received = await do.message_at(place.source, topic, broker, queue, offset)
    if received is None:
        raise HTTPException(404, f"queue {queue} of {topic} in {broker} has no message {offset}")
    return page(request, place, "message.html", "messages", **message_values(request, place.source, received, kind))
