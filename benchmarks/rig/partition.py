"""A member of a group is cut off from everybody, silently, in a network namespace of which it is a part.

Each process belongs to a Unix group of its own. What processes of that group send is dropped, and so is what comes to
the ports that are theirs alone: nobody is refused, nothing is reset, and nothing arrives.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

FIRST_GID = 23_000
"""The group of the first member's process; the others follow."""


def as_member(number: int) -> list[str]:
    """Words before the command of a process that is to belong to member `number`."""
    return ["setpriv", "--regid", str(FIRST_GID + number), "--clear-groups"]


def isolate(prefix: list[str], number: int, ports: Sequence[int]) -> None:
    """From now on nothing comes from member `number`, nor to these ports of it."""
    _iptables(prefix, "-A", "OUTPUT", "-m", "owner", "--gid-owner", str(FIRST_GID + number), "-j", "DROP")
    for port in ports:
        _iptables(prefix, "-A", "INPUT", "-p", "tcp", "--dport", str(port), "-j", "DROP")


def heal(prefix: list[str]) -> None:
    """Everybody reaches everybody again."""
    _iptables(prefix, "-F")


def _iptables(prefix: list[str], *words: str) -> None:
    if not prefix:
        raise ValueError("a partition needs a network namespace: the firewall of this machine is left alone")
    subprocess.run([*prefix, "iptables", "-w", *words], check=True, capture_output=True)
