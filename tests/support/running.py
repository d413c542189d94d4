"""Background work for the duration of a test, and a wait for its effects."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar


class Runs(Protocol):
    def run(self) -> Coroutine[Any, Any, None]: ...


T = TypeVar("T", bound=Runs)


@asynccontextmanager
async def running(it: T) -> AsyncIterator[T]:
    """`it.run()` runs within this, and has ended after it."""
    task = asyncio.create_task(it.run())
    try:
        yield it
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], Any], timeout_s: float = 5.0) -> float:
    """Seconds until the condition holds; raises AssertionError after the limit."""
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() < begun + timeout_s
        await asyncio.sleep(0.01)
    return time.monotonic() - begun
