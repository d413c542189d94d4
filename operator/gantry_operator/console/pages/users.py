"""The users of a cluster, the change of one, and a new key for it."""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import Response

from gantry_operator.actions.users import change_user, list_users, rotate_key, rule_text, user_settings
from gantry_operator.console import operations as do
from gantry_operator.console.pages.editing import Editing, Settings
from gantry_operator.console.requests import Change, Form, Here, after_change, one, page

router = APIRouter(prefix="/c/{space}/{name}")


@router.get("/users")
async def users(request: Request, place: Here) -> Response:
    rows, problem = [], ""
    try:
        async with do.one_line_errors():
            rows = await list_users(place.source.target)
    except do.OperationError as error:
        problem = str(error)
    return page(request, place, "users.html", "actions", rows=rows, said=problem, rule_text=rule_text)


def changes_in(form: Form, found: Settings) -> dict[str, Any]:
    """Return all that `change_user` takes: the form has the whole of it."""
    rules = {name: one(form, name).split() for name in ("allow", "deny")}
    return rules | {"super_user": bool(one(form, "super"))}


def options_of(changes: Mapping[str, Any]) -> list[str]:
    """Return the options of `gantry user change`."""
    words = ["--super" if changes["super_user"] else "--no-super"]
    for name in ("allow", "deny"):
        words += [word for rule in changes[name] or [""] for word in (f"--{name}", rule)]
    return words


EDITING: Final = Editing(
    kind="user", section="actions", settings=user_settings,
    texts=lambda found: {
        "allow": "\n".join(found["allow"]), "deny": "\n".join(found["deny"]),
        "super": "--super" if found["superUser"] else "",
    },
    changes=changes_in,
    change=lambda target, user, changes, digest: change_user(target, user, **changes, digest=digest),
    options=options_of, described=False,
)  # fmt: skip
EDITING.add_to(router)


@router.post("/users/{user}/rotate")
async def rotate(request: Request, change: Change, user: str) -> Response:
    place, _ = change
    try:
        async with do.one_line_errors():
            key = await rotate_key(place.source.target, user)
    except do.OperationError as error:
        return await EDITING.show(request, place, user, {}, str(error), 502)
    done = f"{user}: a new secret key is in {key}; the former one stays valid for the overlap"
    command = do.gantry(place.source, "user", "rotate", user)
    return after_change(place, "actions", done, command, f"{place.snapshot.key.path}/users/{quote(user, safe='')}/edit")
