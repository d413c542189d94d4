"""Both ends of a connection between members, until the handshake is complete; then `Connection` takes the socket.

So a client's connection never gets here, and a stranger never gets further.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

from gantry_broker.contracts.token_file import TokenFile
from gantry_broker.descriptors import MAX_MEMBERS
from gantry_broker.remoting.connection import Connection
from gantry_broker.remoting.crowd import Crowd
from gantry_broker.remoting.handshake import (
    MAX_HANDSHAKE_FRAME,
    NONCE_BYTES,
    HandshakeClient,
    HandshakeError,
    HandshakeServer,
    Identity,
    Reason,
)
from gantry_broker.remoting.refused import RefusedConnections, host_of, peer_of

log = logging.getLogger(__name__)

HANDSHAKE_S: Final = 5.0
"""A connection that has not proved itself for this long is ended."""


def refuse_open_port(port: str, listen_host: str, token_file: Path | None) -> None:
    """Refuse an open port. Raises ValueError when a port between members would be open to a network without a token.

    `port` is the name of its setting.
    """
    try:
        loopback = listen_host == "localhost" or ipaddress.ip_address(listen_host).is_loopback
    except ValueError:
        loopback = False
    if token_file is None and not loopback:
        raise ValueError(
            f"{port} is set and listen_host is {listen_host!r}, but token_file is not set: name the file with the "
            "cluster's token, or listen on 127.0.0.1"
        )


class Membership:
    """The identity of this process, and the token that proves it. Each handshake reads the file."""

    def __init__(self, me: Identity, token_file: Path | None) -> None:
        """`token_file` None: the empty token, which proves nothing; for one machine alone."""
        self.me = me
        self._file = None if token_file is None else TokenFile(token_file)

    def token(self) -> bytes:
        """Return the token as of the last `look`. Raises HandshakeError when the file never held one."""
        if self._file is None:
            return b""
        token = self._file.last
        if token is None:
            raise HandshakeError("token_file", self._file.problem)
        return token.encode()

    async def look(self) -> None:
        """Read the file in a thread: a slow disk does not hold the event loop. Several handshakes share one read."""
        if self._file is not None:
            await self._file.current(max_age_s=0)

    @property
    def reads(self) -> bool:
        """Whether there is a file to read."""
        return self._file is not None


class TokenLook:
    """Keeps what the other end sends back until the token was read for this handshake."""

    def __init__(self, membership: Membership, then: Callable[[bytes], None]) -> None:
        """`then` gets the bytes that came meanwhile, if any. Create it when the connection is made."""
        self._then = then
        self._early = b""
        self._task = asyncio.ensure_future(membership.look()) if membership.reads else None
        if self._task is not None:
            self._task.add_done_callback(self._looked)

    def keeps(self, data: bytes) -> bool:
        """Keep the bytes; False: they are to be read now."""
        if self._task is None or len(self._early) + len(data) > MAX_HANDSHAKE_FRAME:
            return False  # The handshake refuses so many before it needs the token.
        self._early += data
        return True

    def _looked(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled():
            task.exception()  # The last token counts.
        if self._early:
            early, self._early = self._early, b""
            self._then(early)


Admit = Callable[[Identity, asyncio.Transport], None]
"""Takes a connection over whose client has proved itself."""


class HandshakeGuard:
    """Guards one listening port: `accept` creates the protocol of each new connection."""

    def __init__(self, membership: Membership, most: int = MAX_MEMBERS) -> None:
        """`most`: connections that have not proved themselves yet. One more ends the oldest: a member needs a few
        milliseconds, so strangers that open connections and send nothing keep no member out.
        """
        self.membership = membership
        self._most = most
        self._refused = RefusedConnections("handshake")
        self._pending: Crowd[PendingConnection] = Crowd()
        """Connections without a proof, the oldest first."""

    @property
    def refused(self) -> dict[str, int]:
        """Connections that were ended before they proved themselves, by reason."""
        return self._refused.counts

    def accept(self, admit: Admit) -> asyncio.Protocol:
        return PendingConnection(self, admit)

    def close(self) -> None:
        for connection in list(self._pending):
            connection.abort()

    def opened(self, connection: PendingConnection) -> None:
        self._pending.add(connection, connection.address)
        if len(self._pending) > self._most and (victim := self._pending.first_of_most()) is not None:
            victim.fail("crowded", f"over {self._most} connections have not proved themselves")

    def ended(self, connection: PendingConnection) -> None:
        self._pending.discard(connection)

    def count(self, reason: Reason, peer: str, text: str) -> None:
        """Count a refused connection."""
        self._refused.add(reason, peer, text)


class PendingConnection(asyncio.Protocol):
    """A connection that was accepted and has not proved itself."""

    def __init__(self, guard: HandshakeGuard, admit: Admit) -> None:
        self._guard = guard
        self._admit = admit
        self._machine = HandshakeServer(guard.membership.me, guard.membership.token, os.urandom(NONCE_BYTES))
        self._look: TokenLook | None = None
        self._transport: asyncio.Transport | None = None
        self.address = ""
        """The peer's."""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        text = f"the handshake was not complete within {HANDSHAKE_S:g} s"
        self._timer = asyncio.get_running_loop().call_later(HANDSHAKE_S, self.fail, "timeout", text)
        self._look = TokenLook(self._guard.membership, self.data_received)
        self.address = host_of(transport)
        self._guard.opened(self)

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        if transport is None or (self._look is not None and self._look.keeps(data)):
            return
        try:
            answer, peer = receive(self._machine, data, transport)
        except HandshakeError as error:
            self.fail(error.reason, str(error), error.answer)
            return
        if answer:
            transport.write(answer)
        if peer is not None:
            self._over()
            self._admit(peer, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._guard.count("ended", peer_of(self._transport), "the other end closed the connection")
        self._over()

    def fail(self, reason: Reason, text: str, answer: bytes = b"") -> None:
        transport = self._transport
        if transport is None:
            return
        self._over()
        self._guard.count(reason, peer_of(transport), text)
        if answer:
            transport.write(answer)
            transport.close()
        else:
            transport.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._over()

    def _over(self) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._guard.ended(self)


class HandshakeFailed(ConnectionError):
    """A connection was made, and its handshake failed; the text has the reason."""


class ConnectingMember(asyncio.Protocol):
    """A connection that this end made. `connected` gives the `Connection` after the handshake."""

    def __init__(self, membership: Membership, make: Callable[[], Connection]) -> None:
        self._make = make
        self._membership = membership
        self._look: TokenLook | None = None
        self._machine = HandshakeClient(membership.me, membership.token, os.urandom(NONCE_BYTES))
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()

    async def connected(self) -> Connection:
        """Return the connection after its handshake. Raises HandshakeFailed."""
        try:
            return await self._done
        except asyncio.CancelledError:
            if self._done.done() and not self._done.cancelled() and self._done.exception() is None:
                self._done.result().abort()
            elif self._transport is not None:
                self._transport.abort()
            raise

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._look = TokenLook(self._membership, self.data_received)
        self._transport.write(self._machine.hello())

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        if transport is None or self._done.done() or (self._look is not None and self._look.keeps(data)):
            return
        try:
            answer, peer = receive(self._machine, data, transport)
        except HandshakeError as error:
            self._fail(str(error))
            transport.abort()
            return
        if answer:
            transport.write(answer)
        if peer is not None:
            conn = self._make()
            conn.identity = peer
            transport.set_protocol(conn)
            conn.connection_made(transport)
            self._done.set_result(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"the other end closed the connection during the handshake{f': {exc}' if exc else ''}")

    def _fail(self, text: str) -> None:
        if not self._done.done():
            self._done.set_exception(HandshakeFailed(text))
            self._done.exception()  # Retrieved: the caller may have given the attempt up.


def receive(
    machine: HandshakeServer | HandshakeClient, data: bytes, transport: asyncio.BaseTransport
) -> tuple[bytes, Identity | None]:
    """Return the answer to the other end, and who it is once that is proved. Raises HandshakeError."""
    answer = machine.receive(data)
    if machine.peer is not None:
        check_certificate(machine.peer, transport)
    return answer, machine.peer


def check_certificate(peer: Identity, transport: asyncio.BaseTransport) -> None:
    """Raise HandshakeError when the connection has TLS and the peer's certificate names another member."""
    uris = transport.get_extra_info("certificate_uris")
    if uris is not None and not set(peer.uris) & set(uris):
        named = ", ".join(uris)[:300] or "no member"
        raise HandshakeError("certificate", f"the other end is {peer}, but its certificate names {named}")
