"""`gantry self-test`: what this machine can do for a cluster, with a verdict in words. Judging is pure."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import shutil
import socket
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

from gantry_operator.cli.errors import CliError, Exit
from gantry_operator.cli.output import note, print_json, print_table

FSYNCS: Final = 200
RECORD: Final = 4_096
"""Bytes before each fsync."""
STREAM: Final = 64 * 1024 * 1024
"""Bytes that measure the throughput."""
CHUNK: Final = 1024 * 1024
PORTS: Final = (9876, 9877, 10911, 8081)
"""Those of the quickstart: `gantry up` takes others where they are taken."""
TIME_ERROR: Final = 5
"""As in timex.h: the clock is not synchronized."""
Level = Literal["good", "fair", "bad", "unknown"]


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures of a machine. Times in milliseconds, sizes in bytes; None: it could not be measured."""

    fsync_ms: Sequence[float]
    write_bytes_s: float
    free_bytes: int
    clock_synchronized: bool | None
    taken_ports: Sequence[int]
    files: int
    """The limit of open files that a process may raise itself to."""
    memory: int
    processors: int


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the verdict."""

    subject: str
    level: Level
    figure: str
    words: str


def judge(m: Measured) -> list[Finding]:
    """Return the verdict of each subject."""
    return [_fsync(m), _stream(m), _room(m), _clock(m), _ports(m), _files(m), _memory(m)]


def _fsync(m: Measured) -> Finding:
    ordered = sorted(m.fsync_ms)
    middle, late = ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    figure = f"{middle:.2f} ms, 99 % within {late:.2f} ms"
    if late <= 5:
        return Finding("fsync", "good", figure, "flush: Sync and mode Raft cost little: each batch waits for one fsync")
    if late <= 50:
        return Finding("fsync", "fair", figure, "flush: Async does not notice; with Sync or Raft sends wait this long")
    return Finding(
        "fsync", "bad", figure, "too slow for flush: Sync and for mode Raft: use another disk, or flush: Async"
    )


def _stream(m: Measured) -> Finding:
    rate = m.write_bytes_s / 1e6
    level: Level = "good" if rate >= 100 else "fair" if rate >= 20 else "bad"
    words = {
        "good": "enough for what one broker takes",
        "fair": "a broker is limited by this disk",
        "bad": "a follower that starts new needs long to catch up",
    }[level]
    return Finding("throughput", level, f"{rate:,.0f} MB/s", words)


def _room(m: Measured) -> Finding:
    free = m.free_bytes / 1e9
    if free >= 20:
        return Finding("room", "good", f"{free:,.0f} GB free", "a log grows until its retention, 72 hours by default")
    if free >= 5:
        return Finding("room", "fair", f"{free:,.1f} GB free", "set a retention by size: files are 1 GiB each")
    return Finding("room", "bad", f"{free:,.1f} GB free", "each broker needs a log file of 1 GiB: free some room")


def _clock(m: Measured) -> Finding:
    if m.clock_synchronized is None:
        return Finding("clock", "unknown", "", "the kernel does not say whether it is synchronized")
    if m.clock_synchronized:
        return Finding("clock", "good", "synchronized", "times of messages agree between machines")
    return Finding(
        "clock", "fair", "not synchronized", "no message is lost by it, but delays and searches by time use it: run NTP"
    )


def _ports(m: Measured) -> Finding:
    if not m.taken_ports:
        return Finding("ports", "good", "all free", "gantry up takes the usual ones")
    taken = ", ".join(map(str, m.taken_ports))
    return Finding("ports", "fair", f"{taken} taken", "gantry up takes others and prints them")


def _files(m: Measured) -> Finding:
    if m.files >= 65_536:
        return Finding("open files", "good", f"{m.files:,}", "enough for 10,000 connections")
    if m.files >= 4_096:
        return Finding(
            "open files", "fair", f"{m.files:,}", "a broker takes fewer connections: ulimit -n 65536 or more"
        )
    return Finding("open files", "bad", f"{m.files:,}", "too few for a broker under load: ulimit -n 65536 or more")


def _memory(m: Measured) -> Finding:
    figure = f"{m.memory / 1e9:,.1f} GB, {m.processors} processors"
    if m.memory >= 4e9 and m.processors >= 2:
        return Finding("machine", "good", figure, "enough for the quickstart of six processes")
    return Finding("machine", "fair", figure, "enough to try it; give a broker under load 2 processors and 4 GB")


def verdict(findings: Sequence[Finding]) -> str:
    """One sentence about all of them."""
    bad = [f.subject for f in findings if f.level == "bad"]
    fair = [f.subject for f in findings if f.level == "fair"]
    if bad:
        return f"not fit for a cluster under load: {', '.join(bad)}"
    return f"fit, with limits: {', '.join(fair)}" if fair else "fit for a cluster"


def measure(folder: Path) -> Measured:
    """Measure this machine, with a file in the folder that is removed. Raises CliError."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".gantry-self-test-") as file:
            descriptor = file.fileno()
            return Measured(
                _fsyncs(descriptor), _streamed(descriptor), shutil.disk_usage(folder).free, _synchronized(),
                [port for port in PORTS if not _free(port)], _descriptors(),
                os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), os.cpu_count() or 1,
            )  # fmt: skip
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise CliError(f"{folder} has no room for a file of {STREAM >> 20} MiB") from None
        raise CliError(
            f"{folder} cannot be written: {error.strerror}; --dir chooses another folder", Exit.USAGE
        ) from None


def _fsyncs(descriptor: int) -> list[float]:
    took = []
    for number in range(FSYNCS):
        os.pwrite(descriptor, os.urandom(RECORD), number * RECORD)
        began = time.perf_counter()
        os.fdatasync(descriptor)
        took.append((time.perf_counter() - began) * 1000)
    return took


def _streamed(descriptor: int) -> float:
    chunk = os.urandom(CHUNK)
    began = time.perf_counter()
    for at in range(0, STREAM, CHUNK):
        os.pwrite(descriptor, chunk, at)
    os.fdatasync(descriptor)
    return STREAM / max(time.perf_counter() - began, 1e-9)


def _synchronized() -> bool | None:
    """By adjtimex(2), which only reads with a mode of 0."""
    try:
        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return None
    state = adjtimex(ctypes.create_string_buffer(512))
    return None if state < 0 else state != TIME_ERROR


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _descriptors() -> int:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return 1_048_576 if hard == resource.RLIM_INFINITY else hard


def run(folder: Path, as_json: bool) -> None:
    """Measure and print. Raises CliError where the machine is not fit."""
    findings = judge(measure(folder))
    summary = verdict(findings)
    if as_json:
        print_json({"folder": str(folder), "verdict": summary, "findings": [asdict(f) for f in findings]})
    else:
        print_table(
            ("SUBJECT", "VERDICT", "MEASURED", "MEANING"), [(f.subject, f.level, f.figure, f.words) for f in findings]
        )
        note(f"{folder}: {summary}")
    if any(f.level == "bad" for f in findings):
        raise CliError(summary)
