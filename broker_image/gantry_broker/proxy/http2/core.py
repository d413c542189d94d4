"""One HTTP/2 connection (RFC 9113) as a server has it: bytes in, calls and bytes out. No sockets and no clock.

What a peer may cost is bounded here: the header block and its parts, the streams that are open, frames that make no
progress (`Strain`), and what waits for a peer that does not read, which the owner of the connection limits by `unsent`.
Every kind of frame either makes progress or takes from the strain. How long one call of `proceed` works is the
caller's decision: it stops between two frames.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from struct import Struct
from typing import Any, Final, Protocol

from gantry_broker.protocol.digits import whole_number
from gantry_broker.proxy.http2.hpack import Beginning, Decoder, Field, HpackError, TooLarge

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DEFAULT_WINDOW: Final = 65_535
MAX_WINDOW: Final = 2**31 - 1
MAX_FRAME: Final = 16_384
"""Bytes of the largest frame that this end takes: the default, which it never changes."""
STREAM_WINDOW: Final = 1 << 20
CONNECTION_WINDOW: Final = 4 << 20
MAX_STREAMS: Final = 1_000
"""Streams that one peer may have open at the same time."""
MAX_BLOCK: Final = 32 * 1024
"""Bytes of a header block with its continuations."""
MAX_PARTS: Final = 16
"""Frames of one header block."""
_SMALL: Final = 256
"""Bytes of a part of a body that counts as progress."""
_REMEMBERED: Final = 1_000
"""Streams that this end reset: what a peer had sent before it knew is ignored."""

_DATA, _HEADERS, _PRIORITY, _RST, _SETTINGS, _PUSH, _PING, _GOAWAY, _WINDOW, _CONTINUATION = range(10)
_END_STREAM: Final = 0x1
_ACK: Final = 0x1
_END_HEADERS: Final = 0x4
_PADDED: Final = 0x8
_WITH_PRIORITY: Final = 0x20
_HEAD: Final = Struct(">BHBBI")
_SETTING: Final = Struct(">HI")
_INT: Final = Struct(">I")
_PAIR: Final = Struct(">II")
_PER_CONNECTION: Final = frozenset({"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"})


class Fault(IntEnum):
    """Error codes of HTTP/2."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11


class ConnectionFault(Exception):
    """The peer broke a rule that ends the connection."""

    def __init__(self, fault: Fault, text: str) -> None:
        super().__init__(text)
        self.fault = fault


class _StreamFault(Exception):
    def __init__(self, stream: int, fault: Fault, text: str) -> None:
        super().__init__(text)
        self.stream = stream
        self.fault = fault


class Strain:
    """A peer's allowance for frames that make no progress. Each request or message gives some back."""

    def __init__(self, most: float, per_second: float, now: float) -> None:
        self._most = most
        self._per_second = per_second
        self._left = most
        self._at = now

    def earn(self, amount: float) -> None:
        self._left = left if (left := self._left + amount) < self._most else self._most

    def take(self, amount: float, now: float) -> bool:
        """Whether the peer still had as much."""
        left = self._left + (now - self._at) * self._per_second
        self._left = left = (left if left < self._most else self._most) - amount
        self._at = now
        return left >= 0


_NOTHING: Final[deque[bytes | memoryview]] = deque(maxlen=0)
"""The queue of most streams: it holds nothing."""


class Stream:
    """A request and its answer."""

    __slots__ = (
        "announced",
        "call",
        "ended",
        "id",
        "opened",
        "queue",
        "received",
        "stalled_at",
        "touched",
        "trailers",
        "waiting",
        "window",
    )

    def __init__(self, number: int, window: int) -> None:
        self.id = number
        self.window = window
        """Bytes that this end may still send."""
        self.received = 0
        """Bytes since the last update of the peer's window."""
        self.announced: int | None = None
        """Bytes of the body that the header announced and that have not come."""
        self.ended = False
        """The peer sends no more."""
        self.queue: deque[bytes | memoryview] = _NOTHING
        """Data that waits for the window."""
        self.waiting = 0
        """Its bytes."""
        self.trailers: bytes | None = None
        """What ends the stream after the queue."""
        self.stalled_at: float | None = None
        """The time since which the peer has left no window for waiting data."""
        self.opened = False
        """The owner knows the stream."""
        self.touched = 0.0
        """The owner's: the time of the last bytes of an incomplete request."""
        self.call: Any = None
        """The owner's."""


class Owner(Protocol):
    """Gets the streams of a connection."""

    def on_request(self, stream: Stream, fields: list[Field]) -> None:
        """Return a new stream; `stream.ended` says whether it has no body."""

    def on_data(self, stream: Stream, data: bytes) -> None:
        """Return a part of the body. The last part may be empty; `stream.ended` says so."""

    def on_reset(self, stream: Stream) -> None:
        """Learn that the stream is over before its answer was complete."""

    def on_closed(self, stream: Stream) -> None:
        """Learn that the stream is over: its answer is complete, or it was reset."""

    def on_drained(self, stream: Stream) -> None:
        """All data of the stream has gone out."""


class ServerConnection:
    """One connection. `out` collects the bytes to send; the caller takes them after each call."""

    def __init__(self, owner: Owner, now: float, max_streams: int = MAX_STREAMS) -> None:
        self._owner = owner
        self._buffer = bytearray()
        """Bytes of a frame that is not complete, behind `_pending`."""
        self._needed = 0
        """Bytes that the buffer must have before anything can be done with it."""
        self._pending = b""
        """Bytes that came, from `_at` on not yet looked at."""
        self._at = 0
        self._preface = True
        self._settled = False
        self._decoder = Decoder()
        self._max_streams = max_streams
        self.streams: dict[int, Stream] = {}
        self.out: list[bytes | memoryview] = []
        self.unsent = 0
        """Bytes of data that wait for windows."""
        self._last = 0
        """The highest stream that the peer opened."""
        self._reset: deque[int] = deque(maxlen=_REMEMBERED)
        self._was_reset: set[int] = set()
        self._window = DEFAULT_WINDOW
        self._initial = DEFAULT_WINDOW
        self._max_frame = MAX_FRAME
        self._received = 0
        self._block: bytearray | None = None
        self._block_of = 0
        self._block_flags = 0
        self._parts = 0
        self._blocked: dict[int, Stream] = {}
        """Streams with data that waits."""
        self._ready: dict[int, Stream] = {}
        """Those of them that wait for the connection's window alone, in the order of their turns."""
        self._acks = 1
        """SETTINGS of this end that the peer has not acknowledged."""
        self._strain = Strain(2_000, 100, now)
        self._resets = Strain(1_000, 100, now)
        self._now = now
        self.going_away = False
        """This end takes no more streams."""
        self.closed = False
        settings = ((3, max_streams), (4, STREAM_WINDOW), (6, MAX_BLOCK))
        self._frame(_SETTINGS, 0, 0, b"".join(_SETTING.pack(*pair) for pair in settings))
        self._frame(_WINDOW, 0, 0, _INT.pack(CONNECTION_WINDOW - DEFAULT_WINDOW))

    # ---- in

    @property
    def begun(self) -> bool:
        """Whether the peer's preface and settings have come."""
        return self._settled

    @property
    def held(self) -> int:
        """Bytes of an unfinished frame or header block, and of frames that wait for their turn."""
        return len(self._buffer) + len(self._pending) - self._at + (len(self._block) if self._block is not None else 0)

    @property
    def behind(self) -> bool:
        """Whether bytes wait that `proceed` has not looked at."""
        return self._at < len(self._pending)

    def receive(self, data: bytes, now: float) -> None:
        """Take bytes of the peer, and look at all of them. After a fault of the connection, `closed` is true and `out`
        ends with GOAWAY. Raises ConnectionFault after that, for the log.
        """
        self.feed(data)
        self.proceed(now)

    def feed(self, data: bytes) -> None:
        """Take bytes of the peer for `proceed`."""
        if self.closed:
            return
        if self.behind:
            self._pending = self._pending[self._at :] + data
        elif self._buffer:
            self._buffer += data
            if len(self._buffer) < self._needed:
                return
            self._pending = bytes(self._buffer)
            self._buffer.clear()
        else:
            self._pending = data
        self._at = 0

    @property
    def beginning(self) -> Beginning | None:
        """Return what the newest request has in common with others at its begin: the same object for the same."""
        return self._decoder.begun

    def proceed(self, now: float, ends: float = 0.0, clock: Callable[[], float] | None = None) -> bool:
        """Look at the bytes that came, until `ends` by a clock, if one is given. Return whether all were looked at.
        Raises as `receive`.
        """
        if self.closed:
            return True
        self._now = now
        try:
            return self._proceed(ends, clock)
        except ConnectionFault as fault:
            self._goaway(fault.fault, str(fault))
            self.closed = True
            self._pending, self._at = b"", 0
            raise

    def _proceed(self, ends: float, clock: Callable[[], float] | None) -> bool:
        data, at = self._pending, self._at
        end = len(data)
        if at == end:
            return True
        if self._preface:
            if data[: len(PREFACE)] != PREFACE[:end]:
                raise ConnectionFault(Fault.PROTOCOL_ERROR, "the connection does not begin as HTTP/2 does")
            if end < len(PREFACE):
                self._keep(at, len(PREFACE))
                return True
            at = len(PREFACE)
            self._preface = False
        unpack = _HEAD.unpack_from
        while end - at >= 9:
            high, low, kind, flags, stream = unpack(data, at)
            length = high << 16 | low
            if length > MAX_FRAME:
                raise ConnectionFault(Fault.FRAME_SIZE_ERROR, f"a frame has {length} bytes, the limit is {MAX_FRAME}")
            stop = at + 9 + length
            if stop > end:
                self._keep(at, 9 + length)
                return True
            payload = data[at + 9 : stop]
            self._at = at = stop
            try:
                self._dispatch(kind, flags, stream & MAX_WINDOW, payload)
            except _StreamFault as fault:
                self._strained(10)
                self.reset(fault.stream, fault.fault)
            if at < end and clock is not None and clock() >= ends:
                return False
        if at < end:
            self._keep(at, 9)
        else:
            self._pending, self._at = b"", 0
        return True

    def _keep(self, at: int, needed: int) -> None:
        """Keep the bytes of a frame that is not complete."""
        if at < len(self._pending):
            self._buffer += self._pending[at:] if at else self._pending
        self._needed = needed
        self._pending, self._at = b"", 0

    def _dispatch(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if self._block is not None and kind != _CONTINUATION:
            raise ConnectionFault(Fault.PROTOCOL_ERROR, "another frame came within a header block")
        if not self._settled:
            if kind != _SETTINGS or flags & _ACK:
                raise ConnectionFault(Fault.PROTOCOL_ERROR, "the first frame is not SETTINGS")
            self._settled = True
        if kind == _DATA:
            self._on_data(flags, stream, payload)
        elif kind == _HEADERS:
            self._on_headers(flags, stream, payload)
        elif kind == _WINDOW:
            self._on_window(stream, payload)
        elif kind == _PING:
            self._on_ping(flags, stream, payload)
        elif kind == _RST:
            self._on_reset(stream, payload)
        elif kind == _SETTINGS:
            self._on_settings(flags, stream, payload)
        elif kind == _CONTINUATION:
            self._on_continuation(flags, stream, payload)
        elif kind == _PRIORITY:
            self._on_priority(stream, payload)
        elif kind == _PUSH:
            raise ConnectionFault(Fault.PROTOCOL_ERROR, "a client sent PUSH_PROMISE")
        elif kind == _GOAWAY:
            if stream:
                raise ConnectionFault(Fault.PROTOCOL_ERROR, "GOAWAY belongs to the connection")
            self._strained(1)
        else:
            self._strained(1)

    def strain(self, amount: float) -> None:
        """Take from the peer's allowance for what the owner finds to be no progress. Only while the owner is called.
        Raises ConnectionFault.
        """
        self._strained(amount)

    def _strained(self, amount: float) -> None:
        if not self._strain.take(amount, self._now):
            raise ConnectionFault(Fault.ENHANCE_YOUR_CALM, "too many frames make no progress")

    def _on_data(self, flags: int, number: int, payload: bytes) -> None:
        size = len(payload)
        if not number:
            raise ConnectionFault(Fault.PROTOCOL_ERROR, "DATA without a stream")
        data = _unpadded(payload) if flags & _PADDED else payload
        self._received += size
        if self._received >= CONNECTION_WINDOW // 2:
            self._frame(_WINDOW, 0, 0, _INT.pack(self._received))
            self._received = 0
        stream = self.streams.get(number)
        if stream is None or stream.ended:
            if number > self._last or not number & 1:
                raise ConnectionFault(Fault.PROTOCOL_ERROR, f"DATA on stream {number}, which was never opened")
            if number in self._was_reset:
                if size < _SMALL:
                    self._strained(0.5)
                return
            raise _StreamFault(number, Fault.STREAM_CLOSED, "DATA after the end")
        stream.received += size
        if stream.received > STREAM_WINDOW:
            raise _StreamFault(number, Fault.FLOW_CONTROL_ERROR, "more DATA than the window allows")
        if flags & _END_STREAM:
            stream.ended = True
        elif stream.received >= STREAM_WINDOW // 2:
            self._frame(_WINDOW, 0, number, _INT.pack(stream.received))
            stream.received = 0
        if len(data) >= _SMALL:
            self._strain.earn(1)
        elif not stream.ended:
            self._strained(0.5 if data else 1)
        if stream.announced is not None:
            stream.announced -= len(data)
            if stream.announced < 0 or (stream.ended and stream.announced):
                raise _StreamFault(number, Fault.PROTOCOL_ERROR, "DATA is not as long as content-length says")
        self._owner.on_data(stream, data)

    def _on_headers(self, flags: int, number: int, payload: bytes) -> None:
        if not number & 1:
            raise ConnectionFault(Fault.PROTOCOL_ERROR, f"HEADERS on stream {number}")
        if flags & _PADDED:
            payload = _unpadded(payload)
        dependency = None
        if flags & _WITH_PRIORITY:
            if len(payload) < 5:
                raise ConnectionFault(Fault.FRAME_SIZE_ERROR, "HEADERS are too short for their priority")
            dependency = _INT.unpack_from(payload)[0] & MAX_WINDOW
            payload = payload[5:]
        if dependency == number:
            # The block must be decoded all the same; its stream is refused after that.
            self._block_flags = flags | 0x100
        else:
            self._block_flags = flags
        if flags & _END_HEADERS:
            self._on_block(number, self._block_flags, payload)
        else:
            self._block = bytearray(payload)
            self._block_of, self._parts = number, 1

    def _on_continuation(self, flags: int, number: int, payload: bytes) -> None:
        block = self._block
        if block is None or number != self._block_of:
            raise ConnectionFault(Fault.PROTOCOL_ERROR, "CONTINUATION without its HEADERS")
        block += payload
        self._parts += 1
        if len(block) > MAX_BLOCK or self._parts > MAX_PARTS:
            raise ConnectionFault(Fault.ENHANCE_YOUR_CALM, f"a header has over {MAX_PARTS} frames or {MAX_BLOCK} bytes")
        if flags & _END_HEADERS:
            self._block = None
            self._on_block(number, self._block_flags, bytes(block))

    def _on_block(self, number: int, flags: int, block: bytes) -> None:
        try:
            fields = self._decoder.decode(block)
        except TooLarge as error:
            raise ConnectionFault(Fault.ENHANCE_YOUR_CALM, str(error)) from None
        except HpackError as error:
            raise ConnectionFault(Fault.COMPRESSION_ERROR, str(error)) from None
        except IndexError:
            raise ConnectionFault(Fault.COMPRESSION_ERROR, "a header block is cut off") from None
        stream = self.streams.get(number)
        if stream is not None or number <= self._last:
            self._on_trailers(stream, number, flags, fields)
            return
        self._last = number
        if flags & 0x100:
            raise _StreamFault(number, Fault.PROTOCOL_ERROR, "a stream depends on itself")
        if self.going_away or len(self.streams) >= self._max_streams:
            raise _StreamFault(number, Fault.REFUSED_STREAM, "too many streams")
        announced = self._checked(number, fields)
        stream = self.streams[number] = Stream(number, self._initial)
        stream.ended = bool(flags & _END_STREAM)
        if announced is not None:
            stream.announced = announced
            if announced < 0 or (stream.ended and announced):
                raise _StreamFault(number, Fault.PROTOCOL_ERROR, "content-length does not fit the body")
        stream.opened = True
        self._owner.on_request(stream, fields)
        if number in self.streams:
            self._strain.earn(2)
        else:
            self._strained(2)  # it was refused at once, so it was no progress

    def _checked(self, number: int, fields: list[Field]) -> int | None:
        """Check a request's header, and return the bytes that it announces: -1 for what is no number, None for nothing
        announced. Raises _StreamFault.
        """
        begun = self._decoder.begun
        first = None if begun is None else begun.names
        if begun is None or first is None:
            new = fields
            names = tuple([name for name, _ in fields])
        else:
            new = fields[len(first) :]
            names = tuple([name for name, _ in new])
            if names == begun.rest:
                if fault := _values_fault(new):
                    raise _StreamFault(number, Fault.PROTOCOL_ERROR, fault)
                return None
            names = first + names
        if fault := _names_fault(names) or _values_fault(new):
            raise _StreamFault(number, Fault.PROTOCOL_ERROR, fault)
        if begun is not None:
            begun.names = names[: len(begun.fields)]
        if "content-length" in names:
            announced = whole_number(fields[names.index("content-length")][1], 0, 10**15)
            return -1 if announced is None else announced
        if begun is not None:
            begun.rest = names[len(begun.fields) :]
        return None

    def _on_trailers(self, stream: Stream | None, number: int, flags: int, fields: list[Field]) -> None:
        if stream is None or stream.ended:
            if number in self._was_reset:
                return
            if stream is None:
                raise ConnectionFault(Fault.STREAM_CLOSED, f"HEADERS on stream {number}, which is closed")
            raise _StreamFault(number, Fault.STREAM_CLOSED, "HEADERS after the end")
        if not flags & _END_STREAM:
            raise _StreamFault(number, Fault.PROTOCOL_ERROR, "trailers without an end")
        if any(name.startswith(":") or name != name.lower() for name, _ in fields):
            raise _StreamFault(number, Fault.PROTOCOL_ERROR, "trailers hold what they must not")
        stream.ended = True
        if stream.announced:
            raise _StreamFault(number, Fault.PROTOCOL_ERROR, "DATA is not as long as content-length says")
        self._owner.on_data(stream, b"")

    def _on_window(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(Fault.FRAME_SIZE_ERROR, "WINDOW_UPDATE has 4 bytes")
        more = _INT.unpack(payload)[0] & MAX_WINDOW
        self._strained(0.25)
        if not number:
            self._window += more
            if not more:
                raise ConnectionFault(Fault.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
            if self._window > MAX_WINDOW:
                raise ConnectionFault(Fault.FLOW_CONTROL_ERROR, "the connection's window is too large")
            while self._ready and self._window > 0:  # each turn ends a stream's wait, or uses the window up
                self._pump(self._ready.pop(next(iter(self._ready))))
            return
        stream_or_none = self.streams.get(number)
        if stream_or_none is None:
            if number > self._last:
                raise ConnectionFault(Fault.PROTOCOL_ERROR, f"WINDOW_UPDATE of stream {number}, which is idle")
            return
        if not more:
            raise _StreamFault(number, Fault.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
        stream_or_none.window += more
        if stream_or_none.window > MAX_WINDOW:
            raise _StreamFault(number, Fault.FLOW_CONTROL_ERROR, "the stream's window is too large")
        if stream_or_none.waiting:
            self._pump(stream_or_none)

    def _on_ping(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise ConnectionFault(Fault.PROTOCOL_ERROR, "PING belongs to the connection")
        if len(payload) != 8:
            raise ConnectionFault(Fault.FRAME_SIZE_ERROR, "PING has 8 bytes")
        if not flags & _ACK:
            self._frame(_PING, _ACK, 0, payload)
        self._strained(1)

    def _on_reset(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(Fault.FRAME_SIZE_ERROR, "RST_STREAM has 4 bytes")
        if not number or number > self._last or not number & 1:
            raise ConnectionFault(Fault.PROTOCOL_ERROR, f"RST_STREAM of stream {number}, which was never opened")
        if not self._resets.take(1, self._now):
            raise ConnectionFault(Fault.ENHANCE_YOUR_CALM, "too many streams were opened and reset")
        stream = self.streams.get(number)
        if stream is not None:
            self._drop(stream)

    def _on_settings(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise ConnectionFault(Fault.PROTOCOL_ERROR, "SETTINGS belong to the connection")
        if flags & _ACK:
            if payload:
                raise ConnectionFault(Fault.FRAME_SIZE_ERROR, "an acknowledgement of SETTINGS is empty")
            if self._acks:
                self._acks -= 1
            else:
                self._strained(1)
            return
        if len(payload) % 6:
            raise ConnectionFault(Fault.FRAME_SIZE_ERROR, "SETTINGS have 6 bytes each")
        self._strained(5 + len(payload) / 6)
        self._frame(_SETTINGS, _ACK, 0, b"")
        initial = self._initial
        for name, value in _SETTING.iter_unpack(payload):
            if name == 2 and value > 1:
                raise ConnectionFault(Fault.PROTOCOL_ERROR, f"ENABLE_PUSH is {value}")
            if name == 4:
                if value > MAX_WINDOW:
                    raise ConnectionFault(Fault.FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE is {value}")
                initial = value
            elif name == 5:
                if not MAX_FRAME <= value <= 2**24 - 1:
                    raise ConnectionFault(Fault.PROTOCOL_ERROR, f"MAX_FRAME_SIZE is {value}")
                self._max_frame = min(value, 64 * 1024)
        if initial != self._initial:
            self._resize(initial)

    def _resize(self, initial: int) -> None:
        """Give all streams another window: once for a frame, by its last value."""
        self._strained(len(self.streams) / 20)
        change, self._initial = initial - self._initial, initial
        for stream in list(self.streams.values()):
            stream.window += change
            if stream.window > MAX_WINDOW:
                raise ConnectionFault(Fault.FLOW_CONTROL_ERROR, "a stream's window is too large")
            if stream.waiting:
                self._pump(stream)

    def _on_priority(self, number: int, payload: bytes) -> None:
        if not number:
            raise ConnectionFault(Fault.PROTOCOL_ERROR, "PRIORITY without a stream")
        self._strained(1)
        if len(payload) != 5:
            raise _StreamFault(number, Fault.FRAME_SIZE_ERROR, "PRIORITY has 5 bytes")
        if _INT.unpack_from(payload)[0] & MAX_WINDOW == number:
            raise _StreamFault(number, Fault.PROTOCOL_ERROR, "a stream depends on itself")

    # ---- out

    def headers(self, stream: Stream, block: bytes) -> None:
        """Send the first header of an answer."""
        self._frame(_HEADERS, _END_HEADERS, stream.id, block)

    def data(self, stream: Stream, data: bytes) -> None:
        """Send a part of the answer, as the peer's windows allow."""
        if stream.id not in self.streams:
            return
        size = len(data)
        self._strain.earn(2)
        if not stream.waiting and size <= self._window and size <= stream.window and size <= self._max_frame:
            self._window -= size
            stream.window -= size
            self._frame(_DATA, 0, stream.id, data)
            return
        if stream.queue is _NOTHING:
            stream.queue = deque()
        stream.queue.append(data)
        stream.waiting += size
        self.unsent += size
        self._pump(stream)

    def answer(self, stream: Stream, block: bytes, data: bytes, trailers: bytes) -> None:
        """Send a whole answer: its first header, its data and its end."""
        size = len(data)
        if (
            size > self._window
            or size > stream.window
            or size > self._max_frame
            or not stream.ended
            or stream.id not in self.streams
        ):
            self.headers(stream, block)
            self.data(stream, data)
            self.finish(stream, trailers)
            return
        self._strain.earn(2)
        self._window -= size
        number = stream.id
        pack = _HEAD.pack
        first, last = len(block), len(trailers)
        self.out += (
            pack(first >> 16, first & 0xFFFF, _HEADERS, _END_HEADERS, number) + block,
            pack(size >> 16, size & 0xFFFF, _DATA, 0, number) + data,
            pack(last >> 16, last & 0xFFFF, _HEADERS, _END_HEADERS | _END_STREAM, number) + trailers,
        )
        del self.streams[number]
        self._owner.on_closed(stream)
        stream.call = None  # neither keeps the other alive

    def finish(self, stream: Stream, trailers: bytes) -> None:
        """End the answer with trailers, after its data."""
        if stream.id not in self.streams:
            return
        stream.trailers = trailers
        if not stream.waiting:
            self._close(stream)

    def reset(self, number: int, fault: Fault) -> None:
        """End a stream at once."""
        self._remember(number)
        self._frame(_RST, 0, number, _INT.pack(fault))
        stream = self.streams.get(number)
        if stream is not None:
            self._drop(stream)

    def go_away(self) -> None:
        """Take no more streams, and notify the peer which ones still get their answer."""
        if not self.going_away and not self.closed:
            self.going_away = True
            self._goaway(Fault.NO_ERROR, "the server stops")

    def ping(self) -> None:
        self._frame(_PING, 0, 0, b"gantry\0\0")

    def oldest_stall(self) -> float | None:
        """Return the time since which some stream has waited for the peer's window; None: none waits."""
        return min((s.stalled_at for s in self._blocked.values() if s.stalled_at is not None), default=None)

    def _goaway(self, fault: Fault, text: str) -> None:
        self._frame(_GOAWAY, 0, 0, _PAIR.pack(self._last, fault) + text.encode()[:200])

    def _pump(self, stream: Stream) -> None:
        queue = stream.queue
        moved = 0
        while queue:
            most = min(self._window, stream.window, self._max_frame)
            if most <= 0:
                break
            part = queue[0]
            if len(part) > most:
                # A view: windows of a few bytes copy the rest of a message no more than once.
                part = memoryview(part)
                queue[0], part = part[most:], part[:most]
            else:
                queue.popleft()
            size = len(part)
            moved += size
            self._window -= size
            stream.window -= size
            self._frame(_DATA, 0, stream.id, part)
        stream.waiting -= moved
        self.unsent -= moved
        self._ready.pop(stream.id, None)
        if queue:
            self._blocked[stream.id] = stream
            if stream.window > 0:
                self._ready[stream.id] = stream  # Its next turn comes after those of the others.
            if moved or stream.stalled_at is None:
                stream.stalled_at = self._now
            return
        stream.stalled_at = None
        self._blocked.pop(stream.id, None)
        if stream.trailers is not None:
            self._close(stream)
        else:
            self._owner.on_drained(stream)

    def _close(self, stream: Stream) -> None:
        """Send the trailers: the answer is complete."""
        self._frame(_HEADERS, _END_HEADERS | _END_STREAM, stream.id, stream.trailers or b"")
        self.streams.pop(stream.id, None)
        self._owner.on_closed(stream)
        stream.call = None
        if not stream.ended:
            self._remember(stream.id)
            if self.going_away:
                return  # The end of the connection says it, and RocketMQ's Rust client takes no reset after trailers.
            self._frame(_RST, 0, stream.id, _INT.pack(Fault.NO_ERROR))

    def _drop(self, stream: Stream) -> None:
        self.streams.pop(stream.id, None)
        self._blocked.pop(stream.id, None)
        self._ready.pop(stream.id, None)
        self.unsent -= stream.waiting
        stream.queue.clear()
        stream.waiting = 0
        if stream.opened:
            self._owner.on_reset(stream)
            self._owner.on_closed(stream)
        self._owner.on_drained(stream)
        stream.call = None

    def _remember(self, number: int) -> None:
        if number in self._was_reset:
            return
        if len(self._reset) == _REMEMBERED:
            self._was_reset.discard(self._reset[0])
        self._reset.append(number)
        self._was_reset.add(number)

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes | memoryview) -> None:
        length = len(payload)
        self.out.append(_HEAD.pack(length >> 16, length & 0xFFFF, kind, flags, stream))
        if payload:
            self.out.append(payload)


def _unpadded(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise ConnectionFault(Fault.PROTOCOL_ERROR, "the padding is longer than the frame")
    return payload[1 : len(payload) - payload[0]]


_VALID: Final[set[tuple[str, ...]]] = set()
"""Names of fields, in their order, that were found valid: clients send the same few."""
_MOST_VALID: Final = 512
_FORBIDDEN: Final = re.compile("[\x00-\x08\x0a-\x1f\x7f]")
"""What RFC 9110 (5.5) allows in no value: it would begin new lines where values are shown."""


def _values_fault(fields: list[Field]) -> str:
    """Return what is wrong with the values of a request's header, or ""."""
    for name, value in fields:
        if not value.isprintable() and _FORBIDDEN.search(value):
            return "the value of a field holds a control character"
        if name == ":path":
            if not value:
                return "the path is empty"
        elif name == "te" and value != "trailers":
            return "te is not trailers"
    return ""


def _names_fault(names: tuple[str, ...]) -> str:
    """Return what is wrong with the names of a request's header, in their order, or ""."""
    if names in _VALID:
        return ""
    fault = _wrong_names(names)
    if not fault and len(_VALID) < _MOST_VALID and sum(map(len, names)) < 1_024:
        _VALID.add(names)
    return fault


def _wrong_names(names: tuple[str, ...]) -> str:
    seen: set[str] = set()
    regular = False
    for name in names:
        if name[:1] == ":":
            if regular:
                return "a pseudo field comes after others"
            if name in seen or name not in (":method", ":scheme", ":path", ":authority"):
                return f"the pseudo field {name[:40]} is unknown or there twice"
            seen.add(name)
            continue
        regular = True
        if name != name.lower() or not name or any(letter <= " " or letter == ":" or letter > "~" for letter in name):
            return "the name of a field is not valid"
        if name in _PER_CONNECTION:
            return f"the field {name} belongs to HTTP/1"
    if not {":method", ":scheme", ":path"} <= seen:
        return "a pseudo field is missing"
    return ""
