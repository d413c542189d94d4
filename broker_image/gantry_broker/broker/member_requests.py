"""Requests between the members of a group: the Handler of the replication port.

Each connection has proved which member is at its other end (`remoting/handshake.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantry_broker.broker.dispatch import FORWARDED
from gantry_broker.broker.forward import Process, take_forwarded
from gantry_broker.broker.processing import not_supported
from gantry_broker.protocol.codes import GantryCode

if TYPE_CHECKING:
    from gantry_broker.broker.role import RoleState
    from gantry_broker.protocol.frame import Frame
    from gantry_broker.remoting.connection import Connection
    from gantry_broker.replication.log_repair import LogRepair
    from gantry_broker.replication.service import ReplicationService


class MemberRequests:
    """Fetches, polls, reads of the log and forwarded writes."""

    def __init__(
        self, role: RoleState, replication: ReplicationService, log_repair: LogRepair, process: Process
    ) -> None:
        """`process` carries out the clients' requests that another member forwards."""
        self._role = role
        self._replication = replication
        self._log_repair = log_repair
        self._process = process

    def on_open(self, conn: Connection) -> None:
        """Does nothing before the first request."""

    def on_close(self, conn: Connection) -> None:
        self._replication.on_connection_lost(conn)

    def on_frames(self, conn: Connection, frames: list[Frame]) -> None:
        replication = self._replication
        for frame in frames:
            code = frame.code
            if code == GantryCode.FETCH:
                replication.on_fetch(conn, frame)
            elif code == GantryCode.RAFT:
                replication.on_raft_request(conn, frame)
            elif code == GantryCode.FORWARD:
                take_forwarded(self._role, replication.refusals, conn, frame, self._process, FORWARDED)
            elif not frame.is_oneway:
                conn.send(self._log_repair.answer(frame) if code == GantryCode.READ_LOG else not_supported(frame))
