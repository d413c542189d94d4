"""Ports of this user's other local clusters, whether or not a process listens there now.

A group's port is free for a moment in every failover. Without a claim, another cluster could take it in that moment and
receive the first cluster's messages: acknowledged, but stored in the wrong cluster.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from gantry_operator.platforms.local.folder import ClusterFolder, read_json, read_ports
from gantry_operator.platforms.local.process import load_record, start_mark
from gantry_operator.registry.file import write_whole

log = logging.getLogger(__name__)

LOCK_WAIT_S = 2.0
"""Seconds to wait for the lock. Choosing ports takes much less, so a longer holder is stuck."""
LOOK_S = 0.01


def claims_folder() -> Path:
    """The folder of claims, one per user until the machine restarts. It ignores XDG_STATE_HOME, because ports belong
    to the machine.
    """
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(base) / f"gantry-ports-{os.getuid()}"


class PortAllocationLock:
    """The right to choose ports, for one program of this user at a time. `file` None: another program may choose at
    the same time. `known`: claims can be kept.
    """

    def __init__(self, file: IO[str] | None, *, known: bool = True) -> None:
        self.file = file
        self.known = known

    def __enter__(self) -> PortAllocationLock:
        return self

    def __exit__(self, *_: object) -> None:
        if self.file is not None:
            self.file.close()


def acquire_port_lock() -> PortAllocationLock:
    """Wait for the lock, for a limited time. Call it in a thread, so that the event loop and the failover go on."""
    folder = claims_folder()
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise PermissionError(f"{folder} belongs to another user")
    except OSError as error:
        log.warning("ports of other clusters are not known: %s", error)
        return PortAllocationLock(None, known=False)
    try:
        return PortAllocationLock(_locked(folder / "lock"))
    except OSError as error:
        log.warning("another cluster may choose ports at the same time: %s", error)
        return PortAllocationLock(None)


def _locked(path: Path) -> IO[str]:
    """Open and lock the file. Raises OSError, also when another program keeps the lock."""
    lock = open(path, "a")  # noqa: SIM115
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if time.monotonic() >= deadline:
                lock.close()
                raise TimeoutError(f"another `gantry up` holds {path} for too long") from None
        except OSError:
            lock.close()
            raise
        time.sleep(LOOK_S)


@contextmanager
def ports_of_others(own: Path, lock: PortAllocationLock) -> Iterator[frozenset[int]]:
    """Claim the ports of the folder `own`, and return the ports of all other running clusters.

    No other program chooses meanwhile, unless the wait for the lock failed. The lock is released afterwards. Without
    working claims only a listening process marks a port as used.
    """
    with lock:
        if not lock.known:
            yield frozenset()
            return
        folder = claims_folder()
        tidy = lock.file is not None  # Without the lock another program may be writing the file.
        yield frozenset(port for path in folder.glob("*.json") for port in _claimed(path, own, tidy))
        mine = {"folder": str(own), "pid": os.getpid(), "started": start_mark(os.getpid())}
        try:
            write_whole(folder / ClusterFolder(own).file_name, json.dumps(mine))
        except OSError as error:
            if lock.file is not None:
                raise
            log.warning("the ports of %s are not known to other clusters: %s", own, error)


def _claimed(path: Path, own: Path, tidy: bool) -> Iterator[int]:
    """Whether the claim is valid. `tidy`: delete an expired claim."""
    claim = read_json(path)
    root = Path(claim["folder"]) if isinstance(claim, dict) and "folder" in claim else None
    if root == own:
        return
    ports = {} if root is None else read_ports(ClusterFolder(root).ports)
    if root is None or not ports or not _lives(ClusterFolder(root), claim):
        if tidy:
            path.unlink(missing_ok=True)
        return
    yield from ports.values()


def _lives(cluster: ClusterFolder, claim: dict[str, object]) -> bool:
    """The program that chose still runs, or one of the cluster's processes does."""
    pid = claim.get("pid")
    if isinstance(pid, int) and start_mark(pid) == claim.get("started"):
        return True
    return any(load_record(record) is not None for record in cluster.running.glob("*.json"))
