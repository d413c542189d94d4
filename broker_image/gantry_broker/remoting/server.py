"""A listening port of the remoting protocol."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final

from gantry_broker.descriptors import MAX_REMOTING_BACKLOG
from gantry_broker.protocol.frame import MAX_FRAME
from gantry_broker.protocol.request_limits import RequestLimits
from gantry_broker.remoting.connection import Connection, Handler, Shared
from gantry_broker.remoting.handshake import Identity
from gantry_broker.remoting.members import HandshakeGuard
from gantry_broker.tasks import set_within

if TYPE_CHECKING:
    from gantry_broker.remoting.tls_gate import TlsGate

log = logging.getLogger(__name__)

IDLE_SECONDS: Final = 120.0
"""Seconds without any byte after which a connection is closed (RocketMQ's `serverChannelMaxIdleTimeSeconds`)."""
FRAME_SECONDS: Final = 30.0
"""Seconds from a frame's begin to its end: the longest takes 4 s at 1 MiB/s, and clients wait for 3 s."""
_SWEEP_SECONDS: Final = 5.0


class RemotingServer:
    """Listens, keeps its connections, closes idle ones and those above a limit.

    `name` becomes `Connection.listener`. `max_frame` is in bytes. `idle_s` and `frame_s` are in seconds: the longest
    silence, and the longest time for one frame. `limits`: what each request code may bring. All servers of a process
    get the same `shared`, so that its limits of bytes and connections hold for the process. With a `guard` the port is
    one between members: a connection has an `identity`, and its handler sees it after the handshake. With a `gate` the
    port takes TLS.
    """

    def __init__(
        self,
        handler: Handler,
        host: str,
        port: int,
        *,
        reuse_port: bool = False,
        name: str = "",
        max_connections: int | None = None,
        backlog: int = MAX_REMOTING_BACKLOG,
        max_frame: int = MAX_FRAME,
        limits: RequestLimits | None = None,
        idle_s: float = IDLE_SECONDS,
        frame_s: float = FRAME_SECONDS,
        shared: Shared | None = None,
        guard: HandshakeGuard | None = None,
        gate: TlsGate | None = None,
    ) -> None:
        self._handler = handler
        self._gate = gate
        self._guard = guard
        self._host = host
        self._port = port
        self._reuse_port = reuse_port
        self._name = name
        self.shared = shared or Shared()
        self._max_connections = max_connections or self.shared.budget.connections
        self._backlog = backlog
        self._max_frame = max_frame
        self._limits = limits
        self._idle_s = idle_s
        self._frame_s = frame_s
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self.connections: set[Connection] = set()
        self.refused = 0
        self._ended = asyncio.Event()

    @property
    def port(self) -> int:
        """The listening port; 0 before `start` when the system chooses it."""
        return self._port

    @property
    def _sweep_s(self) -> float:
        return min(_SWEEP_SECONDS, self._idle_s / 2, self._frame_s / 2)

    @property
    def listening(self) -> bool:
        return self._server is not None

    async def start(self) -> int:
        """Listen and return the port. Raises OSError when the port is taken. May follow `stop_listening`."""
        loop = asyncio.get_running_loop()
        self.shared.now = loop.time()
        self._server = await loop.create_server(
            self._accept, self._host, self._port, reuse_port=self._reuse_port or None, backlog=self._backlog
        )
        self._port = self._server.sockets[0].getsockname()[1]
        if self._sweeper is None:
            self._sweeper = loop.call_later(self._sweep_s, self._sweep)
        return self._port

    def stop_listening(self) -> None:
        """Free the port; existing connections go on."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def close(self, grace_s: float = 1.0) -> None:
        """Stop listening and end all connections; written bytes have `grace_s` seconds to go out."""
        self.stop_listening()
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        if self._gate is not None:
            self._gate.close()
        if self._guard is not None:
            self._guard.close()
        for conn in list(self.connections):
            conn.close()
        if not await self._all_ended(grace_s):
            for conn in list(self.connections):
                conn.abort()
            await self._all_ended(1.0)

    async def _all_ended(self, patience_s: float) -> bool:
        self._ended.clear()
        if not self.connections:
            return True
        return await set_within(self._ended, patience_s)

    def _end(self, conn: Connection) -> None:
        self.connections.discard(conn)
        self.shared.connections -= 1
        if not self.connections:
            self._ended.set()

    def _accept(self) -> asyncio.Protocol:
        guard, gate = self._guard, self._gate
        if guard is not None:
            return guard.accept(self._admit) if gate is None else gate.accept(lambda: guard.accept(self._admit))
        conn = self._connection()
        if gate is None or not isinstance(conn, Connection):
            return conn
        return gate.accept(lambda: conn, lambda: self._end(conn))

    def adopt(self, transport: asyncio.Transport, name: str) -> Connection | None:
        """Take a client's connection that came another way; `name` becomes its `listener`. None: there are too many."""
        conn = self._connection()
        if not isinstance(conn, Connection):
            return None
        conn.listener = name
        conn.connection_made(transport)
        return conn

    def _admit(self, identity: Identity, transport: asyncio.Transport) -> None:
        """Note that the peer of a connection has proved itself."""
        conn = self._connection()
        if isinstance(conn, Connection):
            conn.identity = identity
        transport.set_protocol(conn)
        conn.connection_made(transport)

    def _connection(self) -> Connection | _Refused:
        if self.shared.connections >= self._max_connections:
            self._note_refused(f"{self.shared.connections} connections are open")
            return _Refused()
        conn = Connection(
            self._handler,
            listener=self._name,
            accepted=True,
            max_frame=self._max_frame,
            limits=self._limits,
            shared=self.shared,
            on_end=self._end,
        )
        self.connections.add(conn)
        self.shared.connections += 1
        return conn

    def _note_refused(self, why: str) -> None:
        self.refused += 1
        if self.refused & (self.refused - 1) == 0:
            log.warning("%s: %d further ones refused", why, self.refused)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now = self.shared.now = loop.time()
        for conn in list(self.connections):
            since = conn.unfinished_since
            if now - conn.last_active > self._idle_s:
                log.info("%r is idle; closed", conn)
                conn.abort()
            elif since is not None and now - since > self._frame_s:
                log.info("%r did not finish a frame within %g s; closed", conn, self._frame_s)
                conn.abort()
        self._sweeper = loop.call_later(self._sweep_s, self._sweep)


class _Refused(asyncio.Protocol):
    """Refuse a connection over the limit."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        with contextlib.suppress(OSError):
            transport.close()
