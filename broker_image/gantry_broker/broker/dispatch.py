"""The remoting server's Handler for clients: requests are processed here, or writes wait for a handover.

While a handover is under way, writes are buffered; once another member is master they are forwarded (`forward.py`). A
client that takes a follower for the master, at any other time, is carried to the master (`relay.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantry_broker.admission import admit, admits, left
from gantry_broker.broker.pull.service import ASTRAY
from gantry_broker.broker.relay import RELAY, is_for_leader
from gantry_broker.protocol.codes import RequestCode
from gantry_broker.protocol.requests import FORWARDED, LEADER_ONLY, PULLS, TO_EVERY_MEMBER
from gantry_broker.remoting.connection import SendTaker

if TYPE_CHECKING:
    from gantry_core import SendRules

    from gantry_broker.access.gate import Gate
    from gantry_broker.broker.clients import ClientTable
    from gantry_broker.broker.forward import Forwarder
    from gantry_broker.broker.group_notifier import GroupNotifier
    from gantry_broker.broker.processing import RequestProcessor
    from gantry_broker.broker.relay import Relays
    from gantry_broker.broker.role import RoleState
    from gantry_broker.protocol.frame import Frame, Sends
    from gantry_broker.remoting.connection import Connection

GROUP: Final = "group"
"""`Connection.listener` of the port that only the leader binds."""


class Dispatcher(SendTaker):
    """The Handler of the ports for clients."""

    def __init__(
        self,
        processor: RequestProcessor,
        forwarder: Forwarder,
        role: RoleState,
        clients: ClientTable,
        notifier: GroupNotifier,
        gate: Gate,
        relays: Relays,
    ) -> None:
        self._relays = relays
        self._forwarder = forwarder
        self._role = role
        self._clients = clients
        self._notifier = notifier
        self._gate = gate
        self._process = processor.process
        self._refuse = processor.refuse
        self._send_rules = processor.send_rules
        self._process_sends = processor.process_sends
        processor.process_again = self._take

    def on_open(self, conn: Connection) -> None:
        """Do nothing: a client is known by its first request."""

    def on_close(self, conn: Connection) -> None:
        left(self._gate, conn)
        self._relays.closed(conn)
        for group in self._clients.closed(conn):
            self._notifier.group_changed(group)

    def on_frames(self, conn: Connection, frames: list[Frame]) -> None:
        """Take all requests of one read: the only way in for clients, and so the one place where access is checked.

        Requests that wait, for a message, for their turn or for a master, were checked before they waited.
        """
        if self._gate.active:
            frames = admit(self._gate, conn, frames)
            if not frames:
                return
        self._take(conn, frames)

    def send_rules(self) -> SendRules | None:
        """Return what plain sends are now; None while each is looked at by itself: its rights, or where it goes."""
        if not self._role.may_append or self._forwarder.busy:
            return None
        return self._send_rules if not self._gate.active or self._gate.takes_sends() else None

    def take_sends(self, conn: Connection, sends: Sends) -> bool:
        gate = self._gate
        if not gate.active:
            return self._process_sends(conn, sends)
        if not admits(gate, conn, sends) or not self._process_sends(conn, sends):
            return False
        if sends.user is None:
            gate.anonymous += sends.messages
        return True

    def _take(self, conn: Connection, frames: list[Frame]) -> None:
        forwarder = self._forwarder
        if self._role.may_append and not forwarder.busy:
            self._process(conn, frames)
            return
        if RELAY in conn.attrs:
            self._relays.take(conn, frames)
            return
        if not forwarder.wants():
            frames = self._relay(conn, frames)
            if not frames:
                return
        rest: list[Frame] = []
        kept: list[Frame] = []
        ours = FORWARDED if self._role.has_stale_clients and forwarder.wants() else LEADER_ONLY
        for frame in frames:
            (kept if frame.code in ours else rest).append(frame)
        if rest:
            self._process(conn, rest)
        if not kept:
            return
        if forwarder.wants():
            forwarder.take(conn, kept)
            return
        passed = [frame for frame in kept if frame.code in TO_EVERY_MEMBER] if forwarder.may_pass_on else []
        if passed:
            forwarder.pass_on(conn, passed)
        if len(passed) < len(kept):
            self._refuse(conn, [frame for frame in kept if frame not in passed])

    def _relay(self, conn: Connection, frames: list[Frame]) -> list[Frame]:
        """Pass on what a client sends to the leader. Returns the requests for this member: those before the first one
        that tells that this client takes it for the leader.
        """
        relays = self._relays
        if conn.listener == GROUP:
            relays.misled(conn)  # The port of the leader alone, which this member no longer is.
        if not relays.possible:
            return frames
        for at, frame in enumerate(frames):
            if frame.code == RequestCode.HEART_BEAT:
                relays.keep_heartbeat(conn, frame)
            elif is_for_leader(frame) or (frame.code in PULLS and ASTRAY in conn.attrs):
                if not relays.ready(conn):
                    relays.misled(conn)
                    break
                if at:
                    self._process(conn, frames[:at])
                relays.take(conn, frames[at:])
                return []
        return frames
