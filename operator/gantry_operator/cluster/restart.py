"""A failover loop that ends must not stay ended, and must not end unnoticed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from gantry_operator.cluster.group_controller import GroupWatch
from gantry_operator.platforms.base import Event

log = logging.getLogger(__name__)

AGAIN_S = 0.5


async def keep_running(
    loop: GroupWatch, make: Callable[[], GroupWatch], report: Callable[[Event], None], again_s: float = AGAIN_S
) -> None:
    """Run `loop`, and another in its place when it ends, for ever: cancel this to end it.

    A loop never ends by itself. If it does, that is a fault which is reported, and the next one starts from the
    registry and from what the members say, with nothing of what the one that failed had in its memory.
    """
    while True:
        try:
            await loop.run()
            why = "it ended"
        except Exception as error:
            log.exception("failover loop of %s", loop.group)
            why = f"{type(error).__name__}: {error}"
        try:
            report(Event("Warning", "FailoverLoopFailed", f"{why}; it is started again", loop.group))
        except Exception:
            log.exception("the fault of the failover loop of %s could not be reported", loop.group)
        await asyncio.sleep(again_s)
        loop = make()
