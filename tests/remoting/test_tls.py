"""Certificates that change, and the order of handshakes: no process beside this one."""

from __future__ import annotations

import asyncio
import datetime
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from gantry_broker.http.prestop import must_wait
from gantry_broker.protocol.frame import Frame
from gantry_broker.remoting import tls_gate
from gantry_broker.remoting.client import RemotingClient
from gantry_broker.remoting.connection import Connection, Shared
from gantry_broker.remoting.server import RemotingServer
from gantry_broker.remoting.tls import CallingTls, Certificates, TlsError, TlsOptions, client_context, expiry
from gantry_broker.remoting.tls_gate import TlsGate

from tests.support.certificates import DAY, Authority, Files, replace
from tests.support.remoting import RequestOnly
from tests.support.running import until

LOCAL = ("127.0.0.1", "localhost")


class Echo(RequestOnly):
    def __init__(self) -> None:
        self.connections: list[Connection] = []

    def on_open(self, conn: Connection) -> None:
        self.connections.append(conn)

    def on_frames(self, conn: Connection, frames: list[Frame]) -> None:
        for frame in frames:
            conn.send(Frame.response_to(frame, 0, body=frame.body))


class Port:
    def __init__(self, files: Files, most: int = 64, required: bool = True) -> None:
        self.handler = Echo()
        shared = Shared()
        self.gate = TlsGate(
            "client", Certificates("client", files.cert, files.key), required=required, most=most, shared=shared
        )
        self.server = RemotingServer(self.handler, "127.0.0.1", 0, gate=self.gate, shared=shared)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"


@asynccontextmanager
async def port(files: Files, most: int = 64, required: bool = True) -> AsyncIterator[Port]:
    opened = Port(files, most, required)
    await opened.server.start()
    try:
        yield opened
    finally:
        await opened.server.close()
        assert opened.server.shared.connections == 0, "a connection without a handshake gives its place back"


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Authority().issue(tmp_path / "now", *LOCAL)


def test_a_new_certificate_counts_once_its_key_is_there(files: Files, tmp_path: Path) -> None:
    certificates = Certificates("client", files.cert, files.key)
    first, began = certificates.server, certificates.expires
    certificates.look()
    assert certificates.server is first, "unchanged files are not read"
    new = Authority().issue(tmp_path / "new", *LOCAL, valid_for=90 * DAY)
    replace(files.cert, new.cert.read_bytes())
    for _ in range(3):
        certificates.look()
    assert (certificates.server, certificates.expires, certificates.failures) == (first, began, 1)
    replace(files.key, new.key.read_bytes())
    certificates.look()
    assert certificates.server is not first
    assert certificates.expires == expiry(new.cert) > began


@pytest.mark.parametrize("kind", ["absent", "empty", "garbage", "huge", "expired"])
def test_files_that_cannot_be_used_leave_the_former_certificate(files: Files, tmp_path: Path, kind: str) -> None:
    certificates = Certificates("client", files.cert, files.key)
    first = certificates.server
    good = files.cert.read_bytes()
    if kind == "absent":
        files.cert.unlink()
    elif kind == "expired":
        now = time.time()
        old = Authority().issue(tmp_path / "old", *LOCAL, valid_for=datetime.timedelta(seconds=-60))
        assert expiry(old.cert) < now
        replace(files.key, old.key.read_bytes())
        replace(files.cert, old.cert.read_bytes())
    else:
        replace(files.cert, {"empty": b"", "garbage": b"\xff" * 999, "huge": b"x" * (2 << 20)}[kind])
    certificates.look()
    assert certificates.server is first
    assert certificates.failures == 1
    if kind != "expired":
        replace(files.cert, good)
        certificates.look()
        assert certificates.server is not first


def test_an_encrypted_key_is_refused_without_a_question(files: Files) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    )
    replace(files.key, encrypted)
    with pytest.raises(TlsError, match="write the key without a passphrase"):
        Certificates("client", files.cert, files.key)


def test_a_client_takes_replaced_files_for_its_next_connection(files: Files) -> None:
    calling = CallingTls(TlsOptions(ca_file=files.ca))
    first = calling.context()
    assert calling.context() is first
    Authority("the next CA").write(files.ca)
    assert calling.context() is not first
    files.ca.unlink()
    with pytest.raises(TlsError, match="cannot be read"):
        calling.context()


async def test_stop_reading_and_pauses_keep_their_meaning(files: Files) -> None:
    async with port(files) as opened, RemotingClient(tls=TlsOptions(ca_file=files.ca)) as client:
        assert (await client.request(opened.address, Frame(10, body=b"1"), 5)).body == b"1"
        (conn,) = opened.handler.connections
        conn.stop_reading()
        asked = asyncio.ensure_future(client.request(opened.address, Frame(10, body=b"2"), 5))
        await asyncio.sleep(0.1)
        assert not asked.done()
        conn.throttle(True)
        conn.read_again()
        await asyncio.sleep(0.1)
        assert not asked.done()
        conn.throttle(False)
        assert (await asked).body == b"2"
        assert conn.peer[0] == "127.0.0.1"
        assert conn.unsent == 0


async def test_a_handshake_with_much_data_right_behind_it(files: Files) -> None:
    async with port(files) as opened:
        for size, count in ((1, 3), (16_384, 30), (300_000, 3), (8_000_000, 1)):
            async with RemotingClient(tls=TlsOptions(ca_file=files.ca)) as client:
                body = bytes(size)
                answers = await asyncio.gather(
                    *(client.request(opened.address, Frame(10, body=body), 30) for _ in range(count))
                )
                assert all(answer.body == body for answer in answers)


async def test_handshakes_run_in_slices(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """All clients come at once; other work has its turn after each slice."""
    monkeypatch.setattr(tls_gate, "SLICE_S", 0.0)
    async with port(files, most=200) as opened:
        context = client_context(TlsOptions(ca_file=files.ca))
        turns = 0
        done = asyncio.Event()

        async def tick() -> None:
            nonlocal turns
            while not done.is_set():
                turns += 1
                await asyncio.sleep(0)

        async def connect() -> None:
            _, writer = await asyncio.open_connection("127.0.0.1", opened.server.port, ssl=context)
            writer.close()

        ticking = asyncio.ensure_future(tick())
        await asyncio.gather(*(connect() for _ in range(40)))
        done.set()
        await ticking
        await until(lambda: opened.gate.handshakes == 40)
        assert turns > 80
        assert opened.gate.pending == 0


async def test_the_connection_that_waits_longest_for_its_peer_makes_room(files: Files) -> None:
    async with port(files, most=3) as opened:
        silent = [await asyncio.open_connection("127.0.0.1", opened.server.port) for _ in range(3)]
        await until(lambda: opened.gate.pending == 3)
        async with RemotingClient(tls=TlsOptions(ca_file=files.ca)) as client:
            assert (await client.request(opened.address, Frame(10, body=b"x"), 5)).body == b"x"
        assert await asyncio.wait_for(silent[0][0].read(), 5) == b"", "the first one was ended"
        assert opened.gate.refused.counts == {"crowded": 1}
        assert opened.gate.pending == 2
        for _, writer in silent:
            writer.close()


async def test_a_handshake_that_drips_is_ended(files: Files) -> None:
    async with port(files) as opened:
        _, writer = await asyncio.open_connection("127.0.0.1", opened.server.port)
        writer.write(b"\x16")
        sent = 1
        while not opened.gate.refused.counts:
            writer.write(b"\x03\x01\x40\x00"[sent - 1 : sent] if sent < 5 else b"\x01")
            sent += 1
            await asyncio.sleep(0.02)
        assert opened.gate.refused.counts == {"protocol": 1}
        assert sent <= tls_gate.MAX_STEPS + 10
        assert opened.gate.pending == 0
        writer.close()


async def test_a_wait_for_ones_turn_is_no_timeout(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_gate, "HANDSHAKE_S", 0.0)
    async with port(files) as opened:
        context = client_context(TlsOptions(ca_file=files.ca))
        opened.gate._turn = asyncio.get_running_loop().call_later(3600, print)  # No turn before the test gives one.
        joining = asyncio.ensure_future(
            asyncio.open_connection("127.0.0.1", opened.server.port, ssl=context, ssl_handshake_timeout=20)
        )
        await until(lambda: opened.gate._turns)
        await asyncio.sleep(1.5)
        assert opened.gate.pending == 1
        monkeypatch.setattr(tls_gate, "HANDSHAKE_S", 5.0)
        opened.gate._slice()
        _, writer = await joining
        writer.close()
        assert not opened.gate.refused.counts


async def test_plaintext_and_tls_at_one_port_share_the_limit_of_connections(files: Files) -> None:
    async with port(files, required=False) as opened:
        async with RemotingClient() as plain, RemotingClient(tls=TlsOptions(ca_file=files.ca)) as secured:
            for client in (plain, secured):
                assert (await client.request(opened.address, Frame(10, body=b"x"), 5)).body == b"x"
            assert opened.server.shared.connections == 2
        await until(lambda: opened.server.shared.connections == 0)


def test_the_hook_before_a_stop_asks_over_https(files: Files) -> None:
    import http.server
    import threading

    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            body = b'{"role":"Master","followers":[{"in_sync":true,"last_fetch_ms":5}]}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *given: object) -> None:
            """Say nothing."""

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        assert must_wait({"http_port": server.server_address[1], "internal_tls": {"ca_file": str(files.ca)}})
        assert asked == ["/v1/status"]
    finally:
        server.shutdown()
        server.server_close()
