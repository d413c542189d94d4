"""Warnings about a disk that refuses a write again and again, at a bounded rate."""

from __future__ import annotations

import logging
import time
from typing import Final

WARN_AGAIN_S: Final = 60.0
_log = logging.getLogger(__name__)


class RateLimitedWarnings:
    """Logs each kind of failure at most once a minute, and at once when the error changes."""

    def __init__(self) -> None:
        self._logged: dict[str, tuple[int | None, float]] = {}
        """Last error code and time (monotonic clock) of each kind of failure."""

    def warn(self, what: str, error: OSError | str) -> None:
        """Log `what` and the error, unless the same was logged within the last minute."""
        now, code = time.monotonic(), error.errno if isinstance(error, OSError) else None
        before, at = self._logged.get(what, (0, 0.0))
        if code != before or now - at >= WARN_AGAIN_S:
            self._logged[what] = (code, now)
            _log.warning("%s: %s", what, error)
