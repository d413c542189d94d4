"""Large tables are built in a thread, beside the event loop.

The thread gives the interpreter up every few milliseconds, except in one long call and in a collection of garbage. A
table of 20,000 rules makes so many objects that several full collections would follow, each of about 0.1 s.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def beside_loop(build: Callable[[], T]) -> T:
    """Return what `build` returns."""
    return await asyncio.to_thread(_without_collections, build)


def _without_collections(build: Callable[[], T]) -> T:
    enabled = gc.isenabled()
    gc.disable()
    try:
        return build()
    finally:
        if enabled:
            gc.enable()
