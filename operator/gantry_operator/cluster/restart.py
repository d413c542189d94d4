"""A failover controller that ends must not stay ended, and must not end unnoticed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from gantry_operator.cluster.group_controller import GroupController
from gantry_operator.platforms.base import Event

log = logging.getLogger(__name__)

AGAIN_S = 0.5


async def run_with_restarts(
    controller: GroupController,
    make: Callable[[], GroupController],
    report: Callable[[Event], None],
    again_s: float = AGAIN_S,
) -> None:
    """Run `controller`, and another in its place when it ends, for ever: cancel this to end it.

    A controller never ends by itself. If it does, that is a fault which is reported, and the next one starts from the
    registry and from what the members say, with nothing of what the one that failed had in its memory.
    """
    while True:
        try:
            await controller.run()
            why = "it ended"
        except Exception as error:
            log.exception("failover controller of %s", controller.group)
            why = f"{type(error).__name__}: {error}"
        try:
            report(Event("Warning", "GroupControllerFailed", f"{why}; it is started again", controller.group))
        except Exception:
            log.exception("the fault of the failover controller of %s could not be reported", controller.group)
        await asyncio.sleep(again_s)
        controller = make()
