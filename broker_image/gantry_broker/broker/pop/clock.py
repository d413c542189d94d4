"""The time of deliveries, which does not go back: neither when the wall clock is set nor under a new leader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gantry_broker.broker.clock import Clock

SET_BACK_MS: Final = 1_000
"""A wall clock that goes back by less is followed."""


class PopClock:
    """Wall-clock time in milliseconds since 1970, or later.

    The log has when each delivery began and how long it lasts. By a clock that is behind the former one by an hour, all
    messages in flight would stay invisible for an hour more, and orderly queues would stand still. So this clock begins
    at the latest time in the log, and goes on from there.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_ms = 0
        self._last_ms = 0

    def lead(self, latest_ms: int) -> None:
        """Note that this member leads, and that the log's latest delivery began at that time."""
        self._last_ms = 0
        self._ahead_ms = max(latest_ms - self._clock.unix_ms(), 0)

    def unix_ms(self) -> int:
        """Return the time now."""
        now = self._clock.unix_ms() + self._ahead_ms
        if now < self._last_ms - SET_BACK_MS:
            self._ahead_ms += self._last_ms - now
            now = self._last_ms
        self._last_ms = now
        return now
