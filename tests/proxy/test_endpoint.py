"""The port for gRPC clients on real sockets: calls, limits, TLS and plaintext, idle clients, an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from gantry_broker.proxy.config import ProxyConfig
from gantry_broker.proxy.http2 import endpoint, hpack
from gantry_broker.proxy.http2.core import PREFACE
from gantry_broker.proxy.http2.endpoint import Endpoint, read_timeout
from gantry_broker.proxy.process import Proxy
from gantry_broker.proxy.rpc import Call, GrpcStatus, Line, Method, RpcError
from gantry_broker.remoting.budget import remoting_budget
from gantry_broker.remoting.connection import Shared
from gantry_broker.remoting.tls import Certificates, TlsOptions, client_context
from gantry_broker.remoting.tls_gate import TlsGate

from tests.proxy.test_http2 import DATA, GOAWAY, HEADERS, REQUEST, frame
from tests.support.certificates import Authority
from tests.support.running import until


class Echo:
    def __init__(self) -> None:
        self.cancelled = 0
        self.ended = 0
        self.let_go = asyncio.Event()

    async def unary(self, call: Call, data: bytes) -> bytes:
        if data == b"fail":
            raise RpcError(GrpcStatus.INVALID_ARGUMENT, "no 100 % ä")
        if data == b"wait":
            try:
                await self.let_go.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        if data == b"left":
            return str(round(call.time_left() or 0)).encode()
        if data == b"peer":
            return call.peer.encode()
        return data

    async def stream(self, call: Call, data: bytes) -> None:
        for _ in range(int(data[:8])):
            await call.send(data)

    def talk(self, line: Line) -> Talk:
        return Talk(self, line)

    @property
    def methods(self) -> dict[str, Method]:
        return {
            "/a.B/Echo": Method(unary=self.unary),
            "/a.B/Stream": Method(streaming=self.stream),
            "/a.B/Talk": Method(conversing=self.talk),
        }


class Talk:
    def __init__(self, echo: Echo, line: Line) -> None:
        self._echo = echo
        self._line = line

    def on_message(self, message: bytes) -> None:
        self._line.push(message)

    def on_end(self) -> None:
        self._echo.ended += 1


@asynccontextmanager
async def serving(**more: Any) -> AsyncIterator[tuple[Endpoint, Echo]]:
    echo = Echo()
    shared = more.pop("shared", None) or Shared()
    served = Endpoint(echo.methods, "127.0.0.1", 0, shared=shared, **more)
    await served.start()
    try:
        yield served, echo
    finally:
        await served.close(0.1)


def channel(served: Endpoint, **options: int) -> grpc.aio.Channel:
    found = [(f"grpc.{name}", value) for name, value in options.items()]
    return grpc.aio.insecure_channel(f"127.0.0.1:{served.port}", options=found)


async def raw(served: Endpoint) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(PREFACE + frame(4))
    return reader, writer


async def read_until_end(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(10):
        return await reader.read()


async def test_calls_of_each_kind() -> None:
    async with serving() as (served, echo), channel(served) as ch:
        call = ch.unary_unary("/a.B/Echo")
        assert await call(b"hello") == b"hello"
        assert await call(b"") == b""
        assert await call(b"left", timeout=30) == b"30"
        assert await call(b"peer") == b"127.0.0.1"
        big = os.urandom(3_000_000)
        assert await call(big) == big
        parts = [part async for part in ch.unary_stream("/a.B/Stream")(b"00000003" + b"x" * 400_000)]
        assert [len(part) for part in parts] == [400_008] * 3
        talk = ch.stream_stream("/a.B/Talk")()
        for text in (b"one", b"t" * 70_000, b""):
            await talk.write(text)
            assert await talk.read() == text
        await talk.done_writing()
        assert await talk.code() == grpc.StatusCode.OK
        assert echo.ended == 1
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call(b"fail")
        assert (error.value.code(), error.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, "no 100 % ä")
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await ch.unary_unary("/a.B/None")(b"")
        assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_a_client_that_gives_up_ends_the_work_for_it() -> None:
    async with serving() as (served, echo), channel(served) as ch:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await ch.unary_unary("/a.B/Echo")(b"wait", timeout=0.2)
        assert error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: echo.cancelled == 1)


async def test_a_message_over_the_limit_is_refused_and_the_connection_goes_on() -> None:
    async with serving() as (served, _), channel(served, max_send_message_length=-1) as ch:
        call = ch.unary_unary("/a.B/Echo")
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call(b"x" * (17 << 20))
        assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await call(b"small") == b"small"


async def test_an_orderly_end_answers_calls_in_work() -> None:
    async with serving() as (served, echo), channel(served) as ch:
        call = ch.unary_unary("/a.B/Echo")
        talk = ch.stream_stream("/a.B/Talk")()
        await talk.write(b"1")
        assert await talk.read() == b"1"
        waiting = asyncio.ensure_future(_answer(call(b"wait")))
        await until(lambda: served.calls == 2)
        closing = asyncio.create_task(served.close(5.0))
        assert await talk.code() == grpc.StatusCode.UNAVAILABLE
        assert not waiting.done()
        echo.let_go.set()
        assert await waiting == b"wait"
        await closing
        with pytest.raises(grpc.aio.AioRpcError):
            await call(b"late", timeout=1)


async def _answer(call: Any) -> bytes:
    found: bytes = await call
    return found


async def test_pings_of_a_client_that_is_idle_are_answered() -> None:
    async with (
        serving() as (served, _),
        channel(served, keepalive_time_ms=100, keepalive_timeout_ms=500, keepalive_permit_without_calls=1,
                http2_max_pings_without_data=0) as ch,
    ):  # fmt: skip
        assert await ch.unary_unary("/a.B/Echo")(b"1") == b"1"
        [connection] = served.connections
        await asyncio.sleep(1.5)
        assert list(served.connections) == [connection]


async def test_a_client_that_reads_nothing_is_bounded_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "STALL_S", 0.3)
    monkeypatch.setattr(endpoint, "SWEEP_S", 0.1)
    async with serving() as (served, _):
        reader, writer = await raw(served)
        path = REQUEST.replace(hpack.literal(":path", "/a.B/Echo"), hpack.literal(":path", "/a.B/Stream"))
        body = b"00001000" + b"x" * 60_000
        request = b"\0" + struct.pack(">I", len(body)) + body
        writer.write(frame(HEADERS, 4, 1, path))
        for at in range(0, len(request), 16_000):
            last = at + 16_000 >= len(request)
            writer.write(frame(DATA, int(last), 1, request[at : at + 16_000]))
        await until(lambda: any(c.core.unsent for c in served.connections))
        [connection] = served.connections
        await asyncio.sleep(0.1)
        assert connection.core.unsent < endpoint.MAX_QUEUED + 130_000
        await until(lambda: not served.connections, timeout_s=10)
        assert served.refused.counts == {"unread": 1}
        writer.close()
        del reader


async def test_what_is_not_http2_ends_and_is_counted() -> None:
    async with serving() as (served, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert frame(GOAWAY)[3:4] in await read_until_end(reader)
        assert served.refused.counts == {"PROTOCOL_ERROR": 1}
        writer.close()


async def test_a_connection_that_never_begins_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "PREFACE_S", 0.2)
    monkeypatch.setattr(endpoint, "SWEEP_S", 0.1)
    async with serving() as (served, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        await read_until_end(reader)
        assert served.refused.counts == {"preface": 1}
        writer.close()


async def test_unfinished_requests_of_all_clients_are_bounded() -> None:
    shared = Shared(remoting_budget(160 << 20))
    async with serving(shared=shared) as (served, _):
        clients = []
        part = frame(DATA, 0, 1, b"\0\0\x10\0\0" + b"x" * 16_000) + frame(DATA, 0, 1, b"y" * 16_000) * 25
        for _ in range(80):
            reader, writer = await raw(served)
            writer.write(frame(HEADERS, 4, 1, REQUEST) + part)
            clients.append((reader, writer))
        await until(lambda: shared.cut > 0, timeout_s=10)
        assert shared.held <= shared.budget.unfinished_bytes
        for _, writer in clients:
            writer.close()


async def test_connections_over_the_limit_are_refused() -> None:
    async with serving(max_connections=2) as (served, _):
        kept = [await raw(served) for _ in range(2)]
        await until(lambda: len(served.connections) == 2)
        reader, writer = await raw(served)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        for _, other in [*kept, (reader, writer)]:
            other.close()


async def test_one_address_cannot_take_all_connections() -> None:
    config = ProxyConfig(name_servers=["127.0.0.1:1"], listen_host="127.0.0.1", port=0, max_connections_per_address=2)
    async with Proxy(config) as proxy:
        assert proxy.endpoint is not None
        kept = [await raw(proxy.endpoint) for _ in range(2)]
        for reader, _ in kept:
            await reader.readexactly(1)
        reader, writer = await raw(proxy.endpoint)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        for _, other in [*kept, (reader, writer)]:
            other.close()


async def test_a_thousand_idle_clients_cost_little() -> None:
    async with serving() as (served, _), channel(served) as ch:
        gc.collect()
        before = _resident()
        clients = [await raw(served) for _ in range(1_000)]
        await until(lambda: sum(c.core.begun for c in served.connections) == 1_000, timeout_s=20)
        assert _resident() - before < 60 << 20  # both ends of them are in this process
        assert await ch.unary_unary("/a.B/Echo")(b"1") == b"1"
        for _, writer in clients:
            writer.close()
        await until(lambda: len(served.connections) == 1, timeout_s=20)


def _resident() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@asynccontextmanager
async def with_tls(path: Path, *, required: bool) -> AsyncIterator[tuple[Endpoint, Authority, Certificates]]:
    authority = Authority()
    files = authority.issue(path, "127.0.0.1", "localhost")
    certificates = Certificates("client", files.cert, files.key, protocols=("h2",))
    shared = Shared()
    gate = TlsGate("grpc", certificates, required=required, most=64, shared=shared)
    async with serving(shared=shared, gate=gate) as (served, _):
        yield served, authority, certificates


async def test_tls_and_plaintext_on_one_port_and_a_new_certificate(tmp_path: Path) -> None:
    async with with_tls(tmp_path, required=False) as (served, authority, certificates):
        ca = tmp_path / "ca.crt"
        credentials = grpc.ssl_channel_credentials(ca.read_bytes())
        async with grpc.aio.secure_channel(f"localhost:{served.port}", credentials) as ch, channel(served) as plain:
            assert await ch.unary_unary("/a.B/Echo")(b"secret") == b"secret"
            assert await plain.unary_unary("/a.B/Echo")(b"open") == b"open"
            assert await ch.unary_unary("/a.B/Echo")(b"y" * 3_000_000) == b"y" * 3_000_000
            first = await _certificate(served, ca)
            authority.issue(tmp_path, "127.0.0.1", "localhost")
            certificates.look()
            assert await _certificate(served, ca) != first
            assert await ch.unary_unary("/a.B/Echo")(b"goes on") == b"goes on"


async def _certificate(served: Endpoint, ca: Path) -> bytes:
    """The certificate that a new client is shown; it speaks HTTP/2 by ALPN."""
    context = client_context(TlsOptions(ca_file=ca))
    context.set_alpn_protocols(["h2", "http/1.1"])
    _, writer = await asyncio.open_connection("127.0.0.1", served.port, ssl=context, server_hostname="localhost")
    found = writer.get_extra_info("ssl_object")
    assert found.selected_alpn_protocol() == "h2"
    shown: bytes = found.getpeercert(binary_form=True)
    writer.close()
    return shown


async def test_plaintext_is_refused_where_tls_is_required(tmp_path: Path) -> None:
    async with with_tls(tmp_path, required=True) as (served, _, _):
        reader, writer = await raw(served)
        assert await read_until_end(reader) == b""
        writer.close()


async def test_a_client_without_a_certificate_is_refused_where_one_is_required(tmp_path: Path) -> None:
    authority, other = Authority(), Authority()
    own = authority.issue(tmp_path / "server", "127.0.0.1", "localhost")
    client = authority.issue(tmp_path / "client", "client")
    stranger = other.issue(tmp_path / "stranger", "client")
    certificates = Certificates("client", own.cert, own.key, own.ca, "Required", protocols=("h2",))
    shared = Shared()
    gate = TlsGate("grpc", certificates, required=True, most=64, shared=shared)
    async with serving(shared=shared, gate=gate) as (served, _):

        async def echo(*key_and_cert: bytes) -> bytes:
            credentials = grpc.ssl_channel_credentials(own.ca.read_bytes(), *key_and_cert)
            async with grpc.aio.secure_channel(f"localhost:{served.port}", credentials) as ch:
                answer: bytes = await ch.unary_unary("/a.B/Echo")(b"x", timeout=5)
            return answer

        assert await echo(client.key.read_bytes(), client.cert.read_bytes()) == b"x"
        for refused in ((), (stranger.key.read_bytes(), stranger.cert.read_bytes())):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await echo(*refused)
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("3S", 3.0),
        ("2999m", 2.999),
        ("1H", 3_600.0),
        ("99999999n", 0.099999999),
        (None, None),
        ("x", None),
        ("-1S", None),
        ("123456789S", None),
    ],
)
def test_the_time_of_a_client(text: str | None, seconds: float | None) -> None:
    found = read_timeout(text)
    assert found is None if seconds is None else found == pytest.approx(seconds)


async def test_a_flood_on_a_real_connection_ends_it_and_not_the_others() -> None:
    async with serving() as (served, _), channel(served) as ch:
        reader, writer = await raw(served)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for number in range(1, 6_001, 2):
            writer.write(frame(HEADERS, 4, number, REQUEST) + frame(3, 0, number, b"\0\0\0\x08"))
        with contextlib.suppress(ConnectionError):
            await read_until_end(reader)
        assert served.refused.counts == {"ENHANCE_YOUR_CALM": 1}
        assert loop.time() - begun < 5
        assert await ch.unary_unary("/a.B/Echo")(b"1") == b"1"
        writer.close()
