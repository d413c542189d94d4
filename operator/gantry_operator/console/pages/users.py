"""The users of a cluster, the change of one, and a new key for it."""

from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import Response

from gantry_operator.actions.users import change_user, list_users, rotate_key, rule_text, user_settings
from gantry_operator.console import operations as do
from gantry_operator.console.requests import Change, ClusterRequest, Form, Here, after_change, one, page

router = APIRouter(prefix="/c/{space}/{name}")


@router.get("/users")
async def users(request: Request, place: Here) -> Response:
    rows, said = [], ""
    try:
        async with do.one_line_errors():
            rows = await list_users(place.source.target)
    except do.OperationError as error:
        said = str(error)
    return page(request, place, "users.html", "actions", rows=rows, said=said, rule_text=rule_text)


async def edit_page(
    request: Request, place: ClusterRequest, user: str, form: Form, refused: str = "", code: int = 200
) -> Response:
    """Show the form: as it was typed, else as the user is now."""
    async with do.one_line_errors():
        found = await user_settings(place.source.target, user)
    typed = {
        "allow": one(form, "allow") if "allow" in form else "\n".join(found["allow"]),
        "deny": one(form, "deny") if "deny" in form else "\n".join(found["deny"]),
        "super": one(form, "super") if form else "--super" if found["superUser"] else "",
    }
    return page(
        request, place, "user_edit.html", "actions", user=user, typed=typed, refused=refused, code=code,
        digest=one(form, "digest") or found["digest"], chooser=" ".join(place.source.command),
        rotate=do.gantry(place.source, "user", "rotate", user),
    )  # fmt: skip


@router.get("/users/{user}/edit")
async def edit(request: Request, place: Here, user: str) -> Response:
    return await edit_page(request, place, user, {})


@router.post("/users/{user}/edit")
async def write(request: Request, change: Change, user: str) -> Response:
    place, form = change
    allow, deny, everything = one(form, "allow").split(), one(form, "deny").split(), bool(one(form, "super"))
    try:
        async with do.one_line_errors():
            said = await change_user(
                place.source.target, user, super_user=everything, allow=allow, deny=deny, digest=one(form, "digest")
            )
    except do.OperationError as error:
        # What others have changed is shown beside what was typed, and may be overwritten then.
        again = {name: value for name, value in form.items() if name != "digest"}
        return await edit_page(request, place, user, again, str(error), 502)
    words = ["--super" if everything else "--no-super"]
    words += [word for rule in allow or [""] for word in ("--allow", rule)]
    words += [word for rule in deny or [""] for word in ("--deny", rule)]
    command = do.gantry(place.source, "user", "change", user, *words)
    return after_change(place, "actions", said, command, f"{place.snapshot.key.path}/users")


@router.post("/users/{user}/rotate")
async def rotate(request: Request, change: Change, user: str) -> Response:
    place, _ = change
    try:
        async with do.one_line_errors():
            key = await rotate_key(place.source.target, user)
    except do.OperationError as error:
        return await edit_page(request, place, user, {}, str(error), 502)
    said = f"{user}: a new secret key is in {key}; the former one stays valid for the overlap"
    command = do.gantry(place.source, "user", "rotate", user)
    return after_change(place, "actions", said, command, f"{place.snapshot.key.path}/users/{quote(user, safe='')}/edit")
