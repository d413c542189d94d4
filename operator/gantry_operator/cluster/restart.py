"""Restarts what ends by an error: failover controllers, and the other parts of a control."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from gantry_operator.cluster.group_controller import GroupController
from gantry_operator.cluster.platform import Event

log = logging.getLogger(__name__)

AGAIN_S = 0.5
PART_AGAIN_S = 2.0
"""Seconds before a part that failed is started again."""


async def run_with_restarts(
    controller: GroupController,
    make: Callable[[], GroupController],
    report: Callable[[Event], None],
    again_s: float = AGAIN_S,
) -> None:
    """Run `controller`, and another one whenever it ends. Never returns; cancel it.

    A controller never ends by itself, so an end is a programming error and is reported. The next one starts from the
    registry and the members' reports.
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


async def kept_alive(name: str, run: Callable[[], Coroutine[Any, Any, None]], report: Callable[[Event], None]) -> None:
    """Run a part of a control. A part that fails is reported and restarted. Never returns; cancel it."""
    while True:
        try:
            await run()
        except Exception as error:
            log.exception("%s", name)
            try:
                report(Event("Warning", "ReconcileError", f"{name} failed and is restarted: {error!r}", ""))
            except Exception:
                log.exception("the fault of %s could not be reported", name)
        await asyncio.sleep(PART_AGAIN_S)
