"""A clock that stops while this program does not run.

On an overloaded machine, or after this process was stopped, all members look silent because their lines are unread in
the sockets. Such time is no evidence of silence, so ages use this clock.
"""

from __future__ import annotations

import asyncio
import time

TICK_S = 0.1
FREE_S = 0.03
"""Seconds by which a tick may be late without a correction."""


class StallCompensatedClock:
    """Seconds in which the event loop ran. Call `start` in the loop and `stop` at the end. Several users can share
    one clock: it runs from the first `start` to the last `stop`.
    """

    def __init__(self) -> None:
        self._lost = 0.0
        self._due: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._users = 0

    def now(self) -> float:
        """Return the time in seconds. Never goes back. Before `start` it is the monotonic clock."""
        return time.monotonic() - self._lost - self._late()

    def _late(self) -> float:
        return 0.0 if self._due is None else max(0.0, time.monotonic() - self._due - FREE_S)

    def start(self) -> None:
        self._users += 1
        if self._users == 1:
            self._arm()

    def _arm(self) -> None:
        self._due = time.monotonic() + TICK_S
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def stop(self) -> None:
        self._users -= 1
        if self._users:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._lost += self._late()
        self._due = self._timer = None

    def _tick(self) -> None:
        self._lost += self._late()
        self._arm()
