"""Spark's Python daemon that has what its workers need before it forks them (`spark.python.daemon.module`).

Spark's own imports it after the fork: each worker then pays 0.6 s of CPU time once more, one for each core, and again
for those that were idle for a minute and ended. Spark does so since some packages start threads, which a fork leaves
behind: so the thread pool of numpy's linear algebra is not made here, and Arrow makes its own when they are first used
(the allocator's background thread may be left behind).

It also sees to it that neither side waits for the other's acknowledgement. By Nagle's algorithm the JVM keeps the
second of the two pieces of a task back until the first is acknowledged, which Linux does after 40 ms when nothing is to
be answered, and so does a worker with the end of its answer: without this every task takes that longer, however small.
"""

from __future__ import annotations

import gc
import importlib
import os
import socket
import sys
from types import ModuleType
from typing import Final

PRELOADED_MODULES: Final = ("gantry_spark.source", "gantry_spark.aggregates")


def preload(worker: str | None) -> None:
    """Import a worker's module (None: the one that runs tasks) and ours."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for name in (worker or "pyspark.worker", *PRELOADED_MODULES):
        importlib.import_module(name)
    # Workers collect garbage after each task: what is here now is none, and looking through it takes 16 ms.
    gc.freeze()


def disable_tcp_delays(daemon: ModuleType) -> None:
    """Let each task of `daemon` (pyspark.daemon) begin with a socket that sends and acknowledges at once.

    For each task anew: Linux goes back to delaying acknowledgements by itself (tcp(7), TCP_QUICKACK). Unix domain
    sockets need none of this.
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
