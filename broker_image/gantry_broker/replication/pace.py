"""The pace at which a leader serves a follower far behind, while producers send. Pure: time is an argument."""

from __future__ import annotations

from typing import Final

SHARE: Final = 0.04
"""The share of the event loop's time that serving it may take."""
COPIES: Final = 2.0
"""The copy of the read bytes into the socket costs as much as the read."""
LONGEST_S: Final = 0.06
AHEAD: Final = 1.25
"""Its rate is at least this multiple of what producers append, or it would never catch up on a busy machine."""
CREDIT_S: Final = 0.1
"""A follower that is late with its fetch makes up for this much time: those pieces come without a pause."""
GROWTH_S: Final = 1.0
"""The period over which the growth of the log is measured."""
FORGOTTEN_S: Final = 5.0
"""After a pause this long the growth is measured again from the start."""


class Pace:
    """The pace of one follower."""

    def __init__(self) -> None:
        self._given_at = float("-inf")
        self._due = 0.0
        self._looked_at = 0.0
        self._looked_end = 0
        self._growth = 0.0
        """Bytes a second."""

    def due(self, now: float, took_s: float, piece: int, log_end: int) -> float:
        """Return when the next piece may follow one of `piece` bytes that took `took_s` to read and is sent `now`."""
        if now - self._given_at > FORGOTTEN_S:
            self._looked_at, self._looked_end, self._growth = now, log_end, 0.0
            self._due = now
        elif now - self._looked_at >= GROWTH_S:
            self._growth = max(0.0, (log_end - self._looked_end) / (now - self._looked_at))
            self._looked_at, self._looked_end = now, log_end
        self._given_at = now
        pause = min(COPIES * took_s / SHARE, LONGEST_S)
        if self._growth:
            # Never slower than the log grows: the follower would not arrive, and the group would stay one copy short.
            pause = min(pause, piece / (AHEAD * self._growth))
        # The time at which the piece was due counts, not the time of the fetch: else the follower's pace would set the
        # rate.
        self._due = max(self._due, now - CREDIT_S) + pause
        return self._due
