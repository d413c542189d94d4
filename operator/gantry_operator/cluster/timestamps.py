"""Times as Kubernetes writes them."""

from __future__ import annotations

import time
from datetime import datetime


def utc(unix_ms: int | None = None) -> str:
    """RFC 3339 in UTC, in whole seconds. `unix_ms`: milliseconds since 1970; None: now."""
    seconds = time.time() if unix_ms is None else unix_ms / 1000
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def unix_s(text: str | None) -> float | None:
    """Seconds since 1970 of a time as `utc` writes it; None: there is none, or it is no such time."""
    try:
        return None if text is None else datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
