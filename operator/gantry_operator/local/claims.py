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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gantry_operator.local.folder import ClusterFolder, read_json, read_ports
from gantry_operator.local.process import load_record, start_mark
from gantry_operator.registry.file import write_whole

log = logging.getLogger(__name__)


def claims_folder() -> Path:
    """One for each user of the machine, until it is started anew. It does not follow XDG_STATE_HOME: ports are the
    machine's."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(base) / f"gantry-ports-{os.getuid()}"


@contextmanager
def ports_of_others(own: Path) -> Iterator[frozenset[int]]:
    """The ports of all clusters that run, but for the one in the folder `own`, which is known to the others afterwards.

    Nobody else chooses meanwhile. Where claims cannot be kept there are none, and only a listener makes a port taken.
    """
    folder = claims_folder()
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise PermissionError(f"{folder} belongs to somebody else")
        lock = open(folder / "lock", "a")  # noqa: SIM115
    except OSError as error:
        log.warning("ports of other clusters are not known: %s", error)
        yield frozenset()
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield frozenset(port for path in folder.glob("*.json") for port in _claimed(path, own))
        mine = {"folder": str(own), "pid": os.getpid(), "started": start_mark(os.getpid())}
        write_whole(folder / ClusterFolder(own).file_name, json.dumps(mine))


def _claimed(path: Path, own: Path) -> Iterator[int]:
    claim = read_json(path)
    root = Path(claim["folder"]) if isinstance(claim, dict) and "folder" in claim else None
    if root == own:
        return
    ports = {} if root is None else read_ports(ClusterFolder(root).ports)
    if root is None or not ports or not _lives(ClusterFolder(root), claim):
        path.unlink(missing_ok=True)
        return
    yield from ports.values()


def _lives(cluster: ClusterFolder, claim: dict[str, object]) -> bool:
    """Who chose is at it still, or one of the cluster's processes runs."""
    pid = claim.get("pid")
    if isinstance(pid, int) and start_mark(pid) == claim.get("started"):
        return True
    return any(load_record(record) is not None for record in cluster.running.glob("*.json"))
