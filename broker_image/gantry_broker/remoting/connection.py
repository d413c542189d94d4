"""One TCP connection of the remoting protocol, the same for both ends.

The handler gets all frames of one read together, except answers to requests of this end. A connection stops reading
from a slow peer (`paused`) once `Shared.high_water` bytes wait for it. It closes when answers that were already under
way exceed the limits in `Shared`: one slow reader must not cost the memory of all.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from gantry_broker.inbox import Inbox
from gantry_broker.protocol.codes import FLAG_ONEWAY, FLAG_RESPONSE, ResponseCode
from gantry_broker.protocol.frame import MAX_FRAME, Frame, FrameDecoder, FrameError, Sends, encode_frame, encode_head
from gantry_broker.protocol.message import pack_host
from gantry_broker.protocol.request_limits import RequestLimits
from gantry_broker.remoting.budget import DEFAULT_BUDGET, RemotingBudget
from gantry_broker.remoting.errors import ConnectionLost, RequestTimeout
from gantry_broker.remoting.handshake import Identity
from gantry_broker.remoting.round_trip import UNKNOWN, round_trip_us
from gantry_broker.timeslice import TimeSlices

if TYPE_CHECKING:  # A client has no compiled core.
    from gantry_core import SendRules

log = logging.getLogger(__name__)

GATHER: Final = 64 * 1024
"""The most bytes that one pass of the event loop gathers for a peer before it writes them. Each write is a system
call and wakes the peer; but a peer that gets everything at once idles until then.
"""
COPIED: Final = 16 * 1024
"""A body below this size is copied to be gathered: that costs less than a write of its own."""
UNLIMITED: Final = 1 << 30
BURST: Final = 128
"""The most frames that the handler gets at once: the smallest frames cost some 10 µs each, most requests some 30 µs.
Sends in greater numbers do not get cheaper.
"""
READ: Final = 256 * 1024
"""Bytes of the largest read of a socket."""
_RESET: Final = struct.pack("ii", 1, 0)
_ORDERLY: Final = struct.pack("ii", 0, 0)
_UNKNOWN_PEER: Final = ("0.0.0.0", 0)
_NEVER: Final = float("inf")
_CLOCK_STEP: Final = 0.001
"""Seconds of one step of the event loop's clock: a timer may come so much early."""


class Handler(Protocol):
    """Handles the requests of a server or client; all calls come from the event loop and must not block."""

    def on_frames(self, conn: Connection, frames: list[Frame]) -> None:
        """Handle all requests of one read. The handler starts long work as a task."""

    def on_open(self, conn: Connection) -> None:
        """Note a new connection."""

    def on_close(self, conn: Connection) -> None:
        """Note that a connection has ended; called once for each `on_open`."""


class SendTaker(ABC):
    """A handler that also takes the plain sends of a read as one value."""

    @abstractmethod
    def send_rules(self) -> SendRules | None:
        """Return what plain sends are now; None: each send is to come as a frame."""

    @abstractmethod
    def take_sends(self, conn: Connection, sends: Sends) -> bool:
        """Handle plain sends; False, and nothing has changed: they are to come as frames."""


class Reply(Protocol):
    """Gets the answer to a request, or the error; a future is one. The calls come from the connection that reads."""

    def done(self) -> bool:
        """Whether no answer is wanted any more."""
        ...

    def set_result(self, frame: Frame, /) -> None:
        """Take the answer. Raises nothing."""

    def set_exception(self, error: Exception, /) -> None:
        """Take the failure: ConnectionLost or RequestTimeout. Raises nothing."""


class Holder(Protocol):
    """What holds bytes of incomplete frames or records."""

    def abort(self) -> None:
        """End it at once."""
        ...


class Shared:
    """The state that the connections of one owner share: a clock, and limits of bytes for all of them together.

    `now` is a clock that the owner moves every few seconds: fine enough to detect idle connections, free to read.
    """

    __slots__ = (
        "_of_address",
        "_per_address",
        "_slow",
        "_unfinished",
        "budget",
        "connections",
        "cut",
        "held",
        "now",
        "refused",
        "slices",
        "unsent",
    )

    def __init__(
        self,
        budget: RemotingBudget = DEFAULT_BUDGET,
        per_address: Callable[[], int] = lambda: UNLIMITED,
        slices: TimeSlices | None = None,
    ) -> None:
        """`per_address`: the most connections of one address. `slices`: the time that accepted connections share."""
        self.slices = slices or TimeSlices()
        self.budget = budget
        self._per_address = per_address
        self._of_address: dict[str, int] = {}
        self.connections = 0
        """Connections that are open or being opened, on all servers."""
        self.refused = 0
        """Connections that were refused because their address had too many."""
        self.now = 0.0
        self.held = 0
        """Bytes of incomplete frames."""
        self.unsent = 0
        """Bytes that wait for peers that are `paused`."""
        self.cut = 0
        """Connections that were closed because of a limit."""
        self._unfinished: dict[Holder, int] = {}
        self._slow: dict[Holder, int] = {}

    def enter(self, address: str) -> bool:
        """Count a connection from this address; False: it has reached its limit."""
        count = self._of_address.get(address, 0)
        if count >= (most := self._per_address()):
            self.refused += 1
            if self.refused & (self.refused - 1) == 0:
                log.warning("%s has %d connections, the limit is %d: %d refused", address, count, most, self.refused)
            return False
        self._of_address[address] = count + 1
        return True

    def leave(self, address: str) -> None:
        """Undo `enter`."""
        if self._of_address[address] == 1:
            del self._of_address[address]
        else:
            self._of_address[address] -= 1

    def hold(self, conn: Holder, held: int) -> None:
        """Note the bytes of a connection's incomplete frame or record; beyond the limit the largest one is given up."""
        self.held += held - self._unfinished.get(conn, 0)
        if held:
            self._unfinished[conn] = held
        else:
            self._unfinished.pop(conn, None)
        if self.held > self.budget.unfinished_bytes:
            self._cut_largest(self._unfinished, f"unfinished frames of all connections hold {self.held} bytes")

    def wait(self, conn: Holder, unsent: int) -> None:
        """Note the bytes that wait for a paused peer; beyond the limit the slowest one is given up."""
        self.unsent += unsent - self._slow.get(conn, 0)
        if unsent:
            self._slow[conn] = unsent
        else:
            self._slow.pop(conn, None)
        if unsent > self.budget.unsent_bytes_each:
            self.cut += 1
            log.warning("%r reads too slowly: %d bytes wait for it; connection closed", conn, unsent)
            conn.abort()
        elif self.unsent > self.budget.unsent_bytes:
            self._cut_largest(self._slow, f"{self.unsent} bytes wait for peers that read slowly")

    def forget(self, conn: Holder) -> None:
        """Note that the connection has ended."""
        self.held -= self._unfinished.pop(conn, 0)
        self.unsent -= self._slow.pop(conn, 0)

    def _cut_largest(self, table: dict[Holder, int], why: str) -> None:
        largest = max(table, key=table.__getitem__)
        self.cut += 1
        log.warning("%r closed; it holds %d bytes: %s", largest, table[largest], why)
        self.forget(largest)
        largest.abort()


class Connection(asyncio.Protocol):
    """A connection. `attrs` belongs to the handler, `listener` is the listening server's name ("" for a client's)."""

    __slots__ = (
        "_burst",
        "_decoder",
        "_drained",
        "_entered",
        "_eof",
        "_frame_since",
        "_handler",
        "_held",
        "_inbox",
        "_input_waits",
        "_loop",
        "_on_end",
        "_opaque",
        "_out",
        "_out_size",
        "_partial",
        "_pending",
        "_reading_later",
        "_reading_stopped",
        "_send_taker",
        "_shared",
        "_throttled",
        "_timer",
        "_timer_at",
        "_transport",
        "accepted",
        "attrs",
        "closed",
        "identity",
        "last_active",
        "listener",
        "on_answers",
        "paused",
        "peer",
        "peer_bytes",
        "reads",
    )

    def __init__(
        self,
        handler: Handler,
        *,
        listener: str = "",
        accepted: bool = False,
        max_frame: int = MAX_FRAME,
        limits: RequestLimits | None = None,
        shared: Shared | None = None,
        on_end: Callable[[Connection], None] | None = None,
    ) -> None:
        self._handler = handler
        self._send_taker = handler if accepted and isinstance(handler, SendTaker) else None
        self._decoder = FrameDecoder(max_frame, limits)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        """Written in this pass of the event loop, and not given to the transport yet."""
        self._out_size = 0
        self._pending: dict[int, _Waiting] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = _NEVER
        self._opaque = 0
        self._drained: asyncio.Future[None] | None = None
        self._held = 0
        """Bytes that are noted in `Shared`."""
        self._partial = 0
        """Of these, the ones in the decoder."""
        self._entered = True
        """The handler knows the connection."""
        self._shared = shared or Shared()
        self._on_end = on_end
        self.listener = listener
        self.accepted = accepted
        self.attrs: dict[str, Any] = {}
        self.on_answers: Callable[[list[Frame]], None] | None = None
        """Gets answers to requests that another process made through this one; None: they are ignored."""
        self.identity: Identity | None = None
        """The peer's identity, on a port between members; None on ports for clients."""
        self._inbox = Inbox(self._shared.slices, self, READ) if accepted else None
        """None: this end has made the connection, and trusts its peer."""
        self._burst = BURST if accepted else UNLIMITED
        self._eof = False
        """The peer has ended, and the connection ends once all that it sent is handled."""
        self._input_waits = False
        self._reading_later = False
        self._reading_stopped = False
        self._throttled = False
        self.closed = False
        self.paused = False
        self.peer: tuple[str, int] = _UNKNOWN_PEER
        self.peer_bytes = b"\0" * 8
        self.last_active = self._frame_since = self._shared.now
        self.reads = 0
        """The number of reads from the peer."""

    def __repr__(self) -> str:
        return f"<Connection {self.peer[0]}:{self.peer[1]}{' closed' if self.closed else ''}>"

    @property
    def round_trip_us(self) -> int:
        """The round trip of the connection in microseconds; -1: not known."""
        sock = None if self._transport is None else self._transport.get_extra_info("socket")
        return UNKNOWN if sock is None or self.closed else round_trip_us(sock)

    # Transport callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._shared.budget.high_water)
        peer = transport.get_extra_info("peername")
        if peer:
            address = ipaddress.ip_address(peer[0].partition("%")[0])
            mapped = getattr(address, "ipv4_mapped", None)
            self.peer = (str(mapped or address), peer[1])
            self.peer_bytes = pack_host(*self.peer)
            if len(self.peer_bytes) != 8:  # Records with IPv6 hosts have another form.
                self._send_taker = None
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if self.accepted:
                # When this process is killed, its peers see a reset, not an orderly end: RocketMQ's Java client fails
                # pending requests only then; after an orderly end it waits for their timeout.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        if self.accepted:
            self._entered = self._shared.enter(self.peer[0])
            if not self._entered:
                self.abort()
                return
        self._handler.on_open(self)
        if self.closed:
            self._transport.abort()  # closed before it was made

    def data_received(self, data: bytes) -> None:
        if self.closed:
            return
        self.last_active = self._shared.now
        self.reads += 1
        inbox = self._inbox
        if inbox is None:
            self.handle(data)
            return
        inbox.received(data)
        if inbox.size:
            self._hold_bytes()

    def handle(self, data: bytes) -> bool:
        """Decode bytes of the peer and hand their requests over: at most `BURST`, then True (`gantry_broker.inbox`)."""
        if self.closed:
            return False
        decoder = self._decoder
        taker = self._send_taker
        rules = None if taker is None else taker.send_rules()
        try:
            frames = decoder.feed(data, self._burst, rules, self.peer_bytes)
        except FrameError as error:
            self._deliver(self._frames_behind(error.frames))
            self._refuse(error)
            return False
        if decoder.sends is not None:
            self._frame_since = self._shared.now
            frames = self._frames_behind(frames)
        if decoder.refused:
            self._answer_refused()
        held = decoder.held
        if frames:
            self._frame_since = self._shared.now
            self._deliver(frames)
        elif not self._partial:
            self._frame_since = self._shared.now
        if held != self._partial:
            self._partial = held
            self._hold_bytes()
        return decoder.more and not self.closed

    def _frames_behind(self, frames: list[Frame]) -> list[Frame]:
        """Hand the plain sends over that came before these frames; returns the frames that are left."""
        sends, self._decoder.sends = self._decoder.sends, None
        if sends is None or self._send_taker is None or self.closed:
            return frames
        try:
            taken = self._send_taker.take_sends(self, sends)
        except Exception:
            log.exception("handling %d sends from %r failed", sends.messages, self)
            self.close()
            return []
        return frames if taken else sends.frames() + frames

    def _hold_bytes(self) -> None:
        held = self._partial + (0 if self._inbox is None else self._inbox.size)
        if held != self._held and not self.closed:
            self._held = held
            self._shared.hold(self, held)

    def pause_input(self, wait: bool) -> None:
        """Stop reading while much that was read waits for its turn."""
        self._input_waits = wait
        self._pause_or_read_on(wait)

    def input_ended(self) -> None:
        """Note that nothing waits any more (`gantry_broker.inbox`)."""
        self._hold_bytes()
        if self._eof:
            self.close()

    def eof_received(self) -> bool:
        """Let the transport close by itself after the written bytes have gone out: the peer has ended. What it sent
        before is handled first.
        """
        self.push()
        if self._inbox:
            self._eof = True
            return True
        self._linger_off()
        return False

    def pause_writing(self) -> None:
        self.paused = True
        self._hold_input()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self.paused = False
        self._hold_input()
        self._shared.wait(self, 0)
        self.last_active = self._shared.now
        self._read_on()
        if self._drained is not None:
            if not self._drained.done():
                self._drained.set_result(None)
            self._drained = None

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._drop_gathered()
        self.drop_input()
        if self._inbox is not None:
            self._inbox.leave()
        self._shared.forget(self)
        pending, self._pending = self._pending, {}
        reason = f"connection to {self.peer[0]}:{self.peer[1]} ended" + (f": {exc}" if exc else "")
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for waiting in pending.values():
            if not waiting.reply.done():
                waiting.reply.set_exception(ConnectionLost(reason))
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None
        try:
            if self._entered:
                self._handler.on_close(self)
        finally:
            if self.accepted and self._entered:
                self._shared.leave(self.peer[0])
            if self._on_end is not None:
                self._on_end(self)

    # For handlers

    def write(self, data: bytes) -> None:
        """Send encoded frames, together with all other bytes of this pass of the event loop; do nothing on an ended
        connection.
        """
        if self.closed or self._transport is None:
            return
        if not self._out:
            self._loop.call_soon(self.push)
        self._out.append(data)
        self._out_size += len(data)
        if self._out_size >= GATHER:
            self.push()

    def push(self) -> None:
        """Send the gathered bytes now, for a peer that waits while this process does other work."""
        out = self._out
        if not out or self._transport is None:
            return
        self._drop_gathered()
        self._transport.write(out[0] if len(out) == 1 else b"".join(out))
        if self.paused:
            self._shared.wait(self, self._transport.get_write_buffer_size())

    def send(self, frame: Frame) -> None:
        """Encode and send one frame. A frame that cannot be encoded is answered as a system error."""
        try:
            data = encode_frame(frame)
        except FrameError as error:
            if not frame.is_response:
                raise
            log.error("answer cannot be sent: %s", error)
            data = encode_frame(
                Frame(
                    ResponseCode.SYSTEM_ERROR,
                    frame.opaque,
                    frame.flag,
                    None,
                    b"",
                    error.reason[:500].encode("utf-8", "replace").decode(),
                    frame.serialize,
                )
            )
        self.write(data)

    def send_with(self, frame: Frame, body: bytes | memoryview) -> None:
        """Send a frame with this body now. The body is not copied, so the caller never changes its bytes. Raises
        FrameError.
        """
        self._write_now(encode_head(frame, len(body)), body)

    def write_with(self, head: bytes, body: bytes) -> None:
        """As `write`, for a frame in two parts. A large body is not copied."""
        if len(body) < COPIED:
            self.write(head + body)
        else:
            self._write_now(head, body)

    def _write_now(self, head: bytes, body: bytes | memoryview) -> None:
        if self.closed or self._transport is None:
            return
        out = self._out
        self._drop_gathered()
        self._transport.writelines((*out, head, body))
        if self.paused:
            self._shared.wait(self, self._transport.get_write_buffer_size())

    async def request(
        self,
        frame: Frame,
        timeout: float,
        *,
        arriving: bool = False,
        silence: float | None = None,
        on_silence: Callable[[int], None] | None = None,
    ) -> Frame:
        """Send a request (this sets its opaque) and return the answer.

        `timeout` is in seconds; with `arriving` it restarts with each part of a long answer. Raises RequestTimeout and
        ConnectionLost (the peer may have done it or not). `silence` and `on_silence`: see `submit`.
        """
        future = self.submit(frame, timeout, arriving=arriving, silence=silence, on_silence=on_silence)
        try:
            return await future
        finally:
            self._pending.pop(frame.opaque, None)

    def submit(
        self,
        frame: Frame,
        timeout: float,
        *,
        arriving: bool = False,
        silence: float | None = None,
        on_silence: Callable[[int], None] | None = None,
    ) -> asyncio.Future[Frame]:
        """Send a request and return the future of its answer, which fails as `request` does.

        `on_silence` gets the number of reads before the request if nothing has come since, `silence` seconds after the
        request, or when its time is over.
        """
        future = self._loop.create_future()
        self._submit(frame, timeout, future, arriving, silence, on_silence)
        return future

    def call(
        self,
        frame: Frame,
        timeout: float,
        reply: Reply,
        *,
        arriving: bool = False,
        on_silence: Callable[[int], None] | None = None,
    ) -> None:
        """Send a request now, with all that was written before it. `reply` gets the answer in the pass of the event
        loop that reads it: a future costs one more. The rest is as in `submit`.
        """
        self._submit(frame, timeout, reply, arriving, None, on_silence)
        self.push()

    def _submit(
        self,
        frame: Frame,
        timeout: float,
        reply: Reply,
        arriving: bool,
        silence: float | None,
        on_silence: Callable[[int], None] | None,
    ) -> None:
        if self.lost:
            raise ConnectionLost(f"connection to {self.peer[0]}:{self.peer[1]} has ended", sent=False)
        self._opaque = opaque = (self._opaque + 1) & 0x7FFFFFFF
        frame.opaque = opaque
        data = encode_frame(frame)
        now = self._loop.time()
        waiting = _Waiting(reply, frame.code, timeout, now + timeout, self.reads, arriving, on_silence)
        if silence is not None and silence < timeout:
            waiting.due = now + silence
        self._pending[opaque] = waiting
        if waiting.due < self._timer_at:
            self._watch_until(waiting.due)
        self.write(data)

    async def drained(self) -> None:
        """Wait until the peer has read enough that more may be written."""
        while self.paused and not self.closed:
            if self._drained is None:
                self._drained = self._loop.create_future()
            await asyncio.shield(self._drained)

    def stop_reading(self) -> None:
        """Stop reading requests. The peer's later bytes stay unread and make closing a reset."""
        if self._transport is not None and not self._transport.is_closing():
            self._reading_stopped = True
            self._transport.pause_reading()

    def drop_input(self) -> None:
        """Forget what was read: what waits for its turn, and the incomplete frame. The connection is about to end."""
        self._decoder.clear()
        if self._inbox is not None:
            self._inbox.clear()

    def read_again(self) -> None:
        """Undo `stop_reading`."""
        self._reading_stopped = False
        self._read_on()

    def throttle(self, wait: bool) -> None:
        """Stop reading while requests of this peer wait for their turn."""
        if wait == self._throttled:
            return
        self._throttled = wait
        self._pause_or_read_on(wait)

    def read_later(self, wait: bool) -> None:
        """Let the requests of this peer gather for a few milliseconds, to read many at once."""
        self._reading_later = wait
        self._pause_or_read_on(wait)

    def close(self) -> None:
        """End the connection after all written bytes have gone out."""
        if not self.closed:
            self.push()
            self.closed = True
            self.drop_input()
            if self._transport is not None:
                self._linger_off()
                self._transport.close()

    def abort(self) -> None:
        """End the connection at once; bytes that wait to be sent are lost."""
        self.closed = True
        self._drop_gathered()
        self.drop_input()
        if self._transport is not None:
            self._transport.abort()

    @property
    def lost(self) -> bool:
        """Whether the connection has ended or is about to: new bytes, or their answer, would be lost. `closed` follows
        the failure of a write one round of the event loop later.
        """
        return self.closed or (self._transport is not None and self._transport.is_closing())

    @property
    def unfinished_since(self) -> float | None:
        """The time (by the owner's clock) at which the present incomplete frame began; None: there is none."""
        return self._frame_since if self._decoder.unfinished and not self._inbox else None

    @property
    def unsent(self) -> int:
        """Bytes that wait for the peer to read."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size() + self._out_size

    # Inner parts

    def _pause_or_read_on(self, wait: bool) -> None:
        self._hold_input()
        if not wait:
            self._read_on()
        elif self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def _hold_input(self) -> None:
        if self._inbox is not None:
            self._inbox.hold(self.paused or self._throttled or self._reading_later)

    def _read_on(self) -> None:
        """Read again unless another reason still forbids it."""
        if self.paused or self._reading_stopped or self._throttled or self._reading_later or self._input_waits:
            return
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _drop_gathered(self) -> None:
        self._out, self._out_size = [], 0

    def _linger_off(self) -> None:
        """Return an orderly end: the kernel sends what it still holds."""
        sock = None if self._transport is None else self._transport.get_extra_info("socket")
        if sock is not None and self.accepted:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ORDERLY)

    def _deliver(self, frames: list[Frame]) -> None:
        if self._pending:
            requests = []
            for frame in frames:
                if frame.flag & FLAG_RESPONSE:
                    waiting = self._pending.pop(frame.opaque, None)
                    if waiting is not None:
                        if not waiting.reply.done():
                            waiting.reply.set_result(frame)
                    elif self.on_answers is not None:
                        self.on_answers([frame])
                else:
                    requests.append(frame)
        else:
            requests = [frame for frame in frames if not frame.flag & FLAG_RESPONSE]  # later requests are ignored
            if self.on_answers is not None and len(requests) < len(frames):
                self.on_answers([frame for frame in frames if frame.flag & FLAG_RESPONSE])
        if not requests:
            return
        try:
            self._handler.on_frames(self, requests)
        except Exception:
            # Some requests may stay unanswered: a lost connection is the fastest signal to the peer.
            log.exception("handling %d requests from %r failed", len(requests), self)
            self.close()

    def _answer_refused(self) -> None:
        """Answer each request that exceeds its limits with an error; the connection goes on."""
        refused = self._decoder.refused[:]
        self._decoder.refused.clear()
        for request, code, remark in refused:
            log.info("%r: %s", self, remark)
            if not request.is_oneway:
                self.send(Frame.response_to(request, code, remark))

    def _refuse(self, error: FrameError) -> None:
        log.info("%r sent what is not a frame: %s", self, error.reason)
        if error.opaque is not None:
            remark = error.reason.encode("utf-8", "replace").decode()[:1000]
            self.send(Frame(ResponseCode.SYSTEM_ERROR, error.opaque, FLAG_RESPONSE, None, b"", remark, error.serialize))
        self.close()

    def _watch_until(self, due: float) -> None:
        """Look at the pending requests at this time: one timer for all of them."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = self._loop.call_later(max(due - self._loop.time(), 0), self._look)

    def _look(self) -> None:
        """End the requests whose time is over."""
        self._timer, self._timer_at = None, _NEVER
        now = self._loop.time() + _CLOCK_STEP
        following = _NEVER
        for opaque, waiting in list(self._pending.items()):
            if waiting.reply.done():
                self._pending.pop(opaque, None)
                continue
            if waiting.due <= now:
                self._look_at(waiting, now)
            following = min(following, waiting.due)
        if following < self._timer_at and not self.closed:
            self._watch_until(following)

    def _look_at(self, waiting: _Waiting, now: float) -> None:
        silent = self.reads == waiting.reads
        if waiting.due < waiting.deadline:
            waiting.due = waiting.deadline
            if silent and waiting.on_silence is not None:
                waiting.on_silence(waiting.reads)
            return
        if waiting.arriving and self._decoder.held and not silent:
            waiting.reads, waiting.on_silence = self.reads, None
            waiting.due = waiting.deadline = now + waiting.timeout
            return
        waiting.due = _NEVER
        waiting.reply.set_exception(
            RequestTimeout(
                f"{self.peer[0]}:{self.peer[1]} did not answer request {waiting.code} within {waiting.timeout:g} s"
            )
        )
        if silent and waiting.on_silence is not None:
            waiting.on_silence(waiting.reads)


class _Waiting:
    """A request whose answer has not come."""

    __slots__ = ("arriving", "code", "deadline", "due", "on_silence", "reads", "reply", "timeout")

    def __init__(
        self,
        reply: Reply,
        code: int,
        timeout: float,
        deadline: float,
        reads: int,
        arriving: bool,
        on_silence: Callable[[int], None] | None,
    ) -> None:
        self.reply = reply
        self.code = code
        self.timeout = timeout
        self.deadline = self.due = deadline
        """`due`: when to look at it next."""
        self.reads = reads
        """Reads from the peer before it."""
        self.arriving = arriving
        self.on_silence = on_silence


def oneway(frame: Frame) -> Frame:
    """Mark a request as one that wants no answer."""
    frame.flag |= FLAG_ONEWAY
    return frame
