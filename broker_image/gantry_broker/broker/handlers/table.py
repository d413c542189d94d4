"""The table of handlers: request code to function.

A handler gets the broker, the connection and the request and gives the answer, a coroutine that gives it, or None when
it answers by itself or when nothing is to be answered. What it raises becomes an error answer (`faults.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from gantry_broker.protocol import fastjson
from gantry_broker.protocol.bodies import BodyError
from gantry_broker.protocol.frame import Frame

if TYPE_CHECKING:
    from gantry_broker.broker.core import Broker
    from gantry_broker.remoting.connection import Connection

T = TypeVar("T")

Result = Frame | None | Coroutine[Any, Any, Frame | None]
HandlerFunction = Callable[["Broker", "Connection", Frame], Result]

TABLE: dict[int, HandlerFunction] = {}


def handles(*codes: int) -> Callable[[HandlerFunction], HandlerFunction]:
    """Enters a function into the table. Raises RuntimeError when a code has one already."""

    def enter(function: HandlerFunction) -> HandlerFunction:
        for code in codes:
            if int(code) in TABLE:
                raise RuntimeError(f"request code {int(code)} has two handlers")
            TABLE[int(code)] = function
        return function

    return enter


def json_body(request: Frame, what: str) -> Any:
    """The value of a JSON body. Raises BodyError."""
    try:
        return fastjson.loads(request.body)
    except fastjson.JsonError as error:
        raise BodyError(f"the body ({what}) cannot be read: {error}") from None


async def json_object(broker: Broker, table: Mapping[str, T], to_json: Callable[[T], Any]) -> bytes:
    """A JSON object of many values, written in slices of the event loop."""
    parts = []
    async for name, value in broker.slices.sliced(list(table.items())):
        parts.append(fastjson.dumps(name) + b":" + fastjson.dumps(to_json(value)))
    return b"{" + b",".join(parts) + b"}"


def ok(request: Frame, ext: dict[str, str] | None = None, body: bytes = b"", remark: str | None = None) -> Frame:
    return Frame.response_to(request, 0, remark, ext, body)
