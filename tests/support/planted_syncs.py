"""Faults of an fdatasync, in both ways that the broker has: a call in a thread, and a request to the kernel.

The kernel carries out each request. Only the report of its end is late, or another one.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.support.failing_calls import raising

if TYPE_CHECKING:
    from gantry_broker.store.async_sync import AsyncSync

SetAttribute = Callable[[Any, str, Any], None]
"""`setattr`, or that of a `MonkeyPatch`."""
Report = Callable[[int], None]
"""Reports a result: 0, or an error's negative number."""


def plant_fdatasync(
    set_attribute: SetAttribute,
    begun: Callable[[int], Callable[[int], int]],
    delay_s: Callable[[], float] = lambda: 0.0,
) -> None:
    """Plant a fault in both ways. `begun` gets the descriptor; what it returns gets the result and returns the one to
    report, `delay_s()` seconds later.
    """
    real, sleep = os.fdatasync, time.sleep

    def fdatasync(fd: int) -> None:
        ended = begun(fd)
        try:
            real(fd)
        except OSError as error:
            result = -(error.errno or errno.EIO)
        else:
            result = 0
        sleep(delay_s())
        if (result := ended(result)) < 0:
            raise OSError(-result, os.strerror(-result))

    def begun_in_kernel(fd: int) -> Callable[[int, Report], None]:
        ended = begun(fd)

        def in_time(result: int, report: Report) -> None:
            if (seconds := delay_s()) > 0:
                asyncio.get_running_loop().call_later(seconds, late, result, report)
            else:
                late(result, report)

        def late(result: int, report: Report) -> None:
            report(ended(result))

        return in_time

    set_attribute(os, "fdatasync", fdatasync)
    plant_async_sync(set_attribute, begun_in_kernel)


def plant_async_sync(set_attribute: SetAttribute, begun: Callable[[int], Callable[[int, Report], None]]) -> None:
    """Plant a fault in the kernel's way. `begun` gets the descriptor of each request that the kernel has taken. What it
    returns gets the kernel's result in the event loop, and the function that reports one.
    """
    # Here: a caller may have to replace functions of `os` before it imports the broker.
    from gantry_broker.store.async_sync import AsyncSync

    begin, report = AsyncSync.begin, AsyncSync._report
    under_way: dict[AsyncSync, Callable[[int, Report], None]] = {}

    def planted_begin(sync: AsyncSync, fd: int) -> bool:
        if not begin(sync, fd):
            return False
        under_way[sync] = begun(fd)
        return True

    def planted_report(sync: AsyncSync, result: int) -> None:
        ended = under_way.pop(sync, None)
        if ended is None:
            report(sync, result)
        else:
            ended(result, partial(report, sync))

    set_attribute(AsyncSync, "begin", planted_begin)
    set_attribute(AsyncSync, "_report", planted_report)


def let_a_thread_flush(set_attribute: SetAttribute) -> None:
    """As where the kernel does not offer an fdatasync in the background."""
    from gantry_broker.store.async_sync import AsyncSync

    set_attribute(AsyncSync, "__init__", raising(OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))))
