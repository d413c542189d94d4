"""Parts that all handlers share: their type, JSON bodies, the plain answer.

A handler gets the context, the connection and the request. It returns the answer, a coroutine that returns it, a
function that gives it to the one that it gets (`Later`), or None when it sends the answer itself or the request needs
none. Its exceptions become error answers (`errors.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from gantry_broker.protocol import fastjson
from gantry_broker.protocol.bodies import BodyError
from gantry_broker.protocol.frame import Frame

if TYPE_CHECKING:
    from gantry_broker.broker.context import BrokerContext
    from gantry_broker.remoting.connection import Connection
    from gantry_broker.timeslice import TimeSlices

T = TypeVar("T")

Later = Callable[[Callable[[Frame], None]], None]
"""Work that goes on without a task of its own. It gives its answer once, and raises nothing."""
Result = Frame | None | Coroutine[Any, Any, Frame | None] | Later
HandlerFunction = Callable[["BrokerContext", "Connection", Frame], Result]


def json_body(request: Frame, what: str) -> Any:
    """Return the value of a JSON body. Raises BodyError."""
    try:
        return fastjson.loads(request.body, fastjson.MAX_REQUEST_DIALECT)
    except fastjson.JsonError as error:
        raise BodyError(f"the body ({what}) cannot be read: {error}") from None


async def json_object(slices: TimeSlices, table: Mapping[str, T], to_json: Callable[[T], Any]) -> bytes:
    """Encode many values as one JSON object, in slices of the event loop."""
    parts = []
    async for name, value in slices.sliced(list(table.items())):
        parts.append(fastjson.dumps(name) + b":" + fastjson.dumps(to_json(value)))
    return b"{" + b",".join(parts) + b"}"


def forget_content(request: Frame) -> None:
    """Drop fields and body of a request that may wait long, once they are read: a header may have 256 KiB, and its
    answer needs none of it.
    """
    request.ext, request.body = {}, b""


def ok(request: Frame, ext: dict[str, str] | None = None, body: bytes = b"", remark: str | None = None) -> Frame:
    """Return the answer SUCCESS."""
    return Frame.response_to(request, 0, remark, ext, body)
