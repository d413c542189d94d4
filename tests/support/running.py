"""Background work for the duration of a test, and a wait for its effects."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

from tests.support.patience import SLOW


class Runs(Protocol):
    def run(self) -> Coroutine[Any, Any, None]: ...


T = TypeVar("T", bound=Runs)


@asynccontextmanager
async def running(it: T, *others: Runs) -> AsyncIterator[T]:
    """Their `run()` run within this, and have ended after it."""
    tasks = [asyncio.create_task(one.run()) for one in (it, *others)]
    try:
        yield it
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(condition: Callable[[], Any], what: str = "", timeout_s: float = 20.0) -> float:
    """Seconds until the condition holds; raises AssertionError after `SLOW` times the limit, with `what`."""
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() < begun + SLOW * timeout_s, f"not within {SLOW * timeout_s:g} s: {what}"
        await asyncio.sleep(0.01)
    return time.monotonic() - begun
