"""TLS on one connection: the protocol of the socket's transport, and the transport of the protocol above it.

All bytes are encrypted or decrypted when they pass, so the socket's transport holds what waits for the peer, and its
limits, its buffer's size and its pauses keep their meaning.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, cast

from gantry_broker.inbox import Inbox

if TYPE_CHECKING:
    from gantry_broker.remoting.connection import Shared

RECORD: Final = 16 * 1024
"""The most plain bytes of one record."""
FEED: Final = RECORD
"""The most bytes that OpenSSL gets at once: its buffers keep the largest size that they ever had."""
DELIVER: Final = 4 * RECORD
"""Plain bytes that are delivered together at least, if as many have come."""
HELD: Final = RECORD + 1024
"""Bytes that an incomplete record holds, however few of its bytes have come."""
MAX_HANDSHAKE: Final = 64 * 1024
"""The most bytes of a peer's handshake, certificates included."""

TlsReason = Literal["plaintext", "protocol", "certificate", "rejected", "timeout", "crowded", "ended"]
"""Why a connection did not become a TLS connection, as metrics name it."""


class Overseer(Protocol):
    """Follows a handshake."""

    def arrived(self, tls: TlsTransport) -> None:
        """Call `tls.step` at once or soon: the peer has sent something."""
        ...

    def secured(self, tls: TlsTransport) -> asyncio.Protocol:
        """Return the protocol that takes the connection over."""
        ...

    def failed(self, tls: TlsTransport, reason: TlsReason, text: str) -> None:
        """Note that the connection ends without a handshake."""
        ...


class TlsTransport(asyncio.Protocol, asyncio.Transport):
    """One connection with TLS, of either end."""

    def __init__(
        self,
        context: ssl.SSLContext,
        overseer: Overseer,
        *,
        server_side: bool,
        server_name: str | None = None,
        shared: Shared | None = None,
    ) -> None:
        """`shared` counts the bytes of incomplete records."""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_side, server_name)
        self._context = context
        self._overseer: Overseer | None = overseer
        """None: the handshake is over."""
        self._server_side = server_side
        self._shared = shared
        self._raw: asyncio.Transport | None = None
        self._protocol: asyncio.Protocol | None = None
        self._waiting = b""
        """What has come since the last step of the handshake: its messages, perhaps with the first plain bytes."""
        self._handshake_bytes = 0
        self._partial = False
        self._ended = False
        """The peer has ended TLS, or broken it."""
        self._inbox = Inbox(shared.slices, self, FEED) if shared is not None else None
        """None: this end has made the connection, and trusts its peer."""
        self._plain: list[bytes] = []
        """What is decrypted and not delivered."""
        self._plain_size = 0
        self._eof = False
        """The peer has ended without an end of TLS, and what it sent is not handled yet."""
        self._input_waits = False
        self._reading_paused = False
        self._closing = False
        self._error: Exception | None = None

    def __repr__(self) -> str:
        return f"<TLS {self.get_extra_info('peername')}>"

    # The socket's transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast(asyncio.Transport, transport)
        if not self._server_side:
            self.step()

    def data_received(self, data: bytes) -> None:
        raw = self._raw
        if self._closing or raw is None:
            return
        if self._overseer is not None:
            self._waiting += data
            self._overseer.arrived(self)
        elif self._inbox is not None:
            self._inbox.received(data)
            if self._inbox.size:
                self._hold_bytes()
        else:
            for at in range(0, len(data), FEED):
                self.handle(data[at : at + FEED])
            self._hand_over()

    def handle(self, data: bytes) -> bool:
        """Decrypt at most `FEED` bytes (`gantry_broker.inbox`); deliver plain bytes when they are many or the last."""
        if self._closing or self._ended:
            return False
        self._incoming.write(data)
        parts = self._decrypt()
        self._plain += parts
        self._plain_size += sum(map(len, parts))
        inbox = self._inbox
        if self._plain_size >= DELIVER or self._ended or (inbox is not None and not inbox.size):
            self._hand_over()
        return False

    def pause_input(self, wait: bool) -> None:
        self._input_waits = wait
        self._read_or_pause()

    def input_ended(self) -> None:
        self._hold_bytes()
        if self._eof:
            self._protocol_eof()

    def eof_received(self) -> bool | None:
        if self._overseer is not None or self._protocol is None:
            return None
        if self._inbox:
            self._eof = True
            return True
        return self._protocol.eof_received()

    def _hold_bytes(self) -> None:
        if self._shared is not None and not self._closing:
            waiting = 0 if self._inbox is None else self._inbox.size
            self._shared.hold(self, waiting + (HELD if self._partial else 0))

    def _protocol_eof(self) -> None:
        """Tell the protocol that the peer has ended; it may keep the connection for a moment."""
        if not self._closing and self._protocol is not None and not self._protocol.eof_received():
            self.close()

    def pause_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        if self._inbox is not None:
            self._inbox.leave()
        if self._shared is not None:
            self._shared.hold(self, 0)
        overseer, self._overseer = self._overseer, None
        if overseer is not None:
            overseer.failed(self, "ended", f"the other end closed the connection{f': {exc}' if exc else ''}")
        elif self._protocol is not None:
            self._protocol.connection_lost(self._error or exc)

    # The handshake

    def step(self) -> None:
        """Go on with the handshake as far as the peer's bytes allow."""
        if self._closing or self._overseer is None or self._raw is None:
            return
        view, at = memoryview(self._waiting), 0
        while True:
            self._incoming.write(view[at : at + FEED])
            at += FEED
            try:
                self._ssl.do_handshake()
                break
            except ssl.SSLWantReadError:
                if at < len(view):
                    continue
                self._flush()
                self._handshake_bytes += len(view)
                self._waiting = b""
                if self._handshake_bytes > MAX_HANDSHAKE:
                    self.fail("protocol", f"the handshake has over {MAX_HANDSHAKE} bytes")
                return
            except ssl.SSLError as error:
                self._flush()  # an alert
                self.fail(_reason(error), _text(error))
                return
        self._flush()
        self._waiting = b""
        protocol = self._protocol = self._overseer.secured(self)
        self._overseer = None
        protocol.connection_made(self)
        if not self._closing and self._incoming.pending:
            self._plain = self._decrypt()
            self._hand_over()
        if at < len(view):
            self.data_received(bytes(view[at:]))

    def fail(self, reason: TlsReason, text: str) -> None:
        """End a connection whose handshake is not complete."""
        overseer, self._overseer = self._overseer, None
        if overseer is None or self._raw is None:
            return
        self._closing = True
        self._raw.close()
        overseer.failed(self, reason, text)

    # Decryption

    def _decrypt(self) -> list[bytes]:
        """Return the plain bytes of all complete records that OpenSSL was given."""
        incoming, read = self._incoming, self._ssl.read
        parts = []
        partial = False
        try:
            while incoming.pending:
                part = read(RECORD)
                if not part:
                    self._ended = True
                    break
                parts.append(part)
        except ssl.SSLWantReadError:
            partial = True
        except ssl.SSLError as error:
            self._error = ConnectionError(f"TLS: {_text(error)}")
            self._ended = True
        if partial != self._partial:
            self._partial = partial
            self._hold_bytes()
        return parts

    def _hand_over(self) -> None:
        """Deliver the plain bytes together."""
        if self._outgoing.pending:
            self._flush()  # an alert, or an answer to a change of keys
        parts, self._plain, self._plain_size = self._plain, [], 0
        protocol = self._protocol
        if protocol is None or self._closing:
            return
        if parts:
            protocol.data_received(parts[0] if len(parts) == 1 else b"".join(parts))
        if self._ended and not self._closing:
            if self._error is None:
                self._protocol_eof()
            else:
                self.close()

    def _flush(self) -> None:
        if self._outgoing.pending and self._raw is not None:
            self._raw.write(self._outgoing.read())

    # The protocol calls

    def write(self, data: bytes | bytearray | memoryview) -> None:
        raw = self._raw
        if self._closing or raw is None or not data:
            return
        try:
            if len(data) <= RECORD:
                self._ssl.write(data)
                raw.write(self._outgoing.read())
                return
            view = memoryview(data)
            for at in range(0, len(view), RECORD):
                self._ssl.write(view[at : at + RECORD])
                if self._outgoing.pending >= FEED:
                    raw.write(self._outgoing.read())
            self._flush()
        except ssl.SSLError as error:
            self._error = ConnectionError(f"TLS: {_text(error)}")
            self.abort()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        """End the connection after all written bytes have gone out. A peer whose bytes stay unread gets no orderly
        end of TLS before the reset of TCP.
        """
        if self._closing:
            return
        self._closing = True
        if self._raw is None:
            return
        if not self._reading_paused:
            with contextlib.suppress(ssl.SSLError):
                self._ssl.unwrap()
            self._flush()
        self._raw.close()

    def abort(self) -> None:
        self._closing = True
        if self._raw is not None:
            self._raw.abort()

    def is_closing(self) -> bool:
        return self._closing or self._raw is None or self._raw.is_closing()

    def pause_reading(self) -> None:
        self._reading_paused = True
        self._read_or_pause()

    def resume_reading(self) -> None:
        self._reading_paused = False
        self._read_or_pause()

    def _read_or_pause(self) -> None:
        if self._inbox is not None:
            self._inbox.hold(self._reading_paused)
        if self._raw is None:
            return
        if self._reading_paused or self._input_waits:
            self._raw.pause_reading()
        else:
            self._raw.resume_reading()

    def is_reading(self) -> bool:
        return not self._reading_paused and not self._closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._raw is not None:
            self._raw.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return 0 if self._raw is None else self._raw.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return (0, 0) if self._raw is None else self._raw.get_write_buffer_limits()

    def can_write_eof(self) -> bool:
        return False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        own: dict[str, Callable[[], object]] = {
            "sslcontext": lambda: self._context,
            "ssl_object": lambda: self._ssl,
            "certificate_uris": self._certificate_uris,
        }
        if name in own:
            return own[name]()
        return default if self._raw is None else self._raw.get_extra_info(name, default)

    def _certificate_uris(self) -> tuple[str, ...]:
        """Return the URIs that the peer's verified certificate names."""
        names = (self._ssl.getpeercert() or {}).get("subjectAltName", ())
        return tuple(str(value) for kind, value in cast("tuple[tuple[str, str], ...]", names) if kind == "URI")


def _reason(error: ssl.SSLError) -> TlsReason:
    reason = error.reason or ""
    if reason == "CERTIFICATE_VERIFY_FAILED" or reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "certificate"
    return "rejected" if "_ALERT_" in reason else "protocol"


def _text(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not valid: {error.verify_message}"
    return (error.reason or str(error)).replace("_", " ").lower()[:200]


class TlsFailed(ConnectionError):
    """A connection was made, and its TLS handshake failed; the text has the reason."""


class CallingEnd:
    """The overseer of a calling end's handshake."""

    def __init__(self, make: Callable[[], asyncio.Protocol]) -> None:
        """`make` returns the protocol that takes the connection over."""
        self._make = make
        self._done: asyncio.Future[asyncio.Protocol] = asyncio.get_running_loop().create_future()

    def arrived(self, tls: TlsTransport) -> None:
        tls.step()

    def secured(self, tls: TlsTransport) -> asyncio.Protocol:
        protocol = self._make()
        if not self._done.done():
            self._done.set_result(protocol)
        return protocol

    def failed(self, tls: TlsTransport, reason: TlsReason, text: str) -> None:
        if not self._done.done():
            lost = reason == "ended"
            self._done.set_exception(ConnectionResetError(f"TLS: {text}") if lost else TlsFailed(f"TLS: {text}"))
            self._done.exception()  # Retrieved: the caller may have given the attempt up.

    async def protocol(self, tls: TlsTransport) -> asyncio.Protocol:
        """Return the protocol once the handshake is complete. Raises TlsFailed, and ConnectionResetError when the
        other end has gone.
        """
        try:
            return await self._done
        except asyncio.CancelledError:
            tls.abort()
            raise
