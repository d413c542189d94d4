"""Both ends of a port between members over real sockets: accepted and refused peers, and the log lines about them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from gantry_broker.protocol.frame import Frame
from gantry_broker.remoting import client as client_module
from gantry_broker.remoting import members, refused
from gantry_broker.remoting.client import RemotingClient
from gantry_broker.remoting.connection import Connection
from gantry_broker.remoting.errors import ConnectError
from gantry_broker.remoting.handshake import HandshakeError, Identity
from gantry_broker.remoting.members import HandshakeGuard, Membership, refuse_open_port
from gantry_broker.remoting.server import RemotingServer

from tests.support.remoting import RequestOnly
from tests.support.running import until

ONE, TWO = Identity("demo", "a", 1), Identity("demo", "a", 2)


class Echo(RequestOnly):
    """Answers every request with the name of its sender."""

    def __init__(self) -> None:
        self.opened = 0

    def on_open(self, conn: Connection) -> None:
        self.opened += 1

    def on_frames(self, conn: Connection, frames: list[Frame]) -> None:
        for frame in frames:
            conn.send(Frame.response_to(frame, 0, body=str(conn.identity).encode()))


class Port:
    """A listening port of member 2."""

    def __init__(self, token_file: Path | None, most: int) -> None:
        self.handler = Echo()
        self.guard = HandshakeGuard(Membership(TWO, token_file), most)
        self.server = RemotingServer(self.handler, "127.0.0.1", 0, guard=self.guard)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    async def ask(self, client: RemotingClient) -> bytes:
        return (await client.request(self.address, Frame(31_001), 5)).body


@asynccontextmanager
async def port(token_file: Path | None = None, most: int = 256) -> AsyncIterator[Port]:
    opened = Port(token_file, most)
    await opened.server.start()
    try:
        yield opened
    finally:
        await opened.server.close()


@pytest.fixture
def token(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text("secret\n")
    return file


async def test_a_handler_gets_connections_of_members_with_their_identity(token: Path) -> None:
    async with port(token) as opened, RemotingClient(membership=Membership(ONE, token)) as client:
        _, stranger = await asyncio.open_connection("127.0.0.1", opened.server.port)
        assert await opened.ask(client) == b"member 1 of demo/a"
        assert opened.handler.opened == len(opened.server.connections) == 1
        stranger.close()
        await until(lambda: opened.guard.refused.get("ended") == 1, "the stranger has left")


async def test_the_client_knows_the_identity_of_the_server() -> None:
    """A leader asks its followers over the connections that they have made."""
    asked: list[Identity | None] = []

    async def answer(conn: Connection, frame: Frame) -> Frame:
        asked.append(conn.identity)
        return Frame.response_to(frame, 0)

    async with port() as opened, RemotingClient(membership=Membership(ONE, None)) as client:
        client.register(31_004, answer)
        await opened.ask(client)
        (conn,) = opened.server.connections
        await conn.request(Frame(31_004), 5)
        assert asked == [TWO]


async def test_a_changed_token_counts_from_the_next_handshake_on(token: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("another")
    async with port(token) as opened:
        async with RemotingClient(membership=Membership(ONE, other)) as client:
            with pytest.raises(ConnectError, match=f"{opened.address}: refused by the other end: .* does not know"):
                await opened.ask(client)
        async with RemotingClient(membership=Membership(ONE, token)) as former:
            await opened.ask(former)
            await asyncio.to_thread(token.write_text, "another")
            async with RemotingClient(membership=Membership(ONE, other)) as client:
                assert await opened.ask(client) == b"member 1 of demo/a"
            assert await opened.ask(former) == b"member 1 of demo/a", "what was proved stays so"
        assert opened.guard.refused == {"token": 1}


async def test_a_port_for_clients_is_named_as_such() -> None:
    server = RemotingServer(Clients(), "127.0.0.1", 0)
    await server.start()
    try:
        async with RemotingClient(membership=Membership(ONE, None)) as client:
            with pytest.raises(ConnectError, match="not one between members") as failure:
                await client.request(f"127.0.0.1:{server.port}", Frame(31_001), 5)
        assert failure.value.silent, "it is no proof that the process is gone"
    finally:
        await server.close()


class Clients(RequestOnly):
    """As any of our ports for clients answers a code that it does not know."""

    def on_frames(self, conn: Connection, frames: list[Frame]) -> None:
        for frame in frames:
            conn.send(Frame.response_to(frame, 3, "not supported"))


async def test_after_a_failed_handshake_there_is_a_pause_that_grows_and_a_line_in_the_log(
    token: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "FIRST_PAUSE_S", 0.05)
    async with port(token) as opened, RemotingClient(membership=Membership(ONE, None)) as client:
        began, tried = time.monotonic(), 0
        with caplog.at_level(logging.WARNING, "gantry_broker.remoting.client"):
            while time.monotonic() - began < 1.0:
                with pytest.raises(ConnectError, match="does not know the token"):
                    await opened.ask(client)
                tried += 1
                await asyncio.sleep(0.001)
        assert tried > 50
        assert opened.guard.refused["token"] <= 5, "0, 50, 150, 350 and 750 ms after the first"
        (line,) = [r.getMessage() for r in caplog.records if r.name == client_module.__name__]
        assert opened.address in line
        client._membership = Membership(ONE, token)
        async with asyncio.timeout(5):
            while True:
                try:
                    assert await opened.ask(client) == b"member 1 of demo/a"
                    break
                except ConnectError:
                    await asyncio.sleep(0.01)
        assert not client._failing


async def test_a_silent_connection_is_closed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "HANDSHAKE_S", 0.2)
    async with port() as opened:
        reader, writer = await asyncio.open_connection("127.0.0.1", opened.server.port)
        writer.write(b"\0\0")
        assert await asyncio.wait_for(reader.read(), 5) == b""
        assert opened.guard.refused == {"timeout": 1}
        writer.close()


async def test_the_oldest_of_too_many_makes_room() -> None:
    async with port(most=3) as opened, RemotingClient(membership=Membership(ONE, None)) as client:
        strangers = [await asyncio.open_connection("127.0.0.1", opened.server.port) for _ in range(3)]
        assert await opened.ask(client) == b"member 1 of demo/a"
        assert await asyncio.wait_for(strangers[0][0].read(), 5) == b""
        assert opened.guard.refused == {"crowded": 1}
        assert len(opened.guard._pending) == 2, "a member that has proved itself is none of them"
        for _, writer in strangers:
            writer.close()


async def test_refusals_are_logged_at_a_limited_rate(caplog: pytest.LogCaptureFixture) -> None:
    async with port() as opened:
        for _ in range(50):
            reader, writer = await asyncio.open_connection("127.0.0.1", opened.server.port)
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            assert await asyncio.wait_for(reader.read(), 5) == b""
            writer.close()
        assert opened.guard.refused == {"malformed": 50}
        lines = [r for r in caplog.records if r.name == refused.__name__]
        assert len(lines) == 1
        assert "127.0.0.1:" in lines[0].getMessage()


async def test_a_closed_port_ends_those_that_have_not_proved_themselves() -> None:
    async with port() as opened:
        reader, writer = await asyncio.open_connection("127.0.0.1", opened.server.port)
        await until(lambda: len(opened.guard._pending) == 1, "it was accepted")
    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()


@pytest.mark.parametrize("text", [None, b"", b"two words", b"x" * 5000])
def test_a_token_file_that_holds_none_is_said(tmp_path: Path, text: bytes | None) -> None:
    if text is not None:
        (tmp_path / "token").write_bytes(text)
    with pytest.raises(HandshakeError, match="token") as refused:
        Membership(ONE, tmp_path / "token").token()
    assert refused.value.reason == "token_file"


def test_without_a_token_a_port_between_members_is_for_this_machine_alone(tmp_path: Path) -> None:
    for host in ("127.0.0.1", "::1", "localhost", "127.1.2.3"):
        refuse_open_port("replication_port", host, None)
    refuse_open_port("replication_port", "0.0.0.0", tmp_path / "token")
    for host in ("0.0.0.0", "::", "10.0.0.1", "broker.example", ""):
        with pytest.raises(ValueError, match=r"replication_port is set and listen_host is .*name the file"):
            refuse_open_port("replication_port", host, None)
