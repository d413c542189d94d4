"""Ports that other local clusters of this user have been given, whether or not somebody listens there just now.

A group's port is free for a moment in every failover. Another cluster that looked for ports in that moment would take
it, and be sent what the first one's clients send: acknowledged, and stored in the wrong cluster.
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

TURN_S = 2.0
"""Whoever chooses takes much less; one that stands still in the middle of it is not waited for."""
LOOK_S = 0.01


def claims_folder() -> Path:
    """One for each user of the machine, until it is started anew. It does not follow XDG_STATE_HOME: ports are the
    machine's."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(base) / f"gantry-ports-{os.getuid()}"


class Turn:
    """To choose ports, for one program of this user at a time; `lock` None: another one may choose meanwhile. `known`:
    claims can be kept."""

    def __init__(self, lock: IO[str] | None, *, known: bool = True) -> None:
        self.lock = lock
        self.known = known

    def __enter__(self) -> Turn:
        return self

    def __exit__(self, *_: object) -> None:
        if self.lock is not None:
            self.lock.close()


def take_turn() -> Turn:
    """Waits for it, but not for long: whoever has an event loop asks in a thread, so that the failover goes on."""
    folder = claims_folder()
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise PermissionError(f"{folder} belongs to somebody else")
    except OSError as error:
        log.warning("ports of other clusters are not known: %s", error)
        return Turn(None, known=False)
    try:
        return Turn(_locked(folder / "lock"))
    except OSError as error:
        log.warning("another cluster may choose ports at the same time: %s", error)
        return Turn(None)


def _locked(path: Path) -> IO[str]:
    """Raises OSError, also where another program holds it all the time."""
    lock = open(path, "a")  # noqa: SIM115
    deadline = time.monotonic() + TURN_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if time.monotonic() >= deadline:
                lock.close()
                raise TimeoutError(f"another `gantry up` holds {path} and does not go on") from None
        except OSError:
            lock.close()
            raise
        time.sleep(LOOK_S)


@contextmanager
def ports_of_others(own: Path, turn: Turn) -> Iterator[frozenset[int]]:
    """The ports of all clusters that run, but for the one in the folder `own`, which is known to the others afterwards.

    Nobody else chooses meanwhile, unless the turn was not had in time, and the turn is over then. Where claims cannot
    be kept there are none, and only a listener makes a port taken.
    """
    with turn:
        if not turn.known:
            yield frozenset()
            return
        folder = claims_folder()
        tidy = turn.lock is not None  # Else it may be written anew meanwhile.
        yield frozenset(port for path in folder.glob("*.json") for port in _claimed(path, own, tidy))
        mine = {"folder": str(own), "pid": os.getpid(), "started": start_mark(os.getpid())}
        try:
            write_whole(folder / ClusterFolder(own).file_name, json.dumps(mine))
        except OSError as error:
            if turn.lock is not None:
                raise
            log.warning("the ports of %s are not known to other clusters: %s", own, error)


def _claimed(path: Path, own: Path, tidy: bool) -> Iterator[int]:
    """`tidy`: a claim that is over is removed."""
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
    """Who chose is at it still, or one of the cluster's processes runs."""
    pid = claim.get("pid")
    if isinstance(pid, int) and start_mark(pid) == claim.get("started"):
        return True
    return any(load_record(record) is not None for record in cluster.running.glob("*.json"))
