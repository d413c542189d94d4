"""Both ends of the remoting protocol over real sockets, and peers that behave badly."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import random
import socket
import struct
import time
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import Mock

import pytest
from gantry_broker.protocol.codes import RequestCode, ResponseCode
from gantry_broker.protocol.frame import Frame, FrameDecoder, encode_frame, encode_head
from gantry_broker.protocol.request_limits import RequestLimits
from gantry_broker.remoting import client as client_module
from gantry_broker.remoting.budget import DEFAULT_BUDGET
from gantry_broker.remoting.client import RemotingClient, split_address
from gantry_broker.remoting.connection import COPIED, Connection, Shared
from gantry_broker.remoting.errors import ConnectError, ConnectionLost, RequestTimeout
from gantry_broker.remoting.server import RemotingServer

from tests.support.running import until

ECHO, SILENT, FAIL, SWAMP = 1, 2, 3, 4


class Echo:
    """Answers ECHO, keeps SILENT, fails at FAIL, and answers SWAMP with a megabyte."""

    def __init__(self) -> None:
        self.reads: list[int] = []
        self.opened = 0
        self.closed = 0

    def on_open(self, conn: Connection) -> None:
        self.opened += 1

    def on_close(self, conn: Connection) -> None:
        self.closed += 1

    def on_frames(self, conn: Connection, frames: list[Frame]) -> None:
        self.reads.append(len(frames))
        for frame in frames:
            if frame.code == FAIL:
                raise RuntimeError("as asked")
            if frame.code == ECHO and not frame.is_oneway:
                conn.send(Frame.response_to(frame, 0, ext=frame.ext, body=frame.body))
            if frame.code == SWAMP:
                conn.send(Frame.response_to(frame, 0, body=bytes(1_000_000)))


class Served:
    def __init__(self, server: RemotingServer, handler: Echo) -> None:
        self.server = server
        self.handler = handler
        self.address = f"127.0.0.1:{server.port}"

    def limit(self, **parts: int) -> None:
        """Other limits for the connections of this server."""
        self.server.shared.budget = dataclasses.replace(self.server.shared.budget, **parts)


@contextlib.asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[Served]:
    handler = Echo()
    server = RemotingServer(handler, "127.0.0.1", 0, **options)
    await server.start()
    yield Served(server, handler)
    await server.close(0.1)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving() as served:
        yield served


@pytest.fixture
async def client() -> AsyncIterator[RemotingClient]:
    async with RemotingClient() as client:
        yield client


async def dribble(parts: int, wanted: int) -> tuple[asyncio.Server, str]:
    """A server that answers with a frame in so many parts, each a little later, of which it sends `wanted`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = FrameDecoder()
        while data := await reader.read(1 << 16):
            for request in decoder.feed(data):
                answer = encode_frame(Frame.response_to(request, 0, body=bytes(parts * 1_000)))
                size = -(-len(answer) // parts)
                for part in range(wanted):
                    writer.write(answer[part * size : (part + 1) * size])
                    await asyncio.sleep(0.02)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    return server, f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_request_can_wait_longer_while_its_answer_arrives(client: RemotingClient) -> None:
    server, address = await dribble(40, 40)
    async with server:
        with pytest.raises(RequestTimeout):
            await client.request(address, Frame(ECHO), 0.3)
        client.drop(address)
        assert len((await client.request(address, Frame(ECHO), 0.3, arriving=True)).body) == 40_000
        client.drop(address)


async def test_an_answer_that_stops_arriving_is_given_up(client: RemotingClient) -> None:
    server, address = await dribble(40, 20)
    async with server:
        with pytest.raises(RequestTimeout):
            await client.request(address, Frame(ECHO), 0.3, arriving=True)
        client.drop(address)


async def test_answers_find_their_requests(served: Served, client: RemotingClient) -> None:
    answers = await asyncio.gather(
        *(client.request(served.address, Frame(ECHO, ext={"n": str(n)}), 5) for n in range(500))
    )
    assert [answer.ext["n"] for answer in answers] == [str(n) for n in range(500)]
    assert len(served.server.connections) == 1
    assert max(served.handler.reads) > 10, "requests of one read come together"


class Caller:
    """A reply that asks again from within the answer."""

    def __init__(self, client: RemotingClient, address: str, times: int) -> None:
        self._client, self._address, self._times = client, address, times
        self.bodies: list[bytes] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def ask(self, code: int = ECHO, timeout: float = 5.0) -> bool:
        return self._client.call(self._address, Frame(code, body=b"%d" % len(self.bodies)), timeout, self)

    def done(self) -> bool:
        return self.ended.done()

    def set_result(self, frame: Frame, /) -> None:
        self.bodies.append(frame.body)
        if len(self.bodies) == self._times:
            self.ended.set_result(None)
        else:
            assert self.ask()

    def set_exception(self, error: Exception, /) -> None:
        self.ended.set_exception(error)


async def test_an_answer_may_send_the_next_request_at_once(served: Served, client: RemotingClient) -> None:
    caller = Caller(client, served.address, 50)
    assert not caller.ask(), "there is no connection yet"
    await client.request(served.address, Frame(ECHO), 5)
    assert caller.ask()
    await asyncio.wait_for(caller.ended, 10)
    assert caller.bodies == [b"%d" % n for n in range(50)]


async def test_a_call_gets_the_errors_of_a_request(served: Served, client: RemotingClient) -> None:
    await client.request(served.address, Frame(ECHO), 5)
    late, lost = Caller(client, served.address, 1), Caller(client, served.address, 1)
    assert late.ask(SILENT, 0.2)
    with pytest.raises(RequestTimeout):
        await late.ended
    await client.request(served.address, Frame(ECHO), 5)
    assert lost.ask(FAIL)
    with pytest.raises(ConnectionLost):
        await lost.ended
    assert not lost.ask(), "the connection has ended"


async def test_requests_of_one_loop_pass_arrive_together(served: Served, client: RemotingClient) -> None:
    await client.request(served.address, Frame(ECHO), 5)
    answers = await asyncio.gather(*(client.request(served.address, Frame(ECHO, body=b"%d" % n), 5) for n in range(20)))
    assert [answer.body for answer in answers] == [b"%d" % n for n in range(20)]
    assert served.handler.reads == [1, 20]


async def test_large_bodies(served: Served, client: RemotingClient) -> None:
    body = bytes(range(256)) * 50_000
    assert (await client.request(served.address, Frame(ECHO, body=body), 10)).body == body


async def test_a_body_that_is_sent_as_it_is_keeps_its_place_among_other_frames(served: Served) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.server.port)
    await until(lambda: served.handler.opened == 1, "connected")
    [conn] = served.server.connections
    body = memoryview(bytes(range(256)) * 20_000)[7:-3]
    conn.send(Frame(0, 1, 1, body=b"before"))
    conn.send_with(Frame(0, 2, 1, ext={"a": "b"}), body)
    conn.send_with(Frame(0, 3, 1), b"")
    conn.send(Frame(0, 4, 1, body=b"after"))
    conn.close()
    conn.send_with(Frame(0, 5, 1), b"too late")
    got = FrameDecoder().feed(await reader.read())
    assert [(frame.opaque, frame.body) for frame in got] == [(1, b"before"), (2, body), (3, b""), (4, b"after")]
    assert got[1].ext == {"a": "b"}
    writer.close()


async def test_a_frame_in_two_parts_keeps_its_place_and_its_large_body_is_not_copied(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.server.port)
    await until(lambda: served.handler.opened == 1, "connected")
    [conn] = served.server.connections
    bodies = [b"small", bytes(range(256)) * 1_000, b"", b"x" * (COPIED - 1), b"y" * COPIED]
    joined = Mock(side_effect=conn.write)
    monkeypatch.setattr(Connection, "write", joined)
    conn.send(Frame(0, 99, 1, body=b"before"))
    for number, body in enumerate(bodies):
        conn.write_with(encode_head(Frame(0, number, 1), len(body)), body)
    conn.send(Frame(0, 100, 1, body=b"after"))
    assert max(len(call.args[0]) for call in joined.call_args_list) < COPIED + 200, "a large body was copied"
    monkeypatch.undo()
    conn.close()
    conn.write_with(encode_head(Frame(0, 101, 1), COPIED), b"z" * COPIED)
    got = FrameDecoder().feed(await reader.read())
    assert [(frame.opaque, frame.body) for frame in got] == [
        (99, b"before"), *enumerate(bodies), (100, b"after"),
    ]  # fmt: skip
    writer.close()


async def test_oneway_wants_no_answer(served: Served, client: RemotingClient) -> None:
    await client.oneway(served.address, Frame(ECHO))
    await client.request(served.address, Frame(ECHO), 5)
    assert sum(served.handler.reads) == 2


async def test_a_refused_connection_was_never_sent(client: RemotingClient) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    with pytest.raises(ConnectError, match=f"127.0.0.1:{port}") as caught:
        await client.request(f"127.0.0.1:{port}", Frame(ECHO), 5)
    assert caught.value.sent is False


@pytest.mark.parametrize("address", ["", "nohost", "host:", ":1", "host:0", "host:70000", "host:x"])
def test_a_malformed_address_is_refused(address: str) -> None:
    with pytest.raises(ConnectError, match="host:port"):
        split_address(address)


def test_addresses() -> None:
    assert split_address("a.b:1") == ("a.b", 1)
    assert split_address("[::1]:9876") == ("::1", 9876)
    assert split_address("::1:9876") == ("::1", 9876)


async def test_no_answer_in_time(served: Served, client: RemotingClient) -> None:
    started = time.monotonic()
    with pytest.raises(RequestTimeout, match="did not answer request 2") as caught:
        await client.request(served.address, Frame(SILENT), 0.1)
    assert caught.value.sent is True
    assert time.monotonic() - started < 2


async def test_a_silent_peer_is_connected_again(served: Served, client: RemotingClient) -> None:
    """After a failover the connection may lead to a machine that does not even refuse."""
    await client.request(served.address, Frame(ECHO), 5)
    with pytest.raises(RequestTimeout):
        await client.request(served.address, Frame(SILENT), 0.1)
    await until(lambda: not client.connected(served.address), "the silent connection ends")
    assert (await client.request(served.address, Frame(ECHO), 5)).code == 0
    assert served.handler.opened == 2


async def test_a_silent_connection_is_given_up_before_the_time_is_over(served: Served, client: RemotingClient) -> None:
    await client.request(served.address, Frame(ECHO), 5)
    started = time.monotonic()
    with pytest.raises(ConnectionLost):
        await client.request(served.address, Frame(SILENT), 10, silence=0.1)
    assert time.monotonic() - started < 5
    assert (await client.request(served.address, Frame(ECHO), 5, silence=0.1)).code == 0


async def test_a_connection_in_place_of_a_silent_one_is_given_less_patience(
    served: Served, client: RemotingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address may still lead to the frozen one, and to its successor a moment later."""
    monkeypatch.setattr(client_module, "SUSPECT_SECONDS", 0.1)
    with pytest.raises(ConnectionLost):
        await client.request(served.address, Frame(SILENT), 10, silence=0.2)
    for _ in range(2):
        started = time.monotonic()
        with pytest.raises(ConnectionLost):
            await client.request(served.address, Frame(SILENT), 10, silence=8)
        assert time.monotonic() - started < 4
    await client.request(served.address, Frame(ECHO), 5)
    with pytest.raises(RequestTimeout):
        await client.request(served.address, Frame(SILENT), 0.5, silence=8)
    assert served.handler.opened == 4


async def test_unfinished_frames_of_all_connections_are_bounded(served: Served, client: RemotingClient) -> None:
    served.limit(unfinished_bytes=3_000_000)
    begun = encode_frame(Frame(ECHO, body=bytes(4_000_000)))[:1_000_000]
    streams = [await asyncio.open_connection("127.0.0.1", served.server.port) for _ in range(5)]
    for _, writer in streams:
        writer.write(begun)
    await until(lambda: served.handler.closed >= 2, "those beyond the limit are cut off")
    assert (await client.request(served.address, Frame(ECHO, body=bytes(100)), 5)).code == 0
    for _, writer in streams:
        writer.close()
    await until(lambda: served.handler.closed == 5, "the others leave")
    body = bytes(2_500_000)
    assert (await client.request(served.address, Frame(ECHO, body=body), 5)).body == body, (
        "what they held is free again"
    )


async def test_an_ended_connection_is_freed_at_once(served: Served) -> None:
    """Its incomplete frame with it: a cycle of references would wait for a full collection, and be in no account."""

    def left() -> int:
        return sum(isinstance(found, Connection) for found in gc.get_objects())

    begun = encode_frame(Frame(ECHO, body=bytes(100_000)))[:-1]
    gc.collect()
    gc.disable()
    try:
        before = left()
        streams = [await asyncio.open_connection("127.0.0.1", served.server.port) for _ in range(3)]
        for _, writer in streams:
            writer.write(begun)
        await until(lambda: served.server.shared.held == 3 * len(begun), "all is read")
        assert left() == before + 3
        for _, writer in streams:
            writer.close()
        await until(lambda: served.handler.closed == 3 and left() == before, "the connections are freed")
    finally:
        gc.enable()


async def test_a_slow_answer_does_not_end_a_connection_that_answers_others(
    served: Served, client: RemotingClient
) -> None:
    slow = asyncio.create_task(client.request(served.address, Frame(SILENT), 0.2))
    while not slow.done():
        await client.request(served.address, Frame(ECHO), 5)
        await asyncio.sleep(0.01)
    with pytest.raises(RequestTimeout):
        await slow
    assert served.handler.opened == 1


async def test_a_lost_connection_fails_waiting_requests_and_the_next_one_connects_again(served: Served) -> None:
    lost = []
    async with RemotingClient(on_disconnect=lost.append) as client:
        waiting = asyncio.create_task(client.request(served.address, Frame(SILENT), 5))
        await until(lambda: bool(served.server.connections), "connected")
        await until(lambda: bool(served.handler.reads), "the request has come")
        for connection in list(served.server.connections):
            connection.close()
        with pytest.raises(ConnectionLost) as caught:
            await waiting
        assert caught.value.sent is True
        assert lost == [served.address]
        assert (await client.request(served.address, Frame(ECHO), 5)).code == 0


async def test_nothing_is_written_to_a_connection_that_a_write_has_found_broken(
    client: RemotingClient, caplog: pytest.LogCaptureFixture
) -> None:
    """The write of one who asks fails, and who asks from then on goes by another connection, before this one is said to
    have ended, with no request of theirs spent.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        loop = asyncio.get_running_loop()
        await client.oneway(address, Frame(SILENT))
        await asyncio.sleep(0)  # What one pass of the event loop writes goes out in the next.
        await asyncio.sleep(0)
        broken, _ = await loop.sock_accept(listener)
        broken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        broken.close()
        time.sleep(0.02)  # noqa: ASYNC251  The reset has arrived, and the event loop has not looked yet.
        asking = [asyncio.create_task(client.request(address, Frame(ECHO, body=b"0"), 5))]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        asking += [asyncio.create_task(client.request(address, Frame(ECHO, body=b"%d" % n), 5)) for n in range(1, 10)]
        sending = [asyncio.create_task(client.oneway(address, Frame(ECHO, body=b"%d" % n))) for n in range(10, 20)]
        fresh, _ = await asyncio.wait_for(loop.sock_accept(listener), 5)
        with fresh:
            decoder, bodies = FrameDecoder(), set[bytes]()
            while len(bodies) < 19:
                for frame in decoder.feed(await loop.sock_recv(fresh, 1 << 16)):
                    bodies.add(bytes(frame.body))
                    if not frame.is_oneway:
                        await loop.sock_sendall(fresh, encode_frame(Frame.response_to(frame, 0, body=frame.body)))
            outcomes = await asyncio.gather(*asking, return_exceptions=True)
            await asyncio.gather(*sending)
    assert bodies == {b"%d" % n for n in range(1, 20)}
    assert isinstance(outcomes[0], ConnectionLost)
    assert [answer.body for answer in outcomes[1:] if isinstance(answer, Frame)] == [b"%d" % n for n in range(1, 10)]
    assert not [record for record in caplog.records if record.name == "asyncio"]


async def test_a_server_asks_its_client(served: Served, client: RemotingClient) -> None:
    async def answer(conn: Connection, frame: Frame) -> Frame:
        return Frame.response_to(frame, 0, ext={"who": frame.ext["who"] + "!"})

    async def fail(conn: Connection, frame: Frame) -> Frame:
        raise ValueError("no idea")

    client.register(40, answer)
    client.register(41, fail)
    await client.request(served.address, Frame(ECHO), 5)
    [conn] = served.server.connections
    assert (await conn.request(Frame(40, ext={"who": "me"}), 5)).ext == {"who": "me!"}
    failed = await conn.request(Frame(41), 5)
    assert (failed.code, failed.remark) == (ResponseCode.SYSTEM_ERROR, "ValueError: no idea")
    assert (await conn.request(Frame(42), 5)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_a_handler_that_fails_costs_its_connection_only(served: Served, client: RemotingClient) -> None:
    with pytest.raises(ConnectionLost):
        await client.request(served.address, Frame(FAIL), 5)
    assert (await client.request(served.address, Frame(ECHO), 5)).code == 0


async def test_a_port_can_be_freed_and_taken_again(served: Served, client: RemotingClient) -> None:
    await client.request(served.address, Frame(ECHO), 5)
    served.server.stop_listening()
    assert (await client.request(served.address, Frame(ECHO), 5)).code == 0, "connections that exist go on"
    async with RemotingClient() as other:
        with pytest.raises(ConnectError):
            await other.request(served.address, Frame(ECHO), 1)
        await served.server.start()
        assert (await other.request(served.address, Frame(ECHO), 5)).code == 0


async def test_close_sends_written_bytes(served: Served) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.server.port)
    writer.write(b"".join(encode_frame(Frame(ECHO, n, body=bytes(1000))) for n in range(100)))
    await until(lambda: sum(served.handler.reads) == 100, "all requests have come")
    await served.server.close(2)
    assert len(FrameDecoder().feed(await reader.read(-1))) == 100
    assert served.handler.closed == 1
    writer.close()


async def test_too_many_connections_are_refused() -> None:
    handler = Echo()
    server = RemotingServer(handler, "127.0.0.1", 0, max_connections=3)
    port = await server.start()
    streams = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
    assert await asyncio.wait_for(streams[-1][0].read(), 5) == b""
    await until(lambda: server.refused == 2, "two are refused")
    streams[0][1].close()
    await until(lambda: len(server.connections) == 2, "one has left")
    async with RemotingClient() as client:
        assert (await client.request(f"127.0.0.1:{port}", Frame(ECHO), 5)).code == 0
    for _, writer in streams:
        writer.close()
    await server.close(0.1)


async def test_idle_connections_are_closed() -> None:
    server = RemotingServer(Echo(), "127.0.0.1", 0, idle_s=0.2)
    port = await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"\0\0")  # half a frame, and then nothing: a peer that vanished
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), 5) == b""
    assert not server.connections
    writer.close()
    await server.close()


async def test_a_slow_reader_stops_being_read_and_costs_no_memory(served: Served) -> None:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, ("127.0.0.1", served.server.port))
        request = encode_frame(Frame(SWAMP))
        await until(lambda: bool(served.server.connections), "connected")
        [conn] = served.server.connections
        for _ in range(2000):
            with contextlib.suppress(BlockingIOError):
                sock.send(request * 10)
            if conn.paused:
                break
            await asyncio.sleep(0)
        await until(lambda: conn.paused, "it is not read any more")
        served.handler.reads.clear()
        for _ in range(200):
            with contextlib.suppress(BlockingIOError):
                sock.send(request)
            await asyncio.sleep(0)
        assert served.handler.reads == []
        assert conn.unsent < served.server.shared.budget.unsent_bytes_each + 2_000_000


async def test_answers_under_way_to_a_reader_that_stopped_are_bounded(served: Served) -> None:
    served.limit(unsent_bytes_each=8_000_000)
    with socket.socket() as sock:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", served.server.port))
        await until(lambda: served.handler.opened == 1, "connected")
        [conn] = served.server.connections
        for _ in range(100):
            conn.write(bytes(1_000_000))
            if conn.closed:
                break
        assert conn.closed
        assert conn.unsent <= 9_000_000


async def test_answers_to_all_slow_readers_are_bounded_and_the_slowest_is_cut(served: Served) -> None:
    served.limit(unsent_bytes=12_000_000)
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", served.server.port))
        await until(lambda: served.handler.opened == 3, "connected")
        conns = sorted(served.server.connections, key=lambda conn: conn.peer[1])
        for conn, size in zip(conns, (9, 7, 12), strict=True):
            for _ in range(size):
                conn.write(bytes(1_000_000))
        assert sum(conn.unsent for conn in conns if not conn.closed) <= 15_000_000
        assert [conn.closed for conn in conns] != [False, False, False]
        for conn in conns:
            conn.abort()
        await until(lambda: served.handler.closed == 3, "all have ended")
        assert served.server.shared.unsent == 0


async def test_a_frame_that_does_not_end_in_time_ends_its_connection(client: RemotingClient) -> None:
    async with serving(frame_s=0.4) as served:
        served_address = f"127.0.0.1:{served.server.port}"
        reader, writer = await asyncio.open_connection("127.0.0.1", served.server.port)
        writer.write(encode_frame(Frame(ECHO, body=bytes(100_000)))[:50_000])
        ended = asyncio.create_task(reader.read())
        while not ended.done():  # it sends a byte now and then, so it is not idle
            writer.write(b"x")
            await asyncio.sleep(0.05)
            assert (await client.request(served_address, Frame(ECHO), 5)).code == 0, "others go on"
        with contextlib.suppress(ConnectionResetError):
            assert await ended == b""
        assert served.server.shared.held == 0
        writer.close()


async def test_connections_of_one_address_are_bounded() -> None:
    async with serving(shared=Shared(per_address=lambda: 2)) as served:
        streams = [await asyncio.open_connection("127.0.0.1", served.server.port) for _ in range(3)]
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(streams[2][0].read(), 5) == b""
        assert (served.handler.opened, served.handler.closed, served.server.shared.refused) == (2, 0, 1)
        streams[0][1].close()
        await until(lambda: served.handler.closed == 1, "one has left")
        async with RemotingClient() as client:
            assert (await client.request(served.address, Frame(ECHO), 5)).code == 0
        for _, writer in streams:
            writer.close()
        await until(lambda: served.server.shared.connections == 0, "all have left")


async def test_servers_of_one_process_share_the_limit_of_connections() -> None:
    shared = Shared(dataclasses.replace(DEFAULT_BUDGET, connections=3))
    async with serving(shared=shared) as one, serving(shared=shared) as other:
        streams = [await asyncio.open_connection("127.0.0.1", s.server.port) for s in (one, one, other, other)]
        assert await asyncio.wait_for(streams[-1][0].read(), 5) == b""
        assert (one.handler.opened, other.handler.opened, other.server.refused) == (2, 1, 1)
        for _, writer in streams:
            writer.close()


async def test_a_request_over_its_limit_is_refused_before_its_body_comes_and_the_next_is_answered() -> None:
    async with serving(limits=RequestLimits(lambda: 200_000)) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.server.port)
        large = encode_frame(Frame(RequestCode.HEART_BEAT, 7, body=bytes(5_000_000)))
        writer.write(large[:1000])
        decoder, frames = FrameDecoder(), list[Frame]()
        while not frames:
            frames += decoder.feed(await asyncio.wait_for(reader.read(65_536), 5))
        assert (frames[0].opaque, frames[0].code) == (7, ResponseCode.SYSTEM_ERROR)
        assert frames[0].remark == "the body of request 34 has 5000000 bytes, the limit is 524288"
        for at in range(1000, len(large), 400_000):
            writer.write(large[at : at + 400_000])
            await writer.drain()
            assert served.server.shared.held <= 8, "the body is not kept"
        writer.write(encode_frame(Frame(ECHO, 8, body=b"next")))
        frames.clear()
        while not frames:
            frames += decoder.feed(await asyncio.wait_for(reader.read(65_536), 5))
        assert (frames[0].opaque, frames[0].body) == (8, b"next")
        writer.close()


async def exchange(served: Served, data: bytes) -> list[Frame]:
    """What comes back for these bytes, until the server closes or we do."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.server.port)
    with contextlib.suppress(ConnectionError):
        writer.write(data)
        writer.write_eof()
        raw = await asyncio.wait_for(reader.read(), 5)
        writer.close()
        return FrameDecoder().feed(raw)
    return []


async def test_an_oversized_frame_is_answered_and_the_connection_closed(served: Served) -> None:
    header = b'{"code":1,"opaque":99,"flag":0,"language":"JAVA","version":0}'
    [answer] = await exchange(served, struct.pack(">iI", 20_000_000, len(header)) + header)
    assert (answer.opaque, answer.code) == (99, ResponseCode.SYSTEM_ERROR)
    assert "over the limit" in (answer.remark or "")


async def test_good_requests_before_a_bad_one_are_answered(served: Served) -> None:
    answers = await exchange(served, encode_frame(Frame(ECHO, 1)) + encode_frame(Frame(ECHO, 2)) + b"\xff" * 50)
    assert [answer.opaque for answer in answers] == [1, 2]


async def test_hostile_bytes_never_stop_the_server(served: Served, client: RemotingClient) -> None:
    rng = random.Random(7)
    good = encode_frame(Frame(ECHO, 5, ext={"a": "b"}, body=b"hello"))
    for _ in range(300):
        kind = rng.randrange(4)
        if kind == 0:
            data = rng.randbytes(rng.randrange(200))
        elif kind == 1:
            data = good[: rng.randrange(len(good))]
        elif kind == 2:
            damaged = bytearray(good)
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            data = bytes(damaged) * 2
        else:
            data = struct.pack(">iI", rng.randrange(-(2**31), 2**31), rng.randrange(2**32)) + rng.randbytes(40)
        await exchange(served, data)
    assert (await client.request(served.address, Frame(ECHO), 5)).code == 0
    await until(lambda: len(served.server.connections) == 1, "no connection is left behind")


async def test_a_closed_client_refuses(served: Served) -> None:
    client = RemotingClient()
    await client.request(served.address, Frame(ECHO), 5)
    waiting = asyncio.create_task(client.request(served.address, Frame(SILENT), 5))
    await asyncio.sleep(0)
    await client.close()
    with pytest.raises(ConnectionLost):
        await waiting
    with pytest.raises(ConnectError):
        await client.request(served.address, Frame(ECHO), 5)


async def test_an_answer_that_cannot_be_written_becomes_an_error(served: Served) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.server.port)
    await until(lambda: served.handler.opened == 1, "connected")
    [conn] = served.server.connections
    conn.send(Frame(70_000, 5, 1, serialize=1))
    conn.send(Frame(0, 6, 1, ext={"a": "x" * 3_000_000}))
    conn.close()
    got = FrameDecoder().feed(await reader.read())
    assert [(frame.code, frame.opaque, frame.serialize) for frame in got] == [
        (ResponseCode.SYSTEM_ERROR, 5, 1),
        (ResponseCode.SYSTEM_ERROR, 6, 0),
    ]
    writer.close()
