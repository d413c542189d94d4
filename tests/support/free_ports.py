"""Ports for the servers of a test, on 127.0.0.1.

They are below the range that the system gives to connecting clients: a client could get such a port after the check and
before a server binds it. They are also below the range that `gantry up` uses. Each test process has its own range, so
that the clusters of two test processes never take a port from each other.
"""

from __future__ import annotations

import random
import socket

from benchmarks.rig.processes import own_ports

HOST = "127.0.0.1"
PORTS = own_ports(12_000, 20_000)  # As far as `gantry_operator.platforms.local.ports.OTHER_PORTS`.

_given: set[int] = set()
_random = random.SystemRandom()


def free_ports(count: int) -> list[int]:
    """This many ports that are free and that this process did not get before."""
    return [free_port() for _ in range(count)]


def free_port() -> int:
    while True:
        port = _random.choice(PORTS)
        if port in _given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        _given.add(port)
        return port
