"""The clocks of one broker: one object, which tests replace."""

from __future__ import annotations

import logging
import time
from typing import Final

log = logging.getLogger(__name__)

SLACK_MS: Final = 60_000
"""A wall clock that is ahead by more has been set, or the machine has slept."""
SET_BACK_MS: Final = 1_000
"""A wall clock that goes back by less is followed."""
PATIENCE_MS: Final = 3_600_000
"""The time for which a step of the wall clock can be corrected before anything is removed by it."""


class Clock:
    """Monotonic and wall-clock time in whole milliseconds."""

    @staticmethod
    def now_ms() -> int:
        """Monotonic milliseconds, for deadlines."""
        return time.monotonic_ns() // 1_000_000

    @staticmethod
    def unix_ms() -> int:
        """Milliseconds since 1970, for records and for clients."""
        return time.time_ns() // 1_000_000


class AgeClock:
    """The wall clock for what removes messages by their age: a step forward counts after `PATIENCE_MS`. Pure."""

    def __init__(self) -> None:
        self._last: tuple[int, int] | None = None
        """Monotonic and wall-clock time when they last agreed."""
        self._ahead_since: int | None = None

    def unix_ms(self, now_ms: int, unix_ms: int) -> int:
        """Return the time by which age counts. `now_ms`: monotonic."""
        if self._last is not None:
            expected = self._last[1] + now_ms - self._last[0]
            if unix_ms > expected + SLACK_MS:
                if self._ahead_since is None:
                    self._ahead_since = now_ms
                    log.warning(
                        "the clock is %d s ahead of the time that has passed; age counts by it in %d minutes",
                        (unix_ms - expected) // 1_000, PATIENCE_MS // 60_000,
                    )  # fmt: skip
                if now_ms - self._ahead_since < PATIENCE_MS:
                    return expected
        self._last, self._ahead_since = (now_ms, unix_ms), None
        return unix_ms


class SteadyClock:
    """Wall-clock time in milliseconds since 1970, or later: it does not go back, neither when the wall clock is set nor
    under a new leader.

    POP's log has when each delivery began and how long it lasts. By a clock that is behind the former one by an hour,
    all messages in flight would stay invisible for an hour more, orderly queues would stand still, and no half message
    would be asked about. So this clock begins at the latest time in the log, and goes on from there.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_ms = 0
        self._last_ms = 0

    def lead(self, latest_ms: int) -> None:
        """Note that this member leads, and the latest time that its log has."""
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
