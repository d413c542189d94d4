"""Random loss of packets by the kernel, in a network namespace of the run.

It needs root, `unshare`, `ip`, and an iptables whose kernel can match at random. All processes of the run are in that
network, and it disappears with the last of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache

_OWN = "GANTRY_CHAOS_OWN_NETWORK"
_TOOLS = {"unshare": "util-linux", "ip": "iproute2", "iptables": "iptables"}
"""Commands that it needs, and the packages that have them."""
_UP = 'ip link set lo up && exec "$@"'


def is_own() -> bool:
    """Whether this process is in a network that `enter` made."""
    return _OWN in os.environ


@cache
def why_not() -> str:
    """Why this program cannot have a network of its own in which packets are lost; empty: it can."""
    if sys.platform != "linux":
        return "packets are lost by Linux' firewall: run it on Linux"
    if os.geteuid() != 0:
        return "only root may make a network in which packets are lost: run it as root"
    missing = [package for command, package in _TOOLS.items() if shutil.which(command) is None]
    if missing:
        return f"packets are lost by iptables in a network of one's own: install {' and '.join(missing)}"
    tried = subprocess.run(_inside(_rule("-A", 0.5)), capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        return (
            "iptables cannot lose packets here: it needs a container with --privileged and the kernel's module "
            f"xt_statistic; it says: {tried.stderr.strip()[-200:]}"
        )
    return ""


def enter() -> None:
    """Run this program again in a network of its own; does not return."""
    words = _inside([sys.executable, *sys.orig_argv[1:]])
    os.execvpe(words[0], words, os.environ | {_OWN: "1"})


class Losses:
    """The loss of packets, for any receiver."""

    def __init__(self) -> None:
        self._share = 0.0

    def lose(self, share: float) -> None:
        """Raises ValueError in the network of the machine: its firewall stays unchanged."""
        if not is_own():
            raise ValueError(
                "packets are lost only in a network of one's own: start it with root by `python -m tests.chaos.run`"
            )
        self.end()
        subprocess.run(_rule("-A", share), check=True, capture_output=True)
        self._share = share

    def end(self) -> int | None:
        """Return the number of lost packets; None: no loss was active."""
        if not self._share:
            return None
        shown = subprocess.run(["iptables", "-w", "-nvxL", "INPUT"], check=True, capture_output=True, text=True).stdout
        subprocess.run(_rule("-D", self._share), check=True, capture_output=True)
        self._share = 0.0
        return sum(int(line.split()[0]) for line in shown.splitlines() if " DROP " in line)


def _inside(words: list[str]) -> list[str]:
    return ["unshare", "--net", "sh", "-c", _UP, "sh", *words]


def _rule(verb: str, share: float) -> list[str]:
    match = ["-m", "statistic", "--mode", "random", "--probability", f"{share:.4f}"]
    return ["iptables", "-w", verb, "INPUT", *match, "-j", "DROP"]
