"""The budget of a process's file descriptors: no single use may take all of them.

The limit (RLIMIT_NOFILE) covers remoting connections, HTTP connections, the store's files, connections to other
processes, and connections that the system has accepted but this process has not.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

MAX_REMOTING = 10_000
CONNECTIONS_OF_ADDRESS = 5_000
"""Connections of one address at a process without a setting for it."""
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
    """Descriptors by use. The rest is for segments, tables, logs and connections to other processes."""

    queue_files: int
    """Open files of consume queues."""
    http: int
    """HTTP connections."""
    remoting: int
    """Remoting connections, of all ports together."""
    members: int
    """Proven connections of a port between members, and as many that have not proved themselves yet."""
    remoting_backlog: int
    """Backlog of one port: connections that the system holds for the process, which may accept all of them at once."""


def divide(limit: int) -> Budget:
    """Return the budget for a limit of `limit` descriptors."""
    queue_files = max(16, min(MAX_QUEUE_FILES, limit // 4))
    http = max(16, min(MAX_HTTP, limit // 8))
    backlog = max(8, min(MAX_REMOTING_BACKLOG, limit // 32))
    others = max(32, min(1_024, limit // 8))
    members = max(8, min(MAX_MEMBERS, limit // 32))
    left = limit - queue_files - http - BACKLOG - LISTENERS * backlog - others - 2 * members
    return Budget(queue_files, http, max(16, min(MAX_REMOTING, left)), members, backlog)


def budget() -> Budget:
    """Return the budget for this process's present limit."""
    import resource  # Clients use the numbers above on systems without it.

    return divide(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def allow_all() -> None:
    """Raise this process's limit as far as the system allows."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
