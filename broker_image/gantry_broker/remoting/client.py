"""The calling end of the remoting protocol: one connection per address, created on demand."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial
from typing import Final, NamedTuple, cast

from gantry_broker.protocol.codes import ResponseCode
from gantry_broker.protocol.digits import whole_number
from gantry_broker.protocol.frame import MAX_FRAME, Frame, encode_frame
from gantry_broker.remoting.connecting import CONNECTS, Resolver, first_of
from gantry_broker.remoting.connection import Connection, Reply, oneway
from gantry_broker.remoting.errors import ConnectError, ConnectionLost
from gantry_broker.remoting.members import ConnectingMember, HandshakeFailed, Membership
from gantry_broker.remoting.round_trip import UNKNOWN
from gantry_broker.remoting.tls import CallingTls, Certificates, TlsError, TlsOptions
from gantry_broker.remoting.tls_transport import CallingEnd, TlsFailed, TlsTransport
from gantry_broker.tasks import end_tasks, set_within

log = logging.getLogger(__name__)

RequestHandler = Callable[[Connection, Frame], Awaitable[Frame | None]]
"""Answers a request that the server makes; None: no answer."""

CONNECT_SECONDS: Final = 3.0
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 2.0
"""Pause in seconds after a failed handshake before the next one with that address; it doubles each time."""
SUSPECT_SECONDS: Final = 0.75
"""Seconds to wait for the first byte on a connection whose predecessor was given up as silent: the address may still
lead to a frozen or cut-off process, and the next connection to its successor.
"""


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of "host:port" (IPv6 with or without brackets). Raises ConnectError."""
    host, separator, port = address.rpartition(":")
    number = whole_number(port, 1, 65_535)
    if not separator or number is None or not host:
        raise ConnectError(f"address {address[:100]!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), number


class FailedHandshake(NamedTuple):
    """The failure of the last handshake with an address; until `until` (seconds of the loop's clock) there is no
    other.
    """

    error: str
    until: float
    pause: float


class RemotingClient:
    """Sends requests to any number of addresses.

    Use it as `async with RemotingClient() as client`, or call `close`. It calls `on_disconnect(address)` when one of
    its connections ends, from either side.
    """

    def __init__(
        self,
        *,
        on_disconnect: Callable[[str], None] | None = None,
        connect_timeout: float = CONNECT_SECONDS,
        max_frame: int = MAX_FRAME,
        membership: Membership | None = None,
        tls: TlsOptions | ssl.SSLContext | Certificates | None = None,
        sign: Callable[[Frame], None] | None = None,
    ) -> None:
        """`membership`: every address is a port between members, where this end proves itself before it sends
        requests. `tls`: every connection is one with TLS. `sign` adds a signature to each request. Raises TlsError when
        the files of `tls` cannot be used.
        """
        self._sign = sign
        self._membership = membership
        self._tls = None if tls is None else CallingTls(tls)
        self._failing: dict[str, FailedHandshake] = {}
        """Addresses whose last handshake failed."""
        self._connections: dict[str, Connection] = {}
        self._connecting: dict[str, asyncio.Task[Connection]] = {}
        self._addresses: dict[Connection, str] = {}
        self._suspects: dict[str, float] = {}
        """Addresses whose last connection was given up as silent, until something answers there; the value is the
        time (seconds of the loop's clock).
        """
        self._handlers: dict[int, RequestHandler] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._on_disconnect = on_disconnect
        self._connect_timeout = connect_timeout
        self._resolver = Resolver()
        self._max_frame = max_frame
        self._closed = False
        self._all_ended = asyncio.Event()

    async def __aenter__(self) -> RemotingClient:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def register(self, code: int, handler: RequestHandler) -> None:
        """Set the handler for requests of `code` that servers make."""
        self._handlers[code] = handler

    async def request(
        self, address: str, frame: Frame, timeout: float, *, silence: float | None = None, arriving: bool = False
    ) -> Frame:
        """Return the answer of `address`. `timeout` in seconds covers connecting and answering; `arriving`: see
        `Connection`.

        `silence`: seconds without any byte since the request after which the connection is given up as dead
        (ConnectionLost) before the timeout; `SUSPECT_SECONDS` if the connection replaced a silent one and has received
        nothing either. Raises ConnectError (never sent), ConnectionLost and RequestTimeout (perhaps done).
        """
        conn = self._connections.get(address)
        if conn is None or conn.lost or conn.paused:
            started = asyncio.get_running_loop().time()
            if conn is None or conn.lost:
                conn = await self._connect(address, min(timeout, self._connect_timeout))
            if conn.paused:
                await self._drained(address, conn, timeout if silence is None else min(timeout, silence))
            timeout = max(timeout - (asyncio.get_running_loop().time() - started), 0.001)
        if silence is not None and conn.reads == 0 and address in self._suspects:
            silence = min(silence, SUSPECT_SECONDS)
        if self._sign is not None:
            self._sign(frame)
        give_up = partial(self._give_up_silent, address, conn)
        answer = await conn.request(frame, timeout, arriving=arriving, silence=silence, on_silence=give_up)
        self._suspects.pop(address, None)
        return answer

    def submit(self, address: str, frame: Frame, timeout: float, silence: float) -> asyncio.Future[Frame] | None:
        """Send a request at once and return the future of its answer; None: there is no connection that takes it now,
        or the address fell silent. The future fails as `request` does.
        """
        conn = self.ready(address)
        if conn is None:
            return None
        if self._sign is not None:
            self._sign(frame)
        return conn.submit(frame, timeout, silence=silence, on_silence=partial(self._give_up_silent, address, conn))

    def call(self, address: str, frame: Frame, timeout: float, reply: Reply) -> bool:
        """Send a request at once; `reply` gets the answer, or the errors of `request`, in the pass of the event loop
        that reads it. `timeout` restarts with each part of a long answer. False: `submit` would return None.
        """
        conn = self.ready(address)
        if conn is None:
            return False
        if self._sign is not None:
            self._sign(frame)
        conn.call(frame, timeout, reply, arriving=True, on_silence=partial(self._give_up_silent, address, conn))
        return True

    def ready(self, address: str) -> Connection | None:
        """Return the connection that takes a request at once; None: there is none."""
        conn = self._connections.get(address)
        return None if conn is None or conn.lost or conn.paused or address in self._suspects else conn

    def fell_silent(self, within: float) -> Collection[str]:
        """Return addresses whose connection was given up as silent in the last `within` seconds, without an answer
        since.
        """
        if not self._suspects:
            return ()
        oldest = asyncio.get_running_loop().time() - within
        return {address for address, since in self._suspects.items() if since >= oldest}

    def _give_up_silent(self, address: str, conn: Connection, before: int) -> None:
        """Give the connection up if nothing came since `before` reads: the peer may be gone without a reset, and
        only a new connection reaches its successor at the same address.
        """
        if conn.reads == before:
            log.info("%r: no answer since the last request; connection given up", conn)
            self._suspects[address] = asyncio.get_running_loop().time()
            conn.abort()

    async def _drained(self, address: str, conn: Connection, timeout: float) -> None:
        """Wait until more may be written. A peer that reads nothing may be frozen, and may have a successor."""
        before = conn.reads
        try:
            async with asyncio.timeout(timeout):
                await conn.drained()
        except TimeoutError:
            self._give_up_silent(address, conn, before)
            raise ConnectionLost(f"{address} read nothing more within {timeout:g} s", sent=False) from None

    async def oneway(self, address: str, frame: Frame, timeout: float = CONNECT_SECONDS) -> None:
        """Send a request that wants no answer. Raises ConnectError, ConnectionLost."""
        conn = self._connections.get(address)
        if conn is None or conn.lost:
            conn = await self._connect(address, timeout)
        if conn.paused:
            await self._drained(address, conn, timeout)
        if conn.lost:
            raise ConnectionLost(f"connection to {address} has ended", sent=False)
        self.oneway_on(conn, frame)

    def oneway_on(self, conn: Connection, frame: Frame) -> None:
        """Send a request that wants no answer on the connection on which its occasion came."""
        if self._sign is not None:
            self._sign(frame)
        conn.write(encode_frame(oneway(frame)))

    def connected(self, address: str) -> bool:
        conn = self._connections.get(address)
        return conn is not None and not conn.closed

    def round_trip_us(self, address: str) -> int:
        """Return the round trip of the connection to an address in microseconds; -1: not known."""
        conn = self._connections.get(address)
        return UNKNOWN if conn is None else conn.round_trip_us

    def reads(self, address: str) -> int | None:
        """Return the number of reads from an address on its present connection; None: there is no connection."""
        conn = self._connections.get(address)
        return None if conn is None or conn.closed else conn.reads

    @property
    def addresses(self) -> Iterable[str]:
        """Return the addresses with a connection."""
        return [address for address, conn in self._connections.items() if not conn.closed]

    def drop(self, address: str) -> None:
        """End the connection to an address; the next request makes a new one."""
        conn = self._connections.get(address)
        if conn is not None:
            conn.close()

    async def close(self) -> None:
        """End all connections after their written bytes have gone out; pending requests raise ConnectionLost."""
        self._closed = True
        await end_tasks(*self._connecting.values(), *self._tasks)
        await self._resolver.close()
        for conn in list(self._addresses):
            conn.close()
        if self._addresses:
            self._all_ended.clear()
            if not await set_within(self._all_ended, 1.0):
                for conn in list(self._addresses):
                    conn.abort()

    async def _connect(self, address: str, timeout: float) -> Connection:
        if self._closed:
            raise ConnectError("the client is closed")
        failing = self._failing.get(address)
        if failing is not None and asyncio.get_running_loop().time() < failing.until:
            raise ConnectError(failing.error, silent=True)
        task = self._connecting.get(address)
        if task is None:
            task = asyncio.ensure_future(self._open(address))
            self._connecting[address] = task
            task.add_done_callback(lambda done: self._opened(address, done))
        try:
            # Shielded: several requests may wait for the one connection, each with its own timeout. Not by wait_for,
            # which in Python 3.11 loses a cancellation that comes together with the connection.
            async with asyncio.timeout(timeout):
                return await asyncio.shield(task)
        except TimeoutError:
            raise ConnectError(f"no connection to {address} within {timeout:g} s", silent=True) from None
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if task.cancelled() and not (caller is not None and caller.cancelling()):
                raise ConnectError("the client is closed") from None
            raise

    def _opened(self, address: str, task: asyncio.Task[Connection]) -> None:
        self._connecting.pop(address, None)
        if not task.cancelled():
            task.exception()  # Retrieved, or asyncio would report it when every waiter has gone.

    async def _open(self, address: str) -> Connection:
        host, port = split_address(address)

        def make() -> Connection:
            return Connection(self, max_frame=self._max_frame, on_end=self._ended)

        async def connect(ip: str) -> Connection:
            membership = self._membership
            if membership is None:
                return cast(Connection, await self._connected(make, host, ip, port))
            connecting = await self._connected(lambda: ConnectingMember(membership, make), host, ip, port)
            return await cast(ConnectingMember, connecting).connected()

        try:
            async with asyncio.timeout(self._connect_timeout):
                addresses = await self._resolver.addresses(host, port)
                conn = await first_of(addresses, connect, Connection.abort, CONNECTS)
        except TimeoutError:
            raise ConnectError(f"no connection to {address}: timed out", silent=True) from None
        except TlsError as error:
            raise ConnectError(f"no connection to {address}: {error}", silent=True) from None
        except (HandshakeFailed, TlsFailed) as error:
            raise self._handshake_failed(address, f"no connection to {address}: {error}") from None
        except OSError as error:
            raise ConnectError(f"no connection to {address}: {error}") from None
        self._failing.pop(address, None)
        if not conn.closed:
            self._connections[address] = conn
        self._addresses[conn] = address
        if conn.closed:
            self._ended(conn)
        return conn

    async def _connected(self, make: Callable[[], asyncio.Protocol], host: str, ip: str, port: int) -> asyncio.Protocol:
        """Return the protocol of a new connection, after the TLS handshake if there is one."""
        loop = asyncio.get_running_loop()
        if self._tls is None:
            return (await loop.create_connection(make, ip, port))[1]
        context = await asyncio.to_thread(self._tls.context)  # It looks at the files.
        name = self._tls.server_name(host)
        end = CallingEnd(make)
        _, tls = await loop.create_connection(
            lambda: TlsTransport(context, end, server_side=False, server_name=name), ip, port
        )
        return await end.protocol(tls)

    def _handshake_failed(self, address: str, text: str) -> ConnectError:
        former = self._failing.get(address)
        if former is None or former.error != text:
            log.warning("%s", text)
        pause = FIRST_PAUSE_S if former is None else min(2 * former.pause, LONGEST_PAUSE_S)
        self._failing[address] = FailedHandshake(text, asyncio.get_running_loop().time() + pause, pause)
        return ConnectError(text, silent=True)

    def _ended(self, conn: Connection) -> None:
        address = self._addresses.pop(conn, None)
        if address is None:
            return
        if not self._addresses:
            self._all_ended.set()
        if self._connections.get(address) is conn:
            del self._connections[address]
        if self._on_disconnect is not None:
            self._on_disconnect(address)

    # Requests of servers

    def on_open(self, conn: Connection) -> None:
        """Ignore: `_open` keeps the connection."""

    def on_close(self, conn: Connection) -> None:
        """Ignore: `_ended` does the work."""

    def on_frames(self, conn: Connection, frames: list[Frame]) -> None:
        for frame in frames:
            handler = self._handlers.get(frame.code)
            if handler is None:
                if not frame.is_oneway:
                    conn.send(
                        Frame.response_to(
                            frame,
                            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                            f"request code {frame.code} is not supported by this client",
                        )
                    )
                continue
            task = asyncio.ensure_future(self._answer(conn, frame, handler))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, conn: Connection, frame: Frame, handler: RequestHandler) -> None:
        try:
            answer = await handler(conn, frame)
        except Exception as error:
            log.exception("request %d from %r failed", frame.code, conn)
            answer = Frame.response_to(frame, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
        if answer is not None and not frame.is_oneway:
            conn.send(answer)
