"""Calls in threads that the process does not wait for when it ends: an object store may take minutes to answer."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_background(call: Callable[[], T]) -> Future[T]:
    """Start a call; the future has what it returns or raises."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            result = call()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(result)

    threading.Thread(target=run, name="archive", daemon=True).start()
    return done


async def in_daemon_thread(call: Callable[[], T]) -> T:
    """Return what the call returns, or raise what it raises. Cancelling leaves the thread to itself."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, failed = None, None
        try:
            result = call()
        except BaseException as error:
            failed = error
        with contextlib.suppress(RuntimeError):  # The loop is closed.
            loop.call_soon_threadsafe(settle, result, failed)

    threading.Thread(target=run, name="archive", daemon=True).start()
    return await done
