"""What goes on until a test is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar


class Runs(Protocol):
    def run(self) -> Coroutine[Any, Any, None]: ...


T = TypeVar("T", bound=Runs)


@asynccontextmanager
async def running(it: T) -> AsyncIterator[T]:
    """`it.run()` goes on within this, and has ended after it."""
    task = asyncio.create_task(it.run())
    try:
        yield it
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
