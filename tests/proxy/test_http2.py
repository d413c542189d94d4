"""One HTTP/2 connection without a socket: what peers may do, and what ends them."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator

import pytest
from gantry_broker.proxy.http2 import core, hpack
from gantry_broker.proxy.http2.core import PREFACE, ConnectionFault, Fault, ServerConnection, Stream

HISTORIES = int(os.environ.get("HTTP2_HISTORIES", "400"))
DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
REQUEST = (
    b"\x83\x86"
    + hpack.literal(":path", "/a.B/Echo")
    + hpack.literal("content-type", "application/grpc")
    + hpack.literal("te", "trailers")
)


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    return struct.pack(">BHBBI", len(payload) >> 16, len(payload) & 0xFFFF, kind, flags, stream) + payload


def frames(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    at = 0
    while at < len(data):
        high, low, kind, flags, stream = struct.unpack_from(">BHBBI", data, at)
        size = high << 16 | low
        yield kind, flags, stream, data[at + 9 : at + 9 + size]
        at += 9 + size


class Recorder:
    def __init__(self) -> None:
        self.requests: list[Stream] = []
        self.bodies: dict[int, bytes] = {}
        self.resets: list[int] = []

    def on_request(self, stream: Stream, fields: list[hpack.Field]) -> None:
        self.requests.append(stream)

    def on_data(self, stream: Stream, data: bytes) -> None:
        self.bodies[stream.id] = self.bodies.get(stream.id, b"") + data

    def on_reset(self, stream: Stream) -> None:
        self.resets.append(stream.id)

    def on_closed(self, stream: Stream) -> None:
        pass

    def on_drained(self, stream: Stream) -> None:
        pass


class Peer:
    def __init__(self, now: float = 0.0) -> None:
        self.owner = Recorder()
        self.connection = ServerConnection(self.owner, now)
        self.now = now
        self.send(PREFACE + frame(SETTINGS))

    def send(self, data: bytes) -> list[tuple[int, int, int, bytes]]:
        self.connection.receive(data, self.now)
        return self.taken()

    def taken(self) -> list[tuple[int, int, int, bytes]]:
        found = list(frames(b"".join(self.connection.out)))
        self.connection.out.clear()
        return found

    def fault(self, data: bytes) -> Fault:
        """The fault that ends the connection; the peer gets it in a GOAWAY."""
        with pytest.raises(ConnectionFault) as caught:
            self.connection.receive(data, self.now)
        kind, _, _, payload = self.taken()[-1]
        assert kind == GOAWAY
        assert struct.unpack_from(">I", payload, 4)[0] == caught.value.fault
        assert self.connection.closed
        return caught.value.fault


@pytest.fixture
def peer() -> Peer:
    return Peer()


def test_a_request_comes_in_single_bytes_and_gets_an_answer(peer: Peer) -> None:
    for byte in frame(HEADERS, 0x4, 1, REQUEST) + frame(DATA, 0x1, 1, b"hello"):
        peer.send(bytes([byte]))
    [stream] = peer.owner.requests
    assert stream.ended
    assert peer.owner.bodies == {1: b"hello"}
    peer.connection.headers(stream, hpack.status(200))
    peer.connection.data(stream, b"answer")
    peer.connection.finish(stream, hpack.literal("grpc-status", "0"))
    assert [(kind, flags) for kind, flags, _, _ in peer.taken()] == [(HEADERS, 4), (DATA, 0), (HEADERS, 5)]
    assert peer.connection.streams == {}


def test_data_waits_for_both_windows_and_its_bytes_are_known(peer: Peer) -> None:
    peer.send(frame(HEADERS, 0x5, 1, REQUEST))
    [stream] = peer.owner.requests
    peer.connection.headers(stream, hpack.status(200))
    peer.connection.data(stream, b"x" * 200_000)
    peer.connection.finish(stream, hpack.literal("grpc-status", "0"))
    sent = sum(len(payload) for kind, _, _, payload in peer.taken() if kind == DATA)
    assert sent == core.DEFAULT_WINDOW
    assert peer.connection.unsent == 200_000 - sent
    assert peer.connection.oldest_stall() == 0.0
    peer.send(frame(WINDOW, 0, 1, struct.pack(">I", 1 << 20)))
    assert peer.connection.unsent == 200_000 - sent  # the connection's window is still closed
    got = peer.send(frame(WINDOW, 0, 0, struct.pack(">I", 1 << 20)))
    assert sum(len(payload) for kind, _, _, payload in got if kind == DATA) == 200_000 - sent
    assert got[-1][0] == HEADERS
    assert peer.connection.unsent == 0
    assert peer.connection.oldest_stall() is None


def test_streams_take_turns_when_the_window_of_the_connection_opens(peer: Peer) -> None:
    peer.send(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 1 << 20)))
    for number in (1, 3, 5):
        peer.send(frame(HEADERS, 5, number, REQUEST))
        peer.connection.data(peer.owner.requests[-1], b"x" * 200_000)
    peer.taken()
    got = dict.fromkeys((1, 3, 5), 0)
    for _ in range(9):
        for kind, _, number, data in peer.send(frame(WINDOW, 0, 0, struct.pack(">I", 1_000))):
            assert kind == DATA
            got[number] += len(data)
    assert got == dict.fromkeys((1, 3, 5), 3_000)


def test_windows_of_single_bytes_do_not_copy_the_message_each_time() -> None:
    class Message(bytes):
        copied = 0

        def __getitem__(self, part: object) -> object:
            found = super().__getitem__(part)  # type: ignore[index]
            Message.copied += len(found) if isinstance(found, bytes) else 1
            return Message(found) if isinstance(found, bytes) else found

    peer = Peer()
    peer.send(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 0)) + frame(HEADERS, 5, 1, REQUEST))
    peer.connection.data(peer.owner.requests[0], Message(b"x" * 60_000))
    answers = peer.send(b"".join(frame(WINDOW, 0, 1, struct.pack(">I", 1)) for _ in range(1_000)))
    assert [data for kind, _, _, data in answers if kind == DATA] == [b"x"] * 1_000
    assert Message.copied <= 60_000


def test_rapid_reset_ends_the_connection(peer: Peer) -> None:

    def attack() -> None:
        for number in range(1, 20_001, 2):
            peer.send(frame(HEADERS, 0x4, number, REQUEST) + frame(RST, 0, number, b"\0\0\0\x08"))

    with pytest.raises(ConnectionFault) as caught:
        attack()
    assert caught.value.fault == Fault.ENHANCE_YOUR_CALM
    assert len(peer.owner.requests) <= 1_100
    assert len(peer.connection.streams) <= 1


def test_resets_of_a_client_that_stops_are_no_attack(peer: Peer) -> None:
    for number in range(1, 1_601, 2):
        peer.send(frame(HEADERS, 0x4, number, REQUEST))
    for number in range(1, 1_601, 2):
        peer.send(frame(RST, 0, number, b"\0\0\0\x08"))
    assert len(peer.owner.resets) == 800
    assert not peer.connection.closed


@pytest.mark.parametrize(
    "flood",
    [
        frame(PING, 0, 0, b"12345678"),
        frame(SETTINGS),
        frame(PRIORITY, 0, 7, b"\0\0\0\1\0"),
        frame(0x20),
        frame(WINDOW, 0, 0, b"\0\0\0\1"),
        frame(DATA, 0, 1, b""),
        frame(DATA, 0, 1, b"x"),
    ],
    ids=["ping", "settings", "priority", "unknown", "window", "empty data", "single bytes"],
)
def test_frames_without_progress_end_the_connection(peer: Peer, flood: bytes) -> None:
    peer.send(frame(HEADERS, 0x4, 1, REQUEST))
    assert peer.fault(flood * 10_000) == Fault.ENHANCE_YOUR_CALM


def test_pings_with_progress_are_answered_for_ever(peer: Peer) -> None:
    """Clients measure the bandwidth by a PING for much of what they read (10510, clients 872)."""
    for number in range(1, 20_001, 2):
        got = peer.send(frame(HEADERS, 0x5, number, REQUEST) + frame(PING, 0, 0, b"12345678"))
        assert (PING, 1, 0, b"12345678") in got
        stream = peer.owner.requests.pop()
        peer.connection.headers(stream, hpack.status(200))
        peer.connection.finish(stream, b"")
    assert not peer.connection.closed


def test_a_flood_of_continuations_ends_the_connection(peer: Peer) -> None:
    part = hpack.literal("x", "y" * 60)
    start = frame(HEADERS, 0, 1, REQUEST)
    assert peer.fault(start + frame(CONTINUATION, 0, 1, part) * 1_000) == Fault.ENHANCE_YOUR_CALM
    assert peer.connection.held < 64 * 1024


def test_a_bomb_in_a_header_ends_the_connection(peer: Peer) -> None:
    bomb = REQUEST + b"\x40\x01a\x7f\xa1\x1e" + b"x" * 4_000 + b"\xbe" * 4_000
    assert peer.fault(frame(HEADERS, 0x5, 1, bomb)) == Fault.ENHANCE_YOUR_CALM


def test_more_streams_than_allowed_are_refused_one_by_one(peer: Peer) -> None:
    for number in range(1, 2 * core.MAX_STREAMS + 1, 2):
        peer.send(frame(HEADERS, 0x4, number, REQUEST))
    number = 2 * core.MAX_STREAMS + 1
    got = peer.send(frame(HEADERS, 0x4, number, REQUEST))
    assert got == [(RST, 0, number, struct.pack(">I", Fault.REFUSED_STREAM))]
    assert not peer.connection.closed


@pytest.mark.parametrize(
    ("sent", "fault"),
    [
        (frame(DATA, 0, 0, b"x"), Fault.PROTOCOL_ERROR),
        (frame(DATA, 0, 5, b"x"), Fault.PROTOCOL_ERROR),
        (frame(HEADERS, 4, 2, REQUEST), Fault.PROTOCOL_ERROR),
        (frame(PING, 0, 0, b"1"), Fault.FRAME_SIZE_ERROR),
        (frame(SETTINGS, 0, 0, b"\0\2\0\0\0\2"), Fault.PROTOCOL_ERROR),
        (frame(SETTINGS, 0, 0, b"\0\4\xff\xff\xff\xff"), Fault.FLOW_CONTROL_ERROR),
        (frame(PUSH, 4, 1, b"\0\0\0\2"), Fault.PROTOCOL_ERROR),
        (frame(CONTINUATION, 4, 1, b""), Fault.PROTOCOL_ERROR),
        (frame(HEADERS, 4, 1, b"\xff\xff\xff\xff\xff\xff"), Fault.COMPRESSION_ERROR),
        (frame(WINDOW, 0, 0, b"\x7f\xff\xff\xff"), Fault.FLOW_CONTROL_ERROR),
        (struct.pack(">BHBBI", 1, 0, DATA, 0, 1), Fault.FRAME_SIZE_ERROR),
        (b"GET / HTTP/1.1\r\n\r\n", Fault.FRAME_SIZE_ERROR),
    ],
)
def test_faults_of_the_connection(sent: bytes, fault: Fault) -> None:
    assert Peer().fault(sent) == fault


def test_another_protocol_is_refused_at_once() -> None:
    connection = ServerConnection(Recorder(), 0.0)
    with pytest.raises(ConnectionFault):
        connection.receive(b"GET / HTTP/1.1\r\n", 0.0)


def test_after_go_away_streams_end_and_new_ones_are_refused(peer: Peer) -> None:
    peer.send(frame(HEADERS, 0x5, 1, REQUEST))
    peer.connection.go_away()
    assert peer.taken()[0][0] == GOAWAY
    assert peer.send(frame(HEADERS, 0x5, 3, REQUEST))[0][0] == RST
    [stream] = peer.owner.requests
    peer.connection.finish(stream, hpack.status(200))
    assert peer.taken()[0][:3] == (HEADERS, 5, 1)


@pytest.mark.parametrize(("stops", "more"), [(False, [(RST, 0, 1)]), (True, [])])
def test_trailers_before_the_end_of_a_request_are_the_last_frame_of_a_server_that_stops(
    peer: Peer, stops: bool, more: list[tuple[int, int, int]]
) -> None:
    """The official Rust client takes no reset after trailers: it reads the same error again and again, on a whole core.
    Otherwise the reset ends the request.
    """
    peer.send(frame(HEADERS, 0x4, 1, REQUEST))
    if stops:
        peer.connection.go_away()
        assert peer.taken()[0][0] == GOAWAY
    [stream] = peer.owner.requests
    peer.connection.finish(stream, hpack.status(200))
    assert [one[:3] for one in peer.taken()] == [(HEADERS, 5, 1), *more]
    assert peer.send(frame(DATA, 0x1, 1, b"late")) == [], "what is under way counts for the windows only"


def test_random_frames_end_in_answers_or_a_fault() -> None:
    chance = random.Random(11)
    for _ in range(HISTORIES):
        peer = Peer()
        data = b""
        for _ in range(30):
            payload = chance.choice(
                [REQUEST, chance.randbytes(chance.randrange(40)), b"\0" * chance.choice([4, 5, 6, 8])]
            )
            number = chance.choice([0, 1, 1, 3, 5, chance.randrange(50)])
            data += frame(
                chance.randrange(11), chance.choice([0, 1, 4, 5, 8, 0x20, chance.randrange(256)]), number, payload
            )
        if chance.random() < 0.3:
            at = chance.randrange(len(data))
            data = data[:at] + chance.randbytes(3) + data[at + 3 :]
        try:
            while data:
                size = chance.randrange(1, 300)
                peer.send(data[:size])
                data = data[size:]
                for stream in list(peer.connection.streams.values()):
                    if stream.ended and chance.random() < 0.5:
                        peer.connection.data(stream, b"y" * chance.randrange(100_000))
                        peer.connection.finish(stream, b"")
                peer.taken()
        except ConnectionFault:
            assert peer.connection.closed
        waiting = sum(stream.waiting for stream in peer.connection.streams.values())
        assert peer.connection.unsent == waiting
