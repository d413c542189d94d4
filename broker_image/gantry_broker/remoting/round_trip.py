"""The round trip of a TCP connection, as the kernel measures it."""

from __future__ import annotations

import socket
import struct
import sys
from typing import Final

UNKNOWN: Final = -1
_TCP_INFO: Final = getattr(socket, "TCP_INFO", 11)
_SIZE: Final = 192
_RTT_AT: Final = 68
_MIN_RTT_AT: Final = 148
"""Offsets in `struct tcp_info` of linux/tcp.h, which only ever grows at its end."""
_NEVER: Final = 0xFFFF_FFFF


def round_trip_us(sock: socket.socket) -> int:
    """Return the smallest round trip of the last minutes in microseconds; `UNKNOWN`: the kernel does not report it.

    The smallest: others also have the time that the peer waits with its acknowledgement, up to 40 ms on Linux.
    """
    if not sys.platform.startswith("linux"):
        return UNKNOWN
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _SIZE)
    except OSError:
        return UNKNOWN
    return smallest(info)


def smallest(info: bytes) -> int:
    """Return the round trip of a `struct tcp_info`. Kernels before 4.9 only report the smoothed one."""
    at = _MIN_RTT_AT if len(info) >= _MIN_RTT_AT + 4 else _RTT_AT
    if len(info) < at + 4:
        return UNKNOWN
    (micros,) = struct.unpack_from("=I", info, at)
    return UNKNOWN if micros in (0, _NEVER) else int(micros)
