"""Waits for a time of day. The sleeps of an event loop go by another clock, which stops while the machine sleeps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from gantry_broker.tasks import set_within

LOOK_S: Final = 5.0
"""Seconds between two looks at the wall clock: it may be set, or have gone on without this process."""


async def wait(
    pause_s: float, is_due: Callable[[], bool], event: asyncio.Event | None = None, *, look_s: float = LOOK_S
) -> bool:
    """Wait until `event` is set, the pause is over, or a look at the wall clock says that it is due.

    Returns whether the event was set.
    """
    loop = asyncio.get_running_loop()
    ends = loop.time() + pause_s
    waited_for = asyncio.Event() if event is None else event
    while True:
        left = ends - loop.time()
        if await set_within(waited_for, min(max(left, 0.0), look_s)):
            return True
        if left <= look_s or is_due():
            return False
