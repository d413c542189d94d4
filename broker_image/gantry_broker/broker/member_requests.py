"""Requests between the members of a group: the Handler of the replication port.

Each connection has proved which member is at its other end (`remoting/handshake.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantry_broker.broker.dispatch import FORWARDED, not_supported
from gantry_broker.broker.forward import Process, take_forwarded
from gantry_broker.protocol.codes import GantryCode

if TYPE_CHECKING:
    from gantry_broker.broker.core import Broker
    from gantry_broker.protocol.frame import Frame
    from gantry_broker.remoting.connection import Connection


class MemberRequests:
    """Fetches, polls, reads of the log and forwarded writes."""

    def __init__(self, broker: Broker, process: Process) -> None:
        """`process` carries out the clients' requests that another member forwards."""
        self._broker = broker
        self._process = process

    def on_open(self, conn: Connection) -> None:
        """Nothing is to be done before the first request."""

    def on_close(self, conn: Connection) -> None:
        self._broker.replication.on_connection_lost(conn)

    def on_frames(self, conn: Connection, frames: list[Frame]) -> None:
        broker = self._broker
        for frame in frames:
            code = frame.code
            if code == GantryCode.FETCH:
                broker.replication.on_fetch(conn, frame)
            elif code == GantryCode.POLL:
                broker.replication.on_poll(conn, frame)
            elif code == GantryCode.FORWARD:
                take_forwarded(broker, conn, frame, self._process, FORWARDED)
            elif not frame.is_oneway:
                conn.send(broker.mender.answer(frame) if code == GantryCode.READ_LOG else not_supported(frame))
