"""How fast a follower that lacks much of the log is given it while producers send. Pure: the time is an argument."""

from __future__ import annotations

from typing import Final

SHARE: Final = 0.05
"""Part of the event loop's time that reading for it may take."""
LONGEST_S: Final = 0.25
AHEAD: Final = 2.0
"""However busy the machine is, it is given so many times what producers append meanwhile, or it would never arrive."""
GROWTH_S: Final = 1.0
"""The growth of the log is looked at over so long."""
FORGOTTEN_S: Final = 5.0
"""After so long without a piece the growth is looked at anew."""


class Pace:
    """Of one follower."""

    def __init__(self) -> None:
        self._given_at = float("-inf")
        self._looked_at = 0.0
        self._looked_end = 0
        self._growth = 0.0
        """Bytes a second."""

    def pause(self, now: float, took_s: float, piece: int, log_end: int) -> float:
        """Seconds from `now`, when a piece of so many bytes is given that took so long to read, until the next one."""
        if now - self._given_at > FORGOTTEN_S:
            self._looked_at, self._looked_end, self._growth = now, log_end, 0.0
        elif now - self._looked_at >= GROWTH_S:
            self._growth = max(0.0, (log_end - self._looked_end) / (now - self._looked_at))
            self._looked_at, self._looked_end = now, log_end
        self._given_at = now
        pause = min(took_s / SHARE, LONGEST_S)
        return min(pause, piece / (AHEAD * self._growth)) if self._growth else pause
