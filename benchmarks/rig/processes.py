"""Starts, measures and ends processes by their ids, and isolates them in network namespaces."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


@dataclass
class Usage:
    """Resources of a process: CPU seconds since its start, resident bytes now."""

    cpu_s: float
    rss: int


def usage(pid: int) -> Usage:
    """Reads /proc. Raises OSError when the process is gone."""
    stat = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return Usage((int(stat[11]) + int(stat[12])) / _TICKS, int(stat[21]) * _PAGE)


def peak(pid: int) -> int:
    """Return the largest resident set of a process since its start, in bytes. Raises OSError when it is gone."""
    words = Path(f"/proc/{pid}/status").read_text().split()
    return int(words[words.index("VmHWM:") + 1]) << 10


def busy_s() -> float:
    """CPU seconds of all processes of this machine since its start."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _, _, irq, softirq = (int(word) for word in words[:7])
    return (user + nice + system + irq + softirq) / _TICKS


def _end_with_parent() -> None:
    """Lets the kernel kill this process when the thread that started it ends, however that ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Started:
    """A process with its output in a file. The end of the `with` block ends it, and so does a kill of this program."""

    def __init__(
        self, words: list[str], log: Path, env: Mapping[str, str] | None = None, stdin: int = subprocess.DEVNULL
    ) -> None:
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            self.popen = subprocess.Popen(
                words, stdin=stdin, stdout=out, stderr=out, env={**os.environ, **(env or {})}, start_new_session=True,
                preexec_fn=_end_with_parent,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self.popen.pid

    def tail(self, size: int = 2000) -> str:
        return self.log.read_text(errors="replace")[-size:]

    def stop(self, grace_s: float = 10.0) -> None:
        """SIGTERM (also to a stopped process), then SIGKILL after grace_s."""
        if self.popen.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)
        self.popen.terminate()
        try:
            self.popen.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


class NamespaceUnavailable(Exception):
    """This machine cannot isolate processes in a network namespace; the text has the reason."""


@contextlib.contextmanager
def namespace(label: str) -> Iterator[list[str]]:
    """Makes a network namespace with a loopback only, and yields the prefix of commands that run in it.

    Apache RocketMQ's servers listen on all addresses, so they run only in namespaces. Processes that are still in the
    namespace at the end of the `with` block are killed. Raises NamespaceUnavailable.
    """
    if shutil.which("ip") is None:
        raise NamespaceUnavailable("a network namespace needs the command `ip`: install the package iproute2")
    if os.geteuid() != 0:
        raise NamespaceUnavailable("only root may make a network namespace: run it as root")
    name = f"gantry-{label}-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise NamespaceUnavailable(
            "a network namespace cannot be made here; a container needs `--privileged` for it. "
            f"`ip netns add` says: {made.stderr.strip()}"
        )
    prefix = ["ip", "netns", "exec", name]
    try:
        up = subprocess.run([*prefix, "ip", "link", "set", "lo", "up"], capture_output=True, text=True, check=False)
        if up.returncode != 0:
            raise NamespaceUnavailable(
                "no process can run in a network namespace here; below chroot, for instance, none can: run it without. "
                f"`ip netns exec` says: {up.stderr.strip()}"
            )
        yield prefix
    finally:
        _kill_all(name)
        subprocess.run(["ip", "netns", "del", name], check=False)


def _kill_all(name: str) -> None:
    """Kills the processes of a namespace. One of them may have started another before it ended, hence the rounds."""
    for _ in range(50):
        found = subprocess.run(
            ["ip", "netns", "pids", name], capture_output=True, text=True, check=False
        ).stdout.split()
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.05)


def exit_on_sigterm() -> None:
    """Turns SIGTERM and SIGHUP into SystemExit, so that `with` blocks end the processes that they started."""

    def terminate(number: int, frame: object) -> None:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, terminate)
    signal.signal(signal.SIGHUP, terminate)


def error_line(text: str) -> str:
    """Returns the first line of a program's output that names an error, or else the last one, for a message."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if "err" in line.lower()), lines[-1] if lines else "nothing")[:400]


def own_ports(first: int, last: int) -> range:
    """Returns the part of `range(first, last)` that only this process takes, if it is one of pytest's workers."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return range(first + worker, last, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


PORTS = own_ports(4_000, 8_000)
"""Below those that the system gives to connecting clients, which could take a port before a server binds it."""
_given: set[int] = set()


def free_port() -> int:
    """Returns a port of 127.0.0.1 that is free and that this process did not get before."""
    while True:
        port = random.SystemRandom().choice(PORTS)
        if port in _given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given.add(port)
        return port


def until(what: str, check: Callable[[], bool], timeout_s: float, alive: list[Started] | None = None) -> None:
    """Polls until check() is true. Raises TimeoutError, or RuntimeError when one of the processes has ended."""
    deadline = time.monotonic() + timeout_s
    while True:
        if check():
            return
        for process in alive or []:
            if process.popen.poll() is not None:
                raise RuntimeError(f"{what}: {process.popen.args!r} ended with {process.popen.returncode}: "
                                   f"{process.tail()}")  # fmt: skip
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s} s. " + "\n".join(p.tail() for p in alive or []))
        time.sleep(0.05)
