"""Ports of this user's other local clusters, whether or not a process listens there now.

A group's port is free for a moment in every failover. Without a claim, another cluster could take it in that moment and
receive the first cluster's messages: acknowledged, but stored in the wrong cluster.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import stat
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gantry_operator.platforms.local.folder import OTHERS, ClusterFolder, read_ports
from gantry_operator.platforms.local.process import load_record, start_mark
from gantry_operator.registry.disk_errors import disk_error

log = logging.getLogger(__name__)

LOCK_WAIT_S = 2.0
"""Seconds to wait for the lock. Choosing ports takes much less, so a longer holder is stuck."""
LOOK_S = 0.01
MAX_CLAIM = 65_536
"""Bytes of a claim."""


def claims_folder() -> Path:
    """Return the folder of claims, one per user until the machine restarts. It ignores XDG_STATE_HOME, because ports
    belong to the machine.
    """
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(base) / f"gantry-ports-{os.getuid()}"


class ClaimsFolder:
    """The open folder of claims. Its files are reached through the descriptor, so nothing can take its place."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def open(cls) -> ClaimsFolder:
        """Make it if it is missing. Anybody may write to the folder around it, so a link there, or a folder of another
        user, is refused. Raises OSError.
        """
        path = claims_folder()
        path.mkdir(mode=0o700, exist_ok=True)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except NotADirectoryError:
            raise NotADirectoryError(f"{path} is a link or no folder: remove it") from None
        try:
            status = os.fstat(fd)
            if status.st_uid != os.geteuid():
                raise PermissionError(f"{path} belongs to another user")
            if status.st_mode & OTHERS:
                os.fchmod(fd, stat.S_IMODE(status.st_mode) & ~OTHERS)
        except OSError:
            os.close(fd)
            raise
        return cls(fd)

    def close(self) -> None:
        os.close(self._fd)

    def claims(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Return the claims by the name of their file. What is no claim of this program is left out."""
        for name in sorted(os.listdir(self._fd)):
            if not name.endswith(".json"):
                continue
            claim = self._read(name)
            folder = claim.get("folder") if isinstance(claim, dict) else None
            if isinstance(folder, str) and ClusterFolder(Path(folder)).file_name == name:
                yield name, claim

    def _read(self, name: str) -> Any:
        """Return the JSON in a file; None: it is no regular file, or holds none."""
        try:
            fd = self._open(name, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            return json.loads(os.read(fd, MAX_CLAIM)) if stat.S_ISREG(os.fstat(fd).st_mode) else None
        except (OSError, ValueError, RecursionError):
            return None
        finally:
            os.close(fd)

    def write(self, name: str, claim: dict[str, Any]) -> None:
        """Replace a claim. Readers see the old or the new one. Raises OSError."""
        temporary = f".{name}.{os.getpid()}"
        try:
            with os.fdopen(self._open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w") as file:
                json.dump(claim, file)
            os.replace(temporary, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except OSError as error:
            raise disk_error(error, claims_folder() / name) from error

    def remove(self, name: str) -> None:
        """Remove a claim. Raises OSError."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._fd)

    def locked(self) -> int:
        """Open and lock the file of the lock. Raises OSError, also when another program keeps the lock."""
        lock = self._open("lock", os.O_WRONLY | os.O_CREAT)
        deadline = time.monotonic() + LOCK_WAIT_S
        try:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return lock
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        path = claims_folder() / "lock"
                        raise TimeoutError(f"another `gantry up` holds {path} for too long") from None
                time.sleep(LOOK_S)
        except OSError:
            os.close(lock)
            raise

    def _open(self, name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self._fd)


class PortAllocationLock:
    """The right to choose ports, for one program of this user at a time.

    `folder` None: claims cannot be kept. `lock` None: another program may choose at the same time.
    """

    def __init__(self, folder: ClaimsFolder | None, lock: int | None) -> None:
        self.folder = folder
        self._lock = lock

    @property
    def alone(self) -> bool:
        """No other program chooses."""
        return self._lock is not None

    def __enter__(self) -> PortAllocationLock:
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            os.close(self._lock)
        if self.folder is not None:
            self.folder.close()
        self.folder = self._lock = None


def acquire_port_lock() -> PortAllocationLock:
    """Wait for the lock, for a limited time. Call it in a thread, so that the event loop and the failover go on."""
    try:
        folder = ClaimsFolder.open()
    except OSError as error:
        log.warning("ports of other clusters are not known: %s", error)
        return PortAllocationLock(None, None)
    try:
        return PortAllocationLock(folder, folder.locked())
    except OSError as error:
        log.warning("another cluster may choose ports at the same time: %s", error)
        return PortAllocationLock(folder, None)


@contextmanager
def ports_of_others(own: Path, lock: PortAllocationLock) -> Iterator[frozenset[int]]:
    """Claim the ports of the folder `own`, and return the ports of all other running clusters.

    No other program chooses meanwhile, unless the wait for the lock failed. The lock is released afterwards. Without
    working claims only a listening process marks a port as used.
    """
    with lock:
        folder = lock.folder
        if folder is None:
            yield frozenset()
            return
        yield frozenset(port for ports in _claimed(folder, own, tidy=lock.alone) for port in ports)
        mine = {"folder": str(own), "pid": os.getpid(), "started": start_mark(os.getpid())}
        try:
            folder.write(ClusterFolder(own).file_name, mine)
        except OSError as error:
            if lock.alone:
                raise
            log.warning("the ports of %s are not known to other clusters: %s", own, error)


def _claimed(folder: ClaimsFolder, own: Path, *, tidy: bool) -> Iterator[Collection[int]]:
    """Return the ports of the valid claims. `tidy`: remove expired ones; without the lock another program may be
    writing.
    """
    for name, claim in list(folder.claims()):
        cluster = ClusterFolder(Path(claim["folder"]))
        if cluster.root == own:
            continue
        ports = read_ports(cluster.ports)
        if ports and _lives(cluster, claim):
            yield ports.values()
        elif tidy:
            folder.remove(name)


def _lives(cluster: ClusterFolder, claim: dict[str, object]) -> bool:
    """Return whether the program that chose still runs, or one of the cluster's processes does."""
    pid = claim.get("pid")
    if isinstance(pid, int) and start_mark(pid) == claim.get("started"):
        return True
    return any(load_record(record) is not None for record in cluster.running.glob("*.json"))
