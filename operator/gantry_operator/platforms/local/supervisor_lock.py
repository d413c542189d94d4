"""The lock for starting and ending a cluster's processes: one program at a time holds it while it runs."""

from __future__ import annotations

import fcntl
from typing import IO

from gantry_operator.platforms.local.folder import ClusterFolder


class AlreadySupervised(Exception):
    """Another program holds the lock."""


def take_lock(folder: ClusterFolder) -> IO[str]:
    """Take the lock. It is held until it is closed, at the latest when the process ends. Raises AlreadySupervised."""
    lock = open(folder.lock, "a")  # noqa: SIM115
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise AlreadySupervised(str(folder.lock)) from None
    return lock
