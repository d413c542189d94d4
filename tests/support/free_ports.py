"""Ports for the servers of a test, on 127.0.0.1.

They are below the range that the system gives to connecting clients: a client could get such a port after the check and
before a server binds it. They are also below the range that `gantry up` uses. Each test process has its own range, so
that the clusters of two test processes never take a port from each other.
"""

from __future__ import annotations

import os
import random
import socket

HOST = "127.0.0.1"
FIRST, LAST = 12_000, 20_000  # As far as `gantry_operator.platforms.local.ports.OTHER_PORTS`.

_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))

_given: set[int] = set()
_random = random.SystemRandom()


def free_ports(count: int) -> list[int]:
    """This many ports that are free and that this process did not get before."""
    return [free_port() for _ in range(count)]


def free_port() -> int:
    while True:
        port = _random.randrange(FIRST + _worker, LAST, _workers)
        if port in _given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        _given.add(port)
        return port
