"""Processes that are started, measured and ended by their own number, and network namespaces for those that listen on
all addresses."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Usage:
    """What a process used: CPU seconds since it started, resident bytes now."""

    cpu_s: float
    rss: int


def usage(pid: int) -> Usage:
    """Reads /proc. Raises OSError when the process is gone."""
    stat = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return Usage((int(stat[11]) + int(stat[12])) / _TICKS, int(stat[21]) * _PAGE)


class Started:
    """A process with its output in a file. It is ended at the latest when the `with` block ends."""

    def __init__(
        self, words: list[str], log: Path, env: Mapping[str, str] | None = None, stdin: int = subprocess.DEVNULL
    ) -> None:
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            self.popen = subprocess.Popen(
                words, stdin=stdin, stdout=out, stderr=out, env={**os.environ, **(env or {})}, start_new_session=True
            )

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
    """Network namespaces cannot be made here; the text says why."""


@contextlib.contextmanager
def namespace(label: str) -> Iterator[list[str]]:
    """A network namespace with nothing but a loopback; yields the words to put before a command that runs in it.

    Apache RocketMQ's servers listen on all addresses and cannot be told otherwise, so they only ever run in here.
    """
    if shutil.which("ip") is None or os.geteuid() != 0:
        raise NamespaceUnavailable("a network namespace needs root and the `ip` command (package iproute2)")
    name = f"gantry-{label}-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise NamespaceUnavailable(f"`ip netns add` says: {made.stderr.strip()}")
    prefix = ["ip", "netns", "exec", name]
    try:
        subprocess.run([*prefix, "ip", "link", "set", "lo", "up"], check=True)
        yield prefix
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False)


def free_port() -> int:
    """A port of 127.0.0.1 that is free now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def until(what: str, check: Callable[[], bool], timeout_s: float, alive: list[Started] | None = None) -> None:
    """Polls until check() holds. Raises TimeoutError, or RuntimeError when one of the processes ended meanwhile."""
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
