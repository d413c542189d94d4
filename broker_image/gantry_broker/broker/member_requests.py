"""Requests between the members of a group: the Handler of the replication port.

Each connection has proved which member is at its other end (`remoting/handshake.py`). That alone opens neither the log
nor the way of writes: only a member that fetches from this leader may read parts of the log, to repair its own, and
forward writes, which a former leader does, or carry clients (`relay.py`). A former leader that does not fetch yet tries
again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantry_broker.admission import admit_again
from gantry_broker.broker.forward import ForwardedConnection, Process, take_forwarded
from gantry_broker.broker.processing import not_supported
from gantry_broker.protocol.codes import ResponseCode
from gantry_broker.protocol.headers import error_answer
from gantry_broker.protocol.message import unpack_host
from gantry_broker.protocol.requests import FORWARDED, HANDSHAKE, OF_FOLLOWERS, REQUESTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from gantry_broker.access.gate import Gate
    from gantry_broker.broker.relay import RelayedClients
    from gantry_broker.broker.role import RoleState
    from gantry_broker.protocol.frame import Frame
    from gantry_broker.remoting.connection import Connection
    from gantry_broker.replication.log_repair import LogRepair
    from gantry_broker.replication.service import ReplicationService

NO_FOLLOWER: Final = "this member does not lead, or the peer does not fetch from it"


class MemberRequests:
    """Fetches, polls, reads of the log, forwarded writes and carried clients."""

    def __init__(
        self,
        role: RoleState,
        replication: ReplicationService,
        log_repair: LogRepair,
        process: Process,
        gate: Gate,
        relayed: RelayedClients,
    ) -> None:
        """`process` carries out the clients' requests that another member forwards."""
        self._role = role
        self._replication = replication
        self._log_repair = log_repair
        self._process = process
        self._gate = gate
        self._relayed = relayed
        self._handlers: dict[int, Callable[[Connection, Frame], None]] = {
            int(code): getattr(self, row.member)
            for code, row in REQUESTS.items()
            if row.member and row.member != HANDSHAKE
        }

    def on_open(self, conn: Connection) -> None:
        """Do nothing before the first request."""

    def on_close(self, conn: Connection) -> None:
        self._replication.on_connection_lost(conn)
        self._relayed.on_close(conn)

    def on_frames(self, conn: Connection, frames: list[Frame]) -> None:
        for frame in frames:
            handler = self._handlers.get(frame.code)
            if handler is not None:
                handler(conn, frame)
            elif not frame.is_oneway:
                conn.send(not_supported(frame))

    def fetch(self, conn: Connection, frame: Frame) -> None:
        """Give a follower records of the log."""
        self._replication.on_fetch(conn, frame)

    def raft(self, conn: Connection, frame: Frame) -> None:
        """Answer a Raft request."""
        self._replication.on_raft_request(conn, frame)

    def relay(self, conn: Connection, frame: Frame) -> None:
        """Take frames of clients that another member carries."""
        follows = self._replication.is_followed_by(conn.identity)
        if not self._relayed.on_frame(conn, frame, follows=follows):
            self._refuse(conn, frame)

    def forward(self, conn: Connection, frame: Frame) -> None:
        """Carry out a client's request that a former leader forwards."""
        if self._is_follower(conn, frame):
            refusals = self._replication.refusals
            take_forwarded(self._role, refusals, conn, frame, self._process_forwarded, FORWARDED)

    def read_log(self, conn: Connection, frame: Frame) -> None:
        """Give parts of the log to a member that repairs its own."""
        if self._is_follower(conn, frame) and not frame.is_oneway:
            conn.send(self._log_repair.answer(frame))

    def _is_follower(self, conn: Connection, frame: Frame) -> bool:
        """Return whether the peer fetches from this leader, and refuse the request of one that does not."""
        follows = self._replication.is_followed_by(conn.identity)
        if not follows:
            self._refuse(conn, frame)
        return follows

    def _process_forwarded(self, conn: ForwardedConnection, frames: list[Frame]) -> None:
        """Check again: the former leader did so by its log, and this member's may have another record at a place."""
        admitted = admit_again(self._gate, conn, unpack_host(conn.peer_bytes)[0], frames)
        if admitted:
            self._process(conn, admitted)

    def _refuse(self, conn: Connection, frame: Frame) -> None:
        """Count those of members that are not even in sync. A former leader is, and may ask before its first fetch."""
        in_sync = {member.member for member in self._replication.core.leadership.in_sync}
        if conn.identity is None or conn.identity.member not in in_sync:
            self._replication.refusals.add(OF_FOLLOWERS[frame.code], "unknown-member", f"{conn!r}: {frame.code}")
        if not frame.is_oneway:
            conn.send(error_answer(frame, ResponseCode.SERVICE_NOT_AVAILABLE, NO_FOLLOWER))
