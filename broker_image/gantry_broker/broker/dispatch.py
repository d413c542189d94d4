"""The remoting server's Handler for clients: requests are processed here, or writes wait for a handover.

While a handover is under way, writes are buffered; once another member is master they are forwarded (`forward.py`). A
client that takes a follower for the master, at any other time, is carried to the master (`relay.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantry_broker.admission import admit, left
from gantry_broker.broker.processing import SENDS
from gantry_broker.broker.pull.service import ASTRAY
from gantry_broker.broker.relay import PULLS, RELAY, is_for_leader
from gantry_broker.protocol.codes import RequestCode

if TYPE_CHECKING:
    from gantry_broker.access.gate import Gate
    from gantry_broker.broker.clients import ClientTable
    from gantry_broker.broker.forward import Forwarder
    from gantry_broker.broker.group_notifier import GroupNotifier
    from gantry_broker.broker.processing import RequestProcessor
    from gantry_broker.broker.relay import Relays
    from gantry_broker.broker.role import RoleState
    from gantry_broker.protocol.frame import Frame
    from gantry_broker.remoting.connection import Connection

WRITES: Final = SENDS | {
    int(code)
    for code in (
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.END_TRANSACTION,
        RequestCode.RESUME_CHECK_HALF_MESSAGE,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.POP_MESSAGE,
        RequestCode.PEEK_MESSAGE,
        RequestCode.NOTIFICATION,
        RequestCode.POLLING_INFO,
        RequestCode.ACK_MESSAGE,
        RequestCode.BATCH_ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        RequestCode.RECALL_MESSAGE,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
    )
}
"""Requests that only a master carries out: buffered and forwarded during a handover, refused by others."""
OF_THE_MASTER: Final = frozenset({int(RequestCode.GET_MAX_OFFSET)})
"""Reads that a former master passes on while clients still take it for the master: a slave learns of the last confirmed
record some milliseconds late, and a client must find the message that was acknowledged just before."""
TO_EVERY_MEMBER: Final = frozenset(
    int(code)
    for code in (
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.UPDATE_BROKER_CONFIG,
    )
)
"""Writes that mqadmin sends to masters and slaves (`-c`), and gives up at the first refusal. RocketMQ's slaves carry
them out by themselves; here they pass them on to the master, for which a second time changes nothing."""
FOR_LEADER: Final = WRITES - TO_EVERY_MEMBER
"""Writes that a client sends only to the member that it takes for the master."""
GROUP: Final = "group"
"""`Connection.listener` of the port that only the leader binds."""
FORWARDED: Final = WRITES | OF_THE_MASTER
"""Requests that a former master passes on; a FORWARD may wrap no others."""


class Dispatcher:
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
        processor.process_again = self._take

    def on_open(self, conn: Connection) -> None:
        """Does nothing: a client is known by its first request."""

    def on_close(self, conn: Connection) -> None:
        left(self._gate, conn)
        self._relays.closed(conn)
        for group in self._clients.closed(conn):
            self._notifier.group_changed(group)

    def on_frames(self, conn: Connection, frames: list[Frame]) -> None:
        """Takes all requests of one read: the only way in for clients, and so the one place where access is checked.

        Requests that wait, for a message, for their turn or for a master, were checked before they waited.
        """
        if self._gate.active:
            frames = admit(self._gate, conn, frames)
            if not frames:
                return
        self._take(conn, frames)

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
        ours = FORWARDED if self._role.has_stale_clients and forwarder.wants() else WRITES
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
        """Passes on what a client sends to the leader. Returns the requests for this member: those before the first one
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
            elif is_for_leader(frame, FOR_LEADER) or (frame.code in PULLS and ASTRAY in conn.attrs):
                if not relays.ready(conn):
                    relays.misled(conn)
                    break
                if at:
                    self._process(conn, frames[:at])
                relays.take(conn, frames[at:])
                return []
        return frames
