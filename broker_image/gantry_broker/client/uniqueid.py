"""Unique message keys in the form of RocketMQ's clients: 32 hexadecimal digits with address and time.

4 bytes IPv4 address, 2 process id, 4 random per process, 4 milliseconds since the month began, 2 counter. `mqadmin`
reads the time from them.
"""

from __future__ import annotations

import itertools
import os
import socket
import time
from functools import lru_cache


def local_address(towards: str = "192.0.2.1") -> str:
    """Return the IPv4 address of this machine towards another one, without sending anything."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((towards, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


@lru_cache(maxsize=1)
def _prefix(pid: int) -> str:
    address = socket.inet_aton(local_address())
    return (address + (pid & 0xFFFF).to_bytes(2, "big") + os.urandom(4)).hex().upper()


class _Month:
    """Milliseconds since the current month began, in local time."""

    start = 0
    end = 0

    @classmethod
    def since(cls, now_ms: int) -> int:
        if not cls.start <= now_ms < cls.end:
            local = time.localtime(now_ms / 1000)
            cls.start = int(time.mktime((local.tm_year, local.tm_mon, 1, 0, 0, 0, 0, 0, -1))) * 1000
            cls.end = int(time.mktime((local.tm_year, local.tm_mon + 1, 1, 0, 0, 0, 0, 0, -1))) * 1000
        return now_ms - cls.start


_counter = itertools.count()


def create_unique_key(now_ms: int | None = None) -> str:
    """Return a new unique key."""
    if now_ms is None:
        now_ms = time.time_ns() // 1_000_000
    return f"{_prefix(os.getpid())}{_Month.since(now_ms):08X}{next(_counter) & 0xFFFF:04X}"
