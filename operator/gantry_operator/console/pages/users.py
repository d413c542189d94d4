"""The users of a cluster."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from gantry_operator.actions.users import list_users
from gantry_operator.console import operations as do
from gantry_operator.console.requests import Here, page

router = APIRouter(prefix="/c/{space}/{name}")


@router.get("/users")
async def users(request: Request, place: Here) -> Response:
    rows, said = [], ""
    try:
        async with do.one_line_errors():
            rows = await list_users(place.source.target)
    except do.OperationError as error:
        said = str(error)
    return page(request, place, "users.html", "actions", rows=rows, said=said)
