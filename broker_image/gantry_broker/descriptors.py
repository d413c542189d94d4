"""How a process divides the file descriptors that the system lets it have, so that no use of them takes all.

The limit (RLIMIT_NOFILE) is shared by remoting connections, HTTP connections, the store's files, connections to other
processes, and connections that the system has accepted and this process has not looked at yet.
"""

from __future__ import annotations

import contextlib
import resource
from dataclasses import dataclass

MAX_REMOTING = 10_000
MAX_HTTP = 512
BACKLOG = 64
"""Connections that the system holds until they are accepted. All of them may be accepted at once."""
MAX_QUEUE_FILES = 2_048
MAX_MEMBERS = 256
MAX_REMOTING_BACKLOG = 1_024
LISTENERS = 3
"""Remoting ports of one process, each with a backlog of its own."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Descriptors by use. What is left over is for segments, tables, logs and connections to other processes."""

    queue_files: int
    """Open files of consume queues."""
    http: int
    """HTTP connections."""
    remoting: int
    """Remoting connections, of all ports together."""
    members: int
    """Connections of a port between members: this many that have proved themselves, and as many that have not."""
    remoting_backlog: int
    """Of one port: connections that the system holds until they are accepted, which may happen to all at once."""


def divide(limit: int) -> Budget:
    """The budget for a limit of so many descriptors."""
    queue_files = max(16, min(MAX_QUEUE_FILES, limit // 4))
    http = max(16, min(MAX_HTTP, limit // 8))
    backlog = max(8, min(MAX_REMOTING_BACKLOG, limit // 32))
    others = max(32, min(1_024, limit // 8))
    members = max(8, min(MAX_MEMBERS, limit // 32))
    left = limit - queue_files - http - BACKLOG - LISTENERS * backlog - others - 2 * members
    return Budget(queue_files, http, max(16, min(MAX_REMOTING, left)), members, backlog)


def budget() -> Budget:
    """Of this process, as its limit is now."""
    return divide(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def allow_all() -> None:
    """Raise this process's limit as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
