"""Measures the CPU time that HTTP/2 takes of one gRPC call at a server: the project's layer beside `h2` with `hpack`.

    python -m pip install h2
    python benchmarks/http2_layers.py [--calls 5000] [--rounds 5] [--body 1024]

Both get the same bytes of one client, whose calls have a request id each, and both answer with a header, a short
message and trailers. There are no sockets, no event loop and no protobuf. Figures: microseconds of CPU a call, the
best round.
"""

from __future__ import annotations

import argparse
import struct
import time
import uuid
from collections.abc import Callable
from typing import Any

from gantry_broker.protocol.grpc_contract import SERVICE
from gantry_broker.proxy.http2 import hpack as own_hpack
from gantry_broker.proxy.http2.core import PREFACE, ServerConnection, Stream

ANSWER = b"\0\0\0\0\x28" + b"x" * 40
PATH = f"{SERVICE}SendMessage"


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">BHBBI", len(payload) >> 16, len(payload) & 0xFFFF, kind, flags, stream) + payload


def calls(count: int, body: int) -> tuple[bytes, list[bytes]]:
    """What a client begins with, and its calls."""
    import hpack

    encoder = hpack.Encoder()
    data = b"\0" + struct.pack(">I", body) + b"m" * body
    made = []
    for number in range(count):
        fields = [
            (":scheme", "http"), (":method", "POST"), (":authority", "127.0.0.1:8081"), (":path", PATH),
            ("te", "trailers"), ("content-type", "application/grpc"), ("user-agent", "grpc-java-netty/1.53.0"),
            ("x-mq-client-id", "host@4711@0@2fa4xq"), ("x-mq-language", "JAVA"), ("x-mq-client-version", "5.2.0"),
            ("x-mq-protocol", "v2"), ("x-mq-request-id", str(uuid.UUID(int=number))),
            ("x-mq-date-time", "20261128T090000Z"), ("grpc-timeout", "2999957u"),
        ]  # fmt: skip
        stream = 2 * number + 1
        made.append(frame(1, 4, stream, encoder.encode(fields)) + frame(0, 1, stream, data))
    # An acknowledgement of the server's settings, and a wide window.
    return PREFACE + frame(4, 0, 0, b"") + frame(4, 1, 0, b"") + frame(8, 0, 0, struct.pack(">I", 2**30)), made


class Owner:
    """Answers each call when its body is complete."""

    def __init__(self) -> None:
        self.connection: ServerConnection
        self.answered = 0
        self._header = own_hpack.status(200) + own_hpack.literal("content-type", "application/grpc")
        self._trailers = own_hpack.literal("grpc-status", "0")

    def on_request(self, stream: Stream, fields: list[Any]) -> None:
        assert dict(fields)[":path"] == PATH

    def on_data(self, stream: Stream, data: bytes) -> None:
        if stream.ended:
            self.answered += 1
            self.connection.answer(stream, self._header, ANSWER, self._trailers)

    def on_reset(self, stream: Stream) -> None:
        raise AssertionError("the client resets nothing")

    def on_closed(self, stream: Stream) -> None:
        pass

    def on_drained(self, stream: Stream) -> None:
        pass


def own(begin: bytes, made: list[bytes]) -> int:
    owner = Owner()
    connection = owner.connection = ServerConnection(owner, 0.0)
    connection.receive(begin, 0.0)
    for number, call in enumerate(made):
        connection.receive(call, number * 0.01)
        b"".join(connection.out)
        connection.out.clear()
    return owner.answered


def h2(begin: bytes, made: list[bytes]) -> int:
    from h2.config import H2Configuration
    from h2.connection import H2Connection
    from h2.events import DataReceived, RequestReceived, StreamEnded

    connection = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
    connection.initiate_connection()
    connection.data_to_send()
    connection.receive_data(begin)
    answered = 0
    for call in made:
        for event in connection.receive_data(call):
            if isinstance(event, RequestReceived):
                assert dict(event.headers)[":path"] == PATH
            elif isinstance(event, DataReceived):
                connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, StreamEnded):
                answered += 1
                head = [(":status", "200"), ("content-type", "application/grpc")]
                connection.send_headers(event.stream_id, head)
                connection.send_data(event.stream_id, ANSWER)
                connection.send_headers(event.stream_id, [("grpc-status", "0")], end_stream=True)
        connection.data_to_send()
    return answered


def measured(serve: Callable[[bytes, list[bytes]], int], begin: bytes, made: list[bytes], rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        answered = serve(begin, made)
        best = min(best, time.process_time() - began)
        if answered != len(made):
            raise SystemExit(f"error: {answered} of {len(made)} calls were answered")
    return best / len(made) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--body", type=int, default=1_024)
    options = parser.parse_args()
    begin, made = calls(options.calls, options.body)
    for name, serve in (("this layer", own), ("h2 with hpack", h2)):
        print(f"{name:<16}{measured(serve, begin, made, options.rounds):8.1f} µs a call")


if __name__ == "__main__":
    main()
