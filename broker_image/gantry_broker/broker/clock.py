"""The clocks of one broker: one object, which tests replace."""

from __future__ import annotations

import time


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
