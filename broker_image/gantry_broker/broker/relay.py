"""Clients that take a follower for the leader: the follower carries their connections to the leader.

In Kubernetes the group's address is a Service, and only the operator moves it, over the API server. Until then it leads
to the former leader, or to a process that has taken its place. Such a member follows the leader, so it knows where the
leader is. It recognises a client of the group's address by its requests: writes, locks of queues, and pulls that commit
an offset go to a leader only. From the first one on it passes on all that the client sends, and all that the leader
answers or asks. So the leader has the client as its own: in its groups, with its held pulls, under its address.

A member appends no request that it carries (rule 23): the leader appends it, or refuses it. A connection is carried
once at most, never from the leader to another member.

The Service may have moved meanwhile, so carried connections end from time to time, without a lost request. The clients
connect again, and reach the leader itself if they can.

All clients of one member share one connection to the leader's replication port. Each frame on it has the number of a
client (`id`), bytes of whole frames, and for the first one the client's address (`host`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from gantry_broker.broker.forward import packed_host
from gantry_broker.broker.processing import ARRIVE_S
from gantry_broker.protocol import plausible
from gantry_broker.protocol.codes import FLAG_ONEWAY, GantryCode, PullFlag, ResponseCode
from gantry_broker.protocol.digits import MAX_INT, whole_number
from gantry_broker.protocol.frame import Frame, FrameDecoder, FrameError, encode_frame
from gantry_broker.protocol.headers import error_answer
from gantry_broker.protocol.limits import MAX_RELAYED
from gantry_broker.protocol.message import unpack_host
from gantry_broker.protocol.requests import FOR_LEADER, POLLS, POP_POLLS, PULLS
from gantry_broker.remoting.client import RemotingClient
from gantry_broker.remoting.errors import RemotingError
from gantry_broker.tasks import end_tasks

if TYPE_CHECKING:
    from gantry_broker.broker.clients import ClientTable
    from gantry_broker.broker.group_notifier import GroupNotifier
    from gantry_broker.broker.role import RoleState
    from gantry_broker.config import BrokerConfig
    from gantry_broker.refusals import Refusals
    from gantry_broker.remoting.connection import Connection
    from gantry_broker.remoting.members import Membership
    from gantry_broker.remoting.tls import Certificates
    from gantry_broker.replication.service import ReplicationService

log = logging.getLogger(__name__)

RELAYED: Final = "relayed"
"""`Connection.listener` of a client whose connection another member carries."""
RELAY: Final = "relay"
HEARTBEAT: Final = "heartbeat"
"""Attributes of a connection: its relay, and its last heartbeat while this member does not lead."""
LONGEST_HEARTBEAT: Final = 64 * 1024
"""Bytes of the body of a heartbeat that is kept."""
OPEN_S: Final = 2.0
RETRY_S: Final = 0.2
"""Seconds after a leader that took no clients until the next attempt."""
ROUND_S: Final = 1.0
"""Seconds until carried clients are disconnected for the first time: a Service follows its label in 0.25 to 0.65 s."""
LONGEST_S: Final = 30.0
"""Each pause is twice as long as the one before, and at most this long."""
FORCE_S: Final = 3.0
"""The longest time in seconds that unanswered requests delay the end of a connection."""
SETTLE_S: Final = 1.0
LOOK_S: Final = 0.01
NO_LEADER: Final = "service not available now: the master takes no clients of this member yet, send again"


def is_for_leader(frame: Frame) -> bool:
    """Whether a client sends this request only to the member that it takes for the leader.

    Clients clear the flag of a pull that commits an offset when they read from a slave.
    """
    code = frame.code
    if code in PULLS:
        flags = whole_number(frame.ext.get("sysFlag", ""), high=MAX_INT)
        return flags is not None and flags & PullFlag.COMMIT_OFFSET != 0
    return code in FOR_LEADER


class Relay:
    """One client's connection that this member carries."""

    def __init__(self, number: int, conn: Connection) -> None:
        self.number = number
        self.conn = conn
        self.decoder = FrameDecoder()
        self.outstanding: dict[int, Frame] = {}
        """Requests without an answer, by opaque; without their bodies."""
        self.waiting: list[bytes] = []
        """What was read before the leader takes clients."""
        self.upstream: Connection | None = None
        """The connection to the leader that carries this one, once the leader knows the client's address."""
        self._holds: set[str] = set()

    def hold(self, reason: str, wait: bool) -> None:
        """Read nothing from the client while there is a reason."""
        (self._holds.add if wait else self._holds.discard)(reason)
        self.conn.throttle(bool(self._holds))

    @property
    def pops(self) -> bool:
        return any(frame.code in POP_POLLS for frame in self.outstanding.values())

    @property
    def works(self) -> bool:
        """Whether a request is under way that the leader does not hold."""
        return any(frame.code not in POLLS for frame in self.outstanding.values())


class Relays:
    """The clients that this member carries to the leader, and those that it could only refuse."""

    def __init__(
        self,
        config: BrokerConfig,
        role: RoleState,
        replication: ReplicationService,
        clients: ClientTable,
        notifier: GroupNotifier,
        membership: Membership,
        tls: Certificates | None,
        connect_s: float = 1.0,
    ) -> None:
        self.end_clients: Callable[[list[Connection]], Awaitable[None]] = _none
        """Ends connections of clients that this member serves itself."""
        self.possible = config.group_port is None and config.replication_port is not None
        """Whether clients of the group's address may get to a follower: a port that only the leader binds has none."""
        self.carried = 0
        """Connections that were carried since the start."""
        self._role = role
        self._replication = replication
        self._clients = clients
        self._notifier = notifier
        self._client = RemotingClient(
            on_disconnect=lambda address: self._lost(), connect_timeout=connect_s, membership=membership, tls=tls
        )
        self._client.register(GantryCode.RELAY, self._from_leader)
        self._relays: dict[int, Relay] = {}
        self._misled: dict[Connection, None] = {}
        self._number = 0
        self._target = ""
        self._upstream: Connection | None = None
        """The connection to the leader, once it takes clients."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._opening = self._drains = False
        self._rounds: asyncio.Task[None] | None = None
        self._not_before = 0.0
        self._pause = ROUND_S
        self._epoch = -1

    def __len__(self) -> int:
        return len(self._relays)

    def ready(self, conn: Connection) -> bool:
        """Whether a request of this connection for the leader can go there now."""
        replication = self._replication
        return (
            self.possible
            and conn.listener != RELAYED
            and not self._role.leading
            and replication.follows
            and replication.leader_address is not None
            and asyncio.get_running_loop().time() >= self._not_before
        )

    def misled(self, conn: Connection) -> None:
        """Note a client of the group's address whose request was refused. Its connection ends in the next round."""
        conn.attrs["client"] = True
        self._misled[conn] = None
        self._begin_rounds()

    def keep_heartbeat(self, conn: Connection, frame: Frame) -> None:
        """Keep a heartbeat for the leader, which gets it when this connection is carried."""
        if len(frame.body) <= LONGEST_HEARTBEAT:
            conn.attrs[HEARTBEAT] = frame

    def take(self, conn: Connection, frames: list[Frame]) -> None:
        """Pass on requests, and from now on all that comes on this connection."""
        relay = conn.attrs.get(RELAY)
        if relay is None:
            relay = self._begin(conn)
        for frame in frames:
            if not frame.is_oneway:
                relay.outstanding[frame.opaque] = Frame(frame.code, frame.opaque, serialize=frame.serialize)
        self._send(relay, b"".join([encode_frame(frame) for frame in frames]))

    def closed(self, conn: Connection) -> None:
        """Note that a client's connection has ended."""
        self._misled.pop(conn, None)
        relay = conn.attrs.get(RELAY)
        if relay is not None:
            self._forget(relay)

    def role_changed(self) -> None:
        """End what was carried to a former leader."""
        if self._relays and (self._role.leading or self._replication.leader_address != self._target):
            self._spawn(self._end_round(list(self._relays.values())))

    async def close(self) -> None:
        await end_tasks(*self._tasks, self._rounds)
        for relay in list(self._relays.values()):
            self._end(relay)
        await self._client.close()

    # ---- towards the leader

    def _begin(self, conn: Connection) -> Relay:
        self._number += 1
        self.carried += 1
        relay = self._relays[self._number] = Relay(self._number, conn)
        conn.attrs[RELAY] = relay
        conn.attrs["client"] = True
        conn.on_answers = lambda answers: self._send(relay, b"".join([encode_frame(a) for a in answers]))
        self._misled.pop(conn, None)
        for group in self._clients.closed(conn):
            self._notifier.group_changed(group)
        heartbeat = conn.attrs.pop(HEARTBEAT, None)
        if heartbeat is not None:
            heartbeat.flag |= FLAG_ONEWAY  # It has been answered.
            self._send(relay, encode_frame(heartbeat))
        self._begin_rounds()
        return relay

    def _send(self, relay: Relay, data: bytes) -> None:
        if relay.number not in self._relays:
            return
        upstream = relay.upstream
        if upstream is None and self._target == self._replication.leader_address:
            upstream = self._upstream
        if upstream is None or upstream.lost:
            relay.waiting.append(data)
            relay.hold("opening", True)
            if not self._opening:
                self._opening = True
                self._spawn(self._open())
            return
        for at in range(0, len(data), MAX_RELAYED):
            ext = {"id": str(relay.number)}
            if relay.upstream is None:
                relay.upstream = upstream
                ext["host"] = relay.conn.peer_bytes.hex()
            upstream.write(encode_frame(Frame(GantryCode.RELAY, 0, FLAG_ONEWAY, ext, data[at : at + MAX_RELAYED])))
        if upstream.paused and not self._drains:
            self._drains = True
            self._spawn(self._wait_for(upstream))

    async def _wait_for(self, upstream: Connection) -> None:
        """Read nothing from clients until the leader has read what waits for it."""
        held = list(self._relays.values())
        for relay in held:
            relay.hold("leader", True)
        try:
            await upstream.drained()
        finally:
            self._drains = False
            for relay in held:
                relay.hold("leader", False)

    async def _open(self) -> None:
        """Connect to the leader. If it takes no clients of this member, they are refused."""
        target = self._replication.leader_address or ""
        why_not = NO_LEADER
        try:
            if target:
                answer = await self._client.request(target, Frame(GantryCode.RELAY, ext={"open": ""}), OPEN_S)
                why_not = "" if answer.code == ResponseCode.SUCCESS else f"{NO_LEADER} ({answer.remark})"
        except RemotingError as error:
            why_not = f"{NO_LEADER} ({error})"
        finally:
            self._opening = False
        self._upstream = None if why_not else self._client.ready(target)
        if self._upstream is None:
            log.info("%s: %s", target, why_not or NO_LEADER)
            self._not_before = asyncio.get_running_loop().time() + RETRY_S
            for relay in list(self._relays.values()):
                if relay.upstream is None:
                    self._end(relay, why_not or NO_LEADER)
            return
        if target != self._target:
            log.info("clients that take this member for the master are carried to %s", target)
        self._target = target
        for relay in list(self._relays.values()):
            if relay.upstream is None:
                waiting, relay.waiting = relay.waiting, []
                self._send(relay, b"".join(waiting))
                relay.hold("opening", False)

    def _lost(self) -> None:
        """Reset what a lost connection to a leader carried: a client sends again at once after a reset."""
        if self._upstream is not None and self._upstream.lost:
            self._upstream = None
        for relay in list(self._relays.values()):
            if relay.upstream is not None and relay.upstream.lost:
                self._end(relay)

    # ---- from the leader

    async def _from_leader(self, conn: Connection, frame: Frame) -> Frame | None:
        """Pass a frame on, as a coroutine without a wait, so frames keep their order."""
        relay = self._relays.get(_number(frame))
        if relay is None or conn is not relay.upstream:
            return None
        if frame.body:
            relay.conn.write(frame.body)
            try:
                for answer in relay.decoder.feed(frame.body):
                    if answer.is_response:
                        relay.outstanding.pop(answer.opaque, None)
            except FrameError as error:
                log.warning("%r: the master's answer is no frame: %s", relay.conn, error.reason)
                self._end(relay)
                return None
        read = frame.ext.get("read")
        if read is not None:
            relay.hold("turn", read == "no")
        if "end" in frame.ext:
            self._end(relay)
        return None

    # ---- ends

    def _begin_rounds(self) -> None:
        epoch = self._replication.epoch
        if epoch != self._epoch:
            self._epoch, self._pause = epoch, ROUND_S
        if self._rounds is None or self._rounds.done():
            self._rounds = asyncio.get_running_loop().create_task(self._end_in_rounds())

    async def _end_in_rounds(self) -> None:
        while self._relays or self._misled:
            pause = self._pause
            self._pause = min(2 * pause, LONGEST_S)
            await asyncio.sleep(pause)
            await self._end_round(list(self._relays.values()))
            misled, self._misled = self._misled, {}
            if not self._role.leading:
                await self.end_clients([conn for conn in misled if not conn.closed])

    async def _end_round(self, relays: list[Relay]) -> None:
        """End connections so that every request is answered or certainly not executed, as `Ports` does."""
        relays = [relay for relay in relays if relay.number in self._relays]
        if not relays:
            return
        for relay in relays:
            relay.conn.stop_reading()
        await self._until(lambda: not any(relay.works for relay in self._left(relays)), FORCE_S)
        for relay in self._left(relays):
            self._send_end(relay, "settle pops" if relay.pops else "settle")
        await self._until(lambda: not any(relay.outstanding for relay in self._left(relays)), SETTLE_S)
        await asyncio.sleep(ARRIVE_S)
        for relay in self._left(relays):
            self._end(relay)

    def _left(self, relays: Iterable[Relay]) -> list[Relay]:
        return [relay for relay in relays if relay.number in self._relays]

    async def _until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        ends = asyncio.get_running_loop().time() + timeout_s
        while not condition() and asyncio.get_running_loop().time() < ends:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)

    def _end(self, relay: Relay, refusal: str = "") -> None:
        """End a client's connection. `refusal`: the answer to requests that the leader never got."""
        self._forget(relay)
        conn = relay.conn
        if conn.closed:
            return
        if refusal:
            for frame in relay.outstanding.values():
                conn.send(error_answer(frame, ResponseCode.SERVICE_NOT_AVAILABLE, refusal))
            relay.outstanding.clear()
            conn.stop_reading()
            asyncio.get_running_loop().call_later(ARRIVE_S, conn.close)
        elif relay.outstanding:
            conn.push()
            conn.abort()  # A reset: after an orderly end RocketMQ's Java client would wait for the answers.
        else:
            conn.close()

    def _forget(self, relay: Relay) -> None:
        if self._relays.pop(relay.number, None) is not None:
            relay.conn.on_answers = None
            self._send_end(relay, "close")

    def _send_end(self, relay: Relay, end: str) -> None:
        upstream = relay.upstream
        if upstream is not None and not upstream.lost:
            ext = {"id": str(relay.number), "end": end}
            upstream.write(encode_frame(Frame(GantryCode.RELAY, 0, FLAG_ONEWAY, ext)))

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("carrying clients failed", exc_info=error)


async def _none(clients: list[Connection]) -> None:
    """Do nothing: the default of `Relays.end_clients`."""


Adopt = Callable[[asyncio.Transport, str], "Connection | None"]
"""Makes a connection of a port for clients from a transport; None: there are too many."""


class RelayedClients:
    """The leader's side: clients whose connections other members carry."""

    def __init__(self, role: RoleState, refusals: Refusals) -> None:
        self.adopt: Adopt = lambda transport, name: None
        self.settle: Callable[[set[Connection]], Awaitable[None]] = _settle_none
        """Answers the held pulls of some clients."""
        self.settle_pops: Callable[[], object] = lambda: None
        """Answers all held pops."""
        self._role = role
        self._refusals = refusals
        self._of: dict[Connection, dict[int, CarriedTransport]] = {}
        """By connection of a member: the clients that it carries, by number."""
        self._settling: set[Connection] = set()
        self._pops_wait = False
        self._settler: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return sum(len(clients) for clients in self._of.values())

    def on_frame(self, conn: Connection, frame: Frame, *, follows: bool) -> bool:
        """Take a frame of a member. False: it is refused, since the member may not do this now.

        `follows`: whether the member fetches from this one, which leads.
        """
        if "open" in frame.ext:
            if not follows or not self._role.leading:
                return False
            self._of.setdefault(conn, {})
            conn.send(Frame.response_to(frame, ResponseCode.SUCCESS))
            return True
        clients = self._of.get(conn)
        if clients is None:
            return False
        number = _number(frame)
        if number < 0:
            self._refusals.add("relay", "malformed", f"{conn!r}: id is {plausible.shown(frame.ext.get('id'))}")
            return True
        transport = clients.get(number)
        if transport is None:
            if "host" not in frame.ext:
                return True  # It has ended here, and the other member will learn it.
            transport = self._begin(conn, clients, number, frame.ext["host"])
            if transport is None:
                conn.write(_carried(number, end=True))
                return True
        if frame.body:
            transport.receive(frame.body)
        end = frame.ext.get("end")
        if end == "close":
            transport.lost()
        elif end is not None and transport.client is not None:
            self._pops_wait |= end != "settle"
            self._settle_soon(transport.client)
        return True

    def on_close(self, conn: Connection) -> None:
        for transport in list(self._of.pop(conn, {}).values()):
            transport.lost()

    def _begin(
        self, conn: Connection, clients: dict[int, CarriedTransport], number: int, host: str
    ) -> CarriedTransport | None:
        try:
            packed = packed_host(host)
        except plausible.Implausible as error:
            self._refusals.add("relay", error.reason, f"{conn!r}: {error}")
            return None
        transport = CarriedTransport(conn, number, unpack_host(packed), lambda: clients.pop(number, None))
        clients[number] = transport
        transport.client = self.adopt(transport, RELAYED)
        if transport.client is None or transport.client.closed:
            clients.pop(number, None)
            return None
        return transport

    def _settle_soon(self, client: Connection) -> None:
        """Many clients of one member end at the same time: one pass over the held requests is enough."""
        self._settling.add(client)
        if self._settler is None or self._settler.done():
            self._settler = asyncio.get_running_loop().create_task(self._settle())

    async def _settle(self) -> None:
        while self._settling:
            await asyncio.sleep(LOOK_S)
            settling, self._settling = self._settling, set()
            if self._pops_wait:
                self._pops_wait = False
                self.settle_pops()
            await self.settle(settling)

    async def close(self) -> None:
        await end_tasks(self._settler)


async def _settle_none(clients: set[Connection]) -> None:
    """Do nothing: the default of `RelayedClients.settle`."""


def _number(frame: Frame) -> int:
    """Return the number of a client; -1: it is no number."""
    number = whole_number(frame.ext.get("id", ""), high=MAX_INT)
    return -1 if number is None else number


def _carried(number: int, body: bytes = b"", *, end: bool = False, read: bool | None = None) -> bytes:
    ext = {"id": str(number)}
    if end:
        ext["end"] = "close"
    if read is not None:
        ext["read"] = "yes" if read else "no"
    return encode_frame(Frame(GantryCode.RELAY, 0, FLAG_ONEWAY, ext, body))


class CarriedTransport(asyncio.Transport):
    """The transport of a client's connection that another member carries."""

    def __init__(self, carrier: Connection, number: int, peer: tuple[str, int], ended: Callable[[], object]) -> None:
        super().__init__()
        self.client: Connection | None = None
        self._carrier = carrier
        self._number = number
        self._peer = peer
        self._ended = ended
        self._closing = False
        self._reads = True
        self._unread: list[bytes] = []
        self._waits = False

    def receive(self, data: bytes) -> None:
        """Take bytes of the client."""
        if self._closing or self.client is None:
            return
        if self._reads and not self._unread:
            self.client.data_received(data)
        else:
            self._unread.append(data)

    def lost(self) -> None:
        """Note that the client, or the member that carries it, has gone."""
        if not self._closing:
            self._closing = True
            self._over()

    def _over(self) -> None:
        self._ended()
        self._unread.clear()
        if self.client is not None:
            self.client.connection_lost(None)

    # ---- asyncio.Transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._peer if name == "peername" else default

    def is_closing(self) -> bool:
        return self._closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: the limits of the carrying connection count."""

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing:
            return
        carrier = self._carrier
        view = memoryview(data)
        for at in range(0, len(view), MAX_RELAYED):
            carrier.write(_carried(self._number, bytes(view[at : at + MAX_RELAYED])))
        if carrier.paused and not self._waits and self.client is not None:
            self._waits = True
            self.client.pause_writing()
            task = asyncio.get_running_loop().create_task(carrier.drained())
            task.add_done_callback(lambda _: self._drained())

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def _drained(self) -> None:
        self._waits = False
        if not self._closing and self.client is not None:
            self.client.resume_writing()

    def pause_reading(self) -> None:
        if self._reads and not self._closing:
            self._reads = False
            self._carrier.write(_carried(self._number, read=False))

    def resume_reading(self) -> None:
        if self._reads or self._closing:
            return
        self._reads = True
        self._carrier.write(_carried(self._number, read=True))
        asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        while self._unread and self._reads and not self._closing and self.client is not None:
            self.client.data_received(self._unread.pop(0))

    def close(self) -> None:
        if not self._closing:
            self._carrier.write(_carried(self._number, end=True))
            self._closing = True
            asyncio.get_running_loop().call_soon(self._over)

    def abort(self) -> None:
        self.close()
