"""Keeps the times at which the conditions of a local cluster change. Commands compute a status, and look only now and
then; the supervisor looks when something happens.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from gantry_broker.tasks import set_within

from gantry_operator.api.status import BrokerClusterStatus

log = logging.getLogger(__name__)

WELL_S: Final = 60.0
"""Seconds between two looks at a cluster that is ready. What changes without an event is dated with this error."""
UNWELL_S: Final = 5.0
SETTLE_S: Final = 0.5
"""Seconds from news to the look: a failover has the processors first, and news come in bursts."""


class ConditionTimes:
    """Looks at the status after news, and now and then. Each look keeps the times of the conditions."""

    def __init__(self, look: Callable[[], Awaitable[BrokerClusterStatus]]) -> None:
        self._look = look
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Look soon: something has happened."""
        self._wake.set()

    async def run(self) -> None:
        """Never returns."""
        while True:
            self._wake.clear()
            status = await self.look()
            if await set_within(self._wake, UNWELL_S if status is None else pause_s(status)):
                await asyncio.sleep(SETTLE_S)

    async def look(self) -> BrokerClusterStatus | None:
        """Look now. None: the status cannot be told."""
        try:
            return await self._look()
        except (OSError, LookupError, ValueError) as error:
            log.warning("the times of the conditions are not kept: %s", error)
            return None


def pause_s(status: BrokerClusterStatus) -> float:
    """Return the seconds until the next look without news. Pure."""
    settled = {c.type: c.status for c in status.conditions}
    return WELL_S if (settled.get("Ready"), settled.get("Progressing")) == ("True", "False") else UNWELL_S
