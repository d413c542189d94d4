"""The stream of a member's status: a line after each change, and at least one a second."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Final

from gantry_broker.tasks import set_within

if TYPE_CHECKING:
    from gantry_broker.broker.events import Event
    from gantry_broker.contracts.models import MemberStatus

STATUS_S: Final = 1.0
"""Seconds between two lines of the status stream, at most."""


class StatusStreams:
    """Wake every open status stream after a change."""

    def __init__(self, status: Callable[[], MemberStatus], status_changed: Event[[]]) -> None:
        self.status = status
        self._events: set[asyncio.Event] = set()
        self.closed = False
        status_changed.subscribe(self.changed)

    def changed(self) -> None:
        for event in self._events:
            event.set()

    def close(self) -> None:
        self.closed = True
        self.changed()

    async def lines(self) -> AsyncIterator[bytes]:
        event = asyncio.Event()
        self._events.add(event)
        try:
            while not self.closed:
                event.clear()
                yield self.status().model_dump_json().encode() + b"\n"
                await set_within(event, STATUS_S)
        finally:
            self._events.discard(event)
