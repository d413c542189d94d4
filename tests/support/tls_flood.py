"""A flood of TLS handshakes and records by a stranger, as a program: `python tls_flood.py PORT...`.

It prints a dot for each connection that it began.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable

CONTEXT = ssl.create_default_context()
CONTEXT.check_hostname, CONTEXT.verify_mode = False, ssl.CERT_NONE
CONTEXT.set_alpn_protocols(["h2", "http/1.1"])
SECONDS = 60
TINY = 2_000
"""Records of one byte on a connection."""


def hello() -> bytes:
    out = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        CONTEXT.wrap_bio(ssl.MemoryBIO(), out).do_handshake()
    return out.read()


def records(sock: socket.socket) -> None:
    """A whole handshake, then what begins a frame, a head of HTTP or a preface, a byte in each record."""
    incoming, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = CONTEXT.wrap_bio(incoming, out)
    while True:
        try:
            tls.do_handshake()
            break
        except ssl.SSLWantReadError:
            sock.sendall(out.read())
            incoming.write(sock.recv(16_384))
    begin = (b"\0\x10\0\0\0\0\x40\0", b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: ", b"PRI * HTTP/2.0\r\n")
    text = begin[threading.get_ident() % 3] + b" " * TINY
    for at in range(TINY):
        tls.write(text[at : at + 1])
    sock.sendall(out.read())


def whole(sock: socket.socket) -> None:
    CONTEXT.wrap_socket(sock).close()


def half(sock: socket.socket) -> None:
    """It stops within a handshake, and keeps the connection for a while."""
    sock.sendall(hello()[: 1 + threading.get_ident() % 600])
    KEPT.append(sock.dup())
    if len(KEPT) > 300:
        KEPT.pop(0).close()


KEPT: list[socket.socket] = []


def pieces(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in hello():
        sock.sendall(bytes((byte,)))


def garbage(sock: socket.socket) -> None:
    sock.sendall(b"\x16\x03\x01\x40\x00" + os.urandom(16_384) * 16)


def flood(port: int, kind: Callable[[socket.socket], None]) -> None:
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as sock:
            print(".", end="", flush=True)
            kind(sock)
        time.sleep(0.002)


if __name__ == "__main__":
    for number in sys.argv[1:]:
        for one in (records, whole, half, pieces, garbage):
            threading.Thread(target=flood, args=(int(number), one), daemon=True).start()
    time.sleep(SECONDS)
