"""The deletion of a topic, a consumer group or a user: the person types its name."""

from typing import Final

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import Response

from gantry_operator.actions.groups import delete_group
from gantry_operator.actions.topics import delete_topic
from gantry_operator.actions.users import delete_user
from gantry_operator.console import operations as do
from gantry_operator.console.requests import Change, ClusterRequest, Here, after_change, one, page

router = APIRouter(prefix="/c/{space}/{name}")

WORDS: Final = {"topics": "topic", "groups": "group", "users": "user"}
"""By the kind in a path: the word of the command that deletes it."""


def deletion_page(
    request: Request, place: ClusterRequest, kind: str, name: str, refused: str = "", typed: str = "", code: int = 200
) -> Response:
    return page(
        request, place, "delete.html", kind if kind != "users" else "actions", kind=WORDS[kind], subject=name,
        refused=refused, typed=typed, code=code, back=f"{place.snapshot.key.path}/{kind}",
        chooser=" ".join(place.source.command),
    )  # fmt: skip


@router.get("/delete/{kind}/{subject}")
async def ask(request: Request, place: Here, kind: str, subject: str) -> Response:
    if kind not in WORDS:
        raise HTTPException(404, "this cannot be deleted here")
    return deletion_page(request, place, kind, subject)


@router.post("/delete/{kind}/{subject}")
async def delete(request: Request, change: Change, kind: str, subject: str) -> Response:
    place, form = change
    if kind not in WORDS:
        raise HTTPException(404, "this cannot be deleted here")
    typed, force = one(form, "typed"), bool(one(form, "force"))
    if typed != subject:
        outcome = f"{typed[:255]!r} is another name: write {subject}"
        return deletion_page(request, place, kind, subject, outcome, typed, 400)
    try:
        async with do.one_line_errors():
            if kind == "users":
                outcome = await delete_user(place.source.target, subject)
            else:
                outcome = await (delete_topic if kind == "topics" else delete_group)(
                    place.source.target, subject, force
                )
    except do.OperationError as error:
        return deletion_page(request, place, kind, subject, str(error), typed, 502)
    command = do.gantry(place.source, WORDS[kind], "delete", subject, *(["--force"] if force else []))
    return after_change(
        place, "actions" if kind == "users" else kind, outcome, command, f"{place.snapshot.key.path}/{kind}"
    )
