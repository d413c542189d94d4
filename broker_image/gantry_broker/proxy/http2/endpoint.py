"""gRPC over HTTP/2 on asyncio: the port for clients, its connections and their calls."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections.abc import Awaitable, Coroutine, Mapping
from functools import lru_cache, partial
from typing import Any, Final, cast

from gantry_broker.inbox import Inbox
from gantry_broker.protocol.digits import whole_number
from gantry_broker.proxy.http2 import hpack
from gantry_broker.proxy.http2.core import ConnectionFault, ServerConnection, Stream
from gantry_broker.proxy.rpc import MAX_MESSAGE, Conversation, GrpcStatus, Method, Methods, Outcome, Refused, RpcError
from gantry_broker.remoting.connection import READ, Shared
from gantry_broker.remoting.refused import RefusedConnections
from gantry_broker.remoting.tls_gate import TlsGate
from gantry_broker.tasks import end_tasks

log = logging.getLogger(__name__)

SWEEP_S: Final = 2.0
PREFACE_S: Final = 10.0
"""Seconds in which a connection must begin as HTTP/2 does."""
SILENT_S: Final = 60.0
"""A connection that sent nothing for this long is asked by a PING."""
GONE_S: Final = 90.0
"""A connection that sent nothing for this long has ended."""
STALL_S: Final = 60.0
"""A stream whose data has waited for the client's window for this long is reset."""
FRAME_S: Final = 30.0
"""Seconds in which an unfinished frame or header block must be complete."""
MAX_QUEUED: Final = 256 * 1024
"""Bytes of a stream that wait for the client before the next `send` waits."""
GATHER: Final = 64 * 1024
MAX_PUSHED: Final = 1 << 20
"""Bytes that may wait for the client of a conversation; one more message is refused."""
BEGUN_S: Final = 10.0
"""Seconds in which the first message of an unsigned call must be complete, or more of it must come."""
SIGNED_S: Final = 60.0
"""The same for a signed call, and the longest time for the message of an unsigned one."""
DROPPED: Final = 64 * 1024
"""Bytes of a refused request that are dropped until the answer leaves without waiting for its end."""
MESSAGE_STRAIN: Final = 5.0
"""What a message of a conversation takes from the connection's allowance: 400 at once, then 20 a second."""
TURN_S: Final = 0.002
"""Seconds for which one call of `GrpcConnection.handle` looks at frames."""
SHORT: Final = 2 * 1024
"""Bytes whose frames take no longer than that, however many they are."""
CALL_S: Final = 0.0005
"""Seconds of the loop that a call with a task is assumed to take: it works after its turn was given."""
BYTE_S: Final = 1e-7
"""The same for each byte of its request."""
REFUSED_STRAIN: Final = 6.0
"""What a refused call takes: more than its header and its answer earn."""
STREAM_BYTES: Final = 1_024
"""Bytes that an open stream counts for, besides its header, from the stream `FREE_STREAMS` on."""
FREE_STREAMS: Final = 8
SETTLED: Final = 4 * 1024
"""Bytes that a connection may count for too much until `sweep`: small calls need not count each time."""
KEPT: Final = {
    "authorization": 1_025,
    "content-type": 64,
    "grpc-encoding": 40,
    "grpc-timeout": 10,
    "x-mq-client-id": 256,
    "x-mq-client-version": 100,
    "x-mq-date-time": 64,
    "x-mq-language": 40,
    ":method": 16,
    ":path": 128,
}
"""Fields of a header that are kept, with the characters of each: one more than what is valid, where that is checked."""

_HEADERS: Final = (
    hpack.status(200)
    + hpack.literal("content-type", "application/grpc")
    + hpack.literal("grpc-accept-encoding", "identity")
)
_NOT_GRPC: Final = hpack.status(400) + hpack.literal("content-type", "text/plain")
_OK: Final = hpack.literal("grpc-status", "0")
_FAILED: Final = RpcError(GrpcStatus.INTERNAL, "the proxy failed; its log says why")
_NOTHING: Final = Refused()
"""The refusal has left: what still comes of its request is dropped."""
_UNITS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


@lru_cache(maxsize=256)
def read_timeout(text: str | None) -> float | None:
    """Return the seconds of a field `grpc-timeout`; None: there is none, or it cannot be read."""
    number = whole_number(text[:-1], 0, 99_999_999) if text and text[-1] in _UNITS and len(text) <= 9 else None
    return None if text is None or number is None else number * _UNITS[text[-1]]


def _kept(fields: list[hpack.Field]) -> dict[str, str]:
    return {name: value if len(value) <= KEPT[name] else value[: KEPT[name]] for name, value in fields if name in KEPT}


def trailers(status: GrpcStatus, message: str) -> bytes:
    """Encode the fields that end a call."""
    if status == GrpcStatus.OK and not message:
        return _OK
    quoted = "".join(
        chr(byte) if 32 <= byte < 127 and byte != 37 else f"%{byte:02X}" for byte in message[:1_000].encode()
    )
    return hpack.literal("grpc-status", str(int(status))) + hpack.literal("grpc-message", quoted)


class GrpcCall:
    """One call: `rpc.Line`, and what the connection keeps of it."""

    __slots__ = (
        "_connection",
        "_deadline",
        "_drained",
        "answered",
        "buffer",
        "caller",
        "conversation",
        "dropped",
        "kept",
        "metadata",
        "method",
        "peer",
        "refused",
        "signed",
        "since",
        "stream",
        "task",
    )

    def __init__(
        self,
        connection: GrpcConnection,
        stream: Stream,
        metadata: Mapping[str, str],
        kept: int,
        method: Method,
        peer: str,
        now: float,
    ) -> None:
        self._connection = connection
        self.stream = stream
        self.metadata = metadata
        self.method = method
        self.peer = peer
        self.buffer = bytearray()
        """What has come of a message that is not complete."""
        self.answered = False
        """The header of the answer has gone out."""
        self.task: asyncio.Task[None] | None = None
        self.conversation: Conversation | None = None
        self.refused: Refused | None = None
        """The answer, if the request is not looked at."""
        self.dropped = 0
        self.caller: Any = None
        self.signed = False
        self.kept = kept
        """Bytes of the header that are kept."""
        self.since = now
        self._drained: asyncio.Future[None] | None = None
        timeout = read_timeout(metadata.get("grpc-timeout"))
        self._deadline = None if timeout is None else connection.loop.time() + timeout

    def time_left(self) -> float | None:
        return None if self._deadline is None else self._deadline - self._connection.loop.time()

    @property
    def over(self) -> bool:
        return self.stream.id not in self._connection.core.streams

    def push(self, message: bytes) -> bool:
        if self.over or self.stream.waiting > MAX_PUSHED:
            return False
        self._message(message)
        self._connection.flush_soon()
        return True

    async def send(self, message: bytes) -> None:
        if self.over:
            return
        self._message(message)
        self._connection.flush_soon()
        while self.stream.waiting > MAX_QUEUED and not self.over:
            self._drained = self._connection.loop.create_future()
            await self._drained

    def drained(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def finish(self, status: GrpcStatus = GrpcStatus.OK, message: str = "") -> None:
        if self.over:
            return
        core = self._connection.core
        if self.answered:
            core.finish(self.stream, trailers(status, message))
        else:
            core.finish(self.stream, _HEADERS + trailers(status, message))
        self._connection.flush_soon()

    def _message(self, message: bytes) -> None:
        core = self._connection.core
        if not self.answered:
            self.answered = True
            core.headers(self.stream, _HEADERS)
        core.data(self.stream, b"\0" + len(message).to_bytes(4, "big") + message)


class GrpcConnection(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self.loop = endpoint.loop
        self._shared = endpoint.shared
        self._transport: asyncio.Transport | None = None
        self.peer = "0.0.0.0"
        self.since = self.last = self._shared.now
        self.unfinished_since: float | None = None
        self.core = ServerConnection(self, self.since)
        self.running: set[asyncio.Task[None]] = set()
        self._direct = 0
        """Calls in work that have no task."""
        self._flushing = False
        self._inbox = Inbox(self._shared.slices, self, READ)
        self._paused = False
        """The client reads slowly."""
        self._behind = False
        """Much waits for this connection's turn; until then no more is read."""
        self._eof = False
        """The client has ended, and the connection ends once all that it sent is handled."""
        self._entered = False
        self._body = 0
        """Bytes of requests that are not complete."""
        self._headers = 0
        """Bytes of the headers of open calls."""
        self._young: dict[int, Stream] = {}
        """Streams whose first message is not complete, the oldest first."""
        self._held = 0
        self._pinged = False
        self.closed = False

    def __repr__(self) -> str:
        return f"<GrpcConnection {self.peer}>"

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._shared.budget.high_water)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple) and peer:
            address = ipaddress.ip_address(peer[0].partition("%")[0])
            self.peer = str(getattr(address, "ipv4_mapped", None) or address)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._entered = self._shared.enter(self.peer)
        if not self._entered:
            self.abort()
            return
        self._flush()

    def data_received(self, data: bytes) -> None:
        if self.closed:
            return
        self.last = self._shared.now
        self._pinged = False
        self._inbox.received(data)
        if self._inbox.size:
            self._hold()

    def handle(self, data: bytes) -> bool:
        """Look at what came, until the turn ends (`gantry_broker.inbox`)."""
        if self.closed:
            return False
        core, clock = self.core, self._shared.slices.clock
        core.feed(data)
        try:
            if len(data) <= SHORT and not core.behind:
                done = core.proceed(self.loop.time())
            else:
                done = core.proceed(self.loop.time(), clock() + TURN_S, clock)
        except ConnectionFault as fault:
            self._endpoint.refused.add(fault.fault.name, self.peer, str(fault))
            self._flush()
            self.close()
            return False
        part = core.held
        if not part:
            self.unfinished_since = None
        elif self.unfinished_since is None or not done:
            self.unfinished_since = self._shared.now
        self._hold(part)
        if core.out:
            self._flush()
        return not done and not self.closed

    def pause_input(self, wait: bool) -> None:
        self._behind = wait
        self._read_or_not()

    def input_ended(self) -> None:
        """Note that nothing waits any more (`gantry_broker.inbox`)."""
        self._hold()
        if self._eof:
            self.close()

    def _hold(self, part: int | None = None, spare: int = SETTLED) -> None:
        """Count what this connection makes the process keep: never less, and at most `spare` too much. `part`: that of
        `core`.
        """
        core = self.core
        held = self._inbox.size + (core.held if part is None else part) + self._body + self._headers
        crowd = len(core.streams) - FREE_STREAMS
        if crowd > 0:
            held += crowd * STREAM_BYTES
        counted = self._held
        if (held > counted or held < counted - spare) and not self.closed:
            self._held = held
            self._shared.hold(self, held)

    def _read_or_not(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._paused or self._behind:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def eof_received(self) -> bool:
        """Let the transport close: the client has ended. What it sent before is handled first."""
        self._eof = bool(self._inbox)
        return self._eof

    def pause_writing(self) -> None:
        self._paused = True
        self._inbox.hold(True)
        self._read_or_not()

    def resume_writing(self) -> None:
        self._paused = False
        self._inbox.hold(False)
        self._shared.wait(self, 0)
        self._read_or_not()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._inbox.leave()
        self._shared.forget(self)
        for stream in list(self.core.streams.values()):
            self.core.streams.pop(stream.id, None)
            self.on_reset(stream)
            self.on_closed(stream)
            self.on_drained(stream)
        if self._entered:
            self._entered = False
            self._shared.leave(self.peer)
        self._endpoint.ended(self)

    # ---- streams: `core.Owner`

    def on_request(self, stream: Stream, fields: list[hpack.Field]) -> None:
        begun = self.core.beginning
        if begun is None:
            metadata = _kept(fields)
            size = sum(map(len, metadata.values()))
        else:
            if begun.kept is None:
                first = _kept(begun.fields)
                begun.kept = first, sum(map(len, first.values()))
            first, size = begun.kept
            rest = _kept(fields[len(begun.fields) :])
            metadata = first | rest
            size += sum(map(len, rest.values()))
        endpoint = self._endpoint
        if metadata[":method"] != "POST" or not metadata.get("content-type", "").startswith("application/grpc"):
            if stream.ended:
                self._not_grpc(stream)
            else:
                self._await_request(stream)
            return
        # What the client sent is in no text: a header's table lets one byte stand for a thousand.
        method = endpoint.methods.get(metadata[":path"])
        if method is None:
            self._refuse_stream(stream, GrpcStatus.UNIMPLEMENTED, "the service has no such method")
            return
        if metadata.get("grpc-encoding", "identity") != "identity":
            self._refuse_stream(stream, GrpcStatus.UNIMPLEMENTED, "this grpc-encoding is not served: send identity")
            return
        if len(self.running) + self._direct >= endpoint.max_calls:
            self._refuse_stream(stream, GrpcStatus.RESOURCE_EXHAUSTED, "too many calls of one connection")
            return
        call = stream.call = GrpcCall(self, stream, metadata, size, method, self.peer, self._shared.now)
        self._headers += call.kept
        endpoint.calls += 1
        if method.admit is not None:
            call.refused = method.admit(call)
        if not stream.ended:
            self._await_request(stream)
        if call.refused is not None:
            self.core.strain(REFUSED_STRAIN)
            if stream.ended:
                self._answer_refused(call)
        elif method.conversing is not None:
            try:
                call.conversation = method.conversing(call)
            except RpcError as error:
                call.finish(error.status, str(error))
        elif stream.ended:
            call.finish(GrpcStatus.INTERNAL, "the request has no message")

    def _await_request(self, stream: Stream) -> None:
        stream.touched = self._shared.now
        self._young[stream.id] = stream

    def _refuse_stream(self, stream: Stream, status: GrpcStatus, text: str) -> None:
        self.core.finish(stream, _HEADERS + trailers(status, text))

    def on_data(self, stream: Stream, data: bytes) -> None:
        call: GrpcCall | None = stream.call
        if call is None:
            if stream.ended:
                self._young.pop(stream.id, None)
                self.core.strain(2)
                self._not_grpc(stream)
            return
        if data:
            stream.touched = self._shared.now
        if call.refused is not None:
            call.dropped += len(data)
            if stream.ended or call.dropped > DROPPED or call.method.conversing is not None:
                self._answer_refused(call)
            return
        if call.conversation is not None:
            self._converse(call, data)
            return
        if not stream.ended or call.buffer:
            call.buffer += data
            self._body += len(data)
            if len(call.buffer) >= 5 and not self._fits(call):
                return
            if not stream.ended:
                return
            data = bytes(call.buffer)
            self._release(call)
        elif len(data) - 5 > call.method.most:
            call.buffer += data[:5]
            self._body += 5
            if not self._fits(call):
                return
        self._young.pop(stream.id, None)
        if len(data) < 5 or len(data) - 5 != int.from_bytes(data[1:5], "big"):
            call.finish(GrpcStatus.INTERNAL, "the request is not one message")
        elif data[0]:
            call.finish(GrpcStatus.UNIMPLEMENTED, "compressed messages are not served")
        else:
            self._begin(call, data[5:])

    def _fits(self, call: GrpcCall) -> bool:
        """Check the announced length of a request against its method, and that no more comes. Otherwise the call has
        its answer, and what still comes is dropped.
        """
        method, buffer = call.method, call.buffer
        size = int.from_bytes(buffer[1:5], "big")
        most = method.most
        if size <= most and len(buffer) <= size + 5:
            return True
        self._release(call)
        if len(buffer) > size + 5 and size <= most:
            call.finish(GrpcStatus.INTERNAL, "the request is not one message")
        elif size > MAX_MESSAGE or method.too_large is None:
            call.finish(GrpcStatus.RESOURCE_EXHAUSTED, f"a message has over {min(most, MAX_MESSAGE)} bytes")
        else:
            call.refused = method.too_large(call, size)
            if call.stream.ended:
                self._answer_refused(call)
        return False

    def _answer_refused(self, call: GrpcCall) -> None:
        refused, call.refused = call.refused, _NOTHING
        self._young.pop(call.stream.id, None)
        if refused is None or refused is _NOTHING:
            return
        if refused.wait is not None:
            self._start(call, self._refuse_later(call, refused))
        else:
            self._send_refusal(call, refused)

    async def _refuse_later(self, call: GrpcCall, refused: Refused) -> None:
        assert refused.wait is not None
        try:
            await refused.wait()
            self._send_refusal(call, refused)
        finally:
            call.task = None

    def _send_refusal(self, call: GrpcCall, refused: Refused) -> None:
        if len(refused.answers) == 1 and refused.status is GrpcStatus.OK and call.stream.ended:
            self._answer(call, refused.answers[0])
            return
        for answer in refused.answers:
            call.push(answer)
        call.finish(refused.status, refused.text)

    def _begin(self, call: GrpcCall, message: bytes) -> None:
        direct = call.method.direct
        if direct is None:
            self._start(call, self._run(call, message))
            return
        try:
            outcome = direct(call, message, partial(self._done, call))
        except RpcError as error:
            call.finish(error.status, str(error))
            return
        except Exception:
            log.exception("call of %r failed", self)
            call.finish(_FAILED.status, str(_FAILED))
            return
        if outcome is None:
            self._direct += 1
        else:
            self._ended(call, outcome)

    def _done(self, call: GrpcCall, outcome: Outcome) -> None:
        """Return the end of a call that went on without a task."""
        self._direct -= 1
        self._ended(call, outcome)

    def _ended(self, call: GrpcCall, outcome: Outcome) -> None:
        if isinstance(outcome, bytes):
            self._answer(call, outcome)
        elif not self.closed:
            self._start(call, self._run(call, b"", outcome))
        elif asyncio.iscoroutine(outcome):
            outcome.close()

    def _start(self, call: GrpcCall, work: Coroutine[None, None, None]) -> None:
        task = call.task = self.loop.create_task(work)
        self.running.add(task)
        task.add_done_callback(self.running.discard)

    def _answer(self, call: GrpcCall, answer: bytes) -> None:
        stream = call.stream
        if stream.id in self.core.streams:
            self.core.answer(stream, _HEADERS, b"\0" + len(answer).to_bytes(4, "big") + answer, _OK)
            self.flush_soon()

    def on_reset(self, stream: Stream) -> None:
        call: GrpcCall | None = stream.call
        if call is not None and call.task is not None:
            call.task.cancel()

    def on_closed(self, stream: Stream) -> None:
        self._young.pop(stream.id, None)
        call: GrpcCall | None = stream.call
        if call is None:
            return
        self._headers -= call.kept
        call.caller = None  # it refers to the call: both would stay until a full collection
        if call.buffer:
            self._release(call)
        conversation, call.conversation = call.conversation, None
        if conversation is not None:
            conversation.on_end()

    def on_drained(self, stream: Stream) -> None:
        if stream.call is not None:
            stream.call.drained()

    def _not_grpc(self, stream: Stream) -> None:
        """Answer a request that is none of gRPC's, once it is complete."""
        self.core.headers(stream, _NOT_GRPC)
        self.core.data(stream, b"this port serves gRPC\n")
        self.core.finish(stream, hpack.literal("x-end", "1"))

    def _release(self, call: GrpcCall) -> None:
        self._body -= len(call.buffer)
        call.buffer.clear()

    def _converse(self, call: GrpcCall, data: bytes) -> None:
        conversation = call.conversation
        assert conversation is not None
        buffer = call.buffer
        buffer += data
        self._body += len(data)
        most = call.method.most
        try:
            while len(buffer) >= 5:
                size = int.from_bytes(buffer[1:5], "big")
                if size > most:
                    raise RpcError(GrpcStatus.RESOURCE_EXHAUSTED, f"a message has over {most} bytes")
                if len(buffer) - 5 < size:
                    break
                if buffer[0]:
                    raise RpcError(GrpcStatus.UNIMPLEMENTED, "compressed messages are not served")
                self.core.strain(MESSAGE_STRAIN)
                message = bytes(buffer[5 : 5 + size])
                del buffer[: 5 + size]
                self._body -= 5 + size
                self._young.pop(call.stream.id, None)
                conversation.on_message(message)
                if call.conversation is None or call.over:
                    return
        except RpcError as error:
            self._release(call)
            self._end(call, error.status, str(error))
            return
        except ConnectionFault:
            raise
        except Exception:
            log.exception("a message of %r failed", self)
            self._release(call)
            self._end(call, _FAILED.status, str(_FAILED))
            return
        if call.stream.ended and call.conversation is not None:
            self._end(call, GrpcStatus.OK, "")

    def _end(self, call: GrpcCall, status: GrpcStatus, text: str) -> None:
        conversation, call.conversation = call.conversation, None
        call.finish(status, text)
        if conversation is not None:
            conversation.on_end()

    async def _run(self, call: GrpcCall, message: bytes, outcome: Awaitable[bytes] | None = None) -> None:
        """`outcome`: what the method has begun already."""
        method = call.method
        try:
            await self._turn(len(message))
            if outcome is not None:
                self._answer(call, await outcome)
            elif method.unary is not None:
                self._answer(call, await method.unary(call, message))
            elif method.streaming is not None:
                await method.streaming(call, message)
                call.finish()
        except RpcError as error:
            call.finish(error.status, str(error))
        except asyncio.CancelledError:
            call.finish(GrpcStatus.CANCELLED, "the call was cancelled")
            raise
        except Exception:
            log.exception("call of %r failed", self)
            call.finish(_FAILED.status, str(_FAILED))
        finally:
            call.task = None

    async def _turn(self, size: int) -> None:
        """Wait until a call of so many bytes may begin: one pass of the event loop has time for some calls only."""
        slices = self._shared.slices
        cost = CALL_S + size * BYTE_S
        if slices.left_s > 0:
            slices.charge(cost)
            return
        turn: asyncio.Future[None] = self.loop.create_future()

        def begin() -> None:
            if not turn.done():
                turn.set_result(None)
                slices.charge(cost)

        slices.later(begin)
        await turn

    # ---- out

    def flush_soon(self) -> None:
        """Send what was written in this pass of the event loop together."""
        if not self._flushing:
            self._flushing = True
            self.loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._flushing = False
        self._flush()
        if self._held > SETTLED:
            self._hold()

    def _flush(self) -> None:
        out = self.core.out
        transport = self._transport
        if not out or transport is None:
            return
        data = b"".join(out)
        out.clear()
        if self.closed or transport.is_closing():
            return
        transport.write(data)
        if self._paused:
            self._shared.wait(self, transport.get_write_buffer_size() + self.core.unsent)
        elif self.core.unsent > self._shared.budget.unsent_bytes_each:
            self._shared.wait(self, self.core.unsent)

    def close(self) -> None:
        """End the connection after all written bytes have gone out."""
        self._flush()
        self.closed = True
        self._inbox.clear()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        self.closed = True
        self._inbox.clear()
        if self._transport is not None:
            self._transport.abort()

    # ---- the endpoint calls

    def sweep(self, now: float) -> None:
        core = self.core
        if self._held:
            self._hold(spare=0)
        stall = core.oldest_stall()
        if not core.begun and now - self.since > PREFACE_S:
            self._refuse("preface", f"no HTTP/2 within {PREFACE_S:g} s")
        elif now - self.last > GONE_S:
            self._refuse("silent", f"nothing came for {GONE_S:g} s")
        elif self.unfinished_since is not None and now - self.unfinished_since > FRAME_S:
            self._refuse("unfinished", f"a frame was not complete within {FRAME_S:g} s")
        elif stall is not None and now - stall > STALL_S:
            self._refuse("unread", f"data waited for the client for {STALL_S:g} s")
        elif self._paused and now - self.last > STALL_S:
            self._refuse("unread", f"the client read nothing for {STALL_S:g} s")
        elif now - self.last > SILENT_S and not self._pinged:
            self._pinged = True
            core.ping()
            self._flush()
        elif self._paused or self._inbox:
            return  # the delay is this end's, or ended above
        if self._young and not self.closed:
            self._end_late(now)

    def _end_late(self, now: float) -> None:
        """End calls whose request does not come: an unsigned one costs its client nothing."""
        for stream in list(self._young.values()):
            call: GrpcCall | None = stream.call
            since = stream.touched if call is None else call.since
            if now - since <= BEGUN_S:
                break  # those behind it came later
            if call is not None and call.signed:
                if now - stream.touched <= SIGNED_S:
                    continue
            elif now - stream.touched <= BEGUN_S and now - since <= SIGNED_S:
                continue
            self._young.pop(stream.id, None)
            if call is None:
                self._not_grpc(stream)
            elif call.refused is not None:
                self._answer_refused(call)
            else:
                self._release(call)
                self._end(call, GrpcStatus.DEADLINE_EXCEEDED, "the request did not come in time")
        self._flush()
        self._hold(spare=0)

    def _refuse(self, reason: str, text: str) -> None:
        self._endpoint.refused.add(reason, self.peer, text)
        self.abort()

    def go_away(self) -> None:
        """Take no more calls; conversations end at once, other calls get their answers."""
        self.core.go_away()
        for stream in list(self.core.streams.values()):
            call: GrpcCall | None = stream.call
            if call is not None and call.conversation is not None:
                self._end(call, GrpcStatus.UNAVAILABLE, "the proxy stops")
        self._flush()
        self.close_if_idle()

    def close_if_idle(self) -> None:
        if not self.core.streams and not self.closed:
            self.close()


class Endpoint:
    """The port for gRPC clients: listens, counts, and stops in order."""

    def __init__(
        self,
        methods: Methods,
        host: str,
        port: int,
        *,
        shared: Shared,
        gate: TlsGate | None = None,
        max_connections: int = 10_000,
        max_calls: int = 2_000,
        reuse_port: bool = False,
        backlog: int = 1_024,
    ) -> None:
        """`max_calls`: calls of one connection that are in work, those that the client gave up included."""
        self.methods = methods
        self.shared = shared
        self.max_calls = max_calls
        self.loop = asyncio.get_running_loop()
        self.calls = 0
        """Calls since the start."""
        self.refused = RefusedConnections("gRPC port")
        self.connections: set[GrpcConnection] = set()
        self._host, self._port = host, port
        self._gate = gate
        self._most = max_connections
        self._reuse_port = reuse_port
        self._backlog = backlog
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._draining = False

    @property
    def port(self) -> int:
        return self._port

    async def start(self) -> int:
        """Listen and return the port. Raises OSError when it is taken."""
        self.shared.now = self.loop.time()
        self._server = await self.loop.create_server(
            self._accept, self._host, self._port, reuse_port=self._reuse_port or None, backlog=self._backlog
        )
        self._port = self._server.sockets[0].getsockname()[1]
        self._sweeper = self.loop.call_later(SWEEP_S, self._sweep)
        return self._port

    async def close(self, drain_s: float) -> None:
        """Stop in order: no more connections, GOAWAY to all, and `drain_s` seconds for calls in work."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self._draining = True
        for connection in list(self.connections):
            connection.go_away()
        until = self.loop.time() + drain_s
        while self.connections and self.loop.time() < until:
            await asyncio.sleep(0.02)
            for connection in list(self.connections):
                connection.close_if_idle()
        tasks = [task for connection in self.connections for task in connection.running]
        for connection in list(self.connections):
            connection.abort()
        await end_tasks(*tasks)
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._gate is not None:
            self._gate.close()

    def ended(self, connection: GrpcConnection) -> None:
        if connection in self.connections:
            self.connections.discard(connection)
            self.shared.connections -= 1

    def _accept(self) -> asyncio.Protocol:
        if self.shared.connections >= self._most or self._draining:
            self.refused.add("crowded", "", f"{self.shared.connections} connections are open")
            return _Refused()
        if self._gate is None:
            return self._enter()
        return self._gate.accept(self._enter)

    def _enter(self) -> GrpcConnection:
        connection = GrpcConnection(self)
        self.connections.add(connection)
        self.shared.connections += 1
        return connection

    def _sweep(self) -> None:
        now = self.shared.now = self.loop.time()
        for connection in list(self.connections):
            connection.sweep(now)
        self._sweeper = self.loop.call_later(SWEEP_S, self._sweep)


class _Refused(asyncio.Protocol):
    """Ends a connection over the limit."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
