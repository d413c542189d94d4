"""Clients of a source that reach Gantry before it leads are passed on to the source."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from gantry_broker.broker.migration import carrying
from gantry_broker.broker.migration.carrying import Carrier, code_of, names_consumers
from gantry_broker.protocol.codes import RequestCode, ResponseCode, SerializeType
from gantry_broker.protocol.frame import Frame, encode_frame
from gantry_broker.remoting.client import RemotingClient


@asynccontextmanager
async def source() -> AsyncIterator[tuple[int, list[Frame]]]:
    """A server that answers each frame with its body, byte by byte, and notes what came."""
    from gantry_broker.protocol.frame import FrameDecoder

    came: list[Frame] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = FrameDecoder()
        while data := await reader.read(65_536):
            for frame in decoder.feed(data):
                came.append(frame)
                answer = encode_frame(Frame.response_to(frame, ResponseCode.SUCCESS, body=frame.body))
                for at in range(0, len(answer), step := max(len(answer) // 50, 7)):
                    writer.write(answer[at : at + step])
                    await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], came
    finally:
        server.close()


@asynccontextmanager
async def carried(port: int) -> AsyncIterator[Carrier]:
    carrier = Carrier("127.0.0.1", 0, lambda: f"127.0.0.1:{port}")
    await carrier.start()
    try:
        yield carrier
    finally:
        await carrier.close()


def heartbeat(consumers: list[str], serialize: SerializeType = SerializeType.JSON) -> Frame:
    body = {"clientID": "c", "producerDataSet": [], "consumerDataSet": [{"groupName": name} for name in consumers]}
    return Frame(RequestCode.HEART_BEAT, body=json.dumps(body).encode(), serialize=int(serialize))


@pytest.mark.parametrize("serialize", [SerializeType.JSON, SerializeType.ROCKETMQ])
async def test_all_but_heartbeats_of_consumers_gets_to_the_source(serialize: SerializeType) -> None:
    client = RemotingClient()
    async with source() as (port, came), carried(port) as carrier:
        address = f"127.0.0.1:{carrier.port}"
        frames = [
            Frame(
                RequestCode.SEND_MESSAGE_V2,
                body=bytes([number]) * (3_000 * number**3 // 1_000),
                serialize=int(serialize),
            )
            if number % 3
            else heartbeat(["g"] if number % 2 else [], serialize)
            for number in range(60)
        ]
        answers = await asyncio.gather(*(client.request(address, frame, 10) for frame in frames))
        for frame, answer in zip(frames, answers, strict=True):
            assert answer.code == ResponseCode.SUCCESS
            held = frame.code == RequestCode.HEART_BEAT and names_consumers(frame.body)
            assert answer.body == (b"" if held else frame.body)
        assert not [frame for frame in came if frame.code == RequestCode.HEART_BEAT and names_consumers(frame.body)]
        assert len(came) == 50
        await client.close()


async def test_connections_end_with_it_and_the_port_is_free() -> None:
    async with source() as (port, _), carried(port) as carrier:
        at = carrier.port
        reader, writer = await asyncio.open_connection("127.0.0.1", at)
        writer.write(encode_frame(Frame(RequestCode.GET_BROKER_CONFIG)))
        assert await reader.read(4)
        assert carrier.clients == 1
        await carrier.close()
        while await reader.read(65_536):
            pass
        other = await asyncio.start_server(lambda r, w: None, "127.0.0.1", at)
        other.close()
        writer.close()
        assert carrier.clients == 0


@pytest.mark.parametrize(
    "data", [b"\0\0\0\1\0\0\0\0", b"\x7f\xff\xff\xff\0\0\0\0", b"\0\0\0\x10\0\0\0\xff", b"GET / HTTP/1.1\r\n\r\n"]
)
async def test_what_is_no_frame_ends_its_connection_only(data: bytes) -> None:
    async with source() as (port, came), carried(port) as carrier:
        reader, writer = await asyncio.open_connection("127.0.0.1", carrier.port)
        writer.write(data)
        assert await reader.read(1) == b""
        writer.close()
        client = RemotingClient()
        answer = await client.request(f"127.0.0.1:{carrier.port}", Frame(RequestCode.GET_BROKER_CONFIG), 30)
        assert answer.code == ResponseCode.SUCCESS
        assert len(came) == 1
        await client.close()


@pytest.mark.parametrize("data", [b"", encode_frame(Frame(RequestCode.GET_BROKER_CONFIG))[:1], b"\0\0\1\0\0\0\0\1abc"])
async def test_a_client_that_says_nothing_holds_no_connection(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    for name in ("FIRST_S", "PIECE_S"):
        monkeypatch.setattr(carrying, name, 0.1)
    async with source() as (port, _), carried(port) as carrier, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", carrier.port)
        writer.write(data)
        assert await reader.read(1) == b""
        writer.close()


async def test_frames_that_are_never_finished_hold_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carrying, "MAX_HELD", 500_000)
    begun = (200_000).to_bytes(4, "big") + b"\0\0\0\1" + b"x"
    async with source() as (port, _), carried(port) as carrier, asyncio.timeout(20):
        peers = []
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", carrier.port)
            writer.write(begun)
            peers.append((reader, writer))
        reads = [asyncio.create_task(reader.read(1)) for reader, _ in peers]
        ended, _ = await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result() for task in ended] == [b""]
        assert 0 < carrier._held.bytes <= 400_000
        client = RemotingClient()
        answer = await client.request(f"127.0.0.1:{carrier.port}", Frame(RequestCode.GET_BROKER_CONFIG), 30)
        assert answer.code == ResponseCode.SUCCESS
        await client.close()
        for _, writer in peers:
            writer.close()
        await asyncio.gather(*reads)


async def test_a_client_without_requests_is_ended_as_the_source_would(monkeypatch: pytest.MonkeyPatch) -> None:
    async with source() as (port, _), carried(port) as carrier, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", carrier.port)
        monkeypatch.setattr(carrying, "IDLE_S", 0.2)
        writer.write(encode_frame(Frame(RequestCode.GET_BROKER_CONFIG)))
        assert await reader.readexactly(4)
        while await reader.read(65_536):
            pass
        writer.close()


@pytest.mark.parametrize(
    ("serialize", "header", "code"),
    [
        (0, b'{"code":34}', 34),
        (0, b'{"code":"34"}', None),
        (0, b"[]", None),
        (0, b"", None),
        (1, b"\0\x22", 34),
        (1, b"\0", None),
        (9, b"", None),
    ],
)
def test_codes_of_headers(serialize: int, header: bytes, code: int | None) -> None:
    assert code_of(serialize, header) == code


async def test_a_connection_goes_on_until_the_port_is_served_again_and_ends_behind_an_answer() -> None:
    """A client of 4.9 waits for its timeout when a connection ends below its request."""
    async with source() as (port, came), carried(port) as carrier:
        at = carrier.port
        carrier._port = at  # It was given port 0.
        reader, writer = await asyncio.open_connection("127.0.0.1", at)
        request = encode_frame(Frame(RequestCode.GET_BROKER_CONFIG, body=b"x" * 100))

        async def ask() -> None:
            writer.write(request)
            await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))

        await ask()
        carrier.free_port()
        ending = asyncio.create_task(carrier.end_when_served(60))
        for _ in range(5):
            await ask()
        assert not ending.done(), "the new broker does not serve the port yet"
        assert len(came) == 6
        served = asyncio.Event()
        other = await asyncio.start_server(lambda r, w: served.set(), "127.0.0.1", at)
        await served.wait()
        while not carrier._ending:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await ask()
        assert await reader.read(1) == b"", "it ends behind an answer"
        async with asyncio.timeout(20):
            await ending
        assert carrier.clients == 0
        writer.close()
        other.close()


async def test_a_connection_without_requests_ends_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carrying, "ANSWER_S", 0.05)
    async with source() as (port, _), carried(port) as carrier, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", carrier.port)
        writer.write(encode_frame(Frame(RequestCode.GET_BROKER_CONFIG)))
        await reader.readexactly(4)
        carrier.free_port()
        await carrier.end_when_served(0.05)
        while await reader.read(65_536):
            pass
        writer.close()
