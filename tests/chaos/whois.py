"""The processes behind TCP sockets of the loopback, from /proc (Linux)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

_LOOPBACK = "0100007F"
_LISTEN = "0A"


def _rows() -> Iterator[tuple[int, int, str, str]]:
    """(local port, remote port, state, inode) of every socket that is bound to 127.0.0.1 or to all addresses."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        local, remote = fields[1].split(":"), fields[2].split(":")
        if local[0] in (_LOOPBACK, "00000000"):
            yield int(local[1], 16), int(remote[1], 16), fields[3], fields[9]


def listening() -> dict[int, str]:
    """Inode by port, of every port with a listener."""
    return {port: inode for port, _, state, inode in _rows() if state == _LISTEN}


def inode_of(local_port: int, remote_port: int) -> str | None:
    """The inode of one end of a connection."""
    for local, remote, state, inode in _rows():
        if (local, remote) == (local_port, remote_port) and state != _LISTEN:
            return inode
    return None


def owner(inode: str | None, processes: Mapping[int, str]) -> str:
    """The name of the process that has the socket; "other" when none of `processes` (names by pid) has it."""
    wanted = f"socket:[{inode}]"
    for pid, name in processes.items():
        try:
            with os.scandir(f"/proc/{pid}/fd") as entries:
                for entry in entries:
                    if os.readlink(entry.path) == wanted:
                        return name
        except OSError:
            continue  # The process ended, or closed the descriptor meanwhile.
    return "other"
