"""Partitions: isolates one member of a group within a network namespace, without a reset of any connection.

Each member's process has its own Unix group. iptables drops the packets that processes of that group send, and the
packets to the member's own ports.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence

from .processes import NamespaceUnavailable

FIRST_GID = 23_000
"""The Unix group of the first member's process; the others follow."""
TOOLS = {"ip": "iproute2", "iptables": "iptables", "setpriv": "util-linux"}
"""Commands that a group in a network namespace and its partitions need, and the packages that have them."""


def require_tools(commands: Iterable[str] = tuple(TOOLS)) -> None:
    """Raises NamespaceUnavailable when one of these commands of TOOLS is missing, or when this is not root."""
    missing = [command for command in commands if shutil.which(command) is None]
    if missing:
        packages = " ".join(sorted({TOOLS[command] for command in missing}))
        raise NamespaceUnavailable(
            f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} missing: "
            f"install with `apt-get install {packages}`"
        )
    if os.geteuid() != 0:
        raise NamespaceUnavailable("only root may make a network namespace: run it as root")


def as_member(number: int) -> list[str]:
    """Returns the prefix of a command whose process shall belong to member `number`."""
    return ["setpriv", "--regid", str(FIRST_GID + number), "--clear-groups", "--pdeathsig", "KILL"]


def isolate(prefix: list[str], number: int, ports: Sequence[int]) -> None:
    """Drops all packets from member `number` and to these ports of it."""
    _iptables(prefix, "-A", "OUTPUT", "-m", "owner", "--gid-owner", str(FIRST_GID + number), "-j", "DROP")
    for port in ports:
        _iptables(prefix, "-A", "INPUT", "-p", "tcp", "--dport", str(port), "-j", "DROP")


def heal(prefix: list[str]) -> None:
    """Ends all partitions in the namespace."""
    _iptables(prefix, "-F")


def _iptables(prefix: list[str], *words: str) -> None:
    if not prefix:
        raise ValueError("a partition needs a network namespace, because it must not change this machine's firewall")
    subprocess.run([*prefix, "iptables", "-w", *words], check=True, capture_output=True)
