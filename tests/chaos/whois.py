"""The processes behind TCP sockets of the loopback, from /proc (Linux)."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path

_LOOPBACK = "0100007F"
_ESTABLISHED = 1
_LISTENER = re.compile(rf"(?:{_LOOPBACK}|00000000):(\w{{4}}) 00000000:0000 0A (?:\S+ +){{5}}(\d+)")
"""A row of /proc/net/tcp in state LISTEN; its port and inode."""


def _table() -> str:
    return Path("/proc/net/tcp").read_text()


def listening() -> dict[int, str]:
    """Inode by port, of every port with a listener on 127.0.0.1 or on all addresses."""
    found = {}
    for match in _LISTENER.finditer(_table()):
        found[int(match[1], 16)] = match[2]
    return found


def inode_of(local_port: int, remote_port: int) -> str | None:
    """The inode of one end of a connection. The cost matters: a cluster under faults has thousands of sockets."""
    ends = f" {_LOOPBACK}:{local_port:04X} {_LOOPBACK}:{remote_port:04X} "
    table = _table()
    at = table.find(ends)
    return None if at < 0 else table[at : table.find("\n", at)].split()[8]


def peer_is_gone(sock: socket.socket) -> bool:
    """Whether the peer has closed its end of a connection."""
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != _ESTABLISHED


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
