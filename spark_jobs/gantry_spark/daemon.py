"""A Python daemon for Spark that imports the workers' modules before it forks (`spark.python.daemon.module`).

Spark's own daemon forks first. Each worker then spends 0.6 s of CPU time on imports, once for each core, and again
after a minute without work. Spark forks first because a fork does not copy threads. This daemon therefore creates no
thread pool of numpy's linear algebra. Arrow creates its pools at first use.

The daemon also disables two TCP delays. Nagle's algorithm in the JVM holds back the second part of a task until the
first is acknowledged. Linux delays that acknowledgement by 40 ms. The end of a worker's response waits in the same way.
"""

from __future__ import annotations

import gc
import importlib
import os
import socket
import sys
from types import ModuleType
from typing import Final

from gantry_broker.allocation import keep_freed_memory

KEPT: Final = 128 << 20
"""Bytes of freed memory that a worker keeps: the blocks of one task are those of the next."""
OWN_MAPPING: Final = 32 << 20
"""Bytes from which on an allocation goes back to the system; blocks are smaller."""
PRELOADED_MODULES: Final = ("gantry_spark.source", "gantry_spark.aggregates")


def keep_blocks() -> None:
    """Let a worker use the memory of a block for the next one. Pages that the system gives and takes cost a fifth of a
    read.
    """
    keep_freed_memory(KEPT, OWN_MAPPING)


def preload(worker: str | None) -> None:
    """Import a worker's module (None: the module that runs tasks) and the modules of this package."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    keep_blocks()
    for name in (worker or "pyspark.worker", *PRELOADED_MODULES):
        importlib.import_module(name)
    # Workers collect garbage after each task. Frozen objects are skipped, which saves 16 ms a task.
    gc.freeze()


def disable_tcp_delays(daemon: ModuleType) -> None:
    """Make each task of `daemon` (pyspark.daemon) start with a socket that sends and acknowledges at once.

    Linux returns to delayed acknowledgements by itself (tcp(7), TCP_QUICKACK), so the option is set for every task.
    Unix domain sockets have no such delay.
    """
    run_task = daemon.worker
    option = getattr(socket, "TCP_QUICKACK", None)

    def worker(sock: socket.socket, authenticated: bool) -> int:
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if option is not None:
                sock.setsockopt(socket.IPPROTO_TCP, option, 1)
        code: int = run_task(sock, authenticated)
        return code

    daemon.worker = worker  # type: ignore[attr-defined]


if __name__ == "__main__":
    from pyspark import daemon

    preload(sys.argv[1] if len(sys.argv) > 1 else None)
    disable_tcp_delays(daemon)
    daemon.manager()
