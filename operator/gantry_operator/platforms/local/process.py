"""Processes that outlive their parent: start, recognise, watch, end.

A process is identified by its pid and its start time, because a pid may be reused.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from gantry_operator.platforms.local.folder import read_json
from gantry_operator.registry.file import write_whole

POLL_S = 0.2
"""Seconds between checks for an exit on a system without pidfd."""


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """The record of a running process. `config`: digest of the config at its start."""

    name: str
    pid: int
    started: str
    config: str


def start_mark(pid: int) -> str | None:
    """Return a mark of this process that a later one with the same pid lacks; None: no such process runs (or only a
    zombie).
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
        return _start_mark_by_ps(pid)
    except (ProcessLookupError, PermissionError):
        return None
    fields = stat.rpartition(")")[2].split()
    if fields[0] in ("Z", "X"):
        return None
    with suppress(OSError):
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}/{fields[19]}"
    return fields[19]


def is_stopped(pid: int) -> bool:
    """Whether a signal such as SIGSTOP holds a process; False also where the system does not report it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] in ("T", "t")


def _start_mark_by_ps(pid: int) -> str | None:
    done = subprocess.run(["ps", "-o", "state=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, started = done.stdout.strip().partition(" ")
    return started.strip() if done.returncode == 0 and started and not state.startswith("Z") else None


def alive(record: ProcessRecord) -> bool:
    return start_mark(record.pid) == record.started


def listens(pid: int, port: int) -> bool | None:
    """Whether a process listens on a TCP port; None if the system does not report it."""
    sockets = set()
    try:
        for table in ("tcp", "tcp6"):
            path = Path(f"/proc/{pid}/net/{table}")
            for line in path.read_text().splitlines()[1:] if path.exists() else ():
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                    sockets.add(f"socket:[{fields[9]}]")
        held = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return None
    for path in held:
        with suppress(OSError):
            if os.readlink(path) in sockets:
                return True
    return False


def load_record(path: Path) -> ProcessRecord | None:
    """Return the recorded process, if it still runs."""
    saved = read_json(path)
    try:
        record = ProcessRecord(**saved)
        return record if alive(record) else None
    except (TypeError, ValueError):
        return None


def started_with(configs: Path, modules: Collection[str]) -> Iterator[ProcessRecord]:
    """Yield processes that run one of these modules with a config of that folder, with or without a record.

    Their config digest is empty. Returns none if the system does not list processes. Every process is started with an
    absolute path in the folder above. A process elsewhere, in a container for example, may use the same path for
    another folder.
    """
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = os.fsdecode(path.read_bytes()).split("\0")
            pid = int(path.parent.name)
            config = next((Path(w) for w in words if w.endswith(".json")), None)
            if config is None or pid == os.getpid() or not set(modules).intersection(words):
                continue
            named = config.is_absolute() and config.parent.resolve() == configs.resolve()
            mark = start_mark(pid) if named and (path.parent / "cwd").samefile(configs.parent) else None
        except (OSError, ValueError):
            continue
        if mark is not None:
            yield ProcessRecord(config.stem, pid, mark, "")


def start(name: str, argv: Sequence[str], *, config: str, log: Path, cwd: Path) -> ProcessRecord:
    """Start it in its own session, so that neither a closed terminal nor Ctrl-C reaches it. Raises OSError if it
    does not run. The caller writes the record.
    """
    with open(log, "ab") as out:
        child = subprocess.Popen(
            list(argv), stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=cwd, start_new_session=True
        )
    _children[child.pid] = child
    try:
        started = start_mark(child.pid)
    except OSError:
        child.kill()  # Without a start time it could not be recognised later.
        child.wait()
        raise
    return ProcessRecord(name, child.pid, started or "gone", config)


def save_record(path: Path, record: ProcessRecord) -> None:
    """Write the record of a process. Raises OSError."""
    write_whole(path, json.dumps(asdict(record)))


_children: dict[int, subprocess.Popen[bytes]] = {}
"""Child processes of this program, which must be waited for when they end."""


def reap(pid: int) -> int | None:
    """Return the exit status of a child that ended; None for other processes."""
    child = _children.get(pid)
    if child is None:
        return None
    status = child.poll()
    if status is not None:
        del _children[pid]
    return status


def send(record: ProcessRecord, number: int) -> bool:
    """Send a signal if the pid is still the same process."""
    if not alive(record):
        return False
    with suppress(ProcessLookupError):
        os.kill(record.pid, number)
        return True
    return False


def end(records: Sequence[ProcessRecord], patience_s: float) -> list[str]:
    """End all processes, cleanly if that works within `patience_s` seconds. Returns the names of those that were
    killed.
    """
    for record in records:
        if send(record, signal.SIGTERM):
            # A frozen process would never handle the signal.
            send(record, signal.SIGCONT)
    deadline = time.monotonic() + patience_s
    left = list(records)
    while left and time.monotonic() < deadline:
        left = [r for r in left if _runs(r)]
        if left:
            time.sleep(0.02)
    for record in left:
        send(record, signal.SIGKILL)
    while any(_runs(r) for r in left):
        time.sleep(0.02)
    return [r.name for r in left]


def _runs(record: ProcessRecord) -> bool:
    reap(record.pid)
    return alive(record)


class ExitWatch:
    """Calls back once when a process ends, whether it is a child or not."""

    def __init__(self, record: ProcessRecord, on_exit: Callable[[], None]) -> None:
        self._record = record
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        self._fd: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        try:
            self._fd = os.pidfd_open(record.pid)
        except ProcessLookupError:
            self._loop.call_soon(self._ended)
            return
        except (OSError, AttributeError):
            self._poll()
            return
        if not alive(record):
            self._loop.call_soon(self._ended)
        self._loop.add_reader(self._fd, self._ended)

    def close(self) -> None:
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _poll(self) -> None:
        reap(self._record.pid)
        if alive(self._record):
            self._timer = self._loop.call_later(POLL_S, self._poll)
        else:
            self._loop.call_soon(self._ended)

    def _ended(self) -> None:
        on_exit, self._on_exit = self._on_exit, lambda: None
        self.close()
        on_exit()
