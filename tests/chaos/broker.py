"""A real broker whose clock and disk can fail: `python -m tests.chaos.broker --config FILE`.

The file `faults/NAME.json` in the cluster's folder describes the faults. The process reads it again and again:

    clock_s   added to the time of day
    sync_s    seconds added to every fsync
    write_s   seconds added to every write; the whole process waits, as for a full device queue
    fails     the share of the store's system calls that fail, with one of `errors` (numbers of `errno`)

The broker itself has no such hooks: this module replaces functions of `time` and `os` before it imports the broker,
and then those by which the kernel runs fdatasync in the background.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.failing_calls import ERRORS, fail
from tests.support.planted_syncs import Report, plant_async_sync

LOOK_S = 0.05


class Faults:
    """The present faults."""

    clock_ns = 0
    sync_s = 0.0
    write_s = 0.0
    fails = 0.0
    errors: tuple[int, ...] = ()


def _follow(path: Path, faults: Faults, sleep: Any) -> None:
    while True:
        try:
            said = json.loads(path.read_text())
        except (OSError, ValueError):
            said = {}
        faults.clock_ns = int(said.get("clock_s", 0.0) * 1e9)
        faults.sync_s = float(said.get("sync_s", 0.0))
        faults.write_s = float(said.get("write_s", 0.0))
        faults.errors = tuple(said.get("errors", ()))
        faults.fails = float(said.get("fails", 0.0)) if faults.errors else 0.0
        sleep(LOOK_S)


def _failing(name: str, data: str, faults: Faults, *, like: str = "") -> Callable[..., Any]:
    """`data`: calls that name a file fail below this folder only. `like`: the function whose errors it has."""
    call = getattr(os, name)

    def instead(*args: Any, **more: Any) -> Any:
        if faults.fails and random.random() < faults.fails:
            of_store = isinstance(args[0], int) or os.fspath(args[0]).startswith(data)
            if of_store:
                fail(like or name, random.choice(faults.errors), call, args, partly=random.random() < 0.5)
        return call(*args, **more)

    return instead


def _in_kernel(faults: Faults) -> Callable[[int], Callable[[int, Report], None]]:
    """What the kernel runs in the background: late, or with another result."""

    def begun(fd: int) -> Callable[[int, Report], None]:
        fails = faults.fails and random.random() < faults.fails
        error = random.choice(faults.errors) if fails else 0

        def ended(result: int, report: Report) -> None:
            if error in ERRORS["fdatasync"]:
                result = -error
            if faults.sync_s:
                asyncio.get_running_loop().call_later(faults.sync_s, report, result)
            else:
                report(result)

        return ended

    return begun


def plant(path: Path, data: Path) -> None:
    """Replace the clock and the disk of this process; `data`: the folder of its store."""
    faults = Faults()
    sleep, time_ns = time.sleep, time.time_ns
    fsync, fdatasync, pwrite, pwritev = os.fsync, os.fdatasync, os.pwrite, os.pwritev

    def slow_fsync(fd: int) -> None:
        sleep(faults.sync_s)
        fsync(fd)

    def slow_fdatasync(fd: int) -> None:
        sleep(faults.sync_s)
        fdatasync(fd)

    def slow_pwrite(fd: int, data: Any, offset: int) -> int:
        if faults.write_s:
            sleep(faults.write_s)
        return pwrite(fd, data, offset)

    def slow_pwritev(fd: int, parts: Any, offset: int, flags: int = 0) -> int:
        if faults.write_s:
            sleep(faults.write_s)
        return pwritev(fd, parts, offset, flags)

    time.time_ns = lambda: time_ns() + faults.clock_ns
    time.time = lambda: (time_ns() + faults.clock_ns) / 1e9
    os.fsync, os.fdatasync = slow_fsync, slow_fdatasync  # type: ignore[assignment]
    os.pwrite, os.pwritev = slow_pwrite, slow_pwritev
    for name in ERRORS:
        setattr(os, name, _failing(name, str(data), faults))
    os.preadv = _failing("preadv", str(data), faults, like="pread")  # The archiver's reads.
    plant_async_sync(setattr, _in_kernel(faults))
    threading.Thread(target=_follow, args=(path, faults, sleep), daemon=True).start()


if __name__ == "__main__":
    config = Path(sys.argv[sys.argv.index("--config") + 1])
    folder = config.parent.parent
    plant(folder / "faults" / f"{config.stem}.json", folder / "data")
    from gantry_broker.broker.process import main

    sys.exit(main())
