"""How fast a follower that lacks much of the log is given it while producers send. Pure: the time is an argument."""

from __future__ import annotations

from typing import Final

SHARE: Final = 0.04
"""Part of the event loop's time that serving it may take."""
COPIES: Final = 2.0
"""What was read is copied into the socket as well, which costs as much again."""
LONGEST_S: Final = 0.06
AHEAD: Final = 1.25
"""However busy the machine is, it is given so many times what producers append meanwhile, or it would never arrive."""
CREDIT_S: Final = 0.1
"""A follower that is late with its question makes up for it: pieces of so long come without a pause then."""
GROWTH_S: Final = 1.0
"""The growth of the log is looked at over so long."""
FORGOTTEN_S: Final = 5.0
"""After so long without a piece the growth is looked at anew."""


class Pace:
    """Of one follower."""

    def __init__(self) -> None:
        self._given_at = float("-inf")
        self._due = 0.0
        self._looked_at = 0.0
        self._looked_end = 0
        self._growth = 0.0
        """Bytes a second."""

    def due(self, now: float, took_s: float, piece: int, log_end: int) -> float:
        """When the next piece may be given, if one of so many bytes that took so long to read is given `now`."""
        if now - self._given_at > FORGOTTEN_S:
            self._looked_at, self._looked_end, self._growth = now, log_end, 0.0
            self._due = now
        elif now - self._looked_at >= GROWTH_S:
            self._growth = max(0.0, (log_end - self._looked_end) / (now - self._looked_at))
            self._looked_at, self._looked_end = now, log_end
        self._given_at = now
        pause = min(COPIES * took_s / SHARE, LONGEST_S)
        if self._growth:
            pause = min(pause, piece / (AHEAD * self._growth))
        # From when this piece was due, not from when it was asked for: else the rate would depend on the follower's.
        self._due = max(self._due, now - CREDIT_S) + pause
        return self._due
