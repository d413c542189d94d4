"""One HTTP connection of uvicorn's, with the limits for which uvicorn has no option.

uvicorn limits the head's size and the idle time itself. It has no deadline for a request, and no limit for the number
of connections that leaves room for the next one. It reads as many events as one read has (a head of 8 KiB with 900
fields costs 4 ms, a body in chunks of one byte 15 us a byte): here all connections share the time of the event loop
(`gantry_broker.inbox`).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

import h11
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from gantry_broker.http.limits import Connections, Phase, State, end_with
from gantry_broker.inbox import Inbox
from gantry_broker.remoting.refused import host_of

PIECE: Final = 2 * 1024
"""Bytes of a request that are read at once."""
log = logging.getLogger(__name__)


class _Flow(FlowControl):
    """Does not read again while much waits for its turn."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._behind = False

    def resume_reading(self) -> None:
        self.read_paused = False
        if not self._behind:
            self._transport.resume_reading()

    def wait(self, behind: bool) -> None:
        self._behind = behind
        if behind:
            self._transport.pause_reading()
        elif not self.read_paused:
            self._transport.resume_reading()


class LimitedConnection(H11Protocol):
    """Belongs to `table`. A request finds it in its scope as `state["connection"]`."""

    def __init__(self, table: Connections, **given: Any) -> None:
        super().__init__(**given)
        self.app_state = {**self.app_state, "connection": self}
        self.state = State(Phase.HEAD, self.loop.time())
        self.address = ""
        self._table = table
        self._inbox = Inbox(table.slices, self, PIECE)
        self._reading = False

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
        self.flow = self._flow = _Flow(transport)
        self.address = host_of(transport)
        self._table.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._inbox.leave()
        super().connection_lost(exc)
        self._table.closed(self)

    def data_received(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self._inbox.received(data)

    # ---- its input in turns: `inbox.Owner`

    def handle(self, data: bytes) -> bool:
        """Read a part of a request, or the first bytes of the next one."""
        if self.transport.is_closing():
            return False
        self._reading = True
        try:
            super().data_received(data)
        finally:
            self._reading = False
        self._wait_or_go_on()
        return False

    def handle_events(self) -> None:
        """Read what has come, now or, after an answer, in a later turn."""
        if self._reading:
            super().handle_events()
        else:
            self._table.slices.run(self._next_request)

    def _next_request(self) -> None:
        if self.transport.is_closing():
            return
        try:
            super().handle_events()
            self._wait_or_go_on()
        except Exception:
            log.exception("reading a request of %s failed", self.client)
            self.transport.abort()

    def _wait_or_go_on(self) -> None:
        """Read no further request before this one has its answer."""
        self._inbox.hold(self.conn.their_state in (h11.DONE, h11.MUST_CLOSE, h11.CLOSED))
        self.state.enter(self._phase(), self.loop.time())

    def pause_input(self, wait: bool) -> None:
        self._flow.wait(wait)

    def input_ended(self) -> None:
        """Do nothing: what was read is handled."""

    def abort(self) -> None:
        self.transport.abort()

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
