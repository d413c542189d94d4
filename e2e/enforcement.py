"""kube-router's firewall on each node of the local Kubernetes, whose own network plug-in enforces no NetworkPolicy."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from kube import ROOT, CommandFailed, run
from rig import golang

SOURCES = ROOT / "e2e" / "kube_router"
PACKAGE = "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"
COMMANDS = {"iptables": "iptables", "ipset": "ipset", "nsenter": "util-linux", "setpriv": "util-linux"}
"""By command: its package of Debian."""
CHAIN = re.compile(r"^:(KUBE-(?:ROUTER|POD-FW|NWPLCY)-\S+)", re.MULTILINE)
JUMP = re.compile(r"^-A ((?:INPUT|FORWARD|OUTPUT) .*-j KUBE-ROUTER-\S+)$", re.MULTILINE)
SETS = ("KUBE-SRC-", "KUBE-DST-")
"""Prefixes of its address sets."""
STOP_S = 10.0
SETS_S = 5.0
"""The kernel releases a set some time after the last rule that names it."""


class CannotEnforce(Exception):
    """This machine cannot run kube-router; the text has the reason and the remedy."""


def build() -> Path:
    """Returns the program, and builds it once. Raises CannotEnforce."""
    try:
        return golang.build(SOURCES, PACKAGE, "kube-router")
    except golang.GoMissing as error:
        raise CannotEnforce(
            f"kube-router, which enforces NetworkPolicies, is built from its sources: {error}"
        ) from None


@contextlib.contextmanager
def kube_router(nodes: Sequence[str]) -> Iterator[None]:
    """NetworkPolicies are enforced on these nodes. Afterwards neither its processes nor its rules are left. Raises
    CannotEnforce.
    """
    missing = {package for command, package in COMMANDS.items() if shutil.which(command) is None}
    if missing:
        raise CannotEnforce(f"kube-router needs these packages: apt-get install {' '.join(sorted(missing))}")
    program = build()
    with contextlib.ExitStack() as stack:
        for node in nodes:
            _clear(node)  # Of a run that was killed.
            stack.callback(_clear, node)
        stack.enter_context(_running(program, nodes))
        yield


@contextlib.contextmanager
def _running(program: Path, nodes: Sequence[str]) -> Iterator[None]:
    """One process on each node, which ends with this one."""
    started = []
    try:
        for node in nodes:
            command = [
                "setpriv", "--pdeathsig", "KILL", *_inside(node), str(program), "--run-router=false",
                "--run-service-proxy=false", "--run-firewall=true", "--health-port=0",
                f"--kubeconfig={os.environ['KUBECONFIG']}", f"--hostname-override={node}",
            ]  # fmt: skip
            with (ROOT / "build" / f"e2e-kube-router-{node}.log").open("w") as log:
                started.append(
                    subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
                )
        yield
    finally:
        for process in started:
            process.terminate()
        for process in started:
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _inside(node: str) -> list[str]:
    """The beginning of a command that runs in the network of a node."""
    return ["nsenter", f"--net=/run/netns/kube-{node}"]


def _clear(node: str) -> None:
    """Removes its rules and sets. `kube-router --cleanup-config` of this version ends in a panic and leaves both."""
    rules = run(*_inside(node), "iptables-save", "-t", "filter")
    chains = CHAIN.findall(rules)
    changes = [f"-D {jump}" for jump in JUMP.findall(rules)] + [f"-{how} {chain}" for how in "FX" for chain in chains]
    text = "\n".join(["*filter", *changes, "COMMIT", ""])
    run(*_inside(node), "iptables-restore", "--noflush", stdin=text)
    names = [name for name in run(*_inside(node), "ipset", "list", "-n").split() if name.startswith(SETS)]
    deadline = time.monotonic() + SETS_S
    while names:
        try:
            run(*_inside(node), "ipset", "destroy", names[-1])
            names.pop()
        except CommandFailed:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
