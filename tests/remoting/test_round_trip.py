"""The round trip of a connection: what the kernel reports, and what it does not."""

from __future__ import annotations

import socket
import struct

import pytest
from gantry_broker.remoting.round_trip import UNKNOWN, round_trip_us, smallest


def test_of_a_real_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as caller:
        accepted, _ = server.accept()
        with accepted:
            caller.sendall(b"x")
            assert accepted.recv(1) == b"x"
            accepted.sendall(b"y")
            assert caller.recv(1) == b"y"
            assert 0 < round_trip_us(caller) < 1_000_000
    assert round_trip_us(caller) == UNKNOWN, "it is closed"


@pytest.mark.parametrize(
    ("length", "smoothed", "least", "expected"),
    [
        (192, 41_000, 180, 180),
        (192, 41_000, 0xFFFF_FFFF, UNKNOWN),
        (192, 0, 0, UNKNOWN),
        (104, 900, 0, 900),
        (40, 0, 0, UNKNOWN),
    ],
)
def test_what_the_kernel_does_not_report_is_unknown(length: int, smoothed: int, least: int, expected: int) -> None:
    info = bytearray(192)
    struct.pack_into("=I", info, 68, smoothed)
    struct.pack_into("=I", info, 148, least)
    assert smallest(bytes(info[:length])) == expected
