"""What one client may cost: the event loop is held for 50 ms of CPU time at most, and memory is counted and bounded.

Clients are threads with sockets, so that the CPU time of the loop's thread is that of the proxy alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import struct
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from gantry_broker.protocol.grpc_contract import SERVICE, Code, v2
from gantry_broker.proxy.config import ProxyConfig
from gantry_broker.proxy.http2 import endpoint, hpack
from gantry_broker.proxy.http2.core import PREFACE
from gantry_broker.proxy.limits import MAX_MESSAGES
from gantry_broker.proxy.process import Proxy
from gantry_broker.remoting.budget import remoting_budget
from gantry_broker.remoting.connection import Shared

from tests.proxy import cluster as c
from tests.proxy.test_endpoint import channel, serving
from tests.proxy.test_http2 import (
    CONTINUATION,
    DATA,
    GOAWAY,
    HEADERS,
    PING,
    PRIORITY,
    REQUEST,
    RST,
    SETTINGS,
    WINDOW,
    frame,
)
from tests.support.present import present
from tests.support.running import until

LONGEST_S = 0.05
BYTES = 6 << 20
"""More than one read of the event loop brings."""
WINDOWS = struct.pack(">HI", 4, 0) + struct.pack(">HI", 4, 2**30)


def repeated(part: bytes) -> bytes:
    return part * (BYTES // len(part))


def request(path: str, *more: tuple[str, str]) -> bytes:
    block = b"\x83\x86" + hpack.literal(":path", path) + hpack.literal("content-type", "application/grpc")
    return block + b"".join(hpack.literal(*one) for one in more)


def calls(block: bytes, flags: int = 5, after: Callable[[int], bytes] = lambda number: b"", count: int = 0) -> bytes:
    one = len(frame(HEADERS, flags, 1, block) + after(1))
    most = count or min(BYTES // one, 300_000)
    return b"".join(frame(HEADERS, flags, n, block) + after(n) for n in range(1, 2 * most, 2))


def message(data: bytes, stream: int, end: bool = True) -> bytes:
    whole = b"\0" + struct.pack(">I", len(data)) + data
    parts = [whole[at : at + 16_384] for at in range(0, len(whole), 16_384)]
    return b"".join(frame(DATA, int(end and part is parts[-1]), stream, part) for part in parts)


BLOCKED = calls(REQUEST, 4, lambda n: message(b"x" * 70_000, n), 200)
OPEN = calls(REQUEST, 4, count=1_000)
INDEXED = b"\x83\x86\x44" + hpack._sized(b"\xff" * 1_000)
LONG_TEXT = b"\x00" + hpack._sized(b"x-long") + b"\xff" + hpack._sized(b"\x55" * 15_000)[1:]

FRAMES = {
    "PING": repeated(frame(PING, 0, 0, b"12345678")),
    "PING acknowledged": repeated(frame(PING, 1, 0, b"12345678")),
    "SETTINGS": repeated(frame(SETTINGS)),
    "SETTINGS acknowledged": repeated(frame(SETTINGS, 1)),
    "1900 windows in one SETTINGS": OPEN + frame(SETTINGS, 0, 0, WINDOWS * 950),
    "windows in many SETTINGS": OPEN + frame(SETTINGS, 0, 0, WINDOWS[:6]) * 50 + frame(SETTINGS, 0, 0, WINDOWS) * 300,
    "GOAWAY": repeated(frame(GOAWAY, 0, 0, struct.pack(">II", 0, 0))),
    "GOAWAY with text": repeated(frame(GOAWAY, 0, 0, struct.pack(">II", 0, 0) + b"x" * 16_000)),
    "PRIORITY": repeated(frame(PRIORITY, 0, 1, struct.pack(">IB", 3, 1))),
    "WINDOW_UPDATE": repeated(frame(WINDOW, 0, 0, struct.pack(">I", 1))),
    "WINDOW_UPDATE of blocked streams": BLOCKED + repeated(frame(WINDOW, 0, 0, struct.pack(">I", 1))),
    "WINDOW_UPDATE of one stream": OPEN + repeated(frame(WINDOW, 0, 1, struct.pack(">I", 1))),
    "unknown": repeated(frame(0xB, 0, 0, b"")),
    "unknown with a body": repeated(frame(0xB, 0, 0, b"x" * 16_384)),
    "RST_STREAM": calls(REQUEST, 4, lambda n: frame(RST, 0, n, b"\0\0\0\x08")),
    "RST_STREAM again": OPEN + frame(RST, 0, 1, b"\0\0\0\x08") * 200_000,
    "CONTINUATION": calls(b"", 0, lambda n: frame(CONTINUATION, 0, n) * 14 + frame(CONTINUATION, 4, n, REQUEST)),
    "empty CONTINUATION without end": frame(HEADERS, 0, 1, REQUEST) + repeated(frame(CONTINUATION, 0, 1)),
    "empty DATA": frame(HEADERS, 4, 1, REQUEST) + repeated(frame(DATA, 0, 1)),
    "small DATA": frame(HEADERS, 4, 1, REQUEST) + frame(DATA, 0, 1, b"x") * 100_000,
    "padded DATA": frame(HEADERS, 4, 1, REQUEST) + frame(DATA, 8, 1, b"\x01\0") * 100_000,
    "DATA of a reset stream": frame(HEADERS, 4, 1, b"\x83\x86" + hpack.literal("X", "y"))
    + frame(DATA, 0, 1, b"x") * 100_000,
    "sizes of the table": calls(b"\x20\x20" + REQUEST),
    "sizes of the table in one header": calls(b"\x20" * 16_000 + REQUEST),
    "long Huffman text": calls(REQUEST + LONG_TEXT),
    "many fields": calls(REQUEST + hpack.literal("a", "b") * 120),
    "unknown paths": frame(HEADERS, 5, 1, INDEXED)
    + b"".join(frame(HEADERS, 5, n, b"\x83\x86\xbe") for n in range(3, 200_000, 2)),
    "unknown methods": calls(request("/a.B/None")),
    "other content": calls(request("/a.B/Echo", ("content-type", "text/plain"))),
    "calls": calls(REQUEST, 4, lambda n: message(b"hello", n)),
    "calls whose answers wait": calls(REQUEST, 4, lambda n: message(b"x" * 20_000, n)),
    "small messages of one conversation": frame(HEADERS, 4, 1, request("/a.B/Talk"))
    + frame(DATA, 0, 1, (b"\0\0\0\0\0" * 3_276)) * 300,
    "a large message": frame(HEADERS, 4, 1, REQUEST) + message(b"x" * (15 << 20), 1),
}


@asynccontextmanager
async def watched() -> AsyncIterator[list[float]]:
    """The longest CPU time of one pass of the event loop meanwhile."""
    longest = [0.0]

    async def watch() -> None:
        last = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            longest[0] = max(longest[0], now - last)
            last = now

    gc.collect()
    gc.freeze()  # as `process.tune_memory`: this process has the objects of all tests
    task = asyncio.create_task(watch())
    try:
        yield longest
    finally:
        gc.unfreeze()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def brought(port: int, data: bytes, seconds: float = 3.0) -> int:
    """Send everything and read what comes; return the bytes that came. For a thread."""
    came = 0
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.settimeout(0.2)
        view, until_s = memoryview(PREFACE + frame(SETTINGS) + data), time.monotonic() + seconds
        quiet = 0
        while time.monotonic() < until_s and quiet < 3:
            with contextlib.suppress(TimeoutError, BlockingIOError):
                if len(view):
                    view = view[sock.send(view[: 1 << 20]) :]
            sock.settimeout(0.001 if len(view) else 0.1)
            try:
                part = sock.recv(1 << 20)
            except TimeoutError:
                quiet += not len(view)
                continue
            except ConnectionError:
                break
            if not part:
                break
            came += len(part)
    return came


@pytest.mark.parametrize("kind", FRAMES)
async def test_no_frame_holds_the_event_loop(kind: str) -> None:
    async with serving() as (served, _):
        # The interpreter's first passes through this code cost more.
        await asyncio.to_thread(brought, served.port, frame(HEADERS, 4, 1, REQUEST) + message(b"warm", 1), 1.0)
        async with watched() as longest:
            with contextlib.suppress(ConnectionError):
                await asyncio.to_thread(brought, served.port, FRAMES[kind])
        assert longest[0] < LONGEST_S, f"{kind}: {longest[0] * 1_000:.0f} ms"


def path_of(method: str) -> bytes:
    return request(SERVICE + method, ("x-mq-client-id", "one"), ("x-mq-client-version", "5.1.2"))


REQUESTS = {
    "empty submessages in SendMessage": ("SendMessage", b"\x0a\0" * 2_600_000),
    "SendMessage of 1,000 messages": (
        "SendMessage",
        v2.SendMessageRequest(messages=[c.message("T", b"x" * 100) for _ in range(MAX_MESSAGES)]).SerializeToString(),
    ),
    "SendMessage with properties": (
        "SendMessage",
        v2.SendMessageRequest(
            messages=[c.message("T", props={str(n): "v" for n in range(128)}) for _ in range(40)]
        ).SerializeToString(),
    ),
    "SendMessage of 4 MiB": (
        "SendMessage",
        v2.SendMessageRequest(messages=[c.message("T", b"x" * (4 << 20))]).SerializeToString(),
    ),
    "empty entries in AckMessage": ("AckMessage", b"\x1a\0" * 500_000),
    "AckMessage of 1,000 entries": (
        "AckMessage",
        c.ack(
            "T", "g", *[c.message("T", receipt_handle="1 2 3 4 5 b 6 7 8") for _ in range(1_000)]
        ).SerializeToString(),
    ),
    "empty topics in ReceiveMessage": ("ReceiveMessage", b"\x12\x02\x0a\0" * 16_000),
    "packed types in QueryRoute": ("QueryRoute", b"\x12\x00" * 8_000),
    "many addresses in QueryRoute": ("QueryRoute", b"\x0a\x03\x12\x01T" + b"\x12\x02\x12\0" * 4_000),
    "lite topics": ("SyncLiteSubscription", b"\x22\0" * 30_000),
    "empty topics in Telemetry": (
        "Telemetry",
        v2.TelemetryCommand(settings=c.producer(*[""] * 40_000)).SerializeToString(),
    ),
    "1,000 topics in Telemetry": (
        "Telemetry",
        v2.TelemetryCommand(settings=c.producer(*[f"topic-{n}" for n in range(1_000)])).SerializeToString(),
    ),
    "unknown fields in Telemetry": ("Telemetry", b"\xf8\x07\x01" * 80_000),
    "groups in Telemetry": ("Telemetry", b"\xfb\x07" * 100_000),
}
"""The largest and the costliest requests of each method."""


@asynccontextmanager
async def lonely(**more: object) -> AsyncIterator[Proxy]:
    """A proxy whose NameServer does not answer."""
    values = {"name_servers": ["127.0.0.1:1"], "listen_host": "127.0.0.1", "port": 0, "drain_s": 0.1, "http_port": 0}
    async with Proxy(ProxyConfig.model_validate(values | more)) as proxy:
        yield proxy


@pytest.mark.parametrize("kind", REQUESTS)
async def test_no_request_holds_the_event_loop(kind: str) -> None:
    method, data = REQUESTS[kind]
    small = calls(path_of(method), 4, lambda n: message(b"", n), 3)
    several = calls(
        path_of(method), 4, lambda n: message(data, n), max(min(30 * 1_024 * 1_024 // (len(data) + 1), 40), 1)
    )
    async with lonely() as proxy:
        await asyncio.to_thread(brought, proxy.port, small, 1.0)
        async with watched() as longest:
            with contextlib.suppress(ConnectionError):
                await asyncio.to_thread(brought, proxy.port, several, 4.0)
        assert longest[0] < LONGEST_S, f"{kind}: {longest[0] * 1_000:.0f} ms"


@pytest.mark.parametrize("method", ["SendMessage", "AckMessage", "Telemetry"])
async def test_elements_are_counted_before_a_request_is_parsed(method: str) -> None:
    """15.9 MiB of empty submessages were 1.2 GiB of objects."""
    call = {"SendMessage": b"\x0a\0", "AckMessage": b"\x1a\0", "Telemetry": b"\x12\0"}[method]
    size = {"SendMessage": 4 << 20, "AckMessage": 1 << 20, "Telemetry": 256 << 10}[method]
    async with lonely() as proxy, grpc.aio.insecure_channel(f"127.0.0.1:{proxy.port}") as ch:
        send = ch.stream_stream(SERVICE + method)(metadata=c.metadata("one"))
        begun = time.thread_time()
        await send.write(call * (size // 2))
        await send.done_writing()
        assert await send.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "fields" in await send.details()
        assert time.thread_time() - begun < 1.0


async def test_a_body_is_not_taken_from_a_caller_who_is_not_known(tmp_path: Path) -> None:
    async with lonely(access={"file": str(tmp_path / "none.json"), "authentication": "Enabled"}) as proxy:
        shared = present(proxy.endpoint).shared
        most = 0

        async def look() -> None:
            nonlocal most
            while True:
                most = max(most, shared.held)
                await asyncio.sleep(0)

        looking = asyncio.create_task(look())
        async with grpc.aio.insecure_channel(
            f"127.0.0.1:{proxy.port}", options=[("grpc.max_send_message_length", -1)]
        ) as ch:
            send = ch.unary_unary(SERVICE + "SendMessage", response_deserializer=v2.SendMessageResponse.FromString)
            answer = await send(b"\x0a\0" * (15 << 19), metadata=c.metadata("one"), timeout=10)
            assert answer.status.code == Code.UNAUTHORIZED
            receive = ch.unary_stream(
                SERVICE + "ReceiveMessage", response_deserializer=v2.ReceiveMessageResponse.FromString
            )
            parts = [part async for part in receive(b"", metadata=c.metadata("one"), timeout=10)]
            assert [part.WhichOneof("content") for part in parts] == ["status", "delivery_timestamp"]
        looking.cancel()
        assert most < 1 << 20, "frames that wait for their turn at most"
        assert proxy.service.counts.answers["SendMessage", "UNAUTHORIZED"] == 1


async def test_what_is_larger_than_its_method_allows_is_refused_at_its_length() -> None:
    async with lonely() as proxy:
        for method, size in (("SendMessage", 17 << 20), ("QueryRoute", 65_536), ("Telemetry", 1 << 20)):
            head = frame(HEADERS, 4, 1, path_of(method)) + frame(DATA, 0, 1, b"\0" + struct.pack(">I", size))
            assert await asyncio.to_thread(brought, proxy.port, head, 1.0) > 100, "an answer before the body"
        async with grpc.aio.insecure_channel(f"127.0.0.1:{proxy.port}") as ch:
            send = ch.unary_unary(SERVICE + "SendMessage", response_deserializer=v2.SendMessageResponse.FromString)
            answer = await send(b"x" * (6 << 20), metadata=c.metadata("one"), timeout=10)
            assert answer.status.code == Code.MESSAGE_BODY_TOO_LARGE


async def test_answers_repeat_nothing_of_a_header() -> None:
    """A thousand bytes in the header's table cost their sender one byte each time."""
    for data in (
        FRAMES["unknown paths"],
        frame(HEADERS, 5, 1, request("/a.B/Echo", ("grpc-encoding", "z" * 1_000))),
        frame(HEADERS, 5, 1, request("/a.B/" + "z" * 1_000)),
        frame(HEADERS, 5, 1, REQUEST + hpack.literal("bad name " + "z" * 1_000, "")),
        frame(HEADERS, 5, 1, b"\x83\x86" + hpack.literal(":" + "z" * 1_000, "")),
    ):
        async with serving() as (served, _):
            came = await asyncio.to_thread(brought, served.port, data)
            requests = max(served.calls, data.count(b"\x83\x86"), 1)
            assert came < 200 + 120 * requests
            assert came < 400_000


async def test_requests_to_unknown_paths_end_their_connection() -> None:
    async with serving() as (served, _):
        with contextlib.suppress(ConnectionError):
            await asyncio.to_thread(brought, served.port, FRAMES["unknown paths"])
        assert served.refused.counts == {"ENHANCE_YOUR_CALM": 1}


@pytest.mark.parametrize(
    "kind",
    [
        "PING", "PING acknowledged", "SETTINGS", "SETTINGS acknowledged", "GOAWAY", "PRIORITY", "WINDOW_UPDATE",
        "WINDOW_UPDATE of one stream", "unknown", "RST_STREAM", "RST_STREAM again", "empty DATA", "small DATA",
        "DATA of a reset stream", "small messages of one conversation", "windows in many SETTINGS",
    ],
)  # fmt: skip
async def test_frames_without_progress_end_their_connection(kind: str) -> None:
    async with serving() as (served, _):
        with contextlib.suppress(ConnectionError):
            await asyncio.to_thread(brought, served.port, FRAMES[kind])
        await until(lambda: served.refused.counts)
        assert served.refused.counts == {"ENHANCE_YOUR_CALM": 1}


async def test_live_answers_while_clients_bring_frames() -> None:
    """Clients that send what is permitted leave time for others."""
    data = calls(path_of("Heartbeat"), 4, lambda n: message(b"", n), 20_000)
    async with lonely() as proxy:
        flood = [asyncio.create_task(asyncio.to_thread(brought, proxy.port, data, 2.0)) for _ in range(3)]
        async with watched() as longest:
            for _ in range(10):
                reader, writer = await asyncio.open_connection("127.0.0.1", proxy.http_port)
                writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert (await reader.read()).endswith(b"live\n")
                writer.close()
        await asyncio.gather(*flood, return_exceptions=True)
        assert longest[0] < LONGEST_S


async def test_headers_of_open_streams_are_counted_and_only_known_fields_kept() -> None:
    """1,000 streams of one connection with 31 KB of headers each cost 28 MiB that no limit saw."""
    block = REQUEST + hpack.literal("x-mq-client-id", "c" * 200) + hpack.literal("x-unknown", "u" * 15_000)
    async with serving() as (served, _):
        await asyncio.to_thread(brought, served.port, calls(block, 4, count=3), 0.5)
        tracemalloc.start()
        try:
            sender = asyncio.create_task(asyncio.to_thread(brought, served.port, calls(block, 4, count=1_000), 30.0))
            await until(lambda: any(len(one.core.streams) == 1_000 for one in served.connections), timeout_s=30)
            size, _ = tracemalloc.get_traced_memory()
            connection = next(one for one in served.connections if len(one.core.streams) == 1_000)
            assert served.shared.held > 1_000 * (200 + endpoint.STREAM_BYTES) * 0.9
            kept = {name for stream in connection.core.streams.values() for name in stream.call.metadata}
            assert kept <= set(endpoint.KEPT)
            assert sum(stream.call.kept for stream in connection.core.streams.values()) < 1_000 * 500
            assert size < 40 << 20  # with the 15 MB that this client sends, in the same process
        finally:
            tracemalloc.stop()
        await sender
        await until(lambda: not served.shared.held)


async def test_open_streams_over_the_memory_end_the_connection() -> None:
    shared = Shared(remoting_budget(160 << 20))
    block = REQUEST + hpack.literal("authorization", "a" * 1_000) + hpack.literal("x-mq-client-id", "c" * 200)
    data = calls(block, 4, count=1_000)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(16))
    async with serving(shared=shared) as (served, _):
        senders = [asyncio.create_task(asyncio.to_thread(brought, served.port, data, 4.0)) for _ in range(12)]
        await until(lambda: shared.cut > 0, timeout_s=10)
        assert shared.held <= shared.budget.unfinished_bytes
        await asyncio.gather(*senders, return_exceptions=True)


async def test_streams_that_bring_nothing_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "SWEEP_S", 0.1)
    monkeypatch.setattr(endpoint, "BEGUN_S", 0.3)
    async with serving() as (served, _), channel(served) as ch:
        nothing = frame(HEADERS, 4, 1, REQUEST)
        talk = frame(HEADERS, 4, 3, request("/a.B/Talk"))
        other = frame(HEADERS, 4, 5, request("/", ("content-type", "text/plain")))
        begun = frame(HEADERS, 4, 7, REQUEST) + frame(DATA, 0, 7, b"\0\0\0\0\x05hel")
        sender = asyncio.create_task(asyncio.to_thread(brought, served.port, nothing + talk + other + begun, 3.0))
        await until(lambda: any(len(one.core.streams) == 4 for one in served.connections))
        kept = ch.stream_stream("/a.B/Talk")()
        await kept.write(b"1")
        assert await kept.read() == b"1"
        await until(lambda: sum(len(one.core.streams) for one in served.connections) == 1, timeout_s=5)
        await kept.write(b"2")
        assert await kept.read() == b"2", "a stream that began goes on"
        assert served.shared.held < 100
        await kept.done_writing()
        await sender


async def test_settings_are_kept_without_what_is_not_known_and_bounded() -> None:
    async with lonely() as proxy, grpc.aio.insecure_channel(f"127.0.0.1:{proxy.port}") as ch:
        stub, clients = c.Stub(ch), proxy.service.clients
        settings = c.producer("T")
        settings.user_agent.hostname = "h" * 10_000
        settings.user_agent.version = "5.1.2\x1b[31m"
        data = settings.SerializeToString() + b"\xfa\x07\x80\x80\x08" + b"u" * 131_072  # an unknown field
        line = c.Line(stub, "one")
        await line.send(v2.TelemetryCommand.FromString(b"\x12" + hpack_number(len(data)) + data))
        assert (await line.read()).status.code == Code.OK
        client = clients.get("one")
        assert client is not None
        assert client.version == "5.1.2?[31m"
        assert clients.kept == client.size < 300
        await line.settings(c.producer(*[f"{n:0100d}" for n in range(100)]))
        assert 10_000 < clients.kept == client.size < 12_000
        with pytest.raises(grpc.aio.AioRpcError, match="at most 65536"):
            await line.settings(c.producer(*[f"{n:0100d}" for n in range(900)]))
        assert clients.kept == client.size < 12_000
        clients._most_bytes = clients.kept + 1_000
        other = c.Line(stub, "two")
        answer = await other.settings(c.producer(*[f"{n:0100d}" for n in range(100)]))
        assert answer.status.code == Code.TOO_MANY_REQUESTS
        assert clients.get("two") is None
        clients.leave(client)
        assert clients.kept == 0


def hpack_number(value: int) -> bytes:
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


async def test_numbers_that_are_digits_for_unicode_alone() -> None:
    assert endpoint.read_timeout("²S") is None
    assert endpoint.read_timeout("٣S") is None
    async with serving() as (served, _), channel(served) as ch:
        odd = REQUEST + b"\x0f\x0d\x01\xb2"  # content-length: a superscript two
        assert await asyncio.to_thread(brought, served.port, frame(HEADERS, 4, 1, odd), 0.5) > 0
        timeout = REQUEST + hpack.literal("grpc-timeout", "²S")
        await asyncio.to_thread(brought, served.port, frame(HEADERS, 4, 1, timeout) + message(b"x", 1), 0.5)
        assert not served.refused.counts
        assert await ch.unary_unary("/a.B/Echo")(b"goes on") == b"goes on"


async def test_a_header_with_control_characters_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    async with lonely() as proxy:
        for text in ("a\nb", "a\rb", "a\0b", "a\x1b[31mb"):
            block = request(SERVICE + "Heartbeat", ("x-mq-client-id", text))
            await asyncio.to_thread(brought, proxy.port, frame(HEADERS, 4, 1, block) + message(b"", 1), 0.5)
        assert present(proxy.endpoint).calls == 0
        block = request(SERVICE + "Heartbeat", ("x-mq-client-id", "a\x9bb"))
        await asyncio.to_thread(brought, proxy.port, frame(HEADERS, 4, 1, block) + message(b"", 1), 0.5)
        assert proxy.service.counts.answers == {("Heartbeat", "BAD_REQUEST"): 1}
