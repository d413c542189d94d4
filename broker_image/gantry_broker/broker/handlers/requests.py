"""Parts that all handlers share: their type, JSON bodies, the plain answer.

A handler gets the parts that its module names, the connection and the request. It returns the answer, a coroutine that
returns it, a function that gives it to the one that it gets (`Later`), or None when it sends the answer itself or the
request needs none. Its exceptions become error answers (`errors.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gantry_broker.protocol import fastjson
from gantry_broker.protocol.fields import BodyError
from gantry_broker.protocol.frame import Frame

if TYPE_CHECKING:
    from gantry_broker.remoting.connection import Connection
    from gantry_broker.timeslice import TimeSlices

T = TypeVar("T")
MAX_AT_ONCE: Final = 1_000
"""Topics or groups that one request may create."""

Later = Callable[[Callable[[Frame], None]], None]
"""Work that goes on without a task of its own. It gives its answer once, and raises nothing."""
Result = Frame | None | Coroutine[Any, Any, Frame | None] | Later
Handler = Callable[["Connection", Frame], Result]
"""A handler that has its parts."""


def json_body(request: Frame, what: str) -> Any:
    """Return the value of a JSON body. Raises BodyError."""
    try:
        return fastjson.loads(request.body, fastjson.MAX_REQUEST_DIALECT)
    except fastjson.JsonError as error:
        raise BodyError(f"the body ({what}) cannot be read: {error}") from None


def configurations(request: Frame, word: str) -> list[Any]:
    """Return the list of a body about several topics or groups (`word`). Raises BodyError."""
    name = f"{word}ConfigList"
    value = json_body(request, name)
    items = value.get(name) if isinstance(value, dict) else None
    if not isinstance(items, list) or not items:
        raise BodyError(f"the body's {name} is absent; a list of {word} configurations is expected")
    if len(items) > MAX_AT_ONCE:
        raise BodyError(f"the body's {name} has {len(items)} {word}s, the limit is {MAX_AT_ONCE}")
    return items


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
