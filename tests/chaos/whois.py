"""The processes behind TCP sockets of the loopback (Linux).

The kernel's socket diagnosis (sock_diag(7)) finds one socket in microseconds. /proc/net/tcp lists all sockets of the
machine and takes 10 to 20 ms, so it serves only where that is missing.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import socket
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

_LOOPBACK: Final = "0100007F"
_LISTENER: Final = re.compile(rf"(?:{_LOOPBACK}|00000000):(\w{{4}}) 00000000:0000 0A (?:\S+ +){{5}}(\d+)")
"""A row of /proc/net/tcp in state LISTEN; its port and inode."""
_ESTABLISHED: Final = 1
_LISTEN: Final = 10
_ANY_STATE: Final = 0xFFFFFFFF
_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_NLM_F_REQUEST: Final = 1
_HEAD: Final = struct.Struct("=IHHII")
"""nlmsghdr: length, type, flags, sequence, port."""
_REQUEST: Final = struct.Struct("=BBBBI2s2s16s16sIII")
"""inet_diag_req_v2: family, protocol, extensions, padding, states, ports, addresses, interface, cookie."""
_ANSWER: Final = struct.Struct("=BBBB48sIIIII")
"""inet_diag_msg: family, state, timer, retransmits, socket, expires, queues, user, inode."""


def listening(ports: Iterable[int]) -> dict[int, str]:
    """Inode by port, of those ports that have a listener on 127.0.0.1 or on all addresses."""
    if not _has_sock_diag():
        there = {int(match[1], 16): match[2] for match in _LISTENER.finditer(_table())}
        return {port: there[port] for port in ports if port in there}
    found = {port: _diagnosed(port, 0) for port in ports}
    return {port: inode for port, (state, inode) in found.items() if state == _LISTEN}


def inode_of(local_port: int, remote_port: int) -> str | None:
    """The inode of one end of a connection."""
    if _has_sock_diag():
        state, inode = _diagnosed(local_port, remote_port)
        return inode if state not in (0, _LISTEN) else None
    table = _table()
    at = table.find(f" {_LOOPBACK}:{local_port:04X} {_LOOPBACK}:{remote_port:04X} ")
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


def _table() -> str:
    return Path("/proc/net/tcp").read_text()


def _diagnosed(local_port: int, remote_port: int) -> tuple[int, str]:
    """The state and inode of a socket; state 0: there is none. Remote port 0: the listener."""
    here = socket.inet_aton("127.0.0.1").ljust(16, b"\0")
    there = here if remote_port else bytes(16)
    request = _REQUEST.pack(
        socket.AF_INET, socket.IPPROTO_TCP, 0, 0, _ANY_STATE,
        local_port.to_bytes(2, "big"), remote_port.to_bytes(2, "big"), here, there, 0, _ANY_STATE, _ANY_STATE,
    )  # fmt: skip
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as netlink:
        head = _HEAD.pack(_HEAD.size + len(request), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0)
        netlink.send(head + request)
        answer = netlink.recv(8192)
    if _HEAD.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
        (code,) = struct.unpack_from("=i", answer, _HEAD.size)
        if code != -errno.ENOENT:
            raise OSError(-code, os.strerror(-code))
        return 0, ""
    fields = _ANSWER.unpack_from(answer, _HEAD.size)
    return fields[1], str(fields[-1])


@functools.cache
def _has_sock_diag() -> bool:
    """Whether the kernel finds a socket of this process."""
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        own.listen()
        try:
            return _diagnosed(own.getsockname()[1], 0) == (_LISTEN, str(os.fstat(own.fileno()).st_ino))
        except OSError:
            return False
