"""Changes that a person makes on a page. A refused form keeps what was typed; a change that is done redirects."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import Response
from gantry_broker.protocol.digits import whole_number

from gantry_operator.actions.users import NewUser
from gantry_operator.console import operations as do
from gantry_operator.console.health import members_of

Form = Mapping[str, list[str]]
FOUND = 20
"""Names that the palette offers at once."""


def one(form: Form, name: str) -> str:
    """The first value of a field, without the spaces around it."""
    return (form.get(name) or [""])[0].strip()


def number(form: Form, name: str, least: int, most: int) -> int:
    """Raises ValueError that names the field and its range."""
    text = one(form, name)
    value = whole_number(text, least, most)
    if value is None:
        raise ValueError(f"{name} is {text[:40]!r}: write a number from {least} to {most}")
    return value


def add_pages(
    app: FastAPI,
    reading: Callable[..., Any],
    writing: Callable[..., Any],
    page: Callable[..., Response],
    done: Callable[[Any, str, str, str, str], Response],
) -> None:
    """Add the routes. `done` sends the browser to the page of a change; the others are as for the pages of messages."""
    Here = Annotated[Any, Depends(reading)]
    Change = Annotated[Any, Depends(writing)]

    def actions_page(request: Request, place: Any, form: Form, refused: str = "", code: int = 200) -> Response:
        return page(
            request, place, "actions.html", "actions", members=members_of(place.snapshot, place.now), code=code,
            chooser=" ".join(place.source.command), pausing=place.source.pausing, refused=refused,
            paused=place.snapshot.status.get("phase") == "Paused", at=request.url.path.rpartition("/")[2],
            kept=lambda name, usual="": one(form, name) if name in form else usual,
        )  # fmt: skip

    async def attempt(
        request: Request, change: Any, work: Callable[[Any, Form], Awaitable[tuple[str, str]]]
    ) -> Response:
        """Do the work of a form on the page of actions, which returns a sentence and the command."""
        place, form = change
        try:
            said, command = await work(place, form)
        except ValueError as error:
            return actions_page(request, place, form, str(error), 400)
        except do.OperationError as error:
            return actions_page(request, place, form, str(error), 502)
        return done(place, "actions", said, command, f"{place.snapshot.key.path}/actions")

    @app.get("/c/{space}/{name}/actions")
    async def actions(request: Request, place: Here) -> Response:
        return actions_page(request, place, {})

    @app.post("/c/{space}/{name}/actions/switchover")
    async def switchover(request: Request, change: Change) -> Response:
        async def work(place: Any, form: Form) -> tuple[str, str]:
            group, to = one(form, "group"), one(form, "to") or None
            said = await do.switchover(place.source, group, to)
            return said, do.gantry(place.source, "switchover", group, *(["--to", to] if to else []))

        return await attempt(request, change, work)

    @app.post("/c/{space}/{name}/actions/topic")
    async def make_topic(request: Request, change: Change) -> Response:
        async def work(place: Any, form: Form) -> tuple[str, str]:
            name, queues, managed = one(form, "topic"), number(form, "queues", 1, 1024), bool(one(form, "managed"))
            said = await do.make_topic(place.source, name, queues, managed)
            more = ["--managed"] if managed else []
            return said, do.gantry(place.source, "topic", "create", name, "--queues", str(queues), *more)

        return await attempt(request, change, work)

    @app.post("/c/{space}/{name}/actions/user")
    async def make_user(request: Request, change: Change) -> Response:
        async def work(place: Any, form: Form) -> tuple[str, str]:
            rules = one(form, "allow").split()
            wanted = NewUser(one(form, "user"), None, False, rules, ())
            said = await do.make_user(place.source, wanted)
            words = [word for rule in rules for word in ("--allow", rule)]
            return said, do.gantry(place.source, "user", "create", wanted.name, *words)

        return await attempt(request, change, work)

    @app.post("/c/{space}/{name}/actions/pause")
    async def pause(request: Request, change: Change) -> Response:
        async def work(place: Any, form: Form) -> tuple[str, str]:
            pausing = place.source.pausing
            if pausing is None:
                raise HTTPException(404, "a cluster of this machine cannot be paused")
            wanted = one(form, "paused") == "true"
            async with do.one_line_errors():
                await pausing.pause(wanted)
            said = "the operator makes no changes until it is resumed; failover goes on" if wanted else "changes go on"
            return said, pausing.command(wanted)

        return await attempt(request, change, work)

    def deletion_page(
        request: Request, place: Any, kind: str, name: str, refused: str = "", typed: str = "", code: int = 200
    ) -> Response:
        words = {"topics": "topic", "groups": "group", "users": "user"}
        return page(
            request, place, "delete.html", kind if kind != "users" else "actions", kind=words[kind], subject=name,
            refused=refused, typed=typed, code=code, back=f"{place.snapshot.key.path}/{kind}",
            chooser=" ".join(place.source.command),
        )  # fmt: skip

    @app.get("/c/{space}/{name}/delete/{kind}/{subject}")
    async def ask(request: Request, place: Here, kind: str, subject: str) -> Response:
        if kind not in ("topics", "groups", "users"):
            raise HTTPException(404, "this cannot be deleted here")
        return deletion_page(request, place, kind, subject)

    @app.post("/c/{space}/{name}/delete/{kind}/{subject}")
    async def delete(request: Request, change: Change, kind: str, subject: str) -> Response:
        place, form = change
        if kind not in ("topics", "groups", "users"):
            raise HTTPException(404, "this cannot be deleted here")
        typed, force = one(form, "typed"), bool(one(form, "force"))
        if typed != subject:
            said = f"{typed[:255]!r} is another name: write {subject}"
            return deletion_page(request, place, kind, subject, said, typed, 400)
        try:
            if kind == "users":
                said = await do.remove_user(place.source, subject)
            else:
                said = await (do.remove_topic if kind == "topics" else do.remove_group)(place.source, subject, force)
        except do.OperationError as error:
            return deletion_page(request, place, kind, subject, str(error), typed, 502)
        word = {"topics": "topic", "groups": "group", "users": "user"}[kind]
        command = do.gantry(place.source, word, "delete", subject, *(["--force"] if force else []))
        return done(place, "actions" if kind == "users" else kind, said, command, f"{place.snapshot.key.path}/{kind}")

    @app.get("/c/{space}/{name}/users")
    async def users(request: Request, place: Here) -> Response:
        rows, said = [], ""
        try:
            rows = await do.users_of(place.source)
        except do.OperationError as error:
            said = str(error)
        return page(request, place, "users.html", "actions", rows=rows, said=said)

    @app.get("/c/{space}/{name}/find")
    async def find(place: Here, q: str = "") -> list[dict[str, str]]:
        """Topics, consumer groups and members for the palette, those whose name begins with `q` first."""
        path, text = place.snapshot.key.path, q.strip().lower()
        tables = place.snapshot.tables
        known = [(t.name, "topic", f"{path}/topics/") for t in tables.topics.values() if not t.system]
        known += [(g.name, "group", f"{path}/groups/") for g in tables.groups.values() if not g.system]
        hits = [row for row in known if text in row[0].lower()]
        hits.sort(key=lambda row: (not row[0].lower().startswith(text), row[0].lower()))
        return [{"name": name, "kind": kind, "path": place_of} for name, kind, place_of in hits[:FOUND]]
