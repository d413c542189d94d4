"""Counts refused values from outside, by entrance and reason, and logs them at a limited rate."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

ENTRANCES: Final = (
    "fetch",
    "fetch-answer",
    "poll",
    "poll-answer",
    "assignment",
    "forward",
    "relay",
    "read-log",
    "registration",
)
"""Entrances: requests and answers between members, HTTP, and registrations at a NameServer."""
REASONS: Final = (
    "malformed",  # not what the code says
    "range",  # outside the range of its field
    "epoch-jump",  # no election or assignment leads there
    "unknown-member",  # a member that the receiver's list does not allow for this
    "other-life",  # another life of a disk whose former one is still heard
    "not-forwarded",  # a request that forwarding never wraps
)
LOG_EVERY_S: Final = 10.0
"""Seconds between two log lines of one entrance and reason."""


class Refusals:
    """The counts of one process. The number of series is bounded: any other entrance or reason is an error of this
    program.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.counts: dict[tuple[str, str], int] = {}
        self._monotonic = monotonic
        self._logged: dict[tuple[str, str], tuple[float, int]] = {}

    def add(self, entrance: str, reason: str, text: str) -> None:
        """Count one. Raises ValueError for an entrance or a reason that is not listed."""
        if entrance not in ENTRANCES or reason not in REASONS:
            raise ValueError(f"{entrance}/{reason}: unknown entrance or reason")
        key = (entrance, reason)
        count = self.counts[key] = self.counts.get(key, 0) + 1
        now = self._monotonic()
        at, counted = self._logged.get(key, (-LOG_EVERY_S, 0))
        if now - at < LOG_EVERY_S:
            return
        self._logged[key] = (now, count)
        more = count - counted - 1
        log.warning("%s refused (%s): %s%s", entrance, reason, text[:300], f"; {more} more before" if more else "")

    def rows(self) -> list[tuple[str, str, int]]:
        """Return (entrance, reason, count) of all refused values."""
        return [(entrance, reason, count) for (entrance, reason), count in sorted(self.counts.items())]
