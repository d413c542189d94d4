"""Carries clients of a source to it while they learn their new address, so that a cutover's pause is short.

RocketMQ's clients look for a new route every 30 seconds. So Gantry's address is in the routes before the source ends
writes, and until Gantry leads, every connection to it is passed on to the source. Once Gantry serves the address these
connections end, each behind an answer, and clients find Gantry at the address that they have: a client of 4.9 whose
connection ends below a request waits for the answer until its timeout, three seconds for a send. Until then the source
refuses what they ask.

A consumer keeps its connection to the source, which stands aside in the routes, and sends its heartbeats there, too.
RocketMQ would count a consumer with two connections twice and give the second one queues that nobody reads. So a
heartbeat that names consumers is answered here and not passed on. Source: `ConsumerGroupInfo.getAllClientId` of 4.9.7,
`MQClientInstance.sendHeartbeatToAllBroker`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final

import orjson

from gantry_broker.protocol import fastjson
from gantry_broker.protocol.codes import RequestCode, ResponseCode, SerializeType
from gantry_broker.protocol.frame import MAX_FRAME, Frame, FrameDecoder, FrameError, encode_frame
from gantry_broker.remoting.client import split_address
from gantry_broker.remoting.errors import RemotingError
from gantry_broker.tasks import end_tasks

log = logging.getLogger(__name__)

CONNECT_S: Final = 3.0
FIRST_S: Final = 10.0
"""Seconds for the first byte of a connection: clients connect when they have a request."""
IDLE_S: Final = 120.0
"""Seconds without a request after which a connection ends, as RocketMQ's own servers do. Clients send a heartbeat every
30 s.
"""
PIECE_S: Final = 30.0
"""Seconds for the next piece of a frame that has begun, and for a peer to take one."""
READ: Final = 64 << 10
ANSWER_S: Final = 1.0
"""Seconds that a connection waits for an answer behind which it ends."""
SERVED_S: Final = 0.05
"""Seconds between two looks for a new listener at the group's address."""
MOST: Final = 10_000
"""Connections at once."""
HEARTBEAT: Final = 256 << 10
"""Bytes of a heartbeat at most. Longer frames are passed on in pieces, so that a connection holds little memory."""
MAX_HELD: Final = 64 << 20
"""Bytes of frames that are put together, on all connections: one that would hold more ends."""
TLS: Final = b"\x16"
"""The first byte of a connection with TLS."""
_LENGTHS: Final = Struct(">iI")
_CODE: Final = Struct(">h")
_JSON, _COMPACT = int(SerializeType.JSON), int(SerializeType.ROCKETMQ)


def code_of(serialize: int, header: bytes) -> int | None:
    """Return the code of a request; None: the header cannot be read."""
    if serialize == _COMPACT:
        return int(_CODE.unpack_from(header)[0]) if len(header) >= _CODE.size else None
    if serialize != _JSON:
        return None
    try:
        code = orjson.loads(header).get("code")
    except (orjson.JSONDecodeError, AttributeError):
        return None
    return code if type(code) is int else None


def names_consumers(body: bytes) -> bool:
    """Whether a heartbeat names consumers; True where that cannot be read."""
    try:
        value = fastjson.loads(body, fastjson.MAX_REQUEST_DIALECT)
        return bool(value.get("consumerDataSet")) if isinstance(value, dict) else True
    except (fastjson.JsonError, ValueError):
        return True


class Held:
    """The memory of frames that are put together."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.bytes = 0

    @contextlib.contextmanager
    def room(self, size: int) -> Iterator[None]:
        """Raise OSError when there is not so much left."""
        if self.bytes + size > self._most:
            raise OSError(errno.ENOBUFS, "the connections to the source hold too much")
        self.bytes += size
        try:
            yield
        finally:
            self.bytes -= size


class Carrier:
    """Listens at the group's address and passes connections on to the source."""

    def __init__(self, host: str, port: int, target: Callable[[], str]) -> None:
        """`target`: the source's address now."""
        self._host, self._port, self._target = host, port, target
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending = False
        self._held = Held(MAX_HELD)
        self.clients = 0

    async def start(self) -> None:
        """Raise OSError when the port is taken."""
        if self._server is None:
            self._server = await asyncio.start_server(self._accepted, self._host, self._port, limit=READ)

    @property
    def port(self) -> int:
        """The port that it listens at; 0: none."""
        return 0 if self._server is None else int(self._server.sockets[0].getsockname()[1])

    def free_port(self) -> None:
        """Take no more connections; those that are open are passed on."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def end_when_served(self, within_s: float) -> None:
        """End all connections once somebody serves the port again, each behind its next answer; or after a time."""
        loop = asyncio.get_running_loop()
        until = loop.time() + within_s
        while self._tasks and loop.time() < until:
            if await self._is_served():
                break
            await asyncio.sleep(SERVED_S)
        self._ending = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=ANSWER_S)
        await self.close()

    async def _is_served(self) -> bool:
        try:
            async with asyncio.timeout(CONNECT_S):
                _, writer = await asyncio.open_connection(self._host, self._port)
        except (OSError, TimeoutError):
            return False
        writer.close()
        return True

    async def close(self) -> None:
        """End all connections, and free the port."""
        self.free_port()
        await end_tasks(*self._tasks)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.clients >= MOST or self._server is None:
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.clients += 1
        try:
            await self._carry(reader, writer)
        finally:
            self.clients -= 1
            if not writer.is_closing():
                writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(FIRST_S):
                first = await reader.readexactly(1)
            async with asyncio.timeout(CONNECT_S):
                source_reader, source_writer = await asyncio.open_connection(*split_address(self._target()), limit=READ)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, RemotingError) as error:
            log.info("a client cannot be carried to the source: %s", error)
            return
        if first == TLS:  # Nothing of it can be read here.
            source_writer.write(first)
            works = [_copy(reader, source_writer, IDLE_S), _copy(source_reader, writer)]
        else:
            between = asyncio.Lock()
            works = [
                _up(first, reader, source_writer, writer, between, self._held),
                _down(source_reader, writer, between, lambda: self._ending),
            ]
        ways = [asyncio.create_task(work) for work in works]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            source_writer.transport.abort()
            await end_tasks(*ways)


async def _up(
    first: bytes,
    reader: asyncio.StreamReader,
    source: asyncio.StreamWriter,
    client: asyncio.StreamWriter,
    between: asyncio.Lock,
    held: Held,
) -> None:
    """Pass on what the client sends, frame by frame. `first`: its first byte. `between`: held while a frame is written
    to the client. `held`: what all connections hold.
    """
    with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, FrameError):
        while True:
            if not first:
                async with asyncio.timeout(IDLE_S):
                    first = await reader.readexactly(1)
            async with asyncio.timeout(PIECE_S):
                head = first + await reader.readexactly(_LENGTHS.size - 1)
            first = b""
            length, mark = _LENGTHS.unpack(head)
            size, left = mark & 0xFFFFFF, length - 4
            if not size <= left <= MAX_FRAME:
                return
            if left > HEARTBEAT:
                source.write(head)
                await _pass(reader, source, left)
                continue
            with held.room(left):
                async with asyncio.timeout(PIECE_S):
                    rest = await reader.readexactly(left)
            if code_of(mark >> 24, rest[:size]) == RequestCode.HEART_BEAT and names_consumers(rest[size:]):
                (frame,) = FrameDecoder().feed(head + rest)
                async with between:
                    await _write(client, encode_frame(Frame.response_to(frame, ResponseCode.SUCCESS)))
                continue
            await _write(source, head + rest)


async def _down(
    source: asyncio.StreamReader, client: asyncio.StreamWriter, between: asyncio.Lock, ending: Callable[[], bool]
) -> None:
    """Pass on what the source sends, frame by frame: `_up` answers between them. `ending`: whether to return behind a
    frame.
    """
    with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
        while True:
            head = await source.readexactly(1)  # The source may have nothing to say for long.
            async with asyncio.timeout(PIECE_S):
                head += await source.readexactly(3)
            length = int.from_bytes(head, "big", signed=True)
            if not 4 <= length <= MAX_FRAME:
                return
            if ending():
                async with asyncio.timeout(PIECE_S):
                    head += await source.readexactly(length)
                async with between:
                    _end_behind(client, head)
                return
            async with between:
                client.write(head)
                await _pass(source, client, length)


def _end_behind(client: asyncio.StreamWriter, answer: bytes) -> None:
    """Send an answer and the end of the connection in one segment where the system can: a client that gets the answer
    alone may send its next request into a connection that ends.
    """
    if (cork := getattr(socket, "TCP_CORK", None)) is not None:
        with contextlib.suppress(OSError):
            client.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, cork, 1)
    client.write(answer)
    client.close()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: int) -> None:
    """Pass so many bytes on, a piece at a time. Raises OSError, TimeoutError, IncompleteReadError."""
    while count:
        async with asyncio.timeout(PIECE_S):
            data = await reader.read(min(count, READ))
        if not data:
            raise asyncio.IncompleteReadError(b"", count)
        await _write(writer, data)
        count -= len(data)


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Raise OSError, or TimeoutError for a peer that takes nothing."""
    writer.write(data)
    async with asyncio.timeout(PIECE_S):
        await writer.drain()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, idle_s: float | None = None) -> None:
    """Pass everything on. `idle_s`: seconds without a byte after which it ends; None: never."""
    with contextlib.suppress(OSError, TimeoutError):
        while True:
            async with asyncio.timeout(idle_s):
                data = await reader.read(READ)
            if not data:
                return
            await _write(writer, data)
