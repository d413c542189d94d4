"""Writes during and after a handover: buffered in one queue, then appended here or forwarded to the new leader.

A write is appended or forwarded, never both (rule 23). While the leader pauses writes it appends nothing, and each
write leaves the queue exactly once, in its order. Forwarding sends bundles over one connection, one bundle at a time,
so each client connection keeps its order. Then the remaining clients are disconnected (`ports.py`). They connect again
at the group's address, to the new leader.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Container
from ipaddress import IPv6Address, ip_address
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from gantry_broker.protocol import plausible
from gantry_broker.protocol.codes import FLAG_ONEWAY, GantryCode, ResponseCode
from gantry_broker.protocol.frame import Frame, FrameDecoder, FrameError, encode_frame
from gantry_broker.protocol.headers import error_answer
from gantry_broker.protocol.message import unpack_host
from gantry_broker.remoting.errors import ConnectionLost, RemotingError
from gantry_broker.shares import request_bytes
from gantry_broker.tasks import end_tasks

if TYPE_CHECKING:
    from gantry_broker.broker.role import RoleState
    from gantry_broker.refusals import Refusals
    from gantry_broker.remoting.client import RemotingClient
    from gantry_broker.remoting.connection import Connection
    from gantry_broker.replication.service import ReplicationService

log = logging.getLogger(__name__)

Process = Callable[[Any, list[Frame]], None]

MAX_BUFFERED: Final = 20_000
MAX_PASSING: Final = 64
"""Requests of clients that a follower passes on at the same time."""
BUNDLE: Final = 512
BUNDLE_BYTES: Final = 4 << 20
FORWARD_S: Final = 5.0
"""Seconds that a forwarded write may wait until the new leader takes its role and confirms it."""
RETRY_S: Final = 0.005
LOOK_S: Final = 0.05
LATE_S: Final = 0.5
"""Interval in seconds at which late writes are refused."""
TOO_LATE: Final = "it waited too long for a master, send again"
GIVE_UP_S: Final = 0.25
"""Seconds that a member that leads again waits for the last answer to a forwarded bundle."""


class BufferedWrite(NamedTuple):
    """One write, and the time (by the loop's clock) at which it is late."""

    conn: Connection
    frame: Frame
    due: float


class Forwarder:
    """The queue of one broker.

    Writes that left the queue and were not stored return to its head. So the order holds through all changes of the
    role, which may come back to this member while it still forwards.
    """

    def __init__(
        self,
        role: RoleState,
        replication: ReplicationService,
        client: RemotingClient,
        process: Process,
        max_bytes: int,
    ) -> None:
        """`process` executes requests here; `max_bytes`: memory for waiting writes."""
        self._role = role
        self._replication = replication
        self._client = client
        self._process = process
        self._max_bytes = max_bytes
        self._queue: deque[BufferedWrite] = deque()
        self._bytes = 0
        self._worker: asyncio.Task[None] | None = None
        self._late_timer: asyncio.TimerHandle | None = None
        self.in_flight = 0
        self._passing: set[asyncio.Task[None]] = set()

    @property
    def busy(self) -> bool:
        """Whether earlier writes are not all stored yet: later ones go behind them."""
        return bool(self._queue) or self.in_flight > 0

    def wants(self) -> bool:
        """Whether this member keeps writes that it cannot append now."""
        replication = self._replication
        return replication.writes_paused or replication.handed_to is not None or self.busy

    def take(self, conn: Connection, frames: list[Frame]) -> None:
        conn.attrs["forwarded"] = conn.attrs["client"] = True
        due = asyncio.get_running_loop().time() + FORWARD_S
        for frame in frames:
            # A bound on memory: a handover that does not end must not collect all that producers send.
            if len(self._queue) >= MAX_BUFFERED or self._bytes > self._max_bytes:
                if not frame.is_oneway:
                    conn.send(error_answer(frame, ResponseCode.SYSTEM_BUSY, "too many writes wait for the new master"))
                continue
            self._queue.append(BufferedWrite(conn, frame, due))
            self._bytes += request_bytes(frame)
        self._go_on()
        self._refuse_later()

    def _refuse_later(self) -> None:
        if self._late_timer is None and self._queue:
            self._late_timer = asyncio.get_running_loop().call_later(LATE_S, self._refuse_late)

    def _refuse_late(self) -> None:
        """Refuses the writes that are late: the choice of a new leader may take long."""
        self._late_timer = None
        now = asyncio.get_running_loop().time()
        buffered = self._drain()
        late = [p for p in buffered if p.due <= now and not p.frame.is_oneway]
        self._put_at_head([p for p in buffered if p.due > now or p.frame.is_oneway])
        _answer_all(late, TOO_LATE)

    async def drained(self, timeout_s: float) -> None:
        """Wait until no buffered write is left, or the time is over."""
        worker = self._worker
        if worker is not None and not worker.done():
            await asyncio.wait({worker}, timeout=timeout_s)

    @property
    def may_pass_on(self) -> bool:
        """Whether this member follows a leader that it knows."""
        replication = self._replication
        return replication.follows and replication.leader_address is not None and len(self._passing) < MAX_PASSING

    def pass_on(self, conn: Connection, frames: list[Frame]) -> None:
        """Forward requests that came to a follower to its leader, and relay the answers."""
        conn.attrs["client"] = True
        due = asyncio.get_running_loop().time() + FORWARD_S
        task = asyncio.get_running_loop().create_task(
            self._pass_on([BufferedWrite(conn, frame, due) for frame in frames])
        )
        self._passing.add(task)
        task.add_done_callback(self._passing.discard)

    async def _pass_on(self, bundle: list[BufferedWrite]) -> None:
        target = self._replication.leader_address
        why_not = "the master is not known" if target is None else await self._forward(target, bundle)
        if why_not:
            _answer_all(bundle, why_not)

    def role_changed(self) -> None:
        self._go_on()

    def _go_on(self) -> None:
        """Do what the role allows with the queue: keep, append, forward, or refuse."""
        # A bundle that is under way comes first. Appended before its answer, later writes would overtake those that it
        # may give back.
        if not self._queue or self._replication.writes_paused or (self._worker is not None and not self._worker.done()):
            return  # The worker continues by itself.
        if self._role.may_append:
            self._append_all()
        elif self._replication.handed_to is not None:
            self._worker = asyncio.get_running_loop().create_task(self._forward_all())
            self._worker.add_done_callback(lambda _: self._go_on())
        else:
            for conn, frame, _ in self._drain():
                if not frame.is_oneway and not conn.closed:
                    conn.send(error_answer(frame, ResponseCode.SERVICE_NOT_AVAILABLE, self._role.refusal()))

    def _drain(self) -> list[BufferedWrite]:
        taken = list(self._queue)
        self._queue.clear()
        self._bytes = 0
        return taken

    def _append_all(self) -> None:
        """Append all writes in their order, neighbours of one connection together: this member leads (still or again).

        Drops the writes of closed connections, and refuses late ones: their clients have sent again.
        """
        now = asyncio.get_running_loop().time()
        buffered = self._drain()
        _answer_all([p for p in buffered if p.due <= now], TOO_LATE)
        in_time = [p for p in buffered if p.frame.is_oneway or (p.due > now and not p.conn.closed)]
        for conn, run in groupby(in_time, key=lambda p: p.conn):
            self._process(conn, [buffered.frame for buffered in run])

    # ---- forwarding

    async def _forward_all(self) -> None:
        """Forward until the queue is empty, or this member stops forwarding."""
        role, replication = self._role, self._replication
        while (
            self._queue and not role.may_append and not replication.writes_paused and replication.handed_to is not None
        ):
            # The leader may have changed again since the handover.
            target = replication.leader_address or replication.handed_to
            bundle = self._take_bundle()
            self.in_flight = len(bundle)
            try:
                why_not = await self._forward(target, bundle)
            except Exception as error:
                log.exception("forwarding %d writes to %s failed", len(bundle), target)
                _answer_all(bundle, f"forwarding to the new master failed: {error}")
                continue
            finally:
                self.in_flight = 0
            if why_not:
                self._put_back(bundle, why_not)
                await asyncio.sleep(RETRY_S)

    def _take_bundle(self) -> list[BufferedWrite]:
        bundle: list[BufferedWrite] = []
        size = 0
        while self._queue and len(bundle) < BUNDLE:
            size += request_bytes(self._queue[0].frame)
            if bundle and size > BUNDLE_BYTES:
                break
            buffered = self._queue.popleft()
            self._bytes -= request_bytes(buffered.frame)
            bundle.append(buffered)
        return bundle

    def _put_back(self, bundle: list[BufferedWrite], why_not: str) -> None:
        """Return a bundle of which nothing was stored to the head of the queue, and refuse its late writes."""
        now = asyncio.get_running_loop().time()
        _answer_all([buffered for buffered in bundle if buffered.due <= now], why_not)
        self._put_at_head([buffered for buffered in bundle if buffered.due > now])

    def _put_at_head(self, taken: list[BufferedWrite]) -> None:
        # To the head, in its order: behind the queue a write would be stored after later ones of its connection.
        self._queue.extendleft(reversed(taken))
        self._bytes += sum(request_bytes(buffered.frame) for buffered in taken)
        self._refuse_later()

    async def _forward(self, target: str, bundle: list[BufferedWrite]) -> str:
        """Forward a bundle. Returns an empty text when all writes were answered, otherwise why nothing was stored."""
        opaques = [buffered.frame.opaque for buffered in bundle]
        for index, buffered in enumerate(bundle):
            buffered.frame.opaque = index
        body = b"".join(encode_frame(buffered.frame) for buffered in bundle)
        for buffered, opaque in zip(bundle, opaques, strict=True):
            buffered.frame.opaque = opaque
        hosts = orjson.dumps([buffered.conn.peer_bytes.hex() for buffered in bundle]).decode()
        left = max(bundle[-1].due - asyncio.get_running_loop().time(), 0.05)
        try:
            answer = await self._ask(target, Frame(GantryCode.FORWARD, ext={"hosts": hosts}, body=body), left)
        except RemotingError as error:
            # Nobody knows whether it was stored: to send it again could store it twice. The client decides.
            if error.sent:
                _answer_all(bundle, f"the new master {target} did not answer: {error}")
                return ""
            return f"the new master {target} is not reached: {error}"
        if answer.code != ResponseCode.SUCCESS:
            return f"the new master {target} takes no writes yet: {answer.remark}"
        _relay(bundle, answer.body)
        return ""

    async def _ask(self, target: str, request: Frame, timeout_s: float) -> Frame:
        """Send a bundle and return the answer. Raises RemotingError.

        The target may have lost the role to this member. Then it answers at once if it can, or has died, and the writes
        of all other clients must not wait for it.
        """
        answering = asyncio.ensure_future(self._client.request(target, request, timeout_s))
        try:
            leads_since = 0.0
            while True:
                await asyncio.wait({answering}, timeout=LOOK_S)
                if answering.done():
                    return answering.result()
                now = asyncio.get_running_loop().time()
                leads_since = (leads_since or now) if self._role.may_append else 0.0
                if leads_since and now - leads_since >= GIVE_UP_S:
                    raise ConnectionLost(f"{target} lost the role and did not answer")
        finally:
            answering.cancel()

    async def close(self) -> None:
        if self._late_timer is not None:
            self._late_timer.cancel()
        for conn, frame, _ in self._drain():
            if not frame.is_oneway and not conn.closed:
                conn.send(error_answer(frame, ResponseCode.SERVICE_NOT_AVAILABLE, "the broker stops, send again"))
        await end_tasks(self._worker, *self._passing)


def _answer_all(bundle: list[BufferedWrite], remark: str) -> None:
    for conn, frame, _ in bundle:
        if not frame.is_oneway and not conn.closed:
            conn.send(error_answer(frame, ResponseCode.SERVICE_NOT_AVAILABLE, remark))


def _relay(bundle: list[BufferedWrite], body: bytes) -> None:
    """Send each answer to the connection of its request, under that request's opaque."""
    left = {i: item for i, item in enumerate(bundle) if not item.frame.is_oneway}
    for answer in FrameDecoder().feed(body):
        item = left.pop(answer.opaque, None)
        if item is not None and not item.conn.closed:
            answer.opaque = item.frame.opaque
            item.conn.send(answer)
    for conn, frame, _ in left.values():
        if not conn.closed:
            conn.send(error_answer(frame, ResponseCode.SYSTEM_ERROR, "the new master left this write unanswered"))


FORWARDED_HERE: Final = "forwardedHere"
"""The attribute of a `ForwardedConnection`: the answers of a bundle leave together, so none may wait for long."""


class ForwardedConnection:
    """A client, as handlers see it, whose request the former leader forwarded."""

    def __init__(self, peer: tuple[str, int], peer_bytes: bytes, gather: Callable[[bytes], None]) -> None:
        self.peer = peer
        self.peer_bytes = peer_bytes
        self.closed = False
        self.paused = False
        self.attrs: dict[str, Any] = {FORWARDED_HERE: True}
        self._gather = gather

    def write(self, data: bytes) -> None:
        self._gather(data)

    def throttle(self, wait: bool) -> None:
        """Do nothing: the forwarding member sends one bundle at a time."""

    def send(self, frame: Frame) -> None:
        self._gather(encode_frame(frame))


def _unwrap(request: Frame, allowed: Container[int]) -> tuple[list[Frame], list[bytes]]:
    """Return the requests of a bundle and the packed address of each one's client. Raises Implausible for the whole
    bundle.

    `allowed`: the request codes that may be forwarded. Each request's opaque is its place in the bundle.
    """
    body, count, at = request.body, 0, 0
    while at < len(body):  # This comes before decoding: a refusal must cost little.
        at += 4 + int.from_bytes(body[at : at + 4], "big")
        count += 1
        if count > BUNDLE or at > len(body):
            raise plausible.Implausible(f"the bundle has a damaged frame, or more than {BUNDLE}", "malformed")
    try:
        texts = plausible.items("hosts", orjson.loads(request.ext.get("hosts", "")), BUNDLE)
        frames = FrameDecoder().feed(body)
    except plausible.Implausible:
        raise
    except (FrameError, ValueError, TypeError) as error:
        raise plausible.Implausible(f"the bundle cannot be read: {error}", "malformed") from error
    if not frames or len(frames) != len(texts):
        raise plausible.Implausible(f"hosts has {len(texts)} entries for {len(frames)} requests", "malformed")
    for index, frame in enumerate(frames):
        if frame.is_response or frame.code not in allowed:
            raise plausible.Implausible(
                f"request {index} has code {frame.code}, which is not forwarded", "not-forwarded"
            )
        if frame.opaque != index:
            raise plausible.Implausible(
                f"request {index} has opaque {frame.opaque}, expected is its place", "malformed"
            )
    return frames, [packed_host(text) for text in texts]


def packed_host(text: Any) -> bytes:
    """Return a client's packed address from hex: 4 or 16 bytes of IP address, 4 of port. Raises Implausible."""
    try:
        packed = bytes.fromhex(text)
        host, port = unpack_host(packed)
        address = ip_address(host)
    except (TypeError, ValueError) as error:
        raise plausible.Implausible(
            f"hosts: {plausible.shown(text)} is no packed address: {error}", "malformed"
        ) from error
    if not 0 <= port <= 65_535:
        raise plausible.Implausible(f"hosts: {plausible.shown(text)} has port {port}, possible are 0 to 65535")
    if address.is_multicast or (isinstance(address, IPv6Address) and address.ipv4_mapped is not None):
        raise plausible.Implausible(f"hosts: {plausible.shown(text)} is {host}, which is no client's address")
    return packed


def take_forwarded(
    role: RoleState,
    refusals: Refusals,
    conn: Connection,
    request: Frame,
    process: Process,
    allowed: Container[int],
) -> None:
    """Execute a forwarded bundle in its order, and send all answers as one.

    `allowed`: the request codes that may be forwarded; another one makes the whole bundle invalid. While this member
    may not append, it takes nothing of the bundle and answers SERVICE_NOT_AVAILABLE.
    """
    # All or nothing: a bundle of which some writes were stored could not be sent again.
    if not role.may_append:
        conn.send(error_answer(request, ResponseCode.SERVICE_NOT_AVAILABLE, role.refusal()))
        return
    try:
        frames, hosts = _unwrap(request, allowed)
    except plausible.Implausible as error:
        refusals.add("forward", error.reason, f"{conn!r}: {error}")
        conn.send(error_answer(request, ResponseCode.SYSTEM_ERROR, f"FORWARD: {error}"))
        return
    waiting = sum(1 for f in frames if not f.flag & FLAG_ONEWAY)
    answers: list[bytes] = []

    def gather(data: bytes) -> None:
        nonlocal waiting
        answers.append(data)
        waiting -= _count_frames(data)
        if waiting == 0:
            conn.send(Frame.response_to(request, ResponseCode.SUCCESS, body=b"".join(answers)))

    start = 0
    silent = waiting == 0
    for end in range(1, len(frames) + 1):
        if end == len(frames) or hosts[end] != hosts[start]:
            process(ForwardedConnection(conn.peer, hosts[start], gather), frames[start:end])
            start = end
    if silent:
        conn.send(Frame.response_to(request, ResponseCode.SUCCESS))


def _count_frames(data: bytes) -> int:
    count = at = 0
    while at < len(data):
        at += 4 + int.from_bytes(data[at : at + 4], "big")
        count += 1
    return count
