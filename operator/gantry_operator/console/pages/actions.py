"""Changes by a form: switchover, a topic, a user, pause. A refused form keeps what was typed."""

from collections.abc import Awaitable, Callable

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import Response

from gantry_operator.actions.topics import create_topic
from gantry_operator.actions.users import NewUser, create_user
from gantry_operator.console import operations as do
from gantry_operator.console.health import members_of
from gantry_operator.console.requests import Change, ClusterRequest, Form, Here, after_change, number, one, page

router = APIRouter(prefix="/c/{space}/{name}")


def actions_page(request: Request, place: ClusterRequest, form: Form, refused: str = "", code: int = 200) -> Response:
    return page(
        request, place, "actions.html", "actions", members=members_of(place.snapshot, place.now), code=code,
        chooser=" ".join(place.source.command), pausing=place.source.pausing, refused=refused,
        paused=place.snapshot.status.get("phase") == "Paused", at=request.url.path.rpartition("/")[2],
        kept=lambda name, usual="": one(form, name) if name in form else usual,
    )  # fmt: skip


async def attempt(
    request: Request,
    change: tuple[ClusterRequest, Form],
    work: Callable[[ClusterRequest, Form], Awaitable[tuple[str, str]]],
) -> Response:
    """Do the work of a form on the page of actions, which returns a sentence and the command."""
    place, form = change
    try:
        async with do.one_line_errors():
            done, command = await work(place, form)
    except ValueError as error:
        return actions_page(request, place, form, str(error), 400)
    except do.OperationError as error:
        return actions_page(request, place, form, str(error), 502)
    return after_change(place, "actions", done, command, f"{place.snapshot.key.path}/actions")


@router.get("/actions")
async def actions(request: Request, place: Here) -> Response:
    return actions_page(request, place, {})


@router.post("/actions/switchover")
async def switchover(request: Request, change: Change) -> Response:
    async def work(place: ClusterRequest, form: Form) -> tuple[str, str]:
        group, to = one(form, "group"), one(form, "to") or None
        done = await place.source.target.switchover(group, to)
        return done, do.gantry(place.source, "switchover", group, *(["--to", to] if to else []))

    return await attempt(request, change, work)


@router.post("/actions/topic")
async def make_topic(request: Request, change: Change) -> Response:
    async def work(place: ClusterRequest, form: Form) -> tuple[str, str]:
        name, queues, managed = one(form, "topic"), number(form, "queues", 1, 1024), bool(one(form, "managed"))
        groups = await create_topic(place.source.target, name, {"queuesPerGroup": queues}, managed)
        done = f"{name}: {queues} queues in {', '.join(groups)}"
        more = ["--managed"] if managed else []
        return done, do.gantry(place.source, "topic", "create", name, "--queues", str(queues), *more)

    return await attempt(request, change, work)


@router.post("/actions/user")
async def make_user(request: Request, change: Change) -> Response:
    async def work(place: ClusterRequest, form: Form) -> tuple[str, str]:
        rules = one(form, "allow").split()
        user = NewUser(one(form, "user"), None, False, rules, ())
        done = f"{user.name}: its keys are in {await create_user(place.source.target, user)}"
        words = [word for rule in rules for word in ("--allow", rule)]
        return done, do.gantry(place.source, "user", "create", user.name, *words)

    return await attempt(request, change, work)


@router.post("/actions/pause")
async def pause(request: Request, change: Change) -> Response:
    async def work(place: ClusterRequest, form: Form) -> tuple[str, str]:
        pausing = place.source.pausing
        if pausing is None:
            raise HTTPException(404, "a cluster of this machine cannot be paused")
        pauses = one(form, "paused") == "true"
        await pausing.pause(pauses)
        done = "the operator makes no changes until it is resumed; failover goes on" if pauses else "changes go on"
        return done, pausing.command(pauses)

    return await attempt(request, change, work)
