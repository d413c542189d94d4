"""Stands before a listening port: the first byte of a connection decides between TLS and plaintext.

A handshake costs the event loop 0.2 to 2 ms, and a peer that stops in the middle of one costs memory. So handshakes run
in slices with pauses between them, and connections without a complete one have limits of number, bytes and time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from gantry_broker.remoting.connection import Shared
from gantry_broker.remoting.crowd import Crowd
from gantry_broker.remoting.refused import RefusedConnections, host_of, peer_of
from gantry_broker.remoting.tls import Certificates
from gantry_broker.remoting.tls_transport import TlsReason, TlsTransport

log = logging.getLogger(__name__)

HANDSHAKE_RECORD: Final = 0x16
"""The first byte of a TLS connection. A remoting frame begins with 0x00 or 0x01, HTTP with a letter."""
HANDSHAKE_S: Final = 5.0
"""Seconds to wait for a peer's next bytes of a handshake. The wait for this end's turn does not count."""
MAX_STEPS: Final = 32
"""Parts in which a peer may send its handshake, of 2 or 3 messages."""
SLICE_S: Final = 0.005
"""Seconds of handshakes at a time; the one that begins last may end later."""
PAUSE_S: Final = 0.005
"""Seconds for other work between two slices."""


class TlsGate:
    """The gate of one kind of port. Several ports may share it."""

    def __init__(
        self,
        port: str,
        certificates: Certificates,
        *,
        required: bool,
        most: int,
        shared: Shared | None = None,
    ) -> None:
        """`port` is the metrics' label. `required`: plaintext is refused. `most`: connections without a complete
        handshake; one more ends one of the address that has the most of them: the one whose bytes have been missing
        for the longest time, or one that waits for its turn if all of them do. `shared` counts the bytes of incomplete
        records.
        """
        self.port = port
        self.certificates = certificates
        self.required = required
        self.shared = shared
        self.handshakes = 0
        """Complete ones since the start."""
        self.refused = RefusedConnections(f"{port} port: TLS handshake")
        self._most = most
        self._pending: Crowd[_Arriving] = Crowd()
        """Connections whose first byte or handshake is not complete. Of those that this end waits for, the one whose
        bytes have been missing for the longest time is the first.
        """
        self._turns: deque[_Arriving] = deque()
        """Those of them that have sent something."""
        self._turn: asyncio.Handle | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    def accept(self, make: Callable[[], asyncio.Protocol], given_up: Callable[[], None] | None = None) -> _Arriving:
        """Return the protocol of a new connection. `make` returns the one that takes it over; `given_up` is called if
        none does.
        """
        return _Arriving(self, make, given_up)

    @property
    def pending(self) -> int:
        return len(self._pending)

    def close(self) -> None:
        """End all connections without a complete handshake."""
        for timer in (self._turn, self._sweeper):
            if timer is not None:
                timer.cancel()
        self._turn = self._sweeper = None
        for connection in list(self._pending):
            connection.abort()

    # For connections

    def opened(self, connection: _Arriving, raw: asyncio.BaseTransport) -> None:
        self._pending.add(connection, host_of(raw))
        if len(self._pending) > self._most:
            victim = self._pending.first_of_most(lambda c: not c.queued) or connection
            victim.end("crowded", f"over {self._most} connections have no complete handshake")
            if victim is connection:
                return
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(1.0, self._sweep)

    def forget(self, connection: _Arriving) -> None:
        self._pending.discard(connection)

    def waits(self, connection: _Arriving) -> None:
        """Note that the connection had its turn, and that this end waits for its next bytes."""
        if connection in self._pending:
            self._pending.to_end(connection)

    def queue(self, connection: _Arriving) -> None:
        """Give the connection its turn in the next slice."""
        connection.queued = True
        self._turns.append(connection)
        if self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._slice)

    def _slice(self) -> None:
        until = time.perf_counter() + SLICE_S
        while self._turns:
            self._turns.popleft().go_on()
            if time.perf_counter() >= until:
                break
        loop = asyncio.get_running_loop()
        self._turn = loop.call_later(PAUSE_S, self._slice) if self._turns else None

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        before = loop.time() - HANDSHAKE_S
        for connection in list(self._pending):
            if not connection.queued and connection.since <= before:
                connection.end("timeout", f"the next bytes of the handshake did not come within {HANDSHAKE_S:g} s")
        self._sweeper = loop.call_later(1.0, self._sweep) if self._pending else None


class _Arriving(asyncio.Protocol):
    """A connection until its first byte, or the end of its handshake."""

    def __init__(
        self, gate: TlsGate, make: Callable[[], asyncio.Protocol], given_up: Callable[[], None] | None
    ) -> None:
        self._gate = gate
        self._make = make
        self._given_up = given_up
        self._raw: asyncio.Transport | None = None
        self._tls: TlsTransport | None = None
        self._over = False
        self.queued = False
        """It waits for its turn."""
        self.since = asyncio.get_running_loop().time()
        """This end has waited for the peer's bytes since then."""
        self._steps = 0

    # asyncio.Protocol, until the first byte

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast(asyncio.Transport, transport)
        self._gate.opened(self, transport)

    def data_received(self, data: bytes) -> None:
        raw, gate = self._raw, self._gate
        if self._over or raw is None or not data:
            return
        if data[0] == HANDSHAKE_RECORD:
            tls = self._tls = TlsTransport(gate.certificates.server, self, server_side=True, shared=gate.shared)
            raw.set_protocol(tls)
            tls.connection_made(raw)
            tls.data_received(data)
        elif gate.required:
            self.end("plaintext", "it sent plaintext, and the port takes TLS only")
        else:
            self._done()
            protocol = self._make()
            raw.set_protocol(protocol)
            protocol.connection_made(raw)
            protocol.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing was sent: a probe of the port, no refusal."""
        self._give_up()

    # Overseer, until the handshake is complete

    def arrived(self, tls: TlsTransport) -> None:
        """Read no more until the next step: a client may send much right after its last message."""
        if not self.queued and self._raw is not None:
            self._raw.pause_reading()
            self._gate.queue(self)

    def secured(self, tls: TlsTransport) -> asyncio.Protocol:
        self._done()
        self._gate.handshakes += 1
        return self._make()

    def failed(self, tls: TlsTransport, reason: TlsReason, text: str) -> None:
        self._refuse(reason, text)

    # The gate calls

    def go_on(self) -> None:
        self.queued = False
        if self._tls is not None and self._raw is not None and not self._over and not self._raw.is_closing():
            self._steps += 1
            if self._steps > MAX_STEPS:
                self.end("protocol", f"the handshake came in over {MAX_STEPS} parts")
                return
            self.since = asyncio.get_running_loop().time()
            self._gate.waits(self)
            self._raw.resume_reading()
            self._tls.step()

    def end(self, reason: TlsReason, text: str) -> None:
        if self._tls is not None:
            self._tls.fail(reason, text)
        elif self._raw is not None and not self._over:
            self._raw.close()
            self._refuse(reason, text)

    def abort(self) -> None:
        if self._raw is not None:
            self._raw.abort()
        self._give_up()

    def _refuse(self, reason: TlsReason, text: str) -> None:
        if not self._over and self._raw is not None:
            self._gate.refused.add(reason, peer_of(self._raw), text)
        self._give_up()

    def _done(self) -> None:
        self._over = True
        self._gate.forget(self)

    def _give_up(self) -> None:
        if not self._over:
            self._done()
            if self._given_up is not None:
                self._given_up()
