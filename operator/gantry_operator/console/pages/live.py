"""Streams that tell an open page that there are new figures."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Request
from fastapi.responses import StreamingResponse

from gantry_operator.console.access import Session
from gantry_operator.console.collector import Collector
from gantry_operator.console.requests import (
    Here,
    console_of,
    person,
)

router = APIRouter()

LIVE_S: Final = 15.0
"""Seconds after which a silent stream of a page says that it lives."""


@router.get("/live")
async def live_all(request: Request, session: Annotated[Session, Depends(person)]) -> StreamingResponse:
    console = console_of(request)
    readable = [c for key, c in console.clusters().items() if await console.access.may_read(session, key)]
    return _stream(request, readable[0] if readable else None)


@router.get("/c/{space}/{name}/live")
async def live(request: Request, place: Here) -> StreamingResponse:
    return _stream(request, place.collector)


def _stream(request: Request, collector: Collector | None) -> StreamingResponse:
    async def events() -> AsyncIterator[bytes]:
        number = -1
        while collector is not None and not collector.ended and not await request.is_disconnected():
            newest = await collector.wait(number, LIVE_S)
            yield b": alive\n\n" if newest == number else f"event: tick\ndata: {newest}\n\n".encode()
            number = newest
            # A page moves at most once a second, however often members answer.
            await asyncio.sleep(0.0 if collector.ended else 1.0)

    return StreamingResponse(events(), media_type="text/event-stream")
