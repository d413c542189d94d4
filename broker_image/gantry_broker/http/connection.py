"""One HTTP connection of uvicorn's, with the limits for which uvicorn has no option.

uvicorn limits the head's size and the idle time itself. It has no deadline for a request, and no limit for the number
of connections that leaves room for the next one.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from gantry_broker.http.limits import Connections, Phase, State, end_with


class LimitedConnection(H11Protocol):
    """Belongs to `table`. A request finds it in its scope as `state["connection"]`."""

    def __init__(self, table: Connections, **given: Any) -> None:
        super().__init__(**given)
        self.app_state = {**self.app_state, "connection": self}
        self.state = State(Phase.HEAD, self.loop.time())
        self._table = table

    # ---- for Connections

    def look(self, now: float) -> None:
        self.state.wrote(self.transport.get_write_buffer_size(), now)
        self.state.enter(self._phase(), now)

    def end(self, status: str) -> None:
        end_with(self.transport, status, answer=self.state.phase is Phase.HEAD)

    def _phase(self) -> Phase:
        if self.transport.is_closing():
            return Phase.CLOSING
        if self.conn.their_state is h11.SEND_BODY:
            return Phase.BODY
        if self.cycle is not None and not self.cycle.response_complete:
            return Phase.ANSWER
        fresh = self.cycle is None or self.conn.trailing_data[0]
        return Phase.HEAD if fresh else Phase.IDLE

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._table.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._table.closed(self)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        self.state.enter(self._phase(), self.loop.time())

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP. A request that the peer sent before may be in work: uvicorn would try to answer it
        after this answer and the end.
        """
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started:
                self.transport.close()
                return
        super().send_400_response(msg)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.state.enter(self._phase(), self.loop.time())

    def pause_writing(self) -> None:
        super().pause_writing()
        self.state.wrote(1, self.loop.time())

    def resume_writing(self) -> None:
        super().resume_writing()
        self.state.wrote(0, self.loop.time())
